#include "step_loop.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "fault.h"
#include "join.h"
#include "setup.h"

ls_step_record *ls_step_record_of(ls_step_loop *loop, int64_t step)
{
    return &loop->record[step % LS_STEP_RECORDS];
}

/* ---- time that does not count ---------------------------------------------------------------- */

int64_t ls_step_instrument_begin(ls_step_loop *loop)
{
    const ls_device *device = &loop->trainer->device;
    /* what the device is still at belongs to the step; who looks would wait for it, too, and says
     * so where that fails */
    (void)device->api->stream_wait(device->stream);
    ls_loader_pause(loop->trainer->loader, true);
    return ls_clock_ns();
}

void ls_step_instrument_end(ls_step_loop *loop, int64_t begun_ns)
{
    ls_loader_pause(loop->trainer->loader, false);
    loop->instrument_ns += ls_clock_ns() - begun_ns;
}

static bool hashes(const ls_trainer *trainer, int64_t step)
{
    bool due = step % trainer->options.digest_every == 0 || step == trainer->last_step;
    return due && ls_events_enabled(trainer->events) && trainer->options.digest != LS_DIGEST_NONE;
}

/* Digests and dump of the step that has just been enqueued; both need its state on the host. */
static ls_status instrument(ls_step_loop *loop, ls_step_record *record)
{
    ls_trainer *trainer = loop->trainer;
    memset(&record->digest, 0, sizeof record->digest);
    if (!hashes(trainer, record->step) && loop->dump == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_step_arrive(loop, record));
    int64_t begun_ns = ls_step_instrument_begin(loop);
    if (hashes(trainer, record->step)) {
        LS_TRY(ls_digest_compute(&trainer->memory, &record->host->state, trainer->options.digest,
                                 &record->digest));
    }
    if (loop->dump != NULL) {
        ls_dump_result result = {.loss = ls_step_mean_loss(loop, record),
                                 .after = record->host->state,
                                 .lr = record->host->lr};
        ls_dump *dump = loop->dump;
        loop->dump = NULL;
        ls_fault_point(trainer, record->step, LS_FAULT_DUMP);
        LS_TRY(ls_dump_finish(dump, &result));
    }
    ls_step_instrument_end(loop, begun_ns);
    return LS_OK;
}

/* ---- from step to step ----------------------------------------------------------------------- */

/* After the first step of a start the gradients may move to the layout that rank 0's order has
 * made; a layout that came with a checkpoint is settled and stays. */
static ls_status rebuild_buckets(ls_step_loop *loop, int64_t step)
{
    ls_trainer *trainer = loop->trainer;
    bool changed = false;
    if (trainer->ddp == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_ddp_rebuild(trainer->ddp, &changed));
    if (!changed) {
        return LS_OK;
    }
    LS_TRY(ls_setup_bind(trainer));
    return ls_events_write_buckets(trainer->events, step + 1, ls_ddp_layout(trainer->ddp),
                                   &trainer->network);
}

/* One step and what belongs to it; the device may still be at the one before. Told at once: where a
 * step is over when it is enqueued, where its state is looked at anyway, and before the buckets
 * move. */
static ls_status do_step(ls_step_loop *loop, int64_t step)
{
    ls_trainer *trainer = loop->trainer;
    ls_step_record *record = ls_step_record_of(loop, step);
    ls_step_record *older = ls_step_record_of(loop, step - 1);
    if (ls_dump_wants(trainer, step) || ls_audit_due(&trainer->options, step)) {
        LS_TRY(ls_step_report(loop, older)); /* its time ends before that of this one begins */
    }
    LS_TRY(ls_step_enqueue(loop, step, record));
    LS_TRY(ls_feed_ahead(loop->feed));
    LS_TRY(ls_step_report(loop, older));
    bool at_once = trainer->device.info.host_memory || hashes(trainer, step) ||
                   loop->dump != NULL || ls_audit_due(&trainer->options, step) ||
                   (step == trainer->first_step && trainer->ddp != NULL);
    if (at_once) {
        LS_TRY(ls_step_arrive(loop, record));
    }
    if (trainer->engine != NULL) {
        LS_TRY(trainer->engine->poll(trainer->comm));
    }
    LS_TRY(instrument(loop, record));
    if (at_once) {
        LS_TRY(ls_step_report(loop, record));
    }
    return step == trainer->first_step ? rebuild_buckets(loop, step) : LS_OK;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static ls_status open_record(const ls_trainer *trainer, ls_step_record *record)
{
    const ls_backend_api *api = trainer->device.api;
    ls_backend *backend = trainer->device.backend;
    size_t bytes =
        sizeof *record->host + (size_t)trainer->options.accumulate * sizeof record->host->loss[0];
    void *host = NULL;
    if (api->host_alloc != NULL) {
        LS_TRY(api->host_alloc(backend, (int64_t)bytes, "a step's record", &host));
    } else {
        host = malloc(bytes);
    }
    if (host == NULL) {
        ls_log_error("cannot allocate the record of a step");
        return LS_ERR_INFRA;
    }
    memset(host, 0, bytes);
    record->host = host;
    LS_TRY(api->event_create(backend, &record->arrived));
    return ls_phase_timer_open(trainer, &record->marks);
}

static void close_record(const ls_trainer *trainer, ls_step_record *record)
{
    const ls_backend_api *api = trainer->device.api;
    ls_phase_timer_close(record->marks);
    if (record->arrived != NULL) {
        api->event_destroy(record->arrived);
    }
    if (record->host != NULL && api->host_free != NULL) {
        api->host_free(trainer->device.backend, record->host);
    } else {
        free(record->host);
    }
}

static ls_status open_loop(ls_step_loop *loop)
{
    ls_trainer *trainer = loop->trainer;
    ls_step_state state;
    loop->summary->last = trainer->first_step - 1;
    for (int i = 0; i < LS_STEP_RECORDS; i++) {
        LS_TRY(open_record(trainer, &loop->record[i]));
    }
    size_t spans = LS_STEP_SPANS + (size_t)trainer->memory.param_count;
    loop->span = calloc(spans, sizeof *loop->span);
    if (loop->span == NULL) {
        ls_log_error("cannot allocate the spans of a step");
        return LS_ERR_INFRA;
    }
    LS_TRY(ls_device_read(&trainer->device, &state, trainer->memory.state, (int64_t)sizeof state));
    LS_TRY(ls_graph_open(trainer, &loop->graphs));
    LS_TRY(ls_audit_open(trainer, &loop->audit));
    LS_TRY(ls_feed_open(trainer, &loop->feed));
    loop->loss_scale = state.loss_scale;
    /* the first step's time begins here, as if a step before it ended */
    ls_event *start = ls_step_record_of(loop, trainer->first_step - 1)->arrived;
    LS_TRY(trainer->device.api->event_record(start, trainer->device.stream));
    LS_TRY(trainer->device.api->event_wait(start));
    loop->ended_ns = loop->printed_ns = ls_clock_ns();
    loop->printed_step = trainer->first_step - 1;
    return LS_OK;
}

static void close_loop(ls_step_loop *loop)
{
    ls_dump_discard(loop->dump);
    ls_feed_close(loop->feed);
    ls_graph_close(loop->graphs);
    ls_audit_close(loop->audit);
    if (loop->trainer->ddp != NULL) {
        ls_ddp_observe(loop->trainer->ddp, NULL);
    }
    for (int i = 0; i < LS_STEP_RECORDS; i++) {
        close_record(loop->trainer, &loop->record[i]);
    }
    free(loop->span);
}

/* Where the device still answers, what it has done is told, whatever ended the run. */
static ls_status tell_the_last(ls_step_loop *loop, ls_step_record *record, ls_status status)
{
    if (status == LS_OK) {
        return ls_step_report(loop, record);
    }
    if (status == LS_ERR_USAGE || status == LS_ERR_INFRA) {
        (void)ls_step_report(loop, record);
    }
    return status;
}

ls_status ls_step_run(ls_trainer *trainer, ls_step_summary *summary)
{
    *summary = (ls_step_summary){0};
    ls_step_loop loop = {.trainer = trainer, .summary = summary};
    ls_status status = open_loop(&loop);
    int64_t through = trainer->first_step - 1; /* of the step after it little is known */
    while (status == LS_OK && through < trainer->last_step) {
        status = do_step(&loop, through + 1);
        through += status == LS_OK;
    }
    status = tell_the_last(&loop, ls_step_record_of(&loop, through), status);
    if (status != LS_OK) {
        ls_join_abandon(trainer);
    } else {
        ls_audit_print(loop.audit);
    }
    if (!trainer->stuck) {
        close_loop(&loop);
    }
    return status;
}
