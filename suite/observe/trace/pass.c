#include "pass.h"

#include <math.h>
#include <string.h>
#include <stdbool.h>
#include <stdlib.h>
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "calls.h"

bool ls_pass_is_trained(const ls_event *pass)
{
    return ls_event_bool(pass, trained, false);
}

bool ls_pass_is_validation(const ls_event *pass)
{
    /* Indices are drawn ahead of batches that nobody may ask for. */
    return !ls_pass_is_trained(pass) && ls_event_number(pass, count, 0) > 0 &&
           ls_event_number(pass, given, 1) > 0;
}

static double step_of(const ls_event *pass, int end)
{
    const ls_event *step = ls_event_at(ls_event_list(pass, steps), end);
    int64_t number;
    bool is = ls_event_is_number(step) && ls_json_whole(step->number, 0, INT64_C(1) << 53, &number);
    return is ? (double)number : NAN;
}

double ls_pass_first_step(const ls_event *pass)
{
    return step_of(pass, 0);
}

double ls_pass_last_step(const ls_event *pass)
{
    return step_of(pass, 1);
}

const ls_observe_step *ls_pass_steps(const ls_observe_rank *rank, const ls_event *pass, int *count)
{
    double base = rank->step_count > 0 ? (double)rank->step[0].step->step : 0;
    double first = ls_pass_first_step(pass), last = ls_pass_last_step(pass);
    *count = 0;
    if (isnan(first) || isnan(last)) {
        return NULL;
    }
    first = fmax(first, base);
    last = fmin(last, base + rank->step_count - 1);
    *count = first <= last ? (int)(last - first) + 1 : 0;
    return *count > 0 ? &rank->step[(int)(first - base)] : NULL;
}

const ls_event *ls_pass_trained(const ls_observe_rank *rank, int index)
{
    const ls_event *pass;
    ls_event_each(pass, ls_trace_events(rank, data)) {
        if (ls_pass_is_trained(pass) && index-- == 0) {
            return pass;
        }
    }
    return NULL;
}

bool ls_pass_is_over_training_data(const ls_observe_rank *rank, const ls_event *pass)
{
    const ls_event *other;
    ls_event_each(other, ls_trace_events(rank, data)) {
        if (ls_pass_is_trained(other) &&
            ls_event_number(other, length, -1) == ls_event_number(pass, length, -2)) {
            return true;
        }
    }
    return false;
}

bool ls_pass_is_divided(const ls_event *pass, int world)
{
    if (strcmp(ls_event_text(pass, sampler, ""), "DistributedSampler") == 0) {
        return world > 1 && ls_event_int(pass, replicas, 1) == world;
    }
    double count = ls_event_number(pass, count, NAN), length = ls_event_number(pass, length, NAN);
    double room = world * fmax(1, ls_event_number(pass, batch, 1)); /* last batches */
    return world > 1 && ls_event_bool(pass, whole, false) && count < length &&
           fabs(world * count - length) <= room;
}

/* A sample of that index: [index, digest, class], or NULL. */
static const ls_event *sample_of(const ls_event *pass, double index)
{
    const ls_event *sample;
    ls_event_each(sample, ls_event_list(pass, content)) {
        if (ls_event_number_at(sample, 0) == index) {
            return sample;
        }
    }
    return NULL;
}

ls_pass_common ls_pass_compare(const ls_event *a, const ls_event *b)
{
    ls_pass_common c = {0};
    const ls_event *x, *digest = NULL;
    double class = NAN;
    ls_event_each(x, ls_event_list(a, content)) {
        const ls_event *y = sample_of(b, ls_event_number_at(x, 0));
        const ls_event *one = ls_event_at(x, 1), *other = ls_event_at(y, 1);
        double own = ls_event_number_at(x, 2);
        if (ls_event_is_text(one) && ls_event_is_text(other)) {
            c.vary = c.vary || (c.digests > 0 && !ls_event_equal(one, digest));
            c.digests++;
            c.equal += ls_event_equal(one, other);
            digest = one;
        }
        if (!isnan(own) && !isnan(ls_event_number_at(y, 2))) {
            c.several = c.several || (c.classes > 0 && own != class);
            c.classes++;
            c.alike += own == ls_event_number_at(y, 2);
            c.other += !ls_event_equal(one, other);
            class = own;
        }
    }
    return c;
}

static int by_key(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* Sorts, keeps each key once and of the keys those that are 0 modulo the modulus. */
static void settle(ls_contents *c)
{
    int kept = 0;
    if (c->count > 0) {
        qsort(c->key, (size_t)c->count, sizeof *c->key, by_key);
    }
    for (int i = 0; i < c->count; i++) {
        bool again = kept > 0 && c->key[kept - 1] == c->key[i];
        c->repeated += again;
        if (!again && c->key[i] % c->modulus == 0) {
            c->key[kept++] = c->key[i];
        }
    }
    c->count = kept;
}

void ls_pass_contents_add(ls_contents *c, const ls_event *data)
{
    int64_t modulus = ls_event_integer(data, key_modulus, 1), key;
    const ls_event *entry;
    c->modulus = c->modulus < 1 ? 1 : c->modulus;
    c->modulus = modulus > c->modulus ? modulus : c->modulus;
    ls_event_each(entry, ls_event_list(data, keys)) {
        if (ls_event_is_number(entry) && ls_json_whole(entry->number, 0, INT64_C(1) << 53, &key)) {
            c->key = ls_list_grow(c->key, c->count, &c->capacity, sizeof *c->key);
            c->key[c->count++] = key;
        }
    }
    settle(c);
}

int ls_pass_contents_common(const ls_contents *a, const ls_contents *b, int *of)
{
    int common = 0;
    *of = 0;
    for (int i = 0, j = 0; i < a->count; i++) {
        if (b->modulus > 1 && a->key[i] % b->modulus != 0) {
            continue;
        }
        ++*of;
        while (j < b->count && b->key[j] < a->key[i]) {
            j++;
        }
        common += j < b->count && b->key[j] == a->key[i];
    }
    return common;
}

void ls_pass_contents_free(ls_contents *c)
{
    free(c->key);
    *c = (ls_contents){0};
}

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

static const ls_tol whole = LS_TOL(1e-6, "of 1: quotients that the script holds in f32");

/* What the step's losses are multiplied by, together: 1 of their mean; NaN where that of one is not
 * known. */
static double weight_of(const ls_observe_step *step)
{
    double sum = 0;
    ls_trace_each_kind(call, step, LS_CALL_BACKWARD) {
        sum += call->times * ls_event_number(call->json, multiplied, NAN);
    }
    return sum;
}

/* A pass that another one follows leaves `rest` batches: those of the first step of the next are as
 * many more. Where the losses of other steps are divided by their number, that step is no mean. */
static void judge_windows(const ls_observe_rank *rank, ls_observe_finding *out)
{
    windows w = windows_of(rank);
    int carried = 0, passes = 0, rest = 0, means = 0;
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
            int64_t batches =
                batch > 0 ? (count + batch - 1) / batch : ls_event_int(before, given, 0);
            const ls_observe_step *step = ls_trace_step(rank, (int64_t)first);
            windows none = {0};
            int size = step == NULL ? 0 : size_of(step, &none);
            passes++;
            double weight = size > 0 ? weight_of(step) : NAN;
            bool mean = fabs(weight - 1) < whole.value;
            rest = (int)(batches % w.usual);
            carried += rest > 0 && size == w.usual + rest && !mean;
            means += weight > 1;
        }
        before = data;
    }
    if (carried == 0 || carried < passes) {
        return;
    }
    ls_observe_finding one = {0};
    bool sure = means == passes && fabs(weight_of(&rank->step[0]) - 1) < whole.value;
    ls_verdict_fail(&one.verdict,
                    "the first step of each later pass takes %d batches, the others %d: %d of the "
                    "pass before had filled no window%s",
                    w.usual + rest, w.usual, rest,
                    sure ? ", and losses are divided for a mean of each window" : "");
    ls_verdict_cause(&one.verdict,
                     "gradients of the last batches of a pass stay and come on top of the next "
                     "pass's first window: its step is %d/%d of the others'",
                     w.usual + rest, w.usual);
    ls_finding_blame(&one, w.backward->at,
                     "step with the last batch of a pass, too (and divide by what its window "
                     "holds), or count batches over the passes");
    (sure ? ls_calls_keep_worst : ls_finding_guess)(out, &one);
}

void ls_pass_judge_windows(const ls_observe_trace *trace, ls_observe_finding *out)
{
    for (int k = 0; k < trace->world && out->verdict.code != LS_FAIL; k++) {
        judge_windows(&trace->rank[k], out);
    }
}

/* ---- parts of a data set --------------------------------------------------------------------- */

static const ls_tol few_parts =
    LS_TOL(8, "samples: fewer are too few to compare two lists of them");

static bool has(const ls_event *list, double number)
{
    const ls_event *entry;
    ls_event_each(entry, list) {
        if (ls_event_is_number(entry) && entry->number == number) {
            return true;
        }
    }
    return false;
}

bool ls_pass_parts_common(const ls_event *a, const ls_event *b, int *common, int *of)
{
    const ls_event *x = ls_event_member(a, part);
    const ls_event *y = ls_event_member(b, part), *entry;
    const ls_event *mine = ls_event_list(x, kept);
    const ls_event *other = ls_event_list(y, kept);
    int first = ls_event_count(mine), second = ls_event_count(other);
    *common = 0;
    *of = first < second ? first : second;
    if (*of < few_parts.value ||
        ls_event_number(x, length, NAN) != ls_event_number(y, length, NAN) ||
        ls_event_number(x, modulus, NAN) != ls_event_number(y, modulus, NAN)) {
        return false;
    }
    ls_event_each(entry, mine) {
        *common += ls_event_is_number(entry) && has(other, entry->number);
    }
    return true;
}
