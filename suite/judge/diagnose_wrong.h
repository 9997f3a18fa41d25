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

/* diagnose_models.c: mistakes that amount to another training step, recomputed in FP64. */
/* Data of the previous steps, each [net.elements]; NULL: unknown. */
typedef struct ls_diagnose_past {
    double *moment;       /* state/<name>/momentum_buffer; missing ones are zero */
    double *param, *grad; /* of the previous step, from its dump in the same folder; finite */
} ls_diagnose_past;

void ls_diagnose_past_read(const ls_evidence *evidence, ls_diagnose_past *out);
void ls_diagnose_past_free(ls_diagnose_past *past);

/* Writes one line if the gradient is that of another step: batch-norm statistics of the wrong
 * ranks, previous weights (all, or those that are cast), the last micro-step alone, batch norm with
 * another epsilon or moments in half, SyncBN with parts left out, shortcuts from the odd pixels. */
ls_status ls_diagnose_models(const ls_diagnose_wrong *wrong, const ls_diagnose_past *past,
                             char *text, int bytes);

/* diagnose_place.c: the wrong elements of a gradient, and a description of their position. */
typedef struct ls_diagnose_place {
    int64_t count;  /* of the wrong elements */
    int64_t *index; /* [count] in the whole gradient, ascending; owned */
    int tensors;    /* that contain wrong elements */
    bool most;      /* more than half of all elements */
    bool pattern;   /* `text` says more than "n elements" */
    char text[160]; /* "the last 3 elements of 21 tensors", "layer1.0.bn1.weight" */
} ls_diagnose_place;

/* An element is wrong if its error is more than four times its tensor's `noise`. LS_ERR_INFRA
 * without memory. */
ls_status ls_diagnose_place_find(const ls_diagnose_wrong *wrong, ls_diagnose_place *out);
void ls_diagnose_place_free(ls_diagnose_place *place);

/* diagnose_fit.c: least squares over chosen elements, a gradient as a sum of known vectors. */
enum { LS_DIAGNOSE_FIT_MAX = 8 };

/* value ~ sum of weight[k] * basis[k], each [count]. Fills weight[basis_count] and returns |value -
 * sum| (absolute, Euclidean); INFINITY if the vectors are linearly dependent or more than
 * LS_DIAGNOSE_FIT_MAX. Normal equations, elimination with the largest pivot. */
double ls_diagnose_fit(int64_t count, const double *value, int basis_count,
                       const double *const *basis, double *weight);

/* |value|, Euclidean. */
double ls_diagnose_fit_norm(int64_t count, const double *value);

#endif
