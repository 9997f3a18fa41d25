/* Whether every rank steps by the mean of all ranks' gradients. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "suite/observe/trace/by_hand.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/factor.h"
#include "suite/observe/trace/job.h"
#include "suite/observe/trace/mean.h"
#include "rules.h"

static const ls_tol exact =
    LS_TOL(1, "the distance in units of its own bound: one rounding for each operation between "
              "the ranks' gradients and their mean, in the type of each (numerics 8.1)");

/* What a gradient that is not the mean may be instead. */
typedef enum guess {
    GUESS_SUM,
    GUESS_OWN,
    GUESS_TWICE,
    GUESS_LEFT,
    GUESS_LAST,
    GUESS_ZERO,
    GUESSES,
} guess;

/* The judgement of all steps so far. */
typedef struct tally {
    int64_t steps, tensors, elements;
    bool differs; /* some ranks' gradients differed */
    double worst; /* in units of the bound */
    /* Of the step that failed: */
    int64_t step;
    int rank, wrong;
    int fits[GUESSES];
    int wrapped;    /* of the wrong ones, those of a model in DistributedDataParallel */
    int frozen;     /* of these, those that were not trainable when it was wrapped */
    int model;      /* of the first wrong one */
    int64_t before; /* tensors of earlier steps */
    ls_job_names names;
    char first[200];
    const ls_by_hand *hand; /* of a job without DistributedDataParallel */
    int own;                /* tensors that are parts of a rank, by it */
} tally;

/* ---- guesses --------------------------------------------------------------------------------- */

/* Whether `got` is these values, which are not the mean themselves, within its bounds. */
static bool is_instead(const ls_mean *mean, const ls_values *got, const ls_values *values)
{
    bool instead = ls_mean_violations(mean, values, 1, NULL, NULL, NULL) > 0;
    for (int64_t i = 0; i < mean->count && instead; i++) {
        instead = fabs(got->v[i] - values->v[i]) <= mean->world * mean->bound[i];
    }
    return instead;
}

/* The mean of what autograd gave in the last backward alone. */
static bool is_last_pass(const ls_samples *samples, const ls_mean *mean, const ls_values *got,
                         const char *name)
{
    double *sum = ls_list_make((size_t)mean->count, sizeof *sum);
    bool all = true, fits = false;
    for (int k = 0; k < samples->world && all; k++) {
        ls_values last = ls_samples_read(samples->file[k], "again/local", name, NULL);
        all = last.v != NULL && last.count == mean->count;
        for (int64_t i = 0; i < mean->count && all; i++) {
            sum[i] += last.v[i] / mean->world;
        }
        ls_samples_free(&last);
    }
    if (all) {
        const ls_values values = {.count = mean->count, .v = sum};
        fits = is_instead(mean, got, &values);
    }
    free(sum);
    return fits;
}

/* The mean, and on top of it the gradient of the step before. */
static bool is_left_over(const ls_samples *samples, int rank, const ls_mean *mean,
                         const ls_values *got, const char *name)
{
    ls_observe_finding ignored = {0};
    const ls_observe_step *before = ls_trace_step(&samples->trace->rank[rank], samples->number - 1);
    ls_dumpfile *file = ls_trace_samples(samples->trace, rank, before, &ignored);
    bool fits = false;
    static const char *const group[] = {"used", "clipped", "grad", "reduced"};
    for (size_t g = 0; g < sizeof group / sizeof *group && file != NULL && !fits; g++) {
        ls_values old = ls_samples_read(file, group[g], name, NULL);
        fits = old.v != NULL && old.count == mean->count &&
               ls_mean_violations(mean, got, 1, old.v, NULL, NULL) * 10 <= mean->count;
        ls_samples_free(&old);
    }
    ls_dumpfile_close(file);
    return fits;
}

static void guess_tensor(const ls_samples *samples, int rank, const char *name, const ls_mean *mean,
                         const ls_values *got, tally *t)
{
    const ls_values *own = &mean->local[rank];
    t->fits[GUESS_SUM] += ls_mean_violations(mean, got, mean->world, NULL, NULL, NULL) == 0;
    t->fits[GUESS_TWICE] += ls_mean_violations(mean, got, 1.0 / mean->world, NULL, NULL, NULL) == 0;
    t->fits[GUESS_OWN] += own->v != NULL && is_instead(mean, got, own);
    t->fits[GUESS_LEFT] += is_left_over(samples, rank, mean, got, name);
    t->fits[GUESS_LAST] += is_last_pass(samples, mean, got, name);
    t->fits[GUESS_ZERO] += ls_samples_zero(got);
}

/* ---- one step -------------------------------------------------------------------------------- */

/* Whether it is of the rank that is reported: that of the first. */
static bool note_wrong(const ls_samples *samples, int rank, const char *name, const ls_mean *mean,
                       const ls_values *got, int64_t at, tally *t)
{
    if (t->wrong == 0) {
        const ls_observe_tensor *tensor = ls_job_tensor(&samples->trace->rank[rank], name);
        t->model = tensor == NULL ? -1 : tensor->model;
        t->step = samples->number;
        t->rank = rank;
        ls_text_put(t->first, sizeof t->first, "%.80s element %lld is %.9g, the mean %.9g +- %.2g",
                    name, (long long)at, got->v[at], mean->mean[at], mean->bound[at]);
    }
    if (rank == t->rank) {
        t->wrong++;
        ls_job_add_name(&t->names, name);
        guess_tensor(samples, rank, name, mean, got, t);
    }
    return rank == t->rank;
}

static void judge_wrapped_tensor(const ls_samples *samples, const ls_observe_tensor *tensor,
                                 tally *t)
{
    for (int k = 0; k < samples->world; k++) {
        ls_mean mean;
        ls_values got = ls_reduction_gradient(samples, k, tensor->name);
        ls_mean_plan plan = ls_mean_plan_of(samples, k);
        ls_reduction_set_sent(samples, k, tensor->model, &plan);
        const char *type = ls_reduction_type(samples, k, tensor->name);
        if (got.v == NULL || !ls_mean_plan_for(samples, tensor->name, &plan) ||
            !ls_mean_make(samples, &plan, tensor->name, type, &mean)) {
            ls_samples_free(&got);
            continue;
        }
        int64_t at;
        double times;
        if (got.count == mean.count) {
            bool wrong = ls_mean_violations(&mean, &got, 1, NULL, &at, &times) > 0;
            bool carried = wrong && ls_factor_is_carried(samples, k, tensor->name);
            t->tensors += k == 0 && !carried;
            t->elements += carried ? 0 : mean.count;
            t->differs = t->differs || mean.differs;
            if (wrong && !carried && note_wrong(samples, k, tensor->name, &mean, &got, at, t)) {
                t->wrapped++;
                t->frozen += !tensor->trainable;
            }
            t->worst = fmax(t->worst, carried ? 0 : times);
        }
        ls_mean_free(&mean);
        ls_samples_free(&got);
    }
}

/* ---- parameters outside the wrapper ---------------------------------------------------------- */

/* A script that reduces by itself may divide by whatever it likes: what an optimizer uses is one
 * factor times the mean. That factor is fitted over all these tensors of a rank. */
typedef struct fit {
    double product, square; /* sums of used * mean, mean * mean */
} fit;

static double factor_of(const fit *f)
{
    return f->square > 0 ? f->product / f->square : 1;
}

/* Of a job that reduces other tensors by hand: one that starts with other values on each rank and
 * steps by each rank's own gradient. */
static bool is_own_part(const tally *t, int tensor)
{
    return t->hand != NULL && t->hand->common > 0 && t->hand->own[tensor];
}

static bool is_judged_plainly(const ls_samples *samples, const tally *t, int tensor)
{
    const ls_observe_rank *rank = &samples->trace->rank[0];
    return !ls_reduction_is_wrapped(samples->trace, &rank->tensor[tensor]) &&
           !is_own_part(t, tensor);
}

static void add_to_fit(const ls_samples *samples, int rank, const char *name, fit *f)
{
    ls_mean mean;
    ls_mean_plan plan = ls_mean_plan_of(samples, rank);
    ls_values used = ls_samples_read(samples->file[rank], "used", name, NULL);
    if (used.v != NULL && ls_mean_make(samples, &plan, name, "F32", &mean)) {
        for (int64_t i = 0; i < mean.count && i < used.count; i++) {
            bool finite = isfinite(used.v[i]) && isfinite(mean.mean[i]);
            f->product += finite ? used.v[i] * mean.mean[i] : 0;
            f->square += finite ? mean.mean[i] * mean.mean[i] : 0;
        }
        ls_mean_free(&mean);
    }
    ls_samples_free(&used);
}

static void judge_plain_tensor(const ls_samples *samples, int rank, const char *name, double factor,
                               tally *t)
{
    ls_mean mean;
    ls_mean_plan plan = ls_mean_plan_of(samples, rank);
    plan.backwards += 4; /* the factor, a division by the scale, one by the clip */
    ls_values used = ls_samples_read(samples->file[rank], "used", name, NULL);
    if (used.v == NULL ||
        !ls_mean_make(samples, &plan, name, ls_reduction_type(samples, rank, name), &mean)) {
        ls_samples_free(&used);
        return;
    }
    /* in units of the mean, whose bounds these are */
    for (int64_t i = 0; i < used.count && factor != 0; i++) {
        used.v[i] /= factor;
    }
    int64_t at;
    double times;
    t->tensors += rank == 0;
    t->elements += mean.count;
    t->differs = t->differs || mean.differs;
    if (ls_mean_violations(&mean, &used, 1, NULL, &at, &times) > 0) {
        note_wrong(samples, rank, name, &mean, &used, at, t);
    }
    ls_mean_free(&mean);
    ls_samples_free(&used);
}

/* The factor of gradients that stayed local is that of a rank's own. */
static double fit_own(const ls_samples *samples, int rank, const tally *t)
{
    fit f = {0};
    const ls_observe_rank *own = &samples->trace->rank[rank];
    for (int i = 0; i < own->tensor_count; i++) {
        const char *name = own->tensor[i].name;
        if (!is_judged_plainly(samples, t, i)) {
            continue;
        }
        ls_values used = ls_samples_read(samples->file[rank], "used", name, NULL);
        ls_values local = ls_samples_read(samples->file[rank], "local", name, NULL);
        for (int64_t e = 0; used.v != NULL && local.v != NULL && e < used.count && e < local.count;
             e++) {
            bool finite = isfinite(used.v[e]) && isfinite(local.v[e]);
            f.product += finite ? used.v[e] * local.v[e] : 0;
            f.square += finite ? local.v[e] * local.v[e] : 0;
        }
        ls_samples_free(&used);
        ls_samples_free(&local);
    }
    return factor_of(&f);
}

static double fit_mean(const ls_samples *samples, int rank, const tally *t)
{
    fit f = {0};
    const ls_observe_rank *own = &samples->trace->rank[rank];
    for (int i = 0; i < own->tensor_count; i++) {
        /* where others are common, those that are not say nothing of the factor */
        bool fits = t->hand == NULL || t->hand->common == 0 || t->hand->shared[i];
        if (fits && is_judged_plainly(samples, t, i)) {
            add_to_fit(samples, rank, own->tensor[i].name, &f);
        }
    }
    return factor_of(&f);
}

static void judge_plain_rank(const ls_samples *samples, int rank, double factor, tally *t)
{
    const ls_observe_rank *own = &samples->trace->rank[rank];
    for (int i = 0; i < own->tensor_count; i++) {
        t->own += rank == 0 && is_own_part(t, i);
        if (is_judged_plainly(samples, t, i)) {
            judge_plain_tensor(samples, rank, own->tensor[i].name, factor, t);
        }
    }
}

/* A value clip of gradients that the script reduced by itself leaves no one factor. */
static bool clips_values(const ls_observe_step *step)
{
    ls_trace_each_kind(call, step, LS_CALL_CLIP) {
        if (strcmp(ls_event_text(call->json, how, ""), "value") == 0) {
            return true;
        }
    }
    return false;
}

static void judge_plain(const ls_samples *samples, tally *t)
{
    for (int k = 0; k < samples->world; k++) {
        tally mean = *t;
        judge_plain_rank(samples, k, fit_mean(samples, k, t), &mean);
        bool others = t->hand != NULL && t->hand->common > 0; /* the factor is theirs */
        if (mean.wrong == t->wrong || others) {
            *t = mean;
        } else if (!clips_values(samples->step[k])) {
            judge_plain_rank(samples, k, fit_own(samples, k, t), t);
        }
    }
}

/* ---- the mean -------------------------------------------------------------------------------- */

/* DistributedDataParallel reduces with the first backward that follows a forward outside of
 * no_sync(): what the calls of a step say of gradients that none of the guesses explains. */
static void blame_calls(const ls_samples *samples, const tally *t, ls_observe_finding *out)
{
    const ls_observe_step *step = samples->step[t->rank];
    const ls_call *first = NULL, *last = NULL;
    int forwards = 0, synced = 0;
    ls_trace_each_call(call, step) {
        bool syncs = ls_calls_flag(call, sync) != 0;
        if (call->kind == LS_CALL_BACKWARD) {
            first = first == NULL && syncs ? call : first;
            synced += syncs ? call->times : 0;
            last = call;
        }
        forwards += ls_calls_is_training(call) && syncs ? call->times : 0;
    }
    const ls_call *changed = ls_mean_changed_sync(step);
    if (first != NULL && ls_calls_flag(last, sync) == 0) {
        ls_finding_explain(out, ls_mean_unreduced_no_sync(step, last->at),
                           "no_sync() around the last backward of the step: what comes after the "
                           "reduction stays on its rank",
                           "leave no_sync() for the last micro-step, not for another one");
    } else if (forwards > 0 && synced > forwards) {
        ls_verdict_cause(&out->verdict,
                         "%d backward passes of %d forwards: DistributedDataParallel reduces with "
                         "the first of each, what later ones add stays on its rank",
                         synced, forwards);
        ls_finding_blame(out, last->at,
                         "add the losses and call backward() once, or call the model for each");
    } else if (changed != NULL) {
        ls_finding_explain(out, changed->at,
                           "whether gradients are reduced (require_backward_grad_sync, no_sync()) "
                           "changes between a forward and this backward: DistributedDataParallel "
                           "goes by what it was in the forward",
                           "set it before the forward of the micro-step");
    }
}

/* A call of that kind between a backward pass and the script's own reduction; -1: none. */
static int before_reduction(const ls_samples *samples, const tally *t, ls_call_kind kind)
{
    const ls_observe_step *step = samples->step[t->rank];
    int reduces = ls_trace_is_ddp(samples->trace) ? -1 : ls_by_hand_collective(step);
    int call = reduces < 0 ? -1 : ls_trace_find(step, kind, 0);
    return call < reduces ? call : -1;
}

static void blame_unreduced(const ls_samples *samples, const tally *t, ls_observe_finding *out)
{
    ls_unreduced u = {.rank = t->rank,
                      .wrong = t->wrong,
                      .tensors = (int)(t->tensors - t->before),
                      .wrapped = t->wrapped,
                      .frozen = t->frozen,
                      .model = t->model,
                      .hand = t->hand};
    ls_mean_unreduced_blame(samples, &u, out);
}

/* What stands there, of a gradient that is none of the guesses. */
static void blame_before_reduction(const ls_samples *samples, const tally *t,
                                   ls_observe_finding *out)
{
    const ls_observe_step *step = samples->step[t->rank];
    int reduces = ls_by_hand_collective(step);
    int clip = before_reduction(samples, t, LS_CALL_CLIP);
    int unscale = before_reduction(samples, t, LS_CALL_UNSCALE);
    if (clip >= 0) {
        ls_verdict_cause(&out->verdict,
                         "each rank clips its own gradients, by its own norm, before the script "
                         "reduces them (%.80s): the mean is not that of the gradients",
                         step->call[reduces].at);
        ls_finding_blame(out, step->call[clip].at, "reduce the gradients first, then clip");
    } else if (unscale >= 0) {
        ls_verdict_cause(
            &out->verdict,
            "unscale_ comes before the script reduces the gradients (%.80s): each rank "
            "looks for infinities in its own, and steps or skips by itself",
            step->call[reduces].at);
        ls_finding_blame(out, step->call[unscale].at,
                         "reduce the gradients first, then call scaler.unscale_()");
    } else if (t->wrapped == 0 && t->hand->common > 0 && t->hand->apart > 0) {
        blame_unreduced(samples, t, out); /* in another unit than the sums of the others */
    }
}

/* The one that fits more than half of the wrong tensors; GUESSES: none. */
static guess best_guess(const tally *t)
{
    guess best = GUESS_SUM;
    for (int g = 0; g < GUESSES; g++) {
        best = t->fits[g] > t->fits[best] ? (guess)g : best;
    }
    return t->fits[best] * 2 > t->wrong ? best : GUESSES;
}

/* The script sums something else than the gradients of backward, and all ranks step by that:
 * clipped samples, noise, the largest elements. */
static bool is_another_sum(const ls_samples *samples, const tally *t)
{
    return t->wrapped == 0 && t->hand->common > 0 && t->hand->apart == 0 &&
           best_guess(t) == GUESSES && before_reduction(samples, t, LS_CALL_CLIP) < 0 &&
           before_reduction(samples, t, LS_CALL_UNSCALE) < 0 && ls_by_hand_sums(samples->trace);
}

/* What is reduced is right, and each rank multiplies it by a number of its own: replicas.step. */
static bool is_scaled_behind(const ls_samples *samples, const tally *t)
{
    const ls_observe_rank *rank = &samples->trace->rank[0];
    for (int i = 0; i < rank->tensor_count && t->wrapped == 0 && t->hand->common == 0; i++) {
        if (ls_by_hand_is_scaled(samples, rank->tensor[i].name)) {
            return true;
        }
    }
    return false;
}

static void blame_guess(const ls_samples *samples, const tally *t, ls_observe_finding *out)
{
    guess best = best_guess(t);
    if (best == GUESSES) {
        if (t->wrapped > 0) {
            blame_calls(samples, t, out);
        }
        blame_before_reduction(samples, t, out);
        return;
    }
    const char *backward = ls_trace_place(samples->step[t->rank], LS_CALL_BACKWARD);
    switch (best) {
    case GUESS_SUM:
        ls_verdict_cause(&out->verdict, "summed: the gradient is %d times the mean",
                         samples->world);
        ls_finding_blame(out, backward,
                         "divide by the number of ranks once, or leave the average "
                         "to DistributedDataParallel");
        return;
    case GUESS_TWICE:
        ls_verdict_cause(&out->verdict, "divided twice: the gradient is 1/%d of the mean",
                         samples->world);
        ls_finding_blame(out, backward,
                         "DistributedDataParallel divides by the number of ranks: do "
                         "not divide again");
        return;
    case GUESS_OWN:
        blame_unreduced(samples, t, out);
        return;
    case GUESS_LEFT:
        ls_finding_explain(out, backward,
                           "left over: the gradient of the step before is still in it",
                           "call zero_grad() once a step, before its first backward");
        return;
    case GUESS_LAST:
        ls_verdict_cause(&out->verdict, "only the last of %d micro-steps counts",
                         ls_mean_plan_of(samples, t->rank).backwards);
        ls_finding_blame(out, ls_trace_place(samples->step[t->rank], LS_CALL_ZERO_GRAD),
                         "call zero_grad() once a step, not in every micro-step");
        return;
    case GUESS_ZERO:
        ls_verdict_cause(&out->verdict, "the gradient is all zeros after the reduction");
        return;
    case GUESSES:
        break;
    }
}

static void judge_step(const ls_samples *samples, tally *t)
{
    const ls_observe_trace *trace = samples->trace;
    const ls_observe_rank *rank = &trace->rank[0];
    bool plain = false;
    t->before = t->tensors;
    for (int i = 0; i < rank->tensor_count; i++) {
        if (ls_reduction_is_wrapped(trace, &rank->tensor[i])) {
            judge_wrapped_tensor(samples, &rank->tensor[i], t);
        } else {
            plain = true;
        }
    }
    if (plain) {
        judge_plain(samples, t);
    }
    t->steps++;
}

static void conclude(const ls_observe_trace *trace, const tally *t, ls_observe_finding *out)
{
    if (t->own > 0) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "%d times a tensor that differs between ranks from the start steps by a "
                       "rank's own gradient, while others are reduced: a part of a rank, or "
                       "forgotten",
                       t->own);
    }
    if (t->elements == 0) {
        ls_finding_missing(
            trace, "no step has samples of gradients before and after the reduction on all ranks",
            out);
    } else if (!t->differs) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "all ranks had the same gradients: their mean is "
                       "each one's own");
    }
    ls_verdict_measured(&out->verdict, t->worst, exact.value, "bounds", exact.why);
    ls_verdict_pass(&out->verdict, t->elements,
                    "%lld elements of %d detailed steps are the mean of %d ranks; the furthest is "
                    "%.2g of its bound away",
                    (long long)t->elements, (int)t->steps, trace->world, t->worst);
}

/* Each micro-step's own reduction is right, and more than is needed. */
static void advise_no_sync(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[0];
    if (out->verdict.code != LS_PASS || !ls_trace_is_ddp(trace) || rank->step_count == 0 ||
        ls_job_models(rank) != 1) {
        return;
    }
    const ls_observe_step *step = &rank->step[rank->step_count - 1];
    int passes = 0, synced = 0, call = ls_trace_find(step, LS_CALL_BACKWARD, 0);
    for (int c = call; c >= 0; c = ls_trace_find(step, LS_CALL_BACKWARD, c + 1)) {
        passes += step->call[c].times;
        synced += ls_event_bool(step->call[c].json, sync, true) ? step->call[c].times : 0;
    }
    if (passes > 1 && synced == passes) {
        ls_finding_blame(out, step->call[call].at,
                         "all %d backward passes of a step reduce: with no_sync() around all but "
                         "the last, one is enough",
                         passes);
    }
}

/* The event of a hook whose result is not known here, of models that all ranks hold; or NULL. */
static const ls_event *unknown_hook(const ls_observe_trace *trace)
{
    const ls_event *unknown = NULL;
    for (int m = 0; m < ls_job_models(&trace->rank[0]); m++) {
        const ls_event *hook = NULL, *model = ls_job_model(&trace->rank[0], m);
        ls_reduction_hook_kind kind = ls_reduction_hook(&trace->rank[0], m, &hook);
        if (kind == LS_HOOK_NOOP || ls_event_int(model, world, trace->world) != trace->world) {
            return NULL;
        }
        unknown = kind == LS_HOOK_OTHER ? hook : unknown;
    }
    return unknown;
}

/* What a hook of the user's own gives, whether it sends in half or in parts, is a multiple of the
 * mean, in norm; or it is not known what it is meant to be. */
static void judge_hook(const ls_observe_trace *trace, const ls_event *hook, ls_observe_finding *out)
{
    ls_factor factor = {0};
    ls_samples_each(samples, trace, 0, true, out) {
        if (samples.count == trace->world) {
            ls_factor_add(&factor, &samples);
        }
    }
    if (factor.steps == 0 || factor.unfit > 0) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "the communication hook %s: its result is not known, and no multiple of the "
                       "mean",
                       ls_event_text(hook, name, "?"));
        return;
    }
    ls_factor_judge(&factor, out);
    ls_verdict_pass(&out->verdict, factor.steps,
                    "with the communication hook %s the gradients of %d detailed steps are the "
                    "mean of %d ranks, each tensor within 2 %% of its norm",
                    ls_event_text(hook, name, "?"), factor.steps, trace->world);
}

void ls_rules_reduction_mean(const ls_observe_trace *trace, ls_observe_finding *out)
{
    tally t = {.rank = -1};
    ls_factor factor = {0};
    if (!ls_reduction_concerns(trace, out)) {
        return;
    }
    const char *sharded = ls_trace_is_ddp(trace) ? NULL : ls_job_sharded_optimizer(trace);
    if (sharded != NULL) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "%s: each rank is given the gradients of a part of the parameters", sharded);
        return;
    }
    const ls_event *hook = unknown_hook(trace);
    if (hook != NULL) {
        judge_hook(trace, hook, out);
        return;
    }
    if (!ls_reduction_hooks_known(trace, out)) {
        return;
    }
    ls_by_hand hand;
    ls_by_hand_look(trace, &hand);
    t.hand = &hand;
    ls_samples_each(samples, trace, 0, t.wrong == 0, out) {
        if (samples.count == trace->world) {
            judge_step(&samples, &t);
            ls_factor_add(&factor, &samples);
        }
        if (t.wrong > 0 && is_another_sum(&samples, &t)) {
            ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                           "the script sums something else than the gradients that backward gave "
                           "(%s), and all ranks step by that",
                           hand.at);
        } else if (t.wrong > 0 && is_scaled_behind(&samples, &t)) {
            ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                           "each rank multiplies what is reduced by a number of its own");
        } else if (t.wrong > 0) {
            ls_verdict_fail(&out->verdict, "step %lld, rank %d: %s; so in %d of %lld tensors: %s",
                            (long long)t.step, t.rank, t.first, t.wrong,
                            (long long)(t.tensors - t.before), ls_job_names_text(&t.names));
            blame_guess(&samples, &t, out);
        }
    }
    if (t.wrong == 0 && t.differs) {
        ls_factor_judge(&factor, out);
        ls_factor_judge_weights(&factor, out);
    }
    conclude(trace, &t, out);
    ls_by_hand_free(&hand);
    advise_no_sync(trace, out);
}
