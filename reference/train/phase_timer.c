#include "phase_timer.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"

static const struct {
    ls_step_moment from, to;
} PHASES[LS_PHASE_TIMER_PHASES] = {
    [LS_PHASE_TIMER_FORWARD] = {LS_STEP_FORWARD, LS_STEP_FORWARD_END},
    [LS_PHASE_TIMER_BACKWARD] = {LS_STEP_BACKWARD, LS_STEP_BACKWARD_END},
    [LS_PHASE_TIMER_OPTIMIZER] = {LS_STEP_UNSCALE, LS_STEP_REPACK_END},
};

/* Where the device records an event; AT_FINISH: the computing stream waits for the last reductions
 * from here on. */
enum { AT_FORWARD, AT_BACKWARD, AT_FINISH, AT_OPTIMIZER, AT_END, POINTS };
static const ls_step_moment POINT[POINTS] = {LS_STEP_FORWARD, LS_STEP_BACKWARD, LS_STEP_FINISH,
                                             LS_STEP_UNSCALE, LS_STEP_REPACK_END};

struct ls_phase_timer {
    const ls_trainer *trainer;
    const ls_step_clock *clock;
    ls_step_observer observer;
    ls_phase_timer_span span[LS_PHASE_TIMER_PHASES];
    /* by the host's clock */
    int64_t stopped_ns; /* the clock's, when the phase began */
    double ms[LS_PHASE_TIMER_PHASES];
    /* by the device's events */
    int buckets; /* at most */
    ls_stream *stream;
    ls_event *end; /* happened at end_ns of the host's clock */
    int64_t end_ns;
    ls_event *at[POINTS];
    ls_event **ready, **done; /* [buckets] */
};

/* ---- by the host's clock --------------------------------------------------------------------- */

/* Micro-steps add up. */
static ls_status host_on(void *context, const ls_step_event *event)
{
    ls_phase_timer *timer = context;
    for (int p = 0; p < LS_PHASE_TIMER_PHASES; p++) {
        ls_phase_timer_span *span = &timer->span[p];
        if (event->at == PHASES[p].from) {
            timer->stopped_ns = timer->clock->stopped_ns;
            span->from_ns = ls_clock_ns();
        } else if (event->at == PHASES[p].to) {
            span->to_ns = ls_clock_ns();
            timer->ms[p] += ls_clock_ms_between(span->from_ns, span->to_ns) -
                            (double)(timer->clock->stopped_ns - timer->stopped_ns) * 1e-6;
        }
    }
    return LS_OK;
}

static void host_read(const ls_phase_timer *timer, double *ms, bool *given)
{
    const ls_ddp *ddp = timer->trainer->ddp;
    ls_ddp_times times = ddp != NULL ? ls_ddp_times_of(ddp) : (ls_ddp_times){0};
    ms[LS_EVENTS_MS_FORWARD] = timer->ms[LS_PHASE_TIMER_FORWARD];
    ms[LS_EVENTS_MS_BACKWARD] = timer->ms[LS_PHASE_TIMER_BACKWARD];
    ms[LS_EVENTS_MS_OPTIMIZER] = timer->ms[LS_PHASE_TIMER_OPTIMIZER];
    ms[LS_EVENTS_MS_COMM] = (double)times.comm_ns * 1e-6;
    ms[LS_EVENTS_MS_COMM_EXPOSED] = (double)times.exposed_ns * 1e-6;
    for (int i = 0; i < LS_EVENTS_MS_COUNT; i++) {
        given[i] = true;
    }
}

/* ---- by the device's events ------------------------------------------------------------------ */

static ls_status device_on(void *context, const ls_step_event *event)
{
    ls_phase_timer *timer = context;
    const ls_device *device = &timer->trainer->device;
    for (int i = 0; i < POINTS; i++) {
        if (event->at == POINT[i]) {
            return device->api->event_record(timer->at[i], device->stream);
        }
    }
    if (event->at == LS_STEP_BUCKET_BEGINS) {
        return device->api->event_record(timer->ready[event->index], device->stream);
    }
    return event->at == LS_STEP_BUCKET_REDUCED
               ? device->api->event_record(timer->done[event->index], timer->stream)
               : LS_OK;
}

static ls_status when(const ls_phase_timer *timer, ls_event *event, int64_t *ns)
{
    double ms = 0;
    LS_TRY(timer->trainer->device.api->event_ms(event, timer->end, &ms));
    *ns = timer->end_ns - (int64_t)(ms * 1e6);
    return LS_OK;
}

/* With accumulation only the phases that come once in a step are given. */
static ls_status device_read(ls_phase_timer *timer, double *ms, bool *given)
{
    const ls_trainer *trainer = timer->trainer;
    int64_t at[POINTS];
    for (int i = 0; i < POINTS; i++) {
        LS_TRY(when(timer, timer->at[i], &at[i]));
    }
    double comm_ms = 0;
    int buckets = trainer->ddp == NULL ? 0 : ls_ddp_layout(trainer->ddp)->bucket_count;
    for (int b = 0; b < buckets; b++) {
        ls_phase_timer_span span;
        LS_TRY(ls_phase_timer_bucket(timer, b, &span));
        comm_ms += ls_clock_ms_between(span.from_ns, span.to_ns);
    }
    bool once = trainer->options.accumulate == 1;
    const struct {
        ls_events_ms what;
        double ms;
        bool given;
    } rows[] = {
        {LS_EVENTS_MS_FORWARD, ls_clock_ms_between(at[AT_FORWARD], at[AT_BACKWARD]), once},
        {LS_EVENTS_MS_BACKWARD, ls_clock_ms_between(at[AT_BACKWARD], at[AT_FINISH]), once},
        {LS_EVENTS_MS_COMM_EXPOSED, ls_clock_ms_between(at[AT_FINISH], at[AT_OPTIMIZER]), true},
        {LS_EVENTS_MS_OPTIMIZER, ls_clock_ms_between(at[AT_OPTIMIZER], at[AT_END]), true},
        {LS_EVENTS_MS_COMM, comm_ms, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ms[rows[i].what] = rows[i].ms;
        given[rows[i].what] = rows[i].given;
    }
    timer->span[LS_PHASE_TIMER_FORWARD] = (ls_phase_timer_span){at[AT_FORWARD], at[AT_BACKWARD]};
    timer->span[LS_PHASE_TIMER_BACKWARD] = (ls_phase_timer_span){at[AT_BACKWARD], at[AT_FINISH]};
    timer->span[LS_PHASE_TIMER_OPTIMIZER] = (ls_phase_timer_span){at[AT_OPTIMIZER], at[AT_END]};
    return LS_OK;
}

/* ---- both ------------------------------------------------------------------------------------ */

static bool is_host(const ls_trainer *trainer)
{
    return trainer->device.info.host_memory;
}

static ls_status create_events(ls_phase_timer *timer)
{
    const ls_device *device = &timer->trainer->device;
    timer->buckets = timer->trainer->memory.param_count;
    timer->ready = calloc(2 * (size_t)timer->buckets, sizeof *timer->ready);
    LS_TRY_MEMORY(timer->ready != NULL, "the events of %d buckets", timer->buckets);
    timer->done = timer->ready + timer->buckets;
    LS_TRY(device->api->stream_create(device->backend, &timer->stream));
    for (int i = 0; i < POINTS; i++) {
        LS_TRY(device->api->event_create(device->backend, &timer->at[i]));
    }
    for (int i = 0; i < 2 * timer->buckets; i++) {
        LS_TRY(device->api->event_create(device->backend, &timer->ready[i]));
    }
    return LS_OK;
}

ls_status ls_phase_timer_open(const ls_trainer *trainer, const ls_step_clock *clock,
                              ls_phase_timer **out)
{
    *out = NULL;
    if (!is_host(trainer) && (!trainer->options.trace || trainer->device.api->event_ms == NULL)) {
        return LS_OK;
    }
    ls_phase_timer *timer = calloc(1, sizeof *timer);
    LS_TRY_MEMORY(timer != NULL, "the timer of a step's phases");
    timer->trainer = trainer;
    timer->clock = clock;
    ls_status status = is_host(trainer) ? LS_OK : create_events(timer);
    if (status != LS_OK) {
        ls_phase_timer_close(timer);
        return status;
    }
    timer->observer = (ls_step_observer){.context = timer,
                                         .on = is_host(trainer) ? host_on : device_on,
                                         .bucket_stream = timer->stream};
    *out = timer;
    return LS_OK;
}

void ls_phase_timer_close(ls_phase_timer *timer)
{
    if (timer == NULL) {
        return;
    }
    const ls_backend_api *api = timer->trainer->device.api;
    for (int i = 0; timer->ready != NULL && i < 2 * timer->buckets; i++) {
        if (timer->ready[i] != NULL) {
            api->event_destroy(timer->ready[i]);
        }
    }
    for (int i = 0; i < POINTS; i++) {
        if (timer->at[i] != NULL) {
            api->event_destroy(timer->at[i]);
        }
    }
    if (timer->stream != NULL) {
        api->stream_destroy(timer->stream);
    }
    free(timer->ready);
    free(timer);
}

void ls_phase_timer_begin(ls_phase_timer *timer, ls_step_observers *observers)
{
    if (timer != NULL) {
        memset(timer->ms, 0, sizeof timer->ms);
        ls_step_observers_add(observers, &timer->observer);
    }
}

ls_status ls_phase_timer_read(ls_phase_timer *timer, ls_event *end, int64_t end_ns, double *ms,
                              bool *given)
{
    if (timer == NULL) {
        return LS_OK;
    }
    timer->end = end;
    timer->end_ns = end_ns;
    if (!is_host(timer->trainer)) {
        return device_read(timer, ms, given);
    }
    host_read(timer, ms, given);
    return LS_OK;
}

ls_phase_timer_span ls_phase_timer_span_of(const ls_phase_timer *timer, ls_phase_timer_phase phase)
{
    return timer->span[phase];
}

ls_status ls_phase_timer_bucket(const ls_phase_timer *timer, int index, ls_phase_timer_span *span)
{
    if (is_host(timer->trainer)) {
        ls_ddp_bucket_span(timer->trainer->ddp, index, &span->from_ns, &span->to_ns);
        return LS_OK;
    }
    int64_t before_ns = 0;
    LS_TRY(when(timer, timer->ready[index], &span->from_ns));
    LS_TRY(when(timer, timer->done[index], &span->to_ns));
    if (index > 0) {
        LS_TRY(when(timer, timer->done[index - 1], &before_ns));
    }
    span->from_ns = before_ns > span->from_ns ? before_ns : span->from_ns;
    return LS_OK;
}
