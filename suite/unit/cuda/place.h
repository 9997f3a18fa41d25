/* Test helper: guarded pieces of device memory, written and read as doubles. */
#ifndef LS_UNIT_CUDA_PLACE_H
#define LS_UNIT_CUDA_PLACE_H

#include <check.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/half.h"
#include "kernels/core/rng.h"
#include "kernels/core/tensor.h"

/* For checks of every element: ck_assert writes to a file even if the condition holds. */
#define PLACE_CHECK(condition, ...)    \
    do {                               \
        if (!(condition)) {            \
            ck_abort_msg(__VA_ARGS__); \
        }                              \
    } while (0)

enum { PLACE_GUARD = 256, PLACE_POISON = 0xA5 };

typedef struct place {
    unsigned char *memory; /* PLACE_GUARD bytes, then the data, then PLACE_GUARD bytes */
    void *data;
    ls_dtype type;
    int64_t count;
    size_t bytes;
} place;

/* A stream of each test: RUN_TESTS(.before, .after). */
static cudaStream_t place_stream;

static inline void place_set_up(void)
{
    ck_assert_int_eq(cudaStreamCreateWithFlags(&place_stream, cudaStreamNonBlocking), cudaSuccess);
}

static inline void place_tear_down(void)
{
    cudaStreamDestroy(place_stream);
}

/* `off`: elements by which the data is shifted from its alignment of 256 bytes. Completely
 * poisoned. */
static inline place place_make_off(ls_dtype type, int64_t count, int off)
{
    place p = {.type = type, .count = count, .bytes = (size_t)count * ls_dtype_bytes(type)};
    size_t moved = (size_t)off * ls_dtype_bytes(type);
    void *memory = NULL;
    ck_assert_int_eq(cudaMalloc(&memory, p.bytes + moved + (size_t)(2 * PLACE_GUARD)), cudaSuccess);
    ck_assert_int_eq(cudaMemset(memory, PLACE_POISON, p.bytes + moved + (size_t)(2 * PLACE_GUARD)),
                     cudaSuccess);
    p.memory = memory;
    p.data = p.memory + PLACE_GUARD + moved;
    return p;
}

static inline place place_make(ls_dtype type, int64_t count)
{
    return place_make_off(type, count, 0);
}

/* Frees it; the guards must be intact. */
static inline void place_free(place *p)
{
    unsigned char guard[2 * PLACE_GUARD];
    size_t before = (size_t)((unsigned char *)p->data - p->memory);
    ck_assert_uint_le(before, sizeof guard);
    ck_assert_int_eq(cudaMemcpy(guard, p->memory, before, cudaMemcpyDeviceToHost), cudaSuccess);
    for (size_t i = 0; i < before; i++) {
        PLACE_CHECK(guard[i] == PLACE_POISON, "byte %zu before the data was written", i);
    }
    ck_assert_int_eq(cudaMemcpy(guard, (unsigned char *)p->data + p->bytes, (size_t)PLACE_GUARD,
                                cudaMemcpyDeviceToHost),
                     cudaSuccess);
    for (size_t i = 0; i < (size_t)PLACE_GUARD; i++) {
        PLACE_CHECK(guard[i] == PLACE_POISON, "byte %zu after the data was written", i);
    }
    cudaFree(p->memory);
    *p = (place){0};
}

static inline void place_put(const place *p, const void *bytes)
{
    if (p->bytes > 0) {
        ck_assert_int_eq(cudaMemcpy(p->data, bytes, p->bytes, cudaMemcpyHostToDevice), cudaSuccess);
    }
}

/* Copies the bytes after all work on `stream`. */
static inline void place_get(const place *p, void *bytes)
{
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
    if (p->bytes > 0) {
        ck_assert_int_eq(cudaMemcpy(bytes, p->data, p->bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    }
}

static inline double place_rounded(ls_dtype type, double value)
{
    float f = (float)value;
    return type == LS_F16    ? (double)ls_half_fp16_to_f32(ls_half_f32_to_fp16(f))
           : type == LS_BF16 ? (double)ls_half_bf16_to_f32(ls_half_f32_to_bf16(f))
                             : (double)f;
}

/* Rounds the doubles in place and stores them. */
static inline void place_fill(const place *p, double *value)
{
    unsigned char *bytes = malloc(p->bytes + 1);
    ck_assert_ptr_nonnull(bytes);
    for (int64_t i = 0; i < p->count; i++) {
        value[i] = place_rounded(p->type, value[i]);
        float f = (float)value[i];
        uint16_t half = p->type == LS_F16 ? ls_half_f32_to_fp16(f) : ls_half_f32_to_bf16(f);
        memcpy(bytes + (size_t)i * ls_dtype_bytes(p->type),
               p->type == LS_F32 ? (void *)&f : (void *)&half, ls_dtype_bytes(p->type));
    }
    place_put(p, bytes);
    free(bytes);
}

/* The caller frees the result. */
static inline double *place_read(const place *p)
{
    unsigned char *bytes = malloc(p->bytes + 1);
    double *value = malloc(((size_t)p->count + 1) * sizeof *value);
    ck_assert(bytes != NULL && value != NULL);
    place_get(p, bytes);
    for (int64_t i = 0; i < p->count; i++) {
        const unsigned char *at = bytes + (size_t)i * ls_dtype_bytes(p->type);
        float f;
        uint16_t half;
        if (p->type == LS_F32) {
            memcpy(&f, at, sizeof f);
        } else {
            memcpy(&half, at, sizeof half);
            f = p->type == LS_F16 ? ls_half_fp16_to_f32(half) : ls_half_bf16_to_f32(half);
        }
        value[i] = (double)f;
    }
    free(bytes);
    return value;
}

/* value[count] = mean + deviation * normal; the caller frees it. */
static inline double *place_normal(uint64_t stream, int64_t count, double mean, double deviation)
{
    double *value = malloc(((size_t)count + 1) * sizeof *value);
    ck_assert_ptr_nonnull(value);
    for (int64_t i = 0; i < count; i++) {
        value[i] = mean + deviation * (double)ls_rng_normal(7, stream, (uint64_t)i);
    }
    return value;
}

static inline ls_tensor place_tensor(const place *p)
{
    return (ls_tensor){p->data, p->type, p->count};
}

/* NaN equals NaN, else the same value. */
static inline bool place_same(double a, double b)
{
    return (isnan(a) && isnan(b)) || a == b;
}

#endif
