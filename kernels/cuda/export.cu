/* Activations, masks and taps in NCHW order. */
#include "launch.h"

#include "ops.h"
#include "packet.h"

enum { THREADS = 256 };

/* Shape of one activation, NCHW outside. */
typedef struct plane_shape {
    int channels, pixels;
    int64_t count;
} plane_shape;

static plane_shape shape_of(int images, int channels, int height, int width)
{
    plane_shape s = {channels, height * width, (int64_t)images * channels * height * width};
    return s;
}

/* NCHW index to NHWC index, with `stored` channels a pixel; and back (stored = channels). */
LS_DEVICE int64_t inside_of(const plane_shape &s, int64_t i, int stored)
{
    int64_t plane = i / s.pixels, pixel = i % s.pixels;
    return (plane / s.channels * s.pixels + pixel) * stored + plane % s.channels;
}

LS_DEVICE int64_t outside_of(const plane_shape &s, int64_t i)
{
    int64_t pixel = i / s.channels, c = i % s.channels;
    return (pixel / s.pixels * s.channels + c) * s.pixels + pixel % s.pixels;
}

template <typename T> LS_KERNEL plain_kernel(const T *from, float *to, plane_shape s, int stored)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < s.count) {
        to[i] = ls_element_float(from[inside_of(s, i, stored)]);
    }
}

ls_status ls_export_plain(cudaStream_t stream, ls_dtype type, const void *from, float *to,
                          int images, int channels, int stored, int height, int width)
{
    plane_shape s = shape_of(images, channels, height, width);
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH(plain_kernel<T>, ls_launch_blocks(s.count, THREADS), THREADS, stream,
                            (const T *)from, to, s, stored));
    return LS_OK;
}

template <typename T> LS_KERNEL blocks_kernel(const T *from, float *to, plane_shape s, int width)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= s.count) {
        return;
    }
    int64_t plane = i / s.pixels, pixel = i % s.pixels, image = plane / s.channels;
    int height = s.pixels / width, y = (int)(pixel / width) + 3, x = (int)(pixel % width) + 3;
    int64_t row = image * ls_input_blocks(height) + y / 2;
    int64_t block = row * ls_input_blocks(width) + x / 2;
    int channel = (y % 2 * 2 + x % 2) * s.channels + (int)(plane % s.channels);
    to[i] = ls_element_float(from[block * LS_INPUT_BLOCK_CHANNELS + channel]);
}

ls_status ls_export_blocks(cudaStream_t stream, ls_dtype type, const void *from, float *to,
                           int images, int height, int width)
{
    plane_shape s = shape_of(images, 3, height, width);
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH(blocks_kernel<T>, ls_launch_blocks(s.count, THREADS), THREADS, stream,
                            (const T *)from, to, s, width));
    return LS_OK;
}

/* One thread per byte of bits. */
LS_KERNEL unpack_mask_kernel(const uint32_t *mask, uint8_t *bits, plane_shape s)
{
    int64_t byte = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    unsigned value = 0;
    for (int k = 0; k < 8 && byte * 8 + k < s.count; k++) {
        int64_t i = inside_of(s, byte * 8 + k, s.channels);
        value |= (mask[i >> 5] >> (i & 31) & 1u) << k;
    }
    if (byte * 8 < s.count) {
        bits[byte] = (uint8_t)value;
    }
}

/* One thread per word of the mask. */
LS_KERNEL pack_mask_kernel(uint32_t *mask, const uint8_t *bits, plane_shape s)
{
    int64_t word = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    uint32_t value = 0;
    for (int k = 0; k < 32 && word * 32 + k < s.count; k++) {
        int64_t i = outside_of(s, word * 32 + k);
        value |= ((uint32_t)bits[i >> 3] >> (i & 7) & 1u) << k;
    }
    if (word * 32 < s.count) {
        mask[word] = value;
    }
}

ls_status ls_export_mask(cudaStream_t stream, uint32_t *mask, uint8_t *bits, int images,
                         int channels, int height, int width, bool packing)
{
    plane_shape s = shape_of(images, channels, height, width);
    if (packing) {
        LS_LAUNCH(pack_mask_kernel, ls_launch_blocks(s.count, THREADS * 32), THREADS, stream, mask,
                  (const uint8_t *)bits, s);
    } else {
        LS_LAUNCH(unpack_mask_kernel, ls_launch_blocks(s.count, THREADS * 8), THREADS, stream,
                  (const uint32_t *)mask, bits, s);
    }
    return LS_OK;
}

/* One thread per output, in NCHW order. */
LS_KERNEL taps_kernel(ls_pool_shape p, plane_shape s, uint8_t *tap, int32_t *index, bool packing,
                      int32_t *outside)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= s.count) {
        return;
    }
    int pixel = (int)(i % s.pixels);
    int top = pixel / p.out_width * p.stride - p.pad, left = pixel % p.out_width * p.stride - p.pad;
    int64_t at = inside_of(s, i, s.channels);
    if (!packing) {
        int t = tap[at];
        index[i] = (top + t / p.kernel) * p.width + left + t % p.kernel;
        return;
    }
    int32_t given = index[i];
    int row = given / p.width - top, column = given % p.width - left;
    if (given < 0 || given >= p.height * p.width || row < 0 || row >= p.kernel || column < 0 ||
        column >= p.kernel) {
        atomicOr(outside, 1);
        return;
    }
    tap[at] = (uint8_t)(row * p.kernel + column);
}

ls_status ls_export_taps(cudaStream_t stream, const ls_pool_shape *shape, uint8_t *tap,
                         int32_t *index, bool packing, int32_t *outside)
{
    plane_shape s = shape_of(shape->images, shape->channels, shape->out_height, shape->out_width);
    LS_LAUNCH(taps_kernel, ls_launch_blocks(s.count, THREADS), THREADS, stream, *shape, s, tap,
              index, packing, outside);
    return LS_OK;
}
