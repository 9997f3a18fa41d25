#include "plan_parts.h"

#include <math.h>

#include "kernels/core/half.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/math/smoothing.h"

/* ---- linear: y = x W^T + bias, rounded once -------------------------------------------------- */

/* The bias as products use it: rounded to the activation type. */
static float bias_of(const ls_plan *plan, const ls_tensor *bias, int64_t index)
{
    const ls_loops *loops = plan->backend->loops;
    const char *data = bias->data;
    float value = 0;
    loops->widen(bias->dtype, data + (size_t)index * ls_dtype_bytes(bias->dtype), &value, 1);
    loops->round(plan->options.activation, &value, 1);
    return value;
}

/* The product leaves logits in f32; they receive the bias and are rounded to the activation type.
 * The loss uses the rounded values, cast up. */
ls_status ls_loss_linear_forward(ls_plan *plan, const ls_op *op)
{
    const ls_layer *layer = &plan->network->layer[op->layer];
    const ls_slot *out = &plan->lower.slot[op->out];
    ls_conv *conv = ls_plan_work(plan, op)->conv;
    LS_TRY(ls_conv_forward_wide(conv, ls_plan_at(plan, op->in), plan->logits));
    for (int64_t i = 0; i < out->count; i++) {
        plan->logits[i] += bias_of(plan, &plan->bound.param[layer->bias], i % out->channels);
    }
    const ls_loops *loops = plan->backend->loops;
    loops->narrow(plan->options.activation, plan->logits, ls_plan_at(plan, op->out), out->count);
    loops->round(plan->options.activation, plan->logits, out->count);
    return LS_OK;
}

ls_status ls_loss_bias_grad(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    (void)stream;
    const ls_slot *out = &plan->lower.slot[op->out];
    const ls_loops *loops = plan->backend->loops;
    ls_dtype type = plan->options.activation;
    const char *dy = ls_plan_grad(plan, op->g);
    const ls_tensor *bias = &plan->bound.grad[plan->network->layer[op->layer].bias];
    for (int c = 0; c < out->channels; c++) {
        double sum = 0;
        for (int n = 0; n < plan->options.batch; n++) {
            float value = 0;
            size_t index = (size_t)n * (size_t)out->channels + (size_t)c;
            loops->widen(type, dy + index * ls_dtype_bytes(type), &value, 1);
            sum += (double)value;
        }
        float rounded = (float)sum;
        loops->round(type, &rounded, 1);
        char *to = bias->data;
        loops->narrow(bias->dtype, &rounded, to + (size_t)c * ls_dtype_bytes(bias->dtype), 1);
    }
    return LS_OK;
}

/* ---- softmax cross entropy, f32 -------------------------------------------------------------- */

/* How many classes come before the target; NaN is the largest. */
static int place_of(const float *row, int classes, int64_t target)
{
    int before = 0;
    float wanted = row[target];
    for (int j = 0; j < classes; j++) {
        before += j != target && !(row[j] < wanted) && (row[j] != wanted || j < target);
    }
    return before;
}

/* Mean over j of -log p_j = log(sum) - (l_j - max). */
static double mean_over_classes(const float *row, int classes, float most, float sum)
{
    double distance = 0;
    for (int j = 0; j < classes; j++) {
        distance += (double)(row[j] - most);
    }
    return (double)logf(sum) - distance / classes;
}

/* loss = mean over n of log(sum_j exp(l_j - max)) - (l_target - max), smoothed. */
ls_status ls_loss_forward(ls_plan *plan, const ls_op *op)
{
    const int64_t *target = plan->target;
    int classes = plan->lower.slot[op->in].channels, batch = plan->options.batch;
    ls_smoothing smoothing = ls_smoothing_of(plan->options.label_smoothing, classes);
    double total = 0;
    for (int n = 0; n < batch; n++) {
        if (target[n] < 0 || target[n] >= classes) {
            return ls_log_fail(LS_ERR_USAGE,
                               "target %lld of sample %d is not a class; there are %d, from 0",
                               (long long)target[n], n, classes);
        }
        const float *row = plan->logits + (int64_t)n * classes;
        float most = row[0];
        for (int j = 1; j < classes; j++) {
            most = row[j] > most || row[j] != row[j] ? row[j] : most;
        }
        double sum = 0;
        for (int j = 0; j < classes; j++) {
            sum += (double)expf(row[j] - most);
        }
        plan->row_scale[2 * n] = most;
        plan->row_scale[2 * n + 1] = (float)sum;
        double loss = (double)(logf((float)sum) - (row[target[n]] - most));
        total += smoothing.amount == 0.0
                     ? loss
                     : ls_smoothing_loss(&smoothing, loss,
                                         mean_over_classes(row, classes, most, (float)sum));
        int place = place_of(row, classes, target[n]);
        plan->bound.state->top1 += place < 1;
        plan->bound.state->top5 += place < LS_PLANT(top5_of_six, 5, 6);
    }
    plan->bound.state->loss = (float)(total / batch);
    return LS_OK;
}

/* dlogits = (p - classes' weights) * (S * factor / N), the product in f32, then stored. */
ls_status ls_loss_backward(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    (void)stream;
    int classes = plan->lower.slot[op->in].channels, batch = plan->options.batch;
    ls_dtype type = plan->options.activation;
    float loss_scale = plan->bound.state->loss_scale;
    float scale = loss_scale * plan->loss_factor / LS_PLANT(loss_summed, (float)batch, 1.0f);
    scale *= LS_PLANT(loss_mean_at_32, 1.0f, batch >= 32 ? 32.0f / 33.0f : 1.0f);
    ls_smoothing smoothing = ls_smoothing_of(plan->options.label_smoothing, classes);
    char *dx = ls_plan_grad(plan, op->dx);
    for (int n = 0; n < batch; n++) {
        const float *row = plan->logits + (int64_t)n * classes;
        float most = plan->row_scale[2 * n], sum = plan->row_scale[2 * n + 1];
        for (int j = 0; j < classes; j++) {
            float p = expf(row[j] - most) / sum;
            p = LS_PLANT(softmax_in_half, p, ls_half_fp16_to_f32(ls_half_f32_to_fp16(p)));
            float g = (p - (j == plan->target[n] ? smoothing.target : smoothing.other)) * scale;
            g = LS_PLANT(scaled_after_cast, g,
                         ls_half_fp16_to_f32(ls_half_f32_to_fp16(g / loss_scale)) * loss_scale);
            size_t index = (size_t)n * (size_t)classes + (size_t)j;
            plan->backend->loops->narrow(type, &g, dx + index * ls_dtype_bytes(type), 1);
        }
    }
    return LS_OK;
}
