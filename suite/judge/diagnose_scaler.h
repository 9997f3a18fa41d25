/* Finds the cause of a wrong loss-scale trace: wrong state machines run on the same overflows, and
 * the one that reproduces the trace is the cause. */
#ifndef LS_DIAGNOSE_SCALER_H
#define LS_DIAGNOSE_SCALER_H

#include <stdbool.h>

/* One rank's trace of `count` steps. Pointers are borrowed, each [count]. */
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
