/* Shared by the kernels of norm.cu and norm_back.cu: how a call is swept, reading values of
 * channels, and merging the sums of blocks.
 *
 * A sweep that sums leaves the sums of its blocks in `partial`. Their merging is folded into the
 * sweep: of the blocks of a column, the last to finish merges that column (ls_norm_last). Where
 * that would take longer than a launch (ls_norm_folds), a kernel of its own merges, 8 channels a
 * block. Both merge in the same order, with the same bits. */
#ifndef LS_CUDA_NORM_H
#define LS_CUDA_NORM_H

#include "launch.h"

#include "ops.h"
#include "sweep.h"

enum {
    LS_NORM_MERGE_LANES = 32,   /* sums of a channel that are added by halves at the end */
    LS_NORM_MERGE_CHANNELS = 8, /* of a block of the kernels that merge and do nothing else */
    LS_NORM_FOLD_CHANNELS = 16, /* that a sweep's last block merges at a time */
    LS_NORM_MERGE_THREADS = LS_SWEEP_THREADS,
    LS_NORM_MERGE_AHEAD = 8, /* sums of blocks that a thread loads ahead */
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

/* Lane l of a channel sums blocks l, l + 32, ... in turn, and the 32 lanes' sums are added by
 * halves. A merging block has WIDE channels side by side, thread t channel t % WIDE; each thread
 * takes EACH lanes of its channel, the first of them t / WIDE and the others PARTS apart. The order
 * of every sum, and so its bits, do not depend on WIDE. */
template <int WIDE> struct ls_norm_merging {
    enum {
        PARTS = LS_NORM_MERGE_THREADS / WIDE,
        EACH = LS_NORM_MERGE_LANES / PARTS,
        ROUND = LS_NORM_MERGE_AHEAD / EACH * LS_NORM_MERGE_LANES, /* blocks loaded at a time */
    };
    static_assert(EACH >= 1 && EACH * PARTS == LS_NORM_MERGE_LANES, "lanes are shared evenly");
    static_assert(LS_NORM_MERGE_AHEAD % EACH == 0, "whole rounds of lanes are loaded ahead");
};

/* The k-th of the blocks that a thread loads at a time, `b` being the first; of lane k % EACH. */
template <int WIDE> LS_DEVICE int ls_norm_block(int b, int k)
{
    typedef ls_norm_merging<WIDE> m;
    return b + k % m::EACH * m::PARTS + k / m::EACH * LS_NORM_MERGE_LANES;
}

/* A channel's sums of COUNT of these blocks from the k-th on, 0 from `end`. They are read from the
 * second-level cache, where other multiprocessors have written them: __ldcg passes by the first,
 * which is not coherent. */
template <int WIDE, int COUNT>
LS_DEVICE void ls_norm_ahead(float *value, const float *channel, int channels, int b, int from,
                             int end)
{
    LS_UNROLL
    for (int k = 0; k < COUNT; k++) {
        int at = ls_norm_block<WIDE>(b, from + k);
        value[k] = at < end ? __ldcg(channel + (int64_t)at * channels) : 0;
    }
}

/* Sum over the lanes of each channel, EACH of them in this thread; every thread of the block gets
 * that of its channel. */
template <int WIDE> LS_DEVICE double ls_norm_merge(double *lane)
{
    typedef ls_norm_merging<WIDE> m;
    LS_SHARED(double, part, LS_NORM_MERGE_THREADS);
    int at = (int)threadIdx.x;
    LS_UNROLL
    for (int half = m::EACH / 2; half > 0; half /= 2) {
        LS_UNROLL
        for (int i = 0; i < half; i++) {
            lane[i] += lane[i + half];
        }
    }
    __syncthreads();
    part[at] = lane[0];
    for (int half = m::PARTS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (at < half * WIDE) {
            part[at] += part[at + half * WIDE];
        }
    }
    __syncthreads();
    return part[at % WIDE];
}

/* Whether the last block of a column merges it. `planes`: planes of `partial` that merging reads.
 *
 * Estimated for an H200 (no GPU has run this): one block of 256 threads reads partial sums at about
 * 80 GB/s, because a multiprocessor takes at most 64 bytes a clock from the second-level cache
 * (110 GB/s) and 256 threads with 24 loads of 4 bytes each in flight do not quite reach that. A
 * launch of its own reads them with up to 256 blocks in about 2 us, and costs about 2.2 us more to
 * start; ticket and fences cost about 1 us. So the last block is faster up to (2.2 + 2 - 1) us at
 * 80 GB/s, 256 KB. Of ResNet-50 at 224 and batch 256 in half that is forward 38 of 53 norms (not
 * those of 64 and 128 channels, with 264 and more row blocks), backward all. */
static inline bool ls_norm_folds(const ls_norm_call *call, const ls_sweep *s, int planes)
{
    int64_t wide = (int64_t)ls_norm_width(call->type, call->channels) << s->shift;
    return wide * s->blocks * planes * (int64_t)sizeof(float) <= call->fold_bytes;
}

/* Whether this block is the last of `blocks` that come here with this ticket; to be called by all
 * threads after they have written their part of `partial`. The one that is last may read what all
 * of them have written.
 *
 * As in the sample threadFenceReduction and the section "Memory Fence Functions" of the CUDA C++
 * Programming Guide: each thread's writes come before its fence, the barrier collects the block's
 * threads, one of them counts; the block that counts last reads behind a second fence. Without the
 * first fence the count could be seen before the sums. The count wraps to 0 (atomicInc), so the
 * next launch, or the next replay of a graph, finds it as this one did. */
LS_DEVICE bool ls_norm_last(unsigned *ticket, int blocks)
{
    LS_SHARED(unsigned, before, 1);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        before[0] = atomicInc(ticket, (unsigned)blocks - 1);
    }
    __syncthreads();
    bool last = before[0] == (unsigned)blocks - 1;
    if (last) {
        __threadfence();
    }
    return last;
}

#endif
