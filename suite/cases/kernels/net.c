#include "net.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/rng.h"
#include "kernels/core/list.h"
#include "reference/amp/amp_scale.h"
#include "reference/model/model.h"
#include "reference/oracle/bits.h"

enum { CLASSES = 10, PIXELS = 16, INPUT = 3 * PIXELS * PIXELS };

static void must(ls_net *net, ls_status status, const char *call)
{
    if (status != LS_OK) {
        ls_verdict_fail(net->verdict, "%s failed: %s", call, ls_status_name(status));
    }
}

static void make_tensors(ls_net *net, ls_dtype held, uint64_t seed)
{
    const ls_network *network = &net->network;
    net->param = calloc((size_t)network->param_count, sizeof *net->param);
    net->grad = calloc((size_t)network->param_count, sizeof *net->grad);
    net->buffer = calloc((size_t)network->buffer_count, sizeof *net->buffer);
    LS_MEMORY(net->param != NULL && net->grad != NULL && net->buffer != NULL);
    for (int i = 0; i < network->param_count; i++) {
        ls_param_role role = network->param[i].role;
        bool norm = role == LS_PARAM_NORM_WEIGHT || role == LS_PARAM_NORM_BIAS;
        ls_dtype type = norm ? LS_F32 : held;
        int64_t count = ls_shape_count(&network->param[i].shape);
        float *value = ls_list_make(1, (size_t)count * sizeof *value);
        ls_model_init_param(network, i, seed, value);
        net->param[i] = ls_inside_tensor(&net->device, type, count);
        net->grad[i] = ls_inside_tensor(&net->device, type, count);
        ls_inside_write(&net->device, &net->param[i], value);
        free(value);
    }
    for (int i = 0; i < network->buffer_count; i++) {
        int64_t count = network->buffer[i].count;
        float *value = ls_list_make(1, (size_t)count * sizeof *value);
        if (network->buffer[i].role != LS_BUFFER_BATCHES_TRACKED) {
            ls_model_init_buffer(network, i, value);
            net->buffer[i] = ls_inside_tensor(&net->device, LS_F32, count);
            ls_inside_write(&net->device, &net->buffer[i], value);
        }
        free(value);
    }
}

bool ls_net_open(ls_net *net, ls_dtype activation, ls_dtype held, int batch, uint64_t seed,
                 ls_verdict *verdict)
{
    memset(net, 0, sizeof *net);
    net->verdict = verdict;
    net->batch = batch;
    if (!ls_inside_open(&net->device, verdict)) {
        return false;
    }
    const ls_backend_api *api = net->device.api;
    must(net, ls_model_build("resnet8", CLASSES, PIXELS, &net->network), "ls_model_build");
    make_tensors(net, held, seed);
    net->state_memory = ls_inside_tensor(&net->device, LS_F32, (int64_t)sizeof(ls_step_state) / 4);
    net->input = ls_list_make(1, (size_t)batch * INPUT * sizeof *net->input);
    ls_net_input(net, seed);
    ls_plan_options options = {
        .batch = batch, .height = PIXELS, .width = PIXELS, .activation = activation};
    must(net, api->plan_create(net->device.backend, &net->network, &options, &net->plan),
         "plan_create");
    ls_plan_binding binding = {net->param, net->grad, net->buffer, net->state_memory.data, NULL};
    if (verdict->code == LS_PASS) {
        must(net, api->plan_bind(net->plan, &binding), "plan_bind");
        ls_net_changed(net);
    }
    if (verdict->code != LS_PASS) {
        ls_net_close(net);
        return false;
    }
    return true;
}

void ls_net_close(ls_net *net)
{
    if (net->plan != NULL) {
        net->device.api->plan_destroy(net->plan);
    }
    for (int i = 0; i < net->network.param_count; i++) {
        ls_inside_free(&net->device, &net->param[i]);
        ls_inside_free(&net->device, &net->grad[i]);
    }
    for (int i = 0; i < net->network.buffer_count; i++) {
        if (net->buffer[i].data != NULL) {
            ls_inside_free(&net->device, &net->buffer[i]);
        }
    }
    ls_inside_free(&net->device, &net->state_memory);
    free(net->param);
    free(net->grad);
    free(net->buffer);
    free(net->input);
    ls_model_free(&net->network);
    ls_device_close(&net->device);
}

void ls_net_input(ls_net *net, uint64_t seed)
{
    for (int i = 0; i < net->batch * INPUT; i++) {
        net->input[i] = ls_rng_normal(seed, 77, (uint64_t)i);
    }
    for (int n = 0; n < net->batch; n++) {
        net->target[n] = ls_rng_below(seed, 78, (uint64_t)n, CLASSES);
    }
}

int ls_net_find(const ls_net *net, const char *name)
{
    for (int i = 0; i < net->network.param_count; i++) {
        if (strcmp(net->network.param[i].name, name) == 0) {
            return i;
        }
    }
    LS_ASSERT(false);
    return -1;
}

float *ls_net_values(const ls_net *net, const ls_tensor *tensor)
{
    float *value = ls_list_make(1, (size_t)tensor->count * sizeof *value);
    ls_inside_read(&net->device, tensor, value);
    return value;
}

void ls_net_set(ls_net *net, int param, const float *value)
{
    ls_inside_write(&net->device, &net->param[param], value);
}

void ls_net_changed(ls_net *net)
{
    must(net, net->device.api->plan_params_changed(net->plan, net->device.stream),
         "plan_params_changed");
}

static ls_status ready(void *context, int param)
{
    (void)context, (void)param;
    return LS_OK;
}

float ls_net_run(ls_net *net, float scale, float factor)
{
    const ls_backend_api *api = net->device.api;
    ls_stream *stream = net->device.stream;
    ls_step_state state = ls_amp_scale_start(scale);
    must(net,
         api->copy_in(net->device.backend, stream, net->state_memory.data, &state, sizeof state),
         "copy_in");
    must(net, api->plan_forward(net->plan, stream, net->input, net->target), "plan_forward");
    must(net, api->plan_backward(net->plan, stream, factor, ready, NULL), "plan_backward");
    must(net, ls_device_read(&net->device, &state, net->state_memory.data, sizeof state),
         "copy_out");
    return state.loss;
}

void ls_net_logits(ls_net *net, float *logits)
{
    must(net,
         net->device.api->plan_export(net->plan, net->device.stream, LS_EXPORT_LOGITS, 0, logits,
                                      net->batch * CLASSES * (int64_t)sizeof *logits),
         "plan_export");
}

/* Pixels of one channel of a layer's output, by strides and padding. */
static int64_t pixels_of(const ls_network *network, int index)
{
    const ls_layer *layer = &network->layer[index];
    if (layer->kind == LS_LAYER_INPUT) {
        return PIXELS * PIXELS;
    }
    if (layer->kind == LS_LAYER_AVG_POOL) {
        return 1;
    }
    bool strides = layer->kind == LS_LAYER_CONV || layer->kind == LS_LAYER_MAX_POOL ||
                   layer->kind == LS_LAYER_SHORTCUT_PAD;
    int64_t before = pixels_of(network, layer->input[0]);
    return strides ? before / (layer->stride * layer->stride) : before;
}

float *ls_net_activation(ls_net *net, int index, int64_t *count)
{
    char text[300];
    *count = net->network.layer[index].channels * pixels_of(&net->network, index) * net->batch;
    float *value = ls_list_make(1, (size_t)*count * sizeof *value);
    ls_inside_capture capture = ls_inside_capture_begin();
    ls_status status =
        net->device.api->plan_export(net->plan, net->device.stream, LS_EXPORT_ACTIVATION, index,
                                     value, *count * (int64_t)sizeof *value);
    ls_inside_capture_end(&capture, text, (int)sizeof text);
    if (status != LS_OK) {
        free(value);
        return NULL;
    }
    return value;
}

float ls_net_rounded(ls_dtype type, float value)
{
    ls_bits_type bits = type == LS_F16 ? LS_BITS_F16 : type == LS_BF16 ? LS_BITS_BF16 : LS_BITS_F32;
    return (float)ls_bits_round(bits, (double)value);
}
