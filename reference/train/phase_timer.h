/* When the phases of a step began and ended. On the CPU a phase is over when it is enqueued, and
 * the host's clock will do. An asynchronous device records events between the phases, which are
 * read when the step has ended; only with --trace, because each is work for the device. */
#ifndef LS_PHASE_TIMER_H
#define LS_PHASE_TIMER_H

#include "reference/state/step_observer.h"
#include "step_clock.h"
#include "trainer.h"

typedef struct ls_phase_timer ls_phase_timer;

/* *out is NULL where phases are not timed. The clock's stops are no part of a phase. */
ls_status ls_phase_timer_open(const ls_trainer *trainer, const ls_step_clock *clock,
                              ls_phase_timer **out);
void ls_phase_timer_close(ls_phase_timer *timer);
/* Subscribes to the step; NULL: nothing. */
void ls_phase_timer_begin(ls_phase_timer *timer, ls_step_observers *observers);
/* The step has ended: with the event `end`, at end_ns of the host's clock. Fills ms and given
 * [LS_EVENTS_MS_COUNT] of the phases. The device's times count back from the end, because events
 * measure short times precisely only. Nothing where timer is NULL. */
ls_status ls_phase_timer_read(ls_phase_timer *timer, ls_event *end, int64_t end_ns, double *ms,
                              bool *given);

/* A phase for the trace, ls_clock_ns; with accumulation the last micro-step's. */
typedef enum ls_phase_timer_phase {
    LS_PHASE_TIMER_FORWARD,
    LS_PHASE_TIMER_BACKWARD,
    LS_PHASE_TIMER_OPTIMIZER,
    LS_PHASE_TIMER_PHASES,
} ls_phase_timer_phase;
typedef struct ls_phase_timer_span {
    int64_t from_ns, to_ns;
} ls_phase_timer_span;
/* After ls_phase_timer_read. */
ls_phase_timer_span ls_phase_timer_span_of(const ls_phase_timer *timer, ls_phase_timer_phase phase);
/* From when bucket `index` was full and the one before was reduced, until it was reduced. */
ls_status ls_phase_timer_bucket(const ls_phase_timer *timer, int index, ls_phase_timer_span *span);

#endif
