/* Numbers with a bound on what a right computation in a type may be off: each operation adds its
 * own rounding to what its operands are off (numerics.md section 8). */
#ifndef LS_OBSERVE_APPROX_H
#define LS_OBSERVE_APPROX_H

#include <math.h>

#include "samples.h"

typedef struct ls_approx {
    double v, e; /* the exact value, and the distance that is allowed */
} ls_approx;

static inline ls_approx ls_approx_exact(double value)
{
    return (ls_approx){value, 0};
}

/* One rounding of a result whose operands are off by `e`. */
static inline ls_approx ls_approx_round(double value, double e, ls_unit unit)
{
    return (ls_approx){value, e + unit.u * (fabs(value) + e) + unit.eta};
}

static inline ls_approx ls_approx_add(ls_approx a, ls_approx b, ls_unit unit)
{
    return ls_approx_round(a.v + b.v, a.e + b.e, unit);
}

static inline ls_approx ls_approx_multiply(ls_approx a, ls_approx b, ls_unit unit)
{
    double e = fabs(a.v) * b.e + fabs(b.v) * a.e + a.e * b.e;
    return ls_approx_round(a.v * b.v, e, unit);
}

/* By a setting, which becomes a number of the type first. */
static inline ls_approx ls_approx_scale(double factor, ls_approx a, ls_unit unit)
{
    const ls_approx setting = {factor, unit.u * fabs(factor)};
    return ls_approx_multiply(setting, a, unit);
}

/* The denominator is positive, and its error smaller than itself; else the error is infinite. */
static inline ls_approx ls_approx_divide(ls_approx a, ls_approx b, ls_unit unit)
{
    double least = fabs(b.v) - b.e;
    if (!(least > 0)) {
        return (ls_approx){a.v / b.v, INFINITY};
    }
    double e = (a.e + fabs(a.v / b.v) * b.e) / least;
    return ls_approx_round(a.v / b.v, e, unit);
}

static inline ls_approx ls_approx_root(ls_approx a, ls_unit unit)
{
    double root = sqrt(fmax(a.v, 0)), up = sqrt(fmax(a.v, 0) + a.e);
    double down = sqrt(fmax(a.v - a.e, 0));
    return ls_approx_round(root, fmax(up - root, root - down), unit);
}

#endif
