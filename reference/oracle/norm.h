/* Batch norm over groups of chunks (a rank's micro-step, or those of all ranks that share
 * statistics: every sample weighs the same), with training statistics: y = (x - mean) / sqrt(var +
 * 1e-5) * weight + bias, var biased. */
#ifndef LS_ORACLE_NORM_H
#define LS_ORACLE_NORM_H

#include "bits.h"
#include "planes.h"
#include "shards.h"

#define LS_NORM_EPSILON 1e-5 /* torch.nn.BatchNorm2d */

/* Statistics of every group, [groups][pitch]. */
typedef struct ls_norm_stats {
    int groups, group_chunks; /* neighbouring chunks that share statistics */
    double *mean, *inv_std;
} ls_norm_stats;

/* group_chunks divides the ranks. `stats` is filled (two allocations that ls_norm_stats_free
 * frees). `store`: type of mean and inv_std, F64 or F32. */
ls_status ls_norm_forward(const ls_planes *in, const double *weight, const double *bias,
                          const ls_shards *shards, int group_chunks, ls_bits_type store,
                          ls_norm_stats *stats, ls_planes *out);
/* in_grad from out_grad, and each chunk's sums: weight_grad[chunks][channels] = sum out_grad *
 * xhat, bias_grad = sum out_grad. `store` as above, for the groups' sums that in_grad is made of.
 * in_grad may be out_grad. */
ls_status ls_norm_backward(const ls_planes *in, const double *weight, const ls_norm_stats *stats,
                           const ls_shards *shards, ls_bits_type store, const ls_planes *out_grad,
                           ls_planes *in_grad, double *weight_grad, double *bias_grad);
void ls_norm_stats_free(ls_norm_stats *stats);

#endif
