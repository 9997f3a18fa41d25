/* to[i] = to[i] combined with from[i] for the Gloo engine, as comm.h defines the operators; sums
 * are gloo_sum.h's. Any alignment; the two must not overlap. */
#ifndef LS_GLOO_REDUCE_H
#define LS_GLOO_REDUCE_H

#include "comm.h"

#ifdef __cplusplus
extern "C" {
#endif

void ls_gloo_reduce(ls_comm_redop redop, ls_dtype dtype, void *to, const void *from, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
