/* Converts the image to NHWC, padded to whole packets of 16 bytes, or to blocks of 2x2 pixels. */
#include "launch.h"

#include "ops.h"
#include "packet.h"

enum { THREADS = 256, MOST_IMAGES = 32768 };

int ls_input_stored_channels(ls_dtype type, int channels)
{
    int lanes = type == LS_F32 ? 4 : 8;
    return (channels + lanes - 1) / lanes * lanes;
}

static dim3 grid_of(int images, int pixels)
{
    return dim3(ls_launch_blocks(pixels, THREADS),
                (unsigned)(images < MOST_IMAGES ? images : MOST_IMAGES));
}

/* Element i of an image's channel, normalised. */
LS_DEVICE float value_of(const float *from, int64_t i, int channel, const ls_image_format &format)
{
    (void)channel;
    (void)format;
    return from[i];
}

/* The host's ls_transform_normalise, operation by operation. */
LS_DEVICE float value_of(const uint8_t *from, int64_t i, int channel, const ls_image_format &format)
{
    return ((float)from[i] / 255.0f - format.mean[channel]) / format.deviation[channel];
}

/* One thread per pixel; blocks along y process image after image. */
template <typename T, typename P>
LS_KERNEL pack_kernel(T *to, const P *from, ls_image_format format, int images, int channels,
                      int stored, int pixels)
{
    enum { V = 16 / sizeof(T) };
    int pixel = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (pixel >= pixels) {
        return;
    }
    for (int64_t n = blockIdx.y; n < images; n += gridDim.y) {
        for (int first = 0; first < stored; first += V) {
            float value[V];
            ls_packet<T, V> packet;
            LS_UNROLL
            for (int j = 0; j < V; j++) {
                int c = first + j;
                value[j] = c < channels
                               ? value_of(from, (n * channels + c) * pixels + pixel, c, format)
                               : 0;
            }
            ls_packet_set(&packet, value);
            ls_packet_store(to + (n * pixels + pixel) * stored + first, packet);
        }
    }
}

template <typename P>
static ls_status pack(cudaStream_t stream, ls_dtype type, void *to, const P *from,
                      const ls_image_format *format, int images, int channels, int pixels)
{
    int stored = ls_input_stored_channels(type, channels);
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH((pack_kernel<T, P>), grid_of(images, pixels), THREADS, stream, (T *)to,
                            from, *format, images, channels, stored, pixels));
    return LS_OK;
}

ls_status ls_input_pack(cudaStream_t stream, ls_dtype type, void *to, const void *from,
                        const ls_image_format *format, int images, int channels, int height,
                        int width)
{
    LS_ASSERT(format->type == LS_F32 || channels == 3);
    return format->type == LS_F32 ? pack(stream, type, to, (const float *)from, format, images,
                                         channels, height * width)
                                  : pack(stream, type, to, (const uint8_t *)from, format, images,
                                         channels, height * width);
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* One thread per block of pixels; its 12 values come from rows that its neighbours read, too. */
template <typename T, typename P>
LS_KERNEL pack_blocks_kernel(T *to, const P *from, ls_image_format format, int images, int height,
                             int width)
{
    enum { V = 16 / sizeof(T), CHANNELS = 3, STORED = LS_INPUT_BLOCK_CHANNELS };
    int across = ls_input_blocks(width), blocks = ls_input_blocks(height) * across;
    int block = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (block >= blocks) {
        return;
    }
    int top = block / across * 2 - 3, left = block % across * 2 - 3;
    for (int64_t n = blockIdx.y; n < images; n += gridDim.y) {
        LS_UNROLL
        for (int first = 0; first < STORED; first += V) {
            float value[V];
            ls_packet<T, V> packet;
            LS_UNROLL
            for (int j = 0; j < V; j++) {
                int pixel = (first + j) / CHANNELS, c = (first + j) % CHANNELS;
                int y = top + pixel / 2, x = left + pixel % 2;
                bool inside = pixel < 4 && y >= 0 && y < height && x >= 0 && x < width;
                value[j] = inside ? value_of(from, ((n * CHANNELS + c) * height + y) * width + x, c,
                                             format)
                                  : 0;
            }
            ls_packet_set(&packet, value);
            ls_packet_store(to + (n * blocks + block) * STORED + first, packet);
        }
    }
}

template <typename P>
static ls_status pack_blocks(cudaStream_t stream, ls_dtype type, void *to, const P *from,
                             const ls_image_format *format, int images, int height, int width)
{
    int blocks = ls_input_blocks(height) * ls_input_blocks(width);
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH((pack_blocks_kernel<T, P>), grid_of(images, blocks), THREADS, stream,
                            (T *)to, from, *format, images, height, width));
    return LS_OK;
}

ls_status ls_input_pack_blocks(cudaStream_t stream, ls_dtype type, void *to, const void *from,
                               const ls_image_format *format, int images, int height, int width)
{
    return format->type == LS_F32
               ? pack_blocks(stream, type, to, (const float *)from, format, images, height, width)
               : pack_blocks(stream, type, to, (const uint8_t *)from, format, images, height,
                             width);
}
