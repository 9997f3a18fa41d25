/* Whether the gradient that autograd gave on a rank is that of the user's own module: run again in
 * f32 and, where it is not that to the bit, in FP64, on the same inputs, output gradients and
 * random numbers (numerics.md 8.5). Of a trainer of the subject protocol the network of its dump is
 * run again (network.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/sort.h"
#include "kernels/core/text.h"
#include "rules.h"
#include "suite/observe/trace/network.h"
#include "suite/judge/compare.h"

static const ls_tol rounding =
    LS_TOL(3, "times what the module's own f32 run is off, in units of the type that the job "
              "multiplies in: products round their two operands, too, and both are one draw "
              "(numerics 8.5)");
static const ls_tol flips =
    LS_TOL(3, "times the root of that: branches within the rounding of their threshold are taken "
              "the other way, and their squares add up, over up to six layers (numerics 8.5)");
static const ls_tol one_sample =
    LS_TOL(1, "over the root of the batch: a branch of one sample that half rounds to the other "
              "side changes at most that sample's share of the gradient (numerics 8.5)");
static const ls_tol one_flip =
    LS_TOL(0x1p-5, "one ReLU or maximum that rounding decides otherwise moves a tensor's gradient "
                   "by up to 0.01 of itself (numerics 4)");
static const ls_tol shown =
    LS_TOL(0.5, "half of what a factor of 2 or a missing term moves a gradient by: a limit above "
                "it shows nothing");
static const ls_tol turned =
    LS_TOL(0.5, "of the limit or its square: a gradient that rounding moves by e in any direction "
                "is 1 - e^2/2 times the right one (numerics 8.5)");
static const ls_tol coarse_multiple = LS_TOL(
    0.75, "at most: a gradient that is doubled, missing or of another tensor is 2 or 0 times "
          "the right one, whatever rounding adds to it");

static const ls_tol scattered =
    LS_TOL(0.25, "of the limit: rounding in any direction over 256 elements and more adds at most "
                 "4/sqrt(256) of itself along the gradient (numerics 8.5)");

static const ls_tol slope =
    LS_TOL(0.02, "differences of two forwards in FP64 keep nine digits; a branch in a thousand "
                 "that flips between them moves the slope by less than this");

static const ls_tol unknown_batch =
    LS_TOL(16, "samples: a small batch, where none is reported; a larger one has a tighter limit");
static const ls_tol averaged =
    LS_TOL(256, "elements over which rounding in any direction averages out to 1/16 of itself");
static const ls_tol clipped_of =
    LS_TOL(16, "elements: of fewer two may be equal and the largest by chance");
static const ls_tol clipped_share =
    LS_TOL(0.05, "of the elements at the largest value: rounding leaves no two of them equal");

/* A tensor of one rank: how far f32 and the job are from FP64, relative to its own size or to its
 * share of the whole gradient where it is much smaller. */
typedef struct row {
    const char *name;
    int64_t count;
    bool own;  /* relative to its own size */
    bool zero; /* in FP64 nothing but rounding: what f32 adds says nothing of others */
    double f32, job, fitted; /* fitted: the job's gradient as a multiple of FP64's */
    double left;             /* what that multiple leaves, relative like the others */
} row;

typedef struct table {
    bool forced;                 /* FP64 took the job's own branches: none flips */
    int precise;                 /* tensors that are nearer to FP64 than their types can be */
    double whole_f32, whole_job; /* of the whole gradient, relative to it */
    int equal, other; /* tensors of no run in FP64: to the bit those of the run in f32, or not */
    int count;
    row *row;      /* in the order of the parameters */
    double middle; /* median of f32 */
} table;

typedef struct tally {
    int tensors;
    int equal;         /* of them to the bit those of the run in f32 */
    int zero;          /* whose true gradient is 0 */
    int coarse, blind; /* of the others: whose limit shows nothing: compared by their multiple, or
                          not at all */
    double worst, worst_limit;
    char worst_name[120];
    char excluded[300]; /* names of parameters that are not compared */
} tally;

/* ---- one rank's tensors ---------------------------------------------------------------------- */

static double squares_of(const ls_values *a, const ls_values *b)
{
    double sum = 0;
    for (int64_t i = 0; i < a->count; i++) {
        double d = a->v[i] - (b == NULL ? 0 : b->v[i]);
        sum += d * d;
    }
    return sum;
}

/* Where the three gradients of a rank come from: its samples, or the network of its dump. */
typedef struct source {
    const ls_dumpfile *file;
    const ls_network *network; /* NULL: the file */
    int index;                 /* of the rank in the network */
} source;

/* That of FP64, or of f32; of a network on the job's own branches the latter is its run in the
 * types of the dump's level. */
static ls_values read_again(const source *from, const char *name, bool exact)
{
    return from->network != NULL
               ? ls_network_gradient(from->network, from->index, exact, name)
               : ls_samples_read(from->file, exact ? "again/f64" : "again/f32", name, NULL);
}

static bool read_three(const source *from, const char *name, ls_values *exact, ls_values *f32,
                       ls_values *job)
{
    *exact = read_again(from, name, true);
    *f32 = read_again(from, name, false);
    *job = from->network != NULL ? ls_network_given(from->network, from->index, name)
                                 : ls_samples_read(from->file, "again/local", name, NULL);
    return exact->v != NULL && f32->v != NULL && job->v != NULL && exact->count == f32->count &&
           exact->count == job->count && exact->count > 0;
}

/* The size of the whole sampled gradient in FP64, and its elements. */
static double whole_size(const source *from, const ls_observe_rank *rank, int64_t *elements)
{
    double sum = 0;
    *elements = 0;
    for (int i = 0; i < rank->tensor_count; i++) {
        ls_values exact = read_again(from, rank->tensor[i].name, true);
        sum += exact.v == NULL ? 0 : squares_of(&exact, NULL);
        *elements += exact.v == NULL ? 0 : exact.count;
        ls_samples_free(&exact);
    }
    return sqrt(sum);
}

/* The job's gradient is that of the run in f32: FP64 would show how both round. */
static bool has_same_bits(const ls_values *f32, const ls_values *job)
{
    bool same = f32->v != NULL && job->v != NULL && f32->count == job->count && job->count > 0;
    for (int64_t i = 0; same && i < job->count; i++) {
        same = f32->v[i] == job->v[i];
    }
    return same;
}

static row make_row(const char *name, const ls_values *exact, const ls_values *f32,
                    const ls_values *job, double whole, int64_t elements)
{
    double own = sqrt(squares_of(exact, NULL)), product = 0, left = 0;
    double share = 1e-3 * whole * sqrt((double)exact->count / (double)elements);
    double size = fmax(own, share); /* D of numerics.md section 4 */
    for (int64_t i = 0; i < exact->count; i++) {
        product += exact->v[i] * job->v[i];
    }
    double fitted = own > 0 ? product / (own * own) : 1;
    for (int64_t i = 0; i < exact->count; i++) {
        left += pow(job->v[i] - fitted * exact->v[i], 2);
    }
    return (row){.name = name,
                 .count = exact->count,
                 .own = own >= share && own > 0,
                 .zero =
                     own<share * 0x1p-24, .f32 = size> 0 ? sqrt(squares_of(f32, exact)) / size : 0,
                 .job = size > 0 ? sqrt(squares_of(job, exact)) / size : 0,
                 .fitted = fitted,
                 .left = size > 0 ? sqrt(left) / size : 0};
}

static double median_of(const table *t)
{
    double *value = ls_list_make((size_t)t->count + 1, sizeof *value);
    int count = 0;
    for (int i = 0; i < t->count; i++) {
        value[count] = t->row[i].f32;
        count += !t->row[i].zero;
    }
    ls_sort_doubles(value, count);
    double middle = count > 0 ? value[count / 2] : 0;
    free(value);
    return middle;
}

static table make_table(const source *from, const ls_observe_rank *rank)
{
    int64_t elements;
    double whole = whole_size(from, rank, &elements), off_f32 = 0, off_job = 0;
    table t = {.row = ls_list_make((size_t)rank->tensor_count + 1, sizeof *t.row)};
    for (int i = 0; i < rank->tensor_count; i++) {
        ls_values exact, f32, job;
        if (read_three(from, rank->tensor[i].name, &exact, &f32, &job)) {
            t.row[t.count] = make_row(rank->tensor[i].name, &exact, &f32, &job, whole, elements);
            t.row[t.count].zero &=
                from->network == NULL; /* on the job's branches f32 is its type */
            t.count++;
            const row *last = &t.row[t.count - 1];
            t.precise += last->job < ls_compare_bounds_weak_share().factor * last->f32;
            off_f32 += squares_of(&f32, &exact);
            off_job += squares_of(&job, &exact);
        } else if (from->network == NULL && exact.v == NULL && f32.v != NULL) {
            bool same = has_same_bits(&f32, &job);
            t.equal += same;
            t.other += !same;
        }
        ls_samples_free(&exact);
        ls_samples_free(&f32);
        ls_samples_free(&job);
    }
    t.middle = median_of(&t);
    t.whole_f32 = whole > 0 ? sqrt(off_f32) / whole : 0;
    t.whole_job = whole > 0 ? sqrt(off_job) / whole : 0;
    return t;
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* The rounding of the coarsest type that the step's forwards and parameters are in, in units of
 * f32's. */
static double coarseness(const ls_observe_rank *rank, const ls_observe_step *step)
{
    double u = 0x1p-24;
    for (int i = 0; i < rank->tensor_count; i++) {
        u = fmax(u, ls_samples_unit(rank->tensor[i].type).u);
    }
    ls_trace_each_kind(call, step, LS_CALL_FORWARD) {
        u = fmax(u, ls_samples_unit(ls_event_text(call->json, autocast, "f32")).u);
        u = fmax(u, ls_samples_unit(ls_event_text(call->json, type, "f32")).u);
    }
    return u / 0x1p-24;
}

/* On the job's own branches: times what storing in the job's types costs (numerics 4). */
static double bound_of(double coarse, ls_compare_part part)
{
    return ls_compare_bounds_of(coarse > 1 ? 2 : 0)[part].factor;
}

/* Samples of a forward of the step, or words that have branches of their own; where they are not
 * known, few. */
static double batch_of(const ls_dumpfile *file, const ls_observe_step *step)
{
    double images = step->step->images, forwards = 0;
    ls_trace_each_kind(call, step, LS_CALL_FORWARD) {
        bool training =
            ls_event_bool(call->json, training, false) && ls_event_bool(call->json, grad, false);
        forwards += training ? call->times : 0;
    }
    double rows = ls_dumpfile_number(file, "again_rows", 1);
    return fmax(images > 0 && forwards > 0 ? images / forwards : unknown_batch.value, rows);
}

/* Small errors of f32 in one tensor are an accident of its few samples: the median counts, too. */
static double limit_of(const table *t, const row *r, double coarse, double batch)
{
    if (t->forced) { /* one rank's gradient scatters as a small tensor's mean over ranks does */
        return bound_of(coarse, LS_COMPARE_SMALL) * fmax(r->f32, t->middle);
    }
    double off = coarse * fmax(r->f32, t->middle);
    double many = flips.value * sqrt(off), single = coarse > 1 ? one_sample.value / sqrt(batch) : 0;
    return fmax(rounding.value * off + sqrt(many * many + single * single), one_flip.value);
}

/* How far the multiple of the right gradient may be from 1. */
static double multiple_limit(double limit)
{
    double most = fmin(turned.value * fmax(limit, limit * limit), coarse_multiple.value);
    return fmax(most, scattered.value * limit);
}

static bool has_multiple(const row *r)
{
    return r->own && (double)r->count >= averaged.value;
}

/* A gradient that is a multiple of the right one. */
static bool is_multiple(const row *r, double limit)
{
    return fabs(r->fitted - 1) > multiple_limit(limit) &&
           r->left <= limit * fmax(1, fabs(r->fitted));
}

static bool is_wrong(const row *r, double limit)
{
    bool far = limit <= shown.value && !(r->job <= limit);
    return far || (has_multiple(r) && !(fabs(r->fitted - 1) <= multiple_limit(limit)));
}

/* A step in f16 of which no loss was scaled: small gradients become zero by themselves. */
static bool is_unscaled_half(const ls_observe_step *step)
{
    bool half = false;
    if (step != NULL && step->step->loss_scale != 1) {
        return false;
    }
    for (int c = 0; step != NULL && c < step->call_count; c++) {
        const ls_call *call = &step->call[c];
        if (call->kind == LS_CALL_BACKWARD && ls_event_int(call->json, scaled, -1) >= 0) {
            return false;
        }
        half = half || (call->kind == LS_CALL_FORWARD &&
                        strcmp(ls_event_text(call->json, autocast, ""), "f16") == 0);
    }
    return half;
}

/* Backward runs from the last parameter to the first: a fault shows in its own layer and those
 * before it. */
static void report(const ls_observe_trace *trace, int rank, int64_t step, const table *t, int last,
                   int wrong, double limit, ls_observe_finding *out)
{
    const row *r = &t->row[last];
    LS_TEXT(times, 80, ", %.4g times what it should be", r->fitted);
    ls_verdict_fail(&out->verdict,
                    "step %lld, rank %d: the gradient of %s is off by %.2g of itself "
                    "(limit %.2g)%s; %d of %d tensors are",
                    (long long)step, rank, r->name, r->job, limit,
                    is_multiple(r, limit) ? times : "", wrong, t->count);
    const ls_observe_step *own = ls_trace_step(&trace->rank[rank], step);
    int call = own == NULL ? -1 : ls_trace_find(own, LS_CALL_BACKWARD, 0);
    if (trace->attached && call >= 0 && is_unscaled_half(own)) {
        ls_finding_explain(out, own->call[call].at,
                           "f16 without a loss scale: gradients below 6e-8 become zero, and those "
                           "below 6e-5 lose digits",
                           "scale the loss (torch.amp.GradScaler), or use bf16");
        return;
    }
    ls_verdict_cause(&out->verdict,
                     "a backward pass that does not belong to its forward: in the "
                     "layer of %s or between it and the output",
                     r->name);
    ls_finding_blame(out, call >= 0 ? own->call[call].at : "",
                     "check custom backward functions, fused kernels and what is changed in place, "
                     "from %s to the output",
                     r->name);
}

/* What a hook clips by value is at its limit in many elements. */
static bool is_clipped(const source *from, const char *name)
{
    ls_values exact, f32, job;
    bool clipped = false;
    if (read_three(from, name, &exact, &f32, &job) && (double)job.count >= clipped_of.value) {
        double most = 0;
        for (int64_t i = 0; i < job.count; i++) {
            most = fmax(most, fabs(job.v[i]));
        }
        int64_t there = 0, beyond = 0;
        for (int64_t i = 0; i < job.count; i++) {
            there += fabs(job.v[i]) == most;
            beyond += fabs(exact.v[i]) > most;
        }
        clipped = there > 1 && (double)there > clipped_share.value * (double)job.count &&
                  beyond * 2 > there;
    }
    ls_samples_free(&exact);
    ls_samples_free(&f32);
    ls_samples_free(&job);
    return clipped;
}

/* The copy has no hooks of the user's: what they do to gradients may be meant, but for a limit that
 * is compared with gradients which a loss scale still multiplies. */
static void report_hooks(const ls_samples *samples, int rank, const source *from, const table *t,
                         int last, int wrong, const char *hooks, ls_observe_finding *out)
{
    const row *r = &t->row[last];
    double scale = samples->step[rank]->step->loss_scale;
    if (scale != 1 && is_clipped(from, r->name)) {
        ls_observe_finding one = {0};
        ls_finding_set(&one, LS_FAIL, "", NULL,
                       "clip between scaler.unscale_(optimizer) and scaler.step(optimizer)",
                       "step %lld, rank %d: the gradient of %s is clipped by value in backward, "
                       "while a loss scale of %g multiplies it; %d of %d tensors are off",
                       (long long)samples->number, rank, r->name, scale, wrong, t->count);
        ls_verdict_cause(&one.verdict,
                         "a hook clips gradients that are not unscaled yet: its limit is %g times "
                         "too low for them",
                         scale);
        ls_finding_guess(out, &one);
    }
    ls_finding_set(out, LS_WEAK, "", NULL,
                   "check what the hook returns: None leaves a gradient as it is",
                   "step %lld, rank %d: with the hooks the gradient of %s is %.4g times what it is "
                   "without them; %d of %d tensors differ",
                   (long long)samples->number, rank, r->name, r->fitted, wrong, t->count);
    ls_verdict_cause(&out->verdict,
                     "a hook on %s changes gradients: a mistake, unless it is meant so (clipped, "
                     "masked, scaled or reversed gradients)",
                     hooks);
}

/* torch.compile has a checkpoint draw again in backward; a backend that does not keep the state of
 * the generator gives gradients of other masks. The script is as PyTorch documents it. */
static void report_redrawn(const ls_samples *samples, int rank, const table *t, int last, int wrong,
                           ls_observe_finding *out)
{
    ls_finding_set(
        out, LS_WEAK, "", NULL,
        "compare the gradients with those of the model without torch.compile, from one "
        "seed",
        "step %lld, rank %d: the gradient of %s is off by %.2g of that of the model that "
        "is not compiled; %d of %d tensors are",
        (long long)samples->number, rank, t->row[last].name, t->row[last].job, wrong, t->count);
    ls_verdict_cause(&out->verdict,
                     "activations with dropout are computed again in backward, under "
                     "torch.compile: where that draws other masks than forward did, the gradient "
                     "is not that of the loss");
}

/* Hooks on what a module returned: the module itself is right for the gradient that they leave. */
static void judge_outputs(const ls_samples *samples, int rank, ls_observe_finding *out)
{
    const char *changed = ls_dumpfile_text(samples->file[rank], "again_changed", "");
    if (changed[0] != '\0') {
        ls_finding_set(
            out, LS_WEAK, "",
            "a mistake, unless it is meant so (clipped, masked, scaled or reversed gradients)",
            "check what the hook returns: None leaves a gradient as it is",
            "step %lld, rank %d: a hook changes the gradient of %s", (long long)samples->number,
            rank, changed);
    }
}

/* In FP64 a function of the user's own has the same backward as in the job: only its forward shows
 * whether that is its slope. */
static void judge_functions(const ls_samples *samples, int rank, ls_observe_finding *out)
{
    const ls_dumpfile *file = samples->file[rank];
    double ratio = ls_dumpfile_number(file, "again_slope", 1);
    if (!(fabs(ratio - 1) <= slope.value)) {
        ls_finding_set(out, LS_WEAK, ls_dumpfile_text(file, "again_at", ""), NULL,
                       "check it with torch.autograd.gradcheck",
                       "step %lld, rank %d: with parameters or inputs moved along their gradient "
                       "the outputs move by %.4g times what backward says",
                       (long long)samples->number, rank, ratio);
        ls_verdict_cause(&out->verdict,
                         "the backward of %s is not the slope of its forward: a mistake, unless it "
                         "is meant so (straight-through, reversed or scaled gradients)",
                         ls_dumpfile_text(file, "again_functions", "an autograd.Function"));
    }
}

/* The copy's backward began with the job's state of the generators, and met none of its forward's.
 */
static void judge_dropped(const ls_samples *samples, int rank, ls_observe_finding *out)
{
    const char *at = ls_dumpfile_text(samples->file[rank], "again_dropped", "");
    if (at[0] != '\0') {
        ls_finding_set(out, LS_FAIL, at,
                       "a checkpoint that does not restore the state of the generators: the "
                       "gradient is of other activations than the loss",
                       "leave out preserve_rng_state=False, or drop nothing in what is computed "
                       "again",
                       "step %lld, rank %d: activations that backward computes again are dropped "
                       "by other masks than in the forward",
                       (long long)samples->number, rank);
    }
}

/* Statistics do not add up over layers as gradients do: the bound of a small tensor. */
static void judge_statistics(const ls_samples *samples, int rank, const ls_network *network,
                             ls_observe_finding *out)
{
    int index = ls_network_index(network, rank);
    double coarse = ls_network_rounding(network) / 0x1p-24;
    for (int node = 0; index >= 0 && node < network->evidence->net.node_count; node++) {
        for (int kind = 0; kind < 2; kind++) {
            ls_network_statistic s;
            if (!ls_network_statistics(network, index, node, kind, &s)) {
                continue;
            }
            double limit = bound_of(coarse, LS_COMPARE_SMALL) * s.cost + s.rounding;
            if (!(s.off <= limit)) {
                ls_finding_set(out, LS_FAIL, "",
                               "running statistics that are not torch's average of the batch's "
                               "mean and unbiased variance by 0.1",
                               NULL,
                               "step %lld, rank %d: %s is off by %.2g after the step (limit %.2g)",
                               (long long)samples->number, rank, s.name, s.off, limit);
                return;
            }
        }
    }
}

static void judge_rank(const ls_samples *samples, int rank, const ls_network *network, tally *all,
                       ls_observe_finding *out)
{
    source from = {samples->file[rank], network,
                   network != NULL ? ls_network_index(network, rank) : -1};
    if (network != NULL && from.index < 0) {
        return;
    }
    table t = make_table(&from, &samples->trace->rank[rank]);
    t.forced = network != NULL && network->forced;
    double coarse = network != NULL ? ls_network_rounding(network) / 0x1p-24
                                    : coarseness(&samples->trace->rank[rank], samples->step[rank]);
    double batch = batch_of(samples->file[rank], samples->step[rank]);
    int wrong = 0, last = -1;
    int equal = t.other > 0 ? 0 : t.equal; /* the run in FP64 is missing */
    all->tensors += equal;
    all->equal += equal;
    for (int i = 0; i < t.count; i++) {
        double limit = limit_of(&t, &t.row[i], coarse, batch);
        all->tensors++;
        all->zero += t.row[i].zero;
        all->coarse += limit > shown.value && has_multiple(&t.row[i]);
        all->blind += limit > shown.value && !has_multiple(&t.row[i]) && !t.row[i].zero;
        if (t.forced ? !(t.row[i].job <= limit) : is_wrong(&t.row[i], limit)) {
            wrong++;
            last = i;
        }
        if (limit <= shown.value && t.row[i].job / limit >= all->worst / all->worst_limit) {
            all->worst = t.row[i].job;
            all->worst_limit = limit;
            ls_text_put(all->worst_name, sizeof all->worst_name, "%s", t.row[i].name);
        }
    }
    double most = t.forced ? bound_of(coarse, LS_COMPARE_TENSOR) * t.whole_f32 : INFINITY;
    if (wrong == 0 && t.count > 0 && !(t.whole_job <= most)) {
        ls_finding_set(out, LS_FAIL, "",
                       "something is computed or kept in fewer bits than the job's level says",
                       NULL,
                       "step %lld, rank %d: the whole gradient is off by %.2g of itself (limit "
                       "%.2g), no tensor alone by more than its own limit",
                       (long long)samples->number, rank, t.whole_job, most);
    }
    if (wrong == 0 && t.forced && coarse > 1 && 2 * t.precise > t.count) {
        ls_finding_set(out, LS_FAIL, "",
                       "products or activations stay f32: the level is claimed, not used", NULL,
                       "step %lld, rank %d: %d of %d gradients are off by less than 1/16 of what "
                       "storing in half costs",
                       (long long)samples->number, rank, t.precise, t.count);
    }
    const char *hooks =
        network != NULL ? "" : ls_dumpfile_text(samples->file[rank], "again_hooks", "");
    if (wrong > 0 && hooks[0] != '\0') {
        report_hooks(samples, rank, &from, &t, last, wrong, hooks, out);
    } else if (wrong > 0 && network == NULL &&
               ls_dumpfile_text(samples->file[rank], "again_redrawn", "")[0] != '\0') {
        report_redrawn(samples, rank, &t, last, wrong, out);
    } else if (wrong > 0) {
        report(samples->trace, rank, samples->number, &t, last, wrong,
               limit_of(&t, &t.row[last], coarse, batch), out);
    }
    free(t.row);
}

/* ---- verdict --------------------------------------------------------------------------------- */

static bool was_asked(const ls_observe_trace *trace)
{
    const ls_event *observe = ls_event_object(trace->rank[0].start, observe);
    return ls_event_bool(observe, gradient, true);
}

static void conclude(const ls_observe_trace *trace, const tally *all, const char *why,
                     ls_observe_finding *out)
{
    if (all->tensors == 0) {
        ls_verdict_set(&out->verdict, was_asked(trace) ? LS_UNSUPPORTED : LS_SKIP, "%s%s",
                       was_asked(trace) ? "no step was run again in FP64: " : "not asked for",
                       was_asked(trace) ? why : "");
    } else if (all->blind * 2 > all->tensors - all->zero) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "in %d of %d tensors the job's type itself costs more than %.0f %% of the "
                       "gradient: nothing smaller shows",
                       all->blind, all->tensors - all->zero, 100 * shown.value);
    }
    LS_TEXT(coarse, 120, "; %d of them by their multiple alone, %d not at all", all->coarse,
            all->blind);
    LS_TEXT(zero, 60, "; of %d the true gradient is 0", all->zero);
    LS_TEXT(excluded, 400, "; used also outside the modules that ran again, and not compared: %s",
            all->excluded);
    LS_TEXT(nearest, 300, "; nearest to its limit is %s, off by %.2g of itself (limit %.2g)",
            all->worst_name, all->worst, all->worst_limit);
    if (all->worst_name[0] != '\0') {
        ls_verdict_measured(&out->verdict, all->worst, all->worst_limit, "of the gradient",
                            rounding.why);
    }
    LS_TEXT(equal, 120, "%d gradients are to the bit those of the module run again in f32%s",
            all->equal, all->equal < all->tensors ? "; " : "");
    LS_TEXT(exact, 40, "%d gradients compared with FP64", all->tensors - all->equal);
    ls_verdict_pass(&out->verdict, all->tensors - all->blind - all->zero, "%s%s%s%s%s%s",
                    all->equal > 0 ? equal : "", all->equal < all->tensors ? exact : "",
                    all->worst_name[0] != '\0' ? nearest : "",
                    all->coarse + all->blind > 0 ? coarse : "", all->zero > 0 ? zero : "",
                    all->excluded[0] != '\0' ? excluded : "");
}

/* Dumps of the protocol: the network of each of the first ones is run again. */
static void judge_protocol(const ls_observe_trace *trace, tally *all, char *why, size_t bytes,
                           ls_observe_finding *out)
{
    enum { MOST = 3 }; /* steps: a stale value shows in the second at the latest */
    int steps = 0;
    ls_text_put(why, bytes, "no step was dumped");
    ls_samples_each(samples, trace, 0, steps < MOST, out) {
        ls_network network;
        ls_network_run(&samples, &network);
        for (int k = 0; network.evidence != NULL && k < samples.world; k++) {
            judge_rank(&samples, k, &network, all, out);
            /* Where each micro-step is reduced, rank 0's statistics go to all in between. */
            const cJSON *options =
                cJSON_GetObjectItemCaseSensitive(trace->rank[k].record->start, "options");
            if (ls_json_bool(options, "no-sync", true)) {
                judge_statistics(&samples, k, &network, out);
            }
        }
        if (network.evidence != NULL) {
            steps++;
        } else {
            ls_text_put(why, bytes, "%s", network.why);
        }
        ls_network_free(&network);
    }
}

void ls_rules_gradient_judge(const ls_observe_trace *trace, ls_observe_finding *out)
{
    tally all = {.worst_limit = 1};
    char why[300] = "no detailed step from the second on";
    bool said = false; /* the reason of the step that was to be run again */
    if (!trace->attached) {
        judge_protocol(trace, &all, why, sizeof why, out);
        conclude(trace, &all, why, out);
        return;
    }
    ls_samples_each(samples, trace, 0, all.tensors == 0, out) {
        for (int k = 0; k < samples.world; k++) {
            if (samples.file[k] != NULL && samples.number > 1 && !said) {
                const char *text = ls_dumpfile_text(samples.file[k], "again", "no reason is given");
                ls_text_put(why, sizeof why, "%s",
                            strcmp(text, "done") == 0
                                ? "the job has no gradient by backward() to compare with the copy's"
                                : text);
                said = strcmp(text, "not a step that is run again") != 0;
            }
            if (samples.file[k] != NULL) {
                judge_rank(&samples, k, NULL, &all, out);
            }
        }
        for (int k = 0; k < samples.world; k++) { /* what may be meant comes after what may not */
            if (samples.file[k] != NULL) {
                judge_dropped(&samples, k, out);
                judge_functions(&samples, k, out);
                judge_outputs(&samples, k, out);
                ls_text_put(all.excluded, sizeof all.excluded, "%s",
                            ls_dumpfile_text(samples.file[k], "again_excluded", ""));
            }
        }
    }
    conclude(trace, &all, why, out);
}
