#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/entries.h"
#include "plan_parts.h"
#include "parallel.h"

/* oneDNN takes the number of threads from the calling thread's OpenMP setting, both when it creates
 * a primitive and when it runs one. */
static void use_threads(const ls_plan *plan)
{
    omp_set_num_threads(plan->backend->threads);
}

/* ---- life ------------------------------------------------------------------------------------ */

ls_status ls_plan_create(ls_backend *backend, const ls_network *network,
                         const ls_plan_options *options, ls_plan **out)
{
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
    use_threads(plan);
    ls_status status = LS_OK;
    plan->fusions = calloc(1, LS_PLAN_TEXT_BYTES);
    plan->choices = calloc(1, LS_PLAN_TEXT_BYTES);
    if (plan->fusions == NULL || plan->choices == NULL) {
        status = ls_log_fail(LS_ERR_INFRA, "no memory for the description of a plan");
        goto destroy;
    }
    LS_TRY_GOTO(status, ls_plan_tensors_create(network, &plan->bound), destroy);
    LS_TRY_GOTO(status, ls_work_create(plan), destroy);
    LS_TRY_GOTO(status, ls_plan_ready_create(network, &plan->ready), destroy);
    ls_work_describe(plan, plan->fusions, LS_PLAN_TEXT_BYTES);
    ls_work_describe_units(plan, plan->products, sizeof plan->products);
    ls_work_name_layout(plan, plan->layout_name, sizeof plan->layout_name);
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
    ls_work_destroy(plan);
    ls_plan_ready_free(&plan->ready);
    ls_plan_tensors_free(&plan->bound);
    free(plan->fusions);
    free(plan->choices);
    free(plan);
}

void ls_plan_describe(ls_plan *plan, ls_plan_info *out)
{
    *out = (ls_plan_info){
        .activation_bytes = (int64_t)(plan->activations.bytes + plan->gradients.bytes),
        .workspace_bytes = (int64_t)(plan->packed.bytes + plan->norms.bytes + plan->scratch_bytes),
        .flops = ls_lower_flops(&plan->lower),
        .fusions = plan->fusions,
        .products = plan->products,
        .layout = plan->layout_name};
}

ls_status ls_plan_bind(ls_plan *plan, const ls_plan_binding *binding)
{
    return ls_plan_tensors_bind(plan->network, binding, &plan->bound);
}

/* ---- running --------------------------------------------------------------------------------- */

ls_status ls_plan_params_changed(ls_plan *plan, ls_stream *stream)
{
    (void)stream;
    LS_ASSERT(plan->bound.state != NULL);
    use_threads(plan);
    for (int i = 0; plan->options.weights_of == NULL && i < plan->lower.op_count; i++) {
        ls_conv *conv = plan->work[i].conv;
        if (conv != NULL) {
            const ls_layer *layer = &plan->network->layer[plan->lower.op[i].layer];
            LS_TRY(ls_conv_pack(conv, &plan->bound.param[layer->weight]));
        }
    }
    return LS_OK;
}

static ls_status forward_op(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    switch (op->kind) {
    case LS_OP_CONV:
        return ls_conv_forward(ls_plan_work(plan, op)->conv, ls_plan_at(plan, op->in),
                               ls_plan_at(plan, op->out));
    case LS_OP_LINEAR:
        return ls_loss_linear_forward(plan, op);
    case LS_OP_NORM:
        return ls_norm_forward(plan, stream, op);
    case LS_OP_LOSS:
        return ls_loss_forward(plan, op);
    default:
        return ls_simple_forward(plan, stream, op);
    }
}

ls_status ls_plan_forward(ls_plan *plan, ls_stream *stream, const float *input,
                          const int64_t *target)
{
    LS_ASSERT(plan->bound.state != NULL);
    use_threads(plan);
    if (target != NULL) {
        memcpy(plan->target, target, (size_t)plan->options.batch * sizeof *target);
    }
    if (plan->network->layer[0].kind == LS_LAYER_INPUT) {
        int image = plan->lower.slot_of_layer[0];
        LS_TRY(ls_observe_image(plan, stream, input, false));
        const ls_slot *slot = &plan->lower.slot[image];
        if (plan->layout[image].last) {
            ls_parallel_interleave(plan->backend, plan->options.activation, input,
                                   ls_plan_at(plan, image), plan->options.batch, slot->channels,
                                   ls_plan_pixels(slot));
        } else {
            ls_parallel_narrow(plan->backend, plan->options.activation, input,
                               ls_plan_at(plan, image), slot->count);
        }
        LS_TRY(ls_observe_image(plan, stream, input, true));
    }
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (op->kind != LS_OP_ENTRY && op->kind != LS_OP_EXIT) {
            LS_TRY(ls_observe_run(plan, stream, ls_lower_observed_kind(op), op, forward_op));
        }
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

static ls_status backward_weights(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    (void)stream;
    const ls_layer *layer = &plan->network->layer[op->layer];
    return ls_conv_backward_weights(ls_plan_work(plan, op)->conv, ls_plan_at(plan, op->in),
                                    ls_plan_grad(plan, op->g), &plan->bound.grad[layer->weight]);
}

static ls_status backward_data(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    (void)stream;
    return ls_conv_backward_data(ls_plan_work(plan, op)->conv, ls_plan_grad(plan, op->dx),
                                 ls_plan_grad(plan, op->g));
}

/* A linear layer reports both parameters at the end, in the order of ls_grad_ready. */
static ls_status backward_product(ls_plan *plan, ls_stream *stream, const ls_op *op,
                                  ls_grad_ready *ready, void *context)
{
    const ls_layer *layer = &plan->network->layer[op->layer];
    LS_TRY(ls_simple_join(plan, stream, op));
    if (op->kind == LS_OP_LINEAR) {
        LS_TRY(ls_observe_run(plan, stream, LS_OBSERVED_BIAS, op, ls_loss_bias_grad));
        plan->ready.done[layer->bias] = true;
    }
    LS_TRY(ls_observe_run(plan, stream, LS_OBSERVED_CONV_WEIGHTS, op, backward_weights));
    plan->ready.done[layer->weight] = true;
    if (op->kind == LS_OP_CONV) {
        LS_TRY(ls_plan_ready_report(&plan->ready, ready, context));
    }
    return op->dx == LS_NO_BUFFER
               ? LS_OK
               : ls_observe_run(plan, stream, LS_OBSERVED_CONV_DATA, op, backward_data);
}

ls_status ls_plan_backward(ls_plan *plan, ls_stream *stream, float factor, ls_grad_ready *ready,
                           void *context)
{
    LS_ASSERT(plan->forward_done && !plan->evaluates);
    use_threads(plan);
    plan->loss_factor = factor;
    ls_plan_ready_begin(&plan->ready);
    for (int i = plan->lower.op_count - 1; i >= 0; i--) {
        const ls_op *op = &plan->lower.op[i];
        switch (op->kind) {
        case LS_OP_CONV:
        case LS_OP_LINEAR:
            LS_TRY(backward_product(plan, stream, op, ready, context));
            break;
        case LS_OP_NORM:
            LS_TRY(ls_observe_run(plan, stream, LS_OBSERVED_NORM_BACK, op, ls_norm_backward));
            break;
        case LS_OP_LOSS:
            LS_TRY(ls_observe_run(plan, stream, LS_OBSERVED_LOSS_BACK, op, ls_loss_backward));
            break;
        case LS_OP_ENTRY:
            LS_TRY(ls_simple_join(plan, stream, op));
            break;
        case LS_OP_EXIT:
            break;
        default:
            LS_TRY(ls_simple_backward(plan, stream, op));
            break;
        }
        LS_TRY(ls_plan_ready_report(&plan->ready, ready, context));
    }
    LS_ASSERT(plan->ready.reported == plan->ready.count);
    return LS_OK;
}

void ls_plan_edges(ls_plan *plan, ls_plan_edge *entry, ls_plan_edge *exit)
{
    const ls_op *first = &plan->lower.op[0], *last = &plan->lower.op[plan->lower.op_count - 1];
    *entry = *exit = (ls_plan_edge){0};
    if (first->kind == LS_OP_ENTRY) {
        *entry = (ls_plan_edge){ls_plan_at(plan, first->out), ls_plan_grad(plan, first->g),
                                (int64_t)plan->lower.slot[first->out].bytes};
    }
    if (last->kind == LS_OP_EXIT) {
        *exit = (ls_plan_edge){ls_plan_at(plan, last->in), ls_plan_grad(plan, last->dx),
                               (int64_t)plan->lower.slot[last->in].bytes};
    }
}
