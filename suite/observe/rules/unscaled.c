/* What happens to a gradient between its reduction and the step. */
#include <math.h>

#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"
#include "kernels/core/text.h"
#include "rules.h"

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
