/* `lockstep observe --tensorboard DIR`: scalars of each step, a folder of DIR for each rank,
 * written from the ranks' events while these grow. */
#include "observe_parts.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "reference/files/events.h"
#include "suite/run/command_line.h"

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

void ls_observe_board_look(ls_observe_board *board)
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
