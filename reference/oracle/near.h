/* Running error analysis: a number in FP64, and how far from it the same formula may be in f32.
 * Every operation adds one unit of its result to what its operands carry (Higham, Accuracy and
 * Stability of Numerical Algorithms, 3.3), and 2^-126 where a result may be flushed to zero. */
#ifndef LS_ORACLE_NEAR_H
#define LS_ORACLE_NEAR_H

#include <math.h>

typedef struct ls_near {
    double value, error;
} ls_near;

#define LS_NEAR_UNIT 0x1p-24  /* of f32 */
#define LS_NEAR_TINY 0x1p-126 /* smallest normal f32 */

static inline ls_near ls_near_rounded(double value, double error)
{
    return (ls_near){value, error + LS_NEAR_UNIT * (fabs(value) + error) + LS_NEAR_TINY};
}

/* A constant that is held as f32. */
static inline ls_near ls_near_constant(double value)
{
    return (ls_near){value, LS_NEAR_UNIT * fabs(value)};
}

static inline ls_near ls_near_add(ls_near a, ls_near b)
{
    return ls_near_rounded(a.value + b.value, a.error + b.error);
}

static inline ls_near ls_near_sub(ls_near a, ls_near b)
{
    return ls_near_rounded(a.value - b.value, a.error + b.error);
}

static inline ls_near ls_near_mul(ls_near a, ls_near b)
{
    return ls_near_rounded(a.value * b.value,
                           fabs(a.value) * b.error + fabs(b.value) * a.error + a.error * b.error);
}

/* Infinite error where the divisor may be zero. */
static inline ls_near ls_near_div(ls_near a, ls_near b)
{
    double quotient = a.value / b.value, least = fabs(b.value) - b.error;
    double error = least > 0 ? (a.error + fabs(quotient) * b.error) / least : INFINITY;
    return ls_near_rounded(quotient, error);
}

static inline ls_near ls_near_root(ls_near a)
{
    double root = sqrt(a.value), error = sqrt(a.error);
    return ls_near_rounded(root, root > 0 ? fmin(error, a.error / root) : error);
}

#endif
