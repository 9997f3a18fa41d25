/* The batch norm of norm.h on a device, only the right form: a block sums one channel of one chunk
 * or group, by halves in shared memory. */
#include "launch.h"

#include <math.h>
#include <stdlib.h>

#include "loops.h"

enum { THREADS = 128 };

LS_DEVICE double block_sum(double value)
{
    LS_SHARED(double, part, THREADS);
    __syncthreads();
    part[threadIdx.x] = value;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            part[threadIdx.x] += part[threadIdx.x + half];
        }
    }
    __syncthreads();
    return part[0];
}

/* Mean and sum of squared deviations of channel blockIdx.x over `pixels` pixels, in two passes. */
LS_KERNEL moments_kernel(const double *x, int64_t pixels, int pitch, double *mean, double *square)
{
    const double *from = x + blockIdx.x;
    double sum = 0;
    for (int64_t p = threadIdx.x; p < pixels; p += THREADS) {
        sum += from[p * pitch];
    }
    double middle = block_sum(sum) / (double)pixels, squares = 0;
    for (int64_t p = threadIdx.x; p < pixels; p += THREADS) {
        double distance = from[p * pitch] - middle;
        squares += distance * distance;
    }
    squares = block_sum(squares);
    if (threadIdx.x == 0) {
        mean[blockIdx.x] = middle;
        square[blockIdx.x] = squares;
    }
}

LS_KERNEL normalise_kernel(const double *x, int64_t count, int pitch, const double *mean,
                           const double *scale, const double *shift, double *y)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) {
        int64_t c = i % pitch;
        y[i] = (x[i] - mean[c]) * scale[c] + shift[c];
    }
}

/* For channel blockIdx.x: sums of g and of g * xhat. */
LS_KERNEL sums_kernel(const double *x, const double *g, int64_t pixels, int pitch,
                      const double *mean, const double *inv_std, double *sum, double *sum_xhat)
{
    int64_t c = blockIdx.x;
    double plain = 0, weighted = 0;
    for (int64_t p = threadIdx.x; p < pixels; p += THREADS) {
        double value = g[p * pitch + c];
        plain += value;
        weighted += value * ((x[p * pitch + c] - mean[c]) * inv_std[c]);
    }
    plain = block_sum(plain);
    weighted = block_sum(weighted);
    if (threadIdx.x == 0) {
        sum[c] = plain;
        sum_xhat[c] = weighted;
    }
}

LS_KERNEL input_grad_kernel(const double *x, const double *g, int64_t count, int pitch,
                            const double *mean, const double *inv_std, const double *scale,
                            const double *mean_g, const double *mean_gx, double *in_grad)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count) {
        int64_t c = i % pitch;
        double xhat = (x[i] - mean[c]) * inv_std[c];
        in_grad[i] = scale[c] * (g[i] - mean_g[c] - xhat * mean_gx[c]);
    }
}

/* ---- on the host ----------------------------------------------------------------------------- */

/* Lists with one value per channel in one block of host memory. */
enum { LISTS = 8 };
typedef struct lists {
    double *of[LISTS];
} lists;

static ls_status make_lists(int pitch, lists *out)
{
    double *memory = (double *)calloc((size_t)LISTS * (size_t)pitch, sizeof *memory);
    LS_TRY_MEMORY(memory != NULL, "statistics of %d channels", pitch);
    for (int i = 0; i < LISTS; i++) {
        out->of[i] = memory + (int64_t)i * pitch;
    }
    return LS_OK;
}

static ls_status forward_group(const ls_planes *in, const double *weight, const double *bias,
                               int64_t start, int64_t pixels, ls_bits_type store, bool in_half,
                               double *mean, double *inv_std, ls_planes *out, lists *host,
                               ls_device_arrays *arrays)
{
    int pitch = in->pitch;
    int64_t count = pixels * pitch;
    double *x, *y, *on_mean, *square, *scale, *shift;
    LS_TRY(ls_device_put(arrays, in->value + start, count, &x));
    LS_TRY(ls_device_take(arrays, count, &y));
    LS_TRY(ls_device_take(arrays, pitch, &on_mean));
    LS_TRY(ls_device_take(arrays, pitch, &square));
    LS_LAUNCH(moments_kernel, (unsigned)pitch, THREADS, (cudaStream_t)NULL, x, pixels, pitch,
              on_mean, square);
    LS_TRY(ls_device_get(on_mean, pitch, mean));
    LS_TRY(ls_device_get(square, pitch, inv_std));
    for (int c = 0; c < pitch; c++) {
        double variance = inv_std[c] / (double)pixels;
        mean[c] = ls_bits_round(store, mean[c]);
        inv_std[c] = ls_bits_round(store, 1.0 / sqrt(variance + LS_NORM_EPSILON));
        host->of[0][c] = c < in->channels ? inv_std[c] * weight[c] : 0;
        host->of[1][c] = c < in->channels ? bias[c] : 0;
        if (in_half) {
            double scale_half = ls_bits_round(LS_BITS_F16, host->of[0][c]);
            double offset = ls_bits_round(LS_BITS_F16, host->of[1][c] - mean[c] * scale_half);
            host->of[0][c] = scale_half;
            host->of[1][c] = offset + mean[c] * scale_half;
        }
    }
    LS_DEVICE_CALL(cudaMemcpy(on_mean, mean, (size_t)pitch * sizeof *mean, cudaMemcpyHostToDevice));
    LS_TRY(ls_device_put(arrays, host->of[0], pitch, &scale));
    LS_TRY(ls_device_put(arrays, host->of[1], pitch, &shift));
    LS_LAUNCH(normalise_kernel, ls_launch_blocks(count, THREADS), THREADS, (cudaStream_t)NULL, x,
              count, pitch, on_mean, scale, shift, y);
    return ls_device_get(y, count, out->value + start);
}

ls_status ls_norm_cuda_forward(const ls_planes *in, const double *weight, const double *bias,
                               const ls_shards *shards, int group_chunks, ls_bits_type store,
                               ls_norm_stats *stats, ls_planes *out)
{
    LS_ASSERT(stats->form == LS_NORM_RIGHT);
    int64_t plane = (int64_t)in->height * in->width;
    stats->groups = ls_shards_chunks(shards) / group_chunks;
    stats->group_chunks = group_chunks;
    size_t bytes = (size_t)stats->groups * (size_t)in->pitch * sizeof(double);
    stats->mean = (double *)malloc(bytes); /* ls_norm_stats_free frees them */
    stats->inv_std = (double *)malloc(bytes);
    lists host = {};
    ls_status status = make_lists(in->pitch, &host);
    if (status == LS_OK && (stats->mean == NULL || stats->inv_std == NULL)) {
        ls_log_error("oracle: cannot allocate %zu bytes of statistics", 2 * bytes);
        status = LS_ERR_INFRA;
    }
    for (int group = 0; status == LS_OK && group < stats->groups; group++) {
        ls_device_arrays arrays = {};
        int chunk = group * group_chunks;
        status = forward_group(in, weight, bias, ls_shards_first(shards, chunk) * plane * in->pitch,
                               ls_shards_count(shards, chunk, group_chunks) * plane, store,
                               stats->in_half, stats->mean + (int64_t)group * in->pitch,
                               stats->inv_std + (int64_t)group * in->pitch, out, &host, &arrays);
        ls_device_give(&arrays);
    }
    free(host.of[0]);
    if (status != LS_OK) {
        free(stats->mean);
        free(stats->inv_std);
        stats->mean = stats->inv_std = NULL;
    }
    return status;
}

/* Arguments of one group's backward. */
typedef struct group_call {
    const ls_planes *in, *out_grad;
    const ls_shards *shards;
    int chunk, chunks; /* of the group */
    ls_bits_type store;
    const double *weight, *mean, *inv_std;
    double *weight_grad, *bias_grad; /* [all chunks][channels] */
} group_call;

/* Each chunk's sums, rounded as stored, and their total per channel. */
static ls_status group_sums(const group_call &g, const double *x, const double *dy,
                            const double *mean, const double *inv_std, double *sum,
                            double *sum_xhat, lists *host)
{
    int pitch = g.in->pitch, channels = g.in->channels;
    int64_t plane = (int64_t)g.in->height * g.in->width, at = 0;
    for (int chunk = g.chunk; chunk < g.chunk + g.chunks; chunk++) {
        int64_t pixels = ls_shards_count(g.shards, chunk, 1) * plane;
        LS_LAUNCH(sums_kernel, (unsigned)pitch, THREADS, (cudaStream_t)NULL, x + at, dy + at,
                  pixels, pitch, mean, inv_std, sum, sum_xhat);
        LS_TRY(ls_device_get(sum, pitch, host->of[0]));
        LS_TRY(ls_device_get(sum_xhat, pitch, host->of[1]));
        for (int c = 0; c < channels; c++) {
            g.bias_grad[(int64_t)chunk * channels + c] = host->of[0][c];
            g.weight_grad[(int64_t)chunk * channels + c] = host->of[1][c];
        }
        for (int c = 0; c < pitch; c++) {
            host->of[2][c] += ls_bits_round(g.store, host->of[0][c]);
            host->of[3][c] += ls_bits_round(g.store, host->of[1][c]);
        }
        at += pixels * pitch;
    }
    return LS_OK;
}

static ls_status backward_group(const group_call &g, int64_t start, int64_t pixels,
                                ls_planes *in_grad, lists *host, ls_device_arrays *arrays)
{
    int pitch = g.in->pitch;
    int64_t count = pixels * pitch;
    double *x, *dy, *dx, *mean, *inv_std, *sum, *sum_xhat, *scale, *mean_g, *mean_gx;
    LS_TRY(ls_device_put(arrays, g.in->value + start, count, &x));
    LS_TRY(ls_device_put(arrays, g.out_grad->value + start, count, &dy));
    LS_TRY(ls_device_take(arrays, count, &dx));
    LS_TRY(ls_device_put(arrays, g.mean, pitch, &mean));
    LS_TRY(ls_device_put(arrays, g.inv_std, pitch, &inv_std));
    LS_TRY(ls_device_take(arrays, pitch, &sum));
    LS_TRY(ls_device_take(arrays, pitch, &sum_xhat));
    LS_TRY(group_sums(g, x, dy, mean, inv_std, sum, sum_xhat, host));
    for (int c = 0; c < pitch; c++) {
        host->of[4][c] = c < g.in->channels ? g.inv_std[c] * g.weight[c] : 0;
        host->of[5][c] = ls_bits_round(g.store, host->of[2][c]) / (double)pixels;
        host->of[6][c] = ls_bits_round(g.store, host->of[3][c]) / (double)pixels;
    }
    LS_TRY(ls_device_put(arrays, host->of[4], pitch, &scale));
    LS_TRY(ls_device_put(arrays, host->of[5], pitch, &mean_g));
    LS_TRY(ls_device_put(arrays, host->of[6], pitch, &mean_gx));
    LS_LAUNCH(input_grad_kernel, ls_launch_blocks(count, THREADS), THREADS, (cudaStream_t)NULL, x,
              dy, count, pitch, mean, inv_std, scale, mean_g, mean_gx, dx);
    return ls_device_get(dx, count, in_grad->value + start);
}

ls_status ls_norm_cuda_backward(const ls_planes *in, const double *weight,
                                const ls_norm_stats *stats, const ls_shards *shards,
                                ls_bits_type store, const ls_planes *out_grad, ls_planes *in_grad,
                                double *weight_grad, double *bias_grad)
{
    LS_ASSERT(stats->form == LS_NORM_RIGHT);
    int64_t plane = (int64_t)in->height * in->width;
    ls_status status = LS_OK;
    for (int group = 0; status == LS_OK && group < stats->groups; group++) {
        group_call g = {};
        lists host = {};
        ls_device_arrays arrays = {};
        g.in = in;
        g.out_grad = out_grad;
        g.shards = shards;
        g.chunk = group * stats->group_chunks;
        g.chunks = stats->group_chunks;
        g.store = store;
        g.weight = weight;
        g.mean = stats->mean + (int64_t)group * in->pitch;
        g.inv_std = stats->inv_std + (int64_t)group * in->pitch;
        g.weight_grad = weight_grad;
        g.bias_grad = bias_grad;
        status = make_lists(in->pitch, &host);
        if (status == LS_OK) {
            status = backward_group(g, ls_shards_first(shards, g.chunk) * plane * in->pitch,
                                    ls_shards_count(shards, g.chunk, g.chunks) * plane, in_grad,
                                    &host, &arrays);
        }
        ls_device_give(&arrays);
        free(host.of[0]);
    }
    return status;
}
