/* What the last forward left, in logical NCHW on the host. */
#include "../core/log.h"
#include "plan.h"

static ls_status check_bytes(const char *what, int64_t wanted, int64_t given)
{
    if (wanted != given) {
        ls_log_error("export of %s takes %lld bytes, not %lld", what, (long long)wanted,
                     (long long)given);
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

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

/* The copy to memory that may be pageable waits itself, and nobody watches that; so it comes when
 * the stream has nothing else to do. */
static ls_status bring(ls_stream *stream, void *host, const void *from, int64_t bytes)
{
    LS_TRY(ls_cuda_wait_stream(stream->backend, stream->native));
    LS_CUDA(cudaMemcpyAsync(host, from, (size_t)bytes, cudaMemcpyDeviceToHost, stream->native));
    return ls_cuda_wait_stream(stream->backend, stream->native);
}

static ls_status export_relu(ls_plan *plan, ls_stream *stream, int layer, void *host, int64_t bytes)
{
    int at = plan->lower.slot_of_layer[layer];
    const ls_slot *slot = &plan->lower.slot[at];
    uint32_t *mask = NULL;
    for (int i = 0; i < plan->lower.op_count; i++) {
        if (plan->lower.op[i].out == at) {
            mask = plan->work[i].mask;
        }
    }
    LS_TRY(check_bytes("ReLU bits", (slot->count + 7) / 8, bytes));
    void *bits = NULL;
    LS_TRY(ls_export_room(plan, bytes, &bits));
    LS_TRY(ls_export_mask(stream->native, mask, bits, plan->options.batch, slot->channels,
                          slot->height, slot->width, false));
    return bring(stream, host, bits, bytes);
}

static ls_status export_pool(ls_plan *plan, ls_stream *stream, const ls_op *op, void *host,
                             int64_t bytes)
{
    int64_t count = plan->lower.slot[op->out].count;
    LS_TRY(check_bytes("pool indices", count * (int64_t)sizeof(int32_t), bytes));
    ls_pool_shape shape = ls_simple_pool_shape(plan, op);
    void *index = NULL;
    LS_TRY(ls_export_room(plan, bytes, &index));
    LS_TRY(ls_export_taps(stream->native, &shape, ls_plan_work(plan, op)->tap, index, false, NULL));
    return bring(stream, host, index, bytes);
}

static ls_status export_activation(ls_plan *plan, ls_stream *stream, int layer, void *host,
                                   int64_t bytes)
{
    if (layer < 0 || layer >= plan->network->layer_count || plan->lower.slot_of_layer[layer] < 0) {
        ls_log_error("layer %d is not stored: it is fused into the pass of the layer after it",
                     layer);
        return LS_ERR_UNSUPPORTED;
    }
    int at = plan->lower.slot_of_layer[layer];
    const ls_slot *slot = &plan->lower.slot[at];
    LS_TRY(check_bytes("an activation", slot->count * (int64_t)sizeof(float), bytes));
    void *values = NULL;
    LS_TRY(ls_export_room(plan, bytes, &values));
    LS_TRY(ls_export_plain(stream->native, plan->options.activation, ls_plan_at(plan, at), values,
                           plan->options.batch, slot->channels, ls_work_stored_channels(plan, at),
                           slot->height, slot->width));
    return bring(stream, host, values, bytes);
}

ls_status ls_export_copy(ls_plan *plan, ls_stream *stream, ls_export what, int index, void *host,
                         int64_t bytes)
{
    if (what == LS_EXPORT_LOGITS) {
        const ls_op *loss = &plan->lower.op[plan->lower.op_count - 1];
        const ls_slot *logits = &plan->lower.slot[loss->in];
        LS_TRY(check_bytes("logits", logits->count * (int64_t)sizeof(float), bytes));
        return bring(stream, host, plan->logits, bytes);
    }
    if (what == LS_EXPORT_ACTIVATION) {
        return export_activation(plan, stream, index, host, bytes);
    }
    ls_layer_kind kind = what == LS_EXPORT_RELU_BITS ? LS_LAYER_RELU : LS_LAYER_MAX_POOL;
    int layer = ls_lower_layer_of_branch(plan->network, index, kind);
    if (layer < 0) {
        ls_log_error("branch %d is no %s of this network", index,
                     kind == LS_LAYER_RELU ? "ReLU" : "max pool");
        return LS_ERR_USAGE;
    }
    if (what == LS_EXPORT_RELU_BITS) {
        return export_relu(plan, stream, layer, host, bytes);
    }
    return export_pool(plan, stream, ls_lower_op_of_branch(&plan->lower, index), host, bytes);
}
