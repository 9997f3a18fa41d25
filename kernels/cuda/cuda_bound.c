#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/sort.h"
#include "kernels/core/log.h"
#include "kernels/passes.h"
#include "kernels/traffic.h"
#include "kernels/cuda/plan/plan_internal.h"

enum { REPEATS_MAX = 64 };

typedef struct measuring {
    ls_passes_values v;
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

/* ---- convolutions alone ---------------------------------------------------------------------- */

static ls_status all_convolutions(measuring *m)
{
    ls_plan *plan = m->v.plan;
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (op->kind == LS_OP_CONV) {
            LS_TRY(ls_conv_forward(plan->work[i].conv, m->v.stream, ls_plan_at(plan, op->in),
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
        LS_TRY(ls_conv_backward_weights(plan->work[i].conv, m->v.stream, plan->work[i].dw,
                                        ls_plan_at(plan, op->in), g, plan->workspace));
        if (op->dx != LS_NO_BUFFER) {
            LS_TRY(ls_conv_backward_data(plan->work[i].conv, m->v.stream,
                                         ls_plan_grad(plan, op->dx), plan->work[i].operand, g,
                                         plan->workspace));
        }
    }
    return LS_OK;
}

static ls_status elapsed_ms(measuring *m, int from, int to, double *ms)
{
    float elapsed = 0;
    LS_TRY(ls_cuda_wait_event(m->v.backend, m->mark[to]));
    LS_CUDA(cudaEventElapsedTime(&elapsed, m->mark[from], m->mark[to]));
    *ms = elapsed;
    return LS_OK;
}

static ls_status measure_convolutions(measuring *m, int repeats, double *out)
{
    double ms[REPEATS_MAX];
    LS_TRY(all_convolutions(m));
    for (int i = 0; i < repeats; i++) {
        LS_CUDA(cudaEventRecord(m->mark[0], m->v.stream->native));
        LS_TRY(all_convolutions(m));
        LS_CUDA(cudaEventRecord(m->mark[1], m->v.stream->native));
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
    const ls_op *op = &m->v.plan->lower.op[part->op];
    const ls_work *work = &m->v.plan->work[part->op];
    if (part->part == LS_TRAFFIC_STATISTICS && work->call.sum[part->norm] != NULL) {
        return NULL;
    }
    if (part->part == LS_TRAFFIC_APPLY && work->call.side[0].kept.half_scale != NULL) {
        return NULL;
    }
    bool inner = part->part == LS_TRAFFIC_PRODUCT_DATA
                     ? op->kind == LS_OP_CONV && ls_gate_used(m->v.plan, op) != NULL
                     : op->kind == LS_OP_NORM && work->call.gated[0] != NULL;
    return inner ? &m->traffic[m->traffic_count + i] : part;
}

/* What the passes of one mark move and compute (kernels/traffic.h). */
static void describe_pass(measuring *m, const ls_op *op, ls_pass *pass)
{
    const ls_lower *lower = &m->v.plan->lower;
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
        const ls_layer *layer = &m->v.network->layer[op->layer >= 0 ? op->layer : op->norm[0]];
        pass->product = ls_plan_is_product(op);
        pass->kind = (ls_pass_kind)kind;
        pass->norm = op->kind == LS_OP_NORM;
        if (op->kind == LS_OP_CONV) {
            static const ls_conv_pass pass_of[] = {[LS_PASS_FORWARD] = LS_CONV_FORWARD,
                                                   [LS_PASS_BACKWARD] = LS_CONV_BACKWARD_WEIGHTS,
                                                   [LS_PASS_DATA] = LS_CONV_BACKWARD_DATA};
            ls_conv_engine_of(ls_plan_work(m->v.plan, op)->conv, pass_of[kind], pass->engine,
                              sizeof pass->engine);
        } else if (op->kind == LS_OP_LINEAR) {
            snprintf(pass->engine, sizeof pass->engine, "cuBLASLt");
        }
        describe_pass(m, op, pass);
        snprintf(pass->name, sizeof pass->name, "%s%s", layer->name, op->relu ? " + relu" : "");
    }
    LS_CUDA(cudaEventRecord(m->mark[m->mark_count++], m->v.stream->native));
    return LS_OK;
}

/* One forward and backward; ms[0] and ms[1] of the halves, and a column with every pass. */
static ls_status step(measuring *m, bool passes, int column, int columns, double halves_ms[2])
{
    m->v.plan->on_pass = passes ? mark_pass : NULL;
    m->v.plan->on_pass_context = m;
    LS_CUDA(cudaEventRecord(m->mark[0], m->v.stream->native));
    m->mark_count = 1;
    LS_TRY(m->v.api->plan_forward_loaded(m->v.plan, m->v.stream, 0));
    int middle = m->mark_count - 1;
    if (!passes) {
        middle = m->mark_count;
        LS_CUDA(cudaEventRecord(m->mark[m->mark_count++], m->v.stream->native));
    }
    LS_TRY(m->v.api->plan_backward(m->v.plan, m->v.stream, 1, NULL, NULL));
    if (!passes) {
        LS_CUDA(cudaEventRecord(m->mark[m->mark_count++], m->v.stream->native));
    }
    LS_TRY(elapsed_ms(m, 0, middle, &halves_ms[0]));
    LS_TRY(elapsed_ms(m, middle, m->mark_count - 1, &halves_ms[1]));
    for (int i = 0; passes && column >= 0 && i < m->mark_count - 1; i++) {
        LS_TRY(elapsed_ms(m, i, i + 1, &m->ms[i * columns + column]));
    }
    m->v.plan->on_pass = NULL;
    return LS_OK;
}

static ls_status measure_steps(measuring *m, const ls_cuda_bound_options *options,
                               ls_step_passes *out)
{
    double forward[REPEATS_MAX], backward[REPEATS_MAX], halves[2];
    LS_TRY(m->v.api->batch_load(m->v.plan, 0, m->v.input, m->v.target));
    LS_TRY(m->v.api->batch_loaded(m->v.plan, 0));
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
    m->mark_room = 3 * m->v.plan->lower.op_count + 3;
    size_t room = (size_t)m->mark_room;
    m->mark = calloc(room, sizeof *m->mark);
    m->pass = calloc(room, sizeof *m->pass);
    m->ms = calloc(room * (size_t)repeats, sizeof *m->ms);
    const ls_lower *lower = &m->v.plan->lower;
    m->traffic = malloc(2 * (size_t)ls_traffic_most(lower) * sizeof *m->traffic);
    LS_TRY_MEMORY(m->mark != NULL && m->pass != NULL && m->ms != NULL && m->traffic != NULL,
                  "%d marks", m->mark_room);
    int channels = ls_work_stored_channels(m->v.plan, lower->op[0].in);
    int ways = m->v.plan->stem_blocks ? LS_TRAFFIC_BLOCKED_STEM : 0;
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
    ls_passes_close(&m->v);
}

static ls_status measure(measuring *m, const ls_backend_options *how,
                         const ls_cuda_bound_options *options, ls_step_passes *out)
{
    ls_plan_info info;
    LS_TRY(ls_passes_open(how, false, &m->v));
    LS_TRY(make_marks(m, options->repeats));
    LS_TRY(measure_steps(m, options, out));
    LS_TRY(measure_convolutions(m, options->repeats, &out->convolutions_ms));
    m->v.api->plan_info(m->v.plan, &info);
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
    measuring m = {.v = {ls_backend_entry(), network, plan}};
    ls_status status = measure(&m, &how, options, &measured);
    release(&m);
    if (status == LS_OK) {
        *out = measured;
    }
    return status;
}
