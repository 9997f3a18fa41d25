/* Data-parallel training without DistributedDataParallel: the script reduces gradients itself.
 * Shown by its samples: ranks whose own gradients differ step by one and the same. Shards, stages
 * and experts have gradients of their own, and parameters that only meet in an average of theirs
 * step by a rank's own. */
#ifndef LS_OBSERVE_BY_HAND_H
#define LS_OBSERVE_BY_HAND_H

#include "job.h"

typedef struct ls_by_hand {
    int steps;      /* detailed steps in which all ranks stepped */
    int common;     /* tensors that all ranks step by one gradient, of their own that differ */
    int apart;      /* tensors that they step by different ones */
    bool *shared;   /* [tensors of rank 0]: the common ones */
    bool *own;      /* those apart that differed before the first detailed step: parts of a rank */
    const char *at; /* the collective behind the backward pass, or "" */
} ls_by_hand;

/* Nothing is common where the job has one rank or a model in DistributedDataParallel. */
void ls_by_hand_look(const ls_observe_trace *trace, ls_by_hand *out);
void ls_by_hand_free(ls_by_hand *by_hand);
/* Whether all ranks step by one gradient of that parameter, but for a factor of each. */
bool ls_by_hand_is_scaled(const ls_samples *samples, const char *name);
/* The first detailed step after `after` in which a common tensor differs between ranks in that
 * group of samples ("param", "next", "next_state"), with the names; 0: none. */
int64_t ls_by_hand_split(const ls_observe_trace *trace, const ls_by_hand *by_hand, int64_t after,
                         const char *group, ls_job_names *names);
/* Whether in most steps collectives that sum over all ranks, between the last backward pass and the
 * optimizer, have at least as many elements as the parameters. */
bool ls_by_hand_sums(const ls_observe_trace *trace);
/* Whether the ranks hold whole and equal replicas, and the script reduces their gradients. */
bool ls_by_hand_replicates(const ls_observe_trace *trace);
/* Where models are in DistributedDataParallel, rank 0's steps in which an optimizer steps by what
 * no backward pass of the step reduced: all were in no_sync(). */
int ls_by_hand_keeps_gradients(const ls_observe_trace *trace);
/* Whether collectives that sum over all ranks, between an optimizer's step and the next forward,
 * have at least as many elements as the parameters: these are averaged in place of the gradients.
 * Of wrapped models only where such a step is, and the ranks, which had parted, are equal again.
 */
bool ls_by_hand_averages_later(const ls_observe_trace *trace);
/* Whether ranks that hold other values send each other tensors before the last backward pass ends:
 * stages of a pipeline, shards of layers. */
bool ls_by_hand_divides_model(const ls_observe_trace *trace);
/* Whether two ranks' own gradients of a step are the same, bit for bit: 1 or 0; -1: there are none.
 */
int ls_by_hand_same_work(const ls_observe_trace *trace, int a, int b);
/* The first collective between a step's last backward pass and its optimizer's step; -1: none. */
int ls_by_hand_collective(const ls_observe_step *step);

#endif
