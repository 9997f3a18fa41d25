/* Why gradients stayed each rank's own. */
#ifndef LS_OBSERVE_UNREDUCED_H
#define LS_OBSERVE_UNREDUCED_H

#include "by_hand.h"
#include "samples.h"

typedef struct ls_unreduced {
    int rank;               /* whose step it is */
    int wrong, tensors;     /* of the step's tensors, those that are not the mean; all of them */
    int wrapped;            /* of the wrong ones, those of a model in DistributedDataParallel */
    int frozen;             /* of these, those that were not trainable when it was wrapped */
    int model;              /* of the first wrong one */
    const ls_by_hand *hand; /* of a job without DistributedDataParallel */
} ls_unreduced;

void ls_unreduced_blame(const ls_samples *samples, const ls_unreduced *u, ls_observe_finding *out);
/* Where the script asked for no_sync() around a backward of the step. */
const char *ls_unreduced_no_sync(const ls_observe_step *step, const char *otherwise);
/* The place of a rank's first call of that kind in the step, or "". */
const char *ls_unreduced_place(const ls_samples *samples, int rank, ls_call_kind kind);

#endif
