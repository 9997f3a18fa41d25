/* From the gradients of every rank's every micro-step to the one that the optimizer sees
 * (numerics.md section 2, points 4 and 5, and accumulation). */
#ifndef LS_ORACLE_COMBINE_H
#define LS_ORACLE_COMBINE_H

#include "oracle.h"
#include "round_stored.h"

/* chunk[A*W][count], chunk a*W+r: gradients of loss*S/A summed in FP64; changed in place. product:
 * of a convolution or linear layer, not of batch norm. With `ideal` off: the plain mean.
 * out[count]. */
void ls_combine_chunks(const ls_oracle_step *step, bool ideal, bool product,
                       ls_round_stored_noise noise, int64_t count, double *chunk, double *out);

#endif
