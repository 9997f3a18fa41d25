/* Jobs that lose many of their steps to the loss scale. */
#ifndef LS_OBSERVE_SCALER_SKIPS_H
#define LS_OBSERVE_SCALER_SKIPS_H

#include "trace.h"

/* Adds to a finding that is no FAIL yet. */
void ls_scaler_skips_judge(const ls_observe_trace *trace, ls_observe_finding *out);

#endif
