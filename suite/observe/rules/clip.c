/* Whether clipping does what its limit and norm say. */
#include <math.h>
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"
#include "kernels/core/text.h"
#include "suite/observe/trace/factor.h"
#include "rules.h"

static const ls_tol one_clip =
    LS_TOL(5, "five roundings: limit and 1e-6 become numbers of the gradient's type, then a sum, a "
              "quotient and the product with it (numerics 8.3)");

typedef struct clips {
    int calls, norms, tensors, wrong; /* norms: recomputed */
    int acting;                       /* calls whose limit was exceeded */
    int unchanged; /* tensors that are clipped as they were: no factor came between */
    ls_job_names names;
    char first[240];
    const char *at;
    double scaled_before; /* a factor between reduction and clip; NaN: none */
} clips;

static bool is_value_clip(const ls_call *call)
{
    return strcmp(ls_event_text(call->json, how, "norm"), "value") == 0;
}

static double coefficient_of(const ls_call *call)
{
    double limit = ls_event_number(call->json, limit, INFINITY);
    double norm = ls_event_number(call->json, norm, NAN);
    return fmin(1, limit / (norm + 1e-6)); /* torch.nn.utils.clip_grad_norm_ */
}

/* Which of the sums in norm/ is of the gradient that the call clipped. */
static int norm_index(const ls_observe_step *step, int clip)
{
    int unscale = ls_trace_find(step, LS_CALL_UNSCALE, 0);
    return unscale >= 0 && unscale < clip ? 4 : 3;
}

/* Parameters that a call may have been given, as sets: all, of one model, of one group's optimizer.
 */
typedef struct set_sum {
    int given, with_gradient;
    double square;
    int64_t largest;
} set_sum;

static void add_to_set(const ls_values *norm, int index, int64_t elements, set_sum *set)
{
    set->given++;
    if (norm->v != NULL && norm->count > index && !isnan(norm->v[index])) {
        set->with_gradient++;
        set->square += norm->v[index];
        set->largest = elements > set->largest ? elements : set->largest;
    }
}

/* which: -1 all, else model m for m >= 0 or optimizer -2 - o. */
static set_sum sum_set(const ls_samples *samples, int rank, int which, int index)
{
    set_sum set = {0};
    const ls_observe_rank *own = &samples->trace->rank[rank];
    for (int i = 0; i < own->tensor_count; i++) {
        int optimizer = 0, group;
        bool held =
            which <= -2 &&
            ls_job_group(own, own->tensor[i].name, -3 - which, &optimizer, &group) != NULL &&
            optimizer == -2 - which;
        if (which == -1 || which == own->tensor[i].model || held) {
            ls_values norm =
                ls_samples_read(samples->file[rank], "norm", own->tensor[i].name, NULL);
            add_to_set(&norm, index, own->tensor[i].elements, &set);
            ls_samples_free(&norm);
        }
    }
    return set;
}

/* Relative error of a norm of n elements in f32: each of n additions in any order loses at most u
 * of the sum, and as a walk of rounding errors at most 16 sqrt(n) u of sum and deviation together
 * (numerics 5.3); half of that in the root; then the norms' own norm, two roundings to the type of
 * the gradient. */
static double norm_room(const set_sum *set, ls_unit unit)
{
    double n = (double)set->largest, t = set->with_gradient, u = 0x1p-24;
    double elements = fmin(n, 80 * sqrt(n)) * u / 2, tensors = fmin(t, 80 * sqrt(t)) * u / 2;
    return elements + tensors + 4 * u + 2 * unit.u;
}

/* False where sets of that many parameters are known and none has the norm that was returned. */
static bool judge_norm(const ls_samples *samples, int rank, const ls_call *call, int index,
                       ls_unit unit, clips *all)
{
    const ls_observe_rank *own = &samples->trace->rank[rank];
    int params = ls_event_int(call->json, params, -1);
    int models = ls_job_models(own), optimizers = ls_event_count(ls_trace_events(own, optimizer));
    double returned = ls_event_number(call->json, norm, NAN), nearest = NAN;
    if (ls_event_number(call->json, norm_type, 2) != 2 || isnan(returned)) {
        return true;
    }
    for (int which = -1 - optimizers; which < models; which++) {
        set_sum set = sum_set(samples, rank, which, index);
        if (set.with_gradient == 0 || (params != set.given && params != set.with_gradient)) {
            continue;
        }
        double norm = sqrt(set.square), room = norm_room(&set, unit) * norm;
        if (fabs(returned - norm) <= room) {
            all->norms++;
            return true;
        }
        bool nearer = isnan(nearest) || fabs(returned - norm) < fabs(returned - nearest);
        nearest = nearer ? norm : nearest;
    }
    if (isnan(nearest)) {
        return true;
    }
    all->scaled_before = returned / nearest;
    ls_text_put(all->first, sizeof all->first,
                "the norm returned is %.7g, that of the gradients "
                "%.7g",
                returned, nearest);
    all->at = call->at;
    return false;
}

static bool is_clipped_by_value(const ls_values *base, const ls_values *clipped, double limit)
{
    for (int64_t i = 0; i < base->count; i++) {
        double wanted = fmax(-limit, fmin(limit, base->v[i]));
        double room = clipped->unit.u * limit; /* the limit in the gradient's type */
        if (!isnan(base->v[i]) &&
            fabs(clipped->v[i] - wanted) > (wanted == base->v[i] ? 0 : room)) {
            return false;
        }
    }
    return true;
}

static bool is_clipped_by_norm(const ls_values *base, const ls_values *clipped, double factor)
{
    for (int64_t i = 0; i < base->count; i++) {
        double wanted = base->v[i] * factor;
        double room = one_clip.value * (clipped->unit.u * fabs(wanted) + clipped->unit.eta);
        if (isfinite(wanted) && !(fabs(clipped->v[i] - wanted) <= room)) {
            return false;
        }
    }
    return true;
}

/* Whether one of the step's clip calls before its step explains the tensor, or none touched it. */
static bool is_explained(const ls_observe_step *step, const ls_values *base,
                         const ls_values *clipped, double before)
{
    bool norms = false;
    double product = before;
    ls_trace_each_kind(call, step, LS_CALL_CLIP) {
        if (is_value_clip(call)
                ? is_clipped_by_value(base, clipped, ls_event_number(call->json, limit, INFINITY))
                : is_clipped_by_norm(base, clipped, before * coefficient_of(call))) {
            return true;
        }
        product *= is_value_clip(call) ? 1 : coefficient_of(call);
        norms = norms || !is_value_clip(call);
    }
    return norms && is_clipped_by_norm(base, clipped, product);
}

static void judge_clipped_tensor(const ls_samples *samples, int rank, const char *name, int index,
                                 clips *all)
{
    const ls_observe_step *step = samples->step[rank];
    ls_values clipped = ls_samples_read(samples->file[rank], "clipped", name, NULL);
    ls_values base =
        ls_samples_read(samples->file[rank], index == 4 ? "grad" : "reduced", name, NULL);
    if (clipped.v != NULL && base.v != NULL && base.count == clipped.count &&
        !ls_samples_overflow(&base)) {
        bool factor = !isnan(all->scaled_before);
        all->tensors++;
        all->unchanged += is_explained(step, &base, &clipped, 1);
        if (!is_explained(step, &base, &clipped, 1) &&
            !(factor && is_explained(step, &base, &clipped, all->scaled_before)) &&
            !(all->calls > 1 && ls_samples_equal(&base, &clipped))) {
            all->wrong++;
            ls_job_add_name(&all->names, name);
        }
    }
    ls_samples_free(&clipped);
    ls_samples_free(&base);
}

/* A norm that is not finite belongs to an overflow: the step is skipped, whatever it is clipped to.
 */
static bool overflowed(const ls_observe_step *step)
{
    ls_trace_each_kind(call, step, LS_CALL_CLIP) {
        if (ls_event_is(ls_event_member(call->json, norm), LS_TYPE_NULL) && !is_value_clip(call)) {
            return true;
        }
    }
    return false;
}

/* What stands between the clip and the gradients that the optimizer uses. */
static void blame_clip(const ls_observe_step *step, int clip, ls_observe_finding *out)
{
    int later = ls_trace_find(step, LS_CALL_BACKWARD, clip);
    int scaled = ls_trace_find(step, LS_CALL_BACKWARD, 0);
    int unscale = ls_trace_find(step, LS_CALL_UNSCALE, 0);
    if (later >= 0) {
        ls_verdict_cause(
            &out->verdict,
            "clipping after each micro-step: the sum of gradients is cut before the "
            "backward at %.80s adds to it, and earlier ones more often than later ones",
            step->call[later].at);
    } else if (scaled >= 0 && step->call[scaled].scaler >= 0 && !(unscale >= 0 && unscale < clip)) {
        ls_verdict_cause(&out->verdict, "clipping without scaler.unscale_(optimizer) before it");
    } else {
        ls_verdict_cause(&out->verdict, "the script changes gradients by hand before or after it "
                                        "clips them, or clips others than the optimizer uses");
    }
}

static void judge_clip_step(const ls_samples *samples, int rank, clips *all,
                            ls_observe_finding *out)
{
    const ls_observe_step *step = samples->step[rank];
    if (overflowed(step)) {
        return;
    }
    const ls_observe_rank *own = &samples->trace->rank[rank];
    int first = ls_trace_find(step, LS_CALL_CLIP, 0), calls = 0;
    bool norms_fit = true;
    all->scaled_before = NAN;
    for (int c = first; c >= 0; c = ls_trace_find(step, LS_CALL_CLIP, c + 1)) {
        const ls_call *call = &step->call[c];
        calls++;
        all->acting += is_value_clip(call) || coefficient_of(call) < 1;
        ls_unit unit = {0};
        for (int i = 0; i < own->tensor_count; i++) {
            ls_unit type = ls_samples_unit(own->tensor[i].type);
            unit = type.u > unit.u ? type : unit;
        }
        norms_fit = (is_value_clip(call) ||
                     judge_norm(samples, rank, call, norm_index(step, c), unit, all)) &&
                    norms_fit;
    }
    all->calls = calls;
    int tensors = all->tensors, unchanged = all->unchanged;
    for (int i = 0; i < own->tensor_count; i++) {
        judge_clipped_tensor(samples, rank, own->tensor[i].name, norm_index(step, first), all);
    }
    bool amiss = all->wrong > 0 || !norms_fit;
    if (amiss && ls_factor_exceeds(samples->trace, rank, samples->number, "since") == 1) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "the script makes the gradients of a step out of those that it clipped");
    } else if (all->wrong > 0) {
        ls_verdict_fail(&out->verdict,
                        "step %lld, rank %d: in %d of %d tensors no clip gives what "
                        "stands behind it: %s%s%s",
                        (long long)samples->number, rank, all->wrong, all->tensors - tensors,
                        ls_job_names_text(&all->names), norms_fit ? "" : "; ", all->first);
        blame_clip(step, first, out);
        ls_finding_blame(out, step->call[first].at,
                         "clip the gradients that the optimizer uses, "
                         "once, after they are reduced and unscaled");
    } else if (!norms_fit && all->unchanged - unchanged == all->tensors - tensors &&
               all->tensors > tensors) {
        ls_verdict_fail(&out->verdict, "step %lld, rank %d: %s", (long long)samples->number, rank,
                        all->first);
        blame_clip(step, first, out);
        ls_finding_blame(out, all->at,
                         "give clip_grad_norm_ the gradients of all ranks, reduced "
                         "and unscaled, of all parameters of the optimizer");
    } else if (!norms_fit) {
        ls_finding_set(
            out, LS_WEAK, all->at, NULL, "give clip_grad_norm_ the parameters of the optimizer",
            "step %lld, rank %d: %s: the script changes gradients before it clips, or clips others",
            (long long)samples->number, rank, all->first);
    }
}

/* A limit of 0 leaves no gradient: many scripts mean "do not clip" by it. */
static bool judge_zero_limit(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int calls = 0, zero = 0;
    const char *at = "";
    for (int k = 0; k < trace->world; k++) {
        ls_trace_each_step(step, &trace->rank[k]) {
            ls_trace_each_kind(call, step, LS_CALL_CLIP) {
                bool is_zero = ls_event_number(call->json, limit, INFINITY) <= 0;
                calls += call->times;
                zero += is_zero ? call->times : 0;
                at = is_zero ? call->at : at;
            }
        }
    }
    if (zero == 0) {
        return false;
    }
    ls_finding_set(out, LS_FAIL, at, "a limit of 0, which is no way to leave clipping out",
                   "clip only where the limit is above 0",
                   "%d of %d calls clip to 0: they leave no gradient", zero, calls);
    return true;
}

/* Clips of one group's parameters, where those of the optimizer's other groups are never clipped.
 * Groups that began with one rate differ in decay, which is no reason to clip them apart. */
static void judge_one_group(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[0];
    int group = -1, optimizer = -1, calls = 0;
    const char *at = "";
    ls_trace_each_step(step, rank) {
        ls_trace_each_kind(call, step, LS_CALL_CLIP) {
            int own = ls_event_int(call->json, group, -1);
            if (own < 0 || (group >= 0 && own != group) ||
                isinf(ls_event_number(call->json, limit, INFINITY))) {
                return; /* others are clipped, too */
            }
            group = own;
            optimizer = call->optimizer;
            calls += call->times;
            at = call->at;
        }
    }
    const ls_event *groups = ls_event_list(ls_job_optimizer(rank, optimizer), groups);
    const ls_event *clipped = ls_event_at(groups, group), *other;
    double rate = ls_event_number(clipped, built_lr, NAN);
    int others = 0;
    bool alike = !isnan(rate);
    ls_event_each(other, groups) {
        if (other != clipped) {
            others += ls_event_count(ls_event_member(other, params));
            alike = alike && ls_event_number(other, built_lr, NAN) == rate;
        }
    }
    if (calls < 2 || clipped == NULL || others == 0) {
        return;
    }
    ls_finding_set(out, alike ? LS_FAIL : LS_WEAK, at, NULL, "clip model.parameters() in one call",
                   "all %d calls clip the parameters of group %d alone: %d others of the same "
                   "optimizer are never clipped",
                   calls, group, others);
    ls_verdict_cause(&out->verdict,
                     "clipping is given one group's parameters (param_groups[%d]), "
                     "not the model's",
                     group);
}

void ls_rules_optimizer_clip(const ls_observe_trace *trace, ls_observe_finding *out)
{
    clips all = {.at = "", .scaled_before = NAN};
    int clipped = 0;
    for (int k = 0; k < trace->world; k++) {
        for (int i = 0; i < trace->rank[k].step_count; i++) {
            clipped += ls_trace_find(&trace->rank[k].step[i], LS_CALL_CLIP, 0) >= 0;
        }
    }
    if (clipped == 0 || ls_job_reduces_itself(trace)) {
        ls_verdict_set(&out->verdict, clipped == 0 ? LS_SKIP : LS_UNSUPPORTED, "%s",
                       clipped == 0 ? "nothing is clipped"
                                    : "the script reduces gradients by itself, before it clips");
        return;
    }
    if (trace->attached) {
        if (judge_zero_limit(trace, out)) {
            return;
        }
        ls_observe_finding one = {0};
        judge_one_group(trace, &one);
        ls_finding_guess(out, &one);
        if (out->verdict.code != LS_PASS) {
            return;
        }
    }
    ls_samples_each(samples, trace, 0, all.wrong == 0, out) {
        for (int k = 0; k < samples.world && all.wrong == 0; k++) {
            if (samples.file[k] != NULL && ls_trace_find(samples.step[k], LS_CALL_CLIP, 0) >= 0) {
                judge_clip_step(&samples, k, &all, out);
            }
        }
    }
    if (all.tensors == 0) {
        ls_verdict_set(&out->verdict, LS_WEAK, "no detailed step has samples of clipped gradients");
    } else if (all.acting == 0) {
        ls_verdict_set(&out->verdict, LS_WEAK, "no gradient exceeded the limit in a detailed step");
    }
    ls_verdict_pass(&out->verdict, all.tensors + all.norms,
                    "%d clipped tensors recomputed, and %d norms", all.tensors, all.norms);
}
