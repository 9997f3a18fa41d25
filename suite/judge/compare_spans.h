/* The parts of a gradient that are judged separately (numerics.md section 4): every tensor, every
 * 64 consecutive elements, the first and last 8 of every tensor. Buckets hold whole tensors without
 * padding, so their edges are edges of tensors too. */
#ifndef LS_COMPARE_SPANS_H
#define LS_COMPARE_SPANS_H

#include "reference/oracle/ideal_error.h"
#include "compare_types.h"

typedef enum ls_compare_spans_kind {
    LS_COMPARE_SPANS_TENSOR,
    LS_COMPARE_SPANS_BLOCK,
    LS_COMPARE_SPANS_EDGE,
} ls_compare_spans_kind;

typedef struct ls_compare_spans {
    int64_t count;
    ls_ideal_error_span
        *span;  /* in backward order of tensors; a tensor, then its blocks, then its edges */
    int *param; /* [count] */
    ls_compare_spans_kind *kind;
    double *error, *ideal; /* [count] e and r, r with its floors */
    double *scale;         /* [count] D of the subject's g64 */
} ls_compare_spans;

ls_status ls_compare_spans_build(const ls_nettab *net, ls_compare_spans *out);
void ls_compare_spans_free(ls_compare_spans *spans);
/* Fills error and ideal: the errors of the gradient against g64, and the ideal errors of the level.
 */
ls_status ls_compare_spans_measure(const ls_nettab *net, const double *grad, const double *g64,
                                   const ls_ideal_error_cost *cost, ls_compare_spans *spans);
/* The level's largest ideal error of each kind, for comparisons without an oracle: r of the whole,
 * the largest r of tensors of 64 elements and more and of smaller ones; for blocks and edges the
 * largest error in units of max(|g64|, their tensor's norm for as many elements): their own norm
 * may be small by chance and is then no scale. */
void ls_compare_spans_ideal_error(const ls_nettab *net, const ls_ideal_error_cost *cost,
                                  const ls_compare_spans *spans,
                                  double ideal_error[LS_COMPARE_PARTS]);
/* D = max(|g64|, 1e-3 * |whole g64| * sqrt(elements / all elements)). */
double ls_compare_spans_scale(double grad2, double whole_grad2, int64_t count, int64_t all);

#endif
