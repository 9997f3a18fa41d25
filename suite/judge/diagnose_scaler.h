/* Why a loss-scale trace is wrong: wrong state machines are run on the same overflows, and the one
 * that gives the trace seen is the cause. */
#ifndef LS_DIAGNOSE_SCALER_H
#define LS_DIAGNOSE_SCALER_H

#include <stdbool.h>

/* One rank's trace of `count` steps. Pointers are borrowed, each [count]. */
typedef struct ls_diagnose_scaler {
    double init, lowest, highest; /* lowest 0, highest INFINITY: none */
    int interval;                 /* clean steps before the scale doubles */
    int count;
    const bool *overflow; /* what the script makes happen, on whatever rank */
    const bool *own;      /* the same on this rank only; NULL: not known */
    const double *scale;  /* seen: used by the step */
    const double *next;   /* seen: of the step after */
    const bool *skipped;  /* seen */
} ls_diagnose_scaler;

/* One line, "" where no wrong machine fits; returns whether one did. */
bool ls_diagnose_scaler_find(const ls_diagnose_scaler *trace, char *text, int text_bytes);

#endif
