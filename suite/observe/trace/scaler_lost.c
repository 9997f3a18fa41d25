#include "calls.h"

#include <string.h>

#include "job.h"
#include "kernels/core/text.h"

/* ---- a scaler that is built in the loop ----------------------------------------------------- */

static const ls_event *scaler_event(const ls_observe_rank *rank, int scaler)
{
    return ls_job_numbered(ls_trace_events(rank, scaler), LS_INTEGER(scaler), scaler);
}

static bool was_loaded(const ls_observe_rank *rank, int scaler)
{
    const ls_event *restore;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        if (strcmp(ls_event_text(restore, what, ""), "scaler") == 0 &&
            ls_event_int(restore, which, -1) == scaler) {
            return true;
        }
    }
    return false;
}

/* Whether a later one took over from a scaler: both were built on the same line, the earlier is not
 * used again, and its state went nowhere. */
static bool takes_over(const ls_observe_rank *rank, int before, int now)
{
    const char *at = ls_event_text(scaler_event(rank, now), at, "");
    return before >= 0 && now > before && at[0] != '\0' && !was_loaded(rank, now) &&
           strcmp(ls_event_text(scaler_event(rank, before), at, ""), at) == 0;
}

/* Follows the scalers that step each optimizer of a rank; changes: how often a new one took over,
 * -1 where an earlier one came back. Returns the last that took over, -1: none. */
static int follow(const ls_observe_rank *rank, int changes[LS_CALLS_OPTIMIZERS])
{
    int last[LS_CALLS_OPTIMIZERS], scaler = -1;
    memset(last, -1, sizeof last);
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
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
    return scaler;
}

/* Attempts to step by an enabled scaler; 2 where there are more. */
static int attempts_by(const ls_observe_rank *rank, int scaler)
{
    int attempts = 0;
    ls_trace_each_call_of(walk, rank) {
        bool own = walk.call->kind == LS_CALL_SCALER_STEP && walk.call->scaler == scaler;
        attempts += own ? walk.call->times : 0;
    }
    return ls_event_bool(scaler_event(rank, scaler), enabled, false) && attempts < 2 ? attempts : 2;
}

enum { LAST = 32 }; /* scalers, the last ones, whose attempts are counted */

static const ls_tol each_step =
    LS_TOL(8, "scalers: of so many in turn, each for one step, none is for a part of the training");

/* Whether each of the scalers that took over from one another stepped once: their scale is the
 * first one for ever, and no growth or backoff has any effect. */
static bool is_each_step(const ls_observe_rank *rank, int last, int changes)
{
    int looked = changes < LAST ? changes : LAST;
    for (int scaler = last - looked; scaler <= last; scaler++) {
        if (changes < each_step.value || attempts_by(rank, scaler) > 1) {
            return false;
        }
    }
    return true;
}

bool ls_scaler_lost_scale(const ls_observe_trace *trace, ls_observe_finding *out)
{
    bool sure = false;
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        int changes[LS_CALLS_OPTIMIZERS] = {0};
        int scaler = follow(rank, changes);
        for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
            if (changes[o] <= 0) {
                continue;
            }
            ls_finding_set(out, LS_FAIL, ls_event_text(scaler_event(rank, scaler), at, ""),
                           "the GradScaler is built inside the loop, or in a function that is "
                           "called for each epoch",
                           "build one GradScaler before the loop, where the optimizer is built",
                           "rank %d: optimizer %d is stepped by %d scalers in turn, each built on "
                           "the same line: the scale begins anew each time",
                           k, o, changes[o] + 1);
            sure = is_each_step(rank, scaler, changes[o]);
        }
    }
    return sure;
}

/* ---- steps that are skipped ------------------------------------------------------------------ */

/* Attempts of a scaler to step. */
typedef struct skips {
    int attempts, taken;
    int after, lost; /* attempts after the first step that was taken; of them, those skipped */
    const ls_call *last;
} skips;

static skips count(const ls_observe_rank *rank, int scaler)
{
    skips s = {0};
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
        if (call->kind == LS_CALL_SCALER_STEP && call->scaler == scaler) {
            bool took = ls_calls_flag(call, stepped) != 0;
            s.attempts += call->times;
            s.after += s.taken > 0 ? call->times : 0;
            s.lost += s.taken > 0 && !took ? call->times : 0;
            s.taken += took ? call->times : 0;
            s.last = call;
        }
    }
    return s;
}

static const ls_tol few_steps =
    LS_TOL(12, "steps after the first that was taken: of fewer half may be lost by chance");
static const ls_tol never_steps =
    LS_TOL(48, "steps: a scale of 2^24 comes to one of 2^-24 by as many halvings");
static const ls_tol lost_share =
    LS_TOL(0.5, "of the steps: with 2,000 clean steps between growths next to none is lost");
static const ls_tol short_share =
    LS_TOL(1.0 / 3, "of the steps: one in three is what growth after two clean steps may cost");

/* A scale looks for its place by overflows at first. Later one step in growth_interval + 1 may be
 * lost to a scale that has grown too far: with 2,000 clean steps next to none. */
void ls_scaler_lost_steps(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[0];
    for (int scaler = 0; scaler < LS_CALLS_SCALERS; scaler++) {
        skips s = count(rank, scaler);
        const ls_event *event = scaler_event(rank, scaler);
        int interval = ls_event_int(event, growth_interval, 2000);
        bool never = s.taken == 0 && s.attempts >= never_steps.value;
        double share = interval <= 2 ? short_share.value : lost_share.value;
        if (s.last == NULL ||
            (!never && (s.after < few_steps.value || s.lost <= share * s.after))) {
            continue;
        }
        bool grows = interval <= 2 && !never;
        LS_TEXT(growth, 120,
                "growth_interval is %d: the scale grows until it overflows again, at once each "
                "time",
                interval);
        ls_finding_set(out, LS_FAIL, grows ? ls_event_text(event, at, "") : s.last->at,
                       grows ? growth
                             : "gradients overflow at any scale (a loss that is NaN), or the scale "
                               "is not lowered enough (backoff_factor)",
                       grows ? "leave growth_interval at its default, 2000"
                             : "look for the NaN: print the loss, and the gradients' norm",
                       "%d of %d steps are skipped as overflows, %d of the last %d",
                       s.attempts - s.taken, s.attempts, s.lost, s.after);
    }
}
