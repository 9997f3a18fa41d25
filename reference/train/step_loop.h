/* What the files of the training loop share: step.c goes from step to step, step_enqueue.c enqueues
 * one, step_report.c tells what became of it. Nobody else includes this.
 *
 * On a device that works beside the host the host enqueues step n + 1 while the device is at step
 * n, and tells of step n when its state has arrived. Step by step as a graph, nothing waits inside
 * one; piece by piece, the host stays at most a forward ahead. On the CPU a step is over when it is
 * enqueued. */
#ifndef LS_STEP_LOOP_H
#define LS_STEP_LOOP_H

#include "audit.h"
#include "dump.h"
#include "feed.h"
#include "graph.h"
#include "phase_timer.h"
#include "step.h"

/* What the device copies to and from while a step runs: memory of the host that it can reach. */
typedef struct ls_step_host {
    ls_step_state state; /* after the step */
    float lr;
    float loss[]; /* [accumulate], with accumulation; else state.loss is it */
} ls_step_host;

/* What is known of one step before its event is written. */
typedef struct ls_step_record {
    bool pending;   /* enqueued, and not told yet */
    bool has_ended; /* its state is on the host */
    int64_t step, images;
    ls_step_host *host;
    ls_event *arrived;
    ls_phase_timer *marks; /* NULL: nobody asked for the device's times */
    ls_digest_set digest;
    double ms[LS_EVENTS_MS_COUNT];
    bool ms_given[LS_EVENTS_MS_COUNT];
    int64_t ended_ns;
    int64_t forward_ns[2], backward_ns[2]; /* of the last micro-step: from, to */
} ls_step_record;

/* A step that is enqueued, the one before, which the device may be at, and the one before that, at
 * whose end the time of the latter begins. */
enum { LS_STEP_RECORDS = 3 };

typedef struct ls_step_loop {
    ls_trainer *trainer;
    ls_step_record record[LS_STEP_RECORDS]; /* ls_step_record_of */
    ls_step_summary *summary;
    ls_feed *feed;
    ls_audit *audit;       /* NULL: nothing is audited */
    ls_graph_set *graphs;  /* NULL: every step is enqueued piece by piece */
    float loss_scale;      /* of the step whose event comes next */
    int64_t ended_ns;      /* when the last step ended */
    int64_t instrument_ns; /* since then, spent on digests and dumps */
    int64_t printed_ns;    /* and the step that was printed then */
    int64_t printed_step;
    /* of the step that is being enqueued */
    ls_step_record *now;
    bool recorded; /* into a graph */
    ls_dump *dump; /* or NULL */
    ls_feed_batch batch;
    int micro;
    bool poisons;         /* --overflow-at names this step and rank */
    ls_events_span *span; /* [LS_STEP_SPANS + param_count], for --trace */
} ls_step_loop;

enum { LS_STEP_SPANS = 3 };

/* The record of `step`, where that is one of the last LS_STEP_RECORDS. */
ls_step_record *ls_step_record_of(ls_step_loop *loop, int64_t step);

/* Work on digests and dumps, in between which the clock stands still. */
int64_t ls_step_instrument_begin(ls_step_loop *loop);
void ls_step_instrument_end(ls_step_loop *loop, int64_t begun_ns);

/* step_enqueue.c: everything of a step, up to the copy of its state to the host. */
ls_status ls_step_enqueue(ls_step_loop *loop, int64_t step, ls_step_record *record);

/* step_report.c. Waits until the step's state is here, and takes the time. */
ls_status ls_step_arrive(ls_step_loop *loop, ls_step_record *record);
float ls_step_mean_loss(const ls_step_loop *loop, const ls_step_record *record);
/* Writes a step's event and decides whether the run goes on; nothing where it is told already. */
ls_status ls_step_report(ls_step_loop *loop, ls_step_record *record);

#endif
