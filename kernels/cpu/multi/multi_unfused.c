/* An update as torch.optim makes it with foreach=False: each operation reads and writes a whole
 * tensor before the next one begins (torch/optim/sgd.py, adam.py, _single_tensor_*). The operations
 * and their order are those of the fused bodies in math/, so the bits are the same. */
#include "multi_variant.h"

#include <stdlib.h>

#include "kernels/core/log.h"
#include "kernels/core/plant.h"

/* torch's grain: a shorter tensor is one thread's (at::internal::GRAIN_SIZE). */
enum { PARALLEL_LEAST = 32768 };

typedef struct update {
    ls_backend *backend;
    int64_t count; /* of the tensor's elements */
    float *p, *m, *v, *spare, *root;
    const float *g;
    bool bad; /* a value or moment is not finite */
} update;

/* Elements [begin, end) of a pass; true if one is not finite. */
typedef bool stretch(const update *u, const void *pass, int64_t begin, int64_t end);

static bool split(const update *u, stretch *work, const void *pass)
{
    int threads = u->backend->threads;
    int bad = 0;
    if (threads <= 1 || u->count < PARALLEL_LEAST) {
        return work(u, pass, 0, u->count);
    }
    int64_t lines = u->count / 16;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(| : bad)
    for (int t = 0; t < threads; t++) {
        int64_t begin = lines * t / threads * 16;
        int64_t end = t == threads - 1 ? u->count : lines * (t + 1) / threads * 16;
        bad |= work(u, pass, begin, end) ? 1 : 0;
    }
    return bad != 0;
}

static bool pass_stretch(const update *u, const void *pass, int64_t begin, int64_t end)
{
    return u->backend->multi->pass(pass, begin, end - begin);
}

static bool run(const update *u, ls_multi_pass pass)
{
    return split(u, pass_stretch, &pass);
}

/* The model's copy of a master. */
static bool copy_stretch(const update *u, const void *pass, int64_t begin, int64_t end)
{
    const ls_tensor *to = pass;
    u->backend->multi->convert(ls_multi_element(*to, begin), to->dtype, u->p + begin, LS_F32, 1.0f,
                               end - begin);
    return false;
}

/* y = x + a z */
static bool add(const update *u, float *y, const float *x, float a, const float *z)
{
    return run(u, (ls_multi_pass){.op = LS_MULTI_ADD, .a = a, .y = y, .x = x, .z = z});
}

static void sgd(update *u, const ls_sgd_rule *rule)
{
    const float *d = u->g;
    if ((rule->flags & LS_SGD_DECAYS) != 0) {
        add(u, u->spare, d, LS_PLANT(unfused_decay_doubled, 1.0f, 2.0f) * rule->weight_decay, u->p);
        d = u->spare;
    }
    if (u->m != NULL) {
        if ((rule->flags & LS_SGD_FIRST) != 0) { /* torch.clone */
            u->bad |= run(u, (ls_multi_pass){.op = LS_MULTI_COPY, .y = u->m, .z = d});
        } else {
            run(u, (ls_multi_pass){.op = LS_MULTI_SCALE, .a = rule->momentum, .y = u->m});
            u->bad |= add(u, u->m, u->m, 1.0f, d);
        }
        if ((rule->flags & LS_SGD_NESTEROV) != 0) {
            add(u, u->spare, d, rule->momentum, u->m);
            d = u->spare;
        } else {
            d = u->m;
        }
    }
    u->bad |= add(u, u->p, u->p, -rule->lr, d);
}

static void adam(update *u, const ls_adam_rule *rule)
{
    const float *g = u->g;
    if ((rule->flags & LS_ADAM_DECAYS) != 0) {
        add(u, u->spare, g, rule->weight_decay, u->p);
        g = u->spare;
    }
    if ((rule->flags & LS_ADAM_DECOUPLED) != 0) {
        run(u, (ls_multi_pass){.op = LS_MULTI_SCALE, .a = rule->shrink, .y = u->p});
    }
    u->bad |= run(
        u,
        (ls_multi_pass){
            .op = LS_MULTI_MIX, .a = rule->beta1, .b = rule->one_minus_beta1, .y = u->m, .z = g});
    run(u, (ls_multi_pass){.op = LS_MULTI_SCALE,
                           .a = LS_PLANT(unfused_square_kept, rule->beta2, 1.0f),
                           .y = u->v});
    u->bad |= run(
        u, (ls_multi_pass){.op = LS_MULTI_SQUARE, .a = rule->one_minus_beta2, .y = u->v, .z = g});
    run(u, (ls_multi_pass){.op = LS_MULTI_ROOT, .y = u->root, .z = u->v});
    run(u, (ls_multi_pass){.op = LS_MULTI_DIVIDE, .a = rule->root_bias2, .y = u->root});
    run(u, (ls_multi_pass){.op = LS_MULTI_SHIFT, .a = rule->epsilon, .y = u->root});
    u->bad |= run(
        u, (ls_multi_pass){
               .op = LS_MULTI_RATIO, .a = -rule->step_size, .y = u->p, .x = u->m, .z = u->root});
}

/* Room for two tensors as large as the largest, kept for the next step. */
static ls_status reserve(ls_backend *backend, ls_tensor_list list)
{
    int64_t largest = 0;
    for (int i = 0; i < list.count; i++) {
        largest = list.tensor[i].count > largest ? list.tensor[i].count : largest;
    }
    largest = (largest + 15) / 16 * 16;
    if (backend->spare_count < 2 * largest) {
        free(backend->spare);
        backend->spare_count = 0;
        backend->spare = aligned_alloc(64, (size_t)(2 * largest) * sizeof *backend->spare);
        LS_TRY_MEMORY(backend->spare != NULL, "an update of %lld elements", (long long)largest);
        backend->spare_count = 2 * largest;
    }
    return LS_OK;
}

ls_status ls_multi_unfused_step(ls_backend *backend, const ls_optimizer_config *config,
                                const ls_optimizer_args *args, ls_step_state *state)
{
    ls_multi_rule rule[LS_OPTIMIZER_GROUPS_MAX];
    LS_TRY(reserve(backend, args->value));
    ls_multi_prepare(rule, config, state, 0);
    for (int i = 0; i < args->value.count; i++) {
        ls_tensor value = args->value.tensor[i], grad = args->grad.tensor[i];
        LS_ASSERT(value.dtype == LS_F32 && grad.dtype == LS_F32);
        const ls_rules *rules = &rule[ls_multi_group(args, i)].rules;
        update u = {.backend = backend,
                    .count = value.count,
                    .p = value.data,
                    .g = grad.data,
                    .m = args->moment1.count != 0 ? args->moment1.tensor[i].data : NULL,
                    .v = args->moment2.count != 0 ? args->moment2.tensor[i].data : NULL,
                    .spare = backend->spare,
                    .root = backend->spare + backend->spare_count / 2};
        if (config->kind == LS_OPTIMIZER_SGD) {
            sgd(&u, &rules->sgd);
        } else if (config->kind == LS_OPTIMIZER_ADAM) {
            adam(&u, &rules->adam);
        } else {
            LS_ASSERT(config->kind == LS_OPTIMIZER_ADAMW);
            adam(&u, &rules->adamw);
        }
        if (args->copy.count != 0 && args->copy.tensor[i].data != value.data) {
            split(&u, copy_stretch, &args->copy.tensor[i]);
        }
        if (u.bad && state->first_bad_state < 0) {
            state->first_bad_state = i;
        }
    }
    return LS_OK;
}
