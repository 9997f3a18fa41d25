/* How a job reduces its gradients, for the rules that compare them with the ranks' own. */
#ifndef LS_OBSERVE_REDUCTION_H
#define LS_OBSERVE_REDUCTION_H

#include "mean.h"
#include "samples.h"
#include "trace.h"

typedef enum ls_reduction_hook_kind {
    LS_HOOK_NONE,
    LS_HOOK_F32,
    LS_HOOK_F16,
    LS_HOOK_BF16,
    LS_HOOK_NOOP,
    LS_HOOK_OTHER
} ls_reduction_hook_kind;

/* The communication hook of a model, and its event; the event stays as it is where there is none.
 */
ls_reduction_hook_kind ls_reduction_hook(const ls_observe_rank *rank, int model,
                                         const ls_event **event);
/* True, with the verdict, where a model is replicated over some of the ranks. */
bool ls_reduction_is_partial(const ls_observe_trace *trace, ls_observe_finding *out);
/* False, with the verdict, where a model is reduced in a way that is not known here. */
bool ls_reduction_hooks_known(const ls_observe_trace *trace, ls_observe_finding *out);
/* False, with the verdict, where the ranks' gradients are not averaged as replicas' are. */
bool ls_reduction_concerns(const ls_observe_trace *trace, ls_observe_finding *out);
/* Whether the parameter's model is in DistributedDataParallel. */
bool ls_reduction_is_wrapped(const ls_observe_trace *trace, const ls_observe_tensor *tensor);
/* The gradient that the mean is compared with; of a step in which no optimizer took the parameter
 * it may hold what another step left: none then. */
ls_values ls_reduction_gradient(const ls_samples *samples, int rank, const char *name);
/* The type that it is stored in: "F32", "F16", "BF16". */
const char *ls_reduction_type(const ls_samples *samples, int rank, const char *name);
/* The type in which a model's hook sends gradients. */
void ls_reduction_set_sent(const ls_samples *samples, int rank, int model, ls_mean_plan *plan);

#endif
