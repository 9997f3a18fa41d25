/* Gradients beyond what a step's own backward calls gave. */
#ifndef LS_OBSERVE_EXCESS_H
#define LS_OBSERVE_EXCESS_H

#include "trace.h"

/* Whether a detailed step's gradients are more than its backward calls gave (group "local"), or the
 * optimizer used others than a multiple of what those since the last zero_grad gave ("since"): 1,
 * 0, or -1: no samples say so. Scripts also clear gradients by hand, which no call shows. */
int ls_excess_in(const ls_observe_trace *trace, int rank, int64_t number, const char *group);
/* Whether the script put something else into .grad than its last passes gave, such as a sum of its
 * own of gradients that it clipped one by one. Not of jobs that reduce by hand. */
bool ls_excess_is_made_by_hand(const ls_observe_trace *trace, int rank);

#endif
