/* The plan's operations as its observer gets them (kernels.h, ls_observed): operands, results. */
#include "kernels/entries.h"
#include "plan_internal.h"

void ls_observe_set(ls_plan *plan, ls_observe_fn *observer, void *context)
{
    plan->observer = observer;
    plan->observer_context = context;
}

static ls_observed_norm norm_of(const ls_plan *plan, const ls_op *op, int k)
{
    const ls_norm_side *side = &ls_plan_work(plan, op)->call.side[k];
    return (ls_observed_norm){.layer = op->norm[k],
                              .weight = side->weight,
                              .bias = side->bias,
                              .running_mean = side->running_mean,
                              .running_var = side->running_var,
                              .weight_grad = side->weight_grad,
                              .bias_grad = side->bias_grad,
                              .mean = side->kept.mean,
                              .inv_std = side->kept.inv_std,
                              .half_scale = side->kept.half_scale,
                              .half_bias = side->kept.half_bias,
                              .epsilon = side->epsilon,
                              .momentum = side->momentum};
}

static void describe_norm(const ls_plan *plan, const ls_op *op, ls_observed *to)
{
    const ls_norm_call *call = &ls_plan_work(plan, op)->call;
    to->norm[0] = norm_of(plan, op, 0);
    if (op->dual) {
        to->norm[1] = norm_of(plan, op, 1);
    }
    if (to->kind == LS_OBSERVED_NORM && call->side[0].kept.half_scale != NULL) {
        to->y = NULL;
        to->mask = NULL;
    }
    to->norm_group = call->group;
    to->dy = call->dy;
    to->dy2 = call->dy2;
    to->g = call->g;
    to->dx = call->dx;
    to->dx2 = call->dx2;
    if (to->kind == LS_OBSERVED_NORM_BACK && call->gated[0] != NULL) { /* dy is masked already */
        to->relu = false;
        to->mask = NULL;
        to->g = NULL;
    }
}

static void describe_product(const ls_plan *plan, const ls_op *op, ls_observed *to)
{
    const ls_work *work = ls_plan_work(plan, op);
    const ls_layer *layer = &plan->network->layer[op->layer];
    to->w = (void *)work->operand;
    to->bias = work->bias;
    to->dw = work->dw;
    to->weight_grad = plan->bound.grad[layer->weight];
    if (layer->bias >= 0) {
        to->bias_grad = plan->bound.grad[layer->bias];
    }
    const ls_op *norm = ls_apply_norm(plan, op);
    if (norm != NULL && (to->kind == LS_OBSERVED_CONV || to->kind == LS_OBSERVED_CONV_WEIGHTS)) {
        to->x = ls_plan_at(plan, norm->in);
        to->norm[0] = norm_of(plan, norm, 0);
    }
}

static ls_observed describe(const ls_plan *plan, ls_observed_kind kind, const ls_op *op)
{
    const ls_work *work = ls_plan_work(plan, op);
    ls_observed to = ls_lower_observed(&plan->lower, kind, op);
    to.in_channels = to.in_block = ls_work_stored_channels(plan, op->in);
    to.out_block = to.out_channels;
    if (ls_work_reads_blocks(plan, op)) {
        to.stem_blocks = true;
        to.in_height = ls_input_blocks(to.in_height);
        to.in_width = ls_input_blocks(to.in_width);
        to.kernel = 4;
        to.stride = 1;
        to.pad = 0;
    }
    to.given = work->forced;
    to.x = ls_plan_at(plan, op->in);
    to.mask = work->mask;
    to.tap = work->tap;
    to.target = plan->target;
    to.state = plan->bound.state;
    if (op->out >= 0) {
        to.y = ls_plan_at(plan, op->out);
    }
    if (op->residual >= 0) {
        to.residual = ls_plan_at(plan, op->residual);
    }
    if (ls_plan_is_product(op)) {
        describe_product(plan, op, &to);
    }
    return to;
}

/* Gradients, if they are stored: for most operations `g` is the input and dx the result. */
static void describe_gradients(const ls_plan *plan, const ls_op *op, ls_observed *to)
{
    to->dy = ls_plan_grad(plan, op->g);
    to->dx = ls_plan_grad(plan, op->dx);
    if (to->kind == LS_OBSERVED_CONV_DATA && op->onto) {
        to->dy2 = to->dx;
    }
    const ls_op *norm =
        to->kind == LS_OBSERVED_CONV_DATA && op->kind == LS_OP_CONV ? ls_gate_used(plan, op) : NULL;
    if (norm != NULL) {
        to->normed = ls_plan_at(plan, norm->in);
        to->norm[0] = norm_of(plan, norm, 0);
        to->dual = norm->dual;
        if (norm->residual >= 0) {
            to->residual = ls_plan_at(plan, norm->residual);
        }
        if (norm->dual) {
            to->norm[1] = norm_of(plan, norm, 1);
        }
    }
    if (to->kind == LS_OBSERVED_GATE) {
        to->dy = ls_plan_grad(plan, op->dy[0]);
        to->dy2 = ls_plan_grad(plan, op->dy[1]);
        to->g = ls_plan_grad(plan, op->g);
    }
}

static ls_status observe_op(const ls_plan *plan, ls_stream *stream, ls_observed_kind kind,
                            const ls_op *op, bool after)
{
    if (plan->observer == NULL) {
        return LS_OK;
    }
    ls_observed what = describe(plan, kind, op);
    if (op->kind == LS_OP_NORM) {
        describe_norm(plan, op, &what);
    } else {
        describe_gradients(plan, op, &what);
    }
    return plan->observer(plan->observer_context, stream, &what, after);
}

ls_status ls_observe_run(ls_plan *plan, ls_stream *stream, ls_observed_kind kind, const ls_op *op,
                         ls_observe_enqueue_fn *enqueue)
{
    LS_TRY(observe_op(plan, stream, kind, op, false));
    LS_TRY(enqueue(plan, stream, op));
    return observe_op(plan, stream, kind, op, true);
}

ls_status ls_observe_weights(ls_plan *plan, ls_stream *stream, bool after)
{
    for (int i = 0; plan->observer != NULL && i < plan->packing.count; i++) {
        const ls_weight *weight = &plan->packing.host[i];
        ls_observed what = {.kind = LS_OBSERVED_WEIGHT,
                            .layer = -1,
                            .type = plan->options.activation,
                            .in_channels = weight->stored_in,
                            .plain_channels = weight->in,
                            .out_channels = weight->out,
                            .kernel = weight->stem_blocks ? 4 : weight->kernel,
                            .stem_blocks = weight->stem_blocks,
                            .in_block = weight->stored_in,
                            .out_block = weight->out,
                            .w = weight->packed,
                            .weight = weight->plain};
        LS_TRY(plan->observer(plan->observer_context, stream, &what, after));
    }
    return LS_OK;
}

ls_status ls_observe_gradients(ls_plan *plan, ls_stream *stream, bool after)
{
    for (int i = plan->lower.op_count - 1, k = 0; plan->observer != NULL && i >= 0; i--) {
        const ls_op *op = &plan->lower.op[i];
        if (!ls_plan_is_product(op) || !ls_bind_packs_gradient(plan, op)) {
            continue;
        }
        if (k >= plan->unpacked && k < plan->computed) {
            LS_TRY(observe_op(plan, stream, LS_OBSERVED_UNPACK, op, after));
        }
        k++;
    }
    return LS_OK;
}

ls_status ls_observe_image(ls_plan *plan, ls_stream *stream, const void *images, bool after)
{
    if (plan->observer == NULL) {
        return LS_OK;
    }
    int slot = plan->lower.slot_of_layer[0];
    const ls_slot *image = &plan->lower.slot[slot];
    bool blocks = plan->stem_blocks;
    ls_observed what = {.kind = LS_OBSERVED_IMAGE,
                        .layer = 0,
                        .type = plan->options.activation,
                        .images = plan->options.batch,
                        .in_channels = ls_work_stored_channels(plan, slot),
                        .plain_channels = image->channels,
                        .in_height = blocks ? ls_input_blocks(image->height) : image->height,
                        .in_width = blocks ? ls_input_blocks(image->width) : image->width,
                        .stem_blocks = blocks,
                        .in_block = ls_work_stored_channels(plan, slot),
                        .x = images,
                        .x_format = plan->format,
                        .y = ls_plan_at(plan, slot)};
    return plan->observer(plan->observer_context, stream, &what, after);
}
