/* Random values as a pure function of (seed, stream, index): Philox4x32-10 (Salmon et al., SC
 * 2011). There is no shared generator, so the order of cases and the numbers of threads, ranks and
 * workers do not change them. The exception is torch's permutation (ls_rng_permutation), which is
 * sequential MT19937 because the suite compares DistributedSampler's order. */
#ifndef LS_CORE_RNG_H
#define LS_CORE_RNG_H

#include <stdint.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ls_rng_block {
    uint32_t word[4];
} ls_rng_block;

/* Four 32-bit words for counter (stream, index) under key `seed`. */
ls_rng_block ls_rng_philox(uint64_t seed, uint64_t stream, uint64_t index);

/* Streams are named by text (a parameter's name, "crop", ...): the FNV-1a digest of the text. */
uint64_t ls_rng_stream(const char *name);

/* Uniform in [0, 1), 24 bits. */
float ls_rng_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Standard normal (Box-Muller on two words of the block). */
float ls_rng_normal(uint64_t seed, uint64_t stream, uint64_t index);
/* Uniform in 0 .. bound-1; bound > 0. */
uint32_t ls_rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint32_t bound);

/* torch.randperm(count) from a generator seeded with the low 32 bits of `seed` (MT19937; the unit
 * tests hold lists from torch itself): writes 0..count-1 permuted into order[count]. Fails only
 * without memory. */
ls_status ls_rng_permutation(uint64_t seed, int64_t count, int64_t *order);

#ifdef __cplusplus
}
#endif
#endif
