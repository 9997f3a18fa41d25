/* The optimizers: every dumped step recomputed in FP64 from the value, gradient and moments that
 * the dump holds, by what the job was asked for (not by what its metadata say). One job with weight
 * decay, one without in which a step overflows, both judged by several rows. */
#include "suite/cases/rows.h"

#include <string.h>

#include "kernels/core/text.h"
#include "kernels/core/list.h"
#include "suite/judge/judges.h"

enum { SKIPPED_AT = 3, DRIFT_STEPS = 20 };

static const ls_tol moved_share =
    LS_TOL(0.9, "share of elements that a step must have moved to show anything: a resnet8's "
                "gradient is zero nowhere but for dead channels, and an f32 update is seldom below "
                "half a unit");
static const ls_tol moved_share_half = LS_TOL(
    0.2, "the same where parameters are stored in half: an update below half a unit of fp16 is "
         "lost, which at these rates is the smaller part of them");

static const ls_tol drifted =
    LS_TOL(1, "twice what f32's roundings of all steps so far can add up to");

/* What a job is asked for, and the same as a rule. */
typedef struct recipe {
    const char *options;
    ls_update_rule rule;
} recipe;

/* Options that a subject must accept are all that SGD needs; with decay other constants than the
 * defaults, too. */
static const struct optimizer {
    const char *name, *requirement;
    double lr;
    recipe plain, decayed;
} optimizers[] = {
    {"sgd",
     "Z1",
     0.1,
     {"--momentum=0.9", {.kind = LS_UPDATE_SGD, .momentum = 0.9}},
     {"--momentum=0.8", {.kind = LS_UPDATE_SGD, .momentum = 0.8}}},
    {"adam",
     "Z2",
     0.01,
     {"--optimizer=adam", {.kind = LS_UPDATE_ADAM, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}},
     {"--optimizer=adam --betas=0.8,0.95 --eps=1e-5",
      {.kind = LS_UPDATE_ADAM, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-5}}},
    {"adamw",
     "Z2",
     0.01,
     {"--optimizer=adamw",
      {.kind = LS_UPDATE_ADAMW, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}},
     {"--optimizer=adamw --betas=0.8,0.95 --eps=1e-5",
      {.kind = LS_UPDATE_ADAMW, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-5}}},
    {"lamb",
     "Z3",
     0.02,
     {"--optimizer=lamb",
      {.kind = LS_UPDATE_LAMB, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-6, .max_grad_norm = 1}},
     {"--optimizer=lamb --betas=0.8,0.95 --eps=1e-4",
      {.kind = LS_UPDATE_LAMB, .beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-4, .max_grad_norm = 1}}},
    {"lars",
     "Z4",
     1.0,
     {"--optimizer=lars --momentum=0.9",
      {.kind = LS_UPDATE_LARS, .momentum = 0.9, .epsilon = 1e-8, .trust = 0.02}},
     {"--optimizer=lars --momentum=0.8 --eps=1e-6",
      {.kind = LS_UPDATE_LARS, .momentum = 0.8, .epsilon = 1e-6, .trust = 0.02}}},
};
enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };
enum { SGD, ADAM, ADAMW, LAMB, LARS };

#define DECAY 0.01

/* What a row judges. */
struct trial {
    const struct optimizer *optimizer;
    const char *steps; /* "1,2" */
    bool decayed, nesterov;
};

static ls_update_rule rule_of(const struct trial *trial)
{
    const struct optimizer *o = trial->optimizer;
    ls_update_rule rule = (trial->decayed ? &o->decayed : &o->plain)->rule;
    rule.lr = o->lr;
    rule.weight_decay = trial->decayed ? DECAY : 0;
    rule.nesterov = trial->nesterov;
    return rule;
}

/* ---- judges ---------------------------------------------------------------------------------- */

static void judge_one(const ls_case *row, const ls_record *job, int64_t step, ls_verdict *out)
{
    const struct trial *trial = row->data;
    ls_update_rule rule = rule_of(trial);
    bool skipped = false;
    ls_dumpfile *file = ls_dumps_open_update(job, step, &rule.step, &skipped, out);
    if (file == NULL) {
        return;
    }
    ls_compare_optim_result result = ls_judge_update(file, &rule, step, skipped, out);
    bool wants_skip = step == SKIPPED_AT && !trial->decayed;
    double least = row->job[0].level == 3 ? moved_share_half.value : moved_share.value;
    if (skipped != wants_skip) {
        ls_verdict_set(out, LS_WEAK, "step %d was%s skipped", (int)step, skipped ? "" : " not");
    } else if (!skipped && (double)result.moved < least * (double)result.elements) {
        ls_verdict_set(out, LS_WEAK, "step %d moved %lld of %lld elements only", (int)step,
                       (long long)result.moved, (long long)result.elements);
    }
    const char *moments = result.state_judged ? " and their moments" : "";
    if (skipped) {
        ls_verdict_pass(out, result.elements,
                        "step %d was skipped: %lld elements%s are as they were", (int)step,
                        (long long)result.elements, moments);
    } else {
        ls_verdict_pass(out, result.elements,
                        "step %d, update %lld: %lld elements%s follow, at most %.2f of the limit",
                        (int)step, (long long)rule.step, (long long)result.elements, moments,
                        out->value);
    }
    ls_dumpfile_close(file);
}

static void judge_steps(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    LS_TEXT(steps, 64, "%s", ((const struct trial *)row->data)->steps);
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

/* 0 where one cannot be followed. */
static int start_tracks(const ls_dumpfile *file, track *t)
{
    int count = 0;
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *next = ls_dumpfile_at(file, i);
        if (strncmp(next->name, "param/", 6) == 0 &&
            ls_dumpfile_findf(file, "next/%s", next->name + 6) == NULL) {
            return 0;
        }
        if (strncmp(next->name, "next/", 5) != 0) {
            continue;
        }
        const ls_dumpfile_entry *before = ls_compare_optim_before(file, next->name + 5);
        if (!ls_dumpfile_floats(before, next->count) || count == TRACKS_MAX) {
            return 0;
        }
        size_t n = (size_t)next->count;
        double *block = ls_list_make(7 * n, sizeof *block);
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
        if (!ls_dumpfile_floats(grad, n)) {
            return false;
        }
        ls_dumpfile_read(grad, t[i].block + 6 * n);
        rule->grad_squares += ls_update_squares(t[i].tensor.grad, n);
        rule->grad_elements += n;
    }
    return true;
}

/* Returns how many elements were compared. */
static int64_t compare_track(const ls_dumpfile *file, const track *t, int64_t step, ls_verdict *out)
{
    const ls_dumpfile_entry *next = ls_dumpfile_findf(file, "next/%s", t->name);
    if (!ls_dumpfile_floats(next, t->tensor.count)) {
        ls_verdict_fail(out, "step %d: next/%s is missing or of another size", (int)step, t->name);
        return 0;
    }
    double *got = ls_list_make(1, (size_t)next->count * sizeof *got);
    ls_dumpfile_read(next, got);
    for (int64_t i = 0; i < next->count; i++) {
        double ratio =
            ls_compare_optim_ratio(next, got[i], t->tensor.value[i], t->tensor.value_error[i]);
        if (!ls_verdict_worst(out, ratio, &drifted, "x limit")) {
            ls_verdict_fail(out,
                            "after %d steps %s element %lld is %.9g, FP64 steps on the dumped "
                            "gradients give %.9g, %.3g x limit",
                            (int)step, t->name, (long long)i, got[i], t->tensor.value[i], ratio);
            break;
        }
    }
    free(got);
    return t->tensor.count;
}

/* One dumped step carried on; false ends it. */
static bool follow(const ls_record *job, int64_t step, ls_update_rule rule, track *t, int *count,
                   int64_t *compared, ls_verdict *out)
{
    bool skipped = false;
    ls_dumpfile *file = ls_dumps_open_update(job, step, &rule.step, &skipped, out);
    if (file == NULL) {
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
        *compared += compare_track(file, &t[i], step, out);
    }
    ls_dumpfile_close(file);
    return good && out->code == LS_PASS;
}

/* From the first step's value alone: moments are FP64's own, gradients the dumped ones. */
static void judge_drift(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    track *t = ls_list_make(TRACKS_MAX, sizeof *t);
    int count = 0, step = 1;
    int64_t compared = 0;
    ls_update_rule rule = rule_of(row->data);
    while (step <= DRIFT_STEPS && follow(job, step, rule, t, &count, &compared, out)) {
        step++;
    }
    ls_verdict_pass(out, compared,
                    "%d steps of FP64 on the dumped gradients end where the job does: %.2f of what "
                    "f32's roundings allow",
                    DRIFT_STEPS, out->value);
    for (int i = 0; i < count; i++) {
        free(t[i].block);
    }
    free(t);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Adds optim.<optimizer>.<what>.o<level>: jobs (printf style) of that level and optimizer. */
static void add(const ls_case_settings *settings, ls_case_list *list, ls_case_judge *judge,
                const char *requirement, struct trial trial, const char *what, int level,
                const char *jobs)
{
    const ls_row row = {.requirement =
                            requirement != NULL ? requirement : trial.optimizer->requirement,
                        .judge = judge,
                        .data = memcpy(ls_rows_memory(list, sizeof trial), &trial, sizeof trial)};
    ls_rows_format(list, settings, &row, "optim.%s.%s.o%d: %s", trial.optimizer->name, what, level,
                   jobs);
}

#define JOB "resnet8 O%d w%d lr=%g dump-ranks=0 "

/* With decay and other constants: the plain way, with Nesterov's momentum, or as `words` say. */
static void add_decayed(const ls_case_settings *settings, ls_case_list *list,
                        const struct optimizer *o, const char *what, int level, int world,
                        const char *words)
{
    bool nesterov = strcmp(what, "nesterov") == 0;
    LS_TEXT(jobs, 240, JOB "%s steps=3 dump=1,3 %s --weight-decay=%g%s", level, world, o->lr, words,
            o->decayed.options, DECAY, nesterov ? " --nesterov" : "");
    add(settings, list, judge_steps, NULL, (struct trial){o, "1,3", true, nesterov}, what, level,
        jobs);
}

/* One job in which step 3 overflows on rank 1: steps before, at and after it, replicas, and the
 * same saved one step after the overflow, where the growth count is 1, and resumed. Half levels
 * have three ranks. */
static void add_skip(const ls_case_settings *settings, ls_case_list *list,
                     const struct optimizer *o, int level)
{
    LS_TEXT(base, 160, JOB "b0.05 scale=dynamic", level, level < 2 ? 2 : 3, o->lr);
    LS_TEXT(options, 160, "%s --weight-decay=0 --init-scale=1024 --overflow-at=3:1",
            o->plain.options);
    LS_TEXT(job, 400, "%s steps=6 dump=1,2,3,4,5 %s", base, options);
    add(settings, list, judge_steps, NULL, (struct trial){o, "1,2"}, "plain", level, job);
    add(settings, list, judge_steps, "Z5", (struct trial){o, "3"}, "skip", level, job);
    add(settings, list, judge_steps, "Z5", (struct trial){o, "4,5"}, "after-skip", level, job);
    add(settings, list, ls_judge_lockstep, "Z6", (struct trial){o}, "lockstep", level, job);
    LS_TEXT(jobs, 1400,
            "%s | %s steps=4 %s --save={self}/checkpoint.safetensors | "
            "%s steps=6 %s --resume={job:1}/checkpoint.safetensors",
            job, base, options, base, options);
    add(settings, list, ls_judge_resume, "Z6", (struct trial){o}, "resume", level, jobs);
}

/* Where gradients come from another way: a rule that took them scaled, summed or too early shows.
 */
static const struct way {
    const char *name, *words;
    int optimizer, level, world;
} ways[] = {
    {"torch", "b0.05 torch", SGD, 0, 3},
    {"torch", "b0.05 torch", ADAMW, 2, 2},
    {"torch", "b0.05 torch", LAMB, 2, 3},
    {"accumulate", "b0.05 accumulate=3", ADAM, 1, 2},
    {"accumulate", "b0.05 accumulate=3", LAMB, 2, 2},
    {"accumulate", "b0.05 accumulate=2", LARS, 0, 2},
    {"sync", "b0.05 sync", ADAMW, 1, 2},
    {"sync", "b0.05 sync", LAMB, 0, 2},
    {"bf16", "b0.05 bf16", ADAM, 2, 2},
    {"bf16", "b0.05 bf16", LAMB, 1, 2},
    {"bf16", "b0.05 bf16", LARS, 3, 2},
    {"alone", "alone", ADAM, 2, 1},
    {"alone", "alone", LAMB, 1, 1},
    {"w1", "", LARS, 2, 1},
};

/* Twenty steps, all dumped. */
static void add_drift(const ls_case_settings *settings, ls_case_list *list,
                      const struct optimizer *o, int level)
{
    LS_TEXT(jobs, 240,
            JOB "b0.05 steps=20 dump=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20 "
                "%s --weight-decay=%g",
            level, 2, o->lr, o->decayed.options, DECAY);
    add(settings, list, judge_drift, "Z7", (struct trial){o, NULL, true, false}, "drift", level,
        jobs);
}

void ls_optim_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (int level = 0; level < 4; level++) {
        for (int i = 0; i < OPTIMIZERS; i++) {
            const struct optimizer *o = &optimizers[i];
            add_decayed(settings, list, o, "decay", level, 2, "b0.05");
            if (o->plain.rule.momentum != 0) {
                add_decayed(settings, list, o, "nesterov", level, 2, "b0.05");
            }
            add_skip(settings, list, o, level);
        }
    }
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        add_decayed(settings, list, &optimizers[ways[i].optimizer], ways[i].name, ways[i].level,
                    ways[i].world, ways[i].words);
    }
    static const int drift[][2] = {{SGD, 0},   {ADAM, 0}, {ADAM, 2}, {ADAMW, 0},
                                   {ADAMW, 2}, {LAMB, 0}, {LAMB, 2}, {LARS, 2}};
    for (size_t i = 0; i < sizeof drift / sizeof *drift; i++) {
        add_drift(settings, list, &optimizers[drift[i][0]], drift[i][1]);
    }
}
