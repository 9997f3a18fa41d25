/* The input of a diagnosis. */
#ifndef LS_DIAGNOSE_WRONG_H
#define LS_DIAGNOSE_WRONG_H

#include <stdbool.h>

#include "kernels/core/status.h"
#include "reference/oracle/branch.h"
#include "reference/oracle/evidence.h"

/* A wrong gradient (evidence->grad) and the data for its diagnosis. Pointers are borrowed. */
typedef struct ls_diagnose_wrong {
    const ls_evidence *evidence;
    const double *expected;        /* [net.elements] FP64 on `branches` */
    const float *rank_grad;        /* [W][net.elements] each rank's own in FP64; NULL: unknown */
    const ls_branch_set *branches; /* forced ones; NULL: FP64's own */
    const double *noise; /* [net.param_count] error of one element that rounding explains, RMS over
                            the tensor, times the comparison's factor */
    double error, limit; /* of the whole gradient, relative */
} ls_diagnose_wrong;

#endif
