/* The dynamic loss scale as the suite's own state machine (apex/amp/scaler.py, numerics.md section
 * 2.6). */
#ifndef LS_JUDGE_SCALER_H
#define LS_JUDGE_SCALER_H

#include <stdbool.h>

typedef struct ls_judge_scaler_machine {
    double scale, lowest, highest;
    int clean, interval; /* steps without an overflow, and how many of them double the scale */
} ls_judge_scaler_machine;

/* The scale of the next step. */
double ls_judge_scaler_tick(ls_judge_scaler_machine *m, bool overflow);

#endif
