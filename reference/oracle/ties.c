#include "ties.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/core/log.h"
#include "ops.h"
#include "round_stored.h"

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
    if (!ls_ops_pool_inside(l->node, l->in, (int)(at / l->node->width), (int)(at % l->node->width),
                            l->index[i])) {
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
static ls_status measure_rms(const ls_planes *in, const float *ideal, double *rms)
{
    int64_t count = ls_planes_count(in);
    double *difference = malloc((size_t)count * sizeof *difference);
    if (difference == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "oracle: cannot allocate %lld differences",
                           (long long)count);
    }
    for (int64_t i = 0; i < count; i++) {
        difference[i] = (double)ideal[i] - in->value[i];
    }
    *rms = sqrt(ls_round_stored_square_sum(count, difference) / (double)count);
    free(difference);
    return LS_OK;
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

ls_status ls_ties_check(const ls_oracle_step *step, const ls_oracle_mode *mode,
                        const ls_nettab_node *node, const ls_planes *in, ls_oracle_result *result)
{
    int b = node->branch;
    int64_t count = mode->forced->elements[b];
    if (mode->ideal_input != NULL) {
        LS_TRY(measure_rms(in, mode->ideal_input[b], &result->branch_rms[b]));
    }
    int32_t *own = NULL;
    if (node->kind == LS_NETTAB_POOL) {
        own = malloc((size_t)count * sizeof *own);
        if (own == NULL) {
            return ls_log_fail(LS_ERR_INFRA, "oracle: cannot allocate %lld maxima",
                               (long long)count);
        }
        ls_ops_pool_branches(node, in, own);
    }
    look l = {node,
              in,
              mode->forced->open[b],
              mode->forced->index[b],
              own,
              (int64_t)node->height * node->width * in->pitch};
    look_all(step, &l, count, mode->tie_limit, result);
    free(own);
    return LS_OK;
}
