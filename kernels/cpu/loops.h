/* The elementwise and reducing loops of a training step, each for one range or one plane: no
 * threads, no allocation. Activations are stored as "N x C/B x HW x B" (B = 1: plain NCHW; 8; 16;
 * C: channels last). Values are stored as `type`, computed in f32, rounded once when stored. */
#ifndef LS_CPU_LOOPS_H
#define LS_CPU_LOOPS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/tensor.h"

enum {
    LS_LOOPS_LANES = 16,   /* room for the widest vector code */
    LS_LOOPS_STRIP = 1024, /* room for the channels of a strip */
};

/* The values of `blocks` blocks of `block` channels of one image: channel c of pixel p is element
 * p * step + c. Either the plane is contiguous (step = block, one block) and the block divides the
 * lanes of the vector code in use, or a block is one vector (channels last) and a strip of several
 * is read pixel by pixel, as it lies in memory. */
typedef struct ls_plane {
    int64_t pixels;
    int block;
    int64_t step;
    int blocks; /* of a strip: at most LS_LOOPS_STRIP channels; the loops of norms take strips */
} ls_plane;

/* Coefficients of one block of channels, repeated over the lanes: lane l is channel l % B. */
typedef struct ls_lane_coef {
    _Alignas(64) float mean[LS_LOOPS_LANES];
    float scale[LS_LOOPS_LANES]; /* weight / standard deviation */
    float bias[LS_LOOPS_LANES];
} ls_lane_coef;

/* dx = a * g + c * (x - mean) + b. */
typedef struct ls_lane_back {
    _Alignas(64) float mean[LS_LOOPS_LANES];
    float a[LS_LOOPS_LANES], b[LS_LOOPS_LANES], c[LS_LOOPS_LANES];
} ls_lane_back;

/* Where a gradient passes the ReLU. */
typedef enum ls_gate {
    LS_GATE_NONE,   /* there is no ReLU */
    LS_GATE_INPUT,  /* where norm(x) > 0, recomputed from x */
    LS_GATE_OUTPUT, /* where the stored output is > 0 */
} ls_gate;

/* y = [relu](norm(x) [+ residual or norm(residual)]). */
typedef struct ls_norm_apply {
    const void *x, *residual; /* residual: NULL for none */
    void *y;
    const ls_lane_coef *coef;          /* [blocks], as all coefficients */
    const ls_lane_coef *residual_coef; /* NULL for a residual without a norm */
    bool relu;
} ls_norm_apply;

/* g = gate(dy + dy2), stored unless g is NULL; sums over the plane per channel of g and of g * (x -
 * mean). */
typedef struct ls_norm_sums {
    const void *dy, *dy2, *x, *y; /* dy2: NULL for one contribution; y: only for LS_GATE_OUTPUT */
    const void *x2;               /* input of a second norm fed by the same g, or NULL */
    void *g;
    const ls_lane_coef *coef, *coef2;
    ls_gate gate;
    double *sum, *sum_x, *sum_x2; /* [blocks * block] */
} ls_norm_sums;

/* dx = a * gate(g) + c * (x - mean) + b. */
typedef struct ls_norm_dx {
    const void *g, *x;
    void *dx;                 /* may be g or x */
    const ls_lane_coef *coef; /* for LS_GATE_INPUT */
    const ls_lane_back *back;
    ls_gate gate; /* LS_GATE_NONE if g is already gated, or LS_GATE_INPUT */
} ls_norm_dx;

/* One plane of a max pool. tap: kernel position kh*K+kw of the first maximum of each output. block
 * and step: as in ls_plane, on both sides. */
typedef struct ls_pool_shape {
    int in_height, in_width, out_height, out_width, kernel, stride, pad, block, step;
} ls_pool_shape;

typedef struct ls_loops {
    const char *name; /* "AVX-512" */
    int lanes;
    void (*widen)(ls_dtype type, const void *from, float *to, int64_t count);
    void (*narrow)(ls_dtype type, const float *from, void *to, int64_t count);
    /* value = f32(type(value)) in place. */
    void (*round)(ls_dtype type, float *value, int64_t count);
    /* Mean and sum of squared deviations per channel, [blocks * block], over one plane. */
    void (*norm_stats)(ls_dtype type, const void *x, const ls_plane *plane, double *mean,
                       double *m2);
    void (*norm_apply)(ls_dtype type, const ls_norm_apply *args, const ls_plane *plane);
    void (*norm_sums)(ls_dtype type, const ls_norm_sums *args, const ls_plane *plane);
    void (*norm_dx)(ls_dtype type, const ls_norm_dx *args, const ls_plane *plane);
    void (*add)(ls_dtype type, const void *a, const void *b, void *sum, bool relu, int64_t count);
    void (*relu)(ls_dtype type, const void *x, void *y, int64_t count);
    void (*relu_back)(ls_dtype type, const void *dy, const void *y, void *dx, int64_t count);
    void (*pool)(ls_dtype type, const ls_pool_shape *shape, const void *x, void *y, uint8_t *tap);
    void (*pool_back)(ls_dtype type, const ls_pool_shape *shape, const void *dy, const uint8_t *tap,
                      void *dx);
    /* y[block] = mean over the plane; dx = dy[block] / pixels. */
    void (*average)(ls_dtype type, const void *x, void *y, const ls_plane *plane);
    void (*average_back)(ls_dtype type, const void *dy, void *dx, const ls_plane *plane);
} ls_loops;

extern const ls_loops ls_loops_plain;
#if defined(__x86_64__)
extern const ls_loops ls_loops_avx2, ls_loops_avx512;
#endif

#endif
