#include "mean.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "calls.h"
#include "job.h"

/* n roundings of relative error u, exactly: n u / (1 - n u). */
static double gamma_of(double n, double u)
{
    return n * u < 1 ? n * u / (1 - n * u) : INFINITY;
}

static bool is_between_backwards(const ls_observe_step *step)
{
    bool seen = false, zeroed = false;
    ls_trace_each_call(call, step) {
        bool backward = call->kind == LS_CALL_BACKWARD;
        if (backward && zeroed) {
            return true;
        }
        seen = seen || backward;
        zeroed = seen && (zeroed || call->kind == LS_CALL_ZERO_GRAD);
    }
    return false;
}

ls_mean_plan ls_mean_plan_of(const ls_samples *samples, int rank)
{
    ls_mean_plan plan = {.world = samples->world, .scale = 1};
    const ls_observe_step *step = samples->step[rank];
    const ls_dumpfile *file = samples->file[rank];
    if (!samples->trace->attached && file == NULL) {
        return plan; /* nothing is compared with it */
    }
    if (!samples->trace->attached) {
        /* accumulated in f32, converted and reduced once */
        const char *type = ls_dumpfile_text(file, "reduced_type", "fp32");
        plan.backwards = (int)ls_dumpfile_integer(file, "accumulate", 1);
        plan.reductions = 1;
        plan.scale = ls_dumpfile_number(file, "loss_scale", 1);
        plan.sent_as = strcmp(type, "fp16") == 0   ? "f16"
                       : strcmp(type, "bf16") == 0 ? "bf16"
                                                   : NULL;
        return plan;
    }
    ls_trace_each_kind(call, step, LS_CALL_BACKWARD) {
        plan.backwards += call->times;
        plan.reductions += ls_event_bool(call->json, sync, true) ? call->times : 0;
    }
    plan.zeroed = is_between_backwards(step);
    return plan;
}

bool ls_mean_plan_for(const ls_samples *samples, const char *name, ls_mean_plan *plan)
{
    plan->since = plan->zeroed;
    for (int k = 0; k < samples->world && plan->since; k++) {
        plan->since = ls_samples_find(samples->file[k], "since", name, NULL) != NULL;
    }
    return !plan->zeroed || plan->since;
}

/* Roundings on the way, of `grown`, the mean over ranks of the sums of sizes: A - 1 additions of
 * micro-steps in the gradient's type; in each reduction a conversion, 1/W, the product with it,
 * W - 1 additions and a conversion back in the type that is sent. */
static double bound_of(const ls_mean_plan *plan, ls_unit held, ls_unit sent, double grown)
{
    double reductions = plan->reductions > 0 ? plan->reductions : 1;
    double adds = plan->backwards, steps = reductions * (plan->world + 3.0);
    double a = gamma_of(adds, held.u), r = gamma_of(steps, sent.u);
    double scale = plan->scale > 0 ? plan->scale : 1;
    return grown * (a + r + a * r) + (adds * held.eta + steps * sent.eta) / scale;
}

static void sum_rank(ls_mean *mean, const ls_samples *samples, int rank, const char *group,
                     const char *name, double *grown, double *largest)
{
    const ls_values *local = &mean->local[rank];
    ls_values sizes = ls_samples_read(samples->file[rank], group, name, NULL);
    for (int64_t i = 0; i < mean->count; i++) {
        double size =
            sizes.v != NULL && sizes.count == mean->count ? sizes.v[i] : fabs(local->v[i]);
        mean->mean[i] += local->v[i] / mean->world;
        grown[i] += size / mean->world;
        largest[i] = fmax(largest[i], size);
    }
    ls_samples_free(&sizes);
}

static bool read_locals(const ls_samples *samples, const char *group, const char *name,
                        ls_mean *out)
{
    for (int k = 0; k < samples->world; k++) {
        out->local[k] = ls_samples_read(samples->file[k], group, name, NULL);
        if (out->local[k].v == NULL) {
            continue;
        }
        if (out->count != 0 && out->count != out->local[k].count) {
            return false;
        }
        out->count = out->local[k].count;
    }
    return out->count > 0;
}

static bool ranks_differ(const ls_mean *mean)
{
    for (int k = 1; k < mean->world; k++) {
        bool both = mean->local[0].v != NULL && mean->local[k].v != NULL;
        if (both ? !ls_samples_equal(&mean->local[0], &mean->local[k])
                 : mean->local[0].v != mean->local[k].v) {
            return true;
        }
    }
    return false;
}

bool ls_mean_make(const ls_samples *samples, const ls_mean_plan *plan, const char *name,
                  const char *type, ls_mean *out)
{
    *out = (ls_mean){.world = samples->world,
                     .local = ls_list_make((size_t)samples->world, sizeof *out->local)};
    if (!read_locals(samples, plan->since ? "since" : "local", name, out) ||
        !ls_samples_aligned(samples, name)) {
        ls_mean_free(out);
        return false;
    }
    size_t count = (size_t)out->count;
    ls_unit held = ls_samples_unit(type);
    ls_unit sent = plan->sent_as == NULL ? held : ls_samples_unit(plan->sent_as);
    double *grown = ls_list_make(count, sizeof *grown);
    double *largest = ls_list_make(count, sizeof *largest);
    out->mean = ls_list_make(count, sizeof *out->mean);
    out->bound = ls_list_make(count, sizeof *out->bound);
    out->overflow = ls_list_make(count, sizeof *out->overflow);
    for (int k = 0; k < samples->world; k++) {
        if (out->local[k].v != NULL) {
            sum_rank(out, samples, k, plan->since ? "since_abs" : "local_abs", name, grown,
                     largest);
        }
    }
    for (size_t i = 0; i < count; i++) {
        double scale = plan->scale > 0 ? plan->scale : 1;
        out->bound[i] = bound_of(plan, held, sent, grown[i]);
        /* cast before it is divided, or summed before it is divided */
        out->overflow[i] = (grown[i] * out->world + out->bound[i]) * scale >= sent.most ||
                           largest[i] * scale >= sent.most;
    }
    out->differs = ranks_differ(out);
    free(grown);
    free(largest);
    return true;
}

void ls_mean_free(ls_mean *mean)
{
    for (int k = 0; mean->local != NULL && k < mean->world; k++) {
        ls_samples_free(&mean->local[k]);
    }
    free(mean->local);
    free(mean->mean);
    free(mean->bound);
    free(mean->overflow);
    memset(mean, 0, sizeof *mean);
}

int64_t ls_mean_violations(const ls_mean *mean, const ls_values *got, double factor,
                           const double *offset, int64_t *worst, double *times)
{
    int64_t wrong = 0, at = 0;
    double most = 0;
    for (int64_t i = 0; i < mean->count && i < got->count; i++) {
        double wanted = factor * mean->mean[i] + (offset == NULL ? 0 : offset[i]);
        double error = fabs(got->v[i] - wanted);
        double room = mean->bound[i] * fmax(1, fabs(factor));
        if (!isfinite(wanted) || !isfinite(got->v[i])) {
            /* an overflow stays one; one that comes up needs a sum beyond the range */
            bool lost = !isfinite(wanted) && isfinite(got->v[i]);
            bool made = isfinite(wanted) && !isfinite(got->v[i]) && !mean->overflow[i];
            error = lost || made ? INFINITY : 0;
        }
        double ratio = error == 0 ? 0 : room > 0 ? error / room : INFINITY;
        wrong += ratio > 1;
        if (ratio > most) {
            most = ratio;
            at = i;
        }
    }
    if (worst != NULL) {
        *worst = at;
        *times = most;
    }
    return wrong;
}

/* Why gradients stayed each rank's own: no wrapper, a wrapper that was not called, parameters that
 * it does not know, or no_sync(). */

const char *ls_mean_unreduced_no_sync(const ls_observe_step *step, const char *otherwise)
{
    ls_trace_each_kind(call, step, LS_CALL_BACKWARD) {
        const char *at = ls_calls_text(call, no_sync);
        if (at[0] != '\0') {
            return at;
        }
    }
    return otherwise;
}

const ls_call *ls_mean_changed_sync(const ls_observe_step *step)
{
    const ls_call *forward = NULL;
    ls_trace_each_call(call, step) {
        if (ls_calls_is_training(call)) {
            forward = call;
        } else if (call->kind == LS_CALL_BACKWARD && forward != NULL &&
                   ls_calls_flag(forward, sync) + ls_calls_flag(call, sync) == 1) {
            return call; /* one is 0, one 1: both are known */
        }
    }
    return NULL;
}

/* A collective of one number before the step's first backward; NULL: none. */
static const ls_call *loss_collective(const ls_observe_step *step)
{
    ls_trace_each_call(call, step) {
        if (call->kind == LS_CALL_BACKWARD) {
            break;
        }
        if (call->kind == LS_CALL_COLLECTIVE && ls_event_int(call->json, elements, 0) == 1 &&
            ls_event_text(call->json, reduce, "")[0] != '\0') {
            return call;
        }
    }
    return NULL;
}

/* Where the model came to be known: of a plain one, where the optimizer took its parameters. */
static const char *model_place(const ls_samples *samples, const ls_unreduced *u)
{
    const ls_event *model = ls_job_model(&samples->trace->rank[u->rank], u->model);
    const char *at = ls_event_text(model, at, "");
    return at[0] != '\0' ? at : ls_trace_place(samples->step[u->rank], LS_CALL_OPTIMIZER_STEP);
}

static void blame_no_wrapper(const ls_samples *samples, const ls_unreduced *u,
                             ls_observe_finding *out)
{
    const ls_call *number = loss_collective(samples->step[u->rank]);
    if (u->hand != NULL && u->hand->common > 0) {
        ls_verdict_cause(&out->verdict,
                         "not reduced, while %d other tensors are: the script's loop over "
                         "parameters leaves these out",
                         u->hand->common);
        ls_finding_blame(out, u->hand->at,
                         "reduce the gradients of all parameters that the optimizer steps");
    } else if (number != NULL) {
        ls_finding_explain(
            out, number->at,
            "not reduced: each rank steps by its own gradient. The script reduces a number before "
            "backward, the loss: autograd knows nothing of other ranks",
            "reduce the gradients after backward, not the loss before it, or wrap the model in "
            "DistributedDataParallel");
    } else {
        ls_finding_explain(out, model_place(samples, u),
                           "not reduced: each rank steps by its own gradient; no model is in "
                           "DistributedDataParallel",
                           "wrap the model in DistributedDataParallel");
    }
}

/* Whether a backward of another step of the rank reduces. */
static bool reduces_elsewhere(const ls_observe_rank *rank)
{
    ls_trace_each_call_of(walk, rank) {
        if (walk.call->kind == LS_CALL_BACKWARD && ls_calls_flag(walk.call, sync) == 1) {
            return true;
        }
    }
    return false;
}

static void blame_no_sync(const ls_samples *samples, const ls_unreduced *u, int backwards,
                          ls_observe_finding *out)
{
    const ls_observe_step *step = samples->step[u->rank];
    const char *stepped = ls_trace_place(samples->step[u->rank], LS_CALL_OPTIMIZER_STEP);
    if (reduces_elsewhere(&samples->trace->rank[u->rank]) && stepped[0] != '\0') {
        ls_verdict_cause(&out->verdict,
                         "not reduced: all %d backward passes of the step are inside no_sync(), "
                         "which others are not: the step is not taken where no_sync() ends",
                         backwards);
        ls_finding_blame(out, stepped,
                         "step by the condition that leaves no_sync(): after the micro-step that "
                         "reduces, and after no other");
        return;
    }
    ls_verdict_cause(&out->verdict,
                     "not reduced: all %d backward passes of the step are inside no_sync()",
                     backwards);
    ls_finding_blame(
        out,
        ls_mean_unreduced_no_sync(step, ls_trace_place(samples->step[u->rank], LS_CALL_BACKWARD)),
        "leave no_sync() for the last micro-step");
}

/* Some tensors of a wrapped model are reduced. */
static void blame_unknown(const ls_samples *samples, const ls_unreduced *u, ls_observe_finding *out)
{
    bool frozen = u->frozen == u->wrapped;
    ls_finding_explain(
        out, model_place(samples, u),
        frozen ? "not reduced, while other tensors are: these were frozen when the model was "
                 "wrapped (requires_grad was false), and the wrapper reduces what was trainable "
                 "then"
               : "not reduced, while other tensors are: these were added or replaced after the "
                 "model was wrapped, or on its list of parameters to ignore",
        frozen ? "wrap the model again after parameters are unfrozen, or freeze them after it is "
                 "wrapped, with find_unused_parameters=True"
               : "wrap the model after all its parameters are there");
}

/* The forwards of the wrapped model in the step, and the first of them. */
static const ls_call *forward_of(const ls_observe_step *step, int model, int *synced, int *all)
{
    const ls_call *first = NULL;
    *synced = *all = 0;
    ls_trace_each_call(call, step) {
        if (call->model == model && ls_calls_is_training(call)) {
            first = first == NULL ? call : first;
            *synced += ls_calls_flag(call, sync) != 0;
            ++*all;
        }
    }
    return first;
}

/* Where the script calls the module inside the wrapper, in any step; "" where that was not seen. */
static const char *bypass_of(const ls_observe_rank *rank)
{
    ls_trace_each_call_of(walk, rank) {
        const char *at = ls_calls_text(walk.call, bypassed); /* of a backward */
        if (at[0] != '\0') {
            return at;
        }
    }
    return "";
}

bool ls_mean_blame_idle(const ls_samples *samples, int rank, int model, ls_observe_finding *out)
{
    int synced, all;
    const ls_observe_step *step = samples->step[rank];
    const ls_event *event = ls_job_model(&samples->trace->rank[rank], model);
    if (step == NULL || !ls_job_model_is_ddp(event) ||
        forward_of(step, model, &synced, &all) != NULL) {
        return false;
    }
    const char *inside = bypass_of(&samples->trace->rank[rank]);
    const char *backward = ls_trace_place(step, LS_CALL_BACKWARD);
    ls_finding_explain(out, inside[0] != '\0' ? inside : backward,
                       "not reduced: the wrapper is never called in the step, the module "
                       "inside it (.module) is: DistributedDataParallel knows of no forward",
                       "call the wrapped model, not its .module, for the training forward");
    return true;
}

/* The whole of a wrapped model: the wrapper learns of a backward by its own forward. */
static void blame_forward(const ls_samples *samples, const ls_unreduced *u, ls_observe_finding *out)
{
    int synced, all;
    const ls_call *first = forward_of(samples->step[u->rank], u->model, &synced, &all);
    if (synced == 0) {
        ls_verdict_cause(&out->verdict,
                         "not reduced: the forward of this backward runs inside no_sync(), and it "
                         "is the forward that counts: all %d of the step do",
                         all);
        ls_finding_blame(out, first->at,
                         "put forward and backward of a micro-step under the same condition, and "
                         "leave no_sync() for both of the last one");
    } else {
        ls_finding_explain(out, first->at, "not reduced: each rank steps by its own gradient",
                           "call the wrapped model, not its .module, for the training forward");
    }
}

void ls_mean_unreduced_blame(const ls_samples *samples, const ls_unreduced *u,
                             ls_observe_finding *out)
{
    ls_mean_plan plan = ls_mean_plan_of(samples, u->rank);
    if (!ls_trace_is_ddp(samples->trace)) {
        blame_no_wrapper(samples, u, out);
    } else if (u->wrapped == 0) {
        ls_finding_explain(out, model_place(samples, u),
                           "not reduced: these parameters are outside DistributedDataParallel",
                           "make their module a part of the model that is wrapped");
    } else if (plan.reductions == 0) {
        blame_no_sync(samples, u, plan.backwards, out);
    } else if (ls_mean_blame_idle(samples, u->rank, u->model, out)) {
        return; /* those that are not wrong have gradients of 0 */
    } else if (u->wrong < u->tensors) {
        blame_unknown(samples, u, out);
    } else {
        blame_forward(samples, u, out);
    }
}
