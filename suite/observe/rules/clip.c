/* Whether clipping does what its limit and norm say. */
#include <math.h>
#include <string.h>

#include "suite/observe/trace/by_hand.h"
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
    int acting, beyond; /* calls whose limit was exceeded: in detailed steps, in others */
    int unchanged;      /* tensors that are clipped as they were: no factor came between */
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

/* which: -1 all, else model m for m >= 0 or optimizer -2 - o. clipped: without those whose gradient
 * the script took away between backward and clip, as of a layer that is frozen at first. */
static set_sum sum_set(const ls_samples *samples, int rank, int which, int index, bool clipped)
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
            int64_t elements = own->tensor[i].elements;
            set.given++;
            if (norm.v != NULL && norm.count > index && !isnan(norm.v[index]) &&
                (!clipped || ls_dumpfile_findf(samples->file[rank], "clipped/%s",
                                               own->tensor[i].name) != NULL)) {
                set.with_gradient++;
                set.square += norm.v[index];
                set.largest = elements > set.largest ? elements : set.largest;
            }
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

/* Whether the norm may be one of gradients that earlier calls of the step have clipped in part: at
 * most what it was before, at least that times the factors of all of them. */
static bool fits_norm(const ls_observe_step *step, const ls_call *call, double returned,
                      double norm, double room)
{
    double least = norm;
    ls_trace_each_kind(earlier, step, LS_CALL_CLIP) {
        if (earlier >= call) {
            break;
        }
        least = is_value_clip(earlier) ? 0 : least * coefficient_of(earlier); /* of inf, too */
    }
    return returned >= least - room && returned <= norm + room;
}

/* What the script's own loss scale multiplied the step's last loss by, and it divides the gradients
 * by; 1: none. Passes before it may have been thrown away at other scales. */
static double own_scale(const ls_observe_step *step)
{
    double by = 1;
    ls_trace_each_kind(call, step, LS_CALL_BACKWARD) {
        by = ls_event_number(call->json, multiplied, 1);
    }
    return by > 1 ? by : 1;
}

/* False where sets of that many parameters are known and none has the norm that was returned. */
static bool judge_norm(const ls_samples *samples, int rank, const ls_call *call, int index,
                       ls_unit unit, clips *all)
{
    const ls_observe_rank *own = &samples->trace->rank[rank];
    int params = ls_event_int(call->json, params, -1);
    int models = ls_job_models(own), optimizers = ls_event_count(ls_trace_events(own, optimizer));
    double returned = ls_event_number(call->json, norm, NAN), nearest = NAN;
    const ls_event *type = ls_event_member(call->json, norm_type); /* a number, or "inf" */
    if (ls_event_to_number(type, type == NULL ? 2 : NAN) != 2 || isnan(returned)) {
        return true;
    }
    for (int way = 0; way < 2 * (1 + optimizers + models); way++) {
        set_sum set = sum_set(samples, rank, way / 2 - 1 - optimizers, index, way % 2 == 1);
        if (set.with_gradient == 0 || (params != set.given && params != set.with_gradient)) {
            continue;
        }
        double norm = sqrt(set.square), room = norm_room(&set, unit) * norm;
        double by = own_scale(samples->step[rank]); /* two more roundings of each element */
        bool fits = fits_norm(samples->step[rank], call, returned, norm, room);
        bool divided =
            !fits && by > 1 &&
            fits_norm(samples->step[rank], call, returned * by, norm, room + 2 * unit.u * norm);
        all->scaled_before = divided ? 1 / by : all->scaled_before;
        if (fits || divided) {
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

/* Which of a step's clip calls a tensor was given to is not known. Of a few, every subset is a way;
 * of more, each call alone and all together. */
static int count_ways(int calls)
{
    enum { FEW = 6 };
    return calls <= FEW ? (1 << calls) - 1 : calls + 1;
}

static bool takes(int way, int calls, int call)
{
    bool subsets = count_ways(calls) > calls + 1 || calls == 1;
    return subsets ? ((way + 1) >> call & 1) != 0 : way == call || way == calls;
}

/* The calls that it was given to act in their order, each on what the one before left. */
static bool is_explained_by(const ls_observe_step *step, int way, int calls, const ls_values *base,
                            const ls_values *clipped, double before)
{
    ls_unit unit = clipped->unit;
    for (int64_t i = 0; i < base->count; i++) {
        double wanted = base->v[i] * before, times = one_clip.value;
        double room = before == 1 ? 0 : times * (unit.u * fabs(wanted) + unit.eta);
        int index = 0;
        ls_trace_each_kind(call, step, LS_CALL_CLIP) {
            double limit = ls_event_number(call->json, limit, INFINITY);
            if (!takes(way, calls, index++)) {
                continue;
            }
            if (is_value_clip(call)) {
                room += fabs(wanted) <= limit ? 0 : unit.u * limit; /* it in the gradient's type */
                wanted = fmax(-limit, fmin(limit, wanted));
            } else {
                double factor = coefficient_of(call);
                wanted *= factor;
                room = room * factor + times * (unit.u * fabs(wanted) + unit.eta);
            }
        }
        if (isfinite(wanted) && !(fabs(clipped->v[i] - wanted) <= room)) {
            return false;
        }
    }
    return true;
}

static bool is_explained(const ls_observe_step *step, int calls, const ls_values *base,
                         const ls_values *clipped, double before)
{
    bool explained = false;
    for (int way = 0; way < count_ways(calls) && !explained; way++) {
        explained = is_explained_by(step, way, calls, base, clipped, before);
    }
    return explained;
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
        bool explained = is_explained(step, all->calls, &base, &clipped, 1);
        all->unchanged += explained;
        if (!explained &&
            !(factor && is_explained(step, all->calls, &base, &clipped, all->scaled_before)) &&
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

/* ---- parts of one model ---------------------------------------------------------------------- */

/* Parameters of a rank's optimizer; unknown: copies that no model has. */
static int count_held(const ls_observe_rank *rank, int optimizer, bool *unknown)
{
    int count = 0;
    const ls_event *group;
    ls_event_each(group, ls_event_list(ls_job_optimizer(rank, optimizer), groups)) {
        count += ls_event_count(ls_event_list(group, params));
        *unknown = *unknown || ls_event_holds(ls_event_list(group, params), "?");
    }
    return count;
}

/* The step's one clip by norm, of all that an optimizer of the rank holds; NULL: none such. */
static const ls_call *clip_of_all(const ls_observe_rank *rank, const ls_observe_step *step)
{
    int first = step == NULL ? -1 : ls_trace_find(step, LS_CALL_CLIP, 0);
    const ls_call *call = first < 0 ? NULL : &step->call[first];
    bool unknown = false;
    if (call == NULL || ls_trace_find(step, LS_CALL_CLIP, first + 1) >= 0 || call->times > 1 ||
        is_value_clip(call) || isnan(ls_event_number(call->json, norm, NAN))) {
        return NULL;
    }
    int held = count_held(rank, call->optimizer, &unknown);
    /* a tensor alone may be clipped by its own norm, whoever holds it */
    bool several = held > 1 || (held == 1 && unknown);
    return several && ls_event_int(call->json, params, -1) == held ? call : NULL;
}

/* Whether the optimizers hold other parameters on that rank than on the first, or copies of them.
 */
static bool holds_others(const ls_observe_trace *trace, int rank, int a, int b)
{
    bool unknown = false;
    const ls_event *group, *name;
    count_held(&trace->rank[0], a, &unknown);
    ls_event_each(group, ls_event_list(ls_job_optimizer(&trace->rank[0], a), groups)) {
        ls_event_each(name, ls_event_list(group, params)) {
            bool found = false;
            const ls_event *other;
            ls_event_each(other, ls_event_list(ls_job_optimizer(&trace->rank[rank], b), groups)) {
                found = found || (ls_event_is_text(name) &&
                                  ls_event_holds(ls_event_list(other, params), name->text));
            }
            if (!found) {
                return true;
            }
        }
    }
    return unknown;
}

/* Replicas whose gradients are equal: where an optimizer of each rank holds a part of the model,
 * the norm is that of all parts, or each part is scaled by another factor. */
static bool judge_parts(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_observe_rank *own = &trace->rank[0];
    if (trace->world < 2 || !(ls_trace_is_ddp(trace) || ls_by_hand_replicates(trace))) {
        return false;
    }
    set_sum whole = {.with_gradient = own->tensor_count};
    ls_unit unit = {.u = 0x1p-24};
    for (int i = 0; i < own->tensor_count; i++) {
        ls_unit type = ls_samples_unit(own->tensor[i].type);
        unit = type.u > unit.u ? type : unit;
        whole.largest =
            own->tensor[i].elements > whole.largest ? own->tensor[i].elements : whole.largest;
    }
    ls_trace_each_step(step, own) {
        const ls_call *call = clip_of_all(own, step);
        for (int k = 1; k < trace->world && call != NULL; k++) {
            const ls_observe_rank *rank = &trace->rank[k];
            const ls_call *other = clip_of_all(rank, ls_trace_step(rank, step->step->step));
            if (other == NULL || strcmp(call->at, other->at) != 0 ||
                !holds_others(trace, k, call->optimizer, other->optimizer)) {
                continue;
            }
            double a = ls_event_number(call->json, norm, NAN);
            double b = ls_event_number(other->json, norm, NAN);
            double room = 2 * norm_room(&whole, unit) * fmax(a, b);
            if (fabs(a - b) > room && coefficient_of(call) != coefficient_of(other)) {
                ls_verdict_fail(&out->verdict,
                                "step %lld: rank 0 scales by limit/norm of %.6g, rank %d by that "
                                "of %.6g",
                                (long long)step->step->step, a, k, b);
                ls_verdict_cause(&out->verdict,
                                 "each rank clips by the norm of the parameters that its own "
                                 "optimizer holds: parts of one model are scaled differently");
                ls_finding_blame(out, call->at,
                                 "sum the squares of the norms over the ranks, and clip by the "
                                 "root of that (clip_grads_with_norm_)");
                return true;
            }
        }
    }
    return false;
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

/* The group has all trainable parameters of one model, and no others: the script clips a model. */
static bool is_model(const ls_observe_rank *rank, const ls_event *group)
{
    const ls_event *param;
    int model = -1, count = 0, own = 0;
    ls_event_each(param, ls_event_member(group, params)) {
        const ls_observe_tensor *tensor = ls_job_tensor(rank, ls_event_to_text(param, ""));
        if (tensor == NULL || (count > 0 && tensor->model != model)) {
            return false;
        }
        model = tensor->model;
        count++;
    }
    for (int i = 0; i < rank->tensor_count; i++) {
        own += rank->tensor[i].model == model && rank->tensor[i].trainable;
    }
    return count > 0 && count == own;
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
    if (calls < 2 || clipped == NULL || others == 0 || is_model(rank, clipped)) {
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
            const ls_observe_step *step = &trace->rank[k].step[i];
            clipped += ls_trace_find(step, LS_CALL_CLIP, 0) >= 0;
            ls_trace_each_kind(call, step, LS_CALL_CLIP) {
                all.beyond += !step->detail && !is_value_clip(call) && coefficient_of(call) < 1;
            }
        }
    }
    if (trace->attached &&
        (ls_parts_judge_norm(trace, out) || (clipped > 0 && judge_parts(trace, out)))) {
        return;
    }
    if (clipped > 0 && ls_job_sharded(trace) != NULL) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "%s: each rank holds a part of the gradients",
                       ls_job_sharded(trace));
        return;
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
    } else if (all.acting == 0 && all.beyond > 0) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "no gradient exceeded the limit in a detailed step, and %d did in others",
                       all.beyond);
    } else if (all.acting == 0 && all.norms == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no gradient exceeded the limit in any step");
    }
    ls_verdict_pass(&out->verdict, all.tensors + all.norms,
                    "%d clipped tensors recomputed, and %d norms%s", all.tensors, all.norms,
                    all.acting == 0 ? "; none exceeded the limit" : "");
}

/* ---- optimizer.unscaled ---------------------------------------------------------------------- */

/* What happens to a gradient between its reduction and the step. */

static const ls_tol one_product =
    LS_TOL(2, "two roundings of the product with 1/S: in f32, and in the gradient's own type "
              "(numerics 8.3)");
/* ---- the calls of a step --------------------------------------------------------------------- */

/* What happened to the gradients of an optimizer: indices of calls, -1: none. */
typedef struct chain {
    int unscale, clip, step;
    double scale; /* of its scaler; 1 without one, NaN where it is not known */
    bool itself;  /* it unscales within its step, and may leave .grad as it is */
} chain;

static double scale_of(const ls_observe_step *step, int scaler)
{
    if (scaler <= 0) {
        return step->step->loss_scale;
    }
    ls_trace_each_kind(call, step, LS_CALL_UPDATE) {
        if (call->scaler == scaler) {
            return ls_event_number(call->json, scale, NAN);
        }
    }
    return NAN;
}

/* A clip belongs to the optimizer that steps next. */
static chain chain_of(const ls_observe_step *step, int optimizer)
{
    chain found = {-1, -1, -1, 1, false};
    int scaler = -1;
    for (int c = 0; c < step->call_count; c++) {
        const ls_call *call = &step->call[c];
        if (call->kind == LS_CALL_CLIP && found.step < 0) {
            found.clip = c;
        } else if (call->kind == LS_CALL_UNSCALE && call->optimizer == optimizer) {
            found.unscale = c;
            scaler = call->scaler;
        } else if (call->kind == LS_CALL_OPTIMIZER_STEP && call->optimizer == optimizer) {
            found.step = c;
            int scaled = ls_event_int(call->json, scaled, -1);
            scaler = scaled >= 0 ? scaled : scaler;
        }
    }
    found.scale = scaler >= 0 ? scale_of(step, scaler) : 1;
    return found;
}

/* A class of the script's own whose step is handed the scale: it may leave .grad as it is. */
static bool unscales_itself(const ls_observe_rank *rank, const ls_observe_step *step, int optimizer,
                            const chain *c)
{
    return c->unscale < 0 && c->step >= 0 &&
           ls_event_int(step->call[c->step].json, scaled, -1) >= 0 &&
           ls_event_has(ls_job_optimizer(rank, optimizer), step_at);
}

/* The optimizer that holds the parameter and stepped, or would have; -1: none. */
static int optimizer_of(const ls_samples *samples, int rank, const char *name)
{
    int optimizer = -1, index;
    const ls_call *call = NULL;
    const ls_observe_rank *own = &samples->trace->rank[rank];
    while (ls_job_group(own, name, optimizer, &optimizer, &index) != NULL) {
        chain c = chain_of(samples->step[rank], optimizer);
        if (ls_job_steps_of(samples->step[rank], optimizer, &call) > 0 || c.unscale >= 0) {
            return optimizer;
        }
    }
    return -1;
}

/* ---- unscaled -------------------------------------------------------------------------------- */

typedef enum change {
    CHANGE_NONE,
    CHANGE_SCALED, /* still times the scale */
    CHANGE_TWICE,  /* divided by it twice */
    CHANGE_NEXT,   /* divided by another one, which multiplies the next step's loss */
    CHANGE_ZERO,
    CHANGE_FACTOR, /* one factor over the tensor */
    CHANGE_OTHER,
    CHANGES,
} change;

typedef struct changes {
    int count[CHANGES];
    int64_t step;
    int rank;
    double factor;
    ls_job_names names;
    char first[160];
    const char *at;
    int tensors, here; /* here: of the last rank and step */
    int within;        /* used before the backward pass that gave them had ended */
} changes;

/* Whether b = factor * a, each product rounded. */
static bool is_product(const ls_values *a, const ls_values *b, double factor)
{
    for (int64_t i = 0; i < a->count; i++) {
        double wanted = a->v[i] * factor, f32 = ls_samples_unit("f32").u;
        double room = one_product.value * (fmax(b->unit.u, f32) * fabs(wanted) + b->unit.eta);
        bool finite = isfinite(wanted) && isfinite(b->v[i]);
        if (finite ? fabs(b->v[i] - wanted) > room : isfinite(wanted) != isfinite(b->v[i])) {
            return false;
        }
    }
    return a->count == b->count;
}

static double fit_factor(const ls_values *a, const ls_values *b)
{
    double product = 0, square = 0;
    for (int64_t i = 0; i < a->count && i < b->count; i++) {
        product += a->v[i] * b->v[i];
        square += a->v[i] * a->v[i];
    }
    return square > 0 ? product / square : NAN;
}

/* What came between a and b, of which b = factor * a was expected. */
static change classify(const ls_values *a, const ls_values *b, double factor, double scale,
                       double *fitted)
{
    if (is_product(a, b, factor)) {
        return CHANGE_NONE;
    }
    if (ls_samples_zero(b)) {
        return CHANGE_ZERO;
    }
    if (scale != 1 && is_product(a, b, factor * scale)) {
        return CHANGE_SCALED;
    }
    if (scale != 1 && is_product(a, b, factor / scale)) {
        return CHANGE_TWICE;
    }
    *fitted = fit_factor(a, b);
    ls_values wide = *b;
    wide.unit.u *= 4; /* the factor is itself fitted and rounded, and may be two products */
    return isfinite(*fitted) && is_product(a, &wide, *fitted) ? CHANGE_FACTOR : CHANGE_OTHER;
}

static void add_change(const ls_samples *samples, int rank, const char *name, const char *from,
                       const char *to, change what, changes *all)
{
    if (what == CHANGE_NONE) {
        return;
    }
    if (all->names.count == 0) {
        all->step = samples->number;
        all->rank = rank;
        ls_text_put(all->first, sizeof all->first, "between %s and %s", from, to);
    }
    all->count[what]++;
    ls_job_add_name(&all->names, name);
}

/* reduced -> (unscale, clip, in the order of the calls) -> used. */
static void judge_chain(const ls_samples *samples, int rank, const char *name, const chain *c,
                        changes *all)
{
    const ls_dumpfile *file = samples->file[rank];
    ls_values reduced = ls_samples_read(file, "reduced", name, NULL);
    ls_values grad = ls_samples_read(file, "grad", name, NULL);
    ls_values clipped = ls_samples_read(file, "clipped", name, NULL);
    ls_values used = ls_samples_read(file, "used", name, NULL);
    bool unscaled = grad.v != NULL && !isnan(c->scale);
    bool clip_first =
        unscaled && c->clip >= 0 && clipped.v != NULL && (c->unscale < 0 || c->clip < c->unscale);
    const ls_values *before = clip_first ? &clipped : &reduced;
    bool seen = before->v != NULL && (unscaled || used.v != NULL);
    all->tensors += seen;
    all->here += seen;
    all->within += reduced.v == NULL && grad.v == NULL && clipped.v == NULL && used.v != NULL;
    if (unscaled && before->v != NULL && before->count == grad.count &&
        !ls_samples_overflow(before)) {
        double inverse = (float)(1 / c->scale);
        change what = classify(before, &grad, inverse, c->scale, &all->factor);
        what = what == CHANGE_SCALED && c->itself ? CHANGE_NONE : what;
        add_change(samples, rank, name, "the reduction", "the unscaled gradient", what, all);
    }
    const ls_values *last = clipped.v != NULL && !clip_first ? &clipped
                            : unscaled                       ? &grad
                                                             : &reduced;
    if (last->v != NULL && used.v != NULL && last->count == used.count &&
        !ls_samples_overflow(last) && !ls_samples_equal(last, &used)) {
        change what = classify(last, &used, 1, c->scale, &all->factor);
        if (what == CHANGE_FACTOR && c->scale == 1) {
            const ls_observe_rank *own = &samples->trace->rank[rank];
            const ls_observe_step *next = ls_trace_step(own, samples->number + 1);
            double by = next == NULL ? 1 : own_scale(next);
            what = ls_factor_is_near(all->factor * own_scale(samples->step[rank]), 1) ? CHANGE_NONE
                   : by > 1 && ls_factor_is_near(all->factor * by, 1)                 ? CHANGE_NEXT
                                                                                      : what;
        }
        const char *from = last == &clipped ? "clipping"
                           : last == &grad  ? "unscaling"
                                            : "the reduction";
        add_change(samples, rank, name, from, "the step", what, all);
    }
    ls_samples_free(&reduced);
    ls_samples_free(&grad);
    ls_samples_free(&clipped);
    ls_samples_free(&used);
}

static void judge_unscaled_step(const ls_samples *samples, changes *all)
{
    for (int k = 0; k < samples->world && all->names.count == 0; k++) {
        const ls_observe_rank *rank = &samples->trace->rank[k];
        all->here = 0;
        for (int i = 0; i < rank->tensor_count && samples->file[k] != NULL; i++) {
            const char *name = rank->tensor[i].name;
            int optimizer = optimizer_of(samples, k, name);
            if (optimizer < 0) {
                continue;
            }
            chain c = chain_of(samples->step[k], optimizer);
            c.itself = unscales_itself(rank, samples->step[k], optimizer, &c);
            judge_chain(samples, k, name, &c, all);
            int at = c.step >= 0 ? c.step : c.unscale;
            all->at = samples->step[k]->call[at].at;
        }
    }
}

/* Of the last zero_grad between the backward and the step; without one, of the step. */
static const char *zero_grad_at(const ls_observe_trace *trace, const changes *all)
{
    const ls_observe_step *step = ls_trace_step(&trace->rank[all->rank], all->step);
    const char *at = all->at;
    for (int c = 0; step != NULL && c < step->call_count; c++) {
        ls_call_kind kind = step->call[c].kind;
        at = kind == LS_CALL_ZERO_GRAD ? step->call[c].at : kind == LS_CALL_BACKWARD ? all->at : at;
        if (kind == LS_CALL_OPTIMIZER_STEP) {
            break;
        }
    }
    return at;
}

static void report_changes(const ls_observe_trace *trace, changes *all, ls_observe_finding *out)
{
    static const struct {
        const char *what, *advice;
    } words[CHANGES] = {
        [CHANGE_SCALED] = {"the gradient is still times the loss scale",
                           "step through scaler.step(optimizer), which unscales"},
        [CHANGE_TWICE] = {"the gradient is divided by the loss scale twice",
                          "unscale once: scaler.unscale_() or a division by hand, not both"},
        [CHANGE_NEXT] = {"the gradient is divided by the loss scale of the next step",
                         "raise or lower the scale after the gradients are divided by it"},
        [CHANGE_ZERO] = {"the gradient is set to zero before the step",
                         "call zero_grad() after the step, or before the first backward"},
    };
    int worst = CHANGE_NONE;
    for (int c = CHANGE_SCALED; c <= CHANGE_ZERO; c++) {
        worst = all->count[c] > all->count[worst] ? c : worst;
    }
    if (worst != CHANGE_NONE && !(worst == CHANGE_ZERO && all->count[worst] * 2 < all->here)) {
        ls_observe_finding one = {0};
        ls_finding_set(&one, LS_FAIL, worst == CHANGE_ZERO ? zero_grad_at(trace, all) : all->at,
                       words[worst].what, words[worst].advice,
                       "step %lld, rank %d, %s: %s, in %d tensors: %s", (long long)all->step,
                       all->rank, all->first, words[worst].what, all->count[worst],
                       ls_job_names_text(&all->names));
        if (worst == CHANGE_ZERO) {
            ls_finding_guess(out, &one);
        } else {
            ls_calls_keep_worst(out, &one);
        }
    }
    if (all->names.count > 0 && out->verdict.code != LS_FAIL) {
        LS_TEXT(factor, 60, ", by a factor of %.6g", all->factor);
        ls_finding_set(out, LS_WEAK, all->at, NULL,
                       "what the script does to gradients by itself is not judged",
                       "step %lld, rank %d: the script changes the gradient of %d tensors %s%s: %s",
                       (long long)all->step, all->rank, all->names.count, all->first,
                       all->count[CHANGE_FACTOR] == all->names.count ? factor : "",
                       ls_job_names_text(&all->names));
    }
}

void ls_rules_optimizer_unscaled(const ls_observe_trace *trace, ls_observe_finding *out)
{
    changes all = {.at = "", .factor = NAN};
    ls_samples_each(samples, trace, 0, all.names.count == 0, out) {
        judge_unscaled_step(&samples, &all);
    }
    if (all.names.count > 0 && ls_job_reduces_itself(trace)) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "the script reduces gradients by itself, between backward and step");
    } else {
        report_changes(trace, &all, out);
    }
    if (all.tensors == 0 && all.within > 0) {
        ls_verdict_set(&out->verdict, LS_SKIP,
                       "optimizers step within the backward pass: nothing comes between");
    }
    ls_finding_close(out, all.tensors, LS_WEAK, "no detailed step with a gradient of a step taken",
                     "%d gradients of detailed steps %s", all.tensors,
                     ls_trace_is_scaled(trace) ? "are divided by the loss scale once, then used"
                                               : "are used as they were reduced");
}
