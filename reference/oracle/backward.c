#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "combine.h"
#include "ops.h"
#include "run.h"

/* Combines r->chunk, the parameter's gradient of every chunk, into the result. */
static void finish_param(ls_run *r, int param, bool product)
{
    const ls_nettab_param *p = &r->net->param[param];
    const ls_oracle_step *step = r->step;
    if (r->result->rank_grad != NULL) {
        for (int64_t c = 0; c < (int64_t)step->world * step->accumulate; c++) {
            float *to = r->result->rank_grad + c % step->world * r->net->elements + p->offset;
            for (int64_t i = 0; i < p->count; i++) {
                to[i] += (float)r->chunk[c * p->count + i];
            }
        }
    }
    ls_combine_chunks(step, r->mode->ideal, product, ls_run_next_noise(r), p->count, r->chunk,
                      r->result->grad + p->offset);
}

static void linear_bias_grad(ls_run *r, const ls_nettab_node *node, const ls_planes *grad)
{
    int64_t count = r->net->param[node->bias].count;
    memset(r->chunk, 0, (size_t)(count * r->step->world * r->step->accumulate) * sizeof *r->chunk);
    for (int64_t n = 0; n < r->samples; n++) {
        int chunk = ls_shards_chunk_of(&r->shards, n);
        for (int64_t c = 0; c < count; c++) {
            r->chunk[chunk * count + c] += grad->value[n * grad->pitch + c];
        }
    }
    finish_param(r, node->bias, true);
}

static ls_status product_backward(ls_run *r, int index, ls_planes *in_grad)
{
    const ls_nettab_node *node = &r->net->node[index];
    ls_products_shape shape = ls_run_products_of(node);
    if (node->kind == LS_NETTAB_LINEAR) {
        linear_bias_grad(r, node, &r->grad[index]);
    }
    LS_TRY(r->products->products_weight_grad(shape, &r->value[node->input], &r->grad[index],
                                             &r->shards, r->chunk));
    finish_param(r, node->weight, true);
    if (node->input == 0) {
        return LS_OK; /* the image's gradient is not needed */
    }
    LS_TRY(ls_run_allocate_like(r, node->input, in_grad));
    LS_TRY(r->products->products_input_grad(shape, &r->grad[index],
                                            ls_run_weights_of(r, node->weight), in_grad));
    ls_run_round_stored(r, r->stored, in_grad);
    return LS_OK;
}

static ls_status norm_backward(ls_run *r, int index, ls_planes *in_grad)
{
    const ls_nettab_node *node = &r->net->node[index];
    int64_t count = r->net->param[node->weight].count, chunks = ls_shards_chunks(&r->shards);
    double *bias_grad = malloc((size_t)(chunks * count) * sizeof *bias_grad);
    if (bias_grad == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "oracle: cannot allocate the sums of %s", node->name);
    }
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, ls_run_allocate_like(r, node->input, in_grad), free_sums);
    LS_TRY_GOTO(status,
                r->norms->norm_backward(&r->value[node->input],
                                        r->step->param + r->net->param[node->weight].offset,
                                        &r->stats[index], &r->shards, r->single, &r->grad[index],
                                        in_grad, r->chunk, bias_grad),
                free_sums);
    ls_run_round_stored(r, r->stored, in_grad);
    finish_param(r, node->weight, false);
    memcpy(r->chunk, bias_grad, (size_t)(chunks * count) * sizeof *bias_grad);
    finish_param(r, node->bias, false);
free_sums:
    free(bias_grad);
    return status;
}

/* Adds `grad` to the gradient of `node`: the first contribution is taken over, a second one is
 * added, rounded and freed. */
static void give(ls_run *r, int node, ls_planes *grad)
{
    if (r->grad[node].value == NULL) {
        r->grad[node] = *grad;
    } else {
        ls_ops_add(&r->grad[node], grad);
        ls_run_round_stored(r, r->stored, &r->grad[node]);
        ls_planes_free(grad);
    }
    grad->value = NULL;
}

static ls_status gradient_of_input(ls_run *r, int index, ls_planes *in_grad)
{
    const ls_nettab_node *node = &r->net->node[index];
    const ls_planes *grad = &r->grad[index];
    switch (node->kind) {
    case LS_NETTAB_CONV:
    case LS_NETTAB_LINEAR:
        return product_backward(r, index, in_grad);
    case LS_NETTAB_NORM:
        return norm_backward(r, index, in_grad);
    case LS_NETTAB_INPUT:
        return LS_OK;
    default:
        break;
    }
    LS_TRY(ls_run_allocate_like(r, node->input, in_grad));
    if (node->kind == LS_NETTAB_RELU) {
        ls_ops_relu(grad, r->taken->open[node->branch], in_grad);
    } else if (node->kind == LS_NETTAB_POOL) {
        ls_ops_pool_grad(grad, r->taken->index[node->branch], in_grad);
        ls_run_round_stored(r, r->stored, in_grad);
    } else if (node->kind == LS_NETTAB_SHORTCUT) {
        ls_ops_shortcut_grad(node, grad, in_grad);
    } else if (node->kind == LS_NETTAB_MEAN) {
        ls_ops_mean_grad(grad, in_grad);
        ls_run_round_stored(r, r->stored, in_grad);
    } else {
        memcpy(in_grad->value, grad->value, (size_t)ls_planes_count(grad) * sizeof(double));
    }
    return LS_OK;
}

ls_status ls_backward_run(ls_run *r)
{
    for (int i = r->net->node_count - 1; i > 0; i--) {
        const ls_nettab_node *node = &r->net->node[i];
        ls_planes in_grad = {0};
        ls_status status = gradient_of_input(r, i, &in_grad);
        if (status != LS_OK) {
            ls_planes_free(&in_grad);
            return status;
        }
        if (in_grad.value != NULL) {
            give(r, node->input, &in_grad);
        }
        if (node->kind == LS_NETTAB_ADD) {
            give(r, node->other, &r->grad[i]);
        }
        ls_planes_free(&r->grad[i]);
        ls_planes_free(&r->value[i]);
        ls_norm_stats_free(&r->stats[i]);
    }
    return LS_OK;
}
