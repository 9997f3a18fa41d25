/* Random values as a pure function of (seed, stream, index): Philox4x32-10 (Salmon et al., SC
 * 2011). There is no shared generator, so the order of cases and the numbers of threads, ranks and
 * workers do not change them. The exception is torch's own generator, sequential MT19937: the
 * orders of DistributedSampler and the crops of torchvision are drawn from it, so that a PyTorch
 * script sees the same images. */
#ifndef LS_CORE_RNG_H
#define LS_CORE_RNG_H

#include <stdint.h>

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

/* torch's CPU generator: MT19937 (Matsumoto and Nishimura, 1998). */
enum { LS_RNG_TORCH_WORDS = 624 };

typedef struct ls_rng_torch {
    uint32_t word[LS_RNG_TORCH_WORDS];
    int next;
} ls_rng_torch;

/* torch.manual_seed(seed), which takes the low 32 bits. */
void ls_rng_torch_seed(ls_rng_torch *generator, uint64_t seed);
uint32_t ls_rng_torch_draw(ls_rng_torch *generator);
/* torch.empty(1).uniform_(from, to): 24 bits times the f32 of to - from, plus from, in double,
 * rounded to f32 (aten/src/ATen/core/TransformationHelper.h@uniform_real). */
float ls_rng_torch_uniform(ls_rng_torch *generator, double from, double to);
/* torch.randint(0, bound, (1,)), 0 < bound < 2^28. */
uint32_t ls_rng_torch_below(ls_rng_torch *generator, uint32_t bound);

/* torch.randperm(count) from a generator seeded with `seed` (the unit tests hold lists from torch
 * itself): writes 0..count-1 permuted into order[count]. */
void ls_rng_permutation(uint64_t seed, int64_t count, int64_t *order);

#ifdef __cplusplus
}
#endif
#endif
