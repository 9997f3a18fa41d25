/* Multi-tensor operations: one launch over all tensors of a list. The arithmetic is that of
 * kernels/math/, every operation rounded, so the bits equal the CPU's. */
#include "kernels/cuda/launch.h"

#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/math/clip.h"
#include "kernels/math/scaler.h"
#include "kernels/optimizers.h"
#include "kernels/cuda/backend.h"
#include "multi_lists.h"
#include "kernels/cuda/ops.h"

/* ---- elementwise between two tensors --------------------------------------------------------- */

enum { AHEAD = 4, PAIR_BLOCK = LS_MULTI_THREADS * 4 * AHEAD }; /* quads in flight; elements */

LS_DEVICE int quad_count(int64_t index, int64_t end)
{
    return end - index >= 4 ? 4 : end > index ? (int)(end - index) : 0;
}

LS_KERNEL convert_kernel(ls_multi_view to, ls_multi_view from, int64_t count, float factor)
{
    int64_t first = (int64_t)blockIdx.x * PAIR_BLOCK + 4 * (int64_t)threadIdx.x;
    ls_multi_quad quad[AHEAD];
    LS_UNROLL
    for (int u = 0; u < AHEAD; u++) {
        int64_t i = first + u * 4 * LS_MULTI_THREADS;
        ls_multi_load(&quad[u], from, i, quad_count(i, count));
    }
    LS_UNROLL
    for (int u = 0; u < AHEAD; u++) {
        int64_t i = first + u * 4 * LS_MULTI_THREADS;
        float value[4];
        ls_multi_get(value, quad[u], from.type);
        for (int k = 0; k < 4; k++) {
            value[k] = ls_rounded_mul(value[k], factor);
        }
        ls_multi_set(&quad[u], value, to.type);
        ls_multi_store(to, i, quad_count(i, count), quad[u]);
    }
}

LS_KERNEL accumulate_kernel(ls_multi_view sum, ls_multi_view from, int64_t count, bool first_one)
{
    int64_t first = (int64_t)blockIdx.x * PAIR_BLOCK + 4 * (int64_t)threadIdx.x;
    ls_multi_quad quad[AHEAD], old[AHEAD];
    LS_UNROLL
    for (int u = 0; u < AHEAD; u++) {
        int64_t i = first + u * 4 * LS_MULTI_THREADS;
        ls_multi_load(&quad[u], from, i, quad_count(i, count));
        if (!first_one) {
            ls_multi_load(&old[u], sum, i, quad_count(i, count));
        }
    }
    LS_UNROLL
    for (int u = 0; u < AHEAD; u++) {
        int64_t i = first + u * 4 * LS_MULTI_THREADS;
        float value[4], before[4];
        ls_multi_get(value, quad[u], from.type);
        if (!first_one) {
            ls_multi_get(before, old[u], LS_F32);
            for (int k = 0; k < 4; k++) {
                value[k] = ls_rounded_add(before[k], value[k]);
            }
        }
        ls_multi_set(&quad[u], value, LS_F32);
        ls_multi_store(sum, i, quad_count(i, count), quad[u]);
    }
}

ls_status ls_multi_scale(ls_backend *backend, ls_stream *stream, ls_tensor tensor, float factor)
{
    return ls_multi_convert(backend, stream, tensor, tensor, factor);
}

ls_status ls_multi_convert(ls_backend *backend, ls_stream *stream, ls_tensor to, ls_tensor from,
                           float factor)
{
    (void)backend;
    LS_ASSERT(to.count == from.count);
    if (to.count == 0) {
        return LS_OK;
    }
    LS_LAUNCH(convert_kernel, ls_launch_blocks(to.count, PAIR_BLOCK), LS_MULTI_THREADS,
              stream->native, ls_multi_view_of(to), ls_multi_view_of(from), to.count, factor);
    return LS_OK;
}

ls_status ls_multi_accumulate(ls_backend *backend, ls_stream *stream, ls_tensor sum, ls_tensor from,
                              bool first)
{
    (void)backend;
    LS_ASSERT(sum.count == from.count && sum.dtype == LS_F32);
    if (sum.count == 0) {
        return LS_OK;
    }
    LS_LAUNCH(accumulate_kernel, ls_launch_blocks(sum.count, PAIR_BLOCK), LS_MULTI_THREADS,
              stream->native, ls_multi_view_of(sum), ls_multi_view_of(from), sum.count, first);
    return LS_OK;
}

/* ---- unscale --------------------------------------------------------------------------------- */

LS_KERNEL clear_flags_kernel(ls_step_state *state)
{
    state->overflow = 0;
    state->first_bad_grad = -1;
}

enum { STEP = 4 * LS_MULTI_THREADS }; /* step from a thread's quad to its next */

/* Processes AHEAD quads from `first` on; WHOLE: each is complete. Returns whether a value is not
 * finite. */
template <bool WHOLE>
LS_DEVICE uint32_t unscale_quads(const ls_multi_view &to, const ls_multi_view &from, float factor,
                                 int first, int end)
{
    ls_multi_quad quad[AHEAD];
    uint32_t bad = 0;
    LS_UNROLL
    for (int u = 0; u < AHEAD; u++) {
        int i = first + u * STEP;
        ls_multi_load(&quad[u], from, i, WHOLE ? 4 : quad_count(i, end));
    }
    LS_UNROLL
    for (int u = 0; u < AHEAD; u++) {
        int i = first + u * STEP;
        int count = WHOLE ? 4 : quad_count(i, end);
        float value[4];
        ls_multi_get(value, quad[u], from.type);
        LS_UNROLL
        for (int k = 0; k < 4; k++) {
            float scale = LS_PLANT(vector_remainder_scaled, factor, count == 4 ? factor : 1);
            bad |= ls_rounded_non_finite(value[k]); /* 0 past the end */
            value[k] = k < count ? ls_rounded_mul(value[k], scale) : 0;
        }
        if (to.data != NULL) {
            bad |= ls_multi_set(&quad[u], value, to.type);
            ls_multi_store(to, i, count, quad[u]);
        }
    }
    return bad;
}

/* The quads of whole views of type TYPE, except the last few; *first: where they end. */
template <int TYPE>
LS_DEVICE uint32_t unscale_whole(ls_multi_view to, ls_multi_view from, float factor, int *first,
                                 int end)
{
    uint32_t bad = 0;
    to = ls_multi_known(to, LS_F32);
    from = ls_multi_known(from, TYPE);
    for (; *first + (AHEAD - 1) * STEP + 4 <= end; *first += AHEAD * STEP) {
        bad |= unscale_quads<true>(to, from, factor, *first, end);
    }
    return bad;
}

LS_KERNEL LS_BOUNDS(LS_MULTI_THREADS, 3) unscale_kernel(ls_multi_table table, ls_step_state *state)
{
    ls_multi_part part = ls_multi_part_of(table, LS_MULTI_SPLIT);
    const ls_multi_view *view = table.entry[part.tensor].view;
    ls_multi_view from = ls_multi_from(view[LS_MULTI_FROM], part.begin);
    ls_multi_view to = ls_multi_from(view[LS_MULTI_TO], part.begin);
    float factor = LS_PLANT(no_unscale, state->inv_loss_scale, 1.0f);
    int first = 4 * (int)threadIdx.x, end = (int)(part.end - part.begin);
    uint32_t bad = 0;
    if (table.entry[part.tensor].whole != 0) {
        bad = from.type == LS_F32   ? unscale_whole<LS_F32>(to, from, factor, &first, end)
              : from.type == LS_F16 ? unscale_whole<LS_F16>(to, from, factor, &first, end)
                                    : unscale_whole<LS_BF16>(to, from, factor, &first, end);
    }
    for (; first < end; first += AHEAD * STEP) {
        bad |= unscale_quads<false>(to, from, factor, first, end);
    }
    ls_multi_report(&state->first_bad_grad, part.tensor, bad);
    if (__ballot_sync(0xffffffffu, bad != 0) != 0 && threadIdx.x % LS_WARP == 0) {
        atomicOr(&state->overflow, 1);
    }
}

ls_status ls_multi_unscale_check(ls_backend *backend, ls_stream *stream, ls_tensor_list to,
                                 ls_tensor_list from, ls_step_state *state)
{
    (void)backend;
    const ls_tensor_list list[LS_MULTI_LISTS] = {to, from};
    ls_multi_table table;
    LS_ASSERT(to.count == 0 || to.count == from.count);
    LS_TRY(ls_multi_table_of(stream, list, NULL, false, &table));
    LS_LAUNCH(clear_flags_kernel, 1, 1, stream->native, state);
    if (table.chunk_count > 0) {
        LS_LAUNCH(unscale_kernel, (unsigned)(table.chunk_count * LS_MULTI_SPLIT), LS_MULTI_THREADS,
                  stream->native, table, state);
    }
    return LS_OK;
}

/* ---- clipping -------------------------------------------------------------------------------- */

LS_KERNEL clip_kernel(ls_multi_table table, float max_value)
{
    float factor = table.rule->clip;
    if (table.rule->skip != 0 || (factor == 1.0f && max_value == 0.0f)) {
        return;
    }
    ls_multi_part part = ls_multi_part_of(table, LS_MULTI_SPLIT);
    ls_multi_view grad = ls_multi_from(table.entry[part.tensor].view[LS_MULTI_GRAD], part.begin);
    grad.type = LS_F32;
    int end = (int)(part.end - part.begin);
    for (int i = 4 * (int)threadIdx.x; i < end; i += STEP) {
        ls_multi_quad quad;
        float value[4];
        ls_multi_load(&quad, grad, i, quad_count(i, end));
        ls_multi_get(value, quad, LS_F32);
        LS_UNROLL
        for (int k = 0; k < 4; k++) {
            value[k] = ls_clip_apply(value[k], factor, max_value);
        }
        ls_multi_set(&quad, value, LS_F32);
        ls_multi_store(grad, i, quad_count(i, end), quad);
    }
}

ls_status ls_multi_clip(ls_backend *backend, ls_stream *stream, const ls_clip_config *config,
                        ls_tensor_list grad, bool dynamic, ls_step_state *state)
{
    (void)backend;
    const ls_tensor_list list[LS_MULTI_LISTS] = {grad, grad};
    ls_multi_table table;
    for (int i = 0; i < grad.count; i++) {
        LS_ASSERT(grad.tensor[i].dtype == LS_F32);
    }
    LS_TRY(ls_multi_table_of(stream, list, NULL, true, &table));
    LS_TRY(ls_multi_norm_clip(stream->native, config, dynamic, &table, state));
    if (table.chunk_count > 0 && (config->max_norm != 0 || config->max_value != 0)) {
        LS_LAUNCH(clip_kernel, (unsigned)(table.chunk_count * LS_MULTI_SPLIT), LS_MULTI_THREADS,
                  stream->native, table, (float)config->max_value);
    }
    return LS_OK;
}

/* ---- optimizer ------------------------------------------------------------------------------- */

/* One thread: decides whether this step is taken, and computes its constants and number. */
LS_KERNEL prepare_kernel(ls_optimizer_config config, bool dynamic, ls_multi_rule *rule,
                         ls_step_state *state)
{
    bool skip = LS_PLANT(static_scale_skips, dynamic, true) && state->overflow != 0;
    state->first_bad_state = -1;
    state->skipped = skip ? 1 : 0;
    rule->skip = skip ? 1 : 0;
    if (skip) {
        state->step_count += LS_PLANT(skip_counts_as_step, 0, 1);
        return;
    }
    rule->lr = state->lr;
    rule->number = state->step_count + 1;
    if (ls_rules_norms(config.kind) != LS_NORMS_UPDATE) {
        ls_multi_prepare(rule, &config, 0);
    }
    state->step_count = rule->number;
}

/* Values of four elements during a step. */
typedef struct step_quad {
    ls_multi_quad value, grad, moment1, moment2;
} step_quad;

enum { STEP_AHEAD = 2 };

/* Whether the step has its moments: an optimizer with one can do without. */
template <ls_optimizer_kind KIND> LS_DEVICE bool has_moments(const ls_multi_entry &e)
{
    int moments = ls_rules_moments(KIND);
    return moments == 2 || (moments == 1 && e.view[LS_MULTI_MOMENT1].data != NULL);
}

/* The new value of one element; updates the moments. */
template <ls_optimizer_kind KIND>
LS_DEVICE float step_one(const ls_rules &rules, const ls_rule_tensor &own, bool has, float p,
                         float g, float *moment1, float *moment2)
{
    if (has) { /* NULL only as a constant: the moments stay in registers */
        return ls_rules_step(KIND, &rules, &own, p, g, moment1, moment2);
    }
    return ls_rules_step(KIND, &rules, &own, p, g, NULL, NULL);
}

template <ls_optimizer_kind KIND>
LS_DEVICE void step_load(step_quad *q, const ls_multi_entry &e, int64_t i, int count)
{
    ls_multi_load(&q->value, e.view[LS_MULTI_VALUE], i, count);
    if (ls_rules_norms(KIND) != LS_NORMS_UPDATE) {
        ls_multi_load(&q->grad, e.view[LS_MULTI_GRAD], i, count);
    }
    if (has_moments<KIND>(e)) {
        ls_multi_load(&q->moment1, e.view[LS_MULTI_MOMENT1], i, count);
    }
    if (ls_rules_moments(KIND) == 2) {
        ls_multi_load(&q->moment2, e.view[LS_MULTI_MOMENT2], i, count);
    }
}

/* Returns whether a value is not finite after the step. Elements past the end are 0 and do not
 * affect the result. */
template <ls_optimizer_kind KIND>
LS_DEVICE uint32_t step_store(step_quad *q, const ls_multi_entry &e, const ls_rules &rules,
                              const ls_rule_tensor &own, int64_t i, int count)
{
    const bool updates = ls_rules_norms(KIND) != LS_NORMS_UPDATE; /* else an earlier pass has */
    const bool two = ls_rules_moments(KIND) == 2;
    bool has = has_moments<KIND>(e);
    float value[4], grad[4] = {}, moment1[4] = {}, moment2[4] = {};
    uint32_t bad = 0;
    ls_multi_get(value, q->value, e.view[LS_MULTI_VALUE].type);
    if (updates) {
        ls_multi_get(grad, q->grad, e.view[LS_MULTI_GRAD].type);
    }
    if (has) {
        ls_multi_get(moment1, q->moment1, LS_F32);
    }
    if (two) {
        ls_multi_get(moment2, q->moment2, LS_F32);
    }
    LS_UNROLL
    for (int k = 0; k < 4; k++) {
        value[k] = step_one<KIND>(rules, own, has, value[k], grad[k], &moment1[k], &moment2[k]);
        value[k] = k < count ? value[k] : 0;
        bad |= ls_rounded_non_finite(value[k]);
        if (k < count && has) {
            bad |= ls_rounded_non_finite(moment1[k]) | ls_rounded_non_finite(moment2[k]);
        }
    }
    bad |= ls_multi_set(&q->value, value, e.view[LS_MULTI_VALUE].type);
    ls_multi_store(e.view[LS_MULTI_VALUE], i, count, q->value);
    if (updates && has) {
        ls_multi_set(&q->moment1, moment1, LS_F32);
        ls_multi_store(e.view[LS_MULTI_MOMENT1], i, count, q->moment1);
    }
    if (updates && two) {
        ls_multi_set(&q->moment2, moment2, LS_F32);
        ls_multi_store(e.view[LS_MULTI_MOMENT2], i, count, q->moment2);
    }
    if (e.view[LS_MULTI_COPY].data != NULL) {
        bad |= ls_multi_set(&q->grad, value, e.view[LS_MULTI_COPY].type);
        ls_multi_store(e.view[LS_MULTI_COPY], i, count, q->grad);
    }
    return bad;
}

/* The entry with its views from element `begin` on. */
LS_DEVICE ls_multi_entry entry_from(const ls_multi_entry *entry, int64_t begin)
{
    ls_multi_entry e = *entry;
    LS_UNROLL
    for (int k = 0; k < LS_MULTI_LISTS; k++) {
        e.view[k] = ls_multi_from(e.view[k], begin);
    }
    return e;
}

template <ls_optimizer_kind KIND, bool WHOLE>
LS_DEVICE uint32_t step_quads(const ls_multi_entry &e, const ls_rules &rules,
                              const ls_rule_tensor &own, int first, int end)
{
    step_quad quad[STEP_AHEAD];
    uint32_t bad = 0;
    LS_UNROLL
    for (int u = 0; u < STEP_AHEAD; u++) {
        int i = first + u * STEP;
        step_load<KIND>(&quad[u], e, i, WHOLE ? 4 : quad_count(i, end));
    }
    LS_UNROLL
    for (int u = 0; u < STEP_AHEAD; u++) {
        int i = first + u * STEP;
        bad |= step_store<KIND>(&quad[u], e, rules, own, i, WHOLE ? 4 : quad_count(i, end));
    }
    return bad;
}

template <ls_optimizer_kind KIND>
LS_KERNEL LS_BOUNDS(LS_MULTI_THREADS, 2) step_kernel(ls_multi_table table, ls_step_state *state)
{
    if (table.rule->skip != 0) {
        return;
    }
    ls_multi_part part = ls_multi_part_of(table, LS_MULTI_SPLIT);
    const ls_multi_entry *entry = &table.entry[part.tensor];
    ls_rules rules = table.rule->rules[entry->group];
    ls_rule_tensor own = {};
    if (ls_rules_norms(KIND) != LS_NORMS_NONE) {
        own = table.own[part.tensor];
    }
    int first = 4 * (int)threadIdx.x, end = (int)(part.end - part.begin);
    uint32_t bad = 0;
    if (entry->whole != 0 && entry->view[LS_MULTI_GRAD].type == LS_F32) {
        ls_multi_entry e = entry_from(entry, part.begin);
        LS_UNROLL
        for (int k = 0; k < LS_MULTI_LISTS; k++) {
            e.view[k] = ls_multi_known(e.view[k], k == LS_MULTI_COPY ? e.view[k].type : LS_F32);
        }
        for (; first + (STEP_AHEAD - 1) * STEP + 4 <= end; first += STEP_AHEAD * STEP) {
            bad |= step_quads<KIND, true>(e, rules, own, first, end);
        }
    }
    if (first < end) {
        ls_multi_entry e = entry_from(entry, part.begin);
        for (; first < end; first += STEP_AHEAD * STEP) {
            bad |= step_quads<KIND, false>(e, rules, own, first, end);
        }
    }
    ls_multi_report(&state->first_bad_state, part.tensor, bad);
}

template <ls_optimizer_kind KIND>
static ls_status step(cudaStream_t stream, const ls_multi_table *table, ls_step_state *state)
{
    LS_LAUNCH((step_kernel<KIND>), (unsigned)(table->chunk_count * LS_MULTI_SPLIT),
              LS_MULTI_THREADS, stream, *table, state);
    return LS_OK;
}

ls_status ls_multi_optimizer_step(ls_backend *backend, ls_stream *stream,
                                  const ls_optimizer_config *config, const ls_optimizer_args *args,
                                  bool dynamic, ls_step_state *state)
{
    (void)backend;
    ls_multi_table table;
    ls_optimizer_args used = ls_optimizers_args(config, args);
    bool norms = ls_rules_norms(config->kind) != LS_NORMS_NONE;
    const ls_tensor_list list[LS_MULTI_LISTS] = {used.value, used.grad, used.moment1, used.moment2,
                                                 used.copy};
    LS_TRY(ls_multi_table_of(stream, list, used.group, norms, &table));
    LS_LAUNCH(prepare_kernel, 1, 1, stream->native, *config, dynamic, table.rule, state);
    if (table.chunk_count == 0) {
        return LS_OK;
    }
    if (norms) {
        LS_TRY(ls_multi_norm_prepare(stream->native, config, &table));
    }
    switch (config->kind) {
#define LS_OPTIMIZER(KIND, ...) \
    case LS_OPTIMIZER_##KIND:   \
        return step<LS_OPTIMIZER_##KIND>(stream->native, &table, state);
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    default:
        LS_ASSERT(false);
        return LS_ERR_USAGE;
    }
}

/* ---- loss scale ------------------------------------------------------------------------------ */

LS_KERNEL scaler_kernel(ls_scaler_config config, ls_step_state *state)
{
    ls_scaler_update(&config, state);
}

ls_status ls_multi_scaler_update(ls_backend *backend, ls_stream *stream,
                                 const ls_scaler_config *config, ls_step_state *state)
{
    (void)backend;
    LS_LAUNCH(scaler_kernel, 1, 1, stream->native, *config, state);
    return LS_OK;
}
