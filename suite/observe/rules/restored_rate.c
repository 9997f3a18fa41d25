/* Rates that a script scales by the number of ranks after the optimizer's state was loaded. The
 * state holds the rate as it was used, hence scaled: each resume scales it once more. Where the
 * file comes from a job of one rank, the same line is right, once. */

#include <math.h>
#include <string.h>

#include "suite/observe/trace/job.h"
#include "rules.h"
#include "suite/observe/trace/calls.h"

static const ls_tol same =
    LS_TOL(0x1p-22, "of a rate: it is multiplied once, and kept in f32 at the least");

enum { POWERS = 4 }; /* resumes before this one that may have scaled it */

/* The first step of an optimizer after its state was loaded, and the one after that. */
typedef struct first_steps {
    const ls_call *step[2];
    bool scheduled; /* a schedule was stepped before the first */
    bool apart;     /* or between both */
} first_steps;

static first_steps steps_of(const ls_observe_rank *rank, int optimizer)
{
    first_steps found = {0};
    for (int i = 0; i < rank->step_count && found.step[1] == NULL; i++) {
        for (int c = 0; c < rank->step[i].call_count && found.step[1] == NULL; c++) {
            const ls_call *call = &rank->step[i].call[c];
            if (call->kind == LS_CALL_SCHEDULE) {
                found.scheduled = found.scheduled || found.step[0] == NULL;
                found.apart = true;
            } else if (call->kind == LS_CALL_OPTIMIZER_STEP && call->optimizer == optimizer) {
                found.step[found.step[0] != NULL] = call;
                found.step[1] = call->times > 1 ? call : found.step[1];
            }
        }
    }
    return found;
}

/* The same factor of all groups that have a rate; NaN: there is none. */
static double factor_between(const ls_event *before, const ls_event *after)
{
    double factor = NAN;
    int count = ls_event_count(before);
    if (count == 0 || count != ls_event_count(after)) {
        return NAN;
    }
    for (int g = 0; g < count; g++) {
        double b = ls_event_number_at(before, g), a = ls_event_number_at(after, g), own = a / b;
        if (b == 0 && a == 0) {
            continue;
        }
        if (!isfinite(own) || (!isnan(factor) && fabs(own - factor) > same.value * fabs(factor))) {
            return NAN;
        }
        factor = own;
    }
    return factor;
}

static bool is_near(double a, double b)
{
    return fabs(a - b) <= same.value * fabs(b);
}

/* Whether the file has the rates that the constructor gave, times the factor once or several
 * times. */
static bool is_scaled_already(const ls_event *optimizer, const ls_event *file, double factor)
{
    const ls_event *group;
    int at = 0, power = 0;
    ls_event_each(group, ls_event_list(optimizer, groups)) {
        double ratio = ls_event_number_at(file, at++) / ls_event_number(group, built_lr, NAN);
        int own = 0;
        for (int p = 1; p <= POWERS; p++) {
            own = is_near(ratio, pow(factor, p)) ? p : own;
        }
        if (own == 0 || (power != 0 && own != power)) {
            return false;
        }
        power = own;
    }
    return power > 0 && at == ls_event_count(file);
}

static bool is_as_built(const ls_event *optimizer, const ls_event *file)
{
    const ls_event *group = ls_event_at(ls_event_list(optimizer, groups), 0);
    return is_near(ls_event_number_at(file, 0), ls_event_number(group, built_lr, NAN));
}

static void report(const ls_event *optimizer, const ls_event *restore, const first_steps *steps,
                   int k, bool sure, ls_observe_finding *out)
{
    const char *scaled = ls_event_text(optimizer, scaled_at, "");
    const char *set = ls_event_text(optimizer, set_at, "");
    ls_finding_set(
        out, sure ? LS_FAIL : LS_WEAK,
        scaled[0] != '\0' ? scaled
        : set[0] != '\0'  ? set
                          : ls_event_text(restore, at, ""),
        "the rate is scaled by the number of ranks once more after the state was loaded, which "
        "holds it scaled already",
        "scale the rate before the optimizer's state is loaded, or where the optimizer is built",
        "rank %d: the optimizer's state has the rate %g, and the first step after it was loaded "
        "uses %g%s",
        k, ls_event_number_at(ls_event_list(restore, lr), 0), ls_calls_rate(steps->step[0], 0),
        sure ? "" : ": right once, where a job of one rank wrote it");
}

static void judge_optimizer(const ls_observe_rank *rank, const ls_event *optimizer, int k,
                            bool again, ls_observe_finding *out)
{
    int index = ls_event_int(optimizer, optimizer, -1);
    double world = ls_event_number(rank->start, world, 1);
    const ls_event *restore = ls_event_object(optimizer, restored);
    first_steps steps = steps_of(rank, index);
    int built = ls_event_count(ls_trace_events(rank, schedule));
    if (!ls_event_is(restore, LS_TYPE_OBJECT) || steps.step[0] == NULL || steps.scheduled ||
        world < 2 || built > ls_event_int(restore, schedules, built)) {
        return; /* what a schedule does to the rate where it is built is its own */
    }
    const ls_event *file = ls_event_list(restore, lr);
    const ls_event *used = ls_event_list(steps.step[0]->json, lr);
    double factor = factor_between(file, used);
    if (!is_near(factor, world) && !is_near(factor, 1 / world)) {
        return;
    }
    /* a rate that the script sets anew in each step doubles in a warm-up */
    const ls_event *next = steps.step[1] == NULL ? NULL : ls_event_list(steps.step[1]->json, lr);
    if (!steps.apart && next != NULL && !is_near(factor_between(used, next), 1)) {
        return;
    }
    bool named = ls_event_text(optimizer, scaled_at, "")[0] != '\0';
    bool twice = is_scaled_already(optimizer, file, factor) && (named || factor > 1);
    if (twice || (named && again)) {
        report(optimizer, restore, &steps, k, true, out);
    } else if (named && !is_as_built(optimizer, file)) {
        report(optimizer, restore, &steps, k, false, out);
    }
}

/* ---- a warm-up that begins anew -------------------------------------------------------------- */

/* The rates of group 0 in the first steps of an optimizer, by the script's own hand. */
typedef struct climb {
    double first, most;
    int rises;
    bool fell; /* before it had reached the file's rate */
    const ls_call *step;
} climb;

static climb climb_of(const ls_observe_rank *rank, int optimizer, double file)
{
    climb c = {.first = NAN, .most = -INFINITY};
    double last = NAN;
    for (int i = 0; i < rank->step_count && !(c.most >= file); i++) {
        const ls_call *call = NULL;
        if (ls_job_steps_of(&rank->step[i], optimizer, &call) == 0) {
            continue;
        }
        double now = ls_calls_rate(call, 0);
        c.step = c.step == NULL ? call : c.step;
        c.first = isnan(c.first) ? now : c.first;
        c.rises += now > last;
        c.fell = c.fell || now < last;
        c.most = fmax(c.most, now);
        last = now;
    }
    return c;
}

/* A count above 0 in a file that the job has loaded: of steps, iterations or epochs. */
static const ls_event *count_of_file(const ls_observe_rank *rank)
{
    const ls_event *load, *number;
    ls_event_each(load, ls_trace_events(rank, load)) {
        ls_event_each(number, ls_event_object(load, numbers)) {
            if (ls_event_is_number(number) && number->number > 0) {
                return number;
            }
        }
    }
    return NULL;
}

static const ls_tol rises = LS_TOL(2, "rises in a row: a single one may be the end of a warm-up");
static const ls_tol far_below =
    LS_TOL(0.5, "of the file's rate: a schedule seldom halves the rate in one step");

/* The optimizer and a count are the file's; the rate, which the script sets in each step, climbs
 * from far below the file's as it did at the job's begin. */
static void judge_restart(const ls_observe_rank *rank, const ls_event *optimizer, int k,
                          ls_observe_finding *out)
{
    const ls_event *restore = ls_event_object(optimizer, restored);
    const ls_event *count = count_of_file(rank);
    double file = ls_event_number_at(ls_event_list(restore, lr), 0);
    if (count == NULL || !(file > 0) || ls_trace_first(rank, LS_CALL_SCHEDULE) != NULL) {
        return;
    }
    climb c = climb_of(rank, ls_event_int(optimizer, optimizer, -1), file);
    if (c.step == NULL || !(c.first <= far_below.value * file) || c.fell || c.rises < rises.value ||
        c.most < file) {
        return;
    }
    const char *set = ls_event_text(optimizer, set_at, "");
    /* a warm-up again after each start may also be meant */
    ls_finding_set(out, LS_WEAK, set[0] != '\0' ? set : c.step->at,
                   "the rate's course begins anew: it is computed from a count of this process, "
                   "not from the one that the file holds",
                   "compute the rate from the restored count of steps",
                   "rank %d: the file has the rate %g and %.30s %g; the first step after it was "
                   "loaded uses %g, and the rate climbs in %d steps",
                   k, file, ls_event_key(count), count->number, c.first, c.rises + 1);
}

/* ---- a schedule that is built after the state was loaded --------------------------------------
 */

/* It gives the optimizer its first rate, which the first steps use; its own first call goes on by
 * the file's count, and with the file's course. */
static void judge_base(const ls_observe_rank *rank, const ls_event *optimizer, int k,
                       ls_observe_finding *out)
{
    const ls_event *restore = ls_event_object(optimizer, restored);
    const ls_event *group = ls_event_at(ls_event_list(optimizer, groups), 0);
    const ls_event *built = ls_event_at(ls_trace_events(rank, schedule), 0);
    const ls_call *call = ls_trace_first(rank, LS_CALL_SCHEDULE);
    first_steps steps = steps_of(rank, ls_event_int(optimizer, optimizer, -1));
    if (call == NULL || steps.step[0] == NULL || steps.scheduled ||
        ls_event_int(restore, schedules, 1) > 0 ||
        ls_event_count(ls_trace_events(rank, schedule)) != 1 ||
        !(ls_event_number(call->json, epoch, 0) > 1)) {
        return;
    }
    double base = ls_event_number(group, built_lr, NAN), used = ls_calls_rate(steps.step[0], 0);
    double file = ls_event_number_at(ls_event_list(restore, lr), 0);
    double next = ls_event_number_at(ls_event_list(call->json, lr), 0);
    if (!is_near(used, base) || is_near(file, base) || is_near(next, base) ||
        !((used - file) * (file - next) > 0)) {
        return;
    }
    ls_finding_set(out, LS_FAIL, ls_event_text(built, at, ""),
                   "a schedule that is built after the optimizer's state was loaded sets its first "
                   "rate again",
                   "build the schedule before load_state_dict, and load its state, too",
                   "rank %d: the file has the rate %g, the first steps after it was loaded use %g, "
                   "with which the schedule begins, and its first call, number %g, gives %g",
                   k, file, used, ls_event_number(call->json, epoch, 0), next);
}

void ls_restored_rate_judge(const ls_observe_rank *rank, int k, bool again, bool counts_on,
                            ls_observe_finding *out)
{
    const ls_event *optimizer;
    ls_event_each(optimizer, ls_trace_events(rank, optimizer)) {
        if (ls_verdict_good(out->verdict.code)) {
            judge_optimizer(rank, optimizer, k, again, out);
            judge_base(rank, optimizer, k, out);
        }
    }
    ls_event_each(optimizer, ls_trace_events(rank, optimizer)) {
        if (ls_verdict_good(out->verdict.code) && counts_on) {
            judge_restart(rank, optimizer, k, out);
        }
    }
}
