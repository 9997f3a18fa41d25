#include "phase_timer.h"

#include <stdlib.h>

#include "kernels/core/log.h"

struct ls_phase_timer {
    const ls_device *device;
    int buckets; /* at most */
    ls_stream *stream;
    ls_event *end; /* happened at end_ns of the host's clock */
    int64_t end_ns;
    ls_event *point[LS_PHASE_TIMER_POINTS];
    ls_event **ready, **done; /* [buckets] */
    ls_ddp_observer observer;
};

static ls_status create_events(ls_phase_timer *marks)
{
    const ls_device *device = marks->device;
    marks->ready = calloc(2 * (size_t)marks->buckets, sizeof *marks->ready);
    if (marks->ready == NULL) {
        ls_log_error("cannot allocate the marks of %d buckets", marks->buckets);
        return LS_ERR_INFRA;
    }
    marks->done = marks->ready + marks->buckets;
    LS_TRY(device->api->stream_create(device->backend, &marks->stream));
    for (int i = 0; i < LS_PHASE_TIMER_POINTS; i++) {
        LS_TRY(device->api->event_create(device->backend, &marks->point[i]));
    }
    for (int i = 0; i < 2 * marks->buckets; i++) {
        LS_TRY(device->api->event_create(device->backend, &marks->ready[i]));
    }
    return LS_OK;
}

ls_status ls_phase_timer_open(const ls_trainer *trainer, ls_phase_timer **out)
{
    *out = NULL;
    if (!trainer->options.trace || trainer->device.api->event_ms == NULL) {
        return LS_OK;
    }
    ls_phase_timer *marks = calloc(1, sizeof *marks);
    if (marks == NULL) {
        ls_log_error("cannot allocate the marks of a step");
        return LS_ERR_INFRA;
    }
    marks->device = &trainer->device;
    marks->buckets = trainer->memory.param_count;
    ls_status status = create_events(marks);
    if (status != LS_OK) {
        ls_phase_timer_close(marks);
        return status;
    }
    marks->observer = (ls_ddp_observer){marks->stream, marks->ready, marks->done};
    *out = marks;
    return LS_OK;
}

void ls_phase_timer_close(ls_phase_timer *marks)
{
    if (marks == NULL) {
        return;
    }
    const ls_backend_api *api = marks->device->api;
    for (int i = 0; marks->ready != NULL && i < 2 * marks->buckets; i++) {
        if (marks->ready[i] != NULL) {
            api->event_destroy(marks->ready[i]);
        }
    }
    for (int i = 0; i < LS_PHASE_TIMER_POINTS; i++) {
        if (marks->point[i] != NULL) {
            api->event_destroy(marks->point[i]);
        }
    }
    if (marks->stream != NULL) {
        api->stream_destroy(marks->stream);
    }
    free(marks->ready);
    free(marks);
}

ls_status ls_phase_timer_at(ls_phase_timer *marks, ls_phase_timer_point point)
{
    return marks == NULL
               ? LS_OK
               : marks->device->api->event_record(marks->point[point], marks->device->stream);
}

const ls_ddp_observer *ls_phase_timer_observer(const ls_phase_timer *marks)
{
    return marks == NULL ? NULL : &marks->observer;
}

static ls_status when(const ls_phase_timer *marks, ls_event *event, int64_t *ns)
{
    double ms = 0;
    LS_TRY(marks->device->api->event_ms(event, marks->end, &ms));
    *ns = marks->end_ns - (int64_t)(ms * 1e6);
    return LS_OK;
}

void ls_phase_timer_end(ls_phase_timer *marks, ls_event *end, int64_t end_ns)
{
    marks->end = end;
    marks->end_ns = end_ns;
}

ls_status ls_phase_timer_ns(const ls_phase_timer *marks, ls_phase_timer_point point, int64_t *ns)
{
    return when(marks, marks->point[point], ns);
}

ls_status ls_phase_timer_bucket_ns(const ls_phase_timer *marks, int index, int64_t *from_ns,
                                   int64_t *to_ns)
{
    int64_t before_ns = 0;
    LS_TRY(when(marks, marks->ready[index], from_ns));
    LS_TRY(when(marks, marks->done[index], to_ns));
    if (index > 0) {
        LS_TRY(when(marks, marks->done[index - 1], &before_ns));
    }
    *from_ns = before_ns > *from_ns ? before_ns : *from_ns;
    return LS_OK;
}
