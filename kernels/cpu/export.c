/* What the last forward left, in logical NCHW. */
#include <string.h>

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

static float stored_value(const ls_plan *plan, int slot, int64_t index)
{
    ls_dtype type = plan->options.activation;
    const char *data = ls_plan_at(plan, slot);
    size_t at = (size_t)ls_plan_stored_index(plan, slot, index) * ls_dtype_bytes(type);
    float value = 0;
    plan->backend->loops->widen(type, data + at, &value, 1);
    return value;
}

/* The pass of that layer alone, or NULL where it is fused into another. */
static const ls_op *op_of_layer(const ls_plan *plan, int layer, ls_op_kind kind)
{
    for (int i = 0; i < plan->lower.op_count; i++) {
        if (plan->lower.op[i].kind == kind && plan->lower.op[i].layer == layer) {
            return &plan->lower.op[i];
        }
    }
    return NULL;
}

static ls_status export_relu(const ls_plan *plan, int layer, uint8_t *host, int64_t bytes)
{
    int slot = plan->lower.slot_of_layer[layer];
    int64_t count = plan->lower.slot[slot].count;
    const ls_op *op = op_of_layer(plan, layer, LS_OP_RELU);
    const ls_work *work = op != NULL ? ls_plan_work(plan, op) : NULL;
    const uint8_t *given = work != NULL && work->forced ? work->tap : NULL;
    LS_TRY(check_bytes("ReLU bits", (count + 7) / 8, bytes));
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int64_t byte = 0; byte < bytes; byte++) {
        unsigned bits = 0;
        for (int64_t i = 8 * byte; i < 8 * byte + 8 && i < count; i++) {
            bool open = given != NULL ? given[ls_plan_stored_index(plan, slot, i)] != 0
                                      : stored_value(plan, slot, i) > 0;
            bits |= open ? 1u << (i % 8) : 0u;
        }
        host[byte] = (uint8_t)bits;
    }
    return LS_OK;
}

static ls_status export_pool(const ls_plan *plan, const ls_op *op, int32_t *host, int64_t bytes)
{
    const ls_slot *in = &plan->lower.slot[op->in], *out = &plan->lower.slot[op->out];
    const ls_layer *layer = &plan->network->layer[op->layer];
    const uint8_t *taps = ls_plan_work(plan, op)->tap;
    LS_TRY(check_bytes("pool indices", out->count * (int64_t)sizeof *host, bytes));
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int64_t i = 0; i < out->count; i++) {
        int pixel = (int)(i % ls_plan_pixels(out));
        int tap = taps[ls_plan_stored_index(plan, op->out, i)];
        int h = pixel / out->width * layer->stride - layer->pad + tap / layer->kernel;
        int w = pixel % out->width * layer->stride - layer->pad + tap % layer->kernel;
        host[i] = h * in->width + w;
    }
    return LS_OK;
}

static ls_status export_activation(const ls_plan *plan, int layer, float *host, int64_t bytes)
{
    if (layer < 0 || layer >= plan->network->layer_count || plan->lower.slot_of_layer[layer] < 0) {
        ls_log_error("layer %d is not stored: it is fused into the pass of the layer after it",
                     layer);
        return LS_ERR_UNSUPPORTED;
    }
    int slot = plan->lower.slot_of_layer[layer];
    int64_t count = plan->lower.slot[slot].count;
    LS_TRY(check_bytes("an activation", count * (int64_t)sizeof *host, bytes));
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int64_t i = 0; i < count; i++) {
        host[i] = stored_value(plan, slot, i);
    }
    return LS_OK;
}

ls_status ls_export_copy(ls_plan *plan, ls_export what, int index, void *host, int64_t bytes)
{
    if (what == LS_EXPORT_LOGITS) {
        const ls_slot *logits = &plan->lower.slot[plan->lower.op[plan->lower.op_count - 1].in];
        LS_TRY(check_bytes("logits", logits->count * (int64_t)sizeof(float), bytes));
        memcpy(host, plan->logits, (size_t)bytes);
        return LS_OK;
    }
    if (what == LS_EXPORT_ACTIVATION) {
        return export_activation(plan, index, host, bytes);
    }
    ls_layer_kind kind = what == LS_EXPORT_RELU_BITS ? LS_LAYER_RELU : LS_LAYER_MAX_POOL;
    int layer = ls_lower_layer_of_branch(plan->network, index, kind);
    if (layer < 0) {
        ls_log_error("branch %d is no %s of this network", index,
                     kind == LS_LAYER_RELU ? "ReLU" : "max pool");
        return LS_ERR_USAGE;
    }
    if (what == LS_EXPORT_RELU_BITS) {
        return export_relu(plan, layer, host, bytes);
    }
    return export_pool(plan, op_of_layer(plan, layer, LS_OP_POOL), host, bytes);
}
