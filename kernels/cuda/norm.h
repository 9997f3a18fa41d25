/* Shared by the kernels of norm.cu and norm_back.cu: how a call is swept, reading values of
 * channels, and merging the sums of blocks. */
#ifndef LS_CUDA_NORM_H
#define LS_CUDA_NORM_H

#include "launch.h"

#include "ops.h"
#include "sweep.h"

enum {
    LS_NORM_MERGE_CHANNELS = 8, /* per merging block */
    LS_NORM_MERGE_LANES = 32,   /* threads that share the merging of one channel */
    LS_NORM_MERGE_THREADS = LS_NORM_MERGE_CHANNELS * LS_NORM_MERGE_LANES,
    LS_NORM_MERGE_AHEAD = 8, /* sums of blocks that a thread loads ahead */
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

static inline dim3 ls_norm_merge_grid(const ls_norm_call *call)
{
    return dim3(ls_launch_blocks(call->channels, LS_NORM_MERGE_CHANNELS));
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

/* A channel's sums of the next LS_NORM_MERGE_AHEAD blocks of this lane, b and on; 0 from `end`. */
LS_DEVICE void ls_norm_ahead(float *value, const float *channel, int channels, int b, int end)
{
    LS_UNROLL
    for (int k = 0; k < LS_NORM_MERGE_AHEAD; k++) {
        int at = b + k * LS_NORM_MERGE_LANES;
        value[k] = at < end ? channel[(int64_t)at * channels] : 0;
    }
}

/* Sum of a value over the lanes of each channel; every thread of the block gets it. */
LS_DEVICE double ls_norm_merge(double value)
{
    LS_SHARED(double, part, LS_NORM_MERGE_THREADS);
    int at = (int)threadIdx.x;
    __syncthreads();
    part[at] = value;
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
