#include "matrix.h"

#include <string.h>

/* Kernel position that output pixel `out` sees input pixel `in` through, or -1. */
static int tap_between(const ls_dnn_shape *s, int out, int in)
{
    int kh = in / s->in_width - out / s->out_width * s->stride + s->pad;
    int kw = in % s->in_width - out % s->out_width * s->stride + s->pad;
    bool inside = kh >= 0 && kh < s->kernel && kw >= 0 && kw < s->kernel;
    return inside ? kh * s->kernel + kw : -1;
}

/* Index of (channel, pixel) in one image of block `block`. */
static int64_t place(int channel, int pixel, int pixels, int block)
{
    return ((int64_t)(channel / block) * pixels + pixel) * block + channel % block;
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
            float *row = matrix + place(oc, out, out_pixels, map->out_block) * map->columns;
            for (int in = 0; in < in_pixels; in++) {
                int tap = tap_between(s, out, in);
                for (int ic = 0; ic < s->in_channels; ic++) {
                    row[place(ic, in, in_pixels, map->in_block)] =
                        tap < 0 ? 0.0f : from[(int64_t)ic * taps + tap];
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
            const float *row = matrix + place(oc, out, out_pixels, map->out_block) * map->columns;
            for (int in = 0; in < in_pixels; in++) {
                int tap = tap_between(s, out, in);
                for (int ic = 0; tap >= 0 && ic < s->in_channels; ic++) {
                    to[(int64_t)ic * taps + tap] += row[place(ic, in, in_pixels, map->in_block)];
                }
            }
        }
    }
}
