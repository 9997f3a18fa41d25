/* The loops that each vector variant implements (multi_variant.c). */
#ifndef LS_CPU_MULTI_VARIANT_H
#define LS_CPU_MULTI_VARIANT_H

#include "kernels/math/rules.h"
#include "kernels/cpu/backend.h"

/* Constants of one optimizer step. */
typedef struct ls_multi_rule {
    ls_optimizer_kind kind;
    ls_rules rules;
    ls_rule_tensor tensor; /* with norms: of one tensor */
} ls_multi_rule;

/* Consecutive elements of one tensor. Moments and copy may be NULL. */
typedef struct ls_multi_span {
    void *value;
    const void *grad;
    void *moment1, *moment2, *copy;
    ls_dtype value_type, grad_type, copy_type;
} ls_multi_span;

/* Operations of an update that is not fused: y from y, x and z with constants a and b. */
typedef enum ls_multi_op {
    LS_MULTI_COPY,   /* y = z */
    LS_MULTI_ADD,    /* y = x + a z */
    LS_MULTI_SCALE,  /* y = a y */
    LS_MULTI_MIX,    /* y = a y + b z */
    LS_MULTI_SQUARE, /* y = y + a z z */
    LS_MULTI_ROOT,   /* y = sqrt(z) */
    LS_MULTI_DIVIDE, /* y = y / a */
    LS_MULTI_SHIFT,  /* y = y + a */
    LS_MULTI_RATIO,  /* y = y + a (x / z) */
} ls_multi_op;

typedef struct ls_multi_pass {
    ls_multi_op op;
    float a, b;
    float *y;
    const float *x, *z; /* what the operation does not read is NULL */
} ls_multi_pass;

typedef struct ls_multi_variant {
    const char *name;
    /* to = round(from * factor); `to` may be `from` with the same type. */
    void (*convert)(void *to, ls_dtype to_type, const void *from, ls_dtype from_type, float factor,
                    int64_t count);
    void (*accumulate)(float *sum, const void *from, ls_dtype from_type, bool first, int64_t count);
    /* Like convert; returns whether an element of `from` (or of a half `to`) is inf or NaN. With
     * `to` NULL it only checks. streams: write an f32 `to`, which is not `from`, past the caches.
     */
    bool (*unscale)(void *to, ls_dtype to_type, const void *from, ls_dtype from_type, float factor,
                    bool streams, int64_t count);
    /* Returns whether a value, moment or copy is inf or NaN after the step. */
    bool (*step)(const ls_multi_rule *rule, const ls_multi_span *span, int64_t count);
    /* Elements from `offset`; returns whether a y is inf or NaN after it. */
    bool (*pass)(const ls_multi_pass *pass, int64_t offset, int64_t count);
    /* Sum of squares in double: 16 interleaved sums per block of 512, then the blocks in order. */
    double (*squares)(const void *from, ls_dtype type, int64_t count);
    /* First pass with LS_NORMS_UPDATE: moves the moments; returns the update's sum of squares. */
    double (*update_squares)(const ls_multi_rule *rule, const ls_multi_span *span, int64_t count);
} ls_multi_variant;

extern const ls_multi_variant ls_multi_plain;
#if defined(__x86_64__)
extern const ls_multi_variant ls_multi_avx2;
extern const ls_multi_variant ls_multi_avx512;
#endif

/* The widest of them up to `widest` that this machine can run. */
const ls_multi_variant *ls_multi_choose(ls_isa widest);

/* Address of element `offset`. */
static inline void *ls_multi_element(ls_tensor tensor, int64_t offset)
{
    return (char *)tensor.data + (size_t)offset * (tensor.dtype == LS_F32 ? 4u : 2u);
}

/* The span of tensor `index` of args that starts at element `offset`. */
static inline ls_multi_span ls_multi_span_at(const ls_optimizer_args *args, int index,
                                             int64_t offset)
{
    ls_tensor value = args->value.tensor[index], grad = args->grad.tensor[index];
    ls_multi_span span = {
        .value = ls_multi_element(value, offset),
        .grad = ls_multi_element(grad, offset),
        .value_type = value.dtype,
        .grad_type = grad.dtype,
    };
    if (args->moment1.count != 0) {
        span.moment1 = ls_multi_element(args->moment1.tensor[index], offset);
    }
    if (args->moment2.count != 0) {
        span.moment2 = ls_multi_element(args->moment2.tensor[index], offset);
    }
    if (args->copy.count != 0 && args->copy.tensor[index].data != value.data) {
        span.copy = ls_multi_element(args->copy.tensor[index], offset);
        span.copy_type = args->copy.tensor[index].dtype;
    }
    return span;
}

static inline int ls_multi_group(const ls_optimizer_args *args, int index)
{
    return args->group != NULL ? args->group[index] : 0;
}

/* The rules of all groups; squares: of all gradients (rule.h). */
static inline void ls_multi_prepare(ls_multi_rule rule[LS_OPTIMIZER_GROUPS_MAX],
                                    const ls_optimizer_config *config, const ls_step_state *state,
                                    double squares)
{
    for (int g = 0; g < (config->group_count > 0 ? config->group_count : 1); g++) {
        float lr = state->lr;
        ls_optimizer_config own = ls_rules_of_group(config, g, &lr);
        rule[g] = (ls_multi_rule){.kind = config->kind};
        ls_rules_prepare(&rule[g].rules, &own, lr, state->step_count + 1, squares);
    }
}

/* multi_unfused.c: one step of SGD, Adam or AdamW, a pass for each operation on each tensor; sets
 * first_bad_state. LS_ERR_INFRA without memory. */
ls_status ls_multi_unfused_step(ls_backend *backend, const ls_optimizer_config *config,
                                const ls_optimizer_args *args, ls_step_state *state);

/* multi_norm.c: norms of whole tensors. */
/* The sum of squares of all elements; every sum has its order. LS_ERR_INFRA without memory. */
ls_status ls_multi_norm_squares(const ls_multi_variant *variant, int threads, ls_tensor_list list,
                                double *out);
/* LAMB and LARS. */
/* One step; sets first_bad_state. LS_ERR_INFRA without memory. */
ls_status ls_multi_norm_step(const ls_multi_variant *variant, int threads,
                             const ls_optimizer_config *config, const ls_optimizer_args *args,
                             ls_step_state *state);

#endif
