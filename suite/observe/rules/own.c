/* A loss scale of the script's own: a number that multiplies the losses, divides the gradients
 * before the step, and changes by constant factors. Judged as torch's GradScaler is. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "suite/observe/trace/factor.h"
#include "suite/observe/trace/fate.h"
#include "suite/observe/trace/job.h"
#include "rules.h"

static const ls_tol same_factor =
    LS_TOL(1e-3, "of a factor between two scales, which scripts hold in f32: the smallest in use "
                 "is 2^0.001, of a scale that grows in each step");
static const ls_tol patience = LS_TOL(
    8, "overflows in a row at one scale: with hysteresis two are usual before it is lowered");
static const ls_tol off_by =
    LS_TOL(1, "step: scalers begin to count with 0 or with 1, and compare before or after it");

/* ---- what is a scale ------------------------------------------------------------------------- */

/* Whether a detailed step's gradients were divided by what its losses were multiplied by. */
static bool divides(const ls_observe_trace *trace)
{
    bool found = false;
    ls_observe_finding ignored = {0};
    ls_samples_each(samples, trace, 0, !found, &ignored) {
        int c = samples.step[0] != NULL ? ls_trace_find(samples.step[0], LS_CALL_BACKWARD, 0) : -1;
        double by = c < 0 ? 1 : ls_event_number(samples.step[0]->call[c].json, multiplied, 1);
        ls_factor factor = {0};
        if (by > 1 && samples.count == trace->world) {
            ls_factor_add(&factor, &samples);
            double used = factor.steps > 0 ? factor.used.value * by : NAN;
            found = ls_factor_is_near(used, 1) ||
                    (factor.micro > 1 && ls_factor_is_near(used * factor.micro, 1));
        }
    }
    return found;
}

/* One factor, or several: they are no scaler's. */
static bool note_factor(double *known, double now)
{
    *known = *known == 0 ? now : *known;
    return fabs(now / *known - 1) <= same_factor.value;
}

/* Its factors upwards and downwards: 0: none was seen. */
typedef struct factors {
    double up, down;
    bool lowered; /* after gradients that were not finite */
} factors;

/* A scale changes by one factor upwards and by one downwards. */
static bool is_scale(const ls_fates *fates, factors *out)
{
    bool good = true;
    *out = (factors){0};
    for (int i = 0; i + 1 < fates->count && good; i++) {
        const ls_fate *f = &fates->item[i];
        double factor = f[1].by / f->by;
        if (f->scaled || isnan(factor) || !(factor > 0)) {
            return false;
        }
        good = factor == 1 || note_factor(factor > 1 ? &out->up : &out->down, factor);
        out->lowered = out->lowered || (factor < 1 && f->finite == 0);
    }
    return good && (out->up > 0 || out->down > 0 || (fates->count > 0 && fates->item[0].by > 1));
}

bool ls_own_scale(const ls_observe_trace *trace)
{
    factors by = {0};
    bool scale = trace->attached && trace->world > 0;
    if (scale) {
        ls_fates fates;
        ls_fate_read(&trace->rank[0], &fates);
        scale = is_scale(&fates, &by);
        ls_fate_free(&fates);
    }
    return scale && (by.lowered || divides(trace));
}

/* ---- how it grows ---------------------------------------------------------------------------- */

/* Good steps since the scale last grew, or since it was built; -1: an overflow came after that. */
typedef struct count {
    int clean;
    int interval;                     /* of the first growth after clean steps alone; 0: none yet */
    double scale;                     /* of the last pass */
    int growths, overflows, in_a_row; /* overflows at this scale */
} count;

/* The pass that grew it after another number of good steps, or overflowed once too often; NULL. */
static const ls_fate *follow(const ls_fates *fates, int64_t until, count *c, int *wrong)
{
    double least = INFINITY;
    for (int i = 0; i < fates->count; i++) {
        least = fmin(least, fates->item[i].by);
    }
    for (int i = 0; i < fates->count && fates->item[i].step <= until; i++) {
        const ls_fate *f = &fates->item[i];
        if (f->other) {
            continue;
        }
        if (f->by > c->scale) {
            c->growths++;
            if (c->clean > 0 && c->interval > 0 && abs(c->clean - c->interval) > off_by.value) {
                *wrong = c->clean;
                return f;
            }
            c->interval = c->clean > 0 && c->interval == 0 ? c->clean : c->interval;
            c->clean = 0;
        } else if (f->by < c->scale) {
            c->clean = -1;
        }
        c->in_a_row = !f->stepped && f->finite == 0 ? (f->by == c->scale ? c->in_a_row : 0) + 1 : 0;
        c->overflows += !f->stepped && f->finite == 0;
        c->scale = f->by;
        c->clean = !f->stepped ? -1 : c->clean >= 0 ? c->clean + 1 : -1;
        if (c->in_a_row > patience.value && f->by > least) {
            return f;
        }
    }
    return NULL;
}

/* What the job that wrote the file held when it did; false: this job took up none. */
static bool take_up(const ls_observe_trace *trace, count *c, const ls_event **save, factors *by)
{
    const ls_event *event;
    const ls_observe_trace *before = trace->before;
    if (before == NULL || ls_saved_restored(&trace->rank[0], "optimizer") == NULL) {
        return false;
    }
    const ls_event *load = ls_trace_last(&trace->rank[0], load);
    const char *path = ls_event_text(load, path, "");
    *save = NULL;
    for (int k = 0; k < before->world; k++) {
        ls_event_each(event, ls_trace_events(&before->rank[k], save)) {
            *save = strcmp(ls_event_text(event, path, ""), path) == 0 ? event : *save;
        }
    }
    if (*save == NULL) {
        return false;
    }
    ls_fates fates;
    int wrong = 0;
    ls_fate_read(&before->rank[0], &fates);
    bool scale = is_scale(&fates, by);
    if (scale && fates.count > 0) {
        *c = (count){.scale = fates.item[0].by,
                     .clean = ls_saved_restored(&before->rank[0], "optimizer") != NULL ? -1 : 0};
        (void)follow(&fates, ls_saved_step(*save), c, &wrong);
    }
    ls_fate_free(&fates);
    return scale && c->scale > 0;
}

/* ---- verdict --------------------------------------------------------------------------------- */

static void judge_growth(const ls_fates *fates, const count *start, const ls_event *save,
                         ls_observe_finding *out, count *c)
{
    int wrong = 0;
    *c = *start;
    int before = c->growths;
    const ls_fate *f = follow(fates, INT64_MAX, c, &wrong);
    if (f != NULL && wrong > 0 && c->growths == before + 1 && save != NULL) {
        ls_finding_set(out, LS_FAIL, ls_event_text(save, at, ""),
                       "the file holds the scale and not the count of good steps behind it, or the "
                       "job that goes on does not take it up",
                       "save and load the count of good steps with the scale",
                       "step %lld: the script's loss scale grows after %d good steps, those before "
                       "the file included; in the job that wrote it after %d",
                       (long long)f->step, wrong, c->interval);
    } else if (f != NULL && wrong > 0) {
        ls_finding_set(out, LS_FAIL, f->at,
                       "the count of good steps is not kept from one growth to the next",
                       "count each good step once, and begin anew after a growth or an overflow",
                       "step %lld: the script's loss scale grows to %g after %d good steps, before "
                       "after %d",
                       (long long)f->step, f->by, wrong, c->interval);
    } else if (f != NULL) {
        ls_finding_set(out, LS_FAIL, f->at, "the scale is not lowered where gradients overflow",
                       "lower the scale after each overflow, or after two in a row",
                       "step %lld: %d overflows in a row at a loss scale of %g", (long long)f->step,
                       c->in_a_row, f->by);
    }
}

/* The first scale of a job that goes on is the last one's, or one change further. */
static void judge_taken_up(double first, const count *c, const factors *by, const ls_event *save,
                           ls_observe_finding *out)
{
    double factor = first / c->scale;
    bool changed = (by->up > 0 && fabs(factor / by->up - 1) <= same_factor.value) ||
                   (by->down > 0 && fabs(factor / by->down - 1) <= same_factor.value);
    if (factor != 1 && !changed && out->verdict.code == LS_PASS) {
        ls_finding_set(out, LS_FAIL, ls_event_text(save, at, ""),
                       "the file does not hold the loss scale, or the job that goes on does not "
                       "take it up",
                       "save and load the scale and its count of good steps",
                       "the script's loss scale begins with %g in the job that goes on; it was %g "
                       "when the file was written",
                       first, c->scale);
    }
}

/* An overflow that lowers the scale was found: its step must be left out. */
static void judge_skips(const ls_fates *fates, ls_observe_finding *out)
{
    for (int i = 0; i + 1 < fates->count && out->verdict.code == LS_PASS; i++) {
        const ls_fate *f = &fates->item[i];
        if (f->stepped && f->finite == 0 && f[1].by < f->by) {
            ls_finding_set(out, LS_FAIL, f->gone,
                           "the scale is lowered for an overflow whose step is taken",
                           "look for infinities before the step, and leave it out",
                           "step %lld: the gradients are not finite, the optimizer steps, and the "
                           "loss scale goes from %g to %g",
                           (long long)f->step, f->by, f[1].by);
        }
    }
}

static void judge_ranks(const ls_observe_trace *trace, const ls_fates *first,
                        ls_observe_finding *out)
{
    for (int k = 1; k < trace->world && ls_trace_is_ddp(trace); k++) {
        ls_fates other;
        ls_fate_read(&trace->rank[k], &other);
        for (int i = 0; i < first->count && other.count == first->count; i++) {
            const ls_fate *a = &first->item[i], *b = &other.item[i];
            if (a->by != b->by && out->verdict.code == LS_PASS) {
                ls_finding_set(out, LS_FAIL, b->at,
                               "each rank lowers or raises its scale by its own gradients or count",
                               "reduce the flag of an overflow over all ranks before the scale "
                               "is updated",
                               "step %lld: the loss scale is %g on rank 0 and %g on rank %d",
                               (long long)a->step, a->by, b->by, k);
            }
        }
        ls_fate_free(&other);
    }
}

bool ls_own_scale_judge(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (!ls_own_scale(trace)) {
        return false;
    }
    ls_fates fates;
    ls_fate_read(&trace->rank[0], &fates);
    count start = {0}, c = {0};
    const ls_event *save = NULL;
    factors by = {0};
    bool goes_on = take_up(trace, &start, &save, &by);
    if (goes_on) {
        judge_taken_up(fates.item[0].by, &start, &by, save, out);
    } else {
        bool fresh = ls_saved_restored(&trace->rank[0], "optimizer") == NULL;
        start = (count){.scale = fates.item[0].by, .clean = fresh ? 0 : -1};
    }
    judge_ranks(trace, &fates, out);
    judge_skips(&fates, out);
    if (out->verdict.code == LS_PASS) {
        judge_growth(&fates, &start, goes_on ? save : NULL, out, &c);
    }
    if (out->verdict.code == LS_PASS && c.growths + c.overflows == 0) {
        ls_verdict_set(&out->verdict, LS_WEAK,
                       "the script's own loss scale stays at %g and nothing overflowed: nothing "
                       "shows how it grows or backs off",
                       c.scale);
    }
    ls_verdict_pass(&out->verdict, fates.count,
                    "the script's own loss scale followed over %d steps, %d overflows, %d growths",
                    fates.count, c.overflows, c.growths);
    ls_fate_free(&fates);
    return true;
}
