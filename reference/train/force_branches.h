/* --force-branches: the first step takes the ReLU and max-pool decisions of another run's dump, so
 * that two precisions can be compared without the branches that rounding turns (numerics.md section
 * 4). Micro-step m of rank k follows rank k*A+m of that run, A being --accumulate. */
#ifndef LS_FORCE_BRANCHES_H
#define LS_FORCE_BRANCHES_H

#include "trainer.h"

/* Before the forward of a micro-step: forces every branch at step 1, lets go of them after it.
 * Nothing without --force-branches. LS_ERR_USAGE where the dump lacks a branch, or has one of
 * another size. */
ls_status ls_force_branches_micro_step(const ls_trainer *trainer, int64_t step, int micro_step);

#endif
