/* Converts the image to NHWC, padded to whole packets of 16 bytes. */
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

/* One thread per pixel; blocks along y process image after image. */
template <typename T>
LS_KERNEL pack_kernel(T *to, const float *from, int images, int channels, int stored, int pixels)
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
                value[j] = c < channels ? from[(n * channels + c) * pixels + pixel] : 0;
            }
            ls_packet_set(&packet, value);
            ls_packet_store(to + (n * pixels + pixel) * stored + first, packet);
        }
    }
}

ls_status ls_input_pack(cudaStream_t stream, ls_dtype type, void *to, const float *from, int images,
                        int channels, int height, int width)
{
    int stored = ls_input_stored_channels(type, channels);
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH(pack_kernel<T>, grid_of(images, height * width), THREADS, stream,
                            (T *)to, from, images, channels, stored, height * width));
    return LS_OK;
}

enum { MOST_BYTE_CHANNELS = 4 };

typedef struct normalisation {
    float mean[MOST_BYTE_CHANNELS], std[MOST_BYTE_CHANNELS];
} normalisation;

/* One packet holds all channels of a pixel. */
template <typename T>
LS_KERNEL pack_u8_kernel(T *to, const uint8_t *from, int images, int channels, int pixels,
                         normalisation norm)
{
    enum { V = 16 / sizeof(T) };
    int pixel = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (pixel >= pixels) {
        return;
    }
    for (int64_t n = blockIdx.y; n < images; n += gridDim.y) {
        float value[V] = {};
        ls_packet<T, V> packet;
        LS_UNROLL
        for (int c = 0; c < MOST_BYTE_CHANNELS; c++) {
            if (c < channels) {
                float byte = (float)from[(n * pixels + pixel) * channels + c];
                value[c] = (byte / 255.0f - norm.mean[c]) / norm.std[c];
            }
        }
        ls_packet_set(&packet, value);
        ls_packet_store(to + (n * pixels + pixel) * V, packet);
    }
}

ls_status ls_input_pack_u8(cudaStream_t stream, ls_dtype type, void *to, const uint8_t *from,
                           int images, int channels, int height, int width, const float *mean,
                           const float *std)
{
    normalisation norm = {};
    LS_ASSERT(channels <= MOST_BYTE_CHANNELS);
    for (int c = 0; c < channels; c++) {
        norm.mean[c] = mean[c];
        norm.std[c] = std[c];
    }
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH(pack_u8_kernel<T>, grid_of(images, height * width), THREADS, stream,
                            (T *)to, from, images, channels, height * width, norm));
    return LS_OK;
}
