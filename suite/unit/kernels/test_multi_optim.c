/* The multi-tensor optimizers of the CPU backend: goldens from the sources they follow, exact
 * values, masters and their half-precision copies. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "suite/unit/run_suite.h"
#include "multi_pool.h"

/* ---- optimizer goldens ----------------------------------------------------------------------- */

/* Four steps from p0 = (1,-2) with grads (0.1 t, -0.2); values of torch in float64. A step makes at
 * most six f32 roundings of values below 2.5, so four are within 24 * 2.5 * 2^-24. */
#define GOLDEN_LIMIT (24.0 * 2.5 / 16777216.0)

static void run_golden(ls_optimizer_config config, float lr, double want0, double want1)
{
    for (int v = 0; v < 3; v++) {
        float p[2] = {1.0f, -2.0f}, grad[2], m1[2] = {0}, m2[2] = {0};
        ls_tensor value = {p, LS_F32, 2}, g = {grad, LS_F32, 2};
        ls_tensor moment1 = {m1, LS_F32, 2}, moment2 = {m2, LS_F32, 2};
        ls_optimizer_args args = {{1, &value}, {1, &g}, {1, &moment1}, {1, &moment2}, {0, NULL}};
        ls_step_state state = fresh_state(1.0f, lr);
        for (int t = 1; t <= 4; t++) {
            grad[0] = 0.1f * (float)t;
            grad[1] = -0.2f;
            ck_assert_int_eq(ls_multi_optimizer_step(at_work(variant_at(v), 1), NULL, &config,
                                                     &args, true, &state),
                             LS_OK);
        }
        ck_assert_int_eq(state.step_count, 4);
        ck_assert_int_eq(state.skipped, 0);
        ck_assert_int_eq(state.first_bad_state, -1);
        ck_assert_double_eq_tol(p[0], want0, GOLDEN_LIMIT);
        ck_assert_double_eq_tol(p[1], want1, GOLDEN_LIMIT);
    }
}

TEST(optimizer_goldens)
{
    ls_optimizer_config sgd = {.kind = LS_OPTIMIZER_SGD};
    run_golden(sgd, 0.1f, 0.9, -1.92);
    sgd.momentum = 0.9f;
    run_golden(sgd, 0.1f, 0.81441, -1.81902);
    sgd.nesterov = true;
    run_golden(sgd, 0.1f, 0.732969, -1.757118);
    sgd.weight_decay = 0.01f;
    run_golden(sgd, 0.1f, 0.721377136562, -1.733584050304);
    sgd.nesterov = false;
    run_golden(sgd, 0.1f, 0.805571046311, -1.801226112622);
    ls_optimizer_config adam = {
        .kind = LS_OPTIMIZER_ADAM, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-8f};
    run_golden(adam, 0.01f, 0.961164067213, -1.960000002);
    adam.weight_decay = 0.1f;
    run_golden(adam, 0.01f, 0.960331120814, -1.96000572487);
    adam.kind = LS_OPTIMIZER_ADAMW;
    run_golden(adam, 0.01f, 0.95722890722, -1.952071954009);
    adam.weight_decay = 0.01f;
    run_golden(adam, 0.01f, 0.960770015177, -1.959206121592);
}

/* Every value here is exact in f32, so the comparison is, too (p0 = 1, g = 1, .5, -1, lr .125). */
TEST(sgd_exact)
{
    static const struct {
        double momentum, weight_decay;
        bool nesterov;
        float want[3];
    } row[] = {
        {0, 0, false, {.875f, .8125f, .9375f}},
        {.5f, 0, false, {.875f, .75f, .8125f}},
        {.5f, 0, true, {.8125f, .6875f, .84375f}},
        {.5f, .25f, false, {.84375f, .6767578125f, .697113037109375f}},
        {.5f, .25f, true, {.765625f, .596923828125f, .7153053283691406f}},
    };
    static const float grads[3] = {1.0f, .5f, -1.0f};
    for (size_t r = 0; r < sizeof row / sizeof row[0]; r++) {
        float p[19], g[19], buf[19];
        ls_tensor value = {p, LS_F32, 19}, grad = {g, LS_F32, 19}, moment = {buf, LS_F32, 19};
        ls_optimizer_args args = {{1, &value}, {1, &grad}, {1, &moment}, {0, NULL}, {0, NULL}};
        ls_optimizer_config config = {.kind = LS_OPTIMIZER_SGD,
                                      .momentum = row[r].momentum,
                                      .weight_decay = row[r].weight_decay,
                                      .nesterov = row[r].nesterov};
        ls_step_state state = fresh_state(1.0f, .125f);
        for (int i = 0; i < 19; i++) {
            p[i] = 1.0f;
            buf[i] = NAN; /* the first step writes the buffer and does not read it */
        }
        for (int t = 0; t < 3; t++) {
            for (int i = 0; i < 19; i++) {
                g[i] = grads[t];
            }
            state.first_bad_state = 7;
            ck_assert_int_eq(ls_multi_optimizer_step(at_work(ls_multi_choose(LS_ISA_AVX512), 1),
                                                     NULL, &config, &args, false, &state),
                             LS_OK);
            for (int i = 0; i < 19; i++) {
                ck_assert_float_eq(p[i], row[r].want[t]);
            }
            ck_assert_int_eq(state.first_bad_state, -1);
        }
    }
}

/* momentum * buf + d in one rounding would give another value: each operation rounds by itself. */
TEST(sgd_rounds_each_operation)
{
    volatile float m = 0.9f, b = 1.0f / 3.0f, d = -0.3f, lr = 0.1f, start = 0.7f;
    volatile float product = m * b;
    volatile float next = product + d;
    volatile float move = lr * next;
    float want = start - move;
    ck_assert_float_ne(next, fmaf(m, b, d));
    for (int v = 0; v < 3; v++) {
        float p[33], g[33], buf[33];
        ls_tensor value = {p, LS_F32, 33}, grad = {g, LS_F32, 33}, moment = {buf, LS_F32, 33};
        ls_optimizer_args args = {{1, &value}, {1, &grad}, {1, &moment}, {0, NULL}, {0, NULL}};
        ls_optimizer_config config = {.kind = LS_OPTIMIZER_SGD, .momentum = m};
        ls_step_state state = fresh_state(1.0f, lr);
        state.step_count = 1;
        for (int i = 0; i < 33; i++) {
            p[i] = start;
            g[i] = d;
            buf[i] = b;
        }
        ls_multi_optimizer_step(at_work(variant_at(v), 1), NULL, &config, &args, false, &state);
        for (int i = 0; i < 33; i++) {
            ck_assert_float_eq(buf[i], next);
            ck_assert_float_eq(p[i], want);
        }
    }
}

TEST(masters_and_half_values)
{
    /* 1 - 1e-4 ten times: half(master) leaves 1 at the third step, pure fp16 never does. */
    float master = 1.0f, g = 1.0f;
    uint16_t model = ls_half_f32_to_fp16(1.0f), pure = model;
    ls_tensor value = {&master, LS_F32, 1}, grad = {&g, LS_F32, 1}, copy = {&model, LS_F16, 1};
    ls_tensor half = {&pure, LS_F16, 1};
    ls_optimizer_args with = {{1, &value}, {1, &grad}, {0, NULL}, {0, NULL}, {1, &copy}};
    ls_optimizer_args without = {{1, &half}, {1, &grad}, {0, NULL}, {0, NULL}, {0, NULL}};
    ls_optimizer_config config = {.kind = LS_OPTIMIZER_SGD};
    ls_step_state a = fresh_state(1.0f, 1e-4f), b = a;
    for (int t = 1; t <= 10; t++) {
        ls_multi_optimizer_step(at_work(&ls_multi_plain, 1), NULL, &config, &with, true, &a);
        ls_multi_optimizer_step(at_work(&ls_multi_plain, 1), NULL, &config, &without, true, &b);
        ck_assert_float_eq(ls_half_fp16_to_f32(pure), 1.0f);
        if (t == 2 || t == 3 || t == 10) {
            float want = t == 2 ? 1.0f : t == 3 ? 0.99951171875f : 0.9990234375f;
            ck_assert_float_eq(ls_half_fp16_to_f32(model), want);
        }
    }
    /* A copy whose data is the value's own is left alone. */
    ls_tensor same = {&master, LS_F16, 1};
    with.copy.tensor = &same;
    float before = master;
    ls_multi_optimizer_step(at_work(&ls_multi_plain, 1), NULL, &config, &with, true, &a);
    ck_assert_float_eq(master, before - 1e-4f);
    /* A finite master whose half copy overflows is a non-finite parameter. */
    with.copy.tensor = &copy;
    master = 70000.0f;
    ls_multi_optimizer_step(at_work(&ls_multi_plain, 1), NULL, &config, &with, true, &a);
    ck_assert_int_eq(a.first_bad_state, 0);
}

/* ---- Apex's rules ---------------------------------------------------------------------------- */

/* Worked out in float64, nine digits; f32 adds a few units of values below 4, and a step of Adam or
 * LAMB is at most a unit or two of its own size off. */
#define APEX_LIMIT (1e-9 + 16.0 * 4.0 / 16777216.0)

typedef struct apex_row {
    ls_optimizer_config config;
    int count; /* 1: p0 = 1, g = 1, .5, -2; 2: p0 = (3, 4), g = (3, 4), (.5, 0) */
    double want[3];
} apex_row;

#define APEX_BETAS .beta1 = 0.5, .beta2 = 0.75, .epsilon = 0.0625
#define APEX_LAMB .kind = LS_OPTIMIZER_LAMB, APEX_BETAS, .max_grad_norm = 1.0

static const apex_row apex_rows[] = {
    {{.kind = LS_OPTIMIZER_ADAM, APEX_BETAS}, 1, {.882352941, .780531844, .852165903}},
    {{.kind = LS_OPTIMIZER_ADAM, APEX_BETAS, .uncorrected = true},
     1,
     {.888888889, .777777778, .859142113}},
    {{.kind = LS_OPTIMIZER_ADAMW, APEX_BETAS, .weight_decay = 0.5},
     1,
     {.819852941, .666791035, .696750654}},
    {{.kind = LS_OPTIMIZER_ADAM, APEX_BETAS, .weight_decay = 0.5},
     1,
     {.880000000, .769508305, .807107922}},
    {{APEX_LAMB}, 2, {2.777072610, 3.827196782}},
    {{APEX_LAMB, .nvlamb = true}, 2, {2.077148979, 3.300840815}},
    {{APEX_LAMB, .weight_decay = 0.5}, 2, {2.219451295, 3.127367950}},
    {{APEX_LAMB, .weight_decay = 0.5, .l2 = true}, 2, {2.163562520, 3.178162214}},
};

ROWS_TEST(apex_goldens, apex_rows)
{
    const apex_row *row = &apex_rows[_i];
    static const float one[3] = {1.0f, .5f, -2.0f}, two[2][2] = {{3.0f, 4.0f}, {.5f, 0.0f}};
    for (int v = 0; v < 3; v++) {
        float p[2] = {3.0f, 4.0f}, g[2], m1[2] = {0}, m2[2] = {0};
        p[0] = row->count == 1 ? 1.0f : p[0];
        ls_tensor value = {p, LS_F32, row->count}, grad = {g, LS_F32, row->count};
        ls_tensor moment1 = {m1, LS_F32, row->count}, moment2 = {m2, LS_F32, row->count};
        ls_optimizer_args args = {{1, &value}, {1, &grad}, {1, &moment1}, {1, &moment2}, {0, NULL}};
        ls_step_state state = fresh_state(1.0f, .125f);
        int steps = row->count == 1 ? 3 : 2;
        for (int t = 0; t < steps; t++) {
            memcpy(g, row->count == 1 ? &one[t] : two[t], (size_t)row->count * sizeof *g);
            ck_assert_int_eq(ls_multi_optimizer_step(at_work(variant_at(v), 1), NULL, &row->config,
                                                     &args, true, &state),
                             LS_OK);
            if (row->count == 1) {
                ck_assert_double_eq_tol(p[0], row->want[t], APEX_LIMIT);
            }
        }
        ck_assert_int_eq(state.step_count, steps);
        if (row->count == 2) {
            ck_assert_double_eq_tol(p[0], row->want[0], APEX_LIMIT);
            ck_assert_double_eq_tol(p[1], row->want[1], APEX_LIMIT);
            ck_assert(g[0] == .5f && g[1] == 0.0f); /* the gradient is not overwritten */
        }
    }
}

/* LARC by hand (apex/parallel/LARC.py): p = (3,4), g = (.6,.8), trust 1/2, decay 1/4, no eps to
 * speak of: a = .5 * 5 / (1 + .25 * 5) = 10/9; g' = (g + p/4) * a = (1.35, 1.8) * 10/9 = (1.5, 2);
 * p = p
 * - lr * g', lr 1/8. In clip mode a/lr = 80/9 > 1, so that g' = (1.35, 1.8). */
TEST(lars_by_hand)
{
    for (int clip = 0; clip < 2; clip++) {
        for (int v = 0; v < 3; v++) {
            float p[2] = {3.0f, 4.0f}, g[2] = {.6f, .8f}, zero[2] = {0}, still[2] = {1.0f, 2.0f};
            float none[2] = {0};
            float m[3][2] = {{0}};
            ls_tensor value[3] = {{p, LS_F32, 2}, {zero, LS_F32, 2}, {still, LS_F32, 2}};
            ls_tensor grad[3] = {{g, LS_F32, 2}, {g, LS_F32, 2}, {none, LS_F32, 2}};
            ls_tensor moment[3] = {{m[0], LS_F32, 2}, {m[1], LS_F32, 2}, {m[2], LS_F32, 2}};
            ls_optimizer_args args = {{3, value}, {3, grad}, {3, moment}, {0, NULL}, {0, NULL}};
            ls_optimizer_config config = {.kind = LS_OPTIMIZER_LARS,
                                          .momentum = 0.9,
                                          .weight_decay = 0.25,
                                          .epsilon = 1e-12,
                                          .trust = 0.5,
                                          .clip = clip == 1};
            ls_step_state state = fresh_state(1.0f, .125f);
            ls_multi_optimizer_step(at_work(variant_at(v), 1), NULL, &config, &args, false, &state);
            ck_assert_double_eq_tol(p[0], 3 - .125 * (clip ? 1.35 : 1.5), APEX_LIMIT);
            ck_assert_double_eq_tol(p[1], 4 - .125 * (clip ? 1.8 : 2), APEX_LIMIT);
            ck_assert_double_eq_tol(m[0][1], clip ? 1.8 : 2, APEX_LIMIT);
            /* a tensor of zeros takes its gradient as it is; without a gradient nothing decays */
            ck_assert_float_eq(zero[0], 0.0f - .125f * .6f);
            ck_assert(still[0] == 1.0f && still[1] == 2.0f);
        }
    }
}

/* A tensor of zeros has no trust ratio, and without decay the plain rule has none either. */
TEST(lamb_without_a_norm)
{
    float p[1] = {0.0f}, g[1] = {0.5f}, m1[1] = {0}, m2[1] = {0};
    ls_tensor value = {p, LS_F32, 1}, grad = {g, LS_F32, 1}, a = {m1, LS_F32, 1};
    ls_tensor b = {m2, LS_F32, 1};
    ls_optimizer_args args = {{1, &value}, {1, &grad}, {1, &a}, {1, &b}, {0, NULL}};
    ls_optimizer_config config = {APEX_LAMB, .nvlamb = true};
    ls_step_state state = fresh_state(1.0f, .125f);
    ls_multi_optimizer_step(at_work(variant_at(2), 1), NULL, &config, &args, false, &state);
    /* m/bc1 = .5, v/bc2 = .25: u = .5 / .5625 */
    ck_assert_double_eq_tol(p[0], -.125 * .5 / .5625, APEX_LIMIT);
    config.nvlamb = false;
    p[0] = 100.0f;
    m1[0] = m2[0] = 0;
    state.step_count = 0;
    ls_multi_optimizer_step(at_work(variant_at(2), 1), NULL, &config, &args, false, &state);
    ck_assert_double_eq_tol(p[0], 100 - .125 * .5 / .5625, 100.0 / 16777216.0);
}

TEST_MAIN("multi_optim", .timeout_s = 60)
