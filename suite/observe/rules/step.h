/* What an optimizer's rule asks of a parameter in exact arithmetic: step.c. */
#ifndef LS_OBSERVE_RULES_STEP_H
#define LS_OBSERVE_RULES_STEP_H

#include "suite/observe/trace/samples.h"

/* The sampled elements before and after the step of an attached job, and where they should be by
 * gradient, state and settings, before any rounding. False, with nothing to free, where no
 * optimizer with a known rule took the parameter in that step. */
bool ls_rules_step_expect(const ls_samples *samples, int rank, const char *name, ls_values *param,
                          ls_values *next, ls_values *wanted);

#endif
