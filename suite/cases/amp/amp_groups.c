/* Parameter groups and masters of the amp library. */
#include <math.h>
#include <string.h>

#include "toy.h"

static void zero_both(ls_toy *toy, bool by_model, int models)
{
    for (int m = 0; m < models && by_model; m++) {
        for (int w = 0; w < 2; w++) {
            ls_toy_must(toy, ls_amp_zero_param(toy->amp, 0, toy->model[m].group, w),
                        "ls_amp_zero_param");
        }
    }
    if (!by_model) {
        ls_toy_zero(toy, 0);
    }
}

/* Apex's test_add_param_group: m1 joins after m0's first step. */
static void add_group(int level, bool zero_before, bool accumulates, bool by_model, ls_verdict *out)
{
    ls_toy toy;
    ls_toy_setup setup = {
        .level = level, .models = 2, .unowned = 1, .rule = {.momentum = .125}, .lr = .25f};
    if (!ls_toy_open(&toy, &setup, out)) {
        return;
    }
    ls_toy_ideal m[2] = {ls_toy_ideal_make(1, level == 2, .25, .125, 0),
                         ls_toy_ideal_make(2, level == 2, .5, .125, 0)};
    int optimizer = 0, blocks_each = accumulates ? 2 : 1;
    ls_toy_ideal_blocks(&toy, m, 1, blocks_each);
    ls_toy_step(&toy, optimizer);
    ls_toy_ideal_step(&m[0]);
    for (int after = 0; after < 2; after++) { /* zeroed before the group comes, or behind it */
        if (zero_before == (after == 0)) {
            zero_both(&toy, by_model, 1);
            ls_toy_ideal_zero(&m[0]);
        }
        if (after == 0) {
            ls_toy_own(&toy, optimizer, 1, &setup.rule, .5f);
        }
    }
    for (int step = 0; step < 2; step++) {
        ls_toy_ideal_blocks(&toy, m, 2, blocks_each);
        ls_toy_step(&toy, optimizer);
        zero_both(&toy, by_model, 2);
        for (int i = 0; i < 2; i++) {
            ls_toy_ideal_step(&m[i]);
            ls_toy_ideal_zero(&m[i]);
        }
    }
    LS_TEXT(when, 96, "zeroed %s the group came%s%s", zero_before ? "before" : "after",
            accumulates ? ", two micro-steps" : "", by_model ? ", by the model" : "");
    ls_toy_ideal_expect(&toy, 0, &m[0], when);
    ls_toy_ideal_expect(&toy, 1, &m[1], when);
    ls_toy_close(&toy);
}

static void judge_added(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const int *level = row->data;
    (void)job;
    for (int i = 0; i < 8; i++) {
        add_group(*level, i % 2 != 0, i / 2 % 2 != 0, i / 4 != 0, out);
    }
    ls_verdict_pass(out, 8 * 2 * 4,
                    "a group that came later: 8 trainings as computed by hand, bit for bit");
}

/* Two groups with rates and decays of their own; one rate changes between two steps. */
static void judge_rates(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_toy toy;
    ls_toy_setup setup = {.level = 2, .models = 2, .unowned = 2, .rule = {.momentum = .5}};
    (void)row, (void)job;
    if (!ls_toy_open(&toy, &setup, out)) {
        return;
    }
    ls_toy_ideal m[2] = {ls_toy_ideal_make(1, true, .25, .5, .125),
                         ls_toy_ideal_make(2, true, .0625, .5, .5)};
    int optimizer = 0;
    for (int i = 0; i < 2; i++) {
        setup.rule.weight_decay = m[i].decay;
        ls_toy_own(&toy, optimizer, i, &setup.rule, (float)m[i].lr);
    }
    for (int step = 0; step < 4; step++) {
        if (step == 2) {
            m[1].lr = .25;
            ls_toy_must(&toy, ls_amp_set_lr(toy.amp, optimizer, toy.model[1].group, .25f),
                        "ls_amp_set_lr");
        }
        ls_toy_ideal_blocks(&toy, m, 2, 1);
        ls_toy_step(&toy, optimizer);
        zero_both(&toy, false, 2);
        for (int i = 0; i < 2; i++) {
            ls_toy_ideal_step(&m[i]);
            ls_toy_ideal_zero(&m[i]);
        }
    }
    ls_toy_ideal_expect(&toy, 0, &m[0], "rate .25, decay .125");
    ls_toy_ideal_expect(&toy, 1, &m[1], "rate .0625, then .25, decay .5");
    ls_verdict_pass(out, 2 * 4, "each group has its own rate and decay");
    ls_toy_close(&toy);
}

/* Models that Adam trains, the last ones unowned at first. */
#define ADAM(n, u)                                                                      \
    {                                                                                   \
        .level = 2, .models = (n), .unowned = (u), .moments = 2, .lr = .125f, .rule = { \
            .kind = LS_OPTIMIZER_ADAM,                                                  \
            .beta1 = .5f,                                                               \
            .beta2 = .75f,                                                              \
            .epsilon = .0625f                                                           \
        }                                                                               \
    }

/* Adam's bias correction counts each parameter's own steps: m1, which joins after two, goes on as
 * if it had been alone from its first. */
static void judge_own_steps(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const ls_toy_setup later = ADAM(2, 1), never = ADAM(2, 2);
    ls_toy both, alone;
    (void)row, (void)job;
    if (!ls_toy_open(&both, &later, out) || !ls_toy_open(&alone, &never, out)) {
        return;
    }
    ls_toy_own(&alone, 0, 1, &never.rule, never.lr);
    for (int step = 0; step < 4; step++) {
        if (step == 2) {
            ls_toy_own(&both, 0, 1, &later.rule, later.lr);
        }
        ls_toy_iterate(&both, 0, 0, step >= 2 ? 3u : 1u, ls_toy_clean);
        if (step >= 2) {
            ls_toy_iterate(&alone, 0, 0, 2u, ls_toy_clean);
        }
    }
    float weight[4];
    ls_toy_weights(&alone, 1, weight);
    ls_toy_expect(&both, 1, weight, "a group that joined after two steps");
    if (*ls_toy_view(&both, 0, 0).steps != 4 || *ls_toy_view(&both, 1, 0).steps != 2) {
        ls_verdict_fail(out, "m0 took %d steps and m1 %d, expected 4 and 2",
                        (int)*ls_toy_view(&both, 0, 0).steps, (int)*ls_toy_view(&both, 1, 0).steps);
    }
    ls_verdict_pass(out, 4 + 2, "a late group's bias correction starts at 1");
    ls_toy_close(&both);
    ls_toy_close(&alone);
}

/* In one group: w1 has its first gradient one step later than w0, and starts its own count then. */
static void judge_uneven_steps(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const ls_toy_setup setup = ADAM(1, 0);
    static const float early[2] = {1.0f, -2.0f}, late[2] = {3.0f, 0.5f};
    float weight[2][4];
    (void)row, (void)job;
    for (int with = 0; with < 2; with++) { /* w1's step with w0's two, and alone */
        ls_toy toy;
        if (!ls_toy_open(&toy, &setup, out)) {
            return;
        }
        for (int step = 1 - with; step < 2; step++) {
            static const int only[] = {0};
            ls_toy_begin(&toy, 0, only, 1, false);
            if (with != 0) {
                ls_toy_give(&toy, 0, 0, early);
            }
            if (step == 1) {
                ls_toy_give(&toy, 0, 1, late);
            }
            ls_toy_must(&toy, ls_amp_end(toy.amp), "ls_amp_end");
            ls_toy_step(&toy, 0);
            ls_toy_zero(&toy, 0);
        }
        ls_toy_weights(&toy, 0, weight[with]);
        ls_toy_close(&toy);
    }
    if (memcmp(&weight[0][2], &weight[1][2], 2 * sizeof(float)) != 0) {
        ls_verdict_fail(out, "w1's first step with w0's second: %.9g, alone %.9g",
                        (double)weight[1][2], (double)weight[0][2]);
    }
    ls_verdict_pass(out, 2, "each parameter counts its own steps");
}

static void judge_empty(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_toy toy;
    int group = -1, optimizer = 0;
    ls_toy_setup setup = {.level = 2, .models = 1, .unowned = 1};
    (void)row, (void)job;
    if (!ls_toy_open(&toy, &setup, out)) {
        return;
    }
    ls_toy_ideal m = ls_toy_ideal_make(1, true, .25, 0, 0);
    const ls_optimizer_config sgd = {.kind = LS_OPTIMIZER_SGD};
    ls_tensor nothing = ls_inside_tensor(&toy.device, LS_F16, 0);
    ls_amp_param empty = {.name = "empty", .param = nothing, .grad = nothing};
    ls_status none = ls_amp_add_group(toy.amp, optimizer, &sgd, .25f, NULL, 0, &group);
    ls_status zero = ls_amp_add_group(toy.amp, optimizer, &sgd, .25f, &empty, 1, &group);
    if (none != LS_OK || zero != LS_OK) {
        ls_verdict_fail(out, "a group of no parameters: %s; a parameter of no elements: %s",
                        ls_status_name(none), ls_status_name(zero));
    }
    ls_toy_own(&toy, optimizer, 0, &sgd, .25f);
    ls_toy_ideal_blocks(&toy, &m, 1, 1);
    ls_toy_step(&toy, optimizer);
    ls_toy_ideal_step(&m);
    ls_toy_ideal_expect(&toy, 0, &m, "behind a group of nothing");
    ls_verdict_pass(out, 2 + 4, "empty groups and tensors change nothing");
    ls_inside_free(&toy.device, &nothing);
    ls_toy_close(&toy);
}

/* ---- masters (apex/amp/_process_optimizer.py) ------------------------------------------------ */

/* Masters are f32(half(p)) of the moment the group is added, bit for bit, subnormals and 65504 too.
 */
static void judge_made(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    static const float odd[4][2] = {
        {65504.0f, -65504.0f}, {5.9604645e-8f, -5.9604645e-8f}, {0.1f, 1.0009765f}, {0.0f, -0.0f}};
    (void)row, (void)job;
    for (int i = 0; i < 4; i++) {
        ls_toy toy;
        ls_toy_setup setup = {.level = 2, .models = 1, .unowned = 1};
        float copy[2], master[2];
        if (!ls_toy_open(&toy, &setup, out)) {
            return;
        }
        ls_inside_write(&toy.device, &toy.model[0].weight[1], odd[i]);
        ls_toy_own(&toy, 0, 0, &setup.rule, .25f);
        ls_amp_view view = ls_toy_view(&toy, 0, 1);
        ls_inside_read(&toy.device, &view.value, master);
        ls_inside_read(&toy.device, &view.param, copy);
        if (!view.has_master || view.value.dtype != LS_F32 ||
            memcmp(master, copy, sizeof copy) != 0) {
            ls_verdict_fail(out, "the master of %.9g is %.9g (%s)", (double)copy[0],
                            (double)master[0], ls_dtype_name(view.value.dtype));
        }
        if (ls_toy_view(&toy, 0, 0).has_master) {
            ls_verdict_fail(out, "an f32 parameter has a master of its own");
        }
        ls_toy_close(&toy);
    }
    ls_verdict_pass(out, 4 * 2, "masters are f32(half(p)), bit for bit");
}

/* The half weight is the master, rounded once to nearest even. */
static ls_status is_rounded_master(ls_toy *toy)
{
    float master[2], weight[4];
    ls_amp_view view = ls_toy_view(toy, 0, 1);
    ls_inside_read(&toy->device, &view.value, master);
    ls_toy_weights(toy, 0, weight);
    for (int i = 0; i < 2; i++) {
        if ((double)weight[2 + i] != ls_toy_ideal_half((double)master[i])) {
            ls_verdict_fail(toy->verdict, "step %d: master %.9g, half weight %.9g",
                            (int)*view.steps, (double)master[i], (double)weight[2 + i]);
        }
    }
    return LS_OK;
}

static ls_status step_and_round(ls_toy *toy)
{
    ls_toy_iterate(toy, 0, 0, 1u, ls_toy_clean);
    return is_rounded_master(toy);
}

static ls_status has_no_gradient(ls_toy *toy)
{
    int count = ls_amp_param_count(toy->amp, 0);
    if (count != 2 || ls_toy_view(toy, 0, 1).has_grad) {
        ls_verdict_fail(toy->verdict, "%d parameters, a gradient before any block: %s", count,
                        ls_toy_view(toy, 0, 1).has_grad ? "yes" : "no");
    }
    return LS_OK;
}

static ls_status has_unscaled_gradient(ls_toy *toy)
{
    float grad[2] = {0, 0}, model[2];
    ls_amp_view view = ls_toy_view(toy, 0, 1);
    if (view.has_grad) {
        ls_inside_read(&toy->device, &view.grad, grad);
    }
    ls_inside_read(&toy->device, &toy->model[0].grad[1], model);
    if (view.grad.dtype != LS_F32 || grad[0] != 1.0f || grad[1] != 2.0f || model[0] != 4.0f) {
        ls_verdict_fail(toy->verdict,
                        "the master's gradient is %g, %g, the model's %g; expected 1, 2, and 4 "
                        "(still scaled)",
                        (double)grad[0], (double)grad[1], (double)model[0]);
    }
    return LS_OK;
}

static ls_status has_dropped_masters_gradient(ls_toy *toy)
{
    if (ls_toy_view(toy, 0, 1).has_grad || !ls_toy_view(toy, 0, 0).has_grad) {
        ls_verdict_fail(toy->verdict,
                        "a step drops a master's gradient and keeps that of an f32 parameter; here "
                        "otherwise");
    }
    return LS_OK;
}

/* Halves the gradient of w1's master, and sets the model's own to 0. */
static ls_status clip(ls_toy *toy)
{
    const ls_device *device = &toy->device;
    LS_TRY(device->api->scale(device->backend, device->stream, ls_toy_view(toy, 0, 1).grad, .5f));
    return device->api->scale(device->backend, device->stream, toy->model[0].grad[1], 0);
}

#define AT(o, rate)                             \
    {                                           \
        .level = (o), .models = 1, .lr = (rate) \
    }
#define UPDATE                    \
    {BLOCK(0, W1, 1)}, {STEP(0)}, \
    {                             \
        ZERO(0)                   \
    }
/* w1 = 1 and a constant update of -1e-4: its half value after 2, 3 and 10 of them. */
#define SMALL_UPDATES(two, three, ten)                                                            \
    OPS({WRITE(W1, 1, 1)}, {CHANGED}, UPDATE, UPDATE, {WEIGHTS(0, 1, 2, two, two)}, UPDATE,       \
        {WEIGHTS(0, 1, 2, three, three)}, UPDATE, UPDATE, UPDATE, UPDATE, UPDATE, UPDATE, UPDATE, \
        {WEIGHTS(0, 1, 2, ten, ten)})

static const ls_toy_script scripts[] = {
    {"masters.small-updates.o2", "A6", AT(2, 1e-4f), "1, 0.99951171875, 0.9990234375",
     SMALL_UPDATES(1, .99951171875f, .9990234375f)},
    {"masters.small-updates.o3", "A6", AT(3, 1e-4f), "without masters 1 stays 1",
     SMALL_UPDATES(1, 1, 1)},
    {"masters.copies",
     "A6",
     {.level = 2, .models = 1, .rule = {.momentum = .9f}, .lr = .013f},
     "30 steps: half weight = round(master)",
     OPS({CALL(step_and_round), TIMES(30)})},
    /* master_params: all parameters, unscaled f32 gradients between block and step, none after it
     */
    {"masters.view", "A6", AT(2, .25f), "gradients are f32, unscaled, and gone after the step",
     OPS({CALL(has_no_gradient)}, {ROUND(0, 1, 1)}, {CALL(has_unscaled_gradient)}, {STEP(0)},
         {CALL(has_dropped_masters_gradient)})},
    {"masters.clip", "A6", AT(2, .25f), "the masters' gradients are what is stepped on",
     OPS({ROUND(0, 1, 1)}, {CALL(clip)}, {STEP(0)}, {WEIGHTS(0, .5f, 1.25f, 1.875f, 2.75f)})},
    {"masters.reload", "A6", AT(2, .25f), "the step starts from the loaded weights",
     OPS({ROUND(0, 1, 1)}, {STEP(0)}, {ZERO(0)}, {WRITE(W0, 1, 2)}, {WRITE(W1, 8, 16)}, {CHANGED},
         {ROUND(0, 1, 1)}, {STEP(0)}, {WEIGHTS(0, -1, -2, 7.75f, 15.5f)})},
    /* the second step has no backward before it and moves no half parameter */
    {"masters.untouched",
     "A6",
     {.level = 2, .models = 1, .rule = {.momentum = .5}, .lr = .25f},
     "no gradient, no step, no state",
     OPS({BLOCK(0, W1, 1)}, {STEP(0)}, {WEIGHTS(0, 1, 2, 1.75f, 2.75f)}, {STATE(W0, 0, 0)},
         {STEP(0)}, {WEIGHTS(0, 1, 2, 1.75f, 2.75f)})},
};

static const ls_row rows[] = {
    {"amp.group.added.o0", "A2", judge_added, NULL, &(const int){0}},
    {"amp.group.added.o1", "A2", judge_added, NULL, &(const int){1}},
    {"amp.group.added.o2", "A2", judge_added, NULL, &(const int){2}},
    {"amp.group.added.o3", "A2", judge_added, NULL, &(const int){3}},
    {"amp.group.rates", "A2", judge_rates, NULL, NULL},
    {"amp.group.own-steps", "A2", judge_own_steps, NULL, NULL},
    {"amp.group.uneven-steps", "A2", judge_uneven_steps, NULL, NULL},
    {"amp.group.empty", "A2", judge_empty, NULL, NULL},
    {"amp.masters.made", "A6", judge_made, NULL, NULL},
};

void ls_amp_groups_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    ls_toy_script_cases(settings, list, scripts, sizeof scripts / sizeof *scripts);
}
