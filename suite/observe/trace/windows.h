/* Windows of an accumulation: how many backward passes each step takes. */
#ifndef LS_OBSERVE_WINDOWS_H
#define LS_OBSERVE_WINDOWS_H

#include "trace.h"

/* Batches of a pass that fill no window, and whose gradients the first step of the next pass takes
 * on top of its own. Adds to a finding that is no FAIL yet. */
void ls_windows_judge(const ls_observe_trace *trace, ls_observe_finding *out);

#endif
