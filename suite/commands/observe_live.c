/* `lockstep observe` while the job runs: from time to time a process of its own judges what all
 * ranks have closed, when nothing else wants the processor, in at most 2 % of the job's time; a law
 * that fails is said at once. */
#include "observe_parts.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/file.h"
#include "kernels/core/path.h"
#include "kernels/core/usage.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "reference/files/events.h"
#include "suite/run/command_line.h"

/* ---- --tensorboard DIR ---------------------------------------------------------------------- */

/* Scalars of each step, a folder of DIR for each rank, written from the ranks' events while these
 * grow. */

static const double pause_s = 1; /* between two looks */

typedef struct board_rank {
    ls_tensorboard *board;
    char path[PATH_MAX]; /* of its events; "": not found yet */
    ls_lines events;
} board_rank;

struct ls_observe_board {
    char to[PATH_MAX];     /* DIR */
    const char *directory; /* the run's folder */
    int64_t looked_ns;
    bool broken;
    board_rank *rank[LS_HOSTS_RANKS_MAX]; /* NULL from the first on that was not seen */
};

static ls_status open_board(ls_observe_board *board, int k)
{
    board->rank[k] = ls_list_make(1, sizeof *board->rank[k]);
    LS_TEXT(path, PATH_MAX + 20, "%s/rank%d", board->to, k);
    return ls_tensorboard_open(path, &board->rank[k]->board);
}

ls_status ls_observe_board_begin(const char *to, ls_observe_board **out)
{
    ls_observe_board *board = ls_list_make(1, sizeof *board);
    ls_command_absolute(to, board->to, sizeof board->to);
    ls_status status = ls_path_make_chosen(board->to, "; --tensorboard names another folder");
    LS_THEN(status, open_board(board, 0));
    if (status != LS_OK) {
        (void)ls_observe_board_end(board);
        return status;
    }
    *out = board;
    return LS_OK;
}

void ls_observe_board_watch(ls_observe_board *board, const char *directory)
{
    if (board != NULL) {
        board->directory = directory;
    }
}

/* The path of a rank's events; false: there are none yet. */
static bool find_events(const ls_observe_board *board, int k, char path[PATH_MAX])
{
    bool found = false;
    for (int i = 0; i < 2 && !found; i++) {
        ls_text_put(path, PATH_MAX, "%s/jobs/%s/rank%d.jsonl", board->directory,
                    ls_observe_run_jobs[i], k);
        found = access(path, R_OK) == 0;
    }
    return found;
}

static ls_status write_step(ls_tensorboard *board, const cJSON *event)
{
    const cJSON *ms = ls_json_get(event, "ms");
    const struct {
        const char *tag;
        double value;
    } all[] = {{"loss", ls_json_number(event, "loss", NAN)},
               {"loss_scale", ls_json_number(event, "loss_scale", NAN)},
               {"lr", ls_json_number(event, "lr", NAN)},
               {"step_ms", ls_json_number(ms, "total", NAN)}};
    enum { ALL = sizeof all / sizeof *all };
    ls_tensorboard_scalar scalar[ALL];
    int count = 0;
    for (int i = 0; i < ALL; i++) {
        if (!isnan(all[i].value)) {
            scalar[count++] = (ls_tensorboard_scalar){all[i].tag, (float)all[i].value};
        }
    }
    return count == 0
               ? LS_OK
               : ls_tensorboard_write(board, ls_json_integer(event, "step", 0), scalar, count);
}

/* The whole lines that have come since the last look. */
static ls_status read_lines(board_rank *rank)
{
    static const char head[] = "{\"event\":\"step\",";
    char *line = NULL;
    ls_status status = ls_lines_next_whole(&rank->events, &line);
    while (status == LS_OK && line != NULL) {
        if (strncmp(line, head, sizeof head - 1) == 0) {
            cJSON *event = ls_json_parse(line, NULL);
            status = write_step(rank->board, event);
            cJSON_Delete(event);
        }
        LS_THEN(status, ls_lines_next_whole(&rank->events, &line));
    }
    return status;
}

/* False: there are no events of that rank, nor of those behind it. */
static bool look_at(ls_observe_board *board, int k, ls_status *status)
{
    char path[PATH_MAX];
    bool known = board->rank[k] != NULL && board->rank[k]->path[0] != '\0';
    if (!known && !find_events(board, k, path)) {
        return false;
    }
    *status = board->rank[k] == NULL ? open_board(board, k) : LS_OK;
    board_rank *rank = board->rank[k];
    if (*status == LS_OK && !known) {
        ls_text_put(rank->path, sizeof rank->path, "%s", path);
        *status = ls_lines_open(rank->path, LS_LINES_LINE_BYTES, &rank->events);
    }
    LS_THEN(*status, read_lines(rank));
    return *status == LS_OK;
}

static void look(ls_observe_board *board)
{
    ls_status status = LS_OK;
    board->looked_ns = ls_clock_ns();
    for (int k = 0; k < LS_HOSTS_RANKS_MAX && look_at(board, k, &status); k++) {
    }
    if (status != LS_OK) {
        board->broken = true;
        ls_log_note("--tensorboard %s ends here; the job goes on", board->to);
    }
}

/* Writes what has come, at most once a second. */
static void look_again(ls_observe_board *board)
{
    if (board != NULL && !board->broken &&
        ls_clock_ms_between(board->looked_ns, ls_clock_ns()) * 1e-3 > pause_s) {
        look(board);
    }
}

bool ls_observe_board_end(ls_observe_board *board)
{
    if (board == NULL) {
        return true;
    }
    if (board->directory != NULL && !board->broken) {
        look(board);
    }
    bool whole = !board->broken;
    for (int k = 0; k < LS_HOSTS_RANKS_MAX && board->rank[k] != NULL; k++) {
        ls_tensorboard_close(board->rank[k]->board);
        if (board->rank[k]->path[0] != '\0') {
            ls_lines_close(&board->rank[k]->events);
        }
        free(board->rank[k]);
    }
    free(board);
    return whole;
}

/* ---- laws that fail while the job runs ------------------------------------------------------- */

static const double share = 0.01;   /* of the job's time */
static const double first_s = 0.05; /* what the first judgement is taken to need */
static const double growth = 1.5;   /* what the next may need, next to the last */
static const double again_s = 30;   /* judged again after that, where the steps are not doubled */
static const double notify_s = 20;  /* for the commands of --notify, when the job has ended */
enum { FIRST_STEP = 3, SECOND_STEP = 20 };

/* {"seconds", "step", "verdicts": as in verdicts.jsonl}; the process ends, and frees nothing. */
static ls_status judge_now(void *context, FILE *to)
{
    const ls_observe_live *live = context;
    ls_observe_gate gate = {false, false};
    ls_observe_trace *trace = NULL;
    ls_observe_result result;
    ls_observe_headline headline;
    int64_t step = 0;
    ls_proc_isolated_recede(live->limit_s);
    LS_TEXT(directory, PATH_MAX, "%s/jobs/observed", live->directory);
    LS_TEXT(cut, PATH_MAX, "%s/jobs/.live", live->directory);
    ls_path_remove_tree(cut);
    cJSON *answer = cJSON_CreateObject();
    LS_MEMORY(answer != NULL);
    LS_TRY(ls_live_cut(directory, cut, INT32_MAX, &step));
    if (step >= FIRST_STEP) {
        LS_TRY(ls_observe_read(cut, &trace));
        ls_live_judge(trace, &result);
        ls_observe_verdicts_decide(trace, &result, gate, &headline);
        cJSON_AddItemToObject(answer, "verdicts",
                              ls_observe_verdicts_make(&headline, &result, "observed", gate));
    }
    cJSON_AddNumberToObject(answer, "step", (double)step);
    cJSON_AddNumberToObject(answer, "seconds", (double)clock() / CLOCKS_PER_SEC);
    char *text = cJSON_PrintUnformatted(answer);
    LS_MEMORY(text != NULL);
    fputs(text, to);
    return LS_OK;
}

/* Of rank 0, the open one among them; where its number is not known, enough. */
static int64_t steps_now(const ls_observe_live *live)
{
    LS_TEXT(path, PATH_MAX, "%s/jobs/observed/open.rank0", live->directory);
    char *text = access(path, R_OK) == 0 ? ls_text_read(path) : NULL;
    int64_t step = text != NULL ? atoll(text) : live->next + 1;
    free(text);
    return step;
}

/* Starts a judgement where it is time for one. */
static void begin(ls_observe_live *live)
{
    int64_t now_ns = ls_clock_ns();
    double left_s = share * ls_clock_ms_between(live->begun_ns, now_ns) * 1e-3 - live->spent_s;
    if (left_s < (live->judged > 0 ? live->last_s * growth : first_s)) {
        return;
    }
    int64_t step = steps_now(live);
    bool again = live->judged > 0 && step > live->judged + 1 &&
                 ls_clock_ms_between(live->done_ns, now_ns) * 1e-3 > again_s;
    if (step > live->next || again) {
        live->limit_s = (int)ceil(left_s) + 1;
        live->running = ls_proc_isolated_start(judge_now, live, &live->process) == LS_OK;
    }
}

/* The command's standard input is the verdict. */
static void notify(ls_observe_live *live, const cJSON *verdict)
{
    char *argv[] = {(char *)"sh", (char *)"-c", (char *)live->notify, NULL};
    char *text = cJSON_PrintUnformatted(verdict);
    int ends[2];
    LS_MEMORY(text != NULL);
    if (live->notified < LS_OBSERVE_LIVE_NOTIFIED && pipe2(ends, O_CLOEXEC) == 0) {
        ls_proc_spec spec = {.argv = argv, .environment = environ, .input = ends[0]};
        /* less than the pipe holds: no reader is waited for */
        ls_status status = ls_file_write(ends[1], "a pipe", text, strlen(text));
        LS_THEN(status, ls_proc_start(&spec, &live->command[live->notified]));
        live->notified += status == LS_OK;
        close(ends[0]);
        close(ends[1]);
    }
    free(text);
}

/* Whether a law has failed that had not before, and follows from none that fails. */
static bool say(ls_observe_live *live, const cJSON *verdicts)
{
    bool any = false;
    const cJSON *verdict;
    ls_json_each(verdict, verdicts) {
        const char *id = ls_json_string(verdict, "case", "");
        bool law = strcmp(ls_json_string(verdict, "tier", ""), "law") == 0;
        if (law && ls_verdict_code_in(verdict) == LS_FAIL && !cJSON_HasObjectItem(live->said, id)) {
            cJSON_AddTrueToObject(live->said, id);
            if (cJSON_HasObjectItem(verdict, "follows")) {
                continue; /* it is named with its root */
            }
            ls_observe_report_live(verdict, verdicts, live->judged);
            if (live->notify != NULL) {
                notify(live, verdict);
            }
            any = true;
        }
    }
    return any;
}

static bool take_answer(ls_observe_live *live)
{
    char why[200];
    char *text = ls_proc_isolated_answer(&live->process, ls_clock_after(1), why, sizeof why);
    cJSON *answer = text == NULL ? NULL : ls_json_parse(text, NULL);
    live->running = false;
    live->done_ns = ls_clock_ns();
    live->last_s = ls_json_number(answer, "seconds", live->limit_s);
    live->spent_s += live->last_s;
    live->judged = ls_json_integer(answer, "step", live->next);
    live->judged = live->judged < 1 ? 1 : live->judged;
    while (live->next <= live->judged) {
        live->next = live->next < SECOND_STEP ? SECOND_STEP : 2 * live->next;
    }
    bool any = say(live, ls_json_get(answer, "verdicts"));
    cJSON_Delete(answer);
    free(text);
    return any;
}

ls_observe_live ls_observe_live_begin(const char *directory, bool stop, const char *command)
{
    ls_observe_live live = {.directory = directory,
                            .notify = command,
                            .stop = stop,
                            .begun_ns = ls_clock_ns(),
                            .next = FIRST_STEP,
                            .said = cJSON_CreateObject()};
    LS_MEMORY(live.said != NULL);
    return live;
}

bool ls_observe_live_watch(void *context)
{
    ls_observe_live *live = context;
    look_again(live->board);
    if (live->running) {
        return ls_proc_isolated_ready(&live->process) && take_answer(live) && live->stop;
    }
    begin(live);
    return false;
}

void ls_observe_live_end(void *context)
{
    ls_observe_live *live = context;
    if (live->running) {
        ls_proc_kill_child(live->process.pid);
        close(live->process.input);
    }
    (void)ls_proc_wait_all(live->command, live->notified, ls_clock_after(notify_s));
    ls_proc_end_all(live->command, live->notified, 1);
    LS_TEXT(cut, PATH_MAX, "%s/jobs/.live", live->directory);
    ls_path_remove_tree(cut);
    cJSON_Delete(live->said);
}
