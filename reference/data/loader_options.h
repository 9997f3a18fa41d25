/* The images that a loader is to yield. */
#ifndef LS_LOADER_OPTIONS_H
#define LS_LOADER_OPTIONS_H

#include <stdint.h>

#include "kernels/core/status.h"

/* The allocator for batches; `alloc` logs its failures. */
typedef struct ls_loader_memory {
    void *context;
    ls_status (*alloc)(void *context, int64_t bytes, void **out);
    void (*free)(void *context, void *memory);
} ls_loader_memory;

typedef struct ls_loader_options {
    const char *data; /* "synthetic", "batches:DIR", or a folder of class folders of JPEG files */
    int rank, world;
    int batch_size, image_size, num_classes;
    /* the largest batch of all ranks: steps per epoch and synthetic images are counted by it, so
     * that all ranks have the same number of steps; less than batch_size: batch_size */
    int largest_batch;
    int accumulate; /* micro-batches per step; `batches:` files then hold [A,N,3,H,W] */
    uint64_t seed;
    int workers;                    /* threads that load ahead; 0: the caller loads */
    int64_t first_step;             /* 1, or the first step after a resume */
    const ls_loader_memory *memory; /* copied; NULL: malloc's */
} ls_loader_options;

#endif
