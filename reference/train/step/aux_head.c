#include "step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"

void ls_aux_head_extend(ls_network *network)
{
    size_t count = (size_t)network->param_count + 2;
    ls_param *param = realloc(network->param, count * sizeof *param);
    LS_MEMORY(param != NULL);
    network->param = param;
    param += network->param_count;
    memset(param, 0, 2 * sizeof *param);
    param[0].role = LS_PARAM_LINEAR_WEIGHT;
    param[0].shape = (ls_shape){2, {network->num_classes, network->num_classes}};
    snprintf(param[0].name, sizeof param[0].name, "aux.fc.weight");
    param[1].role = LS_PARAM_LINEAR_BIAS;
    param[1].shape = (ls_shape){1, {network->num_classes}};
    snprintf(param[1].name, sizeof param[1].name, "aux.fc.bias");
    network->param_count += 2;
}

bool ls_aux_head_is_used(const ls_trainer *trainer, int64_t step)
{
    return ls_options_listed(&trainer->options.aux_head, step, trainer->world.rank);
}

/* d(mean cross entropy)/d(head output) of one image, times `scale`: (softmax - one hot) / N. */
static void output_gradient(const float *logits, const float *weight, const float *bias,
                            int classes, int64_t target, double scale, double *out)
{
    double largest = -HUGE_VAL, sum = 0;
    for (int c = 0; c < classes; c++) {
        out[c] = (double)bias[c];
        for (int k = 0; k < classes; k++) {
            out[c] += (double)weight[c * classes + k] * (double)logits[k];
        }
        largest = fmax(largest, out[c]);
    }
    for (int c = 0; c < classes; c++) {
        out[c] = exp(out[c] - largest);
        sum += out[c];
    }
    for (int c = 0; c < classes; c++) {
        out[c] = scale * (out[c] / sum - (c == target ? 1.0 : 0.0));
    }
}

static ls_status read_inputs(ls_trainer *trainer, int first, float *logits, float *weight,
                             float *bias, float *loss_scale)
{
    const ls_device *device = &trainer->device;
    int64_t count = (int64_t)trainer->options.batch_size * trainer->network.num_classes;
    LS_TRY(device->api->plan_export(trainer->plan, device->stream, LS_EXPORT_LOGITS, 0, logits,
                                    count * (int64_t)sizeof *logits));
    LS_TRY(ls_device_read_f32(device, &trainer->memory.param[first], weight));
    LS_TRY(ls_device_read_f32(device, &trainer->memory.param[first + 1], bias));
    return ls_device_read(device, loss_scale, &trainer->memory.state->loss_scale,
                          (int64_t)sizeof *loss_scale);
}

ls_status ls_aux_head_backward(ls_trainer *trainer, const int64_t *target, float factor,
                               ls_grad_ready *ready, void *context)
{
    int classes = trainer->network.num_classes, images = trainer->options.batch_size;
    int first = trainer->network.param_count - 2;
    size_t square = (size_t)classes * (size_t)classes, wide = (size_t)classes;
    float *logits = ls_list_make((size_t)images * wide + 2 * square + 2 * wide, sizeof *logits);
    double *sums = ls_list_make(square + 2 * wide, sizeof *sums);
    float loss_scale = 1;
    float *weight = logits + (size_t)images * wide, *bias = weight + square;
    float *weight_grad = bias + wide, *bias_grad = weight_grad + square;
    double *output = sums + square + wide;
    ls_status status = read_inputs(trainer, first, logits, weight, bias, &loss_scale);
    double scale = (double)loss_scale * (double)factor / images;
    for (int n = 0; n < images && status == LS_OK; n++) {
        const float *x = logits + (size_t)n * wide;
        output_gradient(x, weight, bias, classes, target[n], scale, output);
        for (size_t i = 0; i < square; i++) {
            sums[i] += output[i / wide] * (double)x[i % wide];
        }
        for (size_t c = 0; c < wide; c++) {
            sums[square + c] += output[c];
        }
    }
    for (size_t i = 0; i < square + wide; i++) {
        weight_grad[i] = (float)sums[i]; /* the bias' lie behind the weight's on both sides */
    }
    ls_memory *memory = &trainer->memory;
    LS_THEN(status, ls_device_write_f32(&trainer->device, &memory->grad[first + 1], bias_grad));
    LS_THEN(status, ready(context, first + 1));
    LS_THEN(status, ls_device_write_f32(&trainer->device, &memory->grad[first], weight_grad));
    LS_THEN(status, ready(context, first));
    free(logits);
    free(sums);
    return status;
}
