/* The optimizers: every dumped step recomputed in FP64 from the value, gradient and moments that
 * the dump holds, by what the job was asked for (not by what its metadata say). One job with weight
 * decay, one without in which a step overflows, both judged by several rows. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/judge/compare_optim.h"
#include "suite/judge/diagnose_step.h"
#include "suite/judge/judges.h"
#include "optim_facts.h"

enum { SKIPPED_AT = 3, SAVED_AT = 4, LAST = 6, DRIFT_STEPS = 20 };

static const ls_tol moved_share =
    LS_TOL(0.9, "share of elements that a step must have moved to show anything: a resnet8's "
                "gradient is zero nowhere but for dead channels, and an f32 update is seldom below "
                "half a unit");
static const ls_tol moved_share_half = LS_TOL(
    0.2, "the same where parameters are stored in half: an update below half a unit of fp16 is "
         "lost, which at these rates is the smaller part of them");

/* What a job is asked for, and the same as a rule. `decay` and `nesterov` come with the variant. */
typedef struct recipe {
    const char *name, *options;
    double lr;
    ls_update_rule rule;
} recipe;

/* Options that a subject must accept are all that SGD needs. */
static const recipe plain[] = {
    {"sgd", "--momentum=0.9", 0.1, {.kind = LS_UPDATE_SGD, .momentum = 0.9}},
    {"adam",
     "--optimizer=adam",
     0.01,
     {.kind = LS_UPDATE_ADAM, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}},
    {"adamw",
     "--optimizer=adamw",
     0.01,
     {.kind = LS_UPDATE_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}},
    {"lamb",
     "--optimizer=lamb",
     0.02,
     {.kind = LS_UPDATE_LAMB, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6, .max_grad_norm = 1}},
    {"lars",
     "--optimizer=lars --momentum=0.9",
     1.0,
     {.kind = LS_UPDATE_LARS, .momentum = 0.9, .epsilon = 1e-8, .trust = 0.02}},
};

/* Other constants than the defaults, and decay. */
static const recipe decayed[] = {
    {"sgd", "--momentum=0.8", 0.1, {.kind = LS_UPDATE_SGD, .momentum = 0.8}},
    {"adam",
     "--optimizer=adam --betas=0.8,0.95 --eps=1e-5",
     0.01,
     {.kind = LS_UPDATE_ADAM, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-5}},
    {"adamw",
     "--optimizer=adamw --betas=0.8,0.95 --eps=1e-5",
     0.01,
     {.kind = LS_UPDATE_ADAMW, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-5}},
    {"lamb",
     "--optimizer=lamb --betas=0.8,0.95 --eps=1e-4",
     0.02,
     {.kind = LS_UPDATE_LAMB, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-4, .max_grad_norm = 1}},
    {"lars",
     "--optimizer=lars --momentum=0.8 --eps=1e-6",
     1.0,
     {.kind = LS_UPDATE_LARS, .momentum = 0.8, .epsilon = 1e-6, .trust = 0.02}},
};
enum { RECIPES = sizeof plain / sizeof *plain };

#define DECAY 0.01

static const char *const requirements[RECIPES] = {"Z1", "Z2", "Z2", "Z3", "Z4"};

/* row->number: recipe, which table (plain or decayed), Nesterov */
static ls_update_rule rule_of(const ls_case *row)
{
    const recipe *r = (row->number[1] != 0 ? decayed : plain) + row->number[0];
    ls_update_rule rule = r->rule;
    rule.lr = r->lr;
    rule.weight_decay = row->number[1] != 0 ? DECAY : 0;
    rule.nesterov = row->number[2] != 0;
    return rule;
}

/* ---- judges ---------------------------------------------------------------------------------- */

static void judge_one(const ls_case *row, const ls_record *job, int64_t step, ls_verdict *out)
{
    ls_update_rule rule = rule_of(row);
    ls_dumpfile *file = NULL;
    bool skipped = false;
    if (!ls_optim_facts_open(job, step, &file, &rule.step, &skipped, out)) {
        return;
    }
    ls_compare_checks checks = {0};
    ls_compare_optim_result result;
    ls_status status = ls_compare_optim_step(file, &rule, skipped, &checks, &result);
    bool wants_skip = step == SKIPPED_AT && row->number[1] == 0 && row->number[2] == 0;
    double least = row->job[0].level == 3 ? moved_share_half.value : moved_share.value;
    if (status != LS_OK || !result.judged) {
        ls_verdict_set(out, status == LS_OK ? LS_UNSUPPORTED : LS_INFRA,
                       "step %d: the dump lacks value, gradient or moments", (int)step);
    } else if (checks.count > 0) {
        ls_verdict_fail(out, "step %d: %.280s; %d in all", (int)step, checks.line, checks.count);
        (void)ls_diagnose_step(file, &rule, skipped, out->cause, (int)sizeof out->cause);
    } else if (skipped != wants_skip) {
        ls_verdict_set(out, LS_WEAK, "step %d was%s skipped", (int)step, skipped ? "" : " not");
    } else if (!skipped && (double)result.moved < least * (double)result.elements) {
        ls_verdict_set(out, LS_WEAK, "step %d moved %lld of %lld elements only", (int)step,
                       (long long)result.moved, (long long)result.elements);
    }
    if (!skipped && (!out->measured || result.ratio > out->value)) {
        ls_verdict_measured(
            out, result.ratio, 1, "x limit",
            "twice what f32's roundings can add up to in this formula, per element");
    }
    if (out->code == LS_PASS && skipped) {
        ls_verdict_pass(out, "step %d was skipped: %lld elements%s are as they were", (int)step,
                        (long long)result.elements,
                        result.state_judged ? " and their moments" : "");
    } else
        ls_verdict_pass(out,
                        "step %d, update %lld: %lld elements%s follow, at most %.2f of the limit",
                        (int)step, (long long)rule.step, (long long)result.elements,
                        result.state_judged ? " and their moments" : "", out->value);
    ls_dumpfile_close(file);
}

/* row->text: the steps, "1,2". */
static void judge_steps(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    char steps[64];
    ls_text_put(steps, sizeof steps, "%s", row->text);
    char *rest = NULL;
    for (char *word = strtok_r(steps, ",", &rest); word != NULL;
         word = strtok_r(NULL, ",", &rest)) {
        judge_one(row, job, atoi(word), out);
    }
}

/* ---- many steps ------------------------------------------------------------------------------ */

typedef struct track {
    char name[80];
    ls_update_tensor tensor;
    double *block; /* value, error, moments and their errors, gradient */
} track;

enum { TRACKS_MAX = 128 };

static int start_tracks(const ls_dumpfile *file, track *t)
{
    int count = 0;
    for (int i = 0; i < ls_dumpfile_count(file) && count < TRACKS_MAX; i++) {
        const ls_dumpfile_entry *next = ls_dumpfile_at(file, i);
        if (strncmp(next->name, "next/", 5) != 0) {
            continue;
        }
        const ls_dumpfile_entry *before = ls_compare_optim_before(file, next->name + 5);
        if (before == NULL || before->count != next->count) {
            return 0;
        }
        size_t n = (size_t)next->count;
        double *block = calloc(7 * n, sizeof *block);
        LS_ASSERT(block != NULL);
        ls_text_put(t[count].name, sizeof t[count].name, "%s", next->name + 5);
        t[count].block = block;
        t[count].tensor = (ls_update_tensor){
            .count = next->count,
            .grad = block + 6 * n,
            .value = block,
            .value_error = block + n,
            .moment = {block + 2 * n, block + 3 * n},
            .moment_error = {block + 4 * n, block + 5 * n},
        };
        ls_dumpfile_read(before, block);
        count++;
    }
    return count;
}

static bool read_gradients(const ls_dumpfile *file, track *t, int count, ls_update_rule *rule)
{
    rule->grad_squares = 0;
    rule->grad_elements = 0;
    for (int i = 0; i < count; i++) {
        const ls_dumpfile_entry *grad = ls_dumpfile_findf(file, "grad/%s", t[i].name);
        int64_t n = t[i].tensor.count;
        if (grad == NULL || grad->count != n) {
            return false;
        }
        ls_dumpfile_read(grad, t[i].block + 6 * n);
        rule->grad_squares += ls_update_squares(t[i].tensor.grad, n);
        rule->grad_elements += n;
    }
    return true;
}

static void compare_track(const ls_dumpfile *file, const track *t, int64_t step, ls_verdict *out)
{
    const ls_dumpfile_entry *next = ls_dumpfile_findf(file, "next/%s", t->name);
    if (next == NULL || next->count != t->tensor.count) {
        ls_verdict_fail(out, "step %d: next/%s is missing", (int)step, t->name);
        return;
    }
    double *got = malloc((size_t)next->count * sizeof *got);
    LS_ASSERT(got != NULL);
    ls_dumpfile_read(next, got);
    for (int64_t i = 0; i < next->count; i++) {
        double ratio =
            ls_compare_optim_ratio(next, got[i], t->tensor.value[i], t->tensor.value_error[i]);
        if (!out->measured || ratio > out->value) {
            ls_verdict_measured(out, ratio, 1, "x limit",
                                "twice what f32's roundings of all steps so far can add up to");
        }
        if (!(ratio <= 1)) {
            ls_verdict_fail(out,
                            "after %d steps %s element %lld is %.9g, FP64 steps on the dumped "
                            "gradients give %.9g, %.3g x limit",
                            (int)step, t->name, (long long)i, got[i], t->tensor.value[i], ratio);
            break;
        }
    }
    free(got);
}

/* One dumped step carried on; false ends it. */
static bool follow(const ls_record *job, int64_t step, ls_update_rule rule, track *t, int *count,
                   ls_verdict *out)
{
    ls_dumpfile *file = NULL;
    bool skipped = false;
    if (!ls_optim_facts_open(job, step, &file, &rule.step, &skipped, out)) {
        return false;
    }
    *count = step == 1 ? start_tracks(file, t) : *count;
    bool good = *count > 0 && read_gradients(file, t, *count, &rule);
    if (!good) {
        ls_verdict_set(out, LS_UNSUPPORTED, "step %d: the dump lacks value or gradient", (int)step);
    }
    for (int i = 0; i < *count && good; i++) {
        if (!skipped && ls_update_step(&rule, &t[i].tensor) != LS_OK) {
            ls_verdict_set(out, LS_INFRA, "no memory for a step in FP64");
            good = false;
        }
        compare_track(file, &t[i], step, out);
    }
    ls_dumpfile_close(file);
    return good && out->code == LS_PASS;
}

/* From the first step's value alone: moments are FP64's own, gradients the dumped ones. */
static void judge_drift(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    track *t = calloc(TRACKS_MAX, sizeof *t);
    LS_ASSERT(t != NULL);
    int count = 0, step = 1;
    ls_update_rule rule = rule_of(row);
    while (step <= DRIFT_STEPS && follow(job, step, rule, t, &count, out)) {
        step++;
    }
    ls_verdict_pass(out,
                    "%d steps of FP64 on the dumped gradients end where the job does: %.2f of what "
                    "f32's roundings allow",
                    DRIFT_STEPS, out->value);
    for (int i = 0; i < count; i++) {
        free(t[i].block);
    }
    free(t);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static ls_spec job_of(const ls_case_settings *settings, int level, int world, const recipe *r,
                      const char *options)
{
    ls_spec spec = ls_rows_evidence(settings, level, world, 1, 0.05);
    ls_text_put(spec.arch, sizeof spec.arch, "resnet8");
    spec.dump_all = false;
    spec.lr = r->lr;
    ls_text_put(spec.extra, sizeof spec.extra, "%s %s", r->options, options);
    return spec;
}

static ls_case *add_row(ls_case_list *list, ls_case_judge *judge, int k, int level,
                        const char *what, const char *requirement, const ls_spec *job)
{
    ls_case *row =
        ls_rows_add(list, judge, requirement, "optim.%s.%s.o%d", plain[k].name, what, level);
    row->number[0] = k;
    row->job_count = 1;
    row->job[0] = *job;
    return row;
}

/* With decay and other constants; with Nesterov's momentum. */
static void add_variants(const ls_case_settings *settings, ls_case_list *list, int k, int level)
{
    char options[64];
    ls_text_put(options, sizeof options, "--weight-decay=%g", DECAY);
    ls_spec job = job_of(settings, level, 2, &decayed[k], options);
    ls_text_put(job.dump_steps, sizeof job.dump_steps, "1,3");
    job.steps = 3;
    ls_case *row = add_row(list, judge_steps, k, level, "decay", requirements[k], &job);
    row->number[1] = 1;
    ls_text_put(row->text, sizeof row->text, "1,3");
    if (plain[k].rule.momentum != 0) {
        ls_text_add(job.extra, sizeof job.extra, " --nesterov");
        row = add_row(list, judge_steps, k, level, "nesterov", requirements[k], &job);
        row->number[1] = row->number[2] = 1;
        ls_text_put(row->text, sizeof row->text, "1,3");
    }
}

/* One job in which step 3 overflows on rank 1: steps before, at and after it, replicas, and the
 * same saved a step behind the overflow, where the growth count is 1, and resumed. Half levels have
 * three ranks. */
static ls_spec skip_job(const ls_case_settings *settings, int k, int level)
{
    ls_spec job = job_of(settings, level, level < 2 ? 2 : 3, &plain[k],
                         "--weight-decay=0 --init-scale=1024 --overflow-at=3:1");
    ls_text_put(job.loss_scale, sizeof job.loss_scale, "dynamic");
    ls_text_put(job.dump_steps, sizeof job.dump_steps, "1,2,3,4,5");
    job.steps = LAST;
    return job;
}

static void add_skip(const ls_case_settings *settings, ls_case_list *list, int k, int level)
{
    ls_spec job = skip_job(settings, k, level);
    static const char *const rows[][3] = {
        {"plain", "1,2", ""}, {"skip", "3", "Z5"}, {"after-skip", "4,5", "Z5"}};
    for (int i = 0; i < 3; i++) {
        const char *requirement = rows[i][2][0] != '\0' ? rows[i][2] : requirements[k];
        ls_case *row = add_row(list, judge_steps, k, level, rows[i][0], requirement, &job);
        ls_text_put(row->text, sizeof row->text, "%s", rows[i][1]);
    }
    add_row(list, ls_judge_lockstep, k, level, "lockstep", "Z6", &job);
    ls_case *row = add_row(list, ls_judge_resume, k, level, "resume", "Z6", &job);
    char id[96];
    row->job_count = 3;
    row->job[1] = row->job[2] = row->job[0];
    row->job[1].dump_steps[0] = row->job[2].dump_steps[0] = '\0';
    row->job[1].steps = SAVED_AT;
    ls_text_add(row->job[1].extra, sizeof job.extra, " --save={self}/checkpoint.safetensors");
    ls_matrix_id(&row->job[1], id);
    ls_text_add(row->job[2].extra, sizeof job.extra, " --resume={job:%s}/checkpoint.safetensors",
                id);
}

/* Where gradients come from another way: a rule that took them scaled, summed or too early shows.
 */
static const struct way {
    const char *name, *half, *dialect;
    int recipe, level, world, accumulate;
    bool sync_bn;
} ways[] = {
    {"torch", "fp16", "torch", 0, 0, 3, 1, false},
    {"torch", "fp16", "torch", 2, 2, 2, 1, false},
    {"torch", "fp16", "torch", 3, 2, 3, 1, false},
    {"accumulate", "fp16", "apex", 1, 1, 2, 3, false},
    {"accumulate", "fp16", "apex", 3, 2, 2, 3, false},
    {"accumulate", "fp16", "apex", 4, 0, 2, 2, false},
    {"sync", "fp16", "apex", 2, 1, 2, 1, true},
    {"sync", "fp16", "apex", 3, 0, 2, 1, true},
    {"bf16", "bf16", "apex", 1, 2, 2, 1, false},
    {"bf16", "bf16", "apex", 3, 1, 2, 1, false},
    {"bf16", "bf16", "apex", 4, 3, 2, 1, false},
    {"alone", "fp16", "apex", 1, 2, 1, 1, false},
    {"alone", "fp16", "apex", 3, 1, 1, 1, false},
    {"w1", "fp16", "apex", 4, 2, 1, 1, false},
};

static void add_ways(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const struct way *w = &ways[i];
        char options[64];
        ls_text_put(options, sizeof options, "--weight-decay=%g", DECAY);
        ls_spec job = job_of(settings, w->level, w->world, &decayed[w->recipe], options);
        ls_text_put(job.half, sizeof job.half, "%s", w->half);
        ls_text_put(job.dialect, sizeof job.dialect, "%s", w->dialect);
        job.accumulate = w->accumulate;
        job.sync_bn = w->sync_bn;
        job.wrap = strcmp(w->name, "alone") == 0 ? LS_WRAP_ALONE : LS_WRAP_NONE;
        job.bucket_mb = w->world == 1 ? LS_BUCKET_OWN : job.bucket_mb;
        ls_text_put(job.dump_steps, sizeof job.dump_steps, "1,3");
        job.steps = 3;
        ls_case *row =
            add_row(list, judge_steps, w->recipe, w->level, w->name, requirements[w->recipe], &job);
        row->number[1] = 1;
        ls_text_put(row->text, sizeof row->text, "1,3");
    }
}

static const struct drift {
    int recipe, level;
} drift[] = {{0, 0}, {1, 0}, {1, 2}, {2, 0}, {2, 2}, {3, 0}, {3, 2}, {4, 2}};

static void add_drift(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof drift / sizeof *drift; i++) {
        int k = drift[i].recipe;
        char options[64];
        ls_text_put(options, sizeof options, "--weight-decay=%g", DECAY);
        ls_spec job = job_of(settings, drift[i].level, 2, &decayed[k], options);
        job.steps = DRIFT_STEPS;
        job.dump_steps[0] = '\0';
        for (int step = 1; step <= DRIFT_STEPS; step++) {
            ls_text_add(job.dump_steps, sizeof job.dump_steps, "%s%d", step == 1 ? "" : ",", step);
        }
        ls_case *row = add_row(list, judge_drift, k, drift[i].level, "drift", "Z7", &job);
        row->number[1] = 1;
    }
}

void ls_optim_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (int level = 0; level < 4; level++) {
        for (int k = 0; k < RECIPES; k++) {
            add_variants(settings, list, k, level);
            add_skip(settings, list, k, level);
        }
    }
    add_ways(settings, list);
    add_drift(settings, list);
    ls_optim_ends_cases(settings, list);
    ls_optim_inside_cases(settings, list);
}
