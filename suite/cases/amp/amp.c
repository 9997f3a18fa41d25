/* The amp library with several models, optimizers and losses, in the scenarios of
 * Apex's tests/L0/run_amp/test_multiple_models_optimizers_losses.py: exact numbers, which steps are
 * skipped, every loss's scale. */
#include <math.h>
#include <string.h>

#include "toy.h"

/* Who owns what, and which optimizers each loss's block lists. */
typedef struct scenario {
    const char *name;
    int models, optimizers;
    int owner[LS_TOY_MODELS];
    float lr[LS_TOY_MODELS];
    float momentum[2]; /* of each optimizer */
    unsigned loss[2];  /* models of each loss */
    int block_count[2], block[2][2];
} scenario;

static const scenario scenarios[] = {
    {"2m2l1o", 2, 1, {0, 0}, {.25f, .5f}, {.125f}, {1, 2}, {1, 1}, {{0}, {0}}},
    {"3m2l1o", 3, 1, {0, 0, 0}, {.25f, .5f, .125f}, {.125f}, {1 | 4, 2 | 4}, {1, 1}, {{0}, {0}}},
    {"2m2l2o", 2, 2, {0, 1}, {.25f, .5f}, {.125f, .25f}, {1, 2}, {1, 1}, {{0}, {1}}},
    {"3m2l2o",
     3,
     2,
     {0, 0, 1},
     {.25f, 1.0f, .5f},
     {.5f, .25f},
     {1 | 2, 4 | 2},
     {1, 2},
     {{0}, {1, 0}}},
};

/* Worked out in FP64, exact in fp16: w0[0], w0[1], w1[0], w1[1] of each model. `bad` is the loss
 * whose gradients overflow once (-1: none, two iterations; else three). */
static const float two_m0[] = {0.0f, .53125f, 1.59375f, 2.125f};
static const float two_m1[] = {-.6875f, -.5f, 1.625f, 1.8125f};
static const float two_m2[] = {1.0625f, 1.59375f, 2.65625f, 3.1875f};
static const float own_m1[] = {-.875f, -.75f, 1.5f, 1.625f};
static const float own_m1_more[] = {-1.96875f, -2.0f, 1.8125f, 1.78125f};
static const float own_m0_more[] = {-.4609375f, -.08984375f, 1.57421875f, 1.9453125f};
static const float all_m0[] = {-.1875f, .25f, 1.5f, 1.9375f};
static const float all_m1[] = {-5.0f, -5.0f, 5.0f, 5.0f};
static const float all_m2[] = {-.75f, -.625f, 1.625f, 1.75f};
static const float all_m2_more[] = {-2.0f, -2.03125f, 1.78125f, 1.75f};

typedef struct golden {
    int scenario, bad;
    const float *weight[LS_TOY_MODELS];
} golden;

static const golden goldens[] = {
    {0, -1, {two_m0, two_m1}},
    {0, 0, {two_m0, two_m1}},
    {0, 1, {two_m0, two_m1}},
    {1, -1, {two_m0, two_m1, two_m2}},
    {1, 0, {two_m0, two_m1, two_m2}},
    {1, 1, {two_m0, two_m1, two_m2}},
    {2, -1, {two_m0, own_m1}},
    {2, 0, {two_m0, own_m1_more}},
    {2, 1, {own_m0_more, own_m1}},
    {3, -1, {all_m0, all_m1, all_m2}},
    {3, 0, {all_m0, all_m1, all_m2_more}},
    {3, 1, {all_m0, all_m1, all_m2}},
};

/* One training of a row. */
typedef struct variant {
    const scenario *s;
    int level, scalers;
    bool by_model; /* how gradients are zeroed: parameter by parameter, or by the optimizer */
    int bad_loss, bad_iteration;
    ls_toy_poison poison;
} variant;

static void zero(ls_toy *toy, const variant *v)
{
    for (int m = 0; m < v->s->models && v->by_model; m++) {
        for (int w = 0; w < 2; w++) {
            ls_toy_must(
                toy, ls_amp_zero_param(toy->amp, toy->model[m].optimizer, toy->model[m].group, w),
                "ls_amp_zero_param");
        }
    }
    for (int o = 0; o < v->s->optimizers && !v->by_model; o++) {
        ls_toy_zero(toy, o);
    }
}

static void iterate(ls_toy *toy, const variant *v, int iteration, int skipped[2])
{
    zero(toy, v);
    for (int loss = 0; loss < 2; loss++) {
        bool bad = loss == v->bad_loss && iteration == v->bad_iteration;
        ls_toy_begin(toy, v->scalers == 2 ? loss : 0, v->s->block[loss], v->s->block_count[loss],
                     false);
        ls_toy_backward(toy, v->s->loss[loss], bad ? v->poison : ls_toy_clean);
        ls_toy_must(toy, ls_amp_end(toy->amp), "ls_amp_end");
    }
    for (int o = 0; o < v->s->optimizers; o++) {
        skipped[o] += ls_toy_step(toy, o);
    }
}

/* How often each optimizer must skip: as its blocks say. */
static void check_skips(const variant *v, const int skipped[2], ls_verdict *out)
{
    for (int o = 0; o < v->s->optimizers; o++) {
        int expected = 0;
        for (int i = 0; v->bad_loss >= 0 && i < v->s->block_count[v->bad_loss]; i++) {
            expected += v->s->block[v->bad_loss][i] == o;
        }
        if (skipped[o] != expected) {
            ls_verdict_fail(out, "optimizer %d skipped %d steps, expected %d", o, skipped[o],
                            expected);
        }
    }
}

/* Scales start at 4 and 16; an overflow halves its own and restarts its count of clean blocks. */
static void check_scales(ls_toy *toy, const variant *v, int iterations)
{
    for (int k = 0; k < v->scalers; k++) {
        bool hit = v->bad_loss >= 0 && (v->scalers == 1 || v->bad_loss == k);
        int blocks = v->scalers == 1 ? 2 : 1; /* of one iteration */
        int after = blocks * (iterations - v->bad_iteration - 1);
        after += v->scalers == 1 ? 1 - v->bad_loss : 0;
        float start = k == 0 ? 4.0f : 16.0f;
        ls_toy_expect_scale(toy, k, hit ? start / 2 : start, hit ? after : blocks * iterations,
                            "at the end");
    }
}

static void train(const variant *v, const golden *g, ls_verdict *out)
{
    ls_toy toy;
    if (!ls_toy_open(&toy, &(ls_toy_setup){.level = v->level, .losses = v->scalers}, out)) {
        return;
    }
    int iterations = v->bad_loss >= 0 ? 3 : 2, skipped[2] = {0, 0};
    for (int o = 0; o < v->s->optimizers; o++) {
        ls_toy_optimizer(&toy);
    }
    for (int m = 0; m < v->s->models; m++) {
        ls_optimizer_config sgd = {.momentum = (double)v->s->momentum[v->s->owner[m]]};
        ls_toy_make(&toy, m, (float)m + 1.0f);
        ls_toy_own(&toy, v->s->owner[m], m, &sgd, v->s->lr[m]);
    }
    if (v->scalers == 2) {
        ls_toy_must(&toy,
                    ls_toy_load(&toy, "{\"loss_scaler1\":{\"loss_scale\":16,\"unskipped\":0}}"),
                    "ls_amp_load_state_dict");
    }
    for (int i = 0; i < iterations; i++) {
        iterate(&toy, v, i, skipped);
    }
    LS_TEXT(when, 128, "%d scales, overflow in m%d.w%d at iteration %d, zeroed by %s", v->scalers,
            v->poison.model, v->poison.weight, v->bad_iteration,
            v->by_model ? "the model" : "the optimizer");
    for (int m = 0; m < v->s->models; m++) {
        ls_toy_expect(&toy, m, g->weight[m], when);
    }
    check_skips(v, skipped, out);
    check_scales(&toy, v, iterations);
    ls_toy_close(&toy);
}

/* Every model of the bad loss, either weight, either iteration, inf and NaN. */
static int train_overflows(variant *v, const golden *g, ls_verdict *out)
{
    int runs = 0;
    for (int cell = 0; cell < LS_TOY_MODELS * 2 * 2 * 2; cell++) {
        int model = cell / 8;
        v->poison = (ls_toy_poison){model, cell / 4 % 2, cell % 2 != 0 ? INFINITY : NAN};
        v->bad_iteration = cell / 2 % 2;
        if ((v->s->loss[v->bad_loss] >> model & 1u) != 0) {
            train(v, g, out);
            runs++;
        }
    }
    return runs;
}

/* Data of a case. */
struct run {
    const golden *golden;
    int level;
};

static void judge_golden(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const struct run *run = row->data;
    const golden *g = run->golden;
    (void)job;
    int runs = 0;
    for (int i = 0; i < 4; i++) {
        variant v = {.s = &scenarios[g->scenario],
                     .level = run->level,
                     .scalers = 1 + i % 2,
                     .by_model = i / 2 != 0,
                     .bad_loss = g->bad,
                     .poison = ls_toy_clean};
        if (g->bad >= 0) {
            runs += train_overflows(&v, g, out);
        } else {
            train(&v, g, out);
            runs++;
        }
    }
    ls_verdict_pass(out, (int64_t)runs * scenarios[g->scenario].models * 4,
                    "%d trainings ended on the golden weights, bit for bit", runs);
}

/* ---- every optimizer at every level ---------------------------------------------------------- */

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
    snapshot s = {0};
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
    ls_verdict_pass(out, 4, "weights, masters, moments and counts stand still at O1 and O2");
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
    ls_verdict_pass(out, 1, "the skipped iterations left no trace");
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
    ls_verdict_pass(out, 3, "one step: the same weights and moments at O0 to O3");
}

void ls_amp_cases(const ls_case_settings *settings, ls_case_list *list)
{
    static const char *const names[] = {"clean", "loss0", "loss1"};
    for (size_t i = 0; i < sizeof goldens / sizeof *goldens; i++) {
        for (int level = 0; level < 4; level++) {
            if (goldens[i].bad >= 0 && (level == 0 || level == 3)) {
                continue; /* static: nothing is skipped */
            }
            struct run *run = ls_rows_memory(list, sizeof *run);
            *run = (struct run){&goldens[i], level};
            ls_row row = {.requirement = "A1", .judge = judge_golden, .data = run};
            ls_rows_format(list, settings, &row, "amp.%s.%s.o%d",
                           scenarios[goldens[i].scenario].name, names[goldens[i].bad + 1], level);
        }
    }
    for (int k = 0; k < KINDS; k++) {
        ls_row still = {.requirement = "A5", .judge = judge_still, .data = &kinds[k]};
        ls_row never_was = {.requirement = "A5", .judge = judge_never_was, .data = &kinds[k]};
        ls_row levels = {.requirement = "A1", .judge = judge_levels, .data = &kinds[k]};
        ls_rows_format(list, settings, &still, "amp.skip.still.%s", kinds[k].name);
        ls_rows_format(list, settings, &never_was, "amp.skip.never-was.%s", kinds[k].name);
        ls_rows_format(list, settings, &levels, "amp.levels.%s", kinds[k].name);
    }
}
