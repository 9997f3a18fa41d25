/* Inputs that end sooner on some ranks than on others, and --join, which lets the others finish
 * (torch/distributed/algorithms/join.py, torch/nn/parallel/distributed.py, join).
 *
 * Data flow. A rank alone knows whether it has a batch for a step (ls_uneven_own). Before each step
 * all ranks gather who has one: that decides the divisor and the source of running statistics, and
 * under `throw` the end of the run, alike everywhere. A rank without a batch does the step with
 * gradients of zero: the same collectives in the same order, then the same update from the same
 * average, so that replicas, skipped steps and the loss scale stay in lockstep (torch's ranks that
 * have run out do not step, and get the parameters at the end). When the data of all have ended, at
 * the end of an epoch or of --steps-of-rank, the rank that had batches longest, of several the last
 * one, sends parameters and running statistics to all. A rank that dies, with a batch or without,
 * is lost to the others in the gather or in a reduction, at --timeout at the latest, as in any
 * step.
 */
#ifndef LS_UNEVEN_H
#define LS_UNEVEN_H

#include "trainer.h"

/* What the ranks know of each other before a step. */
typedef struct ls_uneven_round {
    bool joined;    /* this rank has no batch */
    int active;     /* ranks that have one; at least 1 */
    int source;     /* the last of them */
    int64_t images; /* of all ranks in this step; 0: not known, as without --join */
} ls_uneven_round;

/* The number of steps in an epoch of every rank, from the data that is open; with --steps-of-rank,
 * in the run. Sets trainer->steps_per_epoch: the largest number with --join, else the rank's own.
 * `most`: the steps of a run of data without an end. Warns where numbers differ without --join. */
ls_status ls_uneven_plan(ls_trainer *trainer, int64_t *most);
/* How many of the steps 1 to `step` this rank has a batch for. */
int64_t ls_uneven_own(const ls_trainer *trainer, int64_t step);

/* Nothing without --join, or without an engine. */
ls_status ls_uneven_open(ls_trainer *trainer);
void ls_uneven_close(ls_trainer *trainer);
/* Before a step; sets the divisor of its average in trainer->rules. LS_ERR_UNEVEN on all ranks with
 * --join throw, if some have a batch and others have not. */
ls_status ls_uneven_agree(ls_trainer *trainer, int64_t step, ls_uneven_round *out);
/* After a step that has ended; does nothing unless the data of all ranks end with it. */
ls_status ls_uneven_end(ls_trainer *trainer, int64_t step);

/* Batches that the running statistics of a rank have seen; with --join as all ranks said when they
 * last called ls_uneven_gather_tracked, which does nothing else. */
ls_status ls_uneven_gather_tracked(ls_trainer *trainer);
int64_t ls_uneven_tracked(const ls_trainer *trainer, int rank);

/* A line where a run without --join has lost a peer and numbers of steps differ. */
void ls_uneven_explain(const ls_trainer *trainer);

#endif
