/* A step as a graph: the device's work from forward to the scaler's update is recorded once and
 * then launched whole. There is one graph per batch slot, because a graph reads from fixed
 * addresses. */
#ifndef LS_GRAPH_H
#define LS_GRAPH_H

#include "trainer.h"

typedef struct ls_graph_set ls_graph_set;

/* NULL where steps of this run are recorded, else why they are not ("--trace"); the text stays. */
const char *ls_graph_refused(const ls_trainer *trainer);
/* LS_ERR_USAGE, with the reason, for --cuda-graph on where ls_graph_refused has one. */
ls_status ls_graph_check(const ls_trainer *trainer);

/* *out is NULL where nothing is to be recorded. */
ls_status ls_graph_open(ls_trainer *trainer, ls_graph_set **out);
void ls_graph_close(ls_graph_set *set);
/* Whether this step is launched as a graph: not the first two of a run, in which buckets settle and
 * engines make what they need, nor one that is audited or that some rank dumps (all ranks decide
 * alike: recording can be a matter between them), and none after a recording has failed. set may be
 * NULL. */
bool ls_graph_takes(const ls_graph_set *set, int64_t step);
/* Launches the graph of that slot, recorded from `enqueue` if there is none yet. A recording that
 * fails on one rank is no rank's (NCCL, "Using NCCL with CUDA Graphs": whether an operation is
 * captured must be uniform over all ranks). With --cuda-graph on that is the end. Else *why, which
 * is NULL otherwise, says what happened: then nothing of the step has been enqueued, the caller
 * enqueues it piece by piece, and no further step is taken. Errors that the device or the engine
 * stay in end the run in any case. */
ls_status ls_graph_step(ls_graph_set *set, int64_t step, int slot,
                        ls_status (*enqueue)(void *context), void *context, const char **why);

#endif
