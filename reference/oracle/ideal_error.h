/* The ideal error of an opt level, and FP64 on a subject's branches: the oracle's two services to a
 * comparison, with cached results (numerics.md section 4, points 2 and 3). */
#ifndef LS_ORACLE_IDEAL_ERROR_H
#define LS_ORACLE_IDEAL_ERROR_H

#include "oracle.h"

/* Elements from .. from+count-1 of the whole gradient. */
typedef struct ls_ideal_error_span {
    int64_t from, count;
} ls_ideal_error_span;

/* Errors of the ideal against FP64 on the ideal's branches. */
typedef struct ls_ideal_error_cost {
    double *error2; /* [spans] |gideal - g64|^2 */
    double *grad2;  /* [spans] |g64|^2 */
    double whole_error2, whole_grad2;
    double logits_error2, logits2; /* the same for the logits */
    double *stats_error2; /* [nodes][2] |ideal - x64|^2 of a batch norm's means and variances, over
                             all groups and channels */
    double *branch_rms;   /* [branches] s: RMS over the layer of (xideal - x64) at the input of each
                             ReLU and pool */
} ls_ideal_error_cost;

/* `cache`: folder for results, NULL: none. An overflow in the ideal makes errors inf or NaN. */
ls_status ls_ideal_error_measure(const ls_oracle_step *step, const ls_ideal_error_span *spans,
                                 int64_t span_count, const char *cache, ls_ideal_error_cost *out);
void ls_ideal_error_cost_free(ls_ideal_error_cost *cost);

/* FP64 on forced branches with near-tie limits; cached if the gradient has at most 32 MiB (a larger
 * file costs more disk than it saves time). */
ls_status ls_ideal_error_forced(const ls_oracle_step *step, const ls_branch_set *forced,
                                const double *tie_limit, const char *cache, ls_oracle_result *out);

/* |a - b|^2 and |b|^2 over a span, summed in order. */
double ls_ideal_error_squared(const double *a, const double *b, ls_ideal_error_span span);
double ls_ideal_error_square(const double *value, ls_ideal_error_span span);

#endif
