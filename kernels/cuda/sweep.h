/* How the kernels of norm.cu sweep over rows x channels: a block processes packets of consecutive
 * channels side by side and a range of whole rows; a thread keeps its channels and goes down the
 * rows, so that coefficients and sums of channels stay in registers. The shape, and with it the
 * order of every sum, depends on sizes only, never on concurrent work.
 *
 * Side by side are up to 32 packets (512 bytes), in sweeps that sum up to 8 (128 bytes, a line of
 * the cache). The number of blocks is that of the multiprocessors, so narrow columns mean fewer
 * sums of blocks to write and to merge: a quarter with 256 channels or more. */
#ifndef LS_CUDA_SWEEP_H
#define LS_CUDA_SWEEP_H

#include "launch.h"

#include "packet.h"

enum {
    LS_SWEEP_THREADS = 256,
    LS_SWEEP_COLUMNS_LOG2 = 5,
    LS_SWEEP_SUM_COLUMNS_LOG2 = 3,
    LS_SWEEP_AHEAD = 4,         /* rows that a thread has in flight, at least */
    LS_SWEEP_LONGEST = 256,     /* rows that a thread sums in f32, at most */
    LS_SWEEP_PER_PROCESSOR = 4, /* blocks of a multiprocessor, at most */
};

typedef struct ls_sweep {
    int64_t rows, rows_per_block;
    int channels;
    int packets;         /* in a row */
    int shift;           /* log2 of the packets that a block processes side by side */
    int columns, blocks; /* the grid: blocks along the packets, along the rows */
} ls_sweep;

/* log2 of the packets of `width` channels side by side in a sweep that sums; single channels are
 * too narrow for 8. */
LS_HOST_DEVICE constexpr int ls_sweep_sum_columns(int width)
{
    return width == 1 ? (int)LS_SWEEP_COLUMNS_LOG2 : (int)LS_SWEEP_SUM_COLUMNS_LOG2;
}

/* `width`: channels of a packet; per_processor: resident blocks per multiprocessor; most_columns:
 * log2 of the packets side by side, at most. */
static inline ls_sweep ls_sweep_of(int64_t rows, int channels, int width, int processors,
                                   int per_processor, int most_columns)
{
    ls_sweep s = {rows, 0, channels, channels / width, 0, 0, 0};
    while (s.shift < most_columns && (1 << s.shift) < s.packets) {
        s.shift++;
    }
    int64_t tile = LS_SWEEP_THREADS >> s.shift;
    s.columns = (s.packets + (1 << s.shift) - 1) >> s.shift;
    int64_t blocks = (int64_t)processors * per_processor / s.columns;
    int64_t most = (rows + tile * LS_SWEEP_AHEAD - 1) / (tile * LS_SWEEP_AHEAD);
    int64_t least = (rows + tile * LS_SWEEP_LONGEST - 1) / (tile * LS_SWEEP_LONGEST);
    blocks = blocks < 1 ? 1 : blocks;
    blocks *= (least + blocks - 1) /
              blocks; /* full waves: no multiprocessor idles for a few late blocks */
    blocks = blocks < most ? blocks : most;
    s.rows_per_block = ((rows + blocks - 1) / blocks + tile - 1) / tile * tile;
    s.blocks = (int)((rows + s.rows_per_block - 1) / s.rows_per_block);
    return s;
}

static inline dim3 ls_sweep_grid(const ls_sweep *s)
{
    return dim3((unsigned)s->columns, (unsigned)s->blocks, 1);
}

/* The number of rows of block `block`. */
LS_DEVICE int64_t ls_sweep_rows(const ls_sweep &s, int block)
{
    int64_t left = s.rows - (int64_t)block * s.rows_per_block;
    return left < s.rows_per_block ? left : s.rows_per_block;
}

/* The position of one thread. */
typedef struct ls_sweep_place {
    int packet;            /* its packet within a row */
    bool inside;           /* the row has that packet */
    int tile;              /* rows that the block processes at a time */
    int64_t row, from, to; /* its first row; the block's rows */
} ls_sweep_place;

LS_DEVICE ls_sweep_place ls_sweep_here(const ls_sweep &s)
{
    ls_sweep_place p;
    int column = (int)threadIdx.x & ((1 << s.shift) - 1);
    p.packet = ((int)blockIdx.x << s.shift) + column;
    p.inside = p.packet < s.packets;
    p.tile = LS_SWEEP_THREADS >> s.shift;
    p.from = (int64_t)blockIdx.y * s.rows_per_block;
    p.to = p.from + ls_sweep_rows(s, (int)blockIdx.y);
    p.row = p.from + ((int)threadIdx.x >> s.shift);
    return p;
}

/* Sums value[plane*V + j] over all threads of the block with the same packet, and stores the sums,
 * rounded to f32, at to[plane][block][channel], channel j of the packet. The order is fixed: lanes
 * of a warp by halves, then warps in turn, in double. Every thread of the block must call this, in
 * a sweep of at most ls_sweep_sum_columns. */
template <int PLANES, int V> LS_DEVICE void ls_sweep_sum(const ls_sweep &s, float *value, float *to)
{
    enum { WARPS = LS_SWEEP_THREADS / 32, COUNT = PLANES * V, MOST = ls_sweep_sum_columns(V) };
    LS_SHARED(float, part, WARPS *COUNT << MOST);
    int columns = 1 << s.shift, lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    for (int offset = 16; offset >= columns; offset >>= 1) {
        LS_UNROLL
        for (int k = 0; k < COUNT; k++) {
            value[k] += __shfl_xor_sync(0xffffffffu, value[k], offset);
        }
    }
    if (lane < columns) {
        LS_UNROLL
        for (int k = 0; k < COUNT; k++) {
            part[((warp * COUNT + k) << MOST) + lane] = value[k];
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < COUNT << s.shift; i += LS_SWEEP_THREADS) {
        int k = i >> s.shift, column = i & (columns - 1);
        int packet = ((int)blockIdx.x << s.shift) + column;
        double sum = 0;
        for (int w = 0; w < WARPS; w++) {
            sum += (double)part[((w * COUNT + k) << MOST) + column];
        }
        if (packet < s.packets) {
            int64_t row = (int64_t)(k / V) * s.blocks + blockIdx.y;
            to[row * s.channels + packet * V + k % V] = (float)sum;
        }
    }
}

#endif
