#include "pack.h"

enum { LANES = 16, TAPS_MAX = 9, CHUNK = 2 * LANES, BLOCK = LANES * LANES };

bool ls_pack_takes(const ls_pack_weight *w, ls_dnn_layout layout)
{
    bool known = layout == LS_DNN_OI8I16O2I || layout == LS_DNN_OI8O16I2O ||
                 layout == LS_DNN_IO8O16I2O || layout == LS_DNN_MATRIX;
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
static inline void store_block(uint16_t *to, const __m512i *vector, int64_t step)
{
    for (int j = 0; j < LANES / 2; j++) {
        _mm512_stream_si512((__m512i *)(void *)(to + j * step), vector[j]);
    }
}

static void store_matrix(const ls_pack_weight *w, uint16_t *packed, int tap, int out_block,
                         int in_block, const __m512i *vector)
{
    enum { ROWS = 64 }; /* of the layout's blocks */
    int64_t columns = (int64_t)w->in_channels / LANES * w->in_pixels;
    for (int out = 0; out < w->out_pixels; out++) {
        int64_t row = (int64_t)out_block * w->out_pixels + out;
        uint16_t *block = packed + row / (ROWS / LANES) * columns * ROWS * LANES +
                          row % (ROWS / LANES) * LANES * 2;
        for (int in = 0; in < w->in_pixels; in++) {
            if (w->tap_between[out * w->in_pixels + in] == tap) {
                int64_t column = (int64_t)in_block * w->in_pixels + in;
                store_block(block + column * ROWS * LANES, vector, (int64_t)ROWS * 2);
            }
        }
    }
}

static void store(const ls_pack_weight *w, const ls_pack_target *target, int tap, int out_block,
                  int in_block, const __m512i *pairs_in, const __m512i *pairs_out)
{
    int in_blocks = w->in_channels / LANES, out_blocks = w->out_channels / LANES;
    bool in_first = target->layout == LS_DNN_IO8O16I2O;
    int64_t block = in_first ? (int64_t)in_block * out_blocks + out_block
                             : (int64_t)out_block * in_blocks + in_block;
    uint16_t *to = (uint16_t *)target->packed + (block * w->taps + tap) * BLOCK;
    switch (target->layout) {
    case LS_DNN_OI8I16O2I:
        store_block(to, pairs_in, CHUNK);
        break;
    case LS_DNN_OI8O16I2O:
    case LS_DNN_IO8O16I2O:
        store_block(to, pairs_out, CHUNK);
        break;
    case LS_DNN_MATRIX:
        store_matrix(w, target->packed, tap, out_block, in_block, pairs_in);
        break;
    default: /* f32: pack_wide.c */
        break;
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
                        store(w, &target[k], tap, out_block, (first + c) / LANES, pairs_in + c / 2,
                              pairs_out + c / 2);
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
