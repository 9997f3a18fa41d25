#include "step_loop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"

float ls_step_mean_loss(const ls_step_loop *loop, const ls_step_record *record)
{
    double sum = 0.0;
    int count = loop->trainer->options.accumulate;
    for (int i = 0; count > 1 && i < count; i++) {
        sum += (double)record->host->loss[i];
    }
    return count == 1 ? record->host->state.loss : (float)(sum / count);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Phases by the device's marks. With accumulation only what comes once in a step. */
static ls_status take_marks(ls_step_loop *loop, ls_step_record *record)
{
    const ls_trainer *trainer = loop->trainer;
    int64_t at[LS_PHASE_TIMER_POINTS];
    ls_phase_timer_end(record->marks, record->arrived, record->ended_ns);
    for (int i = 0; i < LS_PHASE_TIMER_POINTS; i++) {
        LS_TRY(ls_phase_timer_ns(record->marks, (ls_phase_timer_point)i, &at[i]));
    }
    double comm_ms = 0;
    int buckets = trainer->ddp == NULL ? 0 : ls_ddp_layout(trainer->ddp)->bucket_count;
    for (int b = 0; b < buckets; b++) {
        int64_t from_ns, to_ns;
        LS_TRY(ls_phase_timer_bucket_ns(record->marks, b, &from_ns, &to_ns));
        comm_ms += ls_clock_ms_between(from_ns, to_ns);
    }
    const struct {
        ls_events_ms what;
        double ms;
        bool given;
    } rows[] = {
        {LS_EVENTS_MS_FORWARD,
         ls_clock_ms_between(at[LS_PHASE_TIMER_FORWARD], at[LS_PHASE_TIMER_BACKWARD]),
         trainer->options.accumulate == 1},
        {LS_EVENTS_MS_BACKWARD,
         ls_clock_ms_between(at[LS_PHASE_TIMER_BACKWARD], at[LS_PHASE_TIMER_WAIT]),
         trainer->options.accumulate == 1},
        {LS_EVENTS_MS_COMM_EXPOSED,
         ls_clock_ms_between(at[LS_PHASE_TIMER_WAIT], at[LS_PHASE_TIMER_OPTIMIZER]), true},
        {LS_EVENTS_MS_OPTIMIZER,
         ls_clock_ms_between(at[LS_PHASE_TIMER_OPTIMIZER], at[LS_PHASE_TIMER_END]), true},
        {LS_EVENTS_MS_COMM, comm_ms, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        record->ms[rows[i].what] = rows[i].ms;
        record->ms_given[rows[i].what] = rows[i].given;
    }
    record->forward_ns[0] = at[LS_PHASE_TIMER_FORWARD];
    record->forward_ns[1] = record->backward_ns[0] = at[LS_PHASE_TIMER_BACKWARD];
    record->backward_ns[1] = at[LS_PHASE_TIMER_WAIT];
    return LS_OK;
}

/* The host's clock sees phases only where they are over when they are enqueued. */
static void say_what_is_known(const ls_step_loop *loop, ls_step_record *record)
{
    bool host = loop->trainer->device.info.host_memory;
    for (int i = 0; i < LS_EVENTS_MS_COUNT; i++) {
        record->ms_given[i] = host;
    }
    record->ms_given[LS_EVENTS_MS_TOTAL] = true;
    record->ms_given[LS_EVENTS_MS_DATA] = true;
    record->ms_given[LS_EVENTS_MS_INSTRUMENT] = true;
}

/* When a step ended that has. The host may look long afterwards, because it waited for something
 * else: a slow loader, the recording of a graph. So a device that has a clock says how long after
 * the step before. */
static ls_status take_end(ls_step_loop *loop, ls_step_record *record)
{
    const ls_backend_api *api = loop->trainer->device.api;
    record->ended_ns = ls_clock_ns();
    if (api->event_ms != NULL) {
        const ls_step_record *older = ls_step_record_of(loop, record->step - 1);
        double ms = 0;
        LS_TRY(api->event_ms(older->arrived, record->arrived, &ms));
        int64_t device_ns = loop->ended_ns + (int64_t)(ms * 1e6);
        record->ended_ns = device_ns < record->ended_ns ? device_ns : record->ended_ns;
    }
    return LS_OK;
}

ls_status ls_step_arrive(ls_step_loop *loop, ls_step_record *record)
{
    if (!record->pending || record->has_ended) {
        return LS_OK;
    }
    LS_TRY(loop->trainer->device.api->event_wait(record->arrived));
    record->has_ended = true;
    LS_TRY(take_end(loop, record));
    record->ms[LS_EVENTS_MS_INSTRUMENT] = (double)loop->instrument_ns * 1e-6;
    record->ms[LS_EVENTS_MS_TOTAL] =
        ls_clock_ms_between(loop->ended_ns, record->ended_ns) - record->ms[LS_EVENTS_MS_INSTRUMENT];
    loop->ended_ns = record->ended_ns;
    loop->instrument_ns = 0;
    say_what_is_known(loop, record);
    return record->marks != NULL ? take_marks(loop, record) : LS_OK;
}

/* ---- what is told about it ------------------------------------------------------------------- */

static ls_status bucket_span(const ls_step_loop *loop, const ls_step_record *record, int index,
                             ls_events_span *span)
{
    if (record->marks != NULL) {
        return ls_phase_timer_bucket_ns(record->marks, index, &span->from_ns, &span->to_ns);
    }
    ls_ddp_bucket_span(loop->trainer->ddp, index, &span->from_ns, &span->to_ns);
    return LS_OK;
}

static ls_status write_trace(ls_step_loop *loop, const ls_step_record *record)
{
    ls_trainer *trainer = loop->trainer;
    if (!trainer->options.trace) {
        return LS_OK;
    }
    char(*name)[24] = calloc((size_t)trainer->memory.param_count, sizeof *name);
    if (name == NULL) {
        ls_log_error("cannot allocate a trace event");
        return LS_ERR_INFRA;
    }
    int count = 0;
    ls_status status = LS_OK;
    loop->span[count++] =
        (ls_events_span){"forward", false, record->forward_ns[0], record->forward_ns[1]};
    loop->span[count++] =
        (ls_events_span){"backward", false, record->backward_ns[0], record->backward_ns[1]};
    int64_t optimizer_ns = (int64_t)(record->ms[LS_EVENTS_MS_OPTIMIZER] * 1e6);
    int64_t end_ns = record->ended_ns;
    if (record->marks != NULL) {
        LS_TRY_GOTO(status, ls_phase_timer_ns(record->marks, LS_PHASE_TIMER_END, &end_ns), free);
    }
    loop->span[count++] = (ls_events_span){"optimizer", false, end_ns - optimizer_ns, end_ns};
    int buckets = trainer->ddp == NULL ? 0 : ls_ddp_layout(trainer->ddp)->bucket_count;
    for (int b = 0; b < buckets; b++) {
        ls_events_span *span = &loop->span[count++];
        snprintf(name[b], sizeof name[b], "bucket %d", b);
        *span = (ls_events_span){.name = name[b], .communication = true};
        LS_TRY_GOTO(status, bucket_span(loop, record, b, span), free);
    }
    status = ls_events_write_trace(trainer->events, record->step, loop->span, count);
free:
    free(name);
    return status;
}

/* Of all ranks, whose batches may differ. */
static double images_of_world(const ls_trainer *trainer, const ls_step_record *record)
{
    const ls_options *options = &trainer->options;
    int64_t sum = 0;
    for (int i = 0; i < options->batch_size_count; i++) {
        sum += (int64_t)options->batch_sizes[i] * options->accumulate;
    }
    return (double)(sum > 0 ? sum : record->images * trainer->world.world);
}

static void print_step(ls_step_loop *loop, const ls_step_record *record, float loss)
{
    ls_trainer *trainer = loop->trainer;
    int frequency = trainer->options.print_freq;
    bool due = frequency > 0 && (record->step % frequency == 0 || record->step == 1 ||
                                 record->step == trainer->last_step);
    if (trainer->world.rank != 0 || !due) {
        return;
    }
    double seconds = (double)(record->ended_ns - loop->printed_ns) * 1e-9;
    double images = (double)(record->step - loop->printed_step) * images_of_world(trainer, record);
    const ls_step_state *state = &record->host->state;
    printf("step %lld/%lld  loss %.4f  lr %g  scale %g%s  %.1f img/s\n", (long long)record->step,
           (long long)trainer->last_step, (double)loss, (double)record->host->lr,
           (double)state->loss_scale, state->skipped != 0 ? " (skipped)" : "", images / seconds);
    fflush(stdout);
    loop->printed_ns = record->ended_ns;
    loop->printed_step = record->step;
}

static ls_status write_event(ls_step_loop *loop, const ls_step_record *record)
{
    ls_trainer *trainer = loop->trainer;
    const ls_step_state *state = &record->host->state;
    ls_events_step event = {
        .step = record->step,
        .loss = ls_step_mean_loss(loop, record),
        .loss_scale = loop->loss_scale,
        .loss_scale_next = state->loss_scale,
        .skipped = state->skipped != 0,
        .lr = record->host->lr,
        .images = record->images,
        .at_ns = record->ended_ns,
    };
    memcpy(event.digest_given, record->digest.given, sizeof event.digest_given);
    memcpy(event.digest, record->digest.value, sizeof event.digest);
    memcpy(event.ms_given, record->ms_given, sizeof event.ms_given);
    memcpy(event.ms, record->ms, sizeof event.ms);
    LS_TRY(ls_events_write_step(trainer->events, &event));
    ls_tensorboard_scalars scalars = {
        .loss = event.loss,
        .lr = event.lr,
        .loss_scale = event.loss_scale,
        .images_per_s =
            (float)(1e3 * images_of_world(trainer, record) / record->ms[LS_EVENTS_MS_TOTAL]),
    };
    LS_TRY(ls_tensorboard_write(trainer->board, record->step, &scalars));
    print_step(loop, record, event.loss);
    loop->summary->skipped += event.skipped;
    return LS_OK;
}

ls_status ls_step_report(ls_step_loop *loop, ls_step_record *record)
{
    ls_trainer *trainer = loop->trainer;
    if (!record->pending) {
        return LS_OK;
    }
    LS_TRY(ls_step_arrive(loop, record));
    record->pending = false;
    LS_TRY(write_trace(loop, record));
    LS_TRY(write_event(loop, record));
    loop->loss_scale = record->host->state.loss_scale;
    loop->summary->last = record->step;
    LS_TRY(ls_audit_judge(loop->audit, record->step, record->ms[LS_EVENTS_MS_TOTAL]));
    return ls_amp_scale_judge(&trainer->amp, ls_amp_scale_param_name, &trainer->network,
                              &record->host->state, record->step);
}
