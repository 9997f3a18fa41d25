/* The plan's operations as its observer gets them (kernels.h, ls_observed): operands, results. The
 * products' weights are in oneDNN's order, so the parameters stand for them. */
#include "kernels/entries.h"
#include "plan_parts.h"

void ls_observe_set(ls_plan *plan, ls_observe_fn *observer, void *context)
{
    plan->observer = observer;
    plan->observer_context = context;
}

static void *grad_of(const ls_plan *plan, int buffer)
{
    return buffer == LS_NO_BUFFER ? NULL : ls_plan_grad(plan, buffer);
}

static ls_observed_norm norm_of(const ls_plan *plan, const ls_norm *norm)
{
    const ls_layer *layer = &plan->network->layer[norm->layer];
    return (ls_observed_norm){.layer = norm->layer,
                              .weight = plan->bound.param[layer->weight],
                              .bias = plan->bound.param[layer->bias],
                              .running_mean = plan->bound.buffer[layer->running_mean],
                              .running_var = plan->bound.buffer[layer->running_var],
                              .weight_grad = plan->bound.grad[layer->weight],
                              .bias_grad = plan->bound.grad[layer->bias],
                              .inv_std = norm->inv_std,
                              .epsilon = layer->epsilon,
                              .momentum = layer->momentum};
}

static void describe_product(const ls_plan *plan, const ls_op *op, ls_observed *to)
{
    const ls_layer *layer = &plan->network->layer[op->layer];
    to->weight = plan->bound.param[layer->weight];
    to->weight_grad = plan->bound.grad[layer->weight];
    if (layer->bias >= 0) {
        to->plain_bias = plan->bound.param[layer->bias];
        to->bias_grad = plan->bound.grad[layer->bias];
    }
}

static void describe_gradients(const ls_plan *plan, const ls_op *op, ls_observed *to)
{
    bool joins = to->kind == LS_OBSERVED_GATE || to->kind == LS_OBSERVED_NORM_BACK;
    to->dy = grad_of(plan, joins ? op->dy[0] : op->g);
    to->dy2 = joins ? grad_of(plan, op->dy[1]) : NULL;
    to->g = joins && op->store_g ? grad_of(plan, op->g) : NULL;
    to->dx = grad_of(plan, op->dx);
    to->dx2 = grad_of(plan, op->dx2);
}

static ls_observed describe(const ls_plan *plan, ls_observed_kind kind, const ls_op *op)
{
    const ls_work *work = ls_plan_work(plan, op);
    ls_observed to = ls_lower_observed(&plan->lower, kind, op);
    to.in_block = plan->layout[op->in].block;
    to.given = work->forced;
    to.x = ls_plan_at(plan, op->in);
    to.tap = work->tap;
    to.target = plan->target;
    to.state = plan->bound.state;
    if (op->out >= 0) {
        to.out_block = plan->layout[op->out].block;
        to.y = ls_plan_at(plan, op->out);
    }
    if (op->residual >= 0) {
        to.residual = ls_plan_at(plan, op->residual);
    }
    if (work->conv != NULL) {
        describe_product(plan, op, &to);
    }
    if (op->kind == LS_OP_NORM) {
        to.norm_group = plan->has_sync ? plan->sync.group_size : 1;
        for (int k = 0; k < (op->dual ? 2 : 1); k++) {
            to.norm[k] = norm_of(plan, &work->norm[k]);
        }
    }
    describe_gradients(plan, op, &to);
    return to;
}

ls_status ls_observe_run(ls_plan *plan, ls_stream *stream, ls_observed_kind kind, const ls_op *op,
                         ls_observe_execute_fn *execute)
{
    if (plan->observer == NULL) {
        return execute(plan, stream, op);
    }
    ls_observed what = describe(plan, kind, op);
    LS_TRY(plan->observer(plan->observer_context, stream, &what, false));
    LS_TRY(execute(plan, stream, op));
    return plan->observer(plan->observer_context, stream, &what, true);
}

ls_status ls_observe_image(ls_plan *plan, ls_stream *stream, const float *images, bool after)
{
    if (plan->observer == NULL) {
        return LS_OK;
    }
    const ls_slot *image = &plan->lower.slot[plan->lower.slot_of_layer[0]];
    ls_observed what = {.kind = LS_OBSERVED_IMAGE,
                        .layer = 0,
                        .type = plan->options.activation,
                        .images = plan->options.batch,
                        .in_channels = image->channels,
                        .plain_channels = image->channels,
                        .in_height = image->height,
                        .in_width = image->width,
                        .in_block = plan->layout[plan->lower.slot_of_layer[0]].block,
                        .x = images,
                        .y = ls_plan_at(plan, plan->lower.slot_of_layer[0])};
    return plan->observer(plan->observer_context, stream, &what, after);
}
