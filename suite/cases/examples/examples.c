/* The trainer's examples of the amp library (reference/examples): two encoders with one optimizer
 * in two parameter groups, and two losses with two optimizers. Each model's gradients and steps
 * against the FP64 oracle, each loss's scale and each optimizer's skips against a state machine. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/json.h"
#include "kernels/core/text.h"
#include "suite/judge/judges.h"

enum { MODELS = 2, LOSSES = 2, RANKS_MAX = 4 };

/* As the options of SCRIPT say. */
enum { BAD_STEP = 3, INTERVAL = 2, START = 1024 };

/* What an example promises. */
struct model {
    const char *name, *arch; /* NULL: --arch */
    double rate;             /* of --lr */
    bool decays;             /* --weight-decay is for it, too */
    int optimizer;
};

struct example {
    struct model model[MODELS];
    int losses, optimizers;
    unsigned block[LOSSES]; /* optimizers of each loss's block, a bit each */
};

static const struct example two_encoders = {
    .model = {{"query", NULL, 1.0, true, 0}, {"key", "resnet8", 0.25, false, 0}},
    .losses = 1,
    .optimizers = 1,
    .block = {1},
};
static const struct example two_losses = {
    .model = {{"shared", NULL, 1.0, true, 0}, {"own", "resnet8", 0.5, true, 1}},
    .losses = 2,
    .optimizers = 2,
    .block = {1, 3},
};

/* An example whose loss `bad` overflows once; -1: none does. */
struct run {
    const struct example *example;
    int bad;
};

/* Whether the subject says that it has one scale for all losses, as torch's page on AMP shows: an
 * overflow of any loss then halves it, and each optimizer skips by its own gradients. */
static bool has_one_scale(const ls_record *job)
{
    const cJSON *options = ls_json_get(job->rank[0].start, "options");
    return ls_json_int(options, "scalers", 0) == 1;
}

/* The optimizers that must skip the overflowing step, a bit each: those of the loss's block, or the
 * one whose model --overflow-as names. */
static unsigned skipping(const ls_case *row, const ls_record *job)
{
    const struct run *run = row->data;
    if (run->bad < 0) {
        return 0;
    }
    for (int m = 0; m < MODELS && has_one_scale(job); m++) {
        LS_TEXT(named, 64, "@%s/", run->example->model[m].name);
        if (strstr(row->job[0].extra, named) != NULL) {
            return 1u << run->example->model[m].optimizer;
        }
    }
    return run->example->block[run->bad];
}

/* ---- gradients and steps --------------------------------------------------------------------- */

/* A model's dumps of one step. */
struct dumps {
    const ls_record *job;
    const struct run *run;
    const struct model *model;
    const ls_spec *spec;
    int step, world;
    unsigned skipping; /* optimizers, in the step that overflows */
    char text[RANKS_MAX][700];
    const char *path[RANKS_MAX];
};

static struct dumps dumps_of(const ls_case *row, const ls_record *job, int model, int step)
{
    const struct run *run = row->data;
    struct dumps d = {job,  run,        &run->example->model[model], &row->job[0],
                      step, job->world, skipping(row, job),          {""},
                      {0}};
    LS_ASSERT(job->world <= RANKS_MAX);
    for (int k = 0; k < job->world; k++) {
        ls_text_put(d.text[k], sizeof d.text[k], "%s/dump/%s/step%06d.rank%d.safetensors",
                    job->directory, d.model->name, step, k);
    }
    return d;
}

/* Whether this must be a skip. */
static bool skips(const struct dumps *d)
{
    return d->step == BAD_STEP && (d->skipping >> d->model->optimizer & 1u) != 0;
}

static float rate_of(const struct model *model, const ls_spec *spec)
{
    return (float)((double)(float)spec->lr * model->rate);
}

static double decay_of(const struct model *model)
{
    return model->decays ? 1e-4 : 0; /* --weight-decay's default */
}

/* Whether the step is that of a group with this rate and decay. */
static bool steps_with(const ls_dumpfile *file, double rate, double decay)
{
    ls_update_rule rule;
    ls_compare_checks checks = {0};
    ls_compare_optim_result result;
    bool skipped;
    if (!ls_compare_optim_rule(file, false, &rule, &skipped)) {
        return false;
    }
    rule.lr = rate;
    rule.weight_decay = decay;
    return ls_compare_optim_step(file, &rule, skipped, &checks, &result) == LS_OK &&
           result.judged && checks.count == 0;
}

/* The group's own rate and decay, as its dump has them; the step is judged by these. */
static void check_group(const struct dumps *d, const ls_dumpfile *file, bool first_wrong_step,
                        ls_verdict *out)
{
    const struct model *first = &d->run->example->model[0];
    float rate = rate_of(d->model, d->spec), first_rate = rate_of(first, d->spec);
    double decay = decay_of(d->model), seen_decay = ls_dumpfile_number(file, "weight_decay", 0);
    double seen_rate = ls_dumpfile_number(file, "lr", -1);
    if ((float)seen_rate != rate || seen_decay != decay) {
        ls_verdict_fail(out, "%s has learning rate %g and weight decay %g, expected %g and %g",
                        d->model->name, seen_rate, seen_decay, (double)rate, decay);
    }
    if (ls_dumpfile_flag(file, "skipped", false) != skips(d)) {
        ls_verdict_fail(out, "%s %s", d->model->name,
                        skips(d) ? "stepped though a loss of its block overflowed"
                                 : "skipped a step though no loss of its block overflowed");
    }
    if (out->code != LS_PASS && first_wrong_step && out->cause[0] == '\0' && d->model != first) {
        if (steps_with(file, (double)first_rate, decay)) {
            ls_verdict_cause(out, "%s steps at the rate of %s", d->model->name, first->name);
        } else if (steps_with(file, (double)rate, decay_of(first))) {
            ls_verdict_cause(out, "%s decays as %s does", d->model->name, first->name);
        } else if (steps_with(file, (double)first_rate, decay_of(first))) {
            ls_verdict_cause(out, "%s steps at the rate of %s and decays as it does",
                             d->model->name, first->name);
        }
    }
}

/* Of a skipped step only that nothing has changed can be judged, which is WEAK to the comparison.
 */
static void judge_step(struct dumps *d, bool first_wrong_step, ls_verdict *out)
{
    char cache[700], level[4];
    for (int k = 0; k < d->world; k++) {
        d->path[k] = d->text[k];
    }
    ls_text_put(level, sizeof level, "O%d", d->spec->level);
    ls_compare_facts facts;
    ls_judge_gradients_facts(d->spec, &facts);
    facts.arch = d->model->arch != NULL ? d->model->arch : facts.arch;
    facts.opt_level = level;
    facts.cache = ls_dumps_cache(d->job, cache, sizeof cache);
    ls_compare_verdict seen;
    ls_dumpfile *file;
    if (ls_compare_step(&facts, d->world, d->path, NULL, &seen) != LS_OK ||
        ls_dumpfile_open(d->path[0], &file) != LS_OK) {
        ls_verdict_fail(out, "%s step %d: the dumps cannot be judged", d->model->name, d->step);
        return;
    }
    if (seen.code != (skips(d) ? LS_COMPARE_WEAK : LS_COMPARE_PASS)) {
        ls_verdict_set(out, seen.code == LS_COMPARE_WEAK ? LS_WEAK : LS_FAIL, "%s step %d: %s",
                       d->model->name, d->step, seen.evidence);
    }
    if (!seen.next_judged) {
        ls_verdict_fail(out, "%s step %d: the dump does not show the optimizer's step",
                        d->model->name, d->step);
    }
    if (first_wrong_step && out->cause[0] == '\0') {
        ls_verdict_cause(out, "%s", seen.cause);
    }
    check_group(d, file, first_wrong_step, out);
    ls_dumpfile_close(file);
    ls_verdict_pass(out, seen.elements, "%s step %d: %s", d->model->name, d->step, seen.evidence);
}

/* Every dumped step of both models. A later step's mistakes may come from an earlier one's, so that
 * only the first wrong step has a cause. */
static void judge_steps(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    char steps[64], *rest = NULL;
    ls_text_put(steps, sizeof steps, "%s", row->job[0].dump_steps);
    for (char *word = strtok_r(steps, ",", &rest); word != NULL;
         word = strtok_r(NULL, ",", &rest)) {
        bool right_so_far = out->code == LS_PASS;
        for (int m = 0; m < MODELS; m++) {
            struct dumps d = dumps_of(row, job, m, (int)strtol(word, NULL, 10));
            judge_step(&d, right_so_far, out);
        }
    }
}

/* ---- scales and skips ------------------------------------------------------------------------ */

struct trace {
    const struct run *run;
    ls_judge_scaler_machine machine[LOSSES]; /* of each loss */
    bool one_scale;
    unsigned skipping; /* optimizers, in the step that overflows */
    int rank, steps;
    ls_verdict *out;
};

static void check_loss(struct trace *t, const cJSON *event, int loss, bool overflow)
{
    const cJSON *seen = cJSON_GetArrayItem(ls_json_get(event, "losses"), loss);
    double scale = t->machine[loss].scale;
    double next = ls_judge_scaler_tick(&t->machine[loss], overflow);
    double seen_scale = ls_json_number(seen, "loss_scale", -1);
    double seen_next = ls_json_number(seen, "loss_scale_next", -1);
    if (seen_scale != scale || seen_next != next) {
        if (t->out->code == LS_PASS && seen_scale == scale && seen_next == 2 * scale) {
            ls_verdict_cause(t->out, "loss %d counts more than one clean block a step", loss);
        }
        if (t->out->code == LS_PASS && t->steps == BAD_STEP && !overflow && seen_scale == scale &&
            seen_next == scale / 2) {
            ls_verdict_cause(t->out, "loss %d halves its scale with an overflow of another loss",
                             loss);
        }
        ls_verdict_fail(t->out, "rank=%d step %d: loss %d has scale %g, then %g; expected %g, %g",
                        t->rank, t->steps, loss, seen_scale, seen_next, scale, next);
    }
}

static void check_optimizer(struct trace *t, const cJSON *event, int optimizer, bool skips)
{
    const cJSON *list = ls_json_get(event, "optimizers_skipped");
    const cJSON *seen = cJSON_GetArrayItem(list, optimizer);
    if (!cJSON_IsBool(seen) || cJSON_IsTrue(seen) != skips) {
        if (t->out->code == LS_PASS && t->one_scale) {
            ls_verdict_cause(t->out,
                             skips ? "optimizer %d steps though its gradients overflowed"
                                   : "optimizer %d skips though its own gradients are finite: with "
                                     "one scaler each looks at its own",
                             optimizer);
        } else if (t->out->code == LS_PASS) {
            ls_verdict_cause(t->out,
                             skips ? "optimizer %d steps though a loss of its block overflowed"
                                   : "optimizer %d skips though no loss of its blocks overflowed",
                             optimizer);
        }
        ls_verdict_fail(t->out, "rank=%d step %d: optimizer %d %s", t->rank, t->steps, optimizer,
                        skips ? "stepped" : "skipped");
    }
}

static ls_status visit(void *context, const cJSON *event, int line)
{
    struct trace *t = context;
    const struct example *example = t->run->example;
    (void)line;
    t->steps++;
    if (ls_json_get(event, "losses") == NULL) {
        ls_verdict_set(t->out, LS_UNSUPPORTED, "rank=%d: step events have no \"losses\"", t->rank);
        return LS_OK;
    }
    unsigned skipped = t->steps == BAD_STEP ? t->skipping : 0;
    for (int loss = 0; loss < example->losses; loss++) {
        bool any = t->steps == BAD_STEP && t->run->bad >= 0;
        check_loss(t, event, loss, any && (t->one_scale || loss == t->run->bad));
    }
    for (int o = 0; o < example->optimizers; o++) {
        check_optimizer(t, event, o, (skipped >> o & 1u) != 0);
    }
    bool all = skipped == (1u << example->optimizers) - 1;
    if (ls_json_bool(event, "skipped", !all) != all) {
        ls_verdict_fail(t->out, "rank=%d step %d: skipped is %s", t->rank, t->steps,
                        all ? "false" : "true");
    }
    return LS_OK;
}

/* Every rank's scales and skips, and what the dump of the overflowing step holds. */
static void judge_scales(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct run *run = row->data;
    for (int k = 0; k < job->world; k++) {
        struct trace t = {.run = run,
                          .one_scale = has_one_scale(job),
                          .skipping = skipping(row, job),
                          .rank = k,
                          .out = out};
        for (int loss = 0; loss < LOSSES; loss++) {
            t.machine[loss] = (ls_judge_scaler_machine){START, 0, INFINITY, 0, INTERVAL};
        }
        if (ls_record_each_event(job, k, "step", visit, &t) != LS_OK ||
            t.steps != row->job[0].steps) {
            ls_verdict_fail(out, "rank=%d has events of %d steps, expected %d", k, t.steps,
                            row->job[0].steps);
        }
    }
    judge_steps(row, job, out);
    ls_verdict_pass(out,
                    (int64_t)job->world * row->job[0].steps *
                        (run->example->losses + run->example->optimizers),
                    "%d steps: scales and skips of %d losses and %d optimizers as the state "
                    "machine says",
                    row->job[0].steps, run->example->losses, run->example->optimizers);
}

/* ---- the cases ------------------------------------------------------------------------------- */

#define LEVELS "[o0=O0|o1=O1|o2=O2|o3=O3|bf16.o2=O2 bf16]"
#define SCRIPT \
    " steps=6 dump=2,3,4 scale=dynamic --init-scale=1024 --growth-interval=2 --overflow-at=3:1 "

static const struct run encoders = {&two_encoders, -1}, encoders_overflow = {&two_encoders, 0};
static const struct run losses = {&two_losses, -1}, first_overflows = {&two_losses, 0},
                        second_overflows = {&two_losses, 1};

static const ls_row rows[] = {
    {"examples.two-encoders." LEVELS ".w[1|2|3]", "A10", judge_steps,
     "resnet8 $1 w$2 b0.1 dump=1,2 --example=two-encoders", &encoders},
    {"examples.two-encoders.accumulate.o[0|1|2|3].w2", "A10", judge_steps,
     "resnet8 O$1 w2 b0.1 accumulate=3 dump=1,2 --example=two-encoders", &encoders},
    {"examples.two-encoders.[resnet20=resnet20|torch=resnet8 torch|sync=resnet8 sync|"
     "delay=resnet8 delay|adam=resnet8 lr=0.01 --optimizer=adam].o2.w2",
     "A10", judge_steps, "O2 w2 b0.1 dump=1,2 --example=two-encoders $1", &encoders},
    {"examples.two-losses." LEVELS ".w[1|2|3]", "A11", judge_steps,
     "resnet8 $1 w$2 b0.1 dump=1,2 --example=two-losses", &losses},
    {"examples.two-losses.[resnet20=resnet20|torch=resnet8 torch|sync=resnet8 sync|"
     "delay=resnet8 delay|adam=resnet8 lr=0.01 --optimizer=adam].o2.w2",
     "A11", judge_steps, "O2 w2 b0.1 dump=1,2 --example=two-losses $1", &losses},
    {"examples.two-encoders.overflow.[query|key].o[0|1|2|3].w2", "A12", judge_scales,
     "resnet8 O$2 w2 b0.1 --example=two-encoders --overflow-as=inf@$1/fc.bias" SCRIPT,
     &encoders_overflow},
    {"examples.two-encoders.overflow.delayed.o[1|2].w2", "A12", judge_scales,
     "resnet8 O$1 w2 b0.1 accumulate=3 --example=two-encoders "
     "--overflow-as=nan@key/conv1.weight:last:0" SCRIPT,
     &encoders_overflow},
    {"examples.two-losses.overflow.loss0.o[0|1|2|3].w[2|3]", "A12", judge_scales,
     "resnet8 O$1 w$2 b0.1 --example=two-losses --overflow-as=inf@shared/fc.bias:last:0" SCRIPT,
     &first_overflows},
    {"examples.two-losses.overflow.loss1.[shared=shared/conv1.weight:first:1|own=own/fc.bias]"
     ".o[0|1|2|3].w2",
     "A12", judge_scales, "resnet8 O$2 w2 b0.1 --example=two-losses --overflow-as=-inf@$1" SCRIPT,
     &second_overflows},
    {"examples.lockstep.[two-encoders|two-losses].o[1|2].w3", "A12", ls_judge_lockstep,
     "resnet8 O$2 w3 b0.1 dump=1,2 --example=$1", NULL},
};

void ls_examples_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
}
