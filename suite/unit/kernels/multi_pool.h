/* Tensors for tests of the multi-tensor operations: many sizes and alignments in one poisoned and
 * guarded block. */
#ifndef LS_MULTI_POOL_H
#define LS_MULTI_POOL_H

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/rng.h"
#include "kernels/cpu/multi/multi_variant.h"
#include "kernels/entries.h"
#include "kernels/math/scaler.h"

enum { GUARD = 64, LARGE = 1000003 };

static const int64_t SIZES[] = {17, 0, 1, 7, 8, 15, 16, 64, LARGE, 3, 511, 512, 513};
enum { TENSORS = sizeof SIZES / sizeof SIZES[0] };

/* A list of tensors in one poisoned block: GUARD bytes before and after each, data one element off
 * alignment for every second tensor. */
typedef struct pool {
    unsigned char *block, *used; /* used: 1 where a tensor's byte is */
    size_t bytes;
    ls_tensor tensor[TENSORS];
} pool;

static inline size_t element_bytes(ls_dtype type)
{
    return type == LS_F32 ? 4 : 2;
}

static inline pool pool_make(ls_dtype type, int64_t largest)
{
    pool p = {0};
    size_t each = element_bytes(type);
    for (int i = 0; i < TENSORS; i++) {
        p.bytes += 2 * GUARD + (size_t)SIZES[i] * each + 64;
    }
    p.block = aligned_alloc(64, (p.bytes + 63) / 64 * 64);
    p.used = calloc(p.bytes, 1);
    ck_assert(p.block != NULL && p.used != NULL);
    memset(p.block, 0xA5, p.bytes);
    size_t at = 0;
    for (int i = 0; i < TENSORS; i++) {
        int64_t count = SIZES[i] < largest ? SIZES[i] : largest;
        at = (at + GUARD + 63) / 64 * 64 + (i % 2 != 0 ? each : 0);
        p.tensor[i] = (ls_tensor){p.block + at, type, count};
        memset(p.used + at, 1, (size_t)count * each);
        at += (size_t)count * each;
    }
    ck_assert_uint_le(at + GUARD, p.bytes);
    return p;
}

static inline void pool_free(pool *p)
{
    free(p->block);
    free(p->used);
}

static inline void pool_check_guards(const pool *p)
{
    for (size_t i = 0; i < p->bytes; i++) {
        if (p->used[i] == 0 && p->block[i] != 0xA5) {
            ck_abort_msg("a byte outside every tensor was written, offset %zu", i);
        }
    }
}

static inline ls_tensor_list pool_list(const pool *p)
{
    return (ls_tensor_list){TENSORS, p->tensor};
}

static inline void set(ls_tensor tensor, int64_t i, float value)
{
    if (tensor.dtype == LS_F32) {
        ((float *)tensor.data)[i] = value;
    } else {
        ((uint16_t *)tensor.data)[i] =
            tensor.dtype == LS_F16 ? ls_half_f32_to_fp16(value) : ls_half_f32_to_bf16(value);
    }
}

static inline float get(ls_tensor tensor, int64_t i)
{
    if (tensor.dtype == LS_F32) {
        return ((const float *)tensor.data)[i];
    }
    uint16_t half = ((const uint16_t *)tensor.data)[i];
    return tensor.dtype == LS_F16 ? ls_half_fp16_to_f32(half) : ls_half_bf16_to_f32(half);
}

/* Values over many binades, subnormals of every type among them. */
static inline void pool_fill(pool *p, uint64_t stream, float scale)
{
    for (int t = 0; t < TENSORS; t++) {
        for (int64_t i = 0; i < p->tensor[t].count; i++) {
            ls_rng_block block = ls_rng_philox(5, stream + (uint64_t)t, (uint64_t)i);
            float value = (float)(int32_t)block.word[0] * 4.656612873e-10f * scale;
            set(p->tensor[t], i, ldexpf(value, -(int)(block.word[1] % 30)));
        }
    }
}

static const ls_multi_variant *variant_at(int i)
{
    static const ls_isa isa[] = {LS_ISA_PLAIN, LS_ISA_AVX2, LS_ISA_AVX512};
    return ls_multi_choose(isa[i]);
}

static inline ls_step_state fresh_state(float scale, float lr)
{
    return (ls_step_state){.loss_scale = scale,
                           .inv_loss_scale = ls_scaler_inverse(scale),
                           .lr = lr,
                           .first_bad_grad = -1,
                           .first_bad_state = -1};
}

/* A backend for one call with that variant and so many threads. */
static inline ls_backend *at_work(const ls_multi_variant *variant, int threads)
{
    static ls_backend backend;
    backend = (ls_backend){.threads = threads, .multi = variant};
    return &backend;
}

#endif
