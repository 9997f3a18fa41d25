/* Random numbers that two ranks, or two passes of one, have in common though their samples differ:
 * where they change a sample (noise, augmentation, masks), a job trains on fewer different ones
 * than it seems to. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "rules.h"
#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/job.h"
#include "suite/observe/trace/pass.h"

static const ls_tol for_each_sample =
    LS_TOL(2, "numbers for each sample: a choice for the batch takes a few in all, a permutation "
              "of it one each");
static const ls_tol for_a_batch =
    LS_TOL(16, "numbers in all: a share, a box and a permutation of two samples take about ten");
static const ls_tol of_held =
    LS_TOL(1, "number of 64 bits for each sample: a permutation of the batch by NumPy or Python "
              "takes 0.7, of 32 bits each with those thrown away that are too large; torch's takes "
              "one of 32 bits, so that of torch's two are asked for");
static const ls_tol steps_alike =
    LS_TOL(2, "steps: a script may seed all ranks alike for its first one");

static const char seed_ranks[] =
    "seed each rank by its own number (torch.manual_seed(seed + rank)) after the model is built";

static const char seed_passes[] =
    "seed once, before the loop, or by a number that changes with the epoch";

/* ---- workers of one rank -------------------------------------------------------------------- */

/* Whether the workers of a loader draw random numbers of their own: not those of another worker,
 * nor those of the pass before. */

/* A generator of the process: else it is the data set's. */
static bool is_global(const char *name)
{
    return ls_text_choice(name, "random|torch|numpy.random") >= 0;
}

/* The states that the generator was left in are equal, or not known. */
static bool goes_on(const ls_event *a, const ls_event *b, const char *name)
{
    const ls_event *left = ls_event_find(ls_event_at(a, 3), name);
    return left == NULL || ls_event_equal(left, ls_event_find(ls_event_at(b, 3), name));
}

/* A generator from which both drew, with one state before it. One of the data set may be
 * seeded again for each sample: then its states behind the batch differ. */
static const char *shared(const ls_event *a, const ls_event *b)
{
    const ls_event *state;
    ls_event_each(state, ls_event_at(a, 1)) {
        const char *name = ls_event_key(state);
        const ls_event *other = ls_event_find(ls_event_at(b, 1), name);
        if (ls_event_is_text(state) && ls_event_is_text(other) &&
            strcmp(state->text, other->text) == 0 && (is_global(name) || goes_on(a, b, name))) {
            return name;
        }
    }
    return NULL;
}

static int number_of(const ls_event *worker)
{
    const ls_event *number = ls_event_at(worker, 0);
    return ls_event_is_number(number) ? ls_event_to_int(number, -1) : -1;
}

static void judge_pass(int rank, const ls_event *data, int *compared, ls_observe_finding *out)
{
    const ls_event *a, *b, *workers = ls_event_list(data, random);
    ls_event_each(a, workers) {
        for (b = ls_event_after(a); b != NULL; b = ls_event_after(b)) {
            const char *name = shared(a, b);
            *compared += number_of(a) != number_of(b);
            if (name == NULL || number_of(a) == number_of(b)) {
                continue;
            }
            ls_finding_set(
                out, LS_FAIL, ls_job_data_place(data, built),
                is_global(name) ? "all workers are seeded alike (worker_init_fn, or a seed in the "
                                  "data set): their samples are changed in the same way"
                                : "the data set has a generator of its own, of which each worker "
                                  "has a copy: their samples are changed in the same way",
                "seed each worker by torch.initial_seed(), which differs between workers and "
                "passes",
                "rank %d, pass %d: workers %d and %d draw the same random numbers (%.60s)", rank,
                ls_event_int(data, pass, 0), number_of(a), number_of(b), name);
        }
    }
}

static void judge_passes(int rank, const ls_event *before, const ls_event *data, int *compared,
                         ls_observe_finding *out)
{
    const ls_event *a, *b;
    ls_event_each(a, ls_event_list(before, random)) {
        ls_event_each(b, ls_event_list(data, random)) {
            bool same = number_of(a) == number_of(b) && number_of(a) >= 0;
            const char *name = same ? shared(a, b) : NULL;
            *compared += same;
            if (name == NULL || !ls_verdict_good(out->verdict.code)) {
                continue;
            }
            ls_finding_set(
                out, LS_FAIL, ls_job_data_place(data, built), NULL,
                "seed each worker by torch.initial_seed(), which differs between workers and "
                "passes",
                "rank %d: worker %d draws in pass %d the random numbers of pass %d (%.60s)", rank,
                number_of(a), ls_event_int(data, pass, 0), ls_event_int(before, pass, 0), name);
            ls_verdict_cause(&out->verdict,
                             "the workers begin each pass with the same %s: samples are changed in "
                             "the same way in every epoch",
                             is_global(name) ? "seed"
                                             : "state of the data set's own generator, which they "
                                               "get as the process has it");
        }
    }
}

/* Where the script last gave both ranks the same seed; "": nowhere. */
static const char *seeded_alike(const ls_observe_trace *trace, int rank)
{
    const ls_event *mine;
    const char *at = "";
    ls_event_each(mine, ls_trace_events(&trace->rank[0], seed)) {
        const ls_event *theirs = ls_job_seed_like(trace, rank, mine);
        if (theirs != NULL &&
            ls_event_number(mine, seed, NAN) == ls_event_number(theirs, seed, NAN)) {
            at = ls_event_text(mine, at, "");
        }
    }
    return at;
}

/* ---- workers of loaders ---------------------------------------------------------------------- */

/* Data sets with indices alone: a stream may shuffle alike on all ranks, to be divided. */
static bool is_fetched(const ls_event *data)
{
    return ls_pass_is_trained(data) && ls_event_bool(data, indices, true) &&
           ls_event_count(ls_event_list(data, random)) > 0;
}

/* The generator that both drew from for all samples: not seeded meanwhile, as by an index. */
static const char *drawn_by_workers(const ls_event *mine, const ls_event *theirs)
{
    const ls_event *a, *b;
    ls_event_each(a, ls_event_list(mine, random)) {
        ls_event_each(b, ls_event_list(theirs, random)) {
            const char *name = number_of(a) == number_of(b) ? shared(a, b) : NULL;
            if (name != NULL && goes_on(a, b, name) && ls_event_to_bool(ls_event_at(a, 2), false)) {
                return name;
            }
        }
    }
    return NULL;
}

static bool has_workers(const ls_event *data)
{
    return number_of(ls_event_first(ls_event_list(data, random))) >= 0;
}

static void judge_workers(const ls_observe_trace *trace, int rank, int *compared,
                          ls_observe_finding *out)
{
    const ls_event *mine, *theirs;
    for (int i = 0; (mine = ls_pass_trained(&trace->rank[0], i)) != NULL; i++) {
        theirs = ls_pass_trained(&trace->rank[rank], i);
        if (!is_fetched(mine) || theirs == NULL || !is_fetched(theirs) ||
            !ls_event_same(mine, theirs, at) || ls_event_same(mine, theirs, order)) {
            continue;
        }
        ++*compared;
        const char *name = drawn_by_workers(mine, theirs);
        if (name != NULL && !has_workers(mine)) {
            ls_finding_blame(out, seeded_alike(trace, rank), "%s", seed_ranks);
            ls_finding_set(out, LS_FAIL, ls_job_data_place(mine, built),
                           "all ranks draw the same random numbers: other samples are changed in "
                           "the same way on each rank",
                           seed_ranks,
                           "pass %d: the data sets of ranks 0 and %d draw the same random numbers "
                           "(%.60s), for other samples",
                           ls_event_int(mine, pass, 0), rank, name);
        } else if (name != NULL) {
            ls_finding_set(out, LS_FAIL, ls_job_data_place(mine, built),
                           "the workers of all ranks are seeded alike: other samples are changed "
                           "in the same way on each rank",
                           "give the loader a generator that is seeded by the rank's number, or "
                           "seed each rank by it after the model is built",
                           "pass %d: the workers of ranks 0 and %d draw the same random numbers "
                           "(%.60s), for other samples",
                           ls_event_int(mine, pass, 0), rank, name);
        }
    }
}

/* ---- the script's own ------------------------------------------------------------------------ */

/* Numbers that a step draws for each of its samples, between the batch and a forward. */
typedef struct noise {
    const ls_event *drawn; /* [generator, name of its state, how many] */
    const ls_call *call;
    int64_t step;
} noise;

/* Numbers for each sample of the call; false where their count is not known. */
static bool is_for_each(const ls_event *drawn, const ls_call *call)
{
    double each = for_each_sample.value * ls_event_number(call->json, samples, INFINITY);
    return ls_event_number_at(drawn, 2) >= fmax(each, for_a_batch.value);
}

/* NULL: none for each sample. */
static const ls_event *drawn_for_each(const ls_call *call)
{
    const ls_event *one;
    ls_event_each(one, ls_event_list(call->json, drawn)) {
        if (is_for_each(one, call)) {
            return one;
        }
    }
    return NULL;
}

/* The rank was given a state, or weights, at that step or later: it may make steps again. */
static bool goes_back(const ls_observe_rank *rank, int64_t step)
{
    const ls_event *restore;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        if (ls_text_choice(ls_event_text(restore, what, ""), "rng|model") >= 0 &&
            ls_saved_step(restore) >= step) {
            return true;
        }
    }
    return false;
}

/* An earlier step that drew from the same state for the same model and for other samples. */
static const noise *drawn_before(const ls_observe_rank *rank, const noise *list, int count,
                                 const noise *now)
{
    for (int i = 0; i < count; i++) {
        const noise *one = &list[i];
        if (ls_event_equal(ls_event_at(one->drawn, 0), ls_event_at(now->drawn, 0)) &&
            ls_event_equal(ls_event_at(one->drawn, 1), ls_event_at(now->drawn, 1)) &&
            one->call->model == now->call->model && one->step != now->step &&
            !ls_event_same(one->call->json, now->call->json, input) &&
            !goes_back(rank, one->step)) {
            return one;
        }
    }
    return NULL;
}

/* Where one number was given as a seed twice; "": nowhere. */
static const char *seeded_again(const ls_observe_rank *rank)
{
    const ls_event *one, *later;
    ls_event_each(one, ls_trace_events(rank, seed)) {
        for (later = ls_event_after(one); later != NULL; later = ls_event_after(later)) {
            if (ls_event_number(one, seed, NAN) == ls_event_number(later, seed, NAN) &&
                ls_event_same(one, later, at)) {
                return ls_event_text(one, at, "");
            }
        }
    }
    return "";
}

static void judge_again(const ls_observe_rank *rank, int k, ls_observe_finding *out)
{
    noise *list = NULL, first = {0}, again = {0};
    int count = 0, capacity = 0, repeats = 0;
    ls_trace_each_step(step, rank) {
        ls_trace_each_kind(call, step, LS_CALL_FORWARD) {
            noise now = {drawn_for_each(call), call, step->step->step};
            if (now.drawn == NULL) {
                continue;
            }
            const noise *before = drawn_before(rank, list, count, &now);
            if (before != NULL && repeats++ == 0) {
                first = *before;
                again = now;
            }
            list = ls_list_grow(list, count, &capacity, sizeof *list);
            list[count++] = now;
        }
    }
    if (repeats >= steps_alike.value) {
        ls_finding_blame(out, seeded_again(rank), "%s", seed_passes);
        ls_finding_set(out, LS_FAIL, again.call->at,
                       "the generator is given one seed again and again: the same noise or masks "
                       "come in each pass",
                       seed_passes,
                       "rank %d: step %lld draws %g numbers for its samples from the state of the "
                       "generator (%s) from which step %lld drew for others, and so in %d of %d "
                       "steps that were looked at",
                       k, (long long)again.step, ls_event_number_at(again.drawn, 2),
                       ls_event_to_text(ls_event_at(again.drawn, 0), ""), (long long)first.step,
                       repeats, count);
    }
    free(list);
}

/* Two ranks' calls in one place of a step: from which generator both drew, or NULL. */
static const ls_event *drawn_alike(const ls_call *a, const ls_call *b, bool *several)
{
    const ls_event *one, *other, *found = NULL;
    *several = false;
    ls_event_each(one, ls_event_list(a->json, drawn)) {
        ls_event_each(other, ls_event_list(b->json, drawn)) {
            bool same = ls_event_equal(ls_event_at(one, 0), ls_event_at(other, 0)) &&
                        ls_event_equal(ls_event_at(one, 1), ls_event_at(other, 1));
            if (same && !*several) {
                found = one;
                *several = is_for_each(one, a);
            }
        }
    }
    return found;
}

/* Counts of the run of steps that ends the job and begins behind the last step in which ranks drew
 * from different states: a job may seed its ranks equally in its middle. */
typedef struct draws {
    int compared, alike, several; /* steps in which both drew; from one state; for each sample */
    int begun, begun_alike;       /* forwards behind one that drew; of them, in one state */
    int same, apart;              /* forwards that begin in one state, or in two */
    const ls_event *last;         /* the forward of rank 0 before */
    int64_t last_step;
    bool last_same;
    int64_t step;
    const ls_call *call;
    const char *generator;
    int held, held_alike; /* forwards that draw from objects' generators for each sample; equally */
    const ls_event *held_drawn;
    const ls_call *held_call;
} draws;

/* What an object's generator drew for each sample, on both ranks from one state. */
static const ls_event *held_alike(const ls_call *a, const ls_call *b)
{
    const ls_event *one, *other;
    ls_event_each(one, ls_event_list(a->json, drawn_held)) {
        bool torchs = strcmp(ls_event_to_text(ls_event_at(one, 0), ""), "torch") == 0;
        double each = torchs ? for_each_sample.value : of_held.value;
        double least = each * ls_event_number(a->json, samples, INFINITY);
        ls_event_each(other, ls_event_list(b->json, drawn_held)) {
            if (ls_event_number_at(one, 2) >= fmax(least, for_a_batch.value) &&
                ls_event_equal(ls_event_at(one, 0), ls_event_at(other, 0)) &&
                ls_event_equal(ls_event_at(one, 1), ls_event_at(other, 1)) &&
                ls_event_equal(ls_event_at(one, 2), ls_event_at(other, 2))) {
                return one;
            }
        }
    }
    return NULL;
}

static void add_held(draws *d, const ls_call *a, const ls_call *b)
{
    const ls_event *found = held_alike(a, b);
    d->held += held_alike(a, a) != NULL && held_alike(b, b) != NULL;
    d->held_alike += found != NULL;
    if (found != NULL && d->held_call == NULL) {
        d->held_drawn = found;
        d->held_call = a;
    }
}

static void add_draws(draws *d, const ls_observe_step *step, const ls_call *a, const ls_call *b)
{
    bool several;
    if (ls_event_has(a->json, begins) && ls_event_has(b->json, begins)) {
        bool same = ls_event_same(a->json, b->json, begins);
        /* the next pass begins in another state in any case: its loader draws a seed */
        bool drew = d->last != NULL && step->step->step - d->last_step <= 1 &&
                    !ls_event_same(d->last, a->json, begins);
        d->begun += drew;
        d->same += same;
        d->apart += !same;
        d->begun_alike = !same ? 0 : d->begun_alike + (drew && d->last_same);
        d->last = a->json;
        d->last_step = step->step->step;
        d->last_same = same;
    }
    if (!ls_event_has(a->json, drawn) || !ls_event_has(b->json, drawn)) {
        return;
    }
    const ls_event *found = drawn_alike(a, b, &several);
    d->compared++;
    if (found == NULL) {
        d->alike = d->several = 0;
        d->call = NULL;
        return;
    }
    d->alike++;
    d->several += several;
    if (several && d->call == NULL) {
        d->call = a;
        d->step = step->step->step;
        d->generator = ls_event_to_text(ls_event_at(found, 0), "");
    }
}

/* The training forwards of all steps of two ranks. */
static draws compare(const ls_observe_trace *trace, int rank)
{
    draws d = {0};
    ls_trace_each_step(step, &trace->rank[0]) {
        const ls_observe_step *other = ls_trace_step(&trace->rank[rank], step->step->step);
        const ls_call *b = other == NULL ? NULL : ls_trace_next_kind(other, LS_CALL_FORWARD, NULL);
        for (const ls_call *a = ls_trace_next_kind(step, LS_CALL_FORWARD, NULL);
             a != NULL && b != NULL; a = ls_trace_next_kind(step, LS_CALL_FORWARD, a),
                           b = ls_trace_next_kind(other, LS_CALL_FORWARD, b)) {
            if (!ls_event_has(a->json, input) || !ls_event_same(a->json, b->json, input)) {
                add_draws(&d, step, a, b);
                add_held(&d, a, b);
            }
        }
    }
    return d;
}

/* Numbers that a forward draws for each sample, normal ones before others; NULL: none. */
static const ls_event *noise_of(const ls_observe_rank *rank)
{
    const ls_event *noise;
    ls_event_each(noise, ls_trace_events(rank, noise)) {
        if (ls_event_number(noise, numbers, 0) >=
            for_each_sample.value * ls_event_number(noise, samples, INFINITY)) {
            return noise;
        }
    }
    return NULL;
}

/* Other numbers than normal ones may be meant to be equal: a mask that all ranks share. */
static void judge_noise(const ls_observe_trace *trace, int rank, const draws *d, int *compared,
                        ls_observe_finding *out)
{
    const ls_event *noise = noise_of(&trace->rank[0]);
    *compared += noise != NULL ? d->begun : 0;
    if (noise == NULL || d->begun_alike < steps_alike.value) {
        return;
    }
    const char *function = ls_event_text(noise, function, "");
    bool normal = ls_text_choice(function, "randn|randn_like|normal|normal_") >= 0;
    ls_observe_finding one = {0};
    ls_finding_blame(&one, seeded_alike(trace, rank), "%s", seed_ranks);
    ls_finding_set(&one, LS_FAIL, ls_event_text(noise, at, ""),
                   normal ? "all ranks draw the same random numbers: the noise is equal on them, "
                            "though their samples differ"
                          : "all ranks draw the same random numbers: masks or times are equal on "
                            "them, though their samples differ",
                   seed_ranks,
                   "ranks 0 and %d begin %d of %d forwards in one state of the generator, and a "
                   "forward draws %g %snumbers for %g samples (%.30s)",
                   rank, d->begun_alike, d->begun, ls_event_number(noise, numbers, NAN),
                   normal ? "normal " : "", ls_event_number(noise, samples, NAN), function);
    (normal ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
}

/* A script that makes a generator may mean what it draws to be equal on all ranks, or divide it. */
static void judge_held(int rank, const draws *d, int *compared, ls_observe_finding *out)
{
    *compared += d->held;
    if (d->held < steps_alike.value || d->held_alike < d->held) {
        return;
    }
    const ls_event *drawn = d->held_drawn;
    const char *holder = ls_event_to_text(ls_event_at(drawn, 3), "");
    ls_observe_finding one = {0};
    ls_finding_set(
        &one, LS_FAIL, d->held_call->at,
        "a generator that an object of the script holds has the same seed on all ranks: "
        "noise, masks or times are equal on them, though their samples differ",
        "seed it by the rank, too",
        "ranks 0 and %d draw %g numbers for %g samples from one state of a generator "
        "(%s%s%.60s), and so in all of %d forwards that were looked at",
        rank, ls_event_number_at(drawn, 2), ls_event_number(d->held_call->json, samples, NAN),
        ls_event_to_text(ls_event_at(drawn, 0), ""), *holder == '\0' ? "" : ", ", holder, d->held);
    ls_finding_guess(out, &one);
}

/* Where both ranks were given a state of their generators; NULL: not on both. */
static const ls_event *restored(const ls_observe_trace *trace, int rank)
{
    const ls_event *first = ls_saved_restored(&trace->rank[0], "rng");
    const ls_event *other = ls_saved_restored(&trace->rank[rank], "rng");
    return first != NULL && other != NULL ? first : NULL;
}

/* The job that wrote the file began all forwards in other states on the two ranks, and this one, to
 * which both restored one, all in the same. */
static bool judge_restored(const ls_observe_trace *trace, int rank, const draws *d,
                           ls_observe_finding *out)
{
    const ls_event *restore = restored(trace, rank);
    if (restore == NULL || trace->before == NULL || rank >= trace->before->world) {
        return false;
    }
    draws before = compare(trace->before, rank);
    bool given =
        before.apart > 0 && before.same == 0 && d->same > 0 && d->apart == 0 && d->begun > 0;
    if (given) {
        ls_finding_set(out, LS_FAIL, ls_event_text(restore, at, ""),
                       "all ranks are given the state that one of them wrote: their noise, masks "
                       "and dropout are equal from here on",
                       "save the generators' states of each rank, and give each its own",
                       "ranks 0 and %d began %d of %d forwards in states of their own before the "
                       "file was written, and begin %d of %d in one since it was restored",
                       rank, before.apart, before.apart + before.same, d->same, d->same + d->apart);
    }
    return given;
}

static void judge_draws(const ls_observe_trace *trace, int rank, int *compared,
                        ls_observe_finding *out)
{
    draws outside = compare(trace, rank);
    *compared += outside.compared;
    if (judge_restored(trace, rank, &outside, out)) {
        return;
    }
    judge_noise(trace, rank, &outside, compared, out);
    judge_held(rank, &outside, compared, out);
    if (outside.several >= steps_alike.value) {
        ls_finding_blame(out, seeded_alike(trace, rank), "%s", seed_ranks);
        ls_finding_set(out, LS_FAIL, outside.call->at,
                       "all ranks draw the same random numbers: noise or masks are equal on them, "
                       "though their samples differ",
                       seed_ranks,
                       "step %lld: between the batch and this forward ranks 0 and %d drew at least "
                       "%g numbers for each sample from one state of the generator (%s), and so in "
                       "%d of %d steps",
                       (long long)outside.step, rank, for_each_sample.value, outside.generator,
                       outside.alike, outside.compared);
    }
}

static const ls_tol drawn_rows = LS_TOL(
    8, "different rows of masks in two batches and more, the same on both ranks though their "
       "samples differ: no accident");

/* The mask of that batch and field, or NULL. */
static const ls_event *mask_like(const ls_event *data, const ls_event *mask)
{
    const ls_event *one;
    ls_event_each(one, ls_event_list(data, masks)) {
        if (ls_event_equal(ls_event_at(one, 0), ls_event_at(mask, 0)) &&
            ls_event_equal(ls_event_at(one, 1), ls_event_at(mask, 1))) {
            return one;
        }
    }
    return NULL;
}

/* Whether the first batch was made with numbers of the process's generators, of which a library may
 * have seeded torch's with the same number on all ranks. */
static bool draws_globally(const ls_event *data)
{
    const ls_event *worker, *state;
    ls_event_each(worker, ls_event_list(data, random)) {
        ls_event_each(state, ls_event_at(worker, 1)) {
            if (is_global(ls_event_key(state))) {
                return true;
            }
        }
    }
    return false;
}

/* Masks of a field that batches come with: others in each batch, and the same on both ranks. */
static void judge_masks(int rank, const ls_event *mine, const ls_event *theirs, double field,
                        ls_observe_finding *out)
{
    const ls_event *mask, *first = NULL;
    bool equal = true, other = false;
    double rows = 0;
    ls_event_each(mask, ls_event_list(mine, masks)) {
        const ls_event *its = mask_like(theirs, mask);
        if (ls_event_number_at(mask, 1) == field) {
            equal =
                equal && its != NULL && ls_event_equal(ls_event_at(mask, 3), ls_event_at(its, 3));
            first = first == NULL ? mask : first;
            other = other || !ls_event_equal(ls_event_at(mask, 3), ls_event_at(first, 3));
            rows += ls_event_number_at(mask, 2);
        }
    }
    if (equal && other && rows >= drawn_rows.value) {
        bool global = draws_globally(mine);
        ls_observe_finding one = {0};
        ls_finding_set(
            &one, LS_FAIL,
            ls_event_has(mine, collate_at) ? ls_event_text(mine, collate_at, "")
                                           : ls_job_data_place(mine, built),
            global ? "all ranks draw the same random numbers: what batches mask is equal "
                     "on them, though their samples differ"
                   : "a generator of the data set's or the collate function's has the "
                     "same seed on all ranks: what it masks is equal on them, though "
                     "their samples differ",
            global ? seed_ranks : "seed it by the rank, too",
            "pass %d of %s: field %g of the batches masks the same places of each row "
            "on ranks 0 and %d, in %g different rows of its first batches",
            ls_event_int(mine, pass, 0), ls_event_text(mine, at, "?"), field, rank, rows);
        (global ? ls_finding_guess : ls_calls_keep_worst)(out, &one);
    }
}

static void judge_masked(const ls_observe_trace *trace, int rank, ls_observe_finding *out)
{
    const ls_event *mine, *theirs;
    for (int i = 0; (mine = ls_pass_trained(&trace->rank[0], i)) != NULL &&
                    (theirs = ls_pass_trained(&trace->rank[rank], i)) != NULL;
         i++) {
        const ls_event *mask;
        bool apart = ls_event_has(mine, order) && !ls_event_same(mine, theirs, order);
        ls_event_each(mask, apart ? ls_event_list(mine, masks) : NULL) {
            if (ls_verdict_good(out->verdict.code)) {
                judge_masks(rank, mine, theirs, ls_event_number_at(mask, 1), out);
            }
        }
    }
}

static void judge_ranks(const ls_observe_trace *trace, int *compared, ls_observe_finding *out)
{
    if (!ls_trace_is_ddp(trace) || ls_calls_in_part(trace)) {
        return; /* parts of one model may have to draw alike */
    }
    for (int k = 1; k < trace->world; k++) {
        judge_workers(trace, k, compared, out);
        judge_draws(trace, k, compared, out);
        judge_masked(trace, k, out);
    }
}

void ls_rules_data_random(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int compared = 0;
    for (int k = 0; k < trace->world; k++) {
        const ls_event *data, *before = NULL;
        ls_event_each(data, ls_trace_events(&trace->rank[k], data)) {
            if (!is_fetched(data)) {
                continue;
            }
            judge_pass(k, data, &compared, out);
            if (before != NULL && ls_event_same(before, data, at)) {
                judge_passes(k, before, data, &compared, out);
            }
            before = data;
        }
        judge_again(&trace->rank[k], k, out);
    }
    judge_ranks(trace, &compared, out);
    ls_finding_close(out, compared, LS_SKIP,
                     "no two workers of a training loader were seen, and no two ranks that draw "
                     "for each sample",
                     "random numbers of their own in %d workers, passes and steps", compared);
}
