#include "wgrad.h"

enum { LANES = 16, KERNEL = 3, TAPS = KERNEL * KERNEL, OUT_PIXELS_MAX = 256 };

bool ls_wgrad_takes(const ls_dnn_shape *s, int in_block, int out_block)
{
    return !s->matrix && s->kernel == KERNEL && s->pad == 1 && s->stride <= 2 &&
           in_block == LANES && out_block == LANES &&
           s->out_height * s->out_width <= OUT_PIXELS_MAX;
}

#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")
#define LS_VEC_AVX512
#include <string.h>

#include "kernels/core/plant.h"
#include "vec.h"

/* The instruction multiplies pairs of bf16 along the sum and adds both products to an f32. A pair
 * is the same pixel of two images, so that all taps read one interleaved copy of each operand:
 *
 *   x  [C/16][pairs][rows][columns][16][2]
 *   dy [K/16][pairs][rows][columns][16][2]
 *
 * A thread computes the sums of a block of output and a block of input channels, [16][taps][16],
 * which stay in the first cache, tile by tile: some pairs of images, so that they stay there, too.
 * In registers are the sums of ROWS output channels and one row of the kernel's taps. */
enum { PAIR = 2 * LANES, ROWS = 8, TILE_PIXELS = 128, BLOCK = LANES * TAPS * LANES };

typedef struct operands {
    const ls_dnn_shape *shape;
    uint16_t *x, *dy;
    int64_t x_plane, dy_plane; /* elements of one pair of images and one block of channels */
    int pairs;                 /* of images */
} operands;

static operands operands_of(const ls_dnn_shape *s, void *scratch)
{
    operands o = {.shape = s,
                  .x = scratch,
                  .x_plane = (int64_t)s->in_height * s->in_width * PAIR,
                  .dy_plane = (int64_t)s->out_height * s->out_width * PAIR,
                  .pairs = (s->batch + 1) / 2};
    o.dy = o.x + o.x_plane * o.pairs * (s->in_channels / LANES);
    return o;
}

size_t ls_wgrad_scratch_bytes(const ls_dnn_shape *s)
{
    _Alignas(64) static uint16_t base[LANES];
    operands o = operands_of(s, base);
    int64_t dy = o.dy_plane * o.pairs * (s->out_channels / LANES);
    return (size_t)(o.dy - base + dy) * sizeof *base;
}

/* One pair of images and one block of channels. from: the whole tensor; plane: elements of the
 * copy. */
static void interleave(const operands *o, const uint16_t *from, int blocks, int item, int64_t plane,
                       uint16_t *to)
{
    int block = item / o->pairs, image = 2 * (item % o->pairs);
    int64_t values = plane / 2;
    const uint16_t *a = from + ((int64_t)image * blocks + block) * values;
    const uint16_t *b = a + blocks * values;
    bool both = image + 1 < o->shape->batch;
    if (LS_PLANT(native_last_image_doubled, false, !both)) {
        both = true;
        b = a;
    }
    to += item * plane;
    for (int64_t i = 0; i < values; i += LANES) {
        __m512i low = _mm512_cvtepu16_epi32(vhalf_load(a + i));
        __m512i high = both ? _mm512_cvtepu16_epi32(vhalf_load(b + i)) : _mm512_setzero_si512();
        _mm512_store_si512(to + 2 * i, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

/* Adds one pixel to the sums of taps `first` to `end` - 1, which are constants of the caller's;
 * others would read padding. */
static inline __attribute__((always_inline)) void
add_pixel(__m512 total[ROWS][KERNEL], int first, int end, const uint16_t *x, const uint16_t *dy)
{
    __m512bh value[KERNEL];
#pragma GCC unroll 3
    for (int tap = first; tap < end; tap++) {
        value[tap] = (__m512bh)_mm512_load_si512(x + tap * PAIR);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        int32_t pair;
        memcpy(&pair, dy + 2 * r, sizeof pair);
        __m512bh factor = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 3
        for (int tap = first; tap < end; tap++) {
            vec sum = _mm512_dpbf16_ps(total[r][tap], value[tap], factor);
            total[r][tap] =
                LS_PLANT(native_sums_in_bf16, sum, vec_widen_bf16(vec_narrow_bf16(sum)));
        }
    }
}

/* Adds `pairs` pairs of images to ROWS output channels and one row of taps. sum:
 * [ROWS][TAPS][LANES], of the row's first tap. */
static void add_row(const ls_dnn_shape *s, int pairs, int kernel_row, const uint16_t *x,
                    const uint16_t *dy, float *sum)
{
    __m512 total[ROWS][KERNEL];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 3
        for (int tap = 0; tap < KERNEL; tap++) {
            total[r][tap] = _mm512_load_ps(sum + (r * TAPS + tap) * LANES);
        }
    }
    for (int pair = 0; pair < pairs; pair++) {
        for (int row = 0; row < s->out_height; row++) {
            int in_row = row * s->stride + kernel_row - 1;
            if (in_row < 0 || in_row >= s->in_height) {
                continue; /* padding only */
            }
            /* of the tap left of a column's first input pixel */
            const uint16_t *from =
                x + (((int64_t)pair * s->in_height + in_row) * s->in_width - 1) * PAIR;
            const uint16_t *g = dy + ((int64_t)pair * s->out_height + row) * s->out_width * PAIR;
            for (int column = 0; column < s->out_width; column++) {
                bool left = column == 0, right = column * s->stride + 1 >= s->in_width;
                if (!left && !right) {
                    add_pixel(total, 0, 3, from, g);
                } else if (!right) {
                    add_pixel(total, 1, 3, from, g);
                } else if (!left) {
                    add_pixel(total, 0, 2, from, g);
                } else {
                    add_pixel(total, 1, 2, from, g);
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

/* One block of output and one of input channels. */
static void add_item(const operands *o, int item, const ls_tensor *grad)
{
    const ls_dnn_shape *s = o->shape;
    int out_blocks = s->out_channels / LANES;
    int in_block = item / out_blocks, out_block = item % out_blocks;
    int pixels = s->out_height * s->out_width;
    int tile = pixels < TILE_PIXELS ? TILE_PIXELS / pixels : 1;
    _Alignas(64) float sum[BLOCK] = {0};
    for (int first = 0; first < o->pairs; first += tile) {
        int pairs = o->pairs - first < tile ? o->pairs - first : tile;
        const uint16_t *x = o->x + ((int64_t)in_block * o->pairs + first) * o->x_plane;
        const uint16_t *dy = o->dy + ((int64_t)out_block * o->pairs + first) * o->dy_plane;
        for (int row = 0; row < KERNEL; row++) {
            for (int half = 0; half < LANES; half += ROWS) {
                add_row(s, pairs, row, x, dy + 2 * half,
                        sum + (half * TAPS + row * KERNEL) * LANES);
            }
        }
    }
    int64_t row_stride = (int64_t)s->in_channels * TAPS;
    int64_t start = out_block * LANES * row_stride + (int64_t)in_block * LANES * TAPS;
    store_block(sum, grad->dtype, (char *)grad->data + (size_t)start * ls_dtype_bytes(grad->dtype),
                row_stride);
}

void ls_wgrad_run(const ls_dnn_shape *s, const uint16_t *in, const uint16_t *out_grad,
                  const ls_tensor *grad, void *scratch, int threads)
{
    const operands o = operands_of(s, scratch);
    int in_blocks = s->in_channels / LANES, out_blocks = s->out_channels / LANES;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static) nowait
        for (int i = 0; i < in_blocks * o.pairs; i++) {
            interleave(&o, in, in_blocks, i, o.x_plane, o.x);
        }
#pragma omp for schedule(static)
        for (int i = 0; i < out_blocks * o.pairs; i++) {
            interleave(&o, out_grad, out_blocks, i, o.dy_plane, o.dy);
        }
#pragma omp for schedule(static)
        for (int i = 0; i < in_blocks * out_blocks; i++) {
            add_item(&o, i, grad);
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
