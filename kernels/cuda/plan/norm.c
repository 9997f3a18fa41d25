/* Batch norms: the order of their kernels, and the collective between them if ranks share
 * statistics. */
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "plan_internal.h"

static ls_norm_side side_of(const ls_plan *plan, const ls_op *op, int k)
{
    const ls_layer *layer = &plan->network->layer[op->norm[k]];
    return (ls_norm_side){.kept = ls_plan_work(plan, op)->kept[k],
                          .weight = plan->bound.param[layer->weight],
                          .bias = plan->bound.param[layer->bias],
                          .running_mean = plan->bound.buffer[layer->running_mean],
                          .running_var = plan->bound.buffer[layer->running_var],
                          .weight_grad = plan->bound.grad[layer->weight],
                          .bias_grad = plan->bound.grad[layer->bias],
                          .epsilon = layer->epsilon,
                          .momentum = layer->momentum};
}

/* Statistics from the product that writes the side's operand, if it also sums. */
static void use_sums(const ls_plan *plan, ls_norm_call *call, int k, int slot)
{
    const ls_op *writer = ls_lower_writer(&plan->lower, slot);
    const ls_work *work = writer == NULL ? NULL : ls_plan_work(plan, writer);
    if (work != NULL && work->conv != NULL && ls_conv_fuses(work->conv, LS_CONV_FORWARD_SUMS)) {
        call->sum[k] = work->sums;
        call->squares[k] = work->sums + ls_conv_sums_step(call->channels);
    }
}

/* The masked gradient and its sums from the convolution that reads the norm's output, if it makes
 * them. */
static void use_gate(const ls_plan *plan, const ls_op *op, ls_norm_call *call)
{
    const ls_op *conv = ls_gate_conv(plan, op);
    if (conv != NULL) {
        int64_t step = ls_conv_sums_step(call->channels);
        for (int k = 0; k < (op->dual ? 2 : 1); k++) {
            call->gated[k] = ls_gate_sums(plan, conv, k) + LS_CONV_GATE_SUM * step;
            call->gated_x[k] = ls_gate_sums(plan, conv, k) + LS_CONV_GATE_SUM_X * step;
        }
        call->g = ls_plan_grad(plan, op->dy[0]);
    }
}

/* The norm applies itself, unless a convolution does. */
static void use_apply(const ls_plan *plan, const ls_op *op, ls_norm_call *call)
{
    if (ls_apply_conv(plan, op) == NULL) {
        call->side[0].kept.half_scale = call->side[0].kept.half_bias = NULL;
    }
}

ls_status ls_norm_early(const ls_plan *plan, bool *early)
{
    const char *asked = getenv("LS_PDL");
    const ls_backend *backend = plan->backend;
    bool waits = false;
    *early = false;
    if (asked == NULL || strcmp(asked, "1") != 0) {
        return LS_OK;
    }
    if (backend->major >= 9) {
        LS_TRY(ls_norm_waits(&waits));
    }
    if (!waits) {
        ls_log_warn("LS_PDL=1 has no effect: %s has compute capability %d.%d, the kernels were "
                    "compiled for %s; both must be 9.0 or newer",
                    backend->name, backend->major, backend->minor,
                    backend->major >= 9 ? "an older one" : "it");
    }
    *early = waits;
    return LS_OK;
}

void ls_norm_prepare(ls_plan *plan, const ls_op *op)
{
    ls_work *work = ls_plan_work(plan, op);
    const ls_slot *in = &plan->lower.slot[op->in];
    work->call = (ls_norm_call){.type = plan->options.activation,
                                .rows = in->count / in->channels,
                                .channels = in->channels,
                                .processors = plan->backend->processors,
                                .relu = op->relu,
                                .dual = op->dual,
                                .side[0] = side_of(plan, op, 0),
                                .x = ls_plan_at(plan, op->in),
                                .y = ls_plan_at(plan, op->out),
                                .mask = work->mask,
                                .dy = ls_plan_grad(plan, op->dy[0]),
                                .dy2 = ls_plan_grad(plan, op->dy[1]),
                                .g = op->store_g ? ls_plan_grad(plan, op->g) : NULL,
                                .dx = ls_plan_grad(plan, op->dx),
                                .dx2 = ls_plan_grad(plan, op->dx2),
                                .partial = plan->partial,
                                .mine = plan->mine,
                                .all = plan->all,
                                .group = plan->has_sync ? plan->sync.group_size : 1,
                                .early = plan->early};
    if (op->residual >= 0) {
        work->call.residual = ls_plan_at(plan, op->residual);
    }
    use_sums(plan, &work->call, 0, op->in);
    use_gate(plan, op, &work->call);
    use_apply(plan, op, &work->call);
    if (op->dual) {
        work->call.side[1] = side_of(plan, op, 1);
        use_sums(plan, &work->call, 1, op->residual);
    }
}

/* Gathers `mine` of every rank of the group into `all`, in rank order; both sides of a dual norm in
 * one message. */
static ls_status gather(ls_plan *plan, ls_stream *stream, const ls_norm_call *call)
{
    if (call->group == 1) {
        return LS_OK;
    }
    return plan->sync.all_gather(plan->sync.context, stream, call->mine, call->all,
                                 ls_norm_gathered(call));
}

ls_status ls_norm_forward(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    const ls_norm_call *call = &ls_plan_work(plan, op)->call;
    bool applied = call->side[0].kept.half_scale != NULL; /* by a convolution */
    if (plan->evaluates) {
        ls_norm_call whole = *call;
        whole.side[0].kept.half_scale = whole.side[0].kept.half_bias = NULL;
        LS_TRY(ls_norm_use_running(stream->native, &whole));
        return ls_norm_apply(stream->native, &whole);
    }
    LS_TRY(ls_norm_statistics(stream->native, call));
    LS_TRY(gather(plan, stream, call));
    LS_TRY(ls_norm_finish(stream->native, call));
    return applied ? LS_OK : ls_norm_apply(stream->native, call);
}

ls_status ls_norm_backward(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    const ls_norm_call *call = &ls_plan_work(plan, op)->call;
    LS_TRY(ls_norm_sums(stream->native, call));
    for (int k = 0; k < (op->dual ? 2 : 1); k++) {
        const ls_layer *layer = &plan->network->layer[op->norm[k]];
        plan->ready.done[layer->weight] = true;
        plan->ready.done[layer->bias] = true;
    }
    /* the sums of other ranks serve the gradients of the inputs only */
    if (call->dx == NULL && call->dx2 == NULL) {
        return LS_OK;
    }
    LS_TRY(gather(plan, stream, call));
    LS_TRY(ls_norm_back_finish(stream->native, call));
    return ls_norm_back_apply(stream->native, call);
}
