#include "norm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/core/log.h"

enum { LANES = LS_PLANES_LANES };

void ls_norm_stats_free(ls_norm_stats *stats)
{
    free(stats->mean);
    free(stats->inv_std);
    stats->mean = NULL;
    stats->inv_std = NULL;
}

/* Mean and summed squared deviations of LANES channels over `pixels` neighbouring pixels; two
 * passes.
 */
static void moments(const double *x, int64_t pixels, int pitch, double *mean, double *square)
{
    double sum[LANES] = {0};
    memset(square, 0, LANES * sizeof *square);
    for (int64_t p = 0; p < pixels; p++) {
        for (int l = 0; l < LANES; l++) {
            sum[l] += x[p * pitch + l];
        }
    }
    for (int l = 0; l < LANES; l++) {
        mean[l] = sum[l] / (double)pixels;
    }
    for (int64_t p = 0; p < pixels; p++) {
        for (int l = 0; l < LANES; l++) {
            double distance = x[p * pitch + l] - mean[l];
            square[l] += distance * distance;
        }
    }
}

static double inverse_deviation(ls_norm_form form, double variance)
{
    switch (form) {
    case LS_NORM_EPSILON_1E3:
        return 1.0 / sqrt(variance + 1e-3);
    case LS_NORM_EPSILON_NONE:
        return 1.0 / sqrt(variance);
    case LS_NORM_EPSILON_OUTSIDE:
        return 1.0 / (sqrt(variance) + LS_NORM_EPSILON);
    case LS_NORM_MOMENTS_IN_HALF:
        return 1.0 / sqrt(ls_bits_round(LS_BITS_F16, variance) + LS_NORM_EPSILON);
    case LS_NORM_RIGHT:
    case LS_NORM_VARIANCES_AVERAGED:
    case LS_NORM_OWN_SUMS:
        break;
    }
    return 1.0 / sqrt(variance + LS_NORM_EPSILON);
}

/* Summed squared deviations of each chunk from its own mean, over the chunks from `chunk` on. */
static void own_squares(const ls_norm_stats *stats, const ls_shards *shards, const double *x,
                        int64_t plane, int pitch, int chunk, double *square)
{
    double mean[LANES], own[LANES];
    memset(square, 0, LANES * sizeof *square);
    for (int c = 0; c < stats->group_chunks; c++) {
        int64_t pixels = ls_shards_count(shards, chunk + c, 1) * plane;
        moments(x, pixels, pitch, mean, own);
        x += pixels * pitch;
        for (int l = 0; l < LANES; l++) {
            square[l] += own[l];
        }
    }
}

static double channel_of(const double *list, int index, int channels)
{
    return index < channels ? list[index] : 0.0;
}

static void forward_block(const ls_planes *in, const double *weight, const double *bias,
                          const ls_shards *shards, ls_bits_type store, ls_norm_stats *stats,
                          ls_planes *out, int group, int first)
{
    int64_t plane = (int64_t)in->height * in->width;
    int chunk = group * stats->group_chunks;
    int64_t pixels = ls_shards_count(shards, chunk, stats->group_chunks) * plane;
    int64_t start = ls_shards_first(shards, chunk) * plane * in->pitch + first;
    double *mean = stats->mean + (int64_t)group * in->pitch + first;
    double *inv_std = stats->inv_std + (int64_t)group * in->pitch + first;
    const double *x = in->value + start;
    double *y = out->value + start;
    double square[LANES], scale[LANES], shift[LANES];
    moments(x, pixels, in->pitch, mean, square);
    if (stats->form == LS_NORM_VARIANCES_AVERAGED) {
        own_squares(stats, shards, x, plane, in->pitch, chunk, square);
    }
    for (int l = 0; l < LANES; l++) {
        inv_std[l] = inverse_deviation(stats->form, square[l] / (double)pixels);
        if (stats->form == LS_NORM_MOMENTS_IN_HALF) {
            mean[l] = ls_bits_round(LS_BITS_F16, mean[l]);
        }
        mean[l] = ls_bits_round(store, mean[l]);
        inv_std[l] = ls_bits_round(store, inv_std[l]);
        scale[l] = inv_std[l] * channel_of(weight, first + l, in->channels);
        shift[l] = channel_of(bias, first + l, in->channels);
    }
    for (int64_t p = 0; p < pixels; p++) {
        for (int l = 0; l < LANES; l++) {
            y[p * in->pitch + l] = (x[p * in->pitch + l] - mean[l]) * scale[l] + shift[l];
        }
    }
}

ls_status ls_norm_forward(const ls_planes *in, const double *weight, const double *bias,
                          const ls_shards *shards, int group_chunks, ls_bits_type store,
                          ls_norm_stats *stats, ls_planes *out)
{
    LS_ASSERT(in->samples == ls_shards_samples(shards) && shards->world % group_chunks == 0);
    stats->groups = ls_shards_chunks(shards) / group_chunks;
    stats->group_chunks = group_chunks;
    size_t bytes = (size_t)stats->groups * (size_t)in->pitch * sizeof(double);
    stats->mean = malloc(bytes);
    stats->inv_std = malloc(bytes);
    if (stats->mean == NULL || stats->inv_std == NULL) {
        ls_log_error("oracle: cannot allocate %zu bytes of statistics", 2 * bytes);
        ls_norm_stats_free(stats);
        return LS_ERR_INFRA;
    }
    int blocks = in->pitch / LANES;
#pragma omp parallel for schedule(dynamic)
    for (int task = 0; task < stats->groups * blocks; task++) {
        forward_block(in, weight, bias, shards, store, stats, out, task / blocks,
                      task % blocks * LANES);
    }
    return LS_OK;
}

/* Sums of LANES channels over one chunk: out_grad and out_grad * xhat. */
static void chunk_sums(const double *x, const double *grad, int64_t pixels, int pitch,
                       const double *mean, const double *inv_std, double *sum, double *sum_xhat)
{
    for (int64_t p = 0; p < pixels; p++) {
        for (int l = 0; l < LANES; l++) {
            double g = grad[p * pitch + l];
            sum[l] += g;
            sum_xhat[l] += g * ((x[p * pitch + l] - mean[l]) * inv_std[l]);
        }
    }
}

/* in_grad = weight * inv_std * (g - mean(g) - xhat * mean(g * xhat)), the means over the group's
 * `count` pixels. */
static void input_grad(const double *x, const double *grad, int64_t pixels, int64_t count,
                       int pitch, const double *mean, const double *inv_std, const double *scale,
                       const double *sum, const double *sum_xhat, double *in_grad)
{
    double mean_g[LANES], mean_gx[LANES];
    for (int l = 0; l < LANES; l++) {
        mean_g[l] = sum[l] / (double)count;
        mean_gx[l] = sum_xhat[l] / (double)count;
    }
    for (int64_t p = 0; p < pixels; p++) {
        for (int l = 0; l < LANES; l++) {
            int64_t i = p * pitch + l;
            double xhat = (x[i] - mean[l]) * inv_std[l];
            in_grad[i] = scale[l] * (grad[i] - mean_g[l] - xhat * mean_gx[l]);
        }
    }
}

static void backward_block(const ls_planes *in, const double *weight, const ls_norm_stats *stats,
                           const ls_shards *shards, ls_bits_type store, const ls_planes *out_grad,
                           ls_planes *in_grad, double *weight_grad, double *bias_grad, int group,
                           int first)
{
    int pitch = in->pitch, channels = in->channels;
    int chunks = stats->group_chunks;
    int64_t plane = (int64_t)in->height * in->width;
    int64_t start = ls_shards_first(shards, group * chunks) * plane * pitch + first;
    const double *mean = stats->mean + (int64_t)group * pitch + first;
    const double *inv_std = stats->inv_std + (int64_t)group * pitch + first;
    double whole[LANES] = {0}, whole_xhat[LANES] = {0}, scale[LANES];
    int64_t pixels = ls_shards_count(shards, group * chunks, chunks) * plane;
    for (int l = 0; l < LANES; l++) {
        scale[l] = inv_std[l] * channel_of(weight, first + l, channels);
    }
    for (int c = 0; c < chunks; c++) {
        double sum[LANES] = {0}, sum_xhat[LANES] = {0};
        int chunk = group * chunks + c;
        int64_t at = ls_shards_first(shards, chunk) * plane * pitch + first;
        int64_t part = ls_shards_count(shards, chunk, 1) * plane;
        chunk_sums(in->value + at, out_grad->value + at, part, pitch, mean, inv_std, sum, sum_xhat);
        for (int l = 0; l < LANES; l++) {
            whole[l] += ls_bits_round(store, sum[l]);
            whole_xhat[l] += ls_bits_round(store, sum_xhat[l]);
            if (first + l < channels) {
                bias_grad[(int64_t)chunk * channels + first + l] = sum[l];
                weight_grad[(int64_t)chunk * channels + first + l] = sum_xhat[l];
            }
        }
        if (stats->form == LS_NORM_OWN_SUMS) {
            input_grad(in->value + at, out_grad->value + at, part, pixels, pitch, mean, inv_std,
                       scale, sum, sum_xhat, in_grad->value + at);
        }
    }
    for (int l = 0; l < LANES; l++) {
        whole[l] = ls_bits_round(store, whole[l]);
        whole_xhat[l] = ls_bits_round(store, whole_xhat[l]);
    }
    if (stats->form != LS_NORM_OWN_SUMS) {
        input_grad(in->value + start, out_grad->value + start, pixels, pixels, pitch, mean, inv_std,
                   scale, whole, whole_xhat, in_grad->value + start);
    }
}

ls_status ls_norm_backward(const ls_planes *in, const double *weight, const ls_norm_stats *stats,
                           const ls_shards *shards, ls_bits_type store, const ls_planes *out_grad,
                           ls_planes *in_grad, double *weight_grad, double *bias_grad)
{
    LS_ASSERT(in->samples == ls_shards_samples(shards));
    int blocks = in->pitch / LANES;
#pragma omp parallel for schedule(dynamic)
    for (int task = 0; task < stats->groups * blocks; task++) {
        backward_block(in, weight, stats, shards, store, out_grad, in_grad, weight_grad, bias_grad,
                       task / blocks, task % blocks * LANES);
    }
    return LS_OK;
}
