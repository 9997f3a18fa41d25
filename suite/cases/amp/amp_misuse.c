/* What the amp library refuses, and amp disabled (apex/amp/frontend.py@initialize). */
#include <math.h>

#include "amp_rows.h"
#include "toy_ideal.h"
#include "toy_script.h"

/* Without amp: S is 1, no gradient is checked, training is plain SGD's. */
static void judge_disabled(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    ls_toy toy;
    ls_toy_setup setup = {.level = 2,
                          .scale = 65536,
                          .disabled = true,
                          .models = 1,
                          .rule = {.momentum = .125},
                          .lr = .25f};
    (void)row, (void)job;
    if (!ls_toy_open(&toy, &setup, out)) {
        return;
    }
    ls_toy_ideal m = ls_toy_ideal_make(1, false, .25, .125, 0);
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
    ls_verdict_pass(out, "plain SGD, scale 1, no masters");
    ls_toy_close(&toy);
}

static const int only[] = {0};

static ls_status optimizer_twice(ls_toy *toy)
{
    static const int twice[] = {0, 0};
    return ls_amp_begin(toy->amp, 0, twice, 2, false, &toy->state);
}

static ls_status ready(ls_toy *toy)
{
    return ls_amp_ready(toy->amp, 0, 0, 0);
}

static ls_status add(ls_toy *toy, ls_tensor param, ls_tensor grad, ls_optimizer_kind kind)
{
    ls_amp_param one = {.name = "x", .param = param, .grad = grad};
    ls_optimizer_config config = {.kind = kind, .momentum = .5f, .beta1 = .5f, .beta2 = .5f};
    int group = -1;
    return ls_amp_add_group(toy->amp, 0, &config, .25f, &one, 1, &group);
}

static ls_status param_twice(ls_toy *toy)
{
    return add(toy, toy->model[0].weight[0], toy->model[0].grad[0], LS_OPTIMIZER_SGD);
}

static ls_status type(ls_toy *toy)
{
    ls_tensor odd = toy->model[1].weight[0];
    odd.dtype = LS_I32;
    return add(toy, odd, toy->model[1].grad[0], LS_OPTIMIZER_SGD);
}

static ls_status count(ls_toy *toy)
{
    ls_tensor odd = toy->model[1].grad[0];
    odd.count = 1;
    return add(toy, toy->model[1].weight[0], odd, LS_OPTIMIZER_SGD);
}

static ls_status moments(ls_toy *toy)
{
    return add(toy, toy->model[1].weight[0], toy->model[1].grad[0], LS_OPTIMIZER_ADAM);
}

static ls_status lamb_groups(ls_toy *toy)
{
    ls_amp_param one = {
        .name = "x", .param = toy->model[1].weight[0], .grad = toy->model[1].grad[0]};
    ls_optimizer_config config = {.kind = LS_OPTIMIZER_LAMB, .max_grad_norm = 1.0};
    int group = -1;
    ls_amp_options options = ls_toy_options(&(ls_toy_setup){.level = 2, .moments = 2});
    ls_amp *amp = NULL;
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
static ls_status lamb_steps(ls_toy *toy)
{
    ls_amp_param two[2];
    for (int i = 0; i < 2; i++) {
        two[i] = (ls_amp_param){
            .name = "x", .param = toy->model[1].weight[i], .grad = toy->model[1].grad[i]};
    }
    ls_optimizer_config config = {
        .kind = LS_OPTIMIZER_LAMB, .beta1 = .5, .beta2 = .5, .epsilon = 1, .max_grad_norm = 1.0};
    ls_amp_options options = ls_toy_options(&(ls_toy_setup){.level = 2, .moments = 2});
    ls_amp *amp = NULL;
    ls_step_state *state;
    ls_status status = LS_OK;
    bool skipped = false;
    int number = -1;
    ls_toy_must(toy, ls_amp_create(&toy->device, &options, &amp), "ls_amp_create");
    ls_toy_must(toy, ls_amp_add_optimizer(amp, &number), "ls_amp_add_optimizer");
    ls_toy_must(toy, ls_amp_add_group(amp, 0, &config, .25f, two, 2, &number), "ls_amp_add_group");
    for (int step = 0; step < 2; step++) { /* the first for one of them */
        ls_toy_must(toy, ls_amp_begin(amp, 0, only, 1, false, &state), "ls_amp_begin");
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
    ls_amp_options options = ls_toy_options(&(ls_toy_setup){.level = 2});
    ls_amp *made = NULL;
    options.initial_scale = scale;
    options.loss_count = losses;
    ls_status status = ls_amp_create(&toy->device, &options, &made);
    ls_amp_destroy(made);
    return status;
}

static ls_status scale_zero(ls_toy *toy)
{
    return create_with(toy, 0.0f, 1);
}

static ls_status scale_nan(ls_toy *toy)
{
    return create_with(toy, NAN, 1);
}

static ls_status scale_infinite(ls_toy *toy)
{
    return create_with(toy, INFINITY, 1);
}

static ls_status no_loss(ls_toy *toy)
{
    return create_with(toy, 4.0f, 0);
}

/* m0 in optimizer 0, m1 in none. Whatever is refused, training goes on as if it had not been. */
#define MISUSE(name, ...)                                           \
    {                                                               \
        "misuse." name, "A7",                                       \
            {.level = 2,                                            \
             .losses = 2,                                           \
             .models = 2,                                           \
             .unowned = 1,                                          \
             .rule = {.momentum = .125},                            \
             .lr = .25f},                                           \
            "refused in one line that names it, without a trace",   \
            OPS(__VA_ARGS__, {CANCEL}, {ROUND(0, 1, 1)}, {STEP(0)}, \
                {WEIGHTS(0, .5f, 1.25f, 1.75f, 2.5f)})              \
    }
#define CALLED(name, function, words) MISUSE(name, {CALL(function), REFUSED(words)})

static const ls_toy_script scripts[] = {
    MISUSE("loss-too-high", {BEGIN(2, 1), REFUSED("no loss 2")}),
    MISUSE("loss-negative", {BEGIN(-1, 1), REFUSED("no loss -1")}),
    MISUSE("optimizer-unknown", {BEGIN(0, 2), REFUSED("no optimizer 1")}),
    CALLED("optimizer-twice", optimizer_twice, "twice"),
    MISUSE("nested-blocks", {BEGIN(0, 1)}, {BEGIN(1, 1), REFUSED("inside the block of loss 0")}),
    MISUSE("end-without-begin", {END_BLOCK, REFUSED("without an open block")}),
    MISUSE("step-in-block", {BEGIN(0, 1)}, {STEP(0), REFUSED("inside the block of loss 0")}),
    MISUSE("zero-in-block", {BEGIN(0, 1)}, {ZERO(0), REFUSED("inside the block of loss 0")}),
    CALLED("gradient-outside", ready, "m0.w0"),
    MISUSE("gradient-unlisted", {BEGIN(0, 0)}, {CALL(ready), REFUSED("m0.w0")}),
    CALLED("parameter-twice", param_twice, "two parameter groups"),
    CALLED("parameter-type", type, "f32, f16, bf16"),
    CALLED("gradient-count", count, "its gradient 1"),
    CALLED("moments", moments, "needs 2 moments"),
    CALLED("lamb-groups", lamb_groups, "one group"),
    CALLED("lamb-steps", lamb_steps, "one call cannot take the norm of both"),
    CALLED("scale-zero", scale_zero, "positive and finite"),
    CALLED("scale-nan", scale_nan, "positive and finite"),
    CALLED("scale-infinite", scale_infinite, "positive and finite"),
    CALLED("no-loss", no_loss, "1 and more"),
};

static const ls_row rows[] = {{"amp.disabled", "A7", judge_disabled, NULL, NULL}};

void ls_amp_misuse_cases(const ls_case_settings *settings, ls_case_list *list)
{
    LS_ROWS(list, settings, rows);
    ls_toy_script_cases(settings, list, scripts, sizeof scripts / sizeof *scripts);
}
