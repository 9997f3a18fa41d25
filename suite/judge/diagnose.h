/* Why a gradient is wrong: the mistakes that people make are tried on it one after another, and the
 * one that leaves no more than rounding is the cause. */
#ifndef LS_DIAGNOSE_H
#define LS_DIAGNOSE_H

#include <stdbool.h>

#include "kernels/core/status.h"
#include "reference/oracle/branch.h"
#include "reference/oracle/evidence.h"

/* What is known of a wrong gradient (evidence->grad). Pointers are borrowed. */
typedef struct ls_diagnose_wrong {
    const ls_evidence *evidence;
    const double *expected;        /* [net.elements] FP64 on `branches` */
    const float *rank_grad;        /* [W][net.elements] each rank's own in FP64; NULL: not known */
    const ls_branch_set *branches; /* forced ones; NULL: FP64's own were taken */
    const double *noise; /* [net.param_count] error of one element that rounding explains, RMS over
                            the tensor, with the comparison's factor */
    double error, limit; /* of the whole gradient, relative */
} ls_diagnose_wrong;

/* Writes one line, "" where no mistake fits. Tried: a factor, a sum with other weights of the
 * ranks or over other ranks at each element, the step before added, weight decay added; the same on
 * the wrong elements alone, with their place (tails, heads, one element, one kind of tensor);
 * batch-norm statistics of the wrong ranks; the weights of the step before; the precision of
 * another level. LS_ERR_INFRA without memory. */
ls_status ls_diagnose_gradient(const ls_diagnose_wrong *wrong, char *text, int text_bytes);

#endif
