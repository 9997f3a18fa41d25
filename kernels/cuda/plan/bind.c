/* The caller's tensors, and the conversion of weights and their gradients between the caller's
 * order and the products'. If both are the same (one tap per weight, or one input channel; the same
 * type; an address that engines can load from) the tensor itself is the operand. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "plan_internal.h"

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
                       .kernel = op->kind == LS_OP_CONV ? layer->kernel : 1,
                       .stem_blocks = ls_work_reads_blocks(plan, op)};
}

/* Whether a product can read or write the tensor in place. */
static bool serves(const ls_plan *plan, const ls_weight *weight)
{
    bool same_order = weight->in == weight->stored_in && (weight->kernel == 1 || weight->in == 1);
    return same_order && weight->plain.dtype == plan->options.activation &&
           (uintptr_t)weight->plain.data % OPERAND_ALIGN == 0;
}

/* The tensor itself, or its memory in the product's order: then it is converted with the table. */
static void *choose_operand(const ls_plan *plan, const ls_weight *weight, ls_weight_table *table)
{
    if (serves(plan, weight)) {
        return weight->plain.data;
    }
    int64_t elements = ls_weight_packed_count(weight);
    table->most = elements > table->most ? elements : table->most;
    table->host[table->count++] = *weight;
    return weight->packed;
}

static void choose_operands(ls_plan *plan, ls_weight_table *table)
{
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

/* In the order of backward, so that the gradients of a group stand side by side. */
static void choose_gradients(ls_plan *plan, ls_weight_table *table)
{
    for (int i = plan->lower.op_count - 1; i >= 0; i--) {
        const ls_op *op = &plan->lower.op[i];
        if (ls_plan_is_product(op)) {
            ls_work *work = &plan->work[i];
            const ls_tensor *grad = &plan->bound.grad[plan->network->layer[op->layer].weight];
            ls_weight weight = weight_of(plan, op, grad, work->packed_dw);
            work->dw = choose_operand(plan, &weight, table);
        }
    }
}

/* ---- binding --------------------------------------------------------------------------------- */

static size_t table_bytes(const ls_plan *plan)
{
    return 2 * (size_t)plan->lower.op_count *
           sizeof(ls_weight); /* one weight and one bias each, or one gradient */
}

static ls_status create_table(const ls_plan *plan, ls_weight_table *table)
{
    table->host = calloc(1, table_bytes(plan));
    LS_TRY_MEMORY(table->host != NULL, "a table of weights: %zu bytes", table_bytes(plan));
    void *memory = NULL;
    LS_TRY(ls_cuda_take((int64_t)table_bytes(plan), "a table of weights", &memory));
    table->at = memory;
    return LS_OK;
}

ls_status ls_bind_create(ls_plan *plan)
{
    LS_TRY(create_table(plan, &plan->packing));
    LS_TRY(create_table(plan, &plan->unpacking));
    LS_CUDA(cudaEventCreateWithFlags(&plan->tables_read, cudaEventDisableTiming));
    return LS_OK;
}

void ls_bind_destroy(ls_plan *plan)
{
    if (plan->tables_read != NULL) {
        cudaEventDestroy(plan->tables_read);
    }
    ls_cuda_give(plan->packing.at);
    ls_cuda_give(plan->unpacking.at);
    free(plan->packing.host);
    free(plan->unpacking.host);
}

static bool same_table(const ls_weight_table *a, const ls_weight_table *b)
{
    for (int i = 0; i < a->count && a->count == b->count; i++) {
        if (a->host[i].packed != b->host[i].packed ||
            a->host[i].plain.data != b->host[i].plain.data ||
            a->host[i].plain.dtype != b->host[i].plain.dtype) {
            return false;
        }
    }
    return a->count == b->count;
}

/* Gradients move with their buckets, but seldom, and parameters hardly ever: usually a table is up
 * to date. */
static ls_status upload_table(ls_plan *plan, ls_weight_table *table,
                              void (*choose)(ls_plan *plan, ls_weight_table *table))
{
    ls_weight_table now = {.at = table->at, .host = calloc(1, table_bytes(plan))};
    LS_TRY_MEMORY(now.host != NULL, "a table of weights: %zu bytes", table_bytes(plan));
    choose(plan, &now);
    ls_status status = LS_OK;
    cudaStream_t copy = plan->backend->copy;
    if (same_table(&now, table)) {
        goto release;
    }
    memcpy(table->host, now.host, table_bytes(plan));
    table->count = now.count;
    table->most = now.most;
    LS_TRY_GOTO(status, ls_cuda_wait_event(plan->backend, plan->tables_read), release);
    LS_TRY_GOTO(status,
                ls_cuda_check(cudaMemcpyAsync(table->at, table->host, table_bytes(plan),
                                              cudaMemcpyHostToDevice, copy),
                              "cudaMemcpyAsync of a table of weights", __FILE__, __LINE__),
                release);
    LS_TRY_GOTO(status, ls_cuda_wait_stream(plan->backend, copy), release);
release:
    free(now.host);
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
    ls_plan_ready_group(&plan->ready, binding->group);
    LS_TRY(upload_table(plan, &plan->packing, choose_operands));
    return upload_table(plan, &plan->unpacking, choose_gradients);
}

/* ---- every step ------------------------------------------------------------------------------ */

ls_status ls_bind_pack(ls_plan *plan, cudaStream_t stream)
{
    const ls_weight_table *table = &plan->packing;
    if (table->count == 0) {
        return LS_OK;
    }
    LS_TRY(ls_weights_pack(stream, plan->options.activation, table->at, table->count, table->most));
    return ls_cuda_mark_event(stream, plan->tables_read);
}

bool ls_bind_packs_gradient(const ls_plan *plan, const ls_op *op)
{
    const ls_work *work = ls_plan_work(plan, op);
    return work->dw == work->packed_dw;
}

ls_status ls_bind_unpack(ls_plan *plan, cudaStream_t stream)
{
    const ls_weight_table *table = &plan->unpacking;
    LS_TRY(ls_weights_unpack(stream, plan->options.activation, table->at + plan->unpacked,
                             plan->computed - plan->unpacked, table->most));
    return ls_cuda_mark_event(stream, plan->tables_read);
}
