/* Whether the gradients of a step's micro-steps are averaged: the loss, or the gradient, divided by
 * their number. A sum is a choice, too: of a rate, and of a limit that clips. */
#include <math.h>
#include <string.h>

#include "suite/observe/trace/factor.h"
#include "suite/observe/trace/job.h"
#include "kernels/core/text.h"
#include "rules.h"
#include "suite/observe/trace/pass.h"

typedef struct micro {
    int steps, summed, other, unknown; /* detailed steps of several micro-steps */
    int twice; /* of them, those whose losses are divided by their number squared */
    ls_factor last;
    bool clips;
} micro;

/* How the losses of micro-steps are weighed: 1 for their mean, their number for the sum; NaN: not
 * known. */
static double weight_of(const ls_factor *f)
{
    bool mean = strcmp(f->loss_of, "mean") == 0;
    double factor = ls_factor_final(f);
    return mean && isfinite(factor) ? factor * f->loss_times * f->micro : NAN;
}

/* The script calls a library (its place follows in brackets) that calls backward, and weighs the
 * micro-steps. */
static bool by_library(const ls_factor *f)
{
    return strchr(f->backward->at, '(') != NULL;
}

static void add_step(const ls_samples *samples, micro *m)
{
    ls_factor f = {0};
    ls_factor_add(&f, samples);
    if (f.steps == 0 || f.micro < 2) {
        return;
    }
    double weight = weight_of(&f);
    m->steps++;
    m->unknown += isnan(weight);
    /* A library that counts tokens over all ranks multiplies by their number. */
    bool of_ranks = by_library(&f) && ls_factor_is_near(weight, (double)f.micro * samples->world);
    m->summed += ls_factor_is_near(weight, f.micro) || of_ranks;
    m->other += weight < 1 && !ls_factor_is_near(weight, 1) && f.loss_divided;
    m->twice += ls_factor_is_near(f.loss_by, (double)f.micro * f.micro);
    m->clips = m->clips || ls_trace_find(samples->step[0], LS_CALL_CLIP, 0) >= 0;
    m->last = f;
}

static void judge(const micro *m, ls_observe_finding *out)
{
    const ls_factor *f = &m->last;
    bool library = by_library(f);
    if (m->summed == m->steps) {
        ls_verdict_set(&out->verdict, library ? LS_FAIL : LS_WEAK,
                       "step %lld: the gradients of %d micro-steps are summed: neither their "
                       "losses nor the sum is divided by their number%s",
                       (long long)f->step, f->micro,
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
    ls_pass_judge_windows(trace, out);
    ls_samples_each(samples, trace, 0, true, out) {
        if (samples.count == trace->world) {
            add_step(&samples, &m);
        }
    }
    if (out->verdict.code == LS_FAIL) {
        return;
    }
    if (m.steps == 0) {
        ls_verdict_set(&out->verdict, LS_SKIP, "no step of several micro-steps");
    } else if (m.unknown == m.steps) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "whether the losses are means, or what the gradients are multiplied by, is "
                       "not known");
    } else {
        judge(&m, out);
    }
    ls_verdict_pass(&out->verdict, m.steps - m.unknown,
                    "%d detailed steps: the gradients of up to %d micro-steps are averaged",
                    m.steps, m.last.micro);
}
