/* Masters of the amp library (apex/amp/_process_optimizer.py). */
#include <math.h>
#include <string.h>

#include "amp_rows.h"
#include "toy_ideal.h"
#include "toy_script.h"

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
    ls_verdict_pass(out, "masters are f32(half(p)), bit for bit");
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

static const ls_row rows[] = {{"amp.masters.made", "A6", judge_made, NULL, NULL}};

void ls_amp_master_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    ls_toy_script_cases(settings, list, scripts, sizeof scripts / sizeof *scripts);
}
