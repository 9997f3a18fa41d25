/* Threads that compute for several devices of one process, a lane for each. Lane 0 is the thread
 * that opened them. */
#ifndef LS_LANES_H
#define LS_LANES_H

#include "kernels/core/status.h"

typedef struct ls_lanes ls_lanes;
typedef ls_status ls_lane_work(void *context, int lane);

/* LS_ERR_INFRA if a thread cannot be made. */
ls_status ls_lanes_open(int count, ls_lanes **out);
/* Not while a run is under way. NULL is allowed. */
void ls_lanes_close(ls_lanes *lanes);
/* Calls work(context, lane) in every lane at once and returns when all calls have: with LS_OK, or
 * with the status of the lane that failed first. A lane that fails ends the waits for it. */
ls_status ls_lanes_run(ls_lanes *lanes, ls_lane_work *work, void *context);

/* Within a run: this lane has finished one more part of its work; */
void ls_lanes_post(ls_lanes *lanes, int lane);
/* waits until another lane has finished so many parts in this run; the status of a lane that has
 * failed instead. */
ls_status ls_lanes_await(ls_lanes *lanes, int lane, int parts);

#endif
