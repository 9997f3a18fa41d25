#include "plan_parts.h"

#include <stdlib.h>

#include "kernels/core/log.h"

/* ---- layouts and products -------------------------------------------------------------------- */

static int block_of(const ls_backend *backend, int channels)
{
    if (backend->isa == LS_ISA_AVX512 && channels % 16 == 0) {
        return 16;
    }
    return backend->isa != LS_ISA_PLAIN && channels % 8 == 0 ? 8 : 1;
}

/* Bytes of a stored activation; blocks of channels need no padding. */
static size_t slot_bytes(void *context, const ls_plan_options *options, int channels, int height,
                         int width, bool is_input)
{
    (void)context;
    (void)is_input;
    size_t bytes = (size_t)options->batch * (size_t)channels * (size_t)height * (size_t)width *
                   ls_dtype_bytes(options->activation);
    return (bytes + LS_ARENA_ALIGN - 1) / LS_ARENA_ALIGN * LS_ARENA_ALIGN;
}

static bool has_taps(const ls_plan *plan, const ls_op *op)
{
    return op->kind == LS_OP_POOL || (op->kind == LS_OP_RELU && plan->options.forced_branches);
}

static void lay_out(ls_plan *plan)
{
    const ls_lower *lower = &plan->lower;
    for (int i = 0; i < lower->slot_count; i++) {
        const ls_slot *slot = &lower->slot[i];
        ls_layer_kind kind = plan->network->layer[slot->layer].kind;
        bool flat = kind == LS_LAYER_LINEAR || kind == LS_LAYER_INPUT;
        plan->layout[i] = (ls_layout){.block = flat ? 1 : block_of(plan->backend, slot->channels),
                                      .offset = ls_arena_reserve(&plan->activations, slot->bytes)};
    }
    for (int i = 0; i < lower->op_count; i++) {
        const ls_op *op = &lower->op[i];
        if (has_taps(plan, op)) {
            plan->work[i].tap_offset =
                ls_arena_reserve(&plan->activations, (size_t)lower->slot[op->out].count);
        }
    }
}

static ls_status create_product(ls_plan *plan, const ls_op *op)
{
    const ls_layer *layer = &plan->network->layer[op->layer];
    const ls_slot *in = &plan->lower.slot[op->in], *out = &plan->lower.slot[op->out];
    bool linear = op->kind == LS_OP_LINEAR;
    ls_dnn_shape shape = {.batch = plan->options.batch,
                          .in_channels = in->channels,
                          .out_channels = layer->channels,
                          .matrix = linear};
    if (!linear) {
        shape.in_height = in->height;
        shape.in_width = in->width;
        shape.out_height = out->height;
        shape.out_width = out->width;
        shape.kernel = layer->kernel;
        shape.stride = layer->stride;
        shape.pad = layer->pad;
    }
    int in_block = linear ? 1 : plan->layout[op->in].block;
    int out_block = linear ? 1 : plan->layout[op->out].block;
    return ls_conv_create(plan->backend, layer->name, &shape, in_block, out_block,
                          plan->options.activation, in->wants_gradient,
                          &ls_plan_work(plan, op)->conv);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Sets the pointers into plan->norms. The first call, before the block exists, only computes its
 * size. */
static void carve_norms(ls_plan *plan)
{
    char *base = plan->norms.base;
    ls_arena sized = {0}, *arena = &sized;
    int64_t widest = 0, batch = plan->options.batch;
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (op->kind != LS_OP_NORM) {
            continue;
        }
        const ls_slot *in = &plan->lower.slot[op->in];
        size_t channels = (size_t)in->channels,
               blocks = channels / (size_t)plan->layout[op->in].block;
        widest = in->channels > widest ? in->channels : widest;
        for (int k = 0; k < (op->dual ? 2 : 1); k++) {
            ls_norm *norm = &plan->work[i].norm[k];
            size_t inv_std = ls_arena_reserve(arena, channels * sizeof *norm->inv_std);
            size_t mean_error = ls_arena_reserve(arena, channels * sizeof *norm->mean_error);
            size_t coef = ls_arena_reserve(arena, blocks * sizeof *norm->coef);
            size_t back = ls_arena_reserve(arena, blocks * sizeof *norm->back);
            if (base != NULL) {
                norm->inv_std = (float *)(void *)(base + inv_std);
                norm->mean_error = (float *)(void *)(base + mean_error);
                norm->coef = (ls_lane_coef *)(void *)(base + coef);
                norm->back = (ls_lane_back *)(void *)(base + back);
            }
        }
    }
    size_t partial[3], ranks = plan->has_sync ? (size_t)plan->sync.group_size : 0;
    for (int k = 0; k < 3; k++) {
        partial[k] = ls_arena_reserve(arena, (size_t)(batch * widest) * sizeof(double));
    }
    size_t gathered =
        ls_arena_reserve(arena, (ranks + 1) * (2 * (size_t)widest + 1) * sizeof(float));
    size_t classes = (size_t)plan->lower.slot[plan->lower.op[plan->lower.op_count - 1].in].channels;
    size_t logits = ls_arena_reserve(arena, (size_t)batch * classes * sizeof(float));
    size_t row_scale = ls_arena_reserve(arena, (size_t)batch * 2 * sizeof(float));
    size_t target = ls_arena_reserve(arena, (size_t)batch * sizeof(int64_t));
    if (base != NULL) {
        for (int k = 0; k < 3; k++) {
            plan->partial[k] = (double *)(void *)(base + partial[k]);
        }
        plan->gathered = (float *)(void *)(base + gathered);
        plan->logits = (float *)(void *)(base + logits);
        plan->row_scale = (float *)(void *)(base + row_scale);
        plan->target = (int64_t *)(void *)(base + target);
    }
    plan->norms.bytes = sized.bytes;
}

static ls_status commit(ls_arena *arena, const char *purpose)
{
    void *memory = NULL;
    LS_TRY(ls_memory_take((int64_t)arena->bytes, purpose, &memory));
    arena->base = memory;
    return LS_OK;
}

static ls_status allocate(ls_plan *plan)
{
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_conv *conv = plan->work[i].conv;
        if (conv != NULL) {
            size_t scratch = ls_conv_scratch_bytes(conv);
            ls_arena_reserve(&plan->packed, ls_conv_weight_bytes(conv));
            plan->scratch_bytes = scratch > plan->scratch_bytes ? scratch : plan->scratch_bytes;
        }
    }
    plan->gradients.bytes = plan->lower.gradient_bytes;
    carve_norms(plan);
    LS_TRY(commit(&plan->activations, "activations"));
    LS_TRY(commit(&plan->gradients, "gradients of activations"));
    if (plan->options.weights_of != NULL) {
        LS_ASSERT(plan->options.weights_of->packed.bytes == plan->packed.bytes);
        plan->packed.base = plan->options.weights_of->packed.base;
    } else {
        LS_TRY(commit(&plan->packed, "packed weights"));
    }
    LS_TRY(commit(&plan->norms, "statistics of batch norms"));
    void *scratch = NULL;
    LS_TRY(ls_memory_take((int64_t)plan->scratch_bytes, "workspace of products", &scratch));
    plan->scratch = scratch;
    carve_norms(plan);
    ls_arena packed = {0};
    for (int i = 0; i < plan->lower.op_count; i++) {
        ls_work *work = &plan->work[i];
        if (work->conv != NULL) {
            size_t offset = ls_arena_reserve(&packed, ls_conv_weight_bytes(work->conv));
            ls_conv_place(work->conv, ls_arena_at(&plan->packed, offset), plan->scratch);
        }
        if (has_taps(plan, &plan->lower.op[i])) {
            work->tap = ls_arena_at(&plan->activations, work->tap_offset);
        }
    }
    return LS_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

ls_status ls_work_create(ls_plan *plan)
{
    const ls_lower_backend backend = {.slot_bytes = slot_bytes, .by_channels = true};
    LS_TRY(ls_lower_create(plan->network, &plan->options, &backend, &plan->lower));
    size_t ops = (size_t)plan->lower.op_count, slots = (size_t)plan->lower.slot_count;
    plan->work = calloc(ops, sizeof *plan->work);
    plan->layout = calloc(slots, sizeof *plan->layout);
    LS_TRY_MEMORY(plan->work != NULL && plan->layout != NULL, "a plan of %zu operations", ops);
    lay_out(plan);
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        plan->work[i].norm[0].layer = op->norm[0];
        plan->work[i].norm[1].layer = op->norm[1];
        if (op->kind == LS_OP_CONV || op->kind == LS_OP_LINEAR) {
            LS_TRY(create_product(plan, op));
        }
    }
    return allocate(plan);
}

void ls_work_destroy(ls_plan *plan)
{
    for (int i = 0; plan->work != NULL && i < plan->lower.op_count; i++) {
        ls_conv_destroy(plan->work[i].conv);
    }
    ls_memory_give(plan->activations.base);
    ls_memory_give(plan->gradients.base);
    if (plan->options.weights_of == NULL) {
        ls_memory_give(plan->packed.base);
    }
    ls_memory_give(plan->norms.base);
    ls_memory_give(plan->scratch);
    free(plan->work);
    free(plan->layout);
    ls_lower_free(&plan->lower);
}

static void describe_engine(const void *context, const ls_op *op, char *line, size_t bytes)
{
    ls_conv_describe(ls_plan_work(context, op)->conv, line, bytes);
}

void ls_work_describe(const ls_plan *plan, char *text, size_t bytes)
{
    ls_lower_describe(&plan->lower, describe_engine, plan, text, bytes);
}
