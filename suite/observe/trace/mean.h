/* The mean of all ranks' gradients of a tensor in FP64, and how far a right reduction may be from
 * it (numerics.md section 8). */
#ifndef LS_OBSERVE_MEAN_H
#define LS_OBSERVE_MEAN_H

#include "by_hand.h"
#include "samples.h"

/* How a step's gradients come together, as its calls say. */
typedef struct ls_mean_plan {
    int world;           /* ranks that the mean is over */
    int backwards;       /* passes of the step */
    int reductions;      /* of those, in how many the gradients were reduced */
    bool zeroed;         /* a zero_grad between two of them: .grad is not the sum of all */
    bool since;          /* so, and the samples have what came after it */
    double scale;        /* dumps of the protocol are unscaled: what to multiply eta with */
    const char *sent_as; /* the type of a communication hook, or NULL: that of the gradient */
} ls_mean_plan;

/* Of one tensor at one step. */
typedef struct ls_mean {
    int world;
    int64_t count;
    ls_values *local;     /* [world]; v NULL: the rank had no gradient */
    double *mean, *bound; /* [count] */
    bool *overflow;       /* [count]: a sum may have left the range of the type it is sent as */
    bool differs;         /* two ranks' gradients differ in some element */
} ls_mean;

ls_mean_plan ls_mean_plan_of(const ls_samples *samples, int rank);
/* Makes the plan one of that tensor; false: what its gradient should be is not known. */
bool ls_mean_plan_for(const ls_samples *samples, const char *name, ls_mean_plan *plan);
/* False where no rank has a gradient of that tensor, or they do not fit each other. */
bool ls_mean_make(const ls_samples *samples, const ls_mean_plan *plan, const char *name,
                  const char *type, ls_mean *out);
void ls_mean_free(ls_mean *mean);
/* How many elements of `got` are further than the bound from factor * mean + offset (offset NULL:
 * 0), and the worst: its index and its distance in units of the bound (both
 * NULL: not asked for). */
int64_t ls_mean_violations(const ls_mean *mean, const ls_values *got, double factor,
                           const double *offset, int64_t *worst, double *times);

/* Why gradients stayed each rank's own. */
typedef struct ls_unreduced {
    int rank;               /* whose step it is */
    int wrong, tensors;     /* of the step's tensors, those that are not the mean; all of them */
    int wrapped;            /* of the wrong ones, those of a model in DistributedDataParallel */
    int frozen;             /* of these, those that were not trainable when it was wrapped */
    int model;              /* of the first wrong one */
    const ls_by_hand *hand; /* of a job without DistributedDataParallel */
} ls_unreduced;

void ls_mean_unreduced_blame(const ls_samples *samples, const ls_unreduced *u,
                             ls_observe_finding *out);
/* Where the script asked for no_sync() around a backward of the step. */
const char *ls_mean_unreduced_no_sync(const ls_observe_step *step, const char *otherwise);
/* A backward inside no_sync() whose forward is not, or the other way round; NULL: none. */
const ls_call *ls_mean_changed_sync(const ls_observe_step *step);

/* How a job reduces its gradients, for the rules that compare them with the ranks' own. */

typedef enum ls_reduction_hook_kind {
    LS_HOOK_NONE,
    LS_HOOK_F32,
    LS_HOOK_F16,
    LS_HOOK_BF16,
    LS_HOOK_NOOP,
    LS_HOOK_OTHER
} ls_reduction_hook_kind;

ls_reduction_hook_kind ls_reduction_kind(const ls_event *hook); /* of NULL: LS_HOOK_NONE */
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

/* Whether no forward of the step went through that model's DistributedDataParallel, which then
 * reduces nothing: says so, and where the script calls what is in it. */
bool ls_mean_blame_idle(const ls_samples *samples, int rank, int model, ls_observe_finding *out);

#endif
