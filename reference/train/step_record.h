/* The last steps that were enqueued, and when each ended. On an asynchronous device the host
 * enqueues step n + 1 while the device computes step n, and step n is reported when its state has
 * arrived; on the CPU a step is over when it is enqueued. */
#ifndef LS_STEP_RECORD_H
#define LS_STEP_RECORD_H

#include "kernels/core/clock.h"
#include "reference/state/step_observer.h"
#include "trainer.h"
#include "uneven.h"

/* The clock of the steps, stopped for work that is not part of them: digests and dumps. */
typedef struct ls_step_clock {
    const ls_device *device;
    ls_loader *loader;
    int64_t stopped_ns; /* in all, since the last step ended */
} ls_step_clock;

/* Waits for the device, whose work so far belongs to the step (the work that follows waits, too,
 * and reports its error), and pauses the loader's threads. Returns when the clock was stopped, for
 * ls_step_clock_resume. */
static inline int64_t ls_step_clock_stop(ls_step_clock *clock)
{
    (void)clock->device->api->stream_wait(clock->device->stream);
    ls_loader_pause(clock->loader, true);
    return ls_clock_ns();
}

static inline void ls_step_clock_resume(ls_step_clock *clock, int64_t since_ns)
{
    ls_loader_pause(clock->loader, false);
    clock->stopped_ns += ls_clock_ns() - since_ns;
}

/* A phase for the trace, ls_clock_ns; with accumulation the last micro-step's. */
typedef enum ls_step_phase {
    LS_STEP_PHASE_FORWARD,
    LS_STEP_PHASE_BACKWARD,
    LS_STEP_PHASE_OPTIMIZER,
    LS_STEP_PHASES,
} ls_step_phase;
typedef struct ls_step_span {
    int64_t from_ns, to_ns;
} ls_step_span;

/* Host memory that the device copies from and to while a step runs. */
typedef struct ls_step_host {
    ls_step_state state; /* after the step */
    float lr;
    float loss[]; /* [accumulate], with accumulation; else state.loss is it */
} ls_step_host;

typedef struct ls_step_timer ls_step_timer;

/* One step, until its event is written. */
typedef struct ls_step_record {
    bool pending;   /* enqueued, not yet reported */
    bool has_ended; /* its state is on the host */
    int64_t step, images, bad_images;
    ls_uneven_round round; /* who had a batch */
    ls_step_host *host;
    ls_event *arrived;
    ls_step_timer *timer; /* NULL: phases are not timed */
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
/* Subscribes to the step to time its phases; nothing where they are not timed. On the CPU a phase
 * is over when it is enqueued, and the host's clock will do. An asynchronous device records events
 * between the phases, which are read when the step has ended; only with --trace, because each is
 * work for the device. The clock's stops are no part of a phase. */
void ls_step_record_observe(ls_step_record *record, ls_step_observers *observers);
/* After ls_step_record_arrive of a record with a timer. */
ls_step_span ls_step_record_span(const ls_step_record *record, ls_step_phase phase);
/* From when bucket `index` was full and the one before was reduced, until it was reduced. */
ls_status ls_step_record_bucket(const ls_step_record *record, int index, ls_step_span *span);

#endif
