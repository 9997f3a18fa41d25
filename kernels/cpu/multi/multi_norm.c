/* One pass computes norms, a second one takes the step. Tensors are cut into chunks of a fixed size
 * whose sums are added in order, so no norm depends on the number of threads. */
#include "multi_variant.h"

#include <stdlib.h>

#include "kernels/core/log.h"

enum { CHUNK = 16384 }; /* elements; a multiple of the loops' block */

typedef struct chunk {
    int index; /* of the tensor */
    int64_t offset, count;
    double first, second; /* sums of squares over the chunk; each pass says of what */
} chunk;

typedef struct norms {
    const ls_multi_variant *variant;
    const ls_optimizer_args *args;
    const ls_optimizer_config *config;
    ls_multi_rule rule[LS_OPTIMIZER_GROUPS_MAX]; /* of each group */
    int threads;
    int64_t chunk_count;
    chunk *chunk;          /* [chunk_count], in order of tensor and offset */
    ls_multi_rule *tensor; /* [value.count]: each tensor's own rule */
} norms;

static int64_t chunks_of(int64_t count)
{
    return (count + CHUNK - 1) / CHUNK;
}

static ls_status cut(norms *n)
{
    ls_tensor_list list = n->args->value;
    for (int i = 0; i < list.count; i++) {
        n->chunk_count += chunks_of(list.tensor[i].count);
    }
    n->chunk = calloc((size_t)n->chunk_count + 1, sizeof *n->chunk);
    n->tensor = calloc((size_t)list.count + 1, sizeof *n->tensor);
    LS_TRY_MEMORY(n->chunk != NULL && n->tensor != NULL, "the norms of %d tensors", list.count);
    chunk *next = n->chunk;
    for (int i = 0; i < list.count; i++) {
        int64_t count = list.tensor[i].count;
        for (int64_t offset = 0; offset < count; offset += CHUNK) {
            int64_t left = count - offset;
            *next++ = (chunk){i, offset, left < CHUNK ? left : CHUNK, 0, 0};
        }
    }
    return LS_OK;
}

/* first: sum of squares of the gradient; second: of the value. */
static void measure(const norms *n, chunk *c)
{
    ls_multi_span span = ls_multi_span_at(n->args, c->index, c->offset);
    c->first = n->variant->squares(span.grad, span.grad_type, c->count);
    c->second = n->variant->squares(span.value, span.value_type, c->count);
}

/* first: sum of squares of the gradient. */
static void measure_grad(const norms *n, chunk *c)
{
    ls_multi_span span = ls_multi_span_at(n->args, c->index, c->offset);
    c->first = n->variant->squares(span.grad, span.grad_type, c->count);
}

/* Moves the moments. first: sum of squares of the update. */
static void move_moments(const norms *n, chunk *c)
{
    ls_multi_span span = ls_multi_span_at(n->args, c->index, c->offset);
    c->first =
        n->variant->update_squares(&n->rule[ls_multi_group(n->args, c->index)], &span, c->count);
}

/* first: 1 if a value is not finite after the step. */
static void step(const norms *n, chunk *c)
{
    ls_multi_span span = ls_multi_span_at(n->args, c->index, c->offset);
    c->first = n->variant->step(&n->tensor[c->index], &span, c->count) ? 1 : 0;
}

static void each_chunk(const norms *n, void (*work)(const norms *n, chunk *c))
{
    int threads = n->chunk_count > 1 ? n->threads : 1;
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
    for (int64_t k = 0; k < n->chunk_count; k++) {
        work(n, &n->chunk[k]);
    }
}

static double total_of_first(const norms *n)
{
    double sum = 0;
    for (int64_t k = 0; k < n->chunk_count; k++) {
        sum += n->chunk[k].first;
    }
    return sum;
}

/* Sets each tensor's rule from the sums of its chunks: `second` is the value's, `first` the
 * gradient's or the update's. */
static void make_rules(norms *n, float lr)
{
    int64_t k = 0;
    for (int i = 0; i < n->args->value.count; i++) {
        double first = 0, value = 0;
        for (; k < n->chunk_count && n->chunk[k].index == i; k++) {
            first += n->chunk[k].first;
            value += n->chunk[k].second;
        }
        int group = ls_multi_group(n->args, i);
        float own_lr = lr;
        ls_optimizer_config own = ls_rules_of_group(n->config, group, &own_lr);
        n->tensor[i] = n->rule[group];
        n->tensor[i].tensor = ls_rules_tensor(&own, own_lr, value, first);
    }
}

static int32_t first_bad(const norms *n)
{
    for (int64_t k = 0; k < n->chunk_count; k++) {
        if (n->chunk[k].first != 0) {
            return n->chunk[k].index;
        }
    }
    return -1;
}

ls_status ls_multi_norm_squares(const ls_multi_variant *variant, int threads, ls_tensor_list list,
                                double *out)
{
    const ls_optimizer_args args = {.value = list, .grad = list};
    norms n = {.variant = variant, .args = &args, .threads = threads};
    ls_status status = cut(&n);
    if (status == LS_OK) {
        each_chunk(&n, measure_grad);
        *out = total_of_first(&n);
    }
    free(n.chunk);
    free(n.tensor);
    return status;
}

ls_status ls_multi_norm_step(const ls_multi_variant *variant, int threads,
                             const ls_optimizer_config *config, const ls_optimizer_args *args,
                             ls_step_state *state)
{
    norms n = {.variant = variant, .args = args, .config = config};
    bool update = ls_rules_norms(config->kind) == LS_NORMS_UPDATE;
    n.threads = threads;
    ls_status status = cut(&n);
    if (status == LS_OK) {
        each_chunk(&n, measure);
        ls_multi_prepare(n.rule, config, state, update ? total_of_first(&n) : 0);
        if (update) {
            each_chunk(&n, move_moments);
        }
        make_rules(&n, state->lr);
        each_chunk(&n, step);
        state->first_bad_state = first_bad(&n);
    }
    free(n.chunk);
    free(n.tensor);
    return status;
}
