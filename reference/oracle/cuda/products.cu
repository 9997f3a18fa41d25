/* The products of loops.h on a device: one thread sums one output in one fixed order. */
#include "launch.h"

#include "loops.h"

enum { THREADS = 128 };

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

LS_KERNEL input_grad_kernel(geometry g, const double *out_grad, const double *packed,
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

/* ---- on the host ----------------------------------------------------------------------------- */

static int64_t weights_of(const geometry &g)
{
    return (int64_t)g.kernel * g.kernel * g.in_channels * g.out_channels;
}

/* Forward, or backward to the input. */
static ls_status walk(const geometry &g, bool forward, const ls_planes *from, const double *weight,
                      ls_planes *to, ls_device_arrays *arrays)
{
    double *in, *plain, *packed, *out;
    LS_TRY(ls_device_put(arrays, from->value, ls_planes_count(from), &in));
    LS_TRY(ls_device_put(arrays, weight, weights_of(g), &plain));
    LS_TRY(ls_device_take(arrays, weights_of(g), &packed));
    LS_TRY(ls_device_take(arrays, ls_planes_count(to), &out));
    LS_DEVICE_CALL(cudaMemset(out, 0, (size_t)ls_planes_count(to) * sizeof *out));
    LS_LAUNCH(pack_kernel, ls_launch_blocks(weights_of(g), THREADS), THREADS, (cudaStream_t)NULL, g,
              plain, forward, packed);
    unsigned blocks = ls_launch_blocks(ls_planes_pixels(to) * to->channels, THREADS);
    if (forward) {
        LS_LAUNCH(forward_kernel, blocks, THREADS, (cudaStream_t)NULL, g, in, packed, out);
    } else {
        LS_LAUNCH(input_grad_kernel, blocks, THREADS, (cudaStream_t)NULL, g, in, packed, out);
    }
    return ls_device_get(out, ls_planes_count(to), to->value);
}

ls_status ls_products_cuda_forward(ls_loops_shape shape, const ls_planes *in, const double *weight,
                                   ls_planes *out)
{
    ls_device_arrays arrays = {};
    ls_status status = walk(geometry_of(shape, in, out), true, in, weight, out, &arrays);
    ls_device_give(&arrays);
    return status;
}

ls_status ls_products_cuda_input_grad(ls_loops_shape shape, const ls_planes *out_grad,
                                      const double *weight, ls_planes *in_grad)
{
    ls_device_arrays arrays = {};
    ls_status status =
        walk(geometry_of(shape, in_grad, out_grad), false, out_grad, weight, in_grad, &arrays);
    ls_device_give(&arrays);
    return status;
}

static ls_status sum_weights(const geometry &g, const ls_planes *in, const ls_planes *out_grad,
                             const ls_shards *shards, double *weight_grad, ls_device_arrays *arrays)
{
    double *x, *dy, *to;
    int64_t weights = weights_of(g);
    LS_TRY(ls_device_put(arrays, in->value, ls_planes_count(in), &x));
    LS_TRY(ls_device_put(arrays, out_grad->value, ls_planes_count(out_grad), &dy));
    LS_TRY(ls_device_take(arrays, weights, &to));
    for (int chunk = 0; chunk < ls_shards_chunks(shards); chunk++) {
        LS_LAUNCH(weight_grad_kernel, ls_launch_blocks(weights, THREADS), THREADS,
                  (cudaStream_t)NULL, g, x, dy, ls_shards_first(shards, chunk),
                  ls_shards_count(shards, chunk, 1), to);
        LS_TRY(ls_device_get(to, weights, weight_grad + chunk * weights));
    }
    return LS_OK;
}

ls_status ls_products_cuda_weight_grad(ls_loops_shape shape, const ls_planes *in,
                                       const ls_planes *out_grad, const ls_shards *shards,
                                       double *weight_grad)
{
    ls_device_arrays arrays = {};
    ls_status status =
        sum_weights(geometry_of(shape, in, out_grad), in, out_grad, shards, weight_grad, &arrays);
    ls_device_give(&arrays);
    return status;
}
