#include "kernels/cuda/launch.h"

#include "kernels/core/half.h"
#include "conv.h"
#include "kernels/cuda/ops.h"

enum { THREADS = 256 };

static const unsigned BLOCKS = 1024;

/* Of a grid that walks over `count` elements. */
static unsigned blocks_for(int64_t count)
{
    unsigned blocks = ls_launch_blocks(count, THREADS);
    return blocks < BLOCKS ? blocks : BLOCKS;
}

LS_DEVICE float value_of(ls_dtype type, uint16_t half)
{
    return type == LS_F16 ? ls_half_fp16_to_f32(half) : ls_half_bf16_to_f32(half);
}

LS_DEVICE uint16_t half_of(ls_dtype type, float value)
{
    return type == LS_F16 ? ls_half_f32_to_fp16(value) : ls_half_f32_to_bf16(value);
}

/* 32 bits that look random. */
LS_DEVICE uint32_t mixed(uint64_t i)
{
    uint64_t z = (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 32) * UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(z >> 32);
}

LS_KERNEL fill_kernel(uint16_t *x, int64_t count)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        x[i] = ls_half_f32_to_fp16((float)(8 + (mixed((uint64_t)i) & 7)));
    }
}

ls_status ls_fuse_fill(cudaStream_t stream, uint16_t *x, int64_t count)
{
    LS_LAUNCH(fill_kernel, blocks_for(count), THREADS, stream, x, count);
    return LS_OK;
}

/* Neighbouring inputs have opposite weights; the last of an odd number has none. */
LS_DEVICE int cancelling(int64_t i, int c, int in, int most)
{
    int value = (int)(mixed((uint64_t)(i - (c & 1))) % (uint32_t)(2 * most + 1)) - most;
    return c == in - 1 && in % 2 != 0 ? 0 : (c & 1) != 0 ? -value : value;
}

/* Input c's share of `sum`, in integers that add up to it. */
LS_DEVICE int share(int sum, int c, int in)
{
    return (int)((int64_t)sum * (c + 1) / in - (int64_t)sum * c / in);
}

LS_KERNEL fill_weight_kernel(uint16_t *w, int out, int taps, int in, int centre, int most, int unit)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x, count = (int64_t)out * taps * in;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int c = (int)(i % in), tap = (int)(i / in % taps), k = (int)(i / in / taps);
        int times = k % 4 == 0 ? 0 : k % 4 == 1 ? 1 : k % 4 == 2 ? 4 : 8;
        int value = cancelling(i, c, in, most);
        if (tap == centre) {
            int more = share(times * unit, c, in);
            value += k / 4 % 2 == 0 ? more : -more;
        }
        w[i] = ls_half_f32_to_fp16((float)value);
    }
}

ls_status ls_fuse_fill_weight(cudaStream_t stream, uint16_t *w, int out, int taps, int in,
                              int centre, int most, int unit)
{
    LS_LAUNCH(fill_weight_kernel, blocks_for((int64_t)out * taps * in), THREADS, stream, w, out,
              taps, in, centre, most, unit);
    return LS_OK;
}

/* As numbers: 0 equals -0. NaN equals nothing. */
LS_KERNEL differ_kernel(const uint16_t *a, const uint16_t *b, int64_t count, int channels,
                        unsigned *first)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        if (!(ls_half_fp16_to_f32(a[i]) == ls_half_fp16_to_f32(b[i]))) {
            atomicMin(first, (unsigned)(i / channels));
        }
    }
}

ls_status ls_fuse_differ(cudaStream_t stream, const uint16_t *a, const uint16_t *b, int64_t rows,
                         int channels, unsigned *first)
{
    LS_LAUNCH(differ_kernel, blocks_for(rows * channels), THREADS, stream, a, b, rows * channels,
              channels, first);
    return LS_OK;
}

/* ---- gated gradients ------------------------------------------------------------------------- */

LS_KERNEL fill_integers_kernel(ls_dtype type, uint16_t *to, int64_t count, int most)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int value = (int)(mixed((uint64_t)i + (uint64_t)most) % (uint32_t)(2 * most + 1)) - most;
        to[i] = half_of(type, (float)value);
    }
}

ls_status ls_fuse_fill_integers(cudaStream_t stream, ls_dtype type, uint16_t *to, int64_t count,
                                int most)
{
    LS_LAUNCH(fill_integers_kernel, blocks_for(count), THREADS, stream, type, to, count, most);
    return LS_OK;
}

LS_KERNEL ones_kernel(float *to, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        to[i] = 1;
    }
}

ls_status ls_fuse_ones(cudaStream_t stream, float *to, int64_t count)
{
    LS_LAUNCH(ones_kernel, ls_launch_blocks(count, THREADS), THREADS, stream, to, count);
    return LS_OK;
}

/* `shift`: to the channel whose values it gets. */
LS_KERNEL fill_norm_kernel(float *mean, float *scale, float *bias, int channels, int shift)
{
    int at = (int)(blockIdx.x * blockDim.x + threadIdx.x), c = at + shift;
    if (at >= channels) {
        return;
    }
    int far = c % 4 == 0 ? 0 : c % 4 == 1 ? 5 : c % 4 == 2 ? 18 : 37;
    int kind = c / 8 % 4;
    mean[at] = (float)(c / 4 % 2 == 0 ? far : -far);
    scale[at] = kind == 0 ? 1.0f : kind == 1 ? -1.0f : kind == 2 ? 2.0f : -0.5f;
    bias[at] = (float)(c % 7 - 3);
}

ls_status ls_fuse_fill_norm(cudaStream_t stream, float *mean, float *scale, float *bias,
                            int channels, bool second)
{
    enum { SHIFT = 13 }; /* another mean, scale and bias */
    LS_LAUNCH(fill_norm_kernel, ls_launch_blocks(channels, THREADS), THREADS, stream, mean, scale,
              bias, channels, second ? SHIFT : 0);
    return LS_OK;
}

LS_KERNEL fill_normed_kernel(uint16_t *x, const float *mean, int64_t count, int channels,
                             uint64_t seed)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        float more = (float)((int)(mixed(seed ^ (uint64_t)i) & 15) - 7);
        x[i] = ls_half_f32_to_fp16(mean[i % channels] + more);
    }
}

ls_status ls_fuse_fill_normed(cudaStream_t stream, uint16_t *x, const float *mean, int64_t rows,
                              int channels, bool second)
{
    uint64_t seed = second ? UINT64_C(0x5555555555555555) : ~UINT64_C(0);
    LS_LAUNCH(fill_normed_kernel, blocks_for(rows * channels), THREADS, stream, x, mean,
              rows * channels, channels, seed);
    return LS_OK;
}

LS_DEVICE float normed_at(const ls_fuse_normed &n, int64_t i, int c)
{
    float x = n.x == NULL ? 0 : ls_half_fp16_to_f32(n.x[i]);
    return n.mean == NULL ? x : (x - n.mean[c]) * n.scale[c] + n.bias[c];
}

LS_KERNEL gate_kernel(uint16_t *g, ls_fuse_normed first, ls_fuse_normed second, int64_t count,
                      int channels)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int c = (int)(i % channels);
        if (!(normed_at(first, i, c) + normed_at(second, i, c) > 0)) {
            g[i] = 0;
        }
    }
}

ls_status ls_fuse_gate(cudaStream_t stream, uint16_t *g, ls_fuse_normed first,
                       ls_fuse_normed second, int64_t rows, int channels)
{
    LS_LAUNCH(gate_kernel, blocks_for(rows * channels), THREADS, stream, g, first, second,
              rows * channels, channels);
    return LS_OK;
}

/* blockIdx.y: the part of the rows; sums of integers do not depend on their order. */
LS_KERNEL gate_sums_kernel(const uint16_t *g, const uint16_t *x, const float *mean, int64_t rows,
                           int channels, unsigned long long *list)
{
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (c >= channels) {
        return;
    }
    long long middle = (long long)mean[c], sum[4] = {0, 0, 0, 0};
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        long long value = (long long)ls_half_fp16_to_f32(g[row * channels + c]);
        long long other = (long long)ls_half_fp16_to_f32(x[row * channels + c]) - middle;
        sum[0] += value;
        sum[1] += value * value;
        sum[2] += value * other;
        sum[3] += value * other * (value * other);
    }
    for (int k = 0; k < 4; k++) {
        atomicAdd(&list[(int64_t)k * channels + c], (unsigned long long)sum[k]);
    }
}

ls_status ls_fuse_gate_sums(cudaStream_t stream, const uint16_t *g, const uint16_t *x,
                            const float *mean, int64_t rows, int channels, unsigned long long *list)
{
    unsigned parts = rows < (int64_t)BLOCKS ? (unsigned)rows : BLOCKS;
    LS_LAUNCH(gate_sums_kernel, dim3(ls_launch_blocks(channels, THREADS), parts), THREADS, stream,
              g, x, mean, rows, channels, list);
    return LS_OK;
}

/* ---- applied norms --------------------------------------------------------------------------- */

/* Of a channel: the middle of x, the scale, and the output there. The two of a pair differ in the
 * bias, so that an applied padding does not cancel where their weights do. */
LS_DEVICE void applied_channel(int c, int *middle, int *scale, int *output)
{
    int kind = c / 2 % 4;
    *middle = (kind == 0 ? 0 : kind == 1 ? 5 : kind == 2 ? -18 : 1007) - (c & 1) * 2;
    *scale = kind == 0 ? 1 : kind == 1 ? -1 : kind == 2 ? 2 : 3;
    *output = kind == 0 ? 4 : kind == 1 ? 3 : 5;
}

LS_KERNEL fill_applied_kernel(uint16_t *x, uint16_t *scale, uint16_t *bias, int64_t count,
                              int channels)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int middle, factor, output;
        applied_channel((int)(i % channels), &middle, &factor, &output);
        x[i] = ls_half_f32_to_fp16((float)(middle + (int)(mixed(~(uint64_t)i) & 15) - 7));
        if (i < channels) {
            scale[i] = ls_half_f32_to_fp16((float)factor);
            bias[i] = ls_half_f32_to_fp16((float)(output - middle * factor));
        }
    }
}

ls_status ls_fuse_fill_applied(cudaStream_t stream, uint16_t *x, uint16_t *scale, uint16_t *bias,
                               int64_t rows, int channels)
{
    LS_LAUNCH(fill_applied_kernel, blocks_for(rows * channels), THREADS, stream, x, scale, bias,
              rows * channels, channels);
    return LS_OK;
}

/* A thread makes a word of the mask. The product of two f16 is exact in f32. */
LS_KERNEL apply_kernel(const uint16_t *x, const uint16_t *scale, const uint16_t *bias, uint16_t *y,
                       uint32_t *mask, int64_t count, int channels)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x, words = (count + 31) / 32;
    for (int64_t w = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; w < words; w += step) {
        uint32_t open = 0;
        for (int64_t i = 32 * w; i < count && i < 32 * (w + 1); i++) {
            int c = (int)(i % channels);
            float value = fmaf(ls_half_fp16_to_f32(x[i]), ls_half_fp16_to_f32(scale[c]),
                               ls_half_fp16_to_f32(bias[c]));
            y[i] = ls_half_f32_to_fp16(value <= 0 ? 0 : value);
            open |= ls_half_fp16_to_f32(y[i]) > 0 ? 1u << (i % 32) : 0u;
        }
        if (mask != NULL) {
            mask[w] = open;
        }
    }
}

ls_status ls_fuse_apply(cudaStream_t stream, const uint16_t *x, const uint16_t *scale,
                        const uint16_t *bias, uint16_t *y, uint32_t *mask, int64_t rows,
                        int channels)
{
    LS_LAUNCH(apply_kernel, blocks_for((rows * channels + 31) / 32), THREADS, stream, x, scale,
              bias, y, mask, rows * channels, channels);
    return LS_OK;
}

/* ---- a gradient that is added to another ----------------------------------------------------- */

/* The place of sample s among `total` elements, which looks random (SplitMix64). */
LS_DEVICE int64_t place_of(int s, int64_t total)
{
    uint64_t z = ((uint64_t)s + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (int64_t)((z ^ z >> 31) % (uint64_t)total);
}

/* One output pixel's products for the channel c of the input. */
LS_DEVICE int pixel_sum(ls_dtype type, const ls_conv_shape &s, const uint16_t *dy,
                        const uint16_t *w, int64_t pixel, int tap, int c)
{
    int taps = s.kernel * s.kernel, sum = 0;
    for (int o = 0; o < s.out_channels; o++) {
        float g = value_of(type, dy[pixel * s.out_channels + o]);
        float weight = value_of(type, w[((int64_t)o * taps + tap) * s.in_channels + c]);
        sum += (int)g * (int)weight;
    }
    return sum;
}

LS_KERNEL wanted_kernel(ls_dtype type, ls_conv_shape s, const uint16_t *dy, const uint16_t *w,
                        const uint16_t *before, int samples, uint16_t *wanted)
{
    int sample = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (sample >= samples) {
        return;
    }
    int64_t total = (int64_t)s.batch * s.in_height * s.in_width * s.in_channels;
    int64_t at = place_of(sample, total), n = at / s.in_channels / s.in_width / s.in_height;
    int c = (int)(at % s.in_channels), x = (int)(at / s.in_channels % s.in_width);
    int y = (int)(at / s.in_channels / s.in_width % s.in_height);
    int sum = (int)value_of(type, before[at]);
    for (int tap = 0; tap < s.kernel * s.kernel; tap++) {
        int oy = y + s.pad - tap / s.kernel, ox = x + s.pad - tap % s.kernel;
        if (oy >= 0 && ox >= 0 && oy % s.stride == 0 && ox % s.stride == 0 &&
            oy / s.stride < s.out_height && ox / s.stride < s.out_width) {
            int64_t pixel = (n * s.out_height + oy / s.stride) * s.out_width + ox / s.stride;
            sum += pixel_sum(type, s, dy, w, pixel, tap, c);
        }
    }
    wanted[sample] = half_of(type, (float)sum);
}

ls_status ls_conv_onto_wanted(cudaStream_t stream, ls_dtype type, const ls_conv_shape *shape,
                              const uint16_t *dy, const uint16_t *w, const uint16_t *before,
                              int samples, uint16_t *wanted)
{
    LS_LAUNCH(wanted_kernel, ls_launch_blocks(samples, THREADS), THREADS, stream, type, *shape, dy,
              w, before, samples, wanted);
    return LS_OK;
}

/* As numbers: 0 equals -0. NaN equals nothing. */
LS_KERNEL differing_kernel(ls_dtype type, int64_t total, const uint16_t *dx, const uint16_t *wanted,
                           int samples, unsigned *count)
{
    int s = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (s < samples && !(value_of(type, dx[place_of(s, total)]) == value_of(type, wanted[s]))) {
        atomicAdd(count, 1u);
    }
}

ls_status ls_conv_onto_differing(cudaStream_t stream, ls_dtype type, int64_t total,
                                 const uint16_t *dx, const uint16_t *wanted, int samples,
                                 unsigned *count)
{
    LS_LAUNCH(differing_kernel, ls_launch_blocks(samples, THREADS), THREADS, stream, type, total,
              dx, wanted, samples, count);
    return LS_OK;
}
