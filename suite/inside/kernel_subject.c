#include "kernel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/half.h"
#include "kernels/core/log.h"
#include "kernels/core/rng.h"
#include "kernels/core/list.h"

/* ---- networks ---------------------------------------------------------------------------------
 */

void ls_kernel_net_start(ls_kernel_net *n)
{
    memset(n, 0, sizeof *n);
    n->network.layer = n->layer;
    n->network.param = n->param;
    n->network.buffer = n->buffer;
    snprintf(n->network.arch, sizeof n->network.arch, "test");
    n->layer[0] = (ls_layer){.kind = LS_LAYER_INPUT,
                             .input = {-1, -1},
                             .channels = 3,
                             .weight = -1,
                             .bias = -1,
                             .running_mean = -1,
                             .running_var = -1,
                             .branch = -1};
    n->network.layer_count = 1;
}

static int add_layer(ls_kernel_net *n, ls_layer_kind kind, int in, int in2, int channels)
{
    int index = n->network.layer_count++;
    ls_layer *l = &n->layer[index];
    *l = (ls_layer){.kind = kind,
                    .input = {in, in2},
                    .channels = channels,
                    .kernel = 1,
                    .stride = 1,
                    .weight = -1,
                    .bias = -1,
                    .running_mean = -1,
                    .running_var = -1,
                    .branch = -1};
    if (kind == LS_LAYER_RELU || kind == LS_LAYER_MAX_POOL) {
        l->branch = n->network.branch_count++;
    }
    snprintf(l->name, sizeof l->name, "l%d", index);
    return index;
}

static int add_param(ls_kernel_net *n, ls_param_role role, int rank, int64_t a, int64_t b,
                     int64_t k)
{
    int index = n->network.param_count++;
    n->param[index].role = role;
    n->param[index].shape = (ls_shape){rank, {a, b, k, k, 0}};
    snprintf(n->param[index].name, sizeof n->param[index].name, "p%d", index);
    return index;
}

static int channels_of(const ls_kernel_net *n, int layer)
{
    return n->layer[layer].channels;
}

int ls_kernel_net_conv(ls_kernel_net *n, int in, int channels, int kernel, int stride, int pad)
{
    int l = add_layer(n, LS_LAYER_CONV, in, -1, channels);
    n->layer[l].kernel = kernel;
    n->layer[l].stride = stride;
    n->layer[l].pad = pad;
    n->layer[l].weight =
        add_param(n, LS_PARAM_CONV_WEIGHT, 4, channels, channels_of(n, in), kernel);
    return l;
}

int ls_kernel_net_norm(ls_kernel_net *n, int in)
{
    int channels = channels_of(n, in), l = add_layer(n, LS_LAYER_BATCH_NORM, in, -1, channels);
    n->layer[l].weight = add_param(n, LS_PARAM_NORM_WEIGHT, 1, channels, 0, 0);
    n->layer[l].bias = add_param(n, LS_PARAM_NORM_BIAS, 1, channels, 0, 0);
    n->layer[l].epsilon = 1e-5f;
    n->layer[l].momentum = 0.1f;
    for (int k = 0; k < 3; k++) {
        int b = n->network.buffer_count++;
        n->buffer[b].role = (ls_buffer_role)k;
        n->buffer[b].count = k == 2 ? 1 : channels;
        if (k == 0) {
            n->layer[l].running_mean = b;
        } else if (k == 1) {
            n->layer[l].running_var = b;
        }
    }
    return l;
}

int ls_kernel_net_relu(ls_kernel_net *n, int in)
{
    return add_layer(n, LS_LAYER_RELU, in, -1, channels_of(n, in));
}

int ls_kernel_net_sum(ls_kernel_net *n, int a, int b)
{
    return add_layer(n, LS_LAYER_ADD, a, b, channels_of(n, a));
}

int ls_kernel_net_pool(ls_kernel_net *n, int in, int kernel, int stride, int pad)
{
    int l = add_layer(n, LS_LAYER_MAX_POOL, in, -1, channels_of(n, in));
    n->layer[l].kernel = kernel;
    n->layer[l].stride = stride;
    n->layer[l].pad = pad;
    return l;
}

static int net_shortcut(ls_kernel_net *n, int in, int channels, int stride)
{
    int l = add_layer(n, LS_LAYER_SHORTCUT_PAD, in, -1, channels);
    n->layer[l].stride = stride;
    return l;
}

void ls_kernel_net_finish(ls_kernel_net *n, int in, int classes)
{
    int a = add_layer(n, LS_LAYER_AVG_POOL, in, -1, channels_of(n, in));
    int l = add_layer(n, LS_LAYER_LINEAR, a, -1, classes);
    n->layer[l].weight = add_param(n, LS_PARAM_LINEAR_WEIGHT, 2, classes, channels_of(n, a), 0);
    n->layer[l].bias = add_param(n, LS_PARAM_LINEAR_BIAS, 1, classes, 0, 0);
    add_layer(n, LS_LAYER_CROSS_ENTROPY, l, -1, classes);
    n->network.num_classes = classes;
}

int ls_kernel_net_block(ls_kernel_net *n, int in, int channels, int stride, char shortcut)
{
    int a = ls_kernel_net_relu(
        n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, in, channels, 3, stride, 1)));
    int b = ls_kernel_net_norm(n, ls_kernel_net_conv(n, a, channels, 3, 1, 1)), skip = in;
    if (stride != 1 || channels_of(n, in) != channels) {
        skip = shortcut == 'A'
                   ? net_shortcut(n, in, channels, stride)
                   : ls_kernel_net_norm(n, ls_kernel_net_conv(n, in, channels, 1, stride, 0));
    }
    return ls_kernel_net_relu(n, ls_kernel_net_sum(n, b, skip));
}

int ls_kernel_net_bottleneck(ls_kernel_net *n, int in, int channels, int stride)
{
    int a =
        ls_kernel_net_relu(n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, in, channels, 1, 1, 0)));
    int b = ls_kernel_net_relu(
        n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, a, channels, 3, stride, 1)));
    int c = ls_kernel_net_norm(n, ls_kernel_net_conv(n, b, 4 * channels, 1, 1, 0)), skip = in;
    if (stride != 1 || channels_of(n, in) != 4 * channels) {
        skip = ls_kernel_net_norm(n, ls_kernel_net_conv(n, in, 4 * channels, 1, stride, 0));
    }
    return ls_kernel_net_relu(n, ls_kernel_net_sum(n, c, skip));
}

/* ---- a plan of a backend ------------------------------------------------------------------------
 */

/* Representable in bf16 and fp16, so that every level starts from the same numbers. */
static double usual_initial(const ls_kernel_net *n, uint64_t seed, int p, int64_t i)
{
    const ls_param *param = &n->param[p];
    double value = (double)ls_rng_normal(7 + seed, (uint64_t)p, (uint64_t)i);
    if (param->role == LS_PARAM_CONV_WEIGHT || param->role == LS_PARAM_LINEAR_WEIGHT) {
        int64_t fan_in = ls_shape_count(&param->shape) / param->shape.dim[0];
        value *= sqrt(2.0 / (double)fan_in);
    } else {
        value = (param->role == LS_PARAM_NORM_WEIGHT ? 1 : 0) + 0.25 * value;
    }
    return ls_kernel_interpreter_round(ls_kernel_interpreter_round(value, LS_KERNEL_ROUND_BF16),
                                       LS_KERNEL_ROUND_F16);
}

void ls_kernel_subject_put(const ls_tensor *host, int64_t i, double value)
{
    if (host->dtype == LS_F32) {
        ((float *)host->data)[i] = (float)value;
    } else {
        ((uint16_t *)host->data)[i] = host->dtype == LS_F16 ? ls_half_f32_to_fp16((float)value)
                                                            : ls_half_f32_to_bf16((float)value);
    }
}

double ls_kernel_subject_get(const ls_tensor *host, int64_t i)
{
    if (host->dtype == LS_F32) {
        return (double)((const float *)host->data)[i];
    }
    uint16_t half = ((const uint16_t *)host->data)[i];
    return (double)(host->dtype == LS_F16 ? ls_half_fp16_to_f32(half) : ls_half_bf16_to_f32(half));
}

static bool is_norm(const ls_kernel_net *n, int p)
{
    return n->param[p].role == LS_PARAM_NORM_WEIGHT || n->param[p].role == LS_PARAM_NORM_BIAS;
}

/* Backend memory that holds value(i); NULL fills it with bytes that read as large numbers. */
static ls_status make_tensor(ls_kernel_subject *s, ls_dtype type, int64_t count,
                             const double *values, ls_tensor *out)
{
    *out = (ls_tensor){NULL, type, count};
    size_t bytes = ls_tensor_bytes(out);
    ls_tensor host = {malloc(bytes + 8), type, count};
    LS_TRY_MEMORY(host.data != NULL, "%zu bytes", bytes);
    memset(host.data, 0x7f, bytes);
    for (int64_t i = 0; values != NULL && i < count; i++) {
        ls_kernel_subject_put(&host, i, values[i]);
    }
    ls_status status =
        s->api->memory_alloc(s->backend, (int64_t)bytes, "a judged operation", &out->data);
    LS_THEN(status, s->api->copy_in(s->backend, s->stream, out->data, host.data, (int64_t)bytes));
    LS_THEN(status, s->api->stream_wait(s->stream));
    free(host.data);
    return status;
}

static ls_status make_params(ls_kernel_subject *s)
{
    const ls_kernel_net *n = s->n;
    const ls_kernel_subject_options *o = &s->options;
    for (int p = 0; p < n->network.param_count; p++) {
        int64_t count = ls_shape_count(&n->param[p].shape);
        double *values = ls_list_make(1, (size_t)count * sizeof *values);
        for (int64_t i = 0; i < count; i++) {
            values[i] = o->initial != NULL ? o->initial(n, p, i) : usual_initial(n, o->seed, p, i);
        }
        ls_dtype held = is_norm(n, p) ? o->norm_type : o->param_type;
        ls_dtype made = is_norm(n, p) ? o->norm_type : o->grad_type;
        ls_status status = make_tensor(s, held, count, values, &s->param[p]);
        free(values);
        LS_TRY(status);
        LS_TRY(make_tensor(s, made, count, NULL, &s->grad[p]));
    }
    return LS_OK;
}

static ls_status make_buffers(ls_kernel_subject *s)
{
    for (int b = 0; b < s->n->network.buffer_count; b++) {
        const ls_buffer *buffer = &s->n->buffer[b];
        if (buffer->role == LS_BUFFER_BATCHES_TRACKED) {
            continue;
        }
        double *values = ls_list_make((size_t)buffer->count, sizeof *values);
        for (int64_t i = 0; i < buffer->count; i++) {
            values[i] = buffer->role == LS_BUFFER_RUNNING_VAR ? 1 : 0;
        }
        ls_status status =
            make_tensor(s, s->options.buffer_type, buffer->count, values, &s->buffer[b]);
        free(values);
        LS_TRY(status);
    }
    return LS_OK;
}

static void make_batch(ls_kernel_subject *s)
{
    const ls_kernel_subject_options *o = &s->options;
    int64_t count = (int64_t)o->batch * 3 * o->height * o->width;
    s->input = malloc((size_t)count * sizeof *s->input);
    LS_MEMORY(s->input != NULL);
    LS_ASSERT(o->batch <= LS_KERNEL_SUBJECT_BATCH_MAX);
    for (int64_t i = 0; i < count; i++) {
        s->input[i] = o->input != NULL ? o->input(i) : ls_rng_normal(3 + o->seed, 1, (uint64_t)i);
    }
    for (int i = 0; i < o->batch; i++) {
        s->target[i] =
            ls_rng_below(3 + o->seed, 2, (uint64_t)i, (uint32_t)s->n->network.num_classes);
    }
}

static ls_status make_parts(ls_kernel_subject *s)
{
    const ls_kernel_subject_options *o = &s->options;
    ls_backend_options backend = {
        .threads = o->threads, .local_ranks = 1, .deterministic = !o->fuse};
    LS_TRY(ls_load_backend(o->device, &s->api));
    LS_TRY(s->api->open(&backend, &s->backend));
    LS_TRY(s->api->stream_create(s->backend, &s->stream));
    ls_plan_options plan = {.batch = o->batch,
                            .height = o->height,
                            .width = o->width,
                            .activation = o->activation,
                            .norm_sync = o->norm_sync,
                            .forced_branches = o->forced_branches,
                            .fuse = o->fuse};
    LS_TRY(s->api->plan_create(s->backend, &s->n->network, &plan, &s->plan));
    LS_TRY(make_params(s));
    LS_TRY(make_buffers(s));
    void *state = NULL;
    LS_TRY(s->api->memory_alloc(s->backend, sizeof *s->state, "step state", &state));
    s->state = state;
    LS_TRY(ls_kernel_subject_set_scale(s, 1));
    ls_plan_binding binding = {s->param, s->grad, s->buffer, s->state, NULL};
    LS_TRY(s->api->plan_bind(s->plan, &binding));
    make_batch(s);
    return LS_OK;
}

ls_status ls_kernel_subject_make(const ls_kernel_net *n, const ls_kernel_subject_options *options,
                                 ls_kernel_subject *s)
{
    memset(s, 0, sizeof *s);
    s->n = n;
    s->options = *options;
    ls_status status = make_parts(s);
    if (status != LS_OK) {
        ls_kernel_subject_free(s);
    }
    return status;
}

void ls_kernel_subject_free(ls_kernel_subject *s)
{
    free(s->input);
    if (s->backend != NULL) {
        for (int p = 0; p < s->n->network.param_count; p++) {
            s->api->memory_free(s->backend, s->param[p].data);
            s->api->memory_free(s->backend, s->grad[p].data);
        }
        for (int b = 0; b < s->n->network.buffer_count; b++) {
            s->api->memory_free(s->backend, s->buffer[b].data);
        }
        s->api->memory_free(s->backend, s->state);
        if (s->plan != NULL) {
            s->api->plan_destroy(s->plan);
        }
        if (s->stream != NULL) {
            s->api->stream_destroy(s->stream);
        }
        s->api->close(s->backend);
    }
    memset(s, 0, sizeof *s);
}

ls_status ls_kernel_subject_forward(ls_kernel_subject *s)
{
    LS_TRY(s->api->plan_params_changed(s->plan, s->stream));
    LS_TRY(s->api->plan_forward(s->plan, s->stream, s->input, s->target));
    return s->api->stream_wait(s->stream);
}

static ls_status note_ready(void *context, int param)
{
    ls_kernel_subject *s = context;
    if (s->ready_count < LS_KERNEL_NET_PARAMS) {
        s->ready[s->ready_count] = param;
    }
    s->ready_count++;
    return LS_OK;
}

ls_status ls_kernel_subject_step(ls_kernel_subject *s)
{
    LS_TRY(ls_kernel_subject_forward(s));
    s->ready_count = 0;
    LS_TRY(s->api->plan_backward(s->plan, s->stream, 1.0f, note_ready, s));
    return s->api->stream_wait(s->stream);
}

ls_status ls_kernel_subject_get_state(const ls_kernel_subject *s, ls_step_state *out)
{
    LS_TRY(s->api->copy_out(s->backend, s->stream, out, s->state, sizeof *out));
    return s->api->stream_wait(s->stream);
}

ls_status ls_kernel_subject_set_scale(ls_kernel_subject *s, float loss_scale)
{
    ls_step_state state;
    LS_TRY(ls_kernel_subject_get_state(s, &state));
    state.loss_scale = loss_scale;
    state.inv_loss_scale = 1 / loss_scale;
    LS_TRY(s->api->copy_in(s->backend, s->stream, s->state, &state, sizeof state));
    return s->api->stream_wait(s->stream);
}

double *ls_kernel_subject_read(const ls_kernel_subject *s, const ls_tensor *from)
{
    size_t bytes = ls_tensor_bytes(from);
    ls_tensor host = {malloc(bytes + 8), from->dtype, from->count};
    double *values = malloc((size_t)from->count * sizeof *values + 8);
    LS_MEMORY(host.data != NULL && values != NULL);
    if (s->api->copy_out(s->backend, s->stream, host.data, from->data, (int64_t)bytes) != LS_OK ||
        s->api->stream_wait(s->stream) != LS_OK) {
        free(values);
        values = NULL;
    }
    for (int64_t i = 0; values != NULL && i < from->count; i++) {
        values[i] = ls_kernel_subject_get(&host, i);
    }
    free(host.data);
    return values;
}

float *ls_kernel_subject_activation(const ls_kernel_subject *s, int layer, int64_t count)
{
    float *values = ls_list_make(1, (size_t)count * sizeof *values + 8);
    if (s->api->plan_export(s->plan, s->stream, LS_EXPORT_ACTIVATION, layer, values,
                            count * (int64_t)sizeof *values) != LS_OK) {
        free(values);
        return NULL;
    }
    return values;
}

static ls_status copy_branches(const ls_kernel_subject *s, ls_kernel_interpreter *t)
{
    for (int i = 0; i < s->n->network.layer_count; i++) {
        const ls_layer *layer = &s->n->layer[i];
        if (layer->kind == LS_LAYER_RELU) {
            LS_TRY(s->api->plan_export(s->plan, s->stream, LS_EXPORT_RELU_BITS, layer->branch,
                                       t->bits[i], (t->size[i].count + 7) / 8));
        } else if (layer->kind == LS_LAYER_MAX_POOL) {
            LS_TRY(s->api->plan_export(s->plan, s->stream, LS_EXPORT_POOL_INDEX, layer->branch,
                                       t->index[i], t->size[i].count * 4));
        }
    }
    return LS_OK;
}

ls_status ls_kernel_subject_mirror(const ls_kernel_subject *s, ls_kernel_rounding type,
                                   ls_kernel_interpreter *t)
{
    const ls_kernel_subject_options *o = &s->options;
    ls_kernel_interpreter_make(t, s->n, o->batch, o->height, o->width, type);
    ls_status status = LS_OK;
    for (int p = 0; p < s->n->network.param_count && status == LS_OK; p++) {
        double *values = ls_kernel_subject_read(s, &s->param[p]);
        status = values == NULL ? LS_ERR_INFRA : LS_OK;
        if (values != NULL) {
            memcpy(t->param[p], values, (size_t)s->param[p].count * sizeof *values);
        }
        free(values);
    }
    for (int64_t i = 0; i < t->size[0].count; i++) {
        t->value[0][i] = (double)s->input[i];
    }
    t->force = true;
    LS_THEN(status, copy_branches(s, t));
    if (status != LS_OK) {
        ls_kernel_interpreter_free(t);
    }
    return status;
}
