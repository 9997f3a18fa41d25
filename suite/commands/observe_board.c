/* `lockstep observe --tensorboard DIR`: scalars of each step, a folder of DIR for each rank,
 * written from the ranks' events while these grow. */
#include "observe_parts.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/hosts/hosts.h"
#include "kernels/core/clock.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "reference/files/events.h"
#include "suite/run/command_line.h"

static const double pause_s = 1; /* between two looks */

struct ls_observe_board {
    char to[PATH_MAX];     /* DIR */
    const char *directory; /* the run's folder */
    int64_t looked_ns;
    bool broken;
    struct {
        ls_tensorboard *board;
        FILE *events;
    } rank[LS_HOSTS_RANKS_MAX];
};

static ls_status open_board(ls_observe_board *board, int rank)
{
    LS_TEXT(path, PATH_MAX + 20, "%s/rank%d", board->to, rank);
    return ls_tensorboard_open(path, &board->rank[rank].board);
}

ls_status ls_observe_board_begin(const char *to, ls_observe_board **out)
{
    ls_observe_board *board = ls_list_make(1, sizeof *board);
    ls_command_absolute(to, board->to, sizeof board->to);
    ls_status status = ls_path_make_chosen(board->to, "; --tensorboard names another folder");
    LS_THEN(status, open_board(board, 0));
    if (status != LS_OK) {
        ls_observe_board_end(board);
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

/* Opens the events of a rank where they are there by now. */
static bool find_events(ls_observe_board *board, int rank)
{
    for (int i = 0; i < 2 && board->rank[rank].events == NULL; i++) {
        LS_TEXT(path, PATH_MAX, "%s/jobs/%s/rank%d.jsonl", board->directory, ls_observe_run_jobs[i],
                rank);
        board->rank[rank].events = fopen(path, "re");
    }
    return board->rank[rank].events != NULL;
}

static ls_status write_step(ls_tensorboard *board, const cJSON *event)
{
    const cJSON *ms = cJSON_GetObjectItemCaseSensitive(event, "ms");
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
static ls_status read_rank(ls_observe_board *board, int rank)
{
    static const char head[] = "{\"event\":\"step\",";
    FILE *events = board->rank[rank].events;
    ls_status status = LS_OK;
    size_t room = 0;
    char *line = NULL;
    long begin = ftell(events);
    while (status == LS_OK && getline(&line, &room, events) > 0 && line[strlen(line) - 1] == '\n') {
        begin = ftell(events);
        if (strncmp(line, head, sizeof head - 1) == 0) {
            cJSON *event = ls_json_parse(line, NULL);
            status = write_step(board->rank[rank].board, event);
            cJSON_Delete(event);
        }
    }
    clearerr(events);
    (void)fseek(events, begin, SEEK_SET); /* before a line that is not whole yet */
    free(line);
    return status;
}

static void look(ls_observe_board *board)
{
    ls_status status = LS_OK;
    board->looked_ns = ls_clock_ns();
    for (int k = 0; status == LS_OK && k < LS_HOSTS_RANKS_MAX && find_events(board, k); k++) {
        status = board->rank[k].board == NULL ? open_board(board, k) : LS_OK;
        LS_THEN(status, read_rank(board, k));
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
    for (int k = 0; k < LS_HOSTS_RANKS_MAX; k++) {
        ls_tensorboard_close(board->rank[k].board);
        if (board->rank[k].events != NULL) {
            fclose(board->rank[k].events);
        }
    }
    free(board);
    return whole;
}
