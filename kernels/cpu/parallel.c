#include "parallel.h"

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

void ls_parallel_reblock(ls_backend *backend, const float *from, int from_block, float *to,
                         int to_block, int images, int channels, int pixels)
{
    int64_t rows = (int64_t)images * channels;
#pragma omp parallel for schedule(static) num_threads(backend->threads)
    for (int64_t row = 0; row < rows; row++) {
        int64_t n = row / channels, c = row % channels;
        const float *source =
            from + (n * channels + c / from_block * from_block) * pixels + c % from_block;
        float *target = to + (n * channels + c / to_block * to_block) * pixels + c % to_block;
        for (int64_t p = 0; p < pixels; p++) {
            target[p * to_block] = source[p * from_block];
        }
    }
}

void ls_parallel_store(ls_backend *backend, const float *from, const ls_tensor *to)
{
    if (to->data != from) {
        ls_parallel_narrow(backend, to->dtype, from, to->data, to->count);
    }
}
