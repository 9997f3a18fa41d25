#include "parallel.h"

#include <string.h>

#include "loops.h"

/* A stretch is big enough to hide its overhead and small enough to share out evenly. */
enum { STRETCH = 16384 };

#define LS_EACH_STRETCH(backend, count, start, length)                                        \
    _Pragma("omp parallel for schedule(static) num_threads(backend->threads)") for (          \
        int64_t stretch = 0; stretch < ((count) + STRETCH - 1) / STRETCH;                     \
        stretch++) for (int64_t start = stretch * STRETCH,                                    \
                        length = (count)-start < STRETCH ? (count)-start : STRETCH, once = 1; \
                        once > 0; once--)

static const char *at(const void *data, ls_dtype type, int64_t index)
{
    return (const char *)data + (size_t)index * ls_dtype_bytes(type);
}

static char *at_mutable(void *data, ls_dtype type, int64_t index)
{
    return (char *)data + (size_t)index * ls_dtype_bytes(type);
}

void ls_parallel_widen(ls_backend *backend, ls_dtype type, const void *from, float *to,
                       int64_t count)
{
    LS_EACH_STRETCH(backend, count, start, length)
    {
        backend->loops->widen(type, at(from, type, start), to + start, length);
    }
}

void ls_parallel_narrow(ls_backend *backend, ls_dtype type, const float *from, void *to,
                        int64_t count)
{
    LS_EACH_STRETCH(backend, count, start, length)
    {
        backend->loops->narrow(type, from + start, at_mutable(to, type, start), length);
    }
}

void ls_parallel_store_part(const ls_backend *backend, ls_dtype rounded, float *from,
                            const ls_tensor *to, int64_t start, int64_t count)
{
    void *place = at_mutable(to->data, to->dtype, start);
    if (rounded != LS_F32 && rounded != to->dtype) {
        backend->loops->round(rounded, from, count);
    }
    if (place != from) {
        backend->loops->narrow(to->dtype, from, place, count);
    }
}

void ls_parallel_round(ls_backend *backend, ls_dtype type, float *value, int64_t count)
{
    if (type == LS_F32) {
        return;
    }
    LS_EACH_STRETCH(backend, count, start, length)
    {
        backend->loops->round(type, value + start, length);
    }
}

void ls_parallel_add(ls_backend *backend, ls_dtype type, const void *a, const void *b, void *sum,
                     bool relu, int64_t count)
{
    LS_EACH_STRETCH(backend, count, start, length)
    {
        backend->loops->add(type, at(a, type, start), at(b, type, start),
                            at_mutable(sum, type, start), relu, length);
    }
}

void ls_parallel_relu(ls_backend *backend, ls_dtype type, const void *x, void *y, int64_t count)
{
    LS_EACH_STRETCH(backend, count, start, length)
    {
        backend->loops->relu(type, at(x, type, start), at_mutable(y, type, start), length);
    }
}

void ls_parallel_relu_back(ls_backend *backend, ls_dtype type, const void *dy, const void *y,
                           void *dx, int64_t count)
{
    LS_EACH_STRETCH(backend, count, start, length)
    {
        backend->loops->relu_back(type, at(dy, type, start), at(y, type, start),
                                  at_mutable(dx, type, start), length);
    }
}

void ls_parallel_interleave(ls_backend *backend, ls_dtype type, const float *from, void *to,
                            int images, int channels, int pixels)
{
    enum { ELEMENTS = 4096, CHANNELS_MAX = 64 };
    LS_ASSERT(channels <= CHANNELS_MAX);
    int most = ELEMENTS / channels, parts = (pixels + most - 1) / most;
#pragma omp parallel for schedule(static) num_threads(backend->threads)
    for (int64_t i = 0; i < (int64_t)images * parts; i++) {
        float last[ELEMENTS];
        int64_t image = i / parts, first = i % parts * most;
        int count = (int)(pixels - first < most ? pixels - first : most);
        for (int c = 0; c < channels; c++) {
            const float *plane = from + (image * channels + c) * pixels + first;
            for (int p = 0; p < count; p++) {
                last[p * channels + c] = plane[p];
            }
        }
        backend->loops->narrow(type, last,
                               at_mutable(to, type, (image * pixels + first) * channels),
                               (int64_t)count * channels);
    }
}

/* Copies `bytes` of each pixel; inlined with a constant number of bytes. */
static inline void copy_runs(const char *from, int64_t from_step, char *to, int64_t to_step,
                             int pixels, size_t bytes)
{
    for (int p = 0; p < pixels; p++) {
        memcpy(to + p * to_step, from + p * from_step, bytes);
    }
}

/* Offset in elements of channel c, pixel 0 of image n. */
static int64_t channel_at(int64_t n, int64_t c, int block, int channels, int pixels)
{
    return (n * channels + c / block * block) * pixels + c % block;
}

void ls_parallel_reblock(ls_backend *backend, size_t bytes, const void *from, int from_block,
                         void *to, int to_block, int images, int channels, int pixels)
{
    /* Channels that lie together in both layouts. */
    int narrow = from_block < to_block ? from_block : to_block;
    int run = from_block % narrow == 0 && to_block % narrow == 0 ? narrow : 1;
    int64_t element = (int64_t)bytes, runs = channels / run;
    int64_t from_step = element * from_block, to_step = element * to_block;
    size_t length = (size_t)run * bytes;
#pragma omp parallel for schedule(static) num_threads(backend->threads)
    for (int64_t i = 0; i < images * runs; i++) {
        int64_t n = i / runs, c = i % runs * run;
        const char *source =
            (const char *)from + channel_at(n, c, from_block, channels, pixels) * element;
        char *target = (char *)to + channel_at(n, c, to_block, channels, pixels) * element;
        if (length == 2) {
            copy_runs(source, from_step, target, to_step, pixels, 2);
        } else if (length == 4) {
            copy_runs(source, from_step, target, to_step, pixels, 4);
        } else if (length == 32) {
            copy_runs(source, from_step, target, to_step, pixels, 32);
        } else {
            copy_runs(source, from_step, target, to_step, pixels, length);
        }
    }
}

/* All bits of the exponent are set in an infinity and in a NaN. */
bool ls_parallel_is_finite(ls_backend *backend, ls_dtype type, const void *data, int64_t count)
{
    int beyond = 0;
#pragma omp parallel for schedule(static) num_threads(backend->threads) reduction(| : beyond)
    for (int64_t stretch = 0; stretch < (count + STRETCH - 1) / STRETCH; stretch++) {
        int64_t first = stretch * STRETCH, left = count - first;
        int length = (int)(left < STRETCH ? left : STRETCH), found = 0;
        if (type == LS_F32) {
            const uint32_t *bits = (const uint32_t *)data + first;
            for (int i = 0; i < length; i++) {
                found |= (bits[i] & 0x7f800000u) == 0x7f800000u;
            }
        } else {
            const uint16_t *bits = (const uint16_t *)data + first;
            unsigned exponent = type == LS_F16 ? 0x7c00 : 0x7f80;
            for (int i = 0; i < length; i++) {
                found |= (bits[i] & exponent) == exponent;
            }
        }
        beyond |= found;
    }
    return beyond == 0;
}

void ls_parallel_store(ls_backend *backend, ls_dtype rounded, float *from, const ls_tensor *to)
{
    LS_EACH_STRETCH(backend, to->count, start, length)
    {
        ls_parallel_store_part(backend, rounded, from + start, to, start, length);
    }
}
