/* Gradients of convolutions' inputs that pass the ReLU before them and sum for its batch norm, in
 * place of the norm's sweep for the sums: which convolutions, and their operands. */
#include <stdlib.h>

#include "plan_parts.h"

const ls_op *ls_gate_norm(const ls_plan *plan, const ls_op *conv)
{
    const ls_op *norm = ls_lower_writer(&plan->lower, conv->in);
    bool inner = norm != NULL && norm->kind == LS_OP_NORM && norm->relu && norm->residual < 0 &&
                 ls_lower_readers(&plan->lower, norm->out) == 1;
    return inner ? norm : NULL;
}

bool ls_gate_allowed(const ls_plan *plan, const ls_op *conv)
{
    return plan->options.fuse && plan->options.activation == LS_F16 &&
           !plan->backend->deterministic && conv->kind == LS_OP_CONV && conv->dx != LS_NO_BUFFER &&
           ls_gate_norm(plan, conv) != NULL;
}

const ls_op *ls_gate_conv(const ls_plan *plan, const ls_op *norm)
{
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (op->in == norm->out && op->kind == LS_OP_CONV &&
            ls_conv_fuses(plan->work[i].conv, LS_CONV_DATA_GATED)) {
            return op;
        }
    }
    return NULL;
}

ls_status ls_gate_create(ls_plan *plan)
{
    int64_t count = 0;
    for (int i = 0; i < plan->lower.op_count; i++) {
        if (ls_gate_allowed(plan, &plan->lower.op[i])) {
            int64_t list = ls_conv_sums_step(plan->lower.slot[plan->lower.op[i].in].channels);
            count = list > count ? list : count;
        }
    }
    if (count == 0) {
        return LS_OK;
    }
    LS_TRY(ls_fuse_ones(plan->backend->copy, plan->ones, count));
    return ls_cuda_wait_stream(plan->backend, plan->backend->copy);
}

/* The norm's factor is scale = weight * inv_std, with which forward normalised, so the graph gets
 * it as the scale and 1 as inv_std: it decides by the values that forward used, and sums
 * g * (x - mean), as the norm's own sweep does. Where a convolution applies the norm, scale and
 * bias are those that it used. */
ls_status ls_gate_backward(ls_plan *plan, ls_stream *stream, const ls_op *conv)
{
    const ls_work *work = ls_plan_work(plan, conv);
    const ls_op *norm = ls_gate_norm(plan, conv);
    const ls_norm_kept *kept = &ls_plan_work(plan, norm)->kept[0];
    const ls_conv_gate gate = {.x = ls_plan_at(plan, norm->in),
                               .mean = kept->mean,
                               .inv_std = plan->ones,
                               .scale = kept->scale,
                               .bias = kept->bias,
                               .sums = work->gate_sums};
    return ls_conv_backward_gated(work->conv, stream, ls_plan_grad(plan, conv->dx), work->operand,
                                  ls_plan_grad(plan, conv->g), &gate, plan->workspace);
}
