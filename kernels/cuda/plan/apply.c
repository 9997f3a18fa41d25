/* Batch norms and ReLUs that the next convolution applies (LS_CONV_FORWARD_APPLIED): their output
 * is not stored. Which ones, the operands of those convolutions, and the output for an export. */
#include "kernels/core/text.h"
#include "plan_internal.h"

const ls_op *ls_apply_norm(const ls_plan *plan, const ls_op *conv)
{
    bool applies = conv->kind == LS_OP_CONV && ls_conv_applies(ls_plan_work(plan, conv)->conv) &&
                   !plan->evaluates;
    return applies ? ls_gate_norm(plan, conv) : NULL;
}

const ls_op *ls_apply_conv(const ls_plan *plan, const ls_op *norm)
{
    const ls_op *conv = ls_gate_conv(plan, norm);
    return conv != NULL && ls_conv_applies(ls_plan_work(plan, conv)->conv) ? conv : NULL;
}

static ls_conv_applied applied(const ls_plan *plan, const ls_op *norm)
{
    const ls_norm_kept *kept = &ls_plan_work(plan, norm)->kept[0];
    return (ls_conv_applied){ls_plan_at(plan, norm->in), kept->half_scale, kept->half_bias};
}

ls_status ls_apply_forward(ls_plan *plan, ls_stream *stream, const ls_op *conv)
{
    const ls_work *work = ls_plan_work(plan, conv);
    const ls_conv_applied in = applied(plan, ls_apply_norm(plan, conv));
    return ls_conv_forward_applied(work->conv, stream, &in, work->operand,
                                   ls_plan_at(plan, conv->out), work->sums, plan->workspace);
}

ls_status ls_apply_weights(ls_plan *plan, ls_stream *stream, const ls_op *conv, void *workspace)
{
    const ls_work *work = ls_plan_work(plan, conv);
    const ls_conv_applied in = applied(plan, ls_apply_norm(plan, conv));
    return ls_conv_backward_weights_applied(work->conv, stream, work->dw, &in,
                                            ls_plan_grad(plan, conv->g), workspace);
}

ls_status ls_apply_store(ls_plan *plan, ls_stream *stream, int slot)
{
    const ls_op *norm = ls_lower_writer(&plan->lower, slot);
    if (norm == NULL || norm->kind != LS_OP_NORM || plan->evaluates ||
        ls_apply_conv(plan, norm) == NULL) {
        return LS_OK;
    }
    const ls_norm_call *call = &ls_plan_work(plan, norm)->call;
    return ls_fuse_apply(stream->native, call->x, call->side[0].kept.half_scale,
                         call->side[0].kept.half_bias, call->y, call->mask, call->rows,
                         call->channels);
}

void ls_apply_describe(const ls_plan *plan, char *text, size_t bytes)
{
    text[0] = '\0';
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (op->kind == LS_OP_NORM && ls_apply_conv(plan, op) != NULL) {
            ls_text_add(text, bytes, "%s%s", text[0] == '\0' ? "" : ",",
                        plan->network->layer[op->norm[0]].name);
        }
    }
}
