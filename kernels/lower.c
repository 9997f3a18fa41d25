#include <stdio.h>
#include <stdlib.h>

#include "lowered.h"

#include "kernels/core/log.h"
#include "kernels/core/text.h"

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

/* The only layer that reads `layer`, if it is of that kind, else -1. */
static int only_consumer(const ls_network *network, int layer, ls_layer_kind kind)
{
    int last = -1;
    if (consumers(network, layer, &last) != 1 || network->layer[last].kind != kind) {
        return -1;
    }
    return last;
}

bool ls_lower_supports(const ls_network *network, ls_dtype activation, char *why, size_t why_bytes)
{
    int last = network->layer_count - 1;
    if (activation != LS_F32 && activation != LS_F16 && activation != LS_BF16) {
        snprintf(why, why_bytes, "activations are fp32, fp16 or bf16, not %s",
                 ls_dtype_label(activation));
        return false;
    }
    bool begins =
        network->layer[0].kind == LS_LAYER_INPUT || network->layer[0].kind == LS_LAYER_ENTRY;
    bool ends = last >= 1 && (network->layer[last].kind == LS_LAYER_CROSS_ENTROPY ||
                              network->layer[last].kind == LS_LAYER_EXIT);
    if (!begins || !ends) {
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

static int add_slot(ls_lower *lower, const ls_lower_backend *backend, int layer, int channels,
                    int height, int width)
{
    int index = lower->slot_count++;
    bool is_input = lower->network->layer[layer].kind == LS_LAYER_INPUT;
    lower->slot[index] =
        (ls_slot){.layer = layer,
                  .channels = channels,
                  .height = height,
                  .width = width,
                  .count = (int64_t)lower->options.batch * channels * height * width,
                  .bytes = backend->slot_bytes(backend->context, &lower->options, channels, height,
                                               width, is_input),
                  .wants_gradient = !is_input};
    lower->slot_of_layer[layer] = index;
    return index;
}

/* 0: the kernel does not fit. */
static int window_out(int size, const ls_layer *layer)
{
    int places = size + 2 * layer->pad - layer->kernel;
    return places < 0 ? 0 : places / layer->stride + 1;
}

/* ---- operations ------------------------------------------------------------------------------ */

static ls_op *add_op(ls_lower *lower, ls_op_kind kind, int layer)
{
    ls_op *op = &lower->op[lower->op_count++];
    *op = (ls_op){.kind = kind,
                  .layer = layer,
                  .residual = -1,
                  .out = -1,
                  .norm = {-1, -1},
                  .dy = {LS_NO_BUFFER, LS_NO_BUFFER},
                  .g = LS_NO_BUFFER,
                  .dx = LS_NO_BUFFER,
                  .dx2 = LS_NO_BUFFER};
    op->in = layer > 0 ? lower->slot_of_layer[lower->network->layer[layer].input[0]] : -1;
    return op;
}

static ls_status lower_conv(ls_lower *lower, const ls_lower_backend *backend, int index)
{
    const ls_layer *layer = &lower->network->layer[index];
    ls_op *op = add_op(lower, LS_OP_CONV, index);
    const ls_slot *in = &lower->slot[op->in];
    int height = window_out(in->height, layer), width = window_out(in->width, layer);
    if (height < 1 || width < 1) {
        return ls_log_fail(LS_ERR_USAGE,
                           "layer %s: an image of %d x %d is too small for its %d x %d kernel",
                           layer->name, in->height, in->width, layer->kernel, layer->kernel);
    }
    op->out = add_slot(lower, backend, index, layer->channels, height, width);
    return LS_OK;
}

static ls_status lower_linear(ls_lower *lower, const ls_lower_backend *backend, int index)
{
    const ls_layer *layer = &lower->network->layer[index];
    ls_op *op = add_op(lower, LS_OP_LINEAR, index);
    const ls_slot *in = &lower->slot[op->in];
    if (in->height * in->width != 1) {
        return ls_log_fail(LS_ERR_USAGE,
                           "layer %s: a linear layer reads [N,C,1,1], not %d x %d pixels",
                           layer->name, in->height, in->width);
    }
    op->out = add_slot(lower, backend, index, layer->channels, 1, 1);
    return LS_OK;
}

/* A norm whose only reader is an add is fused into it; the pass ends with the ReLU after it. */
static bool waits_for_add(const ls_lower *lower, int index)
{
    int add = only_consumer(lower->network, index, LS_LAYER_ADD);
    return add >= 0 && lower->network->layer[add].input[0] != lower->network->layer[add].input[1];
}

/* The ReLU fused at the end of a pass: its only reader, unless branches may be forced. */
static int fused_relu(const ls_lower *lower, int index)
{
    return lower->options.forced_branches ? -1
                                          : only_consumer(lower->network, index, LS_LAYER_RELU);
}

static void lower_norm(ls_lower *lower, const ls_lower_backend *backend, int index)
{
    if (waits_for_add(lower, index)) {
        return;
    }
    ls_op *op = add_op(lower, LS_OP_NORM, index);
    const ls_slot *in = &lower->slot[op->in];
    int relu = fused_relu(lower, index);
    op->relu = relu >= 0;
    op->norm[0] = index;
    op->out =
        add_slot(lower, backend, op->relu ? relu : index, in->channels, in->height, in->width);
}

static void lower_add(ls_lower *lower, const ls_lower_backend *backend, int index)
{
    const ls_network *network = lower->network;
    const ls_layer *add = &network->layer[index];
    int first = add->input[0], second = add->input[1];
    bool first_norm = lower->slot_of_layer[first] < 0,
         second_norm = lower->slot_of_layer[second] < 0;
    if (!first_norm && second_norm) {
        int swap = first;
        first = second;
        second = swap;
    }
    ls_op *op = add_op(lower, first_norm || second_norm ? LS_OP_NORM : LS_OP_ADD, index);
    op->dual = first_norm && second_norm;
    if (op->kind == LS_OP_NORM) {
        op->layer = first;
        op->norm[0] = first;
        op->in = lower->slot_of_layer[network->layer[first].input[0]];
    }
    op->residual = lower->slot_of_layer[op->dual ? network->layer[second].input[0] : second];
    if (op->dual) {
        op->norm[1] = second;
    }
    int relu = fused_relu(lower, index);
    op->relu = relu >= 0;
    ls_slot in = lower->slot[op->in];
    op->out = add_slot(lower, backend, op->relu ? relu : index, in.channels, in.height, in.width);
}

static ls_status lower_spatial(ls_lower *lower, const ls_lower_backend *backend, int index)
{
    const ls_layer *layer = &lower->network->layer[index];
    ls_op_kind kind = layer->kind == LS_LAYER_MAX_POOL       ? LS_OP_POOL
                      : layer->kind == LS_LAYER_SHORTCUT_PAD ? LS_OP_SHORTCUT
                                                             : LS_OP_AVERAGE;
    ls_op *op = add_op(lower, kind, index);
    ls_slot in = lower->slot[op->in];
    int channels = in.channels, height = 1, width = 1;
    if (kind == LS_OP_POOL) {
        height = window_out(in.height, layer);
        width = window_out(in.width, layer);
        if (layer->kernel * layer->kernel > 256 || layer->pad >= layer->kernel || height < 1 ||
            width < 1) {
            return ls_log_fail(LS_ERR_USAGE,
                               "layer %s: no max pool of kernel %d, padding %d on %d x %d pixels",
                               layer->name, layer->kernel, layer->pad, in.height, in.width);
        }
    } else if (kind == LS_OP_SHORTCUT) {
        channels = layer->channels;
        height = (in.height + layer->stride - 1) / layer->stride;
        width = (in.width + layer->stride - 1) / layer->stride;
    }
    op->out = add_slot(lower, backend, index, channels, height, width);
    return LS_OK;
}

static bool relu_is_fused(const ls_lower *lower, int index)
{
    return lower->slot_of_layer[index] >= 0; /* its producer has stored it */
}

static ls_status lower_layer(ls_lower *lower, const ls_lower_backend *backend, int index)
{
    const ls_layer *layer = &lower->network->layer[index];
    switch (layer->kind) {
    case LS_LAYER_INPUT:
        add_slot(lower, backend, index, layer->channels, lower->options.height,
                 lower->options.width);
        return LS_OK;
    case LS_LAYER_CONV:
        return lower_conv(lower, backend, index);
    case LS_LAYER_LINEAR:
        return lower_linear(lower, backend, index);
    case LS_LAYER_BATCH_NORM:
        lower_norm(lower, backend, index);
        return LS_OK;
    case LS_LAYER_ADD:
        lower_add(lower, backend, index);
        return LS_OK;
    case LS_LAYER_RELU:
        if (!relu_is_fused(lower, index)) {
            ls_op *op = add_op(lower, LS_OP_RELU, index);
            ls_slot in = lower->slot[op->in];
            op->relu = true;
            op->out = add_slot(lower, backend, index, in.channels, in.height, in.width);
        }
        return LS_OK;
    case LS_LAYER_MAX_POOL:
    case LS_LAYER_SHORTCUT_PAD:
    case LS_LAYER_AVG_POOL:
        return lower_spatial(lower, backend, index);
    case LS_LAYER_CROSS_ENTROPY:
        add_op(lower, LS_OP_LOSS, index);
        return LS_OK;
    case LS_LAYER_ENTRY:
        add_op(lower, LS_OP_ENTRY, index)->out = add_slot(
            lower, backend, index, layer->channels, lower->options.height, lower->options.width);
        return LS_OK;
    case LS_LAYER_EXIT:
        add_op(lower, LS_OP_EXIT, index);
        return LS_OK;
    }
    return ls_log_fail(LS_ERR_UNSUPPORTED, "layer %s has kind %d, which this backend does not know",
                       layer->name, (int)layer->kind);
}

static ls_status fill(ls_lower *lower, const ls_lower_backend *backend)
{
    size_t layers = (size_t)lower->network->layer_count;
    lower->slot = calloc(layers, sizeof *lower->slot);
    lower->op = calloc(layers, sizeof *lower->op);
    lower->slot_of_layer = malloc(layers * sizeof *lower->slot_of_layer);
    LS_TRY_MEMORY(lower->slot != NULL && lower->op != NULL && lower->slot_of_layer != NULL,
                  "a plan of %zu layers", layers);
    for (size_t i = 0; i < layers; i++) {
        lower->slot_of_layer[i] = -1;
    }
    for (int i = 0; i < lower->network->layer_count; i++) {
        LS_TRY(lower_layer(lower, backend, i));
    }
    return ls_grad_layout_choose(lower, backend);
}

ls_status ls_lower_create(const ls_network *network, const ls_plan_options *options,
                          const ls_lower_backend *backend, ls_lower *out)
{
    char why[256];
    if (!ls_lower_supports(network, options->activation, why, sizeof why)) {
        return ls_log_fail(LS_ERR_UNSUPPORTED, "network %s: %s", network->arch, why);
    }
    *out = (ls_lower){.network = network, .options = *options};
    ls_status status = fill(out, backend);
    if (status != LS_OK) {
        ls_lower_free(out);
    }
    return status;
}

void ls_lower_free(ls_lower *lower)
{
    free(lower->slot);
    free(lower->op);
    free(lower->grad);
    free(lower->slot_of_layer);
    *lower = (ls_lower){0};
}

/* ---- what others ask about it ---------------------------------------------------------------- */

void ls_lower_ready_order(const ls_network *network, int *order)
{
    int count = 0;
    for (int i = network->layer_count - 1; i >= 0; i--) {
        const ls_layer *layer = &network->layer[i];
        bool linear = layer->kind == LS_LAYER_LINEAR;
        int first = linear ? layer->bias : layer->weight;
        int second = linear ? layer->weight : layer->bias;
        if (layer->kind == LS_LAYER_CONV || linear || layer->kind == LS_LAYER_BATCH_NORM) {
            order[count++] = first;
            if (layer->kind != LS_LAYER_CONV) {
                order[count++] = second;
            }
        }
    }
    LS_ASSERT(count == network->param_count);
}

const ls_op *ls_lower_writer(const ls_lower *lower, int slot)
{
    for (int i = 0; i < lower->op_count; i++) {
        if (lower->op[i].out == slot) {
            return &lower->op[i];
        }
    }
    return NULL;
}

int ls_lower_readers(const ls_lower *lower, int slot)
{
    int count = 0;
    for (int i = 0; i < lower->op_count; i++) {
        count += (lower->op[i].in == slot) + (lower->op[i].residual == slot);
    }
    return count;
}

ls_op *ls_lower_op_of_branch(const ls_lower *lower, int branch)
{
    for (int i = 0; i < lower->op_count; i++) {
        ls_op *op = &lower->op[i];
        if ((op->kind == LS_OP_RELU || op->kind == LS_OP_POOL) &&
            lower->network->layer[op->layer].branch == branch) {
            return op;
        }
    }
    return NULL;
}

int ls_lower_layer_of_branch(const ls_network *network, int branch, ls_layer_kind kind)
{
    for (int i = 0; i < network->layer_count; i++) {
        if (network->layer[i].kind == kind && network->layer[i].branch == branch) {
            return i;
        }
    }
    return -1;
}

bool ls_lower_stem_blocks(const ls_network *network, const ls_plan_options *options)
{
    int readers = 0;
    bool fits =
        network->layer[0].channels == 3 && options->height % 2 == 0 && options->width % 2 == 0;
    for (int i = 1; i < network->layer_count; i++) {
        const ls_layer *layer = &network->layer[i];
        if (layer->input[0] == 0 || layer->input[1] == 0) {
            readers++;
            fits = fits && layer->kind == LS_LAYER_CONV && layer->kernel == 7 &&
                   layer->stride == 2 && layer->pad == 3;
        }
    }
    return fits && readers == 1;
}

ls_observed_kind ls_lower_observed_kind(const ls_op *op)
{
    static const ls_observed_kind kind[] = {
        [LS_OP_CONV] = LS_OBSERVED_CONV,         [LS_OP_LINEAR] = LS_OBSERVED_CONV,
        [LS_OP_NORM] = LS_OBSERVED_NORM,         [LS_OP_RELU] = LS_OBSERVED_ADD,
        [LS_OP_ADD] = LS_OBSERVED_ADD,           [LS_OP_POOL] = LS_OBSERVED_POOL,
        [LS_OP_SHORTCUT] = LS_OBSERVED_SHORTCUT, [LS_OP_AVERAGE] = LS_OBSERVED_AVERAGE,
        [LS_OP_LOSS] = LS_OBSERVED_LOSS,
    };
    return kind[op->kind];
}

ls_observed ls_lower_observed(const ls_lower *lower, ls_observed_kind kind, const ls_op *op)
{
    const ls_layer *layer = &lower->network->layer[op->layer];
    const ls_slot *in = &lower->slot[op->in];
    bool windows = op->kind == LS_OP_CONV || op->kind == LS_OP_POOL;
    ls_observed to = {.kind = kind,
                      .layer = op->layer,
                      .type = lower->options.activation,
                      .images = lower->options.batch,
                      .in_channels = in->channels,
                      .plain_channels = in->channels,
                      .in_height = in->height,
                      .in_width = in->width,
                      .kernel = windows ? layer->kernel : 1,
                      .stride = windows || op->kind == LS_OP_SHORTCUT ? layer->stride : 1,
                      .pad = windows ? layer->pad : 0,
                      .relu = op->relu,
                      .dual = op->dual};
    if (op->out >= 0) {
        const ls_slot *out = &lower->slot[op->out];
        to.out_channels = out->channels;
        to.out_height = out->height;
        to.out_width = out->width;
    }
    return to;
}

double ls_lower_product_flops(const ls_lower *lower, const ls_op *op)
{
    if (op->kind != LS_OP_CONV && op->kind != LS_OP_LINEAR) {
        return 0;
    }
    const ls_layer *layer = &lower->network->layer[op->layer];
    const ls_slot *in = &lower->slot[op->in], *out = &lower->slot[op->out];
    double taps = op->kind == LS_OP_CONV ? (double)layer->kernel * layer->kernel : 1;
    double forward = 2 * taps * in->channels * (double)out->count;
    return forward * (in->wants_gradient ? 3 : 2);
}

double ls_lower_flops(const ls_lower *lower)
{
    double flops = 0;
    for (int i = 0; i < lower->op_count; i++) {
        flops += ls_lower_product_flops(lower, &lower->op[i]);
    }
    return flops;
}

static void describe_norm(const ls_lower *lower, const ls_op *op, char *text, size_t bytes)
{
    const ls_layer *layer = lower->network->layer;
    ls_text_add(text, bytes, "%s%s%s%s%s: one pass\n", layer[op->norm[0]].name,
                op->dual ? " + " : "", op->dual ? layer[op->norm[1]].name : "",
                op->residual >= 0 ? " + add" : "", op->relu ? " + relu" : "");
}

void ls_lower_describe(const ls_lower *lower, ls_lower_engine *engine, const void *context,
                       char *text, size_t bytes)
{
    text[0] = '\0';
    for (int i = 0; i < lower->op_count; i++) {
        const ls_op *op = &lower->op[i];
        char line[512];
        if (op->kind == LS_OP_CONV || op->kind == LS_OP_LINEAR) {
            engine(context, op, line, sizeof line);
            ls_text_add(text, bytes, "%s: %s\n", lower->network->layer[op->layer].name, line);
        } else if (op->kind == LS_OP_NORM) {
            describe_norm(lower, op, text, bytes);
        }
    }
}
