/* Optimizer steps with one mistake each, computed here, are given their cause. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/half.h"
#include "kernels/core/rng.h"
#include "reference/files/safetensors.h"
#include "suite/judge/diagnose.h"
#include "suite/unit/run_suite.h"

enum { COUNT = 300, STEP = 3 };

typedef enum wrong {
    RIGHT,
    NO_DECAY,
    DAMPENED,
    NESTEROV,
    COUNTED_ONE_MORE,
    NOT_CORRECTED,
    DECOUPLED,
    TWICE,
    STILL,
    HALF,
    UNTOLD,
    UNKNOWN,
} wrong;

static const char *const words[] = {"",
                                    "weight decay is left out",
                                    "dampening equal to momentum",
                                    "Nesterov",
                                    "one step too many",
                                    "no bias correction",
                                    "decoupled and L2",
                                    "twice the reported one",
                                    "no value moved",
                                    "rounded to half",
                                    "the dump does not record",
                                    ""};

/* One element: torch.optim's SGD or Adam with the mistake. */
static float stepped(bool adam, wrong mistake, double p, double g, double m, double v)
{
    double lr = mistake == TWICE ? 0.1 : 0.05, next;
    double decay = mistake == NO_DECAY ? 0 : mistake == UNTOLD ? 1e-4 : 0.01;
    if (mistake == STILL || mistake == UNKNOWN) {
        return (float)(mistake == STILL ? p : p * 0.7 + g * g);
    }
    if (adam) {
        double t = mistake == COUNTED_ONE_MORE ? STEP + 1 : STEP;
        double start = mistake == DECOUPLED ? p * (1 - lr * decay) : p;
        g += mistake == DECOUPLED ? 0 : decay * p;
        m = 0.9 * m + 0.1 * g;
        v = 0.999 * v + 0.001 * g * g;
        double c1 = mistake == NOT_CORRECTED ? 1 : 1 - pow(0.9, t);
        double c2 = mistake == NOT_CORRECTED ? 1 : 1 - pow(0.999, t);
        next = start - lr * (m / c1) / (sqrt(v / c2) + 1e-8);
    } else {
        double d = g + decay * p, buffer = 0.9 * m + (mistake == DAMPENED ? 0.1 : 1) * d;
        next = p - lr * (mistake == NESTEROV ? d + 0.9 * buffer : buffer);
    }
    float single = (float)next;
    return mistake == HALF ? ls_half_fp16_to_f32(ls_half_f32_to_fp16(single)) : single;
}

static void add(ls_safetensors_writer *writer, const char *name, const float *value)
{
    ls_shape shape = {1, {COUNT}};
    ck_assert_int_eq(ls_safetensors_add_copy(writer, name, LS_F32, &shape, value), LS_OK);
}

static void write_dump(const char *path, bool adam, wrong mistake)
{
    float p[COUNT], g[COUNT], m[COUNT], v[COUNT], next[COUNT];
    for (int i = 0; i < COUNT; i++) {
        p[i] = ls_rng_normal(1, 1, (uint64_t)i);
        g[i] = ls_rng_normal(1, 2, (uint64_t)i);
        m[i] = ls_rng_normal(1, 3, (uint64_t)i);
        v[i] = fabsf(ls_rng_normal(1, 4, (uint64_t)i));
        next[i] = stepped(adam, mistake, (double)p[i], (double)g[i], (double)m[i], (double)v[i]);
    }
    ls_safetensors_writer *writer;
    ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
    ls_safetensors_metadata(writer, "optimizer", "%s", adam ? "adam" : "sgd");
    ls_safetensors_metadata(writer, "lr", "0.05");
    if (mistake != UNTOLD) {
        ls_safetensors_metadata(writer, "momentum", "0.9");
        ls_safetensors_metadata(writer, "weight_decay", "0.01");
    }
    ls_safetensors_metadata(writer, "betas", "0.9,0.999");
    ls_safetensors_metadata(writer, "eps", "1e-8");
    ls_safetensors_metadata(writer, "step", "%d", STEP);
    ls_safetensors_metadata(writer, "optimizer_steps", "%d", STEP);
    add(writer, "param/w", p);
    add(writer, "grad/w", g);
    add(writer, adam ? "state/w/exp_avg" : "state/w/momentum_buffer", m);
    if (adam) {
        add(writer, "state/w/exp_avg_sq", v);
    }
    add(writer, "next/w", next);
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
}

static void check(bool adam, wrong mistake)
{
    char path[] = "/tmp/ls_diagnose_step_XXXXXX", text[240];
    int descriptor = mkstemp(path);
    ck_assert_int_ge(descriptor, 0);
    close(descriptor);
    write_dump(path, adam, mistake);
    ls_dumpfile *file;
    ls_update_rule rule;
    bool skipped;
    ls_compare_checks checks = {0};
    ls_compare_optim_result result;
    ck_assert_int_eq(ls_dumpfile_open(path, &file), LS_OK);
    ck_assert(ls_compare_optim_rule(file, false, &rule, &skipped));
    ck_assert_int_eq(ls_compare_optim_step(file, &rule, skipped, &checks, &result), LS_OK);
    ck_assert(result.judged);
    ck_assert_msg((checks.count == 0) == (mistake == RIGHT), "mistake %d: %s", (int)mistake,
                  checks.line);
    if (mistake != RIGHT) {
        ck_assert_int_eq(ls_diagnose_step(file, &rule, skipped, text, sizeof text), LS_OK);
        ck_assert_msg(strstr(text, words[mistake]) != NULL, "mistake %d: '%s'", (int)mistake, text);
        ck_assert_msg(mistake != UNKNOWN || text[0] == '\0', "'%s'", text);
    }
    ls_dumpfile_close(file);
    unlink(path);
}

START_TEST(sgd)
{
    static const wrong of_sgd[] = {RIGHT, NO_DECAY, DAMPENED, NESTEROV, TWICE,
                                   STILL, HALF,     UNTOLD,   UNKNOWN};
    check(false, of_sgd[_i]);
}
END_TEST

START_TEST(adam)
{
    static const wrong of_adam[] = {RIGHT, NO_DECAY, COUNTED_ONE_MORE, NOT_CORRECTED, DECOUPLED,
                                    TWICE, HALF,     UNTOLD,           UNKNOWN};
    check(true, of_adam[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("diagnose_step");
    TCase *tests = tcase_create("diagnose_step");
    tcase_add_loop_test(tests, sgd, 0, 9);
    tcase_add_loop_test(tests, adam, 0, 9);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
