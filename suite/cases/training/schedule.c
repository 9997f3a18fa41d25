/* The learning rate of every step, on every rank, against formulas of the suite's own; that it
 * ticks on skipped steps, goes on after a resume, and is the one the optimizer uses. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "reference/options/schedule.h"
#include "suite/inside/inside.h"
#include "suite/judge/judges.h"

enum { STEPS = 15 };

static const ls_tol rate = LS_TOL(
    2.5e-7, "relative: the rate is an f32 (2^-24) printed in nine digits, the formulas are double");

static const ls_tol golden_rate =
    LS_TOL(1e-6, "relative: the golden values are printed with eight decimals, the least is 0.005");
static const ls_tol fp64 = LS_TOL(1e-14, "a few roundings of FP64: some 100 units of 2^-53");

/* ---- formulas: t counts steps from 0 --------------------------------------------------------- */

static double always(double base, int t)
{
    (void)t;
    return base;
}

static double every_four(double base, int t)
{
    double value = base;
    for (int i = 4; i <= t; i += 4) {
        value *= 0.1;
    }
    return value;
}

static double milestones(double base, int t)
{
    return base * (t >= 9 ? 0.125 : t >= 7 ? 0.25 : t >= 3 ? 0.5 : 1);
}

static double half_wave(double base, int t)
{
    return t < 10 ? base * 0.5 * (1 + cos(3.14159265358979323846 * t / 10)) : 0;
}

static double parabola(double base, int t)
{
    return t < 10 ? base * ((10.0 - t) / 10) * ((10.0 - t) / 10) : 0;
}

/* torch's LinearLR from 1 % over five steps, cosine over ten, printed by it for base 0.5 */
static double printed(double base, int t)
{
    static const double golden[STEPS] = {.005, .104,      .203,      .302,      .401,
                                         .5,   .48776413, .45225425, .39694631, .32725425,
                                         .25,  .17274575, .10305369, .04774575, .01223587};
    return base / 0.5 * golden[t];
}

static double ramp_to_step(double base, int t)
{
    if (t < 4) {
        return base * (0.1 + 0.9 * t / 4);
    }
    return base * pow(0.5, (t - 4) / 3);
}

static double ramp_from_zero(double base, int t)
{
    return t < 5 ? base * t / 5 : base;
}

static double ramp_by_one_percent(double base, int t)
{
    return t < 5 ? base * (0.01 + 0.99 * t / 5) : base;
}

typedef double formula(double base, int t);

/* What the learning rate of a row must be. */
struct expected {
    formula *formula;
    int first;          /* step that is judged; 0: 1 */
    int images;         /* per step, for linear scaling; 0: the rate is used as given */
    const ls_tol *from; /* NULL: the formula, in double */
};

static double expected_lr(const ls_case *row, int64_t step)
{
    const struct expected *e = row->data;
    double base = row->job[0].lr;
    if (e->images > 0) {
        base = base * e->images / 256; /* Goyal et al. 2017 */
    }
    return e->formula(base, (int)step - 1);
}

/* ---- judges ---------------------------------------------------------------------------------- */

/* The nearest step that has this rate; a factor. */
static void explain_lr(const ls_case *row, const ls_record_step *event, double limit,
                       ls_verdict *out)
{
    int nearest = 0, step = (int)event->step, world = row->job[row->job_count - 1].world;
    for (int other = 1; other < STEPS; other++) {
        double rate_there = expected_lr(row, other);
        bool same = rate_there > 0 && fabs(event->lr - rate_there) <= limit * rate_there;
        nearest =
            same && (nearest == 0 || abs(other - step) < abs(nearest - step)) ? other : nearest;
    }
    double factored = event->lr * world, want = expected_lr(row, step);
    bool linear = ((const struct expected *)row->data)->images > 0;
    if (linear && world > 1 && fabs(factored - want) <= 2 * limit * want) {
        ls_verdict_cause(out, "linear scaling leaves out the number of ranks");
    } else if (nearest == step - 1 && nearest > 0) {
        ls_verdict_cause(out, "the rate of the step before: one tick late");
    } else if (nearest == step + 1) {
        ls_verdict_cause(out, "the rate of the step after: one tick early");
    } else if (nearest > 0) {
        ls_verdict_cause(out, "the rate of step %d", nearest);
    }
}

static void judge_step_lr(const ls_case *row, int rank, const ls_record_step *event,
                          ls_verdict *out)
{
    const struct expected *e = row->data;
    const ls_tol *tolerance = e->from != NULL ? e->from : &rate;
    double want = expected_lr(row, event->step), limit = tolerance->value;
    double off = want == event->lr ? 0 : fabs(event->lr - want) / (want != 0 ? want : 1);
    if (ls_verdict_worst(out, off, tolerance, "relative")) {
        return;
    }
    ls_verdict_fail(out, "rank=%d step %d: lr %.9g, expected %.9g", rank, (int)event->step,
                    event->lr, want);
    if (out->cause[0] == '\0') {
        explain_lr(row, event, limit, out);
    }
}

/* Whether every step has the rate of step factor * (step - 1) + 1; 0: of the first. */
static bool ticks_by(const ls_case *row, const ls_record_rank *rank, int factor)
{
    const struct expected *e = row->data;
    double limit = (e->from != NULL ? e->from : &rate)->value;
    int steps = row->job[row->job_count - 1].steps, compared = 0;
    for (int step = 1; step <= steps && factor * (step - 1) < STEPS; step++, compared++) {
        const ls_record_step *event = ls_record_find_step(rank, step);
        double want = expected_lr(row, factor * (step - 1) + 1);
        if (event == NULL || !(fabs(event->lr - want) <= limit * fabs(want))) {
            return false;
        }
    }
    return compared > 3;
}

/* What all steps together show, in place of what one of them does. */
static void explain_ticks(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct expected *e = row->data;
    if (e->first > 1) {
        return; /* a part of a schedule */
    }
    if (ticks_by(row, &job->rank[0], 0)) {
        ls_verdict_cause(out, "the rate does not tick with the steps: it stays that of the first");
    } else if (ticks_by(row, &job->rank[0], 2)) {
        ls_verdict_cause(out, "two ticks a step: the schedule is stepped twice");
    }
}

/* The last of the row's jobs, from its first step on. */
static void judge_rates(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_record *last = &job[row->job_count - 1];
    const struct expected *e = row->data;
    int first = e->first > 0 ? e->first : 1, steps = row->job[row->job_count - 1].steps,
        skipped = 0, compared = 0;
    for (int k = 0; k < last->world; k++) {
        for (int64_t step = first; step <= steps; step++, compared++) {
            const ls_record_step *event = ls_record_find_step(&last->rank[k], step);
            if (event == NULL) {
                ls_verdict_fail(out, "rank=%d has no event of step %d", k, (int)step);
                return;
            }
            if (isnan(event->lr)) {
                ls_verdict_set(out, LS_UNSUPPORTED, "the events have no lr");
                return;
            }
            skipped += event->skipped;
            judge_step_lr(row, k, event, out);
        }
    }
    if (out->code == LS_FAIL) {
        explain_ticks(row, last, out);
    }
    if (strstr(row->job[0].extra, "--overflow-at") != NULL && skipped == 0) {
        ls_verdict_set(out, LS_WEAK, "no step was skipped");
    }
    ls_verdict_pass(out, compared,
                    "steps %d to %d of %d ranks have the rate of the formula (%d skipped)", first,
                    steps, last->world, skipped);
}

/* Whether the step follows with the rate of another step. */
static void explain_rate(const ls_case *row, const ls_dumpfile *file, const ls_update_rule *rule,
                         ls_verdict *out)
{
    for (int other = 1; other <= row->job[0].steps; other++) {
        ls_update_rule wrong = *rule;
        wrong.lr = expected_lr(row, other);
        ls_compare_checks checks = {0};
        ls_compare_optim_result result;
        if (wrong.lr != rule->lr &&
            ls_compare_optim_step(file, &wrong, false, &checks, &result) == LS_OK &&
            result.judged && checks.count == 0) {
            ls_verdict_cause(out, "the optimizer used the rate of step %d", other);
            return;
        }
    }
}

/* SGD from the dump with the formula's rate, not with the reported one. */
static void judge_applied(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int64_t elements = 0;
    for (int64_t step = 1; step <= row->job[0].steps && out->code == LS_PASS; step++) {
        ls_update_rule rule = {
            .kind = LS_UPDATE_SGD, .momentum = 0.9, .lr = expected_lr(row, step)};
        bool skipped = false;
        ls_dumpfile *file = ls_dumps_open_update(job, step, &rule.step, &skipped, out);
        if (file == NULL) {
            return;
        }
        ls_compare_optim_result result = ls_judge_update(file, &rule, step, skipped, out);
        if (out->code == LS_FAIL) {
            explain_rate(row, file, &rule, out);
        }
        elements += result.elements;
        ls_dumpfile_close(file);
    }
    ls_verdict_pass(out, elements, "%d steps of %lld elements in all used the formula's rate",
                    row->job[0].steps, (long long)elements);
}

/* ---- in epochs, from inside ------------------------------------------------------------------ */

typedef struct epochs {
    const char *name, *text;
    int64_t steps_per_epoch, step;
    double want; /* for a base of 1; NAN: refused */
} epochs;

static const epochs inside[] = {
    {"step.last", "step:30:0.1", 100, 3000, 1},
    {"step.first", "step:30:0.1", 100, 3001, 0.1},
    {"cosine.middle", "cosine:90", 10, 451, 0.5},
    {"cosine.within", "cosine:90", 10, 456, 0.49127379678135824}, /* every step, not every epoch */
    {"cosine.end", "cosine:90", 10, 901, 0},
    {"polynomial.first", "polynomial:90:2", 10, 1, 1},
    {"polynomial.within", "polynomial:90:2", 10, 451, 0.25},
    {"polynomial.power-1", "polynomial:90", 10, 226, 0.75},
    {"polynomial.root", "polynomial:10s:0.5", 10, 8, 0.547722557505166113}, /* sqrt(0.3) */
    {"polynomial.end", "polynomial:90:2", 10, 901, 0},
    {"polynomial.warmup", "warmup:5,polynomial:10:2", 10, 101, 0.25},
    {"multistep", "multistep:30,60,80:0.1", 7, 80 * 7 + 1, 1e-3},
    {"warmup.middle", "warmup:5,step:30:0.1", 10, 26, 0.505},
    {"warmup.then", "warmup:5,step:30:0.1", 10, 350, 1}, /* 30 epochs after the warm-up's five */
    {"warmup.after", "warmup:5,step:30:0.1", 10, 351, 0.1},
    /* either length has a unit of its own */
    {"mixed.middle", "warmup:50s,step:30:0.1", 10, 26, 0.505},
    {"mixed.then", "warmup:50s,step:30:0.1", 10, 350, 1},
    {"mixed.after", "warmup:50s,step:30:0.1", 10, 351, 0.1},
    {"mixed.steps", "warmup:5,step:30s:0.1", 10, 81, 0.1},
    /* half an epoch, or one and a half */
    {"fraction.last", "step:1.5:0.1", 10, 15, 1},
    {"fraction.first", "step:1.5:0.1", 10, 16, 0.1},
    {"fraction.multistep", "multistep:0.25,1.5:0.1", 8, 3, 0.1},
    {"fraction.cosine", "cosine:0.5", 20, 6, 0.5},
    {"fraction.warmup", "warmup:0.5,step:30:0.1", 10, 3, 0.406},
    {"imagenet.own-warmup", "warmup:5,imagenet", 100, 1, NAN},
    /* examples/imagenet/main_amp.py: e = epoch from 0, 0.1^(e/30 + (e >= 80));
     * (1 + step) / (5 steps per epoch) */
    {"imagenet.first", "imagenet", 100, 1, 2.0 / 500},
    {"imagenet.warm", "imagenet", 100, 499, 500.0 / 500},
    {"imagenet.past-warm", "imagenet", 100, 501, 1},
    {"imagenet.29", "imagenet", 100, 3000, 1},
    {"imagenet.30", "imagenet", 100, 3001, 0.1},
    {"imagenet.60", "imagenet", 100, 6001, 0.01},
    {"imagenet.80", "imagenet", 100, 8001, 1e-3},
};

static void judge_epochs(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const epochs *e = row->data;
    ls_schedule schedule;
    char line[400];
    ls_inside_capture capture = ls_inside_capture_begin();
    bool taken = ls_schedule_parse(e->text, &schedule) == LS_OK &&
                 ls_schedule_check(&schedule, e->steps_per_epoch) == LS_OK;
    int lines = ls_inside_capture_end(&capture, line, (int)sizeof line);
    if (isnan(e->want)) {
        if (taken || lines != 1) {
            ls_verdict_fail(out, "%s is %s in %d lines", e->text, taken ? "taken" : "refused",
                            lines);
        }
        ls_verdict_pass(out, 1, "%s is refused in one line", e->text);
        return;
    }
    if (!taken) {
        ls_verdict_fail(out, "%s is refused: %s", e->text, line);
        return;
    }
    double got = ls_schedule_lr(&schedule, 1, e->step, e->steps_per_epoch);
    double off = fabs(got - e->want);
    ls_verdict_measured(out, off, fp64.value, "of the base rate", fp64.why);
    LS_TEXT(text, 300, "%s, %d steps per epoch, step %d: %.15g, expected %.15g", e->text,
            (int)e->steps_per_epoch, (int)e->step, got, e->want);
    if (!(off <= fp64.value)) {
        ls_verdict_fail(out, "%s", text);
    }
    ls_verdict_pass(out, 1, "%s", text);
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define JOB "resnet8 O0 steps=15 "
#define STEP "--schedule=step:4s:0.1 "
#define COSINE "lr=0.5 --schedule=warmup:5s,cosine:10s "
#define WARMUP "--schedule=warmup:4s:0.1,step:3s:0.5 "
#define SAVED "resnet8 O0 steps=6 "
#define SAVE "--save={self}/checkpoint.safetensors"
#define RESUME "--resume={job:0}/checkpoint.safetensors"
/* two overflows in a row across a change of the rate, and one in the warm-up */
#define SKIPS "--init-scale=1024 --overflow-at=2:1,5:0,6:1"
#define LINEAR "b0.05 --schedule=constant --lr-scaling=linear "
#define EXPECTED(...)        \
    &(const struct expected) \
    {                        \
        __VA_ARGS__          \
    }

static const ls_row rows[] = {
    {"schedule.none", "H1", judge_rates, JOB, EXPECTED(always)},
    {"schedule.constant", "H1", judge_rates, JOB "--schedule=constant", EXPECTED(always)},
    {"schedule.step", "H1", judge_rates, JOB STEP, EXPECTED(every_four)},
    {"schedule.multistep", "H1", judge_rates, JOB "--schedule=multistep:3s,7s,9s:0.5",
     EXPECTED(milestones)},
    {"schedule.cosine", "H1", judge_rates, JOB "--schedule=cosine:10s", EXPECTED(half_wave)},
    {"schedule.polynomial", "H1", judge_rates, JOB "--schedule=polynomial:10s:2",
     EXPECTED(parabola)},
    {"schedule.warmup", "H1", judge_rates, JOB "--schedule=warmup:5s,constant",
     EXPECTED(ramp_by_one_percent)},
    {"schedule.warmup-zero", "H1", judge_rates, JOB "--schedule=warmup:5s:0,constant",
     EXPECTED(ramp_from_zero)},
    {"schedule.warmup-step", "H1", judge_rates, JOB WARMUP, EXPECTED(ramp_to_step)},
    {"schedule.warmup-step.o1.w2", "H1", judge_rates, "resnet8 O1 w2 b0.05 steps=15 " WARMUP,
     EXPECTED(ramp_to_step)},
    {"schedule.warmup-cosine", "H1", judge_rates, JOB COSINE,
     EXPECTED(printed, .from = &golden_rate)},
    {"schedule.skip.step", "H2", judge_rates,
     "resnet8 O2 w2 b0.05 steps=15 scale=dynamic " STEP SKIPS, EXPECTED(every_four)},
    {"schedule.skip.warmup-cosine", "H2", judge_rates,
     "resnet8 O2 w2 b0.05 steps=15 scale=dynamic " COSINE SKIPS,
     EXPECTED(printed, .from = &golden_rate)},
    {"schedule.resume.step", "H3", judge_rates, SAVED STEP SAVE " | " JOB STEP RESUME,
     EXPECTED(every_four, .first = 7)},
    {"schedule.resume.warmup-cosine", "H3", judge_rates, SAVED COSINE SAVE " | " JOB COSINE RESUME,
     EXPECTED(printed, .first = 7, .from = &golden_rate)},
    {"schedule.linear.w1", "H4", judge_rates, JOB "--schedule=constant --lr-scaling=linear",
     EXPECTED(always, .images = 4)},
    {"schedule.linear.w2", "H4", judge_rates, JOB "w2 " LINEAR, EXPECTED(always, .images = 8)},
    {"schedule.linear.accumulate.w2", "H4", judge_rates, JOB "w2 accumulate=3 " LINEAR,
     EXPECTED(always, .images = 24)},
    {"schedule.linear.warmup.w2", "H4", judge_rates, JOB "w2 b0.05 " WARMUP "--lr-scaling=linear",
     EXPECTED(ramp_to_step, .images = 8)},
    {"schedule.linear.uneven.w2", "H4", judge_rates, JOB "w2 " LINEAR "--batch-sizes=2,5",
     EXPECTED(always, .images = 7)},
    {"schedule.linear.uneven.accumulate.w2", "H4", judge_rates,
     JOB "w2 accumulate=2 " LINEAR "--batch-sizes=5,2", EXPECTED(always, .images = 14)},
    {"schedule.linear.global-batch.w2", "H4", judge_rates,
     JOB "w2 accumulate=2 batch=0 " LINEAR "--global-batch=20", EXPECTED(always, .images = 20)},
    /* nine steps: warm-up, the whole rate, half of it */
    {"schedule.applied.o[0|2]", "H5", judge_applied,
     "resnet8 O$1 w2 b0.05 steps=9 dump=1,2,3,4,5,6,7,8,9 dump-ranks=0 " WARMUP
     "--momentum=0.9 --weight-decay=0",
     EXPECTED(ramp_to_step)},
    {"schedule.refused.[epochs-without=cosine:90|imagenet-without=imagenet|zero-length=step:0s:0.1|"
     "no-gamma=step:4s|power-zero=polynomial:5s:0|power-huge=polynomial:5s:101|gamma-above-one="
     "step:4s:1.5|descending=multistep:7s,3s:0.1|"
     "mixed-units=multistep:3,7s:0.1|warmup-alone=warmup:5s|unknown=linear:5s|"
     "trailing=cosine:10s:]",
     "H6", ls_endings_row, "resnet8 O0 steps=1 --schedule=$1", LS_REFUSAL("--schedule"),
     .judges_outcome = true},
};

void ls_schedule_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "H1", .judge = judge_epochs}),
                 "schedule.epochs.%s", inside);
}
