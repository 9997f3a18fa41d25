/* The multi-tensor operations of the CPU backend: goldens, every position of a non-finite value,
 * guards around every buffer, and the same bits from every vector variant and number of threads. */
#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/core/rng.h"
#include "../../kernels/cpu/multi.h"
#include "../../kernels/math/scaler.h"

enum { GUARD = 64, LARGE = 1000003 };

static const int64_t SIZES[] = {17, 0, 1, 7, 8, 15, 16, 64, LARGE, 3, 511, 512, 513};
enum { TENSORS = sizeof SIZES / sizeof SIZES[0] };

/* A list of tensors in one poisoned block: GUARD bytes before and after each, data one element off
 * alignment for every second tensor. */
typedef struct pool {
    unsigned char *block, *used; /* used: 1 where a tensor's byte is */
    size_t bytes;
    ls_tensor tensor[TENSORS];
} pool;

static size_t element_bytes(ls_dtype type)
{
    return type == LS_F32 ? 4 : 2;
}

static pool pool_make(ls_dtype type, int64_t largest)
{
    pool p = {0};
    size_t each = element_bytes(type);
    for (int i = 0; i < TENSORS; i++) {
        p.bytes += 2 * GUARD + (size_t)SIZES[i] * each + 64;
    }
    p.block = aligned_alloc(64, (p.bytes + 63) / 64 * 64);
    p.used = calloc(p.bytes, 1);
    ck_assert(p.block != NULL && p.used != NULL);
    memset(p.block, 0xA5, p.bytes);
    size_t at = 0;
    for (int i = 0; i < TENSORS; i++) {
        int64_t count = SIZES[i] < largest ? SIZES[i] : largest;
        at = (at + GUARD + 63) / 64 * 64 + (i % 2 != 0 ? each : 0);
        p.tensor[i] = (ls_tensor){p.block + at, type, count};
        memset(p.used + at, 1, (size_t)count * each);
        at += (size_t)count * each;
    }
    ck_assert_uint_le(at + GUARD, p.bytes);
    return p;
}

static void pool_free(pool *p)
{
    free(p->block);
    free(p->used);
}

static void pool_check_guards(const pool *p)
{
    for (size_t i = 0; i < p->bytes; i++) {
        if (p->used[i] == 0 && p->block[i] != 0xA5) {
            ck_abort_msg("a byte outside every tensor was written, offset %zu", i);
        }
    }
}

static ls_tensor_list pool_list(const pool *p)
{
    return (ls_tensor_list){TENSORS, p->tensor};
}

static void set(ls_tensor tensor, int64_t i, float value)
{
    if (tensor.dtype == LS_F32) {
        ((float *)tensor.data)[i] = value;
    } else {
        ((uint16_t *)tensor.data)[i] =
            tensor.dtype == LS_F16 ? ls_half_f32_to_fp16(value) : ls_half_f32_to_bf16(value);
    }
}

static float get(ls_tensor tensor, int64_t i)
{
    if (tensor.dtype == LS_F32) {
        return ((const float *)tensor.data)[i];
    }
    uint16_t half = ((const uint16_t *)tensor.data)[i];
    return tensor.dtype == LS_F16 ? ls_half_fp16_to_f32(half) : ls_half_bf16_to_f32(half);
}

/* Values over many binades, subnormals of every type among them. */
static void pool_fill(pool *p, uint64_t stream, float scale)
{
    for (int t = 0; t < TENSORS; t++) {
        for (int64_t i = 0; i < p->tensor[t].count; i++) {
            ls_rng_block block = ls_rng_philox(5, stream + (uint64_t)t, (uint64_t)i);
            float value = (float)(int32_t)block.word[0] * 4.656612873e-10f * scale;
            set(p->tensor[t], i, ldexpf(value, -(int)(block.word[1] % 30)));
        }
    }
}

static const ls_multi_variant *variant_at(int i)
{
    static const ls_isa isa[] = {LS_ISA_PLAIN, LS_ISA_AVX2, LS_ISA_AVX512};
    return ls_multi_choose(isa[i]);
}

static ls_step_state fresh_state(float scale, float lr)
{
    return (ls_step_state){.loss_scale = scale,
                           .inv_loss_scale = ls_scaler_inverse(scale),
                           .lr = lr,
                           .first_bad_grad = -1,
                           .first_bad_state = -1};
}

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
            ck_assert_int_eq(
                ls_multi_optimizer_step_with(variant_at(v), 1, &config, &args, true, &state),
                LS_OK);
        }
        ck_assert_int_eq(state.step_count, 4);
        ck_assert_int_eq(state.skipped, 0);
        ck_assert_int_eq(state.first_bad_state, -1);
        ck_assert_double_eq_tol(p[0], want0, GOLDEN_LIMIT);
        ck_assert_double_eq_tol(p[1], want1, GOLDEN_LIMIT);
    }
}

START_TEST(optimizer_goldens)
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
END_TEST

/* Every value here is exact in f32, so the comparison is, too (p0 = 1, g = 1, .5, -1, lr .125). */
START_TEST(sgd_exact)
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
            ck_assert_int_eq(ls_multi_optimizer_step_with(ls_multi_choose(LS_ISA_AVX512), 1,
                                                          &config, &args, false, &state),
                             LS_OK);
            for (int i = 0; i < 19; i++) {
                ck_assert_float_eq(p[i], row[r].want[t]);
            }
            ck_assert_int_eq(state.first_bad_state, -1);
        }
    }
}
END_TEST

/* momentum * buf + d in one rounding would give another value: each operation rounds by itself. */
START_TEST(sgd_rounds_each_operation)
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
        ls_multi_optimizer_step_with(variant_at(v), 1, &config, &args, false, &state);
        for (int i = 0; i < 33; i++) {
            ck_assert_float_eq(buf[i], next);
            ck_assert_float_eq(p[i], want);
        }
    }
}
END_TEST

START_TEST(masters_and_half_values)
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
        ls_multi_optimizer_step_with(&ls_multi_plain, 1, &config, &with, true, &a);
        ls_multi_optimizer_step_with(&ls_multi_plain, 1, &config, &without, true, &b);
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
    ls_multi_optimizer_step_with(&ls_multi_plain, 1, &config, &with, true, &a);
    ck_assert_float_eq(master, before - 1e-4f);
    /* A finite master whose half copy overflows is a non-finite parameter. */
    with.copy.tensor = &copy;
    master = 70000.0f;
    ls_multi_optimizer_step_with(&ls_multi_plain, 1, &config, &with, true, &a);
    ck_assert_int_eq(a.first_bad_state, 0);
}
END_TEST

/* ---- rows of facts/apex.md 8.5 --------------------------------------------------------------- */

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

START_TEST(apex_goldens)
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
            ck_assert_int_eq(
                ls_multi_optimizer_step_with(variant_at(v), 1, &row->config, &args, true, &state),
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
END_TEST

/* LARC by hand (facts/apex.md 7.5): p = (3,4), g = (.6,.8), trust 1/2, decay 1/4, no eps to speak
 * of: a = .5 * 5 / (1 + .25 * 5) = 10/9; g' = (g + p/4) * a = (1.35, 1.8) * 10/9 = (1.5, 2); p = p
 * - lr * g', lr 1/8. In clip mode a/lr = 80/9 > 1, so that g' = (1.35, 1.8). */
START_TEST(lars_by_hand)
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
            ls_multi_optimizer_step_with(variant_at(v), 1, &config, &args, false, &state);
            ck_assert_double_eq_tol(p[0], 3 - .125 * (clip ? 1.35 : 1.5), APEX_LIMIT);
            ck_assert_double_eq_tol(p[1], 4 - .125 * (clip ? 1.8 : 2), APEX_LIMIT);
            ck_assert_double_eq_tol(m[0][1], clip ? 1.8 : 2, APEX_LIMIT);
            /* a tensor of zeros takes its gradient as it is; without a gradient nothing decays */
            ck_assert_float_eq(zero[0], 0.0f - .125f * .6f);
            ck_assert(still[0] == 1.0f && still[1] == 2.0f);
        }
    }
}
END_TEST

/* A tensor of zeros has no trust ratio, and without decay the plain rule has none either. */
START_TEST(lamb_without_a_norm)
{
    float p[1] = {0.0f}, g[1] = {0.5f}, m1[1] = {0}, m2[1] = {0};
    ls_tensor value = {p, LS_F32, 1}, grad = {g, LS_F32, 1}, a = {m1, LS_F32, 1};
    ls_tensor b = {m2, LS_F32, 1};
    ls_optimizer_args args = {{1, &value}, {1, &grad}, {1, &a}, {1, &b}, {0, NULL}};
    ls_optimizer_config config = {APEX_LAMB, .nvlamb = true};
    ls_step_state state = fresh_state(1.0f, .125f);
    ls_multi_optimizer_step_with(variant_at(2), 1, &config, &args, false, &state);
    /* m/bc1 = .5, v/bc2 = .25: u = .5 / .5625 */
    ck_assert_double_eq_tol(p[0], -.125 * .5 / .5625, APEX_LIMIT);
    config.nvlamb = false;
    p[0] = 100.0f;
    m1[0] = m2[0] = 0;
    state.step_count = 0;
    ls_multi_optimizer_step_with(variant_at(2), 1, &config, &args, false, &state);
    ck_assert_double_eq_tol(p[0], 100 - .125 * .5 / .5625, 100.0 / 16777216.0);
}
END_TEST

/* ---- scaler ---------------------------------------------------------------------------------- */

static const ls_scaler_config APEX = {.dynamic = true,
                                      .growth_factor = 2.0f,
                                      .backoff_factor = 0.5f,
                                      .growth_interval = 2000,
                                      .min_scale = 0.0f,
                                      .max_scale = 16777216.0f};

static void update(const ls_scaler_config *config, ls_step_state *state, bool overflow)
{
    state->overflow = overflow ? 1 : 0;
    ls_multi_scaler_update(NULL, NULL, config, state);
}

START_TEST(scaler_sequence)
{
    ls_step_state s = fresh_state(65536.0f, 0.1f);
    update(&APEX, &s, true);
    ck_assert_float_eq(s.loss_scale, 32768.0f);
    ck_assert_float_eq(s.inv_loss_scale, 1.0f / 32768.0f);
    ck_assert_int_eq(s.growth_count, 0);
    ck_assert_int_eq(s.overflow_streak, 1);
    update(&APEX, &s, true);
    ck_assert_int_eq(s.overflow_streak, 2);
    for (int i = 1; i < 2000; i++) {
        update(&APEX, &s, false);
        ck_assert_float_eq(s.loss_scale, 16384.0f);
        ck_assert_int_eq(s.growth_count, i);
    }
    ck_assert_int_eq(s.overflow_streak, 0);
    update(&APEX, &s, false);
    ck_assert_float_eq(s.loss_scale, 32768.0f);
    ck_assert_int_eq(s.growth_count, 0);
    s = fresh_state(65536.0f, 0.1f);
    for (int i = 0; i < 24000; i++) {
        update(&APEX, &s, false);
    }
    ck_assert_float_eq(s.loss_scale, 16777216.0f);
    ck_assert_float_eq(s.inv_loss_scale, 1.0f / 16777216.0f);
    /* an overflow one short of the interval restarts the count */
    s = fresh_state(65536.0f, 0.1f);
    s.growth_count = 1999;
    update(&APEX, &s, true);
    ck_assert_int_eq(s.growth_count, 0);
    update(&APEX, &s, false);
    ck_assert_float_eq(s.loss_scale, 32768.0f);
    /* a restored count above the interval grows at once (>=) */
    s.growth_count = 2500;
    update(&APEX, &s, false);
    ck_assert_float_eq(s.loss_scale, 65536.0f);
    /* torch's reference sequence: growth 2, backoff 1/4, interval 2, S = 4 */
    ls_scaler_config torch = {true, 2.0f, 0.25f, 2, 0.0f, INFINITY};
    s = fresh_state(4.0f, 0.1f);
    update(&torch, &s, false);
    ck_assert(s.loss_scale == 4.0f && s.growth_count == 1);
    update(&torch, &s, false);
    ck_assert(s.loss_scale == 8.0f && s.growth_count == 0);
    update(&torch, &s, true);
    ck_assert(s.loss_scale == 2.0f && s.growth_count == 0);
}
END_TEST

START_TEST(scaler_ends)
{
    /* growth to inf is refused, the count restarts */
    ls_scaler_config torch = {true, 2.0f, 0.5f, 1, 0.0f, INFINITY};
    ls_step_state s = fresh_state(0x1p127f, 0.1f);
    update(&torch, &s, false);
    ck_assert_float_eq(s.loss_scale, 0x1p127f);
    ck_assert_int_eq(s.growth_count, 0);
    /* the floor without a minimum is 2^-24: reached it may be, passed not */
    s = fresh_state(0x1p-23f, 0.1f);
    update(&APEX, &s, true);
    ck_assert_float_eq(s.loss_scale, 0x1p-24f);
    ck_assert_int_eq(s.floor_reached, 0);
    update(&APEX, &s, true);
    ck_assert_int_eq(s.floor_reached, 1);
    ls_scaler_config least = APEX;
    least.min_scale = 128.0f;
    s = fresh_state(200.0f, 0.1f);
    update(&least, &s, true);
    ck_assert_float_eq(s.loss_scale, 128.0f);
    ck_assert_float_eq(s.inv_loss_scale, 1.0f / 128.0f);
    ck_assert_int_eq(s.floor_reached, 1);
    update(&least, &s, false);
    ck_assert_int_eq(s.floor_reached, 0);
    s = fresh_state(256.0f, 0.1f);
    update(&least, &s, true);
    ck_assert_float_eq(s.loss_scale, 128.0f);
    ck_assert_int_eq(s.floor_reached, 0);
    /* the reciprocal is rounded from double */
    s = fresh_state(3.0f, 0.1f);
    ls_scaler_config fixed = {.dynamic = false};
    for (int i = 0; i < 2500; i++) {
        update(&fixed, &s, i % 2 == 0);
        ck_assert_float_eq(s.loss_scale, 3.0f);
    }
    ck_assert_float_eq(s.inv_loss_scale, (float)(1.0 / 3.0));
    ck_assert_int_eq(s.growth_count, 2500);
    ck_assert_int_eq(s.overflow_streak, 0);
}
END_TEST

/* ---- unscale --------------------------------------------------------------------------------- */

/* A non-finite element at the position given, nothing else wrong: found, at the right tensor, and
 * the values are from * inv all the same. */
static void check_bad_at(const ls_multi_variant *variant, int threads, pool *from, pool *to,
                         int tensor, int64_t at, float bad)
{
    float kept = get(from->tensor[tensor], at);
    set(from->tensor[tensor], at, bad);
    ls_step_state state = fresh_state(1024.0f, 0.1f);
    state.overflow = 0;
    ls_multi_unscale_check_with(variant, threads, pool_list(to), pool_list(from), &state);
    ck_assert_msg(state.overflow == 1, "%s: %g at %lld of tensor %d not seen", variant->name,
                  (double)bad, (long long)at, tensor);
    ck_assert_int_eq(state.first_bad_grad, tensor);
    if (isinf(bad)) {
        ck_assert_float_eq(get(to->tensor[tensor], at), bad);
    } else {
        ck_assert_float_nan(get(to->tensor[tensor], at));
    }
    ls_tensor_list none = {0, NULL}; /* the same when it only looks */
    state.overflow = 0;
    ls_multi_unscale_check_with(variant, threads, none, pool_list(from), &state);
    ck_assert_int_eq(state.overflow, 1);
    ck_assert_int_eq(state.first_bad_grad, tensor);
    set(from->tensor[tensor], at, kept);
    ls_multi_unscale_check_with(variant, threads, none, pool_list(from), &state);
    ck_assert_int_eq(state.overflow, 0);
    ck_assert_int_eq(state.first_bad_grad, -1);
}

START_TEST(non_finite_everywhere)
{
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};
    ls_dtype type = types[_i];
    pool from = pool_make(type, 600), to = pool_make(LS_F32, 600);
    pool_fill(&from, 1, 1.0f);
    for (int v = 0; v < 3; v++) {
        for (int t = 0; t < TENSORS; t++) {
            int64_t count = from.tensor[t].count;
            for (int64_t i = 0; i<count; i += count> 100 ? 37 : 1) {
                check_bad_at(variant_at(v), 1, &from, &to, t, i, i % 2 == 0 ? INFINITY : NAN);
                check_bad_at(variant_at(v), 1, &from, &to, t, count - 1 - i, -INFINITY);
            }
        }
    }
    pool_check_guards(&from);
    pool_check_guards(&to);
    pool_free(&from);
    pool_free(&to);
    from = pool_make(type, LARGE);
    to = pool_make(LS_F32, LARGE);
    pool_fill(&from, 1, 1.0f);
    check_bad_at(variant_at(2), 2, &from, &to, 8, LARGE - 1, NAN);
    check_bad_at(variant_at(2), 2, &from, &to, 8, 0, INFINITY);
    check_bad_at(variant_at(2), 2, &from, &to, 12, 512, NAN);
    /* two bad tensors: the lower one is named, whichever thread meets it */
    set(from.tensor[12], 3, INFINITY);
    set(from.tensor[6], 14, NAN);
    for (int threads = 1; threads <= 2; threads++) {
        ls_step_state state = fresh_state(1.0f, 0.1f);
        ls_multi_unscale_check_with(variant_at(2), threads, pool_list(&to), pool_list(&from),
                                    &state);
        ck_assert_int_eq(state.first_bad_grad, 6);
    }
    pool_check_guards(&to);
    pool_free(&from);
    pool_free(&to);
}
END_TEST

START_TEST(unscale_values)
{
    pool from = pool_make(LS_F16, 600), to = pool_make(LS_F32, 600);
    pool_fill(&from, 3, 60000.0f);
    ls_step_state state = fresh_state(3.0f, 0.1f);
    ls_multi_unscale_check_with(variant_at(2), 1, pool_list(&to), pool_list(&from), &state);
    for (int t = 0; t < TENSORS; t++) {
        for (int64_t i = 0; i < from.tensor[t].count; i++) {
            volatile float product = get(from.tensor[t], i) * state.inv_loss_scale;
            ck_assert_float_eq(get(to.tensor[t], i), product);
        }
    }
    ck_assert_int_eq(state.overflow, 0);
    /* a half result that overflows is flagged where the incoming value was finite */
    uint16_t half = ls_half_f32_to_fp16(60000.0f);
    ls_tensor one = {&half, LS_F16, 1};
    state.inv_loss_scale = 2.0f;
    ls_multi_unscale_check_with(variant_at(2), 1, (ls_tensor_list){1, &one},
                                (ls_tensor_list){1, &one}, &state);
    ck_assert_int_eq(state.overflow, 1);
    ck_assert_int_eq(half, 0x7c00);
    pool_free(&from);
    pool_free(&to);
}
END_TEST

/* ---- skip ------------------------------------------------------------------------------------ */

START_TEST(skip_changes_no_bit)
{
    pool value = pool_make(LS_F32, 600), grad = pool_make(LS_F32, 600),
         moment = pool_make(LS_F32, 600);
    pool copy = pool_make(LS_F16, 600);
    pool_fill(&value, 1, 1.0f);
    pool_fill(&grad, 100, 1.0f);
    pool_fill(&moment, 200, 1.0f);
    pool_fill(&copy, 300, 1.0f);
    set(grad.tensor[4], 2, NAN);
    ls_optimizer_args args = {
        pool_list(&value), pool_list(&grad), pool_list(&moment), {0, NULL}, pool_list(&copy)};
    ls_optimizer_config config = {
        .kind = LS_OPTIMIZER_SGD, .momentum = 0.9f, .weight_decay = 1e-4f, .nesterov = true};
    pool *each[3] = {&value, &moment, &copy};
    unsigned char *before[3];
    for (int i = 0; i < 3; i++) {
        before[i] = malloc(each[i]->bytes);
        memcpy(before[i], each[i]->block, each[i]->bytes);
    }
    ls_step_state state = fresh_state(1.0f, 0.1f);
    state.overflow = 1;
    state.step_count = 5;
    ls_multi_optimizer_step_with(variant_at(2), 1, &config, &args, true, &state);
    ck_assert_int_eq(state.skipped, 1);
    ck_assert_int_eq(state.step_count, 5);
    ck_assert_int_eq(state.first_bad_state, -1);
    for (int i = 0; i < 3; i++) {
        ck_assert_mem_eq(before[i], each[i]->block, each[i]->bytes);
    }
    /* a static scale is never skipped: the NaN arrives, and is named */
    ls_multi_optimizer_step_with(variant_at(2), 1, &config, &args, false, &state);
    ck_assert_int_eq(state.skipped, 0);
    ck_assert_int_eq(state.step_count, 6);
    ck_assert_int_eq(state.first_bad_state, 4);
    ck_assert_float_nan(get(value.tensor[4], 2));
    for (int i = 0; i < 3; i++) {
        ck_assert_mem_ne(before[i], each[i]->block, each[i]->bytes);
        pool_check_guards(each[i]);
        free(before[i]);
        pool_free(each[i]);
    }
    pool_free(&grad);
}
END_TEST

/* ---- the same bits from all variants and thread counts --------------------------------------- */

typedef struct workout {
    pool value, copy, m1, m2, grad, half, sum;
    ls_step_state state;
} workout;

static void exercise(workout *w, const ls_multi_variant *variant, int threads, ls_dtype half,
                     ls_optimizer_kind kind)
{
    w->value = pool_make(LS_F32, LARGE);
    w->copy = pool_make(half, LARGE);
    w->m1 = pool_make(LS_F32, LARGE);
    w->m2 = pool_make(LS_F32, LARGE);
    w->grad = pool_make(LS_F32, LARGE);
    w->half = pool_make(half, LARGE);
    w->sum = pool_make(LS_F32, LARGE);
    pool_fill(&w->value, 1, 2.0f);
    pool_fill(&w->half, 40, 60000.0f);
    pool_fill(&w->m1, 80, 1.0f);
    for (int t = 0; t < TENSORS; t++) {
        memset(w->m2.tensor[t].data, 0, (size_t)w->m2.tensor[t].count * 4);
        ls_multi_accumulate_with(variant, threads, w->sum.tensor[t], w->half.tensor[t], true);
        ls_multi_accumulate_with(variant, threads, w->sum.tensor[t], w->value.tensor[t], false);
        ls_multi_convert_with(variant, threads, w->half.tensor[t], w->sum.tensor[t], 0.7f);
        ls_multi_convert_with(variant, threads, w->half.tensor[t], w->half.tensor[t], 1.1f);
    }
    w->state = fresh_state(3.0f, 0.1f);
    ls_optimizer_config config = {.kind = kind,
                                  .momentum = 0.9f,
                                  .weight_decay = 1e-2f,
                                  .nesterov = true,
                                  .beta1 = 0.9,
                                  .beta2 = 0.999,
                                  .epsilon = 1e-8,
                                  .max_grad_norm = 1.0,
                                  .trust = 0.02};
    ls_optimizer_args args = {pool_list(&w->value), pool_list(&w->grad), pool_list(&w->m1),
                              pool_list(&w->m2), pool_list(&w->copy)};
    for (int i = 0; i < 2; i++) {
        ls_multi_unscale_check_with(variant, threads, pool_list(&w->grad), pool_list(&w->half),
                                    &w->state);
        ls_multi_optimizer_step_with(variant, threads, &config, &args, false, &w->state);
    }
}

static void compare_and_free(workout *a, workout *b)
{
    pool *left[] = {&a->value, &a->copy, &a->m1, &a->m2, &a->grad, &a->half, &a->sum};
    pool *right[] = {&b->value, &b->copy, &b->m1, &b->m2, &b->grad, &b->half, &b->sum};
    for (int i = 0; i < 7; i++) {
        pool_check_guards(right[i]);
        ck_assert_msg(memcmp(left[i]->block, right[i]->block, left[i]->bytes) == 0,
                      "list %d differs between variants", i);
        pool_free(right[i]);
    }
    ck_assert_mem_eq(&a->state, &b->state, sizeof a->state);
}

START_TEST(same_bits_everywhere)
{
    static const struct {
        ls_dtype half;
        ls_optimizer_kind kind;
    } row[] = {{LS_F16, LS_OPTIMIZER_SGD},
               {LS_BF16, LS_OPTIMIZER_ADAM},
               {LS_F16, LS_OPTIMIZER_LAMB},
               {LS_BF16, LS_OPTIMIZER_LARS}};
    workout first, other;
    exercise(&first, &ls_multi_plain, 1, row[_i].half, row[_i].kind);
    for (int v = 0; v < 3; v++) {
        for (int threads = v == 0 ? 2 : 1; threads <= 2; threads++) {
            exercise(&other, variant_at(v), threads, row[_i].half, row[_i].kind);
            compare_and_free(&first, &other);
        }
    }
    pool *left[] = {&first.value, &first.copy, &first.m1, &first.m2,
                    &first.grad,  &first.half, &first.sum};
    for (int i = 0; i < 7; i++) {
        pool_free(left[i]);
    }
}
END_TEST

/* All 65536 halves into f32 and back, through each variant: the scalar conversions are the judge.
 */
START_TEST(every_half)
{
    static uint16_t from[65536], back[65536];
    static float wide[65536];
    static const ls_dtype types[] = {LS_F16, LS_BF16};
    ls_dtype type = types[_i];
    for (int v = 0; v < 3; v++) {
        for (int i = 0; i < 65536; i++) {
            from[i] = (uint16_t)i;
        }
        ls_tensor a = {from, type, 65536}, b = {wide, LS_F32, 65536}, c = {back, type, 65536};
        ls_multi_convert_with(variant_at(v), 1, b, a, 1.0f);
        ls_multi_convert_with(variant_at(v), 1, c, b, 1.0f);
        for (int i = 0; i < 65536; i++) {
            float want = get(a, i);
            if (isnan(want)) {
                ck_assert(isnan(wide[i]) && isnan(get(c, i)));
            } else {
                ck_assert_uint_eq(ls_half_bits_of_f32(wide[i]), ls_half_bits_of_f32(want));
                ck_assert_uint_eq(back[i], from[i]);
            }
        }
        /* values between two halves: ties, just below, just above */
        for (int i = 0; i + 1 < 0x7c00; i++) {
            float tie = 0.5f * (get(a, i) + get(a, i + 1));
            float near[3] = {nextafterf(tie, 0.0f), tie, nextafterf(tie, INFINITY)};
            wide[i] = near[i % 3];
        }
        ls_multi_convert_with(variant_at(v), 1, c, b, 1.0f);
        for (int i = 0; i + 1 < 0x7c00; i++) {
            uint16_t want =
                type == LS_F16 ? ls_half_f32_to_fp16(wide[i]) : ls_half_f32_to_bf16(wide[i]);
            ck_assert_uint_eq(back[i], want);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("multi");
    TCase *tests = tcase_create("multi");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, optimizer_goldens);
    tcase_add_test(tests, sgd_exact);
    tcase_add_test(tests, sgd_rounds_each_operation);
    tcase_add_test(tests, masters_and_half_values);
    tcase_add_loop_test(tests, apex_goldens, 0, (int)(sizeof apex_rows / sizeof apex_rows[0]));
    tcase_add_test(tests, lars_by_hand);
    tcase_add_test(tests, lamb_without_a_norm);
    tcase_add_test(tests, scaler_sequence);
    tcase_add_test(tests, scaler_ends);
    tcase_add_loop_test(tests, non_finite_everywhere, 0, 3);
    tcase_add_test(tests, unscale_values);
    tcase_add_test(tests, skip_changes_no_bit);
    tcase_add_loop_test(tests, same_bits_everywhere, 0, 4);
    tcase_add_loop_test(tests, every_half, 0, 2);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed;
}
