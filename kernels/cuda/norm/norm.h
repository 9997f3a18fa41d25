/* Shared by the kernels of norm.cu and norm_back.cu: how a call is swept, reading values of
 * channels, and merging the sums of blocks.
 *
 * A sweep that sums leaves the sums of its blocks in `partial`; a kernel of its own merges them.
 * Merging them in the last block of the sweep instead saves launches, but took 11 us more each on
 * an H200 (results/machines/h200). */
#ifndef LS_CUDA_NORM_H
#define LS_CUDA_NORM_H

#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/packet.h"

/* How the kernels of norm.cu sweep over rows x channels: a block processes packets of consecutive
 * channels side by side and a range of whole rows; a thread keeps its channels and goes down the
 * rows, so that coefficients and sums of channels stay in registers. The shape, and with it the
 * order of every sum, depends on sizes only, never on concurrent work.
 *
 * Side by side are up to 32 packets (512 bytes), in sweeps that sum up to 8 (128 bytes, a line of
 * the cache). The number of blocks is that of the multiprocessors, so narrow columns mean fewer
 * sums of blocks to write and to merge: a quarter with 256 channels or more. */

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

enum {
    LS_NORM_MERGE_LANES = 32,   /* sums of a channel that are added by halves at the end */
    LS_NORM_MERGE_CHANNELS = 8, /* of a block */
    LS_NORM_MERGE_THREADS = LS_NORM_MERGE_LANES * LS_NORM_MERGE_CHANNELS,
    LS_NORM_MERGE_ROUND = 8 * LS_NORM_MERGE_LANES, /* sums of a channel that are loaded at a time */
    LS_NORM_MERGE_AHEAD = 8,                       /* of them by a thread */
    LS_NORM_RANK_THREADS = 128,
};

/* Resident blocks per multiprocessor, by the registers of their threads. */
enum {
    LS_NORM_STATISTICS_BLOCKS = 4,
    LS_NORM_APPLY_BLOCKS = 3,
    LS_NORM_SUMS_BLOCKS = 3,
    LS_NORM_BACK_BLOCKS = 2,
    LS_NORM_DUAL_BLOCKS = 2,
};

/* Packets of 16 bytes if rows consist of whole packets and of whole bytes of the mask. */
static inline int ls_norm_width(ls_dtype type, int channels)
{
    return channels % 8 != 0 ? 1 : type == LS_F32 ? 4 : 8;
}

static inline ls_sweep ls_norm_sweep(const ls_norm_call *call, int per_processor)
{
    return ls_sweep_of(call->rows, call->channels, ls_norm_width(call->type, call->channels),
                       call->processors, per_processor, LS_SWEEP_COLUMNS_LOG2);
}

/* Of the sweeps that sum: statistics and the sums of backward. */
static inline ls_sweep ls_norm_sum_sweep(const ls_norm_call *call, int per_processor)
{
    int width = ls_norm_width(call->type, call->channels);
    return ls_sweep_of(call->rows, call->channels, width, call->processors, per_processor,
                       ls_sweep_sum_columns(width));
}

LS_HOST_DEVICE int ls_norm_sides(const ls_norm_call &call)
{
    return call.dual ? 2 : 1;
}

/* Of merges, and of the kernels that merge the ranks' messages: blocks along the channels, and a
 * row of them for each side. */
static inline dim3 ls_norm_merge_grid(const ls_norm_call *call)
{
    return dim3(ls_launch_blocks(call->channels, LS_NORM_MERGE_CHANNELS),
                (unsigned)ls_norm_sides(*call));
}

static inline dim3 ls_norm_ranks_grid(const ls_norm_call *call)
{
    return dim3(ls_launch_blocks(call->channels, LS_NORM_RANK_THREADS),
                (unsigned)ls_norm_sides(*call));
}

/* Floats that a rank sends for one side: the larger of forward's message (mean as a sum of two
 * floats, squared deviations, count) and backward's (sum of g, sum of g*(x - mean)). */
LS_HOST_DEVICE int64_t ls_norm_message(int channels)
{
    return 3 * (int64_t)channels + 1;
}

/* The gathered message of rank `rank` about a side. */
LS_DEVICE const float *ls_norm_theirs(const ls_norm_call &call, int rank, int side)
{
    return call.all + (rank * ls_norm_sides(call) + side) * ls_norm_message(call.channels);
}

LS_DEVICE double ls_norm_read(const ls_tensor &tensor, int index)
{
    if (tensor.dtype == LS_F32) {
        return (double)((const float *)tensor.data)[index];
    }
    uint16_t half = ((const uint16_t *)tensor.data)[index];
    return (double)(tensor.dtype == LS_F16 ? ls_half_fp16_to_f32(half) : ls_half_bf16_to_f32(half));
}

LS_DEVICE void ls_norm_write(const ls_tensor &tensor, int index, double value)
{
    float rounded = (float)value;
    if (tensor.dtype == LS_F32) {
        ((float *)tensor.data)[index] = rounded;
    } else {
        ((uint16_t *)tensor.data)[index] =
            tensor.dtype == LS_F16 ? ls_half_f32_to_fp16(rounded) : ls_half_f32_to_bf16(rounded);
    }
}

/* The values of a packet's channels. */
template <int V> LS_DEVICE void ls_norm_channels(float *to, const float *from, int packet)
{
    enum { W = V == 1 ? 1 : 4 };
    LS_UNROLL
    for (int j = 0; j < V; j += W) {
        ls_packet<float, W> four;
        ls_packet_load(&four, from + packet * V + j);
        ls_packet_get(to + j, four);
    }
}

/* The mask bits of one packet, lowest bit for the first channel. */
template <int V> LS_DEVICE unsigned ls_norm_bits(const uint32_t *mask, int64_t first)
{
    if (V == 1) {
        return mask[first >> 5] >> (first & 31) & 1u;
    }
    unsigned byte = ((const uint8_t *)mask)[first >> 3];
    return V == 8 ? byte : byte >> (first & 4);
}

/* ---- merging --------------------------------------------------------------------------------- */

/* A merging block has 8 channels side by side: thread t has channel t % 8 and its lane t / 8. Lane
 * l of a channel sums blocks l, l + 32, ... in turn, and the 32 lanes' sums are added by halves. */
typedef struct ls_norm_lane {
    int channel, lane, end; /* end: blocks of the sweep; 0 past the channels */
} ls_norm_lane;

LS_DEVICE ls_norm_lane ls_norm_lane_here(const ls_sweep &s)
{
    ls_norm_lane here;
    here.channel =
        (int)blockIdx.x * LS_NORM_MERGE_CHANNELS + (int)threadIdx.x % LS_NORM_MERGE_CHANNELS;
    here.lane = (int)threadIdx.x / LS_NORM_MERGE_CHANNELS;
    here.end = here.channel < s.channels ? s.blocks : 0;
    return here;
}

/* The first of the lanes: it settles the channel. */
LS_DEVICE bool ls_norm_settles(const ls_norm_lane &here)
{
    return here.lane == 0 && here.end > 0;
}

/* A channel's sums of blocks b + 32 from, b + 32 (from + 1), ..., COUNT of them; 0 from `end`. */
template <int COUNT>
LS_DEVICE void ls_norm_ahead(float *value, const float *channel, int channels, int b, int from,
                             int end)
{
    LS_UNROLL
    for (int k = 0; k < COUNT; k++) {
        int at = b + (from + k) * LS_NORM_MERGE_LANES;
        value[k] = at < end ? channel[(int64_t)at * channels] : 0;
    }
}

/* Sum over the lanes of each channel; every thread of the block gets that of its channel. */
LS_DEVICE double ls_norm_merge(double lane)
{
    LS_SHARED(double, part, LS_NORM_MERGE_THREADS);
    int at = (int)threadIdx.x;
    __syncthreads();
    part[at] = lane;
    for (int half = LS_NORM_MERGE_LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (at < half * LS_NORM_MERGE_CHANNELS) {
            part[at] += part[at + half * LS_NORM_MERGE_CHANNELS];
        }
    }
    __syncthreads();
    return part[at % LS_NORM_MERGE_CHANNELS];
}

#endif
