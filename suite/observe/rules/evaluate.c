/* Whether validations count every picture once over all ranks and leave the model as it is, and
 * whether what is kept as the best is. Of trainers that report their validations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/hosts/hosts.h"
#include "kernels/core/list.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/pass.h"
#include "rules.h"

/* ---- evaluation.counted ---------------------------------------------------------------------- */

/* Each event's pictures against the data set's. */
static void check_sums(const ls_observe_rank *rank, int number, int *compared,
                       ls_observe_finding *out)
{
    const ls_event *epoch;
    ls_event_each(epoch, ls_trace_events(rank, epoch)) {
        const ls_event *val = ls_event_object(epoch, val), *one, *made = NULL;
        double step = ls_event_number(epoch, step, -1);
        ls_event_each(one, ls_trace_events(rank, validation)) {
            made = made == NULL && ls_event_number(one, step, NAN) == step ? one : made;
        }
        double length = ls_event_number(made, length, NAN);
        double images = ls_event_number(val, images, NAN) + ls_event_number(val, bad_images, 0);
        if (isnan(length) || isnan(images)) {
            continue;
        }
        ++*compared;
        if (images != length) {
            ls_finding_set(out, LS_FAIL, "",
                           images > length
                               ? "pictures that fill up a batch or a rank's part are counted"
                               : "a part of the data set is left out",
                           NULL, "rank %d: the validation after step %g counts %g pictures of %g",
                           number, step, images, length);
        }
    }
}

static const ls_event *pass_of(const ls_observe_rank *rank, int number)
{
    const ls_event *data;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (!ls_event_bool(data, trained, true) && ls_event_bool(data, indices, false) &&
            ls_event_int(data, pass, -1) == number) {
            return data;
        }
    }
    return NULL;
}

/* Every index that the ranks draw in their validation of that number; false: there is none. */
static bool check_pass(const ls_observe_trace *trace, int number, int *compared,
                       ls_observe_finding *out)
{
    const ls_event *first = pass_of(&trace->rank[0], number), *index;
    int64_t length = ls_event_integer(first, length, 0);
    int64_t modulus = ls_event_integer(first, modulus, 1), twice = 0, drawn = 0;
    if (first == NULL || length < 1 || length > (INT64_C(1) << 31) || modulus < 1) {
        return false;
    }
    int64_t places = (length + modulus - 1) / modulus;
    char *seen = ls_list_make((size_t)places, 1);
    for (int k = 0; k < trace->world; k++) {
        const ls_event *data = pass_of(&trace->rank[k], number);
        ls_event_each(index, ls_event_list(data, kept)) {
            int64_t at = -1;
            bool good = ls_json_whole(index->number, 0, length - 1, &at);
            twice += good && seen[at / modulus];
            drawn += good && !seen[at / modulus];
            if (good) {
                seen[at / modulus] = 1;
            }
        }
    }
    free(seen);
    ++*compared;
    if (drawn < places || twice > 0) {
        ls_finding_set(out, LS_FAIL, "",
                       "the ranks do not share the pictures: some validate those of another", NULL,
                       "of %lld pictures of validation %d the ranks take %lld, %lld of them again",
                       (long long)places, number, (long long)drawn, (long long)twice);
    }
    return true;
}

static void check_statistics(const ls_observe_rank *rank, int number, int *compared,
                             ls_observe_finding *out)
{
    const ls_event *one;
    ls_event_each(one, ls_trace_events(rank, validation)) {
        const char *before = ls_event_text(one, buffers_before, "");
        ++*compared;
        if (strcmp(before, ls_event_text(one, buffers_after, "")) != 0) {
            ls_finding_set(out, LS_FAIL, "",
                           "norms are in training mode while the model is validated", NULL,
                           "rank %d: the validation after step %g changes running statistics",
                           number, ls_event_number(one, step, -1));
            return;
        }
    }
}

/* What a number that a script's ranks sum after a validation counts. */
typedef enum counts {
    COUNTS_SAMPLES,
    COUNTS_BATCHES,
    COUNTS_WHOLE,  /* batches as if all were whole */
    COUNTS_LENGTH, /* the whole data set, on each rank */
    COUNTS_OTHER,  /* nothing that is known */
    COUNTS_NONE,   /* nothing is summed */
} counts;

static const ls_tol passes =
    LS_TOL(2, "validations of each rank: in one a score may be equal to a count by chance");

/* Of several numbers, which of these one is: samples before all others. */
static counts counted_by(const ls_call *call, const ls_event *data)
{
    double samples = ls_event_number(data, count, NAN), given = ls_event_number(data, given, NAN);
    double wanted[COUNTS_OTHER] = {samples, given, given * ls_event_number(data, batch, NAN),
                                   ls_event_number(data, length, NAN)};
    const ls_event *value, *values = ls_event_list(call->json, values);
    counts found = COUNTS_OTHER;
    ls_event_each(value, values) {
        for (counts c = COUNTS_SAMPLES; c < found; c++) {
            if (ls_event_is_number(value) && value->number == wanted[c]) {
                found = c;
            }
        }
    }
    return ls_event_count(values) > 1 ? found : COUNTS_OTHER;
}

/* Whether it is a whole pass over a rank's part, with a last batch that is smaller, and the only
 * one of its steps. */
static bool is_uneven(const ls_observe_trace *trace, const ls_observe_rank *rank,
                      const ls_event *data)
{
    double samples = ls_event_number(data, count, NAN), batch = ls_event_number(data, batch, NAN);
    double given = ls_event_number(data, given, NAN);
    const ls_event *other;
    int near = 0;
    ls_event_each(other, ls_trace_events(rank, data)) {
        near += ls_pass_is_validation(other) &&
                ls_pass_first_step(other) <= ls_pass_last_step(data) &&
                ls_pass_last_step(other) >= ls_pass_first_step(data);
    }
    return ls_pass_is_validation(data) && ls_event_bool(data, whole, false) && near == 1 &&
           ls_pass_is_divided(data, trace->world) && given >= 2 && fmod(samples, batch) > 0 &&
           given == ceil(samples / batch);
}

/* What all numbers that ranks put together after the pass are counted by, where that is one thing.
 */
static counts pass_counts(const ls_observe_rank *rank, const ls_event *data, const ls_call **at)
{
    counts found = COUNTS_NONE;
    int count;
    const ls_observe_step *step = ls_pass_steps(rank, data, &count);
    for (int i = 0; i < count; i++) {
        bool known = false, behind = false; /* a forward without autograd */
        ls_trace_each_kind(call, &step[i], LS_CALL_FORWARD) {
            known = known || ls_calls_flag(call, grad) == 0;
        }
        ls_trace_each_call(call, &step[i]) {
            behind = call->kind == LS_CALL_FORWARD
                         ? ls_calls_flag(call, grad) == 0
                         : behind || (!known && ls_event_has(call->json, values));
            if (behind && ls_calls_combine(call)) {
                bool sums = strcmp(ls_calls_text(call, reduce), "sum") == 0;
                counts one = sums ? counted_by(call, data) : COUNTS_OTHER;
                *at = *at == NULL ? call : *at;
                found = found == COUNTS_NONE || found == one ? one : COUNTS_OTHER;
            }
        }
    }
    return found;
}

static const char *const divisors[COUNTS_OTHER] = {"", "batches", "batches as if all were whole",
                                                   "samples of the whole data set on each rank"};

/* The divisors of scores that a script sums over its ranks by itself. */
static void check_divisors(const ls_observe_trace *trace, int *compared, ls_observe_finding *out)
{
    counts all = COUNTS_NONE;
    const ls_call *first = NULL;
    const ls_event *data, *last = NULL;
    int seen = 0;
    for (int k = 0; k < trace->world; k++) {
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            const ls_call *call = NULL;
            counts one = is_uneven(trace, &trace->rank[k], data)
                             ? pass_counts(&trace->rank[k], data, &call)
                             : COUNTS_NONE;
            if (one == COUNTS_NONE) {
                continue;
            }
            all = seen++ == 0 || all == one ? one : COUNTS_OTHER;
            first = first == NULL ? call : first;
            last = data;
        }
    }
    *compared += all == COUNTS_SAMPLES ? seen : 0;
    if (all == COUNTS_SAMPLES || all >= COUNTS_OTHER) {
        return;
    }
    ls_finding_set(
        out, seen >= passes.value * trace->world ? LS_FAIL : LS_WEAK, first->at,
        all == COUNTS_BATCHES
            ? "the score is a mean of batches: each counts the same, and the last one is smaller"
            : "the score is divided by more samples than there are",
        "sum what each sample gives, and the number of samples: weigh the mean of a batch by its "
        "size",
        "the ranks sum the number of %s in %d of %d validations, and none of samples: of %g "
        "samples in batches of %g the last one has %g",
        divisors[all], seen, seen, ls_event_number(last, count, NAN),
        ls_event_number(last, batch, NAN),
        fmod(ls_event_number(last, count, NAN), ls_event_number(last, batch, NAN)));
}

/* ---- sums of sums ---------------------------------------------------------------------------- */

static const ls_tol linked =
    LS_TOL(2, "sums of whole numbers, each of which holds all of the one before it on every rank, "
              "and as much as was added to none at first: no accident");

/* Whether a call sums a few numbers over all ranks, at that place. */
static bool sums_numbers(const ls_call *call, const char *at)
{
    return call->kind == LS_CALL_COLLECTIVE && strcmp(call->at, at) == 0 &&
           !ls_event_has(call->json, ranks) && strcmp(ls_calls_text(call, reduce), "sum") == 0 &&
           ls_event_count(ls_event_list(call->json, values)) > 0;
}

/* The ranks' sums at a place so far; what is in a place of them: what the ranks gave first of those
 * that are linked. */
typedef struct sums {
    ls_trace_walk walk[LS_HOSTS_RANKS_MAX];
    double sum, first[LS_HOSTS_RANKS_MAX];
    int links;
} sums;

/* Adds the ranks' next numbers in that place; false: there are none. */
static bool add_sum(const ls_observe_trace *trace, const char *at, int place, sums *s)
{
    double sum = 0, given[LS_HOSTS_RANKS_MAX];
    bool holds = true;
    for (int k = 0; k < trace->world; k++) {
        bool found = false;
        while (!found && ls_trace_walk_next(&s->walk[k])) {
            found = sums_numbers(s->walk[k].call, at);
        }
        if (!found) {
            return false;
        }
        given[k] = ls_event_number_at(ls_event_list(s->walk[k].call->json, values), place);
        sum += given[k];
        holds = holds && s->first[k] > 0 && s->first[k] == round(s->first[k]) &&
                given[k] - s->sum == s->first[k];
    }
    s->links = holds ? s->links + 1 : 0;
    s->sum = sum;
    if (!holds) {
        memcpy(s->first, given, (size_t)trace->world * sizeof *given);
    }
    return true;
}

static void check_total(const ls_observe_trace *trace, const char *at, int place,
                        ls_observe_finding *out)
{
    sums s = {0};
    for (int k = 0; k < trace->world; k++) {
        s.walk[k].rank = &trace->rank[k];
    }
    while (s.links < linked.value && add_sum(trace, at, place, &s)) {
    }
    if (s.links >= linked.value) {
        double last = ls_event_number_at(ls_event_list(s.walk[0].call->json, values), place);
        ls_finding_set(out, LS_FAIL, at,
                       "each rank goes on counting from the sum of all ranks, and sums that again: "
                       "the first batches count once for each rank and each later sum",
                       "sum once, behind the last batch, or a copy",
                       "number %d of what the ranks sum holds the last sum on every rank when it "
                       "is summed again: %g of %g on rank 0",
                       place, last - s.first[0], last);
    }
}

/* Totals that each rank goes on with from the sum over the ranks, and sums again. */
static void check_totals(const ls_observe_trace *trace, ls_observe_finding *out)
{
    enum { PLACES = 8 };
    const char *seen[PLACES];
    int places = 0;
    ls_trace_each_call_of(walk, &trace->rank[0]) {
        const char *at = walk.call->at;
        bool known = places == PLACES || !sums_numbers(walk.call, at);
        for (int i = 0; i < places && !known; i++) {
            known = strcmp(at, seen[i]) == 0;
        }
        if (known) {
            continue;
        }
        seen[places++] = at;
        int count = ls_event_count(ls_event_list(walk.call->json, values));
        for (int place = 0; place < count && ls_verdict_good(out->verdict.code); place++) {
            check_total(trace, at, place, out);
        }
    }
}

/* ---- fractions ------------------------------------------------------------------------------- */

static const ls_tol by_chance =
    LS_TOL(40, "bits: numbers that are no fractions seem to be some once in 2^40");

/* The number in that place of the only call with numbers that the ranks put together after a pass;
 * NAN: none, or several. */
static double number_of(const ls_observe_rank *rank, const ls_event *data, int place,
                        const ls_call **at)
{
    double found = NAN;
    int count, calls = 0;
    const ls_observe_step *step = ls_pass_steps(rank, data, &count);
    for (int i = 0; i < count; i++) {
        ls_trace_each_call(call, &step[i]) {
            const ls_event *values = ls_event_list(call->json, values);
            if (call->kind == LS_CALL_COLLECTIVE && ls_event_count(values) > 0) {
                found = ls_event_number_at(values, place);
                calls += call->times;
                *at = call;
            }
        }
    }
    return calls == 1 ? found : NAN;
}

/* Whether a number, 0 to 1 or a percentage, is so many parts of a whole, up to the rounding of f32
 * and of `adds` additions in it; how many bits say so are added: none by a count. */
static bool is_parts(double number, double of, double adds, double *bits)
{
    double share = number > 1 ? number / 100 : number;
    double room = of * (adds + 2) * 0x1p-24;
    if (!(share >= 0 && share <= 1) || fabs(share * of - round(share * of)) > room * share) {
        return false;
    }
    *bits -= number != round(number) && room < 0.5 ? log2(2 * room) : 0;
    return true;
}

/* Hits as a share of the samples, which are the rank's own number of them; or as the mean of the
 * shares of its batches, the last of which is smaller. */
typedef struct shares {
    bool each, batches, parts; /* each number is one; some is none of all samples, of others' */
    bool apart;                /* the ranks' data sets may be different ones */
    double bits, most, least;
    int passes;
    const ls_call *call;
} shares;

static void add_shares(const ls_observe_trace *trace, const ls_event *const data[], int place,
                       bool uneven, shares *s)
{
    for (int k = 0; k < trace->world; k++) {
        double count = ls_event_number(data[k], count, NAN), ignored = 0;
        double given = ls_event_number(data[k], given, NAN);
        double batch = ls_event_number(data[k], batch, NAN), last = fmod(count, batch);
        const ls_call *call = NULL;
        double number = number_of(&trace->rank[k], data[k], place, &call);
        s->each =
            s->each && is_parts(number, uneven ? given * batch * last : count, given, &s->bits);
        s->batches = s->batches || (uneven && !is_parts(number, count, given, &ignored));
        for (int j = 0; j < trace->world && !uneven; j++) {
            double its = ls_event_number(data[j], count, NAN);
            s->parts = s->parts || !is_parts(number, its, given, &ignored);
            s->most = fmax(s->most, its);
            s->least = fmin(s->least, its);
        }
        s->call = call != NULL ? call : s->call;
    }
    s->passes++;
}

/* Whether a rank's samples are of the same data set as rank 0's: by its length, or that of what
 * they are a part of. */
static bool is_same_set(const ls_event *a, const ls_event *b)
{
    double whole = ls_event_number(ls_event_member(a, part), length, NAN);
    return whole == ls_event_number(ls_event_member(b, part), length, NAN) ||
           ls_event_number(a, length, NAN) == ls_event_number(b, length, NAN);
}

static const ls_event *validation_of(const ls_observe_rank *rank, int number)
{
    const ls_event *data;
    ls_event_each(data, ls_trace_events(rank, data)) {
        if (ls_pass_is_validation(data) && number-- == 0) {
            return data;
        }
    }
    return NULL;
}

static shares shares_of(const ls_observe_trace *trace, int place, bool uneven)
{
    const ls_event *data[LS_HOSTS_RANKS_MAX];
    shares s = {.each = true, .least = INFINITY};
    for (int n = 0; s.each; n++) {
        bool fits = true;
        for (int k = 0; k < trace->world; k++) {
            data[k] = validation_of(&trace->rank[k], n);
            if (data[k] == NULL) {
                return s;
            }
            s.apart = s.apart || !is_same_set(data[0], data[k]);
            fits = fits && ls_event_bool(data[k], whole, false) &&
                   (!uneven || is_uneven(trace, &trace->rank[k], data[k]));
        }
        if (fits) {
            add_shares(trace, data, place, uneven, &s);
        }
    }
    return s;
}

/* Scores that ranks average as they are, though they are of unequal numbers of samples; or means of
 * batches' scores. */
static void check_fractions(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int place = 0; place < 2; place++) {
        shares own = shares_of(trace, place, false), mean = shares_of(trace, place, true);
        if (own.each && own.parts && own.passes >= passes.value && own.bits >= by_chance.value) {
            ls_finding_set(
                out, own.apart ? LS_WEAK : LS_FAIL, own.call->at,
                "each rank's score counts the same, and the ranks have unequal numbers of samples",
                "sum hits and numbers of samples over the ranks, then divide",
                "the ranks put together shares of their own samples after %d validations: of %g on "
                "one rank, of %g on another%s",
                own.passes, own.least, own.most,
                own.apart ? "; right where each rank has its own data set" : "");
        } else if (mean.each && mean.batches && mean.passes >= passes.value &&
                   mean.bits >= by_chance.value) {
            ls_finding_set(
                out, LS_FAIL, mean.call->at,
                "the score is a mean of batches: each counts the same, and the last one is smaller",
                "sum hits and numbers of samples, then divide",
                "the ranks put together means of their batches' shares after %d validations, and "
                "the last batch has less samples",
                mean.passes);
        }
    }
}

void ls_rules_evaluation_counted(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    for (int k = 0; k < trace->world; k++) {
        check_sums(&trace->rank[k], k, &compared, out);
        check_statistics(&trace->rank[k], k, &compared, out);
    }
    for (int n = 0; trace->world > 0 && !trace->attached && check_pass(trace, n, &compared, out);
         n++) {
    }
    check_divisors(trace, &compared, out);
    if (trace->attached && trace->world > 1) {
        check_totals(trace, out);
        check_fractions(trace, out);
    }
    if (compared == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no validation is reported");
    }
    if (!trace->attached) {
        ls_finding_blame(out, "--val",
                         "let rank r of W take pictures r, r + W, ..., count each once, "
                         "and validate in eval mode");
    }
    ls_verdict_pass(&out->verdict, compared,
                    "%d counts, parts and statistics of validations are as they should be",
                    compared);
}

/* ---- evaluation.best ------------------------------------------------------------------------- */

/* The best score of a run does not fall. */
void ls_rules_evaluation_best(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    ls_observe_finding guessed = {0};
    ls_misuse_judge(trace, "evaluation.best", &guessed);
    ls_finding_guess(out, &guessed);
    for (int k = 0; k < trace->world; k++) {
        const ls_event *save;
        double best = NAN;
        ls_event_each(save, ls_trace_events(&trace->rank[k], save)) {
            const ls_event *held = ls_event_object(save, best);
            double images = ls_event_number(held, images, 0);
            double score = images > 0 ? ls_event_number(held, top1, NAN) / images : NAN;
            if (isnan(score)) {
                continue;
            }
            ++compared;
            if (score < best) {
                ls_finding_set(out, LS_FAIL, "", "the newest validation counts as the best", NULL,
                               "rank %d: the file of step %lld has %.4g for the best score, an "
                               "earlier one had %.4g",
                               k, (long long)ls_event_integer(save, step, -1), score, best);
            }
            best = isnan(best) ? score : fmax(best, score);
        }
    }
    if (compared == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no file is reported with the best score so far");
    }
    ls_finding_blame(out, "--save-dir", "replace the best file where the score is higher");
    ls_verdict_pass(&out->verdict, compared, "the best score never falls over %d files", compared);
}
