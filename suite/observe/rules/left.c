/* Whether every parameter takes part in the reduction, and no gradient is left from before. */
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include "suite/observe/trace/calls.h"
#include "suite/observe/trace/factor.h"
#include "suite/observe/trace/job.h"
#include "suite/observe/trace/mean.h"
#include "rules.h"
#include "suite/observe/trace/pass.h"

/* ---- every parameter takes part -------------------------------------------------------------- */

static bool gets_gradient(const ls_observe_trace *trace, const char *name, ls_observe_finding *out)
{
    bool found = false;
    ls_samples_each(samples, trace, 0, !found, out) {
        for (int k = 0; k < samples.world; k++) {
            found = found || ls_samples_find(samples.file[k], "local", name, NULL) != NULL ||
                    ls_samples_find(samples.file[k], "reduced", name, NULL) != NULL;
        }
    }
    return found;
}

/* Whether a training forward of the model was seen: one that is trained later gets nothing yet. */
static bool was_run(const ls_observe_rank *rank, int model)
{
    ls_trace_each_step(step, rank) {
        for (int c = ls_trace_find(step, LS_CALL_FORWARD, 0); step->detail && c >= 0;
             c = ls_trace_find(step, LS_CALL_FORWARD, c + 1)) {
            if (step->call[c].model == model) {
                return true;
            }
        }
    }
    return false;
}

/* Whether a detailed step was one of an optimizer that holds the parameter, or none holds it: what
 * trains in turn with others may have no such step. */
static bool was_stepped(const ls_observe_rank *rank, const char *name)
{
    int optimizer = -1, group;
    bool held = false;
    while (ls_job_group(rank, name, optimizer, &optimizer, &group) != NULL) {
        held = true;
        ls_trace_each_step(step, rank) {
            const ls_call *call;
            if (step->detail && ls_job_steps_of(step, optimizer, &call) > 0) {
                return true;
            }
        }
    }
    return !held;
}

void ls_rules_reduction_covered(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (!ls_reduction_concerns(trace, out)) {
        return;
    }
    ls_still_judge_branches(trace, out);
    const ls_observe_rank *rank = &trace->rank[0];
    ls_job_names unused = {0}, allowed = {0};
    int seen = 0, known = 0, unstepped = 0;
    const char *at = "";
    for (int i = 0; i < rank->tensor_count && ls_samples_next(trace, 0) != 0; i++) {
        const ls_observe_tensor *tensor = &rank->tensor[i];
        const ls_event *model = ls_job_model(rank, tensor->model);
        if (!tensor->trainable || !ls_reduction_is_wrapped(trace, tensor)) {
            continue;
        }
        if (gets_gradient(trace, tensor->name, out)) {
            seen++;
        } else if (!was_run(rank, tensor->model)) {
            continue;
        } else if (!was_stepped(rank, tensor->name)) {
            unstepped++;
            continue;
        } else if (!ls_event_bool(model, find_unused, false) &&
                   !ls_event_bool(model, static_graph, false)) {
            at = ls_event_text(model, at, "");
            ls_job_add_name(&unused, tensor->name);
        } else {
            ls_job_add_name(&allowed, tensor->name);
        }
        known++;
    }
    if (known == 0 && ls_trace_is_ddp(trace)) {
        ls_finding_missing(trace, "no samples of a model in DistributedDataParallel", out);
    } else if (known == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no model is in DistributedDataParallel");
    } else if (unused.count > 0) {
        ls_finding_set(out, LS_FAIL, at, NULL,
                       "freeze them before the model is wrapped, remove them, or pass "
                       "find_unused_parameters=True",
                       "%d trainable parameters of a model in DistributedDataParallel never get a "
                       "gradient: %s",
                       unused.count, ls_job_names_text(&unused));
    }
    if (unstepped > 0) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "the optimizers of %d parameters stepped in no detailed step", unstepped);
    }
    if (allowed.count > 0) {
        ls_finding_blame(out, "", "never trained: %s", ls_job_names_text(&allowed));
    }
    ls_verdict_pass(&out->verdict, known, "%d parameters get gradients, %d may be unused and are",
                    seen, allowed.count);
}

/* ---- nothing left from the step before ------------------------------------------------------- */

/* Tensors whose .grad is more than what this step's backward passes gave. */
typedef struct leftover {
    int compared;                 /* tensors with gradients in place before */
    ls_job_names reused, foreign; /* those that hold more than the step gave */
    const char *from;             /* the backward that gave what is foreign */
    int left;
} leftover;

static bool holds_more(const ls_samples *samples, int rank, const ls_observe_tensor *tensor,
                       int *compared)
{
    ls_mean mean;
    ls_mean_plan plan = ls_mean_plan_of(samples, rank);
    ls_reduction_set_sent(samples, rank, tensor->model, &plan);
    bool wrapped = samples->world > 1 && ls_reduction_is_wrapped(samples->trace, tensor),
         more = false;
    ls_values got = ls_reduction_gradient(samples, rank, tensor->name);
    const char *type = ls_reduction_type(samples, rank, tensor->name);
    bool usable = got.v != NULL && (wrapped || samples->world == 1) &&
                  samples->count == samples->world &&
                  ls_mean_plan_for(samples, tensor->name, &plan);
    if (usable && ls_mean_make(samples, &plan, tensor->name, type, &mean)) {
        ++*compared;
        more = ls_mean_violations(&mean, &got, 1, NULL, NULL, NULL) > 0;
        ls_mean_free(&mean);
    }
    ls_samples_free(&got);
    return more;
}

static leftover find_leftover(const ls_samples *samples, int rank)
{
    leftover l = {0};
    ls_observe_finding unknown = {0};
    const ls_observe_rank *own = &samples->trace->rank[rank];
    if (samples->world > 1 && !ls_reduction_hooks_known(samples->trace, &unknown)) {
        return l;
    }
    ls_carried *all = ls_factor_read_carried(samples, rank);
    bool any = false;
    unsigned attempted = 0;
    ls_trace_each_call(call, samples->step[rank]) {
        bool known = call->optimizer >= 0 && call->optimizer < LS_CALLS_OPTIMIZERS;
        attempted |= known && ls_calls_is_attempt(call) ? 1u << call->optimizer : 0;
    }
    for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
        if ((attempted >> o & 1) == 0) {
            all[o] = (ls_carried){.left = -1}; /* what it left may stay for the other's step */
        }
        any = any || all[o].reused || all[o].carried;
    }
    for (int i = 0; any && i < own->tensor_count; i++) {
        ls_carried b = ls_factor_carried_of(samples, rank, own->tensor[i].name, all);
        bool suspect = b.reused || (b.carried && b.from != NULL);
        l.left = b.reused && b.left > l.left ? b.left : l.left;
        if (suspect && holds_more(samples, rank, &own->tensor[i], &l.compared)) {
            ls_job_add_name(b.reused ? &l.reused : &l.foreign, own->tensor[i].name);
            l.from = b.reused ? l.from : b.from;
        }
    }
    free(all);
    return l;
}

static void judge_left(const ls_samples *samples, int rank, int *looked, ls_observe_finding *out)
{
    const ls_observe_step *step = samples->step[rank];
    if (step == NULL || samples->file[rank] == NULL ||
        ls_trace_find(step, LS_CALL_BACKWARD, 0) < 0) {
        return;
    }
    leftover l = find_leftover(samples, rank);
    ++*looked;
    if (l.reused.count > 0) {
        ls_finding_set(out, LS_FAIL, ls_trace_place(step, LS_CALL_BACKWARD),
                       "no zero_grad of these parameters between two steps of their optimizer: it "
                       "steps again by old gradients, and by what other losses left",
                       "call zero_grad() once a step, before its first backward",
                       "step %lld, rank %d: %d parameters hold a gradient that was there before "
                       "the step's own backward, and it stays in the sum: %s",
                       (long long)samples->number, rank, l.reused.count,
                       ls_job_names_text(&l.reused));
    } else if (l.foreign.count > 0) {
        ls_finding_set(out, LS_WEAK, ls_trace_place(step, LS_CALL_BACKWARD),
                       "gradients of another loss are in the sum: right only where that loss "
                       "trains these parameters, too",
                       "if it is not meant (a generator's loss in a discriminator): zero_grad() "
                       "right before this loss's backward",
                       "step %lld, rank %d: %d parameters hold what the backward at %.80s left "
                       "before the step's own: %s",
                       (long long)samples->number, rank, l.foreign.count, l.from,
                       ls_job_names_text(&l.foreign));
    } else if (l.left > 0 && l.compared == 0) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "step %lld: %d parameters hold a gradient of the step before; no samples "
                       "say whether it stays",
                       (long long)samples->number, l.left);
    }
}

/* ---- gradients of another optimizer's loss --------------------------------------------------- */

enum { GIVEN = 8 };

/* What an optimizer would step by: backward calls that reached it since it was cleared or has
 * stepped. */
typedef struct given {
    int count;
    bool asked;               /* to step by it, once */
    const char *first_of_all; /* the only place that its first step had, or NULL */
    struct {
        const char *at;
        unsigned reached;
        int number; /* of the call */
    } by[GIVEN];
} given;

/* A step by two losses, between whose backward calls another optimizer has stepped. */
typedef struct mixed {
    int count, sure; /* sure: both losses reach both networks */
    long long step;
    const char *left, *own; /* places */
} mixed;

static void add_given(given *g, const char *at, unsigned reached, int number)
{
    for (int i = 0; i < g->count; i++) {
        if (strcmp(g->by[i].at, at) == 0) {
            g->by[i].number = number;
            g->by[i].reached |= reached;
            return;
        }
    }
    if (g->count < GIVEN) {
        g->by[g->count].at = at;
        g->by[g->count].reached = reached;
        g->by[g->count++].number = number;
    }
}

/* Of two backward calls that an optimizer is about to step by, the earlier one was another's: that
 * has stepped since. It is left over where the later one reaches that other, too (each loss trains
 * both networks, as a generator's and a discriminator's do), or where the optimizer's first step
 * was made by the later one alone. One that is trained by both losses on purpose (a part that two
 * tasks share) has them both in its first step, and the other's task reaches the other alone. */
static void find_mixed(const given *all, int own, const int *last_step, long long step, mixed *m)
{
    const given *g = &all[own];
    for (int late = 0; late < g->count; late++) {
        for (int early = 0; early < g->count; early++) {
            bool since = false, both = false, others = false; /* others: stepped by the later one */
            unsigned third = g->by[late].reached & ~(1u << own);
            for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
                others = others || (o != own && last_step[o] > g->by[late].number);
                unsigned bit = 1u << o;
                bool between = o != own && (g->by[early].reached & bit) != 0 &&
                               last_step[o] > g->by[early].number &&
                               last_step[o] < g->by[late].number;
                since = since || between;
                both = both || (between && (g->by[late].reached & bit) != 0);
                third &= between ? ~bit : ~0u;
            }
            bool alone = g->first_of_all != NULL && strcmp(g->first_of_all, g->by[late].at) == 0;
            if (since && !others && (both || alone)) {
                m->count++;
                m->sure += both && third == 0;
                m->step = m->step == 0 ? step : m->step;
                m->left = g->by[early].at;
                m->own = g->by[late].at;
                return;
            }
        }
    }
}

static mixed look_for_mixed(const ls_observe_rank *rank)
{
    mixed m = {0};
    given all[LS_CALLS_OPTIMIZERS] = {{0}};
    int last_step[LS_CALLS_OPTIMIZERS] = {0}, number = 0;
    ls_calls_each(calls, rank) {
        const ls_call *call = calls.call;
        int own = call->optimizer;
        number++;
        if (call->kind == LS_CALL_BACKWARD && ls_event_has(call->json, reached)) {
            unsigned reached = (unsigned)ls_event_int(call->json, reached, 0);
            for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
                if ((reached >> o & 1) != 0) {
                    add_given(&all[o], call->at, reached, number);
                }
            }
        } else if (call->kind == LS_CALL_ZERO_GRAD) {
            unsigned cleared = own >= 0 && own < LS_CALLS_OPTIMIZERS
                                   ? 1u << own
                                   : ls_calls_optimizers_of(&calls, call->model);
            for (int o = 0; o < LS_CALLS_OPTIMIZERS; o++) {
                all[o].count = (cleared >> o & 1) != 0 ? 0 : all[o].count;
            }
        } else if (ls_calls_is_attempt(call) && own >= 0 && own < LS_CALLS_OPTIMIZERS) {
            find_mixed(all, own, last_step, ls_calls_step(&calls), &m);
            if (!all[own].asked && all[own].count == 1) {
                all[own].first_of_all = all[own].by[0].at;
            }
            all[own].asked = true;
            all[own].count = 0;
            last_step[own] = number;
        }
    }
    return m;
}

static const ls_tol enough =
    LS_TOL(2, "steps by two losses: the first may be a warm-up that trains both networks");

static void judge_mixed(const ls_observe_trace *trace, ls_observe_finding *out)
{
    mixed m = look_for_mixed(&trace->rank[0]);
    if (m.count < enough.value) {
        return;
    }
    ls_finding_set(out, m.sure >= enough.value ? LS_FAIL : LS_WEAK, m.own,
                   "the other network's loss reaches these parameters, and nothing clears what it "
                   "leaves: no detach(), and zero_grad() at another place",
                   "zero_grad() of this optimizer right before this loss's backward, and detach() "
                   "what the other loss is to leave alone",
                   "%d steps, the first of them step %lld, are made by two losses: that of %.80s, "
                   "and what %.80s left before another optimizer stepped by it",
                   m.count, m.step, m.own, m.left);
}

void ls_rules_reduction_left(const ls_observe_trace *trace, ls_observe_finding *out)
{
    int looked = 0;
    /* step 1 has none before it */
    ls_samples_each(samples, trace, 1, out->verdict.code != LS_FAIL, out) {
        for (int k = 0; k < samples.world; k++) {
            ls_observe_finding one = {0};
            judge_left(&samples, k, &looked, &one);
            ls_calls_keep_worst(out, &one);
        }
    }
    ls_observe_finding one = {0};
    judge_mixed(trace, &one);
    ls_finding_guess(out, &one);

    ls_finding_close(out, looked, LS_WEAK, "no detailed step after the first",
                     "looked at %d times in steps after the first", looked);
}

/* ---- reduction.micro ------------------------------------------------------------------------- */

/* Whether the gradients of a step's micro-steps are averaged: the loss, or the gradient, divided by
 * their number. A sum is a choice, too: of a rate, and of a limit that clips. */

typedef struct micro {
    int steps, summed, other, unknown; /* detailed steps of several micro-steps */
    int several;        /* of them, those that have two at least; the others' loss is divided */
    int of_ranks;       /* of those that are summed: times the number of ranks */
    int twice;          /* of them, those whose losses are divided by their number squared */
    int whole, shorter; /* divided by their number; by a larger one */
    int most;           /* of those that are divided by their number */
    ls_factor last, tail;
    bool clips;
    ls_observe_finding weights;
} micro;

/* The script calls a library (its place follows in brackets) that calls backward, and weighs the
 * micro-steps. */
static bool by_library(const ls_factor *f)
{
    return strchr(f->backward->at, '(') != NULL;
}

/* The division by the number of micro-steps stands in that library, too. */
static bool divides_itself(const ls_factor *f)
{
    const char *from = strstr(f->backward->at, "(from "), *call = strchr(f->backward->at, '(');
    const char *library = from != NULL ? f->backward->at : call + 1;
    return by_library(f) &&
           strncmp(library, f->loss_by_steps, strcspn(f->loss_by_steps, ":") + 1) == 0;
}

static void add_step(const ls_samples *samples, micro *m)
{
    ls_factor f = {0};
    ls_factor_add(&f, samples);
    bool divided = f.loss_by > 1 && f.loss_by_steps[0] != '\0'; /* for more than one */
    if (f.steps == 0 || (f.micro < 2 && !divided)) {
        return;
    }
    /* How the losses of micro-steps are weighed: 1 for their mean, their number for the sum. */
    double factor = ls_factor_final(&f);
    bool known = strcmp(f.loss_of, "mean") == 0 && isfinite(factor);
    double weight = known                                    ? factor * f.loss_times * f.micro
                    : ls_factor_is_near(factor * f.share, 1) ? 1
                                                             : NAN;
    m->steps++;
    m->several += f.micro > 1;
    m->unknown += isnan(weight);
    /* What counts tokens over all ranks multiplies by their number. */
    bool of_ranks = (by_library(&f) || f.micro > 1) &&
                    ls_factor_is_near(weight, (double)f.micro * samples->world);
    m->summed += ls_factor_is_near(weight, f.micro) || of_ranks;
    m->of_ranks += of_ranks && samples->world > 1;
    m->other += weight < 1 && !ls_factor_is_near(weight, 1) && f.loss_divided;
    m->twice += ls_factor_is_near(f.loss_by, (double)f.micro * f.micro);
    m->whole += ls_factor_is_near(weight, 1);
    m->most = ls_factor_is_near(weight, 1) && f.micro > m->most ? f.micro : m->most;
    if (weight < 1 && !ls_factor_is_near(weight, 1) && divided && !divides_itself(&f) &&
        ls_factor_is_near(weight * f.loss_by, f.micro)) {
        m->shorter++;
        m->tail = f;
    }
    m->clips = m->clips || ls_trace_find(samples->step[0], LS_CALL_CLIP, 0) >= 0;
    m->last = f.micro > 1 || m->several == 0 ? f : m->last;
    if (samples->world == 1) { /* else reduction.mean does */
        ls_factor_judge_weights(&f, &m->weights);
    }
}

static void judge(const micro *m, ls_observe_finding *out)
{
    const ls_factor *f = &m->last;
    bool library = by_library(f);
    if (m->summed == m->steps - m->unknown && m->several > 0) {
        bool of_ranks = m->of_ranks > 0 && m->of_ranks == m->summed;
        ls_verdict_set(&out->verdict, library || of_ranks ? LS_FAIL : LS_WEAK,
                       "step %lld: the gradients of %d micro-steps are summed: neither their "
                       "losses nor the sum is divided by their number%s%s",
                       (long long)f->step, f->micro,
                       of_ranks ? ", and each is times the number of ranks" : "",
                       m->clips ? ", and clipping measures the sum" : "");
        if (library) {
            ls_verdict_cause(
                &out->verdict,
                "a library calls backward() with means where it expects sums that are divided by "
                "the items of all micro-steps (num_items_in_batch): %d times the gradient of a "
                "batch of all of them",
                f->micro);
        } else {
            ls_verdict_cause(&out->verdict,
                             "%d times the gradient of a batch of all of them: a mistake, unless "
                             "the learning rate allows for it",
                             f->micro);
        }
        ls_finding_blame(out, f->backward->at, "%s",
                         library ? "divide the sum of the losses by num_items_in_batch, or set "
                                   "model_accepts_loss_kwargs = False"
                                 : "divide the loss by the number of micro-steps before "
                                   "backward()");
    } else if (m->twice == m->steps && m->other == m->steps && (f->micro > 2 || library)) {
        /* a square of 2 may also be two weights of one half */
        ls_finding_set(
            out, LS_FAIL, f->loss_by_steps[0] != '\0' ? f->loss_by_steps : f->backward->at,
            "the loss is divided by the number of micro-steps twice: a framework may do it already",
            "leave the division to the framework",
            "step %lld: the loss is divided by %.4g, the square of the number of its micro-steps, "
            "%d",
            (long long)f->step, f->loss_by, f->micro);
    } else if (m->shorter > 0 && m->whole + m->shorter == m->steps &&
               ls_factor_is_near(m->tail.loss_by, m->most)) {
        ls_finding_set(out, LS_FAIL, m->tail.loss_by_steps,
                       "the last micro-steps of a pass are fewer, and are divided by the number of "
                       "a whole window: a part of the gradient of their mean",
                       "divide by the number of micro-steps between two steps",
                       "step %lld: %d micro-steps, and each loss is divided by %.4g, the number of "
                       "those of other steps",
                       (long long)m->tail.step, m->tail.micro, m->tail.loss_by);
    } else if (m->other == m->steps) {
        ls_finding_set(
            out, LS_WEAK, f->backward->at,
            "divided by another number than that of the micro-steps, unless the factor is a weight",
            "divide by the number of backward passes between two steps",
            "step %lld: the loss is multiplied by %.4g, and the step has %d micro-steps",
            (long long)f->step, f->loss_times, f->micro);
    }
}

void ls_rules_reduction_micro(const ls_observe_trace *trace, ls_observe_finding *out)
{
    micro m = {0};
    ls_observe_finding one = {0};
    ls_samples_each(samples, trace, 0, true, out) {
        if (samples.count == trace->world) {
            add_step(&samples, &m);
        }
    }
    ls_pass_judge_windows(trace, out);
    if (out->verdict.code == LS_FAIL) {
        return;
    }
    if (m.steps == 0 || (m.several == 0 && m.whole == m.steps)) {
        ls_verdict_set(&one.verdict, LS_SKIP, "no step of several micro-steps");
    } else if (m.unknown == m.steps) {
        ls_verdict_set(&one.verdict, LS_UNSUPPORTED,
                       "whether the losses are means, or what the gradients are multiplied by, is "
                       "not known");
    } else {
        judge(&m, &one);
    }
    if (m.weights.verdict.code == LS_WEAK) {
        ls_calls_keep_worst(&one, &m.weights);
    }
    ls_finding_guess(out, &one);
    ls_verdict_pass(&out->verdict, m.steps - m.unknown,
                    "%d detailed steps: the gradients of up to %d micro-steps are averaged",
                    m.steps, m.last.micro);
}
