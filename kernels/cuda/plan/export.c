/* Results of the last forward in logical NCHW order on the host. */
#include "kernels/core/log.h"
#include "plan_internal.h"

ls_status ls_export_room(ls_plan *plan, int64_t bytes, void **out)
{
    if (bytes > plan->exported_bytes) {
        ls_cuda_give(plan->exported);
        plan->exported = NULL;
        plan->exported_bytes = 0;
        LS_TRY(ls_cuda_take(bytes, "an export", &plan->exported));
        plan->exported_bytes = bytes;
    }
    *out = plan->exported;
    return LS_OK;
}

/* A copy to pageable memory waits inside the driver, without the wait hook, so the stream is waited
 * for first. */
static ls_status bring(ls_stream *stream, void *host, const void *from, int64_t bytes)
{
    LS_TRY(ls_cuda_wait_stream(stream->backend, stream->native));
    LS_CUDA(cudaMemcpyAsync(host, from, (size_t)bytes, cudaMemcpyDeviceToHost, stream->native));
    return ls_cuda_wait_stream(stream->backend, stream->native);
}

static ls_status export_relu(ls_plan *plan, ls_stream *stream, int at, void *host, int64_t bytes)
{
    const ls_slot *slot = &plan->lower.slot[at];
    uint32_t *mask = NULL;
    LS_TRY(ls_apply_store(plan, stream, at));
    for (int i = 0; i < plan->lower.op_count; i++) {
        if (plan->lower.op[i].out == at) {
            mask = plan->work[i].mask;
        }
    }
    void *bits = NULL;
    LS_TRY(ls_export_room(plan, bytes, &bits));
    LS_TRY(ls_export_mask(stream->native, mask, bits, plan->options.batch, slot->channels,
                          slot->height, slot->width, false));
    return bring(stream, host, bits, bytes);
}

static ls_status export_pool(ls_plan *plan, ls_stream *stream, const ls_op *op, void *host,
                             int64_t bytes)
{
    ls_pool_shape shape = ls_simple_pool_shape(plan, op);
    void *index = NULL;
    LS_TRY(ls_export_room(plan, bytes, &index));
    LS_TRY(ls_export_taps(stream->native, &shape, ls_plan_work(plan, op)->tap, index, false, NULL));
    return bring(stream, host, index, bytes);
}

static ls_status export_activation(ls_plan *plan, ls_stream *stream, int at, void *host,
                                   int64_t bytes)
{
    const ls_slot *slot = &plan->lower.slot[at];
    void *values = NULL;
    LS_TRY(ls_apply_store(plan, stream, at));
    LS_TRY(ls_export_room(plan, bytes, &values));
    bool blocks = plan->stem_blocks && at == plan->lower.slot_of_layer[0];
    ls_dtype type = plan->options.activation;
    LS_TRY(blocks ? ls_export_blocks(stream->native, type, ls_plan_at(plan, at), values,
                                     plan->options.batch, slot->height, slot->width)
                  : ls_export_plain(stream->native, type, ls_plan_at(plan, at), values,
                                    plan->options.batch, slot->channels,
                                    ls_work_stored_channels(plan, at), slot->height, slot->width));
    return bring(stream, host, values, bytes);
}

ls_status ls_export_copy(ls_plan *plan, ls_stream *stream, ls_export what, int index, void *host,
                         int64_t bytes)
{
    int slot = 0;
    LS_ASSERT(plan->forward_done);
    LS_TRY(ls_plan_check_export(&plan->lower, what, index, bytes, &slot));
    switch (what) {
    case LS_EXPORT_LOGITS:
        return bring(stream, host, plan->logits, bytes);
    case LS_EXPORT_ACTIVATION:
        return export_activation(plan, stream, slot, host, bytes);
    case LS_EXPORT_RELU_BITS:
        return export_relu(plan, stream, slot, host, bytes);
    default:
        return export_pool(plan, stream, ls_lower_op_of_branch(&plan->lower, index), host, bytes);
    }
}

/* ---- forced branches --------------------------------------------------------------------------
 */

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

ls_status ls_export_force(ls_plan *plan, ls_stream *stream, int branch, const void *host,
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
