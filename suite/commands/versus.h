/* `lockstep versus`: Lockstep's speed beside PyTorch's, on this machine, in one run. */
#ifndef LS_VERSUS_H
#define LS_VERSUS_H

#include "kernels/core/status.h"

enum { LS_VERSUS_PAIRS_MAX = 64 };

typedef struct ls_versus_options {
    int pairs;          /* runs of each, in turn, 1 to LS_VERSUS_PAIRS_MAX */
    const char *python; /* an interpreter that has torch and torchvision; "python3" */
    const char *peer;   /* suite/peers/pytorch_train.py */
    const char *parent; /* a folder <UTC time>-versus is made there for jobs, batches and table */
    const char *only;   /* NULL, or the label of the one setting to run */
} ls_versus_options;

/* Trains the same network on the same files, batch, threads and ranks with both trainers in turn
 * (the order alternates from pair to pair) and times the convolutions alone in oneDNN beside each
 * pair. Prints a row per setting: images per second of each (median of the pairs' medians), the
 * ratio with its interval, the share of the bound, peak memory of a rank, and the time from start
 * to the first finished step. Writes versus.tsv in its folder. LS_ERR_USAGE, with nothing written,
 * for a setting or an interpreter that is none; LS_ERR_CHECK when a run failed. */
ls_status ls_versus_run(const ls_versus_options *options);

#endif
