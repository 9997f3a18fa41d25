/* to[i] = to[i] combined with from[i] for the Gloo engine, as comm.h defines the operators; sums
 * are apart, below. Any alignment; the two must not overlap. */
#ifndef LS_GLOO_REDUCE_H
#define LS_GLOO_REDUCE_H

#include <stdint.h>

#include "comm.h"
#include "kernels/core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

void ls_gloo_reduce(ls_comm_redop redop, ls_dtype dtype, void *to, const void *from, int64_t count);

/* to[i] += from[i] for the Gloo engine. 16-bit types: both are widened to f32, added, and the sum
 * is rounded once, to nearest even (numerics.md section 1). Any alignment; the two must not
 * overlap. */

void ls_gloo_add(ls_dtype dtype, void *to, const void *from, int64_t count);
/* to[i] *= factor, f32. */
void ls_gloo_scale(void *to, float factor, int64_t count);

#ifdef __cplusplus
}
#endif

#endif
