#include "by_hand.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"

static const ls_tol detailed =
    LS_TOL(16, "detailed steps: a job that reduces by hand does so in each; more only cost time");

/* ---- calls ----------------------------------------------------------------------------------- */

static int last_backward(const ls_observe_step *step)
{
    int last = -1;
    ls_trace_each_kind(call, step, LS_CALL_BACKWARD) {
        last = (int)(call - step->call);
    }
    return last;
}

/* Adds up what ranks have, in a call that all of them make. */
static bool is_sum(const ls_call *call)
{
    static const char *const op[] = {
        "all_reduce",     "all_reduce_coalesced",  "reduce",
        "reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base"};
    const char *reduce = ls_event_text(call->json, reduce, "");
    bool adds = strcmp(reduce, "sum") == 0 || strcmp(reduce, "avg") == 0 || strstr(reduce, "sum");
    for (size_t i = 0; i < sizeof op / sizeof *op && call->kind == LS_CALL_COLLECTIVE; i++) {
        if (adds && strcmp(ls_event_text(call->json, op, ""), op[i]) == 0) {
            return ls_event_int(call->json, ranks, -1) < 0;
        }
    }
    return false;
}

/* The first sum from that call on which may change a gradient before the step; -1: none. */
static int next_sum(const ls_observe_step *step, int from)
{
    for (int c = from; c < step->call_count; c++) {
        ls_call_kind kind = step->call[c].kind;
        if (kind == LS_CALL_OPTIMIZER_STEP || kind == LS_CALL_SCALER_STEP) {
            return -1;
        }
        if (is_sum(&step->call[c])) {
            return c;
        }
    }
    return -1;
}

int ls_by_hand_collective(const ls_observe_step *step)
{
    int backward = step == NULL ? -1 : last_backward(step);
    return backward < 0 ? -1 : next_sum(step, backward);
}

static double elements_summed(const ls_observe_step *step)
{
    double sum = 0;
    for (int c = ls_by_hand_collective(step); c >= 0; c = next_sum(step, c + 1)) {
        sum += ls_event_number(step->call[c].json, elements, 0) * step->call[c].times;
    }
    return sum;
}

static bool concerns(const ls_observe_trace *trace)
{
    return trace->attached && trace->world > 1 && !ls_trace_is_ddp(trace) &&
           ls_job_sharded(trace) == NULL;
}

/* Elements that a sum of all gradients has; infinite where nothing is trained. */
static double elements_trained(const ls_observe_trace *trace)
{
    const ls_observe_rank *rank = &trace->rank[0];
    double elements = 0;
    int optimizer, group;
    for (int i = 0; i < rank->tensor_count; i++) {
        const ls_observe_tensor *tensor = &rank->tensor[i];
        bool trained =
            tensor->trainable && ls_job_group(rank, tensor->name, -1, &optimizer, &group) != NULL;
        elements += trained ? (double)tensor->elements : 0;
    }
    return elements > 0 ? elements : INFINITY;
}

/* Whether all ranks' parameters are equal after a step: 1 or 0; -1: not known. */
static int are_equal(const ls_observe_trace *trace, const ls_observe_step *step)
{
    const char *first = ls_trace_digest(step, LS_RECORD_PARAM);
    bool known = first != NULL, equal = true;
    for (int k = 1; k < trace->world && known; k++) {
        const char *other =
            ls_trace_digest(ls_trace_step(&trace->rank[k], step->step->step), LS_RECORD_PARAM);
        known = other != NULL;
        equal = equal && known && strcmp(first, other) == 0;
    }
    return known ? equal : -1;
}

int ls_by_hand_keeps_gradients(const ls_observe_trace *trace)
{
    bool wrapped = trace->world > 1 && ls_trace_is_ddp(trace);
    int steps = 0;
    for (int i = 0; wrapped && i < trace->rank[0].step_count; i++) {
        const ls_observe_step *step = &trace->rank[0].step[i];
        int backwards = 0, reduced = 0;
        ls_trace_each_kind(call, step, LS_CALL_BACKWARD) {
            backwards++;
            reduced += ls_event_bool(call->json, sync, true);
        }
        steps +=
            backwards > 0 && reduced == 0 && ls_trace_find(step, LS_CALL_OPTIMIZER_STEP, 0) >= 0;
    }
    return steps;
}

bool ls_by_hand_averages_later(const ls_observe_trace *trace)
{
    const ls_observe_rank *rank = &trace->rank[0];
    double elements = elements_trained(trace), sum = NAN;
    bool wrapped = ls_by_hand_keeps_gradients(trace) > 0, parted = false;
    if (!concerns(trace) && !wrapped) {
        return false;
    }
    ls_trace_each_step(step, rank) {
        bool sums = false;
        ls_trace_each_call(call, step) {
            if (call->kind == LS_CALL_OPTIMIZER_STEP) {
                sum = 0;
            } else if (call->kind == LS_CALL_FORWARD || call->kind == LS_CALL_BACKWARD) {
                sum = NAN;
            } else if (is_sum(call)) {
                sum += ls_event_number(call->json, elements, 0) * call->times;
                sums = sums || sum >= elements;
            }
        }
        int equal = are_equal(trace, step);
        if (sums && (!wrapped || (parted && equal == 1))) {
            return true;
        }
        parted = parted || equal == 0;
    }
    return false;
}

bool ls_by_hand_sums(const ls_observe_trace *trace)
{
    const ls_observe_rank *rank = &trace->rank[0];
    double elements = elements_trained(trace);
    int sums = 0;
    ls_trace_each_step(step, rank) {
        sums += elements_summed(step) >= elements;
    }
    return concerns(trace) && sums * 2 > rank->step_count;
}

/* ---- samples --------------------------------------------------------------------------------- */

static bool is_zero(const ls_samples *samples, const char *name)
{
    ls_values used = ls_samples_read(samples->file[0], "used", name, NULL);
    bool zero = true;
    for (int64_t i = 0; i < used.count && zero; i++) {
        zero = used.v[i] == 0;
    }
    ls_samples_free(&used);
    return zero;
}

/* Whether all ranks have that tensor, and whether it is the same on all. */
static bool compare(const ls_samples *samples, const char *group, const char *name,
                    const char *last, bool *equal)
{
    const ls_dumpfile_entry *first = ls_samples_find(samples->file[0], group, name, last);
    *equal = true;
    for (int k = 1; k < samples->world; k++) {
        const ls_dumpfile_entry *other = ls_samples_find(samples->file[k], group, name, last);
        if (first == NULL || other == NULL) {
            return false;
        }
        *equal = *equal && ls_dumpfile_equal(first, other);
    }
    return first != NULL;
}

static const ls_tol scaled = LS_TOL(8, "elements that one factor fits, and roundings of each");

bool ls_by_hand_is_scaled(const ls_samples *samples, const char *name)
{
    ls_values first = ls_samples_read(samples->file[0], "used", name, NULL);
    bool fits = first.v != NULL && !ls_samples_overflow(&first);
    int most = 0;
    bool apart = false;
    for (int k = 1; k < samples->world && fits; k++) {
        ls_values its = ls_samples_read(samples->file[k], "used", name, NULL);
        double product = 0, square = 0;
        int some = 0;
        fits = its.v != NULL && its.count == first.count;
        for (int64_t i = 0; fits && i < first.count; i++) {
            product += its.v[i] * first.v[i];
            square += first.v[i] * first.v[i];
            some += first.v[i] != 0;
        }
        for (int64_t i = 0; fits && i < first.count; i++) {
            double error = fabs(its.v[i] - product / square * first.v[i]);
            fits = error <= scaled.value * first.unit.u * fabs(its.v[i]);
        }
        most = some > most ? some : most;
        apart = apart || !(fabs(product / square - 1) < 0x1p-12);
        ls_samples_free(&its);
    }
    ls_samples_free(&first);
    return fits && apart && most >= scaled.value;
}

typedef struct votes {
    int common, apart;
    bool seen, differs; /* before the first step */
} votes;

static void vote(const ls_samples *samples, const char *name, votes *v)
{
    bool one, own;
    if (!v->seen) {
        v->seen = compare(samples, "param", name, NULL, &one);
        v->differs = v->seen && !one;
    }
    if (compare(samples, "used", name, NULL, &one) && compare(samples, "local", name, NULL, &own) &&
        !own) {
        v->common += one && !is_zero(samples, name);
        v->apart += !one;
    }
}

void ls_by_hand_look(const ls_observe_trace *trace, ls_by_hand *out)
{
    const ls_observe_rank *rank = &trace->rank[0];
    *out = (ls_by_hand){.at = ""};
    if (!concerns(trace)) {
        return;
    }
    size_t count = (size_t)rank->tensor_count + 1;
    votes *v = ls_list_make(count, sizeof *v);
    out->shared = ls_list_make(count, sizeof *out->shared);
    out->own = ls_list_make(count, sizeof *out->own);
    ls_observe_finding ignored = {0};
    ls_samples_each(samples, trace, 0, out->steps < detailed.value, &ignored) {
        for (int i = 0; i < rank->tensor_count && samples.count == trace->world; i++) {
            vote(&samples, rank->tensor[i].name, &v[i]);
        }
        out->steps += samples.count == trace->world;
        int call = ls_by_hand_collective(samples.step[0]);
        if (call >= 0 && out->at[0] == '\0') {
            out->at = samples.step[0]->call[call].at;
        }
    }
    for (int i = 0; i < rank->tensor_count; i++) {
        out->shared[i] = v[i].common > v[i].apart;
        out->common += out->shared[i];
        out->own[i] = v[i].apart > 0 && !out->shared[i] && v[i].differs;
        out->apart += v[i].apart > 0 && !out->shared[i];
    }
    free(v);
}

void ls_by_hand_free(ls_by_hand *by_hand)
{
    free(by_hand->shared);
    free(by_hand->own);
    by_hand->shared = by_hand->own = NULL;
}

/* Optimizer state goes by the words of its moments. */
static bool differs(const ls_samples *samples, const char *group, const char *name)
{
    static const char *const moment[] = {"momentum_buffer", "exp_avg"};
    bool equal;
    if (strcmp(group, "next_state") != 0) {
        return compare(samples, group, name, NULL, &equal) && !equal;
    }
    for (size_t i = 0; i < sizeof moment / sizeof *moment; i++) {
        if (compare(samples, group, name, moment[i], &equal) && !equal) {
            return true;
        }
    }
    return false;
}

int64_t ls_by_hand_split(const ls_observe_trace *trace, const ls_by_hand *by_hand, int64_t after,
                         const char *group, ls_job_names *names)
{
    const ls_observe_rank *rank = &trace->rank[0];
    ls_observe_finding ignored = {0};
    int64_t found = 0;
    ls_samples_each(samples, trace, after, names->count == 0, &ignored) {
        found = samples.number;
        for (int i = 0; i < rank->tensor_count && samples.count == trace->world; i++) {
            if (by_hand->shared != NULL && by_hand->shared[i] &&
                differs(&samples, group, rank->tensor[i].name)) {
                ls_job_add_name(names, rank->tensor[i].name);
            }
        }
    }
    return names->count > 0 ? found : 0;
}

/* ---- replicas -------------------------------------------------------------------------------- */

/* Whether in any step the parameters of all ranks are equal: shards and stages never are. */
static bool are_equal_once(const ls_observe_trace *trace)
{
    ls_trace_each_step(step, &trace->rank[0]) {
        if (are_equal(trace, step) == 1) {
            return true;
        }
    }
    return false;
}

bool ls_by_hand_replicates(const ls_observe_trace *trace)
{
    if (!concerns(trace)) {
        return false;
    }
    ls_by_hand look;
    ls_by_hand_look(trace, &look);
    bool whole = look.common > 0 && look.apart == 0;
    ls_by_hand_free(&look);
    return whole || (ls_by_hand_sums(trace) && are_equal_once(trace));
}

/* Some numbers of a loss or a metric are no activations. */
static bool sends_within(const ls_observe_step *step)
{
    enum { NUMBERS = 16 };
    int last = last_backward(step);
    ls_trace_each_kind(call, step, LS_CALL_COLLECTIVE) {
        if (call - step->call < last && ls_event_number(call->json, elements, 0) > NUMBERS) {
            return true;
        }
    }
    return false;
}

bool ls_by_hand_divides_model(const ls_observe_trace *trace)
{
    int steps = 0;
    if (!concerns(trace) || are_equal_once(trace)) {
        return false;
    }
    ls_trace_each_step(step, &trace->rank[0]) {
        steps += sends_within(step);
    }
    return steps * 2 > trace->rank[0].step_count;
}

int ls_by_hand_same_work(const ls_observe_trace *trace, int a, int b)
{
    int compared = 0, steps = 0;
    bool equal = true;
    ls_observe_finding ignored = {0};
    ls_samples_each(samples, trace, 0, equal && steps++ < detailed.value, &ignored) {
        for (int i = 0; i < trace->rank[0].tensor_count && equal; i++) {
            const char *name = trace->rank[0].tensor[i].name;
            const ls_dumpfile_entry *x = ls_samples_find(samples.file[a], "local", name, NULL);
            const ls_dumpfile_entry *y = ls_samples_find(samples.file[b], "local", name, NULL);
            compared += x != NULL && y != NULL;
            equal = x == NULL || y == NULL || ls_dumpfile_equal(x, y);
        }
    }
    return !equal ? 0 : compared > 0 ? 1 : -1;
}
