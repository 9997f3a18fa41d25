#include "calls.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "kernels/core/text.h"

static const ls_tol short_of =
    LS_TOL(0.02, "a schedule's length is a whole number of batches or steps: what a last batch or "
                 "window of each pass leaves out is allowed for apart, a multiple is further off");

static const ls_tol most_room =
    LS_TOL(0.1, "of a count: what last batches and windows leave out of a short job");
static const ls_tol too_far =
    LS_TOL(1.5, "times what the job reaches: a length of another count is twice that and more");
static const ls_tol half =
    LS_TOL(0.5, "of a length or rate: a job that comes to less has not come to its middle");
static const ls_tol few_steps =
    LS_TOL(8, "steps: of fewer a schedule's length may be that of anything that is counted");
static const ls_tol few_calls = LS_TOL(3, "calls: with fewer two lengths are equal by chance");

bool ls_spans_held(const ls_observe_rank *rank, const ls_event *schedule)
{
    int number = ls_event_int(schedule, schedule, -1);
    const ls_event *event, *held;
    ls_event_each(event, ls_trace_events(rank, schedule)) {
        ls_event_each(held, ls_event_list(event, holds)) {
            if (ls_event_is_number(held) && ls_event_to_int(held, -1) == number) {
                return true;
            }
        }
    }
    return false;
}

/* What a schedule did, and the job around it. */
typedef struct span {
    const char *class;
    int length;         /* calls that it is made for; 0: not known */
    double base;        /* the first group's rate before any schedule; NaN: not known */
    int calls, reached; /* calls of the script; the count that it reached */
    int steps;          /* of its optimizer */
    int batches;        /* backward calls */
    double samples;     /* of this rank */
    int passes;         /* whole ones over training data */
    bool stops;         /* by its text the script may end its training early */
    bool whole;         /* the job ended with a pass, or nothing says where it did */
    bool goes_on;       /* in a later job */
    int world;
    double highest;  /* rate that it gave to the first group */
    bool rising;     /* at the end, from the start on */
    bool rose, fell; /* behind a call */
    double stepped;  /* the highest rate that a step took */
    int optimizer;
} span;

static double rate_of(const ls_call *call)
{
    const ls_event *rate = ls_event_at(ls_event_list(call->json, lr), 0);
    return ls_event_is_number(rate) ? rate->number : NAN;
}

static void add_call(span *s, const ls_call *call, double *last)
{
    double rate = rate_of(call);
    s->calls += call->times;
    double epoch =
        ls_event_number(call->json, epoch, s->calls); /* of some schedules with a fraction */
    s->reached = fabs(epoch) < INT_MAX ? (int)epoch : s->calls;
    s->optimizer = call->optimizer;
    s->rising = s->rising && (isnan(*last) || rate > *last);
    s->rose = s->rose || rate > *last;
    s->fell = s->fell || rate < *last;
    s->highest = isnan(s->highest) || rate > s->highest ? rate : s->highest;
    *last = rate;
}

static void add_steps(const ls_observe_rank *rank, int schedule, span *s)
{
    double last = NAN;
    ls_trace_each_step(step, rank) {
        s->samples += fmax(0, step->step->images);
    }
    ls_trace_each_call_of(walk, rank) {
        if (walk.call->kind == LS_CALL_SCHEDULE &&
            ls_event_int(walk.call->json, schedule, -1) == schedule) {
            add_call(s, walk.call, &last);
        } else if (walk.call->kind == LS_CALL_BACKWARD) {
            s->batches += walk.call->times;
        }
    }
    ls_trace_each_call_of(walk, rank) { /* whose optimizer it is, its calls say */
        if (ls_calls_is_attempt(walk.call) && walk.call->optimizer == s->optimizer) {
            s->steps += walk.call->times;
            s->stepped = fmax(s->stepped, rate_of(walk.call));
        }
    }
}

static span span_of(const ls_observe_trace *trace, const ls_event *event)
{
    const ls_observe_rank *rank = &trace->rank[0];
    span s = {.class = ls_event_text(event, class, ""),
              .length = ls_event_int(event, span, 0),
              .base = ls_event_number(event, base, NAN),
              .whole = true,
              .stops = ls_event_bool(event, stops_early, false),
              .goes_on = trace->goes_on,
              .world = trace->world,
              .highest = NAN,
              .stepped = NAN,
              .rising = true,
              .optimizer = -1};
    const ls_event *data;
    add_steps(rank, ls_event_int(event, schedule, -1), &s);
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (ls_event_bool(data, trained, false)) {
            s.whole = ls_event_bool(data, whole, false);
            s.passes += s.whole;
        }
    }
    return s;
}

/* What a pass may leave out: a last window of batches that are not stepped, or padding. */
static bool is_near(const span *s, double length, double count)
{
    double room = (s->passes + 1) * fmax(1, (double)s->batches / fmax(1, s->steps));
    return count > 0 &&
           fabs(length - count) <= fmin(most_room.value * count, room + short_of.value * count);
}

/* The count that the length was taken from, where the job reaches half of it or less; NULL: none.
 */
static const char *too_long(const span *s)
{
    double w = s->world, far = too_far.value * s->reached;
    const struct {
        double count;
        const char *what;
    } counts[] = {
        {s->batches, "batches, and it is stepped once for several of them"},
        {s->steps * w, "steps of all ranks together"},
        {s->batches * w, "batches of all ranks together"},
        {s->samples, "samples of a rank"},
        {s->samples * w, "samples"},
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (counts[i].count > far && is_near(s, s->length, counts[i].count)) {
            return counts[i].what;
        }
    }
    return NULL;
}

static bool is_stepped_for_each_rank(const span *s)
{
    return s->world > 1 && s->calls >= (1 - most_room.value) * s->steps * s->world;
}

/* The count that the length was taken from, where the job goes on beyond it. */
static const char *too_short(const span *s)
{
    bool falls = strcmp(s->class, "LinearLR") == 0 || strcmp(s->class, "PolynomialLR") == 0;
    bool waves = strncmp(s->class, "Cosine", 6) == 0 || strcmp(s->class, "LambdaLR") == 0 ||
                 strcmp(s->class, "SequentialLR") == 0;
    if (!waves && !(falls && is_stepped_for_each_rank(s))) {
        return NULL; /* one that falls may end early on purpose */
    }
    if (s->passes > 1 && abs(s->length - s->passes) <= 1) {
        return "epochs, and it is stepped with each batch";
    }
    if (s->batches > s->steps && is_near(s, s->length, s->steps) && s->reached > s->steps) {
        return "steps of the optimizer, and it is stepped with each batch";
    }
    if (s->world > 1 && is_near(s, (double)s->length * s->world, s->reached)) {
        return "steps of one rank, and it is stepped once for each rank";
    }
    return NULL;
}

static const ls_tol waves =
    LS_TOL(8, "times: a rate that goes up and down as often, with each batch, is no schedule");

/* Whether another meaning of the length is out of the question: the numbers are equal. */
static bool is_exact(const span *s, bool beyond)
{
    bool ends = s->whole && !s->stops && !s->goes_on && s->passes > 1;
    if (beyond) {
        return ends && strcmp(s->class, "CosineAnnealingLR") == 0 && s->length == s->passes &&
               s->calls == s->steps && s->calls >= waves.value * s->length;
    }
    return ends && s->length == s->steps && s->calls == s->passes;
}

/* True: it is sure. */
static bool judge_length(const span *s, const char *at, ls_observe_finding *out)
{
    bool beyond = s->reached > s->length + most_room.value * s->length + 1;
    const char *why = !s->whole ? NULL : beyond ? too_short(s) : s->goes_on ? NULL : too_long(s);
    /* Accelerate steps a schedule as often as there are ranks, and its own example of several
     * batches a step makes it for all batches. */
    bool for_each_rank = is_stepped_for_each_rank(s);
    if (s->length < 1 || s->steps < few_steps.value) {
        return false;
    }
    if (abs(s->length - s->steps) <= most_room.value * s->steps &&
        s->calls < half.value * s->length) {
        ls_finding_set(out, LS_FAIL, at,
                       "a schedule that is made for batches is stepped with each epoch: the rate "
                       "goes a small part of its way",
                       "step it after each optimizer.step() (Lightning: \"interval\": "
                       "\"step\"), or make it for as many calls as there are epochs",
                       "a %s of %d steps was stepped %d times, its optimizer %d times", s->class,
                       s->length, s->calls, s->steps);
        return is_exact(s, beyond);
    } else if (why != NULL) {
        /* where nothing shows that the job ended as it was meant to, it may have ended early */
        bool unsure = !beyond && (for_each_rank || s->stops || s->passes == 0);
        ls_verdict_set(&out->verdict, unsure ? LS_WEAK : LS_FAIL,
                       "a %s of %d calls has come to %d at the end of the job (%d steps, %d "
                       "batches, %d passes): %s",
                       s->class, s->length, s->reached, s->steps, s->batches, s->passes,
                       beyond ? "the rate goes through it and on" : "the rate never ends its way");
        ls_verdict_cause(&out->verdict, "its length is counted in %s%s",
                         for_each_rank && !beyond ? "batches, and it is stepped with each step of "
                                                    "the optimizer, once for each rank"
                                                  : why,
                         unsure && !for_each_rank ? "; or the job ended before its time" : "");
        ls_finding_blame(out, at,
                         "make it for as many calls of step() as the job makes: steps of the "
                         "optimizer on one rank, or epochs");
        return beyond && is_exact(s, beyond);
    } else if (beyond && strcmp(s->class, "CosineAnnealingLR") == 0) {
        ls_finding_set(out, LS_WEAK, at, NULL,
                       "if it is not meant: T_max counts calls of step(), one a batch or one an "
                       "epoch",
                       "a CosineAnnealingLR with T_max %d was stepped %d times: the rate rises "
                       "again",
                       s->length, s->calls);
    }
    return false;
}

static const ls_tol as_rate = LS_TOL(
    0.5, "of the rate itself: where a decay begins before the warm-up ends, the highest factor "
         "is less than 1, and what should be a factor less than the rate");

static const ls_tol small_factor =
    LS_TOL(0.05, "of the optimizer's rate, at the highest: no schedule that rises and falls stays "
                 "as low, and as near to the square");
static const ls_tol as_base = LS_TOL(
    1e-6, "of the rate: the highest factor of a warm-up's end, and of a decay's begin, is 1");

/* LambdaLR multiplies the rate by what its function returns: one that returns rates squares them.
 * True: it is sure, as the highest factor, with lower ones before it and after it, is the rate, or
 * as small. */
static bool judge_lambda(const span *s, const char *at, ls_observe_finding *out)
{
    double highest = fmax(s->highest, s->stepped), factor = highest / s->base;
    bool goes_on = s->reached > s->calls + 1; /* of a job that was resumed late */
    if (strcmp(s->class, "LambdaLR") != 0 || s->calls < 2 || s->rising || goes_on ||
        !(s->base > 0 && s->base < 0.5) || factor < as_rate.value * s->base ||
        factor > (1 + short_of.value) * s->base) {
        return false;
    }
    ls_finding_set(out, LS_FAIL, at,
                   "its function returns a rate, and LambdaLR multiplies the optimizer's rate by "
                   "what it returns",
                   "return a factor (1 at the highest rate), or set lr=1.0",
                   "the highest rate that a LambdaLR gives is %.4g, %.4g times the optimizer's: as "
                   "the square of that, %.4g, is",
                   highest, factor, s->base);
    return s->rose && s->fell &&
           (fabs(factor / s->base - 1) <= as_base.value || factor <= small_factor.value);
}

/* A warm-up that the job ends in. */
static void judge_warm_up(const span *s, const char *at, ls_observe_finding *out)
{
    if (!s->rising || !s->whole || s->goes_on || s->calls < few_steps.value ||
        !(s->highest < half.value * s->base) || strstr(s->class, "OneCycle") != NULL ||
        strstr(s->class, "Cyclic") != NULL) {
        return;
    }
    ls_finding_set(out, LS_WEAK, at, "a warm-up that is longer than the job",
                   "if this is no trial run: make the warm-up a part of the job's steps",
                   "the rate rises in all %d calls of a %s and ends at %.3g, below half of the "
                   "optimizer's %.3g",
                   s->calls, s->class, s->highest, s->base);
}

/* Schedules in sequence, the last of which is as long as the whole job: what comes before it was
 * not taken off. A script that may leave its loop may have stopped there on purpose. */
static void judge_sequence(const ls_observe_rank *rank, const ls_event *event, const span *s,
                           ls_observe_finding *out)
{
    const ls_event *holds = ls_event_list(event, holds), *held, *last = NULL;
    int parts = 0;
    ls_event_each(held, holds) {
        const ls_event *part = ls_job_numbered(ls_trace_events(rank, schedule),
                                               LS_INTEGER(schedule), ls_event_to_int(held, -1));
        last = part != NULL ? part : last;
        parts++;
    }
    int length = last != NULL ? ls_event_int(last, span, 0) : 0;
    if (strcmp(s->class, "SequentialLR") != 0 || parts < 2 || !s->whole || s->goes_on ||
        s->reached < few_calls.value || length != s->reached || s->length <= length) {
        return;
    }
    ls_finding_set(out, ls_event_bool(event, stops_early, false) ? LS_WEAK : LS_FAIL,
                   ls_event_text(last, at, ""),
                   "the last schedule's length is that of the whole training: the calls of the "
                   "warm-up before it are not taken off",
                   "T_max = all calls less those of the warm-up",
                   "a SequentialLR of %d calls ends with a %s of %d, and the job makes %d calls: "
                   "it stops %d calls before the rate's end",
                   s->length, ls_event_text(last, class, ""), length, s->reached,
                   s->length - s->reached);
}

/* Another one was built in its place later: for a job that goes on in the same process, say. */
static bool is_replaced(const ls_event *event)
{
    for (const ls_event *later = ls_event_after(event); later != NULL;
         later = ls_event_after(later)) {
        if (ls_event_same(event, later, at) && ls_event_same(event, later, class)) {
            return true;
        }
    }
    return false;
}

void ls_spans_judge(const ls_observe_trace *trace, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[0];
    const ls_event *event;
    if (ls_job_is_left_alone(trace)) {
        return; /* what it did later is not known */
    }
    ls_event_each(event, ls_trace_events(rank, schedule)) {
        span s = span_of(trace, event);
        const char *at = ls_event_text(event, at, "");
        ls_observe_finding one[4] = {0};
        if (s.calls == 0 || ls_spans_held(rank, event) || is_replaced(event)) {
            continue;
        }
        bool sure[4] = {judge_length(&s, at, &one[0]), judge_lambda(&s, at, &one[1])};
        judge_warm_up(&s, at, &one[2]);
        judge_sequence(rank, event, &s, &one[3]);
        for (size_t i = 0; i < sizeof one / sizeof *one; i++) {
            (sure[i] ? ls_calls_keep_worst : ls_finding_guess)(out, &one[i]);
        }
    }
}
