#include "plan_internal.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/core/log.h"
#include "kernels/passes.h"

enum { BATCH_SLOTS = 2 }; /* of f32, until batch_slots sets something else */

/* ---- what can be run ------------------------------------------------------------------------- */

bool ls_plan_supports(ls_backend *backend, const ls_network *network,
                      const ls_plan_options *options, char *why, int why_bytes)
{
    (void)backend;
    if (!ls_lower_supports(network, options->activation, why, (size_t)why_bytes)) {
        return false;
    }
    if (network->layer[0].kind == LS_LAYER_ENTRY ||
        network->layer[network->layer_count - 1].kind == LS_LAYER_EXIT) {
        snprintf(why, (size_t)why_bytes, "this backend runs whole networks, not stages of one");
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

static ls_status fill_plan(ls_plan *plan)
{
    plan->fusions = calloc(1, LS_PLAN_TEXT_BYTES);
    plan->engines = calloc(1, LS_PLAN_TEXT_BYTES);
    plan->applied = calloc(1, LS_PLAN_TEXT_BYTES);
    LS_TRY_MEMORY(plan->fusions != NULL && plan->engines != NULL && plan->applied != NULL,
                  "the description of a plan");
    LS_TRY(ls_plan_tensors_create(plan->network, &plan->bound));
    plan->backend->benchmark = plan->options.benchmark;
    LS_TRY(ls_norm_early(plan, &plan->early));
    LS_TRY(ls_work_create(plan));
    LS_TRY(ls_bind_create(plan));
    LS_TRY(ls_plan_ready_create(plan->network, &plan->ready));
    ls_work_describe(plan, plan->fusions, LS_PLAN_TEXT_BYTES);
    ls_apply_describe(plan, plan->applied, LS_PLAN_TEXT_BYTES);
    return LS_OK;
}

ls_status ls_plan_create(ls_backend *backend, const ls_network *network,
                         const ls_plan_options *options, ls_plan **out)
{
    char why[256];
    if (!ls_plan_supports(backend, network, options, why, sizeof why)) {
        return ls_log_fail(LS_ERR_UNSUPPORTED, "network %s: %s", network->arch, why);
    }
    ls_plan *plan = calloc(1, sizeof *plan);
    LS_TRY_MEMORY(plan != NULL, "a plan");
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
    ls_plan_ready_free(&plan->ready);
    ls_plan_tensors_free(&plan->bound);
    free(plan->fusions);
    free(plan->engines);
    free(plan->applied);
    free(plan);
}

void ls_plan_describe(ls_plan *plan, ls_plan_info *out)
{
    *out = (ls_plan_info){.activation_bytes =
                              (int64_t)(plan->activations.bytes + plan->gradients.bytes),
                          .workspace_bytes = (int64_t)(plan->weights.bytes + plan->norms.bytes) +
                                             plan->workspace_bytes,
                          .flops = ls_lower_flops(&plan->lower),
                          .fusions = plan->fusions,
                          .applied = plan->applied[0] == '\0' ? NULL : plan->applied};
}

ls_status ls_plan_bind(ls_plan *plan, const ls_plan_binding *binding)
{
    LS_TRY(ls_bind_tensors(plan, binding));
    const ls_image_format format = {.type = LS_F32};
    return plan->batch_count > 0 ? LS_OK : ls_batch_slots(plan, BATCH_SLOTS, &format);
}

static ls_status end_pass(ls_plan *plan, const ls_op *op, ls_pass_kind pass)
{
    return plan->on_pass == NULL ? LS_OK : plan->on_pass(plan->on_pass_context, op, pass);
}

/* ---- forward --------------------------------------------------------------------------------- */

ls_status ls_plan_params_changed(ls_plan *plan, ls_stream *stream)
{
    LS_ASSERT(plan->bound.state != NULL);
    LS_TRY(ls_observe_weights(plan, stream, false));
    LS_TRY(ls_bind_pack(plan, stream->native));
    return ls_observe_weights(plan, stream, true);
}

static ls_status forward_conv(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    const ls_work *work = ls_plan_work(plan, op);
    const void *x = ls_plan_at(plan, op->in);
    void *y = ls_plan_at(plan, op->out);
    if (ls_apply_norm(plan, op) != NULL) {
        return ls_apply_forward(plan, stream, op);
    }
    if (ls_conv_fuses(work->conv, LS_CONV_FORWARD_SUMS) && !plan->evaluates) {
        return ls_conv_forward_sums(work->conv, stream, x, work->operand, y, work->sums,
                                    plan->workspace);
    }
    return ls_conv_forward(work->conv, stream, x, work->operand, y, plan->workspace);
}

static ls_status forward_op(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    const ls_work *work = ls_plan_work(plan, op);
    switch (op->kind) {
    case LS_OP_CONV:
        return forward_conv(plan, stream, op);
    case LS_OP_LINEAR:
        return ls_linear_forward(work->linear, stream, ls_plan_at(plan, op->in), work->operand,
                                 work->bias, ls_plan_at(plan, op->out), plan->workspace);
    case LS_OP_NORM:
        return ls_norm_forward(plan, stream, op);
    case LS_OP_LOSS:
        return ls_loss_forward(stream->native, plan->options.activation, ls_plan_at(plan, op->in),
                               plan->target, plan->options.batch, plan->lower.slot[op->in].channels,
                               plan->options.label_smoothing, plan->logits, plan->row,
                               plan->bound.state);
    default:
        return ls_simple_forward(plan, stream, op);
    }
}

ls_status ls_plan_forward_loaded(ls_plan *plan, ls_stream *stream, int slot)
{
    LS_ASSERT(plan->bound.state != NULL);
    LS_TRY(ls_batch_unpack(plan, stream, slot));
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        LS_TRY(ls_observe_run(plan, stream, ls_lower_observed_kind(op), op, forward_op));
        LS_TRY(end_pass(plan, op, LS_PASS_FORWARD));
    }
    plan->forward_done = true;
    return LS_OK;
}

void ls_plan_evaluate(ls_plan *plan, bool evaluate)
{
    LS_ASSERT(plan->observer == NULL);
    plan->evaluates = evaluate;
    plan->forward_done = false;
}

ls_status ls_plan_forward(ls_plan *plan, ls_stream *stream, const float *input,
                          const int64_t *target)
{
    LS_ASSERT(plan->bound.state != NULL);
    if (plan->format.type != LS_F32) {
        return ls_log_fail(LS_ERR_USAGE, "a forward from images of f32, but the plan's slots are "
                                         "for bytes");
    }
    LS_TRY(ls_batch_load(plan, 0, input, target));
    return ls_plan_forward_loaded(plan, stream, 0);
}

/* ---- backward -------------------------------------------------------------------------------- */

static ls_status backward_weights(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    const ls_work *work = ls_plan_work(plan, op);
    const void *x = ls_plan_at(plan, op->in), *g = ls_plan_grad(plan, op->g);
    if (op->kind == LS_OP_LINEAR) {
        return ls_linear_backward_weights(work->linear, stream, work->dw, x, g, plan->workspace);
    }
    return ls_apply_norm(plan, op) != NULL
               ? ls_apply_weights(plan, stream, op, plan->workspace)
               : ls_conv_backward_weights(work->conv, stream, work->dw, x, g, plan->workspace);
}

static ls_status backward_data(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    const ls_work *work = ls_plan_work(plan, op);
    const void *g = ls_plan_grad(plan, op->g), *w = work->operand;
    void *dx = ls_plan_grad(plan, op->dx);
    if (op->kind == LS_OP_CONV && ls_gate_used(plan, op) != NULL) {
        return ls_gate_backward(plan, stream, op);
    }
    return op->kind == LS_OP_CONV
               ? ls_conv_backward_data(work->conv, stream, dx, w, g, plan->workspace)
               : ls_linear_backward_data(work->linear, stream, dx, w, g, plan->workspace);
}

static ls_status backward_bias(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    const ls_layer *layer = &plan->network->layer[op->layer];
    return ls_loss_bias_grad(stream->native, plan->options.activation, ls_plan_grad(plan, op->g),
                             plan->options.batch, layer->channels, &plan->bound.grad[layer->bias]);
}

static ls_status backward_loss(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    return ls_loss_backward(stream->native, plan->options.activation, plan->logits, plan->row,
                            plan->target, plan->options.batch, plan->lower.slot[op->in].channels,
                            plan->options.label_smoothing, plan->loss_factor, plan->bound.state,
                            ls_plan_grad(plan, op->dx));
}

/* Gradients in a product's order wait for their group's last (a bucket's), which may be reduced
 * from then on: one launch converts them, and then the reports go out. Those that products write in
 * place and those of norms wait with them, for the sake of the order. */
static ls_status report_gradients(ls_plan *plan, ls_stream *stream, ls_grad_ready *ready,
                                  void *context)
{
    bool due = ls_plan_ready_due(&plan->ready) > plan->ready.reported;
    if (due && plan->computed > plan->unpacked) {
        LS_TRY(ls_observe_gradients(plan, stream, false));
        LS_TRY(ls_bind_unpack(plan, stream->native));
        LS_TRY(ls_observe_gradients(plan, stream, true));
        plan->unpacked = plan->computed;
    }
    return ls_plan_ready_report(&plan->ready, ready, context);
}

/* The gradient of the weight comes first, so that its reduction starts while the rest is computed.
 * A linear layer reports both parameters at the end, in the order of ls_grad_ready. */
static ls_status backward_product(ls_plan *plan, ls_stream *stream, const ls_op *op,
                                  ls_grad_ready *ready, void *context)
{
    const ls_layer *layer = &plan->network->layer[op->layer];
    LS_TRY(ls_simple_join(plan, stream, op));
    if (op->kind == LS_OP_LINEAR) {
        LS_TRY(ls_observe_run(plan, stream, LS_OBSERVED_BIAS, op, backward_bias));
        plan->ready.done[layer->bias] = true;
    }
    LS_TRY(ls_observe_run(plan, stream, LS_OBSERVED_CONV_WEIGHTS, op, backward_weights));
    plan->computed += ls_bind_packs_gradient(plan, op);
    plan->ready.done[layer->weight] = true;
    if (op->kind == LS_OP_CONV) {
        LS_TRY(report_gradients(plan, stream, ready, context));
    }
    if (op->dx == LS_NO_BUFFER) {
        return LS_OK;
    }
    LS_TRY(end_pass(plan, op, LS_PASS_BACKWARD)); /* the gradient of the weight */
    return ls_observe_run(plan, stream, LS_OBSERVED_CONV_DATA, op, backward_data);
}

ls_status ls_plan_backward(ls_plan *plan, ls_stream *stream, float factor, ls_grad_ready *ready,
                           void *context)
{
    LS_ASSERT(plan->forward_done && !plan->evaluates);
    plan->loss_factor = factor;
    plan->computed = plan->unpacked = 0;
    ls_plan_ready_begin(&plan->ready);
    for (int i = plan->lower.op_count - 1; i >= 0; i--) {
        const ls_op *op = &plan->lower.op[i];
        ls_pass_kind pass = LS_PASS_BACKWARD;
        switch (op->kind) {
        case LS_OP_CONV:
        case LS_OP_LINEAR:
            LS_TRY(backward_product(plan, stream, op, ready, context));
            pass = op->dx != LS_NO_BUFFER ? LS_PASS_DATA : LS_PASS_BACKWARD;
            break;
        case LS_OP_NORM:
            LS_TRY(ls_observe_run(plan, stream, LS_OBSERVED_NORM_BACK, op, ls_norm_backward));
            break;
        case LS_OP_LOSS:
            LS_TRY(ls_observe_run(plan, stream, LS_OBSERVED_LOSS_BACK, op, backward_loss));
            break;
        default:
            LS_TRY(ls_simple_backward(plan, stream, op));
            break;
        }
        LS_TRY(end_pass(plan, op, pass));
        LS_TRY(report_gradients(plan, stream, ready, context));
    }
    LS_ASSERT(plan->ready.reported == plan->ready.count);
    return LS_OK;
}
