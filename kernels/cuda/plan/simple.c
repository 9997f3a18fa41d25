/* Operations without parameters, and sums of gradients. */
#include "plan_internal.h"

ls_pool_shape ls_simple_pool_shape(const ls_plan *plan, const ls_op *op)
{
    const ls_slot *in = &plan->lower.slot[op->in], *out = &plan->lower.slot[op->out];
    const ls_layer *layer = &plan->network->layer[op->layer];
    return (ls_pool_shape){.images = plan->options.batch,
                           .channels = in->channels,
                           .height = in->height,
                           .width = in->width,
                           .out_height = out->height,
                           .out_width = out->width,
                           .kernel = layer->kernel,
                           .stride = layer->stride,
                           .pad = layer->pad};
}

ls_status ls_simple_forward(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    cudaStream_t s = stream->native;
    ls_dtype type = plan->options.activation;
    const ls_slot *in = &plan->lower.slot[op->in], *out = &plan->lower.slot[op->out];
    const ls_layer *layer = &plan->network->layer[op->layer];
    const ls_work *work = ls_plan_work(plan, op);
    const void *x = ls_plan_at(plan, op->in);
    void *y = ls_plan_at(plan, op->out);
    ls_pool_shape pool;
    switch (op->kind) {
    case LS_OP_RELU:
        return ls_simple_add(s, type, x, NULL, y, work->mask, true, work->forced, out->count);
    case LS_OP_ADD:
        return ls_simple_add(s, type, x, ls_plan_at(plan, op->residual), y, work->mask, op->relu,
                             false, out->count);
    case LS_OP_POOL:
        pool = ls_simple_pool_shape(plan, op);
        return ls_pool_max(s, type, &pool, x, y, work->tap, work->forced);
    case LS_OP_SHORTCUT:
        return ls_simple_shortcut(s, type, x, y, plan->options.batch, in->height, in->width,
                                  in->channels, layer->stride, out->channels);
    case LS_OP_AVERAGE:
        return ls_simple_average(s, type, x, y, plan->options.batch, in->height * in->width,
                                 in->channels);
    default:
        LS_ASSERT(!"an operation with parameters");
    }
    return LS_OK;
}

static ls_status enqueue_gate(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    return ls_simple_gate(stream->native, plan->options.activation, ls_plan_grad(plan, op->dy[0]),
                          ls_plan_grad(plan, op->dy[1]), ls_plan_work(plan, op)->mask,
                          ls_plan_grad(plan, op->g), plan->lower.slot[op->out].count);
}

ls_status ls_simple_join(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    return op->store_g ? ls_observe_run(plan, stream, LS_OBSERVED_GATE, op, enqueue_gate) : LS_OK;
}

static ls_status enqueue_back(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    cudaStream_t s = stream->native;
    ls_dtype type = plan->options.activation;
    const ls_slot *in = &plan->lower.slot[op->in], *out = &plan->lower.slot[op->out];
    const void *g = ls_plan_grad(plan, op->g);
    void *dx = ls_plan_grad(plan, op->dx);
    ls_pool_shape pool;
    switch (op->kind) {
    case LS_OP_POOL:
        pool = ls_simple_pool_shape(plan, op);
        return ls_pool_max_back(s, type, &pool, g, ls_plan_work(plan, op)->tap, dx);
    case LS_OP_SHORTCUT:
        return ls_simple_shortcut_back(s, type, g, dx, plan->options.batch, in->height, in->width,
                                       in->channels, plan->network->layer[op->layer].stride,
                                       out->channels);
    case LS_OP_AVERAGE:
        return ls_simple_average_back(s, type, g, dx, plan->options.batch, in->height * in->width,
                                      in->channels);
    default:
        LS_ASSERT(!"an operation with parameters");
    }
    return LS_OK;
}

ls_status ls_simple_backward(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    LS_TRY(ls_simple_join(plan, stream, op));
    if (op->kind == LS_OP_RELU || op->kind == LS_OP_ADD || op->dx == LS_NO_BUFFER) {
        return LS_OK; /* the readers of g apply it */
    }
    ls_observed_kind kind = op->kind == LS_OP_POOL       ? LS_OBSERVED_POOL_BACK
                            : op->kind == LS_OP_SHORTCUT ? LS_OBSERVED_SHORTCUT_BACK
                                                         : LS_OBSERVED_AVERAGE_BACK;
    return ls_observe_run(plan, stream, kind, op, enqueue_back);
}
