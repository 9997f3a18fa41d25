/* The GPUs of a run: checked before anything is timed and monitored while its jobs run. The
 * findings decide MACHINE. */
#ifndef LS_GPUS_H
#define LS_GPUS_H

#include "run.h"

/* On a run with device CUDA: checks the GPUs, prints the findings and opens the monitor that the
 * jobs get. ranks: the most on this machine at a time. */
void ls_gpus_begin(ls_run *run, int ranks);
/* Adds a finding, with its GPU, for each rank whose bits differ from those of the others. */
void ls_gpus_compare_bits(ls_run *run);
/* Closes the monitor; its findings are in run->findings. May be called twice. */
void ls_gpus_end(ls_run *run);

#endif
