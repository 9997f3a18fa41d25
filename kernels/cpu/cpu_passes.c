#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/sort.h"
#include "kernels/passes.h"
#include "kernels/traffic.h"
#include "plan_parts.h"

enum { REPEATS_MAX = 64, UPDATES = 3 /* unscale, optimizer, pack */ };

typedef struct measuring {
    ls_passes_values v;
    ls_traffic *traffic;
    int traffic_count;
    int pass_count, pass_room;
    ls_pass *pass; /* [pass_room] */
    double *ms;    /* [pass_room][repeats] */
    int repeats, column;
    bool describing;
    int64_t begin_ns;
} measuring;

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
    return tensors * count * (double)ls_dtype_bytes(m->v.options->activation);
}

static void describe_pass(const measuring *m, const ls_observed *what, ls_pass *pass)
{
    static const ls_dnn_pass product[] = {[LS_PASS_FORWARD] = LS_DNN_FORWARD,
                                          [LS_PASS_BACKWARD] = LS_DNN_BACKWARD_WEIGHTS,
                                          [LS_PASS_DATA] = LS_DNN_BACKWARD_DATA};
    const ls_lower *lower = &m->v.plan->lower;
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
        ls_conv_describe_pass(ls_plan_work(m->v.plan, op)->conv, product[pass->kind], pass->engine,
                              sizeof pass->engine);
    }
    const char *name = image ? "image" : m->v.network->layer[op->layer].name;
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
    int count = m->v.network->param_count;
    const ls_optimizer_args args = {
        .value = {count, m->v.master},
        .grad = {count, m->v.unscaled},
        .moment1 = {count, m->v.moment},
        .copy = {m->v.options->activation != LS_F32 ? count : 0, m->v.param}};
    switch (which) {
    case 0:
        return m->v.api->unscale_check(m->v.backend, m->v.stream, args.grad,
                                       (ls_tensor_list){count, m->v.grad}, m->v.state);
    case 1:
        return m->v.api->optimizer_step(m->v.backend, m->v.stream, &sgd, &args, false, m->v.state);
    default:
        return m->v.api->plan_params_changed(m->v.plan, m->v.stream);
    }
}

/* Bytes of a pass of `update`: what it reads and writes of every parameter. */
static double update_bytes(const measuring *m, int which)
{
    double bytes = 0;
    for (int i = 0; i < m->v.network->param_count; i++) {
        double own = (double)ls_tensor_bytes(&m->v.param[i]),
               f32 = 4.0 * (double)m->v.param[i].count;
        bool copied = m->v.master[i].data != m->v.param[i].data;
        bool packed = m->v.network->param[i].role == LS_PARAM_CONV_WEIGHT ||
                      m->v.network->param[i].role == LS_PARAM_LINEAR_WEIGHT;
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
    return which < 2 ? bytes : bytes + (double)m->v.plan->packed.bytes;
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
    m->v.api->plan_observe(m->v.plan, passes ? mark_pass : NULL, m);
    int64_t at_ns[4] = {ls_clock_ns()};
    LS_TRY(m->v.api->plan_forward(m->v.plan, m->v.stream, m->v.input, m->v.target));
    at_ns[1] = ls_clock_ns();
    LS_TRY(m->v.api->plan_backward(m->v.plan, m->v.stream, 1, NULL, NULL));
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
    const ls_lower *lower = &m->v.plan->lower;
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
    ls_passes_close(&m->v);
    free(m->pass);
    free(m->traffic);
    free(m->ms);
}

static ls_status measure(measuring *m, const ls_backend_options *how,
                         const ls_cpu_passes_options *options, ls_step_passes *out)
{
    ls_plan_info info;
    LS_TRY(ls_passes_open(how, true, &m->v));
    LS_TRY(make_lists(m));
    LS_TRY(measure_steps(m, options->passes, out));
    LS_TRY(ls_cpu_plan_convolutions_ms(m->v.plan, m->repeats, &out->convolutions_ms));
    m->v.api->plan_info(m->v.plan, &info);
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
    measuring m = {.v = {ls_backend_entry(), network, plan}, .repeats = options->repeats};
    ls_status status = measure(&m, &how, options, &measured);
    release(&m);
    if (status == LS_OK) {
        *out = measured;
    }
    return status;
}
