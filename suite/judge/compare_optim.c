#include <math.h>
#include <string.h>

#include "kernels/core/list.h"
#include "judges.h"

/* reference/oracle/interval.h bounds one order of the operations. */
static const ls_tol order =
    LS_TOL(2, "f32's errors of this formula in one order of its operations, and as much again for "
              "another order (Apex divides where torch multiplies)");

/* ---- the rule -------------------------------------------------------------------------------- */

bool ls_compare_optim_rule(const ls_dumpfile *file, bool nesterov, ls_update_rule *rule,
                           bool *skipped)
{
    ls_update_kind kind = ls_update_find(ls_dumpfile_text(file, "optimizer", "sgd"));
    int64_t step = ls_dumpfile_integer(file, "step", 0);
    int64_t taken = ls_dumpfile_integer(file, "optimizer_steps", 0);
    double beta1 = 0.9, beta2 = 0.999; /* defaults of torch and Apex */
    const char *betas = ls_dumpfile_text(file, "betas", NULL);
    *skipped = ls_dumpfile_flag(file, "skipped", false);
    if (kind == LS_UPDATE_KINDS || step < 0 || taken < 0 ||
        (betas != NULL && sscanf(betas, "%lf,%lf", &beta1, &beta2) != 2) ||
        (!*skipped && ls_dumpfile_text(file, "lr", NULL) == NULL) ||
        (!*skipped && ls_update_counts_steps(kind) && taken == 0 && step != 1) ||
        (kind == LS_UPDATE_LAMB && (ls_dumpfile_number(file, "clip_grad_norm", 0) != 0 ||
                                    ls_dumpfile_number(file, "clip_grad_value", 0) != 0))) {
        return false;
    }
    *rule = (ls_update_rule){
        .kind = kind,
        .step = taken > 0 ? taken : step,
        .lr = ls_dumpfile_number(file, "lr", 0),
        .weight_decay = ls_dumpfile_number(file, "weight_decay", 0),
        .momentum = ls_dumpfile_number(file, "momentum", 0),
        .nesterov = nesterov || ls_dumpfile_flag(file, "nesterov", false),
        .beta1 = beta1,
        .beta2 = beta2,
        .epsilon = ls_dumpfile_number(file, "eps", ls_update_epsilon(kind)),
        .max_grad_norm = ls_dumpfile_number(file, "max_grad_norm", 1),
        .trust = ls_dumpfile_number(file, "trust", 0.02),
        .clip = ls_dumpfile_flag(file, "larc_clip", false),
        .clip_norm = ls_dumpfile_number(file, "clip_grad_norm", 0),
        .clip_value = ls_dumpfile_number(file, "clip_grad_value", 0),
    };
    return true;
}

const ls_dumpfile_entry *ls_compare_optim_before(const ls_dumpfile *file, const char *name)
{
    const ls_dumpfile_entry *master = ls_dumpfile_findf(file, "master/%s", name);
    const ls_dumpfile_entry *held = ls_dumpfile_findf(file, "param/%s", name);
    const ls_dumpfile_entry *next = ls_dumpfile_findf(file, "next/%s", name);
    if (master != NULL) {
        return master;
    }
    /* masters are made from the rounded half weights, so at step 1 both are the same number */
    bool is_value =
        held != NULL && next != NULL &&
        (strcmp(held->dtype, next->dtype) == 0 || ls_dumpfile_number(file, "step", 0) == 1);
    return is_value ? held : NULL;
}

static const ls_dumpfile_entry *moment_of(const ls_dumpfile *file, const char *prefix,
                                          const char *name, const ls_update_rule *rule, int moment)
{
    return ls_dumpfile_findf(file, "%s/%s/%s", prefix, name,
                             ls_update_moment_name(rule->kind, moment));
}

/* One parameter's tensors in the dump. */
typedef struct found {
    const char *name;
    const ls_dumpfile_entry *before, *grad, *next;
    const ls_dumpfile_entry *state[2], *next_state[2]; /* NULL if missing */
} found;

/* False for a tensor whose step cannot be judged: *why says what the dump may lack, or, where it
 * contradicts itself, a check fails. */
static bool find(const ls_dumpfile *file, const ls_dumpfile_entry *next, const ls_update_rule *rule,
                 bool skipped, ls_compare_checks *checks, const char **why, found *out)
{
    const char *name = next->name + strlen("next/");
    const ls_dumpfile_entry *held = ls_dumpfile_findf(file, "param/%s", name);
    *out = (found){.name = name,
                   .before = ls_compare_optim_before(file, name),
                   .grad = ls_dumpfile_findf(file, "grad/%s", name),
                   .next = next};
    int before = checks->count;
    if (out->grad == NULL || (held == NULL && out->before == NULL)) {
        ls_compare_checks_fail(checks, NULL, "%s has no %s/%s", next->name,
                               out->grad == NULL ? "grad" : "param", name);
        return false;
    }
    if (!ls_dumpfile_floats(next, next->count) || !ls_dumpfile_floats(out->grad, next->count) ||
        !ls_dumpfile_floats(out->before != NULL ? out->before : held, next->count)) {
        ls_compare_checks_fail(checks, name,
                               "%s, its value and its gradient are not as many floats", next->name);
    }
    *why = out->before == NULL ? "a parameter changes its type and has no master/" : *why;
    for (int m = 0; m < ls_update_moments(rule); m++) {
        const char *moment = ls_update_moment_name(rule->kind, m);
        const ls_dumpfile_entry *state = moment_of(file, "state", name, rule, m);
        const ls_dumpfile_entry *after = moment_of(file, "next_state", name, rule, m);
        out->state[m] = state;
        out->next_state[m] = after;
        if ((state == NULL && ls_dumpfile_has(file, "state/")) ||
            (state != NULL && !ls_dumpfile_floats(state, next->count)) ||
            (after == NULL && ls_dumpfile_has(file, "next_state/")) ||
            (after != NULL && !ls_dumpfile_floats(after, next->count))) {
            ls_compare_checks_fail(checks, name,
                                   "%s: %s in state/ or next_state/ is missing or not "
                                   "as many floats",
                                   name, moment);
        } else if (state == NULL && rule->step != 1 && !skipped) {
            *why = "the moments before it (state/) are missing";
        }
    }
    return checks->count == before && **why == '\0';
}

/* ---- comparing ------------------------------------------------------------------------------- */

double ls_compare_optim_ratio(const ls_dumpfile_entry *next, double got, double expected,
                              double error)
{
    double limit = order.value * error;
    ls_bits_type stored = ls_dumps_type(next);
    if (stored != LS_BITS_F32) {
        limit += ls_bits_unit(stored) * fabs(expected) + ls_bits_tiny(stored);
    }
    double off = fabs(got - expected);
    return off == 0 ? 0 : off / limit; /* a first buffer is its gradient: nothing is rounded */
}

/* Zeroed arrays for one tensor, carved from one block. */
typedef struct room {
    double *value, *value_error, *grad, *moment[2], *moment_error[2], *got, *before;
} room;

enum { ROOM_ARRAYS = 9 };

static double *make_room(int64_t count, room *r)
{
    double *block = ls_list_make((size_t)(count * ROOM_ARRAYS) + 1, sizeof *block);
    double **array[ROOM_ARRAYS] = {&r->value,           &r->value_error, &r->grad,
                                   &r->moment[0],       &r->moment[1],   &r->moment_error[0],
                                   &r->moment_error[1], &r->got,         &r->before};
    for (int i = 0; i < ROOM_ARRAYS; i++) {
        *array[i] = block + i * count;
    }
    return block;
}

static void compare_values(const found *f, const ls_update_rule *rule, const room *r,
                           ls_compare_checks *checks, ls_compare_optim_result *out)
{
    ls_dumpfile_read(f->next, r->got);
    for (int64_t i = 0; i < f->next->count; i++) {
        double ratio = ls_compare_optim_ratio(f->next, r->got[i], r->value[i], r->value_error[i]);
        out->elements++;
        out->unlimited += isinf(r->value_error[i]);
        out->moved += r->got[i] != r->before[i];
        out->ratio = ratio > out->ratio ? ratio : out->ratio;
        if (!(ratio <= 1)) {
            ls_compare_checks_fail(
                checks, f->name,
                "%s element %lld: next/ is %.9g, %s gives %.9g from %.9g, %.3g x "
                "limit (f32 arithmetic)",
                f->name, (long long)i, r->got[i], ls_update_label(rule->kind), r->value[i],
                r->before[i], ratio);
            return;
        }
    }
}

static void compare_moment(const found *f, const ls_update_rule *rule, int moment, const room *r,
                           ls_compare_checks *checks)
{
    ls_dumpfile_read(f->next_state[moment], r->got);
    for (int64_t i = 0; i < f->next->count; i++) {
        double expected = r->moment[moment][i];
        double ratio = ls_compare_optim_ratio(f->next_state[moment], r->got[i], expected,
                                              r->moment_error[moment][i]);
        if (!(ratio <= 1)) {
            ls_compare_checks_fail(checks, f->name,
                                   "%s element %lld: %s is %.9g after the step, its formula gives "
                                   "%.9g, %.3g x limit (f32 arithmetic)",
                                   f->name, (long long)i, ls_update_moment_name(rule->kind, moment),
                                   r->got[i], expected, ratio);
            return;
        }
    }
}

/* A parameter of a group has a rate and a decay of its own in the metadata. */
static ls_update_rule rule_of_group(const ls_dumpfile *file, const char *name,
                                    const ls_update_rule *rule)
{
    ls_update_rule own = *rule;
    LS_TEXT(decay, 200, "weight_decay/%.160s", name);
    LS_TEXT(lr, 200, "lr/%.160s", name);
    own.weight_decay = ls_dumpfile_number(file, decay, rule->weight_decay);
    own.lr = ls_dumpfile_number(file, lr, rule->lr);
    return own;
}

static ls_status check_taken(const ls_dumpfile *file, const found *f, const ls_update_rule *rule,
                             const room *r, ls_compare_checks *checks, ls_compare_optim_result *out)
{
    ls_dumpfile_read(f->before, r->value);
    ls_dumpfile_read(f->before, r->before);
    ls_dumpfile_read(f->grad, r->grad);
    for (int m = 0; m < 2; m++) {
        if (f->state[m] != NULL) {
            ls_dumpfile_read(f->state[m], r->moment[m]);
        }
    }
    ls_update_tensor tensor = {
        .count = f->next->count,
        .grad = r->grad,
        .value = r->value,
        .value_error = r->value_error,
        .moment = {r->moment[0], r->moment[1]},
        .moment_error = {r->moment_error[0], r->moment_error[1]},
    };
    const ls_update_rule own = rule_of_group(file, f->name, rule);
    LS_TRY(ls_update_step(&own, &tensor));
    compare_values(f, &own, r, checks, out);
    for (int m = 0; m < ls_update_moments(rule); m++) {
        if (f->next_state[m] != NULL) {
            compare_moment(f, rule, m, r, checks);
        }
        out->state_judged = out->state_judged && f->next_state[m] != NULL;
    }
    return LS_OK;
}

static void check_same(const char *name, const char *what, const ls_dumpfile_entry *before,
                       const ls_dumpfile_entry *after, const room *r, ls_compare_checks *checks)
{
    ls_dumpfile_read(before, r->before);
    ls_dumpfile_read(after, r->got);
    for (int64_t i = 0; i < after->count; i++) {
        if (!(r->before[i] == r->got[i])) {
            ls_compare_checks_fail(
                checks, name, "%s element %lld: a skipped step changed its %s from %.9g to %.9g",
                name, (long long)i, what, r->before[i], r->got[i]);
            return;
        }
    }
}

static void check_skipped(const found *f, const ls_update_rule *rule, const room *r,
                          ls_compare_checks *checks, ls_compare_optim_result *out)
{
    check_same(f->name, "value", f->before, f->next, r, checks);
    for (int m = 0; m < ls_update_moments(rule); m++) {
        bool both = f->state[m] != NULL && f->next_state[m] != NULL;
        out->state_judged = out->state_judged && both;
        if (both) {
            check_same(f->name, ls_update_moment_name(rule->kind, m), f->state[m], f->next_state[m],
                       r, checks);
        }
    }
    out->elements += f->next->count;
}

/* ---- the dump -------------------------------------------------------------------------------- */

static bool is_next(const ls_dumpfile_entry *entry)
{
    return strncmp(entry->name, "next/", 5) == 0;
}

/* Whether every parameter can be judged, and the sum of all squares. `why` not: a dump may leave
 * out what it cannot provide, and then nothing is judged. What contradicts itself is a failure: a
 * name that is no parameter's, a parameter that is left out. */
static void survey(const ls_dumpfile *file, ls_update_rule *rule, bool skipped,
                   ls_compare_checks *checks, const char **why)
{
    bool needs = rule->kind == LS_UPDATE_LAMB || rule->clip_norm > 0;
    rule->grad_squares = 0;
    rule->grad_elements = 0;
    *why = ls_dumpfile_has(file, "next/") ? "" : "next/ is missing";
    for (int i = 0; i < ls_dumpfile_count(file) && **why == '\0'; i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(file, i);
        found f;
        if (strncmp(entry->name, "param/", 6) == 0 &&
            ls_dumpfile_findf(file, "next/%s", entry->name + 6) == NULL) {
            ls_compare_checks_fail(checks, entry->name + 6, "next/%s is missing", entry->name + 6);
        } else if (is_next(entry) && find(file, entry, rule, skipped, checks, why, &f) && needs) {
            double *grad = ls_dumps_values(f.grad);
            rule->grad_squares += ls_update_squares(grad, f.grad->count);
            rule->grad_elements += f.grad->count;
            free(grad);
        }
    }
}

ls_status ls_compare_optim_step(const ls_dumpfile *file, const ls_update_rule *rule, bool skipped,
                                ls_compare_checks *checks, ls_compare_optim_result *out)
{
    ls_update_rule full = *rule;
    ls_compare_checks again = {0};
    memset(out, 0, sizeof *out);
    survey(file, &full, skipped, checks, &out->why);
    out->judged = out->why[0] == '\0';
    out->state_judged = out->judged && ls_update_moments(rule) > 0;
    ls_status status = LS_OK;
    for (int i = 0; out->judged && i < ls_dumpfile_count(file) && status == LS_OK; i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(file, i);
        found f;
        if (!is_next(entry) || !find(file, entry, &full, skipped, &again, &out->why, &f)) {
            continue; /* one that failed in the survey */
        }
        room r;
        double *block = make_room(entry->count, &r);
        if (skipped) {
            check_skipped(&f, &full, &r, checks, out);
        } else {
            status = check_taken(file, &f, &full, &r, checks, out);
        }
        free(block);
    }
    if (out->unlimited > 0) {
        out->judged = false;
        out->why = "the rule's numbers leave elements without a limit";
    }
    return status;
}
