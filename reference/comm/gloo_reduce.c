/* to[i] = to[i] combined with from[i] for the Gloo engine, as comm.h defines the operators. */
#include "comm.h"

#include <math.h>
#include <string.h>
#include <stdbool.h>

#include "kernels/core/half.h"
#include "kernels/core/plant.h"
#include "kernels/core/status.h"

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

static inline float sum_f32(float a, float b)
{
    return LS_PLANT(half_sum_saturates, a + b, fmaxf(fminf(a + b, 65504.0f), -65504.0f));
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
/* unsigned: what leaves the type wraps, as every engine's does, instead of being undefined */
DEFINE_LOOP(product_of_i64, uint64_t, (a) * (b))
DEFINE_LOOP(product_of_i32, uint32_t, (a) * (b))
DEFINE_LOOP(product_of_u8, uint8_t, (a) * (b))

DEFINE_LOOP(sum_of_f32, float, a + b)
DEFINE_LOOP(sum_of_f16, uint16_t, FP16(sum_f32))
DEFINE_LOOP(sum_of_bf16, uint16_t, BF16(sum_f32))
DEFINE_LOOP(sum_of_f64, double, a + b)
DEFINE_LOOP(sum_of_i64, uint64_t, a + b)
DEFINE_LOOP(sum_of_i32, uint32_t, a + b)
DEFINE_LOOP(sum_of_u8, uint8_t, a + b)

#if defined(__x86_64__)
#include <immintrin.h>

enum { LANES = 8 };

/* Both return the number of elements done, a multiple of LANES. */
__attribute__((target("avx2,f16c"))) static int64_t add_f16_lanes(char *to, const char *from,
                                                                  int64_t count)
{
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(to + i * 2)));
        __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i * 2)));
        __m128i sum = _mm256_cvtps_ph(_mm256_add_ps(a, b), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(to + i * 2), sum);
    }
    return i;
}

__attribute__((target("avx2"))) static int64_t add_bf16_lanes(char *to, const char *from,
                                                              int64_t count)
{
    const __m256i below_half = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1);
    const __m256i quiet = _mm256_set1_epi32(0x0040);
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        __m128i a16 = _mm_loadu_si128((const __m128i *)(to + i * 2));
        __m128i b16 = _mm_loadu_si128((const __m128i *)(from + i * 2));
        __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(a16), 16));
        __m256 b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(b16), 16));
        __m256 sum = _mm256_add_ps(a, b);
        __m256i bits = _mm256_castps_si256(sum);
        /* nearest even: add half a unit less one, and one more where the kept part is odd */
        __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
        __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(below_half, odd));
        __m256i high = _mm256_srli_epi32(rounded, 16);
        __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(sum, sum, _CMP_UNORD_Q));
        __m256i kept = _mm256_or_si256(_mm256_srli_epi32(bits, 16), quiet);
        high = _mm256_blendv_epi8(high, kept, nan);
        __m128i packed =
            _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
        _mm_storeu_si128((__m128i *)(to + i * 2), packed);
    }
    return i;
}

static int64_t add_half_lanes(ls_dtype dtype, char *to, const char *from, int64_t count)
{
    if (LS_PLANT(half_sum_saturates, false, true) || !__builtin_cpu_supports("avx2") ||
        !__builtin_cpu_supports("f16c")) {
        return 0;
    }
    return dtype == LS_F16 ? add_f16_lanes(to, from, count) : add_bf16_lanes(to, from, count);
}
#else
static int64_t add_half_lanes(ls_dtype dtype, char *to, const char *from, int64_t count)
{
    (void)dtype;
    (void)to;
    (void)from;
    (void)count;
    return 0;
}
#endif

typedef void loop(char *restrict to, const char *restrict from, int64_t count);

#define TYPES(name)                                                                              \
    {                                                                                            \
        [LS_F32] = name##_f32, [LS_F16] = name##_f16, [LS_BF16] = name##_bf16,                   \
        [LS_F64] = name##_f64, [LS_I64] = name##_i64, [LS_I32] = name##_i32, [LS_U8] = name##_u8 \
    }

void ls_gloo_reduce(ls_comm_redop redop, ls_dtype dtype, void *to, const void *from, int64_t count)
{
    static loop *const loops[][LS_U8 + 1] = {[LS_COMM_SUM] = TYPES(sum_of),
                                             [LS_COMM_MAX] = TYPES(max),
                                             [LS_COMM_MIN] = TYPES(min),
                                             [LS_COMM_PROD] = TYPES(product_of)};
    LS_ASSERT((size_t)redop < sizeof loops / sizeof *loops && dtype <= LS_U8);
    bool half = dtype == LS_F16 || dtype == LS_BF16;
    int64_t done = redop == LS_COMM_SUM && half ? add_half_lanes(dtype, to, from, count) : 0;
    loops[redop][dtype]((char *)to + done * 2, (const char *)from + done * 2, count - done);
}

void ls_gloo_scale(void *to_, float factor, int64_t count)
{
    char *to = to_;
    for (int64_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, to + i * 4, sizeof value);
        value *= factor;
        memcpy(to + i * 4, &value, sizeof value);
    }
}
