/* Whether an optimizer's step is the one that its name and settings say: recomputed in FP64 from
 * parameter, gradient and state. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "reference/oracle/update.h"
#include "rules.h"
#include "suite/observe/trace/job.h"
#include "suite/judge/compare.h"

static const ls_tol exact =
    LS_TOL(1, "the distance in units of its own bound: one rounding for each operation of the "
              "update, in the type that the parameter is held in (numerics 8.2)");

typedef struct settings {
    char rule[8];
    double lr, momentum, dampening, decay, beta1, beta2, eps;
    bool nesterov, maximize, amsgrad, decoupled, corrected; /* corrected: Adam's bias */
} settings;

/* A parameter's part of a step. */
typedef struct task {
    const char *name;
    settings set;
    ls_unit unit;
    int64_t count;
    int64_t steps; /* that the optimizer has taken of it with this one; -1: not known */
    ls_values param, grad, next, other; /* other: the gradient before it was clipped */
    ls_values first, second, highest, next_first, next_second;
    double divide; /* the gradient by this: a fused optimizer takes it scaled */
    double scale;  /* of the loss */
} task;

/* What the step may have been instead. */
typedef enum variant {
    VARIANT_NONE,
    VARIANT_TWICE,
    VARIANT_SCALED,
    VARIANT_UNCLIPPED,
    VARIANT_NO_DECAY,
    VARIANT_OTHER_DECAY,
    VARIANT_NESTEROV,
    VARIANT_NEGATED,
    VARIANT_NO_STATE,
    VARIANT_NOT_AT_ALL,
    VARIANTS,
} variant;

typedef struct tally {
    int64_t steps, elements;
    int tensors, wrong, unseen; /* unseen: the update is smaller than its rounding */
    double worst;
    int64_t step;
    int rank;
    int fits[VARIANTS];
    double rate, rates; /* sums for the factor between the step taken and the one expected */
    ls_job_names names;
    char first[220], why_not[120];
    const char *at;
} tally;

/* ---- the rules ------------------------------------------------------------------------------- */

/* The elements of a tensor after a step, with their bounds. */
typedef struct stepped {
    double *value, *first, *second, *highest; /* [count] each, and behind each its errors */
    double *all;
} stepped;

static void copy_values(double *to, const ls_values *from, int64_t count)
{
    if (from->v != NULL) {
        memcpy(to, from->v, (size_t)count * sizeof *to);
    }
}

static stepped start_step(const task *w, bool with_state)
{
    int64_t n = w->count;
    double *all = ls_list_make((size_t)(8 * n) + 1, sizeof *all);
    stepped x = {all, all + 2 * n, all + 4 * n, all + 6 * n, all};
    copy_values(x.value, &w->param, n);
    if (with_state) {
        copy_values(x.first, &w->first, n);
        copy_values(x.second, &w->second, n);
        copy_values(x.highest, &w->highest, n);
    }
    return x;
}

static ls_update_rule rule_of(const task *w, variant how)
{
    const settings *s = &w->set;
    bool sgd = strcmp(s->rule, "sgd") == 0;
    bool decoupled = s->decoupled != (how == VARIANT_OTHER_DECAY);
    return (ls_update_rule){
        .kind = sgd         ? LS_UPDATE_SGD
                : decoupled ? LS_UPDATE_ADAMW
                            : LS_UPDATE_ADAM,
        .unit = {fmax(w->unit.u, 0x1p-52), w->unit.eta}, /* of f64 the rule's own rounding, too */
        .any_form = true,
        .lr = s->lr,
        .weight_decay = how == VARIANT_NO_DECAY ? 0 : s->decay,
        .momentum = s->momentum,
        .dampening = s->dampening,
        .nesterov = s->nesterov != (how == VARIANT_NESTEROV),
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .epsilon = s->eps,
        .uncorrected = !s->corrected,
        .amsgrad = s->amsgrad && !sgd,
    };
}

/* The gradient of each element, [count], and behind it its errors. */
static double *make_gradient(const task *w, variant how)
{
    double *grad = ls_list_make((size_t)(2 * w->count) + 1, sizeof *grad);
    for (int64_t i = 0; i < w->count; i++) {
        double g = how == VARIANT_UNCLIPPED ? w->other.v[i] : w->grad.v[i];
        g = how == VARIANT_SCALED ? g * w->scale : g;
        grad[i] = (w->set.maximize != (how == VARIANT_NEGATED) ? -g : g) / w->divide;
        if (w->divide != 1) { /* by its inverse, rounded, and the product */
            grad[w->count + i] = 3 * w->unit.u * fabs(grad[i]) + w->unit.eta;
        }
    }
    return grad;
}

/* The tensor after the step, by the task's own settings or a variant of them. */
static stepped take_step(const task *w, variant how)
{
    int64_t n = w->count;
    bool fresh = w->first.v == NULL || how == VARIANT_NO_STATE;
    stepped x = start_step(w, how != VARIANT_NO_STATE);
    if (how == VARIANT_NOT_AT_ALL) {
        return x;
    }
    double *grad = make_gradient(w, how);
    ls_update_rule rule = rule_of(w, how);
    ls_update_tensor tensor = {.count = n,
                               .grad = grad,
                               .grad_error = grad + n,
                               .value = x.value,
                               .value_error = x.value + n,
                               .moment = {x.first, x.second},
                               .moment_error = {x.first + n, x.second + n},
                               .highest = x.highest,
                               .highest_error = x.highest + n};
    rule.step = how == VARIANT_NO_STATE ? 1 : w->steps;
    for (int times = how == VARIANT_TWICE ? 2 : 1; times > 0; times--, rule.step++) {
        if (rule.kind == LS_UPDATE_SGD) {
            rule.step = fresh ? 1 : 2; /* whether it has a buffer */
            fresh = false;
        }
        LS_ASSERT(ls_update_step(&rule, &tensor) == LS_OK); /* but for LAMB it takes no memory */
    }
    free(grad);
    return x;
}

/* ---- one tensor ------------------------------------------------------------------------------ */

static double distance(double got, double wanted, double bound)
{
    double error = fabs(got - wanted);
    if (!isfinite(wanted) || !isfinite(got)) {
        return isfinite(wanted) == isfinite(got) ? 0 : INFINITY;
    }
    return error == 0 ? 0 : bound > 0 ? error / bound : INFINITY;
}

/* The element that is furthest away, in units of its bound. */
typedef struct furthest {
    double times;
    int64_t at;
    const char *what; /* of param and state */
    double got, wanted, bound;
} furthest;

/* `wanted`: [count], and behind it the bounds. */
static void take_further(furthest *f, const char *what, const ls_values *got, const double *wanted)
{
    for (int64_t i = 0; got->v != NULL && i < got->count; i++) {
        double bound = wanted[got->count + i], times = distance(got->v[i], wanted[i], bound);
        if (times > f->times) {
            *f = (furthest){times, i, what, got->v[i], wanted[i], bound};
        }
    }
}

static furthest compare(const task *w, variant how, bool states)
{
    furthest f = {.what = "next"};
    stepped x = take_step(w, how);
    take_further(&f, "the parameter", &w->next, x.value);
    if (states) {
        take_further(&f, "its first moment", &w->next_first, x.first);
        take_further(&f, "its second moment", &w->next_second, x.second);
    }
    free(x.all);
    return f;
}

/* Whether any element moves by more than its step may be off. */
static bool is_seen(const task *w)
{
    stepped x = take_step(w, VARIANT_NONE);
    bool seen = false;
    for (int64_t i = 0; i < w->count && !seen; i++) {
        seen = fabs(x.value[i] - w->param.v[i]) > 2 * x.value[w->count + i];
    }
    free(x.all);
    return seen;
}

static bool is_possible(const task *w, variant how)
{
    switch (how) {
    case VARIANT_SCALED:
        return w->scale != 1;
    case VARIANT_UNCLIPPED:
        return w->other.v != NULL && !ls_samples_equal(&w->other, &w->grad);
    case VARIANT_NO_DECAY:
    case VARIANT_OTHER_DECAY:
        return w->set.decay != 0 &&
               !(how == VARIANT_OTHER_DECAY && strcmp(w->set.rule, "sgd") == 0);
    case VARIANT_NESTEROV:
        return strcmp(w->set.rule, "sgd") == 0 && w->set.momentum != 0;
    case VARIANT_NO_STATE:
        return w->first.v != NULL;
    default:
        return true;
    }
}

/* The factor of the step taken to the one expected, by least squares: another rate. */
static void fit_rate(const task *w, tally *t)
{
    double product = 0, square = 0;
    stepped x = take_step(w, VARIANT_NONE);
    for (int64_t i = 0; i < w->count; i++) {
        double wanted = x.value[i] - w->param.v[i];
        double got = w->next.v[i] - w->param.v[i];
        if (isfinite(wanted) && isfinite(got)) {
            product += wanted * got;
            square += wanted * wanted;
        }
    }
    free(x.all);
    double rate = square > 0 ? product / square : NAN;
    task other = *w;
    other.set.lr *= rate;
    /* 8: the fitted rate is itself off by the roundings of all elements */
    if (isfinite(rate) && compare(&other, VARIANT_NONE, true).times <= 8) {
        t->rate += rate;
        t->rates++;
    }
}

static void judge_task(const task *w, int rank, int64_t step, tally *t)
{
    furthest f = compare(w, VARIANT_NONE, true);
    t->tensors++;
    t->elements += w->count;
    t->worst = fmax(t->worst, f.times);
    if (f.times <= exact.value) {
        t->unseen += !is_seen(w);
        return;
    }
    if (t->wrong == 0) {
        t->step = step;
        t->rank = rank;
        ls_text_put(t->first, sizeof t->first,
                    "%.80s element %lld, %.9g: %s becomes %.9g, by %s %.9g +- %.2g", w->name,
                    (long long)f.at, w->param.v[f.at], f.what, f.got, w->set.rule, f.wanted,
                    f.bound);
    }
    t->wrong++;
    ls_job_add_name(&t->names, w->name);
    for (int how = VARIANT_TWICE; how < VARIANTS; how++) {
        if (is_possible(w, (variant)how)) {
            t->fits[how] += compare(w, (variant)how, false).times <= exact.value;
        }
    }
    fit_rate(w, t);
}

/* ---- settings and values --------------------------------------------------------------------- */

static bool is_known(const char *rule)
{
    return ls_text_choice(rule, "sgd|adam|adamw") >= 0;
}

/* A setting of a group: as the step's call says where it changed, else as the optimizer's event. */
static double number(const ls_event *changed, const ls_event *group, ls_event_member name,
                     double fallback)
{
    return ls_event_to_number(ls_event_get(changed, name),
                              ls_event_to_number(ls_event_get(group, name), fallback));
}

static bool flag(const ls_event *changed, const ls_event *group, ls_event_member name,
                 bool fallback)
{
    return ls_event_to_bool(ls_event_get(changed, name),
                            ls_event_to_bool(ls_event_get(group, name), fallback));
}

static double beta(const ls_event *changed, const ls_event *group, int which, double fallback)
{
    const ls_event *betas = ls_event_list(ls_event_has(changed, betas) ? changed : group, betas);
    return ls_event_to_number(ls_event_at(betas, which), fallback);
}

static void read_settings(const ls_event *event, const ls_event *group, const ls_call *call,
                          int index, settings *s)
{
    const ls_event *changed = ls_event_at(ls_event_member(call->json, set), index);
    double rate = ls_calls_rate(call, index);
    const char *rule = ls_event_text(event, rule, "");
    ls_text_put(s->rule, sizeof s->rule, "%s", rule);
    s->lr = isnan(rate) ? number(changed, group, LS_NUMBER(lr), NAN) : rate;
    s->momentum = number(changed, group, LS_NUMBER(momentum), 0);
    s->dampening = number(changed, group, LS_NUMBER(dampening), 0);
    s->decay = number(changed, group, LS_NUMBER(weight_decay), 0);
    s->beta1 = beta(changed, group, 0, 0.9);
    s->beta2 = beta(changed, group, 1, 0.999);
    s->eps = number(changed, group, LS_NUMBER(eps), strcmp(rule, "sgd") == 0 ? 0 : 1e-8);
    s->nesterov = flag(changed, group, LS_BOOL(nesterov), false);
    s->maximize = flag(changed, group, LS_BOOL(maximize), false);
    s->amsgrad = flag(changed, group, LS_BOOL(amsgrad), false);
    s->corrected =
        ls_event_bool(group, bias_correction, ls_event_number(group, bias_correction, 1) != 0);
    s->decoupled = flag(changed, group, LS_BOOL(decoupled), strcmp(rule, "adamw") == 0);
}

static void read_values(const ls_samples *samples, int rank, const char *name, task *w)
{
    const ls_dumpfile *file = samples->file[rank];
    bool sgd = strcmp(w->set.rule, "sgd") == 0;
    const char *first = sgd ? "momentum_buffer" : "exp_avg";
    bool masters = ls_samples_find(file, "master", name, NULL) != NULL;
    w->name = name;
    w->param = ls_samples_read(file, masters ? "master" : "param", name, NULL);
    w->next = ls_samples_read(file, "next", name, NULL);
    w->grad = ls_samples_read(file, samples->trace->attached ? "used" : "grad", name, NULL);
    w->other = ls_samples_read(file, "clipped", name, NULL);
    if (w->other.v != NULL) {
        ls_samples_free(&w->other);
        w->other = ls_samples_read(file, "grad", name, NULL);
        if (w->other.v == NULL) {
            w->other = ls_samples_read(file, "reduced", name, NULL);
        }
    }
    w->first = ls_samples_read(file, "state", name, first);
    w->next_first = ls_samples_read(file, "next_state", name, first);
    if (!sgd) {
        w->second = ls_samples_read(file, "state", name, "exp_avg_sq");
        w->next_second = ls_samples_read(file, "next_state", name, "exp_avg_sq");
        w->highest = ls_samples_read(file, "state", name, "max_exp_avg_sq");
    }
    w->unit = w->param.unit;
    w->count = w->param.count;
}

static bool fits(const task *w, const ls_values *values)
{
    return values->v == NULL || values->count == w->count;
}

static bool is_whole(const task *w)
{
    return w->param.v != NULL && w->next.v != NULL && w->grad.v != NULL && fits(w, &w->next) &&
           fits(w, &w->grad) && fits(w, &w->other) && fits(w, &w->first) && fits(w, &w->second) &&
           fits(w, &w->highest) && fits(w, &w->next_first) && fits(w, &w->next_second) &&
           isfinite(w->set.lr);
}

static void free_task(task *w)
{
    ls_values *const list[] = {&w->param,  &w->grad,    &w->next,       &w->other,      &w->first,
                               &w->second, &w->highest, &w->next_first, &w->next_second};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        ls_samples_free(list[i]);
    }
}

/* Of a trainer of the protocol whose events begin with step 1: the steps up to this one that were
 * not skipped, whatever it counts itself; -1: not known. */
static int64_t count_taken(const ls_observe_rank *rank, int64_t number)
{
    int64_t taken = 0;
    for (int i = 0; i < rank->step_count && rank->step[i].step->step <= number; i++) {
        if (i == 0 && rank->step[i].step->step != 1) {
            return -1;
        }
        taken += !rank->step[i].step->skipped;
    }
    return taken > 0 ? taken : -1;
}

/* The count of steps with this one; -1 where the state has moments and no count. */
static int64_t count_steps(const ls_samples *samples, int rank, const task *w)
{
    if (!samples->trace->attached) {
        int64_t seen = count_taken(&samples->trace->rank[rank], samples->number);
        return seen >= 1 ? seen : ls_dumpfile_integer(samples->file[rank], "optimizer_steps", -1);
    }
    ls_values before = ls_samples_read(samples->file[rank], "state", w->name, "step");
    ls_values after = ls_samples_read(samples->file[rank], "next_state", w->name, "step");
    int64_t steps = -1;
    if (before.v != NULL && before.count > 0) {
        (void)ls_json_whole(before.v[0] + 1, 1, INT64_C(1) << 53, &steps);
    } else if (after.v != NULL && after.count > 0) {
        (void)ls_json_whole(after.v[0], 1, INT64_C(1) << 53, &steps);
    } else if (w->first.v == NULL) {
        steps = 1;
    }
    ls_samples_free(&before);
    ls_samples_free(&after);
    return steps;
}

/* A fused optimizer that a scaler calls takes the scaled gradient, and no unscale is seen; where it
 * leaves the unscaled one in its place, that is what `grad/` and `used/` hold. */
static bool takes_scaled(const ls_samples *samples, int rank, const char *name, const ls_call *call)
{
    const ls_observe_step *step = samples->step[rank];
    if (ls_event_int(call->json, scaled, -1) < 0 ||
        ls_samples_find(samples->file[rank], "grad", name, NULL) != NULL) {
        return false;
    }
    for (int c = ls_trace_find(step, LS_CALL_UNSCALE, 0); c >= 0;
         c = ls_trace_find(step, LS_CALL_UNSCALE, c + 1)) {
        if (step->call[c].optimizer == call->optimizer) {
            return false;
        }
    }
    return true;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static void finish_task(const ls_samples *samples, int rank, task *w, tally *t)
{
    w->steps = count_steps(samples, rank, w);
    if (is_whole(w) && (w->steps >= 1 || strcmp(w->set.rule, "sgd") == 0)) {
        judge_task(w, rank, samples->number, t);
    }
    free_task(w);
}

/* Of the optimizers that hold the parameter, the one that stepped; false: none with a known rule.
 */
static bool read_attached(const ls_samples *samples, int rank, const char *name, task *w, tally *t)
{
    int optimizer = -1, index;
    const ls_call *call = NULL;
    const ls_observe_rank *own = &samples->trace->rank[rank];
    const ls_event *group = ls_job_group(own, name, -1, &optimizer, &index);
    while (group != NULL && ls_job_steps_of(samples->step[rank], optimizer, &call) == 0) {
        group = ls_job_group(own, name, optimizer, &optimizer, &index);
    }
    if (group == NULL || call == NULL) {
        return false;
    }
    const ls_event *event = ls_job_optimizer(own, optimizer);
    if (!is_known(ls_event_text(event, rule, ""))) {
        ls_text_put(t->why_not, sizeof t->why_not, "%s: its update is not known here",
                    ls_event_text(event, class, "an optimizer"));
        return false;
    }
    *w = (task){.divide = 1, .scale = samples->step[rank]->step->loss_scale};
    w->scale = isnan(w->scale) ? 1 : w->scale;
    read_settings(event, group, call, index, &w->set);
    t->at = call->at;
    read_values(samples, rank, name, w);
    w->divide = takes_scaled(samples, rank, name, call) ? w->scale : 1;
    return true;
}

bool ls_rules_step_expect(const ls_samples *samples, int rank, const char *name, ls_values *param,
                          ls_values *next, ls_values *wanted)
{
    task w;
    tally ignored = {.at = ""};
    if (!samples->trace->attached || !read_attached(samples, rank, name, &w, &ignored)) {
        return false;
    }
    w.steps = count_steps(samples, rank, &w);
    bool known = is_whole(&w) && (w.steps >= 1 || strcmp(w.set.rule, "sgd") == 0);
    if (known) {
        *wanted = (ls_values){.count = w.count,
                              .v = ls_list_make((size_t)w.count + 1, sizeof *wanted->v),
                              .unit = w.unit};
        stepped x = take_step(&w, VARIANT_NONE);
        memcpy(wanted->v, x.value, (size_t)w.count * sizeof *wanted->v);
        free(x.all);
        *param = w.param;
        *next = w.next;
        w.param = w.next = (ls_values){0};
    }
    free_task(&w);
    return known;
}

static void judge_protocol(const ls_samples *samples, int rank, const char *name, tally *t)
{
    const ls_dumpfile *file = samples->file[rank];
    const char *rule = ls_dumpfile_text(file, "optimizer", "sgd");
    const char *betas = ls_dumpfile_text(file, "betas", "0.9,0.999");
    const char *comma = strchr(betas, ',');
    LS_TEXT(rate, 600, "lr/%s", name);
    LS_TEXT(decay, 600, "weight_decay/%s", name);
    task w = {.divide = 1, .scale = ls_dumpfile_number(file, "loss_scale", 1)};
    w.set = (settings){
        .lr = ls_dumpfile_number(file, rate, ls_dumpfile_number(file, "lr", NAN)),
        .momentum = ls_dumpfile_number(file, "momentum", 0),
        .decay = ls_dumpfile_number(file, decay, ls_dumpfile_number(file, "weight_decay", 0)),
        .beta1 = strtod(betas, NULL),
        .beta2 = comma == NULL ? NAN : strtod(comma + 1, NULL),
        .eps = ls_dumpfile_number(file, "eps", 0),
        .nesterov = ls_dumpfile_flag(file, "nesterov", false),
        .decoupled = strcmp(rule, "adamw") == 0,
        .corrected = true,
    };
    ls_text_put(w.set.rule, sizeof w.set.rule, "%s", rule);
    read_values(samples, rank, name, &w);
    finish_task(samples, rank, &w, t);
}

/* LAMB, LARS and clipped gradients: all tensors of a dump at once, by the rule that its metadata
 * name. */
static void judge_dump(const ls_samples *samples, int rank, tally *t)
{
    const ls_dumpfile *file = samples->file[rank];
    ls_update_rule rule;
    ls_compare_checks checks = {0};
    ls_compare_optim_result result = {0};
    bool skipped = false;
    if (!ls_compare_optim_rule(file, false, &rule, &skipped) ||
        ls_compare_optim_step(file, &rule, false, &checks, &result) != LS_OK || !result.judged) {
        ls_text_put(t->why_not, sizeof t->why_not, "%s: %s",
                    ls_dumpfile_text(file, "optimizer", "sgd"),
                    result.why != NULL ? result.why : "its update is not known here");
        return;
    }
    t->tensors++;
    t->elements += result.elements;
    t->unseen += result.moved == 0;
    t->worst = fmax(t->worst, result.ratio);
    if (checks.count > 0) {
        t->wrong += checks.count;
        t->step = samples->number;
        t->rank = rank;
        ls_text_put(t->first, sizeof t->first, "%s", checks.line);
        ls_job_add_name(&t->names, checks.tensor);
    }
}

static void judge_rank(const ls_samples *samples, int rank, tally *t)
{
    const ls_observe_rank *own = &samples->trace->rank[rank];
    /* In a dump of one of several models, whether that one's optimizer was. */
    bool skipped = samples->file[rank] != NULL && samples->step[rank]->step->skipped;
    if (samples->file[rank] == NULL ||
        (samples->trace->attached ? skipped
                                  : ls_dumpfile_flag(samples->file[rank], "skipped", skipped))) {
        return;
    }
    /* Updates that depend on norms of whole tensors, or of all of them: dumps hold them. */
    const ls_dumpfile *file = samples->file[rank];
    if (!samples->trace->attached && (!is_known(ls_dumpfile_text(file, "optimizer", "sgd")) ||
                                      ls_dumpfile_number(file, "clip_grad_norm", 0) != 0 ||
                                      ls_dumpfile_number(file, "clip_grad_value", 0) != 0)) {
        judge_dump(samples, rank, t);
        t->steps++;
        return;
    }
    for (int i = 0; i < own->with_shards; i++) {
        task w;
        if (!samples->trace->attached) {
            judge_protocol(samples, rank, own->tensor[i].name, t);
        } else if (read_attached(samples, rank, own->tensor[i].name, &w, t)) {
            finish_task(samples, rank, &w, t);
        }
    }
    t->steps++;
}

/* ---- two steps in one ------------------------------------------------------------------------ */

/* The second call of an optimizer that neither a backward pass nor zero_grad() separates from its
 * first; NULL: none, or its gradients come from elsewhere (torch.func.grad). */
static const ls_call *second_call(const ls_observe_step *step, int optimizer)
{
    int calls = 0;
    bool after = false; /* a backward pass */
    ls_trace_each_call(call, step) {
        bool clears =
            call->kind == LS_CALL_ZERO_GRAD && (call->model >= 0 || call->optimizer == optimizer);
        after = after || call->kind == LS_CALL_BACKWARD;
        calls = call->kind == LS_CALL_BACKWARD || clears ? 0 : calls;
        if (after && call->kind == LS_CALL_OPTIMIZER_STEP && call->optimizer == optimizer) {
            calls += call->times;
            if (calls > 1) {
                return call;
            }
        }
    }
    return NULL;
}

/* An optimizer that steps again takes the same gradient twice. */
static bool find_double_step(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        for (int i = 0; i < rank->step_count; i++) {
            const ls_event *event;
            ls_event_each(event, ls_trace_events(rank, optimizer)) {
                int optimizer = ls_event_int(event, optimizer, 0);
                const ls_call *call = second_call(&rank->step[i], optimizer);
                if (call != NULL) {
                    /* Within Join the hook of an optimizer in shards steps on ranks without data.
                     */
                    const char *class = ls_event_text(event, class, "the optimizer");
                    bool joins = ls_job_sharded_optimizer(trace) != NULL;
                    ls_finding_set(
                        out, joins ? LS_WEAK : LS_FAIL, call->at,
                        "stepped twice with the same gradient",
                        "step once: through the scaler where there is one, else directly",
                        "step %lld, rank %d: %s steps twice after one backward pass",
                        (long long)rank->step[i].step->step, k, class);
                    return true;
                }
            }
        }
    }
    return false;
}

/* ---- verdict --------------------------------------------------------------------------------- */

static void blame(const tally *t, ls_observe_finding *out)
{
    static const struct {
        const char *cause, *advice;
    } words[VARIANTS] = {
        [VARIANT_TWICE] = {"stepped twice with the same gradient", "step once"},
        [VARIANT_SCALED] = {"the gradient was still scaled", "step through scaler.step()"},
        [VARIANT_UNCLIPPED] = {"the gradient was used as it was before clipping",
                               "clip before the optimizer steps"},
        [VARIANT_NO_DECAY] = {"the weight decay of the settings was left out",
                              "apply the weight decay that the group names"},
        [VARIANT_OTHER_DECAY] = {"weight decay coupled in place of decoupled, or the reverse",
                                 "take Adam for decay in the gradient, AdamW for decay of the "
                                 "parameter"},
        [VARIANT_NESTEROV] = {"with Nesterov momentum in place of plain, or the reverse",
                              "check the optimizer's nesterov setting"},
        [VARIANT_NEGATED] = {"a step up the gradient", "check the sign of loss and maximize"},
        [VARIANT_NO_STATE] = {"the state of earlier steps was not used",
                              "create the optimizer once, before the loop, and load its state"},
        [VARIANT_NOT_AT_ALL] = {"the parameter did not move, and the step was not skipped",
                                "check that the optimizer holds the model's own parameters"},
    };
    int best = VARIANT_TWICE;
    for (int how = VARIANT_TWICE; how < VARIANTS; how++) {
        best = t->fits[how] > t->fits[best] ? how : best;
    }
    if (t->fits[best] * 2 > t->wrong) {
        ls_finding_explain(out, t->at, words[best].cause, words[best].advice);
    } else if (t->rates * 2 > t->wrong) {
        ls_verdict_cause(&out->verdict, "another learning rate than the group's: %.4g times it",
                         t->rate / t->rates);
        ls_finding_blame(out, t->at, "step with the rate that the group names");
    } else {
        ls_finding_blame(out, t->at, "check what changes parameters or state during the step");
    }
}

/* Schedules of these names change momentum and betas, too. */
static bool changes_momentum(const ls_observe_trace *trace)
{
    bool changes = false, reported = false;
    const ls_observe_rank *rank = &trace->rank[0];
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
        const char *class = ls_event_text(call->json, class, "");
        changes =
            changes || (call->kind == LS_CALL_SCHEDULE &&
                        (strstr(class, "OneCycle") != NULL || strstr(class, "Cyclic") != NULL));
        reported =
            reported || (call->kind == LS_CALL_OPTIMIZER_STEP && ls_event_has(call->json, set));
    }
    return changes && !reported;
}

/* The script may have changed a setting since the optimizer's event: every rank's step differs, in
 * a way that no known fault explains, after steps that fitted. */
static bool may_be_changed(const ls_samples *samples, const tally *t, int64_t fitted)
{
    for (int how = VARIANT_TWICE; how < VARIANTS; how++) {
        if (t->fits[how] * 2 > t->wrong) {
            return false;
        }
    }
    bool all = fitted > 0 && t->rates * 2 <= t->wrong && samples->trace->attached &&
               !ls_event_bool(ls_event_object(samples->trace->rank[0].start, observe), set, false);
    for (int k = 0; k < samples->world && all; k++) {
        tally own = {.at = ""};
        judge_rank(samples, k, &own);
        all = own.wrong > 0;
    }
    return all;
}

static void conclude(const tally *t, ls_observe_finding *out)
{
    if (t->elements == 0) {
        ls_verdict_set(&out->verdict, t->steps == 0 ? LS_WEAK : LS_UNSUPPORTED, "%s",
                       t->steps == 0           ? "no detailed step was taken"
                       : t->why_not[0] != '\0' ? t->why_not
                                               : "no samples of parameters, gradients and state");
    } else if (t->unseen == t->tensors) {
        ls_verdict_set(&out->verdict, LS_WEAK, "no update is larger than its rounding");
    }
    ls_verdict_measured(&out->verdict, t->worst, exact.value, "bounds", exact.why);
    ls_verdict_pass(&out->verdict, t->elements,
                    "%lld elements in %lld steps of ranks recomputed; the furthest is %.2g of its "
                    "bound away",
                    (long long)t->elements, (long long)t->steps, t->worst);
}

void ls_rules_step_judge(const ls_observe_trace *trace, ls_observe_finding *out)
{
    tally t = {.at = ""};
    if (find_double_step(trace, out) || ls_still_judge_copies(trace, out)) {
        return;
    }
    bool changed = false;
    ls_samples_each(samples, trace, 0, t.wrong == 0, out) {
        int64_t fitted = t.elements;
        for (int k = 0; k < samples.world && t.wrong == 0; k++) {
            judge_rank(&samples, k, &t);
        }
        changed = t.wrong > 0 && may_be_changed(&samples, &t, fitted);
    }
    if (t.wrong > 0 && (changed || changes_momentum(trace))) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "settings other than the rate may have changed since the optimizer's event, "
                       "and the calls do not report them: in step %lld %s",
                       (long long)t.step, t.first);
    } else if (t.wrong > 0) {
        ls_verdict_fail(&out->verdict, "step %lld, rank %d: %s; so in %d tensors: %s",
                        (long long)t.step, t.rank, t.first, t.wrong, ls_job_names_text(&t.names));
        blame(&t, out);
    }
    if (t.wrong == 0) {
        ls_still_judge_optimizers(trace, out);
    }
    conclude(&t, out);
}
