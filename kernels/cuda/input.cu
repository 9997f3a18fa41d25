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
