#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/half.h"
#include "kernels/core/log.h"
#include "kernels/core/sort.h"
#include "kernels/traffic.h"
#include "bound.h"
#include "parallel.h"
#include "plan_parts.h"

enum { REPEATS_MAX = 64, UPDATES = 3 /* unscale, optimizer, pack */ };

typedef struct measuring {
    const ls_backend_api *api;
    ls_backend *backend;
    ls_stream *stream;
    ls_plan *plan;
    const ls_network *network;
    const ls_plan_options *options;
    bool half; /* parameters and gradients of the half type with f32 masters, as at O2 */
    char *memory;
    ls_tensor *param, *grad, *buffer;      /* as bound */
    ls_tensor *master, *unscaled, *moment; /* f32; without `half` the parameters themselves, and the
                                              gradients themselves */
    ls_step_state *state;
    float *input;
    int64_t *target;
    ls_traffic *traffic;
    int traffic_count;
    int pass_count, pass_room;
    ls_pass *pass; /* [pass_room] */
    double *ms;    /* [pass_room][repeats] */
    int repeats, column;
    bool describing;
    int64_t begin_ns;
} measuring;

/* ---- values ---------------------------------------------------------------------------------- */

static bool is_norm(const ls_param *param)
{
    return param->role == LS_PARAM_NORM_WEIGHT || param->role == LS_PARAM_NORM_BIAS;
}

static void place_one(char *base, ls_arena *sized, ls_tensor *tensor, ls_dtype type, int64_t count)
{
    *tensor = (ls_tensor){NULL, type, count};
    size_t offset = ls_arena_reserve(sized, ls_tensor_bytes(tensor));
    tensor->data = base == NULL ? NULL : base + offset;
}

/* Sets the addresses of all tensors in one block, or with base NULL only computes its size. */
static size_t place(measuring *m, char *base)
{
    ls_arena sized = {0};
    (void)ls_arena_reserve(&sized, sizeof *m->state);
    m->state = (ls_step_state *)(void *)base;
    for (int i = 0; i < m->network->param_count; i++) {
        const ls_param *param = &m->network->param[i];
        int64_t count = ls_shape_count(&param->shape);
        ls_dtype type = is_norm(param) ? LS_F32 : m->options->activation;
        place_one(base, &sized, &m->param[i], type, count);
        place_one(base, &sized, &m->grad[i], type, count);
        place_one(base, &sized, &m->moment[i], LS_F32, count);
        m->master[i] = m->param[i];
        m->unscaled[i] = m->grad[i];
        if (type != LS_F32) {
            place_one(base, &sized, &m->master[i], LS_F32, count);
            place_one(base, &sized, &m->unscaled[i], LS_F32, count);
        }
    }
    for (int i = 0; i < m->network->buffer_count; i++) {
        place_one(base, &sized, &m->buffer[i], LS_F32, m->network->buffer[i].count);
    }
    return sized.bytes;
}

static ls_status write_values(measuring *m)
{
    for (int p = 0; p < m->network->param_count; p++) {
        float *master = m->master[p].data;
        for (int64_t i = 0; i < m->master[p].count; i++) {
            master[i] = ls_passes_value(&m->network->param[p], i);
        }
        if (m->param[p].data != master) {
            ls_parallel_narrow(m->backend, m->param[p].dtype, master, m->param[p].data,
                               m->param[p].count);
        }
    }
    *m->state = (ls_step_state){.loss_scale = 1, .inv_loss_scale = 1, .lr = 0x1p-20f};
    const ls_plan_binding binding = {
        .param = m->param, .grad = m->grad, .buffer = m->buffer, .state = m->state};
    LS_TRY(m->api->plan_bind(m->plan, &binding));
    return m->api->plan_params_changed(m->plan, m->stream);
}

static ls_status make_values(measuring *m)
{
    size_t params = (size_t)m->network->param_count, buffers = (size_t)m->network->buffer_count;
    int64_t pixels = (int64_t)m->options->batch * 3 * m->options->height * m->options->width;
    ls_tensor **lists[] = {&m->param, &m->grad, &m->master, &m->unscaled, &m->moment};
    bool whole = true;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        *lists[i] = calloc(params + 1, sizeof **lists[i]);
        whole = whole && *lists[i] != NULL;
    }
    m->buffer = calloc(buffers + 1, sizeof *m->buffer);
    m->input = malloc((size_t)pixels * sizeof *m->input);
    m->target = calloc((size_t)m->options->batch, sizeof *m->target);
    LS_TRY_MEMORY(whole && m->buffer != NULL && m->input != NULL && m->target != NULL,
                  "a batch of %d images", m->options->batch);
    for (int64_t i = 0; i < pixels; i++) {
        m->input[i] = 4 * ls_passes_number((uint64_t)i);
    }
    for (int i = 0; i < m->options->batch; i++) {
        m->target[i] = i % m->network->num_classes;
    }
    void *memory = NULL;
    LS_TRY(ls_cpu_memory_take((int64_t)place(m, NULL), "values", &memory));
    m->memory = memory;
    (void)place(m, m->memory);
    return write_values(m);
}

/* ---- pass by pass ---------------------------------------------------------------------------- */

static const ls_op *op_of(const ls_lower *lower, int layer)
{
    for (int i = 0; i < lower->op_count; i++) {
        if (lower->op[i].layer == layer) {
            return &lower->op[i];
        }
    }
    return NULL;
}

/* Whether the part of the traffic model belongs to the observed kind of pass. */
static bool is_part_of(ls_traffic_part part, ls_observed_kind kind)
{
    switch (kind) {
    case LS_OBSERVED_IMAGE:
        return part == LS_TRAFFIC_IMAGE;
    case LS_OBSERVED_CONV:
        return part == LS_TRAFFIC_PRODUCT;
    case LS_OBSERVED_CONV_WEIGHTS:
        return part == LS_TRAFFIC_PRODUCT_WEIGHTS;
    case LS_OBSERVED_CONV_DATA:
        return part == LS_TRAFFIC_PRODUCT_DATA;
    case LS_OBSERVED_NORM:
        return part == LS_TRAFFIC_STATISTICS || part == LS_TRAFFIC_APPLY;
    case LS_OBSERVED_NORM_BACK:
        return part == LS_TRAFFIC_SUMS || part == LS_TRAFFIC_NORM_BACK;
    case LS_OBSERVED_ADD:
    case LS_OBSERVED_POOL:
    case LS_OBSERVED_SHORTCUT:
    case LS_OBSERVED_AVERAGE:
    case LS_OBSERVED_LOSS:
        return part == LS_TRAFFIC_SIMPLE;
    case LS_OBSERVED_POOL_BACK:
    case LS_OBSERVED_SHORTCUT_BACK:
    case LS_OBSERVED_AVERAGE_BACK:
    case LS_OBSERVED_LOSS_BACK:
        return part == LS_TRAFFIC_SIMPLE_BACK;
    default:
        return false;
    }
}

/* The stored tensors that a sum of gradients with a gate, or the sum of a bias's gradient, reads
 * and writes: not part of the traffic model, which fuses them into other passes. */
static double joined_bytes(const measuring *m, const ls_observed *what)
{
    int tensors = (what->dy != NULL) + (what->dy2 != NULL);
    if (what->kind == LS_OBSERVED_GATE) {
        tensors += 1 + what->relu;
    }
    double count = (double)what->images * what->out_channels * what->out_height * what->out_width;
    return tensors * count * (double)ls_dtype_bytes(m->options->activation);
}

static void describe_pass(const measuring *m, const ls_observed *what, ls_pass *pass)
{
    static const ls_dnn_pass product[] = {[LS_PASS_FORWARD] = LS_DNN_FORWARD,
                                          [LS_PASS_BACKWARD] = LS_DNN_BACKWARD_WEIGHTS,
                                          [LS_PASS_DATA] = LS_DNN_BACKWARD_DATA};
    const ls_lower *lower = &m->plan->lower;
    bool image = what->kind == LS_OBSERVED_IMAGE;
    const ls_op *op = image ? &lower->op[0] : op_of(lower, what->layer);
    LS_ASSERT(op != NULL);
    *pass = (ls_pass){.kind = LS_PASS_BACKWARD};
    if (what->kind == LS_OBSERVED_CONV_DATA) {
        pass->kind = LS_PASS_DATA;
    } else if (image || what->kind == ls_lower_observed_kind(op)) {
        pass->kind = LS_PASS_FORWARD;
    }
    for (int i = 0; i < m->traffic_count; i++) {
        const ls_traffic *part = &m->traffic[i];
        if (part->op == op - lower->op && is_part_of(part->part, what->kind)) {
            pass->bytes += part->bytes;
            pass->flops += part->flops;
        }
    }
    pass->product = pass->flops > 0;
    pass->norm = what->kind == LS_OBSERVED_NORM || what->kind == LS_OBSERVED_NORM_BACK;
    if (what->kind == LS_OBSERVED_GATE || what->kind == LS_OBSERVED_BIAS) {
        pass->bytes = joined_bytes(m, what);
    }
    if (pass->product) {
        ls_conv_describe_pass(ls_plan_work(m->plan, op)->conv, product[pass->kind], pass->engine,
                              sizeof pass->engine);
    }
    const char *name = image ? "image" : m->network->layer[op->layer].name;
    snprintf(pass->name, sizeof pass->name, "%s%s%s", name,
             what->kind == LS_OBSERVED_GATE   ? ", joined"
             : what->kind == LS_OBSERVED_BIAS ? ", bias"
                                              : "",
             !image && op->relu ? " + relu" : "");
}

static ls_status mark_pass(void *context, ls_stream *stream, const ls_observed *what, bool after)
{
    (void)stream;
    measuring *m = context;
    int64_t now_ns = ls_clock_ns();
    if (after) {
        LS_ASSERT(m->pass_count < m->pass_room);
        m->ms[m->pass_count * m->repeats + m->column] = ls_clock_ms_between(m->begin_ns, now_ns);
        if (m->describing) {
            describe_pass(m, what, &m->pass[m->pass_count]);
        }
        m->pass_count++;
    }
    m->begin_ns = ls_clock_ns();
    return LS_OK;
}

/* ---- after backward -------------------------------------------------------------------------- */

static ls_status update(measuring *m, int which)
{
    static const ls_optimizer_config sgd = {
        .kind = LS_OPTIMIZER_SGD, .momentum = 0.9, .weight_decay = 1e-4};
    int count = m->network->param_count;
    const ls_optimizer_args args = {.value = {count, m->master},
                                    .grad = {count, m->unscaled},
                                    .moment1 = {count, m->moment},
                                    .copy = {m->half ? count : 0, m->param}};
    switch (which) {
    case 0:
        return m->api->unscale_check(m->backend, m->stream, args.grad,
                                     (ls_tensor_list){count, m->grad}, m->state);
    case 1:
        return m->api->optimizer_step(m->backend, m->stream, &sgd, &args, false, m->state);
    default:
        return m->api->plan_params_changed(m->plan, m->stream);
    }
}

/* Bytes of a pass of `update`: what it reads and writes of every parameter. */
static double update_bytes(const measuring *m, int which)
{
    double bytes = 0;
    for (int i = 0; i < m->network->param_count; i++) {
        double own = (double)ls_tensor_bytes(&m->param[i]), f32 = 4.0 * (double)m->param[i].count;
        bool copied = m->master[i].data != m->param[i].data;
        bool packed = m->network->param[i].role == LS_PARAM_CONV_WEIGHT ||
                      m->network->param[i].role == LS_PARAM_LINEAR_WEIGHT;
        switch (which) {
        case 0: /* gradient; unscaled */
            bytes += own + f32;
            break;
        case 1: /* gradient, value twice, momentum twice; the half copy */
            bytes += 5 * f32 + (copied ? own : 0);
            break;
        default:
            bytes += packed ? own : 0;
        }
    }
    return which < 2 ? bytes : bytes + (double)m->plan->packed.bytes;
}

static ls_status run_updates(measuring *m, bool passes)
{
    static const char *const name[UPDATES] = {"unscale, check", "sgd", "pack weights"};
    for (int which = 0; which < UPDATES; which++) {
        int64_t begin_ns = ls_clock_ns();
        LS_TRY(update(m, which));
        if (!passes) {
            continue;
        }
        LS_ASSERT(m->pass_count < m->pass_room);
        m->ms[m->pass_count * m->repeats + m->column] =
            ls_clock_ms_between(begin_ns, ls_clock_ns());
        ls_pass *pass = &m->pass[m->pass_count++];
        *pass = (ls_pass){.kind = LS_PASS_UPDATE, .bytes = update_bytes(m, which)};
        snprintf(pass->name, sizeof pass->name, "%s", name[which]);
    }
    return LS_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* One step; thirds_ms: forward, backward, update. */
static ls_status step(measuring *m, bool passes, double thirds_ms[3])
{
    m->pass_count = 0;
    m->api->plan_observe(m->plan, passes ? mark_pass : NULL, m);
    int64_t at_ns[4] = {ls_clock_ns()};
    LS_TRY(m->api->plan_forward(m->plan, m->stream, m->input, m->target));
    at_ns[1] = ls_clock_ns();
    LS_TRY(m->api->plan_backward(m->plan, m->stream, 1, NULL, NULL));
    at_ns[2] = ls_clock_ns();
    LS_TRY(run_updates(m, passes));
    at_ns[3] = ls_clock_ns();
    for (int i = 0; i < 3; i++) {
        thirds_ms[i] = ls_clock_ms_between(at_ns[i], at_ns[i + 1]);
    }
    return LS_OK;
}

static ls_status measure_steps(measuring *m, bool passes, ls_step_passes *out)
{
    double whole[3][REPEATS_MAX], thirds[3];
    LS_TRY(step(m, false, thirds));
    for (int i = 0; i < m->repeats; i++) {
        LS_TRY(step(m, false, thirds));
        for (int k = 0; k < 3; k++) {
            whole[k][i] = thirds[k];
        }
        if (passes) { /* in turn, so that both see the same load */
            m->describing = i == 0;
            m->column = i;
            LS_TRY(step(m, true, thirds));
            out->pass_count = m->pass_count;
        }
    }
    out->forward_ms = ls_sort_median(whole[0], m->repeats);
    out->backward_ms = ls_sort_median(whole[1], m->repeats);
    out->update_ms = ls_sort_median(whole[2], m->repeats);
    for (int i = 0; i < out->pass_count; i++) {
        m->pass[i].ms = ls_sort_median(m->ms + i * m->repeats, m->repeats);
    }
    return LS_OK;
}

/* ---- from open to close ---------------------------------------------------------------------- */

static ls_status make_lists(measuring *m)
{
    const ls_lower *lower = &m->plan->lower;
    m->pass_room = 5 * lower->op_count + 1 + UPDATES;
    m->pass = calloc((size_t)m->pass_room, sizeof *m->pass);
    m->ms = calloc((size_t)m->pass_room * (size_t)m->repeats, sizeof *m->ms);
    m->traffic = malloc((size_t)ls_traffic_most(lower) * sizeof *m->traffic);
    LS_TRY_MEMORY(m->pass != NULL && m->ms != NULL && m->traffic != NULL, "%d passes",
                  m->pass_room);
    m->traffic_count = ls_traffic_list(lower, 3, LS_TRAFFIC_ON_CPU, m->traffic);
    return LS_OK;
}

static void release(measuring *m)
{
    if (m->plan != NULL) {
        m->api->plan_destroy(m->plan);
    }
    if (m->stream != NULL) {
        m->api->stream_destroy(m->stream);
    }
    ls_cpu_memory_give(m->memory);
    void *lists[] = {m->param, m->grad,   m->buffer, m->master,  m->unscaled, m->moment,
                     m->input, m->target, m->pass,   m->traffic, m->ms};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        free(lists[i]);
    }
    m->api->close(m->backend);
}

static ls_status measure(measuring *m, const ls_cpu_passes_options *options, ls_step_passes *out)
{
    ls_plan_info info;
    LS_TRY(m->api->stream_create(m->backend, &m->stream));
    LS_TRY(m->api->plan_create(m->backend, m->network, m->options, &m->plan));
    LS_TRY(make_lists(m));
    LS_TRY(make_values(m));
    LS_TRY(measure_steps(m, options->passes, out));
    LS_TRY(ls_cpu_plan_convolutions_ms(m->plan, m->repeats, &out->convolutions_ms));
    m->api->plan_info(m->plan, &info);
    out->engines = strdup(info.fusions);
    LS_TRY_MEMORY(out->engines != NULL, "the names of engines");
    out->pass = m->pass;
    m->pass = NULL;
    return LS_OK;
}

ls_status ls_cpu_passes(const ls_network *network, const ls_plan_options *plan,
                        const ls_cpu_passes_options *options, ls_step_passes *out)
{
    if (options->repeats < 1 || options->repeats > REPEATS_MAX) {
        return ls_log_fail(LS_ERR_USAGE, "repeats %d: 1 to %d", options->repeats, (int)REPEATS_MAX);
    }
    const ls_backend_options how = {.threads = options->threads,
                                    .local_ranks = 1,
                                    .emulate_half = options->emulate_half,
                                    .native_half = options->native_half};
    ls_step_passes measured = {0};
    measuring m = {.api = ls_backend_entry(),
                   .network = network,
                   .options = plan,
                   .half = plan->activation != LS_F32,
                   .repeats = options->repeats};
    LS_TRY(m.api->open(&how, &m.backend));
    ls_status status = measure(&m, options, &measured);
    release(&m);
    if (status == LS_OK) {
        *out = measured;
    }
    return status;
}
