/* Batches for the trainer. A loader yields the batches of one rank, step by step, as NCHW images
 * and class indices; loader threads work ahead. What a batch holds depends on (seed, epoch, index)
 * and on the rank's share of the permutation, never on the number of threads. */
#ifndef LS_LOADER_H
#define LS_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "dataset.h"

typedef struct ls_loader ls_loader;

typedef struct ls_loader_batch {
    const float *input;    /* [batch,3,H,W], normalised; valid until the next ls_loader_next */
    const uint8_t *bytes;  /* in its place, where options.bytes allowed it: not normalised yet
                              (transform.h) */
    const int64_t *target; /* [batch] */
    const int64_t *index;  /* [batch] of the data set, LS_DATASET_BLACK where a picture fills up;
                              NULL  where an item is not one image */
    const bool *bad;       /* [batch] pictures that could not be read (dataset.h, skips_bad) */
    int images, bad_images;
    int64_t epoch;   /* from 0 */
    uint64_t digest; /* where the host has it no longer (`target` is NULL): ls_loader_digest of it
                      */
} ls_loader_batch;

/* LS_ERR_USAGE with path and reason for a missing or empty folder, too few or too many classes, or
 * an unreadable image (named). */
ls_status ls_loader_open(const ls_loader_options *options, ls_loader **out);
void ls_loader_close(ls_loader *loader);
/* The next micro-batch, in order. Errors of the threads surface here. */
ls_status ls_loader_next(ls_loader *loader, ls_loader_batch *out);
/* Whether batches have `bytes`. */
bool ls_loader_gives_bytes(const ls_loader *loader);
/* A batch's images as normalised f32: out[batch,3,image_size,image_size]. */
void ls_loader_floats(const ls_loader_batch *batch, int image_size, float *out);
/* Continues `digest` (XXH64) over a batch's images, image_size x image_size pixels each, and their
 * classes. Bytes count as the normalised f32 that they stand for. */
uint64_t ls_loader_digest(uint64_t digest, const ls_loader_batch *batch, int image_size);
/* Images of this rank in an epoch; 0 for endless data. */
int64_t ls_loader_images(const ls_loader *loader);
/* Pictures of the whole data set; 0 for endless data. */
int64_t ls_loader_pictures(const ls_loader *loader);
/* Steps per epoch; 0 for endless data (synthetic, batches). */
int64_t ls_loader_steps_per_epoch(const ls_loader *loader);
/* Holds the threads while the clock is stopped (digests, dumps), so that no work is done outside
 * the measured time. */
void ls_loader_pause(ls_loader *loader, bool paused);

#endif
