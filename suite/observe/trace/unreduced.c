/* Why gradients stayed each rank's own: no wrapper, a wrapper that was not called, parameters that
 * it does not know, or no_sync(). */
#include "unreduced.h"

#include "calls.h"
#include "job.h"
#include "mean.h"

const char *ls_unreduced_place(const ls_samples *samples, int rank, ls_call_kind kind)
{
    const ls_observe_step *step = samples->step[rank];
    int call = step == NULL ? -1 : ls_trace_find(step, kind, 0);
    return call >= 0 ? step->call[call].at : "";
}

const char *ls_unreduced_no_sync(const ls_observe_step *step, const char *otherwise)
{
    for (int c = ls_trace_find(step, LS_CALL_BACKWARD, 0); c >= 0;
         c = ls_trace_find(step, LS_CALL_BACKWARD, c + 1)) {
        const char *at = ls_calls_text(&step->call[c], no_sync);
        if (at[0] != '\0') {
            return at;
        }
    }
    return otherwise;
}

/* A collective of one number before the step's last backward; NULL: none. */
static const ls_call *loss_collective(const ls_observe_step *step)
{
    int backward = step == NULL ? -1 : ls_trace_find(step, LS_CALL_BACKWARD, 0);
    for (int c = backward < 0 ? -1 : ls_trace_find(step, LS_CALL_COLLECTIVE, 0);
         c >= 0 && c < backward; c = ls_trace_find(step, LS_CALL_COLLECTIVE, c + 1)) {
        if (ls_event_int(step->call[c].json, elements, 0) == 1 &&
            ls_event_text(step->call[c].json, reduce, "")[0] != '\0') {
            return &step->call[c];
        }
    }
    return NULL;
}

/* Where the model came to be known: of a plain one, where the optimizer took its parameters. */
static const char *model_place(const ls_samples *samples, const ls_unreduced *u)
{
    const ls_event *model = ls_job_model(&samples->trace->rank[u->rank], u->model);
    const char *at = ls_event_text(model, at, "");
    return at[0] != '\0' ? at : ls_unreduced_place(samples, u->rank, LS_CALL_OPTIMIZER_STEP);
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
        ls_verdict_cause(&out->verdict,
                         "not reduced: each rank steps by its own gradient. The script reduces a "
                         "number before backward, the loss: autograd knows nothing of other ranks");
        ls_finding_blame(out, number->at,
                         "reduce the gradients after backward, not the loss before it, or wrap the "
                         "model in DistributedDataParallel");
    } else {
        ls_verdict_cause(&out->verdict,
                         "not reduced: each rank steps by its own gradient; no model "
                         "is in DistributedDataParallel");
        ls_finding_blame(out, model_place(samples, u), "wrap the model in DistributedDataParallel");
    }
}

/* Whether a backward of another step of the rank reduces. */
static bool reduces_elsewhere(const ls_observe_rank *rank)
{
    for (int i = 0; i < rank->step_count; i++) {
        const ls_observe_step *step = &rank->step[i];
        for (int c = ls_trace_find(step, LS_CALL_BACKWARD, 0); c >= 0;
             c = ls_trace_find(step, LS_CALL_BACKWARD, c + 1)) {
            if (ls_calls_flag(&step->call[c], sync) == 1) {
                return true;
            }
        }
    }
    return false;
}

static void blame_no_sync(const ls_samples *samples, const ls_unreduced *u, int backwards,
                          ls_observe_finding *out)
{
    const ls_observe_step *step = samples->step[u->rank];
    const char *stepped = ls_unreduced_place(samples, u->rank, LS_CALL_OPTIMIZER_STEP);
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
        out, ls_unreduced_no_sync(step, ls_unreduced_place(samples, u->rank, LS_CALL_BACKWARD)),
        "leave no_sync() for the last micro-step");
}

/* Some tensors of a wrapped model are reduced. */
static void blame_unknown(const ls_samples *samples, const ls_unreduced *u, ls_observe_finding *out)
{
    if (u->frozen == u->wrapped) {
        ls_verdict_cause(&out->verdict, "not reduced, while other tensors are: these were frozen "
                                        "when the model was wrapped (requires_grad was false), and "
                                        "the wrapper reduces what was trainable then");
        ls_finding_blame(out, model_place(samples, u),
                         "wrap the model again after parameters are unfrozen, or freeze them after "
                         "it is wrapped, with find_unused_parameters=True");
        return;
    }
    ls_verdict_cause(&out->verdict, "not reduced, while other tensors are: these were added or "
                                    "replaced after the model was wrapped, or on its list of "
                                    "parameters to ignore");
    ls_finding_blame(out, model_place(samples, u),
                     "wrap the model after all its parameters are there");
}

/* The forwards of the wrapped model in the step, and the first of them. */
static const ls_call *forward_of(const ls_observe_step *step, int model, int *synced, int *all)
{
    const ls_call *first = NULL;
    *synced = *all = 0;
    for (int c = 0; step != NULL && c < step->call_count; c++) {
        const ls_call *call = &step->call[c];
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
    for (int i = 0; i < rank->step_count; i++) {
        const ls_observe_step *step = &rank->step[i];
        for (int c = ls_trace_find(step, LS_CALL_BACKWARD, 0); c >= 0;
             c = ls_trace_find(step, LS_CALL_BACKWARD, c + 1)) {
            const char *at = ls_calls_text(&step->call[c], bypassed);
            if (at[0] != '\0') {
                return at;
            }
        }
    }
    return "";
}

/* The whole of a wrapped model: the wrapper learns of a backward by its own forward. */
static void blame_forward(const ls_samples *samples, const ls_unreduced *u, ls_observe_finding *out)
{
    int synced, all;
    const ls_call *first = forward_of(samples->step[u->rank], u->model, &synced, &all);
    const char *backward = ls_unreduced_place(samples, u->rank, LS_CALL_BACKWARD);
    if (first == NULL) {
        const char *inside = bypass_of(&samples->trace->rank[u->rank]);
        ls_verdict_cause(&out->verdict,
                         "not reduced: the wrapper is never called in the step, the module inside "
                         "it (.module) is: DistributedDataParallel knows of no forward");
        ls_finding_blame(out, inside[0] != '\0' ? inside : backward,
                         "call the wrapped model, not its .module, for the training forward");
    } else if (synced == 0) {
        ls_verdict_cause(&out->verdict,
                         "not reduced: the forward of this backward runs inside no_sync(), and it "
                         "is the forward that counts: all %d of the step do",
                         all);
        ls_finding_blame(out, first->at,
                         "put forward and backward of a micro-step under the same condition, and "
                         "leave no_sync() for both of the last one");
    } else {
        ls_verdict_cause(&out->verdict, "not reduced: each rank steps by its own gradient");
        ls_finding_blame(out, first->at,
                         "call the wrapped model, not its .module, for the training forward");
    }
}

void ls_unreduced_blame(const ls_samples *samples, const ls_unreduced *u, ls_observe_finding *out)
{
    ls_mean_plan plan = ls_mean_plan_of(samples, u->rank);
    if (!ls_trace_is_ddp(samples->trace)) {
        blame_no_wrapper(samples, u, out);
    } else if (u->wrapped == 0) {
        ls_verdict_cause(&out->verdict, "not reduced: these parameters are outside "
                                        "DistributedDataParallel");
        ls_finding_blame(out, model_place(samples, u),
                         "make their module a part of the model that is wrapped");
    } else if (plan.reductions == 0) {
        blame_no_sync(samples, u, plan.backwards, out);
    } else if (u->wrong < u->tensors) {
        blame_unknown(samples, u, out);
    } else {
        blame_forward(samples, u, out);
    }
}
