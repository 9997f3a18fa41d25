/* A rank's start and end, in phases: options and place, device and network, peers, memory and plan,
 * values of the first step, data. Each phase opens a part of ls_trainer. */
#ifndef LS_SETUP_H
#define LS_SETUP_H

#include "trainer.h"

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

#endif
