/* Mixed precision around the optimizer: the state of a step at the start, the unscale pass, the
 * scaler's update, and what the host may conclude from a copy of the state. All decisions of a step
 * are made on the device (kernels.h, ls_step_state); nothing here branches on them between two
 * steps. */
#ifndef LS_AMP_H
#define LS_AMP_H

#include "memory.h"
#include "precision.h"

/* Overflows in a row that end a run (numerics.md section 2.6; Apex has no such stop: facts/apex.md
 * 10). */
enum { LS_AMP_STREAK_MAX = 50 };

typedef struct ls_amp {
    ls_memory *memory; /* borrowed */
    ls_scaler_config config;
    bool unscales; /* false: Apex's short circuit (facts/apex.md 2.2) */
} ls_amp;

/* The short circuit (a static scale of 1 and no masters) leaves gradients as they are and looks at
 * nothing; half gradients without masters (O3) are still widened for the optimizer. */
void ls_amp_create(ls_memory *memory, const ls_precision *precision, ls_amp *out);

/* The state before the first step: S, 1/S, all counts 0, no flag raised. */
ls_step_state ls_amp_initial_state(const ls_precision *precision);
ls_status ls_amp_write_state(const ls_amp *amp, const ls_step_state *state);

/* gradients (as they came out of the reduction) / S -> memory->unscaled, looking for inf and NaN.
 */
ls_status ls_amp_unscale(const ls_amp *amp);
/* After the optimizer: S, 1/S and the counts of the next step. */
ls_status ls_amp_update(const ls_amp *amp);

/* LS_ERR_NON_FINITE with a line that names the tensor, when a copy of the state says that the run
 * is over: a value is not finite after a step, LS_AMP_STREAK_MAX overflows in a row, or S below its
 * floor. */
ls_status ls_amp_judge(const ls_amp *amp, const ls_step_state *state, int64_t step);

#endif
