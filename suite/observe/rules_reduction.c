/* Whether every rank steps by the mean of all ranks' gradients. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "by_hand.h"
#include "calls.h"
#include "carried.h"
#include "factor.h"
#include "job.h"
#include "rules.h"
#include "mean.h"

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
    int wrapped; /* of the wrong ones, those of a model in DistributedDataParallel */
    int model;   /* of the first of these */
    ls_job_names names;
    char first[200];
    const ls_by_hand *hand; /* of a job without DistributedDataParallel */
    int own;                /* tensors that are parts of a rank, by it */
} tally;

/* ---- what may be judged ---------------------------------------------------------------------- */

typedef enum hook_kind {
    HOOK_NONE,
    HOOK_F32,
    HOOK_F16,
    HOOK_BF16,
    HOOK_NOOP,
    HOOK_OTHER
} hook_kind;

static hook_kind hook_of(const ls_observe_rank *rank, int model, const cJSON **event)
{
    static const struct {
        const char *name;
        hook_kind kind;
    } known[] = {{"allreduce_hook", HOOK_F32},      {"fp16_compress_hook", HOOK_F16},
                 {"bf16_compress_hook", HOOK_BF16}, {"noop_hook", HOOK_NOOP},
                 {"ALLREDUCE", HOOK_F32},           {"FP16_COMPRESS", HOOK_F16}};
    hook_kind kind = HOOK_NONE;
    const cJSON *hook;
    cJSON_ArrayForEach(hook, rank->hook)
    {
        if (ls_json_int(hook, "model", 0) != model) {
            continue;
        }
        kind = HOOK_OTHER;
        *event = hook;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
            if (strcmp(ls_json_string(hook, "name", ""), known[i].name) == 0) {
                kind = known[i].kind;
            }
        }
    }
    return kind;
}

/* False, with the verdict, where a model is reduced in a way that is not known here. */
static bool hooks_known(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int m = 0; m < ls_job_models(&trace->rank[0]); m++) {
        const cJSON *hook = NULL;
        hook_kind kind = hook_of(&trace->rank[0], m, &hook);
        if (kind == HOOK_OTHER) {
            ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                           "the communication hook %s: its result is not known",
                           ls_json_string(hook, "name", "?"));
            return false;
        }
        if (kind == HOOK_NOOP) {
            ls_verdict_fail(&out->verdict, "the communication hook noop_hook reduces nothing");
            ls_verdict_cause(&out->verdict, "noop_hook, which is for measuring only");
            ls_finding_blame(out, ls_json_string(hook, "at", ""), "do not register noop_hook");
            return false;
        }
        const cJSON *model = ls_job_model(&trace->rank[0], m);
        int world = ls_json_int(model, "world", trace->world);
        if (ls_job_model_is_ddp(model) && world != trace->world) {
            ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                           "a model is replicated over %d of %d ranks: which, is not known", world,
                           trace->world);
            return false;
        }
    }
    return true;
}

static bool concerns(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (trace->world < 2) {
        ls_verdict_set(&out->verdict, LS_SKIP, "one rank");
        return false;
    }
    const char *class = ls_job_sharded(trace);
    if (class == NULL) {
        class = ls_job_averages_later(trace);
    }
    if (class != NULL) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "%s: gradients are not averaged as "
                       "DistributedDataParallel does",
                       class);
        return false;
    }
    if (ls_by_hand_averages_later(trace)) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "the script averages parameters after the step, not gradients before it");
        return false;
    }
    if (ls_by_hand_divides_model(trace)) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "the ranks hold other values and send each other tensors before the "
                       "backward pass ends: parts of one model, whose gradients are their own");
        return false;
    }
    return true;
}

static bool is_wrapped(const ls_observe_trace *trace, const ls_observe_tensor *tensor)
{
    return !trace->attached || ls_job_model_is_ddp(ls_job_model(&trace->rank[0], tensor->model));
}

/* The gradient that the mean is compared with; of a step in which no optimizer took the parameter
 * it may hold what another step left: not judged. */
static ls_values gradient_of(const ls_samples *samples, int rank, const char *name)
{
    if (!samples->trace->attached) {
        return ls_samples_read(samples->file[rank], "grad", name, NULL);
    }
    bool stepped = ls_samples_find(samples->file[rank], "used", name, NULL) != NULL;
    bool alone = samples->step[rank]->step->skipped &&
                 cJSON_GetArraySize(samples->trace->rank[rank].optimizer) == 1;
    return stepped || alone ? ls_samples_read(samples->file[rank], "reduced", name, NULL)
                            : (ls_values){0};
}

static const char *type_of(const ls_samples *samples, int rank, const char *name)
{
    const char *group = samples->trace->attached ? "reduced" : "grad";
    const ls_dumpfile *file = samples->file[rank];
    if (!samples->trace->attached && file != NULL &&
        strcmp(ls_dumpfile_text(file, "reduced_type", ""), "fp32") == 0) {
        group = "param"; /* reduced in f32, the mean goes back to the gradient's own type */
    }
    const ls_dumpfile_entry *entry = ls_samples_find(samples->file[rank], group, name, NULL);
    return entry == NULL ? "F32" : entry->dtype;
}

static void set_sent(const ls_samples *samples, int rank, int model, ls_mean_plan *plan)
{
    const cJSON *hook = NULL;
    hook_kind kind = hook_of(&samples->trace->rank[rank], model, &hook);
    if (samples->trace->attached) {
        plan->sent_as = kind == HOOK_F16 ? "f16" : kind == HOOK_BF16 ? "bf16" : NULL;
    }
}

/* ---- guesses --------------------------------------------------------------------------------- */

/* Whether `got` is factor * values within the bounds of the mean. */
static bool is_near(const ls_mean *mean, const ls_values *got, const ls_values *values,
                    double factor)
{
    for (int64_t i = 0; i < mean->count; i++) {
        double error = fabs(got->v[i] - factor * values->v[i]);
        if (values->v == NULL || !(error <= mean->world * mean->bound[i])) {
            return false;
        }
    }
    return true;
}

static bool is_factor(const ls_mean *mean, const ls_values *got, double factor)
{
    int64_t at;
    double times;
    return ls_mean_violations(mean, got, factor, NULL, &at, &times) == 0;
}

/* The same, of values that are not the mean themselves. */
static bool is_instead(const ls_mean *mean, const ls_values *got, const ls_values *values)
{
    int64_t at;
    double times;
    return ls_mean_violations(mean, values, 1, NULL, &at, &times) > 0 &&
           is_near(mean, got, values, 1);
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
        ls_values_free(&last);
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
        int64_t at;
        double times;
        ls_values old = ls_samples_read(file, group[g], name, NULL);
        fits = old.v != NULL && old.count == mean->count &&
               ls_mean_violations(mean, got, 1, old.v, &at, &times) * 10 <= mean->count;
        ls_values_free(&old);
    }
    ls_dumpfile_close(file);
    return fits;
}

static bool is_zero(const ls_values *values)
{
    for (int64_t i = 0; i < values->count; i++) {
        if (values->v[i] != 0) {
            return false;
        }
    }
    return true;
}

static void guess_tensor(const ls_samples *samples, int rank, const char *name, const ls_mean *mean,
                         const ls_values *got, tally *t)
{
    const ls_values *own = &mean->local[rank];
    t->fits[GUESS_SUM] += is_factor(mean, got, mean->world);
    t->fits[GUESS_TWICE] += is_factor(mean, got, 1.0 / mean->world);
    t->fits[GUESS_OWN] += own->v != NULL && is_instead(mean, got, own);
    t->fits[GUESS_LEFT] += is_left_over(samples, rank, mean, got, name);
    t->fits[GUESS_LAST] += is_last_pass(samples, mean, got, name);
    t->fits[GUESS_ZERO] += is_zero(got);
}

/* ---- one step -------------------------------------------------------------------------------- */

static void keep_first(const ls_samples *samples, int rank, const char *name, const ls_mean *mean,
                       const ls_values *got, int64_t at, tally *t)
{
    if (t->wrong == 0) {
        t->step = samples->number;
        t->rank = rank;
        ls_text_put(t->first, sizeof t->first, "%.80s element %lld is %.9g, the mean %.9g +- %.2g",
                    name, (long long)at, got->v[at], mean->mean[at], mean->bound[at]);
    }
}

static void judge_wrapped_tensor(const ls_samples *samples, const ls_observe_tensor *tensor,
                                 tally *t)
{
    for (int k = 0; k < samples->world; k++) {
        ls_mean mean;
        ls_values got = gradient_of(samples, k, tensor->name);
        ls_mean_plan plan = ls_mean_plan_of(samples, k);
        set_sent(samples, k, tensor->model, &plan);
        const char *type = type_of(samples, k, tensor->name);
        if (got.v == NULL || !ls_mean_plan_for(samples, tensor->name, &plan) ||
            !ls_mean_make(samples, &plan, tensor->name, type, &mean)) {
            ls_values_free(&got);
            continue;
        }
        int64_t at;
        double times;
        if (got.count == mean.count) {
            bool wrong = ls_mean_violations(&mean, &got, 1, NULL, &at, &times) > 0;
            bool carried = wrong && ls_carried_is(samples, k, tensor->name);
            t->tensors += k == 0 && !carried;
            t->elements += carried ? 0 : mean.count;
            t->differs = t->differs || mean.differs;
            if (wrong && !carried) {
                keep_first(samples, k, tensor->name, &mean, &got, at, t);
                if (k == t->rank) {
                    t->wrong++;
                    t->model = t->wrapped++ == 0 ? tensor->model : t->model;
                    ls_job_add_name(&t->names, tensor->name);
                    guess_tensor(samples, k, tensor->name, &mean, &got, t);
                }
            }
            t->worst = fmax(t->worst, carried ? 0 : times);
        }
        ls_mean_free(&mean);
        ls_values_free(&got);
    }
}

/* ---- parameters outside the wrapper ---------------------------------------------------------- */

/* A script that reduces by itself may divide by whatever it likes: what an optimizer uses is one
 * factor times the mean. That factor is fitted over all these tensors of a rank. */
typedef struct fit {
    double product, square; /* sums of used * mean, mean * mean */
} fit;

/* Of a job that reduces other tensors by hand: one that starts with other values on each rank and
 * steps by each rank's own gradient. */
static bool is_own_part(const tally *t, int tensor)
{
    return t->hand != NULL && t->hand->common > 0 && t->hand->own[tensor];
}

static bool is_judged_plainly(const ls_samples *samples, const tally *t, int tensor)
{
    const ls_observe_rank *rank = &samples->trace->rank[0];
    return !is_wrapped(samples->trace, &rank->tensor[tensor]) && !is_own_part(t, tensor);
}

static ls_values used_of(const ls_samples *samples, int rank, const char *name)
{
    return ls_samples_read(samples->file[rank], "used", name, NULL);
}

static void add_to_fit(const ls_samples *samples, int rank, const char *name, fit *f)
{
    ls_mean mean;
    ls_mean_plan plan = ls_mean_plan_of(samples, rank);
    ls_values used = used_of(samples, rank, name);
    if (used.v != NULL && ls_mean_make(samples, &plan, name, "F32", &mean)) {
        for (int64_t i = 0; i < mean.count && i < used.count; i++) {
            bool finite = isfinite(used.v[i]) && isfinite(mean.mean[i]);
            f->product += finite ? used.v[i] * mean.mean[i] : 0;
            f->square += finite ? mean.mean[i] * mean.mean[i] : 0;
        }
        ls_mean_free(&mean);
    }
    ls_values_free(&used);
}

static void judge_plain_tensor(const ls_samples *samples, int rank, const char *name, double factor,
                               tally *t)
{
    ls_mean mean;
    ls_mean_plan plan = ls_mean_plan_of(samples, rank);
    plan.backwards += 4; /* the factor, a division by the scale, one by the clip */
    ls_values used = used_of(samples, rank, name);
    if (used.v == NULL ||
        !ls_mean_make(samples, &plan, name, type_of(samples, rank, name), &mean)) {
        ls_values_free(&used);
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
    int64_t wrong = ls_mean_violations(&mean, &used, 1, NULL, &at, &times);
    if (wrong > 0) {
        keep_first(samples, rank, name, &mean, &used, at, t);
        if (rank == t->rank) {
            t->wrong++;
            ls_job_add_name(&t->names, name);
            guess_tensor(samples, rank, name, &mean, &used, t);
        }
    }
    ls_mean_free(&mean);
    ls_values_free(&used);
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
        ls_values used = used_of(samples, rank, name);
        ls_values local = ls_samples_read(samples->file[rank], "local", name, NULL);
        for (int64_t e = 0; used.v != NULL && local.v != NULL && e < used.count && e < local.count;
             e++) {
            bool finite = isfinite(used.v[e]) && isfinite(local.v[e]);
            f.product += finite ? used.v[e] * local.v[e] : 0;
            f.square += finite ? local.v[e] * local.v[e] : 0;
        }
        ls_values_free(&used);
        ls_values_free(&local);
    }
    return f.square > 0 ? f.product / f.square : 1;
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
    return f.square > 0 ? f.product / f.square : 1;
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
    for (int c = ls_trace_find(step, LS_CALL_CLIP, 0); c >= 0;
         c = ls_trace_find(step, LS_CALL_CLIP, c + 1)) {
        if (strcmp(ls_json_string(step->call[c].json, "how", ""), "value") == 0) {
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
        if (mean.wrong == t->wrong || t->wrong > 0 || others) {
            *t = mean;
        } else if (!clips_values(samples->step[k])) {
            judge_plain_rank(samples, k, fit_own(samples, k, t), t);
        }
    }
}

/* ---- the mean -------------------------------------------------------------------------------- */

static const char *place_of(const ls_samples *samples, int rank, ls_call_kind kind)
{
    const ls_observe_step *step = samples->step[rank];
    int call = step == NULL ? -1 : ls_trace_find(step, kind, 0);
    return call >= 0 ? step->call[call].at : "";
}

/* Where the script asked for no_sync() around a backward of the step. */
static const char *no_sync_of(const ls_observe_step *step, const char *otherwise)
{
    for (int c = ls_trace_find(step, LS_CALL_BACKWARD, 0); c >= 0;
         c = ls_trace_find(step, LS_CALL_BACKWARD, c + 1)) {
        const char *at = ls_calls_text(&step->call[c], "no_sync");
        if (at[0] != '\0') {
            return at;
        }
    }
    return otherwise;
}

/* DistributedDataParallel reduces with the first backward that follows a forward outside of
 * no_sync(): what the calls of a step say of gradients that none of the guesses explains. */
static void blame_calls(const ls_samples *samples, const tally *t, ls_observe_finding *out)
{
    const ls_observe_step *step = samples->step[t->rank];
    const ls_call *first = NULL, *last = NULL;
    int forwards = 0, synced = 0;
    for (int c = 0; c < step->call_count; c++) {
        const ls_call *call = &step->call[c];
        bool syncs = ls_calls_flag(call, "sync") != 0;
        if (call->kind == LS_CALL_BACKWARD) {
            first = first == NULL && syncs ? call : first;
            synced += syncs ? call->times : 0;
            last = call;
        }
        forwards += ls_calls_is_training(call) && syncs ? call->times : 0;
    }
    if (first != NULL && ls_calls_flag(last, "sync") == 0) {
        ls_verdict_cause(&out->verdict,
                         "no_sync() around the last backward of the step: what comes after the "
                         "reduction stays on its rank");
        ls_finding_blame(out, no_sync_of(step, last->at),
                         "leave no_sync() for the last micro-step, not for another one");
    } else if (forwards > 0 && synced > forwards) {
        ls_verdict_cause(&out->verdict,
                         "%d backward passes of %d forwards: DistributedDataParallel reduces with "
                         "the first of each, what later ones add stays on its rank",
                         synced, forwards);
        ls_finding_blame(out, last->at,
                         "add the losses and call backward() once, or call the model for each");
    }
}

/* A collective of one number before the step's last backward; NULL: none. */
static const ls_call *loss_collective(const ls_observe_step *step)
{
    int backward = step == NULL ? -1 : ls_trace_find(step, LS_CALL_BACKWARD, 0);
    for (int c = backward < 0 ? -1 : ls_trace_find(step, LS_CALL_COLLECTIVE, 0);
         c >= 0 && c < backward; c = ls_trace_find(step, LS_CALL_COLLECTIVE, c + 1)) {
        if (ls_json_int(step->call[c].json, "elements", 0) == 1 &&
            ls_json_string(step->call[c].json, "reduce", "")[0] != '\0') {
            return &step->call[c];
        }
    }
    return NULL;
}

/* What stands between a backward pass and the script's own reduction, of a gradient that is none of
 * the guesses. */
static void blame_before_reduction(const ls_samples *samples, const tally *t,
                                   ls_observe_finding *out)
{
    const ls_observe_step *step = samples->step[t->rank];
    int reduces =
        step == NULL || ls_trace_is_ddp(samples->trace) ? -1 : ls_by_hand_collective(step);
    int clip = reduces < 0 ? -1 : ls_trace_find(step, LS_CALL_CLIP, 0);
    int unscale = reduces < 0 ? -1 : ls_trace_find(step, LS_CALL_UNSCALE, 0);
    if (clip >= 0 && clip < reduces) {
        ls_verdict_cause(&out->verdict,
                         "each rank clips its own gradients, by its own norm, before the script "
                         "reduces them (%.80s): the mean is not that of the gradients",
                         step->call[reduces].at);
        ls_finding_blame(out, step->call[clip].at, "reduce the gradients first, then clip");
    } else if (unscale >= 0 && unscale < reduces) {
        ls_verdict_cause(
            &out->verdict,
            "unscale_ comes before the script reduces the gradients (%.80s): each rank "
            "looks for infinities in its own, and steps or skips by itself",
            step->call[reduces].at);
        ls_finding_blame(out, step->call[unscale].at,
                         "reduce the gradients first, then call scaler.unscale_()");
    }
}

static void blame_own(const ls_samples *samples, const tally *t, ls_observe_finding *out)
{
    const ls_observe_trace *trace = samples->trace;
    ls_mean_plan plan = ls_mean_plan_of(samples, t->rank);
    const char *backward = place_of(samples, t->rank, LS_CALL_BACKWARD);
    const ls_call *number = loss_collective(samples->step[t->rank]);
    if (!ls_trace_is_ddp(trace) && t->hand != NULL && t->hand->common > 0) {
        ls_verdict_cause(&out->verdict,
                         "not reduced, while %d other tensors are: the script's loop over "
                         "parameters leaves these out",
                         t->hand->common);
        ls_finding_blame(out, t->hand->at,
                         "reduce the gradients of all parameters that the optimizer steps");
    } else if (!ls_trace_is_ddp(trace) && number != NULL) {
        ls_verdict_cause(&out->verdict,
                         "not reduced: each rank steps by its own gradient. The script reduces a "
                         "number before backward, the loss: autograd knows nothing of other ranks");
        ls_finding_blame(out, number->at,
                         "reduce the gradients after backward, not the loss before it, or wrap the "
                         "model in DistributedDataParallel");
    } else if (!ls_trace_is_ddp(trace)) {
        ls_verdict_cause(&out->verdict,
                         "not reduced: each rank steps by its own gradient; no model "
                         "is in DistributedDataParallel");
        ls_finding_blame(out, place_of(samples, t->rank, LS_CALL_OPTIMIZER_STEP),
                         "wrap the model in DistributedDataParallel");
    } else if (t->wrapped == 0) {
        ls_verdict_cause(&out->verdict, "not reduced: these parameters are outside "
                                        "DistributedDataParallel");
        ls_finding_blame(out, place_of(samples, t->rank, LS_CALL_OPTIMIZER_STEP),
                         "make their module a part of the model that is wrapped");
    } else if (plan.reductions == 0) {
        ls_verdict_cause(&out->verdict,
                         "not reduced: all %d backward passes of the step are inside "
                         "no_sync()",
                         plan.backwards);
        ls_finding_blame(out, no_sync_of(samples->step[t->rank], backward),
                         "leave no_sync() for the last micro-step");
    } else if (t->wrong < t->tensors) {
        ls_verdict_cause(&out->verdict, "not reduced, while other tensors are: these were added or "
                                        "replaced after the model was wrapped, or on its list of "
                                        "parameters to ignore");
        const cJSON *model = ls_job_model(&trace->rank[t->rank], t->model);
        const char *wrapped = ls_json_string(model, "at", "");
        ls_finding_blame(out, wrapped[0] != '\0' ? wrapped : backward,
                         "wrap the model after all its parameters are there");
    } else {
        ls_verdict_cause(&out->verdict, "not reduced: each rank steps by its own gradient");
        const char *forward = place_of(samples, t->rank, LS_CALL_FORWARD);
        ls_finding_blame(out, forward[0] != '\0' ? forward : backward,
                         "call the wrapped model, not its .module, for the training forward");
    }
}

static void blame_guess(const ls_samples *samples, const tally *t, ls_observe_finding *out)
{
    guess best = GUESS_SUM;
    for (int g = 0; g < GUESSES; g++) {
        best = t->fits[g] > t->fits[best] ? (guess)g : best;
    }
    if (t->fits[best] * 2 <= t->wrong) {
        if (t->wrapped > 0) {
            blame_calls(samples, t, out);
        }
        blame_before_reduction(samples, t, out);
        return;
    }
    const char *backward = place_of(samples, t->rank, LS_CALL_BACKWARD);
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
        blame_own(samples, t, out);
        return;
    case GUESS_LEFT:
        ls_verdict_cause(&out->verdict,
                         "left over: the gradient of the step before is still in it");
        ls_finding_blame(out, backward, "call zero_grad() once a step, before its first backward");
        return;
    case GUESS_LAST:
        ls_verdict_cause(&out->verdict, "only the last of %d micro-steps counts",
                         ls_mean_plan_of(samples, t->rank).backwards);
        ls_finding_blame(out, place_of(samples, t->rank, LS_CALL_ZERO_GRAD),
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
    for (int i = 0; i < rank->tensor_count; i++) {
        if (is_wrapped(trace, &rank->tensor[i])) {
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
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "no step has samples of gradients before and after the reduction on all "
                       "ranks");
    } else if (!t->differs) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "all ranks had the same gradients: their mean is "
                       "each one's own");
    }
    ls_verdict_measured(&out->verdict, t->worst, exact.value, "bounds", exact.why);
    ls_verdict_pass(&out->verdict,
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
        synced += ls_json_bool(step->call[c].json, "sync", true) ? step->call[c].times : 0;
    }
    if (passes > 1 && synced == passes) {
        ls_finding_blame(out, step->call[call].at,
                         "all %d backward passes of a step reduce: with no_sync() around all but "
                         "the last, one is enough",
                         passes);
    }
}

/* The event of a hook whose result is not known here, of models that all ranks hold; or NULL. */
static const cJSON *unknown_hook(const ls_observe_trace *trace)
{
    const cJSON *unknown = NULL;
    for (int m = 0; m < ls_job_models(&trace->rank[0]); m++) {
        const cJSON *hook = NULL, *model = ls_job_model(&trace->rank[0], m);
        hook_kind kind = hook_of(&trace->rank[0], m, &hook);
        if (kind == HOOK_NOOP || ls_json_int(model, "world", trace->world) != trace->world) {
            return NULL;
        }
        unknown = kind == HOOK_OTHER ? hook : unknown;
    }
    return unknown;
}

/* What a hook of the user's own gives, whether it sends in half or in parts, is a multiple of the
 * mean, in norm; or it is not known what it is meant to be. */
static void judge_hook(const ls_observe_trace *trace, const cJSON *hook, ls_observe_finding *out)
{
    ls_factor factor = {0};
    for (int64_t n = 0; (n = ls_samples_next(trace, n)) != 0;) {
        ls_samples samples;
        ls_samples_open(trace, n, &samples, out);
        if (samples.count == trace->world) {
            ls_factor_add(&factor, &samples);
        }
        ls_samples_close(&samples);
    }
    if (factor.steps == 0 || factor.unfit > 0) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "the communication hook %s: its result is not known, and no multiple of the "
                       "mean",
                       ls_json_string(hook, "name", "?"));
        return;
    }
    ls_factor_judge(&factor, out);
    ls_verdict_pass(&out->verdict,
                    "with the communication hook %s the gradients of %d detailed steps are the "
                    "mean of %d ranks, each tensor within 2 %% of its norm",
                    ls_json_string(hook, "name", "?"), factor.steps, trace->world);
}

void ls_rules_reduction_mean(const ls_observe_trace *trace, ls_observe_finding *out)
{
    tally t = {.rank = -1};
    ls_factor factor = {0};
    if (!concerns(trace, out)) {
        return;
    }
    const cJSON *hook = unknown_hook(trace);
    if (hook != NULL) {
        judge_hook(trace, hook, out);
        return;
    }
    if (!hooks_known(trace, out)) {
        return;
    }
    ls_by_hand hand;
    ls_by_hand_look(trace, &hand);
    t.hand = &hand;
    for (int64_t n = 0; t.wrong == 0 && (n = ls_samples_next(trace, n)) != 0;) {
        ls_samples samples;
        ls_samples_open(trace, n, &samples, out);
        if (samples.count == trace->world) {
            judge_step(&samples, &t);
            ls_factor_add(&factor, &samples);
        }
        if (t.wrong > 0) {
            ls_verdict_fail(&out->verdict, "step %lld, rank %d: %s; so in %d of %lld tensors: %s",
                            (long long)t.step, t.rank, t.first, t.wrong, (long long)t.tensors,
                            ls_job_names_text(&t.names));
            blame_guess(&samples, &t, out);
        }
        ls_samples_close(&samples);
    }
    if (t.wrong == 0 && t.differs) {
        ls_factor_judge(&factor, out);
    }
    conclude(trace, &t, out);
    ls_by_hand_free(&hand);
    advise_no_sync(trace, out);
}

/* ---- every parameter takes part -------------------------------------------------------------- */

static bool gets_gradient(const ls_observe_trace *trace, const char *name, ls_observe_finding *out)
{
    bool found = false;
    for (int64_t n = 0; !found && (n = ls_samples_next(trace, n)) != 0;) {
        ls_samples samples;
        ls_samples_open(trace, n, &samples, out);
        for (int k = 0; k < samples.world; k++) {
            found = found || ls_samples_find(samples.file[k], "local", name, NULL) != NULL ||
                    ls_samples_find(samples.file[k], "reduced", name, NULL) != NULL;
        }
        ls_samples_close(&samples);
    }
    return found;
}

static bool may_be_unused(const cJSON *model)
{
    return ls_json_bool(model, "find_unused", false) || ls_json_bool(model, "static_graph", false);
}

/* Whether a training forward of the model was seen: one that is trained later gets nothing yet. */
static bool was_run(const ls_observe_rank *rank, int model)
{
    for (int i = 0; i < rank->step_count; i++) {
        const ls_observe_step *step = &rank->step[i];
        for (int c = ls_trace_find(step, LS_CALL_FORWARD, 0); step->detail && c >= 0;
             c = ls_trace_find(step, LS_CALL_FORWARD, c + 1)) {
            if (step->call[c].model == model) {
                return true;
            }
        }
    }
    return false;
}

void ls_rules_reduction_covered(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (!concerns(trace, out)) {
        return;
    }
    const ls_observe_rank *rank = &trace->rank[0];
    ls_job_names unused = {0}, allowed = {0};
    int seen = 0;
    const char *at = "";
    for (int i = 0; i < rank->tensor_count && ls_samples_next(trace, 0) != 0; i++) {
        const ls_observe_tensor *tensor = &rank->tensor[i];
        const cJSON *model = ls_job_model(rank, tensor->model);
        if (!tensor->trainable || !is_wrapped(trace, tensor)) {
            continue;
        }
        if (gets_gradient(trace, tensor->name, out)) {
            seen++;
        } else if (!was_run(rank, tensor->model)) {
            continue;
        } else if (!may_be_unused(model)) {
            at = ls_json_string(model, "at", "");
            ls_job_add_name(&unused, tensor->name);
        } else {
            ls_job_add_name(&allowed, tensor->name);
        }
    }
    if (seen + unused.count + allowed.count == 0) {
        ls_verdict_set(&out->verdict, ls_trace_is_ddp(trace) ? LS_UNSUPPORTED : LS_SKIP,
                       "no samples of a model in DistributedDataParallel");
    } else if (unused.count > 0) {
        ls_verdict_fail(&out->verdict,
                        "%d trainable parameters of a model in "
                        "DistributedDataParallel never get a gradient: %s",
                        unused.count, ls_job_names_text(&unused));
        ls_finding_blame(out, at,
                         "freeze them before the model is wrapped, remove them, or pass "
                         "find_unused_parameters=True");
    }
    if (allowed.count > 0) {
        ls_finding_blame(out, "", "never trained: %s", ls_job_names_text(&allowed));
    }
    ls_verdict_pass(&out->verdict, "%d parameters get gradients, %d may be unused and are", seen,
                    allowed.count);
}

/* ---- nothing left from the step before ------------------------------------------------------- */

/* Tensors whose .grad is more than what this step's backward passes gave. */
typedef struct leftover {
    int compared;                 /* tensors with gradients in place before */
    ls_job_names reused, foreign; /* those that hold more than the step gave */
    const char *from;             /* the backward that gave what is foreign */
    int left;
} leftover;

static bool holds_more(const ls_samples *samples, int rank, const ls_observe_tensor *tensor,
                       int *compared)
{
    ls_mean mean;
    ls_mean_plan plan = ls_mean_plan_of(samples, rank);
    set_sent(samples, rank, tensor->model, &plan);
    bool wrapped = samples->world > 1 && is_wrapped(samples->trace, tensor), more = false;
    ls_values got = gradient_of(samples, rank, tensor->name);
    const char *type = type_of(samples, rank, tensor->name);
    bool usable = got.v != NULL && (wrapped || samples->world == 1) &&
                  samples->count == samples->world &&
                  ls_mean_plan_for(samples, tensor->name, &plan);
    if (usable && ls_mean_make(samples, &plan, tensor->name, type, &mean)) {
        int64_t at;
        double times;
        ++*compared;
        more = ls_mean_violations(&mean, &got, 1, NULL, &at, &times) > 0;
        ls_mean_free(&mean);
    }
    ls_values_free(&got);
    return more;
}

static bool is_attempted(const ls_observe_step *step, int optimizer)
{
    for (int c = 0; c < step->call_count; c++) {
        if (ls_calls_is_attempt(&step->call[c]) && step->call[c].optimizer == optimizer) {
            return true;
        }
    }
    return false;
}

static leftover find_leftover(const ls_samples *samples, int rank)
{
    leftover l = {0};
    ls_observe_finding unknown = {0};
    const ls_observe_rank *own = &samples->trace->rank[rank];
    if (samples->world > 1 && !hooks_known(samples->trace, &unknown)) {
        return l;
    }
    ls_carried *all = ls_carried_read(samples, rank);
    bool any = false;
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        if (!is_attempted(samples->step[rank], o)) {
            all[o] = (ls_carried){.left = -1}; /* what it left may stay for the other's step */
        }
        any = any || all[o].reused || all[o].carried;
    }
    for (int i = 0; any && i < own->tensor_count; i++) {
        ls_carried b = ls_carried_of(samples, rank, own->tensor[i].name, all);
        bool suspect = b.reused || (b.carried && b.from != NULL);
        l.left = b.reused && b.left > l.left ? b.left : l.left;
        if (suspect && holds_more(samples, rank, &own->tensor[i], &l.compared)) {
            ls_job_add_name(b.reused ? &l.reused : &l.foreign, own->tensor[i].name);
            l.from = b.reused ? l.from : b.from;
        }
    }
    free(all);
    return l;
}

static const char *backward_of(const ls_observe_step *step)
{
    int backward = ls_trace_find(step, LS_CALL_BACKWARD, 0);
    return backward >= 0 ? step->call[backward].at : "";
}

static void judge_left(const ls_samples *samples, int rank, int *looked, ls_observe_finding *out)
{
    const ls_observe_step *step = samples->step[rank];
    if (step == NULL || samples->file[rank] == NULL ||
        ls_trace_find(step, LS_CALL_BACKWARD, 0) < 0) {
        return;
    }
    leftover l = find_leftover(samples, rank);
    ++*looked;
    if (l.reused.count > 0) {
        ls_verdict_fail(&out->verdict,
                        "step %lld, rank %d: %d parameters hold a gradient that was there before "
                        "the step's own backward, and it stays in the sum: %s",
                        (long long)samples->number, rank, l.reused.count,
                        ls_job_names_text(&l.reused));
        ls_verdict_cause(&out->verdict,
                         "no zero_grad of these parameters between two steps of their optimizer: "
                         "it steps again by old gradients, and by what other losses left");
        ls_finding_blame(out, backward_of(step),
                         "call zero_grad() once a step, before its first backward");
    } else if (l.foreign.count > 0) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "step %lld, rank %d: %d parameters hold what the backward at %.80s left "
                       "before the step's own: %s",
                       (long long)samples->number, rank, l.foreign.count, l.from,
                       ls_job_names_text(&l.foreign));
        ls_verdict_cause(&out->verdict, "gradients of another loss are in the sum: right only "
                                        "where that loss trains these parameters, too");
        ls_finding_blame(out, backward_of(step),
                         "if it is not meant (a generator's loss in a discriminator): zero_grad() "
                         "right before this loss's backward");
    } else if (l.left > 0 && l.compared == 0) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "step %lld: %d parameters hold a gradient of the step before; no samples "
                       "say whether it stays",
                       (long long)samples->number, l.left);
    }
}

void ls_rules_reduction_left(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int looked = 0;
    if (!trace->attached) {
        ls_verdict_set(&out->verdict, LS_SKIP,
                       "the protocol reports no calls; reduction.mean compares the sums");
        return;
    }
    /* step 1 has none before it */
    for (int64_t n = 1; out->verdict.code != LS_FAIL && (n = ls_samples_next(trace, n)) != 0;) {
        ls_samples samples;
        ls_samples_open(trace, n, &samples, out);
        for (int k = 0; k < samples.world; k++) {
            ls_observe_finding one = {0};
            judge_left(&samples, k, &looked, &one);
            ls_calls_keep_worst(out, &one);
        }
        ls_samples_close(&samples);
    }
    if (looked == 0) {
        ls_verdict_set(&out->verdict, LS_WEAK, "no detailed step after the first");
    }
    ls_verdict_pass(&out->verdict, "looked at %d times in steps after the first", looked);
}
