#include "plan_parts.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/text.h"

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

/* Whether all that reads a slot are convolutions, which take any number of channels. */
static bool only_convolved(const ls_lower *lower, int slot)
{
    bool only = true;
    for (int i = 0; i < lower->op_count; i++) {
        const ls_op *op = &lower->op[i];
        only = only && (op->kind == LS_OP_CONV || (op->in != slot && op->residual != slot));
    }
    return only;
}

/* Channels last, where the plan is laid out so and loops (loops.h) take that number of channels. */
static bool is_last(const ls_plan *plan, int slot)
{
    const ls_slot *s = &plan->lower.slot[slot];
    int lanes = plan->backend->loops->lanes;
    ls_layer_kind kind = plan->network->layer[s->layer].kind;
    return ls_backend_is_last(plan->backend, plan->options.activation) && kind != LS_LAYER_LINEAR &&
           (kind == LS_LAYER_INPUT ? only_convolved(&plan->lower, slot)
                                   : s->channels % lanes == 0 || lanes % s->channels == 0);
}

static void lay_out(ls_plan *plan)
{
    const ls_lower *lower = &plan->lower;
    for (int i = 0; i < lower->slot_count; i++) {
        const ls_slot *slot = &lower->slot[i];
        ls_layer_kind kind = plan->network->layer[slot->layer].kind;
        bool flat = kind == LS_LAYER_LINEAR || kind == LS_LAYER_INPUT;
        bool last = is_last(plan, i);
        plan->layout[i] = (ls_layout){.block = last   ? slot->channels
                                               : flat ? 1
                                                      : block_of(plan->backend, slot->channels),
                                      .last = last,
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

static int dnn_block(const ls_layout *layout)
{
    return layout->last ? LS_DNN_CHANNELS_LAST : layout->block;
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
    int in_block = linear ? 1 : dnn_block(&plan->layout[op->in]);
    int out_block = linear ? 1 : dnn_block(&plan->layout[op->out]);
    ls_work *work = ls_plan_work(plan, op);
    LS_TRY(ls_conv_create(plan->backend, layer->name, &shape, in_block, out_block,
                          plan->options.activation, in->wants_gradient, &work->conv));
    return plan->options.benchmark ? ls_conv_benchmark(work->conv) : LS_OK;
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
        size_t channels = (size_t)in->channels;
        size_t blocks = (size_t)ls_plan_field(plan, op->in).blocks;
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

void ls_work_name_layout(const ls_plan *plan, char *text, size_t bytes)
{
    int widest = 1;
    for (int i = 0; i < plan->lower.slot_count; i++) {
        widest = plan->layout[i].block > widest ? plan->layout[i].block : widest;
    }
    if (ls_backend_is_last(plan->backend, plan->options.activation)) {
        ls_text_put(text, bytes, "channels last");
    } else if (widest > 1) {
        ls_text_put(text, bytes, "blocks of %d channels", widest);
    } else {
        ls_text_put(text, bytes, "channels first");
    }
}

/* ---- choices --------------------------------------------------------------------------------- */

ls_status ls_work_export_choices(ls_plan *plan, const char **text)
{
    plan->choices[0] = '\0';
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (op->kind == LS_OP_CONV) {
            ls_text_add(plan->choices, LS_PLAN_TEXT_BYTES, "%s: %s\n",
                        plan->network->layer[op->layer].name, ls_conv_choice(plan->work[i].conv));
        }
    }
    *text = plan->choices;
    return LS_OK;
}

ls_status ls_work_import_choices(ls_plan *plan, const char *text)
{
    const char *rest = text;
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        char choice[64];
        if (op->kind == LS_OP_CONV) {
            LS_TRY(ls_plan_take_line(plan->network->layer[op->layer].name, &rest, choice,
                                     sizeof choice));
            LS_TRY(ls_conv_choose(plan->work[i].conv, choice));
        }
    }
    LS_TRY(ls_plan_lines_end(rest));
    ls_work_describe(plan, plan->fusions, LS_PLAN_TEXT_BYTES);
    ls_work_describe_units(plan, plan->products, sizeof plan->products);
    return LS_OK;
}

/* ---- description ----------------------------------------------------------------------------- */

static void describe_engine(const void *context, const ls_op *op, char *line, size_t bytes)
{
    ls_conv_describe(ls_plan_work(context, op)->conv, line, bytes);
}

/* ---- units ----------------------------------------------------------------------------------- */

enum { UNITS_MAX = 8 };

typedef struct unit_share {
    const char *units; /* of ls_conv_units */
    double flops;
} unit_share;

static int by_flops(const void *a, const void *b)
{
    double first = ((const unit_share *)a)->flops, second = ((const unit_share *)b)->flops;
    return (first < second) - (first > second);
}

/* Adds the passes of a product, of the same operations each. */
static int add_shares(const ls_conv *conv, double flops, unit_share *share, int count)
{
    const char *units[3];
    int passes = 0;
    for (int which = 0; which < 3; which++) {
        units[which] = ls_conv_units(conv, (ls_dnn_pass)which);
        passes += units[which] != NULL;
    }
    for (int which = 0; which < 3; which++) {
        int k = 0;
        while (units[which] != NULL && k < count && strcmp(share[k].units, units[which]) != 0) {
            k++;
        }
        if (units[which] != NULL && k == count) {
            LS_ASSERT(count < UNITS_MAX);
            share[count++] = (unit_share){units[which], 0};
        }
        share[k].flops += units[which] != NULL ? flops / passes : 0;
    }
    return count;
}

void ls_work_describe_units(const ls_plan *plan, char *text, size_t bytes)
{
    unit_share share[UNITS_MAX + 1] = {{0}};
    const char *label = ls_dtype_label(plan->options.activation);
    double whole = ls_lower_flops(&plan->lower);
    int count = 0;
    bool native = ls_backend_is_native(plan->backend, plan->options.activation);
    ls_text_put(text, bytes, "%s", native ? label : "");
    if (!native) {
        return;
    }
    for (int i = 0; i < plan->lower.op_count; i++) {
        if (plan->work[i].conv != NULL) {
            count =
                add_shares(plan->work[i].conv,
                           ls_lower_product_flops(&plan->lower, &plan->lower.op[i]), share, count);
        }
    }
    qsort(share, (size_t)count, sizeof *share, by_flops);
    for (int i = 0; i < count; i++) {
        const char *units = share[i].units;
        const char *how = units[0] == '\0'            ? "by code that names no units"
                          : strcmp(units, "f32") == 0 ? "in f32"
                                                      : "on ";
        if (count > 1) {
            ls_text_add(text, bytes, "%s %.3g %%%s", i == 0 ? ":" : ",",
                        100 * share[i].flops / whole, i == 0 ? " of the products' operations" : "");
        }
        ls_text_add(text, bytes, " %s%s", how, strcmp(how, "on ") == 0 ? units : "");
    }
}

void ls_work_describe(const ls_plan *plan, char *text, size_t bytes)
{
    ls_lower_describe(&plan->lower, describe_engine, plan, text, bytes);
}
