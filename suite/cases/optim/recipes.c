/* What stands between the gradients and the optimizer's rule: clipping, by all levels and ways to
 * reduce. Every dumped step is recomputed in FP64 by what the job was asked for. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/judge/compare.h"
#include "suite/judge/diagnose.h"
#include "suite/judge/judges.h"

static const ls_tol norm_error = LS_TOL(
    4, "units of f32 times the root of the number of elements: sums of squares in f32 walk so far, "
       "in double they do not");

/* What a job is asked for. */
struct recipe {
    const char *name, *requirement, *options;
    ls_update_rule rule;
};

#define SGD .kind = LS_UPDATE_SGD, .lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4
#define LARS \
    .kind = LS_UPDATE_LARS, .momentum = 0.9, .epsilon = 1e-8, .trust = 0.02, .weight_decay = 1e-4

static const struct recipe recipes[] = {
    {"clip-norm", "Z14", "lr=0.1 --clip-grad-norm=0.25", {SGD, .clip_norm = 0.25}},
    {"clip-value", "Z14", "lr=0.1 --clip-grad-value=0.01", {SGD, .clip_value = 0.01}},
    {"clip-norm-adam",
     "Z14",
     "lr=0.01 --optimizer=adamw --weight-decay=0.01 --clip-grad-norm=0.5",
     {.kind = LS_UPDATE_ADAMW,
      .lr = 0.01,
      .weight_decay = 0.01,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .epsilon = 1e-8,
      .clip_norm = 0.5}},
    {"clip-norm-lars",
     "Z14",
     "lr=1 --optimizer=lars --clip-grad-norm=0.25",
     {LARS, .lr = 1, .clip_norm = 0.25}},
    {"clip-value-lars",
     "Z14",
     "lr=1 --optimizer=lars --clip-grad-value=0.01",
     {LARS, .lr = 1, .clip_value = 0.01}},
    /* some tensors' ratios are above the rate, some below */
    {"larc", "Z15", "lr=0.005 --optimizer=lars --larc-clip", {LARS, .lr = 0.005, .clip = true}},
};

/* ---- judges ---------------------------------------------------------------------------------- */

/* The norm of all dumped gradients, and of how many elements; NAN where one is missing. */
static double norm_of(const ls_dumpfile *file, int64_t *elements)
{
    double squares = 0;
    *elements = 0;
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *grad = ls_dumpfile_at(file, i);
        if (strncmp(grad->name, "grad/", 5) != 0) {
            continue;
        }
        double *value = malloc((size_t)grad->count * sizeof *value + 8);
        LS_ASSERT(value != NULL);
        ls_dumpfile_read(grad, value);
        squares += ls_update_squares(value, grad->count);
        *elements += grad->count;
        free(value);
    }
    return *elements > 0 ? sqrt(squares) : NAN;
}

/* The largest element of a gradient. */
static double largest_of(const ls_dumpfile *file)
{
    double most = 0;
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *grad = ls_dumpfile_at(file, i);
        double *value = malloc((size_t)grad->count * sizeof *value + 8);
        LS_ASSERT(value != NULL);
        bool floats = strncmp(grad->name, "grad/", 5) == 0;
        if (floats) {
            ls_dumpfile_read(grad, value);
        }
        for (int64_t k = 0; floats && k < grad->count; k++) {
            most = fmax(most, fabs(value[k]));
        }
        free(value);
    }
    return most;
}

/* What every rank's event says of the norm. */
static void check_norm(const ls_record *job, int64_t step, double want, int64_t elements,
                       ls_verdict *out)
{
    double limit = want * ldexp(8 + norm_error.value * sqrt((double)elements), -24);
    for (int rank = 0; rank < job->world; rank++) {
        const ls_record_step *event = ls_record_find_step(&job->rank[rank], step);
        double got = event != NULL ? event->grad_norm : NAN;
        if (isnan(got) && event != NULL && !event->norm_given) {
            continue; /* a foreign subject's events need not say it */
        }
        if (!(fabs(got - want) <= limit)) {
            ls_verdict_fail(out,
                            "rank=%d step %d: the event's gradient norm is %.9g, that of the "
                            "dumped gradients %.9g, limit=%.1e",
                            rank, (int)step, got, want, limit);
        }
    }
}

static void judge_step(const ls_case *row, const ls_record *job, int64_t step, bool *clips,
                       ls_verdict *out)
{
    const struct recipe *r = row->data;
    ls_update_rule rule = r->rule;
    bool skipped = false;
    int64_t elements;
    ls_dumpfile *file = ls_dumps_open_update(job, step, &rule.step, &skipped, out);
    if (file == NULL) {
        return;
    }
    ls_compare_checks checks = {0};
    ls_compare_optim_result result;
    ls_status status = ls_compare_optim_step(file, &rule, skipped, &checks, &result);
    if (status == LS_OK && checks.count > 0) {
        ls_verdict_fail(out, "step %d: %.280s; %d in all", (int)step, checks.line, checks.count);
        (void)ls_diagnose_step(file, &rule, skipped, out->cause, (int)sizeof out->cause);
    } else if (status != LS_OK || !result.judged) {
        ls_verdict_set(out, status == LS_OK ? LS_UNSUPPORTED : LS_INFRA,
                       "step %d cannot be judged: %s", (int)step,
                       status == LS_OK ? result.why : ls_status_name(status));
    }
    double norm = norm_of(file, &elements);
    if (!skipped) {
        check_norm(job, step, norm, elements, out);
        *clips = *clips || (rule.clip_norm > 0 && norm > rule.clip_norm) ||
                 (rule.clip_value > 0 && largest_of(file) > rule.clip_value);
    }
    if (!out->measured || result.ratio > out->value) {
        ls_verdict_measured(
            out, result.ratio, 1, "x limit",
            "twice what f32's roundings can add up to in this formula, per element");
    }
    ls_dumpfile_close(file);
}

static void judge_recipe(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct recipe *r = row->data;
    bool clips = false;
    for (int64_t step = 1; step <= row->job[0].steps && out->code == LS_PASS; step++) {
        judge_step(row, job, step, &clips, out);
    }
    if ((r->rule.clip_norm > 0 || r->rule.clip_value > 0) && !clips && out->code == LS_PASS) {
        ls_verdict_set(out, LS_WEAK, "no gradient was large enough to be clipped");
    }
    ls_verdict_pass(out, "%d steps follow, at most %.2f of the limit", row->job[0].steps,
                    out->value);
}

/* An overflow leaves nothing to clip: the step is skipped, its norm is no number, and the next one
 * is clipped by its own. */
static void judge_overflow(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    judge_recipe(row, job, out);
    for (int rank = 0; rank < job->world; rank++) {
        const ls_record_step *event = ls_record_find_step(&job->rank[rank], 2);
        if (event == NULL || !event->skipped) {
            ls_verdict_set(out, LS_WEAK, "step 2 was not skipped");
        } else if (event->norm_given && isfinite(event->grad_norm)) {
            ls_verdict_fail(out, "rank=%d: a gradient norm of %.9g after an overflow", rank,
                            event->grad_norm);
        }
    }
}

void ls_recipes_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        const struct recipe *r = &recipes[i];
        const ls_row row = {.requirement = r->requirement, .judge = judge_recipe, .data = r};
        for (int level = 0; level < 4; level++) {
            ls_rows_format(
                list, settings, &row,
                "optim.%s.o%d.w2: resnet8 O%d w2 b0.05 steps=3 dump=1,2,3 dump-ranks=0 %s", r->name,
                level, level, r->options);
        }
    }
    const ls_row norm = {.requirement = "Z14", .judge = judge_recipe, .data = &recipes[0]};
    ls_rows_format(list, settings, &norm,
                   "optim.clip-norm.torch.o0.w3: resnet8 O0 w3 b0.05 torch steps=3 dump=1,2,3 "
                   "dump-ranks=0 %s",
                   recipes[0].options);
    ls_rows_format(list, settings, &norm,
                   "optim.clip-norm.accumulate.o2.w2: resnet8 O2 w2 b0.05 accumulate=3 steps=3 "
                   "dump=1,2,3 dump-ranks=0 %s",
                   recipes[0].options);
    ls_rows_format(list, settings, &norm,
                   "optim.clip-norm.bf16.o2.w2: resnet8 O2 bf16 w2 b0.05 steps=3 dump=1,2,3 "
                   "dump-ranks=0 %s",
                   recipes[0].options);
    const ls_row overflow = {.requirement = "Z14", .judge = judge_overflow, .data = &recipes[0]};
    ls_rows_format(list, settings, &overflow,
                   "optim.clip-norm.skip.o2.w2: resnet8 O2 w2 b0.05 scale=dynamic steps=4 "
                   "dump=1,2,3,4 dump-ranks=0 --init-scale=1024 --overflow-at=2:1 %s",
                   recipes[0].options);
}
