#include "oracle.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "run.h"

/* `count` zeros. */
static void *zeros(size_t count, size_t bytes)
{
    void *memory = calloc(count + 1, bytes);
    LS_MEMORY(memory != NULL);
    return memory;
}

static void allocate(ls_run *r)
{
    const ls_oracle_step *step = r->step;
    ls_oracle_result *result = r->result;
    size_t largest = 0, branches = (size_t)r->net->branch_count;
    for (int i = 0; i < r->net->param_count; i++) {
        size_t count = (size_t)r->net->param[i].count;
        largest = count > largest ? count : largest;
    }
    size_t elements = (size_t)r->net->elements, world = (size_t)step->world;
    r->weight = zeros(largest, sizeof(double));
    r->chunk = zeros(largest * world * (size_t)step->accumulate, sizeof(double));
    result->grad = zeros(elements, sizeof(double));
    result->logits = zeros((size_t)r->samples * (size_t)r->net->classes, sizeof(double));
    result->loss = zeros(world, sizeof(double));
    result->stats = zeros((size_t)ls_oracle_stats_count(step), sizeof(double));
    if (r->mode->ideal_input != NULL) {
        result->branch_rms = zeros(branches, sizeof(double));
    }
    if (r->mode->keep_input) {
        result->kept_input = zeros(branches, sizeof(float *));
    }
    if (r->mode->rank_grads) {
        result->rank_grad = zeros(elements * world, sizeof(float));
    }
    if (r->mode->forced == NULL) {
        ls_branch_allocate(r->net, r->samples, &r->own);
    }
    r->taken = r->mode->forced != NULL ? r->mode->forced : &r->own;
}

static void release(ls_run *r)
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

/* libgomp makes a waiting thread spin for milliseconds unless there are more threads than cores; on
 * a busy machine that makes a step of 400 short loops ten times slower. Hence one thread more. */
static int enough_threads(void)
{
    bool asked = getenv("OMP_NUM_THREADS") != NULL || getenv("OMP_WAIT_POLICY") != NULL;
    return asked ? omp_get_max_threads() : omp_get_num_procs() + 1;
}

/* Multiply-adds of all products of the step. */
static double multiply_adds(const ls_run *r)
{
    return (double)ls_nettab_macs(r->net) * r->samples * (r->mode->forward_only ? 1 : 3);
}

static ls_status run_all(ls_run *r)
{
    LS_TRY(ls_loops_choose(multiply_adds(r), &r->products));
    /* only the CPU has batch norms with mistakes */
    r->norms = r->mode->norm == LS_NORM_RIGHT ? r->products : ls_loops_cpu();
    allocate(r);
    int threads = omp_get_max_threads();
    omp_set_num_threads(enough_threads());
    ls_status status = ls_forward_run(r);
    LS_THEN(status, ls_forward_loss(r));
    LS_THEN(status, r->mode->forward_only ? LS_OK : ls_backward_run(r));
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
    ls_run *r = zeros(1, sizeof *r);
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
