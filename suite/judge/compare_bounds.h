/* How far a correct subject may be from the oracle: each bound is a factor on what the level costs
 * at best, and the reason for it (numerics.md section 4). The factors are confirmed by
 * results/bounds/. */
#ifndef LS_COMPARE_BOUNDS_H
#define LS_COMPARE_BOUNDS_H

#include "compare.h"

/* A factor on r (or on s, for ties), and where it comes from. */
typedef struct ls_compare_bound {
    double factor;
    const char *why;
} ls_compare_bound;

/* [LS_COMPARE_PARTS] of opt level 0 to 3. */
const ls_compare_bound *ls_compare_bounds_of(int level);
/* A turned branch may be this many RMS roundings of its layer away from its tie. */
ls_compare_bound ls_compare_bounds_tie(int level);

/* Coarse: the ideal's own scatter over this many noises, and twice its largest. */
enum { LS_COMPARE_COARSE_RUNS = 8 };
ls_compare_bound ls_compare_bounds_coarse(void);
/* r of the whole gradient above this shows nothing. */
ls_compare_bound ls_compare_bounds_weak_price(void);
/* e below this share of r on most tensors: half was not in use. */
ls_compare_bound ls_compare_bounds_weak_share(void);

#endif
