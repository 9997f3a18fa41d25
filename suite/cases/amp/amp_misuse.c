/* What the amp library refuses, and amp disabled (apex/amp/frontend.py@initialize). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/text.h"
#include "amp_rows.h"
#include "toy_ideal.h"

/* Without amp: S is 1, an infinite gradient is nobody's business, training is plain SGD's. */
static void check_disabled(ls_verdict *out)
{
    ls_toy toy;
    ls_amp_options options = ls_toy_options(2, 1, 65536.0f);
    options.enabled = false;
    if (!ls_toy_open(&toy, &options, out)) {
        return;
    }
    ls_toy_ideal m = ls_toy_ideal_make(1, false, .25, .125, 0);
    ls_optimizer_config sgd = ls_toy_sgd(.125f);
    ls_toy_optimizer(&toy);
    ls_toy_make(&toy, 0, 1);
    ls_toy_own(&toy, 0, 0, &sgd, .25f);
    for (int step = 0; step < 3; step++) {
        ls_toy_iterate(&toy, 0, 0, 1u, ls_toy_clean);
        ls_toy_ideal_backward(&m, 1.0);
        ls_toy_ideal_step(&m);
        ls_toy_ideal_zero(&m);
    }
    ls_toy_ideal_expect(&toy, 0, &m, "amp disabled", out);
    ls_toy_expect_scale(&toy, 0, 1.0f, 0, "amp disabled", out);
    if (ls_toy_view(&toy, 0, 1).has_master) {
        ls_verdict_fail(out, "amp is disabled, yet there are masters");
    }
    ls_toy_close(&toy);
}

typedef ls_status misuse(ls_toy *toy);

static const int zero_list[] = {0}, one_list[] = {1}, twice_list[] = {0, 0};

static ls_status misuse_loss(ls_toy *toy)
{
    return ls_amp_begin(toy->amp, 2, zero_list, 1, false, &toy->state);
}

static ls_status misuse_loss_negative(ls_toy *toy)
{
    return ls_amp_begin(toy->amp, -1, zero_list, 1, false, &toy->state);
}

static ls_status misuse_optimizer(ls_toy *toy)
{
    return ls_amp_begin(toy->amp, 0, one_list, 1, false, &toy->state);
}

static ls_status misuse_twice(ls_toy *toy)
{
    return ls_amp_begin(toy->amp, 0, twice_list, 2, false, &toy->state);
}

static ls_status misuse_nested(ls_toy *toy)
{
    ls_toy_begin(toy, 0, zero_list, 1, false);
    return ls_amp_begin(toy->amp, 1, zero_list, 1, false, &toy->state);
}

static ls_status misuse_end(ls_toy *toy)
{
    return ls_amp_end(toy->amp);
}

static ls_status misuse_step_inside(ls_toy *toy)
{
    bool skipped;
    ls_toy_begin(toy, 0, zero_list, 1, false);
    return ls_amp_step(toy->amp, 0, &skipped);
}

static ls_status misuse_zero_inside(ls_toy *toy)
{
    ls_toy_begin(toy, 0, zero_list, 1, false);
    return ls_amp_zero_grad(toy->amp, 0);
}

static ls_status misuse_ready_outside(ls_toy *toy)
{
    return ls_amp_ready(toy->amp, 0, 0, 0);
}

static ls_status misuse_ready_unlisted(ls_toy *toy)
{
    ls_toy_begin(toy, 0, zero_list, 0, false);
    return ls_amp_ready(toy->amp, 0, 0, 0);
}

static ls_status add(ls_toy *toy, ls_tensor param, ls_tensor grad, ls_optimizer_kind kind)
{
    ls_amp_param one = {.name = "x", .param = param, .grad = grad};
    ls_optimizer_config config = {.kind = kind, .momentum = .5f, .beta1 = .5f, .beta2 = .5f};
    int group = -1;
    return ls_amp_add_group(toy->amp, 0, &config, .25f, &one, 1, &group);
}

static ls_status misuse_param_twice(ls_toy *toy)
{
    return add(toy, toy->model[0].weight[0], toy->model[0].grad[0], LS_OPTIMIZER_SGD);
}

static ls_status misuse_type(ls_toy *toy)
{
    ls_tensor odd = toy->model[1].weight[0];
    odd.dtype = LS_I32;
    return add(toy, odd, toy->model[1].grad[0], LS_OPTIMIZER_SGD);
}

static ls_status misuse_count(ls_toy *toy)
{
    ls_tensor odd = toy->model[1].grad[0];
    odd.count = 1;
    return add(toy, toy->model[1].weight[0], odd, LS_OPTIMIZER_SGD);
}

static ls_status misuse_moments(ls_toy *toy)
{
    return add(toy, toy->model[1].weight[0], toy->model[1].grad[0], LS_OPTIMIZER_ADAM);
}

static ls_status misuse_lamb_groups(ls_toy *toy)
{
    ls_amp_param one = {
        .name = "x", .param = toy->model[1].weight[0], .grad = toy->model[1].grad[0]};
    ls_optimizer_config config = {.kind = LS_OPTIMIZER_LAMB, .max_grad_norm = 1.0};
    int group = -1;
    ls_amp_options options = ls_toy_options(2, 1, 4.0f);
    ls_amp *amp = NULL;
    options.moment_count = 2;
    ls_toy_must(toy, ls_amp_create(&toy->device, &options, &amp), "ls_amp_create");
    ls_toy_must(toy, ls_amp_add_optimizer(amp, &group), "ls_amp_add_optimizer");
    ls_toy_must(toy, ls_amp_add_group(amp, 0, &config, .25f, &one, 1, &group), "ls_amp_add_group");
    one.param = toy->model[1].weight[1];
    one.grad = toy->model[1].grad[1];
    ls_status status = ls_amp_add_group(amp, 0, &config, .25f, &one, 1, &group);
    ls_amp_destroy(amp);
    return status;
}

/* A group's parameters that have been stepped unlike often have no norm in common. */
static ls_status misuse_lamb_steps(ls_toy *toy)
{
    ls_amp_param two[2];
    for (int i = 0; i < 2; i++) {
        two[i] = (ls_amp_param){
            .name = "x", .param = toy->model[1].weight[i], .grad = toy->model[1].grad[i]};
    }
    ls_optimizer_config config = {
        .kind = LS_OPTIMIZER_LAMB, .beta1 = .5, .beta2 = .5, .epsilon = 1, .max_grad_norm = 1.0};
    ls_amp_options options = ls_toy_options(2, 1, 4.0f);
    ls_amp *amp = NULL;
    ls_step_state *state;
    ls_status status = LS_OK;
    bool skipped = false;
    int number = -1;
    options.moment_count = 2;
    ls_toy_must(toy, ls_amp_create(&toy->device, &options, &amp), "ls_amp_create");
    ls_toy_must(toy, ls_amp_add_optimizer(amp, &number), "ls_amp_add_optimizer");
    ls_toy_must(toy, ls_amp_add_group(amp, 0, &config, .25f, two, 2, &number), "ls_amp_add_group");
    for (int step = 0; step < 2; step++) { /* the first for one of them */
        ls_toy_must(toy, ls_amp_begin(amp, 0, zero_list, 1, false, &state), "ls_amp_begin");
        for (int i = 0; i <= step; i++) {
            ls_toy_must(toy, ls_amp_ready(amp, 0, 0, i), "ls_amp_ready");
        }
        ls_toy_must(toy, ls_amp_end(amp), "ls_amp_end");
        status = ls_amp_step(amp, 0, &skipped);
        if (step == 0) {
            ls_toy_must(toy, status, "ls_amp_step");
            ls_toy_must(toy, ls_amp_zero_grad(amp, 0), "ls_amp_zero_grad");
        }
    }
    ls_amp_destroy(amp);
    return status;
}

static ls_status create_with(ls_toy *toy, float scale, int losses)
{
    ls_amp_options options = ls_toy_options(2, losses, scale);
    ls_amp *made = NULL;
    ls_status status = ls_amp_create(&toy->device, &options, &made);
    ls_amp_destroy(made);
    return status;
}

static ls_status misuse_scale_zero(ls_toy *toy)
{
    return create_with(toy, 0.0f, 1);
}

static ls_status misuse_scale_nan(ls_toy *toy)
{
    return create_with(toy, NAN, 1);
}

static ls_status misuse_scale_infinite(ls_toy *toy)
{
    return create_with(toy, INFINITY, 1);
}

static ls_status misuse_no_loss(ls_toy *toy)
{
    return create_with(toy, 4.0f, 0);
}

static const struct {
    const char *name;
    misuse *what;
    const char *names; /* must stand in the line */
} misuses[] = {
    {"loss-too-high", misuse_loss, "no loss 2"},
    {"loss-negative", misuse_loss_negative, "no loss -1"},
    {"optimizer-unknown", misuse_optimizer, "no optimizer 1"},
    {"optimizer-twice", misuse_twice, "twice"},
    {"nested-blocks", misuse_nested, "inside the block of loss 0"},
    {"end-without-begin", misuse_end, "without an open block"},
    {"step-in-block", misuse_step_inside, "inside the block of loss 0"},
    {"zero-in-block", misuse_zero_inside, "inside the block of loss 0"},
    {"gradient-outside", misuse_ready_outside, "m0.w0"},
    {"gradient-unlisted", misuse_ready_unlisted, "m0.w0"},
    {"parameter-twice", misuse_param_twice, "two parameter groups"},
    {"parameter-type", misuse_type, "f32, f16, bf16"},
    {"gradient-count", misuse_count, "its gradient 1"},
    {"moments", misuse_moments, "needs 2 moments"},
    {"lamb-groups", misuse_lamb_groups, "one group"},
    {"lamb-steps", misuse_lamb_steps, "one call cannot take the norm of both"},
    {"scale-zero", misuse_scale_zero, "positive and finite"},
    {"scale-nan", misuse_scale_nan, "positive and finite"},
    {"scale-infinite", misuse_scale_infinite, "positive and finite"},
    {"no-loss", misuse_no_loss, "1 and more"},
};

/* Refused with one line that names it, and training goes on as if nothing had been. */
static void judge_misuse(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    ls_toy toy;
    ls_amp_options options = ls_toy_options(2, 2, 4.0f);
    if (!ls_toy_open(&toy, &options, out)) {
        return;
    }
    ls_toy_ideal m = ls_toy_ideal_make(1, true, .25, .125, 0);
    ls_optimizer_config sgd = ls_toy_sgd(.125f);
    ls_toy_optimizer(&toy);
    ls_toy_make(&toy, 0, 1);
    ls_toy_make(&toy, 1, 2);
    ls_toy_own(&toy, 0, 0, &sgd, .25f);
    char text[400];
    ls_inside_ear ear = ls_inside_hear();
    ls_status status = misuses[row->number[0]].what(&toy);
    int lines = ls_inside_heard(&ear, text, (int)sizeof text);
    text[strcspn(text, "\n")] = '\0';
    if (status != LS_ERR_USAGE || lines != 1 ||
        strstr(text, misuses[row->number[0]].names) == NULL) {
        ls_verdict_fail(out, "expected a usage error of one line with \"%s\", got %s: %s",
                        misuses[row->number[0]].names, ls_status_name(status), text);
    }
    ls_amp_cancel(toy.amp);
    ls_toy_ideal_blocks(&toy, &m, 1, 1);
    ls_toy_step(&toy, 0);
    ls_toy_ideal_step(&m);
    ls_toy_ideal_expect(&toy, 0, &m, "an iteration after the refusal", out);
    ls_verdict_pass(out, "%s", text);
    ls_toy_close(&toy);
}

static const ls_toy_row rows[] = {
    {"A7", "disabled", check_disabled, "plain SGD, scale 1, no masters"},
};

static void judge_row(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    ls_toy_judge(&rows[row->number[0]], out);
}

void ls_amp_misuse_cases(ls_case_list *list)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_rows_add_inside(list, judge_row, rows[i].requirement, "amp.%s", rows[i].id)->number[0] =
            (int)i;
    }
    for (size_t i = 0; i < sizeof misuses / sizeof *misuses; i++) {
        ls_rows_add_inside(list, judge_misuse, "A7", "amp.misuse.%s", misuses[i].name)->number[0] =
            (int)i;
    }
}
