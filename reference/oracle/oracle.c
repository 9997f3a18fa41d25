#include "oracle.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/core/log.h"
#include "combine.h"
#include "loops.h"
#include "norm.h"
#include "ops.h"
#include "planes.h"
#include "products.h"
#include "settle.h"
#include "ties.h"

/* A step that is running. */
typedef struct run {
    const ls_oracle_step *step;
    const ls_oracle_mode *mode;
    const ls_nettab *net;
    ls_oracle_result *result;
    const ls_loops *products, *norms; /* where they run */
    ls_shards shards;
    int samples;                /* of all ranks and micro-steps */
    ls_bits_type stored;        /* activations and their gradients; F64 unless ideal */
    ls_bits_type single;        /* what is f32 at every level; F64 unless ideal */
    ls_branch_set own;          /* filled unless forced */
    const ls_branch_set *taken; /* own or forced */
    uint64_t arrays;            /* settled so far: the noise's number */
    double *weight; /* [largest parameter] one product's weights as the operation reads them */
    double *chunk;  /* [A*W][largest parameter] gradients of one parameter */
    int last_reader[LS_NETTAB_NODES_MAX];
    bool read_backward[LS_NETTAB_NODES_MAX]; /* a reader's backward needs this node's value */
    ls_planes value[LS_NETTAB_NODES_MAX];
    ls_planes grad[LS_NETTAB_NODES_MAX];
    ls_norm_stats stats[LS_NETTAB_NODES_MAX];
} run;

static ls_settle_noise next_noise(run *r)
{
    return (ls_settle_noise){r->mode->noise_seed, ++r->arrays};
}

static void settle(run *r, ls_bits_type type, ls_planes *planes)
{
    ls_settle_values(type, next_noise(r), ls_planes_count(planes), planes->value);
}

static ls_status allocate_like(const run *r, int node, ls_planes *out)
{
    const ls_nettab_node *shape = &r->net->node[node];
    return ls_planes_allocate(r->samples, shape->height, shape->width, shape->channels, out);
}

static ls_products_shape products_of(const ls_nettab_node *node)
{
    return node->kind == LS_NETTAB_LINEAR
               ? (ls_products_shape){1, 1, 0}
               : (ls_products_shape){node->kernel, node->stride, node->pad};
}

/* A product's weights: O1 casts them to half for the operation, at the other levels they have the
 * type. */
static const double *weights_of(run *r, int param)
{
    const double *held = r->step->param + r->net->param[param].offset;
    if (!r->mode->ideal || r->step->level == 0) {
        return held;
    }
    memcpy(r->weight, held, (size_t)r->net->param[param].count * sizeof *held);
    ls_settle_values(r->step->half, (ls_settle_noise){0, 0}, r->net->param[param].count, r->weight);
    return r->weight;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Whose sample n is, and its place among that rank's A*N. */
typedef struct place {
    int rank;
    int64_t own;
} place;

static place place_of(const run *r, int64_t n)
{
    int chunk = ls_shards_chunk_of(&r->shards, n), rank = chunk % r->step->world;
    return (place){rank, (int64_t)(chunk / r->step->world) * r->step->batch[rank] + n -
                             ls_shards_first(&r->shards, chunk)};
}

static void read_input(run *r, ls_planes *out)
{
    const ls_oracle_step *step = r->step;
    int64_t plane = (int64_t)out->height * out->width;
    for (int64_t n = 0; n < r->samples; n++) {
        place at = place_of(r, n);
        const float *from = step->input[at.rank] + at.own * 3 * plane;
        for (int64_t p = 0; p < plane; p++) {
            for (int c = 0; c < 3; c++) {
                out->value[(n * plane + p) * out->pitch + c] = from[c * plane + p];
            }
        }
    }
    settle(r, r->stored, out);
}

static ls_status forward_linear_bias(run *r, const ls_nettab_node *node, ls_planes *out)
{
    const double *bias = weights_of(r, node->bias);
    for (int64_t n = 0; n < r->samples; n++) {
        for (int c = 0; c < out->channels; c++) {
            out->value[n * out->pitch + c] += bias[c];
        }
    }
    return LS_OK;
}

static ls_status forward_branch(run *r, const ls_nettab_node *node, ls_planes *in, ls_planes *out)
{
    int b = node->branch;
    bool pool = node->kind == LS_NETTAB_POOL;
    if (r->mode->keep_input) {
        int64_t count = ls_planes_count(in);
        float *kept = malloc((size_t)count * sizeof *kept);
        if (kept == NULL) {
            ls_log_error("oracle: cannot keep %lld values of %s", (long long)count, node->name);
            return LS_ERR_INFRA;
        }
        for (int64_t i = 0; i < count; i++) {
            kept[i] = (float)in->value[i];
        }
        r->result->kept_input[b] = kept;
    }
    if (r->mode->forced == NULL && pool) {
        ls_ops_pool_branches(node, in, r->own.index[b]);
    } else if (r->mode->forced == NULL) {
        ls_ops_relu_branches(in, r->own.open[b]);
    } else {
        LS_TRY(ls_ties_look(r->step, r->mode, node, in, r->result));
    }
    if (pool) {
        ls_ops_pool(in, r->taken->index[b], out);
    } else {
        ls_ops_relu(in, r->taken->open[b], out);
    }
    return LS_OK;
}

static void keep_statistics(run *r, int index)
{
    const ls_norm_stats *stats = &r->stats[index];
    int channels = r->net->node[index].channels;
    double *mean = r->result->stats + ls_oracle_stats_of(r->step, index);
    double *variance = mean + (int64_t)stats->groups * channels;
    int pitch = ls_planes_round_up(channels, LS_PLANES_LANES);
    for (int g = 0; g < stats->groups; g++) {
        for (int c = 0; c < channels; c++) {
            double inv_std = stats->inv_std[g * pitch + c];
            mean[g * channels + c] = stats->mean[g * pitch + c];
            variance[g * channels + c] = 1 / (inv_std * inv_std) - LS_NORM_EPSILON;
        }
    }
}

static ls_status forward_node(run *r, int index)
{
    const ls_nettab_node *node = &r->net->node[index];
    ls_planes *out = &r->value[index];
    ls_planes *in = node->input >= 0 ? &r->value[node->input] : NULL;
    const double *param = r->step->param;
    LS_TRY(allocate_like(r, index, out));
    switch (node->kind) {
    case LS_NETTAB_INPUT:
        read_input(r, out);
        return LS_OK;
    case LS_NETTAB_CONV:
        LS_TRY(
            r->products->products_forward(products_of(node), in, weights_of(r, node->weight), out));
        break;
    case LS_NETTAB_LINEAR:
        LS_TRY(
            r->products->products_forward(products_of(node), in, weights_of(r, node->weight), out));
        LS_TRY(forward_linear_bias(r, node, out));
        break;
    case LS_NETTAB_NORM:
        r->stats[index].form = r->mode->norm;
        LS_TRY(r->norms->norm_forward(in, param + r->net->param[node->weight].offset,
                                      param + r->net->param[node->bias].offset, &r->shards,
                                      r->step->stat_ranks, r->single, &r->stats[index], out));
        keep_statistics(r, index);
        break;
    case LS_NETTAB_RELU:
    case LS_NETTAB_POOL:
        return forward_branch(r, node, in, out);
    case LS_NETTAB_ADD:
        memcpy(out->value, in->value, (size_t)ls_planes_count(in) * sizeof(double));
        ls_ops_add(out, &r->value[node->other]);
        break;
    case LS_NETTAB_SHORTCUT:
        ls_ops_shortcut(in, node->stride, out);
        return LS_OK;
    case LS_NETTAB_MEAN:
        ls_ops_mean(in, out);
        break;
    }
    settle(r, r->stored, out);
    return LS_OK;
}

static void find_readers(run *r)
{
    for (int i = 1; i < r->net->node_count; i++) {
        const ls_nettab_node *node = &r->net->node[i];
        r->last_reader[node->input] = i;
        if (node->kind == LS_NETTAB_CONV || node->kind == LS_NETTAB_LINEAR ||
            node->kind == LS_NETTAB_NORM) {
            r->read_backward[node->input] = true;
        }
        if (node->other >= 0) {
            r->last_reader[node->other] = i;
        }
    }
}

static ls_status forward(run *r)
{
    find_readers(r);
    for (int i = 0; i < r->net->node_count; i++) {
        LS_TRY(forward_node(r, i));
        for (int j = 0; j < i; j++) {
            if (r->last_reader[j] == i && !r->read_backward[j]) {
                ls_planes_free(&r->value[j]);
            }
        }
    }
    return LS_OK;
}

/* ---- loss ------------------------------------------------------------------------------------ */

static ls_status loss(run *r)
{
    const ls_oracle_step *step = r->step;
    int last = r->net->node_count - 1, classes = r->net->classes;
    const ls_planes *logits = &r->value[last];
    ls_planes *grad = &r->grad[last];
    int64_t *target = malloc((size_t)r->samples * sizeof *target);
    double *each = malloc(2 * (size_t)r->samples * sizeof *each);
    ls_status status = LS_OK;
    if (target == NULL || each == NULL) {
        ls_log_error("oracle: cannot allocate %d targets", r->samples);
        status = LS_ERR_INFRA;
        goto free_all;
    }
    double *factor = each + r->samples;
    double scale = r->mode->ideal ? step->loss_scale : 1.0;
    for (int64_t n = 0; n < r->samples; n++) {
        place at = place_of(r, n);
        target[n] = step->target[at.rank][at.own];
        factor[n] = scale / step->batch[at.rank] / step->accumulate;
        if (target[n] < 0 || target[n] >= classes) {
            ls_log_error("oracle: rank %d sample %lld has class %lld of %d", at.rank,
                         (long long)at.own, (long long)target[n], classes);
            status = LS_ERR_USAGE;
            goto free_all;
        }
        int64_t before = step->accumulate * ls_shards_batches(&r->shards, 0, at.rank);
        memcpy(r->result->logits + (before + at.own) * classes, logits->value + n * logits->pitch,
               (size_t)classes * sizeof(double));
    }
    LS_TRY_GOTO(status, allocate_like(r, last, grad), free_all);
    ls_ops_cross_entropy(logits, target, factor, each, grad);
    settle(r, r->single, grad);
    settle(r, r->stored, grad);
    for (int64_t n = 0; n < r->samples; n++) {
        int rank = place_of(r, n).rank;
        r->result->loss[rank] += each[n] / (double)ls_shards_images(&r->shards, rank);
    }
free_all:
    free(target);
    free(each);
    return status;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* r->chunk holds the parameter's gradient of every chunk. */
static void finish_param(run *r, int param, bool product)
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
    ls_combine_chunks(step, r->mode->ideal, product, next_noise(r), p->count, r->chunk,
                      r->result->grad + p->offset);
}

static void linear_bias_grad(run *r, const ls_nettab_node *node, const ls_planes *grad)
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

static ls_status product_backward(run *r, int index, ls_planes *in_grad)
{
    const ls_nettab_node *node = &r->net->node[index];
    ls_products_shape shape = products_of(node);
    if (node->kind == LS_NETTAB_LINEAR) {
        linear_bias_grad(r, node, &r->grad[index]);
    }
    LS_TRY(r->products->products_weight_grad(shape, &r->value[node->input], &r->grad[index],
                                             &r->shards, r->chunk));
    finish_param(r, node->weight, true);
    if (node->input == 0) {
        return LS_OK; /* nobody reads the image's gradient */
    }
    LS_TRY(allocate_like(r, node->input, in_grad));
    LS_TRY(r->products->products_input_grad(shape, &r->grad[index], weights_of(r, node->weight),
                                            in_grad));
    settle(r, r->stored, in_grad);
    return LS_OK;
}

static ls_status norm_backward(run *r, int index, ls_planes *in_grad)
{
    const ls_nettab_node *node = &r->net->node[index];
    int64_t count = r->net->param[node->weight].count, chunks = ls_shards_chunks(&r->shards);
    double *bias_grad = malloc((size_t)(chunks * count) * sizeof *bias_grad);
    if (bias_grad == NULL) {
        ls_log_error("oracle: cannot allocate the sums of %s", node->name);
        return LS_ERR_INFRA;
    }
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, allocate_like(r, node->input, in_grad), free_sums);
    LS_TRY_GOTO(status,
                r->norms->norm_backward(&r->value[node->input],
                                        r->step->param + r->net->param[node->weight].offset,
                                        &r->stats[index], &r->shards, r->single, &r->grad[index],
                                        in_grad, r->chunk, bias_grad),
                free_sums);
    settle(r, r->stored, in_grad);
    finish_param(r, node->weight, false);
    memcpy(r->chunk, bias_grad, (size_t)(chunks * count) * sizeof *bias_grad);
    finish_param(r, node->bias, false);
free_sums:
    free(bias_grad);
    return status;
}

/* Hands `grad` to `node`: taken over where it is the first, else added, rounded and freed. */
static void give(run *r, int node, ls_planes *grad)
{
    if (r->grad[node].value == NULL) {
        r->grad[node] = *grad;
    } else {
        ls_ops_add(&r->grad[node], grad);
        settle(r, r->stored, &r->grad[node]);
        ls_planes_free(grad);
    }
    grad->value = NULL;
}

static ls_status gradient_of_input(run *r, int index, ls_planes *in_grad)
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
    LS_TRY(allocate_like(r, node->input, in_grad));
    if (node->kind == LS_NETTAB_RELU) {
        ls_ops_relu(grad, r->taken->open[node->branch], in_grad);
    } else if (node->kind == LS_NETTAB_POOL) {
        ls_ops_pool_grad(grad, r->taken->index[node->branch], in_grad);
        settle(r, r->stored, in_grad);
    } else if (node->kind == LS_NETTAB_SHORTCUT) {
        ls_ops_shortcut_grad(grad, node->stride, in_grad);
    } else if (node->kind == LS_NETTAB_MEAN) {
        ls_ops_mean_grad(grad, in_grad);
        settle(r, r->stored, in_grad);
    } else {
        memcpy(in_grad->value, grad->value, (size_t)ls_planes_count(grad) * sizeof(double));
    }
    return LS_OK;
}

static ls_status backward(run *r)
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

/* ---- the whole ------------------------------------------------------------------------------- */

static ls_status allocate(run *r)
{
    const ls_oracle_step *step = r->step;
    ls_oracle_result *result = r->result;
    size_t largest = 0, branches = (size_t)r->net->branch_count;
    for (int i = 0; i < r->net->param_count; i++) {
        size_t count = (size_t)r->net->param[i].count;
        largest = count > largest ? count : largest;
    }
    size_t elements = (size_t)r->net->elements, world = (size_t)step->world;
    r->weight = malloc(largest * sizeof(double));
    r->chunk = malloc(largest * world * (size_t)step->accumulate * sizeof(double));
    result->grad = calloc(elements, sizeof(double));
    result->logits = calloc((size_t)r->samples * (size_t)r->net->classes, sizeof(double));
    result->loss = calloc(world, sizeof(double));
    result->stats = calloc((size_t)ls_oracle_stats_count(step) + 1, sizeof(double));
    bool whole = r->weight != NULL && r->chunk != NULL && result->grad != NULL &&
                 result->logits != NULL && result->loss != NULL && result->stats != NULL;
    if (r->mode->ideal_input != NULL) {
        result->branch_rms = calloc(branches, sizeof(double));
        whole = whole && result->branch_rms != NULL;
    }
    if (r->mode->keep_input) {
        result->kept_input = calloc(branches, sizeof(float *));
        whole = whole && result->kept_input != NULL;
    }
    if (r->mode->rank_grads) {
        result->rank_grad = calloc(elements * world, sizeof(float));
        whole = whole && result->rank_grad != NULL;
    }
    if (!whole) {
        ls_log_error("oracle: cannot allocate the gradients of %s on %d ranks", r->net->arch,
                     step->world);
        return LS_ERR_INFRA;
    }
    if (r->mode->forced == NULL) {
        LS_TRY(ls_branch_allocate(r->net, r->samples, &r->own));
        r->taken = &r->own;
    } else {
        r->taken = r->mode->forced;
    }
    return LS_OK;
}

static void release(run *r)
{
    for (int i = 0; i < r->net->node_count; i++) {
        ls_planes_free(&r->value[i]);
        ls_planes_free(&r->grad[i]);
        ls_norm_stats_free(&r->stats[i]);
    }
    free(r->weight);
    free(r->chunk);
    ls_branch_free(&r->own);
    free(r);
}

/* libgomp lets a thread that waits for the others spin for milliseconds, unless there are more
 * threads than cores; on a busy machine that makes a step of 400 short loops ten times slower.
 * Hence one thread more. */
static int enough_threads(void)
{
    bool asked = getenv("OMP_NUM_THREADS") != NULL || getenv("OMP_WAIT_POLICY") != NULL;
    return asked ? omp_get_max_threads() : omp_get_num_procs() + 1;
}

/* Of all products of the step. */
static double multiply_adds(const run *r)
{
    double sum = 0;
    for (int i = 1; i < r->net->node_count; i++) {
        const ls_nettab_node *node = &r->net->node[i];
        if (node->kind == LS_NETTAB_CONV || node->kind == LS_NETTAB_LINEAR) {
            sum += (double)r->net->param[node->weight].count * node->height * node->width;
        }
    }
    return sum * r->samples * (r->mode->forward_only ? 1 : 3);
}

static ls_status choose_loops(run *r)
{
    LS_TRY(ls_loops_choose(multiply_adds(r), &r->products));
    /* batch norms with a mistake are the CPU's */
    r->norms = r->mode->norm == LS_NORM_RIGHT ? r->products : ls_loops_cpu();
    return LS_OK;
}

static ls_status run_all(run *r)
{
    LS_TRY(choose_loops(r));
    int threads = omp_get_max_threads();
    omp_set_num_threads(enough_threads());
    ls_status status = allocate(r);
    status = status == LS_OK ? forward(r) : status;
    status = status == LS_OK ? loss(r) : status;
    status = status == LS_OK && !r->mode->forward_only ? backward(r) : status;
    omp_set_num_threads(threads);
    return status;
}

ls_status ls_oracle_run(const ls_oracle_step *step, const ls_oracle_mode *mode,
                        ls_oracle_result *out)
{
    LS_ASSERT(step->world % step->stat_ranks == 0 && step->accumulate > 0);
    for (int rank = 0; rank < step->world; rank++) {
        LS_ASSERT(step->batch[rank] > 0);
    }
    run *r = calloc(1, sizeof *r);
    if (r == NULL) {
        ls_log_error("oracle: cannot allocate a run");
        return LS_ERR_INFRA;
    }
    ls_oracle_result result = {0};
    r->step = step;
    r->mode = mode;
    r->net = step->net;
    r->result = &result;
    r->shards = ls_oracle_shards(step);
    r->samples = (int)ls_shards_samples(&r->shards);
    if (mode->ideal) {
        r->single = LS_BITS_F32;
        r->stored = step->level == 0 ? LS_BITS_F32 : step->half;
    }
    ls_status status = run_all(r);
    if (status != LS_OK) {
        ls_oracle_free(step->net, &result);
        release(r);
        return status;
    }
    if (mode->keep_branches && mode->forced == NULL) {
        result.branches = r->own;
        r->own = (ls_branch_set){0};
    }
    *out = result;
    release(r);
    return LS_OK;
}

ls_shards ls_oracle_shards(const ls_oracle_step *step)
{
    return (ls_shards){step->world, step->accumulate, step->batch};
}

int64_t ls_oracle_stats_samples(const ls_oracle_step *step, int rank)
{
    ls_shards shards = ls_oracle_shards(step);
    return ls_shards_batches(&shards, rank / step->stat_ranks * step->stat_ranks, step->stat_ranks);
}

int ls_oracle_stats_groups(const ls_oracle_step *step)
{
    return step->accumulate * (step->world / step->stat_ranks);
}

int64_t ls_oracle_stats_of(const ls_oracle_step *step, int node)
{
    int64_t channels = 0;
    for (int i = 0; i < node; i++) {
        channels += step->net->node[i].kind == LS_NETTAB_NORM ? step->net->node[i].channels : 0;
    }
    return 2 * ls_oracle_stats_groups(step) * channels;
}

int64_t ls_oracle_stats_count(const ls_oracle_step *step)
{
    return ls_oracle_stats_of(step, step->net->node_count);
}

void ls_oracle_free(const ls_nettab *net, ls_oracle_result *result)
{
    free(result->grad);
    free(result->logits);
    free(result->loss);
    free(result->stats);
    free(result->branch_rms);
    free(result->rank_grad);
    for (int b = 0; b < net->branch_count && result->kept_input != NULL; b++) {
        free(result->kept_input[b]);
    }
    free(result->kept_input);
    ls_branch_free(&result->branches);
    memset(result, 0, sizeof *result);
}
