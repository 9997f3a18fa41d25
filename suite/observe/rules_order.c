/* Whether the script makes its calls in an order that all ranks share and that torch's notes ask
 * for: collectives, steps, schedules, clearing of gradients, clipping. */
#include <math.h>
#include <string.h>

#include "calls.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "rules.h"
#include "samples.h"

static bool concerns(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (!trace->attached) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "the trainer's own events hold no calls");
        return false;
    }
    return true;
}

/* How the job ended: with exit codes of all ranks, where the launcher left them. */
static bool ended_well(const ls_observe_trace *trace)
{
    ls_record_state state = trace->record.state;
    for (int k = 0; k < trace->world; k++) {
        const ls_record_rank *rank = trace->rank[k].record;
        if (!rank->ended || rank->code > 0 || rank->signal > 0) {
            return false;
        }
    }
    return state == LS_RECORD_DONE || state == LS_RECORD_UNKNOWN || state == LS_RECORD_STOPPED;
}

/* ---- order.collectives ----------------------------------------------------------------------- */

/* Between two ranks by nature, or on some of them only. */
static bool is_pairwise(const char *op)
{
    return strstr(op, "send") != NULL || strstr(op, "recv") != NULL || strstr(op, "p2p") != NULL;
}

/* Collectives on a group of some ranks are not compared: which ranks, is not recorded. */
static bool is_compared(const ls_observe_trace *trace, const ls_call *call)
{
    return call->kind == LS_CALL_COLLECTIVE && !is_pairwise(ls_calls_text(call, "op")) &&
           ls_json_int(call->json, "ranks", trace->world) == trace->world;
}

/* The place in a step's calls of the n-th collective, equal ones in a row counted singly. */
static const ls_call *collective_at(const ls_observe_trace *trace, const ls_observe_step *step,
                                    int n)
{
    for (int c = 0; c < step->call_count; c++) {
        if (is_compared(trace, &step->call[c])) {
            n -= step->call[c].times;
            if (n < 0) {
                return &step->call[c];
            }
        }
    }
    return NULL;
}

/* Whether all ranks give the same number of elements: not so in gathers and scatters. */
static bool has_one_size(const char *op)
{
    return strcmp(op, "all_reduce") == 0 || strcmp(op, "broadcast") == 0 ||
           strcmp(op, "reduce") == 0;
}

static bool same_collective(const ls_call *a, const ls_call *b)
{
    const char *op = ls_calls_text(a, "op");
    bool sized = has_one_size(op);
    return strcmp(op, ls_calls_text(b, "op")) == 0 &&
           strcmp(ls_calls_text(a, "reduce"), ls_calls_text(b, "reduce")) == 0 &&
           (!sized ||
            (strcmp(ls_calls_text(a, "type"), ls_calls_text(b, "type")) == 0 &&
             ls_json_number(a->json, "elements", -1) == ls_json_number(b->json, "elements", -1)));
}

static void describe(const ls_call *call, char *text, size_t bytes)
{
    if (call == NULL) {
        ls_text_put(text, bytes, "none");
        return;
    }
    const char *reduce = ls_calls_text(call, "reduce");
    ls_text_put(text, bytes, "%s%s%s of %.0f %s (%.60s)", ls_calls_text(call, "op"),
                reduce[0] != '\0' ? " " : "", reduce, ls_json_number(call->json, "elements", 0),
                ls_calls_text(call, "type"), call->at);
}

static void fail_collective(const ls_observe_trace *trace, int rank, const ls_observe_step *step,
                            int n, const ls_call *a, const ls_call *b, ls_observe_finding *out)
{
    char x[140], y[140];
    describe(a, x, sizeof x);
    describe(b, y, sizeof y);
    /* A job that ended well with such a difference ran them on groups of its own. */
    ls_verdict_set(&out->verdict, ended_well(trace) ? LS_WEAK : LS_FAIL,
                   "step %lld, collective %d of the script: rank 0 %s, rank %d %s",
                   (long long)step->step->step, n + 1, x, rank, y);
    ls_verdict_cause(&out->verdict,
                     "a collective depends on a value of the rank's own (its number, "
                     "its data, its loss): the others wait for it for ever, or get "
                     "the sum of different things");
    ls_finding_blame(out, a != NULL ? a->at : b->at,
                     "call the same collectives in the same order on every rank");
}

static void compare_collectives(const ls_observe_trace *trace, int rank,
                                const ls_observe_step *step, int *compared, ls_observe_finding *out)
{
    const ls_observe_step *other = ls_trace_step(&trace->rank[rank], step->step->step);
    if (other == NULL) {
        return;
    }
    for (int n = 0;; n++) {
        const ls_call *a = collective_at(trace, step, n), *b = collective_at(trace, other, n);
        if (a == NULL && b == NULL) {
            return;
        }
        ++*compared;
        if (a == NULL || b == NULL || !same_collective(a, b)) {
            ls_observe_finding one = {0};
            fail_collective(trace, rank, step, n, a, b, &one);
            ls_calls_keep_worst(out, &one);
            return;
        }
    }
}

void ls_rules_order_collectives(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    if (!concerns(trace, out)) {
        return;
    }
    if (trace->world < 2) {
        ls_verdict_set(&out->verdict, LS_SKIP, "one rank");
        return;
    }
    for (int k = 1; k < trace->world; k++) {
        for (int i = 0; i < trace->rank[0].step_count; i++) {
            compare_collectives(trace, k, &trace->rank[0].step[i], &compared, out);
        }
    }
    if (compared == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "the script calls no collective within its steps");
    }
    ls_verdict_pass(&out->verdict, "%d collectives of the script, the same on %d ranks",
                    compared / (trace->world - 1), trace->world);
}

/* ---- order.steps ----------------------------------------------------------------------------- */

/* Ranks whose loaders gave another number of samples in the same pass. */
static bool find_uneven_pass(const ls_observe_trace *trace, int rank, long long *a, long long *b,
                             const cJSON **event)
{
    const cJSON *x = trace->rank[0].data->child, *y = trace->rank[rank].data->child;
    for (; x != NULL && y != NULL; x = x->next, y = y->next) {
        long long batch = ls_json_integer(x, "batch", 1);
        *a = ls_json_integer(x, "count", 0);
        *b = ls_json_integer(y, "count", 0);
        bool trained = ls_json_bool(x, "trained", false) && ls_json_bool(y, "trained", false);
        bool whole = ls_json_bool(x, "whole", false) || ls_json_bool(y, "whole", false);
        if (trained && whole && batch > 0 && (*a + batch - 1) / batch != (*b + batch - 1) / batch) {
            *event = x;
            return true;
        }
    }
    return false;
}

static int64_t steps_of(const ls_observe_rank *rank)
{
    return rank->step_count > 0 ? rank->step[rank->step_count - 1].step->step : 0;
}

/* The ranks whose loaders gave unlike many batches. */
static bool blame_uneven_pass(const ls_observe_trace *trace, ls_observe_finding *out)
{
    long long a, b;
    const cJSON *event = NULL;
    for (int k = 1; k < trace->world; k++) {
        if (find_uneven_pass(trace, k, &a, &b, &event)) {
            ls_verdict_cause(&out->verdict,
                             "uneven inputs: rank 0 drew %lld samples in a pass, rank %d drew %lld",
                             a, k, b);
            ls_finding_blame(out, ls_json_string(event, "at", ""),
                             "give all ranks as many batches (DistributedSampler, drop_last), or "
                             "train within model.join()");
            return true;
        }
    }
    return false;
}

static void judge_uneven(const ls_observe_trace *trace, int least, int most,
                         ls_observe_finding *out)
{
    if (ended_well(trace)) {
        ls_verdict_pass(&out->verdict,
                        "rank %d made %lld steps, rank %d %lld, and all ended well (as with join)",
                        least, (long long)steps_of(&trace->rank[least]), most,
                        (long long)steps_of(&trace->rank[most]));
        return;
    }
    bool open = !trace->rank[least].record->ended && /* its last step was not closed */
                steps_of(&trace->rank[most]) - steps_of(&trace->rank[least]) == 1;
    ls_verdict_set(&out->verdict, open ? LS_WEAK : LS_FAIL,
                   "rank %d ended after step %lld, rank %d after step %lld", least,
                   (long long)steps_of(&trace->rank[least]), most,
                   (long long)steps_of(&trace->rank[most]));
    if (!blame_uneven_pass(trace, out)) {
        ls_verdict_cause(&out->verdict,
                         "rank %d left the loop, or died, while the others went on: they wait for "
                         "it in their next collective",
                         least);
    }
}

/* A rank that waits in its next step for one that has none ends after as many whole steps. */
static void judge_last_step(const ls_observe_trace *trace, int64_t steps, ls_observe_finding *out)
{
    if (!ended_well(trace) && blame_uneven_pass(trace, out)) {
        ls_verdict_fail(&out->verdict,
                        "the job failed after step %lld, where the data of a rank had ended",
                        (long long)steps);
    }
}

void ls_rules_order_steps(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int least = 0, most = 0;
    if (trace->world < 2) {
        ls_verdict_set(&out->verdict, LS_SKIP, "one rank");
        return;
    }
    for (int k = 0; k < trace->world; k++) {
        least = steps_of(&trace->rank[k]) < steps_of(&trace->rank[least]) ? k : least;
        most = steps_of(&trace->rank[k]) > steps_of(&trace->rank[most]) ? k : most;
    }
    if (steps_of(&trace->rank[most]) == 0) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "no step was seen");
    } else if (steps_of(&trace->rank[least]) != steps_of(&trace->rank[most])) {
        judge_uneven(trace, least, most, out);
        return;
    } else {
        judge_last_step(trace, steps_of(&trace->rank[least]), out);
    }
    ls_verdict_pass(&out->verdict, "%lld steps on each of %d ranks",
                    (long long)steps_of(&trace->rank[least]), trace->world);
}

/* ---- order.schedule -------------------------------------------------------------------------- */

/* Schedules that are stepped by a measured value, also before training. */
static bool is_by_value(const ls_call *call)
{
    return strstr(ls_calls_text(call, "class"), "Plateau") != NULL;
}

/* Whether that place calls its schedule again after the optimizer has stepped: else it wound the
 * schedule forward before the training, as jobs do that go on. */
static bool is_called_later(const ls_observe_rank *rank, const ls_call *first)
{
    bool attempted = false;
    for (int i = 0; i < rank->step_count; i++) {
        for (int c = 0; c < rank->step[i].call_count; c++) {
            const ls_call *call = &rank->step[i].call[c];
            attempted = attempted || ls_calls_is_attempt(call);
            if (attempted && call->kind == LS_CALL_SCHEDULE && strcmp(call->at, first->at) == 0) {
                return true;
            }
        }
    }
    return false;
}

/* The first call of a schedule before the first attempt to step; NULL: none. */
static const ls_call *early_schedule(const ls_observe_rank *rank)
{
    for (int i = 0; i < rank->step_count; i++) {
        for (int c = 0; c < rank->step[i].call_count; c++) {
            const ls_call *call = &rank->step[i].call[c];
            if (ls_calls_is_attempt(call)) {
                return NULL;
            }
            if (call->kind == LS_CALL_SCHEDULE && !is_by_value(call)) {
                return call;
            }
        }
    }
    return NULL;
}

/* Counts of the calls of a rank. */
typedef struct schedules {
    int calls, skipped; /* skipped: after a step that no optimizer made */
    const ls_call *on_skip;
} schedules;

static schedules count_schedules(const ls_observe_rank *rank)
{
    schedules s = {0};
    for (int i = 0; i < rank->step_count; i++) {
        const ls_observe_step *step = &rank->step[i];
        int count = 0;
        for (int c = ls_trace_find(step, LS_CALL_SCHEDULE, 0); c >= 0;
             c = ls_trace_find(step, LS_CALL_SCHEDULE, c + 1)) {
            count += step->call[c].times;
            if (step->step->skipped) {
                s.skipped += step->call[c].times;
                s.on_skip = &step->call[c];
            }
        }
        s.calls += count;
    }
    return s;
}

void ls_rules_order_schedule(const ls_observe_trace *trace, ls_observe_finding *out)
{
    schedules s = {0};
    if (!concerns(trace, out)) {
        return;
    }
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        const ls_call *early = early_schedule(rank);
        schedules own = count_schedules(rank);
        s.calls += own.calls;
        s.skipped += own.skipped;
        s.on_skip = s.on_skip == NULL ? own.on_skip : s.on_skip;
        if (early != NULL && is_called_later(rank, early)) {
            ls_verdict_fail(&out->verdict,
                            "rank %d: %s.step() before the first optimizer.step(): the first value "
                            "of the schedule is never used",
                            k, ls_calls_text(early, "class"));
            ls_verdict_cause(&out->verdict, "scheduler.step() before optimizer.step()");
            ls_finding_blame(out, early->at, "call scheduler.step() after optimizer.step()");
        }
    }
    if (s.calls == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no schedule of the learning rate was stepped");
    }
    if (s.on_skip != NULL) {
        ls_finding_blame(out, s.on_skip->at,
                         "the schedule goes on in %d skipped steps: step it only where the scale "
                         "did not fall, if its length is counted in steps taken",
                         s.skipped / trace->world);
    }
    ls_verdict_pass(&out->verdict, "%d calls after the optimizer's, %d of them on skipped steps",
                    s.calls / trace->world, s.skipped / trace->world);
}

/* ---- order.zero ------------------------------------------------------------------------------ */

static const ls_tol same_mean =
    LS_TOL(1e-2, "the ranks' gradients are averaged in f32, f16 or bf16 (2^-9 a value): a gradient "
                 "of the step before that is left in is of the size of the gradient itself");

/* What a step's own backward calls gave for a parameter: the mean over the ranks under
 * DistributedDataParallel, else the rank's own; false where a rank has no samples of it. */
static bool expected_of(const ls_observe_trace *trace, const ls_samples *samples, int rank,
                        const char *name, int64_t count, double *mean)
{
    bool ddp = ls_trace_is_ddp(trace), known = true;
    for (int k = 0; k < trace->world && known; k++) {
        if (!ddp && k != rank) {
            continue;
        }
        ls_values local = ls_samples_read(samples->file[k], "local", name, NULL);
        known = local.v != NULL && local.count == count;
        for (int64_t i = 0; known && i < count; i++) {
            mean[i] += local.v[i] / (ddp ? trace->world : 1);
        }
        ls_values_free(&local);
    }
    return known;
}

/* The distance of a parameter's gradient from what the step's own backward calls gave, relative to
 * that; NaN: not known. */
static double excess_of(const ls_observe_trace *trace, const ls_samples *samples, int rank,
                        const char *name)
{
    ls_values reduced = ls_samples_read(samples->file[rank], "reduced", name, NULL);
    double error = 0, norm = 0;
    if (reduced.v != NULL && reduced.count > 0) {
        double *mean = ls_list_make((size_t)reduced.count, sizeof *mean);
        bool known = expected_of(trace, samples, rank, name, reduced.count, mean);
        for (int64_t i = 0; known && i < reduced.count; i++) {
            error += (reduced.v[i] - mean[i]) * (reduced.v[i] - mean[i]);
            norm += mean[i] * mean[i];
        }
        free(mean);
        /* An infinity that no backward of the step gave was left. */
        error = known && isfinite(norm) && !isfinite(error) ? INFINITY : error;
    }
    ls_values_free(&reduced);
    return norm > 0 && isfinite(norm) && !isnan(error) ? sqrt(error / norm) : NAN;
}

/* Whether a step's gradients are more than its own backward calls gave: 1, 0, or -1: no samples say
 * so. Scripts also clear gradients by hand, which no call shows. */
static int holds_more(const ls_observe_trace *trace, int rank, int64_t number)
{
    ls_observe_finding none = {0};
    ls_samples samples;
    int more = -1;
    ls_samples_open(trace, number, &samples, &none);
    for (int t = 0; samples.count == trace->world && t < trace->rank[rank].tensor_count; t++) {
        double excess = excess_of(trace, &samples, rank, trace->rank[rank].tensor[t].name);
        if (!isnan(excess)) {
            more = excess > same_mean.value ? 1 : more < 0 ? 0 : more;
        }
    }
    ls_samples_close(&samples);
    return more;
}

typedef struct zeroes {
    int attempts, kept;
    bool shown;               /* the script clears them by other means than zero_grad */
    ls_observe_finding first; /* where no clearing was seen, and no samples say what that means */
} zeroes;

static void note_kept(const ls_observe_trace *trace, ls_calls *calls, int rank, zeroes *z,
                      ls_observe_finding *out)
{
    int more = holds_more(trace, rank, ls_calls_step(calls));
    const ls_calls_optimizer *own = ls_calls_optimizer_of(calls, calls->call);
    z->shown = z->shown || more == 0;
    if (more != 1 && z->kept++ > 0) {
        return;
    }
    ls_observe_finding *to = more == 1 ? out : &z->first;
    ls_verdict_set(&to->verdict, more == 1 ? LS_FAIL : LS_WEAK,
                   "rank %d, step %lld: no gradient was cleared since the step before: a forward "
                   "found %d gradients in place, %s",
                   rank, ls_calls_step(calls), own->left,
                   more == 1 ? "and the step's are more than its own backward gave"
                             : "and no samples say whether they were cleared by hand");
    ls_verdict_cause(&to->verdict, "optimizer.zero_grad() is missing: gradients of all steps add "
                                   "up");
    ls_finding_blame(to, calls->call->at,
                     "call optimizer.zero_grad() after each step, before the next backward");
}

static void look_at_zero(const ls_observe_trace *trace, ls_calls *calls, int rank, zeroes *z,
                         ls_observe_finding *out)
{
    const ls_calls_optimizer *own = ls_calls_optimizer_of(calls, calls->call);
    if (own == NULL || !ls_calls_is_attempt(calls->call)) {
        return;
    }
    const ls_calls_grad *grad = &own->grad;
    z->attempts++;
    /* In a detailed step a forward also finds no gradients where they are all zero. */
    z->shown = z->shown || (own->attempts > 0 && own->by_hand);
    /* Before its first step an optimizer has no number: a zero_grad without one counts for all. */
    if (own->attempts > 0 && own->backwards > 0 && own->cleared &&
        grad->scaled + grad->derived + grad->plain == 0) {
        ls_verdict_fail(&out->verdict,
                        "rank %d, step %lld: the gradients were cleared after the backward and "
                        "before the optimizer's step",
                        rank, ls_calls_step(calls));
        ls_verdict_cause(&out->verdict,
                         "zero_grad() between backward and step: the optimizer steps "
                         "by nothing");
        ls_finding_blame(out, calls->call->at,
                         "call zero_grad() before the backward or after the "
                         "step");
    }
    if (own->attempts > 0 && own->backwards > 0 && !own->cleared && own->left > 0) {
        note_kept(trace, calls, rank, z, out);
    }
}

static bool uses_closure(const ls_observe_trace *trace)
{
    const cJSON *remark;
    for (int k = 0; k < trace->world; k++) {
        cJSON_ArrayForEach(remark, trace->rank[k].attach)
        {
            if (strstr(ls_json_string(remark, "error", ""), "closure") != NULL) {
                return true;
            }
        }
    }
    return false;
}

void ls_rules_order_zero(const ls_observe_trace *trace, ls_observe_finding *out)
{
    zeroes z = {0};
    if (!concerns(trace, out)) {
        return;
    }
    if (uses_closure(trace)) {
        ls_verdict_set(
            &out->verdict, LS_UNSUPPORTED,
            "gradients are computed and cleared by a closure inside the optimizer's step");
        return;
    }
    for (int k = 0; k < trace->world; k++) {
        ls_calls calls;
        ls_calls_start(&calls, &trace->rank[k]);
        while (ls_calls_next(&calls)) {
            look_at_zero(trace, &calls, k, &z, out);
        }
    }
    if (!z.shown) {
        ls_calls_keep_worst(out, &z.first);
    }
    if (z.attempts == 0) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "no step of an optimizer was seen");
    }
    ls_verdict_pass(&out->verdict, "gradients cleared between %d steps%s",
                    z.attempts / trace->world, z.kept > 0 ? ", some by hand" : "");
}

/* ---- order.clip ------------------------------------------------------------------------------ */

/* A clip of which no step makes use: each optimizer has stepped since the last backward, and the
 * gradients are computed anew or cleared before the next step. */
static bool is_late(const ls_calls *calls)
{
    const ls_observe_step *step = calls->step;
    double limit = ls_json_number(calls->call->json, "limit", INFINITY);
    if (!isfinite(limit) || ls_json_int(calls->call->json, "params", 1) == 0) {
        return false; /* it only measures the norm */
    }
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        const ls_calls_optimizer *own = &calls->optimizer[o];
        if ((calls->optimizers >> o & 1) != 0 && (own->backwards > 0 || own->attempts == 0)) {
            return false;
        }
    }
    for (int c = calls->call_index + 1; c < step->call_count; c++) {
        if (ls_calls_is_attempt(&step->call[c])) {
            return false;
        }
    }
    return true;
}

/* Calls of a rank by norm, and those that returned 0: gradients of a training are not all zero. */
typedef struct norms {
    int calls, zero;
    const char *at;
} norms;

static void count_norm(const ls_call *call, norms *n)
{
    if (strcmp(ls_json_string(call->json, "how", "norm"), "norm") == 0 &&
        ls_json_int(call->json, "params", -1) != 0) {
        bool zero = ls_json_number(call->json, "norm", NAN) == 0;
        n->calls += call->times;
        n->zero += zero ? call->times : 0;
        n->at = zero ? call->at : n->at;
    }
}

/* A generator gives its parameters once: to an optimizer, or to the first clip. */
static void judge_norms(int rank, const norms *n, ls_observe_finding *out)
{
    if (n->zero >= 2 && n->zero >= n->calls - 1) {
        ls_verdict_fail(&out->verdict,
                        "rank %d: %d of %d calls returned a norm of 0: they clipped nothing", rank,
                        n->zero, n->calls);
        ls_verdict_cause(&out->verdict, "clip_grad_norm_ is given no gradients, such as by a "
                                        "generator or filter() that has been used up");
        ls_finding_blame(out, n->at, "give it model.parameters(), or a list");
    }
}

void ls_rules_order_clip(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int clips = 0;
    if (!concerns(trace, out)) {
        return;
    }
    for (int k = 0; k < trace->world; k++) {
        ls_calls calls;
        norms seen = {.at = ""};
        ls_calls_start(&calls, &trace->rank[k]);
        while (ls_calls_next(&calls)) {
            if (calls.call->kind != LS_CALL_CLIP) {
                continue;
            }
            count_norm(calls.call, &seen);
            clips += calls.call->times;
            if (is_late(&calls)) {
                ls_verdict_fail(&out->verdict,
                                "rank %d, step %lld: gradients were clipped to %g after the "
                                "optimizer had stepped by them",
                                k, ls_calls_step(&calls),
                                ls_json_number(calls.call->json, "limit", NAN));
                ls_verdict_cause(&out->verdict, "clip_grad_norm_ after the step has no effect");
                ls_finding_blame(out, calls.call->at,
                                 "clip after the last backward, before optimizer.step()");
            }
        }
        judge_norms(k, &seen, out);
    }
    if (clips == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "gradients are not clipped");
    }
    ls_verdict_pass(&out->verdict, "%d calls, each before its optimizer's step",
                    clips / trace->world);
}
