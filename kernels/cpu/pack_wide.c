#include "pack.h"

enum { LANES = 16, TAPS_MAX = 9 };

bool ls_pack_wide_takes(const ls_pack_weight *w, const ls_dnn_layout *layout)
{
    bool known = layout->order == LS_DNN_OUT || layout->order == LS_DNN_IN;
    return known && w->out_channels % LANES == 0 && w->in_channels % LANES == 0 &&
           (w->taps == 1 || w->taps == TAPS_MAX);
}

#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define LS_VEC_AVX512
#include <string.h>

#include "kernels/core/plant.h"
#include "transpose.h"
#include "vec.h"

/* 16 input channels of 16 output channels, tap by tap. */
typedef struct stage {
    _Alignas(64) float value[TAPS_MAX][LANES][LANES];
} stage;

/* Where the values of one tap lie among the 16 * TAPS_MAX values of a row: element l of a tap is in
 * vector k where in[k] has bit l, at `at[l]`. */
typedef struct spread {
    _Alignas(64) int32_t at[TAPS_MAX][LANES];
    __mmask16 in[TAPS_MAX][TAPS_MAX];
} spread;

static void spread_fill(spread *s)
{
    memset(s, 0, sizeof *s);
    for (int tap = 0; tap < TAPS_MAX; tap++) {
        for (int l = 0; l < LANES; l++) {
            int from = l * TAPS_MAX + tap;
            s->at[tap][l] = from % LANES;
            s->in[tap][from / LANES] |= (__mmask16)(1U << l);
        }
    }
}

static inline vec load_rounded(const ls_pack_weight *w, int64_t index)
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

static void stage_row(const ls_pack_weight *w, const spread *s, int64_t index, int row, stage *to)
{
    if (w->taps == 1) {
        _mm512_store_ps(to->value[0][row], load_rounded(w, index));
        return;
    }
    vec from[TAPS_MAX];
#pragma GCC unroll 9
    for (int k = 0; k < TAPS_MAX; k++) {
        from[k] = load_rounded(w, index + (int64_t)k * LANES);
    }
    for (int tap = 0; tap < TAPS_MAX; tap++) {
        __m512i at = _mm512_load_si512(s->at[tap]);
        vec value = _mm512_permutexvar_ps(at, from[0]);
#pragma GCC unroll 8
        for (int k = 1; k < TAPS_MAX; k++) {
            value = _mm512_mask_permutexvar_ps(value, s->in[tap][k], at, from[k]);
        }
        _mm512_store_ps(to->value[tap][row], value);
    }
}

static inline void store_block(void *to, int64_t step, const void *vectors)
{
    const __m512i *vector = vectors;
    for (int j = 0; j < LANES; j++) {
        _mm512_stream_si512((__m512i *)(void *)((float *)to + j * step), vector[j]);
    }
}

/* LANES output channels. */
static void pack_rows(const ls_pack_weight *w, const ls_pack_target target[2], const spread *s,
                      int out_block)
{
    stage chunk;
    for (int in_block = 0; in_block < w->in_channels / LANES; in_block++) {
        for (int row = 0; row < LANES; row++) {
            int64_t channel = (int64_t)out_block * LANES + row;
            int64_t index = (channel * w->in_channels + (int64_t)in_block * LANES) * w->taps;
            stage_row(w, s, index, row, &chunk);
        }
        for (int tap = 0; tap < w->taps; tap++) {
            __m512i rows[LANES], columns[LANES];
            int from =
                LS_PLANT(avx512_weight_tap_repeated, tap, tap == TAPS_MAX - 1 ? tap - 1 : tap);
            for (int r = 0; r < LANES; r++) {
                rows[r] = columns[r] = _mm512_load_si512(chunk.value[from][r]);
            }
            ls_transpose(columns);
            for (int k = 0; k < 2; k++) {
                if (target[k].packed != NULL) {
                    bool out = target[k].layout->order == LS_DNN_OUT;
                    ls_pack_store(w, &target[k], sizeof(float), tap, out_block, in_block,
                                  out ? columns : rows, store_block);
                }
            }
        }
    }
    _mm_sfence(); /* orders the streaming stores before the threads meet */
}

void ls_pack_wide_run(const ls_pack_weight *w, const ls_pack_target target[2], int threads)
{
    spread s;
    spread_fill(&s);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int block = 0; block < w->out_channels / LANES; block++) {
        pack_rows(w, target, &s, block);
    }
}

#else

void ls_pack_wide_run(const ls_pack_weight *w, const ls_pack_target target[2], int threads)
{
    (void)w, (void)target, (void)threads;
}
#endif
