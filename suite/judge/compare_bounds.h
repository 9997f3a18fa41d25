/* How far a correct subject may be from the oracle: each bound is a factor on the level's ideal
 * error, with its reason (numerics.md section 4). results/bounds/ confirms the factors. */
#ifndef LS_COMPARE_BOUNDS_H
#define LS_COMPARE_BOUNDS_H

#include "compare_types.h"

/* A factor on r (or on s, for ties), and its reason. */
typedef struct ls_compare_bound {
    double factor;
    const char *why;
} ls_compare_bound;

/* [LS_COMPARE_PARTS] for opt level 0 to 3. */
const ls_compare_bound *ls_compare_bounds_of(int level);
/* The largest distance of a turned branch from its tie, in RMS roundings of its layer. */
ls_compare_bound ls_compare_bounds_tie(int level);

/* Coarse: the number of ideal runs with different noise; the bound is twice their largest error. */
enum { LS_COMPARE_COARSE_RUNS = 8 };
ls_compare_bound ls_compare_bounds_coarse(void);
/* With r of the whole gradient above this, the evidence is weak. */
ls_compare_bound ls_compare_bounds_weak_ideal_error(void);
/* With e below this share of r on most tensors, half was not in use. */
ls_compare_bound ls_compare_bounds_weak_share(void);

#endif
