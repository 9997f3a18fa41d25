#include "step.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"
#include "reference/train/evaluate.h"
#include "reference/train/ways/join.h"
#include "reference/train/checkpoint/checkpoint.h"

typedef struct loop {
    ls_trainer *trainer;
    ls_step_history history;
    ls_step step;
    /* of the report */
    int64_t last;         /* step that was reported */
    int64_t skipped;      /* how many of the reported steps changed nothing */
    float loss_scale;     /* of the step that is reported next */
    int64_t printed_ns;   /* the end of the step that was printed last, */
    int64_t printed_step; /* and its number */
    ls_events_span *span; /* [spans of a step], for --trace */
    char (*name)[24];     /* [param_count] of buckets */
    uint32_t top1, top5;  /* the state's counters after the step that was reported last */
} loop;

/* ---- the report of a step that has ended ----------------------------------------------------- */

/* Before the first step. */
static ls_status open_report(loop *loop)
{
    const ls_trainer *trainer = loop->trainer;
    ls_step_state state;
    size_t params = (size_t)trainer->memory.param_count;
    LS_TRY(ls_device_read(&trainer->device, &state, trainer->memory.state, (int64_t)sizeof state));
    loop->loss_scale = state.loss_scale;
    loop->top1 = state.top1;
    loop->top5 = state.top5;
    loop->printed_ns = loop->history.ended_ns;
    loop->printed_step = trainer->first_step - 1;
    if (!trainer->options.trace) {
        return LS_OK;
    }
    loop->span = ls_list_make(LS_STEP_PHASES + params, sizeof *loop->span);
    loop->name = ls_list_make(params, sizeof *loop->name);
    return LS_OK;
}

static ls_status write_trace(loop *loop, const ls_step_record *record)
{
    static const char *const phases[] = {"forward", "backward", "optimizer"};
    const ls_trainer *trainer = loop->trainer;
    if (!trainer->options.trace || record->timer == NULL || record->round.joined) {
        return LS_OK;
    }
    int count = 0;
    for (int p = 0; p < LS_STEP_PHASES; p++) {
        ls_step_span at = ls_step_record_span(record, (ls_step_phase)p);
        loop->span[count++] = (ls_events_span){phases[p], false, at.from_ns, at.to_ns};
    }
    int buckets = trainer->ddp == NULL ? 0 : ls_ddp_layout(trainer->ddp)->bucket_count;
    for (int b = 0; b < buckets; b++) {
        ls_step_span at;
        LS_TRY(ls_step_record_bucket(record, b, &at));
        snprintf(loop->name[b], sizeof loop->name[b], "bucket %d", b);
        loop->span[count++] = (ls_events_span){loop->name[b], true, at.from_ns, at.to_ns};
    }
    return ls_events_write_trace(trainer->events, record->step, loop->span, count);
}

/* In a step of all ranks, whose batches may differ. */
static double images_of_world(const ls_trainer *trainer, const ls_step_record *record)
{
    const ls_options *options = &trainer->options;
    int64_t all = options->batch_sizes.count > 0
                      ? ls_options_images(options, trainer->world.world) * options->accumulate
                      : record->images * trainer->world.world;
    return (double)(record->round.images > 0 ? record->round.images : all);
}

/* "  1:02:03 left" at the pace of the steps since the line before; "" behind the last step. */
static void add_left(char *text, size_t bytes, double seconds)
{
    long long whole = seconds < 1e9 ? llrint(seconds) : 0;
    if (whole <= 0) {
        return;
    }
    ls_text_put(text, bytes, "  %lld:%02lld", whole / 60, whole % 60);
    if (whole >= 3600) {
        ls_text_put(text, bytes, "  %lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
    }
    ls_text_add(text, bytes, " left");
}

static void print_step(loop *loop, const ls_step_record *record, float loss)
{
    ls_trainer *trainer = loop->trainer;
    int frequency = trainer->options.print_freq;
    bool due = frequency > 0 && (record->step % frequency == 0 || record->step == 1 ||
                                 record->step == trainer->last_step);
    if (ls_audit_due(&trainer->options, record->step)) { /* neither its images nor its time */
        loop->printed_ns += (int64_t)(record->ms[LS_EVENTS_MS_TOTAL] * 1e6);
        loop->printed_step++;
    }
    if (trainer->world.rank != 0 || !due) {
        return;
    }
    double seconds = (double)(record->ended_ns - loop->printed_ns) * 1e-9;
    double images = (double)(record->step - loop->printed_step) * images_of_world(trainer, record);
    const ls_step_state *state = &record->host->state;
    double each = seconds / (double)(record->step - loop->printed_step);
    LS_TEXT(rate, 32, "%.1f img/s", images / seconds);
    LS_TEXT(own, 32, "loss %.4f", (double)loss);
    char left[48] = "";
    if (images > 0) {
        add_left(left, sizeof left,
                 each * (double)LS_PLANT(time_left_of_all, trainer->last_step - record->step,
                                         trainer->last_step));
    }
    printf("step %lld/%lld  %s  lr %g  scale %g%s  %s%s\n", (long long)record->step,
           (long long)trainer->last_step, record->round.joined ? "no batch left" : own,
           (double)record->host->lr, (double)state->loss_scale,
           state->skipped != 0 ? " (skipped)" : "", images > 0 ? rate : "audited", left);
    fflush(stdout);
    loop->printed_ns = record->ended_ns;
    loop->printed_step = record->step;
}

static void count_step(loop *loop, const ls_step_state *state, const ls_events_step *event)
{
    loop->top1 = state->top1;
    loop->top5 = state->top5;
    ls_events_score *epoch = &loop->trainer->epoch;
    epoch->images += event->images;
    epoch->top1 += event->top1;
    epoch->top5 += event->top5;
    epoch->bad += event->bad_images;
    epoch->loss += event->joined ? 0 : (double)event->loss * (double)event->images;
}

static ls_status write_event(loop *loop, const ls_step_record *record)
{
    ls_trainer *trainer = loop->trainer;
    const ls_step_state *state = &record->host->state;
    ls_events_step event = {
        .step = record->step,
        .loss = ls_step_record_loss(&loop->history, record),
        .loss_scale = loop->loss_scale,
        .loss_scale_next = state->loss_scale,
        .skipped = state->skipped != 0,
        .audited = ls_audit_due(&trainer->options, record->step),
        .lr = record->host->lr,
        .images = record->images,
        .bad_images = record->bad_images,
        .joined = record->round.joined,
        .active = record->round.active < trainer->world.world ? record->round.active : 0,
        .scored = !record->round.joined,
        .top1 = (uint32_t)(state->top1 - loop->top1),
        .top5 = (uint32_t)(state->top5 - loop->top5),
        .norm_given = ls_optim_measures_norm(&trainer->options),
        .grad_norm = state->grad_norm,
        .at_ns = record->ended_ns,
        .digest = record->digest,
    };
    count_step(loop, state, &event);
    memcpy(event.ms_given, record->ms_given, sizeof event.ms_given);
    memcpy(event.ms, record->ms, sizeof event.ms);
    LS_TRY(ls_events_write_step(trainer->events, &event));
    bool normed = event.norm_given && isfinite(event.grad_norm);
    double rate = 1e3 * images_of_world(trainer, record) / record->ms[LS_EVENTS_MS_TOTAL];
    const ls_tensorboard_scalar scalars[] = {
        {event.joined ? NULL : "loss", event.loss},
        {"lr", event.lr},
        {"loss_scale", event.loss_scale},
        {event.audited || isnan(rate) ? NULL : "images_per_s", (float)rate},
        {normed ? "grad_norm" : NULL, event.grad_norm},
    };
    LS_TRY(ls_tensorboard_write(trainer->board, record->step, scalars,
                                (int)(sizeof scalars / sizeof *scalars)));
    print_step(loop, record, event.loss);
    loop->skipped += event.skipped;
    return LS_OK;
}

/* Waits until the step has ended, reports it (its events, its scalars for TensorBoard, a line for
 * the terminal) and judges its state, which decides whether the run goes on: errors as
 * ls_amp_scale_judge and ls_audit_judge. Nothing where it is reported already. */
static ls_status report_step(loop *loop, ls_step_record *record)
{
    ls_trainer *trainer = loop->trainer;
    if (!record->pending) {
        return LS_OK;
    }
    LS_TRY(ls_step_record_arrive(&loop->history, record));
    record->pending = false;
    LS_TRY(write_trace(loop, record));
    LS_TRY(write_event(loop, record));
    loop->loss_scale = record->host->state.loss_scale;
    loop->last = record->step;
    LS_TRY(ls_audit_judge(loop->step.audit, record->step, record->ms[LS_EVENTS_MS_TOTAL]));
    return ls_amp_scale_judge(&trainer->amp, ls_amp_scale_param_name, &trainer->network,
                              &record->host->state, record->step);
}

/* ---- digests and dumps ----------------------------------------------------------------------- */

static bool hashes(const ls_trainer *trainer, int64_t step)
{
    bool due = step % trainer->options.digest_every == 0 || step == trainer->last_step;
    return due && ls_events_enabled(trainer->events) && trainer->options.digest != LS_DIGEST_NONE;
}

/* Of the step that has just been enqueued; both need its state on the host. */
static ls_status instrument(loop *loop, ls_step_record *record)
{
    ls_trainer *trainer = loop->trainer;
    ls_dump *dump = loop->step.dump;
    memset(&record->digest, 0, sizeof record->digest);
    if (!hashes(trainer, record->step) && dump == NULL) {
        return LS_OK;
    }
    LS_TRY(ls_step_record_arrive(&loop->history, record));
    int64_t since_ns = ls_step_clock_stop(&loop->history.clock);
    if (hashes(trainer, record->step)) {
        LS_TRY(ls_digest_compute(&trainer->memory, &record->host->state, trainer->options.digest,
                                 &record->digest));
    }
    if (dump != NULL) {
        ls_dump_result result = {.loss = ls_step_record_loss(&loop->history, record),
                                 .after = record->host->state,
                                 .lr = record->host->lr};
        loop->step.dump = NULL;
        ls_fault_point(trainer, record->step, LS_FAULT_DUMP);
        LS_TRY(ls_dump_finish(dump, &result));
    }
    ls_step_clock_resume(&loop->history.clock, since_ns);
    return LS_OK;
}

/* ---- epochs and validation ------------------------------------------------------------------- */

static bool ends_epoch(const ls_trainer *trainer, int64_t step)
{
    return trainer->steps_per_epoch > 0 && step % trainer->steps_per_epoch == 0;
}

static ls_status run_validation(ls_trainer *trainer, ls_evaluate_report *report)
{
    if (trainer->rules.broadcast_buffers) { /* as DistributedDataParallel before every forward */
        LS_TRY(ls_setup_broadcast(trainer, LS_MEMORY_BUFFER, 0));
    }
    return ls_evaluate_run(trainer, report);
}

/* The validation has moved the counters of the state. */
static ls_status validate(loop *loop, int64_t step, ls_evaluate_report *report)
{
    ls_trainer *trainer = loop->trainer;
    ls_step_state state;
    if (!ls_evaluate_due(trainer, step)) {
        return LS_OK;
    }
    LS_TRY(ls_mllog_run_validated(trainer, step, NULL));
    LS_TRY(run_validation(trainer, report));
    LS_TRY(ls_mllog_run_validated(trainer, step, &report->val));
    LS_TRY(ls_device_read(&trainer->device, &state, trainer->memory.state, (int64_t)sizeof state));
    loop->top1 = state.top1;
    loop->top5 = state.top5;
    return LS_OK;
}

/* After a step that was reported, its epoch's end and its buckets' move; no part of its time. */
static ls_status save(loop *loop, int64_t step)
{
    int64_t since_ns = ls_step_clock_stop(&loop->history.clock);
    LS_TRY(ls_save_step(loop->trainer, step));
    loop->printed_ns += ls_clock_ns() - since_ns;
    ls_step_clock_resume(&loop->history.clock, since_ns);
    return LS_OK;
}

/* After a step that was reported; no part of its time. */
static ls_status end_epoch(loop *loop, int64_t step)
{
    ls_trainer *trainer = loop->trainer;
    ls_evaluate_report report = {.step = step};
    int64_t since_ns = ls_step_clock_stop(&loop->history.clock);
    LS_TRY(ends_epoch(trainer, step) ? ls_mllog_run_epoch(trainer, step, false) : LS_OK);
    LS_TRY(ls_evaluate_sum(trainer, "sums of an epoch", &trainer->epoch, &report.train));
    LS_TRY(validate(loop, step, &report));
    LS_TRY(ls_evaluate_publish(trainer, &report));
    ls_save_note_score(trainer, step, &report.val);
    trainer->epoch = (ls_events_score){0};
    loop->printed_ns += ls_clock_ns() - since_ns;
    ls_step_clock_resume(&loop->history.clock, since_ns);
    return LS_OK;
}

/* ---- from step to step ----------------------------------------------------------------------- */

/* The gradients may move to the layout made from rank 0's order; a layout that came with a
 * checkpoint is settled and stays. */
static ls_status rebuild_buckets(loop *loop, int64_t step)
{
    ls_trainer *trainer = loop->trainer;
    bool changed = false;
    LS_TRY(ls_ddp_rebuild(trainer->ddp, &changed));
    if (!changed) {
        return LS_OK;
    }
    LS_TRY(ls_setup_bind(trainer));
    return ls_events_write_buckets(trainer->events, step + 1, ls_ddp_layout(trainer->ddp),
                                   &trainer->network);
}

/* Enqueues a step and reports the one before, which the device may still be computing. The step
 * itself is reported at once where it is over when it is enqueued, where its state is read anyway,
 * and before the buckets move. */
static ls_status do_step(loop *loop, int64_t step)
{
    ls_trainer *trainer = loop->trainer;
    ls_step_record *record = ls_step_record_of(&loop->history, step);
    ls_step_record *older = ls_step_record_of(&loop->history, step - 1);
    bool rebuilds =
        trainer->ddp != NULL && step == trainer->first_step - 1 + LS_DIALECT_REBUILD_AFTER;
    int64_t ticks = step - LS_PLANT(schedule_waits_on_skip, 0, loop->skipped);
    if (ls_dump_wants(trainer, step) || ls_audit_due(&trainer->options, step)) {
        LS_TRY(report_step(loop, older)); /* its time ends before this one's begins */
    }
    if (step == trainer->first_step || ends_epoch(trainer, step - 1)) {
        LS_TRY(ls_mllog_run_epoch(trainer, step, true));
    }
    LS_TRY(ls_step_enqueue(&loop->step, step, ticks));
    LS_TRY(record->round.joined ? LS_OK : ls_feed_ahead(loop->step.feed));
    LS_TRY(report_step(loop, older));
    bool ends = ends_epoch(trainer, step) || ls_evaluate_due(trainer, step);
    bool saves = ls_save_due(trainer, step);
    bool at_once = trainer->device.info.host_memory || hashes(trainer, step) || ends || saves ||
                   (trainer->uneven != NULL && step == trainer->last_step) ||
                   loop->step.dump != NULL || ls_audit_due(&trainer->options, step) || rebuilds;
    if (at_once) {
        LS_TRY(ls_step_record_arrive(&loop->history, record));
    }
    if (trainer->engine != NULL) {
        LS_TRY(trainer->engine->poll(trainer->comm));
    }
    LS_TRY(instrument(loop, record));
    if (at_once) {
        LS_TRY(report_step(loop, record));
    }
    LS_TRY(ls_uneven_end(trainer, step));
    LS_TRY(ends ? end_epoch(loop, step) : LS_OK);
    LS_TRY(rebuilds ? rebuild_buckets(loop, step) : LS_OK);
    return saves || ends ? save(loop, step) : LS_OK;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static ls_status open_loop(loop *loop)
{
    ls_trainer *trainer = loop->trainer;
    ls_step *step = &loop->step;
    LS_TRY(ls_step_record_open(trainer, &loop->history));
    *step = (ls_step){.trainer = trainer, .history = &loop->history};
    LS_TRY(ls_graph_open(trainer, &step->graphs));
    LS_TRY(ls_audit_open(trainer, &step->audit));
    LS_TRY(ls_feed_open(trainer, &step->feed));
    LS_TRY(ls_step_record_start(&loop->history));
    return open_report(loop);
}

static void close_loop(loop *loop)
{
    free(loop->span);
    free(loop->name);
    ls_dump_discard(loop->step.dump);
    ls_feed_close(loop->step.feed);
    ls_graph_close(loop->step.graphs);
    ls_audit_close(loop->step.audit);
    ls_step_record_close(&loop->history);
}

/* Reports the last step that was enqueued, whatever ended the run, if the device still answers. */
static ls_status report_last(loop *loop, ls_step_record *record, ls_status status)
{
    if (status == LS_OK) {
        return report_step(loop, record);
    }
    if (status == LS_ERR_USAGE || status == LS_ERR_INFRA || status == LS_ERR_UNEVEN) {
        (void)report_step(loop, record);
    }
    return status;
}

ls_status ls_step_run(ls_trainer *trainer, ls_step_summary *summary)
{
    loop loop = {
        .trainer = trainer, .history = {.trainer = trainer}, .last = trainer->first_step - 1};
    ls_status status = open_loop(&loop);
    int64_t through = trainer->first_step - 1; /* enqueued without an error */
    ls_save_stop stop = {.at = trainer->last_step};
    while (status == LS_OK && through < stop.at) {
        status = do_step(&loop, through + 1);
        through += status == LS_OK;
        LS_THEN(status, ls_save_ask(trainer, through, &stop));
    }
    status = report_last(&loop, ls_step_record_of(&loop.history, through), status);
    if (status == LS_ERR_PEER_LOST) {
        ls_log_error("step %" PRId64 " did not end", loop.last + 1);
    }
    if (status != LS_OK) {
        ls_join_abandon(trainer);
    } else {
        ls_audit_print(loop.step.audit);
    }
    *summary = (ls_step_summary){loop.last, loop.skipped, stop.signal};
    if (!trainer->stuck) {
        close_loop(&loop);
    }
    return status;
}

ls_status ls_step_validate(ls_trainer *trainer)
{
    ls_evaluate_report report = {.step = trainer->first_step - 1};
    if (ls_feed_slots(trainer) > 0) {
        LS_TRY(ls_feed_slots_create(trainer));
    }
    LS_TRY(ls_mllog_run_validated(trainer, report.step, NULL));
    LS_TRY(run_validation(trainer, &report));
    LS_TRY(ls_mllog_run_validated(trainer, report.step, &report.val));
    return ls_evaluate_publish(trainer, &report);
}
