/* A plan of the CPU backend with memory for its parameters, as the tests of plans drive it. */
#ifndef LS_UNIT_CPU_SUBJECT_H
#define LS_UNIT_CPU_SUBJECT_H

#include <check.h>

#include "cpu_net.h"

typedef struct subject {
    const ls_backend_api *api;
    ls_backend *backend;
    ls_stream *stream;
    ls_plan *plan;
    const net *n;
    ls_dtype activation, param_type; /* param_type: of convolutions and linear */
    ls_dtype norm_type;
    int batch, height, width;
    ls_tensor param[NET_PARAMS], grad[NET_PARAMS], buffer[NET_BUFFERS];
    ls_step_state *state;
    int ready[NET_PARAMS], ready_count;
    int64_t target[64];
    float *input;
} subject;

typedef struct subject_options {
    int threads;
    ls_dtype activation, param_type, norm_type, grad_type, norm_grad_type, buffer_type;
    const ls_norm_sync *sync;
    bool forced_branches;
} subject_options;

#define SUBJECT_F32 ((subject_options){.threads = 1}) /* LS_F32 is 0 */

static inline void subject_write(const ls_tensor *to, int64_t i, double value)
{
    if (to->dtype == LS_F32) {
        ((float *)to->data)[i] = (float)value;
    } else if (to->dtype == LS_F16) {
        ((uint16_t *)to->data)[i] = ls_half_f32_to_fp16((float)value);
    } else {
        ((uint16_t *)to->data)[i] = ls_half_f32_to_bf16((float)value);
    }
}

static inline double subject_read(const ls_tensor *from, int64_t i)
{
    if (from->dtype == LS_F32) {
        return (double)((const float *)from->data)[i];
    }
    uint16_t half = ((const uint16_t *)from->data)[i];
    return (double)(from->dtype == LS_F16 ? ls_half_fp16_to_f32(half) : ls_half_bf16_to_f32(half));
}

static inline ls_tensor subject_tensor(subject *s, ls_dtype type, int64_t count)
{
    ls_tensor t = {NULL, type, count};
    ck_assert_int_eq(
        s->api->memory_alloc(s->backend, (int64_t)ls_tensor_bytes(&t), "test", &t.data), LS_OK);
    memset(t.data, 0x7f, ls_tensor_bytes(&t)); /* poison: large values that spread */
    return t;
}

/* Initial values are a pure function of the parameter's index, all representable in bf16 and fp16.
 */
static inline double subject_initial(const net *n, int p, int64_t i)
{
    const ls_param *param = &n->param[p];
    double value = (double)ls_rng_normal(7, (uint64_t)p, (uint64_t)i);
    if (param->role == LS_PARAM_CONV_WEIGHT || param->role == LS_PARAM_LINEAR_WEIGHT) {
        int64_t fan_in = ls_shape_count(&param->shape) / param->shape.dim[0];
        value *= sqrt(2.0 / (double)fan_in);
    } else {
        value = (param->role == LS_PARAM_NORM_WEIGHT ? 1 : 0) + 0.25 * value;
    }
    return net_round(net_round(value, ROUND_BF16), ROUND_F16);
}

static inline void subject_make(subject *s, const net *n, int batch, int height, int width,
                                subject_options o)
{
    memset(s, 0, sizeof *s);
    s->n = n;
    s->batch = batch;
    s->height = height;
    s->width = width;
    s->activation = o.activation;
    ck_assert_int_eq(ls_load_backend("cpu", &s->api), LS_OK);
    ls_backend_options options = {.threads = o.threads, .local_ranks = 1};
    ck_assert_int_eq(s->api->open(&options, &s->backend), LS_OK);
    ck_assert_int_eq(s->api->stream_create(s->backend, &s->stream), LS_OK);
    ls_plan_options plan = {.batch = batch,
                            .height = height,
                            .width = width,
                            .activation = o.activation,
                            .norm_sync = o.sync,
                            .forced_branches = o.forced_branches};
    ck_assert_int_eq(s->api->plan_create(s->backend, &n->network, &plan, &s->plan), LS_OK);
    for (int p = 0; p < n->network.param_count; p++) {
        bool norm =
            n->param[p].role == LS_PARAM_NORM_WEIGHT || n->param[p].role == LS_PARAM_NORM_BIAS;
        int64_t count = ls_shape_count(&n->param[p].shape);
        s->param[p] = subject_tensor(s, norm ? o.norm_type : o.param_type, count);
        s->grad[p] = subject_tensor(s, norm ? o.norm_grad_type : o.grad_type, count);
        for (int64_t i = 0; i < count; i++) {
            subject_write(&s->param[p], i, subject_initial(n, p, i));
        }
    }
    for (int b = 0; b < n->network.buffer_count; b++) {
        if (n->buffer[b].role == LS_BUFFER_BATCHES_TRACKED) {
            continue;
        }
        s->buffer[b] = subject_tensor(s, o.buffer_type, n->buffer[b].count);
        for (int64_t i = 0; i < n->buffer[b].count; i++) {
            subject_write(&s->buffer[b], i, n->buffer[b].role == LS_BUFFER_RUNNING_VAR ? 1 : 0);
        }
    }
    void *state = NULL;
    ck_assert_int_eq(s->api->memory_alloc(s->backend, sizeof *s->state, "state", &state), LS_OK);
    s->state = state;
    s->state->loss_scale = 1;
    ls_plan_binding binding = {s->param, s->grad, s->buffer, s->state};
    ck_assert_int_eq(s->api->plan_bind(s->plan, &binding), LS_OK);
    s->input = malloc((size_t)batch * 3 * (size_t)(height * width) * sizeof *s->input);
    for (int64_t i = 0; i < (int64_t)batch * 3 * height * width; i++) {
        s->input[i] = ls_rng_normal(3, 1, (uint64_t)i);
    }
    for (int i = 0; i < batch; i++) {
        s->target[i] = ls_rng_below(3, 2, (uint64_t)i, (uint32_t)n->network.num_classes);
    }
}

static inline void subject_free(subject *s)
{
    for (int p = 0; p < s->n->network.param_count; p++) {
        s->api->memory_free(s->backend, s->param[p].data);
        s->api->memory_free(s->backend, s->grad[p].data);
    }
    for (int b = 0; b < s->n->network.buffer_count; b++) {
        s->api->memory_free(s->backend, s->buffer[b].data);
    }
    s->api->memory_free(s->backend, s->state);
    free(s->input);
    s->api->plan_destroy(s->plan);
    s->api->stream_destroy(s->stream);
    s->api->close(s->backend);
}

static inline ls_status subject_note_ready(void *context, int param)
{
    subject *s = context;
    s->ready[s->ready_count++] = param;
    return LS_OK;
}

static inline void subject_forward(subject *s)
{
    ck_assert_int_eq(s->api->plan_params_changed(s->plan, s->stream), LS_OK);
    ck_assert_int_eq(s->api->plan_forward(s->plan, s->stream, s->input, s->target), LS_OK);
}

static inline void subject_step(subject *s)
{
    subject_forward(s);
    s->ready_count = 0;
    ck_assert_int_eq(s->api->plan_backward(s->plan, s->stream, 1.0f, subject_note_ready, s), LS_OK);
}

/* An interpreter of the same network, values, input and branches as the subject's last forward. */
static inline void subject_mirror(const subject *s, rounding type, interpreter *t)
{
    const ls_network *w = &s->n->network;
    interpreter_make(t, s->n, s->batch, s->height, s->width, type);
    for (int p = 0; p < w->param_count; p++) {
        for (int64_t i = 0; i < s->param[p].count; i++) {
            t->param[p][i] = subject_read(&s->param[p], i);
        }
    }
    for (int64_t i = 0; i < t->size[0].count; i++) {
        t->value[0][i] = (double)s->input[i];
    }
    t->force = true;
    for (int i = 0; i < w->layer_count; i++) {
        int branch = s->n->layer[i].branch;
        if (s->n->layer[i].kind == LS_LAYER_RELU) {
            ck_assert_int_eq(s->api->plan_export(s->plan, s->stream, LS_EXPORT_RELU_BITS, branch,
                                                 t->bits[i], (t->size[i].count + 7) / 8),
                             LS_OK);
        } else if (s->n->layer[i].kind == LS_LAYER_MAX_POOL) {
            ck_assert_int_eq(s->api->plan_export(s->plan, s->stream, LS_EXPORT_POOL_INDEX, branch,
                                                 t->index[i], t->size[i].count * 4),
                             LS_OK);
        }
    }
}

#endif
