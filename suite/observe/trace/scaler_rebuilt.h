/* A GradScaler that is built in the loop: part of the rule scaler.trace. */
#ifndef LS_OBSERVE_SCALER_REBUILT_H
#define LS_OBSERVE_SCALER_REBUILT_H

#include "trace.h"

/* Fails where an optimizer is stepped by one scaler after another that were built on one line: the
 * scale and the count of clean steps are lost each time. Scalers that step an optimizer in turn are
 * not that, nor is one whose state was loaded. */
void ls_scaler_rebuilt_judge(const ls_observe_trace *trace, ls_observe_finding *out);

#endif
