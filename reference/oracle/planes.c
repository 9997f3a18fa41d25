#include "planes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"

ls_status ls_planes_allocate(int samples, int height, int width, int channels, ls_planes *out)
{
    ls_planes planes = {.samples = samples, .height = height, .width = width, .channels = channels};
    planes.pitch = ls_planes_round_up(channels, LS_PLANES_LANES);
    size_t bytes = (size_t)ls_planes_count(&planes) * sizeof(double);
    planes.value = aligned_alloc(64, bytes); /* a multiple of 16 doubles */
    LS_TRY_MEMORY(planes.value != NULL, "%zu bytes for %dx%dx%dx%d", bytes, samples, channels,
                  height, width);
    memset(planes.value, 0, bytes);
    *out = planes;
    return LS_OK;
}

void ls_planes_free(ls_planes *planes)
{
    free(planes->value);
    planes->value = NULL;
}

/* Below this many elements a parallel loop costs more in waiting than it saves. */
enum { WORTH_THREADS = 1 << 15 };

static const double *pixel_at(const ls_planes *planes, int64_t sample, int64_t row, int64_t column)
{
    return planes->value +
           ((sample * planes->height + row) * planes->width + column) * planes->pitch;
}

void ls_planes_relu_branches(const ls_planes *in, uint8_t *open)
{
    LS_ASSERT(in->pitch == in->channels);
#pragma omp parallel for if (ls_planes_count(in) > WORTH_THREADS)
    for (int64_t i = 0; i < ls_planes_count(in); i++) {
        open[i] = in->value[i] > 0;
    }
}

void ls_planes_relu(const ls_planes *in, const uint8_t *open, ls_planes *out)
{
#pragma omp parallel for if (ls_planes_count(in) > WORTH_THREADS)
    for (int64_t i = 0; i < ls_planes_count(in); i++) {
        out->value[i] = open[i] != 0 ? in->value[i] : 0.0;
    }
}

typedef struct window {
    int row_from, row_to, column_from, column_to; /* inside the image */
} window;

static window window_of(const ls_nettab_node *node, const ls_planes *in, int row, int column)
{
    window w = {row * node->stride - node->pad, row * node->stride - node->pad + node->kernel,
                column * node->stride - node->pad,
                column * node->stride - node->pad + node->kernel};
    w.row_from = w.row_from < 0 ? 0 : w.row_from;
    w.column_from = w.column_from < 0 ? 0 : w.column_from;
    w.row_to = w.row_to > in->height ? in->height : w.row_to;
    w.column_to = w.column_to > in->width ? in->width : w.column_to;
    return w;
}

bool ls_planes_pool_inside(const ls_nettab_node *node, const ls_planes *in, int row, int column,
                           int32_t index)
{
    window w = window_of(node, in, row, column);
    if (index < 0) {
        return false;
    }
    int y = index / in->width, x = index % in->width;
    return y >= w.row_from && y < w.row_to && x >= w.column_from && x < w.column_to;
}

static void first_maxima(const ls_nettab_node *node, const ls_planes *in, int64_t sample, int row,
                         int column, int32_t *index)
{
    window w = window_of(node, in, row, column);
    for (int c = 0; c < in->channels; c++) {
        int32_t best = w.row_from * in->width + w.column_from;
        double most = pixel_at(in, sample, w.row_from, w.column_from)[c];
        for (int y = w.row_from; y < w.row_to; y++) {
            for (int x = w.column_from; x < w.column_to; x++) {
                double value = pixel_at(in, sample, y, x)[c];
                if (value > most) {
                    most = value;
                    best = y * in->width + x;
                }
            }
        }
        index[c] = best;
    }
}

void ls_planes_pool_branches(const ls_nettab_node *node, const ls_planes *in, int32_t *index)
{
    LS_ASSERT(in->pitch == in->channels);
#pragma omp parallel for
    for (int64_t line = 0; line < (int64_t)in->samples * node->height; line++) {
        for (int x = 0; x < node->width; x++) {
            first_maxima(node, in, line / node->height, (int)(line % node->height), x,
                         index + (line * node->width + x) * in->channels);
        }
    }
}

void ls_planes_pool(const ls_planes *in, const int32_t *index, ls_planes *out)
{
    int64_t per_sample = (int64_t)out->height * out->width * out->pitch;
    int64_t in_per_sample = (int64_t)in->height * in->width * in->pitch;
    int32_t plane = (int32_t)in->height * in->width;
#pragma omp parallel for if (ls_planes_count(out) > WORTH_THREADS)
    for (int64_t i = 0; i < ls_planes_count(out); i++) {
        int64_t at = i / per_sample * in_per_sample + (int64_t)index[i] * in->pitch + i % in->pitch;
        out->value[i] = index[i] >= 0 && index[i] < plane ? in->value[at] : 0.0;
    }
}

void ls_planes_pool_grad(const ls_planes *out_grad, const int32_t *index, ls_planes *in_grad)
{
    int64_t per_sample = (int64_t)out_grad->height * out_grad->width * out_grad->pitch;
    int64_t in_per_sample = (int64_t)in_grad->height * in_grad->width * in_grad->pitch;
    int32_t plane = (int32_t)in_grad->height * in_grad->width;
#pragma omp parallel for
    for (int64_t n = 0; n < out_grad->samples; n++) {
        double *to = in_grad->value + n * in_per_sample;
        for (int64_t i = n * per_sample; i < (n + 1) * per_sample; i++) {
            if (index[i] >= 0 && index[i] < plane) {
                to[(int64_t)index[i] * in_grad->pitch + i % out_grad->pitch] += out_grad->value[i];
            }
        }
    }
}

/* Copies the common channels between the node's pixels of `wide` and the pixels of `narrow`. */
static void copy_strided(const ls_nettab_node *node, double *wide, const ls_planes *wide_shape,
                         double *narrow, const ls_planes *narrow_shape, bool gather)
{
    int channels = wide_shape->channels < narrow_shape->channels ? wide_shape->channels
                                                                 : narrow_shape->channels;
#pragma omp parallel for
    for (int64_t p = 0; p < ls_planes_pixels(narrow_shape); p++) {
        int64_t x = p % narrow_shape->width, y = p / narrow_shape->width % narrow_shape->height;
        int64_t n = p / narrow_shape->width / narrow_shape->height;
        int64_t row = y * node->stride - node->pad, column = x * node->stride - node->pad;
        int64_t at = (n * wide_shape->height + row) * wide_shape->width + column;
        double *far = wide + at * wide_shape->pitch, *near = narrow + p * narrow_shape->pitch;
        for (int c = 0; c < channels; c++) {
            if (gather) {
                near[c] = far[c];
            } else {
                far[c] = near[c];
            }
        }
    }
}

void ls_planes_shortcut(const ls_nettab_node *node, const ls_planes *in, ls_planes *out)
{
    copy_strided(node, in->value, in, out->value, out, true);
}

void ls_planes_shortcut_grad(const ls_nettab_node *node, const ls_planes *out_grad,
                             ls_planes *in_grad)
{
    copy_strided(node, in_grad->value, in_grad, out_grad->value, out_grad, false);
}

void ls_planes_mean(const ls_planes *in, ls_planes *out)
{
    int64_t plane = (int64_t)in->height * in->width;
#pragma omp parallel for
    for (int64_t n = 0; n < in->samples; n++) {
        double *to = out->value + n * out->pitch;
        for (int64_t p = 0; p < plane; p++) {
            const double *from = in->value + (n * plane + p) * in->pitch;
            for (int c = 0; c < in->channels; c++) {
                to[c] += from[c];
            }
        }
        for (int c = 0; c < in->channels; c++) {
            to[c] /= (double)plane;
        }
    }
}

void ls_planes_mean_grad(const ls_planes *out_grad, ls_planes *in_grad)
{
    int64_t plane = (int64_t)in_grad->height * in_grad->width;
#pragma omp parallel for
    for (int64_t p = 0; p < ls_planes_pixels(in_grad); p++) {
        const double *from = out_grad->value + p / plane * out_grad->pitch;
        double *to = in_grad->value + p * in_grad->pitch;
        for (int c = 0; c < in_grad->channels; c++) {
            to[c] = from[c] / (double)plane;
        }
    }
}

void ls_planes_add(ls_planes *sum, const ls_planes *other)
{
#pragma omp parallel for if (ls_planes_count(sum) > WORTH_THREADS)
    for (int64_t i = 0; i < ls_planes_count(sum); i++) {
        sum->value[i] += other->value[i];
    }
}

void ls_planes_cross_entropy(const ls_planes *logits, const int64_t *target, double smoothing,
                             const double *factor, double *loss, ls_planes *logits_grad)
{
#pragma omp parallel for
    for (int64_t n = 0; n < logits->samples; n++) {
        const double *x = logits->value + n * logits->pitch;
        double *grad = logits_grad->value + n * logits->pitch;
        double most = x[0], sum = 0;
        for (int c = 1; c < logits->channels; c++) {
            most = x[c] > most ? x[c] : most;
        }
        for (int c = 0; c < logits->channels; c++) {
            sum += exp(x[c] - most);
        }
        double whole = most + log(sum), even = smoothing / logits->channels;
        loss[n] = whole - x[target[n]];
        loss[n] *= smoothing > 0.0 ? 1.0 - smoothing : 1.0;
        for (int c = 0; c < logits->channels; c++) {
            double wanted = even + (c == target[n] ? 1.0 - smoothing : 0.0);
            grad[c] = (exp(x[c] - most) / sum - wanted) * factor[n];
            loss[n] += smoothing > 0.0 ? even * (whole - x[c]) : 0.0;
        }
    }
}
