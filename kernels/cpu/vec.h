/* A vector of LS_LANES floats for the instruction set that the including file was compiled for
 * (LS_VEC_AVX512, LS_VEC_AVX2, or neither: C that the compiler vectorises as it can). Names are
 * short because the loops are read as arithmetic. */
#ifndef LS_CPU_VEC_H
#define LS_CPU_VEC_H

#include <stdint.h>
#include <string.h>

#include "kernels/core/half.h"
#include "kernels/core/plant.h"

#if defined(LS_VEC_AVX512) || defined(LS_VEC_AVX2)
#include <immintrin.h>

/* In both instruction sets; VEC adds the prefix of the vectors' width to an intrinsic's name. */
#define vec_zero() VEC(setzero_ps)()
#define vec_set(x) VEC(set1_ps)(x)
#define vec_add(a, b) VEC(add_ps)(a, b)
#define vec_sub(a, b) VEC(sub_ps)(a, b)
#define vec_mul(a, b) VEC(mul_ps)(a, b)
#define vec_fma(a, b, c) VEC(fmadd_ps)(a, b, c)
/* NaN in x gives NaN, as torch's relu. */
#define vec_relu(x) VEC(max_ps)(VEC(setzero_ps)(), x)
#define vec_load_f32(p) VEC(loadu_ps)(p)
#define vec_store_f32(p, x) VEC(storeu_ps)(p, x)
#define vec_widen_f16(h) VEC(cvtph_ps)(h)
#define vec_narrow_f16(x) VEC(cvtps_ph)(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#endif

#if defined(LS_VEC_AVX512)
enum { LS_LANES = 16 };
#define VEC(intrinsic) _mm512_##intrinsic
typedef __m512 vec;
typedef __mmask16 vmask;

#define vec_positive(x) _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GT_OQ)
#define vec_keep(m, x) _mm512_maskz_mov_ps(m, x)
#define vec_equal(a, b) _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ)
/* a > b, or a is NaN. */
#define vec_beats(a, b) \
    ((__mmask16)(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) | _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q)))
#define vec_select(m, a, b) _mm512_mask_mov_ps(b, m, a)
typedef __m256i vhalf;
#define vhalf_load(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define vhalf_store(p, h) _mm256_storeu_si256((__m256i *)(void *)(p), h)

static inline vec vec_widen_bf16(vhalf h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

static inline vhalf vec_narrow_bf16(vec x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(
        _mm512_add_epi32(bits, _mm512_set1_epi32(LS_PLANT(bf16_narrow_cut, 0x7fff, 0))), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    up = _mm512_mask_mov_epi32(up, nan, _mm512_or_si512(bits, _mm512_set1_epi32(0x400000)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
}

/* Whole numbers of 0 to 255 as bytes. */
static inline void vec_store_u8(uint8_t *p, vec x)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}

static inline vec vec_load_u8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}

/* acc[LS_LANES] (double) += x. */
static inline void vec_flush(double *acc, vec x)
{
    __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    __m512d high =
        _mm512_cvtps_pd(_mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)));
    _mm512_storeu_pd(acc, _mm512_add_pd(_mm512_loadu_pd(acc), low));
    _mm512_storeu_pd(acc + 8, _mm512_add_pd(_mm512_loadu_pd(acc + 8), high));
}

#elif defined(LS_VEC_AVX2)
enum { LS_LANES = 8 };
#define VEC(intrinsic) _mm256_##intrinsic
typedef __m256 vec;
typedef __m256 vmask;

#define vec_positive(x) _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ)
#define vec_keep(m, x) _mm256_and_ps(m, x)
#define vec_equal(a, b) _mm256_cmp_ps(a, b, _CMP_EQ_OQ)
#define vec_beats(a, b) \
    _mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ), _mm256_cmp_ps(a, a, _CMP_UNORD_Q))
#define vec_select(m, a, b) _mm256_blendv_ps(b, a, m)
typedef __m128i vhalf;
#define vhalf_load(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
#define vhalf_store(p, h) _mm_storeu_si128((__m128i *)(void *)(p), h)

static inline vec vec_widen_bf16(vhalf h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline vhalf vec_narrow_bf16(vec x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(
        _mm256_add_epi32(bits, _mm256_set1_epi32(LS_PLANT(bf16_narrow_cut, 0x7fff, 0))), odd);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    up = _mm256_srli_epi32(_mm256_blendv_epi8(up, quiet, nan), 16);
    __m256i packed = _mm256_packus_epi32(up, up); /* within each half of the register */
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
}

static inline void vec_store_u8(uint8_t *p, vec x)
{
    __m256i words = _mm256_cvtps_epi32(x);
    __m128i half =
        _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packus_epi16(half, half));
}

static inline vec vec_load_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(
        _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

static inline void vec_flush(double *acc, vec x)
{
    __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    _mm256_storeu_pd(acc, _mm256_add_pd(_mm256_loadu_pd(acc), low));
    _mm256_storeu_pd(acc + 4, _mm256_add_pd(_mm256_loadu_pd(acc + 4), high));
}

#else
enum { LS_LANES = 4 };
typedef float vec __attribute__((vector_size(16)));
typedef int32_t vmask __attribute__((vector_size(16)));
typedef uint16_t vhalf __attribute__((vector_size(8)));

#define vec_zero() ((vec){0})
#define vec_set(x) ((vec){(x), (x), (x), (x)})
#define vec_add(a, b) ((a) + (b))
#define vec_sub(a, b) ((a) - (b))
#define vec_mul(a, b) ((a) * (b))
#define vec_fma(a, b, c) ((a) * (b) + (c))
#define vec_positive(x) ((vmask)((x) > vec_zero()))
#define vec_keep(m, x) ((vec)((vmask)(x) & (m)))
/* Not "where x > 0": a NaN stays. */
#define vec_relu(x) ((vec)((vmask)(x) & ~(vmask)((x) <= vec_zero())))

#define vec_equal(a, b) ((vmask)((a) == (b)))
#define vec_beats(a, b) ((vmask)((a) > (b)) | (vmask)((a) != (a)))
#define vec_select(m, a, b) ((vec)(((vmask)(a) & (m)) | ((vmask)(b) & ~(m))))

static inline vec vec_load_f32(const float *p)
{
    vec x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline void vec_store_f32(float *p, vec x)
{
    memcpy(p, &x, sizeof x);
}

static inline vhalf vhalf_load(const uint16_t *p)
{
    vhalf h;
    memcpy(&h, p, sizeof h);
    return h;
}

static inline void vhalf_store(uint16_t *p, vhalf h)
{
    memcpy(p, &h, sizeof h);
}

#define LS_VEC_EACH(result, function, x)          \
    for (int lane = 0; lane < LS_LANES; lane++) { \
        (result)[lane] = function((x)[lane]);     \
    }

static inline void vec_store_u8(uint8_t *p, vec x)
{
    for (int lane = 0; lane < LS_LANES; lane++) {
        p[lane] = (uint8_t)x[lane];
    }
}

static inline vec vec_load_u8(const uint8_t *p)
{
    vec x;
    for (int lane = 0; lane < LS_LANES; lane++) {
        x[lane] = (float)p[lane];
    }
    return x;
}

static inline vec vec_widen_f16(vhalf h)
{
    vec x;
    LS_VEC_EACH(x, ls_half_fp16_to_f32, h)
    return x;
}

static inline vhalf vec_narrow_f16(vec x)
{
    vhalf h;
    LS_VEC_EACH(h, ls_half_f32_to_fp16, x)
    return h;
}

static inline vec vec_widen_bf16(vhalf h)
{
    vec x;
    LS_VEC_EACH(x, ls_half_bf16_to_f32, h)
    return x;
}

static inline vhalf vec_narrow_bf16(vec x)
{
    vhalf h;
    LS_VEC_EACH(h, ls_half_f32_to_bf16, x)
    return h;
}

static inline void vec_flush(double *acc, vec x)
{
    for (int lane = 0; lane < LS_LANES; lane++) {
        acc[lane] += (double)x[lane];
    }
}
#endif

#endif
