/* Whether the settings of an optimizer reach the parameters that they are meant for: rates that the
 * script sets in some of its groups only, or in none; a decay that a filter by name gives to the
 * wrong ones; moments that are lost with the optimizer that held them. */
#define _GNU_SOURCE /* strcasestr */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "suite/observe/trace/by_hand.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"
#include "suite/observe/trace/pass.h"
#include "rules.h"

enum { GROUPS = 32 };

static const ls_tol rounded_rate =
    LS_TOL(0x1p-20, "of a rate: one that is kept in f32 is rounded, a few times over");
static const ls_tol few_steps =
    LS_TOL(4, "steps: in fewer the rate of a group may not have come to its turn");

static bool same_rate(double a, double b)
{
    return fabs(a - b) <= rounded_rate.value * fmax(fabs(a), fabs(b));
}

static const ls_event *groups_of(const ls_event *optimizer)
{
    return ls_event_list(optimizer, groups);
}

static bool was_restored(const ls_observe_rank *rank, int optimizer)
{
    const ls_event *restore;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        int which = ls_event_int(restore, which, -1);
        if (strcmp(ls_event_text(restore, what, ""), "optimizer") == 0 &&
            (which < 0 || which == optimizer)) {
            return true;
        }
    }
    return false;
}

/* ---- rates ----------------------------------------------------------------------------------- */

/* A group's rate over the steps of its optimizer, and as a schedule gave it. */
typedef struct rates {
    double built, first; /* as the constructor left it; in the first step; NaN: not known */
    bool moves;
    double given_first;
    bool given_moves;
    const ls_event *group;
} rates;

typedef struct course {
    rates group[GROUPS];
    int count, steps;
    int apart;                      /* steps in which two groups have rates that differ */
    int zero;                       /* steps in which all are 0 */
    const ls_call *step, *schedule; /* the last */
    const char *rate_at;            /* where the text sets the rate of some groups, or "" */
    const char *set_at;             /* where it sets a rate at all, or "" */
} course;

static void add_step(course *c, const ls_call *call)
{
    bool apart = false, zero = true;
    for (int g = 0; g < c->count; g++) {
        rates *own = &c->group[g];
        double rate = ls_calls_rate(call, g);
        own->moves = own->moves || (!isnan(own->first) && !same_rate(rate, own->first));
        own->first = isnan(own->first) ? rate : own->first;
        apart = apart || !same_rate(rate, ls_calls_rate(call, 0));
        zero = zero && rate == 0;
    }
    c->steps += call->times;
    c->apart += apart ? call->times : 0;
    c->zero += zero ? call->times : 0;
    c->step = call;
}

static void add_schedule(course *c, const ls_call *call)
{
    for (int g = 0; g < c->count; g++) {
        rates *own = &c->group[g];
        double rate = ls_calls_rate(call, g);
        own->given_moves =
            own->given_moves || (!isnan(own->given_first) && !same_rate(rate, own->given_first));
        own->given_first = isnan(own->given_first) ? rate : own->given_first;
    }
    c->schedule = call;
}

static course course_of(const ls_observe_rank *rank, const ls_event *optimizer)
{
    course c = {.rate_at = ls_event_text(optimizer, rate_at, ""),
                .set_at = ls_event_text(optimizer, set_at, "")};
    const ls_event *group;
    ls_event_each(group, groups_of(optimizer)) {
        if (c.count < GROUPS) {
            c.group[c.count++] =
                (rates){ls_event_number(group, built_lr, NAN), NAN, false, NAN, false, group};
        }
    }
    int number = ls_event_int(optimizer, optimizer, -1);
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
        if (call->kind == LS_CALL_OPTIMIZER_STEP && call->optimizer == number) {
            add_step(&c, call);
        } else if (call->kind == LS_CALL_SCHEDULE && call->optimizer == number) {
            add_schedule(&c, call);
        }
    }
    return c;
}

static bool is_trained(const ls_observe_rank *rank, const ls_event *group)
{
    const ls_event *param;
    ls_event_each(param, ls_event_list(group, params)) {
        const ls_observe_tensor *tensor =
            ls_event_is_text(param) ? ls_job_tensor(rank, param->text) : NULL;
        if (tensor != NULL && tensor->trainable) {
            return true;
        }
    }
    return false;
}

/* How two groups differ in what the script put into them. A name may only tell readers which group
 * it is; a number, or a key that one alone has, is a mark to choose by. */
typedef enum apart { APART_NOT, APART_BY_NAME, APART_BY_MARK } apart;

static apart compare_marks(const rates *a, const rates *b)
{
    const ls_event *own = ls_event_object(a->group, own), *one;
    const ls_event *other = ls_event_object(b->group, own);
    apart found = ls_event_count(own) == ls_event_count(other) ? APART_NOT : APART_BY_MARK;
    ls_event_each(one, own) {
        const ls_event *same = ls_event_find(other, ls_event_key(one));
        if (!ls_event_equal(one, same)) {
            bool named = ls_event_is_text(one) && ls_event_is_text(same);
            apart now = named ? APART_BY_NAME : APART_BY_MARK;
            found = now > found ? now : found;
        }
    }
    return found;
}

/* One group's rate moves, another's, which began alike, does not; not by a schedule, which has a
 * rate for each group, and not of groups with a mark of the script's own ("fix_lr"). */
static void judge_reach(const ls_observe_rank *rank, const course *c, ls_observe_finding *out)
{
    for (int a = 0; a < c->count; a++) {
        for (int b = 0; b < c->count; b++) {
            const rates *moved = &c->group[a], *still = &c->group[b];
            bool concerns = moved->moves && !moved->given_moves && !still->moves &&
                            is_trained(rank, moved->group) && is_trained(rank, still->group) &&
                            still->first > 0 && same_rate(still->first, still->built) &&
                            compare_marks(moved, still) != APART_BY_MARK;
            if (!concerns || c->steps < few_steps.value) {
                continue;
            }
            bool alike =
                same_rate(moved->built, still->built) && compare_marks(moved, still) == APART_NOT;
            ls_finding_set(
                out, alike ? LS_FAIL : LS_WEAK, c->rate_at[0] != '\0' ? c->rate_at : c->step->at,
                "the script sets the rate of some parameter groups only: the others keep that of "
                "the constructor",
                "set it in every group: for group in optimizer.param_groups: group['lr'] = lr",
                "the rate of parameter group %d changes, that of group %d (%d parameters) stays at "
                "%g in all %d steps",
                a, b, ls_event_count(ls_event_list(still->group, params)), still->first, c->steps);
        }
    }
}

/* Groups that were built with rates of their own step at one rate throughout. */
static void judge_overwritten(const course *c, ls_observe_finding *out)
{
    for (int g = 1; g < c->count; g++) {
        double a = c->group[0].built, b = c->group[g].built;
        if (out->verdict.code == LS_FAIL || !(a > 0) || !(b > 0) || same_rate(a, b) ||
            c->apart > 0 || c->steps - c->zero < 2) {
            continue;
        }
        bool by_schedule = c->schedule != NULL;
        ls_finding_set(out, LS_FAIL,
                       by_schedule            ? c->schedule->at
                       : c->set_at[0] != '\0' ? c->set_at
                                              : c->step->at,
                       NULL,
                       "scale each group's own rate (initial_lr), or give the schedule a list with "
                       "a rate for each group",
                       "parameter groups 0 and %d were built with rates %g and %g, and step at one "
                       "rate in all %d steps",
                       g, a, b, c->steps);
        ls_verdict_cause(&out->verdict,
                         by_schedule ? "the schedule is given one rate for all groups (max_lr), or "
                                       "the script writes one over those of the groups"
                                     : "the script writes one rate over those of the groups");
    }
}

/* A rate that is set where no step reads it. True: it is sure, as of torch's own optimizers. */
static bool judge_unread(const ls_observe_rank *rank, const course *c, int optimizer,
                         ls_observe_finding *out)
{
    const ls_call *first = NULL;
    int count = 0;
    for (int g = 0; g < c->count; g++) {
        if (c->group[g].moves) {
            return false;
        }
    }
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
        if (call->kind == LS_CALL_OPTIMIZER_STEP && call->optimizer == optimizer &&
            ls_calls_text(call, unread)[0] != '\0') {
            first = first == NULL ? call : first;
            count += call->times;
        }
    }
    if (count < 2) {
        return false;
    }
    bool defaults = strcmp(ls_calls_text(first, unread), "defaults") == 0;
    ls_finding_set(out, LS_FAIL, c->set_at[0] != '\0' ? c->set_at : first->at,
                   "the rate is set where no step reads it: each parameter group has its own",
                   "for group in optimizer.param_groups: group['lr'] = lr",
                   "%s is changed, and the rate stays at %g in all %d steps",
                   defaults ? "optimizer.defaults['lr']" : "an attribute lr of the optimizer",
                   c->group[0].first, c->steps);
    const char *class = ls_event_text(ls_job_optimizer(rank, optimizer), class, "");
    return defaults && strncmp(class, "torch.optim.", sizeof "torch.optim." - 1) == 0;
}

/* ---- decay ----------------------------------------------------------------------------------- */

/* Parameters of groups with decay, or without. */
typedef struct decayed {
    int groups, params, biases, norms, others; /* others: weights */
} decayed;

static void add_group(const ls_observe_rank *rank, const ls_event *group, decayed *d)
{
    const ls_event *param;
    d->groups++;
    ls_event_each(param, ls_event_list(group, params)) {
        if (ls_event_is_text(param)) {
            const ls_observe_tensor *tensor = ls_job_tensor(rank, param->text);
            const char *end = strrchr(param->text, 'b');
            bool norm = tensor != NULL && tensor->norm,
                 bias = end != NULL && strcmp(end, "bias") == 0;
            d->params++;
            d->norms += norm;
            d->biases += bias && !norm;
            d->others += !norm && !bias;
        }
    }
}

static bool is_in_a_name(const ls_event *optimizer, const char *word)
{
    const ls_event *group, *param;
    ls_event_each(group, groups_of(optimizer)) {
        ls_event_each(param, ls_event_list(group, params)) {
            if (ls_event_is_text(param) && strcasestr(param->text, word) != NULL) {
                return true;
            }
        }
    }
    return false;
}

/* A list of the script whose words for norms are in no parameter's name: it was made for another
 * model. */
static const char *unknown_norm(const ls_event *optimizer, const char **at)
{
    const ls_event *spared = ls_event_object(optimizer, spared), *word;
    *at = ls_event_text(spared, at, "");
    ls_event_each(word, ls_event_list(spared, words)) {
        if (ls_event_is_text(word) && strcasestr(word->text, "norm") != NULL &&
            !is_in_a_name(optimizer, word->text)) {
            return word->text;
        }
    }
    return NULL;
}

static bool has_frozen(const ls_observe_rank *rank)
{
    for (int i = 0; i < rank->tensor_count; i++) {
        if (!rank->tensor[i].trainable) {
            return true;
        }
    }
    return false;
}

static bool spares_biases(const ls_event *optimizer)
{
    const ls_event *word, *spared = ls_event_object(optimizer, spared);
    ls_event_each(word, ls_event_list(spared, words)) {
        if (ls_event_is_text(word) && strstr(word->text, "bias") != NULL) {
            return true;
        }
    }
    return false;
}

/* Whether a filter that catches nothing, or everything, may be right for this model: one by norms
 * alone where there are none, or a frozen model's few prompts, which do not decay. */
static bool may_be_meant(const ls_observe_rank *rank, const ls_event *optimizer,
                         const decayed *with, const decayed *without)
{
    bool by_norms = without->params == 0 && with->norms == 0 && !spares_biases(optimizer);
    return by_norms || (with->params == 0 && has_frozen(rank));
}

/* Groups with and without decay: a filter by name that catches nothing, everything, or the wrong
 * ones. What is usual is no decay of norms and biases; which weights have one is the script's
 * choice. */
static void judge_decay(const ls_observe_rank *rank, const ls_event *optimizer,
                        ls_observe_finding *out)
{
    decayed with = {0}, without = {0};
    const ls_event *group;
    const char *wrong = NULL;
    ls_event_each(group, groups_of(optimizer)) {
        double decay = ls_event_number(group, weight_decay, NAN);
        if (!isnan(decay)) {
            add_group(rank, group, decay > 0 ? &with : &without);
        }
    }
    if (with.groups == 0 || without.groups == 0) {
        return;
    }
    if (without.params == 0 && with.biases > 0) {
        wrong = "the group without decay is empty: the filter by name catches nothing, and norms "
                "and biases decay, too";
    } else if (with.params == 0 && without.others > 0) {
        wrong = "the group with decay is empty: the filter by name catches every parameter, and "
                "nothing decays";
    } else if (with.others == 0 && with.params > 0 && without.others > 0 &&
               without.biases + without.norms == 0) {
        wrong = "the groups are exchanged: norms and biases decay, and weights do not";
    }
    const char *at = "", *word = unknown_norm(optimizer, &at);
    if (wrong == NULL && word != NULL && with.norms > 0) {
        ls_finding_set(out, LS_FAIL, at,
                       "the list of what does not decay was made for another model: its norms have "
                       "other names here",
                       "choose by the parameter's shape (p.dim() < 2: no decay), and print the "
                       "groups' sizes once",
                       "\"%s\" is in no parameter's name, and %d parameters of norms are in the "
                       "group with decay",
                       word, with.norms);
        return;
    }
    if (wrong != NULL) {
        bool meant = may_be_meant(rank, optimizer, &with, &without);
        ls_finding_set(
            out, meant ? LS_WEAK : LS_FAIL, "", wrong, NULL,
            "with decay are %d norms and biases and %d other parameters, without it %d and %d",
            with.norms + with.biases, with.others, without.norms + without.biases, without.others);
    } else if (without.params == 0 && with.norms > 0) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "the group without decay is empty, and %d parameters of norms decay: its "
                       "filter may not know their names",
                       with.norms);
    }
    if (wrong != NULL || (without.params == 0 && with.norms > 0)) {
        ls_finding_blame(out, ls_event_text(optimizer, at, ""),
                         "choose by the parameter's shape (p.dim() < 2: no decay), and print the "
                         "groups' sizes once");
    }
}

/* Words that are meant for a setting: what a group holds under them no optimizer of torch reads. */
static const char *meant_for(const char *key)
{
    static const char *const words[][2] = {{"learningrate", "lr"},
                                           {"weightdecay", "weight_decay"},
                                           {"weightdecayrate", "weight_decay"}};
    char plain[24];
    size_t length = 0;
    for (; *key != '\0' && length + 1 < sizeof plain; key++) {
        if (isalnum((unsigned char)*key)) {
            plain[length++] = (char)tolower((unsigned char)*key);
        }
    }
    plain[length] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(plain, words[i][0]) == 0) {
            return words[i][1];
        }
    }
    return NULL;
}

static void judge_words(const ls_event *optimizer, ls_observe_finding *out)
{
    const ls_event *group, *own;
    int number = 0;
    bool of_torch = strncmp(ls_event_text(optimizer, class, ""), "torch.optim.", 12) == 0;
    ls_event_each(group, groups_of(optimizer)) {
        ls_event_each(own, ls_event_object(group, own)) {
            const char *meant = meant_for(ls_event_key(own));
            double has = meant == NULL ? NAN : ls_event_to_number(ls_event_find(group, meant), NAN);
            if (!of_torch || meant == NULL || !ls_event_is_number(own) || isnan(has) ||
                same_rate(own->number, has)) {
                continue;
            }
            ls_finding_set(out, LS_FAIL, "",
                           "a setting under another name than the optimizer's: a group takes any "
                           "key and ignores it",
                           NULL,
                           "parameter group %d has '%s': %g, which no step reads: its %s is %g",
                           number, ls_event_key(own), own->number, meant, has);
            ls_finding_blame(out, ls_event_text(optimizer, at, ""), "call it '%s'", meant);
        }
        number++;
    }
}

/* ---- moments --------------------------------------------------------------------------------- */

/* Built on the same line as the one before, of the same parameters and settings, without its state.
 */
static bool takes_over(const ls_observe_rank *rank, const ls_event *before, const ls_event *now)
{
    const char *at = ls_event_text(now, at, "");
    const ls_event *a = ls_event_at(groups_of(before), 0);
    const ls_event *b = ls_event_at(groups_of(now), 0);
    static const ls_event_member same[] = {LS_MEMBER_params, LS_MEMBER_built_lr,
                                           LS_MEMBER_weight_decay, LS_MEMBER_betas,
                                           LS_MEMBER_momentum};
    bool is =
        at[0] != '\0' && strcmp(at, ls_event_text(before, at, "")) == 0 &&
        ls_event_int(now, state, -1) == 0 &&
        (strcmp(ls_event_text(now, rule, ""), "sgd") != 0 || ls_event_number(b, momentum, 0) > 0) &&
        !was_restored(rank, ls_event_int(now, optimizer, -1)) && a != NULL;
    for (; is && a != NULL && b != NULL; a = ls_event_after(a), b = ls_event_after(b)) {
        for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
            const ls_event *x = ls_event_get(a, same[i]);
            const ls_event *y = ls_event_get(b, same[i]);
            is = is && ((x == NULL && y == NULL) || ls_event_equal(x, y));
        }
    }
    return is && a == NULL && b == NULL;
}

/* The loader that gave a step its data; -1: not known. */
static int loader_of(const ls_observe_rank *rank, int64_t step)
{
    const ls_event *data;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (ls_pass_is_trained(data) && ls_pass_first_step(data) <= (double)step &&
            (double)step <= ls_pass_last_step(data)) {
            return ls_event_int(data, loader, -1);
        }
    }
    return -1;
}

static int passes_of(const ls_observe_rank *rank, int loader)
{
    const ls_event *data;
    int count = 0;
    ls_event_each(data, ls_trace_events(rank, data)) {
        count += ls_pass_is_trained(data) && ls_event_int(data, loader, -1) == loader;
    }
    return count;
}

static int64_t first_step_of(const ls_observe_rank *rank, int optimizer)
{
    for (int i = 0; i < rank->step_count; i++) {
        const ls_call *call = NULL;
        if (ls_job_steps_of(&rank->step[i], optimizer, &call) > 0) {
            return rank->step[i].step->step;
        }
    }
    return 0;
}

static void judge_rebuilt(const ls_observe_trace *trace, const ls_observe_rank *rank,
                          ls_observe_finding *out)
{
    const ls_event *before = NULL, *now, *last = NULL;
    int count = 0, same_loader = 0, loader = -1;
    ls_event_each(now, ls_trace_events(rank, optimizer)) {
        if (before != NULL && takes_over(rank, before, now)) {
            int64_t step = first_step_of(rank, ls_event_int(now, optimizer, -1));
            loader = step > 1 ? loader_of(rank, step) : -1;
            count++;
            same_loader += loader >= 0 && loader == loader_of(rank, step - 1);
            last = now;
        }
        before = now;
    }
    if (count == 0) {
        return;
    }
    /* One that is built for other data begins another training, one after many passes may be meant
     * as a fresh start, and so may one of each round of ranks that average their parameters. */
    bool each_pass = same_loader == count && passes_of(rank, loader) == count + 1 &&
                     !ls_by_hand_averages_later(trace);
    ls_finding_set(
        out, each_pass ? LS_FAIL : LS_WEAK, ls_event_text(last, at, ""),
        "the optimizer is built inside the loop, or in a function that is called for each epoch",
        "build the optimizer once, before the loop",
        "%d optimizers in turn, each built on the same line for the same parameters: moments and "
        "counts of steps begin anew each time",
        count + 1);
}

/* ---- the rule -------------------------------------------------------------------------------- */

static void judge_optimizer(const ls_observe_rank *rank, const ls_event *optimizer,
                            ls_observe_finding *out)
{
    ls_observe_finding one[5] = {0};
    int number = ls_event_int(optimizer, optimizer, -1);
    course c = course_of(rank, optimizer);
    judge_words(optimizer, &one[0]);
    judge_decay(rank, optimizer, &one[1]);
    bool sure = judge_unread(rank, &c, number, &one[2]);
    if (!was_restored(rank, number)) { /* rates of the file */
        judge_reach(rank, &c, &one[3]);
        judge_overwritten(&c, &one[4]);
    }
    for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
        (sure && i == 2 ? ls_calls_keep_worst : ls_finding_guess)(out, &one[i]);
    }
}

void ls_rules_optimizer_settings(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int groups = 0, count = 0;
    if (ls_event_count(ls_trace_events(&trace->rank[0], optimizer)) == 0) {
        ls_finding_missing(trace, "no optimizer with its groups is reported", out);
        return;
    }
    if (ls_job_has_no_tensors(trace, out)) {
        return;
    }
    const ls_observe_rank *rank = &trace->rank[0];
    const ls_event *optimizer;
    ls_event_each(optimizer, ls_trace_events(rank, optimizer)) {
        judge_optimizer(rank, optimizer, out);
        groups += ls_event_count(groups_of(optimizer));
        count++;
    }
    ls_observe_finding one = {0};
    judge_rebuilt(trace, rank, &one);
    ls_finding_guess(out, &one);
    ls_verdict_pass(&out->verdict, groups, "%d parameter groups of %d optimizers", groups, count);
}
