#include "windows.h"

#include <math.h>
#include <string.h>

#include "calls.h"
#include "pass.h"

enum { MOST = 64 }; /* batches of a window */

/* Backward passes of each step, and what is usual. */
typedef struct windows {
    int steps, usual; /* usual: of most steps */
    int optimizers;
    const ls_call *backward;
} windows;

/* Of what the step takes: gradients that are cleared before it, also by hand, do not count. */
static int size_of(const ls_observe_step *step, windows *w)
{
    int count = 0;
    bool attempted = false;
    for (int c = 0; c < step->call_count; c++) {
        const ls_call *call = &step->call[c];
        bool by_hand = ls_calls_is_training(call) && ls_event_int(call->json, left, -1) == 0;
        attempted = attempted || ls_calls_is_attempt(call);
        if (call->kind == LS_CALL_BACKWARD && !attempted) {
            count += call->times;
            w->backward = call;
        } else if (!attempted && (call->kind == LS_CALL_ZERO_GRAD || by_hand)) {
            count = 0;
        }
        w->optimizers = call->kind == LS_CALL_OPTIMIZER_STEP && call->optimizer > w->optimizers
                            ? call->optimizer
                            : w->optimizers;
    }
    return count;
}

static windows windows_of(const ls_observe_rank *rank)
{
    windows w = {0};
    int seen[MOST + 1] = {0};
    for (int i = 0; i < rank->step_count; i++) {
        int size = size_of(&rank->step[i], &w);
        w.steps++;
        seen[size > MOST ? 0 : size]++;
    }
    for (int n = 1; n <= MOST; n++) {
        w.usual = seen[n] > seen[w.usual] || w.usual == 0 ? n : w.usual;
    }
    w.usual = 2 * seen[w.usual] > w.steps ? w.usual : 0;
    return w;
}

/* A pass that another one follows leaves `rest` batches: those of the first step of the next are as
 * many more. */
void ls_windows_judge(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[0];
    windows w = windows_of(rank);
    int carried = 0, passes = 0, rest = 0;
    const ls_event *data, *before = NULL;
    if (w.usual < 2 || w.optimizers > 0) {
        return;
    }
    ls_event_each(data, ls_trace_events(rank, data)) {
        double first = ls_pass_first_step(data);
        if (!ls_pass_is_trained(data) || isnan(first)) {
            continue;
        }
        if (before != NULL && ls_event_bool(before, whole, false)) {
            int64_t batch = ls_event_int(before, batch, 0);
            int64_t count = ls_event_int(before, count, 0);
            int64_t batches = batch > 0 ? (count + batch - 1) / batch : 0;
            const ls_observe_step *step = ls_trace_step(rank, (int64_t)first);
            windows none = {0};
            int size = step == NULL ? 0 : size_of(step, &none);
            passes++;
            rest = (int)(batches % w.usual);
            carried += rest > 0 && size == w.usual + rest;
        }
        before = data;
    }
    if (carried == 0 || carried < passes) {
        return;
    }
    ls_verdict_fail(&out->verdict,
                    "the first step of each later pass takes %d batches, the others %d: %d of the "
                    "pass before had filled no window",
                    w.usual + rest, w.usual, rest);
    ls_verdict_cause(&out->verdict,
                     "gradients of the last batches of a pass stay and come on top of the next "
                     "pass's first window: its step is %d/%d of the others'",
                     w.usual + rest, w.usual);
    ls_finding_blame(out, w.backward->at,
                     "step with the last batch of a pass, too (and divide by what its window "
                     "holds), or count batches over the passes");
}
