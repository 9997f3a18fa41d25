#include "wgrad.h"

enum { LANES = 16, KERNEL = 3, TAPS = KERNEL * KERNEL, OUT_PIXELS_MAX = 256 };

bool ls_wgrad_takes(const ls_dnn_shape *s, int in_block, int out_block)
{
    return !s->matrix && s->kernel == KERNEL && in_block == LANES && out_block == LANES &&
           s->out_height * s->out_width <= OUT_PIXELS_MAX;
}

#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")
#define LS_VEC_AVX512
#include <string.h>

#include "vec.h"

/* The instruction multiplies pairs of bf16 along the sum and adds both products to an f32. A pair
 * is the same pixel of two images, so that all taps read one interleaved copy of each operand:
 *
 *   x  [C/16][pairs][rows][padded columns][16][2]
 *   dy [K/16][pairs][rows][columns][16][2]
 *
 * The copies are made tile by tile and stay in the second cache; a tile is some whole pairs of
 * images. A thread adds a tile to its own blocks of the sums, [K/16][C/16][16][taps][16], in
 * registers: ROWS output channels times one row of the kernel's taps. */
enum { PAIR = 2 * LANES, ROWS = 8, TILE_PIXELS = 128, BLOCK = LANES * TAPS * LANES };

typedef struct tile {
    const ls_dnn_shape *shape;
    int pair, pairs;           /* first, and their number */
    int in_width;              /* columns of x: with the padding */
    int64_t x_plane, dy_plane; /* elements of one block of channels */
    uint16_t *x, *dy;
    bool first, last;
} tile;

static int pairs_of(const ls_dnn_shape *s)
{
    return (s->batch + 1) / 2;
}

static int tile_pairs(const ls_dnn_shape *s)
{
    int pairs = TILE_PIXELS / (s->out_height * s->out_width);
    return pairs > pairs_of(s) ? pairs_of(s) : pairs < 1 ? 1 : pairs;
}

static tile tile_of(const ls_dnn_shape *s)
{
    tile at = {.shape = s, .in_width = s->in_width + 2 * s->pad};
    at.x_plane = (int64_t)tile_pairs(s) * s->in_height * at.in_width * PAIR;
    at.dy_plane = (int64_t)tile_pairs(s) * s->out_height * s->out_width * PAIR;
    return at;
}

size_t ls_wgrad_scratch_bytes(const ls_dnn_shape *s)
{
    tile at = tile_of(s);
    size_t in_blocks = (size_t)s->in_channels / LANES, out_blocks = (size_t)s->out_channels / LANES;
    return in_blocks * out_blocks * BLOCK * sizeof(float) +
           ((size_t)at.x_plane * in_blocks + (size_t)at.dy_plane * out_blocks) * sizeof(uint16_t);
}

/* One plane of a pair of images; b: NULL where the batch ends with the first of them. */
static void interleave(const uint16_t *a, const uint16_t *b, int rows, int columns, int padding,
                       uint16_t *to)
{
    const __m512i zero = _mm512_setzero_si512();
    for (int r = 0; r < rows; r++) {
        for (int p = 0; p < padding; p++, to += PAIR) {
            _mm512_store_si512(to, zero);
        }
        for (int p = 0; p < columns; p++, a += LANES, to += PAIR) {
            __m512i both = _mm512_cvtepu16_epi32(vhalf_load(a));
            if (b != NULL) {
                __m512i second = _mm512_cvtepu16_epi32(vhalf_load(b));
                both = _mm512_or_si512(both, _mm512_slli_epi32(second, 16));
                b += LANES;
            }
            _mm512_store_si512(to, both);
        }
        for (int p = 0; p < padding; p++, to += PAIR) {
            _mm512_store_si512(to, zero);
        }
    }
}

/* from: the whole tensor; item: a pair of the tile and a block of channels. */
static void interleave_item(const tile *at, int item, const uint16_t *from, int blocks, int height,
                            int width, int padding, uint16_t *to)
{
    int pair = item % at->pairs, block = item / at->pairs, image = 2 * (at->pair + pair);
    int64_t plane = (int64_t)height * width * LANES;
    int64_t copied = (int64_t)height * (width + 2 * padding) * PAIR;
    const uint16_t *a = from + ((int64_t)image * blocks + block) * plane;
    const uint16_t *b = image + 1 < at->shape->batch ? a + blocks * plane : NULL;
    interleave(a, b, height, width, padding,
               to + ((int64_t)block * tile_pairs(at->shape) + pair) * copied);
}

/* Adds a tile to ROWS output channels and one row of taps. sum: [ROWS][TAPS][LANES], of the row's
 * first tap. */
static void add_row(const tile *at, int kernel_row, const uint16_t *x, const uint16_t *dy,
                    float *sum)
{
    const ls_dnn_shape *s = at->shape;
    __m512 total[ROWS][KERNEL];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 3
        for (int tap = 0; tap < KERNEL; tap++) {
            total[r][tap] =
                at->first ? _mm512_setzero_ps() : _mm512_load_ps(sum + (r * TAPS + tap) * LANES);
        }
    }
    for (int pair = 0; pair < at->pairs; pair++) {
        for (int row = 0; row < s->out_height; row++) {
            int in_row = row * s->stride + kernel_row - s->pad;
            if (in_row < 0 || in_row >= s->in_height) {
                continue; /* padding only */
            }
            const uint16_t *from =
                x + ((int64_t)pair * s->in_height + in_row) * at->in_width * PAIR;
            const uint16_t *g = dy + ((int64_t)pair * s->out_height + row) * s->out_width * PAIR;
            for (int column = 0; column < s->out_width; column++) {
                __m512bh value[KERNEL];
#pragma GCC unroll 3
                for (int tap = 0; tap < KERNEL; tap++) {
                    value[tap] = (__m512bh)_mm512_load_si512(from + tap * PAIR);
                }
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++) {
                    int32_t pair_of_row;
                    memcpy(&pair_of_row, g + 2 * r, sizeof pair_of_row);
                    __m512bh factor = (__m512bh)_mm512_set1_epi32(pair_of_row);
#pragma GCC unroll 3
                    for (int tap = 0; tap < KERNEL; tap++) {
                        total[r][tap] = _mm512_dpbf16_ps(total[r][tap], value[tap], factor);
                    }
                }
                from += s->stride * PAIR;
                g += PAIR;
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 3
        for (int tap = 0; tap < KERNEL; tap++) {
            _mm512_store_ps(sum + (r * TAPS + tap) * LANES, total[r][tap]);
        }
    }
}

/* sum [16][taps][16] -> the gradient's values of 16 output and 16 input channels from `to`,
 * [16 of K][16 of C][taps], rounded to bf16. row_stride: elements of one output channel. */
static void store_block(const float *sum, ls_dtype type, void *to, int64_t row_stride)
{
    for (int k = 0; k < LANES; k++, sum += TAPS * LANES) {
        uint16_t rounded[TAPS][LANES];
        for (int tap = 0; tap < TAPS; tap++) {
            vhalf_store(rounded[tap], vec_narrow_bf16(vec_load_f32(sum + tap * LANES)));
        }
        if (type == LS_BF16) {
            uint16_t *out = (uint16_t *)to + k * row_stride;
            for (int c = 0; c < LANES; c++) {
                for (int tap = 0; tap < TAPS; tap++) {
                    *out++ = rounded[tap][c];
                }
            }
        } else {
            float *out = (float *)to + k * row_stride;
            for (int c = 0; c < LANES; c++) {
                for (int tap = 0; tap < TAPS; tap++) {
                    *out++ = ls_half_bf16_to_f32(rounded[tap][c]);
                }
            }
        }
    }
}

/* One block of output and one of input channels; sums: of all tiles before the last, [item][BLOCK].
 */
static void add_item(const tile *at, int item, float *sums, const ls_tensor *grad)
{
    const ls_dnn_shape *s = at->shape;
    int out_blocks = s->out_channels / LANES;
    int in_block = item / out_blocks, out_block = item % out_blocks;
    _Alignas(64) float only[BLOCK];
    float *sum = at->first && at->last ? only : sums + (int64_t)item * BLOCK;
    for (int row = 0; row < KERNEL; row++) {
        for (int half = 0; half < LANES; half += ROWS) {
            add_row(at, row, at->x + in_block * at->x_plane,
                    at->dy + out_block * at->dy_plane + 2 * half,
                    sum + (half * TAPS + row * KERNEL) * LANES);
        }
    }
    if (at->last) {
        int64_t row_stride = (int64_t)s->in_channels * TAPS;
        int64_t start = out_block * LANES * row_stride + (int64_t)in_block * LANES * TAPS;
        store_block(sum, grad->dtype,
                    (char *)grad->data + (size_t)start * ls_dtype_bytes(grad->dtype), row_stride);
    }
}

void ls_wgrad_run(const ls_dnn_shape *s, const uint16_t *in, const uint16_t *out_grad,
                  const ls_tensor *grad, void *scratch, int threads)
{
    int in_blocks = s->in_channels / LANES, out_blocks = s->out_channels / LANES;
    int pairs = pairs_of(s);
    float *sums = scratch;
    tile shared = tile_of(s);
    shared.x = (uint16_t *)(sums + (int64_t)in_blocks * out_blocks * BLOCK);
    shared.dy = shared.x + shared.x_plane * in_blocks;
#pragma omp parallel num_threads(threads)
    for (int pair = 0; pair < pairs; pair += tile_pairs(s)) {
        tile at = shared;
        at.pair = pair;
        at.pairs = pairs - pair < tile_pairs(s) ? pairs - pair : tile_pairs(s);
        at.first = pair == 0;
        at.last = pair + at.pairs == pairs;
#pragma omp for schedule(static) nowait
        for (int i = 0; i < in_blocks * at.pairs; i++) {
            interleave_item(&at, i, in, in_blocks, s->in_height, s->in_width, s->pad, at.x);
        }
#pragma omp for schedule(static)
        for (int i = 0; i < out_blocks * at.pairs; i++) {
            interleave_item(&at, i, out_grad, out_blocks, s->out_height, s->out_width, 0, at.dy);
        }
#pragma omp for schedule(static)
        for (int i = 0; i < in_blocks * out_blocks; i++) {
            add_item(&at, i, sums, grad);
        }
    }
}

#else

size_t ls_wgrad_scratch_bytes(const ls_dnn_shape *s)
{
    (void)s;
    return 0;
}

void ls_wgrad_run(const ls_dnn_shape *s, const uint16_t *in, const uint16_t *out_grad,
                  const ls_tensor *grad, void *scratch, int threads)
{
    (void)s, (void)in, (void)out_grad, (void)grad, (void)scratch, (void)threads;
}
#endif
