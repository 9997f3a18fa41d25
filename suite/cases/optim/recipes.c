/* What stands around the optimizer's rule: clipping and groups of parameters, at all levels. Every
 * dumped step is recomputed in FP64 by what the job was asked for. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/judge/judges.h"

static const ls_tol norm_error = LS_TOL(
    4, "units of f32 times the root of the number of elements: sums of squares in f32 walk so far, "
       "in double they do not");

/* Whether a parameter belongs to a group. */
typedef bool member(const char *name);

/* What a job is asked for. */
struct recipe {
    const char *name, *requirement, *options;
    ls_update_rule rule;
    struct {
        member *has; /* NULL: no more groups. The first one that has a parameter takes it */
        double weight_decay, lr_factor;
    } group[3];
};

static bool is_norm(const char *name)
{
    /* torchvision names a shortcut's batch norm by its place */
    return strstr(name, "bn") != NULL || strstr(name, "downsample.1.") != NULL;
}

static bool is_norm_or_bias(const char *name)
{
    return is_norm(name) || strstr(name, "bias") != NULL;
}

static bool is_classifier(const char *name)
{
    return strncmp(name, "fc.", 3) == 0;
}

static bool is_first(const char *name)
{
    return strcmp(name, "conv1.weight") == 0;
}

#define SGD .kind = LS_UPDATE_SGD, .lr = 0.1, .momentum = 0.9
#define LARS .kind = LS_UPDATE_LARS, .momentum = 0.9, .epsilon = 1e-8, .trust = 0.02
#define USUAL .weight_decay = 1e-4

#define CLIP_NORM "lr=0.1 --clip-grad-norm=0.25"
#define NO_BN_DECAY "lr=0.1 --weight-decay=0.05 --no-bn-decay"
enum { FIRST_CLIP_NORM = 0, FIRST_NO_BN_DECAY = 5 }; /* of the recipes */

static const struct recipe recipes[] = {
    {"clip-norm", "Z14", CLIP_NORM, {SGD, USUAL, .clip_norm = 0.25}},
    {"clip-value", "Z14", "lr=0.1 --clip-grad-value=0.01", {SGD, USUAL, .clip_value = 0.01}},
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
     {LARS, USUAL, .lr = 1, .clip_norm = 0.25}},
    {"clip-value-lars",
     "Z14",
     "lr=1 --optimizer=lars --clip-grad-value=0.01",
     {LARS, USUAL, .lr = 1, .clip_value = 0.01}},
    {"no-bn-decay", "Z16", NO_BN_DECAY, {SGD, .weight_decay = 0.05}, {{is_norm_or_bias, 0, 1}}},
    {"group",
     "Z16",
     "lr=0.1 --weight-decay=0.05 --group=^conv1:wd=0.5 --group=fc:lr-factor=0.1,wd=0.01 "
     "--group=bn|bias:wd=0",
     {SGD, .weight_decay = 0.05},
     {{is_first, 0.5, 1}, {is_classifier, 0.01, 0.1}, {is_norm, 0, 1}}},
    {"group-adam",
     "Z16",
     "lr=0.01 --optimizer=adam --weight-decay=0.1 --group=^fc\\.:lr-factor=4 --no-bn-decay",
     {.kind = LS_UPDATE_ADAM,
      .lr = 0.01,
      .weight_decay = 0.1,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .epsilon = 1e-8},
     {{is_classifier, 0.1, 4}, {is_norm, 0, 1}}},
    {"group-lamb",
     "Z16",
     "lr=0.02 --optimizer=lamb --weight-decay=0.1 --no-bn-decay --group=fc:lr-factor=0.3",
     {.kind = LS_UPDATE_LAMB,
      .lr = 0.02,
      .weight_decay = 0.1,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .epsilon = 1e-6,
      .max_grad_norm = 1},
     {{is_classifier, 0.1, 0.3}, {is_norm, 0, 1}}},
    {"group-lars",
     "Z16",
     "lr=1 --optimizer=lars --weight-decay=0.1 --no-bn-decay --clip-grad-norm=0.25",
     {LARS, .lr = 1, .weight_decay = 0.1, .clip_norm = 0.25},
     {{is_norm_or_bias, 0, 1}}},
    /* some tensors' ratios are above the rate, some below */
    {"larc",
     "Z15",
     "lr=0.005 --optimizer=lars --larc-clip",
     {LARS, USUAL, .lr = 0.005, .clip = true}},
};

/* ---- groups ---------------------------------------------------------------------------------- */

/* FAIL where the metadata give a parameter another rate or decay than its group's. `lr`: of all. */
static void check_groups(const struct recipe *r, const ls_dumpfile *file, ls_verdict *out)
{
    int own = 0;
    double lr = ls_dumpfile_number(file, "lr", NAN);
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *next = ls_dumpfile_at(file, i);
        if (strncmp(next->name, "next/", 5) != 0) {
            continue;
        }
        const char *name = next->name + 5;
        double decay = r->rule.weight_decay, rate = lr;
        for (int g = 0; g < 3 && r->group[g].has != NULL; g++) {
            if (r->group[g].has(name)) {
                decay = r->group[g].weight_decay;
                rate = lr * r->group[g].lr_factor;
                own++;
                break;
            }
        }
        LS_TEXT(of_decay, 160, "weight_decay/%.100s", name);
        LS_TEXT(of_lr, 160, "lr/%.100s", name);
        double got_decay =
            ls_dumpfile_number(file, of_decay, ls_dumpfile_number(file, "weight_decay", 0));
        double got_rate = ls_dumpfile_number(file, of_lr, lr);
        if ((float)got_decay != (float)decay || (float)got_rate != (float)rate) {
            ls_verdict_fail(out, "%s has a decay of %g and a rate of %g, its group %g and %g", name,
                            got_decay, got_rate, decay, rate);
            return;
        }
    }
    if (r->group[0].has != NULL && own == 0) {
        ls_verdict_fail(out, "no parameter is in a group");
    }
}

/* ---- judges ---------------------------------------------------------------------------------- */

/* All dumped gradients. */
typedef struct gradients {
    int64_t elements;
    double norm, largest; /* norm: NAN where there are none */
} gradients;

static gradients read_gradients(const ls_dumpfile *file)
{
    gradients all = {0};
    double squares = 0;
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *grad = ls_dumpfile_at(file, i);
        if (strncmp(grad->name, "grad/", 5) != 0) {
            continue;
        }
        double *value = ls_dumps_values(grad);
        squares += ls_update_squares(value, grad->count);
        all.elements += grad->count;
        for (int64_t k = 0; k < grad->count; k++) {
            all.largest = fmax(all.largest, fabs(value[k]));
        }
        free(value);
    }
    all.norm = all.elements > 0 ? sqrt(squares) : NAN;
    return all;
}

/* What every rank's event says of the norm. */
static void check_norm(const ls_record *job, int64_t step, const gradients *all, ls_verdict *out)
{
    double want = all->norm;
    double limit = want * ldexp(8 + norm_error.value * sqrt((double)all->elements), -24);
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

/* Returns how many elements were compared. */
static int64_t judge_step(const ls_case *row, const ls_record *job, int64_t step, bool *clips,
                          ls_verdict *out)
{
    const struct recipe *r = row->data;
    ls_update_rule rule = r->rule;
    bool skipped = false;
    ls_dumpfile *file = ls_dumps_open_update(job, step, &rule.step, &skipped, out);
    if (file == NULL) {
        return 0;
    }
    check_groups(r, file, out);
    ls_compare_optim_result result = ls_judge_update(file, &rule, step, skipped, out);
    if (!skipped) {
        gradients all = read_gradients(file);
        check_norm(job, step, &all, out);
        *clips = *clips || (rule.clip_norm > 0 && all.norm > rule.clip_norm) ||
                 (rule.clip_value > 0 && all.largest > rule.clip_value);
    }
    ls_dumpfile_close(file);
    return result.elements;
}

static void judge_recipe(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct recipe *r = row->data;
    bool clips = false;
    int64_t elements = 0;
    for (int64_t step = 1; step <= row->job[0].steps && out->code == LS_PASS; step++) {
        elements += judge_step(row, job, step, &clips, out);
    }
    if ((r->rule.clip_norm > 0 || r->rule.clip_value > 0) && !clips && out->code == LS_PASS) {
        ls_verdict_set(out, LS_WEAK, "no gradient was large enough to be clipped");
    }
    ls_verdict_pass(out, elements, "%d steps follow, at most %.2f of the limit", row->job[0].steps,
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

#define REFUSED(id, options, says)                                                       \
    {                                                                                    \
        "optim.group.refused." id, "Z17", ls_endings_row, "resnet8 O0 steps=1 " options, \
            LS_REFUSAL(says), .judges_outcome = true                                     \
    }

static const ls_row others[] = {
    {"optim.no-bn-decay.resnet18.o2.w2", "Z16", judge_recipe,
     "resnet18 O2 w2 b1 image=32 batch=8 steps=1 dump=1 dump-ranks=0 " NO_BN_DECAY,
     &recipes[FIRST_NO_BN_DECAY]},
    REFUSED("unknown", "--group=layer9:wd=0", "layer9:wd=0"),
    REFUSED("shadowed", "--group=fc:wd=0 --group=^fc:wd=1", "groups before it"),
    REFUSED("shadowed-bn", "--group=bn|bias:wd=0 --no-bn-decay", "groups before it"),
    {"optim.clip-norm.torch.o0.w3", "Z14", judge_recipe,
     "resnet8 O0 w3 b0.05 torch steps=3 dump=1,2,3 dump-ranks=0 " CLIP_NORM,
     &recipes[FIRST_CLIP_NORM]},
    {"optim.clip-norm.accumulate.o2.w2", "Z14", judge_recipe,
     "resnet8 O2 w2 b0.05 accumulate=3 steps=3 dump=1,2,3 dump-ranks=0 " CLIP_NORM,
     &recipes[FIRST_CLIP_NORM]},
    {"optim.clip-norm.bf16.o2.w2", "Z14", judge_recipe,
     "resnet8 O2 bf16 w2 b0.05 steps=3 dump=1,2,3 dump-ranks=0 " CLIP_NORM,
     &recipes[FIRST_CLIP_NORM]},
    {"optim.clip-norm.skip.o2.w2", "Z14", judge_overflow,
     "resnet8 O2 w2 b0.05 scale=dynamic steps=4 dump=1,2,3,4 dump-ranks=0 --init-scale=1024 "
     "--overflow-at=2:1 " CLIP_NORM,
     &recipes[FIRST_CLIP_NORM]},
};

/* Optimizers: runs that end or are refused, and the memory that moments take. */

enum { BAD_STEP = 2 };

/* ---- a static scale and a gradient that is inf ----------------------------------------------- */

/* Exit code 12 on every rank, behind the step that spoilt a value, with the tensor's name. */
static void judge_spoilt(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    char line[240];
    ls_record_last_line(job, 0, line, (int)sizeof line);
    if (job->state == LS_RECORD_KILLED || job->state == LS_RECORD_TIMED_OUT || job->code != 12) {
        ls_verdict_fail(
            out,
            "an infinite gradient at step %d under a static scale: exit code %d, expected "
            "12: %s",
            BAD_STEP, job->state == LS_RECORD_DONE ? 0 : job->code, line);
        return;
    }
    for (int k = 0; k < job->world; k++) {
        const ls_record_step *after = ls_record_find_step(&job->rank[k], BAD_STEP + 1);
        if (after != NULL) {
            ls_verdict_fail(out, "rank=%d went on to step %d", k, BAD_STEP + 1);
        }
    }
    if (strstr(line, "weight") == NULL && strstr(line, "bias") == NULL) {
        ls_verdict_fail(out, "the last line names no tensor: %s", line);
    }
    ls_verdict_pass(out, job->world, "%s", line);
}

/* ---- memory ---------------------------------------------------------------------------------- */

enum { RESNET8_ELEMENTS = 75290 }; /* parameters of the 6n+2 network with n = 1, 10 classes */

/* Moments are f32, so many per parameter, padded to 64 bytes a tensor at most. */
static void judge_memory(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int wanted = *(const int *)row->data;
    const cJSON *start = job->rank[0].start;
    const cJSON *memory = start == NULL ? NULL : ls_json_get(start, "memory");
    double moments = ls_json_number(memory, "moments", -1);
    double least = 4.0 * RESNET8_ELEMENTS * wanted;
    double most = least + 64.0 * wanted * 128; /* more tensors than a resnet8 has */
    if (memory == NULL || moments < 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the start event has no memory of moments");
    } else if (!(moments >= least && moments <= most)) {
        ls_verdict_fail(out, "moments take %.0f bytes, expected %d x 4 x %d", moments, wanted,
                        RESNET8_ELEMENTS);
    } else {
        ls_verdict_pass(out, 1, "moments take %.0f bytes: %d per parameter", moments, wanted);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

#define ONE "resnet8 O0 steps=1 "
#define SAVED ONE "--optimizer=adam --save={self}/checkpoint.safetensors | resnet8 O0 steps=2 "
#define RESUME " --resume={job:0}/checkpoint.safetensors"

/* One line that names the option, and no step. */
#define UNSTEPPED(option) LS_ENDING({LS_ERR_USAGE}, 1, option, .unstepped = true)
#define UNTAKEN(id, job, option)                                                                   \
    {                                                                                              \
        "optim.refused." id, "Z12", ls_endings_row, job, UNSTEPPED(option), .judges_outcome = true \
    }

static const ls_row ends[] = {
    {"optim.[adam|lamb].spoilt.o0", "Z11", judge_spoilt,
     "resnet8 O0 w2 b0.05 lr=0.01 steps=4 --optimizer=$1 --overflow-at=2:1",
     .judges_outcome = true},
    {"optim.[adamw|lars].spoilt.o2", "Z11", judge_spoilt,
     "resnet8 O2 w2 b0.05 lr=0.01 steps=4 --optimizer=$1 --overflow-at=2:1",
     .judges_outcome = true},
    UNTAKEN("name", ONE "--optimizer=rmsprop", "--optimizer"),
    UNTAKEN("[betas-one=0.9,1|betas-negative=-0.1,0.9|betas-single=0.9]",
            ONE "--optimizer=adam --betas=$1", "--betas"),
    UNTAKEN("eps-zero", ONE "--optimizer=adam --eps=0", "--eps"),
    UNTAKEN("trust-zero", ONE "--optimizer=lars --trust=0", "--trust"),
    UNTAKEN("norm-negative", ONE "--optimizer=lamb --max-grad-norm=-1", "--max-grad-norm"),
    UNTAKEN("decay-negative", ONE "--weight-decay=-0.1", "--weight-decay"),
    UNTAKEN("momentum-negative", ONE "--momentum=-0.1", "--momentum"),
    UNTAKEN("lr-nan", ONE "--lr=nan", "--lr"),
    UNTAKEN("[nesterov-adam=--optimizer=adam|nesterov-no-momentum=--momentum=0]",
            ONE "$1 --nesterov", "--nesterov"),
    /* a checkpoint's moments are another optimizer's */
    {"optim.refused.resume-[sgd|lamb]", "F5", ls_endings_row, SAVED "--optimizer=$1" RESUME,
     UNSTEPPED("optimizer"), .judges_outcome = true},
    {"optim.memory.sgd-plain", "Z13", judge_memory, "resnet8 O2 steps=1 --momentum=0",
     &(const int){0}},
    {"optim.memory.[sgd=--momentum=0.9|lars=--optimizer=lars]", "Z13", judge_memory,
     "resnet8 O2 steps=1 $1", &(const int){1}},
    {"optim.memory.[adam|lamb]", "Z13", judge_memory, "resnet8 O2 steps=1 --optimizer=$1",
     &(const int){2}},
};

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
    LS_ROWS(list, settings, others);
    LS_ROWS(list, settings, ends);
}
