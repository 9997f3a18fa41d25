/* How samples are distributed. All arrays of a step are ordered by micro-step, within it by rank,
 * within that by sample; ranks may have batches of different sizes. A chunk is one rank's
 * micro-step, number micro * world + rank. */
#ifndef LS_ORACLE_SHARDS_H
#define LS_ORACLE_SHARDS_H

#include <stdint.h>

typedef struct ls_shards {
    int world, accumulate; /* W ranks, A micro-steps */
    const int *batch;      /* [world] samples of each rank's micro-step; borrowed */
} ls_shards;

static inline int ls_shards_chunks(const ls_shards *shards)
{
    return shards->world * shards->accumulate;
}

/* Samples of ranks first .. first+count-1 in one micro-step. */
static inline int64_t ls_shards_batches(const ls_shards *shards, int first, int count)
{
    int64_t samples = 0;
    for (int rank = first; rank < first + count; rank++) {
        samples += shards->batch[rank];
    }
    return samples;
}

/* Samples of all ranks and micro-steps. */
static inline int64_t ls_shards_samples(const ls_shards *shards)
{
    return shards->accumulate * ls_shards_batches(shards, 0, shards->world);
}

/* A rank's samples over all micro-steps. */
static inline int64_t ls_shards_images(const ls_shards *shards, int rank)
{
    return (int64_t)shards->accumulate * shards->batch[rank];
}

/* First sample of a chunk; for the chunk after the last, the number of samples. */
static inline int64_t ls_shards_first(const ls_shards *shards, int chunk)
{
    return chunk / shards->world * ls_shards_batches(shards, 0, shards->world) +
           ls_shards_batches(shards, 0, chunk % shards->world);
}

/* Samples of `count` consecutive chunks of one micro-step. */
static inline int64_t ls_shards_count(const ls_shards *shards, int chunk, int count)
{
    return ls_shards_batches(shards, chunk % shards->world, count);
}

static inline int ls_shards_chunk_of(const ls_shards *shards, int64_t sample)
{
    int chunk = 0;
    while (ls_shards_first(shards, chunk + 1) <= sample) {
        chunk++;
    }
    return chunk;
}

#endif
