#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "bound.h"

enum { PLACES = 2 }; /* unless plan_places says otherwise */

/* ---- what can be run ------------------------------------------------------------------------- */

bool ls_plan_supports(ls_backend *backend, const ls_network *network,
                      const ls_plan_options *options, char *why, int why_bytes)
{
    (void)backend;
    if (!ls_lower_supports(network, options->activation, why, (size_t)why_bytes)) {
        return false;
    }
    for (int i = 1; i < network->layer_count; i++) {
        const ls_layer *layer = &network->layer[i];
        if ((layer->input[0] == 0 || layer->input[1] == 0) && layer->kind != LS_LAYER_CONV) {
            snprintf(why, (size_t)why_bytes,
                     "layer %s reads the image, whose channels are padded; only convolutions do",
                     layer->name);
            return false;
        }
    }
    return true;
}

/* ---- life ------------------------------------------------------------------------------------ */

static ls_status host_lists(ls_plan *plan)
{
    size_t params = (size_t)plan->network->param_count,
           buffers = (size_t)plan->network->buffer_count;
    plan->param = calloc(params + 1, sizeof *plan->param);
    plan->param_grad = calloc(params + 1, sizeof *plan->param_grad);
    plan->buffer = calloc(buffers + 1, sizeof *plan->buffer);
    plan->fusions = calloc(1, LS_PLAN_TEXT_BYTES);
    plan->choices = calloc(1, LS_PLAN_TEXT_BYTES);
    if (plan->param == NULL || plan->param_grad == NULL || plan->buffer == NULL ||
        plan->fusions == NULL || plan->choices == NULL) {
        ls_log_error("no memory for a plan of %zu parameters", params);
        return LS_ERR_INFRA;
    }
    return LS_OK;
}

static ls_status fill_plan(ls_plan *plan)
{
    LS_TRY(host_lists(plan));
    LS_TRY(ls_work_create(plan));
    LS_TRY(ls_bind_create(plan));
    LS_TRY(ls_ready_create(plan->network, &plan->ready));
    ls_work_describe(plan, plan->fusions, LS_PLAN_TEXT_BYTES);
    return LS_OK;
}

ls_status ls_plan_create(ls_backend *backend, const ls_network *network,
                         const ls_plan_options *options, ls_plan **out)
{
    char why[256];
    if (!ls_plan_supports(backend, network, options, why, sizeof why)) {
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
    ls_status status = fill_plan(plan);
    if (status != LS_OK) {
        ls_plan_destroy(plan);
        return status;
    }
    *out = plan;
    return LS_OK;
}

void ls_plan_destroy(ls_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    ls_batch_destroy(plan);
    ls_bind_destroy(plan);
    ls_work_destroy(plan);
    ls_cuda_give(plan->exported);
    ls_ready_free(&plan->ready);
    free(plan->param);
    free(plan->param_grad);
    free(plan->buffer);
    free(plan->fusions);
    free(plan->choices);
    free(plan);
}

void ls_plan_describe(ls_plan *plan, ls_plan_info *out)
{
    *out = (ls_plan_info){.activation_bytes =
                              (int64_t)(plan->activations.bytes + plan->gradients.bytes),
                          .workspace_bytes = (int64_t)(plan->weights.bytes + plan->norms.bytes) +
                                             plan->workspace_bytes,
                          .fusions = plan->fusions};
    for (int i = 0; i < plan->lower.op_count; i++) {
        out->flops += ls_lower_product_flops(&plan->lower, &plan->lower.op[i]);
    }
}

ls_status ls_plan_bind(ls_plan *plan, const ls_plan_binding *binding)
{
    LS_TRY(ls_bind_tensors(plan, binding));
    return plan->batch_count > 0 ? LS_OK : ls_batch_places(plan, PLACES);
}

static ls_status mark(ls_plan *plan, const ls_op *op, ls_cuda_pass_kind pass)
{
    return plan->mark == NULL ? LS_OK : plan->mark(plan->mark_context, op, pass);
}

/* ---- forward --------------------------------------------------------------------------------- */

ls_status ls_plan_params_changed(ls_plan *plan, ls_stream *stream)
{
    LS_ASSERT(plan->state != NULL);
    LS_TRY(ls_watch_tell_weights(plan, stream, false));
    LS_TRY(ls_bind_pack(plan, stream->native));
    return ls_watch_tell_weights(plan, stream, true);
}

static ls_status forward_loss(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    return ls_loss_forward(stream->native, plan->options.activation, ls_plan_at(plan, op->in),
                           plan->target, plan->options.batch, plan->lower.slot[op->in].channels,
                           plan->logits, plan->row, plan->state);
}

static ls_watch_kind forward_kind(const ls_op *op)
{
    switch (op->kind) {
    case LS_OP_CONV:
    case LS_OP_LINEAR:
        return LS_WATCH_CONV;
    case LS_OP_NORM:
        return LS_WATCH_NORM;
    case LS_OP_POOL:
        return LS_WATCH_POOL;
    case LS_OP_SHORTCUT:
        return LS_WATCH_SHORTCUT;
    case LS_OP_AVERAGE:
        return LS_WATCH_AVERAGE;
    case LS_OP_LOSS:
        return LS_WATCH_LOSS;
    default:
        return LS_WATCH_ADD;
    }
}

static ls_status forward_op(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    const ls_work *work = ls_plan_work(plan, op);
    switch (op->kind) {
    case LS_OP_CONV:
        return ls_conv_forward(work->conv, stream, ls_plan_at(plan, op->in), work->operand,
                               ls_plan_at(plan, op->out), plan->workspace);
    case LS_OP_LINEAR:
        return ls_linear_forward(work->linear, stream, ls_plan_at(plan, op->in), work->operand,
                                 work->bias, ls_plan_at(plan, op->out), plan->workspace);
    case LS_OP_NORM:
        return ls_norm_forward(plan, stream, op);
    case LS_OP_LOSS:
        return forward_loss(plan, stream, op);
    default:
        return ls_simple_forward(plan, stream, op);
    }
}

ls_status ls_plan_forward_loaded(ls_plan *plan, ls_stream *stream, int place)
{
    LS_ASSERT(plan->state != NULL);
    LS_TRY(ls_batch_take(plan, stream, place));
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        LS_TRY(ls_watch_tell(plan, stream, forward_kind(op), op, 1, false));
        LS_TRY(forward_op(plan, stream, op));
        LS_TRY(ls_watch_tell(plan, stream, forward_kind(op), op, 1, true));
        LS_TRY(mark(plan, &plan->lower.op[i], LS_CUDA_FORWARD));
    }
    plan->forward_done = true;
    return LS_OK;
}

ls_status ls_plan_take(ls_plan *plan, ls_stream *stream, int place)
{
    return ls_batch_after(plan, stream, place);
}

ls_status ls_plan_give(ls_plan *plan, ls_stream *stream, int place)
{
    return ls_batch_free(plan, stream, place);
}

ls_status ls_plan_forward(ls_plan *plan, ls_stream *stream, const float *input,
                          const int64_t *target)
{
    LS_ASSERT(plan->state != NULL);
    LS_TRY(ls_batch_load(plan, 0, input, target));
    return ls_plan_forward_loaded(plan, stream, 0);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The gradient of a product's weight, at its place. */
static ls_status backward_weights(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    const ls_work *work = ls_plan_work(plan, op);
    const void *g = ls_plan_grad(plan, op->g), *x = ls_plan_at(plan, op->in);
    void *dw = ls_bind_gradient(plan, op);
    LS_TRY(ls_watch_tell(plan, stream, LS_WATCH_CONV_WEIGHTS, op, 1, false));
    if (op->kind == LS_OP_CONV) {
        LS_TRY(ls_conv_backward_weights(work->conv, stream, dw, x, g, plan->workspace));
    } else {
        LS_TRY(ls_linear_backward_weights(work->linear, stream, dw, x, g, plan->workspace));
    }
    LS_TRY(ls_watch_tell(plan, stream, LS_WATCH_CONV_WEIGHTS, op, 1, true));
    if (dw == plan->param_grad[plan->network->layer[op->layer].weight].data) {
        return LS_OK;
    }
    LS_TRY(ls_watch_tell(plan, stream, LS_WATCH_UNPACK, op, 1, false));
    LS_TRY(ls_bind_store_gradient(plan, stream->native, op));
    return ls_watch_tell(plan, stream, LS_WATCH_UNPACK, op, 1, true);
}

static ls_status backward_data(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    const ls_work *work = ls_plan_work(plan, op);
    const void *g = ls_plan_grad(plan, op->g);
    void *dx = ls_plan_grad(plan, op->dx);
    if (dx == NULL) {
        return LS_OK;
    }
    LS_TRY(mark(plan, op, LS_CUDA_BACKWARD)); /* so far it was the gradient of the weight */
    LS_TRY(ls_watch_tell(plan, stream, LS_WATCH_CONV_DATA, op, 1, false));
    if (op->kind == LS_OP_CONV) {
        LS_TRY(ls_conv_backward_data(work->conv, stream, dx, work->operand, g, plan->workspace));
    } else {
        LS_TRY(
            ls_linear_backward_data(work->linear, stream, dx, work->operand, g, plan->workspace));
    }
    return ls_watch_tell(plan, stream, LS_WATCH_CONV_DATA, op, 1, true);
}

/* The gradient of the weight comes first: its reduction can begin while the rest goes on. */
static ls_status backward_conv(ls_plan *plan, ls_stream *stream, const ls_op *op,
                               ls_grad_ready *ready, void *context)
{
    LS_TRY(ls_simple_join(plan, stream, op));
    LS_TRY(backward_weights(plan, stream, op));
    plan->ready.done[plan->network->layer[op->layer].weight] = true;
    LS_TRY(ls_ready_report(&plan->ready, ready, context));
    return backward_data(plan, stream, op);
}

static ls_status backward_linear(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    const ls_layer *layer = &plan->network->layer[op->layer];
    LS_TRY(ls_simple_join(plan, stream, op));
    LS_TRY(ls_watch_tell(plan, stream, LS_WATCH_BIAS, op, 1, false));
    LS_TRY(ls_loss_bias_grad(stream->native, plan->options.activation, ls_plan_grad(plan, op->g),
                             plan->options.batch, layer->channels, &plan->param_grad[layer->bias]));
    LS_TRY(ls_watch_tell(plan, stream, LS_WATCH_BIAS, op, 1, true));
    plan->ready.done[layer->bias] = true;
    LS_TRY(backward_weights(plan, stream, op));
    plan->ready.done[layer->weight] = true;
    return backward_data(plan, stream, op);
}

static ls_status backward_norm(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    LS_TRY(ls_watch_tell(plan, stream, LS_WATCH_NORM_BACK, op, 1, false));
    LS_TRY(ls_norm_backward(plan, stream, op));
    return ls_watch_tell(plan, stream, LS_WATCH_NORM_BACK, op, 1, true);
}

static ls_status backward_loss(ls_plan *plan, ls_stream *stream, const ls_op *op, float factor)
{
    LS_TRY(ls_watch_tell(plan, stream, LS_WATCH_LOSS_BACK, op, factor, false));
    LS_TRY(ls_loss_backward(stream->native, plan->options.activation, plan->logits, plan->row,
                            plan->target, plan->options.batch, plan->lower.slot[op->in].channels,
                            factor, plan->state, ls_plan_grad(plan, op->dx)));
    return ls_watch_tell(plan, stream, LS_WATCH_LOSS_BACK, op, factor, true);
}

ls_status ls_plan_backward(ls_plan *plan, ls_stream *stream, float factor, ls_grad_ready *ready,
                           void *context)
{
    LS_ASSERT(plan->forward_done);
    ls_ready_begin(&plan->ready);
    for (int i = plan->lower.op_count - 1; i >= 0; i--) {
        const ls_op *op = &plan->lower.op[i];
        switch (op->kind) {
        case LS_OP_CONV:
            LS_TRY(backward_conv(plan, stream, op, ready, context));
            break;
        case LS_OP_LINEAR:
            LS_TRY(backward_linear(plan, stream, op));
            break;
        case LS_OP_NORM:
            LS_TRY(backward_norm(plan, stream, op));
            break;
        case LS_OP_LOSS:
            LS_TRY(backward_loss(plan, stream, op, factor));
            break;
        default:
            LS_TRY(ls_simple_backward(plan, stream, op));
            break;
        }
        LS_TRY(mark(plan, op,
                    ls_plan_is_product(op) && op->dx != LS_NO_BUFFER ? LS_CUDA_BACKWARD_DATA
                                                                     : LS_CUDA_BACKWARD));
        LS_TRY(ls_ready_report(&plan->ready, ready, context));
    }
    LS_ASSERT(plan->ready.reported == plan->ready.count);
    return LS_OK;
}

/* ---- the rest of the table ------------------------------------------------------------------- */

ls_status ls_plan_export(ls_plan *plan, ls_stream *stream, ls_export what, int index, void *host,
                         int64_t bytes)
{
    LS_ASSERT(plan->forward_done);
    return ls_export_copy(plan, stream, what, index, host, bytes);
}

ls_status ls_plan_force(ls_plan *plan, ls_stream *stream, int branch, const void *host,
                        int64_t bytes)
{
    return ls_force_branch(plan, stream, branch, host, bytes);
}

ls_status ls_plan_places(ls_plan *plan, int places)
{
    return ls_batch_places(plan, places);
}

ls_status ls_plan_load(ls_plan *plan, int place, const float *input, const int64_t *target)
{
    return ls_batch_load(plan, place, input, target);
}

ls_status ls_plan_loaded(ls_plan *plan, int place)
{
    return ls_batch_wait(plan, place);
}

ls_status ls_plan_choices(ls_plan *plan, const char **text)
{
    return ls_choose_text(plan, text);
}

ls_status ls_plan_choose(ls_plan *plan, const char *text)
{
    return ls_choose_take(plan, text);
}
