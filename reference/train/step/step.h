/* One training step, enqueued (numerics.md section 2). Launched as a graph, nothing waits inside
 * it; enqueued piece by piece, the host stays at most a forward ahead of the device. */
#ifndef LS_STEP_H
#define LS_STEP_H

#include "reference/train/audit/audit.h"
#include "reference/train/audit/dump.h"
#include "reference/train/fault.h"
#include "reference/train/feed.h"
#include "reference/train/step_record.h"
#include "reference/train/trainer.h"

/* A step as a graph: the device's work from forward to the scaler's update is recorded once and
 * then launched whole. There is one graph per batch slot, because a graph reads from fixed
 * addresses. */

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

typedef struct ls_step {
    ls_trainer *trainer;
    ls_step_history *history;
    ls_feed *feed;
    ls_audit *audit;      /* NULL: nothing is audited */
    ls_graph_set *graphs; /* NULL: every step is enqueued piece by piece */
    /* of the step that is being enqueued */
    ls_step_record *record;
    int micro;     /* micro-step */
    bool recorded; /* into a graph */
    ls_feed_batch batch;
    ls_step_observers observers;
    ls_fault fault;
    ls_dump *dump; /* NULL: none; the caller finishes it */
} ls_step;

/* Everything of step `number`, up to the copy of its state to the host. `ticks`: of the learning
 * rate's schedule before it. */
ls_status ls_step_enqueue(ls_step *step, int64_t number, int64_t ticks);

/* The training loop: one step after the other, and the report of each. */

typedef struct ls_step_summary {
    int64_t last;    /* the last step done */
    int64_t skipped; /* how many steps of this process changed nothing */
    int signal;      /* that ended the run before its last step; 0: none */
} ls_step_summary;

/* From trainer->first_step to trainer->last_step. LS_ERR_NON_FINITE, LS_ERR_PEER_LOST and the like
 * end it; *summary is valid in any case. */
ls_status ls_step_run(ls_trainer *trainer, ls_step_summary *summary);
/* --evaluate: one validation and its report, no step. */
ls_status ls_step_validate(ls_trainer *trainer);

/* A rank's start and end, in phases: options and place, device and network, peers, memory and plan,
 * values of the first step, data. Each phase opens a part of ls_trainer. */

/* Options, environment, and what follows from both; the event file where there is a run directory.
 * LS_ERR_UNSUPPORTED has been written as an event. */
ls_status ls_setup_read(int argc, char **argv, ls_trainer *trainer);
/* The network and the device that computes it. */
ls_status ls_setup_device(ls_trainer *trainer);
/* Everything that lives as long as the run, sized and allocated; the plan, bound. After
 * ls_join_open. */
ls_status ls_setup_memory(ls_trainer *trainer);
/* Values: made from the seed, read from --init or --resume; rank 0's for all; masters. */
ls_status ls_setup_values(ls_trainer *trainer);
/* The loaders, where the run stops, the start event. */
ls_status ls_setup_data(ls_trainer *trainer);
/* A second model of an example, after ls_setup_data: network, memory, reducer, plan and initial
 * values of its own; ls_setup_close closes it, too. */
ls_status ls_setup_further(ls_trainer *trainer, const char *name, const char *arch,
                           ls_trainer **out);
/* In reverse, also after a phase that failed. */
void ls_setup_close(ls_trainer *trainer, bool failed);

/* Binds the plan to its tensors; again whenever a new bucket layout has moved the gradients.
 */
ls_status ls_setup_bind(ls_trainer *trainer);
/* Writes the event of a refused option or value and returns LS_ERR_UNSUPPORTED. */
ls_status ls_setup_unsupported(ls_trainer *trainer, const char *option, const char *why);
/* The tensors of that kind on rank `root`, to all ranks. */
ls_status ls_setup_broadcast(ls_trainer *trainer, ls_memory_kind kind, int root);

/* --aux-head STEP[:RANK],...: an auxiliary classifier aux.fc [classes, classes] on the logits, cut
 * off from the network below it, with a cross entropy of its own; used in the steps and on the
 * ranks named, elsewhere its parameters are unused. The trunk's gradients do not know of it. */

/* Appends aux.fc.weight and aux.fc.bias to the network's parameters; no layer has them. */
void ls_aux_head_extend(ls_network *network);
/* Whether this rank uses the head in `step`. */
bool ls_aux_head_is_used(const ls_trainer *trainer, int64_t step);
/* After a forward: the gradients of loss * S * factor of the head into memory->grad, each given to
 * `ready`, bias first. */
ls_status ls_aux_head_backward(ls_trainer *trainer, const int64_t *target, float factor,
                               ls_grad_ready *ready, void *context);

/* --engines FILE: the engines of convolutions, kept from run to run, so that they are timed once
 * for a machine. The file is text, a section for each network, size, type, GPU and version of
 * cuDNN:
 *
 *     [resnet50 at 224, batch 256, fp16; NVIDIA H200; cuDNN 9.19.0]
 *     conv1: eng37_k2=5_k27=1 ...
 *
 * With --fuse the section is another one ("fp16, fused"), and a line ends with the engine of the
 * fused product, if it has been admitted: "sums=eng41_k2=1". */

/* The section for this run, rank 0's for all ranks: to be freed; NULL: no --engines, no file or no
 * such section. LS_ERR_USAGE if it is no such file. */
ls_status ls_engines_recall(ls_trainer *trainer, char **section);
/* After the plan: the engines of `section`, or with NULL those of rank 0 where they have been
 * timed or may be fused, which rank 0 adds to the file. */
ls_status ls_engines_settle(ls_trainer *trainer, const char *section);

/* --mllog: what a run logs for MLPerf, on rank 0. */

/* Opens the log; all ranks call it. LS_ERR_USAGE on every rank where rank 0 cannot write it. */
ls_status ls_mllog_run_open(ls_trainer *trainer);
/* What is trained and how, and the run's start. */
ls_status ls_mllog_run_begin(ls_trainer *trainer);
/* The epoch of `step` begins or ends there; nothing for data without epochs. */
ls_status ls_mllog_run_epoch(ls_trainer *trainer, int64_t step, bool begins);
/* A validation after `step` begins (val NULL), or has ended. */
ls_status ls_mllog_run_validated(ls_trainer *trainer, int64_t step, const ls_events_score *val);

#endif
