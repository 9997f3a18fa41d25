#include "plan.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "../core/log.h"
#include "memory.h"
#include "parallel.h"

enum { FUSIONS_BYTES = 65536 };

/* oneDNN asks OpenMP for the number of threads of the calling thread, when it makes and when it
 * runs. */
static void use_threads(const ls_plan *plan)
{
    omp_set_num_threads(plan->backend->threads);
}

/* ---- sizes and memory ------------------------------------------------------------------------ */

/* Where the pieces of plan->norms lie: filled twice, to size and to place. */
static void carve_norms(ls_plan *plan)
{
    char *base = plan->norms.base;
    ls_arena sized = {0}, *arena = &sized;
    int64_t widest = 0, batch = plan->options.batch;
    for (int i = 0; i < plan->op_count; i++) {
        ls_op *op = &plan->op[i];
        if (op->kind != LS_OP_NORM) {
            continue;
        }
        const ls_slot *in = &plan->slot[op->in];
        size_t channels = (size_t)in->channels, blocks = channels / (size_t)in->block;
        widest = in->channels > widest ? in->channels : widest;
        for (int k = 0; k < (op->dual ? 2 : 1); k++) {
            ls_norm *norm = &op->norm[k];
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
    size_t classes = (size_t)plan->slot[plan->op[plan->op_count - 1].in].channels;
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
    size_t place_bytes = 0;
    for (int i = 0; i < plan->op_count; i++) {
        const ls_conv *conv = plan->op[i].conv;
        if (conv != NULL) {
            size_t scratch = ls_conv_scratch_bytes(conv);
            ls_arena_reserve(&plan->packed, ls_conv_weight_bytes(conv));
            place_bytes = scratch > place_bytes ? scratch : place_bytes;
        }
    }
    plan->scratch_bytes = place_bytes;
    carve_norms(plan);
    LS_TRY(commit(&plan->activations, "activations"));
    LS_TRY(commit(&plan->gradients, "gradients of activations"));
    LS_TRY(commit(&plan->packed, "packed weights"));
    LS_TRY(commit(&plan->norms, "statistics of batch norms"));
    void *scratch = NULL;
    LS_TRY(ls_memory_take((int64_t)plan->scratch_bytes, "workspace of products", &scratch));
    plan->scratch = scratch;
    carve_norms(plan);
    ls_arena packed = {0};
    for (int i = 0; i < plan->op_count; i++) {
        ls_op *op = &plan->op[i];
        if (op->conv != NULL) {
            size_t offset = ls_arena_reserve(&packed, ls_conv_weight_bytes(op->conv));
            ls_conv_place(op->conv, ls_arena_at(&plan->packed, offset), plan->scratch);
        }
        if (op->kind == LS_OP_POOL || (op->kind == LS_OP_RELU && plan->options.forced_branches)) {
            op->tap = ls_arena_at(&plan->activations, op->tap_offset);
        }
    }
    return LS_OK;
}

/* ---- the order in which gradients become ready ----------------------------------------------- */

/* Layers backwards; a pass that fuses layers may be done with a parameter earlier, and then it
 * waits. */
static void order_ready(ls_plan *plan)
{
    int count = 0;
    for (int i = plan->network->layer_count - 1; i >= 0; i--) {
        const ls_layer *layer = &plan->network->layer[i];
        bool linear = layer->kind == LS_LAYER_LINEAR;
        int first = linear ? layer->bias : layer->weight;
        int second = linear ? layer->weight : layer->bias;
        if (layer->kind == LS_LAYER_CONV || linear || layer->kind == LS_LAYER_BATCH_NORM) {
            plan->ready_order[count++] = first;
            if (layer->kind != LS_LAYER_CONV) {
                plan->ready_order[count++] = second;
            }
        }
    }
    LS_ASSERT(count == plan->network->param_count);
}

static ls_status report_ready(ls_plan *plan, ls_grad_ready *ready, void *context)
{
    while (plan->ready_count < plan->network->param_count) {
        int param = plan->ready_order[plan->ready_count];
        if (!plan->ready[param]) {
            break;
        }
        plan->ready_count++;
        if (ready != NULL) {
            LS_TRY(ready(context, param));
        }
    }
    return LS_OK;
}

/* ---- life ------------------------------------------------------------------------------------ */

static ls_status host_lists(ls_plan *plan)
{
    size_t params = (size_t)plan->network->param_count,
           buffers = (size_t)plan->network->buffer_count;
    plan->ready_order = calloc(params + 1, sizeof *plan->ready_order);
    plan->ready = calloc(params + 1, sizeof *plan->ready);
    plan->param = calloc(params + 1, sizeof *plan->param);
    plan->param_grad = calloc(params + 1, sizeof *plan->param_grad);
    plan->buffer = calloc(buffers + 1, sizeof *plan->buffer);
    plan->fusions = calloc(1, FUSIONS_BYTES);
    if (plan->ready_order == NULL || plan->ready == NULL || plan->param == NULL ||
        plan->param_grad == NULL || plan->buffer == NULL || plan->fusions == NULL) {
        ls_log_error("no memory for a plan of %zu parameters", params);
        return LS_ERR_INFRA;
    }
    return LS_OK;
}

ls_status ls_plan_create(ls_backend *backend, const ls_network *network,
                         const ls_plan_options *options, ls_plan **out)
{
    char why[256];
    if (!ls_lower_supports(network, why, sizeof why)) {
        ls_log_error("network %s: %s", network->arch, why);
        return LS_ERR_UNSUPPORTED;
    }
    ls_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) {
        ls_log_error("no memory for a plan");
        return LS_ERR_INFRA;
    }
    plan->backend = backend;
    plan->network = network;
    plan->options = *options;
    plan->has_sync = options->norm_sync != NULL;
    if (plan->has_sync) {
        plan->sync = *options->norm_sync;
    }
    plan->options.norm_sync = NULL;
    use_threads(plan);
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, host_lists(plan), destroy);
    LS_TRY_GOTO(status, ls_lower_network(plan), destroy);
    LS_TRY_GOTO(status, ls_place_gradients(plan), destroy);
    LS_TRY_GOTO(status, allocate(plan), destroy);
    order_ready(plan);
    ls_lower_describe(plan, plan->fusions, FUSIONS_BYTES);
    *out = plan;
    return LS_OK;
destroy:
    ls_plan_destroy(plan);
    return status;
}

void ls_plan_destroy(ls_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    for (int i = 0; i < plan->op_count; i++) {
        ls_conv_destroy(plan->op[i].conv);
    }
    ls_memory_give(plan->activations.base);
    ls_memory_give(plan->gradients.base);
    ls_memory_give(plan->packed.base);
    ls_memory_give(plan->norms.base);
    ls_memory_give(plan->scratch);
    free(plan->slot);
    free(plan->op);
    free(plan->slot_of_layer);
    free(plan->grad);
    free(plan->ready_order);
    free(plan->ready);
    free(plan->param);
    free(plan->param_grad);
    free(plan->buffer);
    free(plan->fusions);
    free(plan);
}

static double product_flops(const ls_plan *plan, const ls_op *op)
{
    const ls_layer *layer = &plan->network->layer[op->layer];
    const ls_slot *in = &plan->slot[op->in], *out = &plan->slot[op->out];
    double taps = op->kind == LS_OP_CONV ? (double)layer->kernel * layer->kernel : 1;
    double forward = 2 * taps * in->channels * (double)out->count;
    return forward * (in->wants_gradient ? 3 : 2);
}

void ls_plan_describe(ls_plan *plan, ls_plan_info *out)
{
    *out = (ls_plan_info){
        .activation_bytes = (int64_t)(plan->activations.bytes + plan->gradients.bytes),
        .workspace_bytes = (int64_t)(plan->packed.bytes + plan->norms.bytes + plan->scratch_bytes),
        .fusions = plan->fusions};
    for (int i = 0; i < plan->op_count; i++) {
        if (plan->op[i].conv != NULL) {
            out->flops += product_flops(plan, &plan->op[i]);
        }
    }
}

ls_status ls_plan_bind(ls_plan *plan, const ls_plan_binding *binding)
{
    const ls_network *network = plan->network;
    for (int i = 0; i < network->param_count; i++) {
        int64_t count = ls_shape_count(&network->param[i].shape);
        if (binding->param[i].count != count || binding->grad[i].count != count) {
            ls_log_error("parameter %s has %lld elements, but %lld values and %lld gradients are "
                         "bound to it",
                         network->param[i].name, (long long)count,
                         (long long)binding->param[i].count, (long long)binding->grad[i].count);
            return LS_ERR_USAGE;
        }
    }
    memcpy(plan->param, binding->param, (size_t)network->param_count * sizeof *plan->param);
    memcpy(plan->param_grad, binding->grad,
           (size_t)network->param_count * sizeof *plan->param_grad);
    memcpy(plan->buffer, binding->buffer, (size_t)network->buffer_count * sizeof *plan->buffer);
    plan->state = binding->state;
    return LS_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

ls_status ls_plan_params_changed(ls_plan *plan, ls_stream *stream)
{
    (void)stream;
    LS_ASSERT(plan->state != NULL);
    use_threads(plan);
    for (int i = 0; i < plan->op_count; i++) {
        ls_op *op = &plan->op[i];
        if (op->conv != NULL) {
            const ls_layer *layer = &plan->network->layer[op->layer];
            LS_TRY(ls_conv_pack(op->conv, &plan->param[layer->weight]));
        }
    }
    return LS_OK;
}

static ls_status forward_op(ls_plan *plan, ls_stream *stream, ls_op *op, const int64_t *target)
{
    switch (op->kind) {
    case LS_OP_CONV:
        return ls_conv_forward(op->conv, ls_plan_at(plan, op->in), ls_plan_at(plan, op->out));
    case LS_OP_LINEAR:
        return ls_loss_linear_forward(plan, op);
    case LS_OP_NORM:
        return ls_norm_forward(plan, stream, op);
    case LS_OP_LOSS:
        return ls_loss_forward(plan, op, target);
    default:
        ls_simple_forward(plan, op);
        return LS_OK;
    }
}

ls_status ls_plan_forward(ls_plan *plan, ls_stream *stream, const float *input,
                          const int64_t *target)
{
    LS_ASSERT(plan->state != NULL);
    use_threads(plan);
    const ls_slot *image = &plan->slot[plan->slot_of_layer[0]];
    ls_parallel_narrow(plan->backend, plan->options.activation, input,
                       ls_arena_at(&plan->activations, image->offset), image->count);
    for (int i = 0; i < plan->op_count; i++) {
        LS_TRY(forward_op(plan, stream, &plan->op[i], target));
    }
    plan->forward_done = true;
    return LS_OK;
}

static ls_status backward_conv(ls_plan *plan, ls_op *op, ls_grad_ready *ready, void *context)
{
    const ls_layer *layer = &plan->network->layer[op->layer];
    ls_simple_backward(plan, op);
    LS_TRY(ls_conv_backward_weights(op->conv, ls_plan_at(plan, op->in), ls_plan_grad(plan, op->g),
                                    &plan->param_grad[layer->weight]));
    plan->ready[layer->weight] = true;
    LS_TRY(report_ready(plan, ready, context));
    if (op->dx == LS_NO_BUFFER) {
        return LS_OK;
    }
    return ls_conv_backward_data(op->conv, ls_plan_grad(plan, op->dx), ls_plan_grad(plan, op->g));
}

ls_status ls_plan_backward(ls_plan *plan, ls_stream *stream, float factor, ls_grad_ready *ready,
                           void *context)
{
    LS_ASSERT(plan->forward_done);
    use_threads(plan);
    memset(plan->ready, 0, (size_t)plan->network->param_count * sizeof *plan->ready);
    plan->ready_count = 0;
    for (int i = plan->op_count - 1; i >= 0; i--) {
        ls_op *op = &plan->op[i];
        switch (op->kind) {
        case LS_OP_CONV:
            LS_TRY(backward_conv(plan, op, ready, context));
            break;
        case LS_OP_LINEAR:
            LS_TRY(ls_loss_linear_backward(plan, op));
            break;
        case LS_OP_NORM:
            LS_TRY(ls_norm_backward(plan, stream, op));
            break;
        case LS_OP_LOSS:
            ls_loss_backward(plan, op, factor);
            break;
        default:
            ls_simple_backward(plan, op);
            break;
        }
        LS_TRY(report_ready(plan, ready, context));
    }
    LS_ASSERT(plan->ready_count == plan->network->param_count);
    return LS_OK;
}

ls_status ls_plan_export(ls_plan *plan, ls_stream *stream, ls_export what, int index, void *host,
                         int64_t bytes)
{
    (void)stream;
    LS_ASSERT(plan->forward_done);
    return ls_export_copy(plan, what, index, host, bytes);
}

ls_status ls_plan_force(ls_plan *plan, ls_stream *stream, int branch, const void *host,
                        int64_t bytes)
{
    (void)stream;
    return ls_force_branch(plan, branch, host, bytes);
}
