#include "step_record.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"

ls_step_record *ls_step_record_of(ls_step_history *history, int64_t step)
{
    return &history->record[step % LS_STEP_RECORDS];
}

float ls_step_record_loss(const ls_step_history *history, const ls_step_record *record)
{
    double sum = 0.0;
    int count = history->trainer->options.accumulate;
    for (int i = 0; count > 1 && i < count; i++) {
        sum += (double)record->host->loss[i];
    }
    return count == 1 ? record->host->state.loss : (float)(sum / count);
}

/* ---- the timer of phases --------------------------------------------------------------------- */

static const struct {
    ls_step_moment from, to;
} PHASES[LS_STEP_PHASES] = {
    [LS_STEP_PHASE_FORWARD] = {LS_STEP_FORWARD, LS_STEP_FORWARD_END},
    [LS_STEP_PHASE_BACKWARD] = {LS_STEP_BACKWARD, LS_STEP_BACKWARD_END},
    [LS_STEP_PHASE_OPTIMIZER] = {LS_STEP_UNSCALE, LS_STEP_REPACK_END},
};

/* Where the device records an event; AT_FINISH: the computing stream waits for the last reductions
 * from here on. */
enum { AT_FORWARD, AT_BACKWARD, AT_FINISH, AT_OPTIMIZER, AT_END, POINTS };
static const ls_step_moment POINT[POINTS] = {LS_STEP_FORWARD, LS_STEP_BACKWARD, LS_STEP_FINISH,
                                             LS_STEP_UNSCALE, LS_STEP_REPACK_END};

struct ls_step_timer {
    const ls_trainer *trainer;
    const ls_step_clock *clock;
    ls_step_observer observer;
    ls_step_span span[LS_STEP_PHASES];
    /* by the host's clock */
    int64_t stopped_ns; /* the clock's, when the phase began */
    double ms[LS_STEP_PHASES];
    /* by the device's events */
    ls_stream *stream;
    ls_event *end; /* happened at end_ns of the host's clock */
    int64_t end_ns;
    int events;
    ls_event **at, **ready, **done; /* [POINTS], [parameters, the most buckets] twice: [events] */
};

/* Micro-steps add up. */
static ls_status host_on(void *context, const ls_step_event *event)
{
    ls_step_timer *timer = context;
    for (int p = 0; p < LS_STEP_PHASES; p++) {
        ls_step_span *span = &timer->span[p];
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

static void host_read(const ls_step_timer *timer, double *ms, bool *given)
{
    const ls_ddp *ddp = timer->trainer->ddp;
    ls_ddp_times times = ddp != NULL ? ls_ddp_times_of(ddp) : (ls_ddp_times){0};
    ms[LS_EVENTS_MS_FORWARD] = timer->ms[LS_STEP_PHASE_FORWARD];
    ms[LS_EVENTS_MS_BACKWARD] = timer->ms[LS_STEP_PHASE_BACKWARD];
    ms[LS_EVENTS_MS_OPTIMIZER] = timer->ms[LS_STEP_PHASE_OPTIMIZER];
    ms[LS_EVENTS_MS_COMM] = (double)times.comm_ns * 1e-6;
    ms[LS_EVENTS_MS_COMM_EXPOSED] = (double)times.exposed_ns * 1e-6;
    for (int i = 0; i < LS_EVENTS_MS_COUNT; i++) {
        given[i] = true;
    }
}

static ls_status device_on(void *context, const ls_step_event *event)
{
    ls_step_timer *timer = context;
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

static ls_status when(const ls_step_timer *timer, ls_event *event, int64_t *ns)
{
    double ms = 0;
    LS_TRY(timer->trainer->device.api->event_ms(event, timer->end, &ms));
    *ns = timer->end_ns - (int64_t)(ms * 1e6);
    return LS_OK;
}

/* From when the bucket was full and the one before was reduced, until it was reduced. */
static ls_status device_bucket(const ls_step_timer *timer, int index, ls_step_span *span)
{
    int64_t before_ns = 0;
    LS_TRY(when(timer, timer->ready[index], &span->from_ns));
    LS_TRY(when(timer, timer->done[index], &span->to_ns));
    if (index > 0) {
        LS_TRY(when(timer, timer->done[index - 1], &before_ns));
    }
    span->from_ns = before_ns > span->from_ns ? before_ns : span->from_ns;
    return LS_OK;
}

/* With accumulation only the phases that come once in a step are given. */
static ls_status device_read(ls_step_timer *timer, double *ms, bool *given)
{
    const ls_trainer *trainer = timer->trainer;
    int64_t at[POINTS];
    for (int i = 0; i < POINTS; i++) {
        LS_TRY(when(timer, timer->at[i], &at[i]));
    }
    double comm_ms = 0;
    int buckets = trainer->ddp == NULL ? 0 : ls_ddp_layout(trainer->ddp)->bucket_count;
    for (int b = 0; b < buckets; b++) {
        ls_step_span span;
        LS_TRY(device_bucket(timer, b, &span));
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
    timer->span[LS_STEP_PHASE_FORWARD] = (ls_step_span){at[AT_FORWARD], at[AT_BACKWARD]};
    timer->span[LS_STEP_PHASE_BACKWARD] = (ls_step_span){at[AT_BACKWARD], at[AT_FINISH]};
    timer->span[LS_STEP_PHASE_OPTIMIZER] = (ls_step_span){at[AT_OPTIMIZER], at[AT_END]};
    return LS_OK;
}

static bool is_host(const ls_trainer *trainer)
{
    return trainer->device.info.host_memory;
}

static ls_status create_events(ls_step_timer *timer)
{
    const ls_device *device = &timer->trainer->device;
    int buckets = timer->trainer->memory.param_count;
    timer->events = POINTS + 2 * buckets;
    timer->at = ls_list_make((size_t)timer->events, sizeof *timer->at);
    timer->ready = timer->at + POINTS;
    timer->done = timer->ready + buckets;
    LS_TRY(device->api->stream_create(device->backend, &timer->stream));
    for (int i = 0; i < timer->events; i++) {
        LS_TRY(device->api->event_create(device->backend, &timer->at[i]));
    }
    return LS_OK;
}

static void close_timer(ls_step_timer *timer)
{
    if (timer == NULL) {
        return;
    }
    const ls_backend_api *api = timer->trainer->device.api;
    for (int i = 0; i < timer->events; i++) {
        if (timer->at[i] != NULL) {
            api->event_destroy(timer->at[i]);
        }
    }
    if (timer->stream != NULL) {
        api->stream_destroy(timer->stream);
    }
    free(timer->at);
    free(timer);
}

/* *out is NULL where phases are not timed. */
static ls_status open_timer(const ls_trainer *trainer, const ls_step_clock *clock,
                            ls_step_timer **out)
{
    *out = NULL;
    if (!is_host(trainer) && (!trainer->options.trace || trainer->device.api->event_ms == NULL)) {
        return LS_OK;
    }
    ls_step_timer *timer = ls_list_make(1, sizeof *timer);
    timer->trainer = trainer;
    timer->clock = clock;
    ls_status status = is_host(trainer) ? LS_OK : create_events(timer);
    if (status != LS_OK) {
        close_timer(timer);
        return status;
    }
    timer->observer = (ls_step_observer){.context = timer,
                                         .on = is_host(trainer) ? host_on : device_on,
                                         .bucket_stream = timer->stream};
    *out = timer;
    return LS_OK;
}

/* The step has ended: with the event `end`, at end_ns of the host's clock. Fills ms and given
 * [LS_EVENTS_MS_COUNT] of the phases. The device's times count back from the end, because events
 * measure short times precisely only. Nothing where timer is NULL. */
static ls_status read_timer(ls_step_timer *timer, ls_event *end, int64_t end_ns, double *ms,
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

/* ---- life ------------------------------------------------------------------------------------ */

static ls_status open_record(ls_step_history *history, ls_step_record *record)
{
    const ls_trainer *trainer = history->trainer;
    const ls_backend_api *api = trainer->device.api;
    size_t bytes =
        sizeof *record->host + (size_t)trainer->options.accumulate * sizeof record->host->loss[0];
    void *host = NULL;
    if (api->host_alloc != NULL) {
        LS_TRY(api->host_alloc(trainer->device.backend, (int64_t)bytes, "a step's record", &host));
    } else {
        host = malloc(bytes);
    }
    LS_MEMORY(host != NULL);
    memset(host, 0, bytes);
    record->host = host;
    LS_TRY(api->event_create(trainer->device.backend, &record->arrived));
    return open_timer(trainer, &history->clock, &record->timer);
}

static void close_record(const ls_trainer *trainer, ls_step_record *record)
{
    const ls_backend_api *api = trainer->device.api;
    close_timer(record->timer);
    if (record->arrived != NULL) {
        api->event_destroy(record->arrived);
    }
    if (record->host != NULL && api->host_free != NULL) {
        api->host_free(trainer->device.backend, record->host);
    } else {
        free(record->host);
    }
}

ls_status ls_step_record_open(ls_trainer *trainer, ls_step_history *history)
{
    history->trainer = trainer;
    history->clock = (ls_step_clock){.device = &trainer->device, .loader = trainer->loader};
    for (int i = 0; i < LS_STEP_RECORDS; i++) {
        LS_TRY(open_record(history, &history->record[i]));
    }
    return LS_OK;
}

ls_status ls_step_record_start(ls_step_history *history)
{
    const ls_device *device = &history->trainer->device;
    /* as if a step before the first ended now */
    ls_event *start = ls_step_record_of(history, history->trainer->first_step - 1)->arrived;
    LS_TRY(device->api->event_record(start, device->stream));
    LS_TRY(device->api->event_wait(start));
    history->ended_ns = ls_clock_ns();
    return LS_OK;
}

void ls_step_record_close(ls_step_history *history)
{
    for (int i = 0; i < LS_STEP_RECORDS; i++) {
        close_record(history->trainer, &history->record[i]);
    }
}

/* ---- the end of a step ----------------------------------------------------------------------- */

/* The host may come long after the step ended, because it waited for something else: a slow loader,
 * the recording of a graph. So a device with a clock says how long after the step before it was. */
static ls_status take_end(ls_step_history *history, ls_step_record *record)
{
    const ls_backend_api *api = history->trainer->device.api;
    record->ended_ns = ls_clock_ns();
    if (api->event_ms != NULL) {
        const ls_step_record *older = ls_step_record_of(history, record->step - 1);
        double ms = 0;
        LS_TRY(api->event_ms(older->arrived, record->arrived, &ms));
        int64_t device_ns = history->ended_ns + (int64_t)(ms * 1e6);
        record->ended_ns = device_ns < record->ended_ns ? device_ns : record->ended_ns;
    }
    return LS_OK;
}

ls_status ls_step_record_arrive(ls_step_history *history, ls_step_record *record)
{
    if (!record->pending || record->has_ended) {
        return LS_OK;
    }
    LS_TRY(history->trainer->device.api->event_wait(record->arrived));
    record->has_ended = true;
    LS_TRY(take_end(history, record));
    double stopped_ms = (double)history->clock.stopped_ns * 1e-6;
    record->ms[LS_EVENTS_MS_INSTRUMENT] = stopped_ms;
    record->ms[LS_EVENTS_MS_TOTAL] =
        ls_clock_ms_between(history->ended_ns, record->ended_ns) - stopped_ms;
    history->ended_ns = record->ended_ns;
    history->clock.stopped_ns = 0;
    memset(record->ms_given, 0, sizeof record->ms_given);
    record->ms_given[LS_EVENTS_MS_TOTAL] = true;
    record->ms_given[LS_EVENTS_MS_DATA] = true;
    record->ms_given[LS_EVENTS_MS_INSTRUMENT] = true;
    if (record->round.joined) { /* it had no forward and no backward */
        return LS_OK;
    }
    return read_timer(record->timer, record->arrived, record->ended_ns, record->ms,
                      record->ms_given);
}

/* ---- phases ---------------------------------------------------------------------------------- */

void ls_step_record_observe(ls_step_record *record, ls_step_observers *observers)
{
    if (record->timer != NULL) {
        memset(record->timer->ms, 0, sizeof record->timer->ms);
        ls_step_observers_add(observers, &record->timer->observer);
    }
}

ls_step_span ls_step_record_span(const ls_step_record *record, ls_step_phase phase)
{
    return record->timer->span[phase];
}

ls_status ls_step_record_bucket(const ls_step_record *record, int index, ls_step_span *span)
{
    const ls_trainer *trainer = record->timer->trainer;
    if (!is_host(trainer)) {
        return device_bucket(record->timer, index, span);
    }
    ls_ddp_bucket_span(trainer->ddp, index, &span->from_ns, &span->to_ns);
    return LS_OK;
}
