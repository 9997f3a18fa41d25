/* Finds the cause of a wrong gradient: tries common mistakes one after another; the one that
 * explains it up to rounding is the cause. */
#ifndef LS_DIAGNOSE_H
#define LS_DIAGNOSE_H

#include <stdbool.h>

#include "harness/run/record.h"
#include "kernels/core/status.h"
#include "reference/oracle/branch.h"
#include "reference/oracle/evidence.h"
#include "compare.h"

/* The input of a diagnosis.
 * A wrong gradient (evidence->grad) and the data for its diagnosis. Pointers are borrowed. */
typedef struct ls_diagnose_wrong {
    const ls_evidence *evidence;
    const double *expected;        /* [net.elements] FP64 on `branches` */
    const float *rank_grad;        /* [W][net.elements] each rank's own in FP64; NULL: unknown */
    const ls_branch_set *branches; /* forced ones; NULL: FP64's own */
    const double *noise; /* [net.param_count] error of one element that rounding explains, RMS over
                            the tensor, times the comparison's factor */
    double error, limit; /* of the whole gradient, relative */
} ls_diagnose_wrong;

/* diagnose_models.c: mistakes that amount to another training step, recomputed in FP64.
 * Data of the previous steps, each [net.elements]; NULL: unknown. */
typedef struct ls_diagnose_past {
    double *moment;       /* state/<name>/momentum_buffer; missing ones are zero */
    double *param, *grad; /* of the previous step, from its dump in the same folder; finite */
} ls_diagnose_past;

void ls_diagnose_past_read(const ls_evidence *evidence, ls_diagnose_past *out);
void ls_diagnose_past_free(ls_diagnose_past *past);

/* Writes one line if the gradient is that of another step: batch-norm statistics of the wrong
 * ranks, previous weights (all, or those that are cast), the last micro-step alone or one with
 * another weight, batch norm with another epsilon or moments in half, SyncBN with parts left out,
 * shortcuts from the odd pixels. */
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

/* An element is wrong if its error is more than four times its tensor's `noise`. */
void ls_diagnose_place_find(const ls_diagnose_wrong *wrong, ls_diagnose_place *out);
void ls_diagnose_place_free(ls_diagnose_place *place);

/* Least squares over chosen elements, a gradient as a sum of known vectors. */
enum { LS_DIAGNOSE_FIT_MAX = 8 };

/* value ~ sum of weight[k] * basis[k], each [count]. Fills weight[basis_count] and returns |value -
 * sum| (absolute, Euclidean); INFINITY if the vectors are linearly dependent or more than
 * LS_DIAGNOSE_FIT_MAX. Normal equations. */
double ls_diagnose_fit(int64_t count, const double *value, int basis_count,
                       const double *const *basis, double *weight);

/* |value|, Euclidean. */
double ls_diagnose_fit_norm(int64_t count, const double *value);

/* Writes one line, "" if no mistake fits. Tries: a factor; a sum with other weights of the ranks,
 * or over other ranks at each element; the previous step's gradient added; weight decay added; the
 * same on the wrong elements alone, naming their position (tails, heads, one element, one kind of
 * tensor); batch-norm statistics of the wrong ranks; the previous step's weights; the precision of
 * another level. LS_ERR_INFRA without memory. */
ls_status ls_diagnose_gradient(const ls_diagnose_wrong *wrong, char *text, int text_bytes);

/* Finds the cause of a wrong optimizer step: steps with one mistake each are recomputed from the
 * dump, and the one that reproduces it is the cause.
 * One line, "" if no mistake fits. `rule` is the right one; `skipped`: whether the step was. */
ls_status ls_diagnose_step(const ls_dumpfile *file, const ls_update_rule *rule, bool skipped,
                           char *text, int text_bytes);

/* Finds the cause of a difference between two runs whose steps must be equal, from the digests that
 * differ first.
 * The cause if ranks hold different gradients after their reduction. */
#define LS_DIAGNOSE_DIGESTS_GRADIENTS                                                        \
    "ranks apply different gradients: a reduction is missing, incomplete or ran before the " \
    "gradient was ready"

/* Compares two ranks of one job, whose running statistics are `shared` or each its own. One line,
 * "" if the digests show no cause: "gradients are equal" needs digests of gradients. */
void ls_diagnose_replicas(const ls_record_rank *a, const ls_record_rank *b, bool shared, char *text,
                          int text_bytes);
/* Compares one rank of an uninterrupted run with the same rank of a run resumed before step
 * `first`. */
void ls_diagnose_resume(const ls_record_rank *straight, const ls_record_rank *resumed,
                        int64_t first, char *text, int text_bytes);

/* Finds the cause of a job's ending from the last messages of its ranks.
 * Ranks that waited for each other until the deadline: two whose engines report different
 * operations under the same number. One line, "" if there are none. */
void ls_diagnose_endings_waits(const ls_record *job, char *text, int text_bytes);
/* A rank whose end event has another code than its process. One line, "" if there is none. */
void ls_diagnose_endings_codes(const ls_record *job, char *text, int text_bytes);

/* Finds the cause of a wrong loss-scale trace: wrong state machines run on the same overflows, and
 * the one that reproduces the trace is the cause.
 * One rank's trace of `count` steps. Pointers are borrowed, each [count]. */
typedef struct ls_diagnose_scaler {
    double init, lowest, highest; /* lowest 0, highest INFINITY: no limit */
    int interval;                 /* clean steps before the scale doubles */
    int count;
    const bool *overflow; /* forced by the script, on any rank */
    const bool *own;      /* on this rank only; NULL: unknown */
    const double *scale;  /* observed: used by the step */
    const double *next;   /* observed: of the next step */
    const bool *skipped;  /* observed */
} ls_diagnose_scaler;

/* One line, "" if no wrong machine fits; returns whether one did. */
bool ls_diagnose_scaler_find(const ls_diagnose_scaler *trace, char *text, int text_bytes);

#endif
