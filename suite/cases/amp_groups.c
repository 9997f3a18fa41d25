/* Parameter groups and masters of the amp library, and what it refuses. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../harness/text.h"
#include "../../reference/oracle/bits.h"
#include "amp_rows.h"
#include "toy.h"

/* ---- a model of our own
 * -------------------------------------------------------------------------- */

/* SGD with momentum on one toy model, every operation rounded to f32 as torch's would be, and the
 * half weight rounded on the bits of the double (facts/apex.md 4.3). */
typedef struct ideal {
    double value[2][2], copy[2][2], buffer[2][2], total[2][2];
    bool masters, started;
    double lr, momentum, decay;
} ideal;

static double f32(double value)
{
    return ls_bits_round(LS_BITS_F32, value);
}

static double f16(double value)
{
    return ls_bits_round(LS_BITS_F16, value);
}

static ideal ideal_make(double u, bool masters, double lr, double momentum, double decay)
{
    ideal m = {.masters = masters, .lr = lr, .momentum = momentum, .decay = decay};
    for (int w = 0; w < 2; w++) {
        for (int i = 0; i < 2; i++) {
            m.value[w][i] = m.copy[w][i] = u + w + i;
        }
    }
    return m;
}

static void ideal_backward(ideal *m, double scale)
{
    for (int i = 0; i < 2; i++) {
        m->total[0][i] = f32(m->total[0][i] + f32(m->copy[1][i] * scale) / scale);
        m->total[1][i] = f32(m->total[1][i] + f16(m->copy[0][i] * scale) / scale);
    }
}

static void ideal_step(ideal *m)
{
    for (int w = 0; w < 2; w++) {
        for (int i = 0; i < 2; i++) {
            double d = f32(m->total[w][i] + f32(m->decay * m->value[w][i]));
            m->buffer[w][i] = m->started ? f32(f32(m->momentum * m->buffer[w][i]) + d) : d;
            m->value[w][i] = f32(m->value[w][i] - f32(m->lr * m->buffer[w][i]));
            m->copy[w][i] = w == 1 ? f16(m->value[w][i]) : m->value[w][i];
            if (w == 1 && !m->masters) {
                m->value[w][i] = m->copy[w][i];
            }
        }
    }
    m->started = true;
}

static void ideal_zero(ideal *m)
{
    memset(m->total, 0, sizeof m->total);
}

static void expect(ls_toy *toy, int model, const ideal *m, const char *when, ls_verdict *out)
{
    float weight[4];
    for (int i = 0; i < 4; i++) {
        weight[i] = (float)m->copy[i / 2][i % 2];
    }
    ls_toy_expect(toy, model, weight, when, out);
}

/* ---- groups
 * -------------------------------------------------------------------------------------- */

static bool open_level(ls_toy *toy, int level, ls_verdict *out)
{
    ls_amp_options options = ls_toy_options(level, 1, 4.0f);
    return ls_toy_open(toy, &options, out);
}

static void zero_both(ls_toy *toy, bool by_model, int models)
{
    for (int m = 0; m < models && by_model; m++) {
        for (int w = 0; w < 2; w++) {
            ls_status status = ls_amp_zero_param(toy->amp, 0, toy->model[m].group, w);
            ls_toy_must(toy, status, "ls_amp_zero_param");
        }
    }
    if (!by_model) {
        ls_toy_zero(toy, 0);
    }
}

static void blocks(ls_toy *toy, ideal *m, int models, int count)
{
    static const int only[] = {0};
    for (int k = 0; k < count; k++) {
        ls_toy_begin(toy, 0, only, 1, false);
        ls_toy_backward(toy, models == 2 ? 3u : 1u, 1.0f, ls_toy_clean);
        ls_status status = ls_toy_end(toy);
        ls_toy_must(toy, status, "ls_toy_end");
        for (int i = 0; i < models; i++) {
            ideal_backward(&m[i], 4.0);
        }
    }
}

/* Apex's test_add_param_group: m1 joins after m0's first step. */
static void add_group(int level, bool zero_before, bool accumulates, bool by_model, ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, level, out)) {
        return;
    }
    ideal m[2] = {ideal_make(1, level == 2, .25, .125, 0), ideal_make(2, level == 2, .5, .125, 0)};
    ls_optimizer_config sgd = ls_toy_sgd(.125f);
    int optimizer = ls_toy_optimizer(&toy), blocks_each = accumulates ? 2 : 1;
    ls_toy_make(&toy, 0, 1);
    ls_toy_make(&toy, 1, 2);
    ls_toy_own(&toy, optimizer, 0, &sgd, .25f);
    blocks(&toy, m, 1, blocks_each);
    ls_toy_step(&toy, optimizer);
    ideal_step(&m[0]);
    for (int after = 0; after < 2; after++) { /* zeroed before the group comes, or behind it */
        if (zero_before == (after == 0)) {
            zero_both(&toy, by_model, 1);
            ideal_zero(&m[0]);
        }
        if (after == 0) {
            ls_toy_own(&toy, optimizer, 1, &sgd, .5f);
        }
    }
    for (int step = 0; step < 2; step++) {
        blocks(&toy, m, 2, blocks_each);
        ls_toy_step(&toy, optimizer);
        zero_both(&toy, by_model, 2);
        for (int i = 0; i < 2; i++) {
            ideal_step(&m[i]);
            ideal_zero(&m[i]);
        }
    }
    char when[96];
    ls_text_put(when, sizeof when, "zeroed %s the group came%s%s", zero_before ? "before" : "after",
                accumulates ? ", two micro-steps" : "", by_model ? ", by the model" : "");
    expect(&toy, 0, &m[0], when, out);
    expect(&toy, 1, &m[1], when, out);
    ls_toy_close(&toy);
}

static void judge_added(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    for (int i = 0; i < 8; i++) {
        add_group(row->number[0], i % 2 != 0, i / 2 % 2 != 0, i / 4 != 0, out);
    }
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence,
                    "a group that came later: 8 trainings as computed by hand, bit for bit");
    }
}

/* Two groups with rates and decays of their own; one rate changes between two steps. */
static void check_rates(ls_verdict *out)
{
    ls_toy toy;
    if (!open_level(&toy, 2, out)) {
        return;
    }
    ideal m[2] = {ideal_make(1, true, .25, .5, .125), ideal_make(2, true, .0625, .5, .5)};
    int optimizer = ls_toy_optimizer(&toy);
    for (int i = 0; i < 2; i++) {
        ls_optimizer_config sgd = ls_toy_sgd(.5f);
        sgd.weight_decay = (float)m[i].decay;
        ls_toy_make(&toy, i, (float)i + 1);
        ls_toy_own(&toy, optimizer, i, &sgd, (float)m[i].lr);
    }
    for (int step = 0; step < 4; step++) {
        if (step == 2) {
            m[1].lr = .25;
            ls_status status = ls_amp_set_lr(toy.amp, optimizer, toy.model[1].group, .25f);
            ls_toy_must(&toy, status, "ls_amp_set_lr");
        }
        blocks(&toy, m, 2, 1);
        ls_toy_step(&toy, optimizer);
        zero_both(&toy, false, 2);
        for (int i = 0; i < 2; i++) {
            ideal_step(&m[i]);
            ideal_zero(&m[i]);
        }
    }
    expect(&toy, 0, &m[0], "rate .25, decay .125", out);
    expect(&toy, 1, &m[1], "rate .0625, then .25, decay .5", out);
    ls_toy_close(&toy);
}

static ls_optimizer_config adam(void)
{
    return (ls_optimizer_config){
        .kind = LS_OPTIMIZER_ADAM, .beta1 = .5f, .beta2 = .75f, .epsilon = .0625f};
}

static bool open_adam(ls_toy *toy, ls_verdict *out)
{
    ls_amp_options options = ls_toy_options(2, 1, 4.0f);
    options.moment_count = 2;
    return ls_toy_open(toy, &options, out);
}

/* Adam's bias correction counts each parameter's own steps: m1, which joins after two, goes on as
 * if it had been alone from its first. */
static void check_own_steps(ls_verdict *out)
{
    ls_toy both, alone;
    ls_optimizer_config rule = adam();
    if (!open_adam(&both, out)) {
        return;
    }
    if (!open_adam(&alone, out)) {
        ls_toy_close(&both);
        return;
    }
    ls_toy_optimizer(&both);
    ls_toy_optimizer(&alone);
    ls_toy_make(&both, 0, 1);
    ls_toy_make(&both, 1, 2);
    ls_toy_make(&alone, 1, 2);
    ls_toy_own(&both, 0, 0, &rule, .125f);
    ls_toy_own(&alone, 0, 1, &rule, .125f);
    for (int step = 0; step < 4; step++) {
        if (step == 2) {
            ls_toy_own(&both, 0, 1, &rule, .125f);
        }
        ls_toy_iterate(&both, 0, 0, step >= 2 ? 3u : 1u, ls_toy_clean);
        if (step >= 2) {
            ls_toy_iterate(&alone, 0, 0, 2u, ls_toy_clean);
        }
    }
    float weight[4];
    ls_toy_weights(&alone, 1, weight);
    ls_toy_expect(&both, 1, weight, "a group that joined after two steps", out);
    if (*ls_toy_view(&both, 0, 0).steps != 4 || *ls_toy_view(&both, 1, 0).steps != 2) {
        ls_verdict_set(out, LS_FAIL, "m0 took %d steps and m1 %d, expected 4 and 2",
                       (int)*ls_toy_view(&both, 0, 0).steps, (int)*ls_toy_view(&both, 1, 0).steps);
    }
    ls_toy_close(&both);
    ls_toy_close(&alone);
}

static void check_empty(ls_verdict *out)
{
    ls_toy toy;
    int group = -1;
    if (!open_level(&toy, 2, out)) {
        return;
    }
    ideal m = ideal_make(1, true, .25, 0, 0);
    ls_optimizer_config sgd = ls_toy_sgd(0.0f);
    int optimizer = ls_toy_optimizer(&toy);
    ls_tensor nothing = ls_inside_tensor(&toy.device, LS_F16, 0);
    ls_amp_param empty = {.name = "empty", .param = nothing, .grad = nothing};
    ls_status none = ls_amp_add_group(toy.amp, optimizer, &sgd, .25f, NULL, 0, &group);
    ls_status zero = ls_amp_add_group(toy.amp, optimizer, &sgd, .25f, &empty, 1, &group);
    if (none != LS_OK || zero != LS_OK) {
        ls_verdict_set(out, LS_FAIL, "a group of no parameters: %s; a parameter of no elements: %s",
                       ls_status_name(none), ls_status_name(zero));
    }
    ls_toy_make(&toy, 0, 1);
    ls_toy_own(&toy, optimizer, 0, &sgd, .25f);
    blocks(&toy, &m, 1, 1);
    ls_toy_step(&toy, optimizer);
    ideal_step(&m);
    expect(&toy, 0, &m, "behind a group of nothing", out);
    ls_inside_free(&toy.device, &nothing);
    ls_toy_close(&toy);
}

/* ---- masters
 * ------------------------------------------------------------------------------------- */

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

/* facts/apex.md 8.5: w = 1 and a constant update of -1e-4. */
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
            ls_verdict_set(out, LS_FAIL, "after %d updates of -1e-4 the half weight is %.9g", step,
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
            ls_verdict_set(out, LS_FAIL, "the master of %.9g is %.9g (%s)", (double)copy[0],
                           (double)master[0], ls_dtype_name(view.value.dtype));
        }
        if (ls_toy_view(&toy, 0, 0).has_master) {
            ls_verdict_set(out, LS_FAIL, "an f32 parameter has a master of its own");
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
            if ((double)weight[2 + i] != f16((double)master[i])) {
                ls_verdict_set(out, LS_FAIL, "step %d: master %.9g, half weight %.9g", step + 1,
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
    if (ls_amp_param_count(toy.amp, 0) != 2 || ls_toy_view(&toy, 0, 1).grad.data != NULL) {
        ls_verdict_set(out, LS_FAIL, "%d parameters, a gradient before any block: %s",
                       ls_amp_param_count(toy.amp, 0),
                       ls_toy_view(&toy, 0, 1).grad.data != NULL ? "yes" : "no");
    }
    ls_toy_begin(&toy, 0, only, 1, false);
    ls_toy_backward(&toy, 1u, 1.0f, ls_toy_clean);
    ls_status status = ls_toy_end(&toy);
    ls_toy_must(&toy, status, "ls_toy_end");
    float grad[2] = {0, 0}, model[2];
    ls_amp_view view = ls_toy_view(&toy, 0, 1);
    if (view.grad.data != NULL) {
        ls_inside_read(&toy.device, &view.grad, grad);
    }
    ls_inside_read(&toy.device, &toy.model[0].grad[1], model);
    if (view.grad.dtype != LS_F32 || grad[0] != 1.0f || grad[1] != 2.0f || model[0] != 4.0f) {
        ls_verdict_set(out, LS_FAIL,
                       "the master's gradient is %g, %g, the model's %g; expected 1, 2, and 4 "
                       "(still scaled)",
                       (double)grad[0], (double)grad[1], (double)model[0]);
    }
    ls_toy_step(&toy, 0);
    if (ls_toy_view(&toy, 0, 1).grad.data != NULL || ls_toy_view(&toy, 0, 0).grad.data == NULL) {
        ls_verdict_set(out, LS_FAIL,
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
        ls_verdict_set(out, LS_FAIL, "w0 had no gradient, but %d steps and momentum %g",
                       (int)*ls_toy_view(&toy, 0, 0).steps, (double)moment[0]);
    }
    /* and a second step without a backward moves no half parameter */
    ls_toy_step(&toy, 0);
    ls_toy_expect(&toy, 0, expected, "a second step without a backward", out);
    ls_toy_close(&toy);
}

/* Without amp: S is 1, an infinite gradient is nobody's business, training is plain SGD's. */
static void check_disabled(ls_verdict *out)
{
    ls_toy toy;
    ls_amp_options options = ls_toy_options(2, 1, 65536.0f);
    options.enabled = false;
    if (!ls_toy_open(&toy, &options, out)) {
        return;
    }
    ideal m = ideal_make(1, false, .25, .125, 0);
    ls_optimizer_config sgd = ls_toy_sgd(.125f);
    ls_toy_optimizer(&toy);
    ls_toy_make(&toy, 0, 1);
    ls_toy_own(&toy, 0, 0, &sgd, .25f);
    for (int step = 0; step < 3; step++) {
        ls_toy_iterate(&toy, 0, 0, 1u, ls_toy_clean);
        ideal_backward(&m, 1.0);
        ideal_step(&m);
        ideal_zero(&m);
    }
    expect(&toy, 0, &m, "amp disabled", out);
    ls_toy_expect_scale(&toy, 0, 1.0f, 0, "amp disabled", out);
    if (ls_toy_view(&toy, 0, 1).has_master) {
        ls_verdict_set(out, LS_FAIL, "amp is disabled, yet there are masters");
    }
    ls_toy_close(&toy);
}

/* ---- misuse
 * -------------------------------------------------------------------------------------- */

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
    ideal m = ideal_make(1, true, .25, .125, 0);
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
        ls_verdict_set(out, LS_FAIL, "expected a usage error of one line with \"%s\", got %s: %s",
                       misuses[row->number[0]].names, ls_status_name(status), text);
    }
    ls_amp_cancel(toy.amp);
    blocks(&toy, &m, 1, 1);
    ls_toy_step(&toy, 0);
    ideal_step(&m);
    expect(&toy, 0, &m, "an iteration after the refusal", out);
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence, "%s", text);
    }
    ls_toy_close(&toy);
}

/* ---- rows
 * ---------------------------------------------------------------------------------------- */

static const ls_toy_row rows[] = {
    {"A2", "group.rates", check_rates, "each group has its own rate and decay"},
    {"A2", "group.own-steps", check_own_steps, "a late group's bias correction starts at 1"},
    {"A2", "group.empty", check_empty, "empty groups and tensors change nothing"},
    {"A6", "masters.small-updates.o2", check_small_o2, "1, 0.99951171875, 0.9990234375"},
    {"A6", "masters.small-updates.o3", check_small_o3, "without masters 1 stays 1"},
    {"A6", "masters.made", check_made, "masters are f32(half(p)), bit for bit"},
    {"A6", "masters.copies", check_copies, "30 steps: half weight = round(master)"},
    {"A6", "masters.view", check_view, "gradients are f32, unscaled, and gone after the step"},
    {"A6", "masters.clip", check_clip, "the masters' gradients are what is stepped on"},
    {"A6", "masters.reload", check_reload, "the step starts from the loaded weights"},
    {"A6", "masters.untouched", check_untouched, "no gradient, no step, no state"},
    {"A7", "disabled", check_disabled, "plain SGD, scale 1, no masters"},
};

static void judge_row(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    ls_toy_judge(&rows[row->number[0]], out);
}

void ls_amp_group_cases(ls_case_list *list)
{
    for (int level = 0; level < 4; level++) {
        ls_inside_add(list, judge_added, "A2", "amp.group.added.o%d", level)->number[0] = level;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_inside_add(list, judge_row, rows[i].requirement, "amp.%s", rows[i].id)->number[0] =
            (int)i;
    }
    for (size_t i = 0; i < sizeof misuses / sizeof *misuses; i++) {
        ls_inside_add(list, judge_misuse, "A7", "amp.misuse.%s", misuses[i].name)->number[0] =
            (int)i;
    }
}
