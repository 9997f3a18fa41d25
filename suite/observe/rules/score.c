/* Whether a validation's score is of all its samples, each once and as it is, and whether what is
 * chosen by it is chosen by the score of all ranks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite/observe/trace/calls.h"
#include "kernels/core/list.h"
#include "kernels/core/sort.h"
#include "suite/observe/trace/job.h"
#include "suite/observe/trace/pass.h"
#include "rules.h"

/* ---- validation.fixed ------------------------------------------------------------------------ */

static const ls_tol few = LS_TOL(8, "samples that both passes gave: fewer show little");
static const ls_tol changed =
    LS_TOL(4, "samples: fewer may be made anew for another reason, as a cut-out of a broken one");
static const ls_tol changed_share = LS_TOL(0.1, "of the samples: a flip changes half of them");

static void judge_change(const ls_observe_rank *rank, int k, const ls_event *a, const ls_event *b,
                         int *compared, ls_observe_finding *out)
{
    ls_pass_common c = ls_pass_compare(a, b);
    /* Several classes, or what the data set holds, say that these are the same samples. */
    bool known = c.several || (ls_event_has(a, source) && ls_event_same(a, b, source));
    if (c.classes < few.value || c.alike < c.classes || !known) {
        return;
    }
    ++*compared;
    if (c.other < changed.value || c.other < changed_share.value * c.classes) {
        return;
    }
    /* A pass over training data may be a training score, which is taken with its changes. */
    bool own = ls_pass_is_over_training_data(rank, a);
    bool stored = ls_event_has(a, source);
    ls_finding_set(out, own || !stored ? LS_WEAK : LS_FAIL, ls_job_data_place(a, cut_at),
                   "validation samples are changed at random: the training's augmentation is "
                   "applied to them, too",
                   "give the validation a data set of its own without random changes, also where "
                   "random_split makes both of one",
                   "rank %d: %d of %d samples of the validation at %s are not what they were in "
                   "the pass before, with the same classes%s",
                   k, c.other, c.classes, ls_event_text(a, at, ""),
                   own       ? "; a training score may be taken so"
                   : !stored ? "; its data set holds nothing: it may make new ones each time"
                             : "");
}

void ls_rules_validation_fixed(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    for (int k = 0; k < trace->world; k++) {
        const ls_event *a, *b;
        ls_event_each(a, ls_trace_events(&trace->rank[k], data)) {
            for (b = ls_event_after(a); ls_pass_is_validation(a) && b != NULL;
                 b = ls_event_after(b)) {
                if (ls_pass_is_validation(b) && ls_event_same(a, b, at) &&
                    ls_event_number(a, loader, NAN) == ls_event_number(b, loader, NAN)) {
                    judge_change(&trace->rank[k], k, a, b, &compared, out);
                    break;
                }
            }
        }
    }
    ls_finding_close(out, compared, LS_SKIP,
                     "no two passes of a validation whose samples have classes",
                     "the same samples in %d validations as in those before", compared);
}

/* ---- what follows a validation --------------------------------------------------------------- */

/* Collectives after the first forward without autograd of the steps in which a pass ran, up to the
 * next training forward; of a validation without known forwards, all of them. */
typedef struct after {
    int forwards;           /* in eval mode, without autograd */
    int combined;           /* collectives that put values of ranks together */
    double batch, samples;  /* of the pass */
    int gathers;            /* of as many numbers as a batch or the pass has samples */
    int batches, at_end;    /* those after which nothing is cut off */
    const ls_call *counted; /* the first of them */
    const ls_call *summed;  /* of a few numbers over all ranks, the first */
    bool hands_on;          /* something else is put together */
} after;

static const ls_tol scores =
    LS_TOL(16, "numbers: sums of scores and counts; more of them are something else");

static void note(const ls_call *call, after *out)
{
    out->combined += ls_calls_combine(call);
    double elements = ls_event_number(call->json, elements, 0);
    bool sums = strstr(ls_calls_text(call, op), "reduce") != NULL && elements <= scores.value;
    out->summed = sums && out->summed == NULL ? call : out->summed;
    out->hands_on = out->hands_on || (!sums && ls_calls_combine(call));
    bool whole = elements == out->samples;
    bool batch = !whole && elements >= out->batch && fmod(elements, out->batch) == 0;
    if (strstr(ls_calls_text(call, op), "gather") != NULL && (batch || whole)) {
        out->gathers++;
        if (ls_calls_flag(call, cut) == 0) {
            out->batches += batch ? call->times : 0;
            out->at_end += whole ? call->times : 0;
            out->counted = out->counted == NULL ? call : out->counted;
        }
    }
}

static bool is_eval(const ls_call *call)
{
    return call->kind == LS_CALL_FORWARD && ls_calls_flag(call, grad) == 0 &&
           ls_calls_flag(call, training) == 0;
}

static after look(const ls_observe_rank *rank, const ls_event *data)
{
    after found = {.batch = fmax(2, ls_event_number(data, batch, INFINITY)),
                   .samples = fmax(2, ls_event_number(data, count, INFINITY))};
    int count;
    const ls_observe_step *step = ls_pass_steps(rank, data, &count);
    for (int i = 0; i < count; i++) {
        ls_trace_each_call(call, &step[i]) {
            found.forwards += is_eval(call) ? call->times : 0;
        }
    }
    bool inside = found.forwards == 0;
    for (int i = 0; i < count; i++) {
        ls_trace_each_call(call, &step[i]) {
            if (found.forwards > 0 && call->kind == LS_CALL_FORWARD) {
                inside = ls_calls_flag(call, grad) == 0;
            }
            if (inside && call->kind == LS_CALL_COLLECTIVE) {
                note(call, &found);
            }
        }
    }
    return found;
}

/* ---- validation.choice ----------------------------------------------------------------------- */

/* A file of the best weights so far, by its name: the first one; `until`: steps done at the last.
 */
static const ls_event *best_of(const ls_observe_rank *rank, double *until)
{
    const ls_event *save, *first = NULL;
    *until = -1;
    ls_event_each(save, ls_trace_events(rank, save)) {
        const char *path = ls_event_text(save, path, ""), *name = strrchr(path, '/');
        name = name == NULL ? path : name + 1;
        if (ls_event_int(save, step, 0) > 0 &&
            (strstr(name, "best") != NULL || strstr(name, "Best") != NULL)) {
            first = first == NULL ? save : first;
            *until = ls_event_number(save, step, 0);
        }
    }
    return first;
}

/* The validation of that number on a rank; NULL: there are fewer. */
static const ls_event *validation_at(const ls_observe_rank *rank, int number)
{
    const ls_event *data;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (ls_pass_is_validation(data) && number-- == 0) {
            return data;
        }
    }
    return NULL;
}

/* Each rank's data set is a part of one, and no two have a sample in common. */
static bool is_cut_by_rank(const ls_observe_trace *trace, int k, int number)
{
    const ls_event *own = validation_at(&trace->rank[k], number);
    bool cut = trace->world > 1;
    for (int j = 0; j < trace->world && cut; j++) {
        const ls_event *other = validation_at(&trace->rank[j], number);
        int common, of;
        cut = j == k ||
              (other != NULL && ls_pass_parts_common(own, other, &common, &of) && common == 0);
    }
    return cut;
}

static void judge_best(const ls_observe_trace *trace, int k, int *divided, int *chosen,
                       ls_observe_finding *out)
{
    const ls_observe_rank *rank = &trace->rank[k];
    double until;
    const ls_event *data, *best = best_of(rank, &until);
    int own = 0, others = 0;
    for (int n = 0; (data = validation_at(rank, n)) != NULL; n++) {
        after found = look(rank, data);
        bool cut = is_cut_by_rank(trace, k, n);
        bool parted = cut || ls_pass_is_divided(data, trace->world);
        bool alone = parted && found.combined == 0;
        *divided += parted;
        own += alone && (found.forwards > 0 || cut);
        others += !alone && !(ls_pass_first_step(data) > until); /* a last test chooses nothing */
    }
    *chosen += best != NULL;
    if (best == NULL || own == 0 || others > 0) {
        return;
    }
    ls_finding_set(
        out, LS_FAIL, ls_event_text(best, at, ""),
        "the best weights are chosen by the score of the rank's own part of the samples",
        "all_reduce the sums and counts of the ranks before they are divided and compared",
        "rank %d: %.100s is chosen by a validation that is divided among %d ranks, and nothing is "
        "put together after any of %d",
        k, ls_event_text(best, path, ""), trace->world, own);
}

/* The decision of a callback of that number, or NULL. */
static const ls_call *decision_at(const ls_observe_rank *rank, int index)
{
    ls_trace_each_call_of(walk, rank) {
        const ls_call *call = walk.call;
        if (call->kind == LS_CALL_COLLECTIVE && strcmp(ls_calls_text(call, use), "decision") == 0 &&
            index-- == 0) {
            return call;
        }
    }
    return NULL;
}

static const ls_tol rounding =
    LS_TOL(1e-5, "of the score: sums of some thousand terms in f32, in another order");

/* All ranks take a callback's decision together, but each by what it has: the same where the value
 * was put together before. */
static void judge_decisions(const ls_observe_trace *trace, int k, int *chosen,
                            ls_observe_finding *out)
{
    const ls_call *a, *b;
    for (int i = 0; (a = decision_at(&trace->rank[0], i)) != NULL; i++) {
        b = decision_at(&trace->rank[k], i);
        const char *monitor = ls_calls_text(a, monitor);
        if (b == NULL || monitor[0] == '\0' || strcmp(monitor, ls_calls_text(b, monitor)) != 0) {
            continue;
        }
        double x = ls_event_number(a->json, value, NAN);
        double y = ls_event_number(b->json, value, NAN);
        *chosen += !isnan(x) && !isnan(y);
        if (!(fabs(x - y) > rounding.value * fmax(fabs(x), fabs(y)))) {
            continue;
        }
        ls_finding_set(
            out, LS_FAIL, "",
            "the score is logged without sync_dist=True: the best file or the end of the training "
            "follows each rank's own part of the samples",
            NULL, "a callback chooses by \"%.60s\", which is %.6g on rank 0 and %.6g on rank %d",
            monitor, x, y, k);
        ls_finding_blame(out, a->at, "self.log(\"%.60s\", ..., sync_dist=True)", monitor);
        return;
    }
}

void ls_rules_validation_choice(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int divided = 0, chosen = 0, decided = 0;
    for (int k = 0; k < trace->world; k++) {
        judge_best(trace, k, &divided, &chosen, out);
        if (k > 0) {
            judge_decisions(trace, k, &decided, out);
        }
    }
    if (decided == 0 && (divided == 0 || chosen == 0)) {
        ls_verdict_set(&out->verdict, LS_SKIP, "%s",
                       divided == 0 ? "no validation is divided among the ranks"
                                    : "nothing is seen to be chosen by a validation");
    }
    ls_verdict_pass(&out->verdict, chosen + decided,
                    "what is chosen follows the scores of all ranks");
}

/* ---- validation.padding ---------------------------------------------------------------------- */

/* How many samples the ranks together drew again in the validation of that number. */
static double drawn_again(const ls_observe_trace *trace, int number, double *length)
{
    enum { MOST = 1 << 20 };
    double *all = ls_list_make(MOST, sizeof *all);
    int count = 0, again = 0;
    *length = NAN;
    for (int k = 0; k < trace->world; k++) {
        const ls_event *data, *entry;
        int index = number;
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            if (!ls_pass_is_validation(data) || index-- != 0) {
                continue;
            }
            *length =
                ls_event_number(data, modulus, 0) == 1 ? ls_event_number(data, length, NAN) : NAN;
            ls_event_each(entry, ls_event_list(data, kept)) {
                if (count < MOST && ls_event_is_number(entry)) {
                    all[count++] = entry->number;
                }
            }
        }
    }
    ls_sort_doubles(all, count);
    for (int i = 1; i < count; i++) {
        again += all[i] == all[i - 1];
    }
    free(all);
    return again;
}

static const ls_tol padding_share =
    LS_TOL(0.01, "of the samples: what a sampler's padding adds to a large set moves no score");

static void judge_padding(const ls_observe_trace *trace, int number, const ls_event *data,
                          int *gathered, ls_observe_finding *out)
{
    after found = look(&trace->rank[0], data);
    double length, batches = floor(found.samples / found.batch);
    bool sums = found.summed != NULL && !found.hands_on;
    if (!ls_pass_is_divided(data, trace->world) || (found.gathers == 0 && !sums)) {
        return;
    }
    ++*gathered;
    double again = drawn_again(trace, number, &length);
    if (sums && again > padding_share.value * length) {
        ls_finding_set(out, LS_FAIL, found.summed->at,
                       "samples that a sampler adds, so that all ranks have as many, count twice "
                       "in the score",
                       "divide the data set without padding (Subset(data, range(rank, len(data), "
                       "world))), or leave out what was added",
                       "the ranks draw %g of %g samples of a validation again, and sum what they "
                       "find over all of them",
                       again, length);
    }
    if (sums) {
        return;
    }
    if (again == 0 || !((found.batches > 0 && found.batches >= batches) || found.at_end > 0)) {
        return;
    }
    bool counts = again > padding_share.value * length;
    ls_finding_set(out, counts ? LS_FAIL : LS_WEAK, found.counted->at,
                   "what fills up the last batches is counted in the score: samples come twice in "
                   "what is gathered",
                   "gather_for_metrics(...) in place of gather(...), or cut what is gathered to "
                   "the number of samples",
                   "the ranks draw %g of %g samples of a validation again, so that all have as "
                   "many, gather what they find in %d calls and cut nothing off",
                   again, length, found.batches + found.at_end);
}

void ls_rules_validation_padding(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int gathered = 0, number = 0;
    const ls_event *data;
    ls_event_each(data, ls_trace_events(&trace->rank[0], data)) {
        if (ls_pass_is_validation(data)) {
            judge_padding(trace, number++, data, &gathered, out);
        }
    }
    ls_finding_close(out, gathered, LS_SKIP,
                     "no validation that is divided puts together what ranks find in its samples",
                     "%d validations put together what ranks find, and count none twice", gathered);
}
