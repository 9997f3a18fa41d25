#include "scaler_rebuilt.h"

#include <string.h>

#include "calls.h"

static const cJSON *scaler_event(const ls_observe_rank *rank, int scaler)
{
    const cJSON *event;
    cJSON_ArrayForEach(event, rank->scaler)
    {
        if (ls_json_int(event, "scaler", -1) == scaler) {
            return event;
        }
    }
    return NULL;
}

static bool was_loaded(const ls_observe_rank *rank, int scaler)
{
    const cJSON *restore;
    cJSON_ArrayForEach(restore, rank->restore)
    {
        if (strcmp(ls_json_string(restore, "what", ""), "scaler") == 0 &&
            ls_json_int(restore, "which", -1) == scaler) {
            return true;
        }
    }
    return false;
}

/* Whether a later one took over from a scaler: both were built on the same line, the earlier is not
 * used again, and its state went nowhere. */
static bool takes_over(const ls_observe_rank *rank, int before, int now)
{
    const char *at = ls_json_string(scaler_event(rank, now), "at", "");
    return before >= 0 && now > before && at[0] != '\0' && !was_loaded(rank, now) &&
           strcmp(ls_json_string(scaler_event(rank, before), "at", ""), at) == 0;
}

/* Follows the scalers that step each optimizer of a rank; changes: how often a new one took over,
 * -1 where an earlier one came back. Returns the last that took over, -1: none. */
static int follow(const ls_observe_rank *rank, int changes[LS_CALLS_OPTIMIZERS])
{
    int last[LS_CALLS_OPTIMIZERS], scaler = -1;
    memset(last, -1, sizeof last);
    for (int i = 0; i < rank->step_count; i++) {
        for (int c = 0; c < rank->step[i].call_count; c++) {
            const ls_call *call = &rank->step[i].call[c];
            int o = call->optimizer;
            if (call->kind != LS_CALL_SCALER_STEP || o < 0 || o >= LS_CALLS_OPTIMIZERS) {
                continue;
            }
            if (call->scaler != last[o] && last[o] >= 0) {
                bool over = takes_over(rank, last[o], call->scaler);
                changes[o] = over && changes[o] >= 0 ? changes[o] + 1 : -1;
                scaler = changes[o] > 0 ? call->scaler : scaler;
            }
            last[o] = call->scaler;
        }
    }
    return scaler;
}

void ls_scaler_rebuilt_judge(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        int changes[LS_CALLS_OPTIMIZERS] = {0};
        int scaler = follow(rank, changes);
        for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
            if (changes[o] <= 0) {
                continue;
            }
            ls_verdict_fail(&out->verdict,
                            "rank %d: optimizer %d is stepped by %d scalers in turn, each built on "
                            "the same line: the scale begins anew each time",
                            k, o, changes[o] + 1);
            ls_verdict_cause(&out->verdict, "the GradScaler is built inside the loop, or in a "
                                            "function that is called for each epoch");
            ls_finding_blame(out, ls_json_string(scaler_event(rank, scaler), "at", ""),
                             "build one GradScaler before the loop, where the optimizer is built");
        }
    }
}
