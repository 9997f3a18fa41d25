/* Judging a job that still runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/hosts/hosts.h"
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "observe.h"
#include "suite/observe/trace/by_hand.h"
#include "suite/observe/trace/trace.h"

/* The number of the step that a line closes; 0: another event. */
static int64_t step_of(const char *line)
{
    static const char head[] = "{\"event\":\"step\",\"step\":";
    return strncmp(line, head, sizeof head - 1) == 0 ? atoll(line + sizeof head - 1) : 0;
}

/* Reads the whole lines of a rank up to step `most`; *last: the last step among them, 0: none. Of
 * the first rank (*world 0) takes the world that it names. `to`: for a copy, or NULL. */
static ls_status scan(const char *path, int64_t most, FILE *to, int64_t *last, int *world)
{
    ls_lines lines;
    char *line = NULL;
    size_t bytes;
    bool whole = true;
    *last = 0;
    ls_status status = ls_lines_open(path, LS_LINES_LINE_BYTES, &lines);
    LS_THEN(status, ls_lines_next(&lines, &line, &bytes, &whole));
    while (status == LS_OK && line != NULL && whole) {
        if (*world == 0) {
            cJSON *start = ls_json_parse(line, NULL);
            *world = ls_json_int(start, "world", 1);
            cJSON_Delete(start);
        }
        if (to != NULL) {
            fprintf(to, "%s\n", line);
        }
        int64_t step = step_of(line);
        *last = step > 0 ? step : *last;
        if (*last >= most) {
            break;
        }
        status = ls_lines_next(&lines, &line, &bytes, &whole);
    }
    ls_lines_close(&lines);
    return status;
}

static ls_status copy_steps(const char *path, const char *copy, int64_t step, int world)
{
    int64_t last;
    FILE *to = ls_file_create(copy);
    LS_TRY_FILE(to);
    ls_status status = scan(path, step, to, &last, &world);
    fprintf(to, "{\"event\":\"end\",\"steps\":%lld,\"why\":\"steps\"}\n", (long long)step);
    ls_status closed = ls_file_close(to, copy);
    return status != LS_OK ? status : closed;
}

ls_status ls_live_cut(const char *directory, const char *to, int64_t most, int64_t *step)
{
    int world = 0;
    *step = most;
    for (int k = 0; k == 0 || k < world; k++) {
        LS_TEXT(path, PATH_MAX, "%s/rank%d.jsonl", directory, k);
        int64_t last = 0;
        ls_status status = scan(path, most, NULL, &last, &world);
        *step = last < *step ? last : *step;
        if (status != LS_OK || *step == 0 || world > LS_HOSTS_RANKS_MAX) {
            *step = 0;
            return LS_OK;
        }
    }
    LS_TRY(ls_path_make_folder(to));
    for (int k = 0; k < world; k++) {
        LS_TEXT(path, PATH_MAX, "%s/rank%d.jsonl", directory, k);
        LS_TEXT(copy, PATH_MAX, "%s/rank%d.jsonl", to, k);
        LS_TRY(copy_steps(path, copy, *step, world));
    }
    LS_TEXT(samples, PATH_MAX, "%s/samples", directory);
    LS_TEXT(link, PATH_MAX, "%s/samples", to);
    return symlink(samples, link) == 0 ? LS_OK : LS_ERR_INFRA;
}

typedef enum kind { ALWAYS, WRAPPED, STEPS } kind;

#define LS_OBSERVE_LIVE(id, kind) {id, kind},
static const struct {
    const char *id;
    kind kind;
} live[] = {
#include "suite/observe/rules/live.def"
};
#undef LS_OBSERVE_LIVE

static const ls_tol averaging =
    LS_TOL(64, "steps: who averages parameters in place of gradients mostly does so more often");

/* Of several ranks: whether what their steps make different may yet be seen to be meant: parameters
 * that are averaged later, members of an ensemble that come behind a wrapped model. */
static bool may_be_meant(const ls_observe_trace *trace)
{
    int kept = ls_by_hand_keeps_gradients(trace);
    return (kept > 0 && kept <= averaging.value) || ls_job_goes_on_unwrapped(trace) ||
           ls_event_count(ls_trace_events(&trace->rank[0], join)) > 0;
}

void ls_live_judge(const ls_observe_trace *trace, ls_observe_result *out)
{
    enum { LIVE = sizeof live / sizeof *live };
    int count;
    const ls_observe_rule *rule = ls_observe_rules(&count);
    bool wrapped = trace->world == 1 || ls_trace_is_ddp(trace),
         steps = wrapped && !may_be_meant(trace);
    *out = (ls_observe_result){0, ls_list_make(LIVE, sizeof *out->finding)};
    for (int l = 0; l < LIVE; l++) {
        int i = 0;
        for (; strcmp(rule[i].id, live[l].id) != 0; i++) {
            LS_ASSERT(i + 1 < count);
        }
        if (live[l].kind == ALWAYS || (live[l].kind == WRAPPED ? wrapped : steps)) {
            ls_observe_judge_one(trace, &rule[i], &out->finding[out->count++]);
        }
    }
}
