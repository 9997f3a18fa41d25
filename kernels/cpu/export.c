#include <string.h>

#include "kernels/core/log.h"
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

/* ---- forced branches --------------------------------------------------------------------------
 */

/* Not vectorised: only reference runs, which repeat another run's branches, pay for it. */

/* to[i] = open[i] ? from[i] : 0, bits unchanged. */
static void gate(const ls_plan *plan, const ls_op *op, const void *from, void *to)
{
    int64_t count = plan->lower.slot[op->out].count;
    const uint8_t *open = ls_plan_work(plan, op)->tap;
    if (plan->options.activation == LS_F32) {
        const float *x = from;
        float *y = to;
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
        for (int64_t i = 0; i < count; i++) {
            y[i] = open[i] != 0 ? x[i] : 0;
        }
    } else {
        const uint16_t *x = from;
        uint16_t *y = to;
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
        for (int64_t i = 0; i < count; i++) {
            y[i] = open[i] != 0 ? x[i] : 0;
        }
    }
}

void ls_export_forced_relu(const ls_plan *plan, const ls_op *op)
{
    gate(plan, op, ls_plan_at(plan, op->in), ls_plan_at(plan, op->out));
}

void ls_export_forced_relu_back(const ls_plan *plan, const ls_op *op, const void *gradient)
{
    gate(plan, op, gradient, ls_plan_grad(plan, op->g));
}

void ls_export_forced_pool(const ls_plan *plan, const ls_op *op)
{
    const ls_slot *in = &plan->lower.slot[op->in], *out = &plan->lower.slot[op->out];
    const ls_layer *layer = &plan->network->layer[op->layer];
    size_t bytes = ls_dtype_bytes(plan->options.activation);
    const char *x = ls_plan_at(plan, op->in);
    char *y = ls_plan_at(plan, op->out);
    const uint8_t *tap = ls_plan_work(plan, op)->tap;
    int in_pixels = ls_plan_pixels(in), out_pixels = ls_plan_pixels(out);
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int64_t i = 0; i < out->count; i++) {
        int pixel = (int)(i % out_pixels);
        int64_t to = ls_plan_stored_index(plan, op->out, i);
        int h = pixel / out->width * layer->stride - layer->pad + tap[to] / layer->kernel;
        int w = pixel % out->width * layer->stride - layer->pad + tap[to] % layer->kernel;
        int64_t from = ls_plan_stored_index(
            plan, op->in, i / out_pixels * in_pixels + (int64_t)h * in->width + w);
        memcpy(y + (size_t)to * bytes, x + (size_t)from * bytes, bytes);
    }
}

static void force_relu(const ls_plan *plan, const ls_op *op, const uint8_t *bits)
{
    uint8_t *tap = ls_plan_work(plan, op)->tap;
    const ls_slot *out = &plan->lower.slot[op->out];
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int64_t i = 0; i < out->count; i++) {
        tap[ls_plan_stored_index(plan, op->out, i)] = bits[i / 8] >> (i % 8) & 1;
    }
}

static ls_status force_pool(const ls_plan *plan, const ls_op *op, const int32_t *index)
{
    uint8_t *tap = ls_plan_work(plan, op)->tap;
    const ls_slot *in = &plan->lower.slot[op->in], *out = &plan->lower.slot[op->out];
    const ls_layer *layer = &plan->network->layer[op->layer];
    for (int64_t i = 0; i < out->count; i++) {
        int pixel = (int)(i % ls_plan_pixels(out));
        int row = index[i] / in->width - (pixel / out->width * layer->stride - layer->pad);
        int column = index[i] % in->width - (pixel % out->width * layer->stride - layer->pad);
        if (index[i] < 0 || index[i] >= ls_plan_pixels(in) || row < 0 || row >= layer->kernel ||
            column < 0 || column >= layer->kernel) {
            return ls_log_fail(LS_ERR_USAGE,
                               "%s: forced index %d of output %lld is outside its window",
                               layer->name, index[i], (long long)i);
        }
        tap[ls_plan_stored_index(plan, op->out, i)] = (uint8_t)(row * layer->kernel + column);
    }
    return LS_OK;
}

ls_status ls_export_force(ls_plan *plan, ls_stream *stream, int branch, const void *host,
                          int64_t bytes)
{
    (void)stream;
    const ls_op *op = NULL;
    LS_TRY(ls_plan_check_force(&plan->lower, branch, host, bytes, &op));
    ls_work *work = ls_plan_work(plan, op);
    work->forced = false;
    if (host == NULL) {
        return LS_OK;
    }
    if (op->kind == LS_OP_RELU) {
        force_relu(plan, op, host);
    } else {
        LS_TRY(force_pool(plan, op, host));
    }
    work->forced = true;
    return LS_OK;
}
