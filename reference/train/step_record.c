#include "step_record.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
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
    LS_TRY_MEMORY(host != NULL, "the record of a step");
    memset(host, 0, bytes);
    record->host = host;
    LS_TRY(api->event_create(trainer->device.backend, &record->arrived));
    return ls_phase_timer_open(trainer, &history->clock, &record->timer);
}

static void close_record(const ls_trainer *trainer, ls_step_record *record)
{
    const ls_backend_api *api = trainer->device.api;
    ls_phase_timer_close(record->timer);
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
    return ls_phase_timer_read(record->timer, record->arrived, record->ended_ns, record->ms,
                               record->ms_given);
}
