/* Batch norm with training statistics over groups of chunks (a rank's micro-step, or those of all
 * ranks that share statistics; every sample has the same weight): with var biased,
 * y = weight * (x - mean) / sqrt(var + 1e-5) + bias. */
#ifndef LS_ORACLE_NORM_H
#define LS_ORACLE_NORM_H

#include <stdbool.h>

#include "bits.h"
#include "planes.h"
#include "shards.h"

#define LS_NORM_EPSILON 1e-5 /* torch.nn.BatchNorm2d */

/* A batch norm with a mistake, for the diagnosis of causes; everything not named is as in the right
 * form. */
typedef enum ls_norm_form {
    LS_NORM_RIGHT,
    LS_NORM_EPSILON_1E3,        /* var + 1e-3 */
    LS_NORM_EPSILON_NONE,       /* var + 0 */
    LS_NORM_EPSILON_OUTSIDE,    /* sqrt(var) + 1e-5 */
    LS_NORM_MOMENTS_IN_HALF,    /* mean and variance rounded to fp16 */
    LS_NORM_VARIANCES_AVERAGED, /* of a group: the mean of its chunks' variances */
    LS_NORM_OWN_SUMS,    /* in_grad from each chunk's own sums, divided by the group's count */
    LS_NORM_OWN_MOMENTS, /* each chunk's own moments; in_grad is otherwise right */
    LS_NORM_OWN_MOMENTS_COUNT, /* the same, with the group's sums divided by each chunk's own count
                                */
} ls_norm_form;

/* Statistics of every group, [groups][pitch], or of every chunk if chunks have their own. */
typedef struct ls_norm_stats {
    int groups, group_chunks; /* consecutive chunks that share statistics */
    ls_norm_form form;
    bool in_half; /* forward: y = scale * x + offset with both in fp16, the offset by that scale */
    double *mean, *inv_std;
} ls_norm_stats;

/* group_chunks divides the number of ranks. The caller sets `form` and `in_half` of `stats`, the
 * rest is filled in (two allocations that ls_norm_stats_free frees). `store`: type of mean and
 * inv_std, F64 or F32. */
ls_status ls_norm_forward(const ls_planes *in, const double *weight, const double *bias,
                          const ls_shards *shards, int group_chunks, ls_bits_type store,
                          ls_norm_stats *stats, ls_planes *out);
/* in_grad from out_grad, and each chunk's sums: weight_grad[chunks][channels] = sum out_grad *
 * xhat, bias_grad = sum out_grad. `store` as above, for the groups' sums used in in_grad. in_grad
 * may be out_grad. */
ls_status ls_norm_backward(const ls_planes *in, const double *weight, const ls_norm_stats *stats,
                           const ls_shards *shards, ls_bits_type store, const ls_planes *out_grad,
                           ls_planes *in_grad, double *weight_grad, double *bias_grad);
void ls_norm_stats_free(ls_norm_stats *stats);

#endif
