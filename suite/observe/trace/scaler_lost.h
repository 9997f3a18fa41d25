/* What a job loses by its GradScaler: parts of the rule scaler.trace. */
#ifndef LS_OBSERVE_SCALER_LOST_H
#define LS_OBSERVE_SCALER_LOST_H

#include "trace.h"

/* Fails where an optimizer is stepped by one scaler after another that were built on one line: the
 * scale and the count of clean steps are lost each time. Scalers that step an optimizer in turn are
 * not that, nor is one whose state was loaded. */
void ls_scaler_lost_scale(const ls_observe_trace *trace, ls_observe_finding *out);
/* Names jobs that lose many of their steps to the loss scale; adds to a finding that is no FAIL
 * yet.
 */
void ls_scaler_lost_steps(const ls_observe_trace *trace, ls_observe_finding *out);

#endif
