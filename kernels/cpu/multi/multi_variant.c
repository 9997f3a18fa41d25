/* The loops of one vector variant, compiled by the Makefile with the instructions that every
 * machine of this architecture has, and with LS_VEC_AVX2 and LS_VEC_AVX512.
 *
 * Half tensors go through an f32 scratch block that stays in the first-level cache: load a block,
 * run the f32 body, store the block. f32 tensors are processed in place. */

#if defined(LS_VEC_AVX512)
#pragma GCC target("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#define TABLE ls_multi_avx512
#define TABLE_NAME "AVX-512"
#elif defined(LS_VEC_AVX2)
#pragma GCC target("avx2,f16c")
#define TABLE ls_multi_avx2
#define TABLE_NAME "AVX2"
#else
#define TABLE ls_multi_plain
#define TABLE_NAME "plain"
#endif

#include <stddef.h>
#include <string.h>

#include "kernels/core/plant.h"
#include "multi_variant.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

enum { BLOCK = 512 }; /* elements; five f32 scratches of it are 10 KiB */

/* The hardware conversion quiets a NaN; this one must too. */
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
static const float *load(const void *from, ls_dtype type, int64_t offset, int64_t count,
                         float *scratch)
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

/* Where the f32 body writes a block before `store`. */
static float *target(void *to, ls_dtype type, int64_t offset, float *scratch)
{
    return type == LS_F32 ? (float *)to + offset : scratch;
}

/* Rounds the block to `to`, unless it was processed in place. Returns whether a half became inf or
 * NaN. */
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

/* Past the caches, which a list of this size does not fit: nothing is read before it is written. */
static void store_streaming(const float *block, float *to, int64_t count)
{
    int64_t i = 0;
#if defined(__AVX512F__)
    for (; (uintptr_t)to % 64 == 0 && i + 16 <= count; i += 16) {
        _mm512_stream_ps(to + i, _mm512_loadu_ps(block + i));
    }
#endif
    memcpy(to + i, block + i, (size_t)(count - i) * sizeof *to);
}

static bool unscale(void *to, ls_dtype to_type, const void *from, ls_dtype from_type, float factor,
                    bool streams, int64_t count)
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
        float *result = streams ? out : target(to, to_type, offset, out);
#pragma omp simd reduction(| : bad)
        for (int64_t i = 0; i < n; i++) {
            float value = source[i];
            bad |= ls_rounded_non_finite(value);
            result[i] = ls_rounded_mul(
                value, LS_PLANT(vector_remainder_scaled, factor, i < n / 16 * 16 ? factor : 1.0f));
        }
        bad |= store(result, to, to_type, offset, n);
        if (streams) {
            store_streaming(result, (float *)to + offset, n);
        }
    }
#if defined(__AVX512F__)
    if (streams) {
        _mm_sfence(); /* orders the streaming stores before the threads meet */
    }
#endif
    return bad != 0;
}

/* One block of a step. All before `rule` is constant at each inlined call, so the loop has no
 * branch. With LS_NORMS_UPDATE the moments were moved before. */
__attribute__((always_inline)) static inline uint32_t
step_loop(const ls_optimizer_kind kind, const uint32_t flags, const int moments, const bool scales,
          const ls_multi_rule *rule, float *value, const float *current, const float *grad,
          float *m, float *v, int64_t count)
{
    const bool moves = ls_rules_norms(kind) != LS_NORMS_UPDATE;
    const ls_rule_tensor tensor = {scales, rule->tensor.ratio};
    ls_rules rules = rule->rules;
    ls_rules_set_flags(kind, &rules, flags);
    uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
    for (int64_t i = 0; i < count; i++) {
        float moment1 = moments > 0 ? m[i] : 0.0f, moment2 = moments > 1 ? v[i] : 0.0f;
        float next = ls_rules_step(kind, &rules, &tensor, current[i], grad[i],
                                   moments > 0 ? &moment1 : NULL, moments > 1 ? &moment2 : NULL);
        value[i] = next;
        bad |= ls_rounded_non_finite(next) | ls_rounded_non_finite(moment1) |
               ls_rounded_non_finite(moment2);
        if (moments > 0 && moves) {
            m[i] = moment1;
        }
        if (moments > 1 && moves) {
            v[i] = moment2;
        }
    }
    return bad;
}

/* <name>_block of each optimizer: the loop for the rule's flags. */
#define STEP_LOOP(KIND, flags, moments, scales) \
    step_loop(LS_OPTIMIZER_##KIND, flags, moments, scales, rule, value, current, grad, m, v, count)
#define STEP_CASE(KIND, known, variants, moments, scales) \
    if ((known) < (variants) && flags == (known)) {       \
        return STEP_LOOP(KIND, known, moments, scales);   \
    }
#define STEP_CASES(KIND, variants, moments, scales) \
    STEP_CASE(KIND, 0, variants, moments, scales)   \
    STEP_CASE(KIND, 1, variants, moments, scales)   \
    STEP_CASE(KIND, 2, variants, moments, scales)   \
    STEP_CASE(KIND, 3, variants, moments, scales)   \
    STEP_CASE(KIND, 4, variants, moments, scales)   \
    STEP_CASE(KIND, 5, variants, moments, scales)   \
    STEP_CASE(KIND, 6, variants, moments, scales)   \
    STEP_CASE(KIND, 7, variants, moments, scales)   \
    return STEP_LOOP(KIND, flags, moments, scales);
#define LS_OPTIMIZER(KIND, name, type, variants, norms, moments, ...)                           \
    static uint32_t name##_block(const ls_multi_rule *rule, float *value, const float *current, \
                                 const float *grad, float *m, float *v, int64_t count)          \
    {                                                                                           \
        const uint32_t flags = rule->rules.name.flags;                                          \
        const bool scales = LS_NORMS_##norms == LS_NORMS_GRAD && rule->tensor.scales;           \
        if ((moments) == 1 && m == NULL) {                                                      \
            STEP_CASES(KIND, (variants) < 2 ? (variants) : 2, 0, scales)                        \
        }                                                                                       \
        if (scales) {                                                                           \
            STEP_CASES(KIND, variants, moments, true)                                           \
        }                                                                                       \
        STEP_CASES(KIND, variants, moments, false)                                              \
    }
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER

enum { LANES = 16 };

/* The order of additions is fixed, whatever the width of a vector; a square is exact in double. */
static double block_squares(const float *value, int64_t count)
{
    double lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
#pragma omp simd
        for (int l = 0; l < LANES; l++) {
            double x = (double)value[i + l];
            lane[l] += x * x;
        }
    }
    for (; i < count; i++) {
        double x = (double)value[i];
        lane[i % LANES] += x * x;
    }
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) {
            lane[l] += lane[l + half];
        }
    }
    return lane[0];
}

static double squares(const void *from, ls_dtype type, int64_t count)
{
    float in[BLOCK];
    double sum = 0;
    for (int64_t offset = 0; offset < count; offset += BLOCK) {
        int64_t n = block_at(offset, count);
        sum += block_squares(load(from, type, offset, n, in), n);
    }
    return sum;
}

__attribute__((always_inline)) static inline void
update_loop(const ls_optimizer_kind kind, const ls_multi_rule *rule, const float *value,
            const float *grad, float *m, float *v, float *update, int64_t count)
{
    const ls_rules rules = rule->rules;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float moment1 = m[i], moment2 = v[i];
        update[i] = ls_rules_update(kind, &rules, value[i], grad[i], &moment1, &moment2);
        m[i] = moment1;
        v[i] = moment2;
    }
}

static double update_squares(const ls_multi_rule *rule, const ls_multi_span *span, int64_t count)
{
    float value_in[BLOCK], grad_in[BLOCK], update[BLOCK];
    double sum = 0;
    for (int64_t offset = 0; offset < count; offset += BLOCK) {
        int64_t n = block_at(offset, count);
        const float *value = load(span->value, span->value_type, offset, n, value_in);
        const float *grad = load(span->grad, span->grad_type, offset, n, grad_in);
        float *m = (float *)span->moment1 + offset, *v = (float *)span->moment2 + offset;
        switch (rule->kind) {
#define UPDATE_NONE(KIND)
#define UPDATE_GRAD(KIND)
#define UPDATE_UPDATE(KIND) update_loop(LS_OPTIMIZER_##KIND, rule, value, grad, m, v, update, n);
#define LS_OPTIMIZER(KIND, name, type, variants, norms, ...) \
    case LS_OPTIMIZER_##KIND:                                \
        UPDATE_##norms(KIND) break;
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
        default:
            break;
        }
        sum += block_squares(update, n);
    }
    return sum;
}

static uint32_t step_block(const ls_multi_rule *rule, float *value, const float *current,
                           const float *grad, float *m, float *v, int64_t count)
{
    switch (rule->kind) {
#define LS_OPTIMIZER(KIND, name, ...) \
    case LS_OPTIMIZER_##KIND:         \
        return name##_block(rule, value, current, grad, m, v, count);
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    default:
        return 0;
    }
}

/* Moments are f32 (multi.c asserts it); value, grad and copy are any of the three types. */
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
        bad |= step_block(rule, value, current, grad, moment1, moment2, n);
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
            const float *exact = value;
            if (LS_PLANT(half_copy_cut, false, true)) {
                for (int64_t i = 0; i < n; i++) {
                    uint32_t bits = ls_half_bits_of_f32(value[i]) & 0xffffe000u;
                    grad_in[i] = ls_half_f32_of_bits(bits);
                }
                exact = grad_in;
            }
            bad |= store(exact, span->copy, span->copy_type, offset, n);
        }
    }
    return bad != 0;
}

#define PASS(...)                                                              \
    _Pragma("omp simd reduction(| : bad)") for (int64_t i = 0; i < count; i++) \
    {                                                                          \
        y[i] = __VA_ARGS__;                                                    \
        bad |= ls_rounded_non_finite(y[i]);                                    \
    }                                                                          \
    break;

static bool pass_of(const ls_multi_pass *pass, int64_t offset, int64_t count)
{
    const float a = pass->a, b = pass->b;
    float *y = pass->y + offset;
    const float *x = pass->x != NULL ? pass->x + offset : NULL;
    const float *z = pass->z != NULL ? pass->z + offset : NULL;
    uint32_t bad = 0;
    switch (pass->op) {
    case LS_MULTI_COPY:
        PASS(z[i])
    case LS_MULTI_ADD:
        PASS(ls_rounded_add(x[i], ls_rounded_mul(a, z[i])))
    case LS_MULTI_SCALE:
        PASS(ls_rounded_mul(a, y[i]))
    case LS_MULTI_MIX:
        PASS(ls_rounded_add(ls_rounded_mul(a, y[i]), ls_rounded_mul(b, z[i])))
    case LS_MULTI_SQUARE:
        PASS(ls_rounded_add(y[i], ls_rounded_mul(ls_rounded_mul(a, z[i]), z[i])))
    case LS_MULTI_ROOT:
        PASS(ls_rounded_sqrt(z[i]))
    case LS_MULTI_DIVIDE:
        PASS(ls_rounded_div(y[i], a))
    case LS_MULTI_SHIFT:
        PASS(ls_rounded_add(y[i], a))
    case LS_MULTI_RATIO:
        PASS(ls_rounded_add(y[i], ls_rounded_mul(a, ls_rounded_div(x[i], z[i]))))
    }
    return bad != 0;
}

const ls_multi_variant TABLE = {
    .name = TABLE_NAME,
    .convert = convert,
    .accumulate = accumulate,
    .unscale = unscale,
    .step = step,
    .pass = pass_of,
    .squares = squares,
    .update_squares = update_squares,
};
