#include <stdlib.h>

#include "kernels/core/clock.h"
#include "kernels/core/sort.h"
#include "kernels/core/log.h"
#include "bound.h"
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
static void fill(ls_arena *arena)
{
    float *value = (float *)(void *)arena->base;
    for (size_t i = 0; i < arena->bytes / sizeof *value; i++) {
        value[i] = (float)((i * 2654435761u >> 8) & 0xffff) * 0x1p-16f - 0.5f;
    }
}

static ls_status measure(ls_plan *plan, int repeats, double *ms_median)
{
    double *ms = malloc((size_t)repeats * sizeof *ms);
    LS_TRY_MEMORY(ms != NULL, "%d repeats", repeats);
    fill(&plan->activations);
    fill(&plan->gradients);
    fill(&plan->packed);
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
    plain.activation = LS_F32;
    plain.norm_sync = NULL;
    ls_backend *backend = NULL;
    LS_TRY(api->open(&how, &backend));
    ls_plan *plan = NULL;
    ls_status status = api->plan_create(backend, network, &plain, &plan);
    if (status == LS_OK) {
        status = measure(plan, repeats, ms_median);
        api->plan_destroy(plan);
    }
    api->close(backend);
    return status;
}
