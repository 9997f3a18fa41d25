/* The multi-tensor operations of the backend contract on the CPU: one pass over all tensors of a
 * list, whose concatenation is split among the threads. The operations are elementwise, and norms
 * are summed in a fixed order, so no value depends on the number of threads, on the cuts, or on the
 * vector instructions in use. */
#include "multi_variant.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/math/clip.h"
#include "kernels/math/scaler.h"
#include "kernels/entries.h"
#include "kernels/optimizers.h"

/* Below this many elements a call runs in the caller: starting the threads costs more than the
 * work. */
enum { PARALLEL_LEAST = 32768 };
/* From this many f32 elements on, 32 MB, results do not stay in a cache until they are read. */
enum { STREAM_LEAST = 8 << 20 };

const ls_multi_variant *ls_multi_choose(ls_isa widest)
{
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (avx512 && widest >= LS_ISA_AVX512) {
        return &ls_multi_avx512;
    }
    if (avx2 && widest >= LS_ISA_AVX2) {
        return &ls_multi_avx2;
    }
#endif
    (void)widest;
    return &ls_multi_plain;
}

/* ---- one pass over a list, split among threads ----------------------------------------------- */

/* Processes `count` elements of tensor `index` from `offset` on; true if one is not finite. */
typedef bool piece_work(const void *context, int index, int64_t offset, int64_t count);

/* Elements [begin, end) of the concatenation. Returns the lowest index whose work was true, or
 * INT_MAX. */
static int run_range(ls_tensor_list list, int64_t begin, int64_t end, piece_work *work,
                     const void *context)
{
    int lowest = INT_MAX;
    int64_t start = 0; /* of tensor i in the concatenation */
    for (int i = 0; i < list.count && start < end; i++) {
        int64_t stop = start + list.tensor[i].count;
        int64_t from = begin > start ? begin : start;
        int64_t to = end < stop ? end : stop;
        if (from < to && work(context, i, from - start, to - from) && lowest == INT_MAX) {
            lowest = i;
        }
        start = stop;
    }
    return lowest;
}

static int64_t total_of(ls_tensor_list list)
{
    int64_t total = 0;
    for (int i = 0; i < list.count; i++) {
        total += list.tensor[i].count;
    }
    return total;
}

/* Returns the lowest index whose work was true, or -1. */
static int run(ls_tensor_list list, int threads, piece_work *work, const void *context)
{
    int64_t total = total_of(list);
    int lowest = INT_MAX;
    if (threads <= 1 || total < PARALLEL_LEAST) {
        lowest = run_range(list, 0, total, work, context);
    } else {
        int64_t lines =
            (total + 15) /
            16; /* cuts at multiples of 16 elements, so that threads share few cache lines */
#pragma omp parallel for num_threads(threads) schedule(static) reduction(min : lowest)
        for (int t = 0; t < threads; t++) {
            int64_t begin = lines * t / threads * 16;
            int64_t end = lines * (t + 1) / threads * 16;
            int mine = run_range(list, begin, end < total ? end : total, work, context);
            lowest = mine < lowest ? mine : lowest;
        }
    }
    return lowest == INT_MAX ? -1 : lowest;
}

static void check_type(ls_tensor tensor)
{
    LS_ASSERT(tensor.dtype == LS_F32 || tensor.dtype == LS_F16 || tensor.dtype == LS_BF16);
}

/* Checks that entry i of `other` has the count of entry i of `list`. */
static void check_match(ls_tensor_list list, ls_tensor_list other)
{
    LS_ASSERT(other.count == list.count);
    for (int i = 0; i < list.count; i++) {
        LS_ASSERT(other.tensor[i].count == list.tensor[i].count);
        check_type(other.tensor[i]);
    }
}

/* ---- elementwise between two lists ----------------------------------------------------------- */

typedef struct pair_context {
    const ls_multi_variant *variant;
    ls_tensor_list to, from; /* to.count 0: check only */
    float factor;
    bool first, streams;
} pair_context;

static bool convert_piece(const void *opaque, int i, int64_t offset, int64_t count)
{
    const pair_context *c = opaque;
    ls_tensor to = c->to.tensor[i], from = c->from.tensor[i];
    c->variant->convert(ls_multi_element(to, offset), to.dtype, ls_multi_element(from, offset),
                        from.dtype, c->factor, count);
    return false;
}

ls_status ls_multi_convert(ls_backend *backend, ls_stream *stream, ls_tensor to, ls_tensor from,
                           float factor)
{
    (void)stream;
    pair_context context = {backend->multi, {1, &to}, {1, &from}, factor, false};
    check_type(to);
    check_match(context.to, context.from);
    run(context.to, backend->threads, convert_piece, &context);
    return LS_OK;
}

ls_status ls_multi_scale(ls_backend *backend, ls_stream *stream, ls_tensor tensor, float factor)
{
    return ls_multi_convert(backend, stream, tensor, tensor, factor);
}

static bool accumulate_piece(const void *opaque, int i, int64_t offset, int64_t count)
{
    const pair_context *c = opaque;
    ls_tensor from = c->from.tensor[i];
    c->variant->accumulate(ls_multi_element(c->to.tensor[i], offset),
                           ls_multi_element(from, offset), from.dtype, c->first, count);
    return false;
}

ls_status ls_multi_accumulate(ls_backend *backend, ls_stream *stream, ls_tensor sum, ls_tensor from,
                              bool first)
{
    (void)stream;
    pair_context context = {backend->multi, {1, &sum}, {1, &from}, 1.0f, first};
    LS_ASSERT(sum.dtype == LS_F32);
    check_match(context.to, context.from);
    run(context.to, backend->threads, accumulate_piece, &context);
    return LS_OK;
}

static bool unscale_piece(const void *opaque, int i, int64_t offset, int64_t count)
{
    const pair_context *c = opaque;
    ls_tensor from = c->from.tensor[i];
    if (c->to.count == 0) {
        return c->variant->unscale(NULL, LS_F32, ls_multi_element(from, offset), from.dtype,
                                   c->factor, false, count);
    }
    ls_tensor to = c->to.tensor[i];
    bool streams = c->streams && to.dtype == LS_F32 && to.data != from.data;
    bool bad =
        c->variant->unscale(ls_multi_element(to, offset), to.dtype, ls_multi_element(from, offset),
                            from.dtype, c->factor, streams, count);
    if (LS_PLANT(block_zeroed, false, i == 12 && count >= 192)) {
        memset(ls_multi_element(to, offset + 64), 0, 64 * sizeof(float));
    }
    return bad;
}

ls_status ls_multi_unscale_check(ls_backend *backend, ls_stream *stream, ls_tensor_list to,
                                 ls_tensor_list from, ls_step_state *state)
{
    (void)stream;
    check_match(from, from);
    if (to.count != 0) {
        check_match(from, to);
    }
    pair_context context = {.variant = backend->multi,
                            .to = to,
                            .from = from,
                            .factor = LS_PLANT(no_unscale, state->inv_loss_scale, 1.0f),
                            .streams = total_of(to) >= STREAM_LEAST};
    state->first_bad_grad = run(from, backend->threads, unscale_piece, &context);
    state->overflow = state->first_bad_grad >= 0 ? 1 : 0;
    return LS_OK;
}

/* ---- clipping -------------------------------------------------------------------------------- */

typedef struct clip_context {
    ls_tensor_list grad;
    float factor, max_value;
} clip_context;

static bool clip_piece(const void *opaque, int i, int64_t offset, int64_t count)
{
    const clip_context *c = opaque;
    float *grad = ls_multi_element(c->grad.tensor[i], offset);
    for (int64_t k = 0; k < count; k++) {
        grad[k] = ls_clip_apply(grad[k], c->factor, c->max_value);
    }
    return false;
}

ls_status ls_multi_clip(ls_backend *backend, ls_stream *stream, const ls_clip_config *config,
                        ls_tensor_list grad, bool dynamic, ls_step_state *state)
{
    (void)stream;
    double squares = 0;
    clip_context context = {grad, 1.0f, (float)config->max_value};
    for (int i = 0; i < grad.count; i++) {
        LS_ASSERT(grad.tensor[i].dtype == LS_F32);
    }
    state->grad_norm = NAN;
    if (dynamic && state->overflow != 0) {
        return LS_OK;
    }
    LS_TRY(ls_multi_norm_squares(backend->multi, backend->threads, grad, &squares));
    state->grad_norm = (float)sqrt(squares);
    context.factor = ls_clip_factor(config, squares, state);
    if (context.factor != 1.0f || context.max_value != 0.0f) {
        run(grad, backend->threads, clip_piece, &context);
    }
    return LS_OK;
}

/* ---- optimizer ------------------------------------------------------------------------------- */

typedef struct step_context {
    const ls_multi_variant *variant;
    const ls_optimizer_args *args;
    ls_multi_rule rule[LS_OPTIMIZER_GROUPS_MAX]; /* of each group */
} step_context;

static bool step_piece(const void *opaque, int i, int64_t offset, int64_t count)
{
    const step_context *c = opaque;
    ls_multi_span span = ls_multi_span_at(c->args, i, offset);
    count = LS_PLANT(not_stepped_beyond_a_million, count,
                     offset + count < 1 << 20 ? count : (1 << 20) - offset);
    return c->variant->step(&c->rule[ls_multi_group(c->args, i)], &span, count);
}

ls_status ls_multi_optimizer_step(ls_backend *backend, ls_stream *stream,
                                  const ls_optimizer_config *config, const ls_optimizer_args *args,
                                  bool dynamic, ls_step_state *state)
{
    (void)stream;
    ls_optimizer_args used = ls_optimizers_args(config, args);
    check_match(args->value, args->value);
    check_match(args->value, args->grad);
    if (args->copy.count != 0) {
        check_match(args->value, args->copy);
    }
    state->first_bad_state = -1;
    state->skipped = LS_PLANT(static_scale_skips, dynamic, true) && state->overflow != 0 ? 1 : 0;
    if (state->skipped != 0) {
        state->step_count += LS_PLANT(skip_counts_as_step, 0, 1);
        return LS_OK;
    }
    if (ls_rules_norms(config->kind) != LS_NORMS_NONE) {
        LS_TRY(ls_multi_norm_step(backend->multi, backend->threads, config, &used, state));
    } else if (config->unfused) {
        LS_TRY(ls_multi_unfused_step(backend, config, &used, state));
    } else {
        step_context context = {backend->multi, &used, {{.kind = config->kind}}};
        ls_multi_prepare(context.rule, config, state, 0);
        state->first_bad_state = run(args->value, backend->threads, step_piece, &context);
    }
    state->step_count++;
    return LS_OK;
}

ls_status ls_multi_scaler_update(ls_backend *backend, ls_stream *stream,
                                 const ls_scaler_config *config, ls_step_state *state)
{
    (void)backend;
    (void)stream;
    ls_scaler_update(config, state);
    return LS_OK;
}
