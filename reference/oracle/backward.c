#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "run.h"

/* ---- one gradient from the chunks ------------------------------------------------------------ */

/* Combines the gradients of all ranks and micro-steps into the one that the optimizer reads
 * (numerics.md section 2, points 4 and 5, and accumulation). */
/* Storage types on a gradient's way. */
typedef struct route {
    ls_bits_type made; /* result of the layer's backward */
    ls_bits_type own;  /* the gradient's tensor */
    ls_bits_type wire; /* the type of the reduction */
} route;

static route route_of(const ls_oracle_step *step, bool product)
{
    route r = {LS_BITS_F32, LS_BITS_F32, LS_BITS_F32};
    if (product && step->level >= 1) {
        r.made = step->half;
    }
    if (step->level == 3 || (step->level == 2 && product)) {
        r.made = step->half;
        r.own = step->half;
    }
    r.wire = r.own;
    if (step->reduce != LS_BITS_F64 && (r.own == LS_BITS_F32 || step->reduce == LS_BITS_F32)) {
        r.wire = step->reduce; /* --compress applies to f32 gradients; half ones keep their type */
    }
    return r;
}

/* One element as a rank contributes it to a reduction: micro-steps `from` to `to` - 1 on top of
 * `held`, summed in f32. */
static double local_of(const ls_oracle_step *step, const double *chunk, int64_t count, int rank,
                       int64_t i, int from, int to, double held)
{
    double sum = held;
    for (int64_t a = from; a < to; a++) {
        double more = chunk[(a * step->world + rank) * count + i];
        sum = a == 0 ? more : ls_bits_round(LS_BITS_F32, sum + more);
    }
    return sum;
}

/* The average of one element over the ranks, in the gradient's own type. */
static double averaged_of(const ls_oracle_step *step, route r, const double *chunk, int64_t count,
                          int64_t i, int from, int to, double held)
{
    double before = 1, after = 1, world = ls_oracle_divisor(step);
    if (step->average == LS_ORACLE_DIVIDE_THEN_SUM) {
        before = 1 / world;
    } else if (step->average == LS_ORACLE_SUM_THEN_DIVIDE) {
        before = 1 / step->predivide;
        after = step->predivide / world;
    } else {
        before = 1 / step->predivide;
        after = step->predivide;
    }
    before = ls_bits_round(LS_BITS_F32, before);
    after = ls_bits_round(LS_BITS_F32, after);
    double sum = 0;
    for (int rank = 0; rank < step->world; rank++) {
        double local = ls_bits_round(r.own, local_of(step, chunk, count, rank, i, from, to, held));
        local = ls_bits_round(r.wire, ls_bits_round(r.wire, local) * before);
        sum = rank == 0 ? local : ls_bits_round(r.wire, sum + local);
    }
    return ls_bits_round(r.own, ls_bits_round(r.wire, sum * after));
}

static double reduced_of(const ls_oracle_step *step, route r, const double *chunk, int64_t count,
                         int64_t i)
{
    double held = 0;
    int each = step->reduces_each ? 1 : step->accumulate;
    for (int from = 0; from < step->accumulate; from += each) {
        held = averaged_of(step, r, chunk, count, i, from, from + each, held);
    }
    double inverse = ls_bits_round(LS_BITS_F32, 1 / step->loss_scale);
    return ls_bits_round(LS_BITS_F32, held * inverse);
}

static double mean_of(const ls_oracle_step *step, const double *chunk, int64_t count, int64_t i)
{
    double sum = 0;
    for (int64_t c = 0; c < (int64_t)step->world * step->accumulate; c++) {
        sum += chunk[c * count + i];
    }
    return step->average == LS_ORACLE_SUM ? sum : sum / ls_oracle_divisor(step);
}

/* chunk[A*W][count], chunk a*W+r: gradients of loss*S/A summed in FP64; modified. product: of a
 * convolution or linear layer, not of batch norm. ideal false: the plain mean. out[count]. */
static void combine_chunks(const ls_oracle_step *step, bool ideal, bool product, ls_run_noise noise,
                           int64_t count, double *chunk, double *out)
{
    route r = route_of(step, product);
    if (ideal) {
        ls_run_store(r.made, noise, count * step->world * step->accumulate, chunk);
    }
#pragma omp parallel for if (count > 1 << 14)
    for (int64_t i = 0; i < count; i++) {
        out[i] = ideal ? reduced_of(step, r, chunk, count, i) : mean_of(step, chunk, count, i);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

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
    combine_chunks(step, r->mode->ideal, product, ls_run_next_noise(r), p->count, r->chunk,
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
    ls_loops_shape shape = ls_run_products_of(node);
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
    LS_MEMORY(bias_grad != NULL);
    ls_status status = ls_run_allocate_like(r, node->input, in_grad);
    LS_THEN(status, r->norms->norm_backward(&r->value[node->input],
                                            r->step->param + r->net->param[node->weight].offset,
                                            &r->stats[index], &r->shards, r->single,
                                            &r->grad[index], in_grad, r->chunk, bias_grad));
    if (status == LS_OK) {
        ls_run_round_stored(r, r->stored, in_grad);
        finish_param(r, node->weight, false);
        memcpy(r->chunk, bias_grad, (size_t)(chunks * count) * sizeof *bias_grad);
        finish_param(r, node->bias, false);
    }
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
        ls_planes_add(&r->grad[node], grad);
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
        ls_planes_relu(grad, r->taken->open[node->branch], in_grad);
    } else if (node->kind == LS_NETTAB_POOL) {
        ls_planes_pool_grad(grad, r->taken->index[node->branch], in_grad);
        ls_run_round_stored(r, r->stored, in_grad);
    } else if (node->kind == LS_NETTAB_SHORTCUT) {
        ls_planes_shortcut_grad(node, grad, in_grad);
    } else if (node->kind == LS_NETTAB_MEAN) {
        ls_planes_mean_grad(grad, in_grad);
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
