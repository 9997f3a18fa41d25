#include "ideal_error.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "cache.h"
#include "oracle.h"

double ls_ideal_error_squared(const double *a, const double *b, ls_ideal_error_span span)
{
    double sum = 0;
    for (int64_t i = span.from; i < span.from + span.count; i++) {
        double difference = a[i] - b[i];
        sum += difference * difference;
    }
    return sum;
}

double ls_ideal_error_square(const double *value, ls_ideal_error_span span)
{
    double sum = 0;
    for (int64_t i = span.from; i < span.from + span.count; i++) {
        sum += value[i] * value[i];
    }
    return sum;
}

/* The key of everything in a step except its precision. */
static ls_cache_key key_of_data(const char *kind, const ls_oracle_step *step)
{
    const ls_nettab *net = step->net;
    const ls_nettab_node *in = &net->node[0];
    int numbers[] = {net->classes,     in->height,       in->width,         step->world,
                     step->accumulate, step->stat_ranks, (int)step->average};
    ls_cache_key key = ls_cache_start(kind);
    ls_cache_add(&key, net->arch, sizeof net->arch);
    ls_cache_add(&key, numbers, sizeof numbers);
    ls_cache_add(&key, step->batch, (size_t)step->world * sizeof *step->batch);
    ls_shards shards = ls_oracle_shards(step);
    size_t image_bytes = 3 * (size_t)in->height * (size_t)in->width * sizeof(float);
    for (int rank = 0; rank < step->world; rank++) {
        size_t images = (size_t)ls_shards_images(&shards, rank);
        ls_cache_add(&key, step->input[rank], images * image_bytes);
        ls_cache_add(&key, step->target[rank], images * sizeof(int64_t));
    }
    ls_cache_add(&key, step->param, (size_t)net->elements * sizeof(double));
    return key;
}

static int cost_parts(const ls_ideal_error_cost *cost, const ls_nettab *net, int64_t span_count,
                      double *scalars, ls_cache_part *part)
{
    part[0] = (ls_cache_part){cost->error2, (size_t)span_count * sizeof(double)};
    part[1] = (ls_cache_part){cost->grad2, (size_t)span_count * sizeof(double)};
    part[2] = (ls_cache_part){cost->branch_rms, (size_t)net->branch_count * sizeof(double)};
    part[3] = (ls_cache_part){scalars, 4 * sizeof(double)};
    part[4] = (ls_cache_part){cost->stats_error2, 2 * (size_t)net->node_count * sizeof(double)};
    return 5;
}

static void measure_stats(const ls_oracle_step *step, const double *ideal, const double *plain,
                          double *error2)
{
    const ls_nettab *net = step->net;
    for (int i = 0; i < net->node_count; i++) {
        int64_t count = (int64_t)ls_oracle_stats_groups(step) * net->node[i].channels;
        for (int k = 0; k < 2 && net->node[i].kind == LS_NETTAB_NORM; k++) {
            ls_ideal_error_span span = {ls_oracle_stats_of(step, i) + k * count, count};
            error2[2 * i + k] = ls_ideal_error_squared(ideal, plain, span);
        }
    }
}

static ls_status measure(const ls_oracle_step *step, const ls_ideal_error_span *spans,
                         int64_t span_count, ls_ideal_error_cost *cost)
{
    const ls_nettab *net = step->net;
    ls_oracle_result ideal = {0}, plain = {0};
    ls_oracle_mode first = {.ideal = true, .keep_input = true, .keep_branches = true};
    LS_TRY(ls_oracle_run(step, &first, &ideal));
    ls_oracle_mode second = {.forced = &ideal.branches,
                             .ideal_input = (const float *const *)ideal.kept_input};
    ls_status status;
    LS_TRY_GOTO(status, ls_oracle_run(step, &second, &plain), free_ideal);
    for (int64_t i = 0; i < span_count; i++) {
        cost->error2[i] = ls_ideal_error_squared(ideal.grad, plain.grad, spans[i]);
        cost->grad2[i] = ls_ideal_error_square(plain.grad, spans[i]);
    }
    ls_ideal_error_span whole = {0, net->elements};
    ls_shards shards = ls_oracle_shards(step);
    ls_ideal_error_span logits = {0, ls_shards_samples(&shards) * net->classes};
    cost->whole_error2 = ls_ideal_error_squared(ideal.grad, plain.grad, whole);
    cost->whole_grad2 = ls_ideal_error_square(plain.grad, whole);
    cost->logits_error2 = ls_ideal_error_squared(ideal.logits, plain.logits, logits);
    cost->logits2 = ls_ideal_error_square(plain.logits, logits);
    memcpy(cost->branch_rms, plain.branch_rms, (size_t)net->branch_count * sizeof(double));
    measure_stats(step, ideal.stats, plain.stats, cost->stats_error2);
    ls_oracle_free(net, &plain);
free_ideal:
    ls_oracle_free(net, &ideal);
    return status;
}

ls_status ls_ideal_error_measure(const ls_oracle_step *step, const ls_ideal_error_span *spans,
                                 int64_t span_count, const char *cache, ls_ideal_error_cost *out)
{
    ls_ideal_error_cost cost = {0};
    cost.error2 = calloc((size_t)span_count + 1, sizeof(double));
    cost.grad2 = calloc((size_t)span_count + 1, sizeof(double));
    cost.branch_rms = calloc((size_t)step->net->branch_count, sizeof(double));
    cost.stats_error2 = calloc(2 * (size_t)step->net->node_count, sizeof(double));
    if (cost.error2 == NULL || cost.grad2 == NULL || cost.branch_rms == NULL ||
        cost.stats_error2 == NULL) {
        ls_log_error("oracle: cannot allocate the costs of %lld spans", (long long)span_count);
        ls_ideal_error_cost_free(&cost);
        return LS_ERR_INFRA;
    }
    double scalars[4], precision[] = {step->level, (double)step->half, step->loss_scale,
                                      step->predivide, (double)step->reduce};
    ls_cache_part part[5];
    int parts = cost_parts(&cost, step->net, span_count, scalars, part);
    ls_cache_key key = {{0, 0}};
    if (cache != NULL) {
        key = key_of_data("price", step);
        ls_cache_add(&key, precision, sizeof precision);
        ls_cache_add(&key, spans, (size_t)span_count * sizeof *spans);
    }
    if (ls_cache_load(cache, key, parts, part)) {
        cost.whole_error2 = scalars[0];
        cost.whole_grad2 = scalars[1];
        cost.logits_error2 = scalars[2];
        cost.logits2 = scalars[3];
        *out = cost;
        return LS_OK;
    }
    ls_status status = measure(step, spans, span_count, &cost);
    if (status != LS_OK) {
        ls_ideal_error_cost_free(&cost);
        return status;
    }
    scalars[0] = cost.whole_error2;
    scalars[1] = cost.whole_grad2;
    scalars[2] = cost.logits_error2;
    scalars[3] = cost.logits2;
    ls_cache_save(cache, key, parts, part);
    *out = cost;
    return LS_OK;
}

void ls_ideal_error_cost_free(ls_ideal_error_cost *cost)
{
    free(cost->error2);
    free(cost->grad2);
    free(cost->branch_rms);
    free(cost->stats_error2);
    memset(cost, 0, sizeof *cost);
}

static void add_branches(const ls_branch_set *set, ls_cache_key *key)
{
    for (int b = 0; b < set->count; b++) {
        size_t elements = (size_t)set->elements[b];
        if (set->open[b] != NULL) {
            ls_cache_add(key, set->open[b], elements);
        } else {
            ls_cache_add(key, set->index[b], elements * sizeof(int32_t));
        }
    }
}

ls_status ls_ideal_error_forced(const ls_oracle_step *step, const ls_branch_set *forced,
                                const double *tie_limit, const char *cache, ls_oracle_result *out)
{
    enum { KEPT_BYTES_MAX = 32 << 20 };
    const ls_nettab *net = step->net;
    ls_oracle_mode mode = {.forced = forced, .tie_limit = tie_limit};
    size_t grad_bytes = (size_t)net->elements * sizeof(double);
    if (cache == NULL || grad_bytes > KEPT_BYTES_MAX) {
        return ls_oracle_run(step, &mode, out);
    }
    ls_cache_key key = key_of_data("forced", step);
    add_branches(forced, &key);
    ls_cache_add(&key, tie_limit, (size_t)net->branch_count * sizeof(double));
    ls_shards shards = ls_oracle_shards(step);
    size_t logits = (size_t)ls_shards_samples(&shards) * (size_t)net->classes;
    ls_oracle_result kept = {0};
    kept.grad = malloc(grad_bytes);
    kept.logits = malloc(logits * sizeof(double));
    kept.loss = malloc((size_t)step->world * sizeof(double));
    size_t stats = (size_t)ls_oracle_stats_count(step);
    kept.stats = malloc((stats + 1) * sizeof(double));
    if (kept.grad == NULL || kept.logits == NULL || kept.loss == NULL || kept.stats == NULL) {
        ls_oracle_free(net, &kept);
        return ls_log_fail(LS_ERR_INFRA, "oracle: cannot allocate a gradient of %zu bytes",
                           grad_bytes);
    }
    ls_cache_part part[] = {{kept.grad, grad_bytes},
                            {kept.logits, logits * sizeof(double)},
                            {kept.loss, (size_t)step->world * sizeof(double)},
                            {&kept.turned, sizeof kept.turned},
                            {&kept.tie_ratio, sizeof kept.tie_ratio},
                            {&kept.violation_count, sizeof kept.violation_count},
                            {kept.violation, sizeof kept.violation},
                            {kept.stats, stats * sizeof(double)}};
    if (ls_cache_load(cache, key, 8, part)) {
        *out = kept;
        return LS_OK;
    }
    ls_oracle_free(net, &kept);
    LS_TRY(ls_oracle_run(step, &mode, out));
    ls_cache_part fresh[] = {{out->grad, grad_bytes},
                             {out->logits, logits * sizeof(double)},
                             {out->loss, (size_t)step->world * sizeof(double)},
                             {&out->turned, sizeof out->turned},
                             {&out->tie_ratio, sizeof out->tie_ratio},
                             {&out->violation_count, sizeof out->violation_count},
                             {out->violation, sizeof out->violation},
                             {out->stats, stats * sizeof(double)}};
    ls_cache_save(cache, key, 8, fresh);
    return LS_OK;
}
