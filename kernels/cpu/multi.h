/* The multi-tensor operations of the backend contract on the CPU: one pass over all tensors of a
 * list, the concatenation of which is split among the threads. All is elementwise, and norms are
 * summed in an order of their own, so no value depends on the number of threads, on where the list
 * is cut, or on which vector instructions are used. */
#ifndef LS_CPU_MULTI_H
#define LS_CPU_MULTI_H

#include "kernels/entries.h"
#include "kernels/math/adam.h"
#include "kernels/math/lamb.h"
#include "kernels/math/lars.h"
#include "kernels/math/sgd.h"
#include "backend.h"

/* ---- what the vector variants implement (multi_plain.c, multi_avx2.c, multi_avx512.c) -------- */

/* Constants of one optimizer step. */
typedef struct ls_multi_rule {
    ls_optimizer_kind kind;
    float lr, momentum, weight_decay; /* SGD, LARS */
    ls_sgd_rule sgd;                  /* the same; LARS's decay is in its own rule */
    ls_adam_rule adam;
    ls_lamb_rule lamb;
    ls_lars_rule lars; /* of one tensor */
    float ratio;       /* LAMB: lr times the trust ratio of one tensor */
} ls_multi_rule;

/* A run of elements of one tensor. Moments and copy are NULL where there are none. */
typedef struct ls_multi_span {
    void *value;
    const void *grad;
    void *moment1, *moment2, *copy;
    ls_dtype value_type, grad_type, moment1_type, moment2_type, copy_type;
} ls_multi_span;

typedef struct ls_multi_variant {
    const char *name;
    /* to = round(from * factor); `to` may be `from` with the same type. */
    void (*convert)(void *to, ls_dtype to_type, const void *from, ls_dtype from_type, float factor,
                    int64_t count);
    void (*accumulate)(float *sum, const void *from, ls_dtype from_type, bool first, int64_t count);
    /* As convert, returns whether an element of `from` (or of a half `to`) is inf or NaN; with `to`
     * NULL it looks only. */
    bool (*unscale)(void *to, ls_dtype to_type, const void *from, ls_dtype from_type, float factor,
                    int64_t count);
    /* Returns whether a value, moment or copy is inf or NaN after the step. */
    bool (*step)(const ls_multi_rule *rule, const ls_multi_span *span, int64_t count);
    /* Sum of squares in double: 16 interleaved sums per block of 512, then the blocks in order. */
    double (*squares)(const void *from, ls_dtype type, int64_t count);
    /* LAMB's first pass: moves the moments; returns the update's sum of squares. */
    double (*lamb_moments)(const ls_multi_rule *rule, const ls_multi_span *span, int64_t count);
} ls_multi_variant;

extern const ls_multi_variant ls_multi_plain;
#if defined(__x86_64__)
extern const ls_multi_variant ls_multi_avx2;
extern const ls_multi_variant ls_multi_avx512;
#endif

/* The widest variant up to `widest` that this machine can run. */
const ls_multi_variant *ls_multi_choose(ls_isa widest);

/* The table entries' work with the variant and the number of threads given. */
void ls_multi_convert_with(const ls_multi_variant *variant, int threads, ls_tensor to,
                           ls_tensor from, float factor);
void ls_multi_accumulate_with(const ls_multi_variant *variant, int threads, ls_tensor sum,
                              ls_tensor from, bool first);
void ls_multi_unscale_check_with(const ls_multi_variant *variant, int threads, ls_tensor_list to,
                                 ls_tensor_list from, ls_step_state *state);
ls_status ls_multi_optimizer_step_with(const ls_multi_variant *variant, int threads,
                                       const ls_optimizer_config *config,
                                       const ls_optimizer_args *args, bool dynamic,
                                       ls_step_state *state);

/* ---- optimizers that need norms (multi_norm.c) ----------------------------------------------- */

/* `count` elements of tensor `index` of args from `offset` on. */
ls_multi_span ls_multi_span_at(const ls_optimizer_args *args, int index, int64_t offset);
/* A step of LAMB or LARS. *first_bad: as in ls_step_state. `rule` has all that the norms do not
 * say; number: of the step, from 1.
 */
ls_status ls_multi_norm_step(const ls_multi_variant *variant, int threads,
                             const ls_optimizer_config *config, const ls_optimizer_args *args,
                             const ls_multi_rule *rule, int64_t number, int32_t *first_bad);

#endif
