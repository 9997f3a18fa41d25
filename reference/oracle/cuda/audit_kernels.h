/* Shared by the audit's kernels: stored values as doubles, types and their ulps, the draw, and the
 * bound of a sum. */
#ifndef LS_ORACLE_CUDA_AUDIT_KERNELS_H
#define LS_ORACLE_CUDA_AUDIT_KERNELS_H

#include "launch.h"

#include <math.h>
#include <string.h>

#include "audit.h"

#define LS_AUDIT_U 5.9604644775390625e-8 /* 2^-24: half an ulp of f32, relative */

/* ---- stored values --------------------------------------------------------------------------- */

LS_DEVICE double audit_f16(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent == 31  ? (fraction != 0 ? (double)NAN : (double)INFINITY)
                  : exponent == 0 ? ldexp((double)fraction, -24)
                                  : ldexp((double)(fraction + 1024), exponent - 25);
    return (bits & 0x8000) != 0 ? -size : size;
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

LS_DEVICE bool audit_open(const uint32_t *mask, int64_t index)
{
    return mask == NULL || (mask[index >> 5] >> (index & 31) & 1u) != 0;
}

/* ---- types ----------------------------------------------------------------------------------- */

/* The distance between neighbouring values there; 0 for U8, which is exact. */
LS_DEVICE double audit_ulp(ls_audit_type type, double value)
{
    int bits = type == LS_AUDIT_F32 ? 23 : type == LS_AUDIT_F16 ? 10 : 7;
    int lowest = type == LS_AUDIT_F16 ? -14 : -126;
    int exponent = value != 0 && isfinite(value) ? ilogb(value) : lowest;
    return type == LS_AUDIT_U8 ? 0 : ldexp(1.0, (exponent < lowest ? lowest : exponent) - bits);
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
    double ulp = audit_ulp(type, value), rounded = rint(value / ulp) * ulp;
    double size = fabs(value);
    return size >= audit_overflow(type) ? copysign((double)INFINITY, value) : rounded;
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
    return likely < worst ? likely : worst;
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
ls_status ls_audit_products(cudaStream_t stream, const ls_audit_op *op, ls_audit_draw draw,
                            const audit_room *room);
ls_status ls_audit_norms(cudaStream_t stream, const ls_audit_op *op, ls_audit_draw draw,
                         const audit_room *room);
/* `outputs` outputs of `total` elements each. */
ls_status ls_audit_simple(cudaStream_t stream, const ls_audit_op *op, ls_audit_draw draw,
                          int outputs, int64_t total, const audit_room *room);
/* audit_step.cu */
ls_status ls_audit_steps(cudaStream_t stream, const ls_audit_op *op, ls_audit_draw draw,
                         const audit_room *room);
ls_status ls_audit_pick(void *stream, ls_audit_tensor tensor, ls_audit_draw draw, double *mine,
                        ls_audit_sample *sample);
ls_status ls_audit_total(cudaStream_t stream, ls_audit_tensor tensor, const double *all, int world,
                         double before, double behind, ls_audit_sample *sample);

#endif
