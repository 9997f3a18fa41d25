/* Learnable synthetic images, a cheap pure function of (seed, index). */
#ifndef LS_DATASET_SYNTHETIC_H
#define LS_DATASET_SYNTHETIC_H

#include "dataset.h"

/* Image i of rank r in micro-batch m of step s has index ((s-1) A + m) W b + r b + i: rank-major,
 * so that the concatenated batches of W ranks equal the batch of one process with W b images, or W
 * micro-batches of b. */
ls_status ls_dataset_synthetic_open(const ls_loader_options *options, ls_dataset **out);
/* One image [3,size,size] and its class, 0 .. classes-1; waves: scratch of 2 * size floats. */
void ls_dataset_synthetic_image(uint64_t seed, int64_t index, int classes, int size, float *waves,
                                float *input, int64_t *target);

#endif
