/* Combines the gradients of all ranks and micro-steps into the one that the optimizer reads
 * (numerics.md section 2, points 4 and 5, and accumulation). */
#ifndef LS_ORACLE_COMBINE_H
#define LS_ORACLE_COMBINE_H

#include "oracle_step.h"
#include "round_stored.h"

/* chunk[A*W][count], chunk a*W+r: gradients of loss*S/A summed in FP64; modified. product: of a
 * convolution or linear layer, not of batch norm. ideal false: the plain mean. out[count]. */
void ls_combine_chunks(const ls_oracle_step *step, bool ideal, bool product,
                       ls_round_stored_noise noise, int64_t count, double *chunk, double *out);

#endif
