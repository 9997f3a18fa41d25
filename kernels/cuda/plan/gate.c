/* Gradients of convolutions' inputs that pass the ReLU before them and sum for its batch norm, in
 * place of the norm's sweep for the sums: which convolutions, and their operands. */
#include <stdlib.h>

#include "plan_internal.h"

const ls_op *ls_gate_norm(const ls_plan *plan, const ls_op *conv)
{
    const ls_op *norm = ls_lower_writer(&plan->lower, conv->in);
    bool inner = norm != NULL && norm->kind == LS_OP_NORM && norm->relu && norm->residual < 0 &&
                 ls_lower_readers(&plan->lower, norm->out) == 1;
    return inner ? norm : NULL;
}

/* The batch norms at the end of a residual block whose output the convolution reads, if it adds its
 * gradient to the only other contribution; else NULL. */
static const ls_op *join_of(const ls_plan *plan, const ls_op *conv)
{
    const ls_op *norm = ls_lower_writer(&plan->lower, conv->in);
    bool join = norm != NULL && norm->kind == LS_OP_NORM && norm->relu && norm->residual >= 0 &&
                conv->onto && norm->dy[0] == conv->dx && norm->dy[1] == LS_NO_BUFFER;
    return join ? norm : NULL;
}

ls_conv_pass ls_gate_pass(const ls_plan *plan, const ls_op *conv)
{
    bool may = plan->options.fuse && plan->options.activation == LS_F16 &&
               !plan->backend->deterministic && conv->kind == LS_OP_CONV &&
               conv->dx != LS_NO_BUFFER;
    const ls_op *join = may ? join_of(plan, conv) : NULL;
    return join != NULL ? join->dual ? LS_CONV_DATA_JOINED_TWICE : LS_CONV_DATA_JOINED
           : may && ls_gate_norm(plan, conv) != NULL ? LS_CONV_DATA_GATED
                                                     : LS_CONV_BACKWARD_DATA;
}

const ls_op *ls_gate_used(const ls_plan *plan, const ls_op *conv)
{
    ls_conv_pass pass = ls_gate_pass(plan, conv);
    bool used =
        pass != LS_CONV_BACKWARD_DATA && ls_conv_fuses(ls_plan_work(plan, conv)->conv, pass);
    return used ? ls_lower_writer(&plan->lower, conv->in) : NULL;
}

float *ls_gate_sums(const ls_plan *plan, const ls_op *conv, int side)
{
    int channels = plan->lower.slot[conv->in].channels;
    return ls_plan_work(plan, conv)->gate_sums +
           side * LS_CONV_GATE_LISTS * ls_conv_sums_step(channels);
}

const ls_op *ls_gate_conv(const ls_plan *plan, const ls_op *norm)
{
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (op->in == norm->out && op->kind == LS_OP_CONV && ls_gate_used(plan, op) == norm) {
            return op;
        }
    }
    return NULL;
}

ls_status ls_gate_create(ls_plan *plan)
{
    int64_t count = 0;
    for (int i = 0; i < plan->lower.op_count; i++) {
        if (ls_gate_pass(plan, &plan->lower.op[i]) != LS_CONV_BACKWARD_DATA) {
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
static ls_conv_gate side_of(const ls_plan *plan, const ls_op *norm, int side, float *sums)
{
    const ls_norm_kept *kept = &ls_plan_work(plan, norm)->kept[side];
    return (ls_conv_gate){.x = ls_plan_at(plan, side == 0 ? norm->in : norm->residual),
                          .mean = kept->mean,
                          .inv_std = plan->ones,
                          .scale = kept->scale,
                          .bias = kept->bias,
                          .sums = sums};
}

ls_status ls_gate_backward(ls_plan *plan, ls_stream *stream, const ls_op *conv)
{
    const ls_work *work = ls_plan_work(plan, conv);
    const ls_op *norm = ls_gate_used(plan, conv);
    void *dx = ls_plan_grad(plan, conv->dx);
    const void *dy = ls_plan_grad(plan, conv->g);
    const ls_conv_gate gate = side_of(plan, norm, 0, work->gate_sums);
    if (norm->residual < 0) {
        return ls_conv_backward_gated(work->conv, stream, dx, work->operand, dy, &gate,
                                      plan->workspace);
    }
    ls_conv_join join = {.side[0] = gate, .other = dx, .twice = norm->dual};
    if (norm->dual) {
        join.side[1] = side_of(plan, norm, 1, ls_gate_sums(plan, conv, 1));
    } else {
        join.residual = ls_plan_at(plan, norm->residual);
    }
    return ls_conv_backward_joined(work->conv, stream, dx, work->operand, dy, &join,
                                   plan->workspace);
}
