/* Every optimizer of the library at every level: what a skipped step leaves alone, and that a run
 * with skipped steps ends as one without them (apex/amp/handle.py@patch_step). */
#include <math.h>
#include <string.h>

#include "kernels/core/text.h"
#include "amp_rows.h"
#include "toy.h"

/* Numbers that fp16 weights can follow. */
static const struct kind {
    const char *name;
    ls_optimizer_config config;
    int moments;
} kinds[] = {
    {"sgd", {.kind = LS_OPTIMIZER_SGD, .momentum = .5}, 1},
    {"nesterov",
     {.kind = LS_OPTIMIZER_SGD, .momentum = .5, .nesterov = true, .weight_decay = .25},
     1},
    {"adam", {.kind = LS_OPTIMIZER_ADAM, .beta1 = .5, .beta2 = .75, .epsilon = .0625}, 2},
    {"adamw",
     {.kind = LS_OPTIMIZER_ADAMW, .beta1 = .5, .beta2 = .75, .epsilon = .0625, .weight_decay = .5},
     2},
    {"lamb",
     {.kind = LS_OPTIMIZER_LAMB,
      .beta1 = .5,
      .beta2 = .75,
      .epsilon = .0625,
      .weight_decay = .5,
      .max_grad_norm = 1},
     2},
    {"lars",
     {.kind = LS_OPTIMIZER_LARS,
      .momentum = .5,
      .weight_decay = .25,
      .epsilon = .0625,
      .trust = .02},
     1},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

/* m(1) in one group, so that LAMB's clip has one vector. */
static bool open_kind(ls_toy *toy, int level, const struct kind *kind, ls_verdict *out)
{
    ls_toy_setup setup = {.level = level,
                          .scale = level == 1 || level == 2 ? 1024.0f : 1.0f,
                          .models = 1,
                          .rule = kind->config,
                          .moments = kind->moments,
                          .lr = .25f};
    return ls_toy_open(toy, &setup, out);
}

/* Everything an optimizer holds. */
typedef struct snapshot {
    float weight[4], value[4], moment[2][4];
    int64_t steps[2];
} snapshot;

static snapshot look(ls_toy *toy, const struct kind *kind)
{
    snapshot s;
    memset(&s, 0, sizeof s);
    ls_toy_weights(toy, 0, s.weight);
    for (int w = 0; w < 2; w++) {
        ls_amp_view view = ls_toy_view(toy, 0, w);
        ls_inside_read(&toy->device, &view.value, &s.value[2 * w]);
        for (int k = 0; k < kind->moments; k++) {
            ls_inside_read(&toy->device, &view.moment[k], &s.moment[k][2 * w]);
        }
        s.steps[w] = *view.steps;
    }
    return s;
}

static bool equal(const snapshot *a, const snapshot *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Weights, masters, moments and step counts have the same bits before and after a skip. */
static void judge_still(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct kind *kind = row->data;
    for (int level = 1; level <= 2; level++) {
        ls_toy toy;
        if (!open_kind(&toy, level, kind, out)) {
            return;
        }
        ls_toy_poison bad = {0, level - 1, level == 1 ? INFINITY : NAN};
        ls_toy_iterate(&toy, 0, 0, 1u, ls_toy_clean);
        snapshot before = look(&toy, kind);
        bool skipped = ls_toy_iterate(&toy, 0, 0, 1u, bad);
        snapshot after = look(&toy, kind);
        if (!skipped || !equal(&before, &after)) {
            ls_verdict_fail(out, "O%d: the step was %s, and something %s", level,
                            skipped ? "skipped" : "taken",
                            equal(&before, &after) ? "stayed" : "changed");
        }
        ls_toy_iterate(&toy, 0, 0, 1u, ls_toy_clean);
        after = look(&toy, kind);
        if (equal(&before, &after)) {
            ls_verdict_fail(out, "O%d: the step behind the skip moved nothing", level);
        }
        ls_toy_close(&toy);
    }
    ls_verdict_pass(out, "weights, masters, moments and counts stand still at O1 and O2");
}

/* A run with skipped iterations ends as one in which they never were. */
static void judge_never_was(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct kind *kind = row->data;
    snapshot end[2];
    for (int with = 0; with < 2; with++) {
        ls_toy toy;
        if (!open_kind(&toy, 2, kind, out)) {
            return;
        }
        for (int i = 0; i < 4; i++) {
            ls_toy_poison bad = {0, i / 2, INFINITY};
            if (with != 0 && (i == 0 || i == 2)) {
                ls_toy_iterate(&toy, 0, 0, 1u, bad);
            }
            ls_toy_iterate(&toy, 0, 0, 1u, ls_toy_clean);
        }
        end[with] = look(&toy, kind);
        ls_toy_close(&toy);
    }
    if (!equal(&end[0], &end[1])) {
        ls_verdict_fail(out, "w0[0] is %.9g after 4 steps and 2 skips, %.9g after 4 steps",
                        (double)end[1].weight[0], (double)end[0].weight[0]);
    }
    ls_verdict_pass(out, "the skipped iterations left no trace");
}

/* Static powers of two and no scale give the same bits in f32 masters and weights; O2's masters are
 * O1's weights as long as no weight was rounded: here for one step. */
static void judge_levels(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct kind *kind = row->data;
    snapshot end[4];
    for (int level = 0; level < 4; level++) {
        ls_toy toy;
        if (!open_kind(&toy, level, kind, out)) {
            return;
        }
        ls_toy_iterate(&toy, 0, 0, 1u, ls_toy_clean);
        end[level] = look(&toy, kind);
        ls_toy_close(&toy);
    }
    for (int level = 1; level < 4; level++) {
        if (memcmp(end[level].value, end[0].value, 2 * sizeof(float)) != 0 ||
            memcmp(end[level].weight, end[0].weight, sizeof end[0].weight) != 0 ||
            memcmp(end[level].moment, end[0].moment, sizeof end[0].moment) != 0) {
            ls_verdict_fail(out, "w0[0], w1[0] are %.9g, %.9g at O%d, %.9g, %.9g at O0",
                            (double)end[level].weight[0], (double)end[level].weight[2], level,
                            (double)end[0].weight[0], (double)end[0].weight[2]);
        }
    }
    ls_verdict_pass(out, "one step: the same weights and moments at O0 to O3");
}

void ls_amp_optimizer_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (int k = 0; k < KINDS; k++) {
        ls_row still = {.requirement = "A5", .judge = judge_still, .data = &kinds[k]};
        ls_row never_was = {.requirement = "A5", .judge = judge_never_was, .data = &kinds[k]};
        ls_row levels = {.requirement = "A1", .judge = judge_levels, .data = &kinds[k]};
        ls_rows_format(list, settings, &still, "amp.skip.still.%s", kinds[k].name);
        ls_rows_format(list, settings, &never_was, "amp.skip.never-was.%s", kinds[k].name);
        ls_rows_format(list, settings, &levels, "amp.levels.%s", kinds[k].name);
    }
}
