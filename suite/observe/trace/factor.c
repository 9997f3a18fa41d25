#include "factor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "by_hand.h"
#include "calls.h"
#include "kernels/core/text.h"
#include "mean.h"
#include "suite/suite.h"
#include "kernels/core/list.h"
#include "samples.h"
#include "job.h"

static const ls_tol fits =
    LS_TOL(0x1p-6, "of a tensor's norm: 1 + W roundings of bf16 in a row stay below it, and a "
                   "compression that keeps less is no multiple (numerics 8.1)");
static const ls_tol same =
    LS_TOL(0x1p-6, "the factors of interest are whole numbers and their inverses, of ranks and "
                   "micro-steps: up to 32 of them are further apart (numerics 8.1)");

static const ls_tol small_share =
    LS_TOL(1e-6, "of the gradient's square: the rounding of a tensor with less says nothing");

bool ls_factor_is_near(double value, double wanted)
{
    return fabs(value / wanted - 1) <= same.value;
}

/* ---- one step -------------------------------------------------------------------------------- */

typedef struct sums {
    double product, square, got; /* of got * mean, mean * mean, got * got */
} sums;

static bool add_tensor(const ls_samples *samples, const char *group, const char *name, sums *s)
{
    ls_mean mean;
    bool finite = true;
    ls_mean_plan plan = ls_mean_plan_of(samples, 0);
    ls_values got = ls_samples_read(samples->file[0], group, name, NULL);
    *s = (sums){0};
    if (got.v != NULL && ls_mean_make(samples, &plan, name, "F32", &mean)) {
        for (int64_t i = 0; i < mean.count && i < got.count; i++) {
            finite = finite && isfinite(got.v[i]) && isfinite(mean.mean[i]);
            s->product += got.v[i] * mean.mean[i];
            s->square += mean.mean[i] * mean.mean[i];
            s->got += got.v[i] * got.v[i];
        }
        ls_mean_free(&mean);
    }
    ls_samples_free(&got);
    return finite;
}

/* Whether tensors are trained by the reduction that is asked about: in a job with wrapped models,
 * those of them. */
static bool is_asked(const ls_factor *f, const ls_observe_rank *rank, int tensor)
{
    return !f->ddp || ls_job_model_is_ddp(ls_job_model(rank, rank->tensor[tensor].model));
}

/* One factor for all tensors, each within `fits` of it; NaN: there is none. */
static double fit(const ls_factor *f, const ls_samples *samples, const char *group, bool *seen)
{
    const ls_observe_rank *rank = &samples->trace->rank[0];
    sums all = {0}, one;
    *seen = false;
    for (int i = 0; i < rank->tensor_count; i++) {
        if (is_asked(f, rank, i)) {
            if (!add_tensor(samples, group, rank->tensor[i].name, &one)) {
                return NAN;
            }
            all.product += one.product;
            all.square += one.square;
            *seen = *seen || one.square > 0;
        }
    }
    double factor = all.square > 0 ? all.product / all.square : NAN;
    for (int i = 0; i < rank->tensor_count && isfinite(factor); i++) {
        if (!is_asked(f, rank, i)) {
            continue;
        }
        (void)add_tensor(samples, group, rank->tensor[i].name, &one);
        double off = one.got - 2 * factor * one.product + factor * factor * one.square;
        double room = factor * fits.value;
        if (one.square > small_share.value * all.square && off > one.square * room * room) {
            return NAN;
        }
    }
    return factor;
}

/* What clipping by norm multiplied by; NaN where there were other clips. */
static double clip_of(const ls_observe_step *step)
{
    double by = 1;
    int clips = 0;
    ls_trace_each_kind(call, step, LS_CALL_CLIP) {
        double limit = ls_event_number(call->json, limit, NAN);
        double norm = ls_event_number(call->json, norm, NAN);
        bool is_norm = strcmp(ls_event_text(call->json, how, ""), "norm") == 0;
        clips += call->times;
        double share = limit / (norm + 1e-6);
        by = !is_norm || clips > 1 || isnan(share) ? NAN : share < 1 ? share : 1;
    }
    return by;
}

static double scale_of(const ls_samples *samples)
{
    const ls_observe_rank *rank = &samples->trace->rank[0];
    double scale = samples->step[0]->step->loss_scale;
    for (int i = 0; i < rank->tensor_count; i++) {
        if (ls_samples_find(samples->file[0], "grad", rank->tensor[i].name, NULL) != NULL) {
            return isnan(scale) ? 1 : scale;
        }
    }
    return 1;
}

/* Of the step's backward passes, which must agree. */
static void add_losses(ls_factor *f, const ls_observe_step *step)
{
    const ls_call *last = NULL;
    f->micro = 0;
    ls_trace_each_kind(call, step, LS_CALL_BACKWARD) {
        last = call;
    }
    ls_trace_each_kind(call, step, LS_CALL_BACKWARD) {
        double times = fabs(ls_event_number(call->json, loss_times, NAN));
        const char *of = ls_event_text(call->json, loss_of, "");
        f->micro += strcmp(call->at, last->at) == 0 ? call->times : 0;
        if (f->backward == NULL) {
            f->loss_times = times;
            f->loss_of = of;
            f->loss_count = ls_event_number(call->json, loss_count, NAN);
            f->loss_first = ls_event_number(call->json, loss_first, NAN);
        } else if (!ls_factor_is_near(times, f->loss_times) || strcmp(of, f->loss_of) != 0) {
            f->loss_of = "";
        }
        f->loss_divided = ls_event_bool(call->json, loss_divided, false);
        f->loss_by = ls_event_number(call->json, loss_by, 1);
        f->loss_by_ranks = ls_event_text(call->json, loss_by_ranks, "");
        f->loss_by_steps = ls_event_text(call->json, loss_by_steps, "");
        f->backward = call;
    }
}

static const ls_tol equal =
    LS_TOL(1e-5, "of a weight: counts and quotients that the script holds in f32");

static bool is_equal(double value, double wanted)
{
    return fabs(value / wanted - 1) <= equal.value;
}

/* Losses of one step that are all of the same place and kind, with a known number of terms each. */
typedef struct weights {
    int losses;
    bool known;
    double least, most, many, few; /* of a term, and the terms of these losses */
    double sum, terms;
    double total, times; /* each is a sum that is divided by that, all ranks' number; else NaN */
} weights;

/* Whether the script summed numbers over the ranks to that one, in the step before the call. */
static bool has_sum(const ls_call *call, double value)
{
    const ls_event *sum;
    ls_event_each(sum, ls_event_list(call->json, loss_sums)) {
        if (ls_event_is_number(sum) && is_equal(sum->number, value)) {
            return true;
        }
    }
    return false;
}

static void weigh(const ls_call *call, const ls_factor *f, weights *w)
{
    const char *of = ls_event_text(call->json, loss_of, "");
    double times = fabs(ls_event_number(call->json, loss_times, NAN));
    double count = ls_event_number(call->json, loss_count, NAN);
    double terms = ls_event_number(call->json, loss_terms, count);
    double weight = strcmp(of, "mean") == 0 ? times / terms : times;
    double by = ls_event_number(call->json, loss_by, NAN);
    bool total = strcmp(of, "sum") == 0 && has_sum(call, by) && by <= terms * f->world * f->micro &&
                 (w->losses == 0 || is_equal(by, w->total));
    w->total = total ? by : NAN;
    w->times = times * by;
    w->known = w->known && strcmp(call->at, f->backward->at) == 0 && terms > 0 && weight > 0 &&
               strcmp(of, ls_event_text(f->backward->json, loss_of, "")) == 0;
    if (w->losses == 0 || weight < w->least) {
        w->least = weight;
        w->many = terms;
    }
    if (w->losses == 0 || weight > w->most) {
        w->most = weight;
        w->few = terms;
    }
    w->losses += call->times;
    w->sum += weight * terms * call->times;
    w->terms += terms * call->times;
}

/* Whether values of ranks are put together between a step's first forward and its last backward. */
static bool is_mixed(const ls_observe_step *step)
{
    bool inside = false, waiting = false, mixed = false;
    ls_trace_each_call(call, step) {
        inside = inside || ls_calls_is_training(call);
        waiting = waiting || (inside && call->kind == LS_CALL_COLLECTIVE && ls_calls_combine(call));
        mixed = mixed || (waiting && call->kind == LS_CALL_BACKWARD);
    }
    return mixed;
}

/* The number of all ranks' terms by which a part of the loss, a sum, is divided; NaN: of none.
 * weight: of that part. One that is a multiple of the ranks' number may hold it. */
static double divided_part(const ls_call *call, const ls_factor *f, double *weight)
{
    const ls_event *part;
    double found = NAN;
    *weight = NAN;
    ls_event_each(part, ls_event_list(call->json, loss_parts)) {
        double by = ls_event_number_at(part, 1), terms = ls_event_number_at(part, 2);
        double factor = ls_event_number_at(part, 0) * by;
        if (has_sum(call, by) && by <= terms * f->world * f->micro && !is_equal(*weight, 1) &&
            !(fabs(remainder(factor, f->world)) <= equal.value * factor)) {
            *weight = factor;
            found = by;
        }
    }
    return found;
}

static void add_parts(ls_factor *f, const ls_samples *samples)
{
    double by = NAN, weight = NAN;
    for (int k = 0; k < samples->world && f->backward != NULL; k++) {
        ls_trace_each_kind(call, samples->step[k], LS_CALL_BACKWARD) {
            double own = divided_part(call, f, &weight);
            if (isnan(own) || (!isnan(by) && !is_equal(own, by))) {
                return;
            }
            by = own;
        }
    }
    if (!isnan(by)) {
        f->parts_vary = f->parts_vary || (f->parts > 0 && by != f->part_terms);
        f->part_terms = by;
        f->part_weight = weight;
        f->parts++;
    }
}

static void add_weights(ls_factor *f, const ls_samples *samples)
{
    add_parts(f, samples);
    weights w = {.known = f->backward != NULL};
    for (int k = 0; k < samples->world && w.known; k++) {
        ls_trace_each_kind(call, samples->step[k], LS_CALL_BACKWARD) {
            weigh(call, f, &w);
        }
    }
    f->mixed = f->mixed || is_mixed(samples->step[0]);
    if (isfinite(w.total)) { /* masked terms are among those that are known */
        w.sum = w.times;
        w.terms = w.total;
    }
    f->share = w.known ? w.sum / samples->world : NAN;
    if (!w.known) {
        return;
    }
    bool uneven = strcmp(ls_event_text(f->backward->json, loss_of, ""), "mean") == 0 &&
                  !is_equal(w.most, w.least) && ls_event_has(f->backward->json, loss_sums);
    f->uneven += uneven;
    f->counted += uneven && has_sum(f->backward, w.terms);
    if (w.most / w.least > f->ratio) {
        f->ratio = w.most / w.least;
        f->few = w.few;
        f->many = w.many;
        f->ratio_step = samples->number;
    }
    if (strcmp(ls_event_text(f->backward->json, loss_of, ""), "sum") == 0 &&
        is_equal(w.most, w.least) && is_equal(w.sum, 1)) {
        f->terms_vary = f->terms_vary || (f->inverse > 0 && w.terms != f->terms);
        f->terms = w.terms;
        f->inverse++;
    }
}

/* One that changes from step to step is no fault of the reduction. */
static void keep(ls_multiple *m, double now)
{
    m->changes =
        m->changes || (isfinite(m->value) && isfinite(now) && !ls_factor_is_near(now, m->value));
    m->value = isfinite(now) ? now : m->value;
}

/* The last hook of any model, where it is none of torch's that sends means. */
static const ls_event *own_hook(const ls_observe_rank *rank)
{
    const ls_event *hook = ls_trace_last(rank, hook);
    return ls_reduction_kind(hook) == LS_HOOK_OTHER ? hook : NULL;
}

/* A collective on one number with a graph, before the step's last backward. */
static const ls_call *reduced_loss(const ls_observe_step *step)
{
    const ls_call *found = NULL;
    ls_trace_each_kind(call, step, LS_CALL_COLLECTIVE) {
        if (ls_event_int(call->json, elements, 0) == 1 && ls_event_bool(call->json, graph, false) &&
            ls_trace_find(step, LS_CALL_BACKWARD, (int)(call - step->call)) >= 0) {
            found = call;
        }
    }
    return found;
}

void ls_factor_add(ls_factor *f, const ls_samples *samples)
{
    const ls_observe_step *step = samples->step[0];
    bool has_reduced, has_used;
    if (f->world == 0) {
        *f = (ls_factor){.world = samples->world,
                         .reduced = {NAN, false},
                         .used = {NAN, false},
                         .share = NAN,
                         .loss_of = "",
                         .loss_by_ranks = "",
                         .loss_by_steps = "",
                         .ddp = ls_trace_is_ddp(samples->trace),
                         .hook = own_hook(&samples->trace->rank[0])};
    }
    if (!samples->trace->attached || ls_mean_plan_of(samples, 0).zeroed) {
        return;
    }
    double reduced = fit(f, samples, "reduced", &has_reduced);
    double used = fit(f, samples, "used", &has_used) * scale_of(samples) / clip_of(step);
    f->unfit += has_reduced && !isfinite(reduced);
    if (!isfinite(reduced) && !isfinite(used)) {
        return;
    }
    keep(&f->reduced, reduced);
    keep(&f->used, used);
    add_losses(f, step);
    add_weights(f, samples);
    f->loss_reduced = reduced_loss(step);
    int call = ls_by_hand_collective(step);
    f->collective = call >= 0 ? &step->call[call] : f->collective;
    call = ls_trace_find(step, LS_CALL_OPTIMIZER_STEP, 0);
    f->optimizer = call >= 0 ? &step->call[call] : f->optimizer;
    f->step = samples->number;
    f->steps++;
}

/* ---- verdict --------------------------------------------------------------------------------- */

/* Whether the losses hold that factor, as a mean over a rank's batch does with it. */
static bool losses_hold(const ls_factor *f, double factor)
{
    bool sum = strcmp(f->loss_of, "sum") == 0;
    double times = f->loss_times;
    return ls_factor_is_near(times, factor) ||
           (sum && (ls_factor_is_near(times * f->loss_count, factor) ||
                    ls_factor_is_near(times * f->loss_first, factor)));
}

/* Whether they are means over the batch, as far as is known. */
static bool losses_are_means(const ls_factor *f)
{
    bool counted = ls_factor_is_near(f->loss_times * f->loss_count, 1) ||
                   ls_factor_is_near(f->loss_times * f->loss_first, 1);
    return strcmp(f->loss_of, "mean") == 0 || (strcmp(f->loss_of, "sum") == 0 && counted);
}

/* As it is, or divided by the micro-steps. */
static bool is_multiple(const ls_factor *f, double factor, double wanted)
{
    return ls_factor_is_near(factor, wanted) ||
           (f->micro > 1 && ls_factor_is_near(factor * f->micro, wanted));
}

static const char *place_of(const ls_factor *f, bool in_hook)
{
    return in_hook                 ? ls_event_text(f->hook, at, "")
           : f->collective != NULL ? f->collective->at
           : f->optimizer != NULL  ? f->optimizer->at
                                   : "";
}

/* k times the mean, where `inverse` is what losses must hold to make that right. */
static void judge_factor(const ls_factor *f, double factor, const char *what, const char *advice,
                         double inverse, ls_observe_finding *out)
{
    bool in_hook = f->ddp && f->hook != NULL && ls_factor_is_near(f->reduced.value, factor);
    bool again = f->ddp && !in_hook;
    bool held = losses_hold(f, inverse) || (f->micro > 1 && losses_hold(f, inverse / f->micro)) ||
                ls_factor_is_near(f->share, inverse);
    bool unclear =
        held && losses_hold(f, inverse) && f->micro > 1 &&
        ls_factor_is_near(inverse * f->micro, 1); /* W of micro-steps: divided by which? */
    bool reduces = in_hook || (again && f->collective != NULL);
    bool multiplies = again && !reduces && factor > 1; /* as some do for losses that are sums */
    bool sure = reduces ? strcmp(f->loss_of, "sum") != 0 : !multiplies && losses_are_means(f);
    if (held && !unclear) {
        return;
    }
    LS_TEXT(found, 200,
            "the gradient is %.4g times the mean of %d ranks (up to step %lld, %d "
            "detailed steps)",
            factor, f->world, (long long)f->step, f->steps);
    if (sure && !held) {
        ls_verdict_fail(&out->verdict, "%s", found);
    } else {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "%s: a mistake, unless the losses are sums over samples, are divided "
                       "by the number of ranks, or the learning rate allows for it",
                       found);
    }
    ls_verdict_cause(&out->verdict, "%s%s%s", what,
                     in_hook ? ", in the communication hook "
                     : again && f->collective != NULL
                         ? ", after DistributedDataParallel has averaged it"
                     : again ? ", by the script, after DistributedDataParallel has averaged it"
                             : "",
                     in_hook ? ls_event_text(f->hook, name, "") : "");
    ls_finding_blame(out, place_of(f, in_hook), "%s", advice);
}

/* Sums that are divided by the number of terms on all ranks, whose gradients the mean divides by
 * the ranks again: a number that follows the counts of each step is no weight. */
static void judge_inverse(const ls_factor *f, ls_observe_finding *out)
{
    bool whole = f->inverse >= 2 && f->inverse >= f->steps && f->terms_vary;
    ls_observe_finding one = {0};
    if (!whole && (f->parts < 2 || f->parts < f->steps || !f->parts_vary)) {
        return;
    }
    ls_finding_set(&one, LS_FAIL, f->backward->at,
                   whole ? "each loss is a sum that is divided by the number of terms on all "
                           "ranks, and the gradients are divided by the ranks on top of it"
                         : "a part of each loss is a sum that is divided by the number of terms on "
                           "all ranks, and the gradients are divided by the ranks on top of it",
                   "multiply the loss by the number of ranks where gradients are averaged",
                   "step %lld: %s losses of %d ranks are divided by %.10g, all their terms, and "
                   "the gradients are averaged: they are 1/%d of those of the mean",
                   (long long)f->step, whole ? "the" : "parts of the", f->world,
                   whole ? f->terms : f->part_terms, f->world);
    /* a whole weight that is no multiple of the ranks does not hold their number, others may */
    bool plain = is_equal(f->part_weight, round(f->part_weight));
    (whole || plain ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
}

/* The loss multiplied by the number of ranks, though no rank's loss is made of others' values. */
static void judge_multiplied(const ls_factor *f, ls_observe_finding *out)
{
    double wanted = f->micro > 1 ? (double)f->world / f->micro : f->world;
    if (f->backward == NULL || strcmp(f->loss_of, "mean") != 0 || f->mixed ||
        !ls_factor_is_near(f->loss_times, wanted) || ls_factor_is_near(wanted, 1) ||
        !ls_event_bool(f->backward->json, loss_alone, false)) {
        return;
    }
    ls_finding_set(out, LS_WEAK, f->backward->at,
                   "summed over the ranks: a mistake, unless the factor is a weight or the "
                   "learning rate allows for the sum",
                   "leave the loss as it is where gradients are averaged over the ranks",
                   "the loss, a mean over a rank's own samples, is multiplied by %.4g before "
                   "backward, and the gradients are averaged over %d ranks: %d times the mean",
                   f->loss_times, f->world, f->world);
}

static const ls_tol unlike = LS_TOL(
    2, "times: the numbers of terms that random masks leave, and last batches, differ by less");

void ls_factor_judge_weights(const ls_factor *f, ls_observe_finding *out)
{
    if (f->steps == 0 || !isfinite(ls_factor_final(f)) || !(f->ratio > unlike.value)) {
        return;
    }
    bool micro = f->micro > 1;
    LS_TEXT(counts, 80, ": they are of %.10g and of %.10g terms", f->few, f->many);
    ls_finding_set(out, LS_WEAK, f->backward->at,
                   "losses over unequal numbers of terms are averaged with equal weight: a "
                   "mistake, unless each batch is to count the same",
                   "sum the terms, and divide by their number in all micro-steps and on all ranks",
                   "step %lld: a term of one loss weighs %.4g times one of another in the mean "
                   "over %s%s",
                   (long long)f->ratio_step, f->ratio,
                   micro && f->world > 1 ? "micro-steps and ranks"
                   : micro               ? "micro-steps"
                                         : "ranks",
                   f->few != f->many ? counts : "");
}

/* Means over unequal numbers of terms, of which the script knows the sum. */
static void guess_counted(const ls_factor *f, ls_observe_finding *out)
{
    if (f->counted < 2 || f->counted < f->uneven) {
        return;
    }
    ls_observe_finding one = {0};
    ls_finding_set(&one, LS_FAIL, f->backward->at,
                   "losses over unequal numbers of terms are averaged with equal weight, and the "
                   "number of all of them is not used",
                   "divide the sum of a rank's terms by the number on all ranks, and multiply by "
                   "the number of ranks",
                   "the script sums the numbers of terms over the ranks before its backward, and "
                   "each rank's loss is the mean of its own: of %.10g and of %.10g in step %lld",
                   f->few, f->many, (long long)f->ratio_step);
    ls_finding_guess(out, &one);
}

/* The loss divided by the number of ranks, and the mean divides again. */
static void judge_losses(const ls_factor *f, ls_observe_finding *out)
{
    double by = 1.0 / f->world;
    bool micro = f->micro > 1;
    bool by_text = f->loss_by_ranks[0] != '\0', named = by_text || f->loss_reduced != NULL;
    bool divides = ls_factor_is_near(f->loss_by * by, micro ? f->micro : 1);
    bool sure = strcmp(f->loss_of, "mean") == 0 && named && divides;
    if (!(f->loss_divided || sure) || !losses_hold(f, micro ? by / f->micro : by) ||
        f->backward == NULL) {
        return;
    }
    ls_observe_finding one = {0};
    ls_verdict_set(&one.verdict, sure ? LS_FAIL : LS_WEAK,
                   "the loss is multiplied by %.4g before backward, and the gradients are averaged "
                   "over %d ranks after it",
                   f->loss_times, f->world);
    ls_verdict_cause(
        &one.verdict, "%s: the gradient is 1/%d of the mean",
        by_text ? "the loss is divided by the number of ranks, and the gradients are, too"
        : sure  ? "the loss that goes backward is averaged over the ranks in place, for "
                  "the log, and divided: the gradients are divided by the ranks twice"
                : "divided twice, where that is the number of ranks",
        f->world);
    ls_finding_blame(&one,
                     by_text                   ? f->loss_by_ranks
                     : f->loss_reduced != NULL ? f->loss_reduced->at
                                               : f->backward->at,
                     "leave the loss as it is where gradients are averaged over the ranks");
    if (f->loss_reduced != NULL) {
        ls_calls_keep_worst(out, &one);
    } else {
        ls_finding_guess(out, &one); /* the factor may be a weight */
    }
}

/* The optimizer's gradient counts, where it is known what clipping did. */
double ls_factor_final(const ls_factor *f)
{
    const ls_multiple *m = isfinite(f->used.value) && !f->used.changes ? &f->used : &f->reduced;
    return m->changes ? NAN : m->value;
}

void ls_factor_judge(const ls_factor *f, ls_observe_finding *out)
{
    double factor = f->steps > 0 ? ls_factor_final(f) : NAN, world = f->world;
    if (!isfinite(factor) || f->world < 2) {
        return;
    }
    if (is_multiple(f, factor, 1)) {
        judge_inverse(f, out);
        guess_counted(f, out);
        judge_multiplied(f, out);
        judge_losses(f, out);
    } else if (is_multiple(f, factor, world)) {
        LS_TEXT(what, 120, "summed over the ranks and not divided by their number, %d", f->world);
        judge_factor(f, factor, what,
                     f->ddp && f->hook == NULL
                         ? "do not reduce again what DistributedDataParallel has averaged"
                         : "divide by the number of ranks, or reduce with ReduceOp.AVG",
                     1 / world, out);
    } else if (is_multiple(f, factor, 1 / world)) {
        judge_factor(f, factor, "divided twice by the number of ranks",
                     "divide by the number of ranks once: DistributedDataParallel and "
                     "ReduceOp.AVG do",
                     world, out);
    } else if (is_multiple(f, factor, 1 / (world * world))) {
        judge_factor(f, factor, "divided three times by the number of ranks",
                     "divide by the number of ranks once", world * world, out);
    } else if (f->hook != NULL && f->ddp) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "with the communication hook %s the gradient is %.4g times the mean of %d "
                       "ranks",
                       ls_event_text(f->hook, name, "?"), factor, f->world);
        ls_finding_blame(out, ls_event_text(f->hook, at, ""),
                         "if this factor is not meant: divide by the number of ranks once");
    }
}

static const ls_tol same_mean =
    LS_TOL(1e-2, "the ranks' gradients are averaged in f32, f16 or bf16 (2^-9 a value): a gradient "
                 "of the step before that is left in is of the size of the gradient itself");

/* What a step's own backward calls (group "local"), or those since the last zero_grad ("since"),
 * gave for a parameter: the mean over the ranks under
 * DistributedDataParallel, else the rank's own; false where a rank has no samples of it. */
static bool expected_of(const ls_observe_trace *trace, const ls_samples *samples, int rank,
                        const char *group, const char *name, int64_t count, double *mean)
{
    bool ddp = ls_trace_is_ddp(trace), known = true;
    for (int k = 0; k < trace->world && known; k++) {
        if (!ddp && k != rank) {
            continue;
        }
        ls_values local = ls_samples_read(samples->file[k], group, name, NULL);
        known = local.v != NULL && local.count == count;
        for (int64_t i = 0; known && i < count; i++) {
            mean[i] += local.v[i] / (ddp ? trace->world : 1);
        }
        ls_samples_free(&local);
    }
    return known;
}

/* The multiple of `mean` that fits best: unscaling and clipping multiply by one number. */
static double multiple(const ls_values *got, const double *mean)
{
    double product = 0, square = 0;
    for (int64_t i = 0; i < got->count; i++) {
        product += got->v[i] * mean[i];
        square += mean[i] * mean[i];
    }
    return square > 0 ? product / square : 1;
}

/* The distance of a parameter's gradient from what the step's own backward calls gave, relative to
 * that; NaN: not known. Of those since the last zero_grad: the gradient that the optimizer used,
 * from a multiple of theirs. */
static double excess_of(const ls_observe_trace *trace, const ls_samples *samples, int rank,
                        const char *group, const char *name)
{
    bool since = strcmp(group, "since") == 0;
    ls_values got = ls_samples_read(samples->file[rank], since ? "used" : "reduced", name, NULL);
    double error = 0, norm = 0;
    if (got.v != NULL && got.count > 0) {
        double *mean = ls_list_make((size_t)got.count, sizeof *mean);
        bool known = expected_of(trace, samples, rank, group, name, got.count, mean);
        double factor = known && since ? multiple(&got, mean) : 1;
        for (int64_t i = 0; known && i < got.count; i++) {
            double wanted = factor * mean[i];
            error += (got.v[i] - wanted) * (got.v[i] - wanted);
            norm += wanted * wanted;
        }
        free(mean);
        /* An infinity that no backward of the step gave was left. */
        error = known && isfinite(norm) && !isfinite(error) ? INFINITY : error;
    }
    ls_samples_free(&got);
    return norm > 0 && isfinite(norm) && !isnan(error) ? sqrt(error / norm) : NAN;
}

int ls_factor_exceeds(const ls_observe_trace *trace, int rank, int64_t number, const char *group)
{
    ls_observe_finding none = {0};
    ls_samples samples;
    int more = -1;
    ls_samples_open(trace, number, &samples, &none);
    for (int t = 0; samples.count == trace->world && t < trace->rank[rank].tensor_count; t++) {
        double excess = excess_of(trace, &samples, rank, group, trace->rank[rank].tensor[t].name);
        if (!isnan(excess)) {
            more = excess > same_mean.value ? 1 : more < 0 ? 0 : more;
        }
    }
    ls_samples_close(&samples);
    return more;
}

int ls_factor_made_by_hand(const ls_observe_trace *trace, int rank)
{
    bool reduces = trace->world > 1 && !ls_trace_is_ddp(trace);
    int made = -1;
    for (int64_t n = 0; !reduces && made < 1 && (n = ls_samples_next(trace, n)) != 0;) {
        int more = ls_factor_exceeds(trace, rank, n, "since");
        made = more < 0 ? made : more;
    }
    return made;
}

/* What a walk over the calls keeps of an optimizer. */
typedef struct track {
    const char *first, *last; /* places of the backward calls that are pending */
    int found;                /* by the step's own forward; -1: not known */
    const ls_call *clear;     /* the last one before that forward */
} track;

static ls_carried state_of(const ls_calls_optimizer *own, const track *t, const char *at)
{
    bool pending = ls_calls_pending(own) > 0, stale = own->attempts > 0 && !own->cleared;
    bool seen = t->found >= 0 && own->clear == t->clear; /* by a forward, and not cleared since */
    ls_carried b = {.left = seen ? t->found : own->left};
    b.reused = b.left != 0 && (stale || (seen && t->found > 0 && !pending && own->attempts > 0));
    b.carried = pending && !stale;
    if (b.carried && t->first != NULL) {
        b.from = strcmp(t->first, at) != 0 ? t->first : strcmp(t->last, at) != 0 ? t->last : NULL;
    }
    return b;
}

static void follow(const ls_calls *calls, track *t, int optimizer)
{
    const ls_call *call = calls->call;
    const ls_calls_optimizer *own = &calls->optimizer[optimizer];
    if (ls_calls_pending(own) == 0) {
        t->first = t->last = NULL;
    }
    if (calls->call_index == 0) {
        t->found = -1;
    }
    if (call->kind == LS_CALL_BACKWARD) {
        t->first = t->first == NULL ? call->at : t->first;
        t->last = call->at;
    } else if (ls_calls_is_training(call) &&
               (ls_calls_optimizers_of(calls, call->model) >> optimizer & 1) != 0) {
        t->found = ls_event_int(call->json, left, -1);
        t->clear = own->clear;
    }
}

ls_carried *ls_factor_read_carried(const ls_samples *samples, int rank)
{
    track track[LS_CALLS_OPTIMIZERS] = {{NULL, NULL, 0, NULL}};
    ls_carried *out = ls_list_make(LS_CALLS_OPTIMIZERS, sizeof *out);
    ls_calls_each(calls, &samples->trace->rank[rank]) {
        bool here =
            calls.call->kind == LS_CALL_BACKWARD && ls_calls_step(&calls) == samples->number;
        for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
            if (here) {
                out[o] = state_of(&calls.optimizer[o], &track[o], calls.call->at);
            } else {
                follow(&calls, &track[o], o);
            }
        }
        if (here || ls_calls_step(&calls) > samples->number) {
            break;
        }
    }
    return out;
}

ls_carried ls_factor_carried_of(const ls_samples *samples, int rank, const char *name,
                                const ls_carried *all)
{
    int optimizer = -1, group;
    const ls_observe_rank *own = &samples->trace->rank[rank];
    if (ls_job_group(own, name, -1, &optimizer, &group) == NULL || optimizer < 0 ||
        optimizer >= LS_CALLS_OPTIMIZERS) {
        return (ls_carried){.left = -1};
    }
    return all[optimizer];
}

bool ls_factor_is_carried(const ls_samples *samples, int rank, const char *name)
{
    ls_carried *all = ls_factor_read_carried(samples, rank);
    bool carried = ls_factor_carried_of(samples, rank, name, all).carried;
    free(all);
    return carried;
}
