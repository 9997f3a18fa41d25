#include "pack.h"

#include "kernels/core/log.h"

enum { LANES = 16, TAPS_MAX = 9, CHUNK = 2 * LANES };

static bool is_wide(const ls_dnn_layout *layout)
{
    return layout->order == LS_DNN_OUT || layout->order == LS_DNN_IN;
}

bool ls_pack_takes(const ls_pack_weight *w, const ls_dnn_layout *layout, bool wide)
{
    return layout->order != LS_DNN_OTHER && is_wide(layout) == wide &&
           w->out_channels % LANES == 0 && w->in_channels % LANES == 0 &&
           (w->taps == 1 || w->taps == TAPS_MAX);
}

#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define LS_VEC_AVX512
#include <string.h>

#include "kernels/core/plant.h"
#include "vec.h"

/* Rows of 16 words of 32 bits become columns. */
static inline void transpose(__m512i r[16])
{
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        __m512i even = _mm512_shuffle_i32x4(r[k], r[4 + k], 0x88);
        __m512i odd = _mm512_shuffle_i32x4(r[k], r[4 + k], 0xdd);
        __m512i even2 = _mm512_shuffle_i32x4(r[8 + k], r[12 + k], 0x88);
        __m512i odd2 = _mm512_shuffle_i32x4(r[8 + k], r[12 + k], 0xdd);
        t[k] = _mm512_shuffle_i32x4(even, even2, 0x88);
        t[8 + k] = _mm512_shuffle_i32x4(even, even2, 0xdd);
        t[4 + k] = _mm512_shuffle_i32x4(odd, odd2, 0x88);
        t[12 + k] = _mm512_shuffle_i32x4(odd, odd2, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        r[i] = t[i];
    }
}

/* Where the values of one tap lie among those of a row, in TAPS_MAX vectors of as many values:
 * element l of a tap is in vector k where in[k] has bit l, at `at[l]`. */
typedef struct spread {
    union {
        _Alignas(64) uint16_t half[TAPS_MAX][CHUNK];
        int32_t wide[TAPS_MAX][LANES];
    } at;
    __mmask32 in[TAPS_MAX][TAPS_MAX];
} spread;

static void spread_fill(spread *s, bool wide)
{
    int lanes = wide ? LANES : CHUNK;
    memset(s, 0, sizeof *s);
    for (int tap = 0; tap < TAPS_MAX; tap++) {
        for (int l = 0; l < lanes; l++) {
            int from = l * TAPS_MAX + tap;
            if (wide) {
                s->at.wide[tap][l] = from % lanes;
            } else {
                s->at.half[tap][l] = (uint16_t)(from % lanes);
            }
            s->in[tap][from / lanes] |= (__mmask32)1 << l;
        }
    }
}

/* ---- bf16 ------------------------------------------------------------------------------------ */

/* CHUNK input channels of LANES output channels, tap by tap. */
typedef struct half_stage {
    _Alignas(64) uint16_t value[TAPS_MAX][LANES][CHUNK];
} half_stage;

/* 32 values as bf16; from the first `count` values of a row on, zeros. */
static inline __m512i half_load(const void *plain, ls_dtype type, int64_t index, int count)
{
    __mmask32 mask =
        count >= CHUNK ? 0xffffffffU : (__mmask32)((1U << (count > 0 ? count : 0)) - 1);
    if (type == LS_BF16) {
        return _mm512_maskz_loadu_epi16(mask, (const uint16_t *)plain + index);
    }
    const float *from = (const float *)plain + index;
    vec low = _mm512_maskz_loadu_ps((__mmask16)mask, from);
    vec high = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), from + LANES);
    return _mm512_inserti64x4(_mm512_castsi256_si512(vec_narrow_bf16(low)), vec_narrow_bf16(high),
                              1);
}

static void half_row(const ls_pack_weight *w, const spread *s, int64_t index, int channels, int row,
                     half_stage *to)
{
    if (w->taps == 1) {
        _mm512_store_si512(to->value[0][row], half_load(w->plain, w->type, index, channels));
        return;
    }
    __m512i from[TAPS_MAX];
    for (int k = 0; k < TAPS_MAX; k++) {
        from[k] = half_load(w->plain, w->type, index + k * CHUNK, channels * TAPS_MAX - k * CHUNK);
    }
    for (int tap = 0; tap < TAPS_MAX; tap++) {
        __m512i at = _mm512_load_si512(s->at.half[tap]);
        __m512i value = _mm512_permutexvar_epi16(at, from[0]);
#pragma GCC unroll 8
        for (int k = 1; k < TAPS_MAX; k++) {
            value = _mm512_mask_permutexvar_epi16(value, s->in[tap][k], at, from[k]);
        }
        _mm512_store_si512(to->value[tap][row], value);
    }
}

/* 8 vectors of a block of 16 x 16 values. */
static inline void half_block(void *to, int64_t step, const void *vectors)
{
    const __m512i *vector = vectors;
    for (int j = 0; j < LANES / 2; j++) {
        _mm512_stream_si512((__m512i *)(void *)((uint16_t *)to + j * step), vector[j]);
    }
}

/* LANES output channels. */
static void half_rows(const ls_pack_weight *w, const ls_pack_target target[2], const spread *s,
                      int out_block)
{
    half_stage chunk;
    for (int first = 0; first < w->in_channels; first += CHUNK) {
        int channels = w->in_channels - first < CHUNK ? w->in_channels - first : CHUNK;
        for (int row = 0; row < LANES; row++) {
            int64_t channel = (int64_t)out_block * LANES + row;
            half_row(w, s, (channel * w->in_channels + first) * w->taps, channels, row, &chunk);
        }
        for (int tap = 0; tap < w->taps; tap++) {
            __m512i pairs_in[LANES], pairs_out[LANES];
            int from =
                LS_PLANT(native_weight_tap_repeated, tap, tap == TAPS_MAX - 1 ? tap - 1 : tap);
            for (int r = 0; r < LANES; r++) {
                pairs_in[r] = _mm512_load_si512(chunk.value[from][r]);
            }
            transpose(pairs_in);
            for (int r = 0; r < LANES; r++) { /* r / 8: which half of the chunk */
                const uint16_t *even = chunk.value[from][r % 8 * 2] + r / 8 * LANES;
                __m512i high = _mm512_cvtepu16_epi32(vhalf_load(even + CHUNK));
                pairs_out[r] = _mm512_or_si512(_mm512_cvtepu16_epi32(vhalf_load(even)),
                                               _mm512_slli_epi32(high, 16));
            }
            for (int c = 0; c < channels; c += LANES) {
                for (int k = 0; k < 2; k++) {
                    if (target[k].packed != NULL) {
                        bool in = target[k].layout->order == LS_DNN_PAIRS_IN;
                        ls_pack_store(w, &target[k], sizeof(uint16_t), tap, out_block,
                                      (first + c) / LANES, (in ? pairs_in : pairs_out) + c / 2,
                                      half_block);
                    }
                }
            }
        }
    }
    _mm_sfence(); /* orders the streaming stores before the threads meet */
}

/* ---- f32 ------------------------------------------------------------------------------------- */

/* 16 input channels of 16 output channels, tap by tap. */
typedef struct wide_stage {
    _Alignas(64) float value[TAPS_MAX][LANES][LANES];
} wide_stage;

static inline vec wide_load(const ls_pack_weight *w, int64_t index)
{
    switch (w->type) {
    case LS_F16:
        return vec_widen_f16(vhalf_load((const uint16_t *)w->plain + index));
    case LS_BF16:
        return vec_widen_bf16(vhalf_load((const uint16_t *)w->plain + index));
    default: {
        vec x = vec_load_f32((const float *)w->plain + index);
        return w->rounded == LS_F16    ? vec_widen_f16(vec_narrow_f16(x))
               : w->rounded == LS_BF16 ? vec_widen_bf16(vec_narrow_bf16(x))
                                       : x;
    }
    }
}

static void wide_row(const ls_pack_weight *w, const spread *s, int64_t index, int row,
                     wide_stage *to)
{
    if (w->taps == 1) {
        _mm512_store_ps(to->value[0][row], wide_load(w, index));
        return;
    }
    vec from[TAPS_MAX];
#pragma GCC unroll 9
    for (int k = 0; k < TAPS_MAX; k++) {
        from[k] = wide_load(w, index + (int64_t)k * LANES);
    }
    for (int tap = 0; tap < TAPS_MAX; tap++) {
        __m512i at = _mm512_load_si512(s->at.wide[tap]);
        vec value = _mm512_permutexvar_ps(at, from[0]);
#pragma GCC unroll 8
        for (int k = 1; k < TAPS_MAX; k++) {
            value = _mm512_mask_permutexvar_ps(value, (__mmask16)s->in[tap][k], at, from[k]);
        }
        _mm512_store_ps(to->value[tap][row], value);
    }
}

static inline void wide_block(void *to, int64_t step, const void *vectors)
{
    const __m512i *vector = vectors;
    for (int j = 0; j < LANES; j++) {
        _mm512_stream_si512((__m512i *)(void *)((float *)to + j * step), vector[j]);
    }
}

/* LANES output channels. */
static void wide_rows(const ls_pack_weight *w, const ls_pack_target target[2], const spread *s,
                      int out_block)
{
    wide_stage chunk;
    for (int in_block = 0; in_block < w->in_channels / LANES; in_block++) {
        for (int row = 0; row < LANES; row++) {
            int64_t channel = (int64_t)out_block * LANES + row;
            int64_t index = (channel * w->in_channels + (int64_t)in_block * LANES) * w->taps;
            wide_row(w, s, index, row, &chunk);
        }
        for (int tap = 0; tap < w->taps; tap++) {
            __m512i rows[LANES], columns[LANES];
            int from =
                LS_PLANT(avx512_weight_tap_repeated, tap, tap == TAPS_MAX - 1 ? tap - 1 : tap);
            for (int r = 0; r < LANES; r++) {
                rows[r] = columns[r] = _mm512_load_si512(chunk.value[from][r]);
            }
            transpose(columns);
            for (int k = 0; k < 2; k++) {
                if (target[k].packed != NULL) {
                    bool out = target[k].layout->order == LS_DNN_OUT;
                    ls_pack_store(w, &target[k], sizeof(float), tap, out_block, in_block,
                                  out ? columns : rows, wide_block);
                }
            }
        }
    }
    _mm_sfence(); /* orders the streaming stores before the threads meet */
}

void ls_pack_run(const ls_pack_weight *w, const ls_pack_target target[2], int threads)
{
    spread s;
    bool wide = is_wide(target[0].layout);
    LS_ASSERT(wide || w->type != LS_F16);
    spread_fill(&s, wide);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int block = 0; block < w->out_channels / LANES; block++) {
        (wide ? wide_rows : half_rows)(w, target, &s, block);
    }
}

#else

void ls_pack_run(const ls_pack_weight *w, const ls_pack_target target[2], int threads)
{
    (void)w, (void)target, (void)threads;
}
#endif
