#include "diagnose.h"

#include <math.h>
#include <string.h>

typedef double matrix[LS_DIAGNOSE_FIT_MAX][LS_DIAGNOSE_FIT_MAX];

/* Solves m * x = right; x replaces right. False when it is singular. The matrix is that of normal
 * equations, which need no pivots. */
static bool solve(int size, matrix m, double *right)
{
    double diagonal[LS_DIAGNOSE_FIT_MAX];
    for (int k = 0; k < size; k++) {
        diagonal[k] = m[k][k];
    }
    for (int k = 0; k < size; k++) {
        /* 2^-40 of the original diagonal: the vectors are equal up to rounding */
        if (!(m[k][k] > 0x1p-40 * diagonal[k])) {
            return false;
        }
        for (int i = 0; i < size; i++) {
            double factor = i == k ? 0 : m[i][k] / m[k][k];
            for (int j = k; j < size; j++) {
                m[i][j] -= factor * m[k][j];
            }
            right[i] -= factor * right[k];
        }
    }
    for (int k = 0; k < size; k++) {
        right[k] /= m[k][k];
    }
    return true;
}

double ls_diagnose_fit(int64_t count, const double *value, int basis_count,
                       const double *const *basis, double *weight)
{
    if (basis_count > LS_DIAGNOSE_FIT_MAX) {
        return INFINITY;
    }
    matrix m;
    memset(m, 0, sizeof m);
    memset(weight, 0, (size_t)basis_count * sizeof *weight);
    for (int a = 0; a < basis_count; a++) {
        for (int64_t i = 0; i < count; i++) {
            weight[a] += basis[a][i] * value[i];
        }
        for (int b = 0; b <= a; b++) {
            for (int64_t i = 0; i < count; i++) {
                m[a][b] += basis[a][i] * basis[b][i];
            }
            m[b][a] = m[a][b];
        }
    }
    if (!solve(basis_count, m, weight)) {
        return INFINITY;
    }
    double rest2 = 0;
    for (int64_t i = 0; i < count; i++) {
        double rest = value[i];
        for (int a = 0; a < basis_count; a++) {
            rest -= weight[a] * basis[a][i];
        }
        rest2 += rest * rest;
    }
    return sqrt(rest2);
}

double ls_diagnose_fit_norm(int64_t count, const double *value)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += value[i] * value[i];
    }
    return sqrt(sum);
}
