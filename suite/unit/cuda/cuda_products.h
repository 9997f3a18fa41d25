/* A backend and tensors on it, for the tests of convolutions and linear layers; values are read and
 * written as doubles, whatever the type. */
#ifndef LS_UNIT_CUDA_PRODUCTS_H
#define LS_UNIT_CUDA_PRODUCTS_H

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/half.h"
#include "kernels/core/rng.h"
#include "kernels/cuda/conv/conv.h"

const ls_backend_api *ls_backend_entry(void);

static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};

typedef struct bench {
    const ls_backend_api *api;
    ls_backend *backend;
    ls_stream *stream;
    void *workspace;
    int64_t workspace_bytes;
} bench;

static inline bench bench_open(bool deterministic, bool tf32, bool benchmark)
{
    bench b = {.api = ls_backend_entry()};
    ls_backend_options options = {.local_ranks = 1, .deterministic = deterministic, .tf32 = tf32};
    ck_assert_int_eq(b.api->open(&options, &b.backend), LS_OK);
    b.backend->benchmark = benchmark;
    ck_assert_int_eq(b.api->stream_create(b.backend, &b.stream), LS_OK);
    return b;
}

static inline void bench_close(bench *b)
{
    b->api->memory_free(b->backend, b->workspace);
    b->api->stream_destroy(b->stream);
    b->api->close(b->backend);
}

static inline ls_conv *bench_conv(bench *b, const ls_conv_shape *shape, ls_dtype type,
                                  ls_conv_dx dx)
{
    ls_conv *conv = NULL;
    ck_assert_int_eq(ls_conv_create(b->backend, "layer1.0.conv1", shape, type, dx, &conv), LS_OK);
    return conv;
}

/* With its one convolution. */
static inline void bench_drop(bench *b, ls_conv *conv)
{
    ls_conv_destroy(conv);
    bench_close(b);
}

static inline void bench_chose(const ls_conv *conv, const char *engines)
{
    char text[1024];
    ls_conv_choice(conv, text, sizeof text);
    ck_assert_str_eq(text, engines);
}

static inline void bench_workspace(bench *b, int64_t bytes)
{
    b->api->memory_free(b->backend, b->workspace);
    b->workspace = NULL;
    b->workspace_bytes = bytes;
    if (bytes > 0) {
        ck_assert_int_eq(b->api->memory_alloc(b->backend, bytes, "workspace", &b->workspace),
                         LS_OK);
    }
}

static inline void bench_free(bench *b, void *const *memory, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        b->api->memory_free(b->backend, memory[i]);
    }
}

static inline void host_free(void *const *memory, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(memory[i]);
    }
}

/* Frees each of them. */
#define POINTERS(...) (void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *)
#define BENCH_FREE(bench, ...) bench_free(bench, POINTERS(__VA_ARGS__))
#define HOST_FREE(...) host_free(POINTERS(__VA_ARGS__))

static inline double round_to(ls_dtype type, double value)
{
    float f = (float)value;
    return type == LS_F32   ? f
           : type == LS_F16 ? ls_half_fp16_to_f32(ls_half_f32_to_fp16(f))
                            : ls_half_bf16_to_f32(ls_half_f32_to_bf16(f));
}

static inline void put(bench *b, ls_dtype type, void *to, const double *from, int64_t count)
{
    size_t unit = ls_dtype_bytes(type);
    char *host = malloc((size_t)count * unit);
    for (int64_t i = 0; i < count; i++) {
        float f = (float)from[i];
        uint16_t half = type == LS_F16 ? ls_half_f32_to_fp16(f) : ls_half_f32_to_bf16(f);
        memcpy(host + (size_t)i * unit, type == LS_F32 ? (void *)&f : (void *)&half, unit);
    }
    ck_assert_int_eq(b->api->copy_in(b->backend, b->stream, to, host, count * (int64_t)unit),
                     LS_OK);
    ck_assert_int_eq(b->api->stream_wait(b->stream), LS_OK);
    free(host);
}

/* Device memory of the type, filled with `from`, or with NaN if that is NULL. */
static inline void *tensor(bench *b, ls_dtype type, const double *from, int64_t count)
{
    void *memory = NULL;
    int64_t bytes = count * (int64_t)ls_dtype_bytes(type);
    ck_assert_int_eq(b->api->memory_alloc(b->backend, bytes, "tensor of a test", &memory), LS_OK);
    double *nan = malloc((size_t)count * sizeof *nan);
    for (int64_t i = 0; i < count; i++) {
        nan[i] = NAN;
    }
    put(b, type, memory, from ? from : nan, count);
    free(nan);
    return memory;
}

static inline double *values(bench *b, ls_dtype type, const void *from, int64_t count)
{
    size_t unit = ls_dtype_bytes(type);
    char *host = malloc((size_t)count * unit);
    double *to = malloc((size_t)count * sizeof *to);
    ck_assert_int_eq(b->api->copy_out(b->backend, b->stream, host, from, count * (int64_t)unit),
                     LS_OK);
    ck_assert_int_eq(b->api->stream_wait(b->stream), LS_OK);
    for (int64_t i = 0; i < count; i++) {
        float f = 0;
        uint16_t half = 0;
        memcpy(type == LS_F32 ? (void *)&f : (void *)&half, host + (size_t)i * unit, unit);
        to[i] = type == LS_F32   ? f
                : type == LS_F16 ? ls_half_fp16_to_f32(half)
                                 : ls_half_bf16_to_f32(half);
    }
    free(host);
    return to;
}

/* Integers of -4 to 4: sums of them are exact in f32 in any order. */
static inline double *integers(const char *name, int64_t count)
{
    double *to = malloc((size_t)count * sizeof *to);
    for (int64_t i = 0; i < count; i++) {
        to[i] = (double)ls_rng_below(7, ls_rng_stream(name), (uint64_t)i, 9) - 4;
    }
    return to;
}

static inline double *normals(const char *name, int64_t count)
{
    double *to = malloc((size_t)count * sizeof *to);
    for (int64_t i = 0; i < count; i++) {
        to[i] = ls_rng_normal(7, ls_rng_stream(name), (uint64_t)i);
    }
    return to;
}

/* Checks that `got` holds the exact sums, each rounded once. Frees `got`. */
static inline void equal(ls_dtype type, double *got, const double *sums, int64_t count,
                         const char *what)
{
    for (int64_t i = 0; i < count; i++) {
        if (got[i] != round_to(type, sums[i])) {
            ck_abort_msg("%s, %s, element %lld: %.9g instead of %.9g", what, ls_dtype_label(type),
                         (long long)i, got[i], round_to(type, sums[i]));
        }
    }
    free(got);
}

/* The exact sums of one product and its gradients; bias NULL: none. */
typedef struct sums {
    int64_t x_count, w_count, y_count, bias_count;
    double *x, *w, *bias, *dy, *y, *dx, *dw;
} sums;

/* Operands as integers, results zero. */
static inline sums sums_start(int64_t x_count, int64_t w_count, int64_t y_count, int64_t bias_count)
{
    sums t = {.x_count = x_count, .w_count = w_count, .y_count = y_count, .bias_count = bias_count};
    t.x = integers("x", x_count);
    t.w = integers("w", w_count);
    t.bias = bias_count > 0 ? integers("bias", bias_count) : NULL;
    t.dy = integers("dy", y_count);
    t.y = calloc((size_t)y_count, sizeof *t.y);
    t.dx = calloc((size_t)x_count, sizeof *t.dx);
    t.dw = calloc((size_t)w_count, sizeof *t.dw);
    return t;
}

static inline void sums_free(sums *t)
{
    double *all[] = {t->x, t->w, t->bias, t->dy, t->y, t->dx, t->dw};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(all[i]);
    }
}

/* The same on the device, results NaN. */
typedef struct tensors {
    void *x, *w, *bias, *y, *dx, *dw, *dy;
} tensors;

static inline tensors tensors_of(bench *b, ls_dtype type, const sums *t)
{
    return (tensors){.x = tensor(b, type, t->x, t->x_count),
                     .w = tensor(b, type, t->w, t->w_count),
                     .bias = t->bias != NULL ? tensor(b, type, t->bias, t->bias_count) : NULL,
                     .y = tensor(b, type, NULL, t->y_count),
                     .dx = tensor(b, type, NULL, t->x_count),
                     .dw = tensor(b, type, NULL, t->w_count),
                     .dy = tensor(b, type, t->dy, t->y_count)};
}

static inline void tensors_free(bench *b, tensors *d)
{
    void *all[] = {d->x, d->w, d->bias, d->y, d->dx, d->dw, d->dy};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        b->api->memory_free(b->backend, all[i]);
    }
}

static inline void all_equal(bench *b, ls_dtype type, const tensors *d, const sums *t)
{
    equal(type, values(b, type, d->y, t->y_count), t->y, t->y_count, "forward");
    equal(type, values(b, type, d->dx, t->x_count), t->dx, t->x_count, "backward data");
    equal(type, values(b, type, d->dw, t->w_count), t->dw, t->w_count, "backward weights");
}

#endif
