#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/half.h"
#include "kernels/core/sort.h"
#include "kernels/core/log.h"
#include "kernels/traffic.h"
#include "bound.h"
#include "kernels/cuda/plan/plan_internal.h"

enum { REPEATS_MAX = 64 };

typedef struct measuring {
    const ls_backend_api *api;
    ls_backend *backend;
    ls_stream *stream;
    ls_plan *plan;
    const ls_network *network;
    const ls_plan_options *options;
    char *memory; /* values, gradients, running statistics, state */
    ls_tensor *param, *grad, *buffer;
    ls_step_state *state;
    float *input; /* host */
    int64_t *target;
    /* event marks: one at the start, then one after every pass */
    int mark_count, mark_room;
    cudaEvent_t *mark;
    ls_pass *pass; /* [mark_room - 1], filled in the first round */
    double *ms;    /* [mark_room - 1][repeats] */
    bool describing;
    ls_traffic *traffic; /* of the plan, and as it would be with LS_TRAFFIC_FUSE_INNER and
                            LS_TRAFFIC_FUSE_JOINS */
    int traffic_count;   /* of either */
} measuring;

/* ---- values ---------------------------------------------------------------------------------- */

static bool is_norm(const ls_param *param)
{
    return param->role == LS_PARAM_NORM_WEIGHT || param->role == LS_PARAM_NORM_BIAS;
}

static size_t padded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Sets the addresses of all tensors in one block, or with base NULL only computes its size. */
static size_t place(measuring *m, char *base)
{
    size_t used = padded(sizeof *m->state);
    m->state = (ls_step_state *)(void *)base;
    for (int i = 0; i < m->network->param_count; i++) {
        const ls_param *param = &m->network->param[i];
        ls_dtype type = is_norm(param) ? LS_F32 : m->options->activation;
        ls_tensor *both[] = {&m->param[i], &m->grad[i]};
        for (int k = 0; k < 2; k++) {
            *both[k] =
                (ls_tensor){base == NULL ? NULL : base + used, type, ls_shape_count(&param->shape)};
            used += padded(ls_tensor_bytes(both[k]));
        }
    }
    for (int i = 0; i < m->network->buffer_count; i++) {
        m->buffer[i] =
            (ls_tensor){base == NULL ? NULL : base + used, LS_F32, m->network->buffer[i].count};
        used += padded(ls_tensor_bytes(&m->buffer[i]));
    }
    return used;
}

static ls_status write_param(measuring *m, int index)
{
    const ls_tensor *tensor = &m->param[index];
    size_t element = ls_dtype_bytes(tensor->dtype);
    char *host = malloc(ls_tensor_bytes(tensor));
    LS_TRY_MEMORY(host != NULL, "%lld values", (long long)tensor->count);
    for (int64_t i = 0; i < tensor->count; i++) {
        float value = ls_passes_value(&m->network->param[index], i);
        uint16_t half =
            tensor->dtype == LS_F16 ? ls_half_f32_to_fp16(value) : ls_half_f32_to_bf16(value);
        memcpy(host + (size_t)i * element, tensor->dtype == LS_F32 ? (void *)&value : (void *)&half,
               element);
    }
    ls_status status = m->api->copy_in(m->backend, m->stream, tensor->data, host,
                                       (int64_t)ls_tensor_bytes(tensor));
    LS_THEN(status, m->api->stream_wait(m->stream));
    free(host);
    return status;
}

static ls_status make_values(measuring *m)
{
    size_t params = (size_t)m->network->param_count, buffers = (size_t)m->network->buffer_count;
    int64_t pixels = (int64_t)m->options->batch * 3 * m->options->height * m->options->width;
    void *memory = NULL;
    m->param = calloc(params + 1, sizeof *m->param);
    m->grad = calloc(params + 1, sizeof *m->grad);
    m->buffer = calloc(buffers + 1, sizeof *m->buffer);
    m->input = malloc((size_t)pixels * sizeof *m->input);
    m->target = calloc((size_t)m->options->batch, sizeof *m->target);
    LS_TRY_MEMORY(m->param != NULL && m->grad != NULL && m->buffer != NULL && m->input != NULL &&
                      m->target != NULL,
                  "a batch of %d images", m->options->batch);
    for (int64_t i = 0; i < pixels; i++) {
        m->input[i] = 4 * ls_passes_number((uint64_t)i);
    }
    for (int i = 0; i < m->options->batch; i++) {
        m->target[i] = i % m->network->num_classes;
    }
    LS_TRY(ls_cuda_take((int64_t)place(m, NULL), "values", &memory));
    m->memory = memory;
    (void)place(m, m->memory);
    for (int i = 0; i < m->network->param_count; i++) {
        LS_TRY(write_param(m, i));
    }
    const ls_step_state state = {.loss_scale = 1, .inv_loss_scale = 1};
    LS_TRY(m->api->copy_in(m->backend, m->stream, m->state, &state, sizeof state));
    LS_TRY(m->api->stream_wait(m->stream));
    const ls_plan_binding binding = {
        .param = m->param, .grad = m->grad, .buffer = m->buffer, .state = m->state};
    LS_TRY(m->api->plan_bind(m->plan, &binding));
    return m->api->plan_params_changed(m->plan, m->stream);
}

/* ---- convolutions alone ---------------------------------------------------------------------- */

static ls_status all_convolutions(measuring *m)
{
    ls_plan *plan = m->plan;
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (op->kind == LS_OP_CONV) {
            LS_TRY(ls_conv_forward(plan->work[i].conv, m->stream, ls_plan_at(plan, op->in),
                                   plan->work[i].operand, ls_plan_at(plan, op->out),
                                   plan->workspace));
        }
    }
    for (int i = plan->lower.op_count - 1; i >= 0; i--) {
        const ls_op *op = &plan->lower.op[i];
        if (op->kind != LS_OP_CONV) {
            continue;
        }
        const void *g = ls_plan_grad(plan, op->g);
        LS_TRY(ls_conv_backward_weights(plan->work[i].conv, m->stream, plan->work[i].dw,
                                        ls_plan_at(plan, op->in), g, plan->workspace));
        if (op->dx != LS_NO_BUFFER) {
            LS_TRY(ls_conv_backward_data(plan->work[i].conv, m->stream, ls_plan_grad(plan, op->dx),
                                         plan->work[i].operand, g, plan->workspace));
        }
    }
    return LS_OK;
}

static ls_status elapsed_ms(measuring *m, int from, int to, double *ms)
{
    float elapsed = 0;
    LS_TRY(ls_cuda_wait_event(m->backend, m->mark[to]));
    LS_CUDA(cudaEventElapsedTime(&elapsed, m->mark[from], m->mark[to]));
    *ms = elapsed;
    return LS_OK;
}

static ls_status measure_convolutions(measuring *m, int repeats, double *out)
{
    double ms[REPEATS_MAX];
    LS_TRY(all_convolutions(m));
    for (int i = 0; i < repeats; i++) {
        LS_CUDA(cudaEventRecord(m->mark[0], m->stream->native));
        LS_TRY(all_convolutions(m));
        LS_CUDA(cudaEventRecord(m->mark[1], m->stream->native));
        LS_TRY(elapsed_ms(m, 0, 1, &ms[i]));
    }
    *out = ls_sort_median(ms, repeats);
    return LS_OK;
}

/* ---- pass by pass ---------------------------------------------------------------------------- */

/* The i-th pass of the plan, as it runs: NULL where a product has taken the statistics, or a
 * convolution applies the norm; without the sweep for the sums where a convolution gates and sums
 * its gradient. */
static const ls_traffic *part_of(const measuring *m, int i)
{
    const ls_traffic *part = &m->traffic[i];
    const ls_op *op = &m->plan->lower.op[part->op];
    const ls_work *work = &m->plan->work[part->op];
    if (part->part == LS_TRAFFIC_STATISTICS && work->call.sum[part->norm] != NULL) {
        return NULL;
    }
    if (part->part == LS_TRAFFIC_APPLY && work->call.side[0].kept.half_scale != NULL) {
        return NULL;
    }
    bool inner = part->part == LS_TRAFFIC_PRODUCT_DATA
                     ? op->kind == LS_OP_CONV && ls_gate_used(m->plan, op) != NULL
                     : op->kind == LS_OP_NORM && work->call.gated[0] != NULL;
    return inner ? &m->traffic[m->traffic_count + i] : part;
}

/* What the passes of one mark move and compute (kernels/traffic.h). */
static void describe_pass(measuring *m, const ls_op *op, ls_pass *pass)
{
    const ls_lower *lower = &m->plan->lower;
    int index = (int)(op - lower->op);
    for (int i = 0; i < m->traffic_count; i++) {
        const ls_traffic *part = part_of(m, i);
        if (part == NULL) {
            continue;
        }
        bool data = part->part == LS_TRAFFIC_PRODUCT_DATA;
        bool here = ls_traffic_is_forward(part->part) ? pass->kind == LS_PASS_FORWARD
                    : data                            ? pass->kind == LS_PASS_DATA
                                                      : pass->kind == LS_PASS_BACKWARD;
        if (part->op == index && here) {
            pass->bytes += part->bytes;
            pass->flops += part->flops;
        }
    }
}

static ls_status mark_pass(void *context, const ls_op *op, int kind)
{
    measuring *m = context;
    LS_ASSERT(m->mark_count < m->mark_room);
    if (m->describing) {
        ls_pass *pass = &m->pass[m->mark_count - 1];
        const ls_layer *layer = &m->network->layer[op->layer >= 0 ? op->layer : op->norm[0]];
        pass->product = ls_plan_is_product(op);
        pass->kind = (ls_pass_kind)kind;
        pass->norm = op->kind == LS_OP_NORM;
        if (op->kind == LS_OP_CONV) {
            static const ls_conv_pass pass_of[] = {[LS_PASS_FORWARD] = LS_CONV_FORWARD,
                                                   [LS_PASS_BACKWARD] = LS_CONV_BACKWARD_WEIGHTS,
                                                   [LS_PASS_DATA] = LS_CONV_BACKWARD_DATA};
            ls_conv_engine_of(ls_plan_work(m->plan, op)->conv, pass_of[kind], pass->engine,
                              sizeof pass->engine);
        } else if (op->kind == LS_OP_LINEAR) {
            snprintf(pass->engine, sizeof pass->engine, "cuBLASLt");
        }
        describe_pass(m, op, pass);
        snprintf(pass->name, sizeof pass->name, "%s%s", layer->name, op->relu ? " + relu" : "");
    }
    LS_CUDA(cudaEventRecord(m->mark[m->mark_count++], m->stream->native));
    return LS_OK;
}

/* One forward and backward; ms[0] and ms[1] of the halves, and a column with every pass. */
static ls_status step(measuring *m, bool passes, int column, int columns, double halves_ms[2])
{
    m->plan->on_pass = passes ? mark_pass : NULL;
    m->plan->on_pass_context = m;
    LS_CUDA(cudaEventRecord(m->mark[0], m->stream->native));
    m->mark_count = 1;
    LS_TRY(m->api->plan_forward_loaded(m->plan, m->stream, 0));
    int middle = m->mark_count - 1;
    if (!passes) {
        middle = m->mark_count;
        LS_CUDA(cudaEventRecord(m->mark[m->mark_count++], m->stream->native));
    }
    LS_TRY(m->api->plan_backward(m->plan, m->stream, 1, NULL, NULL));
    if (!passes) {
        LS_CUDA(cudaEventRecord(m->mark[m->mark_count++], m->stream->native));
    }
    LS_TRY(elapsed_ms(m, 0, middle, &halves_ms[0]));
    LS_TRY(elapsed_ms(m, middle, m->mark_count - 1, &halves_ms[1]));
    for (int i = 0; passes && column >= 0 && i < m->mark_count - 1; i++) {
        LS_TRY(elapsed_ms(m, i, i + 1, &m->ms[i * columns + column]));
    }
    m->plan->on_pass = NULL;
    return LS_OK;
}

static ls_status measure_steps(measuring *m, const ls_cuda_bound_options *options,
                               ls_step_passes *out)
{
    double forward[REPEATS_MAX], backward[REPEATS_MAX], halves[2];
    LS_TRY(m->api->batch_load(m->plan, 0, m->input, m->target));
    LS_TRY(m->api->batch_loaded(m->plan, 0));
    LS_TRY(step(m, false, -1, 1, halves));
    for (int i = 0; i < options->repeats; i++) {
        LS_TRY(step(m, false, -1, 1, halves));
        forward[i] = halves[0];
        backward[i] = halves[1];
    }
    out->forward_ms = ls_sort_median(forward, options->repeats);
    out->backward_ms = ls_sort_median(backward, options->repeats);
    for (int i = 0; i < options->repeats && options->passes; i++) {
        m->describing = i == 0;
        LS_TRY(step(m, true, i, options->repeats, halves));
        out->pass_count = m->mark_count - 1;
    }
    for (int i = 0; i < out->pass_count; i++) {
        m->pass[i].ms = ls_sort_median(m->ms + i * options->repeats, options->repeats);
    }
    return LS_OK;
}

/* ---- from open to close ---------------------------------------------------------------------- */

static ls_status make_marks(measuring *m, int repeats)
{
    m->mark_room = 3 * m->plan->lower.op_count + 3;
    size_t room = (size_t)m->mark_room;
    m->mark = calloc(room, sizeof *m->mark);
    m->pass = calloc(room, sizeof *m->pass);
    m->ms = calloc(room * (size_t)repeats, sizeof *m->ms);
    const ls_lower *lower = &m->plan->lower;
    m->traffic = malloc(2 * (size_t)ls_traffic_most(lower) * sizeof *m->traffic);
    LS_TRY_MEMORY(m->mark != NULL && m->pass != NULL && m->ms != NULL && m->traffic != NULL,
                  "%d marks", m->mark_room);
    int channels = ls_work_stored_channels(m->plan, lower->op[0].in);
    int ways = m->plan->stem_blocks ? LS_TRAFFIC_BLOCKED_STEM : 0;
    m->traffic_count = ls_traffic_list(lower, channels, ways, m->traffic);
    int again =
        ls_traffic_list(lower, channels, ways | LS_TRAFFIC_FUSE_INNER | LS_TRAFFIC_FUSE_JOINS,
                        m->traffic + m->traffic_count);
    LS_ASSERT(again == m->traffic_count);
    for (int i = 0; i < m->mark_room; i++) {
        LS_CUDA(cudaEventCreate(&m->mark[i]));
    }
    return LS_OK;
}

static void release(measuring *m)
{
    for (int i = 0; m->mark != NULL && i < m->mark_room && m->mark[i] != NULL; i++) {
        cudaEventDestroy(m->mark[i]);
    }
    free(m->mark);
    free(m->pass);
    free(m->ms);
    free(m->traffic);
    free(m->param);
    free(m->grad);
    free(m->buffer);
    free(m->input);
    free(m->target);
    if (m->plan != NULL) {
        m->api->plan_destroy(m->plan);
    }
    ls_cuda_give(m->memory);
    if (m->stream != NULL) {
        m->api->stream_destroy(m->stream);
    }
    m->api->close(m->backend);
}

static ls_status measure(measuring *m, const ls_cuda_bound_options *options, ls_step_passes *out)
{
    ls_plan_info info;
    LS_TRY(m->api->stream_create(m->backend, &m->stream));
    LS_TRY(m->api->plan_create(m->backend, m->network, m->options, &m->plan));
    LS_TRY(make_marks(m, options->repeats));
    LS_TRY(make_values(m));
    LS_TRY(measure_steps(m, options, out));
    LS_TRY(measure_convolutions(m, options->repeats, &out->convolutions_ms));
    m->api->plan_info(m->plan, &info);
    out->engines = strdup(info.fusions == NULL ? "" : info.fusions);
    LS_TRY_MEMORY(out->engines != NULL, "the names of engines");
    out->pass = m->pass;
    m->pass = NULL;
    return LS_OK;
}

ls_status ls_cuda_bound(const ls_network *network, const ls_plan_options *plan,
                        const ls_cuda_bound_options *options, ls_step_passes *out)
{
    if (options->repeats < 1 || options->repeats > REPEATS_MAX) {
        return ls_log_fail(LS_ERR_USAGE, "repeats %d: 1 to %d", options->repeats, (int)REPEATS_MAX);
    }
    const ls_backend_options how = {.device_index = options->device,
                                    .local_ranks = 1,
                                    .oversubscribe = true,
                                    .tf32 = options->tf32};
    ls_step_passes measured = {0};
    measuring m = {.api = ls_backend_entry(), .network = network, .options = plan};
    LS_TRY(m.api->open(&how, &m.backend));
    ls_status status = measure(&m, options, &measured);
    release(&m);
    if (status == LS_OK) {
        *out = measured;
    }
    return status;
}
