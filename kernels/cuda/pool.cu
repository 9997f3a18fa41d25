/* Max pool: the choice of each window is stored as a byte, which backward uses to gather. */
#include "launch.h"

#include "ops.h"
#include "packet.h"

enum { THREADS = 256, AHEAD = 3 /* inputs of a row that a thread has in flight */ };

/* V taps as one access. */
template <int V> struct tap_word;
template <> struct tap_word<8> {
    typedef ls_pair type;
};
template <> struct tap_word<4> {
    typedef uint32_t type;
};
template <> struct tap_word<1> {
    typedef uint8_t type;
};

template <int V> LS_DEVICE void load_taps(uint8_t *tap, const uint8_t *from)
{
    typename tap_word<V>::type word = *(const typename tap_word<V>::type *)from;
    memcpy(tap, &word, V);
}

template <int V> LS_DEVICE void store_taps(uint8_t *to, const uint8_t *tap)
{
    typename tap_word<V>::type word;
    memcpy(&word, tap, V);
    *(typename tap_word<V>::type *)to = word;
}

/* The window of an output: inputs [h0,h1) x [w0,w1); unclipped it starts at top, left. */
typedef struct window {
    int top, left, h0, h1, w0, w1;
} window;

LS_DEVICE window window_of(const ls_pool_shape &s, int oh, int ow)
{
    window v;
    v.top = oh * s.stride - s.pad;
    v.left = ow * s.stride - s.pad;
    v.h0 = v.top < 0 ? 0 : v.top;
    v.h1 = v.top + s.kernel > s.height ? s.height : v.top + s.kernel;
    v.w0 = v.left < 0 ? 0 : v.left;
    v.w1 = v.left + s.kernel > s.width ? s.width : v.left + s.kernel;
    return v;
}

/* Compares one input of the window with the choice so far. */
template <typename T, int V>
LS_DEVICE void choose(float *best, uint8_t *tap, const ls_packet<T, V> &in, int here, bool given)
{
    float value[V];
    ls_packet_get(value, in);
    LS_UNROLL
    for (int j = 0; j < V; j++) {
        bool wins = given ? tap[j] == here : value[j] > best[j] || value[j] != value[j];
        best[j] = wins ? value[j] : best[j];
        tap[j] = wins ? (uint8_t)here : tap[j];
    }
}

/* One block per row of the output, one thread per packet of channels of a pixel. */
template <typename T, int V>
LS_KERNEL max_kernel(ls_pool_shape s, const T *x, T *y, uint8_t *taps, bool given)
{
    int packets = s.channels / V, image = (int)blockIdx.x / s.out_height;
    int oh = (int)blockIdx.x % s.out_height;
    const T *plane = x + (int64_t)image * s.height * s.width * s.channels;
    int64_t row = (int64_t)blockIdx.x * s.out_width * s.channels;
    for (int i = (int)threadIdx.x; i < s.out_width * packets; i += THREADS) {
        window v = window_of(s, oh, i / packets);
        const T *from = plane + i % packets * V;
        int64_t out = row + (int64_t)i * V;
        float best[V];
        uint8_t tap[V];
        ls_packet<T, V> packet;
        if (given) {
            load_taps<V>(tap, taps + out);
        }
        LS_UNROLL
        for (int j = 0; j < V; j++) {
            best[j] = given ? 0 : -INFINITY;
            tap[j] = given ? tap[j] : (uint8_t)((v.h0 - v.top) * s.kernel + v.w0 - v.left);
        }
        for (int h = v.h0; h < v.h1; h++) {
            const T *line = from + (int64_t)h * s.width * s.channels;
            for (int w = v.w0; w < v.w1; w += AHEAD) {
                ls_packet<T, V> in[AHEAD] = {};
                LS_UNROLL
                for (int u = 0; u < AHEAD; u++) {
                    if (w + u < v.w1) {
                        ls_packet_load(&in[u], line + (int64_t)(w + u) * s.channels);
                    }
                }
                LS_UNROLL
                for (int u = 0; u < AHEAD; u++) {
                    int here = (h - v.top) * s.kernel + w + u - v.left;
                    if (w + u < v.w1) {
                        choose<T, V>(best, tap, in[u], here, given);
                    }
                }
            }
        }
        ls_packet_set(&packet, best);
        ls_packet_store(y + out, packet);
        if (!given) {
            store_taps<V>(taps + out, tap);
        }
    }
}

ls_status ls_pool_max(cudaStream_t stream, ls_dtype type, const ls_pool_shape *shape, const void *x,
                      void *y, uint8_t *tap, bool given)
{
    LS_BY_PACKET(type, shape->channels % (16 / sizeof(T)) == 0, T, V,
                 LS_LAUNCH((max_kernel<T, V>), (unsigned)(shape->images * shape->out_height),
                           THREADS, stream, *shape, (const T *)x, (T *)y, tap, given));
    return LS_OK;
}

/* First and last output along one dimension whose window contains input position `at`. */
LS_DEVICE void windows_of(int at, const ls_pool_shape &s, int outputs, int *first, int *last)
{
    int lowest = at + s.pad - s.kernel + 1, highest = (at + s.pad) / s.stride;
    *first = lowest <= 0 ? 0 : (lowest + s.stride - 1) / s.stride;
    *last = highest >= outputs ? outputs - 1 : highest;
}

/* One block per row of the input. */
template <typename T, int V>
LS_KERNEL max_back_kernel(ls_pool_shape s, const T *dy, const uint8_t *taps, T *dx)
{
    int packets = s.channels / V, image = (int)blockIdx.x / s.height;
    int h = (int)blockIdx.x % s.height, oh0, oh1;
    int64_t plane = (int64_t)image * s.out_height * s.out_width * s.channels;
    int64_t row = (int64_t)blockIdx.x * s.width * s.channels;
    windows_of(h, s, s.out_height, &oh0, &oh1);
    for (int i = (int)threadIdx.x; i < s.width * packets; i += THREADS) {
        int w = i / packets, ow0, ow1;
        float sum[V] = {};
        ls_packet<T, V> packet;
        windows_of(w, s, s.out_width, &ow0, &ow1);
        for (int oh = oh0; oh <= oh1; oh++) {
            for (int ow = ow0; ow <= ow1; ow++) {
                int here = (h + s.pad - oh * s.stride) * s.kernel + w + s.pad - ow * s.stride;
                int64_t out =
                    plane + ((int64_t)oh * s.out_width + ow) * s.channels + i % packets * V;
                float value[V];
                uint8_t tap[V];
                load_taps<V>(tap, taps + out);
                ls_packet_load(&packet, dy + out);
                ls_packet_get(value, packet);
                LS_UNROLL
                for (int j = 0; j < V; j++) {
                    sum[j] += tap[j] == here ? value[j] : 0;
                }
            }
        }
        ls_packet_set(&packet, sum);
        ls_packet_store(dx + row + (int64_t)i * V, packet);
    }
}

/* The same for windows of 3 x 3 with a stride of 2 and a border of 1: one thread per packet of 2 x
 * 2 inputs, which the windows of 2 x 2 outputs cover, with these in flight. blockIdx.y: the image.
 */
template <typename T, int V>
LS_KERNEL LS_BOUNDS(THREADS, 2)
    max_back_of_four_kernel(ls_pool_shape s, const T *dy, const uint8_t *taps, T *dx)
{
    int packets = s.channels / V, across = (s.width + 1) / 2, down = (s.height + 1) / 2;
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    if (i >= down * across * packets) {
        return;
    }
    int k = i / packets / across, l = i / packets % across, channel = i % packets * V;
    int64_t plane = (int64_t)blockIdx.y * s.out_height * s.out_width;
    ls_packet<T, V> in[4] = {};
    uint8_t tap[4][V];
    LS_UNROLL
    for (int o = 0; o < 4; o++) {
        int oh = k + o / 2, ow = l + o % 2;
        memset(tap[o], 255, sizeof tap[o]); /* no input's */
        if (oh < s.out_height && ow < s.out_width) {
            int64_t out = (plane + (int64_t)oh * s.out_width + ow) * s.channels + channel;
            ls_packet_load(&in[o], dy + out);
            load_taps<V>(tap[o], taps + out);
        }
    }
    float value[4][V];
    LS_UNROLL
    for (int o = 0; o < 4; o++) {
        ls_packet_get(value[o], in[o]);
    }
    LS_UNROLL
    for (int p = 0; p < 4; p++) {
        int h = 2 * k + p / 2, w = 2 * l + p % 2;
        float sum[V] = {};
        ls_packet<T, V> packet;
        LS_UNROLL
        for (int o = 0; o < 4; o++) {
            if (o / 2 <= p / 2 && o % 2 <= p % 2) {
                int here = (p / 2 + 1 - o / 2 * 2) * 3 + p % 2 + 1 - o % 2 * 2;
                LS_UNROLL
                for (int j = 0; j < V; j++) {
                    sum[j] += tap[o][j] == here ? value[o][j] : 0;
                }
            }
        }
        if (h < s.height && w < s.width) {
            ls_packet_set(&packet, sum);
            ls_packet_store(dx + (((int64_t)blockIdx.y * s.height + h) * s.width + w) * s.channels +
                                channel,
                            packet);
        }
    }
}

/* Blocks for `threads` of each image. */
static dim3 per_image(const ls_pool_shape *shape, int64_t threads)
{
    return dim3((unsigned)((threads + THREADS - 1) / THREADS), (unsigned)shape->images);
}

ls_status ls_pool_max_back(cudaStream_t stream, ls_dtype type, const ls_pool_shape *shape,
                           const void *dy, const uint8_t *tap, void *dx)
{
    int64_t fours = (int64_t)((shape->height + 1) / 2) * ((shape->width + 1) / 2) * shape->channels;
    if (shape->kernel == 3 && shape->stride == 2 && shape->pad == 1) {
        LS_BY_PACKET(type, shape->channels % (16 / sizeof(T)) == 0, T, V,
                     LS_LAUNCH((max_back_of_four_kernel<T, V>), per_image(shape, fours / V),
                               THREADS, stream, *shape, (const T *)dy, tap, (T *)dx));
        return LS_OK;
    }
    LS_BY_PACKET(type, shape->channels % (16 / sizeof(T)) == 0, T, V,
                 LS_LAUNCH((max_back_kernel<T, V>), (unsigned)(shape->images * shape->height),
                           THREADS, stream, *shape, (const T *)dy, tap, (T *)dx));
    return LS_OK;
}
