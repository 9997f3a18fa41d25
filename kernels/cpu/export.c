#include <string.h>

#include "kernels/entries.h"
#include "plan_parts.h"

static float stored_value(const ls_plan *plan, int slot, int64_t index)
{
    ls_dtype type = plan->options.activation;
    const char *data = ls_plan_at(plan, slot);
    size_t at = (size_t)ls_plan_stored_index(plan, slot, index) * ls_dtype_bytes(type);
    float value = 0;
    plan->backend->loops->widen(type, data + at, &value, 1);
    return value;
}

static void export_relu(const ls_plan *plan, int slot, int branch, uint8_t *host)
{
    int64_t count = plan->lower.slot[slot].count;
    const ls_op *op = ls_lower_op_of_branch(&plan->lower, branch); /* NULL if it is fused */
    const ls_work *work = op != NULL ? ls_plan_work(plan, op) : NULL;
    const uint8_t *given = work != NULL && work->forced ? work->tap : NULL;
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int64_t byte = 0; byte < (count + 7) / 8; byte++) {
        unsigned bits = 0;
        for (int64_t i = 8 * byte; i < 8 * byte + 8 && i < count; i++) {
            bool open = given != NULL ? given[ls_plan_stored_index(plan, slot, i)] != 0
                                      : stored_value(plan, slot, i) > 0;
            bits |= open ? 1u << (i % 8) : 0u;
        }
        host[byte] = (uint8_t)bits;
    }
}

static void export_pool(const ls_plan *plan, const ls_op *op, int32_t *host)
{
    const ls_slot *in = &plan->lower.slot[op->in], *out = &plan->lower.slot[op->out];
    const ls_layer *layer = &plan->network->layer[op->layer];
    const uint8_t *taps = ls_plan_work(plan, op)->tap;
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int64_t i = 0; i < out->count; i++) {
        int pixel = (int)(i % ls_plan_pixels(out));
        int tap = taps[ls_plan_stored_index(plan, op->out, i)];
        int h = pixel / out->width * layer->stride - layer->pad + tap / layer->kernel;
        int w = pixel % out->width * layer->stride - layer->pad + tap % layer->kernel;
        host[i] = h * in->width + w;
    }
}

static void export_activation(const ls_plan *plan, int slot, float *host)
{
    int64_t count = plan->lower.slot[slot].count;
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int64_t i = 0; i < count; i++) {
        host[i] = stored_value(plan, slot, i);
    }
}

ls_status ls_export_copy(ls_plan *plan, ls_stream *stream, ls_export what, int index, void *host,
                         int64_t bytes)
{
    (void)stream;
    int slot = 0;
    LS_ASSERT(plan->forward_done);
    LS_TRY(ls_plan_check_export(&plan->lower, what, index, bytes, &slot));
    switch (what) {
    case LS_EXPORT_LOGITS:
        memcpy(host, plan->logits, (size_t)bytes);
        break;
    case LS_EXPORT_ACTIVATION:
        export_activation(plan, slot, host);
        break;
    case LS_EXPORT_RELU_BITS:
        export_relu(plan, slot, index, host);
        break;
    case LS_EXPORT_POOL_INDEX:
        export_pool(plan, ls_lower_op_of_branch(&plan->lower, index), host);
        break;
    }
    return LS_OK;
}
