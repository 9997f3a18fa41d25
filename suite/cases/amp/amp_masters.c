/* Masters of the amp library (apex/amp/_process_optimizer.py). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/text.h"
#include "amp_rows.h"
#include "toy_ideal.h"

static bool open_level(ls_toy *toy, int level, ls_verdict *out)
{
    ls_amp_options options = ls_toy_options(level, 1, 4.0f);
    return ls_toy_open(toy, &options, out);
}

static bool open_one(ls_toy *toy, int level, float momentum, float lr, ls_verdict *out)
{
    if (!open_level(toy, level, out)) {
        return false;
    }
    ls_optimizer_config sgd = ls_toy_sgd(momentum);
    ls_toy_optimizer(toy);
    ls_toy_make(toy, 0, 1);
    ls_toy_own(toy, 0, 0, &sgd, lr);
    return true;
}

/* w = 1 and a constant update of -1e-4. */
static void small_updates(int level, const float expected[3], ls_verdict *out)
{
    static const int looks[3] = {2, 3, 10};
    static const float one[2] = {1.0f, 1.0f};
    ls_toy toy;
    if (!open_one(&toy, level, 0.0f, 1e-4f, out)) {
        return;
    }
    ls_inside_write(&toy.device, &toy.model[0].weight[1], one);
    ls_status status = ls_amp_weights_changed(toy.amp, 0);
    ls_toy_must(&toy, status, "ls_amp_weights_changed");
    for (int step = 1, look = 0; step <= 10; step++) {
        static const int only[] = {0};
        float weight[4];
        ls_toy_begin(&toy, 0, only, 1, false);
        ls_toy_give(&toy, 0, 1, one);
        status = ls_toy_end(&toy);
        ls_toy_must(&toy, status, "ls_toy_end");
        ls_toy_step(&toy, 0);
        ls_toy_zero(&toy, 0);
        ls_toy_weights(&toy, 0, weight);
        if (step == looks[look] && weight[2] != expected[look++]) {
            ls_verdict_fail(out, "after %d updates of -1e-4 the half weight is %.9g", step,
                            (double)weight[2]);
        }
    }
    ls_toy_close(&toy);
}

static void check_small_o2(ls_verdict *out)
{
    static const float golden[3] = {1.0f, 0.99951171875f, 0.9990234375f};
    small_updates(2, golden, out);
}

static void check_small_o3(ls_verdict *out)
{
    static const float golden[3] = {1.0f, 1.0f, 1.0f};
    small_updates(3, golden, out);
}

/* Masters are f32(half(p)) of the moment the group is added, bit for bit, subnormals and 65504 too.
 */
static void check_made(ls_verdict *out)
{
    static const float odd[4][2] = {
        {65504.0f, -65504.0f}, {5.9604645e-8f, -5.9604645e-8f}, {0.1f, 1.0009765f}, {0.0f, -0.0f}};
    for (int i = 0; i < 4; i++) {
        ls_toy toy;
        float copy[2], master[2];
        ls_optimizer_config sgd = ls_toy_sgd(0.0f);
        if (!open_level(&toy, 2, out)) {
            return;
        }
        ls_toy_optimizer(&toy);
        ls_toy_make(&toy, 0, 1);
        ls_inside_write(&toy.device, &toy.model[0].weight[1], odd[i]);
        ls_toy_own(&toy, 0, 0, &sgd, .25f);
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
}

/* After each step the half weight is the master, rounded once to nearest even. */
static void check_copies(ls_verdict *out)
{
    ls_toy toy;
    if (!open_one(&toy, 2, .9f, .013f, out)) {
        return;
    }
    for (int step = 0; step < 30; step++) {
        float master[2], weight[4];
        ls_toy_iterate(&toy, 0, 0, 1u, ls_toy_clean);
        ls_amp_view view = ls_toy_view(&toy, 0, 1);
        ls_inside_read(&toy.device, &view.value, master);
        ls_toy_weights(&toy, 0, weight);
        for (int i = 0; i < 2; i++) {
            if ((double)weight[2 + i] != ls_toy_ideal_half((double)master[i])) {
                ls_verdict_fail(out, "step %d: master %.9g, half weight %.9g", step + 1,
                                (double)master[i], (double)weight[2 + i]);
            }
        }
    }
    ls_toy_close(&toy);
}

/* master_params: all parameters, unscaled f32 gradients between block and step, none after it. */
static void check_view(ls_verdict *out)
{
    static const int only[] = {0};
    ls_toy toy;
    if (!open_one(&toy, 2, 0.0f, .25f, out)) {
        return;
    }
    if (ls_amp_param_count(toy.amp, 0) != 2 || ls_toy_view(&toy, 0, 1).has_grad) {
        ls_verdict_fail(out, "%d parameters, a gradient before any block: %s",
                        ls_amp_param_count(toy.amp, 0),
                        ls_toy_view(&toy, 0, 1).has_grad ? "yes" : "no");
    }
    ls_toy_begin(&toy, 0, only, 1, false);
    ls_toy_backward(&toy, 1u, 1.0f, ls_toy_clean);
    ls_status status = ls_toy_end(&toy);
    ls_toy_must(&toy, status, "ls_toy_end");
    float grad[2] = {0, 0}, model[2];
    ls_amp_view view = ls_toy_view(&toy, 0, 1);
    if (view.has_grad) {
        ls_inside_read(&toy.device, &view.grad, grad);
    }
    ls_inside_read(&toy.device, &toy.model[0].grad[1], model);
    if (view.grad.dtype != LS_F32 || grad[0] != 1.0f || grad[1] != 2.0f || model[0] != 4.0f) {
        ls_verdict_fail(out,
                        "the master's gradient is %g, %g, the model's %g; expected 1, 2, and 4 "
                        "(still scaled)",
                        (double)grad[0], (double)grad[1], (double)model[0]);
    }
    ls_toy_step(&toy, 0);
    if (ls_toy_view(&toy, 0, 1).has_grad || !ls_toy_view(&toy, 0, 0).has_grad) {
        ls_verdict_fail(out,
                        "after a step a master's gradient is gone and that of an f32 parameter "
                        "stays; here otherwise");
    }
    ls_toy_close(&toy);
}

/* Clipping the masters' gradients takes effect; clipping the model's does not. */
static void check_clip(ls_verdict *out)
{
    static const int only[] = {0};
    static const float expected[4] = {.5f, 1.25f, 1.875f, 2.75f}; /* half the gradient, lr .25 */
    ls_toy toy;
    if (!open_one(&toy, 2, 0.0f, .25f, out)) {
        return;
    }
    ls_toy_begin(&toy, 0, only, 1, false);
    ls_toy_backward(&toy, 1u, 1.0f, ls_toy_clean);
    ls_status status = ls_toy_end(&toy);
    for (int w = 0; w < 2 && status == LS_OK; w++) {
        status = toy.device.api->scale(toy.device.backend, toy.device.stream,
                                       ls_toy_view(&toy, 0, w).grad, w == 0 ? 1.0f : .5f);
    }
    ls_toy_must(&toy, status, "a call");
    status = toy.device.api->scale(toy.device.backend, toy.device.stream, toy.model[0].grad[1], 0);
    ls_toy_must(&toy, status, "scale");
    ls_toy_step(&toy, 0);
    ls_toy_expect(&toy, 0, expected, "w1's gradient halved before the step", out);
    ls_toy_close(&toy);
}

/* Weights that are loaded after some steps are where the next step starts. */
static void check_reload(ls_verdict *out)
{
    static const float loaded[2] = {8.0f, 16.0f};
    static const float start[2] = {1.0f, 2.0f};
    static const float expected[4] = {-1.0f, -2.0f, 7.75f, 15.5f};
    ls_toy toy;
    if (!open_one(&toy, 2, 0.0f, .25f, out)) {
        return;
    }
    ls_toy_iterate(&toy, 0, 0, 1u, ls_toy_clean);
    ls_inside_write(&toy.device, &toy.model[0].weight[0], start);
    ls_inside_write(&toy.device, &toy.model[0].weight[1], loaded);
    ls_status status = ls_amp_weights_changed(toy.amp, 0);
    ls_toy_must(&toy, status, "ls_amp_weights_changed");
    ls_toy_iterate(&toy, 0, 0, 1u, ls_toy_clean);
    ls_toy_expect(&toy, 0, expected, "a step behind loaded weights", out);
    ls_toy_close(&toy);
}

/* A parameter without a gradient keeps its weight, moments and count. */
static void check_untouched(ls_verdict *out)
{
    static const int only[] = {0};
    static const float grad[2] = {1.0f, 1.0f};
    static const float expected[4] = {1.0f, 2.0f, 1.75f, 2.75f};
    ls_toy toy;
    float moment[2];
    if (!open_one(&toy, 2, .5f, .25f, out)) {
        return;
    }
    ls_toy_begin(&toy, 0, only, 1, false);
    ls_toy_give(&toy, 0, 1, grad);
    ls_status status = ls_toy_end(&toy);
    ls_toy_must(&toy, status, "ls_toy_end");
    ls_toy_step(&toy, 0);
    ls_toy_expect(&toy, 0, expected, "only w1 had a gradient", out);
    ls_amp_view view = ls_toy_view(&toy, 0, 0);
    ls_inside_read(&toy.device, &view.moment[0], moment);
    if (moment[0] != 0.0f || *ls_toy_view(&toy, 0, 0).steps != 0) {
        ls_verdict_fail(out, "w0 had no gradient, but %d steps and momentum %g",
                        (int)*ls_toy_view(&toy, 0, 0).steps, (double)moment[0]);
    }
    /* and a second step without a backward moves no half parameter */
    ls_toy_step(&toy, 0);
    ls_toy_expect(&toy, 0, expected, "a second step without a backward", out);
    ls_toy_close(&toy);
}

static const ls_toy_row rows[] = {
    {"A6", "masters.small-updates.o2", check_small_o2, "1, 0.99951171875, 0.9990234375"},
    {"A6", "masters.small-updates.o3", check_small_o3, "without masters 1 stays 1"},
    {"A6", "masters.made", check_made, "masters are f32(half(p)), bit for bit"},
    {"A6", "masters.copies", check_copies, "30 steps: half weight = round(master)"},
    {"A6", "masters.view", check_view, "gradients are f32, unscaled, and gone after the step"},
    {"A6", "masters.clip", check_clip, "the masters' gradients are what is stepped on"},
    {"A6", "masters.reload", check_reload, "the step starts from the loaded weights"},
    {"A6", "masters.untouched", check_untouched, "no gradient, no step, no state"},
};

static void judge_row(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    ls_toy_judge(&rows[row->number[0]], out);
}

void ls_amp_master_cases(ls_case_list *list)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_rows_add_inside(list, judge_row, rows[i].requirement, "amp.%s", rows[i].id)->number[0] =
            (int)i;
    }
}
