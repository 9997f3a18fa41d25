/* The loops of one vector variant. Included by multi_plain.c, multi_avx2.c and multi_avx512.c, each of
 * which first chooses its instructions by `#pragma GCC target` and names its table in LS_MULTI_TABLE.
 *
 * Half tensors go through a scratch of f32 that stays in the first-level cache: load a block, run the
 * f32 body, store the block. f32 tensors are worked on in place. */
#include <stddef.h>

#include "multi.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

enum { BLOCK = 512 }; /* elements; five f32 scratches of it are 10 KiB */

/* The hardware conversion quiets a NaN, so the scalar one has to. */
static inline float load_fp16(uint16_t half)
{
    float value = ls_half_fp16_to_f32(half);
    return value == value ? value : ls_half_f32_of_bits(ls_half_bits_of_f32(value) | 0x400000u);
}

static void load_fp16_block(const uint16_t *from, float *to, int64_t count)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16) {
        __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)(from + i));
        _mm512_storeu_ps(to + i, _mm512_cvtph_ps(halves));
    }
#endif
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
        __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(from + i));
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
    }
#endif
    for (; i < count; i++) {
        to[i] = load_fp16(from[i]);
    }
}

static void store_fp16_block(const float *from, uint16_t *to, int64_t count)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16) {
        __m256i halves = _mm512_cvtps_ph(_mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_storeu_si256((__m256i *)(void *)(to + i), halves);
    }
#endif
#if defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
        __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((__m128i *)(void *)(to + i), halves);
    }
#endif
    for (; i < count; i++) {
        to[i] = ls_half_f32_to_fp16(from[i]);
    }
}

/* `count` elements from `offset` on as f32: in place, or converted into scratch. */
static const float *load(const void *from, ls_dtype type, int64_t offset, int64_t count, float *scratch)
{
    if (type == LS_F32) {
        return (const float *)from + offset;
    }
    const uint16_t *half = (const uint16_t *)from + offset;
    if (type == LS_F16) {
        load_fp16_block(half, scratch, count);
        return scratch;
    }
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        scratch[i] = ls_half_bf16_to_f32(half[i]);
    }
    return scratch;
}

/* Where a block is worked on before `store` puts it in place. */
static float *target(void *to, ls_dtype type, int64_t offset, float *scratch)
{
    return type == LS_F32 ? (float *)to + offset : scratch;
}

/* Rounds the block to `to`; nothing to do where it was worked on in place. Returns whether a half came
 * out as inf or NaN. */
static uint32_t store(const float *block, void *to, ls_dtype type, int64_t offset, int64_t count)
{
    if (type == LS_F32) {
        return 0;
    }
    uint16_t *half = (uint16_t *)to + offset;
    uint32_t exponent = type == LS_F16 ? 0x7c00u : 0x7f80u;
    uint32_t bad = 0;
    if (type == LS_F16) {
        store_fp16_block(block, half, count);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++) {
            half[i] = ls_half_f32_to_bf16(block[i]);
        }
    }
#pragma omp simd reduction(| : bad)
    for (int64_t i = 0; i < count; i++) {
        bad |= (half[i] & exponent) == exponent ? 1u : 0u;
    }
    return bad;
}

static uint32_t any_non_finite(const float *value, int64_t count)
{
    uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
    for (int64_t i = 0; i < count; i++) {
        bad |= ls_rounded_non_finite(value[i]);
    }
    return bad;
}

static int64_t block_at(int64_t offset, int64_t count)
{
    return count - offset < BLOCK ? count - offset : BLOCK;
}

static void convert(void *to, ls_dtype to_type, const void *from, ls_dtype from_type, float factor,
                    int64_t count)
{
    float in[BLOCK], out[BLOCK];
    for (int64_t offset = 0; offset < count; offset += BLOCK) {
        int64_t n = block_at(offset, count);
        const float *source = load(from, from_type, offset, n, in);
        float *result = target(to, to_type, offset, out);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            result[i] = ls_rounded_mul(source[i], factor);
        }
        store(result, to, to_type, offset, n);
    }
}

static void accumulate(float *sum, const void *from, ls_dtype from_type, bool first, int64_t count)
{
    float in[BLOCK];
    for (int64_t offset = 0; offset < count; offset += BLOCK) {
        int64_t n = block_at(offset, count);
        const float *source = load(from, from_type, offset, n, in);
        float *result = sum + offset;
        if (first) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) {
                result[i] = source[i];
            }
        } else {
#pragma omp simd
            for (int64_t i = 0; i < n; i++) {
                result[i] = ls_rounded_add(result[i], source[i]);
            }
        }
    }
}

static bool unscale(void *to, ls_dtype to_type, const void *from, ls_dtype from_type, float factor,
                    int64_t count)
{
    float in[BLOCK], out[BLOCK];
    uint32_t bad = 0;
    for (int64_t offset = 0; offset < count; offset += BLOCK) {
        int64_t n = block_at(offset, count);
        const float *source = load(from, from_type, offset, n, in);
        if (to == NULL) {
            bad |= any_non_finite(source, n);
            continue;
        }
        float *result = target(to, to_type, offset, out);
#pragma omp simd reduction(| : bad)
        for (int64_t i = 0; i < n; i++) {
            float value = source[i];
            bad |= ls_rounded_non_finite(value);
            result[i] = ls_rounded_mul(value, factor);
        }
        bad |= store(result, to, to_type, offset, n);
    }
    return bad != 0;
}

/* One block of SGD. `sgd` is a constant wherever this is inlined, so that the loop has no branch. */
__attribute__((always_inline)) static inline uint32_t
sgd_loop(const ls_sgd_rule sgd, const ls_multi_rule *rule, float *value, const float *current,
         const float *grad, float *buf, int64_t count)
{
    const float lr = rule->lr, momentum = rule->momentum, weight_decay = rule->weight_decay;
    uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
    for (int64_t i = 0; i < count; i++) {
        float moment = sgd.has_buf ? buf[i] : 0.0f;
        float next = ls_sgd_step(sgd, lr, momentum, weight_decay, current[i], grad[i], &moment);
        value[i] = next;
        bad |= ls_rounded_non_finite(next);
        if (sgd.has_buf) {
            buf[i] = moment;
            bad |= ls_rounded_non_finite(moment);
        }
    }
    return bad;
}

static uint32_t sgd_block(const ls_multi_rule *rule, float *value, const float *current,
                          const float *grad, float *buf, int64_t n)
{
    const ls_sgd_rule sgd = rule->sgd;
#define SGD_LOOP(decays, has_buf, first, nesterov)                                                 \
    sgd_loop((ls_sgd_rule){decays, has_buf, first, nesterov}, rule, value, current, grad, buf, n)
    if (!sgd.has_buf) {
        return sgd.decays ? SGD_LOOP(true, false, false, false)
                          : SGD_LOOP(false, false, false, false);
    }
    if (sgd.first) {
        if (sgd.nesterov) {
            return sgd.decays ? SGD_LOOP(true, true, true, true) : SGD_LOOP(false, true, true, true);
        }
        return sgd.decays ? SGD_LOOP(true, true, true, false) : SGD_LOOP(false, true, true, false);
    }
    if (sgd.nesterov) {
        return sgd.decays ? SGD_LOOP(true, true, false, true) : SGD_LOOP(false, true, false, true);
    }
    return sgd.decays ? SGD_LOOP(true, true, false, false) : SGD_LOOP(false, true, false, false);
#undef SGD_LOOP
}

__attribute__((always_inline)) static inline uint32_t
adam_loop(const bool decays, const bool decoupled, const ls_multi_rule *rule, float *value,
          const float *current, const float *grad, float *m, float *v, int64_t count)
{
    ls_adam_rule adam = rule->adam;
    adam.decays = decays;
    adam.decoupled = decoupled;
    uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
    for (int64_t i = 0; i < count; i++) {
        float moment1 = m[i], moment2 = v[i];
        float next = ls_adam_step(&adam, current[i], grad[i], &moment1, &moment2);
        value[i] = next;
        m[i] = moment1;
        v[i] = moment2;
        bad |= ls_rounded_non_finite(next) | ls_rounded_non_finite(moment1) |
               ls_rounded_non_finite(moment2);
    }
    return bad;
}

static uint32_t adam_block(const ls_multi_rule *rule, float *value, const float *current,
                           const float *grad, float *m, float *v, int64_t count)
{
    if (rule->adam.decoupled) {
        return adam_loop(false, true, rule, value, current, grad, m, v, count);
    }
    return rule->adam.decays ? adam_loop(true, false, rule, value, current, grad, m, v, count)
                             : adam_loop(false, false, rule, value, current, grad, m, v, count);
}

/* Moments are f32 (multi.c has checked), value, grad and copy any of the three types. */
static bool step(const ls_multi_rule *rule, const ls_multi_span *span, int64_t count)
{
    float value_in[BLOCK], value_out[BLOCK], grad_in[BLOCK];
    uint32_t bad = 0;
    for (int64_t offset = 0; offset < count; offset += BLOCK) {
        int64_t n = block_at(offset, count);
        const float *current = load(span->value, span->value_type, offset, n, value_in);
        const float *grad = load(span->grad, span->grad_type, offset, n, grad_in);
        float *value = target(span->value, span->value_type, offset, value_out);
        float *moment1 = span->moment1 != NULL ? (float *)span->moment1 + offset : NULL;
        float *moment2 = span->moment2 != NULL ? (float *)span->moment2 + offset : NULL;
        if (rule->kind == LS_OPTIMIZER_SGD) {
            bad |= sgd_block(rule, value, current, grad, moment1, n);
        } else {
            bad |= adam_block(rule, value, current, grad, moment1, moment2, n);
        }
        bad |= store(value, span->value, span->value_type, offset, n);
        if (span->copy == NULL) {
            continue;
        }
        if (span->copy_type == LS_F32) {
            float *copy = (float *)span->copy + offset;
#pragma omp simd
            for (int64_t i = 0; i < n; i++) {
                copy[i] = value[i];
            }
        } else {
            bad |= store(value, span->copy, span->copy_type, offset, n);
        }
    }
    return bad != 0;
}

const ls_multi_variant LS_MULTI_TABLE = {
    .name = LS_MULTI_NAME,
    .convert = convert,
    .accumulate = accumulate,
    .unscale = unscale,
    .step = step,
};
