/* Whether steps train on what the loader drew: samples that a collate function reads and leaves
 * out, rows of a batch that no forward gets, forwards that no backward comes to, batches that are
 * overwritten before their turn, and labels of other samples. What is chosen by its content, or at
 * random, is not one of these: they are at the same places in every batch.
 */
#include <math.h>
#include <string.h>

#include "kernels/core/text.h"
#include "rules.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"
#include "suite/observe/trace/pass.h"

enum { MOST = 1024 }; /* places of a batch */

static const ls_tol bits =
    LS_TOL(12, "bits: a choice by content or at random falls on the same places once in 4,096");
static const ls_tol batches_alike = LS_TOL(2, "batches that were made again");

/* ---- the collate function -------------------------------------------------------------------- */

typedef struct collated {
    const ls_event *data; /* the first pass of a loader with this function */
    int batches, samples;
    int part[MOST], lost[MOST]; /* batches which the sample at that place changes, and does not */
} collated;

static void count(int *places, const ls_event *list)
{
    const ls_event *place;
    ls_event_each(place, list) {
        int at = ls_event_to_int(place, -1);
        if (at >= 0 && at < MOST) {
            places[at]++;
        }
    }
}

/* `field`: of the samples, or "": as a whole. */
static void add(collated *c, const ls_event *data, const char *field)
{
    const ls_event *entry;
    ls_event_each(entry, ls_event_list(data, collated)) {
        int samples = ls_event_to_int(ls_event_at(entry, 0), 0);
        if (strcmp(ls_event_to_text(ls_event_at(entry, 4), ""), field) == 0) {
            c->samples = c->batches == 0 && samples <= MOST ? samples : c->samples;
            if (samples == c->samples) { /* else a last batch */
                c->batches++;
                count(c->part, ls_event_at(entry, 1));
                count(c->lost, ls_event_at(entry, 2));
            }
        }
    }
}

static void judge_field(const collated *c, const char *field, ls_observe_finding *out)
{
    int lost = 0, tried = 0, begin = -1;
    for (int i = 0; i < c->samples; i++) {
        bool always = c->part[i] == 0 && c->lost[i] >= batches_alike.value;
        lost += always;
        tried += always || c->part[i] > 0;
        begin = always && begin < 0 ? i : begin;
    }
    if (lost == 0) {
        return;
    }
    LS_TEXT(whose, 100, "%s%.60s%s", field[0] == '\0' ? "" : " (\"", field,
            field[0] == '\0' ? "" : "\" of them)");
    ls_observe_finding one = {0};
    ls_finding_set(&one, LS_FAIL, ls_event_text(c->data, collate_at, ""),
                   "the collate function hands on some of its samples alone, always those at the "
                   "same places: the others are read, and never trained on",
                   "let it return all of them: look for [0], a slice or an argument in the wrong "
                   "form in it and in what it calls",
                   "%d of %d samples of a batch%s, from the one at place %d on, change nothing of "
                   "it, whatever they are: so in all of %d batches that were made again",
                   lost, tried, whose, begin, c->batches);
    if (2 * lost >= tried) { /* a remainder is less than what it is left of */
        ls_calls_keep_worst(out, &one);
    } else {
        ls_finding_guess(out, &one);
    }
}

/* All of one function, on all ranks: each may keep another part of what all of them draw. */
static int judge_collate(const ls_observe_trace *trace, const ls_event *first,
                         ls_observe_finding *out)
{
    const ls_event *entry;
    int batches = 0;
    ls_event_each(entry, ls_event_list(first, collated)) {
        const char *field = ls_event_to_text(ls_event_at(entry, 4), "");
        collated c = {.data = first};
        for (int k = 0; k < trace->world; k++) {
            const ls_event *data;
            ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
                if (ls_pass_is_trained(data) && ls_event_same(data, first, collate_at)) {
                    add(&c, data, field);
                }
            }
        }
        if (out->verdict.code != LS_FAIL) {
            judge_field(&c, field, out);
        }
        batches = field[0] == '\0' ? c.batches : batches;
    }
    return batches;
}

static bool is_first(const ls_observe_rank *rank, const ls_event *data)
{
    const ls_event *other;
    ls_event_each(other, ls_trace_events(rank, data)) {
        if (ls_pass_is_trained(other) && ls_event_count(ls_event_list(other, collated)) > 0 &&
            ls_event_same(other, data, collate_at)) {
            return other == data;
        }
    }
    return false;
}

/* ---- the loop -------------------------------------------------------------------------------- */

enum { UNSEEN = 0, OTHERS = 1, NO_BACKWARD = 2, TRAINED = 3 }; /* what: events.def */

typedef struct batch {
    int pass, drawn, rows, backwards, reached;
    const ls_event *runs;
    int used, unseen, wasted; /* rows; of others nothing is said */
    int times;                /* of all rows that are known: forwards of each; -1: they differ */
} batch;

static batch read(const ls_event *entry)
{
    batch b = {.runs = ls_event_at(entry, 5), .times = -2};
    int *number[] = {&b.pass, &b.drawn, &b.rows, &b.backwards, &b.reached};
    for (int i = 0; i < 5; i++) {
        *number[i] = ls_event_to_int(ls_event_at(entry, i), -1);
    }
    const ls_event *run = ls_event_first(b.runs);
    while (run != NULL && ls_event_after(run) != NULL) {
        int what = ls_event_to_int(run, -1), count = ls_event_to_int(ls_event_after(run), 0);
        b.used += what >= TRAINED ? count : 0;
        b.unseen += what == UNSEEN ? count : 0;
        b.wasted += what == NO_BACKWARD ? count : 0;
        int times = what >= TRAINED ? what - NO_BACKWARD : 0;
        b.times = what < 0 ? b.times : b.times == -2 || b.times == times ? times : -1;
        run = ls_event_after(ls_event_after(run));
    }
    return b;
}

static double bits_of(int n, int k) /* of a choice of k out of n */
{
    return (lgamma(n + 1.0) - lgamma(k + 1.0) - lgamma(n - k + 1.0)) / log(2);
}

static const char *backward_at(const ls_observe_rank *rank)
{
    const ls_call *call = ls_trace_first(rank, LS_CALL_BACKWARD);
    return call == NULL ? "" : call->at;
}

static const ls_event *pass_of(const ls_observe_rank *rank, int loader)
{
    const ls_event *data;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (ls_event_int(data, loader, -1) == loader) {
            return data;
        }
    }
    return NULL;
}

/* Whether rows are samples, and not the steps of a sequence, say: torch's own collate function
 * makes them so. */
static bool is_of_samples(const ls_event *data)
{
    const ls_event *entry;
    ls_event_each(entry, ls_event_list(data, collated)) {
        if (ls_event_to_bool(ls_event_at(entry, 3), false)) {
            return true;
        }
    }
    return ls_event_text(data, collate_at, "")[0] == '\0';
}

typedef struct places {
    batch whole; /* of a loader; .runs NULL: they differ, or nothing is lost */
    int batches, lost, known;
} places;

/* Rows at the same places of each whole batch, while others of it are trained on. */
static places read_places(const ls_event *event)
{
    const ls_event *entry;
    places p = {0}, none = {0};
    ls_event_each(entry, ls_event_list(event, batches)) {
        batch b = read(entry);
        if (b.rows > p.whole.rows) {
            p = (places){.whole = b};
        }
        if (b.rows == p.whole.rows) {
            /* rows that were changed on their way may be among those that were trained on */
            if (!ls_event_equal(b.runs, p.whole.runs) || b.reached >= b.rows || b.drawn != b.rows) {
                return none;
            }
            p.batches++;
        }
    }
    p.lost = p.whole.unseen + p.whole.wasted;
    p.known = p.whole.used + p.lost;
    bool chosen = (p.batches - 1) * bits_of(p.known, p.lost) < bits.value;
    return p.whole.used == 0 || p.lost == 0 || chosen ? none : p;
}

static bool is_compiled(const ls_observe_rank *rank)
{
    const ls_event *model;
    ls_event_each(model, ls_trace_events(rank, model)) {
        if (ls_event_bool(model, compiled, false)) {
            return true;
        }
    }
    return false;
}

/* Rows of a micro-batch, where the batch is trained on in equal ones and its last rows, which are
 * fewer, go into no forward; else 0. */
static int part_of(const places *p)
{
    const batch *b = &p->whole;
    int part = b->backwards > 1 ? b->used / b->backwards : 0;
    bool ends =
        ls_event_count(b->runs) == 4 && ls_event_to_int(ls_event_first(b->runs), -1) == TRAINED;
    bool equal = b->used == part * b->backwards && b->reached == b->used;
    return ends && equal && b->unseen == p->lost && p->lost < part ? part : 0;
}

static const ls_tol share = LS_TOL(1e-6, "of a quotient: one that was rounded to f32, and more");

/* Whether the losses are a mean over all rows of the batch: each micro-batch's is a sum that is
 * divided by these, or a mean that is multiplied by its share of them. */
static bool counts_all(const ls_observe_rank *rank, int rows, int part)
{
    int known = 0;
    ls_trace_each_call_of(walk, rank) {
        const char *of = ls_calls_text(walk.call, loss_of);
        if (walk.call->kind != LS_CALL_BACKWARD || of[0] == '\0') {
            continue;
        }
        bool sum = strcmp(of, "sum") == 0;
        double all = ls_event_number(walk.call->json, loss_times, NAN) * rows / (sum ? 1 : part);
        if (!(fabs(all - 1) < share.value) ||
            (sum && (ls_event_int(walk.call->json, loss_first, -1) != part ||
                     !ls_event_bool(walk.call->json, loss_divided, false)))) {
            return false;
        }
        known++;
    }
    return known > 0;
}

/* The same on all ranks: one may draw for the others, or each take its part of what all draw. */
static void judge_places(const ls_observe_trace *trace, int number, ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[0];
    places p = {0};
    const ls_event *event = NULL;
    for (int k = 0; k < trace->world; k++) {
        const ls_event *list = ls_trace_events(&trace->rank[k], rows);
        const ls_event *one = ls_job_numbered(list, LS_INTEGER(loader), number);
        places its = one == NULL ? (places){0} : read_places(one);
        if (its.whole.runs == NULL || (k > 0 && !ls_event_equal(its.whole.runs, p.whole.runs))) {
            return;
        }
        p = k == 0 ? its : p;
        event = k == 0 ? one : event;
    }
    batch first = p.whole;
    int lost = p.lost, known = p.known, batches = p.batches;
    if (event == NULL || !is_of_samples(pass_of(rank, number))) {
        return;
    }
    bool wasted = first.wasted > 0;
    bool hidden = ls_event_count(ls_trace_events(rank, outside)) > 0 || is_compiled(rank);
    int part = part_of(&p);
    if (!wasted && (hidden || (2 * lost < known && part == 0))) {
        return; /* a module that is not known may have got them, or they are targets alone */
    }
    ls_observe_finding one = {0};
    ls_finding_set(
        &one, LS_FAIL, wasted ? backward_at(rank) : ls_event_text(event, at, ""),
        wasted ? "a part of each batch goes backward alone: the losses of the others are "
                 "overwritten, or backward is behind the loop over the parts"
        : part > 0
            ? "the number of micro-batches of a batch is rounded down: its last rows fill none"
            : "a part of each batch alone is given to the model: a slice",
        wasted     ? "call backward for each part of the batch, or for the sum of their losses"
        : part > 0 ? "round up: the last micro-batch has the rows that are left; or let the loader "
                     "draw a multiple"
                   : "give the model the whole batch, or let the loader draw smaller ones",
        "%d of %d rows of a batch, always those at the same places, %s: so in %d batches", lost,
        known,
        wasted ? "go into training forwards that no backward comes to" : "go into no forward",
        batches);
    bool meant = part > 0 && counts_all(rank, first.rows, part);
    (2 * lost >= known || meant ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
}

/* Batches in turn: of each `period` one is trained on. */
static void judge_turns(const ls_observe_rank *rank, const ls_event *event, ls_observe_finding *out)
{
    const ls_event *entry;
    int used = 0, wasted = 0, since = -1, period = 0, pass = -1;
    ls_event_each(entry, ls_event_list(event, batches)) {
        batch b = read(entry);
        if (b.pass != pass) {
            pass = b.pass;
            since = -1;
        }
        if (b.wasted > 0 && b.used == 0 && b.unseen == 0 && b.backwards == 0) {
            wasted++;
            since += since >= 0;
        } else if (b.used > 0 && b.wasted == 0 && b.unseen == 0) {
            period = since >= 0 && period == 0 ? since + 1 : period;
            if (since >= 0 && since + 1 != period) {
                return; /* a choice by the loss, say */
            }
            used++;
            since = 0;
        } else {
            return;
        }
    }
    if (period < 2 || bits_of(used + wasted, used) < bits.value) {
        return;
    }
    ls_finding_set(out, LS_FAIL, backward_at(rank),
                   "batches are run forward and dropped: the loop goes on to the next one before "
                   "its backward",
                   "call backward for each batch, and leave out the optimizer's step alone",
                   "%d of %d batches go into training forwards that no backward comes to: of each "
                   "%d in a row one is trained on",
                   wasted, used + wasted, period);
}

/* Batches of which one is trained on as many times as there are in its turn, and no other is. */
static void judge_repeated(const ls_event *event, const ls_event *data, ls_observe_finding *out)
{
    const ls_event *entry;
    int batches = 0, lost = 0, period = 0, since = 0;
    ls_event_each(entry, ls_event_list(event, batches)) {
        batch b = read(entry);
        since++;
        if (b.times < 0 || b.wasted > 0 || (b.times > 0 && b.times != since)) {
            return;
        }
        batches++;
        lost += b.times == 0;
        if (b.times > 0) {
            period = period == 0 ? since : period;
            if (since != period) {
                return;
            }
            since = 0;
        }
    }
    if (period < 2 || (double)batches * log2(period) < bits.value) {
        return;
    }
    ls_finding_set(
        out, LS_FAIL, ls_event_text(data, at, ""),
        "batches that are kept for later are overwritten by the next one: the last of "
        "them is trained on in the place of all",
        "copy what is kept (clone()), or give each batch memory of its own",
        "of each %d batches the last one is trained on %d times, the others never: %d of "
        "%d",
        period, period, lost, batches);
}

/* What becomes of the batches at the ends of a pass whose others are trained on once each. */
typedef enum ends { OTHERWISE, SHIFTED, NO_FIRST, NO_LAST } ends;

static ends ends_of(const batch *pass, int count)
{
    const batch *first = &pass[0], *last = &pass[count - 1];
    for (int i = 1; i < count - 1; i++) {
        if (pass[i].times != 1) {
            return OTHERWISE;
        }
    }
    if ((first->times == 0 && last->times == 2) || (first->times == 2 && last->times == 0)) {
        return SHIFTED;
    }
    int rows = pass[1].rows; /* a smaller last batch may be left out */
    return first->unseen == rows && last->times == 1   ? NO_FIRST
           : last->unseen == rows && first->times == 1 ? NO_LAST
                                                       : OTHERWISE;
}

enum { WATCHED = 64, FEW = 4 }; /* batches */

static const ls_tol passes_alike = LS_TOL(2, "passes: one may end where the job does");

/* Whole passes one after the other that end alike; how many. */
static int count_ends(const ls_observe_rank *rank, const ls_event *event, ends *kind, bool *first)
{
    const ls_event *entry, *data = ls_event_first(ls_trace_events(rank, data));
    batch pass[WATCHED];
    int count = 0, passes = 0, number = ls_event_int(event, loader, -1);
    ls_event_each(entry, ls_event_list(event, batches)) {
        batch b = read(entry);
        if (count > 0 && b.pass != pass[0].pass) {
            ends its = count < FEW || count == WATCHED ? OTHERWISE : ends_of(pass, count);
            while (data != NULL && (ls_event_int(data, loader, -1) != number ||
                                    ls_event_int(data, pass, -1) != pass[0].pass)) {
                data = ls_event_after(data);
            }
            if (its == OTHERWISE || (passes > 0 && its != *kind) ||
                (its != SHIFTED && !ls_event_bool(data, whole, false))) {
                return 0;
            }
            *kind = its;
            *first = pass[0].times == 0;
            passes++;
            count = 0;
        }
        pass[count] = b;
        count += count < WATCHED;
    }
    return passes;
}

static void judge_ends(const ls_observe_rank *rank, const ls_event *event, const ls_event *data,
                       ls_observe_finding *out)
{
    ends kind = OTHERWISE;
    bool first = false;
    int passes = count_ends(rank, event, &kind, &first);
    const char *lost = first ? "first" : "last";
    if (kind == SHIFTED && passes > 0) {
        ls_finding_set(out, LS_FAIL, ls_event_text(data, at, ""),
                       "what is fetched ahead is taken a batch too early or too late: it is not "
                       "kept apart from the batch in use",
                       "hand on the batch in use before the next one is fetched, in memory of its "
                       "own",
                       "the %s batch of a pass is never trained on, and the %s one twice: so in %d "
                       "of %d whole passes that were watched",
                       lost, first ? "last" : "first", passes, passes);
    } else if (passes >= passes_alike.value) {
        ls_observe_finding one = {0};
        ls_finding_set(&one, LS_FAIL, ls_event_text(data, at, ""),
                       "what is fetched ahead is dropped at an end of the pass",
                       "hand on each batch, also the one that is there when no further one comes",
                       "the %s batch of a pass goes into no forward, and each other one is trained "
                       "on once: so in %d whole passes that were watched",
                       lost, passes);
        ls_finding_guess(out, &one);
    }
}

/* Labels that came with other samples than those that the model was given. */
static void judge_labels(const ls_observe_rank *rank, const ls_event *event,
                         ls_observe_finding *out)
{
    const ls_event *labels = ls_event_list(event, labels);
    int tried = ls_event_to_int(ls_event_at(labels, 0), 0);
    for (int kind = 2; kind <= 3; kind++) {
        int wrong = ls_event_to_int(ls_event_at(labels, kind), 0);
        if (wrong < FEW || 2 * wrong < tried || ls_event_number_at(labels, 1) != 0) {
            continue;
        }
        ls_finding_set(out, LS_FAIL, backward_at(rank),
                       kind == 2 ? "the loss gets labels of another batch than the one that the "
                                   "model is given"
                                 : "labels are shifted against their samples by one",
                       "give the loss the labels that came with the batch, in the same order",
                       "in %d of %d forwards of rows as the loader gave them the loss gets the "
                       "labels of %s, and in none those of these rows",
                       wrong, tried,
                       kind == 2 ? "the same rows of another batch" : "the rows beside them");
    }
}

void ls_rules_data_used(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        const ls_event *event;
        ls_event_each(event, ls_trace_events(rank, data)) {
            if (k == 0 && ls_pass_is_trained(event) && is_first(rank, event)) {
                compared += judge_collate(trace, event, out);
            }
        }
        ls_event_each(event, ls_trace_events(rank, rows)) {
            ls_observe_finding one = {0};
            int number = ls_event_int(event, loader, -1);
            const ls_event *pass = pass_of(rank, number);
            if (k == 0) {
                judge_places(trace, number, &one);
            }
            judge_turns(rank, event, &one);
            judge_repeated(event, pass, &one);
            judge_ends(rank, event, pass, &one);
            judge_labels(rank, event, &one);
            ls_calls_keep_worst(out, &one);
            compared += ls_event_count(ls_event_list(event, batches));
        }
    }
    ls_finding_close(out, compared, LS_SKIP,
                     "no batch was made again, and no forward got rows as the loader gave them",
                     "%d batches whose samples, or rows, are trained on", compared);
}
