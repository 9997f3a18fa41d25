/* The caller's tensors, and the conversion of weights and their gradients between the caller's
 * order and the products'. If both are the same (one tap per weight, or one input channel; the same
 * type; an address that engines can load from) the tensor itself is the operand. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "plan_parts.h"

enum { OPERAND_ALIGN = 16 }; /* required by cuDNN and cuBLASLt for tensors, in bytes */

/* ---- operands -------------------------------------------------------------------------------- */

static ls_weight weight_of(const ls_plan *plan, const ls_op *op, const ls_tensor *plain,
                           void *packed)
{
    const ls_layer *layer = &plan->network->layer[op->layer];
    return (ls_weight){.plain = *plain,
                       .packed = packed,
                       .out = layer->channels,
                       .in = plan->lower.slot[op->in].channels,
                       .stored_in = ls_work_stored_channels(plan, op->in),
                       .kernel = op->kind == LS_OP_CONV ? layer->kernel : 1};
}

/* Whether a product can read or write the tensor in place. */
static bool serves(const ls_plan *plan, const ls_weight *weight)
{
    bool same_order = weight->in == weight->stored_in && (weight->kernel == 1 || weight->in == 1);
    return same_order && weight->plain.dtype == plan->options.activation &&
           (uintptr_t)weight->plain.data % OPERAND_ALIGN == 0;
}

static const void *choose_operand(ls_plan *plan, const ls_weight *weight, ls_weight *table)
{
    if (serves(plan, weight)) {
        return weight->plain.data;
    }
    int64_t count =
        (int64_t)weight->out * weight->kernel * weight->kernel * (int64_t)weight->stored_in;
    plan->table_most = count > plan->table_most ? count : plan->table_most;
    table[plan->table_count++] = *weight;
    return weight->packed;
}

static void choose_operands(ls_plan *plan, ls_weight *table)
{
    plan->table_count = 0;
    plan->table_most = 0;
    for (int i = 0; i < plan->lower.op_count; i++) {
        const ls_op *op = &plan->lower.op[i];
        if (!ls_plan_is_product(op)) {
            continue;
        }
        const ls_layer *layer = &plan->network->layer[op->layer];
        ls_work *work = &plan->work[i];
        ls_weight weight = weight_of(plan, op, &plan->bound.param[layer->weight], work->packed);
        work->operand = choose_operand(plan, &weight, table);
        if (op->kind == LS_OP_LINEAR) {
            ls_weight bias = {.plain = plan->bound.param[layer->bias],
                              .packed = work->packed_bias,
                              .out = layer->channels,
                              .in = 1,
                              .stored_in = 1,
                              .kernel = 1};
            work->bias = choose_operand(plan, &bias, table);
        }
    }
}

/* ---- binding --------------------------------------------------------------------------------- */

static size_t table_bytes(const ls_plan *plan)
{
    return 2 * (size_t)plan->lower.op_count *
           sizeof *plan->table; /* one weight and one bias each */
}

ls_status ls_bind_create(ls_plan *plan)
{
    plan->host_table = calloc(1, table_bytes(plan));
    LS_TRY_MEMORY(plan->host_table != NULL, "a table of weights: %zu bytes", table_bytes(plan));
    void *table = NULL;
    LS_TRY(ls_cuda_take((int64_t)table_bytes(plan), "a table of weights", &table));
    plan->table = table;
    LS_CUDA(cudaEventCreateWithFlags(&plan->packed, cudaEventDisableTiming));
    return LS_OK;
}

void ls_bind_destroy(ls_plan *plan)
{
    if (plan->packed != NULL) {
        cudaEventDestroy(plan->packed);
    }
    ls_cuda_give(plan->table);
    free(plan->host_table);
}

static bool same_table(const ls_weight *a, const ls_weight *b, int count)
{
    for (int i = 0; i < count; i++) {
        if (a[i].packed != b[i].packed || a[i].plain.data != b[i].plain.data ||
            a[i].plain.dtype != b[i].plain.dtype) {
            return false;
        }
    }
    return true;
}

/* Gradients move with their buckets, but parameters seldom do: usually the table is up to date. */
static ls_status upload_table(ls_plan *plan)
{
    size_t most = table_bytes(plan);
    ls_weight *table = calloc(1, most);
    LS_TRY_MEMORY(table != NULL, "a table of weights: %zu bytes", most);
    int count = plan->table_count;
    choose_operands(plan, table);
    ls_status status = LS_OK;
    cudaStream_t copy = plan->backend->copy;
    if (count != plan->table_count || !same_table(table, plan->host_table, count)) {
        memcpy(plan->host_table, table, most);
        LS_TRY_GOTO(status, ls_cuda_wait_event(plan->backend, plan->packed), release);
        LS_TRY_GOTO(status,
                    ls_cuda_check(cudaMemcpyAsync(plan->table, plan->host_table, most,
                                                  cudaMemcpyHostToDevice, copy),
                                  "cudaMemcpyAsync of the table of weights", __FILE__, __LINE__),
                    release);
        LS_TRY_GOTO(status, ls_cuda_wait_stream(plan->backend, copy), release);
    }
release:
    free(table);
    return status;
}

ls_status ls_bind_tensors(ls_plan *plan, const ls_plan_binding *binding)
{
    LS_TRY(ls_plan_tensors_bind(plan->network, binding, &plan->bound));
    for (int i = 0; i < plan->lower.op_count; i++) {
        if (plan->lower.op[i].kind == LS_OP_NORM) {
            ls_norm_prepare(plan, &plan->lower.op[i]);
        }
    }
    return upload_table(plan);
}

/* ---- every step ------------------------------------------------------------------------------ */

ls_status ls_bind_pack(ls_plan *plan, cudaStream_t stream)
{
    if (plan->table_count == 0) {
        return LS_OK;
    }
    LS_TRY(ls_weights_pack(stream, plan->options.activation, plan->table, plan->table_count,
                           plan->table_most));
    return ls_cuda_mark_event(stream, plan->packed);
}

static ls_weight gradient_of(const ls_plan *plan, const ls_op *op)
{
    int weight = plan->network->layer[op->layer].weight;
    return weight_of(plan, op, &plan->bound.grad[weight], plan->packed_gradient);
}

void *ls_bind_gradient(const ls_plan *plan, const ls_op *op)
{
    ls_weight gradient = gradient_of(plan, op);
    return serves(plan, &gradient) ? gradient.plain.data : gradient.packed;
}

ls_status ls_bind_store_gradient(ls_plan *plan, cudaStream_t stream, const ls_op *op)
{
    ls_weight gradient = gradient_of(plan, op);
    if (serves(plan, &gradient)) {
        return LS_OK;
    }
    return ls_weights_unpack(stream, plan->options.activation, &gradient);
}
