/* Gradients of weights on a second stream. */
#include <stdlib.h>
#include <string.h>

#include "plan_parts.h"

bool ls_wgrad_asked(void)
{
    const char *asked = getenv("LS_WGRAD_STREAM");
    return asked != NULL && strcmp(asked, "1") == 0;
}

ls_status ls_wgrad_create(ls_plan *plan)
{
    ls_wgrad *w = &plan->wgrad;
    if (!w->on) {
        return LS_OK;
    }
    w->stream.backend = plan->backend;
    LS_CUDA(cudaStreamCreateWithFlags(&w->stream.native, cudaStreamNonBlocking));
    LS_CUDA(cudaEventCreateWithFlags(&w->forked, cudaEventDisableTiming));
    LS_CUDA(cudaEventCreateWithFlags(&w->joined, cudaEventDisableTiming));
    return LS_OK;
}

void ls_wgrad_destroy(ls_plan *plan)
{
    ls_wgrad *w = &plan->wgrad;
    if (w->joined != NULL) {
        cudaEventDestroy(w->joined);
    }
    if (w->forked != NULL) {
        cudaEventDestroy(w->forked);
    }
    if (w->stream.native != NULL) {
        cudaStreamDestroy(w->stream.native);
    }
    ls_cuda_give(w->workspace);
    *w = (ls_wgrad){0};
}

ls_status ls_wgrad_reserve_workspace(ls_plan *plan)
{
    ls_wgrad *w = &plan->wgrad;
    int64_t most = 0;
    for (int i = 0; w->on && i < plan->lower.op_count; i++) {
        const ls_conv *conv = plan->work[i].conv;
        int64_t bytes = conv != NULL ? ls_conv_weights_workspace_bytes(conv) : 0;
        most = bytes > most ? bytes : most;
    }
    if (most <= w->workspace_bytes) {
        return LS_OK;
    }
    ls_cuda_give(w->workspace);
    w->workspace = NULL;
    w->workspace_bytes = 0;
    LS_TRY(ls_cuda_take(most, "workspace of gradients of weights", &w->workspace));
    w->workspace_bytes = most;
    return LS_OK;
}

bool ls_wgrad_takes(const ls_plan *plan, const ls_op *op)
{
    return plan->wgrad.on && op->kind == LS_OP_CONV && plan->observer == NULL &&
           plan->on_pass == NULL;
}

ls_status ls_wgrad_enqueue(ls_plan *plan, ls_stream *stream, const ls_op *op, void *workspace)
{
    const ls_work *work = ls_plan_work(plan, op);
    return ls_apply_norm(plan, op) != NULL
               ? ls_apply_weights(plan, stream, op, workspace)
               : ls_conv_backward_weights(work->conv, stream, work->dw, ls_plan_at(plan, op->in),
                                          ls_plan_grad(plan, op->g), workspace);
}

ls_status ls_wgrad_start(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    ls_wgrad *w = &plan->wgrad;
    LS_ASSERT(w->pending == NULL);
    LS_CUDA(cudaEventRecord(w->forked, stream->native));
    LS_CUDA(cudaStreamWaitEvent(w->stream.native, w->forked, 0));
    LS_TRY(ls_wgrad_enqueue(plan, &w->stream, op, w->workspace));
    LS_CUDA(cudaEventRecord(w->joined, w->stream.native));
    w->pending = op;
    return LS_OK;
}

ls_status ls_wgrad_join(ls_plan *plan, ls_stream *stream, const ls_op **done)
{
    ls_wgrad *w = &plan->wgrad;
    *done = w->pending;
    if (w->pending != NULL) {
        LS_CUDA(cudaStreamWaitEvent(stream->native, w->joined, 0));
        w->pending = NULL;
    }
    return LS_OK;
}
