/* Running error analysis: a number in FP64, and a bound on the error of the same formula in f32.
 * Every operation adds one unit of its result to the errors of its operands (Higham, Accuracy and
 * Stability of Numerical Algorithms, 3.3), and 2^-126 if a result may be flushed to zero. */
#ifndef LS_ORACLE_INTERVAL_H
#define LS_ORACLE_INTERVAL_H

#include <math.h>

typedef struct ls_interval {
    double value, error;
} ls_interval;

#define LS_INTERVAL_UNIT 0x1p-24  /* of f32 */
#define LS_INTERVAL_TINY 0x1p-126 /* smallest normal f32 */

static inline ls_interval ls_interval_rounded(double value, double error)
{
    return (ls_interval){value,
                         error + LS_INTERVAL_UNIT * (fabs(value) + error) + LS_INTERVAL_TINY};
}

/* A constant stored as f32. */
static inline ls_interval ls_interval_constant(double value)
{
    return (ls_interval){value, LS_INTERVAL_UNIT * fabs(value)};
}

static inline ls_interval ls_interval_add(ls_interval a, ls_interval b)
{
    return ls_interval_rounded(a.value + b.value, a.error + b.error);
}

static inline ls_interval ls_interval_sub(ls_interval a, ls_interval b)
{
    return ls_interval_rounded(a.value - b.value, a.error + b.error);
}

static inline ls_interval ls_interval_mul(ls_interval a, ls_interval b)
{
    return ls_interval_rounded(a.value * b.value, fabs(a.value) * b.error +
                                                      fabs(b.value) * a.error + a.error * b.error);
}

/* The error is infinite if the divisor may be zero. */
static inline ls_interval ls_interval_div(ls_interval a, ls_interval b)
{
    double quotient = a.value / b.value, least = fabs(b.value) - b.error;
    double error = least > 0 ? (a.error + fabs(quotient) * b.error) / least : INFINITY;
    return ls_interval_rounded(quotient, error);
}

static inline ls_interval ls_interval_root(ls_interval a)
{
    double root = sqrt(a.value), error = sqrt(a.error);
    return ls_interval_rounded(root, root > 0 ? fmin(error, a.error / root) : error);
}

#endif
