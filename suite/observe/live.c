/* Judging a job that still runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/hosts/hosts.h"
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "observe.h"
#include "suite/observe/trace/trace.h"

/* ---- the part of it that is whole ------------------------------------------------------------ */

int64_t ls_observe_step_of(const char *line)
{
    static const char head[] = "{\"event\":\"step\",\"step\":";
    bool is = strncmp(line, head, sizeof head - 1) == 0;
    return is ? strtoll(line + sizeof head - 1, NULL, 10) : 0;
}

/* The last step that a rank has closed, 0: none; where it is the first rank, *world as it says. */
static int64_t last_step(const char *path, int *world)
{
    ls_lines lines;
    char *line = NULL;
    size_t bytes;
    bool whole = true;
    int64_t last = 0;
    ls_status status = ls_lines_open(path, LS_LINES_LINE_BYTES, &lines);
    LS_THEN(status, ls_lines_next(&lines, &line, &bytes, &whole));
    if (status == LS_OK && line != NULL && whole && *world == 0) {
        cJSON *start = ls_json_parse(line, NULL);
        *world = ls_json_int(start, "world", 0);
        cJSON_Delete(start);
    }
    while (status == LS_OK && line != NULL && whole) {
        int64_t step = ls_observe_step_of(line);
        last = step > 0 ? step : last;
        status = ls_lines_next(&lines, &line, &bytes, &whole);
    }
    ls_lines_close(&lines);
    return status == LS_OK ? last : 0;
}

/* The lines up to that step, and an end. */
static ls_status copy_steps(const char *path, const char *copy, int64_t last)
{
    ls_lines lines;
    char *line = NULL;
    size_t bytes;
    bool whole = true;
    int64_t step = 0;
    FILE *to = ls_file_create(copy);
    LS_TRY_FILE(to);
    ls_status status = ls_lines_open(path, LS_LINES_LINE_BYTES, &lines);
    while (status == LS_OK && step < last) {
        status = ls_lines_next(&lines, &line, &bytes, &whole);
        if (status == LS_OK && (line == NULL || !whole)) {
            status = LS_ERR_INFRA;
        } else if (status == LS_OK) {
            step = ls_observe_step_of(line);
            fprintf(to, "%s\n", line);
        }
    }
    ls_lines_close(&lines);
    fprintf(to, "{\"event\":\"end\",\"steps\":%lld,\"why\":\"steps\"}\n", (long long)last);
    ls_status closed = ls_file_close(to, copy);
    return status != LS_OK ? status : closed;
}

ls_status ls_observe_cut(const char *directory, const char *to, int64_t most, int64_t *step)
{
    int world = 0;
    *step = most;
    for (int k = 0; k == 0 || k < world; k++) {
        LS_TEXT(path, PATH_MAX, "%s/rank%d.jsonl", directory, k);
        int64_t last = last_step(path, &world);
        *step = last < *step ? last : *step;
        if (*step == 0 || world > LS_HOSTS_RANKS_MAX) {
            *step = 0;
            return LS_OK;
        }
    }
    LS_TRY(ls_path_make_folder(to));
    for (int k = 0; k < world; k++) {
        LS_TEXT(path, PATH_MAX, "%s/rank%d.jsonl", directory, k);
        LS_TEXT(copy, PATH_MAX, "%s/rank%d.jsonl", to, k);
        LS_TRY(copy_steps(path, copy, *step));
    }
    LS_TEXT(samples, PATH_MAX, "%s/samples", directory);
    LS_TEXT(link, PATH_MAX, "%s/samples", to);
    if (symlink(samples, link) != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot make the link %s", link);
    }
    return LS_OK;
}

/* ---- its laws -------------------------------------------------------------------------------- */

typedef enum kind { ALWAYS, WRAPPED, STEPS } kind;

#define LS_OBSERVE_LIVE(id, kind) {id, kind},
static const struct {
    const char *id;
    kind kind;
} live[] = {
#include "suite/observe/rules/live.def"
};
#undef LS_OBSERVE_LIVE

static bool joins(const ls_observe_trace *trace)
{
    bool any = false;
    for (int k = 0; k < trace->world; k++) {
        any = any || ls_event_count(ls_trace_events(&trace->rank[k], join)) > 0;
    }
    return any;
}

void ls_observe_judge_live(const ls_observe_trace *trace, ls_observe_result *out)
{
    enum { LIVE = sizeof live / sizeof *live };
    int count;
    const ls_observe_rule *rule = ls_observe_rules(&count);
    bool wrapped = trace->world == 1 || ls_trace_is_ddp(trace), steps = wrapped && !joins(trace);
    *out = (ls_observe_result){0, ls_list_make(LIVE, sizeof *out->finding)};
    for (int l = 0; l < LIVE; l++) {
        int i = 0;
        while (i < count && strcmp(rule[i].id, live[l].id) != 0) {
            i++;
        }
        LS_ASSERT(i < count);
        if (live[l].kind == ALWAYS || (live[l].kind == WRAPPED ? wrapped : steps)) {
            ls_observe_judge_one(trace, &rule[i], &out->finding[out->count++]);
        }
    }
}
