#include "pack.h"

enum { LANES = 16, TAPS_MAX = 9, CHUNK = 2 * LANES };

bool ls_pack_takes(const ls_pack_weight *w, const ls_dnn_layout *layout)
{
    bool known = layout->order == LS_DNN_PAIRS_IN || layout->order == LS_DNN_PAIRS_OUT;
    return known && w->out_channels % LANES == 0 && w->in_channels % LANES == 0 &&
           (w->taps == 1 || w->taps == TAPS_MAX) && (w->type == LS_F32 || w->type == LS_BF16);
}

#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define LS_VEC_AVX512
#include <string.h>

#include "kernels/core/plant.h"
#include "transpose.h"
#include "vec.h"

/* CHUNK input channels of LANES output channels, tap by tap. */
typedef struct stage {
    _Alignas(64) uint16_t value[TAPS_MAX][LANES][CHUNK];
} stage;

/* Where the values of one tap lie among CHUNK * TAPS_MAX values of a row: element l of a tap is in
 * vector k where in[k] has bit l, at `at[l]`. */
typedef struct spread {
    _Alignas(64) uint16_t at[TAPS_MAX][CHUNK];
    __mmask32 in[TAPS_MAX][TAPS_MAX];
} spread;

static void spread_fill(spread *s)
{
    memset(s, 0, sizeof *s);
    for (int tap = 0; tap < TAPS_MAX; tap++) {
        for (int l = 0; l < CHUNK; l++) {
            int from = l * TAPS_MAX + tap;
            s->at[tap][l] = (uint16_t)(from % CHUNK);
            s->in[tap][from / CHUNK] |= (__mmask32)1 << l;
        }
    }
}

/* 32 values as bf16; from the first `count` values of a row on, zeros. */
static inline __m512i load_rounded(const void *plain, ls_dtype type, int64_t index, int count)
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

static void stage_row(const ls_pack_weight *w, const spread *s, int64_t index, int channels,
                      int row, stage *to)
{
    if (w->taps == 1) {
        _mm512_store_si512(to->value[0][row], load_rounded(w->plain, w->type, index, channels));
        return;
    }
    __m512i from[TAPS_MAX];
    for (int k = 0; k < TAPS_MAX; k++) {
        from[k] =
            load_rounded(w->plain, w->type, index + k * CHUNK, channels * TAPS_MAX - k * CHUNK);
    }
    for (int tap = 0; tap < TAPS_MAX; tap++) {
        __m512i at = _mm512_load_si512(s->at[tap]);
        __m512i value = _mm512_permutexvar_epi16(at, from[0]);
#pragma GCC unroll 8
        for (int k = 1; k < TAPS_MAX; k++) {
            value = _mm512_mask_permutexvar_epi16(value, s->in[tap][k], at, from[k]);
        }
        _mm512_store_si512(to->value[tap][row], value);
    }
}

/* 8 vectors of a block of 16 x 16 values. */
static inline void store_block(void *to, int64_t step, const void *vectors)
{
    const __m512i *vector = vectors;
    for (int j = 0; j < LANES / 2; j++) {
        _mm512_stream_si512((__m512i *)(void *)((uint16_t *)to + j * step), vector[j]);
    }
}

/* LANES output channels. */
static void pack_rows(const ls_pack_weight *w, const ls_pack_target target[2], const spread *s,
                      int out_block)
{
    stage chunk;
    for (int first = 0; first < w->in_channels; first += CHUNK) {
        int channels = w->in_channels - first < CHUNK ? w->in_channels - first : CHUNK;
        for (int row = 0; row < LANES; row++) {
            int64_t channel = (int64_t)out_block * LANES + row;
            stage_row(w, s, (channel * w->in_channels + first) * w->taps, channels, row, &chunk);
        }
        for (int tap = 0; tap < w->taps; tap++) {
            __m512i pairs_in[LANES], pairs_out[LANES];
            int from =
                LS_PLANT(native_weight_tap_repeated, tap, tap == TAPS_MAX - 1 ? tap - 1 : tap);
            for (int r = 0; r < LANES; r++) {
                pairs_in[r] = _mm512_load_si512(chunk.value[from][r]);
            }
            ls_transpose(pairs_in);
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
                                      store_block);
                    }
                }
            }
        }
    }
    _mm_sfence(); /* orders the streaming stores before the threads meet */
}

void ls_pack_run(const ls_pack_weight *w, const ls_pack_target target[2], int threads)
{
    spread s;
    spread_fill(&s);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int block = 0; block < w->out_channels / LANES; block++) {
        pack_rows(w, target, &s, block);
    }
}

#else

void ls_pack_run(const ls_pack_weight *w, const ls_pack_target target[2], int threads)
{
    (void)w, (void)target, (void)threads;
}
#endif
