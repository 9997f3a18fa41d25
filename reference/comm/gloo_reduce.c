#include "gloo_reduce.h"

#include <math.h>
#include <string.h>

#include "gloo_sum.h"
#include "kernels/core/half.h"
#include "kernels/core/plant.h"

/* ---- two values ------------------------------------------------------------------------------ */

/* IEEE 754-2019 maximum and minimum. NAN has one bit pattern, so that a result does not depend on
 * which rank's NaN came first. */
#define DEFINE_EXTREMES(type, larger, smaller)                                \
    static inline type larger(type a, type b)                                 \
    {                                                                         \
        if (isnan(a) || isnan(b)) {                                           \
            return LS_PLANT(nan_lost_by_max, (type)NAN, isnan(a) ? b : a);    \
        }                                                                     \
        type most = a > b || (a == b && !signbit(a)) ? a : b;                 \
        return LS_PLANT(max_starts_at_zero, most, most < 0 ? (type)0 : most); \
    }                                                                         \
    static inline type smaller(type a, type b)                                \
    {                                                                         \
        if (isnan(a) || isnan(b)) {                                           \
            return (type)NAN;                                                 \
        }                                                                     \
        return a < b || (a == b && signbit(a)) ? a : b;                       \
    }

DEFINE_EXTREMES(float, larger_f32, smaller_f32)
DEFINE_EXTREMES(double, larger_f64, smaller_f64)

/* The product of two 16-bit values has at most 22 bits: one rounding, unless it is subnormal in f32
 * (bf16 only), where f32's comes first. */
static inline float product_f32(float a, float b)
{
    return a * b;
}

/* ---- many values ----------------------------------------------------------------------------- */

/* Elements are moved with memcpy: buffers may lie at any address. */
#define DEFINE_LOOP(name, type, result)                                           \
    static void name(char *restrict to, const char *restrict from, int64_t count) \
    {                                                                             \
        for (int64_t i = 0; i < count; i++) {                                     \
            type a, b;                                                            \
            memcpy(&a, to + i * (int64_t)sizeof a, sizeof a);                     \
            memcpy(&b, from + i * (int64_t)sizeof b, sizeof b);                   \
            a = (type)(result);                                                   \
            memcpy(to + i * (int64_t)sizeof a, &a, sizeof a);                     \
        }                                                                         \
    }
#define FP16(function) ls_half_f32_to_fp16(function(ls_half_fp16_to_f32(a), ls_half_fp16_to_f32(b)))
#define BF16(function) ls_half_f32_to_bf16(function(ls_half_bf16_to_f32(a), ls_half_bf16_to_f32(b)))
#define ABOVE(unsigned_type) \
    LS_PLANT(integers_compared_unsigned, a > b, (unsigned_type)a > (unsigned_type)b)

DEFINE_LOOP(max_f32, float, larger_f32(a, b))
DEFINE_LOOP(max_f16, uint16_t, FP16(larger_f32))
DEFINE_LOOP(max_bf16, uint16_t, BF16(larger_f32))
DEFINE_LOOP(max_f64, double, larger_f64(a, b))
DEFINE_LOOP(max_i64, int64_t, ABOVE(uint64_t) ? a : b)
DEFINE_LOOP(max_i32, int32_t, ABOVE(uint32_t) ? a : b)
DEFINE_LOOP(max_u8, uint8_t, a > b ? a : b)

DEFINE_LOOP(min_f32, float, smaller_f32(a, b))
DEFINE_LOOP(min_f16, uint16_t, FP16(smaller_f32))
DEFINE_LOOP(min_bf16, uint16_t, BF16(smaller_f32))
DEFINE_LOOP(min_f64, double, smaller_f64(a, b))
DEFINE_LOOP(min_i64, int64_t, ABOVE(uint64_t) ? b : a)
DEFINE_LOOP(min_i32, int32_t, ABOVE(uint32_t) ? b : a)
DEFINE_LOOP(min_u8, uint8_t, a > b ? b : a)

DEFINE_LOOP(product_of_f32, float, product_f32(a, b))
DEFINE_LOOP(product_of_f16, uint16_t, FP16(product_f32))
DEFINE_LOOP(product_of_bf16, uint16_t, BF16(product_f32))
DEFINE_LOOP(product_of_f64, double, (a) * (b))
/* unsigned: a product that leaves the type wraps instead of being undefined */
DEFINE_LOOP(product_of_i64, uint64_t, (a) * (b))
DEFINE_LOOP(product_of_i32, uint32_t, (a) * (b))
DEFINE_LOOP(product_of_u8, uint8_t, (a) * (b))

typedef void loop(char *restrict to, const char *restrict from, int64_t count);

#define TYPES(name)                                                                              \
    {                                                                                            \
        [LS_F32] = name##_f32, [LS_F16] = name##_f16, [LS_BF16] = name##_bf16,                   \
        [LS_F64] = name##_f64, [LS_I64] = name##_i64, [LS_I32] = name##_i32, [LS_U8] = name##_u8 \
    }

void ls_gloo_reduce(ls_comm_redop redop, ls_dtype dtype, void *to, const void *from, int64_t count)
{
    static loop *const loops[][LS_U8 + 1] = {
        [LS_COMM_MAX] = TYPES(max), [LS_COMM_MIN] = TYPES(min), [LS_COMM_PROD] = TYPES(product_of)};
    if (redop == LS_COMM_SUM) {
        ls_gloo_add(dtype, to, from, count);
        return;
    }
    LS_ASSERT((size_t)redop < sizeof loops / sizeof *loops && dtype <= LS_U8);
    loops[redop][dtype](to, from, count);
}
