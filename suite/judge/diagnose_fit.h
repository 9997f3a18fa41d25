/* Least squares over chosen elements of a gradient: expresses it as a sum of known vectors. */
#ifndef LS_DIAGNOSE_FIT_H
#define LS_DIAGNOSE_FIT_H

#include <stdbool.h>
#include <stdint.h>

enum { LS_DIAGNOSE_FIT_MAX = 8 };

/* value ~ sum of weight[k] * basis[k], each [count]. Fills weight[basis_count] and returns |value -
 * sum| (absolute, Euclidean); INFINITY if the vectors are linearly dependent or more than
 * LS_DIAGNOSE_FIT_MAX. Normal equations, elimination with the largest pivot. */
double ls_diagnose_fit(int64_t count, const double *value, int basis_count,
                       const double *const *basis, double *weight);

/* |value|, Euclidean. */
double ls_diagnose_fit_norm(int64_t count, const double *value);

#endif
