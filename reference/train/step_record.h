/* The last steps that were enqueued, and when each ended. On an asynchronous device the host
 * enqueues step n + 1 while the device computes step n, and step n is reported when its state has
 * arrived; on the CPU a step is over when it is enqueued. */
#ifndef LS_STEP_RECORD_H
#define LS_STEP_RECORD_H

#include "phase_timer.h"
#include "step_clock.h"
#include "trainer.h"

/* Host memory that the device copies from and to while a step runs. */
typedef struct ls_step_host {
    ls_step_state state; /* after the step */
    float lr;
    float loss[]; /* [accumulate], with accumulation; else state.loss is it */
} ls_step_host;

/* One step, until its event is written. */
typedef struct ls_step_record {
    bool pending;   /* enqueued, not yet reported */
    bool has_ended; /* its state is on the host */
    int64_t step, images;
    ls_step_host *host;
    ls_event *arrived;
    ls_phase_timer *timer; /* NULL: phases are not timed */
    ls_digest_set digest;
    double ms[LS_EVENTS_MS_COUNT];
    bool ms_given[LS_EVENTS_MS_COUNT];
    int64_t ended_ns;
} ls_step_record;

/* A step that is being enqueued, the one before, which the device may be computing, and the one
 * before that, at whose end the time of the latter begins. */
enum { LS_STEP_RECORDS = 3 };

typedef struct ls_step_history {
    const ls_trainer *trainer;
    ls_step_record record[LS_STEP_RECORDS]; /* ls_step_record_of */
    ls_step_clock clock;
    int64_t ended_ns; /* when the last step ended that did */
} ls_step_history;

ls_status ls_step_record_open(ls_trainer *trainer, ls_step_history *history);
/* The time of the first step begins. */
ls_status ls_step_record_start(ls_step_history *history);
void ls_step_record_close(ls_step_history *history);
/* The record of `step`, where that is one of the last LS_STEP_RECORDS. */
ls_step_record *ls_step_record_of(ls_step_history *history, int64_t step);
/* Waits until the step's state is on the host, and takes its times. Nothing where that is done, or
 * the step is not under way. */
ls_status ls_step_record_arrive(ls_step_history *history, ls_step_record *record);
/* This rank's mean over the micro-steps. */
float ls_step_record_loss(const ls_step_history *history, const ls_step_record *record);

#endif
