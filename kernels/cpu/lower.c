#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../core/log.h"
#include "plan.h"

/* ---- what the list of layers looks like ------------------------------------------------------ */

static int consumers(const ls_network *network, int layer, int *last)
{
    int count = 0;
    for (int i = layer + 1; i < network->layer_count; i++) {
        for (int k = 0; k < 2; k++) {
            if (network->layer[i].input[k] == layer) {
                count++;
                *last = i;
            }
        }
    }
    return count;
}

/* The only layer that reads `layer`, where it is of that kind, else -1. */
static int only_consumer(const ls_network *network, int layer, ls_layer_kind kind)
{
    int last = -1;
    if (consumers(network, layer, &last) != 1 || network->layer[last].kind != kind) {
        return -1;
    }
    return last;
}

bool ls_lower_supports(const ls_network *network, char *why, size_t why_bytes)
{
    int last = network->layer_count - 1;
    if (last < 1 || network->layer[0].kind != LS_LAYER_INPUT ||
        network->layer[last].kind != LS_LAYER_CROSS_ENTROPY) {
        snprintf(why, why_bytes, "a network starts with the input and ends with cross entropy");
        return false;
    }
    for (int i = 1; i <= last; i++) {
        const ls_layer *layer = &network->layer[i];
        int inputs = layer->kind == LS_LAYER_ADD ? 2 : 1, reader = -1;
        for (int k = 0; k < inputs; k++) {
            if (layer->input[k] < 0 || layer->input[k] >= i) {
                snprintf(why, why_bytes, "layer %s reads layer %d, which does not come before it",
                         layer->name, layer->input[k]);
                return false;
            }
        }
        int count = consumers(network, i, &reader);
        if (i < last && (count < 1 || count > 2)) {
            snprintf(why, why_bytes, "layer %s has %d readers; 1 or 2 are supported", layer->name,
                     count);
            return false;
        }
    }
    return true;
}

/* ---- slots ----------------------------------------------------------------------------------- */

static int block_of(const ls_backend *backend, int channels)
{
    if (backend->isa == LS_ISA_AVX512 && channels % 16 == 0) {
        return 16;
    }
    return backend->isa != LS_ISA_PLAIN && channels % 8 == 0 ? 8 : 1;
}

static int add_slot(ls_plan *plan, int layer, int channels, int height, int width)
{
    int index = plan->slot_count++;
    ls_slot *slot = &plan->slot[index];
    int kind = plan->network->layer[layer].kind;
    bool flat = kind == LS_LAYER_LINEAR || kind == LS_LAYER_INPUT;
    *slot = (ls_slot){.layer = layer,
                      .channels = channels,
                      .height = height,
                      .width = width,
                      .block = flat ? 1 : block_of(plan->backend, channels),
                      .count = (int64_t)plan->options.batch * channels * height * width,
                      .wants_gradient = kind != LS_LAYER_INPUT};
    slot->offset = ls_arena_reserve(&plan->activations,
                                    (size_t)slot->count * ls_dtype_bytes(plan->options.activation));
    plan->slot_of_layer[layer] = index;
    return index;
}

static int window_out(int size, const ls_layer *layer)
{
    return (size + 2 * layer->pad - layer->kernel) / layer->stride + 1;
}

/* ---- operations ------------------------------------------------------------------------------ */

static ls_op *add_op(ls_plan *plan, ls_op_kind kind, int layer)
{
    ls_op *op = &plan->op[plan->op_count++];
    *op = (ls_op){.kind = kind,
                  .layer = layer,
                  .residual = -1,
                  .out = -1,
                  .dy = {LS_NO_BUFFER, LS_NO_BUFFER},
                  .g = LS_NO_BUFFER,
                  .dx = LS_NO_BUFFER,
                  .dx2 = LS_NO_BUFFER};
    op->in = plan->slot_of_layer[plan->network->layer[layer].input[0]];
    return op;
}

static ls_status lower_conv(ls_plan *plan, int index)
{
    const ls_layer *layer = &plan->network->layer[index];
    ls_op *op = add_op(plan, LS_OP_CONV, index);
    const ls_slot *in = &plan->slot[op->in];
    int height = window_out(in->height, layer), width = window_out(in->width, layer);
    if (height < 1 || width < 1) {
        ls_log_error("layer %s: an image of %d x %d is too small for its %d x %d kernel",
                     layer->name, in->height, in->width, layer->kernel, layer->kernel);
        return LS_ERR_USAGE;
    }
    ls_dnn_shape shape = {.batch = plan->options.batch,
                          .in_channels = in->channels,
                          .in_height = in->height,
                          .in_width = in->width,
                          .out_channels = layer->channels,
                          .out_height = height,
                          .out_width = width,
                          .kernel = layer->kernel,
                          .stride = layer->stride,
                          .pad = layer->pad};
    op->out = add_slot(plan, index, layer->channels, height, width);
    return ls_conv_create(plan->backend, layer->name, &shape, plan->slot[op->in].block,
                          plan->slot[op->out].block, plan->options.activation,
                          plan->slot[op->in].wants_gradient, &op->conv);
}

static ls_status lower_linear(ls_plan *plan, int index)
{
    const ls_layer *layer = &plan->network->layer[index];
    ls_op *op = add_op(plan, LS_OP_LINEAR, index);
    const ls_slot *in = &plan->slot[op->in];
    if (ls_plan_pixels(in) != 1) {
        ls_log_error("layer %s: a linear layer reads [N,C,1,1], not %d x %d pixels", layer->name,
                     in->height, in->width);
        return LS_ERR_USAGE;
    }
    ls_dnn_shape shape = {.batch = plan->options.batch,
                          .in_channels = in->channels,
                          .out_channels = layer->channels,
                          .matrix = true};
    op->out = add_slot(plan, index, layer->channels, 1, 1);
    return ls_conv_create(plan->backend, layer->name, &shape, 1, 1, plan->options.activation,
                          plan->slot[op->in].wants_gradient, &op->conv);
}

/* A norm whose only reader is an add is done by the add, which then ends with the ReLU that follows
 * it. */
static bool waits_for_add(const ls_plan *plan, int index)
{
    int add = only_consumer(plan->network, index, LS_LAYER_ADD);
    return add >= 0 && plan->network->layer[add].input[0] != plan->network->layer[add].input[1];
}

/* The ReLU that a pass can end with: the only reader, unless its branches may be forced. */
static int fused_relu(const ls_plan *plan, int index)
{
    return plan->options.forced_branches ? -1 : only_consumer(plan->network, index, LS_LAYER_RELU);
}

static void lower_norm(ls_plan *plan, int index)
{
    if (waits_for_add(plan, index)) {
        return;
    }
    ls_op *op = add_op(plan, LS_OP_NORM, index);
    const ls_slot *in = &plan->slot[op->in];
    int relu = fused_relu(plan, index);
    op->relu = relu >= 0;
    op->norm[0].layer = index;
    op->out = add_slot(plan, op->relu ? relu : index, in->channels, in->height, in->width);
}

static void lower_add(ls_plan *plan, int index)
{
    const ls_network *network = plan->network;
    const ls_layer *add = &network->layer[index];
    int first = add->input[0], second = add->input[1];
    bool first_norm = plan->slot_of_layer[first] < 0, second_norm = plan->slot_of_layer[second] < 0;
    if (!first_norm && second_norm) {
        int swap = first;
        first = second;
        second = swap;
    }
    ls_op *op = add_op(plan, first_norm || second_norm ? LS_OP_NORM : LS_OP_ADD, index);
    op->dual = first_norm && second_norm;
    if (op->kind == LS_OP_NORM) {
        op->layer = first;
        op->norm[0].layer = first;
        op->in = plan->slot_of_layer[network->layer[first].input[0]];
    }
    op->residual = plan->slot_of_layer[op->dual ? network->layer[second].input[0] : second];
    if (op->dual) {
        op->norm[1].layer = second;
    }
    int relu = fused_relu(plan, index);
    op->relu = relu >= 0;
    ls_slot in = plan->slot[op->in];
    op->out = add_slot(plan, op->relu ? relu : index, in.channels, in.height, in.width);
}

static ls_status lower_spatial(ls_plan *plan, int index)
{
    const ls_layer *layer = &plan->network->layer[index];
    ls_op_kind kind = layer->kind == LS_LAYER_MAX_POOL       ? LS_OP_POOL
                      : layer->kind == LS_LAYER_SHORTCUT_PAD ? LS_OP_SHORTCUT
                                                             : LS_OP_AVERAGE;
    ls_op *op = add_op(plan, kind, index);
    ls_slot in = plan->slot[op->in];
    int channels = in.channels, height = 1, width = 1;
    if (kind == LS_OP_POOL) {
        height = window_out(in.height, layer);
        width = window_out(in.width, layer);
        if (layer->kernel * layer->kernel > 256 || layer->pad >= layer->kernel || height < 1 ||
            width < 1) {
            ls_log_error("layer %s: no max pool of kernel %d, padding %d on %d x %d pixels",
                         layer->name, layer->kernel, layer->pad, in.height, in.width);
            return LS_ERR_USAGE;
        }
    } else if (kind == LS_OP_SHORTCUT) {
        channels = layer->channels;
        height = (in.height + layer->stride - 1) / layer->stride;
        width = (in.width + layer->stride - 1) / layer->stride;
    }
    op->out = add_slot(plan, index, channels, height, width);
    if (kind == LS_OP_POOL) {
        op->tap_offset = ls_arena_reserve(&plan->activations, (size_t)plan->slot[op->out].count);
    }
    return LS_OK;
}

static bool relu_is_fused(const ls_plan *plan, int index)
{
    return plan->slot_of_layer[index] >= 0; /* its producer has stored it already */
}

static ls_status lower_layer(ls_plan *plan, int index)
{
    const ls_layer *layer = &plan->network->layer[index];
    switch (layer->kind) {
    case LS_LAYER_INPUT:
        add_slot(plan, index, layer->channels, plan->options.height, plan->options.width);
        return LS_OK;
    case LS_LAYER_CONV:
        return lower_conv(plan, index);
    case LS_LAYER_LINEAR:
        return lower_linear(plan, index);
    case LS_LAYER_BATCH_NORM:
        lower_norm(plan, index);
        return LS_OK;
    case LS_LAYER_ADD:
        lower_add(plan, index);
        return LS_OK;
    case LS_LAYER_RELU:
        if (!relu_is_fused(plan, index)) {
            ls_op *op = add_op(plan, LS_OP_RELU, index);
            ls_slot in = plan->slot[op->in];
            op->relu = true;
            op->out = add_slot(plan, index, in.channels, in.height, in.width);
            if (plan->options.forced_branches) {
                op->tap_offset = ls_arena_reserve(&plan->activations, (size_t)in.count);
            }
        }
        return LS_OK;
    case LS_LAYER_MAX_POOL:
    case LS_LAYER_SHORTCUT_PAD:
    case LS_LAYER_AVG_POOL:
        return lower_spatial(plan, index);
    case LS_LAYER_CROSS_ENTROPY:
        add_op(plan, LS_OP_LOSS, index);
        return LS_OK;
    }
    ls_log_error("layer %s has kind %d, which this backend does not know", layer->name,
                 (int)layer->kind);
    return LS_ERR_UNSUPPORTED;
}

ls_status ls_lower_network(ls_plan *plan)
{
    size_t layers = (size_t)plan->network->layer_count;
    plan->slot = calloc(layers, sizeof *plan->slot);
    plan->op = calloc(layers, sizeof *plan->op);
    plan->slot_of_layer = malloc(layers * sizeof *plan->slot_of_layer);
    if (plan->slot == NULL || plan->op == NULL || plan->slot_of_layer == NULL) {
        ls_log_error("no memory for a plan of %zu layers", layers);
        return LS_ERR_INFRA;
    }
    for (size_t i = 0; i < layers; i++) {
        plan->slot_of_layer[i] = -1;
    }
    for (int i = 0; i < plan->network->layer_count; i++) {
        LS_TRY(lower_layer(plan, i));
    }
    return LS_OK;
}

void ls_lower_describe(const ls_plan *plan, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < plan->op_count && used + 1 < bytes; i++) {
        const ls_op *op = &plan->op[i];
        const ls_layer *layer = plan->network->layer;
        int written = 0;
        if (op->conv != NULL) {
            char engine[256];
            ls_conv_describe(op->conv, engine, sizeof engine);
            written =
                snprintf(text + used, bytes - used, "%s: %s\n", layer[op->layer].name, engine);
        } else if (op->kind == LS_OP_NORM) {
            written =
                snprintf(text + used, bytes - used, "%s%s%s%s%s: one pass\n", layer[op->layer].name,
                         op->dual ? " + " : "", op->dual ? layer[op->norm[1].layer].name : "",
                         op->residual >= 0 ? " + add" : "", op->relu ? " + relu" : "");
        }
        used += (size_t)written;
    }
}
