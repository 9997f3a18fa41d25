#include "wgrad.h"

enum { LANES = 16, KERNEL = 3, TAPS = KERNEL * KERNEL };
/* of a 1x1: input channels of a row of registers, and the most of both sides that a thread sums at
 * a time, so that they stay in the second cache */
enum { ROW = 4 * LANES, IN_MAX = 256, OUT_MAX = 256, TILE_PIXELS = 128 };

static int in_blocks(const ls_dnn_shape *s)
{
    return s->in_channels / LANES;
}

static int out_blocks(const ls_dnn_shape *s)
{
    return s->out_channels / LANES;
}

static bool is_point(const ls_dnn_shape *s)
{
    return s->kernel == 1;
}

bool ls_wgrad_wide_takes(const ls_dnn_shape *s, ls_dtype type, int in_block, int out_block,
                         int threads)
{
    if (s->matrix || in_block != LANES || out_block != LANES) {
        return false;
    }
    enum { PIXELS_MAX = 49, HALF_PIXELS_MAX = 256 };
    int items = in_blocks(s) * out_blocks(s), pixels = s->out_height * s->out_width;
    return is_point(s) ? type != LS_F32 && s->pad == 0 && s->in_channels % ROW == 0
                       : s->kernel == KERNEL && s->pad == 1 && s->stride <= 2 &&
                             (items % threads == 0 || items >= 4 * threads) &&
                             pixels <= (type == LS_F32 ? PIXELS_MAX : HALF_PIXELS_MAX);
}

#if defined(__x86_64__)
#pragma GCC optimize("O3")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define LS_VEC_AVX512
#include <omp.h>
#include <string.h>

#include "kernels/core/plant.h"
#include "vec.h"

/* Values of any type as f32. */
static inline vec load_wide(const void *from, ls_dtype type, int64_t index)
{
    switch (type) {
    case LS_F16:
        return vec_widen_f16(vhalf_load((const uint16_t *)from + index));
    case LS_BF16:
        return vec_widen_bf16(vhalf_load((const uint16_t *)from + index));
    default:
        return vec_load_f32((const float *)from + index);
    }
}

static inline vec rounded(vec x, ls_dtype type)
{
    return type == LS_F16    ? vec_widen_f16(vec_narrow_f16(x))
           : type == LS_BF16 ? vec_widen_bf16(vec_narrow_bf16(x))
                             : x;
}

/* ---- 3x3 ------------------------------------------------------------------------------------- */

/* A thread computes the sums of a block of output and a block of input channels, [16][taps][16],
 * which stay in the first cache, tile by tile: some rows of an image or some images. In registers
 * are the sums of ROWS output channels and one row of the kernel's taps. */
enum { ROWS = 8, BLOCK = LANES * TAPS * LANES };

typedef struct window {
    const ls_dnn_shape *shape;
    const float *x, *dy;       /* of the first image */
    int64_t x_step, dy_step;   /* to the next image */
    int64_t x_block, dy_block; /* to the next block of channels */
} window;

/* Adds one pixel to the sums of taps `first` to `end` - 1, which are constants of the caller's;
 * others would read padding. */
static inline __attribute__((always_inline)) void
add_pixel(vec total[ROWS][KERNEL], int first, int end, const float *x, const float *dy)
{
    vec value[KERNEL];
#pragma GCC unroll 3
    for (int tap = first; tap < end; tap++) {
        value[tap] = _mm512_load_ps(x + tap * LANES);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        vec factor = _mm512_set1_ps(dy[r]);
#pragma GCC unroll 3
        for (int tap = first; tap < end; tap++) {
            total[r][tap] = vec_fma(value[tap], factor, total[r][tap]);
        }
    }
}

/* Adds rows `row` to `end_row` - 1 of `images` images to ROWS output channels and one row of taps.
 * sum: [ROWS][TAPS][LANES], of the row's first tap. */
static void add_rows(const window *w, int first_image, int images, int row, int end_row,
                     int kernel_row, int channel, float *sum)
{
    const ls_dnn_shape *s = w->shape;
    vec total[ROWS][KERNEL];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 3
        for (int tap = 0; tap < KERNEL; tap++) {
            total[r][tap] = _mm512_load_ps(sum + (r * TAPS + tap) * LANES);
        }
    }
    for (int image = first_image; image < first_image + images; image++) {
        for (int at = row; at < end_row; at++) {
            int in_row = at * s->stride + kernel_row - 1;
            if (in_row < 0 || in_row >= s->in_height) {
                continue; /* padding only */
            }
            /* of the tap left of a column's first input pixel */
            const float *from =
                w->x + image * w->x_step + ((int64_t)in_row * s->in_width - 1) * LANES;
            const float *g =
                w->dy + image * w->dy_step + (int64_t)at * s->out_width * LANES + channel;
            int column = 1;
            if (s->in_width > 1) {
                add_pixel(total, 1, 3, from, g);
            } else {
                add_pixel(total, 1, 2, from, g);
            }
            from += s->stride * LANES;
            g += LANES;
            for (; column < s->out_width && column * s->stride + 1 < s->in_width; column++) {
                add_pixel(total, 0, 3, from, g);
                from += s->stride * LANES;
                g += LANES;
            }
            if (column < s->out_width) { /* the last one, with padding on the right */
                add_pixel(total, 0, 2, from, g);
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

/* sum [16][taps][16] -> the gradient's values of 16 output and 16 input channels from `start`,
 * [16 of K][16 of C][taps]. row_stride: elements of one output channel. */
static void store_block(const float *sum, ls_dtype type, const ls_tensor *grad, int64_t start,
                        int64_t row_stride)
{
    for (int k = 0; k < LANES; k++, sum += TAPS * LANES) {
        _Alignas(64) float value[TAPS][LANES];
        _Alignas(64) uint16_t half[TAPS][LANES];
        int64_t at = start + k * row_stride;
        for (int tap = 0; tap < TAPS; tap++) {
            vec x = rounded(vec_load_f32(sum + tap * LANES), type);
            _mm512_store_ps(value[tap], x);
            vhalf_store(half[tap], grad->dtype == LS_F16 ? vec_narrow_f16(x) : vec_narrow_bf16(x));
        }
        if (grad->dtype == LS_F32) {
            float *out = (float *)grad->data + at;
            for (int c = 0; c < LANES; c++) {
                for (int tap = 0; tap < TAPS; tap++) {
                    *out++ = value[tap][c];
                }
            }
        } else {
            uint16_t *out = (uint16_t *)grad->data + at;
            for (int c = 0; c < LANES; c++) {
                for (int tap = 0; tap < TAPS; tap++) {
                    *out++ = half[tap][c];
                }
            }
        }
    }
}

static void window_item(window w, ls_dtype type, int item, const ls_tensor *grad)
{
    const ls_dnn_shape *s = w.shape;
    int in_block = item / out_blocks(s), out_block = item % out_blocks(s);
    w.x += in_block * w.x_block;
    w.dy += out_block * w.dy_block;
    int rows = TILE_PIXELS / s->out_width, images = 1;
    if (rows >= s->out_height) {
        images = rows / s->out_height;
        rows = s->out_height;
    }
    rows = rows < 1 ? 1 : rows;
    _Alignas(64) float sum[BLOCK] = {0};
    for (int image = 0; image < s->batch; image += images) {
        int some = s->batch - image < images ? s->batch - image : images;
        some -= LS_PLANT(avx512_gradient_image_lost, 0, some < images);
        for (int row = 0; row < s->out_height; row += rows) {
            int end = row + rows < s->out_height ? row + rows : s->out_height;
            for (int k = 0; k < KERNEL; k++) {
                for (int half = 0; half < LANES; half += ROWS) {
                    add_rows(&w, image, some, row, end, k, half,
                             sum + (half * TAPS + k * KERNEL) * LANES);
                }
            }
        }
    }
    int64_t row_stride = (int64_t)s->in_channels * TAPS;
    store_block(sum, type, grad, out_block * LANES * row_stride + (int64_t)in_block * LANES * TAPS,
                row_stride);
}

/* Copies of both operands, [C/16][N][HW][16]: of half types, which are widened on the way, and of
 * small images, whose planes lie multiples of 4 KiB apart and would evict each other from the first
 * cache. */
static bool copies(const ls_dnn_shape *s, ls_dtype type)
{
    enum { SMALL = 256 };
    return type != LS_F32 || s->out_height * s->out_width <= SMALL;
}

static void copy_planes(const void *from, ls_dtype type, int images, int blocks, int64_t plane,
                        float *to)
{
#pragma omp for schedule(static) nowait
    for (int i = 0; i < images * blocks; i++) {
        int block = i / images, image = i % images;
        int64_t at = ((int64_t)image * blocks + block) * plane;
        for (int64_t k = 0; k < plane; k += LANES) {
            _mm512_store_ps(to + i * plane + k, load_wide(from, type, at + k));
        }
    }
}

static void window_run(const ls_dnn_shape *s, ls_dtype type, const void *in, const void *out_grad,
                       const ls_tensor *grad, void *scratch, int threads)
{
    int64_t in_plane = (int64_t)s->in_height * s->in_width * LANES;
    int64_t out_plane = (int64_t)s->out_height * s->out_width * LANES;
    float *x = scratch, *dy = x + in_plane * s->batch * in_blocks(s);
    bool copied = copies(s, type);
    const window w = {.shape = s,
                      .x = copied ? x : in,
                      .dy = copied ? dy : out_grad,
                      .x_step = copied ? in_plane : in_blocks(s) * in_plane,
                      .dy_step = copied ? out_plane : out_blocks(s) * out_plane,
                      .x_block = copied ? in_plane * s->batch : in_plane,
                      .dy_block = copied ? out_plane * s->batch : out_plane};
#pragma omp parallel num_threads(threads)
    {
        if (copied) {
            copy_planes(in, type, s->batch, in_blocks(s), in_plane, x);
            copy_planes(out_grad, type, s->batch, out_blocks(s), out_plane, dy);
#pragma omp barrier
        }
#pragma omp for schedule(static)
        for (int i = 0; i < in_blocks(s) * out_blocks(s); i++) {
            window_item(w, type, i, grad);
        }
    }
}

/* ---- 1x1 ------------------------------------------------------------------------------------- */

/* The product of two matrices, summed over all pixels of all images. A unit is at most IN_MAX by
 * OUT_MAX channels and one part of the pixels; it copies a tile of pixels of both operands,
 *
 *   x  [in / 64][pixels][64]
 *   dy [out / 16][pixels][16]
 *
 * and adds it to the unit's sums, [in / 64][out][64], four output channels by 64 input channels in
 * registers. With fewer units than threads the pixels are in as many parts as threads, which are
 * added in order. */
typedef struct point {
    const ls_dnn_shape *shape;
    int units_in, units_out, parts;
    int64_t pixels; /* of all images */
    float *sum;     /* [parts][units_in * units_out], each IN_MAX * OUT_MAX */
    float *tile;    /* [threads][TILE_PIXELS][IN_MAX + OUT_MAX] */
} point;

enum { UNIT = IN_MAX * OUT_MAX, TILE = TILE_PIXELS * (IN_MAX + OUT_MAX) };

static point point_of(const ls_dnn_shape *s, int threads, void *scratch)
{
    point p = {.shape = s,
               .units_in = (s->in_channels + IN_MAX - 1) / IN_MAX,
               .units_out = (s->out_channels + OUT_MAX - 1) / OUT_MAX,
               .pixels = (int64_t)s->batch * s->out_height * s->out_width,
               .sum = scratch};
    int units = p.units_in * p.units_out;
    p.parts = units % threads == 0 || units >= 4 * threads ? 1 : threads;
    p.tile = p.sum + (int64_t)p.parts * units * UNIT;
    return p;
}

/* Pixels `pixel` to `pixel` + `count` - 1 of a block of 16 channels; to: the first one's, `step`
 * elements to the next. stride: of the convolution, on the side of its input. */
static inline __attribute__((always_inline)) void
copy_block(const void *from, ls_dtype type, int blocks, int block, int height, int width,
           int stride, const ls_dnn_shape *s, int64_t pixel, int count, float *to, int step)
{
    int64_t out_plane = (int64_t)s->out_height * s->out_width;
    int64_t plane = (int64_t)height * width * LANES;
    while (count > 0) {
        int64_t image = pixel / out_plane;
        int at = (int)(pixel % out_plane), row = at / s->out_width, column = at % s->out_width;
        const int64_t base = (image * blocks + block) * plane;
        int run = stride == 1 ? (int)(out_plane - at) : s->out_width - column;
        run = run < count ? run : count;
        int64_t index = base + (stride == 1 ? (int64_t)at * LANES
                                            : ((int64_t)row * width + column) * stride * LANES);
        for (int i = 0; i < run; i++, to += step, index += (int64_t)stride * LANES) {
            _mm512_store_ps(to, load_wide(from, type, index));
        }
        pixel += run;
        count -= run;
    }
}

static void copy_typed(const void *from, ls_dtype type, bool is_in, int block,
                       const ls_dnn_shape *s, int64_t pixel, int count, float *to, int step)
{
    int blocks = is_in ? in_blocks(s) : out_blocks(s);
    int height = is_in ? s->in_height : s->out_height, width = is_in ? s->in_width : s->out_width;
    int stride = is_in ? s->stride : 1;
    switch (type) {
    case LS_F16:
        copy_block(from, LS_F16, blocks, block, height, width, stride, s, pixel, count, to, step);
        break;
    case LS_BF16:
        copy_block(from, LS_BF16, blocks, block, height, width, stride, s, pixel, count, to, step);
        break;
    default:
        copy_block(from, LS_F32, blocks, block, height, width, stride, s, pixel, count, to, step);
    }
}

/* sum [4][64] += dy [pixels][16], of which four, times x [pixels][64]. */
static void add_tile(const float *x, const float *dy, int pixels, float *sum)
{
    vec total[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            total[r][v] = _mm512_load_ps(sum + r * ROW + v * LANES);
        }
    }
    for (int p = 0; p < pixels; p++, x += ROW, dy += LANES) {
        vec value[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            value[v] = _mm512_load_ps(x + v * LANES);
        }
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
            vec factor = _mm512_set1_ps(dy[r]);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++) {
                total[r][v] = vec_fma(value[v], factor, total[r][v]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            _mm512_store_ps(sum + r * ROW + v * LANES, total[r][v]);
        }
    }
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

static void point_unit(const point *p, ls_dtype type, const void *x_from, const void *dy_from,
                       int item)
{
    const ls_dnn_shape *s = p->shape;
    int units = p->units_in * p->units_out, part = item / units, unit = item % units;
    int in_first = unit / p->units_out * IN_MAX, out_first = unit % p->units_out * OUT_MAX;
    int in = least(s->in_channels - in_first, IN_MAX);
    int out = least(s->out_channels - out_first, OUT_MAX);
    float *sum = p->sum + (int64_t)item * UNIT;
    float *x = p->tile + (int64_t)omp_get_thread_num() * TILE, *dy = x + TILE_PIXELS * IN_MAX;
    int64_t end = p->pixels * (part + 1) / p->parts;
    memset(sum, 0, (size_t)in * (size_t)out * sizeof *sum);
    for (int64_t pixel = p->pixels * part / p->parts; pixel < end; pixel += TILE_PIXELS) {
        int count = end - pixel < TILE_PIXELS ? (int)(end - pixel) : TILE_PIXELS;
        for (int c = 0; c < in; c += LANES) {
            copy_typed(x_from, type, true, (in_first + c) / LANES, s, pixel, count,
                       x + c / ROW * TILE_PIXELS * ROW + c % ROW, ROW);
        }
        for (int k = 0; k < out; k += LANES) {
            copy_typed(dy_from, type, false, (out_first + k) / LANES, s, pixel, count,
                       dy + k * TILE_PIXELS, LANES);
        }
        for (int c = 0; c < in; c += ROW) {
            for (int k = 0; k < out; k += 4) {
                add_tile(x + c * TILE_PIXELS, dy + k / LANES * LANES * TILE_PIXELS + k % LANES,
                         count, sum + ((int64_t)c / ROW * out + k) * ROW);
            }
        }
    }
}

/* One output channel. */
static void point_store(const point *p, ls_dtype type, const ls_tensor *grad, int k)
{
    const ls_dnn_shape *s = p->shape;
    int units = p->units_in * p->units_out, out_first = k / OUT_MAX * OUT_MAX;
    int out = least(s->out_channels - out_first, OUT_MAX);
    for (int c = 0; c < s->in_channels; c += LANES) {
        int unit = c / IN_MAX * p->units_out + k / OUT_MAX;
        const float *from = p->sum + (int64_t)unit * UNIT +
                            ((int64_t)(c % IN_MAX) / ROW * out + (k - out_first)) * ROW + c % ROW;
        vec x = vec_load_f32(from);
        for (int part = 1; part < LS_PLANT(avx512_gradient_part_lost, p->parts, 1); part++) {
            x = vec_add(x, vec_load_f32(from + (int64_t)part * units * UNIT));
        }
        x = rounded(x, type);
        if (LS_PLANT(large_half_gradients, false, type != LS_F32 && s->in_channels >= 1024)) {
            x = vec_mul(x, vec_set(1.1f));
        }
        int64_t at = (int64_t)k * s->in_channels + c;
        if (grad->dtype == LS_F32) {
            vec_store_f32((float *)grad->data + at, x);
        } else {
            vhalf_store((uint16_t *)grad->data + at,
                        grad->dtype == LS_F16 ? vec_narrow_f16(x) : vec_narrow_bf16(x));
        }
    }
}

static void point_run(const ls_dnn_shape *s, ls_dtype type, const void *in, const void *out_grad,
                      const ls_tensor *grad, void *scratch, int threads)
{
    const point p = point_of(s, threads, scratch);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int i = 0; i < p.parts * p.units_in * p.units_out; i++) {
            point_unit(&p, type, in, out_grad, i);
        }
#pragma omp for schedule(static)
        for (int k = 0; k < s->out_channels; k++) {
            point_store(&p, type, grad, k);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- */

size_t ls_wgrad_wide_scratch_bytes(const ls_dnn_shape *s, ls_dtype type, int threads)
{
    if (is_point(s)) {
        const point p = point_of(s, threads, NULL);
        return ((size_t)(p.parts * p.units_in * p.units_out) * UNIT + (size_t)threads * TILE) *
               sizeof(float);
    }
    int64_t x = (int64_t)s->batch * s->in_channels * s->in_height * s->in_width;
    int64_t dy = (int64_t)s->batch * s->out_channels * s->out_height * s->out_width;
    return copies(s, type) ? (size_t)(x + dy) * sizeof(float) : 0;
}

void ls_wgrad_wide_run(const ls_dnn_shape *s, ls_dtype type, const void *in, const void *out_grad,
                       const ls_tensor *grad, void *scratch, int threads)
{
    (is_point(s) ? point_run : window_run)(s, type, in, out_grad, grad, scratch, threads);
}

#else

size_t ls_wgrad_wide_scratch_bytes(const ls_dnn_shape *s, ls_dtype type, int threads)
{
    (void)s, (void)type, (void)threads;
    return 0;
}

void ls_wgrad_wide_run(const ls_dnn_shape *s, ls_dtype type, const void *in, const void *out_grad,
                       const ls_tensor *grad, void *scratch, int threads)
{
    (void)s, (void)type, (void)in, (void)out_grad, (void)grad, (void)scratch, (void)threads;
}
#endif
