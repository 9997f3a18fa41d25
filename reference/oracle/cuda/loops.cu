/* The loops of ../loops.h on a device, the entry points of ls_oracle_cuda.so. Of products one
 * thread sums one output in one fixed order. Of a batch norm, only in the right form, a block sums
 * one channel of one chunk or group, by halves in shared memory. */
#include "launch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "reference/oracle/loops.h"
}

enum { THREADS = 128, ARRAYS = 12, CHANNELS_MOST = 4096 /* of a batch norm */ };

#define LAUNCH(kernel, blocks, ...) \
    LS_LAUNCH(kernel, blocks, THREADS, (cudaStream_t)NULL, __VA_ARGS__)

/* Doubles on the device while one operation runs. */
struct arrays {
    void *memory[ARRAYS] = {};
    int count = 0;
    ~arrays()
    {
        for (int i = 0; i < count; i++) {
            (void)cudaFree(memory[i]);
        }
    }
};

static ls_status take(arrays *to, int64_t count, double **out)
{
    void *memory = NULL;
    LS_ASSERT(to->count < ARRAYS);
    LS_DEVICE_CALL(cudaMalloc(&memory, (size_t)(count > 0 ? count : 1) * sizeof **out));
    to->memory[to->count++] = memory;
    *out = (double *)memory;
    return LS_OK;
}

static ls_status put(arrays *to, const double *host, int64_t count, double **out)
{
    LS_TRY(take(to, count, out));
    LS_DEVICE_CALL(cudaMemcpy(*out, host, (size_t)count * sizeof *host, cudaMemcpyHostToDevice));
    return LS_OK;
}

/* Waits for the preceding kernels. */
static ls_status get(const double *device, int64_t count, double *host)
{
    LS_DEVICE_CALL(cudaMemcpy(host, device, (size_t)count * sizeof *host, cudaMemcpyDeviceToHost));
    return LS_OK;
}

/* ---- products -------------------------------------------------------------------------------- */

/* Sizes of two planes and a shape: in_* is the image side, out_* the output side. */
typedef struct geometry {
    int kernel, stride, pad;
    int samples, in_height, in_width, in_channels, in_pitch;
    int out_height, out_width, out_channels, out_pitch;
} geometry;

static geometry geometry_of(ls_loops_shape shape, const ls_planes *in, const ls_planes *out)
{
    geometry g = {};
    g.kernel = shape.kernel;
    g.stride = shape.stride;
    g.pad = shape.pad;
    g.samples = in->samples;
    g.in_height = in->height;
    g.in_width = in->width;
    g.in_channels = in->channels;
    g.in_pitch = in->pitch;
    g.out_height = out->height;
    g.out_width = out->width;
    g.out_channels = out->channels;
    g.out_pitch = out->pitch;
    return g;
}

/* Converts weight[out][in][tap] to [tap][summed channel][result channel], so that consecutive
 * threads read consecutive values. */
LS_KERNEL pack_kernel(geometry g, const double *weight, bool forward, double *packed)
{
    int64_t taps = (int64_t)g.kernel * g.kernel;
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= taps * g.in_channels * g.out_channels) {
        return;
    }
    int64_t tap = i % taps, in = i / taps % g.in_channels, out = i / taps / g.in_channels;
    packed[forward ? (tap * g.in_channels + in) * g.out_channels + out
                   : (tap * g.out_channels + out) * g.in_channels + in] = weight[i];
}

LS_KERNEL forward_kernel(geometry g, const double *in, const double *packed, double *out)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t pixel = i / g.out_channels, o = i % g.out_channels;
    int64_t n = pixel / g.out_width / g.out_height;
    if (n >= g.samples) {
        return;
    }
    int y0 = (int)(pixel / g.out_width % g.out_height) * g.stride - g.pad;
    int x0 = (int)(pixel % g.out_width) * g.stride - g.pad;
    double sum = 0;
    for (int t = 0; t < g.kernel * g.kernel; t++) {
        int y = y0 + t / g.kernel, x = x0 + t % g.kernel;
        if (y < 0 || y >= g.in_height || x < 0 || x >= g.in_width) {
            continue;
        }
        const double *from = in + ((n * g.in_height + y) * g.in_width + x) * g.in_pitch;
        const double *weight = packed + (int64_t)t * g.in_channels * g.out_channels + o;
        for (int c = 0; c < g.in_channels; c++) {
            sum += from[c] * weight[(int64_t)c * g.out_channels];
        }
    }
    out[pixel * g.out_pitch + o] = sum;
}

LS_KERNEL data_grad_kernel(geometry g, const double *out_grad, const double *packed,
                           double *in_grad)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t pixel = i / g.in_channels, c = i % g.in_channels;
    int64_t n = pixel / g.in_width / g.in_height;
    if (n >= g.samples) {
        return;
    }
    int y0 = (int)(pixel / g.in_width % g.in_height) + g.pad;
    int x0 = (int)(pixel % g.in_width) + g.pad;
    double sum = 0;
    for (int t = 0; t < g.kernel * g.kernel; t++) {
        int y = y0 - t / g.kernel, x = x0 - t % g.kernel;
        if (y < 0 || y % g.stride != 0 || y / g.stride >= g.out_height || x < 0 ||
            x % g.stride != 0 || x / g.stride >= g.out_width) {
            continue;
        }
        int64_t source = (n * g.out_height + y / g.stride) * g.out_width + x / g.stride;
        const double *from = out_grad + source * g.out_pitch;
        const double *weight = packed + (int64_t)t * g.out_channels * g.in_channels + c;
        for (int o = 0; o < g.out_channels; o++) {
            sum += from[o] * weight[(int64_t)o * g.in_channels];
        }
    }
    in_grad[pixel * g.in_pitch + c] = sum;
}

/* Sums over samples first .. first+count-1; to[out][in][tap]. Consecutive threads compute
 * consecutive outputs. */
LS_KERNEL weight_grad_kernel(geometry g, const double *in, const double *out_grad, int64_t first,
                             int64_t count, double *to)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t o = i % g.out_channels, c = i / g.out_channels % g.in_channels;
    int64_t tap = i / g.out_channels / g.in_channels, taps = (int64_t)g.kernel * g.kernel;
    if (tap >= taps) {
        return;
    }
    int ky = (int)tap / g.kernel - g.pad, kx = (int)tap % g.kernel - g.pad;
    double sum = 0;
    for (int64_t n = first; n < first + count; n++) {
        for (int y = 0; y < g.out_height; y++) {
            int in_y = y * g.stride + ky;
            if (in_y < 0 || in_y >= g.in_height) {
                continue;
            }
            for (int x = 0; x < g.out_width; x++) {
                int in_x = x * g.stride + kx;
                if (in_x >= 0 && in_x < g.in_width) {
                    sum += in[((n * g.in_height + in_y) * g.in_width + in_x) * g.in_pitch + c] *
                           out_grad[((n * g.out_height + y) * g.out_width + x) * g.out_pitch + o];
                }
            }
        }
    }
    to[(o * g.in_channels + c) * taps + tap] = sum;
}

static int64_t weights_of(const geometry &g)
{
    return (int64_t)g.kernel * g.kernel * g.in_channels * g.out_channels;
}

/* Forward, or backward to the input. */
static ls_status walk(const geometry &g, bool forward, const ls_planes *from, const double *weight,
                      ls_planes *to)
{
    arrays arrays;
    double *in, *plain, *packed, *out;
    LS_TRY(put(&arrays, from->value, ls_planes_count(from), &in));
    LS_TRY(put(&arrays, weight, weights_of(g), &plain));
    LS_TRY(take(&arrays, weights_of(g), &packed));
    LS_TRY(take(&arrays, ls_planes_count(to), &out));
    LS_DEVICE_CALL(cudaMemset(out, 0, (size_t)ls_planes_count(to) * sizeof *out));
    LAUNCH(pack_kernel, ls_launch_blocks(weights_of(g), THREADS), g, plain, forward, packed);
    unsigned blocks = ls_launch_blocks(ls_planes_pixels(to) * to->channels, THREADS);
    if (forward) {
        LAUNCH(forward_kernel, blocks, g, in, packed, out);
    } else {
        LAUNCH(data_grad_kernel, blocks, g, in, packed, out);
    }
    return get(out, ls_planes_count(to), to->value);
}

static ls_status products_forward(ls_loops_shape shape, const ls_planes *in, const double *weight,
                                  ls_planes *out)
{
    return walk(geometry_of(shape, in, out), true, in, weight, out);
}

static ls_status products_input_grad(ls_loops_shape shape, const ls_planes *out_grad,
                                     const double *weight, ls_planes *in_grad)
{
    return walk(geometry_of(shape, in_grad, out_grad), false, out_grad, weight, in_grad);
}

static ls_status products_weight_grad(ls_loops_shape shape, const ls_planes *in,
                                      const ls_planes *out_grad, const ls_shards *shards,
                                      double *weight_grad)
{
    arrays arrays;
    double *x, *dy, *to;
    const geometry g = geometry_of(shape, in, out_grad);
    int64_t weights = weights_of(g);
    LS_TRY(put(&arrays, in->value, ls_planes_count(in), &x));
    LS_TRY(put(&arrays, out_grad->value, ls_planes_count(out_grad), &dy));
    LS_TRY(take(&arrays, weights, &to));
    for (int chunk = 0; chunk < ls_shards_chunks(shards); chunk++) {
        LAUNCH(weight_grad_kernel, ls_launch_blocks(weights, THREADS), g, x, dy,
               ls_shards_first(shards, chunk), ls_shards_count(shards, chunk, 1), to);
        LS_TRY(get(to, weights, weight_grad + chunk * weights));
    }
    return LS_OK;
}

/* ---- batch norm ------------------------------------------------------------------------------ */

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

/* One group of chunks: its values' place, and its statistics. */
typedef struct group {
    int chunk, chunks, pitch;
    int64_t start, pixels, count; /* of doubles; count of all */
    double *mean, *inv_std;
} group;

static group group_of(const ls_planes *in, const ls_norm_stats *stats, const ls_shards *shards,
                      int number)
{
    group g = {};
    int64_t plane = (int64_t)in->height * in->width;
    LS_ASSERT(in->pitch <= CHANNELS_MOST);
    g.chunks = stats->group_chunks;
    g.chunk = number * g.chunks;
    g.pitch = in->pitch;
    g.start = ls_shards_first(shards, g.chunk) * plane * in->pitch;
    g.pixels = ls_shards_count(shards, g.chunk, g.chunks) * plane;
    g.count = g.pixels * in->pitch;
    g.mean = stats->mean + (int64_t)number * in->pitch;
    g.inv_std = stats->inv_std + (int64_t)number * in->pitch;
    return g;
}

static ls_status forward_group(const group &g, const ls_planes *in, const double *weight,
                               const double *bias, ls_bits_type store, bool in_half, ls_planes *out)
{
    arrays arrays;
    double *x, *y, *mean, *square, *on_scale, *on_shift;
    double scale[CHANNELS_MOST], shift[CHANNELS_MOST];
    LS_TRY(put(&arrays, in->value + g.start, g.count, &x));
    LS_TRY(take(&arrays, g.count, &y));
    LS_TRY(take(&arrays, g.pitch, &mean));
    LS_TRY(take(&arrays, g.pitch, &square));
    LAUNCH(moments_kernel, (unsigned)g.pitch, x, g.pixels, g.pitch, mean, square);
    LS_TRY(get(mean, g.pitch, g.mean));
    LS_TRY(get(square, g.pitch, g.inv_std));
    for (int c = 0; c < g.pitch; c++) {
        double variance = g.inv_std[c] / (double)g.pixels;
        g.mean[c] = ls_bits_round(store, g.mean[c]);
        g.inv_std[c] = ls_bits_round(store, 1.0 / sqrt(variance + LS_NORM_EPSILON));
        scale[c] = c < in->channels ? g.inv_std[c] * weight[c] : 0;
        shift[c] = c < in->channels ? bias[c] : 0;
        if (in_half) {
            scale[c] = ls_bits_round(LS_BITS_F16, scale[c]);
            shift[c] =
                ls_bits_round(LS_BITS_F16, shift[c] - g.mean[c] * scale[c]) + g.mean[c] * scale[c];
        }
    }
    LS_TRY(put(&arrays, g.mean, g.pitch, &mean));
    LS_TRY(put(&arrays, scale, g.pitch, &on_scale));
    LS_TRY(put(&arrays, shift, g.pitch, &on_shift));
    LAUNCH(normalise_kernel, ls_launch_blocks(g.count, THREADS), x, g.count, g.pitch, mean,
           on_scale, on_shift, y);
    return get(y, g.count, out->value + g.start);
}

static ls_status norm_forward(const ls_planes *in, const double *weight, const double *bias,
                              const ls_shards *shards, int group_chunks, ls_bits_type store,
                              ls_norm_stats *stats, ls_planes *out)
{
    LS_ASSERT(stats->form == LS_NORM_RIGHT);
    stats->groups = ls_shards_chunks(shards) / group_chunks;
    stats->group_chunks = group_chunks;
    size_t bytes = (size_t)stats->groups * (size_t)in->pitch * sizeof(double);
    stats->mean = (double *)malloc(bytes); /* ls_norm_stats_free frees them */
    stats->inv_std = (double *)malloc(bytes);
    LS_MEMORY(stats->mean != NULL && stats->inv_std != NULL);
    for (int k = 0; k < stats->groups; k++) {
        LS_TRY(forward_group(group_of(in, stats, shards, k), in, weight, bias, store,
                             stats->in_half, out));
    }
    return LS_OK;
}

/* Each chunk's sums of g and of g * xhat; of the group the means, of sums rounded as stored. */
static ls_status group_sums(const group &g, const ls_planes *in, const ls_shards *shards,
                            ls_bits_type store, const double *x, const double *dy,
                            const double *mean, const double *inv_std, arrays *arrays,
                            double *weight_grad, double *bias_grad, double *mean_g, double *mean_gx)
{
    double *sum, *sum_xhat, own[CHANNELS_MOST], own_xhat[CHANNELS_MOST];
    int64_t plane = (int64_t)in->height * in->width, at = 0, channels = in->channels;
    LS_TRY(take(arrays, g.pitch, &sum));
    LS_TRY(take(arrays, g.pitch, &sum_xhat));
    for (int chunk = g.chunk; chunk < g.chunk + g.chunks; chunk++) {
        int64_t pixels = ls_shards_count(shards, chunk, 1) * plane;
        LAUNCH(sums_kernel, (unsigned)g.pitch, x + at, dy + at, pixels, g.pitch, mean, inv_std, sum,
               sum_xhat);
        LS_TRY(get(sum, g.pitch, own));
        LS_TRY(get(sum_xhat, g.pitch, own_xhat));
        memcpy(bias_grad + chunk * channels, own, (size_t)channels * sizeof *own);
        memcpy(weight_grad + chunk * channels, own_xhat, (size_t)channels * sizeof *own);
        for (int c = 0; c < g.pitch; c++) {
            mean_g[c] = (chunk == g.chunk ? 0 : mean_g[c]) + ls_bits_round(store, own[c]);
            mean_gx[c] = (chunk == g.chunk ? 0 : mean_gx[c]) + ls_bits_round(store, own_xhat[c]);
        }
        at += pixels * g.pitch;
    }
    for (int c = 0; c < g.pitch; c++) {
        mean_g[c] = ls_bits_round(store, mean_g[c]) / (double)g.pixels;
        mean_gx[c] = ls_bits_round(store, mean_gx[c]) / (double)g.pixels;
    }
    return LS_OK;
}

static ls_status norm_backward(const ls_planes *in, const double *weight,
                               const ls_norm_stats *stats, const ls_shards *shards,
                               ls_bits_type store, const ls_planes *out_grad, ls_planes *in_grad,
                               double *weight_grad, double *bias_grad)
{
    LS_ASSERT(stats->form == LS_NORM_RIGHT);
    for (int k = 0; k < stats->groups; k++) {
        const group g = group_of(in, stats, shards, k);
        arrays arrays;
        double *x, *dy, *dx, *mean, *inv_std, *on_scale, *on_g, *on_gx;
        double scale[CHANNELS_MOST], mean_g[CHANNELS_MOST], mean_gx[CHANNELS_MOST];
        LS_TRY(put(&arrays, in->value + g.start, g.count, &x));
        LS_TRY(put(&arrays, out_grad->value + g.start, g.count, &dy));
        LS_TRY(take(&arrays, g.count, &dx));
        LS_TRY(put(&arrays, g.mean, g.pitch, &mean));
        LS_TRY(put(&arrays, g.inv_std, g.pitch, &inv_std));
        LS_TRY(group_sums(g, in, shards, store, x, dy, mean, inv_std, &arrays, weight_grad,
                          bias_grad, mean_g, mean_gx));
        for (int c = 0; c < g.pitch; c++) {
            scale[c] = c < in->channels ? g.inv_std[c] * weight[c] : 0;
        }
        LS_TRY(put(&arrays, scale, g.pitch, &on_scale));
        LS_TRY(put(&arrays, mean_g, g.pitch, &on_g));
        LS_TRY(put(&arrays, mean_gx, g.pitch, &on_gx));
        LAUNCH(input_grad_kernel, ls_launch_blocks(g.count, THREADS), x, dy, g.count, g.pitch, mean,
               inv_std, on_scale, on_g, on_gx, dx);
        LS_TRY(get(dx, g.count, in_grad->value + g.start));
    }
    return LS_OK;
}

/* ---- the entry ------------------------------------------------------------------------------- */

static bool ready(char *why, int why_bytes)
{
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) {
        snprintf(why, (size_t)why_bytes, "%s",
                 error != cudaSuccess ? cudaGetErrorString(error) : "no device");
        return false;
    }
    cudaDeviceProp device;
    if (cudaGetDeviceProperties(&device, 0) == cudaSuccess) {
        snprintf(why, (size_t)why_bytes, "%s", device.name);
    }
    return true;
}

extern "C" const ls_loops *ls_loops_entry(void)
{
    static const ls_loops loops = {
        LS_LOOPS_ABI,         "cuda",       ready,        products_forward, products_input_grad,
        products_weight_grad, norm_forward, norm_backward};
    return &loops;
}
