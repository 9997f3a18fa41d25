#include "kernels/cuda/launch.h"

#include "kernels/core/half.h"
#include "conv.h"
#include "kernels/cuda/ops.h"

enum { THREADS = 256 };

LS_DEVICE float value_of(ls_dtype type, uint16_t half)
{
    return type == LS_F16 ? ls_half_fp16_to_f32(half) : ls_half_bf16_to_f32(half);
}

LS_DEVICE uint16_t half_of(ls_dtype type, float value)
{
    return type == LS_F16 ? ls_half_f32_to_fp16(value) : ls_half_f32_to_bf16(value);
}

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
