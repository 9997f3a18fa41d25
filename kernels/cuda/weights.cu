/* Weights of products: [out][in][taps] as a parameter, [out][taps][in] in the product's order. A
 * block turns a range of input channels of one output channel through shared memory, so that both
 * sides are accessed in their own order; without taps it is a copy. */
#include "launch.h"

#include "kernels/cuda/multi/multi_lists.h"
#include "ops.h"

enum { THREADS = 256, TILE = 4096, MOST_BLOCKS = 512 };

/* How one weight is cut: `tiles` ranges of up to `run` channels for each output channel. */
typedef struct weight_cut {
    int taps, run, tiles;
} weight_cut;

/* One range, in both orders. */
typedef struct weight_tile {
    int stored, filled;    /* channels of this range, and those that are not padding */
    int64_t plain, packed; /* its start; packed: of its first tap */
} weight_tile;

LS_HOST_DEVICE weight_cut cut_of(const ls_weight &w)
{
    weight_cut c;
    c.taps = w.kernel * w.kernel;
    c.run = TILE / c.taps / 4 * 4;
    c.run = c.run < w.stored_in ? c.run : w.stored_in;
    c.tiles = c.run > 0 ? (w.stored_in + c.run - 1) / c.run : 0;
    return c;
}

LS_DEVICE ls_multi_view plain_view(const ls_tensor &tensor)
{
    ls_multi_view view;
    uintptr_t quad = tensor.dtype == LS_F32 ? 16 : 8, at = (uintptr_t)tensor.data;
    view.data = tensor.data;
    view.type = tensor.dtype;
    view.parts = at % quad == 0 ? 1 : at % (quad / 2) == 0 ? 2 : 4;
    return view;
}

LS_DEVICE ls_multi_view packed_view(const ls_weight &w, int type)
{
    ls_multi_view view;
    view.data = w.packed;
    view.type = type;
    view.parts = 1;
    return view;
}

LS_DEVICE weight_tile tile_of(const ls_weight &w, const weight_cut &cut, int item)
{
    weight_tile t;
    int o = item / cut.tiles, first = item % cut.tiles * cut.run;
    t.stored = w.stored_in - first < cut.run ? w.stored_in - first : cut.run;
    t.filled = w.in - first < t.stored ? w.in - first : t.stored;
    t.plain = ((int64_t)o * w.in + first) * cut.taps;
    t.packed = (int64_t)o * cut.taps * w.stored_in + first;
    return t;
}

/* No taps and no padding: only the types differ. */
LS_DEVICE void copy_quads(const ls_multi_view &to, const ls_multi_view &from, int64_t count)
{
    int64_t step = (int64_t)gridDim.x * THREADS * 4;
    for (int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4; i < count; i += step) {
        int n = count - i < 4 ? (int)(count - i) : 4;
        ls_multi_quad quad;
        float value[4];
        ls_multi_load(&quad, from, i, n);
        ls_multi_get(value, quad, from.type);
        ls_multi_set(&quad, value, to.type);
        ls_multi_store(to, i, n, quad);
    }
}

/* Of the stem over blocks: the place in the parameter of packed element i; -1: padding. */
LS_DEVICE int64_t plain_of_block(const ls_weight &w, int64_t i)
{
    int channel = (int)(i % w.stored_in), tap = (int)(i / w.stored_in % 16);
    int pixel = channel / w.in, c = channel % w.in;
    int ky = tap / 4 * 2 + pixel / 2, kx = tap % 4 * 2 + pixel % 2;
    int64_t o = i / w.stored_in / 16;
    bool inside = pixel < 4 && ky < w.kernel && kx < w.kernel;
    return inside ? ((o * w.in + c) * w.kernel + ky) * w.kernel + kx : -1;
}

/* In either direction; a stem has few weights. */
LS_DEVICE void copy_blocks(const ls_weight &w, int type, bool packing)
{
    int64_t count = ls_weight_packed_count(&w), step = (int64_t)gridDim.x * THREADS;
    ls_tensor packed = {w.packed, (ls_dtype)type, count};
    LS_GLOBAL(w.packed);
    LS_GLOBAL(w.plain.data);
    LS_NO_UNROLL
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step) {
        int64_t at = plain_of_block(w, i);
        if (packing) {
            ls_element_write(packed, i, at < 0 ? 0 : ls_element_read(w.plain, at));
        } else if (at >= 0) {
            ls_element_write(w.plain, at, ls_element_read(packed, i));
        }
    }
}

LS_KERNEL pack_kernel(const ls_weight *weight, int type)
{
    LS_SHARED(float, tile, TILE);
    ls_weight w = weight[blockIdx.y];
    if (w.stem_blocks) {
        copy_blocks(w, type, true);
        return;
    }
    LS_GLOBAL(w.plain.data);
    weight_cut cut = cut_of(w);
    ls_multi_view packed = packed_view(w, type);
    if (cut.taps == 1 && w.in == w.stored_in) {
        copy_quads(packed, plain_view(w.plain), (int64_t)w.out * w.in);
        return;
    }
    packed.parts = w.stored_in % 4 == 0 ? 1 : 4; /* otherwise a row may start at any element */
    for (int item = (int)blockIdx.x; item < w.out * cut.tiles; item += (int)gridDim.x) {
        weight_tile t = tile_of(w, cut, item);
        __syncthreads();
        for (int i = (int)threadIdx.x; i < t.stored * cut.taps; i += THREADS) {
            tile[i] = i < t.filled * cut.taps ? ls_element_read(w.plain, t.plain + i) : 0;
        }
        __syncthreads();
        int quads = (t.stored + 3) / 4;
        for (int i = (int)threadIdx.x; i < quads * cut.taps; i += THREADS) {
            int tap = i / quads, c = i % quads * 4, n = t.stored - c < 4 ? t.stored - c : 4;
            ls_multi_quad quad;
            float value[4];
            LS_UNROLL
            for (int k = 0; k < 4; k++) {
                value[k] = k < n ? tile[(c + k) * cut.taps + tap] : 0;
            }
            ls_multi_set(&quad, value, type);
            ls_multi_store(packed, t.packed + (int64_t)tap * w.stored_in + c, n, quad);
        }
    }
}

static unsigned blocks_for(int64_t elements)
{
    unsigned blocks = ls_launch_blocks(elements, TILE);
    return blocks < (unsigned)MOST_BLOCKS ? blocks : (unsigned)MOST_BLOCKS;
}

ls_status ls_weights_pack(cudaStream_t stream, ls_dtype type, const ls_weight *weight, int count,
                          int64_t most)
{
    LS_LAUNCH(pack_kernel, dim3(blocks_for(most), (unsigned)count), THREADS, stream, weight,
              (int)type);
    return LS_OK;
}

LS_KERNEL unpack_kernel(const ls_weight *gradient, int type)
{
    LS_SHARED(float, tile, TILE);
    ls_weight w = gradient[blockIdx.y];
    if (w.stem_blocks) {
        copy_blocks(w, type, false);
        return;
    }
    weight_cut cut = cut_of(w);
    ls_multi_view packed = packed_view(w, type);
    if (cut.taps == 1 && w.in == w.stored_in) {
        copy_quads(plain_view(w.plain), packed, (int64_t)w.out * w.in);
        return;
    }
    packed.parts = w.stored_in % 4 == 0 ? 1 : 4; /* otherwise a row may start at any element */
    for (int item = (int)blockIdx.x; item < w.out * cut.tiles; item += (int)gridDim.x) {
        weight_tile t = tile_of(w, cut, item);
        __syncthreads();
        int quads = (t.stored + 3) / 4;
        for (int i = (int)threadIdx.x; i < quads * cut.taps; i += THREADS) {
            int tap = i / quads, c = i % quads * 4, n = t.stored - c < 4 ? t.stored - c : 4;
            ls_multi_quad quad;
            float value[4];
            ls_multi_load(&quad, packed, t.packed + (int64_t)tap * w.stored_in + c, n);
            ls_multi_get(value, quad, type);
            LS_UNROLL
            for (int k = 0; k < 4; k++) {
                if (k < n) {
                    tile[(c + k) * cut.taps + tap] = value[k];
                }
            }
        }
        __syncthreads();
        for (int i = (int)threadIdx.x; i < t.filled * cut.taps; i += THREADS) {
            ls_element_write(w.plain, t.plain + i, tile[i]);
        }
    }
}

ls_status ls_weights_unpack(cudaStream_t stream, ls_dtype type, const ls_weight *gradient,
                            int count, int64_t most)
{
    LS_LAUNCH(unpack_kernel, dim3(blocks_for(most), (unsigned)count), THREADS, stream, gradient,
              (int)type);
    return LS_OK;
}
