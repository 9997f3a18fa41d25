/* Engines, kept values and blocks of device memory of a plan's operations. */
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/cuda/conv/fuse.h"
#include "plan_internal.h"

enum { ALIGN = 256 }; /* whole sectors for every array, and more than any engine requires */

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- engines --------------------------------------------------------------------------------- */

static size_t slot_bytes(void *context, const ls_plan_options *options, int channels, int height,
                         int width, bool is_input)
{
    const ls_plan *plan = context;
    int stored = is_input ? ls_input_stored_channels(options->activation, channels) : channels;
    if (is_input && plan->stem_blocks) {
        stored = LS_INPUT_BLOCK_CHANNELS;
        height = ls_input_blocks(height);
        width = ls_input_blocks(width);
    }
    return aligned((size_t)options->batch * (size_t)height * (size_t)width * (size_t)stored *
                   ls_dtype_bytes(options->activation));
}

static bool is_input(const ls_lower *lower, int slot)
{
    return lower->network->layer[lower->slot[slot].layer].kind == LS_LAYER_INPUT;
}

static int stored_channels(const ls_plan *plan, const ls_lower *lower, int slot)
{
    int channels = lower->slot[slot].channels;
    if (!is_input(lower, slot)) {
        return channels;
    }
    return plan->stem_blocks ? LS_INPUT_BLOCK_CHANNELS
                             : ls_input_stored_channels(lower->options.activation, channels);
}

int ls_work_stored_channels(const ls_plan *plan, int slot)
{
    return stored_channels(plan, &plan->lower, slot);
}

bool ls_work_reads_blocks(const ls_plan *plan, const ls_op *op)
{
    return plan->stem_blocks && op->kind == LS_OP_CONV && is_input(&plan->lower, op->in);
}

static ls_conv_shape conv_shape(const ls_plan *plan, const ls_lower *lower, const ls_op *op)
{
    const ls_layer *layer = &lower->network->layer[op->layer];
    const ls_slot *in = &lower->slot[op->in], *out = &lower->slot[op->out];
    ls_conv_shape shape = {.batch = lower->options.batch,
                           .in_channels = stored_channels(plan, lower, op->in),
                           .in_height = in->height,
                           .in_width = in->width,
                           .out_channels = out->channels,
                           .out_height = out->height,
                           .out_width = out->width,
                           .kernel = layer->kernel,
                           .stride = layer->stride,
                           .pad = layer->pad};
    return plan->stem_blocks && is_input(lower, op->in) ? ls_conv_stem_blocks(&shape) : shape;
}

/* For half types: the engines of f32 have no use for channels by the dozen. LS_STEM_S2D=0 in the
 * environment: never. */
static bool uses_stem_blocks(const ls_plan *plan)
{
    const char *asked = getenv("LS_STEM_S2D");
    return plan->options.activation != LS_F32 && !(asked != NULL && strcmp(asked, "0") == 0) &&
           ls_lower_stem_blocks(plan->network, &plan->options);
}

static bool adds(void *context, const ls_lower *lower, const ls_op *op)
{
    ls_plan *plan = context;
    ls_conv_shape shape = conv_shape(plan, lower, op);
    return ls_conv_adds(plan->backend, &shape, lower->options.activation);
}

/* Whether a batch norm takes statistics of the convolution's result. */
static bool feeds_norm(const ls_plan *plan, const ls_op *conv)
{
    bool found = false;
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        found = found || (op->kind == LS_OP_NORM &&
                          (op->in == conv->out || (op->dual && op->residual == conv->out)));
    }
    return found;
}

/* Whether a convolution may also sum its result: cuDNN has such engines for f16. */
static bool may_sum(const ls_plan *plan, const ls_op *op)
{
    return plan->options.fuse && plan->options.activation == LS_F16 &&
           !plan->backend->deterministic && op->kind == LS_OP_CONV && feeds_norm(plan, op);
}

static ls_status create_conv(ls_plan *plan, const ls_op *op)
{
    ls_conv_shape shape = conv_shape(plan, &plan->lower, op);
    ls_conv_dx dx = op->dx == LS_NO_BUFFER ? LS_CONV_DX_NONE
                    : op->onto             ? LS_CONV_DX_ADDED
                                           : LS_CONV_DX_WRITTEN;
    ls_work *work = ls_plan_work(plan, op);
    LS_TRY(ls_conv_create(plan->backend, plan->network->layer[op->layer].name, &shape,
                          plan->options.activation, dx, &work->conv));
    if (may_sum(plan, op)) {
        LS_TRY(ls_conv_fuse(work->conv, LS_CONV_FORWARD_SUMS, ls_fuse_admit));
    }
    ls_conv_pass gate = ls_gate_pass(plan, op);
    if (gate == LS_CONV_BACKWARD_DATA) {
        return LS_OK;
    }
    LS_TRY(ls_conv_fuse(work->conv, gate, ls_fuse_admit_gate));
    return gate == LS_CONV_DATA_GATED && may_sum(plan, op)
               ? ls_conv_fuse_applied(work->conv, ls_fuse_admit, ls_fuse_admit_weights)
               : LS_OK;
}

static ls_status create_linear(ls_plan *plan, const ls_op *op)
{
    const ls_layer *layer = &plan->network->layer[op->layer];
    return ls_linear_create(plan->backend, layer->name, plan->options.batch,
                            plan->lower.slot[op->in].channels, layer->channels,
                            plan->options.activation, &ls_plan_work(plan, op)->linear);
}

static ls_status create_engines(ls_plan *plan)
{
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (op->kind == LS_OP_CONV) {
            LS_TRY(create_conv(plan, op));
        } else if (op->kind == LS_OP_LINEAR) {
            LS_TRY(create_linear(plan, op));
        }
    }
    return LS_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* A cursor over the arrays of a block. Each block is walked twice: without memory, to compute its
 * size, then to assign the addresses. */
typedef struct cursor {
    char *base;
    size_t bytes;
} cursor;

static void *take(cursor *c, size_t bytes)
{
    void *at = c->base == NULL ? NULL : c->base + c->bytes;
    c->bytes += aligned(bytes);
    return at;
}

static void place_activations(ls_plan *plan, cursor *c)
{
    for (int i = 0; i < plan->lower.slot_count; i++) {
        plan->slot_at[i] = take(c, plan->lower.slot[i].bytes);
    }
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        ls_work *work = &plan->work[i];
        if (op->relu) {
            work->mask = take(c, (size_t)((plan->lower.slot[op->out].count + 31) / 32) * 4);
        } else if (op->kind == LS_OP_POOL) {
            work->tap = take(c, (size_t)plan->lower.slot[op->out].count);
        }
    }
}

static void place_gradients(ls_plan *plan, cursor *c)
{
    take(c, plan->lower.gradient_bytes);
}

static size_t packed_bytes(const ls_plan *plan, const ls_op *op)
{
    const ls_layer *layer = &plan->network->layer[op->layer];
    const ls_weight weight = {.out = layer->channels,
                              .stored_in = ls_work_stored_channels(plan, op->in),
                              .kernel = op->kind == LS_OP_CONV ? layer->kernel : 1,
                              .stem_blocks = ls_work_reads_blocks(plan, op)};
    return (size_t)ls_weight_packed_count(&weight) * ls_dtype_bytes(plan->options.activation);
}

/* plan_bind decides which of them are used, and may change that. */
static void place_weights(ls_plan *plan, cursor *c)
{
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (!ls_plan_is_product(op)) {
            continue;
        }
        plan->work[i].packed = take(c, packed_bytes(plan, op));
        plan->work[i].packed_dw = take(c, packed_bytes(plan, op));
        if (op->kind == LS_OP_LINEAR) {
            size_t classes = (size_t)plan->network->layer[op->layer].channels;
            plan->work[i].packed_bias = take(c, classes * ls_dtype_bytes(plan->options.activation));
        }
    }
}

static void place_kept(ls_norm_kept *kept, size_t channels, cursor *c)
{
    kept->mean = take(c, channels * sizeof *kept->mean);
    kept->inv_std = take(c, channels * sizeof *kept->inv_std);
    kept->scale = take(c, channels * sizeof *kept->scale);
    kept->bias = take(c, channels * sizeof *kept->bias);
    kept->back = take(c, 4 * channels * sizeof *kept->back);
    kept->count = take(c, sizeof *kept->count);
}

static void place_norms(ls_plan *plan, cursor *c)
{
    size_t partial = 0, message = 0, ones = 0;
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (may_sum(plan, op)) {
            int64_t step = ls_conv_sums_step(plan->lower.slot[op->out].channels);
            plan->work[i].sums = take(c, 2 * (size_t)step * sizeof *plan->work[i].sums);
        }
        const ls_slot *in = &plan->lower.slot[op->in];
        ls_conv_pass gate = ls_gate_pass(plan, op);
        if (gate != LS_CONV_BACKWARD_DATA) {
            size_t list = (size_t)ls_conv_sums_step(in->channels);
            plan->work[i].gate_sums =
                take(c, 2 * LS_CONV_GATE_LISTS * list * sizeof *plan->work[i].gate_sums);
            ones = list > ones ? list : ones;
        }
        if (gate == LS_CONV_DATA_GATED) {
            size_t list = (size_t)ls_conv_sums_step(in->channels);
            ls_norm_kept *kept = &ls_plan_work(plan, ls_gate_norm(plan, op))->kept[0];
            kept->half_scale = take(c, list * sizeof *kept->half_scale);
            kept->half_bias = take(c, list * sizeof *kept->half_bias);
        }
        if (op->kind != LS_OP_NORM) {
            continue;
        }
        size_t bytes = ls_norm_partial_bytes(in->count / in->channels, in->channels,
                                             plan->backend->processors);
        const ls_norm_call sized = {.channels = in->channels, .dual = op->dual};
        size_t floats = (size_t)ls_norm_gathered(&sized);
        partial = bytes > partial ? bytes : partial;
        message = floats > message ? floats : message;
        for (int k = 0; k < (op->dual ? 2 : 1); k++) {
            place_kept(&plan->work[i].kept[k], (size_t)in->channels, c);
        }
    }
    size_t group = plan->has_sync ? (size_t)plan->sync.group_size : 1;
    size_t batch = (size_t)plan->options.batch;
    size_t classes = (size_t)plan->lower.slot[plan->lower.op[plan->lower.op_count - 1].in].channels;
    plan->partial = take(c, partial);
    plan->mine = take(c, message * sizeof *plan->mine);
    plan->all = group > 1 ? take(c, group * message * sizeof *plan->all) : plan->mine;
    plan->ones = take(c, ones * sizeof *plan->ones);
    plan->logits = take(c, batch * classes * sizeof *plan->logits);
    plan->row = take(c, 4 * batch * sizeof *plan->row);
    plan->target = take(c, batch * sizeof *plan->target);
}

typedef void placing(ls_plan *plan, cursor *c);

static ls_status allocate(ls_plan *plan, placing *place, const char *purpose, ls_arena *out)
{
    cursor sized = {0};
    place(plan, &sized);
    void *memory = NULL;
    LS_TRY(ls_cuda_take((int64_t)(sized.bytes + ALIGN), purpose, &memory));
    *out = (ls_arena){.base = memory, .bytes = sized.bytes};
    cursor placed = {.base = memory};
    place(plan, &placed);
    LS_ASSERT(placed.bytes == sized.bytes);
    return LS_OK;
}

ls_status ls_work_reserve_workspace(ls_plan *plan)
{
    int64_t most = 0;
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_work *work = &plan->work[i];
        int64_t bytes = work->conv != NULL     ? ls_conv_workspace_bytes(work->conv)
                        : work->linear != NULL ? ls_linear_workspace_bytes(work->linear)
                                               : 0;
        most = bytes > most ? bytes : most;
    }
    if (most <= plan->workspace_bytes) {
        return LS_OK;
    }
    ls_cuda_give(plan->workspace);
    plan->workspace = NULL;
    plan->workspace_bytes = 0;
    LS_TRY(ls_cuda_take(most, "workspace of products", &plan->workspace));
    plan->workspace_bytes = most;
    return LS_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

ls_status ls_work_create(ls_plan *plan)
{
    plan->stem_blocks = uses_stem_blocks(plan);
    const ls_lower_backend backend = {slot_bytes, adds, .gates_twice = true, .context = plan};
    LS_TRY(ls_lower_create(plan->network, &plan->options, &backend, &plan->lower));
    size_t ops = (size_t)plan->lower.op_count, slots = (size_t)plan->lower.slot_count;
    plan->work = calloc(ops, sizeof *plan->work);
    plan->slot_at = calloc(slots, sizeof *plan->slot_at);
    LS_TRY_MEMORY(plan->work != NULL && plan->slot_at != NULL, "a plan of %zu operations", ops);
    LS_TRY(create_engines(plan));
    LS_TRY(allocate(plan, place_activations, "activations", &plan->activations));
    LS_TRY(allocate(plan, place_gradients, "gradients of activations", &plan->gradients));
    LS_TRY(allocate(plan, place_weights, "packed weights", &plan->weights));
    LS_TRY(allocate(plan, place_norms, "statistics of batch norms", &plan->norms));
    LS_TRY(ls_gate_create(plan));
    return ls_work_reserve_workspace(plan);
}

void ls_work_destroy(ls_plan *plan)
{
    for (int i = 0; plan->work != NULL && i < plan->lower.op_count; i++) {
        ls_conv_destroy(plan->work[i].conv);
        ls_linear_destroy(plan->work[i].linear);
    }
    ls_cuda_give(plan->activations.base);
    ls_cuda_give(plan->gradients.base);
    ls_cuda_give(plan->weights.base);
    ls_cuda_give(plan->norms.base);
    ls_cuda_give(plan->workspace);
    free(plan->work);
    free(plan->slot_at);
    ls_lower_free(&plan->lower);
}

static void describe_engine(const void *context, const ls_op *op, char *line, size_t bytes)
{
    const ls_work *work = ls_plan_work(context, op);
    if (work->conv != NULL) {
        ls_conv_describe(work->conv, line, bytes);
    } else {
        ls_linear_describe(work->linear, line, bytes);
    }
}

void ls_work_describe(const ls_plan *plan, char *text, size_t bytes)
{
    ls_lower_describe(&plan->lower, describe_engine, plan, text, bytes);
}
