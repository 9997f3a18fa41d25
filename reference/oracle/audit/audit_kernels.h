/* Shared by the audit's kernels: stored values as doubles, types and their ulps, the draw, and the
 * bound of a sum. */
#ifndef LS_ORACLE_AUDIT_KERNELS_H
#define LS_ORACLE_AUDIT_KERNELS_H

#include "launch.h"

#include <math.h>
#include <string.h>

#include "audit.h"

#define LS_AUDIT_U 5.9604644775390625e-8     /* 2^-24: half an ulp of f32, relative */
#define LS_AUDIT_TINY 1.1754943508222875e-38 /* 2^-126: below it results lose digits or are 0 */

/* ---- stored values --------------------------------------------------------------------------- */

/* 2^exponent, -1022 <= exponent <= 1023. */
LS_DEVICE double audit_power(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Of a double: floor(log2 |value|); below -1022 or above 1023 for 0, subnormal and not finite. */
LS_DEVICE int audit_exponent(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (int)(bits >> 52 & 2047) - 1023;
}

LS_DEVICE double audit_f16(uint16_t bits)
{
#ifdef __CUDA_ARCH__
    float narrow;
    asm("cvt.f32.f16 %0, %1;" : "=f"(narrow) : "h"(bits));
    return (double)narrow;
#else
    /* the bits become the top of a double, whose exponent is then 1008 too small */
    uint64_t moved = (uint64_t)(bits & 0x8000) << 48 | (uint64_t)(bits & 0x7fff) << 42;
    double value;
    memcpy(&value, &moved, sizeof value);
    if ((bits & 0x7c00) == 0x7c00) {
        return (bits & 1023) != 0 ? (double)NAN : copysign((double)INFINITY, value);
    }
    return value * audit_power(1008);
#endif
}

LS_DEVICE double audit_bf16(uint16_t bits)
{
    uint32_t whole = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &whole, sizeof value);
    return (double)value;
}

LS_DEVICE double audit_value(const void *data, ls_audit_type type, int64_t index)
{
    switch (type) {
    case LS_AUDIT_F32:
        return (double)((const float *)data)[index];
    case LS_AUDIT_F16:
        return audit_f16(((const uint16_t *)data)[index]);
    case LS_AUDIT_BF16:
        return audit_bf16(((const uint16_t *)data)[index]);
    default:
        return (double)((const uint8_t *)data)[index];
    }
}

/* Whether the ReLU of an operation passes element i on: as its mask, its forced decisions or the
 * stored output says. */
LS_DEVICE bool audit_open(const ls_audit_op &op, int64_t i)
{
    if (op.mask != NULL) {
        return (op.mask[i >> 5] >> (i & 31) & 1u) != 0;
    }
    return !op.relu || (op.given ? op.tap[i] != 0 : audit_value(op.y, op.type, i) > 0);
}

/* ---- positions: [N][C/block][pixels][block] -------------------------------------------------- */

/* The first pixel of an image's channel; the next is `block` further. */
LS_DEVICE int64_t audit_plane(int channels, int block, int64_t pixels, int64_t n, int c)
{
    return (n * channels + (c - c % block)) * pixels + c % block;
}

LS_DEVICE int audit_channel(int channels, int block, int64_t pixels, int64_t index)
{
    return (int)(index / (pixels * block) % (channels / block)) * block + (int)(index % block);
}

typedef struct audit_position {
    int64_t n;
    int y, x, c;
} audit_position;

LS_DEVICE audit_position audit_position_of(int64_t index, int height, int width, int channels,
                                           int block)
{
    int64_t pixels = (int64_t)height * width, pixel = index / block % pixels;
    audit_position p;
    p.c = audit_channel(channels, block, pixels, index);
    p.x = (int)(pixel % width);
    p.y = (int)(pixel / width);
    p.n = index / (pixels * channels);
    return p;
}

LS_DEVICE int64_t audit_in_index(const ls_audit_op &op, int64_t n, int y, int x, int c)
{
    int64_t pixels = (int64_t)op.in_height * op.in_width;
    return audit_plane(op.in_channels, op.in_block, pixels, n, c) +
           ((int64_t)y * op.in_width + x) * op.in_block;
}

LS_DEVICE int64_t audit_out_index(const ls_audit_op &op, int64_t n, int y, int x, int c)
{
    int64_t pixels = (int64_t)op.out_height * op.out_width;
    return audit_plane(op.out_channels, op.out_block, pixels, n, c) +
           ((int64_t)y * op.out_width + x) * op.out_block;
}

/* ---- types ----------------------------------------------------------------------------------- */

/* The distance between neighbouring values there; 0 for U8, which is exact. */
LS_DEVICE double audit_ulp(ls_audit_type type, double value)
{
    int bits = type == LS_AUDIT_F32 ? 23 : type == LS_AUDIT_F16 ? 10 : 7;
    int lowest = type == LS_AUDIT_F16 ? -14 : -126;
    int exponent = audit_exponent(value);
    bool below = exponent < lowest || exponent > 1023;
    return type == LS_AUDIT_U8 ? 0 : audit_power((below ? lowest : exponent) - bits);
}

/* The smallest magnitude that rounds to infinity. */
LS_DEVICE double audit_overflow(ls_audit_type type)
{
    return type == LS_AUDIT_F16   ? 65520.0
           : type == LS_AUDIT_F32 ? 3.4028235677973366e38
                                  : 3.3961775292304957e38;
}

/* The f32 value after storing: to nearest, ties to even. */
LS_DEVICE double audit_round(ls_audit_type type, double value)
{
    if (type == LS_AUDIT_F32 || !isfinite(value)) {
        return value;
    }
    /* so large that doubles next to it are an ulp of `type` apart */
    double large = copysign(audit_ulp(type, value) * 6755399441055744.0 /* 1.5 * 2^52 */, value);
    double rounded = (value + large) - large;
    return fabs(value) >= audit_overflow(type) ? copysign((double)INFINITY, value) : rounded;
}

/* ---- the draw -------------------------------------------------------------------------------- */

/* SplitMix64's finisher. */
LS_DEVICE uint64_t audit_mix(uint64_t z)
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Element number i of LS_AUDIT_SAMPLES out of `total`, alone (run 1) or in runs. */
LS_DEVICE int64_t audit_index(ls_audit_draw draw, int output, int i, int64_t total, int run)
{
    if (total <= LS_AUDIT_SAMPLES) {
        return i < total ? i : -1;
    }
    if (i < LS_AUDIT_EDGE) {
        return i;
    }
    if (i < 2 * LS_AUDIT_EDGE) {
        return total - 2 * LS_AUDIT_EDGE + i;
    }
    uint64_t key = audit_mix(draw.seed) ^ audit_mix(draw.number << 8 | (unsigned)output);
    uint64_t drawn = audit_mix(key + (uint64_t)(i / run));
    return (int64_t)(drawn % (uint64_t)(total - run + 1)) + i % run;
}

/* ---- sums ------------------------------------------------------------------------------------ */

typedef struct audit_sum {
    double sum, square, size; /* sums of terms, of their squares, of their magnitudes */
    double loose; /* by how much operands that the operation computes itself may move the sum */
} audit_sum;

LS_DEVICE void audit_add(audit_sum *to, double term)
{
    to->sum += term;
    to->square += term * term;
    to->size += fabs(term);
}

/* The bound for n terms added in f32 in any order; see audit.h. `truncates`: on a tensor core. */
LS_DEVICE double audit_bound(double n, audit_sum s, bool truncates)
{
    double walk = fabs(s.sum) + 4 * sqrt(s.square);
    double likely = (16 * sqrt(n) + (truncates ? n / 4 : 0)) * LS_AUDIT_U * walk;
    double worst = 2 * n * LS_AUDIT_U * s.size;
    return (likely < worst ? likely : worst) + n * LS_AUDIT_TINY;
}

/* ---- memory between before and after --------------------------------------------------------- */

typedef struct audit_room {
    ls_audit_sample *sample; /* [LS_AUDIT_OUTPUTS][LS_AUDIT_SAMPLES] */
    double *channel;         /* [AUDIT_CHANNEL_LISTS][channels] */
    double *partial;         /* [AUDIT_PARTIAL] */
    double *gathered;        /* [group][AUDIT_CHANNEL_LISTS][channels] */
} audit_room;

enum {
    AUDIT_CHANNEL_LISTS = 6,
    AUDIT_PARTIAL = 1 << 20, /* doubles */
};

/* Whether the summed gradient can be checked afterwards: dx may overwrite it. */
static inline bool audit_keeps_joined(const ls_audit_op *op)
{
    return op->g != NULL && op->g != op->dx && op->g != op->dx2;
}

/* audit_products.cu, audit_norm.cu, audit_simple.cu: `before` for their kinds. */
ls_status ls_audit_products(audit_stream stream, const ls_audit_op *op, ls_audit_draw draw,
                            const audit_room *room);
ls_status ls_audit_norms(audit_stream stream, const ls_audit_op *op, ls_audit_draw draw,
                         const audit_room *room);
/* `outputs` outputs of `total` elements each. */
ls_status ls_audit_simple(audit_stream stream, const ls_audit_op *op, ls_audit_draw draw,
                          int outputs, int64_t total, const audit_room *room);
ls_status ls_audit_steps(audit_stream stream, const ls_audit_op *op, ls_audit_draw draw,
                         const audit_room *room);
ls_status ls_audit_pick(void *stream, ls_audit_tensor tensor, ls_audit_draw draw, double *mine,
                        ls_audit_sample *sample);
ls_status ls_audit_total(audit_stream stream, ls_audit_tensor tensor, const double *all, int world,
                         double before, double behind, ls_audit_sample *sample);

#endif
