/* Batch norm over groups of chunks (a rank's micro-step, or those of all ranks that share
 * statistics: every sample weighs the same), with training statistics: y = (x - mean) / sqrt(var +
 * 1e-5) * weight + bias, var biased. */
#ifndef LS_ORACLE_NORM_H
#define LS_ORACLE_NORM_H

#include "bits.h"
#include "planes.h"
#include "shards.h"

#define LS_NORM_EPSILON 1e-5 /* torch.nn.BatchNorm2d */

/* A batch norm with a mistake, as the finding of causes needs it; all sums but the named ones are
 * the right one's. */
typedef enum ls_norm_form {
    LS_NORM_RIGHT,
    LS_NORM_EPSILON_1E3,        /* var + 1e-3 */
    LS_NORM_EPSILON_NONE,       /* var + 0 */
    LS_NORM_EPSILON_OUTSIDE,    /* sqrt(var) + 1e-5 */
    LS_NORM_MOMENTS_IN_HALF,    /* mean and variance rounded to fp16 */
    LS_NORM_VARIANCES_AVERAGED, /* of a group: the mean of its chunks' variances */
    LS_NORM_OWN_SUMS,           /* in_grad from each chunk's own sums, over the group's count */
    LS_NORM_OWN_MOMENTS,        /* each chunk's own moments; in_grad is right but for them */
    LS_NORM_OWN_MOMENTS_COUNT,  /* the same, and the group's sums over each chunk's own count */
} ls_norm_form;

/* Statistics of every group, [groups][pitch]; of every chunk where those are its own. */
typedef struct ls_norm_stats {
    int groups, group_chunks; /* neighbouring chunks that share statistics */
    ls_norm_form form;
    double *mean, *inv_std;
} ls_norm_stats;

/* group_chunks divides the ranks. form of `stats` is given, the rest is filled (two allocations
 * that ls_norm_stats_free frees). `store`: type of mean and inv_std, F64 or F32. */
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
