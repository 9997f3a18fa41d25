/* Where a step's time goes on a device that works beside the host: events between its phases, read
 * when the step has ended. Only with --trace, because each mark is work for the device too. */
#ifndef LS_PHASE_TIMER_H
#define LS_PHASE_TIMER_H

#include "trainer.h"

typedef struct ls_phase_timer ls_phase_timer;

typedef enum ls_phase_timer_point {
    LS_PHASE_TIMER_FORWARD,
    LS_PHASE_TIMER_BACKWARD,
    LS_PHASE_TIMER_WAIT,      /* backward has ended: the last reductions are waited for */
    LS_PHASE_TIMER_OPTIMIZER, /* they are there */
    LS_PHASE_TIMER_END,
    LS_PHASE_TIMER_POINTS,
} ls_phase_timer_point;

/* *out is NULL where the run wants no marks or the host's clock will do. */
ls_status ls_phase_timer_open(const ls_trainer *trainer, ls_phase_timer **out);
void ls_phase_timer_close(ls_phase_timer *marks);
/* NULL marks: nothing. With accumulation the last micro-step's marks stay. */
ls_status ls_phase_timer_at(ls_phase_timer *marks, ls_phase_timer_point point);
/* For ls_ddp_observe; NULL without marks. */
const ls_ddp_observer *ls_phase_timer_observer(const ls_phase_timer *marks);
/* The step has ended: its last event, and when that was on the host's clock. The times below count
 * back from there, because a device tells short times only precisely. */
void ls_phase_timer_end(ls_phase_timer *marks, ls_event *end, int64_t end_ns);
/* When the device passed a point, on the host's clock. */
ls_status ls_phase_timer_ns(const ls_phase_timer *marks, ls_phase_timer_point point, int64_t *ns);
/* When bucket `index` was on its way: from when it was full and the one before was done. */
ls_status ls_phase_timer_bucket_ns(const ls_phase_timer *marks, int index, int64_t *from_ns,
                                   int64_t *to_ns);

#endif
