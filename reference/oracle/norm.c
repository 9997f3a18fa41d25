#include "norm.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"

enum { LANES = LS_PLANES_LANES };

void ls_norm_stats_free(ls_norm_stats *stats)
{
    free(stats->mean);
    free(stats->inv_std);
    stats->mean = NULL;
    stats->inv_std = NULL;
}

/* Mean and sum of squared deviations of LANES channels over `pixels` consecutive pixels, in two
 * passes. */
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
    case LS_NORM_OWN_MOMENTS:
    case LS_NORM_OWN_MOMENTS_COUNT:
        break;
    }
    return 1.0 / sqrt(variance + LS_NORM_EPSILON);
}

static bool own_moments(const ls_norm_stats *stats)
{
    return stats->form == LS_NORM_OWN_MOMENTS || stats->form == LS_NORM_OWN_MOMENTS_COUNT;
}

/* The number of consecutive chunks that share moments. */
static int moment_chunks(const ls_norm_stats *stats)
{
    return own_moments(stats) ? 1 : stats->group_chunks;
}

/* Sum of squared deviations of each chunk from its own mean, over the chunks from `chunk` on. */
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
    int chunk = group * moment_chunks(stats);
    int64_t pixels = ls_shards_count(shards, chunk, moment_chunks(stats)) * plane;
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
        if (stats->in_half) {
            scale[l] = ls_bits_round(LS_BITS_F16, scale[l]);
            shift[l] =
                ls_bits_round(LS_BITS_F16, shift[l] - mean[l] * scale[l]) + mean[l] * scale[l];
        }
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
    int parts = ls_shards_chunks(shards) / moment_chunks(stats);
    size_t bytes = (size_t)parts * (size_t)in->pitch * sizeof(double);
    stats->mean = malloc(bytes);
    stats->inv_std = malloc(bytes);
    LS_MEMORY(stats->mean != NULL && stats->inv_std != NULL);
    int blocks = in->pitch / LANES;
#pragma omp parallel for schedule(dynamic)
    for (int task = 0; task < parts * blocks; task++) {
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

/* Start of a chunk's values and statistics, LANES channels from `first` on. */
typedef struct chunk_at {
    int64_t offset, pixels;
    const double *mean, *inv_std;
} chunk_at;

static chunk_at find_chunk(const ls_planes *in, const ls_norm_stats *stats, const ls_shards *shards,
                           int chunk, int first)
{
    int64_t plane = (int64_t)in->height * in->width;
    int64_t row = (int64_t)(chunk / moment_chunks(stats)) * in->pitch + first;
    return (chunk_at){.offset = ls_shards_first(shards, chunk) * plane * in->pitch + first,
                      .pixels = ls_shards_count(shards, chunk, 1) * plane,
                      .mean = stats->mean + row,
                      .inv_std = stats->inv_std + row};
}

static void backward_block(const ls_planes *in, const double *weight, const ls_norm_stats *stats,
                           const ls_shards *shards, ls_bits_type store, const ls_planes *out_grad,
                           ls_planes *in_grad, double *weight_grad, double *bias_grad, int group,
                           int first)
{
    int pitch = in->pitch, channels = in->channels, chunks = stats->group_chunks;
    double whole[LANES] = {0}, whole_xhat[LANES] = {0};
    int64_t plane = (int64_t)in->height * in->width;
    int64_t all = ls_shards_count(shards, group * chunks, chunks) * plane;
    for (int c = group * chunks; c < (group + 1) * chunks; c++) {
        double sum[LANES] = {0}, sum_xhat[LANES] = {0}, scale[LANES];
        chunk_at at = find_chunk(in, stats, shards, c, first);
        chunk_sums(in->value + at.offset, out_grad->value + at.offset, at.pixels, pitch, at.mean,
                   at.inv_std, sum, sum_xhat);
        for (int l = 0; l < LANES; l++) {
            scale[l] = at.inv_std[l] * channel_of(weight, first + l, channels);
            whole[l] += ls_bits_round(store, sum[l]);
            /* SyncBN gathers sums of out_grad * (x - mean), and each rank divides by its own
             * deviation */
            double share = own_moments(stats) ? sum_xhat[l] / at.inv_std[l] : sum_xhat[l];
            whole_xhat[l] += ls_bits_round(store, share);
            if (first + l < channels) {
                bias_grad[(int64_t)c * channels + first + l] = sum[l];
                weight_grad[(int64_t)c * channels + first + l] = sum_xhat[l];
            }
        }
        if (stats->form == LS_NORM_OWN_SUMS) {
            input_grad(in->value + at.offset, out_grad->value + at.offset, at.pixels, all, pitch,
                       at.mean, at.inv_std, scale, sum, sum_xhat, in_grad->value + at.offset);
        }
    }
    for (int l = 0; l < LANES; l++) {
        whole[l] = ls_bits_round(store, whole[l]);
        whole_xhat[l] = ls_bits_round(store, whole_xhat[l]);
    }
    for (int c = group * chunks; c < (group + 1) * chunks && stats->form != LS_NORM_OWN_SUMS; c++) {
        chunk_at at = find_chunk(in, stats, shards, c, first);
        double sum_xhat[LANES], scale[LANES];
        for (int l = 0; l < LANES; l++) {
            scale[l] = at.inv_std[l] * channel_of(weight, first + l, channels);
            sum_xhat[l] = own_moments(stats) ? whole_xhat[l] * at.inv_std[l] : whole_xhat[l];
        }
        input_grad(in->value + at.offset, out_grad->value + at.offset, at.pixels,
                   stats->form == LS_NORM_OWN_MOMENTS_COUNT ? at.pixels : all, pitch, at.mean,
                   at.inv_std, scale, whole, sum_xhat, in_grad->value + at.offset);
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
