#include "step_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"

ls_status ls_step_report_open(ls_trainer *trainer, ls_step_history *history, ls_audit *audit,
                              ls_step_reporter *out)
{
    ls_step_state state;
    size_t params = (size_t)trainer->memory.param_count;
    LS_TRY(ls_device_read(&trainer->device, &state, trainer->memory.state, (int64_t)sizeof state));
    *out = (ls_step_reporter){.trainer = trainer,
                              .history = history,
                              .audit = audit,
                              .last = trainer->first_step - 1,
                              .loss_scale = state.loss_scale,
                              .printed_ns = history->ended_ns,
                              .printed_step = trainer->first_step - 1};
    if (!trainer->options.trace) {
        return LS_OK;
    }
    out->span = calloc(LS_PHASE_TIMER_PHASES + params, sizeof *out->span);
    out->name = calloc(params, sizeof *out->name);
    LS_TRY_MEMORY(out->span != NULL && out->name != NULL, "the spans of a step");
    return LS_OK;
}

void ls_step_report_close(ls_step_reporter *reporter)
{
    free(reporter->span);
    free(reporter->name);
}

/* ---- events ---------------------------------------------------------------------------------- */

static ls_status write_trace(ls_step_reporter *reporter, const ls_step_record *record)
{
    static const char *const phases[] = {"forward", "backward", "optimizer"};
    const ls_trainer *trainer = reporter->trainer;
    if (!trainer->options.trace || record->timer == NULL) {
        return LS_OK;
    }
    int count = 0;
    for (int p = 0; p < LS_PHASE_TIMER_PHASES; p++) {
        ls_phase_timer_span at = ls_phase_timer_span_of(record->timer, (ls_phase_timer_phase)p);
        reporter->span[count++] = (ls_events_span){phases[p], false, at.from_ns, at.to_ns};
    }
    int buckets = trainer->ddp == NULL ? 0 : ls_ddp_layout(trainer->ddp)->bucket_count;
    for (int b = 0; b < buckets; b++) {
        ls_phase_timer_span at;
        LS_TRY(ls_phase_timer_bucket(record->timer, b, &at));
        snprintf(reporter->name[b], sizeof reporter->name[b], "bucket %d", b);
        reporter->span[count++] = (ls_events_span){reporter->name[b], true, at.from_ns, at.to_ns};
    }
    return ls_events_write_trace(trainer->events, record->step, reporter->span, count);
}

/* In a step of all ranks, whose batches may differ. */
static double images_of_world(const ls_trainer *trainer, const ls_step_record *record)
{
    const ls_options *options = &trainer->options;
    int64_t sum = 0;
    for (int i = 0; i < options->batch_size_count; i++) {
        sum += (int64_t)options->batch_sizes[i] * options->accumulate;
    }
    return (double)(sum > 0 ? sum : record->images * trainer->world.world);
}

static void print_step(ls_step_reporter *reporter, const ls_step_record *record, float loss)
{
    ls_trainer *trainer = reporter->trainer;
    int frequency = trainer->options.print_freq;
    bool due = frequency > 0 && (record->step % frequency == 0 || record->step == 1 ||
                                 record->step == trainer->last_step);
    if (trainer->world.rank != 0 || !due) {
        return;
    }
    double seconds = (double)(record->ended_ns - reporter->printed_ns) * 1e-9;
    double images =
        (double)(record->step - reporter->printed_step) * images_of_world(trainer, record);
    const ls_step_state *state = &record->host->state;
    printf("step %lld/%lld  loss %.4f  lr %g  scale %g%s  %.1f img/s\n", (long long)record->step,
           (long long)trainer->last_step, (double)loss, (double)record->host->lr,
           (double)state->loss_scale, state->skipped != 0 ? " (skipped)" : "", images / seconds);
    fflush(stdout);
    reporter->printed_ns = record->ended_ns;
    reporter->printed_step = record->step;
}

static ls_status write_event(ls_step_reporter *reporter, const ls_step_record *record)
{
    ls_trainer *trainer = reporter->trainer;
    const ls_step_state *state = &record->host->state;
    ls_events_step event = {
        .step = record->step,
        .loss = ls_step_record_loss(reporter->history, record),
        .loss_scale = reporter->loss_scale,
        .loss_scale_next = state->loss_scale,
        .skipped = state->skipped != 0,
        .lr = record->host->lr,
        .images = record->images,
        .at_ns = record->ended_ns,
        .digest = record->digest,
    };
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
    print_step(reporter, record, event.loss);
    reporter->skipped += event.skipped;
    return LS_OK;
}

ls_status ls_step_report(ls_step_reporter *reporter, ls_step_record *record)
{
    ls_trainer *trainer = reporter->trainer;
    if (!record->pending) {
        return LS_OK;
    }
    LS_TRY(ls_step_record_arrive(reporter->history, record));
    record->pending = false;
    LS_TRY(write_trace(reporter, record));
    LS_TRY(write_event(reporter, record));
    reporter->loss_scale = record->host->state.loss_scale;
    reporter->last = record->step;
    LS_TRY(ls_audit_judge(reporter->audit, record->step, record->ms[LS_EVENTS_MS_TOTAL]));
    return ls_amp_scale_judge(&trainer->amp, ls_amp_scale_param_name, &trainer->network,
                              &record->host->state, record->step);
}
