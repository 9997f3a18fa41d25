/* Where a step's time goes on a device that works beside the host: events between its phases, read
 * when the step has ended. Only with --trace, because each mark is work for the device too. */
#ifndef LS_MARKS_H
#define LS_MARKS_H

#include "trainer.h"

typedef struct ls_marks ls_marks;

typedef enum ls_marks_point {
    LS_MARKS_FORWARD,
    LS_MARKS_BACKWARD,
    LS_MARKS_WAIT,      /* backward has ended: the last reductions are waited for */
    LS_MARKS_OPTIMIZER, /* they are there */
    LS_MARKS_END,
    LS_MARKS_POINTS,
} ls_marks_point;

/* *out is NULL where the run wants no marks or the host's clock will do. */
ls_status ls_marks_open(const ls_trainer *trainer, ls_marks **out);
void ls_marks_close(ls_marks *marks);
/* NULL marks: nothing. With accumulation the last micro-step's marks stay. */
ls_status ls_marks_at(ls_marks *marks, ls_marks_point point);
/* For ls_ddp_observe; NULL without marks. */
const ls_ddp_observer *ls_marks_observer(const ls_marks *marks);
/* The step has ended: its last event, and when that was on the host's clock. The times below count
 * back from there, because a device tells short times only precisely. */
void ls_marks_end(ls_marks *marks, ls_event *end, int64_t end_ns);
/* When the device passed a point, on the host's clock. */
ls_status ls_marks_ns(const ls_marks *marks, ls_marks_point point, int64_t *ns);
/* When bucket `index` was on its way: from when it was full and the one before was done. */
ls_status ls_marks_bucket_ns(const ls_marks *marks, int index, int64_t *from_ns, int64_t *to_ns);

#endif
