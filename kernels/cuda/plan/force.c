/* Forced branches: ReLUs and max pools whose decisions were given by plan_force. */
#include "kernels/core/log.h"
#include "plan_internal.h"

static ls_status force_relu(ls_plan *plan, ls_stream *stream, const ls_op *op, const void *host,
                            int64_t bytes)
{
    const ls_slot *out = &plan->lower.slot[op->out];
    void *bits = NULL;
    LS_TRY(ls_export_room(plan, bytes, &bits));
    LS_CUDA(cudaMemcpyAsync(bits, host, (size_t)bytes, cudaMemcpyHostToDevice, stream->native));
    LS_TRY(ls_export_mask(stream->native, ls_plan_work(plan, op)->mask, bits, plan->options.batch,
                          out->channels, out->height, out->width, true));
    /* the caller may reuse its memory at return */
    return ls_cuda_wait_stream(stream->backend, stream->native);
}

static ls_status force_pool(ls_plan *plan, ls_stream *stream, const ls_op *op, const void *host,
                            int64_t bytes)
{
    ls_pool_shape shape = ls_simple_pool_shape(plan, op);
    void *room = NULL;
    int32_t outside = 0;
    LS_TRY(ls_export_room(plan, bytes + (int64_t)sizeof outside, &room));
    int32_t *index = room, *flag = index + bytes / (int64_t)sizeof *index;
    LS_CUDA(cudaMemcpyAsync(index, host, (size_t)bytes, cudaMemcpyHostToDevice, stream->native));
    LS_CUDA(cudaMemsetAsync(flag, 0, sizeof *flag, stream->native));
    LS_TRY(ls_export_taps(stream->native, &shape, ls_plan_work(plan, op)->tap, index, true, flag));
    LS_TRY(ls_cuda_wait_stream(stream->backend,
                               stream->native)); /* calls the wait hook; the copy does not */
    LS_CUDA(
        cudaMemcpyAsync(&outside, flag, sizeof outside, cudaMemcpyDeviceToHost, stream->native));
    LS_TRY(ls_cuda_wait_stream(stream->backend, stream->native));
    if (outside != 0) {
        return ls_log_fail(LS_ERR_USAGE, "%s: a forced index is outside its window",
                           plan->network->layer[op->layer].name);
    }
    return LS_OK;
}

ls_status ls_force_branch(ls_plan *plan, ls_stream *stream, int branch, const void *host,
                          int64_t bytes)
{
    const ls_op *op = NULL;
    LS_TRY(ls_plan_check_force(&plan->lower, branch, host, bytes, &op));
    ls_work *work = ls_plan_work(plan, op);
    work->forced = false;
    if (host == NULL) {
        return LS_OK;
    }
    if (op->kind == LS_OP_RELU) {
        LS_TRY(force_relu(plan, stream, op, host, bytes));
    } else {
        LS_TRY(force_pool(plan, stream, op, host, bytes));
    }
    work->forced = true;
    return LS_OK;
}
