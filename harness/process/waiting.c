#include "waiting.h"

#include <math.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"

static const int64_t LOOK_NS = INT64_C(2000000000);

ls_waiting ls_waiting_begin(ls_waiting_probe *const *probe, void *context, double limit_s)
{
    return (ls_waiting){
        .probe = probe, .context = context, .limit_s = limit_s, .first_s = 10, .again_s = 60};
}

/* Writes the cause; returns since when, < 0: there is none. */
static double find_cause(ls_waiting *waiting)
{
    for (int i = 0; waiting->probe[i] != NULL; i++) {
        double since_s = waiting->probe[i](waiting->context, waiting->cause, sizeof waiting->cause);
        if (since_s >= 0) {
            return since_s;
        }
    }
    waiting->cause[0] = '\0';
    return -1;
}

const char *ls_waiting_cause(ls_waiting *waiting)
{
    (void)find_cause(waiting);
    return waiting->cause;
}

int64_t ls_waiting_look(ls_waiting *waiting)
{
    int64_t now_ns = ls_clock_ns();
    if (now_ns < waiting->look_ns) {
        return waiting->look_ns;
    }
    waiting->look_ns = now_ns + LOOK_NS;
    double waited_s = find_cause(waiting);
    if (waited_s < 0) {
        waiting->since_ns = waiting->said_ns = 0;
        return waiting->look_ns;
    }
    waiting->since_ns = waiting->since_ns == 0 ? now_ns : waiting->since_ns;
    waited_s = fmax(waited_s, ls_clock_ms_between(waiting->since_ns, now_ns) * 1e-3);
    double quiet_s = ls_clock_ms_between(waiting->said_ns, now_ns) * 1e-3;
    if (waiting->said_ns == 0 ? waited_s >= waiting->first_s : quiet_s >= waiting->again_s) {
        LS_TEXT(limit, 40, " (limit %.4g s)", waiting->limit_s);
        ls_log_note("waiting for %.0f s%s: %s", waited_s, waiting->limit_s > 0 ? limit : "",
                    waiting->cause);
        waiting->said_ns = now_ns;
    }
    return waiting->look_ns;
}
