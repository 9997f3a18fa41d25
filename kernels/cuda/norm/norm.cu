/* Batch norm with the operations fused into it. Forward: one sweep for the statistics, and one that
 * normalises, adds and gates; backward (norm_back.cu): one sweep for the sums and one for the
 * gradients. Formulas and roundings are those of kernels/cpu/norm.c.
 *
 * Each block of a sweep writes the sums of its rows to `partial`; they are merged (norm.h) in
 * double, in the order of the rows. Deviations are taken from the mean of the block's first rows,
 * so that a large mean costs no accuracy: f32 loses 2^-24 of the squares, and the squares of n rows
 * are at most n times those about the block's own mean. */
#include "kernels/cuda/launch.h"

#include <math.h>

#include "norm.h"

/* Floats of one plane of partial sums: one value per block and channel. */
static int64_t plane_floats(const ls_sweep &s)
{
    return (int64_t)s.blocks * s.channels;
}

/* Three planes, for every type. Both sides' statistics are taken before the first is merged. */
static int64_t side_floats(int64_t rows, int channels, int processors)
{
    int64_t most = 0;
    for (int width = 1; width <= 8; width *= 2) {
        for (int blocks = LS_NORM_DUAL_BLOCKS;
             channels % width == 0 && blocks <= LS_NORM_STATISTICS_BLOCKS; blocks++) {
            int64_t floats = 3 * plane_floats(ls_sweep_of(rows, channels, width, processors, blocks,
                                                          ls_sweep_sum_columns(width)));
            most = floats > most ? floats : most;
        }
    }
    return most;
}

size_t ls_norm_partial_bytes(int64_t rows, int channels, int processors)
{
    return 2 * sizeof(float) * (size_t)side_floats(rows, channels, processors);
}

int64_t ls_norm_gathered(const ls_norm_call *call)
{
    return ls_norm_sides(*call) * ls_norm_message(call->channels);
}

/* ---- forward: statistics --------------------------------------------------------------------- */

/* Deviations from `shift` of U complete rows. */
template <typename T, int V, int U>
LS_DEVICE void add_deviations(const T *x, int64_t stride, const float *shift, float *sums)
{
    ls_packet<T, V> in[U];
    LS_UNROLL
    for (int u = 0; u < U; u++) {
        ls_packet_load(&in[u], x + u * stride);
    }
    LS_UNROLL
    for (int u = 0; u < U; u++) {
        float value[V];
        ls_packet_get(value, in[u]);
        LS_UNROLL
        for (int j = 0; j < V; j++) {
            float d = value[j] - shift[j];
            sums[j] += d;
            sums[V + j] = fmaf(d, d, sums[V + j]);
        }
    }
}

LS_DEVICE void set_coefficients(const ls_norm_call &call, int side, int c, double mean,
                                double variance)
{
    const ls_norm_side &n = call.side[side];
    double inv_std = 1 / sqrt(variance + (double)n.epsilon);
    double factor = ls_norm_read(n.weight, c) * inv_std;
    float rounded = (float)mean;
    float error = (float)((double)rounded - mean);
    /* the bias compensates the rounding of the mean: that error is the same for a whole channel and
     * would not average out */
    double bias = ls_norm_read(n.bias, c);
    if (n.kept.half_scale == NULL) {
        bias += (double)error * factor;
    } else { /* the bias compensates the rounding of the scale at the mean, for the same reason */
        uint16_t half = ls_half_f32_to_fp16((float)factor);
        factor = (double)ls_half_fp16_to_f32(half);
        n.kept.half_scale[c] = half;
        half = ls_half_f32_to_fp16((float)(bias - mean * factor));
        n.kept.half_bias[c] = half;
        bias = (double)ls_half_fp16_to_f32(half) + (double)rounded * factor;
    }
    n.kept.mean[c] = rounded;
    n.kept.inv_std[c] = (float)inv_std;
    n.kept.scale[c] = (float)factor;
    n.kept.bias[c] = (float)bias;
    n.kept.back[3 * (int64_t)call.channels + c] = error;
}

/* Coefficients, and the update of the running statistics. */
LS_DEVICE void finish_channel(const ls_norm_call &call, int side, int c, double mean, double m2,
                              double count)
{
    const ls_norm_side &n = call.side[side];
    double momentum = (double)n.momentum, unbiased = count > 1 ? count / (count - 1) : 1;
    double variance = m2 / count;
    set_coefficients(call, side, c, mean, variance);
    if (c == 0) {
        n.kept.count[0] = (float)count;
    }
    double old_mean = ls_norm_read(n.running_mean, c), old_var = ls_norm_read(n.running_var, c);
    ls_norm_write(n.running_mean, c, old_mean + momentum * (mean - old_mean));
    ls_norm_write(n.running_var, c, old_var + momentum * (variance * unbiased - old_var));
}

/* Over the blocks of this thread's lane of a channel: the sum of the values ... */
LS_DEVICE double lane_sum(const ls_sweep &s, const float *channel, const ls_norm_lane &here)
{
    const float *deviations = channel + (int64_t)s.blocks * s.channels;
    double sum = 0;
    for (int b = here.lane; b < here.end; b += LS_NORM_MERGE_ROUND) {
        float shift[LS_NORM_MERGE_AHEAD], deviation[LS_NORM_MERGE_AHEAD];
        ls_norm_ahead<LS_NORM_MERGE_AHEAD>(shift, channel, s.channels, b, 0, here.end);
        ls_norm_ahead<LS_NORM_MERGE_AHEAD>(deviation, deviations, s.channels, b, 0, here.end);
        LS_UNROLL
        for (int k = 0; k < LS_NORM_MERGE_AHEAD; k++) { /* 0 past the end */
            double n = (double)ls_sweep_rows(s, b + k * LS_NORM_MERGE_LANES);
            sum += n * (double)shift[k] + (double)deviation[k];
        }
    }
    return sum;
}

/* ... and the sum of their squared distances from `mean`. */
LS_DEVICE double lane_squares(const ls_sweep &s, const float *channel, const ls_norm_lane &here,
                              double mean)
{
    enum { SOME = LS_NORM_MERGE_AHEAD / 4 }; /* more would take too many registers */
    const float *deviations = channel + (int64_t)s.blocks * s.channels;
    const float *squares = deviations + (int64_t)s.blocks * s.channels;
    /* for all blocks but the last, and for the last: no division in the loop */
    double full = (double)s.rows_per_block, full_share = 1 / full;
    double rest = (double)ls_sweep_rows(s, s.blocks - 1), rest_share = 1 / rest;
    double sum = 0;
    for (int b = here.lane; b < here.end; b += LS_NORM_MERGE_ROUND) {
        LS_UNROLL
        for (int k = 0; k < LS_NORM_MERGE_AHEAD; k += SOME) {
            float shift[SOME], deviation[SOME], square[SOME];
            ls_norm_ahead<SOME>(shift, channel, s.channels, b, k, here.end);
            ls_norm_ahead<SOME>(deviation, deviations, s.channels, b, k, here.end);
            ls_norm_ahead<SOME>(square, squares, s.channels, b, k, here.end);
            LS_UNROLL
            for (int i = 0; i < SOME; i++) {
                int at = b + (k + i) * LS_NORM_MERGE_LANES;
                double d = (double)deviation[i], n = at + 1 < s.blocks ? full : rest;
                double part = d * (at + 1 < s.blocks ? full_share : rest_share);
                double off = (double)shift[i] + part - mean;
                sum += at < here.end ? (double)square[i] - d * part + n * off * off : 0;
            }
        }
    }
    return sum;
}

/* Coefficients, or this rank's message, from the mean and squared deviations of this rank's rows.
 */
LS_DEVICE void settle_channel(const ls_norm_call &call, int side, int c, double mean, double m2)
{
    if (call.group == 1) {
        finish_channel(call, side, c, mean, m2, (double)call.rows);
        return;
    }
    float *mine = call.mine + side * ls_norm_message(call.channels);
    float rounded = (float)mean;
    mine[c] = rounded;
    mine[call.channels + c] = (float)(mean - (double)rounded);
    mine[2 * call.channels + c] = (float)m2;
    if (c == 0) {
        mine[3 * call.channels] = (float)call.rows;
    }
}

/* The same from a product's sums. Subtracting the mean's square loses as many digits as the mean
 * has more than the deviation: fuse.h admits only products whose sums are good enough for that. */
LS_KERNEL product_statistics_kernel(ls_norm_call call, int side)
{
    int c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    ls_launch_wait();
    if (c >= call.channels) {
        return;
    }
    double sum = (double)call.sum[side][c], mean = sum / (double)call.rows;
    double m2 = (double)call.squares[side][c] - sum * mean;
    settle_channel(call, side, c, mean, m2 < 0 ? 0 : m2);
}

/* Merges the partial statistics of 8 channels a block into coefficients or into this rank's
 * message. blockIdx.y: the side. */
LS_KERNEL LS_BOUNDS(LS_NORM_MERGE_THREADS, 1)
    merge_statistics_kernel(ls_norm_call call, ls_sweep s, int64_t side_floats)
{
    int side = (int)blockIdx.y;
    ls_norm_lane here = ls_norm_lane_here(s);
    const float *channel = call.partial + side * side_floats + here.channel;
    ls_launch_wait();
    if (call.sum[side] != NULL) {
        return;
    }
    double mean = ls_norm_merge(lane_sum(s, channel, here)) / (double)s.rows;
    double m2 = ls_norm_merge(lane_squares(s, channel, here, mean));
    if (ls_norm_settles(here)) {
        settle_channel(call, side, here.channel, mean, m2 < 0 ? 0 : m2);
    }
}

/* Planes: shift; sum of deviations from it; sum of their squares. */
template <typename T, int V>
LS_KERNEL LS_BOUNDS(LS_SWEEP_THREADS, LS_NORM_STATISTICS_BLOCKS)
    statistics_kernel(const T *x, ls_sweep s, float *partial, bool early)
{
    ls_sweep_place p = ls_sweep_here(s);
    float shift[V] = {}, sums[2 * V] = {};
    ls_launch_wait();
    if (p.inside) {
        int first = p.to - p.from < LS_SWEEP_AHEAD ? (int)(p.to - p.from) : LS_SWEEP_AHEAD;
        float share = 1 / (float)first;
        for (int i = 0; i < first; i++) {
            ls_packet<T, V> in;
            float value[V];
            ls_packet_load(&in, x + (p.from + i) * s.channels + p.packet * V);
            ls_packet_get(value, in);
            LS_UNROLL
            for (int j = 0; j < V; j++) {
                shift[j] += value[j] * share;
            }
        }
        int64_t stride = (int64_t)p.tile * s.channels;
        const T *at = x + p.row * s.channels + p.packet * V;
        int64_t row = p.row;
        for (; row + (LS_SWEEP_AHEAD - 1) * p.tile < p.to; row += LS_SWEEP_AHEAD * p.tile) {
            add_deviations<T, V, LS_SWEEP_AHEAD>(at, stride, shift, sums);
            at += LS_SWEEP_AHEAD * stride;
        }
        for (; row < p.to; row += p.tile) {
            add_deviations<T, V, 1>(at, stride, shift, sums);
            at += stride;
        }
        if (threadIdx.x >> s.shift == 0) {
            float *to = partial + (int64_t)blockIdx.y * s.channels + p.packet * V;
            LS_UNROLL
            for (int j = 0; j < V; j++) {
                to[j] = shift[j];
            }
        }
    }
    if (early) {
        ls_launch_next(); /* its blocks come while the last ones here add */
    }
    ls_sweep_sum<2, V>(s, sums, partial + (int64_t)s.blocks * s.channels);
}

/* Chan, Golub and LeVeque (1979), in rank order: every rank gets the same bits. blockIdx.y: the
 * side. */
LS_KERNEL finish_ranks_kernel(ls_norm_call call)
{
    int side = (int)blockIdx.y, c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (c >= call.channels) {
        return;
    }
    double n = 0, mean = 0, m2 = 0;
    for (int r = 0; r < call.group; r++) {
        const float *theirs = ls_norm_theirs(call, r, side);
        double off = (double)theirs[c] + (double)theirs[call.channels + c] - mean;
        double m = (double)theirs[3 * call.channels];
        m2 += (double)theirs[2 * call.channels + c] + off * off * n * m / (n + m);
        mean += off * m / (n + m);
        n += m;
    }
    finish_channel(call, side, c, mean, m2, n);
}

/* blockIdx.y: the side. */
LS_KERNEL use_running_kernel(ls_norm_call call)
{
    int side = (int)blockIdx.y, c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (c < call.channels) {
        const ls_norm_side &n = call.side[side];
        set_coefficients(call, side, c, ls_norm_read(n.running_mean, c),
                         ls_norm_read(n.running_var, c));
    }
}

ls_status ls_norm_use_running(cudaStream_t stream, const ls_norm_call *call)
{
    LS_LAUNCH(use_running_kernel, ls_norm_ranks_grid(call), LS_NORM_RANK_THREADS, stream, *call);
    return LS_OK;
}

ls_status ls_norm_statistics(cudaStream_t stream, const ls_norm_call *call)
{
    ls_sweep s = ls_norm_sum_sweep(call, LS_NORM_STATISTICS_BLOCKS);
    int64_t floats = side_floats(call->rows, call->channels, call->processors);
    bool whole = ls_norm_width(call->type, call->channels) != 1;
    bool merges = false, early = false;
    for (int side = 0; side < ls_norm_sides(*call); side++) {
        const void *x = side == 0 ? call->x : call->residual;
        if (call->sum[side] != NULL) {
            LS_LAUNCH_BEHIND(early, product_statistics_kernel,
                             ls_launch_blocks(call->channels, LS_NORM_RANK_THREADS),
                             LS_NORM_RANK_THREADS, stream, *call, side);
        } else {
            LS_BY_PACKET(call->type, whole, T, V,
                         LS_LAUNCH_BEHIND(early, (statistics_kernel<T, V>), ls_sweep_grid(&s),
                                          LS_SWEEP_THREADS, stream, (const T *)x, s,
                                          call->partial + side * floats, call->early));
            merges = true;
        }
        early = call->early;
    }
    if (merges) {
        LS_LAUNCH_BEHIND(early, merge_statistics_kernel, ls_norm_merge_grid(call),
                         LS_NORM_MERGE_THREADS, stream, *call, s, floats);
    }
    return LS_OK;
}

ls_status ls_norm_waits(bool *waits)
{
    cudaFuncAttributes code;
    LS_CUDA(cudaFuncGetAttributes(&code, (const void *)finish_ranks_kernel));
    *waits = code.ptxVersion >= 90;
    return LS_OK;
}

ls_status ls_norm_finish(cudaStream_t stream, const ls_norm_call *call)
{
    if (call->group > 1) {
        LS_LAUNCH(finish_ranks_kernel, ls_norm_ranks_grid(call), LS_NORM_RANK_THREADS, stream,
                  *call);
    }
    return LS_OK;
}

/* ---- forward: normalise, add, gate ----------------------------------------------------------- */

enum { PLAIN, RESIDUAL, DUAL };

template <int V> struct coefficients {
    float mean[V], scale[V], bias[V];
};

template <int V>
LS_DEVICE void load_coefficients(coefficients<V> *to, const ls_norm_kept &kept, int packet)
{
    ls_norm_channels<V>(to->mean, kept.mean, packet);
    ls_norm_channels<V>(to->scale, kept.scale, packet);
    ls_norm_channels<V>(to->bias, kept.bias, packet);
}

/* As torch's: keeps NaN, turns -0 into 0. */
LS_DEVICE float relu_of(float value)
{
    return value <= 0 ? 0 : value;
}

/* U rows from `first` on (an element's index). If `inside` is false nothing is read or written, but
 * all lanes take part in the mask. */
template <typename T, int V, int KIND, int U>
LS_DEVICE void apply_rows(const ls_norm_call &call, const coefficients<V> *c, int64_t first,
                          int64_t stride, bool inside)
{
    ls_packet<T, V> x[U] = {}, r[U] = {};
    LS_UNROLL
    for (int u = 0; u < U; u++) {
        if (inside) {
            ls_packet_load(&x[u], (const T *)call.x + first + u * stride);
            if (KIND != PLAIN) {
                ls_packet_load(&r[u], (const T *)call.residual + first + u * stride);
            }
        }
    }
    LS_UNROLL
    for (int u = 0; u < U; u++) {
        float value[V], add[V] = {};
        unsigned open = 0;
        ls_packet_get(value, x[u]);
        if (KIND != PLAIN) {
            ls_packet_get(add, r[u]);
        }
        LS_UNROLL
        for (int j = 0; j < V; j++) {
            value[j] = fmaf(value[j] - c[0].mean[j], c[0].scale[j], c[0].bias[j]);
            if (KIND == DUAL) {
                add[j] = fmaf(add[j] - c[1].mean[j], c[1].scale[j], c[1].bias[j]);
            }
            if (KIND != PLAIN) {
                value[j] += add[j];
            }
            if (call.relu) {
                value[j] = ls_element_round<T>(relu_of(value[j]));
                open |= value[j] > 0 ? 1u << j : 0u;
            }
        }
        if (call.mask != NULL) {
            if (V == 4) { /* two lanes share a byte */
                open |= __shfl_down_sync(0xffffffffu, open, 1) << 4;
            }
            int64_t i = first + u * stride;
            if (inside && i % 8 == 0) {
                ((uint8_t *)call.mask)[i >> 3] = (uint8_t)open;
            }
        }
        if (inside) {
            ls_packet_set(&x[u], value);
            ls_packet_store((T *)call.y + first + u * stride, x[u]);
        }
    }
}

template <typename T, int V, int KIND>
LS_KERNEL LS_BOUNDS(LS_SWEEP_THREADS, (KIND == DUAL ? LS_NORM_DUAL_BLOCKS : LS_NORM_APPLY_BLOCKS))
    apply_kernel(ls_norm_call call, ls_sweep s)
{
    enum { U = KIND == PLAIN ? 4 : 2 };
    ls_sweep_place p = ls_sweep_here(s);
    coefficients<V> c[KIND == DUAL ? 2 : 1] = {};
    ls_launch_wait();
    if (p.inside) {
        load_coefficients<V>(&c[0], call.side[0].kept, p.packet);
        if (KIND == DUAL) {
            load_coefficients<V>(&c[KIND == DUAL ? 1 : 0], call.side[1].kept, p.packet);
        }
    }
    int64_t stride = (int64_t)p.tile * s.channels, first = p.row * s.channels + p.packet * V;
    int64_t tiles = (p.to - p.from + p.tile - 1) / p.tile, whole = (p.to - p.from) / (U * p.tile);
    /* backwards: the cache still has the rows that the statistics read last. Loops are the same in
     * all threads, which meet for the mask */
    for (int64_t t = tiles - 1; t >= whole * U; t--) {
        apply_rows<T, V, KIND, 1>(call, c, first + t * stride, stride,
                                  p.inside && p.row + t * p.tile < p.to);
    }
    for (int64_t g = whole - 1; g >= 0; g--) {
        apply_rows<T, V, KIND, U>(call, c, first + g * U * stride, stride, p.inside);
    }
}

/* Rows not made of whole packets: one element per thread, one word of the mask per warp. */
template <typename T> LS_KERNEL apply_single_kernel(ls_norm_call call)
{
    int64_t count = call.rows * call.channels;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    ls_launch_wait();
    for (int64_t base = (int64_t)blockIdx.x * blockDim.x; base < count; base += step) {
        int64_t i = base + threadIdx.x;
        float value = 0;
        if (i < count) {
            int c = (int)(i % call.channels);
            const ls_norm_kept &a = call.side[0].kept, &b = call.side[1].kept;
            value =
                fmaf(ls_element_float(((const T *)call.x)[i]) - a.mean[c], a.scale[c], a.bias[c]);
            if (call.residual != NULL) {
                float add = ls_element_float(((const T *)call.residual)[i]);
                value += call.dual ? fmaf(add - b.mean[c], b.scale[c], b.bias[c]) : add;
            }
            value = ls_element_round<T>(call.relu ? relu_of(value) : value);
            ls_element_set((T *)call.y + i, value);
        }
        unsigned open = __ballot_sync(0xffffffffu, value > 0);
        if (call.mask != NULL && threadIdx.x % 32 == 0 && i < count) {
            call.mask[i >> 5] = open;
        }
    }
}

template <typename T> static ls_status apply(cudaStream_t stream, const ls_norm_call *call)
{
    if (ls_norm_width(call->type, call->channels) == 1) {
        int64_t blocks = (call->rows * call->channels + LS_SWEEP_THREADS - 1) / LS_SWEEP_THREADS;
        int64_t most = (int64_t)call->processors * 8;
        LS_LAUNCH_BEHIND(call->early, (apply_single_kernel<T>),
                         dim3((unsigned)(blocks < most ? blocks : most)), LS_SWEEP_THREADS, stream,
                         *call);
        return LS_OK;
    }
    enum { V = 16 / sizeof(T) };
    ls_sweep s = ls_norm_sweep(call, call->dual ? LS_NORM_DUAL_BLOCKS : LS_NORM_APPLY_BLOCKS);
    if (call->dual) {
        LS_LAUNCH_BEHIND(call->early, (apply_kernel<T, V, DUAL>), ls_sweep_grid(&s),
                         LS_SWEEP_THREADS, stream, *call, s);
    } else if (call->residual != NULL) {
        LS_LAUNCH_BEHIND(call->early, (apply_kernel<T, V, RESIDUAL>), ls_sweep_grid(&s),
                         LS_SWEEP_THREADS, stream, *call, s);
    } else {
        LS_LAUNCH_BEHIND(call->early, (apply_kernel<T, V, PLAIN>), ls_sweep_grid(&s),
                         LS_SWEEP_THREADS, stream, *call, s);
    }
    return LS_OK;
}

ls_status ls_norm_apply(cudaStream_t stream, const ls_norm_call *call)
{
    LS_BY_ELEMENT(call->type, T, return apply<T>(stream, call));
    return LS_OK;
}
