/* What becomes of gradients between a backward and a step: whether they are cleared in between, not
 * at all, or thrown away, and whether a clip has an effect. */
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
