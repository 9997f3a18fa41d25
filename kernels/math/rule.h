/* What the header of every optimizer, <rule>.h, has:
 *
 *   ls_<rule>_rule     the constants of one step, worked out in double and rounded once. Its member
 *                      `flags` has the bits that optimizers.def counts: the CPU compiles a loop for
 *                      each of their values, the others are the same code
 *   ls_<rule>_prepare  makes the rule; `step` is t, 1 for the first; grad_squares is the sum of the
 *                      squares of all gradients if the optimizer has NORMS_UPDATE, else 0
 *   ls_<rule>_step     one element: returns the new parameter. *m and *v are its moments, zero at
 *                      first; NULL if the optimizer has none or keeps none
 *
 * With norms of single tensors (LS_NORMS_GRAD, LS_NORMS_UPDATE) also:
 *
 *   ls_<rule>_tensor   what the step does to one tensor, from the sums of the squares of its values
 *                      and of its gradient (NORMS_GRAD) or update (NORMS_UPDATE)
 *   ls_<rule>_update   NORMS_UPDATE: moves the moments and returns the update that the norm is of.
 *                      The step then finds the moments moved and gets no gradient */
#ifndef LS_MATH_RULE_H
#define LS_MATH_RULE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/plant.h"
#include "kernels/kernels.h"
#include "rounded.h"

/* Inlined everywhere: a loop of calls is no vector loop. */
#ifdef __CUDACC__
#define LS_RULE_FN static __forceinline__ __host__ __device__
#else
#define LS_RULE_FN static inline __attribute__((always_inline))
#endif

/* What norms decide for one tensor; without them not read. */
typedef struct ls_rule_tensor {
    bool scales; /* LARS: its gradient is scaled */
    float ratio;
} ls_rule_tensor;

#endif
