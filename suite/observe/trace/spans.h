/* Schedules that are made for a number of calls, against the calls, steps and batches that the job
 * made. */
#ifndef LS_OBSERVE_SPANS_H
#define LS_OBSERVE_SPANS_H

#include "trace.h"

/* Whether another schedule steps the one of that event. */
bool ls_spans_held(const ls_observe_rank *rank, const ls_event *schedule);
/* For jobs that ended by themselves: adds to a finding that is no FAIL yet. */
void ls_spans_judge(const ls_observe_trace *trace, ls_observe_finding *out);

#endif
