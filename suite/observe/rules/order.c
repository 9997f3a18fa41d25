/* Whether the script makes its calls in an order that all ranks share and that torch's notes ask
 * for: collectives, steps, schedules. */
#include <math.h>
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"
#include "kernels/core/text.h"
#include "suite/observe/trace/pass.h"
#include "rules.h"

/* ---- order.collectives ----------------------------------------------------------------------- */

/* Not those between two ranks by nature, nor on a group of some ranks: which, is not recorded. */
static bool is_compared(const ls_observe_trace *trace, const ls_call *call)
{
    const char *op = ls_calls_text(call, op);
    bool pairwise =
        strstr(op, "send") != NULL || strstr(op, "recv") != NULL || strstr(op, "p2p") != NULL;
    return call->kind == LS_CALL_COLLECTIVE && !pairwise &&
           ls_event_int(call->json, ranks, trace->world) == trace->world;
}

static bool same_collective(const ls_call *a, const ls_call *b)
{
    const char *op = ls_calls_text(a, op);
    bool sized = ls_text_choice(op, "all_reduce|broadcast|reduce") >=
                 0; /* all ranks give as many elements */
    return strcmp(op, ls_calls_text(b, op)) == 0 &&
           strcmp(ls_calls_text(a, reduce), ls_calls_text(b, reduce)) == 0 &&
           ls_event_int(a->json, root, -1) == ls_event_int(b->json, root, -1) &&
           (!sized ||
            (strcmp(ls_calls_text(a, type), ls_calls_text(b, type)) == 0 &&
             ls_event_number(a->json, elements, -1) == ls_event_number(b->json, elements, -1)));
}

static void describe(const ls_call *call, char *text, size_t bytes)
{
    if (call == NULL) {
        ls_text_put(text, bytes, "none");
        return;
    }
    const char *reduce = ls_calls_text(call, reduce);
    int root = ls_event_int(call->json, root, -1);
    LS_TEXT(from, 30, " with root %d", root);
    ls_text_put(text, bytes, "%s%s%s of %.0f %s%s (%.60s)", ls_calls_text(call, op),
                reduce[0] != '\0' ? " " : "", reduce, ls_event_number(call->json, elements, 0),
                ls_calls_text(call, type), root < 0 ? "" : from, call->at);
}

static void fail_collective(const ls_observe_trace *trace, int rank, const ls_observe_step *step,
                            int n, const ls_call *a, const ls_call *b, ls_observe_finding *out)
{
    char x[140], y[140];
    describe(a, x, sizeof x);
    describe(b, y, sizeof y);
    bool others = a != NULL && b != NULL && strcmp(a->at, b->at) == 0 &&
                  strcmp(ls_calls_text(a, op), ls_calls_text(b, op)) == 0; /* other tensors */
    /* A job that ended well with such a difference ran them on groups of its own. */
    ls_finding_set(
        out, ls_job_ended_well(trace) ? LS_WEAK : LS_FAIL, a != NULL ? a->at : b->at,
        others ? "the ranks come to the same call with other tensors: they go through them in "
                 "another order (that of a set, say), or sizes depend on a rank's data"
               : "a collective depends on a value of the rank's own (its number, its data, its "
                 "loss): the others wait for it for ever, or get the sum of different things",
        others
            ? "go through tensors in one order on every rank, and send sizes that all ranks share"
            : "call the same collectives in the same order on every rank",
        "step %lld, collective %d of the script: rank 0 %s, rank %d %s",
        (long long)step->step->step, n + 1, x, rank, y);
}

/* Calls in which the ranks of a model in DistributedDataParallel meet: a backward that reduces, a
 * forward that sends buffers, a collective of the script. */
static bool is_meeting(const ls_observe_trace *trace, const ls_observe_rank *rank,
                       const ls_call *call)
{
    const ls_event *model = ls_job_model(rank, call->model);
    switch (call->kind) {
    case LS_CALL_BACKWARD:
        return ls_calls_flag(call, sync) != 0;
    case LS_CALL_FORWARD:
        return ls_job_model_is_ddp(model) && ls_event_bool(model, broadcast_buffers, true) &&
               ls_event_count(ls_event_list(model, buffers)) > 0;
    default:
        return is_compared(trace, call);
    }
}

/* The n-th of the calls in which ranks meet, or of the script's collectives; equal ones in a row
 * are counted singly. */
static const ls_call *nth_call(const ls_observe_trace *trace, int rank, const ls_observe_step *step,
                               int n, bool meetings)
{
    ls_trace_each_call(call, step) {
        if (meetings ? is_meeting(trace, &trace->rank[rank], call) : is_compared(trace, call)) {
            n -= call->times;
            if (n < 0) {
                return call;
            }
        }
    }
    return NULL;
}

static bool same_meeting(const ls_call *a, const ls_call *b)
{
    return a->kind == b->kind && (a->kind == LS_CALL_FORWARD    ? a->model == b->model
                                  : a->kind == LS_CALL_BACKWARD ? true
                                                                : same_collective(a, b));
}

/* The first of these calls, *n, in which rank 0 and another go different ways: at[0] and at[1],
 * NULL where a rank has none. False: none; one that did not end its step may have had more to call.
 */
static bool find_difference(const ls_observe_trace *trace, int rank, const ls_observe_step *step,
                            bool meetings, const ls_call *at[2], int *n)
{
    const ls_observe_step *other = ls_trace_open_step_of(&trace->rank[rank], step->step->step);
    for (*n = 0; other != NULL; ++*n) {
        const ls_call *a = at[0] = nth_call(trace, 0, step, *n, meetings);
        const ls_call *b = at[1] = nth_call(trace, rank, other, *n, meetings);
        if ((a == NULL && (b == NULL || step == trace->rank[0].open)) ||
            (b == NULL && other == trace->rank[rank].open)) {
            return false;
        }
        if (a == NULL || b == NULL || !same_meeting(a, b)) {
            return true;
        }
    }
    return false;
}

static void compare_collectives(const ls_observe_trace *trace, int rank,
                                const ls_observe_step *step, int *compared, ls_observe_finding *out)
{
    int n;
    const ls_call *at[2];
    bool differs = find_difference(trace, rank, step, false, at, &n);
    *compared += n + differs;
    if (differs) {
        ls_observe_finding one = {0};
        fail_collective(trace, rank, step, n, at[0], at[1], &one);
        ls_calls_keep_worst(out, &one);
    }
}

void ls_rules_order_collectives(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    const char *apart = ls_job_apart(trace);
    if (apart != NULL) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "%s", apart);
        return;
    }
    for (int k = 1; k < trace->world; k++) {
        for (int i = 0; i < trace->rank[0].step_count; i++) {
            compare_collectives(trace, k, &trace->rank[0].step[i], &compared, out);
        }
        if (trace->rank[0].open != NULL && !ls_job_ended_well(trace)) {
            compare_collectives(trace, k, trace->rank[0].open, &compared, out);
        }
    }
    ls_finding_close(out, compared, LS_SKIP, "the script calls no collective within its steps",
                     "%d collectives of the script, the same on %d ranks",
                     compared / (trace->world - 1), trace->world);
}

/* ---- order.steps ----------------------------------------------------------------------------- */

/* Ranks whose loaders gave another number of samples, or of batches, in the same pass. */
static bool find_uneven_pass(const ls_observe_trace *trace, int rank, long long *a, long long *b,
                             const char **what, const ls_event **event)
{
    const ls_event *x = ls_event_first(ls_trace_events(&trace->rank[0], data)),
                   *y = ls_event_first(ls_trace_events(&trace->rank[rank], data));
    for (; x != NULL && y != NULL; x = ls_event_after(x), y = ls_event_after(y)) {
        /* a stream has no indices; a script may take one batch more than it trains on */
        bool stream =
            !ls_event_bool(x, indices, true) && ls_pass_last_step(x) != ls_pass_last_step(y);
        long long batch = stream ? 1 : ls_event_integer(x, batch, 1);
        *a = stream ? ls_event_integer(x, given, 0) : ls_event_integer(x, count, 0);
        *b = stream ? ls_event_integer(y, given, 0) : ls_event_integer(y, count, 0);
        *what = stream ? "batches" : "samples";
        bool trained = ls_pass_is_trained(x) && ls_pass_is_trained(y);
        int whole = ls_event_bool(x, whole, false) + ls_event_bool(y, whole, false);
        /* one that a signal cut says nothing */
        if (trained && whole > ls_job_was_stopped(trace) && batch > 0 &&
            (*a + batch - 1) / batch != (*b + batch - 1) / batch) {
            *event = x;
            return true;
        }
    }
    return false;
}

static int64_t steps_of(const ls_observe_rank *rank)
{
    return rank->step_count > 0 ? rank->step[rank->step_count - 1].step->step : 0;
}

/* The ranks whose loaders gave unlike many batches. */
static bool blame_uneven_pass(const ls_observe_trace *trace, ls_observe_finding *out)
{
    long long a, b;
    const char *what;
    const ls_event *event = NULL;
    for (int k = 1; k < trace->world; k++) {
        if (find_uneven_pass(trace, k, &a, &b, &what, &event)) {
            ls_verdict_cause(&out->verdict,
                             "uneven inputs: rank 0 drew %lld %s in a pass, rank %d drew %lld", a,
                             what, k, b);
            ls_finding_blame(out, ls_job_data_place(event, built),
                             "give all ranks as many batches (DistributedSampler, drop_last), or "
                             "train within model.join()");
            return true;
        }
    }
    return false;
}

/* Whether the attach module met an error of its own on that rank, and looked no further. */
static bool is_unseen(const ls_observe_trace *trace, int rank, ls_observe_finding *out)
{
    const ls_event *event;
    ls_event_each(event, ls_trace_events(&trace->rank[rank], attach)) {
        if (ls_event_bool(event, quiet, false)) {
            ls_verdict_set(&out->verdict, LS_UNSUPPORTED, "rank %d was not seen to its end: %.80s",
                           rank, ls_event_text(event, error, ""));
            return true;
        }
    }
    return false;
}

/* The pass that a rank did not begin, or left, though its data did not end before those of the
 * other; NULL: none. */
static const ls_event *left_pass(const ls_observe_rank *rank, const ls_observe_rank *other)
{
    for (int i = 0;; i++) {
        const ls_event *x = ls_pass_trained(rank, i), *y = ls_pass_trained(other, i);
        if (x == NULL || y == NULL) {
            return i > 0 ? y : NULL;
        }
        if (ls_event_int(x, given, -1) != ls_event_int(y, given, -1)) {
            return ls_event_bool(x, whole, false) || !ls_event_bool(y, whole, false) ? NULL : y;
        }
    }
}

static const char decide_together[] =
    "make the same decision on every rank: all_reduce the value that it depends on, or broadcast "
    "rank 0's decision";

/* Within join() ranks may have unlike many batches; one that stops by itself is another matter. */
static bool blame_left(const ls_observe_trace *trace, int least, int most, ls_observe_finding *out)
{
    const ls_event *pass = left_pass(&trace->rank[least], &trace->rank[most]);
    if (pass == NULL) {
        return false;
    }
    ls_finding_set(out, LS_FAIL, ls_event_text(pass, at, ""),
                   "a rank ends its loop by what it alone knows (its own loss or score), the "
                   "others go on",
                   decide_together,
                   "rank %d made %lld steps and left the loop, rank %d went on to step %lld, and "
                   "their data did not differ",
                   least, (long long)steps_of(&trace->rank[least]), most,
                   (long long)steps_of(&trace->rank[most]));
    return true;
}

static void judge_uneven(const ls_observe_trace *trace, int least, int most,
                         ls_observe_finding *out)
{
    if (is_unseen(trace, least, out) ||
        (ls_job_ended_well(trace) && blame_left(trace, least, most, out))) {
        return;
    }
    if (ls_job_ended_well(trace)) {
        ls_verdict_pass(&out->verdict, trace->world,
                        "rank %d made %lld steps, rank %d %lld, and all ended well (as with join)",
                        least, (long long)steps_of(&trace->rank[least]), most,
                        (long long)steps_of(&trace->rank[most]));
        return;
    }
    bool open = !trace->rank[least].record->ended && /* its last step was not closed */
                steps_of(&trace->rank[most]) - steps_of(&trace->rank[least]) == 1;
    bool stopped = ls_job_was_stopped(trace), uneven = blame_uneven_pass(trace, out);
    ls_verdict_set(&out->verdict, open || (stopped && !uneven) ? LS_WEAK : LS_FAIL,
                   "rank %d ended after step %lld, rank %d after step %lld%s", least,
                   (long long)steps_of(&trace->rank[least]), most,
                   (long long)steps_of(&trace->rank[most]),
                   stopped ? ", where somebody stopped the job" : "");
    if (!uneven && !stopped) {
        ls_verdict_cause(&out->verdict,
                         "rank %d left the loop, or died, while the others went on: they wait for "
                         "it in their next collective",
                         least);
    }
}

static const char *name_of(const ls_call *call)
{
    return call == NULL                     ? "its next step"
           : call->kind == LS_CALL_BACKWARD ? "backward()"
           : call->kind == LS_CALL_FORWARD  ? "a forward"
                                            : ls_calls_text(call, op);
}

/* Where a job failed in a step that some rank did not end: the first call in which two ranks went
 * different ways. */
static bool judge_open(const ls_observe_trace *trace, int rank, const ls_observe_step *step,
                       ls_observe_finding *out)
{
    int n;
    const ls_call *at[2];
    if (!find_difference(trace, rank, step, true, at, &n)) {
        return false;
    }
    const ls_call *a = at[0], *b = at[1];
    const ls_call *waits = b == NULL || (a != NULL && a->kind != LS_CALL_FORWARD) ? a : b;
    ls_verdict_fail(
        &out->verdict, "the job failed in step %lld: rank 0 was in %s%s%.60s, rank %d in %s%s%.60s",
        (long long)step->step->step, name_of(a), a == NULL ? "" : " at ", a == NULL ? "" : a->at,
        rank, name_of(b), b == NULL ? "" : " at ", b == NULL ? "" : b->at);
    if (!blame_uneven_pass(trace, out)) {
        ls_verdict_cause(&out->verdict,
                         "a condition on a value of the rank's own (its number, its loss, its "
                         "data): only some ranks make this %s, and wait in it",
                         waits->kind == LS_CALL_BACKWARD  ? "backward"
                         : waits->kind == LS_CALL_FORWARD ? "forward"
                                                          : "collective");
        ls_finding_blame(out, waits->at,
                         "take the same way on every rank: decide by a value that all ranks "
                         "share, such as an all_reduce of the condition");
    }
    return true;
}

static bool judge_opens(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 1; k < trace->world; k++) {
        const ls_observe_rank *zero = &trace->rank[0], *other = &trace->rank[k];
        const ls_observe_step *step = zero->open;
        if (other->open != NULL && (step == NULL || other->open->step->step < step->step->step)) {
            step = ls_trace_open_step_of(zero, other->open->step->step);
        }
        if (step != NULL && judge_open(trace, k, step, out)) {
            return true;
        }
    }
    return false;
}

/* The first call in which ranks meet of the step that a rank did not end, but by an exception. */
static bool find_unfinished(const ls_observe_trace *trace, int rank, ls_call *found)
{
    const ls_event *event, *call;
    ls_event_each(event, ls_trace_events(&trace->rank[rank], unfinished)) {
        ls_event_each(call, ls_event_list(event, calls)) {
            *found = ls_trace_call(call);
            if (is_meeting(trace, &trace->rank[rank], found)) {
                return true;
            }
        }
    }
    return false;
}

/* A rank that has ended by itself after as many steps as another one, which was in the next. */
static bool judge_gone(const ls_observe_trace *trace, ls_observe_finding *out)
{
    bool stopped = ls_job_was_stopped(trace); /* a handler of signals may have ended it */
    ls_call waits, none;
    for (int k = 0; k < trace->world; k++) {
        for (int gone = 0; gone < trace->world; gone++) {
            if (!trace->rank[gone].record->ended || find_unfinished(trace, gone, &none) ||
                is_unseen(trace, gone, out) || !find_unfinished(trace, k, &waits)) {
                continue;
            }
            ls_verdict_set(
                &out->verdict, stopped ? LS_WEAK : LS_FAIL,
                "the job %s behind step %lld: rank %d was in %s of the next one, rank %d had ended",
                stopped ? "was stopped" : "failed", (long long)steps_of(&trace->rank[k]), k,
                name_of(&waits), gone);
            if (!stopped) {
                ls_finding_explain(
                    out, waits.at,
                    "a rank ends its loop by what it alone knows (its own loss, score or data), or "
                    "by an exception: the others wait for it",
                    decide_together);
            }
            return true;
        }
    }
    return false;
}

/* A loader raised, the script caught it, and no rank made a further step: the training was over,
 * and the job ended with 0. */
static void judge_raised(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world && ls_job_ended_well(trace); k++) {
        const ls_event *pass = NULL, *data;
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            pass = ls_event_has(data, raised) && ls_pass_is_trained(data) ? data : pass;
        }
        bool over = pass != NULL;
        for (int r = 0; r < trace->world; r++) {
            over = over && (double)steps_of(&trace->rank[r]) <= ls_pass_last_step(pass) + 1;
        }
        if (over) {
            ls_finding_set(out, LS_FAIL, ls_event_text(pass, at, ""),
                           "the loader raised, the script caught it, and the training ended with "
                           "exit code 0",
                           "let the error end the job, or leave the sample out and go on",
                           "rank %d: step %lld is the last of all ranks: %.100s", k,
                           (long long)steps_of(&trace->rank[k]), ls_event_text(pass, raised, ""));
            return;
        }
    }
}

/* All ranks step as often, but a pass of one ends before that of another, which is still in it
 * while the first is in its next. One that waits, or pads its part, begins the next with it. */
static void judge_passes(const ls_observe_trace *trace, int k, ls_observe_finding *out)
{
    const ls_observe_rank *first = &trace->rank[0], *rank = &trace->rank[k];
    const ls_event *x, *y;
    for (int i = 0; (x = ls_pass_trained(first, i)) != NULL; i++) {
        const ls_event *next = ls_pass_trained(first, i + 1), *other = ls_pass_trained(rank, i + 1);
        y = ls_pass_trained(rank, i);
        int a = ls_job_count(x, given), b = ls_job_count(y, given);
        if (y == NULL || !ls_event_same(x, y, at) || !ls_event_bool(x, whole, false) ||
            !ls_event_bool(y, whole, false)) {
            return;
        }
        if (a != b && next != NULL && other != NULL &&
            ls_pass_first_step(next) != ls_pass_first_step(other)) {
            ls_finding_set(
                out, LS_FAIL, ls_job_data_place(x, built),
                "the data are not divided evenly: in one step the ranks are in different "
                "epochs, and the samples of the shorter part come more often",
                "give all ranks as many batches in each pass (as many samples or files, "
                "drop_last)",
                "rank 0's pass %d has %d batches, rank %d's %d: from then on the ranks "
                "are in other passes, though each makes as many steps",
                i, a, k, b);
            return;
        }
    }
}

void ls_rules_order_steps(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int least = 0, most = 0;
    judge_raised(trace, out);
    if (!ls_job_ended_well(trace) && judge_opens(trace, out)) {
        return;
    }
    for (int k = 0; k < trace->world; k++) {
        least = steps_of(&trace->rank[k]) < steps_of(&trace->rank[least]) ? k : least;
        most = steps_of(&trace->rank[k]) > steps_of(&trace->rank[most]) ? k : most;
    }
    if (steps_of(&trace->rank[most]) == 0) {
        ls_finding_missing(trace, "no step was seen", out);
    } else if (steps_of(&trace->rank[least]) != steps_of(&trace->rank[most])) {
        judge_uneven(trace, least, most, out);
        return;
    } else if (!ls_job_ended_well(trace) && blame_uneven_pass(trace, out)) {
        /* a rank that waits in its next step for one that has none ends after as many whole steps
         */
        ls_verdict_fail(&out->verdict,
                        "the job failed after step %lld, where the data of a rank had ended",
                        (long long)steps_of(&trace->rank[least]));
    } else if (!ls_job_ended_well(trace) && judge_gone(trace, out)) {
        return;
    }
    for (int k = 1; k < trace->world && ls_job_ended_well(trace); k++) {
        ls_observe_finding one = {0};
        judge_passes(trace, k, &one);
        ls_finding_guess(out, &one);
    }
    ls_verdict_pass(&out->verdict, steps_of(&trace->rank[least]) * trace->world,
                    "%lld steps on each of %d ranks", (long long)steps_of(&trace->rank[least]),
                    trace->world);
}

/* ---- order.schedule -------------------------------------------------------------------------- */

/* Schedules that are stepped by a measured value, also before training. */
static bool is_by_value(const ls_call *call)
{
    return strstr(ls_calls_text(call, class), "Plateau") != NULL;
}

/* Whether that place calls its schedule again after the optimizer has stepped: else it wound the
 * schedule forward before the training, as jobs do that go on. */
static bool is_called_later(const ls_observe_rank *rank, const ls_call *first)
{
    bool attempted = false;
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
        attempted = attempted || ls_calls_is_attempt(call);
        if (attempted && call->kind == LS_CALL_SCHEDULE && strcmp(call->at, first->at) == 0) {
            return true;
        }
    }
    return false;
}

/* The script begins each epoch with it, from a count of -1: it gives the first value. */
static bool gives_first_value(const ls_call *call)
{
    return ls_event_number(call->json, epoch, NAN) <= 0;
}

/* The first call of a schedule before the first attempt to step; NULL: none. */
static const ls_call *early_schedule(const ls_observe_rank *rank)
{
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
        if (ls_calls_is_attempt(call)) {
            return NULL;
        }
        if (call->kind == LS_CALL_SCHEDULE && !is_by_value(call) && !gives_first_value(call)) {
            return call;
        }
    }
    return NULL;
}

/* Counts of the calls of a rank. */
typedef struct schedules {
    int calls, skipped; /* skipped: after a step that no optimizer made */
    const ls_call *on_skip;
} schedules;

static schedules count_schedules(const ls_observe_rank *rank)
{
    schedules s = {0};
    ls_trace_each_step(step, rank) {
        int count = 0;
        ls_trace_each_kind(call, step, LS_CALL_SCHEDULE) {
            count += call->times;
            if (step->step->skipped) {
                s.skipped += call->times;
                s.on_skip = call;
            }
        }
        s.calls += count;
    }
    return s;
}

/* Calls of one schedule between two attempts of its optimizer to step. */
typedef struct turns {
    int number, optimizer; /* of the schedule, and of its optimizer; -1: not known */
    const char *at;        /* the first place since the last attempt, or NULL */
    const char *other;     /* a second place, or NULL */
    int once, twice;       /* turns with one place, and with two */
    int count;             /* calls since the last attempt */
    int often, times;      /* turns in which one place called it several times, how often at last */
    int ranks;             /* of these turns, a library's with as many calls as there are ranks */
    int batches;           /* of these turns, those in which it came with every backward */
    const char *place;     /* of these */
    const ls_call *call;   /* of the last second place */
} turns;

enum { SCHEDULES = 16 };

/* The optimizer has been asked to step: what came before belongs to its last step. */
static void end_turn(turns *t, int world, int backwards)
{
    bool of_ranks = t->count == world && t->at != NULL && strchr(t->at, '(') != NULL;
    if (t->count > 1 && t->other == NULL) {
        t->often++;
        t->ranks += of_ranks;
        t->batches += t->count == backwards;
        t->times = t->count;
        t->place = t->at;
    }
    t->count = 0;
    t->once += t->at != NULL && t->other == NULL;
    t->twice += t->other != NULL;
    t->at = t->other = NULL;
}

/* Calls of one place may be those of a loop: as many as there are ranks, by a library that counts
 * samples (its place follows in brackets), or one for each batch of a step. Those of two places
 * step the schedule twice. */
static void note_schedule(turns *list, int *count, const ls_call *call)
{
    int number = ls_event_int(call->json, schedule, -1);
    if (number < 0 || is_by_value(call)) {
        return;
    }
    int i = 0;
    while (i < *count && list[i].number != number) {
        i++;
    }
    if (i == SCHEDULES) {
        return;
    }
    if (i == *count) {
        list[(*count)++] = (turns){.number = number, .optimizer = call->optimizer};
    }
    turns *t = &list[i];
    t->count += call->times;
    if (t->at == NULL) {
        t->at = call->at;
    } else if (strcmp(t->at, call->at) != 0) {
        t->other = call->at;
        t->call = call;
    }
}

/* Follows the calls of a rank; how many schedules it has. */
static int read_turns(const ls_observe_rank *rank, int world, turns *list)
{
    int count = 0, backwards = 0;
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
        bool attempt = ls_calls_is_attempt(call);
        for (int t = 0; attempt && t < count; t++) {
            if (list[t].optimizer < 0 || list[t].optimizer == call->optimizer) {
                end_turn(&list[t], world, backwards);
            }
        }
        backwards = attempt                          ? 0
                    : call->kind == LS_CALL_BACKWARD ? backwards + call->times
                                                     : backwards;
        if (call->kind == LS_CALL_SCHEDULE) {
            note_schedule(list, &count, call);
        }
    }
    return count;
}

static const ls_tol two_turns =
    LS_TOL(2, "turns: one may be the step from a warm-up to what follows");
static const ls_tol many_turns =
    LS_TOL(20, "turns: in shorter jobs a length is near their number by chance");
static const ls_tol most_turns =
    LS_TOL(0.8, "of the turns: others may end a job or an epoch, with one call less");

static const ls_tol near_length =
    LS_TOL(0.02, "of the steps: a schedule's length leaves out what ends a pass");

/* The length that the schedule is made for, in steps of its optimizer; NaN: not known. */
static double length_of(const ls_observe_rank *rank, const turns *t)
{
    const ls_event *one =
        ls_job_numbered(ls_trace_events(rank, schedule), LS_INTEGER(schedule), t->number);
    int length = one == NULL ? 0 : ls_event_int(one, span, 0), steps = t->twice + t->once + 1;
    return length < 1 ? NAN : (double)length / steps;
}

/* Whether what it finds is sure. */
static bool judge_turn(const ls_observe_trace *trace, int rank, const turns *t,
                       ls_observe_finding *out)
{
    int all = t->twice + t->once;
    double length = length_of(&trace->rank[rank], t);
    bool of_steps = all >= many_turns.value && fabs(length - 1) <= near_length.value;
    if (t->twice >= two_turns.value && t->twice >= most_turns.value * all) {
        ls_finding_set(out, LS_FAIL, t->call->at,
                       "the schedule is stepped twice a step: it runs at twice its speed",
                       "step the schedule in one place (a framework may do it already)",
                       "rank %d: %s.step() is called in two places between one optimizer.step() "
                       "and the next, %d of %d times",
                       rank, ls_calls_text(t->call, class), t->twice, all);
        if (of_steps) {
            ls_text_add(out->verdict.evidence, sizeof out->verdict.evidence,
                        "; its length is the number of the optimizer's steps");
        }
    } else if (t->often >= two_turns.value && t->often >= most_turns.value * all &&
               !(fabs(length / t->times - 1) <= near_length.value)) {
        if (t->ranks > 0 && !of_steps) {
            return false; /* it counts samples */
        }
        ls_verdict_set(&out->verdict, of_steps ? LS_FAIL : LS_WEAK,
                       "rank %d: a schedule is stepped %d times between one optimizer.step() and "
                       "the next, in %d of %d cases",
                       rank, t->times, t->often, all);
        if (of_steps) {
            ls_verdict_cause(&out->verdict,
                             "its length is the number of the optimizer's steps: the rate comes to "
                             "its end after 1/%d of them",
                             t->times);
        } else if (t->batches == t->often) {
            ls_verdict_cause(&out->verdict,
                             "the schedule is stepped with every batch, the optimizer with every "
                             "%d: right only where the schedule's length is counted in batches",
                             t->times);
        } else {
            ls_verdict_cause(&out->verdict,
                             "the schedule runs at %d times its speed: right only where its length "
                             "is counted so",
                             t->times);
        }
        ls_finding_blame(out, t->place, "%s",
                         of_steps ? "step it once for each step, or multiply its length"
                                  : "if it is not meant: step it once for each step");
    }
    return of_steps;
}

/* Whole passes over training data that began after that step. */
static int passes_after(const ls_observe_rank *rank, int64_t step)
{
    int count = 0;
    const ls_event *data;
    ls_event_each(data, ls_trace_events(rank, data)) {
        count += ls_pass_is_trained(data) && ls_event_bool(data, whole, false) &&
                 ls_pass_first_step(data) > (double)step;
    }
    return count;
}

/* The rate of the first group changes after that step: a library asks the schedule for its values,
 * and sets them itself. */
static bool rate_changes(const ls_observe_rank *rank, int64_t after)
{
    double first = NAN;
    ls_trace_each_step(step, rank) {
        double rate = step->step->step > after ? step->step->lr : NAN;
        if (!isnan(rate) && !isnan(first) && rate != first) {
            return true;
        }
        first = isnan(first) ? rate : first;
    }
    return false;
}

/* A library counts it on, and asks it for its values. */
static bool is_moved(const ls_observe_rank *rank, const ls_event *schedule)
{
    const ls_event *moved;
    ls_event_each(moved, ls_trace_events(rank, schedule_moved)) {
        if (ls_event_int(moved, schedule, -1) == ls_event_int(schedule, schedule, -2)) {
            return true;
        }
    }
    return false;
}

static const ls_tol idle_passes =
    LS_TOL(2, "whole passes: a schedule of epochs is stepped after the first at the latest");
static const ls_tol many_steps =
    LS_TOL(50, "steps: a schedule of steps is stepped in each; one of epochs waits for their end");
static const ls_tol idle_steps =
    LS_TOL(8, "steps: fewer are a trial run, which ends before its schedule begins");

/* A schedule that was built and is never stepped, where no other one is: not of those that wait for
 * a value or for the end of the training. */
static void judge_idle(const ls_observe_rank *rank, ls_observe_finding *out)
{
    const ls_event *event;
    ls_event_each(event, ls_trace_events(rank, schedule)) {
        const char *class = ls_event_text(event, class, "");
        int64_t step = ls_event_integer(event, step, 0), after = steps_of(rank) - step;
        int passes = passes_after(rank, step);
        if (strstr(class, "Plateau") != NULL || strstr(class, "SWA") != NULL ||
            ls_spans_held(rank, event) || is_moved(rank, event) || out->verdict.code != LS_PASS ||
            (passes < idle_passes.value && (double)after < many_steps.value) ||
            (double)after < idle_steps.value || rate_changes(rank, step)) {
            continue;
        }
        bool waits = ls_event_bool(event, stepped_if, false);
        ls_finding_set(out, waits || passes < idle_passes.value ? LS_WEAK : LS_FAIL, "",
                       "scheduler.step() is missing: the learning rate stays what the schedule's "
                       "constructor made of it",
                       NULL, "a %s is built and never stepped, in %lld steps and %d whole passes%s",
                       class, (long long)after, passes,
                       waits ? "; the script does so under a condition" : "");
        ls_finding_blame(
            out, ls_event_text(event, at, ""),
            "call scheduler.step() after each step or epoch, as its length is counted");
    }
}

/* What a schedule that is stepped by a measured value was given, and the training's loss. */
typedef struct measured {
    const ls_call *last;
    int calls, worse;
    double value, rate, loss; /* of the first call: its rate, the mean loss of the steps before */
    double rate_now, loss_now;
} measured;

static void note_value(const ls_call *call, double loss, measured *m)
{
    double value = ls_event_number(call->json, metric, NAN);
    bool least = strcmp(ls_calls_text(call, better), "min") == 0;
    m->rate_now = ls_event_number_at(ls_event_list(call->json, lr), 0);
    m->loss_now = loss;
    m->rate = m->calls == 0 ? m->rate_now : m->rate;
    m->loss = m->calls == 0 ? loss : m->loss;
    m->worse += m->calls > 0 && (least ? value > m->value : value < m->value);
    m->value = value;
    m->last = call;
    m->calls++;
}

/* By the schedules' numbers. */
static void read_values(const ls_observe_rank *rank, measured list[SCHEDULES])
{
    double sum[SCHEDULES] = {0};
    int steps[SCHEDULES] = {0};
    ls_trace_each_step(step, rank) {
        for (int n = 0; n < SCHEDULES; n++) {
            sum[n] += step->step->loss;
            steps[n]++;
        }
        ls_trace_each_kind(call, step, LS_CALL_SCHEDULE) {
            int n = ls_event_int(call->json, schedule, SCHEDULES);
            if (n >= 0 && n < SCHEDULES && ls_event_has(call->json, metric)) {
                note_value(call, sum[n] / steps[n], &list[n]);
                sum[n] = steps[n] = 0;
            }
        }
    }
}

static const ls_tol always_worse =
    LS_TOL(5, "values: of 5 random ones each is above the one before once in 5! = 120 times");
static const ls_tol learns = LS_TOL(0x1p-5, "of the mean loss: what falls by less may be noise");

/* All values are worse than the one before, by the schedule's mode, while the training's loss
 * falls: more of it is better, or its sign is turned. */
static void judge_measured(int k, measured m, ls_observe_finding *out)
{
    if (m.calls < always_worse.value || m.worse < m.calls - 1 || !(m.rate_now < m.rate) ||
        !(m.loss_now < m.loss - learns.value * fabs(m.loss))) {
        return;
    }
    const char *better = ls_calls_text(m.last, better);
    bool least = strcmp(better, "min") == 0;
    ls_finding_set(out, LS_FAIL, m.last->at,
                   "the schedule's mode does not fit the value: it cuts the rate while training "
                   "improves",
                   least ? "mode=\"max\" for an accuracy, and a loss without a minus"
                         : "mode=\"min\" for a loss",
                   "rank %d: %s in mode %s is given a value that %s in each of %d calls, while the "
                   "training's loss goes from %.3g to %.3g: it has cut the rate from %.3g to %.3g",
                   k, ls_calls_text(m.last, class), better, least ? "grows" : "falls", m.calls,
                   m.loss, m.loss_now, m.rate, m.rate_now);
}

/* A schedule that is stepped with every batch of a step is early in each but the last of them. */
static void fail_early(const ls_observe_trace *trace, int k, const ls_call *early,
                       ls_observe_finding *out)
{
    turns list[SCHEDULES];
    int count = read_turns(&trace->rank[k], trace->world, list), batches = 0;
    for (int t = 0; t < count; t++) {
        bool own = list[t].number == ls_event_int(early->json, schedule, -1);
        batches = own && list[t].batches >= two_turns.value ? list[t].times : batches;
    }
    ls_finding_set(out, LS_FAIL, early->at, "scheduler.step() before optimizer.step()",
                   batches > 0 ? "step the schedule where the optimizer steps, as often as that"
                               : "call scheduler.step() after optimizer.step()",
                   "rank %d: %s.step() before the first optimizer.step(): the first value "
                   "of the schedule is never used",
                   k, ls_calls_text(early, class));
    if (batches > 0) {
        ls_verdict_cause(&out->verdict,
                         "the schedule is stepped with every batch, the optimizer with every %d",
                         batches);
    }
}

void ls_rules_order_schedule(const ls_observe_trace *trace, ls_observe_finding *out)
{
    schedules s = {0};
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        const ls_call *early = early_schedule(rank);
        schedules own = count_schedules(rank);
        s.calls += own.calls;
        s.skipped += own.skipped;
        s.on_skip = s.on_skip == NULL ? own.on_skip : s.on_skip;
        if (early != NULL && is_called_later(rank, early)) {
            fail_early(trace, k, early, out);
        }
    }
    for (int k = 0; k < trace->world && out->verdict.code != LS_FAIL; k++) {
        turns list[SCHEDULES];
        int count = read_turns(&trace->rank[k], trace->world, list);
        for (int t = 0; t < count; t++) {
            ls_observe_finding one = {0};
            bool sure = judge_turn(trace, k, &list[t], &one);
            (sure ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
        }
        measured values[SCHEDULES] = {0};
        read_values(&trace->rank[k], values);
        for (int n = 0; n < SCHEDULES; n++) {
            ls_observe_finding one = {0};
            judge_measured(k, values[n], &one);
            ls_finding_guess(out, &one);
        }
    }
    if (ls_job_ended_well(trace) && out->verdict.code != LS_FAIL) {
        ls_spans_judge(trace, out);
    }
    if (s.calls == 0) {
        ls_observe_finding one = {0};
        judge_idle(&trace->rank[0], &one);
        ls_finding_guess(out, &one);
    }
    if (s.calls == 0 && out->verdict.code == LS_PASS) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no schedule of the learning rate was stepped");
    }
    if (s.on_skip != NULL) {
        ls_finding_blame(out, s.on_skip->at,
                         "the schedule goes on in %d skipped steps: step it only where the scale "
                         "did not fall, if its length is counted in steps taken",
                         s.skipped / trace->world);
    }
    ls_verdict_pass(&out->verdict, s.calls,
                    "%d calls after the optimizer's, %d of them on skipped steps",
                    s.calls / trace->world, s.skipped / trace->world);
}
