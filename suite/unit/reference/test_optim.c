/* The oracle's optimizers against PyTorch's in float64 (LAMB and LARS: numpy), and the comparison
 * of a dump's step: right ones pass, planted ones do not. */
#include <strings.h>

#include "reference/oracle/update.h"
#include "reference/files/safetensors.h"
#include "suite/judge/compare.h"
#include "suite/unit/run_suite.h"

enum { STEPS = 5, FIRST = 3, ELEMENTS = 7 };

typedef struct golden {
    ls_update_rule rule;
    double want[ELEMENTS];
} golden;

#define BETAS(b1, b2, eps) .beta1 = (b1), .beta2 = (b2), .epsilon = (eps)

static const golden goldens[] = {
#include "optim_goldens.inc"
};

/* FP64 sums of a few terms in another order: some tens of units of 2^-53. */
#define FP64_LIMIT 1e-14

/* Start and gradients of suite/peers/optim_goldens.py. */
static const double start[ELEMENTS] = {0.5, -1.25, 2.0, 0.01, 0.3, -0.7, 1.5};

static void make_gradient(int step, double *grad)
{
    for (int i = 0; i < ELEMENTS; i++) {
        int k = i < FIRST ? 0 : 1, place = i - FIRST * k;
        grad[i] = sin(1.0 + step * (place + 1 + 3 * k)) * (1.0 + k);
    }
}

ROWS_TEST(oracle_equals_pytorch, goldens)
{
    const golden *g = &goldens[_i];
    double value[ELEMENTS], grad[ELEMENTS], error[3][ELEMENTS] = {{0}}, moment[2][ELEMENTS] = {{0}};
    memcpy(value, start, sizeof value);
    for (int t = 0; t < STEPS; t++) {
        make_gradient(t, grad);
        ls_update_rule rule = g->rule;
        rule.step = t + 1;
        rule.grad_squares = ls_update_squares(grad, ELEMENTS);
        rule.grad_elements = ELEMENTS;
        for (int k = 0; k < 2; k++) {
            int at = k * FIRST;
            ls_update_tensor tensor = {
                .count = k == 0 ? FIRST : ELEMENTS - FIRST,
                .grad = grad + at,
                .value = value + at,
                .value_error = error[0] + at,
                .moment = {moment[0] + at, moment[1] + at},
                .moment_error = {error[1] + at, error[2] + at},
            };
            ck_assert_int_eq(ls_update_step(&rule, &tensor), LS_OK);
        }
    }
    for (int i = 0; i < ELEMENTS; i++) {
        ck_assert_double_eq_tol(value[i], g->want[i], FP64_LIMIT * (1 + fabs(g->want[i])));
        /* what f32 may cost in five steps: more than a unit, and small */
        ck_assert_double_gt(error[0][i], 0x1p-25 * fabs(value[i]));
        ck_assert_double_lt(error[0][i], 1e-4);
    }
}

/* The oracle's own list and kernels/optimizers.def name the same optimizers and moments. */
TEST(oracle_knows_every_optimizer)
{
    static const struct {
        const char *name;
        ls_update_kind kind;
        int moments;
        const char *moment[2];
        double epsilon; /* 0: the option's own */
    } optimizers[] = {
#define LS_OPTIMIZER(KIND, name, rule, variants, norms, moments, moment1, moment2, epsilon, ...) \
    {#name, LS_UPDATE_##KIND, moments, {moment1, moment2}, epsilon},
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    };
    ck_assert_uint_eq(sizeof optimizers / sizeof *optimizers, LS_UPDATE_KINDS);
    ck_assert_int_eq(ls_update_find("rmsprop"), LS_UPDATE_KINDS);
    ck_assert_int_eq(ls_update_find(""), LS_UPDATE_KINDS);
    for (int i = 0; i < LS_UPDATE_KINDS; i++) {
        ls_update_rule rule = {.kind = ls_update_find(optimizers[i].name), .momentum = 0.9};
        bool golden = false;
        for (size_t g = 0; g < sizeof goldens / sizeof *goldens; g++) {
            golden = golden || goldens[g].rule.kind == rule.kind;
        }
        ck_assert_msg(golden, "optim_goldens.py has no %s", optimizers[i].name);
        ck_assert_int_eq(rule.kind, optimizers[i].kind);
        ck_assert_int_eq(ls_update_moments(&rule), optimizers[i].moments);
        for (int m = 0; m < optimizers[i].moments; m++) {
            ck_assert_str_eq(ls_update_moment_name(rule.kind, m), optimizers[i].moment[m]);
        }
        bool counts = optimizers[i].moments == 2;
        rule.momentum = 0;
        ck_assert_int_eq(ls_update_moments(&rule), counts ? 2 : 0);
        ck_assert_int_eq(ls_update_counts_steps(rule.kind), counts);
        ck_assert_int_eq(strcasecmp(ls_update_label(rule.kind), optimizers[i].name), 0);
        ck_assert(ls_update_epsilon(rule.kind) ==
                  (optimizers[i].epsilon > 0 ? optimizers[i].epsilon : 1e-8));
    }
}

/* ---- a dump's step --------------------------------------------------------------------------- */

typedef enum plant {
    CLEAN,
    EPS_INSIDE,     /* of the root */
    UNCORRECTED,    /* no bias correction */
    OFF_BY_ONE,     /* t one too high */
    COUPLED,        /* AdamW's decay in the gradient */
    FLOAT_BETA,     /* 1 - float(0.999) */
    SECOND_STALE,   /* next_state keeps the old second moment */
    LAST_LEFT,      /* the last element is not stepped */
    SKIPPED_MOMENT, /* a skipped step that moved a moment */
    SKIPPED_CLEAN,
    PLANTS,
} plant;

static double planted_step(plant planted, double p, double g, double *m, double *v)
{
    double lr = 0.01, decay = 0.05, b1 = 0.9, b2 = planted == FLOAT_BETA ? (double)0.999f : 0.999;
    double t = planted == OFF_BY_ONE ? 3 : 2, eps = 1e-8;
    g += planted == COUPLED ? decay * p : 0;
    *m = b1 * *m + (1 - b1) * g;
    double second = b2 * *v + (1 - b2) * g * g;
    *v = planted == SECOND_STALE ? *v : second;
    double mh = *m / (1 - pow(b1, t)), vh = second / (1 - pow(b2, t));
    if (planted == UNCORRECTED) {
        mh = *m;
        vh = second;
    }
    double direction = planted == EPS_INSIDE ? mh / sqrt(vh + eps) : mh / (sqrt(vh) + eps);
    return p - lr * direction - (planted == COUPLED ? 0 : lr * decay * p);
}

enum { COUNT = 65 };

static void add(ls_safetensors_writer *writer, const char *name, const float *value)
{
    ls_shape shape = {.rank = 1, .dim = {COUNT}};
    ck_assert_int_eq(ls_safetensors_add_copy(writer, name, LS_F32, &shape, value), LS_OK);
}

static void write_dump(const char *path, plant planted)
{
    bool skipped = planted == SKIPPED_MOMENT || planted == SKIPPED_CLEAN;
    float p[COUNT], g[COUNT], m[COUNT], v[COUNT], np[COUNT], nm[COUNT], nv[COUNT];
    for (int i = 0; i < COUNT; i++) {
        p[i] = 0.3f * sinf((float)i);
        g[i] = 1e-5f * cosf(1.7f * (float)i); /* so small that the place of eps matters */
        m[i] = 0.1f * g[i];
        v[i] = 1e-3f * g[i] * g[i];
        double first = (double)m[i], second = (double)v[i];
        double next = planted_step(planted, (double)p[i], (double)g[i], &first, &second);
        bool stays = skipped || (planted == LAST_LEFT && i == COUNT - 1);
        np[i] = stays ? p[i] : (float)next;
        nm[i] = stays && planted != SKIPPED_MOMENT ? m[i] : (float)first;
        nv[i] = stays ? v[i] : (float)second;
    }
    ls_safetensors_writer *writer;
    ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
    add(writer, "param/w", p);
    add(writer, "grad/w", g);
    add(writer, "next/w", np);
    add(writer, "state/w/exp_avg", m);
    add(writer, "state/w/exp_avg_sq", v);
    add(writer, "next_state/w/exp_avg", nm);
    add(writer, "next_state/w/exp_avg_sq", nv);
    ls_safetensors_metadata(writer, "step", "3"); /* one was skipped */
    ls_safetensors_metadata(writer, "optimizer_steps", "2");
    ls_safetensors_metadata(writer, "optimizer", "adamw");
    ls_safetensors_metadata(writer, "lr", "0.01");
    ls_safetensors_metadata(writer, "weight_decay", "0.05");
    ls_safetensors_metadata(writer, "betas", "0.9,0.999");
    ls_safetensors_metadata(writer, "eps", "1e-8");
    ls_safetensors_metadata(writer, "skipped", skipped ? "true" : "false");
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
}

LOOP_TEST(planted_steps_are_caught, PLANTS)
{
    char path[] = "/tmp/ls_optim_XXXXXX";
    int handle = mkstemp(path);
    ck_assert_int_ge(handle, 0);
    close(handle);
    write_dump(path, (plant)_i);
    ls_dumpfile *file;
    ck_assert_int_eq(ls_dumpfile_open(path, &file), LS_OK);
    ls_update_rule rule;
    bool skipped;
    ck_assert(ls_compare_optim_rule(file, false, &rule, &skipped));
    ck_assert(rule.kind == LS_UPDATE_ADAMW && rule.step == 2 && rule.beta2 == 0.999);
    ls_compare_checks checks = {0};
    ls_compare_optim_result result;
    ck_assert_int_eq(ls_compare_optim_step(file, &rule, skipped, &checks, &result), LS_OK);
    ck_assert(result.judged && result.state_judged);
    bool good = _i == CLEAN || _i == SKIPPED_CLEAN;
    ck_assert_msg((checks.count == 0) == good, "plant %d: %s", _i, checks.line);
    if (_i == LAST_LEFT) {
        ck_assert_ptr_nonnull(strstr(checks.line, "element 64"));
    }
    ls_dumpfile_close(file);
    unlink(path);
}

/* ---- the bound on f32's deviation ------------------------------------------------------------ */

/* A number and its error. Each operation passes on the errors of its operands and adds half a unit
 * of f32 (2^-24) of the result, and the smallest normal number where a result may be flushed. */
typedef struct inexact {
    double value, error;
} inexact;

static inexact rounded(double value, double error)
{
    return (inexact){value, error * (1 + 0x1p-24) + fabs(value) * 0x1p-24 + 0x1p-126};
}

static inexact constant(double value)
{
    return (inexact){value, fabs(value) * 0x1p-24};
}

static inexact sum(inexact a, inexact b)
{
    return rounded(a.value + b.value, a.error + b.error);
}

static inexact less(inexact a, inexact b)
{
    return rounded(a.value - b.value, a.error + b.error);
}

/* (a + ea)(b + eb) - ab */
static inexact product(inexact a, inexact b)
{
    double most = (fabs(a.value) + a.error) * (fabs(b.value) + b.error);
    return rounded(a.value * b.value, most - fabs(a.value * b.value));
}

/* (a + ea) / (b - eb) - a / b, for a positive b */
static inexact ratio(inexact a, inexact b)
{
    return rounded(a.value / b.value,
                   (fabs(a.value) + a.error) / (b.value - b.error) - fabs(a.value) / b.value);
}

static inexact root(inexact a)
{
    double exact = sqrt(a.value), most = exact > 0 ? a.error / exact : INFINITY;
    return rounded(exact, fmin(most, sqrt(a.error)));
}

/* Sums of n squares: four units for each of sqrt(n) steps at random, and eight. */
static inexact norm(const inexact *value, int n)
{
    double squares = 0, errors = 0;
    for (int i = 0; i < n; i++) {
        squares += value[i].value * value[i].value;
        errors += value[i].error * value[i].error;
    }
    return (inexact){sqrt(squares), sqrt(errors) + sqrt(squares) * (8 + 4 * sqrt(n)) * 0x1p-24};
}

static const ls_update_rule bounded[] = {
    {.kind = LS_UPDATE_SGD},
    {.kind = LS_UPDATE_SGD, .momentum = 0.9, .weight_decay = 0.1},
    {.kind = LS_UPDATE_SGD, .momentum = 0.9, .dampening = 0.25, .nesterov = true},
    {.kind = LS_UPDATE_ADAM, .weight_decay = 0.1},
    {.kind = LS_UPDATE_ADAM, .uncorrected = true},
    {.kind = LS_UPDATE_ADAMW, .weight_decay = 0.1},
    {.kind = LS_UPDATE_LAMB, .max_grad_norm = 0.5, .weight_decay = 0.1},
    {.kind = LS_UPDATE_LAMB, .max_grad_norm = 50, .nvlamb = true},
    {.kind = LS_UPDATE_LAMB, .weight_decay = 0.1, .l2 = true},
    {.kind = LS_UPDATE_LAMB},
    {.kind = LS_UPDATE_LARS, .momentum = 0.9, .weight_decay = 0.1, .trust = 0.02},
    {.kind = LS_UPDATE_LARS, .weight_decay = 0.1, .trust = 0.5, .clip = true},
    {.kind = LS_UPDATE_LARS, .trust = 0.001, .clip = true},
};

enum { BOUNDED = 3 };

/* One step of the three elements in x, m1, m2, from the formulas at the head of update.h. */
static void bounded_step(const ls_update_rule *o, const double *grad, inexact *x, inexact *m1,
                         inexact *m2)
{
    inexact one = {1, 0}, lr = constant(o->lr), decay = constant(o->weight_decay);
    inexact momentum = constant(o->momentum), g[BOUNDED], divisor = one, scale = lr;
    for (int i = 0; i < BOUNDED; i++) {
        g[i] = (inexact){grad[i], 0};
    }
    bool decays = o->weight_decay != 0;
    if (o->kind == LS_UPDATE_SGD || o->kind == LS_UPDATE_LARS) {
        inexact trust = one, all = norm(x, BOUNDED);
        if (o->kind == LS_UPDATE_LARS) {
            inexact below = sum(sum(norm(g, BOUNDED), product(decay, all)), constant(o->epsilon));
            trust = ratio(product(constant(o->trust), all), below);
            if (o->clip) {
                trust = ratio(trust, lr);
                trust = trust.value < 1 ? trust : one;
            }
        }
        for (int i = 0; i < BOUNDED; i++) {
            inexact d = g[i];
            if (o->kind == LS_UPDATE_LARS) {
                d = product(sum(d, product(decay, x[i])), trust);
            } else if (decays) {
                d = sum(d, product(decay, x[i]));
            }
            if (o->momentum != 0) {
                inexact part =
                    o->dampening != 0 ? product(less(one, constant(o->dampening)), d) : d;
                m1[i] = o->step == 1 ? d : sum(product(momentum, m1[i]), part);
                d = o->nesterov ? sum(d, product(momentum, m1[i])) : m1[i];
            }
            x[i] = less(x[i], product(lr, d));
        }
        return;
    }
    bool lamb = o->kind == LS_UPDATE_LAMB;
    inexact u[BOUNDED], all = norm(x, BOUNDED), gradients = norm(g, BOUNDED);
    if (lamb && o->max_grad_norm > 0 && gradients.value > o->max_grad_norm) {
        divisor = ratio(gradients, constant(o->max_grad_norm));
    }
    for (int i = 0; i < BOUNDED; i++) {
        g[i] = lamb ? ratio(g[i], divisor) : g[i];
        if (decays && (lamb ? o->l2 : o->kind == LS_UPDATE_ADAM)) {
            g[i] = sum(g[i], product(decay, x[i]));
        }
        m1[i] = sum(product(constant(o->beta1), m1[i]), product(constant(1 - o->beta1), g[i]));
        m2[i] = sum(product(constant(o->beta2), m2[i]),
                    product(product(constant(1 - o->beta2), g[i]), g[i]));
        inexact first = m1[i], second = m2[i];
        if (!o->uncorrected) {
            first = ratio(first, constant(1 - pow(o->beta1, (double)o->step)));
            second = ratio(second, constant(1 - pow(o->beta2, (double)o->step)));
        }
        u[i] = ratio(first, sum(root(second), constant(o->epsilon)));
        if (lamb && decays && !o->l2) {
            u[i] = sum(u[i], product(decay, x[i]));
        }
        if (o->kind == LS_UPDATE_ADAMW && decays) {
            x[i] = less(x[i], product(product(lr, decay), x[i]));
        }
    }
    if (lamb && (o->nvlamb || decays)) {
        scale = product(lr, ratio(all, norm(u, BOUNDED)));
    }
    for (int i = 0; i < BOUNDED; i++) {
        x[i] = less(x[i], product(scale, u[i]));
    }
}

/* FP64 of both: some units, in errors that are sums of a dozen terms. */
static const double bound_limit = 1e-12;

/* Values, moments and their errors after each of three steps; they begin with errors of their own.
 */
ROWS_TEST(errors_are_their_formula, bounded)
{
    ls_update_rule rule = bounded[_i];
    rule.lr = 0.1;
    rule.beta1 = 0.8;
    rule.beta2 = 0.95;
    rule.epsilon = 1e-3;
    double state[3][BOUNDED] = {{0.5, -1.25, 2}}, error[3][BOUNDED] = {{1e-6, 0, 3e-7}};
    inexact want[3][BOUNDED];
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < BOUNDED; i++) {
            want[k][i] = (inexact){state[k][i], error[k][i]};
        }
    }
    int moments = ls_update_moments(&rule);
    for (int t = 1; t <= 3; t++) {
        double grad[BOUNDED] = {0.5 * t, -0.25, t == 2 ? -1 : 0.75};
        rule.step = t;
        rule.grad_squares = ls_update_squares(grad, BOUNDED);
        rule.grad_elements = BOUNDED;
        ls_update_tensor tensor = {.count = BOUNDED,
                                   .grad = grad,
                                   .value = state[0],
                                   .value_error = error[0],
                                   .moment = {state[1], state[2]},
                                   .moment_error = {error[1], error[2]}};
        ck_assert_int_eq(ls_update_step(&rule, &tensor), LS_OK);
        bounded_step(&rule, grad, want[0], want[1], want[2]);
        for (int k = 0; k <= moments; k++) {
            for (int i = 0; i < BOUNDED; i++) {
                ck_assert_double_eq_tol(state[k][i], want[k][i].value, bound_limit);
                ck_assert_msg(fabs(error[k][i] - want[k][i].error) <=
                                  1e4 * bound_limit * want[k][i].error,
                              "step %d, %d of element %d: error %.15g, wanted %.15g", t, k, i,
                              error[k][i], want[k][i].error);
            }
        }
    }
}

/* A divisor that may be zero bounds nothing. */
TEST(errors_without_a_bound)
{
    ls_update_rule rule = {.kind = LS_UPDATE_ADAM, .step = 1, .lr = 1, .beta1 = 0.5, .beta2 = 0.5};
    double value = 1, zero[5] = {0}, grad = 0;
    ls_update_tensor tensor = {1, &grad, &value, zero, {zero + 1, zero + 2}, {zero + 3, zero + 4}};
    ck_assert_int_eq(ls_update_step(&rule, &tensor), LS_OK);
    ck_assert(!isfinite(zero[0]));
}

/* AdamW with amsgrad in f32 as torch computes it: other forms of mean, decay and step, a correction
 * from a count in f32. */
static void take_torch_step(float grad, int t, float *value, float *first, float *second,
                            float *highest)
{
    const double lr = 0.0625, decay = 0.01, beta1 = 0.9, beta2 = 0.999;
    *value *= (float)(1 - lr * decay); /* settings are FP64 until they meet a tensor */
    *first += (float)(1 - beta1) * (grad - *first);
    *second = *second * (float)beta2 + (float)(1 - beta2) * grad * grad;
    *highest = fmaxf(*highest, *second);
    float by1 = 1 - powf((float)beta1, (float)t), by2 = 1 - powf((float)beta2, (float)t);
    *value += *first / ((sqrtf(*highest) / (sqrtf(by2) * (float)-lr) + (float)(1e-8 / -lr)) * by1);
}

/* Each step from exact values. Without any_form some are outside: the bound is no wider than that.
 */
TEST(other_forms_are_within_their_bound)
{
    enum { TRIALS = 2000 };
    int outside[2] = {0, 0};
    for (int i = 0; i < TRIALS; i++) {
        float value = (float)sin(i + 1.0), first = 0, second = 0, highest = 0;
        for (int t = 1; t <= 3; t++) {
            float grad = (float)(cos(7.0 * i + t) / t);
            double g = grad, x[2][4], e[2][4];
            for (int any = 0; any < 2; any++) {
                double *v = x[any], *error = e[any];
                ls_update_rule rule = {.kind = LS_UPDATE_ADAMW,
                                       .step = t,
                                       .lr = 0.0625,
                                       .weight_decay = 0.01,
                                       .beta1 = 0.9,
                                       .beta2 = 0.999,
                                       .epsilon = 1e-8,
                                       .amsgrad = true,
                                       .any_form = any == 1};
                ls_update_tensor tensor = {.count = 1,
                                           .grad = &g,
                                           .value = v,
                                           .value_error = error,
                                           .moment = {v + 1, v + 2},
                                           .moment_error = {error + 1, error + 2},
                                           .highest = v + 3,
                                           .highest_error = error + 3};
                v[0] = value, v[1] = first, v[2] = second, v[3] = highest;
                memset(error, 0, 4 * sizeof *error);
                ck_assert_int_eq(ls_update_step(&rule, &tensor), LS_OK);
            }
            take_torch_step(grad, t, &value, &first, &second, &highest);
            const float got[4] = {value, first, second, highest};
            for (int any = 0; any < 2; any++) {
                for (int k = 0; k < 4; k++) {
                    outside[any] += fabs(got[k] - x[any][k]) > e[any][k];
                }
            }
        }
    }
    ck_assert_int_gt(outside[0], 0);
    ck_assert_int_eq(outside[1], 0);
}

/* The bound is in units of the type; an error of the gradient adds to it. */
TEST(errors_are_of_the_type)
{
    double error[4];
    for (int i = 0; i < 4; i++) {
        const ls_update_unit unit[4] = {{0, 0}, {0x1p-24, 0x1p-126}, {0x1p-8, 0x1p-126}, {0, 0}};
        double value = 1, grad = 0.5, off = i == 3 ? 0x1p-10 : 0;
        ls_update_rule rule = {.kind = LS_UPDATE_SGD, .step = 1, .lr = 0.25, .unit = unit[i]};
        ls_update_tensor tensor = {.count = 1,
                                   .grad = &grad,
                                   .value = &value,
                                   .value_error = &error[i],
                                   .grad_error = &off};
        error[i] = 0;
        ck_assert_int_eq(ls_update_step(&rule, &tensor), LS_OK);
        ck_assert_double_eq(value, 0.875);
    }
    ck_assert_double_eq(error[0], error[1]); /* {0} is f32 */
    ck_assert_double_eq_tol(error[2] / error[1], 0x1p16, 0x1p10);
    ck_assert_double_eq_tol(error[3] - error[0], 0.25 * 0x1p-10, 0x1p-20);
}

TEST_MAIN("optim")
