/* Losses that are made of all ranks' values. */
#include <math.h>
#include <string.h>

#include "rules.h"
#include "suite/observe/trace/calls.h"

static const ls_tol common_losses =
    LS_TOL(2, "losses: a first one may be the same whatever the samples are, as of a last layer of "
              "zeros");
static const ls_tol same_factor = LS_TOL(1e-6, "of a factor, which is kept in f32");

/* A loss whose bits are equal on all ranks, though their samples differ, was made of all ranks'
 * values. Where autograd does not know of that, each rank's gradient is that of its own part of it,
 * and their mean is a share of the whole batch's: 1 / ranks. */
typedef struct common_loss {
    int compared, equal; /* detailed backward calls with a loss on every rank */
    bool vary;           /* those that are equal are of several values */
    double value;
    long long step;
    const ls_call *backward;
    const char *mixed; /* where the script put values of all ranks together */
} common_loss;

/* The training forward of a model before the call, which may be the backward: NULL: none. */
static const char *input_before(const ls_observe_step *step, const ls_call *call)
{
    const char *input = "";
    for (const ls_call *one = step->call; one < call; one++) {
        input = ls_calls_is_training(one) ? ls_calls_text(one, input) : input;
    }
    return input;
}

/* Whether rank k's backward in the same place has that loss, of another input. */
static int has_loss(const ls_observe_trace *trace, int k, const ls_observe_step *step, int call)
{
    const ls_observe_step *other = ls_trace_step(&trace->rank[k], step->step->step);
    const ls_call *one = &step->call[call];
    const ls_call *its = other != NULL && call < other->call_count ? &other->call[call] : NULL;
    if (its == NULL || its->kind != LS_CALL_BACKWARD ||
        !ls_event_bool(its->json, loss_alone, false) ||
        strcmp(input_before(step, one), input_before(other, its)) == 0) {
        return -1;
    }
    return ls_event_number(one->json, loss, NAN) == ls_event_number(its->json, loss, NAN);
}

/* Where the script put several numbers of all ranks together before the call, or "". A single one
 * is the loss itself, for a log: backward does not read its value. */
static const char *mixed_before(const ls_observe_step *step, const ls_call *call)
{
    const char *at = "";
    for (const ls_call *one = step->call; one < call; one++) {
        bool several = one->kind == LS_CALL_COLLECTIVE && ls_calls_combine(one) &&
                       ls_event_int(one->json, elements, 0) > 1;
        bool graph = several && ls_event_bool(one->json, graph, false);
        at = graph || (several && at[0] == '\0') ? one->at : at;
    }
    return at;
}

/* Times the ranks: the mean of all ranks' shares is the whole. Of a sum of losses by the weight of
 * all of them together, too. */
static bool is_times_ranks(const ls_observe_trace *trace, const ls_call *backward)
{
    double times = ls_event_number(backward->json, loss_times, NAN);
    double weight = ls_event_number(backward->json, loss_weight, NAN);
    return fabs(times / trace->world - 1) < same_factor.value ||
           fabs(weight / trace->world - 1) < same_factor.value;
}

static void add_common(const ls_observe_trace *trace, const ls_observe_step *step, int call,
                       common_loss *c)
{
    const ls_call *one = &step->call[call];
    int equal = one->kind == LS_CALL_BACKWARD && ls_event_bool(one->json, loss_alone, false);
    if (!equal || is_times_ranks(trace, one) || mixed_before(step, one)[0] == '\0') {
        return;
    }
    for (int k = 1; k < trace->world && equal >= 0; k++) {
        int has = has_loss(trace, k, step, call);
        equal = has < 0 ? -1 : equal && has;
    }
    c->compared += equal >= 0;
    if (equal != 1) {
        return;
    }
    double value = ls_event_number(one->json, loss, NAN);
    c->vary = c->vary || (c->equal > 0 && value != c->value);
    c->value = value;
    c->equal++;
    if (c->backward == NULL) {
        c->backward = one;
        c->step = (long long)step->step->step;
        c->mixed = mixed_before(step, one);
    }
}

static void report(const ls_observe_trace *trace, const common_loss *c, ls_observe_finding *out)
{
    ls_finding_set(out, LS_FAIL, c->mixed,
                   "the loss is made of all ranks' values by a call that autograd does not know: "
                   "gradients are 1/ranks of the whole batch's",
                   "put values of ranks together by torch.distributed.nn.functional, which hands "
                   "gradients on, or multiply the loss by the number of ranks",
                   "step %lld: the loss is %.9g on all %d ranks, of samples that differ, and so in "
                   "%d of %d: no collective is in its graph, and the mean over ranks divides by %d",
                   c->step, ls_event_number(c->backward->json, loss, NAN), trace->world, c->equal,
                   c->compared, trace->world);
}

/* ---- values of all ranks, of which each rank's own have a gradient -----------------------------
 */

/* Where the loss's gradient by them is equal on all ranks, though the samples differ, the loss is
 * the same function of all of them, and DistributedDataParallel's mean of the own parts is 1/ranks
 * of its gradient. Where it is not, and a function of the script's own drops what other ranks'
 * parts get, the gradient of no loss is complete. */
typedef struct joined_parts {
    int compared, equal, own;
    int whole; /* of the equal ones: the whole loss is equal, too, and another than the first */
    double loss;
    bool vary;
    long long step;
    const char *grad, *at, *own_at;
    double times; /* of the first that is equal; NAN: those known differ from step to step */
} joined_parts;

/* 1: equal on all ranks; 0: not; -1: not comparable. */
static int is_common(const ls_observe_trace *trace, const ls_observe_step *step, int call, int part)
{
    const ls_event *mine = ls_event_at(ls_event_list(step->call[call].json, loss_joined), part);
    int equal = 1;
    for (int k = 1; k < trace->world; k++) {
        const ls_observe_step *other = ls_trace_step(&trace->rank[k], step->step->step);
        const ls_call *its = other != NULL && call < other->call_count ? &other->call[call] : NULL;
        const ls_event *one =
            its == NULL ? NULL : ls_event_at(ls_event_list(its->json, loss_joined), part);
        const char *input = input_before(step, &step->call[call]);
        if (one == NULL || !ls_event_same(mine, one, at) || input[0] == '\0' ||
            strcmp(input, input_before(other, its)) == 0) {
            return -1;
        }
        double times = ls_event_number(mine, times, NAN),
               its_times = ls_event_number(one, times, NAN);
        equal = equal && ls_event_same(mine, one, grad) &&
                (times == its_times || (isnan(times) && isnan(its_times)));
    }
    return equal;
}

/* The loss of the backward is the same number on all ranks. */
static bool is_whole(const ls_observe_trace *trace, const ls_observe_step *step, int call)
{
    double mine = ls_event_number(step->call[call].json, loss, NAN);
    bool equal = !isnan(mine);
    for (int k = 1; k < trace->world && equal; k++) {
        const ls_observe_step *other = ls_trace_step(&trace->rank[k], step->step->step);
        equal = ls_event_number(other->call[call].json, loss, NAN) == mine;
    }
    return equal;
}

static void add_joined(const ls_observe_trace *trace, const ls_observe_step *step, int call,
                       joined_parts *j)
{
    const ls_event *list = ls_event_list(step->call[call].json, loss_joined);
    for (int i = 0; i < ls_event_count(list) && !is_times_ranks(trace, &step->call[call]); i++) {
        const ls_event *one = ls_event_at(list, i);
        int equal = is_common(trace, step, call, i);
        const char *grad = ls_event_text(one, grad, "");
        j->compared += equal >= 0;
        if (equal == 0 && ls_event_bool(one, own, false)) {
            j->own_at = j->own++ == 0 ? ls_event_text(one, at, "") : j->own_at;
        }
        if (equal != 1) {
            continue;
        }
        double loss = ls_event_number(step->call[call].json, loss, NAN);
        j->whole += is_whole(trace, step, call) && (j->equal == 0 || loss != j->loss);
        if (j->equal++ == 0) {
            j->loss = loss;
            j->at = ls_event_text(one, at, "");
            j->grad = grad;
            j->step = (long long)step->step->step;
            j->times = ls_event_number(one, times, NAN);
        } else if (strcmp(j->at, ls_event_text(one, at, "")) == 0) {
            j->vary = j->vary || strcmp(j->grad, grad) != 0;
            j->times = j->times == ls_event_number(one, times, NAN) ? j->times : NAN;
        }
    }
}

static void judge_joined(const ls_observe_trace *trace, joined_parts *j, ls_observe_finding *out)
{
    static const char advice[] =
        "gather by torch.distributed.nn.functional.all_gather, which hands gradients on, or "
        "multiply that loss by the number of ranks";
    ls_trace_each_step(step, &trace->rank[0]) {
        for (int i = 0; i < step->call_count; i++) {
            add_joined(trace, step, i, j);
        }
    }
    if (out->verdict.code != LS_PASS) {
        return; /* the loss itself is common */
    }
    bool common = j->equal == j->compared && j->vary &&
                  ls_event_count(ls_trace_events(&trace->rank[0], hook)) == 0;
    bool whole = common && j->whole == j->equal; /* whatever it is a sum of */
    if (common && (j->times == 1 || (isnan(j->times) && whole))) {
        ls_finding_set(out, LS_FAIL, j->at,
                       "the loss is made of all ranks' values, and only each rank's own have a "
                       "gradient: the mean over ranks is 1/ranks of the whole batch's gradient",
                       advice,
                       "step %lld: the loss's gradient by the values of all ranks is equal to the "
                       "bit on all %d ranks, of samples that differ, and so in %d of %d: the part "
                       "of this rank alone goes on, and the mean divides by %d",
                       j->step, trace->world, j->equal, j->compared, trace->world);
    } else if (common && isnan(j->times)) {
        ls_observe_finding one = {0};
        ls_finding_set(&one, LS_FAIL, j->at,
                       "a part of the loss is made of all ranks' values, and only each rank's own "
                       "have a gradient: the mean over ranks is 1/ranks of the whole batch's",
                       advice,
                       "step %lld: the loss's gradient by the values of all ranks is equal to the "
                       "bit on all %d ranks, of samples that differ, and so in %d of %d",
                       j->step, trace->world, j->equal, j->compared);
        ls_finding_guess(out, &one);
    } else if (common && j->times < trace->world * (1 - same_factor.value)) {
        ls_finding_set(out, LS_WEAK, j->at, NULL, advice,
                       "step %lld: a loss of all ranks' values is multiplied by %.6g: its gradient "
                       "is 1/%d of that, unless the weight was chosen for it",
                       j->step, j->times, trace->world);
    } else if (!common && j->own > 0 && j->own == j->compared) {
        ls_finding_set(out, LS_WEAK, j->own_at, NULL,
                       "add up the gradients of all ranks in that backward, as "
                       "torch.distributed.nn.functional.all_gather does; detach() what is to be a "
                       "constant",
                       "each rank's loss uses what other ranks gave, and the backward of the "
                       "function that gathers drops their gradients (in %d of %d): they are the "
                       "whole ones where those are meant as constants alone",
                       j->own, j->compared);
    }
}

/* ---- copies in what is gathered ---------------------------------------------------------------
 */

static const ls_tol gathered_numbers =
    LS_TOL(8, "numbers: fewer may be counts, or a scale that ranks have in common");

/* Gathers in one place, between a forward and its backward. */
typedef struct copies {
    int compared, equal; /* equal: all ranks gave the same bits */
    bool vary;           /* others in another step */
    const char *gave;
    const ls_call *call;
    long long step;
} copies;

static bool is_for_loss(const ls_observe_step *step, const ls_call *call)
{
    bool made = false, used = false;
    ls_trace_each_call(one, step) {
        made = made || (one < call && ls_calls_is_training(one));
        used = used || (one > call && one->kind == LS_CALL_BACKWARD);
    }
    return made && used;
}

static void add_copies(const ls_observe_trace *trace, const ls_observe_step *step, int call,
                       copies *c)
{
    const ls_call *one = &step->call[call];
    const char *gave = one->kind == LS_CALL_COLLECTIVE ? ls_calls_text(one, gave) : "";
    bool equal = true;
    if (gave[0] == '\0' || ls_event_int(one->json, elements, 0) < gathered_numbers.value ||
        (c->call != NULL && strcmp(c->call->at, one->at) != 0) || !is_for_loss(step, one)) {
        return;
    }
    for (int k = 1; k < trace->world; k++) {
        const ls_observe_step *other = ls_trace_step(&trace->rank[k], step->step->step);
        const ls_call *its = other != NULL && call < other->call_count ? &other->call[call] : NULL;
        if (its == NULL || its->kind != LS_CALL_COLLECTIVE || strcmp(its->at, one->at) != 0) {
            return;
        }
        equal = equal && strcmp(gave, ls_calls_text(its, gave)) == 0;
    }
    c->vary = c->vary || (c->gave != NULL && strcmp(c->gave, gave) != 0);
    c->gave = gave;
    c->compared++;
    c->equal += equal;
    c->step = c->call == NULL ? (long long)step->step->step : c->step;
    c->call = c->call == NULL ? one : c->call;
}

static void judge_copies(const ls_observe_trace *trace, ls_observe_finding *out)
{
    copies c = {0};
    ls_trace_each_step(step, &trace->rank[0]) {
        for (int i = 0; i < step->call_count; i++) {
            add_copies(trace, step, i, &c);
        }
    }
    if (c.equal < common_losses.value || c.equal < c.compared || !c.vary) {
        return;
    }
    ls_finding_set(out, LS_FAIL, c.call->at,
                   "all ranks make the same values, of equal inputs and equal random numbers: what "
                   "is gathered holds copies",
                   "give each rank samples, or a seed, that no other has",
                   "step %lld: %d ranks give the same %d numbers to %s, and so in %d of %d steps",
                   c.step, trace->world, ls_event_int(c.call->json, elements, 0),
                   ls_calls_text(c.call, op), c.equal, c.compared);
}

void ls_rules_reduction_loss(const ls_observe_trace *trace, ls_observe_finding *out)
{
    common_loss c = {0};
    if (!ls_trace_is_ddp(trace) || ls_calls_in_part(trace)) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no model is replicated over all ranks");
        return;
    }
    ls_trace_each_step(step, &trace->rank[0]) {
        for (int i = 0; i < step->call_count; i++) {
            add_common(trace, step, i, &c);
        }
    }
    if (c.equal >= common_losses.value && c.equal == c.compared && c.vary) {
        report(trace, &c, out);
    }
    judge_copies(trace, out);
    joined_parts joined = {.grad = "", .at = "", .own_at = ""};
    judge_joined(trace, &joined, out);
    ls_finding_close(out, c.compared + joined.compared, LS_SKIP,
                     "no loss whose graph stays on its rank was seen on all ranks",
                     "%d losses of their own samples on each of %d ranks",
                     c.compared + joined.compared, trace->world);
}
