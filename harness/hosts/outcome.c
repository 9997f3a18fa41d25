#include "outcome.h"

#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"

static const char *const state_names[] = {
    [LS_OUTCOME_DONE] = "done",       [LS_OUTCOME_FAILED] = "failed",
    [LS_OUTCOME_KILLED] = "killed",   [LS_OUTCOME_TIMED_OUT] = "timed out",
    [LS_OUTCOME_STOPPED] = "stopped", [LS_OUTCOME_NOT_STARTED] = "not started",
};

void ls_outcome_free(ls_outcome *outcome)
{
    free(outcome->rank);
    outcome->rank = NULL;
    outcome->rank_count = 0;
}

enum { STATES = sizeof state_names / sizeof *state_names };

cJSON *ls_outcome_json(const ls_outcome *outcome, int first)
{
    cJSON *object = cJSON_CreateObject();
    LS_MEMORY(object != NULL);
    cJSON_AddStringToObject(object, "state", state_names[outcome->state]);
    cJSON_AddNumberToObject(object, "first_rank",
                            outcome->first_rank < 0 ? -1 : first + outcome->first_rank);
    cJSON_AddNumberToObject(object, "code", outcome->code);
    cJSON_AddNumberToObject(object, "signal", outcome->signal);
    cJSON_AddNumberToObject(object, "started_ns", (double)outcome->started_ns); /* ls_clock_ns */
    cJSON_AddNumberToObject(object, "seconds",
                            (double)(outcome->ended_ns - outcome->started_ns) * 1e-9);
    if (outcome->memory_kills > 0) {
        cJSON_AddNumberToObject(object, "memory_kills", (double)outcome->memory_kills);
    }
    if (outcome->why[0] != '\0') {
        cJSON_AddStringToObject(object, "why", outcome->why);
    }
    cJSON *ranks = cJSON_AddArrayToObject(object, "ranks");
    for (int i = 0; i < outcome->rank_count; i++) {
        const ls_proc *rank = &outcome->rank[i];
        cJSON *one = ls_json_append_object(ranks);
        cJSON_AddNumberToObject(one, "rank", first + i);
        cJSON_AddNumberToObject(one, "code", rank->code);
        cJSON_AddNumberToObject(one, "signal", rank->signal);
        cJSON_AddNumberToObject(one, "seconds", (double)(rank->ended_ns - rank->started_ns) * 1e-9);
        cJSON_AddNumberToObject(one, "user_s", rank->user_s);
        cJSON_AddNumberToObject(one, "system_s", rank->system_s);
        cJSON_AddNumberToObject(one, "rss_bytes_max", (double)rank->rss_bytes_max);
    }
    return object;
}

void ls_outcome_add_up(ls_outcome *outcome)
{
    outcome->user_s = outcome->system_s = 0;
    outcome->rss_bytes_max = 0;
    for (int i = 0; i < outcome->rank_count; i++) {
        const ls_proc *rank = &outcome->rank[i];
        outcome->user_s += rank->user_s;
        outcome->system_s += rank->system_s;
        if (rank->rss_bytes_max > outcome->rss_bytes_max) {
            outcome->rss_bytes_max = rank->rss_bytes_max;
        }
    }
}

static int64_t nanoseconds(const cJSON *object)
{
    double seconds = ls_json_number(object, "seconds", 0);
    return seconds >= 0 && seconds < 1e9 ? (int64_t)(seconds * 1e9) : 0;
}

bool ls_outcome_read(const cJSON *object, int first, int ranks, ls_outcome *out)
{
    const cJSON *list = ls_json_get(object, "ranks");
    const char *name = ls_json_string(object, "state", "");
    int state = 0;
    while (state < STATES && strcmp(name, state_names[state]) != 0) {
        state++;
    }
    int64_t failed = ls_json_integer(object, "first_rank", -1);
    if (state == STATES || cJSON_GetArraySize(list) != ranks ||
        (failed >= 0 && (failed < first || failed >= first + ranks))) {
        return false;
    }
    *out = (ls_outcome){.state = (ls_outcome_state)state,
                        .first_rank = failed < 0 ? -1 : (int)failed - first,
                        .code = ls_json_int(object, "code", 0),
                        .signal = ls_json_int(object, "signal", 0),
                        .memory_kills = ls_json_int(object, "memory_kills", 0),
                        .ended_ns = nanoseconds(object),
                        .rank_count = ranks};
    ls_text_put(out->why, sizeof out->why, "%s", ls_json_string(object, "why", ""));
    out->rank = ls_list_make((size_t)ranks, sizeof *out->rank);
    int index = 0;
    const cJSON *one;
    ls_json_each(one, list) {
        out->rank[index++] = (ls_proc){.ended = true,
                                       .code = ls_json_int(one, "code", 0),
                                       .signal = ls_json_int(one, "signal", 0),
                                       .ended_ns = nanoseconds(one),
                                       .user_s = ls_json_number(one, "user_s", 0),
                                       .system_s = ls_json_number(one, "system_s", 0),
                                       .rss_bytes_max = ls_json_integer(one, "rss_bytes_max", 0)};
    }
    ls_outcome_add_up(out);
    return true;
}
