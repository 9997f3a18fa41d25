/* Whether an average of weights is kept where it is run, and follows the weights. */
#include <math.h>
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"
#include "rules.h"

enum { AVERAGES = 8 };

/* One average on a rank. */
typedef struct course {
    int updates, forwards;
    int turns, several; /* several: turns between two steps with more than one update */
    int most;           /* updates in a turn */
    int shares;
    double least, highest;       /* of the shares */
    const ls_call *first, *last; /* updates */
    const ls_call *stale; /* the first: put in eval mode with moved weights and still statistics */
    int now;              /* updates since the last attempt to step */
} course;

static void end_turn(course *c)
{
    c->turns += c->now > 0;
    c->several += c->now > 1;
    c->most = c->now > c->most ? c->now : c->most;
    c->now = 0;
}

static course course_of(const ls_observe_rank *rank, int number)
{
    course c = {.least = INFINITY, .highest = -INFINITY};
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
        const char *what = ls_calls_text(call, what);
        if (ls_calls_is_attempt(call)) {
            end_turn(&c);
        } else if (call->kind != LS_CALL_OTHER ||
                   strcmp(ls_calls_text(call, call), "average") != 0 ||
                   ls_event_int(call->json, average, -1) != number) {
            continue;
        } else if (strcmp(what, "update") == 0) {
            double share = ls_event_number(call->json, share, NAN);
            c.first = c.first == NULL ? call : c.first;
            c.last = call;
            c.updates += call->times;
            c.now += call->times;
            c.shares += !isnan(share);
            c.least = fmin(c.least, share);
            c.highest = fmax(c.highest, share);
        } else if (strcmp(what, "stale") == 0) {
            c.stale = c.stale == NULL ? call : c.stale;
        } else if (strcmp(what, "forward") == 0) {
            c.forwards += call->times;
        }
    }
    end_turn(&c);
    return c;
}

/* A rank may keep an average alone, and then it runs it alone. */
void ls_rules_replicas_average(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int updates = 0;
    for (int n = 0; n < AVERAGES; n++) {
        int most = 0, of = 0;
        for (int k = 0; k < trace->world; k++) {
            course a = course_of(&trace->rank[k], n);
            of = a.updates > most ? k : of;
            most = a.updates > most ? a.updates : most;
        }
        updates += most;
        for (int k = 0; k < trace->world; k++) {
            course a = course_of(&trace->rank[k], n);
            /* One less: a rank that ended between two updates. */
            if (a.forwards == 0 || a.updates >= most - 1) {
                continue;
            }
            ls_finding_set(
                out, LS_FAIL, course_of(&trace->rank[of], n).first->at,
                "the average is updated on some ranks and run on all: the others run weights of "
                "the start",
                "update the average on every rank, or run it where it is updated",
                "rank %d runs an average of weights that it updated %d times, rank %d %d times", k,
                a.updates, of, most);
        }
    }
    ls_finding_close(out, updates, LS_SKIP, "no AveragedModel was updated",
                     "averages were updated %d times, on each rank that runs them", updates);
}

/* ---- how an average moves -------------------------------------------------------------------- */

static const ls_tol nothing =
    LS_TOL(1e-7, "of the way to the weights: a decay of 0.9999999 is none that an average is used "
                 "with, and f32 rounds such steps away");
static const ls_tol nearly_all =
    LS_TOL(0.7, "of the way to the weights, each time: decays are 0.9 and more, and those that "
                "begin small grow; a copy goes all of it");

static const ls_tol enough =
    LS_TOL(3, "updates: what happens once or twice may be how an average begins");
static const ls_tol nearly_each =
    LS_TOL(0.8, "of the turns: a script may leave out an update now and then, as at the end of an "
                "epoch");

static void judge_course(const course *c, ls_observe_finding *out)
{
    const char *cause = NULL;
    /* The first and the last turn of a job may be parts. */
    if (c->several >= enough.value && c->several >= nearly_each.value * (c->turns - 2)) {
        ls_verdict_fail(&out->verdict,
                        "an average of weights is updated up to %d times between one step and the "
                        "next, in %d of %d cases",
                        c->most, c->several, c->turns);
        cause = "the average is updated with every batch, the weights with every step: its decay "
                "counts several times";
    } else if (c->shares >= enough.value && c->highest < nothing.value) {
        ls_verdict_fail(&out->verdict,
                        "an average of weights stays where it is in %d updates that were looked at",
                        c->shares);
        ls_verdict_measured(&out->verdict, c->highest, nothing.value, "of the way", nothing.why);
        cause = "the average never moves: its decay is 1, or so near to it that rounding takes "
                "each step away";
    } else if (c->shares >= enough.value && c->least > nearly_all.value) {
        ls_verdict_fail(&out->verdict,
                        "each update takes an average of weights %.3g of the way to the weights",
                        c->least);
        ls_verdict_measured(&out->verdict, c->least, nearly_all.value, "of the way",
                            nearly_all.why);
        cause = "decay and 1 - decay are exchanged: the average is the newest weights";
    }
    if (cause != NULL) {
        ls_finding_explain(out, c->last->at, cause,
                           "update it once after each optimizer.step(), as decay * average + (1 - "
                           "decay) * weights");
    }
}

/* A copy that moves several times in a step, in which the weights do once: before the optimizer
 * more than once, or before it and then behind it, towards the weights. Returns how many such steps
 * were looked at, and how often it moved in them beyond once. */
static int count_early(const ls_observe_rank *rank, int average, int *more)
{
    const ls_event *one;
    int count = 0;
    *more = 0;
    ls_event_each(one, ls_trace_events(rank, averaged)) {
        bool behind = ls_event_number(one, share, 0) > ls_event_number(one, bound, INFINITY);
        int early = ls_event_has(one, early_times) ? ls_job_count(one, early_times)
                                                   : ls_event_bool(one, early, false);
        if (ls_event_int(one, average, -1) == average && early + behind > 1) {
            *more += early + behind - 1;
            count++;
        }
    }
    return count;
}

static void judge_early(const ls_observe_rank *rank, int average, ls_observe_finding *out)
{
    int more, early = count_early(rank, average, &more);
    if (more >= enough.value && early > 1) {
        ls_finding_set(out, LS_FAIL, "",
                       "the average is updated with every batch, the weights with every step: its "
                       "decay counts several times",
                       "update it once after each optimizer.step(), where gradients are "
                       "accumulated as well",
                       "a copy of the model moves towards the weights several times between one "
                       "optimizer's step and the next, in %d steps that were looked at",
                       early);
    }
}

/* A copy that each time moves from the weights. */
static void judge_away(const ls_observe_rank *rank, int average, ls_observe_finding *out)
{
    const ls_event *one;
    int away = 0, moved = 0;
    ls_event_each(one, ls_trace_events(rank, averaged)) {
        double share = ls_event_number(one, share, 0),
               bound = ls_event_number(one, bound, INFINITY);
        if (ls_event_int(one, average, -1) == average && fabs(share) > bound) {
            moved++;
            away += share < 0;
        }
    }
    if (away >= enough.value && away == moved) {
        ls_finding_set(out, LS_FAIL, "",
                       "the average's step has the wrong sign: it runs away from the weights",
                       "average += (1 - decay) * (weights - average)",
                       "a copy of the model moves away from the weights behind the optimizer's "
                       "step, in all %d steps that were looked at",
                       away);
    }
}

static void judge_norms(const ls_call *stale, ls_observe_finding *out)
{
    ls_finding_set(
        out, LS_FAIL, stale->at,
        "the average takes parameters() only: running statistics are buffers, and eval mode "
        "normalizes by those of the start",
        "average or copy the buffers, too (state_dict(), use_buffers=True), or call update_bn() "
        "before",
        "a copy of the model runs in eval mode whose weights have moved since the last time, while "
        "the "
        "statistics of its %d norms that were looked at have not, and the model's have",
        ls_event_int(stale->json, norms, 0));
}

void ls_rules_optimizer_average(const ls_observe_trace *trace, ls_observe_finding *out)
{
    ls_observe_finding guessed = {0};
    int updates = 0, validated = ls_still_judge_validations(trace, &guessed), shadows = 0;
    for (int k = 0; k < trace->world; k++) {
        shadows += ls_still_judge_shadows(trace, k, out);
        for (int n = 0; n < AVERAGES; n++) {
            course c = course_of(&trace->rank[k], n);
            judge_course(&c, &guessed);
            judge_early(&trace->rank[k], n, &guessed);
            judge_away(&trace->rank[k], n, &guessed);
            if (c.stale != NULL) {
                bool sure = ls_event_bool(c.stale->json, unmoved, false);
                judge_norms(c.stale, sure ? out : &guessed);
            }
            updates += k == 0 ? c.updates : 0;
        }
    }
    ls_finding_guess(out, &guessed);
    ls_finding_close(
        out, updates + validated + shadows, LS_SKIP,
        "no AveragedModel was updated, no copy of weights in a dict was looked at, and "
        "no weights of a validation are known",
        "averages of weights were updated %d times; the weights of %d validations "
        "compared with those of the start; copies in dicts looked at %d times",
        updates, validated, shadows);
}
