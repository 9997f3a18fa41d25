#include "launch.h"

#include "kernels/core/half.h"
#include "ops.h"

enum { THREADS = 256 };

static const unsigned BLOCKS = 1024;

/* Of a grid that walks over `count` elements. */
static unsigned blocks_for(int64_t count)
{
    unsigned blocks = ls_launch_blocks(count, THREADS);
    return blocks < BLOCKS ? blocks : BLOCKS;
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
