/* What `lockstep bounds` measures of a step, and the faults that it plants in the dumps of one. */
#ifndef LS_BOUNDS_PLANT_H
#define LS_BOUNDS_PLANT_H

#include <stdbool.h>

#include "kernels/core/status.h"
#include "suite/judge/compare.h"

/* The measured values of a step: the parts of a gradient (compare.h), then these. */
enum {
    LS_BOUNDS_LOGITS = LS_COMPARE_PARTS, /* e/r of the logits */
    LS_BOUNDS_TIE,    /* the farthest branch that was taken the other way, in RMS roundings */
    LS_BOUNDS_REDUCE, /* largest error of an element, in units of its limit */
    LS_BOUNDS_NEXT,   /* the same for the optimizer's step */
    LS_BOUNDS_BUFFER, /* e/r of running statistics, where e leaves out the update's own rounding */
    LS_BOUNDS_KINDS,
};

typedef struct ls_bounds_plant {
    const char *name;
    int kind;           /* LS_BOUNDS_... or LS_COMPARE_...: the value that should show the fault */
    const char *tensor; /* of the dump; NULL: every gradient */
    bool may_hide;      /* it may be smaller than the rounding of some levels */
} ls_bounds_plant;
extern const ls_bounds_plant ls_bounds_plants[];
extern const int ls_bounds_plant_count;
/* Writes copies of path[world] with the fault to the files copy[world]. LS_ERR_UNSUPPORTED when the
 * fault needs more ranks (a missing reduction in a world of one). */
ls_status ls_bounds_plant_write(const ls_bounds_plant *plant, int world, const char *const *path,
                                const char *const *copy);

#endif
