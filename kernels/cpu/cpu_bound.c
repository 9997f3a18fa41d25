#include <dnnl.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/half.h"
#include "kernels/core/sort.h"
#include "kernels/core/log.h"
#include "kernels/passes.h"
#include "plan_parts.h"

static ls_status run_once(ls_plan *plan)
{
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (op->kind == LS_OP_CONV) {
            LS_TRY(ls_conv_product_only(ls_plan_work(plan, op)->conv, LS_DNN_FORWARD,
                                        ls_plan_at(plan, op->in), ls_plan_at(plan, op->out)));
        }
    }
    for (int i = plan->lower.op_count - 1; i >= 0; i--) {
        const ls_op *op = &plan->lower.op[i];
        if (op->kind != LS_OP_CONV) {
            continue;
        }
        LS_TRY(ls_conv_product_only(ls_plan_work(plan, op)->conv, LS_DNN_BACKWARD_WEIGHTS,
                                    ls_plan_at(plan, op->in), ls_plan_grad(plan, op->g)));
        if (op->dx != LS_NO_BUFFER) {
            LS_TRY(ls_conv_product_only(ls_plan_work(plan, op)->conv, LS_DNN_BACKWARD_DATA,
                                        ls_plan_grad(plan, op->dx), ls_plan_grad(plan, op->g)));
        }
    }
    return LS_OK;
}

/* Nonzero values, because a processor draws less power on zeros and clocks higher. */
static void fill(float *value, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        value[i] = ls_passes_number(i);
    }
}

static void fill_arena(const ls_arena *arena, ls_dtype type)
{
    if (type == LS_F32) {
        fill((float *)(void *)arena->base, arena->bytes / sizeof(float));
        return;
    }
    uint16_t *value = (uint16_t *)(void *)arena->base;
    for (size_t i = 0; i < arena->bytes / sizeof *value; i++) {
        value[i] = type == LS_F16 ? ls_half_f32_to_fp16(ls_passes_number(i))
                                  : ls_half_f32_to_bf16(ls_passes_number(i));
    }
}

/* The first convolution that converts its operands, or NULL. */
static const ls_layer *not_direct(const ls_plan *plan)
{
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (op->kind == LS_OP_CONV && !ls_conv_is_direct(ls_plan_work(plan, op)->conv)) {
            return &plan->network->layer[op->layer];
        }
    }
    return NULL;
}

ls_status ls_cpu_plan_convolutions_ms(ls_plan *plan, int repeats, double *ms_median)
{
    if (not_direct(plan) != NULL) {
        *ms_median = NAN;
        return LS_OK;
    }
    double *ms = malloc((size_t)repeats * sizeof *ms);
    LS_TRY_MEMORY(ms != NULL, "%d repeats", repeats);
    fill_arena(&plan->activations, plan->options.activation);
    fill_arena(&plan->gradients, plan->options.activation);
    fill_arena(&plan->packed, plan->options.activation);
    ls_status status = run_once(plan);
    for (int i = 0; i < repeats && status == LS_OK; i++) {
        int64_t start = ls_clock_ns();
        status = run_once(plan);
        ms[i] = ls_clock_ms_between(start, ls_clock_ns());
    }
    if (status == LS_OK) {
        *ms_median = ls_sort_median(ms, repeats);
    }
    free(ms);
    return status;
}

ls_status ls_cpu_convolutions_ms(const ls_network *network, const ls_plan_options *options,
                                 int threads, int repeats, double *ms_median)
{
    if (repeats < 1) {
        return ls_log_fail(LS_ERR_USAGE, "repeats %d: at least 1", repeats);
    }
    const ls_backend_api *api = ls_backend_entry();
    ls_backend_options how = {.threads = threads, .local_ranks = 1};
    ls_plan_options plain = *options;
    plain.norm_sync = NULL;
    ls_backend *backend = NULL;
    LS_TRY(api->open(&how, &backend));
    if (!ls_backend_is_native(backend, plain.activation)) {
        plain.activation = LS_F32;
    }
    ls_plan *plan = NULL;
    ls_status status = api->plan_create(backend, network, &plain, &plan);
    if (status == LS_OK) {
        const ls_layer *layer = not_direct(plan);
        status = layer == NULL ? ls_cpu_plan_convolutions_ms(plan, repeats, ms_median)
                               : ls_log_fail(LS_ERR_UNSUPPORTED,
                                             "no bound in %s: layer %s is multiplied in f32",
                                             ls_dtype_label(options->activation), layer->name);
        api->plan_destroy(plan);
    }
    api->close(backend);
    return status;
}

/* ---- rates of the machine, without a network ------------------------------------------------- */

enum {
    REPEATS = 5,
    SIDE = 1024, /* of the matrices: 12 MB; long enough for a rate, short enough to wait for */
    COPY_BYTES = 256 << 20, /* well beyond any cache of a socket */
};

/* Every thread copies its own part, so that its pages are near the thread that uses them. */
static double copy_seconds(char *to, const char *from, int threads)
{
    int64_t start_ns = ls_clock_ns();
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int part = 0; part < threads; part++) {
        size_t first = (size_t)COPY_BYTES / (size_t)threads * (size_t)part;
        size_t last = part == threads - 1
                          ? (size_t)COPY_BYTES
                          : (size_t)COPY_BYTES / (size_t)threads * (size_t)(part + 1);
        memcpy(to + first, from + first, last - first);
    }
    return ls_clock_ms_between(start_ns, ls_clock_ns()) * 1e-3;
}

static ls_status measure_copy(int threads, double *bytes_per_s)
{
    char *from = malloc(COPY_BYTES), *to = malloc(COPY_BYTES);
    double seconds[REPEATS];
    if (from == NULL || to == NULL) {
        ls_log_error("no memory to measure copies of %d bytes", (int)COPY_BYTES);
        free(from);
        free(to);
        return LS_ERR_INFRA;
    }
    memset(from, 1, COPY_BYTES);
    (void)copy_seconds(to, from, threads); /* creates its pages */
    for (int i = 0; i < REPEATS; i++) {
        seconds[i] = copy_seconds(to, from, threads);
    }
    *bytes_per_s = 2.0 * COPY_BYTES / ls_sort_median(seconds, REPEATS);
    free(from);
    free(to);
    return LS_OK;
}

static ls_status multiply(const float *a, const float *b, float *c)
{
    dnnl_status_t status =
        dnnl_sgemm('N', 'N', SIDE, SIDE, SIDE, 1.0f, a, SIDE, b, SIDE, 0.0f, c, SIDE);
    if (status != dnnl_success) {
        return ls_log_fail(LS_ERR_INFRA, "dnnl_sgemm of %d x %d matrices: status %d", SIDE, SIDE,
                           (int)status);
    }
    return LS_OK;
}

static ls_status measure_matrix(int threads, double *flop_per_s)
{
    size_t count = (size_t)SIDE * SIDE;
    float *value = malloc(3 * count * sizeof *value);
    double seconds[REPEATS];
    LS_TRY_MEMORY(value != NULL, "three matrices of %d x %d", SIDE, SIDE);
    fill(value, 3 * count);
    omp_set_num_threads(threads);
    ls_status status = multiply(value, value + count, value + 2 * count);
    for (int i = 0; i < REPEATS && status == LS_OK; i++) {
        int64_t start_ns = ls_clock_ns();
        status = multiply(value, value + count, value + 2 * count);
        seconds[i] = ls_clock_ms_between(start_ns, ls_clock_ns()) * 1e-3;
    }
    if (status == LS_OK) {
        *flop_per_s = 2.0 * SIDE * SIDE * SIDE / ls_sort_median(seconds, REPEATS);
    }
    free(value);
    return status;
}

/* Sets the rate of products of a half type on the processor's units; NaN: it has none. */
static ls_status measure_half(int threads, ls_dtype type, double *flop_per_s)
{
    static const ls_dnn_shape shape = {
        .batch = SIDE, .in_channels = SIDE, .out_channels = SIDE, .matrix = true};
    const ls_dnn_types types = {type, type, type};
    *flop_per_s = NAN;
    if (ls_dnn_half_units(type) == NULL) {
        return LS_OK;
    }
    omp_set_num_threads(threads);
    ls_dnn *dnn = NULL;
    ls_dnn_product *product = NULL;
    void *memory = NULL;
    double seconds[REPEATS];
    LS_TRY(ls_dnn_open(&dnn));
    ls_status status = ls_dnn_product_create(dnn, &shape, LS_DNN_FORWARD, 1, 1, &types, &product);
    if (status != LS_OK) {
        ls_dnn_close(dnn);
        return status == LS_ERR_UNSUPPORTED ? LS_OK : status;
    }
    const ls_dnn_product_info *info = ls_dnn_product_about(product);
    ls_arena arena = {0};
    size_t matrix = (size_t)SIDE * SIDE * ls_dtype_bytes(type);
    size_t in = ls_arena_reserve(&arena, matrix), to = ls_arena_reserve(&arena, matrix);
    size_t weight = ls_arena_reserve(&arena, info->weight_bytes);
    size_t scratch = ls_arena_reserve(&arena, info->scratch_bytes);
    LS_TRY_GOTO(status, ls_memory_take((int64_t)arena.bytes, "three matrices", &memory), destroy);
    arena.base = memory;
    fill_arena(&arena, type);
    for (int i = -1; i < REPEATS && status == LS_OK; i++) {
        int64_t start_ns = ls_clock_ns();
        status = ls_dnn_product_run(product, arena.base + in, arena.base + weight, arena.base + to,
                                    arena.base + scratch);
        seconds[i < 0 ? 0 : i] = ls_clock_ms_between(start_ns, ls_clock_ns()) * 1e-3;
    }
    if (status == LS_OK) {
        *flop_per_s = 2.0 * SIDE * SIDE * SIDE / ls_sort_median(seconds, REPEATS);
    }
    ls_memory_give(memory);
destroy:
    ls_dnn_product_destroy(product);
    ls_dnn_close(dnn);
    return status;
}

ls_status ls_cpu_rates(int threads, ls_cpu_rates_measured *out)
{
    if (threads < 1) {
        return ls_log_fail(LS_ERR_USAGE, "threads %d: at least 1", threads);
    }
    ls_cpu_rates_measured measured = {0};
    LS_TRY(measure_copy(threads, &measured.copy_bytes_per_s));
    LS_TRY(measure_matrix(threads, &measured.matrix_flop_per_s));
    LS_TRY(measure_half(threads, LS_BF16, &measured.bf16_flop_per_s));
    LS_TRY(measure_half(threads, LS_F16, &measured.f16_flop_per_s));
    *out = measured;
    return LS_OK;
}
