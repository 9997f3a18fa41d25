/* Batches for the trainer. A loader yields the batches of one rank, step by step, as f32 NCHW
 * images and class indices; loader threads work ahead. What a batch holds depends on (seed, epoch,
 * index) and on the rank's share of the permutation, never on the number of threads. */
#ifndef LS_LOADER_H
#define LS_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"

typedef struct ls_loader ls_loader;

/* Where batches' memory comes from; `alloc` says what is missing. */
typedef struct ls_loader_memory {
    void *context;
    ls_status (*alloc)(void *context, int64_t bytes, void **out);
    void (*free)(void *context, void *memory);
} ls_loader_memory;

typedef struct ls_loader_options {
    const char *data; /* "synthetic", "batches:DIR", or a folder of class folders of JPEG files */
    int rank, world;
    int batch_size, image_size, num_classes;
    /* the largest batch of all ranks, where they differ: steps per epoch and synthetic images are
     * counted by it, so that no rank has more steps than another; less than batch_size: batch_size
     */
    int largest_batch;
    int accumulate; /* micro-batches per step; `batches:` files then hold [A,N,3,H,W] */
    uint64_t seed;
    int workers;                    /* threads that work ahead; 0: in the caller */
    int64_t first_step;             /* 1, or where a resumed run goes on */
    const ls_loader_memory *memory; /* copied; NULL: malloc's */
} ls_loader_options;

typedef struct ls_loader_batch {
    const float *input;    /* [batch,3,H,W], normalised; valid until the next ls_loader_next */
    const int64_t *target; /* [batch] */
    int images;
    int64_t epoch; /* from 0 */
} ls_loader_batch;

/* LS_ERR_USAGE with path and reason for a missing or empty folder, too few or too many classes, or
 * an image that cannot be read (named). */
ls_status ls_loader_open(const ls_loader_options *options, ls_loader **out);
void ls_loader_close(ls_loader *loader);
/* The next micro-batch, in order. Errors of the threads surface here. */
ls_status ls_loader_next(ls_loader *loader, ls_loader_batch *out);
/* Steps per epoch (data sets), 0 where there is no end (synthetic, batches). */
int64_t ls_loader_steps_per_epoch(const ls_loader *loader);
/* Holds the threads while the clock is stopped (digests, dumps), so that no work is done off the
 * record. */
void ls_loader_pause(ls_loader *loader, bool paused);

#endif
