#include "step_loop.h"

#include <string.h>

#include "kernels/core/plant.h"
#include "join.h"
#include "setup.h"
#include "step.h"
#include "step_report.h"

typedef struct loop {
    ls_trainer *trainer;
    ls_step_history history;
    ls_step step;
    ls_step_reporter reporter;
} loop;

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
    int64_t ticks = step - LS_PLANT(schedule_waits_on_skip, 0, loop->reporter.skipped);
    if (ls_dump_wants(trainer, step) || ls_audit_due(&trainer->options, step)) {
        LS_TRY(ls_step_report(&loop->reporter, older)); /* its time ends before this one's begins */
    }
    LS_TRY(ls_step_enqueue(&loop->step, step, ticks));
    LS_TRY(ls_feed_ahead(loop->step.feed));
    LS_TRY(ls_step_report(&loop->reporter, older));
    bool at_once = trainer->device.info.host_memory || hashes(trainer, step) ||
                   loop->step.dump != NULL || ls_audit_due(&trainer->options, step) || rebuilds;
    if (at_once) {
        LS_TRY(ls_step_record_arrive(&loop->history, record));
    }
    if (trainer->engine != NULL) {
        LS_TRY(trainer->engine->poll(trainer->comm));
    }
    LS_TRY(instrument(loop, record));
    if (at_once) {
        LS_TRY(ls_step_report(&loop->reporter, record));
    }
    return rebuilds ? rebuild_buckets(loop, step) : LS_OK;
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
    return ls_step_report_open(trainer, &loop->history, step->audit, &loop->reporter);
}

static void close_loop(loop *loop)
{
    ls_step_report_close(&loop->reporter);
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
        return ls_step_report(&loop->reporter, record);
    }
    if (status == LS_ERR_USAGE || status == LS_ERR_INFRA) {
        (void)ls_step_report(&loop->reporter, record);
    }
    return status;
}

ls_status ls_step_run(ls_trainer *trainer, ls_step_summary *summary)
{
    loop loop = {.trainer = trainer,
                 .history = {.trainer = trainer},
                 .reporter = {.last = trainer->first_step - 1}};
    ls_status status = open_loop(&loop);
    int64_t through = trainer->first_step - 1; /* enqueued without an error */
    while (status == LS_OK && through < trainer->last_step) {
        status = do_step(&loop, through + 1);
        through += status == LS_OK;
    }
    status = report_last(&loop, ls_step_record_of(&loop.history, through), status);
    if (status != LS_OK) {
        ls_join_abandon(trainer);
    } else {
        ls_audit_print(loop.step.audit);
    }
    *summary = (ls_step_summary){loop.reporter.last, loop.reporter.skipped};
    if (!trainer->stuck) {
        close_loop(&loop);
    }
    return status;
}
