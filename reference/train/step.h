/* One training step, enqueued (numerics.md section 2). Launched as a graph, nothing waits inside
 * it; enqueued piece by piece, the host stays at most a forward ahead of the device. */
#ifndef LS_STEP_H
#define LS_STEP_H

#include "audit.h"
#include "dump.h"
#include "fault.h"
#include "feed.h"
#include "graph.h"
#include "step_record.h"

typedef struct ls_step {
    ls_trainer *trainer;
    ls_step_history *history;
    ls_feed *feed;
    ls_audit *audit;      /* NULL: nothing is audited */
    ls_graph_set *graphs; /* NULL: every step is enqueued piece by piece */
    /* of the step that is being enqueued */
    ls_step_record *record;
    int micro;     /* micro-step */
    bool recorded; /* into a graph */
    ls_feed_batch batch;
    ls_step_observers observers;
    ls_fault fault;
    ls_dump *dump; /* NULL: none; the caller finishes it */
} ls_step;

/* Everything of step `number`, up to the copy of its state to the host. `ticks`: of the learning
 * rate's schedule before it. */
ls_status ls_step_enqueue(ls_step *step, int64_t number, int64_t ticks);

#endif
