#include "matrix.h"

#include <string.h>

/* The kernel position that connects output pixel `out` with input pixel `in`, or -1. */
static int tap_between(const ls_dnn_shape *s, int out, int in)
{
    int kh = in / s->in_width - out / s->out_width * s->stride + s->pad;
    int kw = in % s->in_width - out % s->out_width * s->stride + s->pad;
    bool inside = kh >= 0 && kh < s->kernel && kw >= 0 && kw < s->kernel;
    return inside ? kh * s->kernel + kw : -1;
}

/* Index of (channel, pixel) in one image of block `block`. */
static int64_t row_of(int channel, int pixel, int pixels, int block)
{
    return ((int64_t)(channel / block) * pixels + pixel) * block + channel % block;
}

/* to[ic in memory order of one pixel] = from[ic * taps]. */
static void gather_taps(const float *from, int taps, float *to, int channels, int pixels, int block)
{
    for (int first = 0; first < channels; first += block) {
        float *cells = to + (int64_t)first * pixels;
        const float *kernel = from + (int64_t)first * taps;
        for (int c = 0; c < block; c++) {
            cells[c] = kernel[(int64_t)c * taps];
        }
    }
}

static void clear_cells(float *to, int channels, int pixels, int block)
{
    for (int first = 0; first < channels; first += block) {
        memset(to + (int64_t)first * pixels, 0, (size_t)block * sizeof *to);
    }
}

/* to[ic * taps] += from[ic in memory order of one pixel]. */
static void add_taps(const float *from, float *to, int taps, int channels, int pixels, int block)
{
    for (int first = 0; first < channels; first += block) {
        const float *cells = from + (int64_t)first * pixels;
        float *kernel = to + (int64_t)first * taps;
        for (int c = 0; c < block; c++) {
            kernel[(int64_t)c * taps] += cells[c];
        }
    }
}

void ls_matrix_expand(ls_backend *backend, const ls_matrix_map *map, const float *kernel,
                      float *matrix)
{
    const ls_dnn_shape *s = &map->shape;
    int taps = s->kernel * s->kernel;
    int in_pixels = s->in_height * s->in_width, out_pixels = s->out_height * s->out_width;
#pragma omp parallel for schedule(static) num_threads(backend->threads)
    for (int oc = 0; oc < s->out_channels; oc++) {
        const float *from = kernel + (int64_t)oc * s->in_channels * taps;
        for (int out = 0; out < out_pixels; out++) {
            float *row = matrix + row_of(oc, out, out_pixels, map->out_block) * map->columns;
            for (int in = 0; in < in_pixels; in++) {
                int tap = tap_between(s, out, in);
                float *cells = row + (int64_t)in * map->in_block;
                if (tap < 0) {
                    clear_cells(cells, s->in_channels, in_pixels, map->in_block);
                } else {
                    gather_taps(from + tap, taps, cells, s->in_channels, in_pixels, map->in_block);
                }
            }
        }
    }
}

void ls_matrix_fold(ls_backend *backend, const ls_matrix_map *map, const float *matrix,
                    float *kernel)
{
    const ls_dnn_shape *s = &map->shape;
    int taps = s->kernel * s->kernel;
    int in_pixels = s->in_height * s->in_width, out_pixels = s->out_height * s->out_width;
#pragma omp parallel for schedule(static) num_threads(backend->threads)
    for (int oc = 0; oc < s->out_channels; oc++) {
        float *to = kernel + (int64_t)oc * s->in_channels * taps;
        memset(to, 0, (size_t)s->in_channels * (size_t)taps * sizeof *to);
        for (int out = 0; out < out_pixels; out++) {
            const float *row = matrix + row_of(oc, out, out_pixels, map->out_block) * map->columns;
            for (int in = 0; in < in_pixels; in++) {
                int tap = tap_between(s, out, in);
                if (tap >= 0) {
                    add_taps(row + (int64_t)in * map->in_block, to + tap, taps, s->in_channels,
                             in_pixels, map->in_block);
                }
            }
        }
    }
}
