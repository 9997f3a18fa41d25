#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "run.h"

/* The rank of sample n, and its index among that rank's A*N. */
typedef struct position {
    int rank;
    int64_t own;
} position;

static position position_of(const ls_run *r, int64_t n)
{
    int chunk = ls_shards_chunk_of(&r->shards, n), rank = chunk % r->step->world;
    return (position){rank, (int64_t)(chunk / r->step->world) * r->step->batch[rank] + n -
                                ls_shards_first(&r->shards, chunk)};
}

/* ---- ties ------------------------------------------------------------------------------------ */

/* Compares forced branches with those that FP64 would take: counts the turned ones, and finds those
 * that are not near-ties (numerics.md section 4, point 2). */

/* The distance of a turned branch from its tie. */
typedef struct distance {
    double value; /* ReLU: x64; pool: gap */
    bool turned, outside;
} distance;

typedef struct look {
    const ls_nettab_node *node;
    const ls_planes *in;
    const uint8_t *open;
    const int32_t *index, *own_index;
    int64_t per_sample; /* elements of the output */
} look;

static distance distance_of(const look *l, int64_t i)
{
    if (l->open != NULL) {
        double x = l->in->value[i];
        return (distance){x, (l->open[i] != 0) != (x > 0), false};
    }
    int64_t at = i % l->per_sample / l->in->pitch;
    if (!ls_planes_pool_inside(l->node, l->in, (int)(at / l->node->width),
                               (int)(at % l->node->width), l->index[i])) {
        return (distance){INFINITY, true, true};
    }
    const double *plane = l->in->value +
                          i / l->per_sample * l->in->height * l->in->width * l->in->pitch +
                          i % l->in->pitch;
    double gap =
        plane[(int64_t)l->own_index[i] * l->in->pitch] - plane[(int64_t)l->index[i] * l->in->pitch];
    return (distance){gap, gap != 0, false};
}

static void add_violation(const ls_oracle_step *step, const look *l, int64_t i, distance d,
                          double limit, ls_oracle_result *result)
{
    if (result->violation_count++ >= LS_ORACLE_VIOLATIONS_MAX) {
        return;
    }
    int64_t sample = i / l->per_sample, at = i % l->per_sample / l->in->pitch;
    ls_shards shards = ls_oracle_shards(step);
    int chunk = ls_shards_chunk_of(&shards, sample);
    result->violation[result->violation_count - 1] = (ls_oracle_violation){
        .branch = l->node->branch,
        .rank = chunk % step->world,
        .micro = chunk / step->world,
        .sample = (int)(sample - ls_shards_first(&shards, chunk)),
        .channel = (int)(i % l->in->pitch),
        .row = (int)(at / l->node->width),
        .column = (int)(at % l->node->width),
        .value = d.value,
        .limit = limit,
        .outside = d.outside,
    };
}

/* RMS over the layer of (ideal - x64); summed in lines of 4096, so that the result is independent
 * of the number of threads. */
static double rms_of(const ls_planes *in, const float *ideal)
{
    int64_t count = ls_planes_count(in);
    double *difference = malloc((size_t)count * sizeof *difference);
    LS_MEMORY(difference != NULL);
    for (int64_t i = 0; i < count; i++) {
        difference[i] = (double)ideal[i] - in->value[i];
    }
    double rms = sqrt(ls_run_square_sum(count, difference) / (double)count);
    free(difference);
    return rms;
}

static void look_all(const ls_oracle_step *step, const look *l, int64_t count, const double *limit,
                     ls_oracle_result *result)
{
    int64_t turned = 0, wrong = 0;
    double most = limit != NULL ? limit[l->node->branch] : INFINITY;
    double farthest = 0;
#pragma omp parallel for reduction(+ : turned, wrong) reduction(max : farthest)
    for (int64_t i = 0; i < count; i++) {
        distance d = distance_of(l, i);
        turned += d.turned;
        farthest = d.turned && fabs(d.value) > farthest ? fabs(d.value) : farthest;
        /* written so that NaN counts as wrong */
        wrong += d.turned && (!(fabs(d.value) <= most) || d.outside);
    }
    result->turned += turned;
    result->tie_ratio = fmax(result->tie_ratio, farthest > 0 ? farthest / most : 0);
    for (int64_t i = 0; i < count && wrong > 0; i++) {
        distance d = distance_of(l, i);
        if (d.turned && (!(fabs(d.value) <= most) || d.outside)) {
            add_violation(step, l, i, d, most, result);
            wrong--;
        }
    }
}

/* To be called before forward of a ReLU or max-pool with forced branches: adds to result->turned
 * and the violations, and fills branch_rms. `in` is x64, the input of the layer. */
static void check_ties(const ls_oracle_step *step, const ls_oracle_mode *mode,
                       const ls_nettab_node *node, const ls_planes *in, ls_oracle_result *result)
{
    int b = node->branch;
    int64_t count = mode->forced->elements[b];
    if (mode->ideal_input != NULL) {
        result->branch_rms[b] = rms_of(in, mode->ideal_input[b]);
    }
    int32_t *own = NULL;
    if (node->kind == LS_NETTAB_POOL) {
        own = malloc((size_t)count * sizeof *own);
        LS_MEMORY(own != NULL);
        ls_planes_pool_branches(node, in, own);
    }
    look l = {node,
              in,
              mode->forced->open[b],
              mode->forced->index[b],
              own,
              (int64_t)node->height * node->width * in->pitch};
    look_all(step, &l, count, mode->tie_limit, result);
    free(own);
}

/* ---- forward --------------------------------------------------------------------------------- */

static void read_input(ls_run *r, ls_planes *out)
{
    const ls_oracle_step *step = r->step;
    int64_t plane = (int64_t)out->height * out->width;
    for (int64_t n = 0; n < r->samples; n++) {
        position at = position_of(r, n);
        const float *from = step->input[at.rank] + at.own * 3 * plane;
        for (int64_t p = 0; p < plane; p++) {
            for (int c = 0; c < 3; c++) {
                out->value[(n * plane + p) * out->pitch + c] = from[c * plane + p];
            }
        }
    }
    ls_run_round_stored(r, r->stored, out);
}

static void forward_linear_bias(ls_run *r, const ls_nettab_node *node, ls_planes *out)
{
    const double *bias = ls_run_weights_of(r, node->bias);
    for (int64_t n = 0; n < r->samples; n++) {
        for (int c = 0; c < out->channels; c++) {
            out->value[n * out->pitch + c] += bias[c];
        }
    }
}

static void forward_branch(ls_run *r, const ls_nettab_node *node, ls_planes *in, ls_planes *out)
{
    int b = node->branch;
    bool pool = node->kind == LS_NETTAB_POOL;
    if (r->mode->keep_input) {
        int64_t count = ls_planes_count(in);
        float *kept = malloc((size_t)count * sizeof *kept);
        LS_MEMORY(kept != NULL);
        for (int64_t i = 0; i < count; i++) {
            kept[i] = (float)in->value[i];
        }
        r->result->kept_input[b] = kept;
    }
    if (r->mode->forced == NULL && pool) {
        ls_planes_pool_branches(node, in, r->own.index[b]);
    } else if (r->mode->forced == NULL) {
        ls_planes_relu_branches(in, r->own.open[b]);
    } else {
        check_ties(r->step, r->mode, node, in, r->result);
    }
    if (pool) {
        ls_planes_pool(in, r->taken->index[b], out);
    } else {
        ls_planes_relu(in, r->taken->open[b], out);
    }
}

static void keep_statistics(ls_run *r, int index)
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

static ls_status forward_node(ls_run *r, int index)
{
    const ls_nettab_node *node = &r->net->node[index];
    ls_planes *out = &r->value[index];
    ls_planes *in = node->input >= 0 ? &r->value[node->input] : NULL;
    const double *param = r->step->param;
    LS_TRY(ls_run_allocate_like(r, index, out));
    switch (node->kind) {
    case LS_NETTAB_INPUT:
        read_input(r, out);
        return LS_OK;
    case LS_NETTAB_CONV:
    case LS_NETTAB_LINEAR:
        LS_TRY(r->products->products_forward(ls_run_products_of(node), in,
                                             ls_run_weights_of(r, node->weight), out));
        if (node->kind == LS_NETTAB_LINEAR) {
            forward_linear_bias(r, node, out);
        }
        break;
    case LS_NETTAB_NORM:
        r->stats[index].form = r->mode->norm;
        r->stats[index].in_half = r->mode->ideal && r->step->applied[index];
        LS_TRY(r->norms->norm_forward(in, param + r->net->param[node->weight].offset,
                                      param + r->net->param[node->bias].offset, &r->shards,
                                      r->step->stat_ranks, r->single, &r->stats[index], out));
        keep_statistics(r, index);
        break;
    case LS_NETTAB_RELU:
    case LS_NETTAB_POOL:
        forward_branch(r, node, in, out);
        return LS_OK;
    case LS_NETTAB_ADD:
        memcpy(out->value, in->value, (size_t)ls_planes_count(in) * sizeof(double));
        ls_planes_add(out, &r->value[node->other]);
        break;
    case LS_NETTAB_SHORTCUT:
        ls_planes_shortcut(node, in, out);
        return LS_OK;
    case LS_NETTAB_MEAN:
        ls_planes_mean(in, out);
        break;
    }
    ls_run_round_stored(r, r->stored, out);
    return LS_OK;
}

static void find_readers(ls_run *r)
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

ls_status ls_forward_run(ls_run *r)
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

ls_status ls_forward_loss(ls_run *r)
{
    const ls_oracle_step *step = r->step;
    int last = r->net->node_count - 1, classes = r->net->classes;
    const ls_planes *logits = &r->value[last];
    ls_planes *grad = &r->grad[last];
    int64_t *target = malloc((size_t)r->samples * sizeof *target);
    double *each = malloc(2 * (size_t)r->samples * sizeof *each);
    ls_status status = LS_OK;
    LS_MEMORY(target != NULL && each != NULL);
    double *factor = each + r->samples;
    double scale = r->mode->ideal ? step->loss_scale : 1.0;
    for (int64_t n = 0; n < r->samples; n++) {
        position at = position_of(r, n);
        target[n] = step->target[at.rank][at.own];
        factor[n] = scale / step->batch[at.rank] / step->accumulate;
        if (target[n] < 0 || target[n] >= classes) {
            status = ls_log_fail(LS_ERR_USAGE, "oracle: rank %d sample %lld has class %lld of %d",
                                 at.rank, (long long)at.own, (long long)target[n], classes);
            goto free_all;
        }
        int64_t before = step->accumulate * ls_shards_batches(&r->shards, 0, at.rank);
        memcpy(r->result->logits + (before + at.own) * classes, logits->value + n * logits->pitch,
               (size_t)classes * sizeof(double));
    }
    LS_TRY_GOTO(status, ls_run_allocate_like(r, last, grad), free_all);
    ls_planes_cross_entropy(logits, target, step->label_smoothing, factor, each, grad);
    ls_run_round_stored(r, r->single, grad);
    ls_run_round_stored(r, r->stored, grad);
    for (int64_t n = 0; n < r->samples; n++) {
        int rank = position_of(r, n).rank;
        r->result->loss[rank] += each[n] / (double)ls_shards_images(&r->shards, rank);
    }
free_all:
    free(target);
    free(each);
    return status;
}
