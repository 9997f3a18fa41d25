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
            int64_t elements = own->tensor[i].elements;
            set.given++;
            if (norm.v != NULL && norm.count > index && !isnan(norm.v[index])) {
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
    chain found = {-1, -1, -1, 1};
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
    if (unscaled && before->v != NULL && before->count == grad.count &&
        !ls_samples_overflow(before)) {
        double inverse = (float)(1 / c->scale);
        change what = classify(before, &grad, inverse, c->scale, &all->factor);
        add_change(samples, rank, name, "the reduction", "the unscaled gradient", what, all);
    }
    const ls_values *last = clipped.v != NULL && !clip_first ? &clipped
                            : unscaled                       ? &grad
                                                             : &reduced;
    if (last->v != NULL && used.v != NULL && last->count == used.count &&
        !ls_samples_overflow(last) && !ls_samples_equal(last, &used)) {
        change what = classify(last, &used, 1, c->scale, &all->factor);
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
            judge_chain(samples, k, name, &c, all);
            int at = c.step >= 0 ? c.step : c.unscale;
            all->at = samples->step[k]->call[at].at;
        }
    }
}

static const char *zero_grad_at(const ls_observe_trace *trace, const changes *all)
{
    const ls_observe_step *step = ls_trace_step(&trace->rank[all->rank], all->step);
    int last = -1;
    for (int c = 0; step != NULL && c < step->call_count; c++) {
        last = step->call[c].kind == LS_CALL_ZERO_GRAD ? c : last;
        if (step->call[c].kind == LS_CALL_OPTIMIZER_STEP) {
            break;
        }
    }
    return last >= 0 ? step->call[last].at : all->at;
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
    ls_finding_close(out, all.tensors, LS_WEAK, "no detailed step with a gradient of a step taken",
                     "%d gradients of detailed steps %s", all.tensors,
                     ls_trace_is_scaled(trace) ? "are divided by the loss scale once, then used"
                                               : "are used as they were reduced");
}
