/* Operations without parameters: sums with their ReLU, sums of gradients, the padded shortcut, the
 * average over an image. */
#include "launch.h"

#include "kernels/core/plant.h"
#include "ops.h"
#include "packet.h"

enum { THREADS = 256, OCTET = 8 };

/* Eight elements, for one byte of the mask. */
template <typename T> struct octet {
    enum { V = 16 / sizeof(T), PACKETS = OCTET / V };
    ls_packet<T, V> packet[PACKETS];
};

template <typename T> LS_DEVICE void octet_load(octet<T> *to, const T *from)
{
    LS_UNROLL
    for (int i = 0; i < octet<T>::PACKETS; i++) {
        ls_packet_load(&to->packet[i], from + i * octet<T>::V);
    }
}

template <typename T> LS_DEVICE void octet_get(float *value, const octet<T> &from)
{
    LS_UNROLL
    for (int i = 0; i < octet<T>::PACKETS; i++) {
        ls_packet_get(value + i * octet<T>::V, from.packet[i]);
    }
}

template <typename T> LS_DEVICE void octet_store(T *to, const float *value)
{
    LS_UNROLL
    for (int i = 0; i < octet<T>::PACKETS; i++) {
        ls_packet<T, octet<T>::V> packet;
        ls_packet_set(&packet, value + i * octet<T>::V);
        ls_packet_store(to + i * octet<T>::V, packet);
    }
}

/* The elements of octet `i` as floats: all eight at once, or the last few one by one. */
template <typename T> LS_DEVICE void read_eight(float *value, const T *from, int64_t i, int count)
{
    if (count == OCTET) {
        octet<T> all;
        octet_load(&all, from + i * OCTET);
        octet_get(value, all);
        return;
    }
    for (int k = 0; k < OCTET; k++) {
        value[k] = k < count ? ls_element_float(from[i * OCTET + k]) : 0;
    }
}

template <typename T> LS_DEVICE void write_eight(T *to, int64_t i, int count, const float *value)
{
    if (count == OCTET) {
        octet_store(to + i * OCTET, value);
        return;
    }
    for (int k = 0; k < OCTET; k++) {
        if (k < count) {
            ls_element_set(&to[i * OCTET + k], value[k]);
        }
    }
}

LS_DEVICE int eight_count(int64_t i, int64_t count)
{
    int64_t left = count - i * OCTET;
    return left >= OCTET ? OCTET : (int)left;
}

/* ---- sums and gates -------------------------------------------------------------------------- */

template <typename T>
LS_KERNEL add_kernel(const T *x, const T *residual, T *y, uint8_t *mask, bool relu, bool given,
                     int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i * OCTET >= count) {
        return;
    }
    int n = eight_count(i, count);
    float value[OCTET], add[OCTET] = {};
    read_eight(value, x, i, n);
    if (residual != NULL) {
        read_eight(add, residual, i, n);
    }
    unsigned open = given ? mask[i] : 0;
    LS_UNROLL
    for (int k = 0; k < OCTET; k++) {
        value[k] = residual != NULL ? value[k] + add[k] : value[k];
        if (given) {
            value[k] = open >> k & 1u ? value[k] : 0;
        } else if (relu) { /* as torch's: keeps NaN, turns -0 into 0 */
            value[k] = value[k] <= 0 ? 0 : ls_element_round<T>(value[k]);
            open |= value[k] > 0 ? 1u << k : 0u;
        }
    }
    write_eight(y, i, n, value);
    if (mask != NULL && !given) {
        mask[i] = (uint8_t)open;
    }
}

ls_status ls_simple_add(cudaStream_t stream, ls_dtype type, const void *x, const void *residual,
                        void *y, uint32_t *mask, bool relu, bool given, int64_t count)
{
    unsigned blocks = ls_launch_blocks(count, THREADS * OCTET);
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH(add_kernel<T>, blocks, THREADS, stream, (const T *)x,
                            (const T *)residual, (T *)y, (uint8_t *)mask, relu, given, count));
    return LS_OK;
}

template <typename T>
LS_KERNEL gate_kernel(const T *dy, const T *dy2, const uint8_t *mask, T *g, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i * OCTET >= count) {
        return;
    }
    int n = eight_count(i, count);
    float value[OCTET], other[OCTET] = {};
    unsigned open = mask != NULL ? mask[i] : 0xffu;
    read_eight(value, dy, i, n);
    if (dy2 != NULL) {
        read_eight(other, dy2, i, n);
    }
    LS_UNROLL
    for (int k = 0; k < OCTET; k++) {
        value[k] = dy2 != NULL ? value[k] + other[k] : value[k];
        value[k] = open >> k & 1u ? value[k] : 0;
    }
    write_eight(g, i, n, value);
}

ls_status ls_simple_gate(cudaStream_t stream, ls_dtype type, const void *dy, const void *dy2,
                         const uint32_t *mask, void *g, int64_t count)
{
    unsigned blocks = ls_launch_blocks(count, THREADS * OCTET);
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH(gate_kernel<T>, blocks, THREADS, stream, (const T *)dy, (const T *)dy2,
                            (const uint8_t *)mask, (T *)g, count));
    return LS_OK;
}

/* ---- bias -------------------------------------------------------------------------------------
 */

template <typename T>
LS_KERNEL bias_kernel(const float *sums, const T *bias, T *y, int columns, int64_t count)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i * OCTET >= count) {
        return;
    }
    int n = eight_count(i, count);
    float value[OCTET];
    read_eight(value, sums, i, n);
    LS_UNROLL
    for (int k = 0; k < OCTET; k++) {
        float sum = LS_PLANT(cuda_bias_on_rounded_sums, value[k], ls_element_round<T>(value[k]));
        value[k] = sum + ls_element_float(bias[(i * OCTET + k) % columns]);
    }
    write_eight(y, i, n, value);
}

ls_status ls_simple_bias(cudaStream_t stream, ls_dtype type, const float *sums, const void *bias,
                         void *y, int rows, int columns)
{
    int64_t count = (int64_t)rows * columns;
    unsigned blocks = ls_launch_blocks(count, THREADS * OCTET);
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH(bias_kernel<T>, blocks, THREADS, stream, sums, (const T *)bias, (T *)y,
                            columns, count));
    return LS_OK;
}

/* ---- the padded shortcut: a copy, so the stored bits are moved as they are ------------------- */

/* Shapes of the operation's input and output. */
typedef struct shortcut_shape {
    int height, width, channels, stride, out_height, out_width, out_channels;
} shortcut_shape;

static shortcut_shape shape_of(int height, int width, int channels, int stride, int out_channels)
{
    shortcut_shape s = {height, width, channels, stride, 0, 0, out_channels};
    s.out_height = (height + stride - 1) / stride;
    s.out_width = (width + stride - 1) / stride;
    return s;
}

/* One block per row of the output. */
template <typename T> LS_KERNEL shortcut_kernel(const T *x, T *y, shortcut_shape s)
{
    int image = (int)blockIdx.x / s.out_height, h = (int)blockIdx.x % s.out_height;
    const T *from = x + ((int64_t)image * s.height + h * s.stride) * s.width * s.channels;
    T *to = y + (int64_t)blockIdx.x * s.out_width * s.out_channels;
    for (int i = (int)threadIdx.x; i < s.out_width * s.out_channels; i += THREADS) {
        int w = i / s.out_channels, c = i % s.out_channels;
        T value = {};
        if (c < s.channels) {
            value = from[(int64_t)w * s.stride * s.channels + c];
        }
        to[i] = value;
    }
}

ls_status ls_simple_shortcut(cudaStream_t stream, ls_dtype type, const void *x, void *y, int images,
                             int height, int width, int channels, int stride, int out_channels)
{
    shortcut_shape s = shape_of(height, width, channels, stride, out_channels);
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH(shortcut_kernel<T>, (unsigned)(images * s.out_height), THREADS, stream,
                            (const T *)x, (T *)y, s));
    return LS_OK;
}

/* One block per row of the input. */
template <typename T> LS_KERNEL shortcut_back_kernel(const T *dy, T *dx, shortcut_shape s)
{
    int image = (int)blockIdx.x / s.height, h = (int)blockIdx.x % s.height;
    int row = image * s.out_height + h / s.stride;
    const T *from = dy + (int64_t)row * s.out_width * s.out_channels;
    T *to = dx + (int64_t)blockIdx.x * s.width * s.channels;
    for (int i = (int)threadIdx.x; i < s.width * s.channels; i += THREADS) {
        int w = i / s.channels, c = i % s.channels;
        T value = {};
        if (h % s.stride == 0 && w % s.stride == 0 && c < s.out_channels) {
            value = from[(int64_t)(w / s.stride) * s.out_channels + c];
        }
        to[i] = value;
    }
}

ls_status ls_simple_shortcut_back(cudaStream_t stream, ls_dtype type, const void *dy, void *dx,
                                  int images, int height, int width, int channels, int stride,
                                  int out_channels)
{
    shortcut_shape s = shape_of(height, width, channels, stride, out_channels);
    LS_BY_ELEMENT(type, T,
                  LS_LAUNCH(shortcut_back_kernel<T>, (unsigned)(images * height), THREADS, stream,
                            (const T *)dy, (T *)dx, s));
    return LS_OK;
}

/* ---- average over an image ------------------------------------------------------------------- */

/* One thread per packet of channels of an image. Sums in double, in the CPU's order. */
template <typename T, int V>
LS_KERNEL average_kernel(const T *x, T *y, int64_t packets, int pixels, int channels)
{
    enum { AHEAD = 4 };
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= packets) {
        return;
    }
    int per_pixel = channels / V;
    const T *from = x + (i / per_pixel * pixels * per_pixel + i % per_pixel) * V;
    double sum[V] = {};
    for (int p = 0; p < pixels; p += AHEAD) {
        ls_packet<T, V> in[AHEAD];
        LS_UNROLL
        for (int u = 0; u < AHEAD; u++) {
            if (p + u < pixels) {
                ls_packet_load(&in[u], from + (int64_t)(p + u) * channels);
            }
        }
        LS_UNROLL
        for (int u = 0; u < AHEAD; u++) {
            float value[V];
            if (p + u < pixels) {
                ls_packet_get(value, in[u]);
                LS_UNROLL
                for (int j = 0; j < V; j++) {
                    sum[j] += (double)value[j];
                }
            }
        }
    }
    float mean[V];
    LS_UNROLL
    for (int j = 0; j < V; j++) {
        mean[j] = (float)(sum[j] / pixels);
    }
    ls_packet<T, V> out;
    ls_packet_set(&out, mean);
    ls_packet_store(y + i * V, out);
}

ls_status ls_simple_average(cudaStream_t stream, ls_dtype type, const void *x, void *y, int images,
                            int pixels, int channels)
{
    LS_BY_PACKET(type, channels % (16 / sizeof(T)) == 0, T, V,
                 int64_t packets = (int64_t)images * (channels / V);
                 LS_LAUNCH((average_kernel<T, V>), ls_launch_blocks(packets, THREADS), THREADS,
                           stream, (const T *)x, (T *)y, packets, pixels, channels));
    return LS_OK;
}

template <typename T, int V>
LS_KERNEL average_back_kernel(const T *dy, T *dx, int64_t packets, int pixels, int channels)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= packets) {
        return;
    }
    int per_pixel = channels / V;
    T *to = dx + (i / per_pixel * pixels * per_pixel + i % per_pixel) * V;
    ls_packet<T, V> packet;
    float share[V];
    ls_packet_load(&packet, dy + i * V);
    ls_packet_get(share, packet);
    LS_UNROLL
    for (int j = 0; j < V; j++) {
        share[j] = share[j] / (float)pixels;
    }
    ls_packet_set(&packet, share);
    for (int p = 0; p < pixels; p++) {
        ls_packet_store(to + (int64_t)p * channels, packet);
    }
}

ls_status ls_simple_average_back(cudaStream_t stream, ls_dtype type, const void *dy, void *dx,
                                 int images, int pixels, int channels)
{
    LS_BY_PACKET(type, channels % (16 / sizeof(T)) == 0, T, V,
                 int64_t packets = (int64_t)images * (channels / V);
                 LS_LAUNCH((average_back_kernel<T, V>), ls_launch_blocks(packets, THREADS), THREADS,
                           stream, (const T *)dy, (T *)dx, packets, pixels, channels));
    return LS_OK;
}

/* ---- a copy at the memory's full rate: each thread has four accesses of 16 bytes in flight ----
 */

enum { COPY_DEPTH = 4, COPY_BYTES = 16 };

LS_KERNEL copy_vectors(char *to, const char *from, int64_t count)
{
    int64_t first = (int64_t)blockIdx.x * THREADS * COPY_DEPTH + threadIdx.x;
    ls_vector held[COPY_DEPTH];
    for (int k = 0; k < COPY_DEPTH; k++) {
        int64_t at = first + (int64_t)k * THREADS;
        if (at < count) {
            held[k] = ls_vector_load(from + at * COPY_BYTES);
        }
    }
    for (int k = 0; k < COPY_DEPTH; k++) {
        int64_t at = first + (int64_t)k * THREADS;
        if (at < count) {
            ls_vector_store(to + at * COPY_BYTES, held[k]);
        }
    }
}

ls_status ls_simple_copy(cudaStream_t stream, void *to, const void *from, int64_t bytes)
{
    int64_t count = bytes / COPY_BYTES, block = THREADS * COPY_DEPTH;
    LS_LAUNCH(copy_vectors, (unsigned)((count + block - 1) / block), THREADS, stream, (char *)to,
              (const char *)from, count);
    return LS_OK;
}
