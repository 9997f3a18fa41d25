#include "turns.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "harness/report/stats.h"
#include "kernels/core/clock.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "reference/data/loader.h"
#include "reference/files/safetensors.h"

static const double TICK_S = 0.01; /* far less than a turn */

void ls_turns_job(const ls_turns_setting *what, const char *folder, const char *id,
                  const ls_words *trainer, int steps, ls_job *job)
{
    memset(job, 0, sizeof *job);
    ls_text_put(job->id, sizeof job->id, "%s", id);
    ls_text_put(job->label, sizeof job->label, "%s", id);
    ls_text_put(job->directory, sizeof job->directory, "%s/%s", folder, id);
    job->world = what->ranks;
    job->local_nodes = 1;
    job->threads = what->threads;
    job->limit_s = 600; /* a hundred times the slowest measured step */
    job->grace_s = 5;
    for (int i = 0; i < trainer->count; i++) {
        ls_words_add(&job->command, "%s", trainer->word[i]);
    }
    ls_words_add(&job->command, "--arch=%s", what->arch);
    ls_words_add(&job->command, "--image-size=%d", what->image_size);
    ls_words_add(&job->command, "--batch-size=%d", what->batch_size);
    ls_words_add(&job->command, "--num-classes=%d", LS_TURNS_NUM_CLASSES);
    ls_words_add(&job->command, "--steps=%d", steps);
    ls_words_add(&job->command, "--opt-level=O%d", what->level);
    ls_words_add(&job->command, "--lr=0.01");
    if (what->threads > 0) {
        ls_words_add(&job->command, "--threads=%d", what->threads);
    }
}

ls_status ls_turns_write_batches(const ls_turns_setting *what, const char *folder, int steps)
{
    ls_status status = LS_OK;
    for (int rank = 0; rank < what->ranks && status == LS_OK; rank++) {
        ls_loader *loader = NULL;
        const ls_loader_options options = {.data = "synthetic",
                                           .rank = rank,
                                           .world = what->ranks,
                                           .batch_size = what->batch_size,
                                           .image_size = what->image_size,
                                           .num_classes = LS_TURNS_NUM_CLASSES,
                                           .accumulate = 1,
                                           .seed = 7,
                                           .first_step = 1};
        LS_TRY(ls_loader_open(&options, &loader));
        for (int step = 1; step <= steps; step++) {
            ls_loader_batch batch;
            ls_safetensors_writer *writer = NULL;
            LS_TEXT(path, PATH_MAX, "%s/step%06d.rank%d.safetensors", folder, step, rank);
            LS_TRY_GOTO(status, ls_loader_next(loader, &batch), close_loader);
            LS_TRY_GOTO(status, ls_safetensors_create(path, &writer), close_loader);
            const ls_shape input = {4, {batch.images, 3, what->image_size, what->image_size}};
            const ls_shape target = {1, {batch.images}};
            ls_safetensors_add(writer, "input", LS_F32, &input, batch.input);
            ls_safetensors_add(writer, "target", LS_I64, &target, batch.target);
            LS_TRY_GOTO(status, ls_safetensors_finish(writer), close_loader);
        }
    close_loader:
        ls_loader_close(loader);
    }
    return status;
}

/* ---- reading the events of ranks that run ---------------------------------------------------- */

static void take_event(ls_turns_rank *rank, int warmup_steps, const cJSON *event)
{
    const char *name = ls_json_string(event, "event", "");
    if (strcmp(name, "start") == 0) {
        ls_text_put(rank->transport, sizeof rank->transport, "%s",
                    ls_json_string(event, "transport", ""));
    }
    if (strcmp(name, "step") != 0) {
        return;
    }
    bool counts = ++rank->events > warmup_steps && !rank->warm_up && !rank->stopped;
    rank->stopped = false;
    if (counts && !ls_json_bool(event, "skipped", false) &&
        !ls_json_bool(event, "audited", false)) {
        const cJSON *ms = ls_json_get(event, "ms");
        rank->ms = ls_list_grow(rank->ms, rank->count, &rank->capacity, sizeof *rank->ms);
        rank->ms[rank->count++] = ls_json_number(ms, "total", NAN) - ls_json_number(ms, "data", 0);
    }
}

/* The events that have come since the last look. */
static ls_status read_rank(ls_turns_rank *rank, int warmup_steps)
{
    char *line = NULL;
    if (!rank->open && access(rank->path, F_OK) != 0) {
        return LS_OK;
    }
    ls_status status =
        rank->open ? LS_OK : ls_lines_open(rank->path, LS_LINES_LINE_BYTES, &rank->lines);
    rank->open = true;
    LS_THEN(status, ls_lines_next_whole(&rank->lines, &line));
    while (status == LS_OK && line != NULL) {
        cJSON *event = ls_json_parse(line, NULL);
        if (event == NULL) {
            return ls_log_fail(LS_ERR_CHECK, "%s: a line is not JSON: %.60s", rank->path, line);
        }
        take_event(rank, warmup_steps, event);
        cJSON_Delete(event);
        status = ls_lines_next_whole(&rank->lines, &line);
    }
    return status == LS_OK ? LS_OK : ls_log_fail(status, "%s", rank->lines.file.why);
}

static ls_status read_side(ls_turns *turns, int side)
{
    ls_status status = LS_OK;
    for (int k = 0; k < turns->what->ranks; k++) {
        LS_THEN(status,
                read_rank(&turns->rank[side * turns->what->ranks + k], turns->what->warmup_steps));
    }
    return status;
}

/* ---- whose turn it is ------------------------------------------------------------------------ */

static int side_of(const ls_turns *turns, int turn)
{
    int timed = turn - turns->sides;
    return (turns->first + (timed < 0 ? turn : (timed + 1) / 2)) % 2;
}

static double seconds_since(int64_t ns)
{
    return ls_clock_ms_between(ns, ls_clock_ns()) * 1e-3;
}

/* Whether the side's turn has lasted long enough, or its ranks have ended. */
static bool is_done(const ls_turns *turns, int side)
{
    const ls_turns_setting *what = turns->what;
    for (int k = side * what->ranks; k < (side + 1) * what->ranks; k++) {
        const ls_turns_rank *rank = &turns->rank[k];
        bool enough = rank->warm_up ? rank->events >= what->warmup_steps
                                    : rank->count - rank->turn_from >= turns->turn_steps &&
                                          seconds_since(turns->turn_ns) >= turns->turn_s;
        if (!enough && !turns->outcome.rank[k].ended) {
            return false;
        }
    }
    return true;
}

static void stop_side(ls_turns *turns, int side)
{
    int ranks = turns->what->ranks;
    ls_proc_signal_all(turns->outcome.rank + side * ranks, ranks, SIGSTOP);
    turns->paused[side] = true;
}

/* From here on what the side's ranks write belongs to this turn. What they wrote until they had
 * stopped is read before, and the step in which they were stopped is not timed. */
static void begin_turn(ls_turns *turns, int side)
{
    int ranks = turns->what->ranks;
    LS_THEN(turns->status, read_side(turns, side));
    turns->turn_ns = ls_clock_ns();
    for (int k = side * ranks; k < (side + 1) * ranks; k++) {
        turns->rank[k].warm_up = turns->turn < turns->sides;
        turns->rank[k].turn_from = turns->rank[k].count;
        turns->rank[k].stopped = turns->paused[side];
    }
    if (turns->paused[side]) {
        ls_proc_signal_all(turns->outcome.rank + side * ranks, ranks, SIGCONT);
        turns->paused[side] = false;
    }
}

static void look(void *context)
{
    ls_turns *turns = context;
    int side = side_of(turns, turns->turn);
    if (turns->over || turns->outcome.first_rank >= 0) { /* or one has failed: no turns any more */
        return;
    }
    if (turns->turn == 0 && !turns->paused[1 - side]) {
        stop_side(turns, 1 - side);
    }
    LS_THEN(turns->status, read_side(turns, side));
    if (turns->status == LS_OK && !is_done(turns, side)) {
        return;
    }
    turns->turn++;
    int timed = turns->turn - turns->sides, next = side_of(turns, turns->turn);
    if (timed == 0) {
        turns->timed_ns = ls_clock_ns();
    }
    turns->over = turns->status != LS_OK || (timed % 2 == 0 && timed >= 2 * turns->turns &&
                                             seconds_since(turns->timed_ns) >= turns->seconds);
    if (turns->over) {
        begin_turn(turns, side);
        begin_turn(turns, 1 - side);
        ls_proc_signal_all(turns->outcome.rank, turns->outcome.rank_count, SIGTERM);
        return;
    }
    if (next != side) {
        stop_side(turns, side);
    }
    begin_turn(turns, next);
}

ls_status ls_turns_run(const ls_job *job, int steps, ls_turns *turns)
{
    int ranks = turns->what->ranks;
    const ls_job_tick tick = {
        .call = turns->sides > 1 ? look : NULL, .context = turns, .each_s = TICK_S};
    turns->rank = ls_list_make((size_t)(turns->sides * ranks), sizeof *turns->rank);
    for (int k = 0; k < turns->sides * ranks; k++) {
        turns->rank[k].warm_up = turns->sides > 1;
        ls_text_put(turns->rank[k].path, sizeof turns->rank[k].path, "%s/rank%d.jsonl",
                    job[k / ranks].directory, k % ranks);
    }
    LS_TRY(ls_job_run_together(job, turns->sides, &tick, &turns->outcome));
    for (int side = 0; side < turns->sides && !turns->over; side++) {
        LS_THEN(turns->status, read_side(turns, side));
    }
    if (turns->over) {
        turns->outcome.state = LS_OUTCOME_DONE;
    }
    for (int k = 0; k < ranks && turns->sides == 1; k++) {
        const ls_turns_rank *rank = &turns->rank[k];
        if (turns->status == LS_OK && turns->outcome.state == LS_OUTCOME_DONE &&
            rank->events != steps) {
            return ls_log_fail(LS_ERR_CHECK, "%s: %d step events instead of %d", rank->path,
                               rank->events, steps);
        }
    }
    return turns->status;
}

void ls_turns_free(ls_turns *turns)
{
    for (int k = 0; turns->rank != NULL && k < turns->sides * turns->what->ranks; k++) {
        if (turns->rank[k].open) {
            ls_lines_close(&turns->rank[k].lines);
        }
        free(turns->rank[k].ms);
    }
    free(turns->rank);
    ls_outcome_free(&turns->outcome);
}

ls_status ls_turns_step_ms(const ls_turns *turns, int side, double fraction, double *ms)
{
    int ranks = turns->what->ranks;
    *ms = 0;
    for (int k = side * ranks; k < (side + 1) * ranks; k++) {
        const ls_turns_rank *rank = &turns->rank[k];
        bool timed = rank->count > 0;
        for (int i = 0; i < rank->count; i++) {
            timed = timed && rank->ms[i] > 0;
        }
        if (!timed) {
            return ls_log_fail(LS_ERR_CHECK, "%s: %s", rank->path,
                               rank->count > 0 ? "a timed step has no \"ms\" above 0"
                                               : "no step could be timed");
        }
        *ms = fmax(*ms, ls_stats_percentile(rank->ms, rank->count, fraction));
    }
    return LS_OK;
}
