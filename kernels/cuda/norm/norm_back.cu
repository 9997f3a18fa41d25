/* Batch norm backward: one sweep for the sums of both norms of an operation, which also sums and
 * gates the gradient, and one for the gradients of their inputs. Formulas and roundings are those
 * of kernels/cpu/norm.c. */
#include "kernels/cuda/launch.h"

#include <math.h>

#include "kernels/core/plant.h"
#include "norm.h"

static ls_sweep sums_sweep(const ls_norm_call *call)
{
    return ls_norm_sum_sweep(call, call->dual ? LS_NORM_DUAL_BLOCKS : LS_NORM_SUMS_BLOCKS);
}

/* ---- sums -------------------------------------------------------------------------- */

template <int V, bool TWO> struct sums_state {
    float mean[TWO ? 2 : 1][V];
    float sum[(TWO ? 3 : 2) * V]; /* of g; g*(x - mean); g*(residual - its mean) */
};

/* U complete rows from element `first` on. */
template <typename T, int V, bool TWO, int U>
LS_DEVICE void sum_rows(const ls_norm_call &call, sums_state<V, TWO> *state, int64_t first,
                        int64_t stride)
{
    ls_packet<T, V> dy[U], dy2[U] = {}, x[U], x2[U] = {};
    unsigned open[U];
    LS_UNROLL
    for (int u = 0; u < U; u++) {
        int64_t i = first + u * stride;
        ls_packet_load(&dy[u], (const T *)call.dy + i);
        ls_packet_load(&x[u], (const T *)call.x + i);
        if (call.dy2 != NULL) {
            ls_packet_load(&dy2[u], (const T *)call.dy2 + i);
        }
        if (TWO) {
            ls_packet_load(&x2[u], (const T *)call.residual + i);
        }
        open[u] = call.mask != NULL ? ls_norm_bits<V>(call.mask, i) : 0xffu;
    }
    LS_UNROLL
    for (int u = 0; u < U; u++) {
        float g[V], other[V];
        ls_packet_get(g, dy[u]);
        if (call.dy2 != NULL) {
            ls_packet_get(other, dy2[u]);
            LS_UNROLL
            for (int j = 0; j < V; j++) {
                g[j] += other[j];
            }
        }
        LS_UNROLL
        for (int j = 0; j < V; j++) {
            g[j] = open[u] >> j & 1u ? g[j] : 0;
        }
        if (call.g != NULL) { /* sum the stored, rounded values */
            ls_packet_set(&dy[u], g);
            ls_packet_store((T *)call.g + first + u * stride, dy[u]);
            ls_packet_get(g, dy[u]);
        }
        ls_packet_get(other, x[u]);
        LS_UNROLL
        for (int j = 0; j < V; j++) {
            state->sum[j] += g[j];
            state->sum[V + j] = fmaf(g[j], other[j] - state->mean[0][j], state->sum[V + j]);
        }
        if (TWO) {
            ls_packet_get(other, x2[u]);
            LS_UNROLL
            for (int j = 0; j < V; j++) {
                float *sum = &state->sum[(TWO ? 2 : 1) * V + j];
                *sum = fmaf(g[j], other[j] - state->mean[TWO ? 1 : 0][j], *sum);
            }
        }
    }
}

/* ---- coefficients ------------------------------------------------------------------ */

/* dx = w/std * (g - mean(g) - (x - mean) / var * mean(g * (x - mean))). */
LS_DEVICE void back_channel(const ls_norm_call &call, int side, int c, double total, double total_x)
{
    const ls_norm_side &n = call.side[side];
    float *back = n.kept.back;
    double inv_std = (double)n.kept.inv_std[c], count = (double)n.kept.count[0];
    double weight = ls_norm_read(n.weight, c), error = (double)back[3 * (int64_t)call.channels + c];
    float a = (float)(weight * inv_std);
    float x = (float)(-weight * inv_std * inv_std * inv_std * total_x / count);
    back[c] = a;
    /* from the rounded a and c, so that the gradients of a channel still sum to zero */
    back[call.channels + c] = (float)(-(double)a * total / count + (double)x * error);
    back[2 * (int64_t)call.channels + c] = x;
}

/* The parameters' gradients of a channel, and the coefficients or this rank's message, from the
 * sums of g and of g * (x - rounded mean). */
LS_DEVICE void settle_sums(const ls_norm_call &call, int side, int c, double sum, double sum_x)
{
    const ls_norm_side &n = call.side[side];
    /* move the sum from the rounded mean to the mean */
    sum_x += (double)n.kept.back[3 * (int64_t)call.channels + c] * sum;
    ls_norm_write(n.weight_grad, c, sum_x * (double)n.kept.inv_std[c]);
    ls_norm_write(n.bias_grad, c, sum);
    if (call.group == 1) {
        back_channel(call, side, c, sum, sum_x);
        return;
    }
    float *mine = call.mine + side * ls_norm_message(call.channels);
    mine[c] = (float)sum;
    mine[call.channels + c] = (float)sum_x;
}

/* The same from a product's sums. blockIdx.y: the side. */
LS_KERNEL product_sums_kernel(ls_norm_call call)
{
    int side = (int)blockIdx.y, c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (c < call.channels) {
        settle_sums(call, side, c, (double)call.gated[side][c], (double)call.gated_x[side][c]);
    }
}

/* Merges the blocks' sums of 8 channels a block and settles them. blockIdx.y: the side. */
LS_KERNEL LS_BOUNDS(LS_NORM_MERGE_THREADS, 1) merge_sums_kernel(ls_norm_call call, ls_sweep s)
{
    int side = (int)blockIdx.y;
    ls_norm_lane here = ls_norm_lane_here(s);
    const float *g_of = call.partial + here.channel;
    const float *gx_of = g_of + (1 + side) * (int64_t)s.blocks * s.channels;
    double sum = 0, sum_x = 0;
    ls_launch_wait();
    for (int b = here.lane; b < here.end; b += LS_NORM_MERGE_ROUND) {
        float g[LS_NORM_MERGE_AHEAD], gx[LS_NORM_MERGE_AHEAD];
        ls_norm_ahead<LS_NORM_MERGE_AHEAD>(g, g_of, s.channels, b, 0, here.end);
        ls_norm_ahead<LS_NORM_MERGE_AHEAD>(gx, gx_of, s.channels, b, 0, here.end);
        LS_UNROLL
        for (int k = 0; k < LS_NORM_MERGE_AHEAD; k++) {
            sum += (double)g[k];
            sum_x += (double)gx[k];
        }
    }
    sum = ls_norm_merge(sum);
    sum_x = ls_norm_merge(sum_x);
    if (ls_norm_settles(here)) {
        settle_sums(call, side, here.channel, sum, sum_x);
    }
}

template <typename T, int V, bool TWO>
LS_KERNEL LS_BOUNDS(LS_SWEEP_THREADS, (TWO ? LS_NORM_DUAL_BLOCKS : LS_NORM_SUMS_BLOCKS))
    sums_kernel(ls_norm_call call, ls_sweep s)
{
    enum { U = 2 };
    ls_sweep_place p = ls_sweep_here(s);
    sums_state<V, TWO> state = {};
    if (p.inside) {
        ls_norm_channels<V>(state.mean[0], call.side[0].kept.mean, p.packet);
        if (TWO) {
            ls_norm_channels<V>(state.mean[TWO ? 1 : 0], call.side[1].kept.mean, p.packet);
        }
        int64_t stride = (int64_t)p.tile * s.channels, first = p.row * s.channels + p.packet * V;
        int64_t row = p.row;
        for (; row + (U - 1) * p.tile < p.to; row += U * p.tile) {
            sum_rows<T, V, TWO, U>(call, &state, first, stride);
            first += U * stride;
        }
        for (; row < p.to; row += p.tile) {
            sum_rows<T, V, TWO, 1>(call, &state, first, stride);
            first += stride;
        }
    }
    if (call.early) {
        ls_launch_next(); /* its blocks come while the last ones here add */
    }
    ls_sweep_sum<TWO ? 3 : 2, V>(s, state.sum, call.partial);
}

template <typename T, int V>
static ls_status sums(cudaStream_t stream, const ls_norm_call *call, const ls_sweep &s)
{
    if (call->dual) {
        LS_LAUNCH((sums_kernel<T, V, true>), ls_sweep_grid(&s), LS_SWEEP_THREADS, stream, *call, s);
    } else {
        LS_LAUNCH((sums_kernel<T, V, false>), ls_sweep_grid(&s), LS_SWEEP_THREADS, stream, *call,
                  s);
    }
    return LS_OK;
}

ls_status ls_norm_sums(cudaStream_t stream, const ls_norm_call *call)
{
    ls_sweep s = sums_sweep(call);
    bool whole = ls_norm_width(call->type, call->channels) != 1;
    LS_ASSERT(call->g != NULL || call->dy2 == NULL);
    if (call->gated[0] != NULL) {
        LS_ASSERT(call->g == call->dy && (!call->dual || call->gated[1] != NULL));
        LS_LAUNCH(product_sums_kernel, ls_norm_ranks_grid(call), LS_NORM_RANK_THREADS, stream,
                  *call);
        return LS_OK;
    }
    LS_BY_PACKET(call->type, whole, T, V, LS_TRY((sums<T, V>(stream, call, s))));
    LS_LAUNCH_BEHIND(call->early, merge_sums_kernel, ls_norm_merge_grid(call),
                     LS_NORM_MERGE_THREADS, stream, *call, s);
    return LS_OK;
}

/* In rank order. blockIdx.y: the side. */
LS_KERNEL back_ranks_kernel(ls_norm_call call)
{
    int side = (int)blockIdx.y, c = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (c >= call.channels) {
        return;
    }
    double sum = 0, sum_x = 0;
    for (int r = 0; r < call.group; r++) {
        const float *theirs = ls_norm_theirs(call, r, side);
        sum += (double)theirs[c];
        sum_x += (double)theirs[call.channels + c];
    }
    back_channel(call, side, c, sum, sum_x);
}

ls_status ls_norm_back_finish(cudaStream_t stream, const ls_norm_call *call)
{
    if (call->group > 1) {
        LS_LAUNCH(back_ranks_kernel, ls_norm_ranks_grid(call), LS_NORM_RANK_THREADS, stream, *call);
    }
    return LS_OK;
}

/* ---- gradients --------------------------------------------------------------------- */

template <int V> struct back_coefficients {
    float mean[V], a[V], b[V], c[V];
};

template <int V>
LS_DEVICE void load_back(back_coefficients<V> *to, const ls_norm_kept &kept, int channels,
                         int packet)
{
    ls_norm_channels<V>(to->mean, kept.mean, packet);
    ls_norm_channels<V>(to->a, kept.back, packet);
    ls_norm_channels<V>(to->b, kept.back + channels, packet);
    ls_norm_channels<V>(to->c, kept.back + 2 * (int64_t)channels, packet);
}

template <typename T, int V>
LS_DEVICE void store_dx(ls_packet<T, V> x, const float *g, const back_coefficients<V> &k, T *to)
{
    float value[V];
    ls_packet_get(value, x);
    LS_UNROLL
    for (int j = 0; j < V; j++) {
        value[j] = fmaf(g[j], k.a[j], fmaf(value[j] - k.mean[j], k.c[j], k.b[j]));
    }
    ls_packet_set(&x, value);
    ls_packet_store(to, x);
}

/* U rows; all reads come before all writes, because dx may be g. */
template <typename T, int V, bool TWO, int U>
LS_DEVICE void back_rows(const ls_norm_call &call, const back_coefficients<V> *k, int64_t first,
                         int64_t stride)
{
    const T *from = (const T *)(call.g != NULL ? call.g : call.dy);
    bool gated = call.g == NULL && call.mask != NULL;
    ls_packet<T, V> g[U], x[U] = {}, x2[U] = {};
    unsigned open[U];
    LS_UNROLL
    for (int u = 0; u < U; u++) {
        int64_t i = first + u * stride;
        ls_packet_load(&g[u], from + i);
        if (call.dx != NULL) {
            ls_packet_load(&x[u], (const T *)call.x + i);
        }
        if (TWO && call.dx2 != NULL) {
            ls_packet_load(&x2[u], (const T *)call.residual + i);
        }
        open[u] = gated ? ls_norm_bits<V>(call.mask, i) : 0xffu;
    }
    LS_UNROLL
    for (int u = 0; u < U; u++) {
        int64_t i = first + u * stride;
        float value[V];
        ls_packet_get(value, g[u]);
        LS_UNROLL
        for (int j = 0; j < V; j++) {
            value[j] = open[u] >> j & 1u ? value[j] : 0;
        }
        if (call.dx != NULL) {
            store_dx<T, V>(x[u], value, k[0], (T *)call.dx + i);
        }
        if (TWO && call.dx2 != NULL) {
            store_dx<T, V>(x2[u], value, k[TWO ? 1 : 0], (T *)call.dx2 + i);
        }
    }
}

template <typename T, int V, bool TWO>
LS_KERNEL LS_BOUNDS(LS_SWEEP_THREADS, LS_NORM_BACK_BLOCKS)
    back_kernel(ls_norm_call call, ls_sweep s)
{
    enum { U = 2 };
    ls_sweep_place p = ls_sweep_here(s);
    ls_launch_wait();
    if (!p.inside) {
        return;
    }
    back_coefficients<V> k[TWO ? 2 : 1];
    load_back<V>(&k[0], call.side[0].kept, s.channels, p.packet);
    if (TWO) {
        load_back<V>(&k[TWO ? 1 : 0], call.side[1].kept, s.channels, p.packet);
    }
    int64_t stride = (int64_t)p.tile * s.channels, first = p.row * s.channels + p.packet * V;
    int64_t tiles = (p.to - p.row + p.tile - 1) / p.tile, whole = tiles > 0 ? tiles / U : 0;
    /* backwards, because the cache still has the rows that the sums read last */
    for (int64_t t = tiles - 1; t >= whole * U; t--) {
        back_rows<T, V, TWO, 1>(call, k, first + t * stride, stride);
    }
    for (int64_t g = whole - 1; g >= 0; g--) {
        back_rows<T, V, TWO, U>(call, k, first + g * U * stride, stride);
    }
}

template <typename T, int V> static ls_status back(cudaStream_t stream, const ls_norm_call *call)
{
    ls_sweep s = ls_norm_sweep(call, LS_NORM_BACK_BLOCKS);
    if (call->dual) {
        LS_LAUNCH_BEHIND(call->early, (back_kernel<T, V, true>), ls_sweep_grid(&s),
                         LS_SWEEP_THREADS, stream, *call, s);
    } else {
        LS_LAUNCH_BEHIND(call->early, (back_kernel<T, V, false>), ls_sweep_grid(&s),
                         LS_SWEEP_THREADS, stream, *call, s);
    }
    return LS_OK;
}

ls_status ls_norm_back_apply(cudaStream_t stream, const ls_norm_call *call)
{
    bool whole = ls_norm_width(call->type, call->channels) != 1;
    LS_BY_ELEMENT(call->type, T, enum {V = 16 / sizeof(T)};
                  return (whole ? back<T, V> : back<T, 1>)(stream, call));
    return LS_OK;
}
