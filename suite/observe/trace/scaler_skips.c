#include "scaler_skips.h"

#include "calls.h"

/* Attempts of a scaler to step. */
typedef struct skips {
    int attempts, taken;
    int after, lost; /* attempts after the first step that was taken; of them, those skipped */
    const ls_call *last;
} skips;

static skips count(const ls_observe_rank *rank, int scaler)
{
    skips s = {0};
    for (int i = 0; i < rank->step_count; i++) {
        for (int c = 0; c < rank->step[i].call_count; c++) {
            const ls_call *call = &rank->step[i].call[c];
            if (call->kind == LS_CALL_SCALER_STEP && call->scaler == scaler) {
                bool took = ls_calls_flag(call, "stepped") != 0;
                s.attempts += call->times;
                s.after += s.taken > 0 ? call->times : 0;
                s.lost += s.taken > 0 && !took ? call->times : 0;
                s.taken += took ? call->times : 0;
                s.last = call;
            }
        }
    }
    return s;
}

static const cJSON *event_of(const ls_observe_rank *rank, int scaler)
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
void ls_scaler_skips_judge(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[0];
    for (int scaler = 0; scaler < LS_CALLS_SCALERS; scaler++) {
        skips s = count(rank, scaler);
        const cJSON *event = event_of(rank, scaler);
        int interval = ls_json_int(event, "growth_interval", 2000);
        bool never = s.taken == 0 && s.attempts >= never_steps.value;
        double share = interval <= 2 ? short_share.value : lost_share.value;
        if (s.last == NULL ||
            (!never && (s.after < few_steps.value || s.lost <= share * s.after))) {
            continue;
        }
        ls_verdict_fail(&out->verdict, "%d of %d steps are skipped as overflows, %d of the last %d",
                        s.attempts - s.taken, s.attempts, s.lost, s.after);
        if (interval <= 2 && !never) {
            ls_verdict_cause(&out->verdict,
                             "growth_interval is %d: the scale grows until it overflows again, at "
                             "once each time",
                             interval);
        } else {
            ls_verdict_cause(&out->verdict, "gradients overflow at any scale (a loss that is NaN), "
                                            "or the scale is not lowered enough "
                                            "(backoff_factor)");
        }
        ls_finding_blame(
            out, interval <= 2 && !never ? ls_json_string(event, "at", "") : s.last->at,
            interval <= 2 && !never ? "leave growth_interval at its default, 2000"
                                    : "look for the NaN: print the loss, and the gradients' norm");
    }
}
