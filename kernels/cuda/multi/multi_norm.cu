/* Norms of whole tensors: every sum is taken in double and in the CPU's order, so the bits equal
 * the CPU's. A chunk is 32 blocks of 512 elements, a block 16 sums of every 16th element; these are
 * folded by halves, then blocks and chunks are added in turn. */
#include "kernels/cuda/launch.h"

#include "kernels/core/log.h"
#include "kernels/math/clip.h"
#include "kernels/cuda/backend.h"
#include "multi_lists.h"

enum {
    BLOCK = 512,                              /* elements */
    LANES = 16,                               /* sums of a block */
    THREADS = LS_MULTI_CHUNK / BLOCK * LANES, /* one per sum of a chunk */
    AHEAD = 8,                                /* elements that a thread has in flight */
    STAGED = 256,                             /* chunk sums loaded at a time */
};

/* A thread's elements: first, first + LANES, ... below end. */
typedef struct lane_place {
    int tensor;
    int64_t first, end;
} lane_place;

LS_DEVICE lane_place lane_of(const ls_multi_table &table)
{
    ls_multi_part part = ls_multi_part_of(table, 1);
    int64_t block = part.begin + (int64_t)(threadIdx.x / LANES) * BLOCK;
    lane_place place;
    place.tensor = part.tensor;
    place.first = block + threadIdx.x % LANES;
    place.end = block + BLOCK < part.end ? block + BLOCK : part.end;
    return place;
}

LS_DEVICE float read_one(const ls_multi_view &view, int64_t index)
{
    LS_GLOBAL(view.data);
    if (view.type == LS_F32) {
        return ((const float *)view.data)[index];
    }
    return view.type == LS_F16 ? ls_element_float(((const ls_f16 *)view.data)[index])
                               : ls_element_float(((const ls_bf16 *)view.data)[index]);
}

/* Writes the sum of a chunk's threads to *to. Every thread of the block must call this. */
LS_DEVICE void add_chunk(double sum, double *to)
{
    LS_SHARED(double, part, THREADS / LANES);
    for (int half = LANES / 2; half > 0; half /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, (unsigned)half, LANES);
    }
    __syncthreads();
    if (threadIdx.x % LANES == 0) {
        part[threadIdx.x / LANES] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double all = 0;
        for (int b = 0; b < THREADS / LANES; b++) {
            all += part[b];
        }
        *to = all;
    }
}

LS_DEVICE double squares_of(const ls_multi_view &view, const lane_place &place)
{
    double sum = 0;
    for (int64_t i = place.first; i < place.end; i += AHEAD * LANES) {
        float value[AHEAD];
        LS_UNROLL
        for (int k = 0; k < AHEAD; k++) {
            int64_t at = i + k * LANES;
            value[k] = at < place.end ? read_one(view, at) : 0;
        }
        LS_UNROLL
        for (int k = 0; k < AHEAD;
             k++) { /* a square is exact in double; adding 0 changes nothing */
            sum += (double)value[k] * (double)value[k];
        }
    }
    return sum;
}

/* Per chunk, first: sum of squares of the gradient; second: of the value. */
LS_KERNEL LS_BOUNDS(THREADS, 1) measure_kernel(ls_multi_table table)
{
    if (table.rule->skip != 0) {
        return;
    }
    lane_place place = lane_of(table);
    const ls_multi_view *view = table.entry[place.tensor].view;
    add_chunk(squares_of(view[LS_MULTI_GRAD], place), &table.first[blockIdx.x]);
    add_chunk(squares_of(view[LS_MULTI_VALUE], place), &table.second[blockIdx.x]);
}

/* sum + from[0] + from[1] + ..., in order; thread 0 has the result. Every thread of the block must
 * call this. */
LS_DEVICE double add_in_order(const double *from, int count)
{
    LS_SHARED(double, staged, STAGED);
    double sum = 0;
    for (int base = 0; base < count; base += STAGED) {
        int n = count - base < STAGED ? count - base : STAGED;
        __syncthreads();
        if ((int)threadIdx.x < n) {
            staged[threadIdx.x] = from[base + (int)threadIdx.x];
        }
        __syncthreads();
        for (int i = 0; threadIdx.x == 0 && i < n; i++) {
            sum += staged[i];
        }
    }
    return sum;
}

/* Per chunk, first: sum of squares of the gradient. */
LS_KERNEL LS_BOUNDS(THREADS, 1)
    measure_grad_kernel(ls_multi_table table, bool dynamic, const ls_step_state *state)
{
    if (dynamic && state->overflow != 0) {
        return;
    }
    lane_place place = lane_of(table);
    add_chunk(squares_of(table.entry[place.tensor].view[LS_MULTI_GRAD], place),
              &table.first[blockIdx.x]);
}

LS_KERNEL clip_rule_kernel(ls_multi_table table, ls_clip_config config, bool dynamic,
                           ls_step_state *state)
{
    bool skip = dynamic && state->overflow != 0;
    double squares = skip ? 0 : add_in_order(table.first, table.chunk_count);
    if (threadIdx.x == 0) {
        table.rule->skip = skip ? 1 : 0;
        table.rule->clip = ls_clip_factor(&config, squares, state);
        state->grad_norm = skip ? (float)NAN : (float)sqrt(squares);
    }
}

ls_status ls_multi_norm_clip(cudaStream_t stream, const ls_clip_config *config, bool dynamic,
                             const ls_multi_table *table, ls_step_state *state)
{
    if (table->chunk_count > 0) {
        LS_LAUNCH(measure_grad_kernel, (unsigned)table->chunk_count, THREADS, stream, *table,
                  dynamic, state);
    }
    LS_LAUNCH(clip_rule_kernel, 1, STAGED, stream, *table, *config, dynamic, state);
    return LS_OK;
}

/* Constants that need the norm of all gradients. */
LS_KERNEL rule_kernel(ls_multi_table table, ls_optimizer_config config)
{
    if (table.rule->skip != 0) {
        return;
    }
    double squares = add_in_order(table.first, table.chunk_count);
    if (threadIdx.x == 0) {
        ls_multi_prepare(table.rule, &config, squares);
    }
}

/* Moves the moments. Per chunk, first: sum of squares of the update. */
template <ls_optimizer_kind KIND>
LS_KERNEL LS_BOUNDS(THREADS, 1) moments_kernel(ls_multi_table table)
{
    if (table.rule->skip != 0) {
        return;
    }
    lane_place place = lane_of(table);
    ls_rules rules = table.rule->rules[table.entry[place.tensor].group];
    const ls_multi_view *view = table.entry[place.tensor].view;
    float *m = (float *)view[LS_MULTI_MOMENT1].data, *v = (float *)view[LS_MULTI_MOMENT2].data;
    double sum = 0;
    LS_UNROLL
    for (int64_t i = place.first; i < place.end; i += LANES) {
        float value = read_one(view[LS_MULTI_VALUE], i), grad = read_one(view[LS_MULTI_GRAD], i);
        float moment1 = m[i], moment2 = v[i];
        double update = (double)ls_rules_update(KIND, &rules, value, grad, &moment1, &moment2);
        m[i] = moment1;
        v[i] = moment2;
        sum += update * update;
    }
    add_chunk(sum, &table.first[blockIdx.x]);
}

/* One block per tensor: its rule, from the sums of its chunks. */
LS_KERNEL own_kernel(ls_multi_table table, ls_optimizer_config config)
{
    if (table.rule->skip != 0) {
        return;
    }
    int first_chunk = table.entry[blockIdx.x].first_chunk, chunks = table.entry[blockIdx.x].chunks;
    double first = add_in_order(table.first + first_chunk, chunks);
    double value = add_in_order(table.second + first_chunk, chunks);
    if (threadIdx.x != 0) {
        return;
    }
    float lr = table.rule->lr;
    ls_optimizer_config own = ls_rules_of_group(&config, table.entry[blockIdx.x].group, &lr);
    table.own[blockIdx.x] = ls_rules_tensor(&own, lr, value, first);
}

/* The rule, which needs the norm of all gradients, and the moments. */
template <ls_optimizer_kind KIND>
static ls_status prepare_update(cudaStream_t stream, const ls_optimizer_config *config,
                                const ls_multi_table *table)
{
    LS_LAUNCH(rule_kernel, 1, STAGED, stream, *table, *config);
    LS_LAUNCH((moments_kernel<KIND>), (unsigned)table->chunk_count, THREADS, stream, *table);
    return LS_OK;
}

ls_status ls_multi_norm_prepare(cudaStream_t stream, const ls_optimizer_config *config,
                                const ls_multi_table *table)
{
    LS_LAUNCH(measure_kernel, (unsigned)table->chunk_count, THREADS, stream, *table);
    switch (config->kind) {
#define PREPARE_NONE(KIND)
#define PREPARE_GRAD(KIND)
#define PREPARE_UPDATE(KIND) LS_TRY(prepare_update<LS_OPTIMIZER_##KIND>(stream, config, table));
#define LS_OPTIMIZER(KIND, name, rule, variants, norms, ...) \
    case LS_OPTIMIZER_##KIND:                                \
        PREPARE_##norms(KIND) break;
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    default:
        break;
    }
    LS_LAUNCH(own_kernel, (unsigned)table->entry_count, STAGED, stream, *table, *config);
    return LS_OK;
}
