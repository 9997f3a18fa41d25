/* The GPUs of a run: looked at before anything is timed, watched while its jobs run, and what was
 * found decides MACHINE. */
#ifndef LS_GPUS_H
#define LS_GPUS_H

#include "runner.h"

/* Where the run's device is CUDA: the look before the jobs, on the terminal what deserves it, and
 * the watch that its jobs are given. ranks: most on this machine at a time. */
void ls_gpus_begin(ls_run *run, int ranks);
/* `lockstep preflight`: the look alone, a line per GPU and what was found. 0 ready, 1 not, 3 no
 * GPU.
 */
int ls_gpus_preflight_main(int count, char **argument);
/* Judged jobs whose bits differ become findings, with the GPU that is the odd one. */
void ls_gpus_compare_bits(ls_run *run);
/* Ends the watch; what it saw stands in run->findings. Twice is once. */
void ls_gpus_end(ls_run *run);

#endif
