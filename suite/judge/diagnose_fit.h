/* Least squares over chosen elements of a gradient: which sum of known vectors is it? */
#ifndef LS_DIAGNOSE_FIT_H
#define LS_DIAGNOSE_FIT_H

#include <stdbool.h>
#include <stdint.h>

enum { LS_DIAGNOSE_FIT_MAX = 8 };

/* value ~ sum of weight[k] * basis[k], each [count]. Fills weight[basis_count] and returns
 * |value - sum| (absolute, Euclidean); INFINITY where the vectors do not tell their weights apart
 * or are more than LS_DIAGNOSE_FIT_MAX. Normal equations, elimination with the largest pivot. */
double ls_diagnose_fit(int64_t count, const double *value, int basis_count,
                       const double *const *basis, double *weight);

/* |value|, Euclidean. */
double ls_diagnose_fit_norm(int64_t count, const double *value);

#endif
