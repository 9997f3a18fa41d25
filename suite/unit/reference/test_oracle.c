/* The oracle's step: its gradients are the slopes of its loss, in both forms of batch norm, with
 * accumulation and in every kind of network; results do not depend on threads; forced own branches
 * change nothing. */
#include <check.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "reference/oracle/oracle.h"
#include "reference/oracle/ideal_error.h"
#include "suite/unit/run_suite.h"

/* Uniform with variance 1, from a plain linear generator: fast, and good enough for inputs. */
static double draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int64_t)*state * 0x1p-63 * 1.7320508075688772;
}

typedef struct problem {
    ls_nettab net;
    ls_oracle_step step;
    int batch[4];
    float *input[4];
    int64_t *target[4];
    double *param;
} problem;

/* Random images, classes and parameters of about the size that training starts from. */
static problem *make_uneven(const char *arch, int size, int world, int accumulate, const int *batch,
                            int stat_ranks)
{
    problem *p = calloc(1, sizeof *p);
    ck_assert_int_eq(ls_nettab_build(arch, 10, size, size, &p->net), LS_OK);
    uint64_t state = 1;
    for (int rank = 0; rank < world; rank++) {
        p->batch[rank] = batch[rank];
        int64_t images = (int64_t)accumulate * batch[rank], values = images * 3 * size * size;
        p->input[rank] = malloc((size_t)values * sizeof(float));
        p->target[rank] = malloc((size_t)images * sizeof(int64_t));
        for (int64_t i = 0; i < values; i++) {
            p->input[rank][i] = (float)draw(&state);
        }
        for (int64_t i = 0; i < images; i++) {
            p->target[rank][i] = (3 * rank + 7 * i) % 10;
        }
    }
    p->param = malloc((size_t)p->net.elements * sizeof(double));
    for (int k = 0; k < p->net.param_count; k++) {
        const ls_nettab_param *param = &p->net.param[k];
        const ls_nettab_node *node = &p->net.node[param->node];
        bool norm = node->kind == LS_NETTAB_NORM;
        double spread = norm ? 0.2 : sqrt(2.0 * node->channels / (double)param->count);
        for (int64_t i = 0; i < param->count; i++) {
            p->param[param->offset + i] =
                (norm && k == node->weight ? 1.0 : 0.0) + spread * draw(&state);
        }
    }
    p->step = (ls_oracle_step){.net = &p->net,
                               .world = world,
                               .accumulate = accumulate,
                               .batch = p->batch,
                               .stat_ranks = stat_ranks,
                               .input = (const float *const *)p->input,
                               .target = (const int64_t *const *)p->target,
                               .param = p->param,
                               .loss_scale = 128,
                               .half = LS_BITS_F16,
                               .predivide = 1};
    return p;
}

static problem *make_problem(const char *arch, int size, int world, int accumulate, int batch,
                             int stat_ranks)
{
    const int even[4] = {batch, batch, batch, batch};
    return make_uneven(arch, size, world, accumulate, even, stat_ranks);
}

static void free_problem(problem *p)
{
    for (int rank = 0; rank < 4; rank++) {
        free(p->input[rank]);
        free(p->target[rank]);
    }
    free(p->param);
    free(p);
}

static ls_oracle_result run(const problem *p, ls_oracle_mode mode)
{
    ls_oracle_result result;
    ck_assert_int_eq(ls_oracle_run(&p->step, &mode, &result), LS_OK);
    return result;
}

static double relative(const double *a, const double *b, int64_t count)
{
    ls_ideal_error_span span = {0, count};
    return sqrt(ls_ideal_error_squared(a, b, span) / ls_ideal_error_square(b, span));
}

static double mean_loss(const problem *p, const ls_branch_set *branches)
{
    ls_oracle_result result = run(p, (ls_oracle_mode){.forced = branches, .forward_only = true});
    double sum = 0;
    for (int rank = 0; rank < p->step.world; rank++) {
        sum += result.loss[rank] / p->step.world;
    }
    ls_oracle_free(&p->net, &result);
    return sum;
}

typedef struct slope_row {
    const char *arch;
    int size, world, accumulate, batch[4], stat_ranks;
    int stride; /* every stride-th tensor */
} slope_row;

static const slope_row slopes[] = {
    {"resnet8", 8, 1, 1, {4}, 1, 1},          {"resnet8", 9, 2, 1, {3, 3}, 1, 3},
    {"resnet8", 8, 2, 1, {3, 3}, 2, 2},       {"resnet8", 8, 4, 2, {2, 2, 2, 2}, 2, 3},
    {"resnet18", 33, 1, 1, {4}, 1, 24},       {"resnet50", 33, 1, 1, {4}, 1, 80},
    {"resnet20", 8, 3, 2, {2, 2, 2}, 3, 11},  {"resnet8", 8, 3, 1, {1, 4, 2}, 1, 5},
    {"resnet8", 8, 3, 1, {1, 4, 2}, 3, 5},    {"resnet8", 9, 2, 3, {3, 1}, 2, 5},
    {"resnet8", 8, 4, 2, {3, 1, 2, 4}, 2, 5},
};

/* One direction per tensor: (L(p + h v) - L(p - h v)) / 2h = g . v on fixed branches, where the
 * loss is smooth. The error of the central difference is h^2 times a third derivative, that of the
 * loss 1e-15/h: at h = 1e-5 of the tensor's norm both stay below 1e-6 of the gradient's norm;
 * measured 1e-9 to 5e-8. */
START_TEST(gradients_are_slopes)
{
    const slope_row *row = &slopes[_i];
    problem *p =
        make_uneven(row->arch, row->size, row->world, row->accumulate, row->batch, row->stat_ranks);
    ls_oracle_result result = run(p, (ls_oracle_mode){.keep_branches = true});
    double worst = 0;
    for (int k = _i % row->stride; k < p->net.param_count; k += row->stride) {
        const ls_nettab_param *param = &p->net.param[k];
        double *value = p->param + param->offset;
        double *before = malloc((size_t)param->count * sizeof *before);
        memcpy(before, value, (size_t)param->count * sizeof *before);
        double expected = 0, norm = 0;
        for (int64_t i = 0; i < param->count; i++) {
            norm += before[i] * before[i] / (double)param->count;
        }
        double h = 1e-5 * sqrt(norm), loss[2], grad2 = 0;
        for (int side = 0; side < 2; side++) {
            uint64_t state = 5; /* the same direction on both sides */
            for (int64_t i = 0; i < param->count; i++) {
                double v = draw(&state);
                value[i] = before[i] + (side == 0 ? h : -h) * v;
                expected += side == 0 ? v * result.grad[param->offset + i] : 0;
                grad2 +=
                    side == 0 ? result.grad[param->offset + i] * result.grad[param->offset + i] : 0;
            }
            loss[side] = mean_loss(p, &result.branches);
        }
        memcpy(value, before, (size_t)param->count * sizeof *before);
        free(before);
        double error = fabs((loss[0] - loss[1]) / (2 * h) - expected) / sqrt(grad2);
        worst = fmax(worst, error);
        /* above the test: 1e-6 is what a step of h leaves */
        ck_assert_msg(error < 1e-6, "%s %s: slope %.9g, gradient %.9g", row->arch, param->name,
                      (loss[0] - loss[1]) / (2 * h), expected);
    }
    ck_assert_msg(worst > 0, "nothing was compared");
    ls_oracle_free(&p->net, &result);
    free_problem(p);
}
END_TEST

START_TEST(threads_do_not_matter)
{
    problem *p = make_problem("resnet20", 16, 2, 1, 3, 1);
    ls_oracle_result first = {0};
    setenv("OMP_NUM_THREADS", "1", 1); /* from here on the oracle takes what omp is set to */
    for (int threads = 1; threads <= 5; threads += 2) {
        omp_set_num_threads(threads);
        ls_oracle_result result = run(p, (ls_oracle_mode){.ideal = true, .noise_seed = 7});
        if (threads > 1) {
            ck_assert_mem_eq(result.grad, first.grad, (size_t)p->net.elements * sizeof(double));
            ls_oracle_free(&p->net, &result);
        } else {
            first = result;
        }
    }
    ls_oracle_free(&p->net, &first);
    free_problem(p);
}
END_TEST

START_TEST(own_branches_forced_change_nothing)
{
    problem *p = make_problem("resnet18", 32, 2, 1, 2, 1);
    ls_oracle_result own = run(p, (ls_oracle_mode){.keep_branches = true});
    double zero[LS_NETTAB_BRANCHES_MAX] = {0};
    ls_oracle_result forced =
        run(p, (ls_oracle_mode){.forced = &own.branches, .tie_limit = zero, .rank_grads = true});
    ck_assert_mem_eq(own.grad, forced.grad, (size_t)p->net.elements * sizeof(double));
    ck_assert_int_eq(forced.turned, 0);
    ck_assert_int_eq(forced.violation_count, 0);
    /* the ranks' own gradients average to the whole one; they are kept as floats */
    for (int64_t i = 0; i < p->net.elements; i += 101) {
        double a = forced.rank_grad[i], b = forced.rank_grad[p->net.elements + i];
        ck_assert_double_le(fabs((a + b) / 2 - own.grad[i]), 0x1p-24 * (fabs(a) + fabs(b)));
    }
    ls_oracle_free(&p->net, &forced);
    ls_oracle_free(&p->net, &own);
    free_problem(p);
}
END_TEST

/* Local batch norm: a rank of an uneven world computes what it would alone, and all ranks weigh the
 * same in the gradient, however many images they have. With SyncBN the statistics are those of one
 * big batch. Exact but for the sums' order: n * 1e-16 of their size. */
START_TEST(uneven_ranks_are_steps_of_their_own)
{
    static const int batch[3] = {1, 4, 2};
    problem *p = make_uneven("resnet8", 9, 3, 2, batch, 1);
    ls_oracle_result whole = run(p, (ls_oracle_mode){0});
    double *mean = calloc((size_t)p->net.elements, sizeof *mean);
    const double *logits = whole.logits;
    for (int rank = 0; rank < 3; rank++) {
        problem alone = *p;
        alone.step.world = 1;
        alone.step.batch = &batch[rank];
        alone.step.input = (const float *const *)&p->input[rank];
        alone.step.target = (const int64_t *const *)&p->target[rank];
        ls_oracle_result one = run(&alone, (ls_oracle_mode){0});
        size_t count = 2 * (size_t)batch[rank] * (size_t)p->net.classes;
        ck_assert_mem_eq(logits, one.logits, count * sizeof *logits);
        ck_assert_mem_eq(&whole.loss[rank], one.loss, sizeof *one.loss);
        for (int64_t i = 0; i < p->net.elements; i++) {
            mean[i] += one.grad[i] / 3;
        }
        logits += count;
        ls_oracle_free(&p->net, &one);
    }
    /* FP64 on both sides; only the order of three terms differs, units of 2^-53 each */
    ck_assert_double_lt(relative(whole.grad, mean, p->net.elements), 1e-14);
    free(mean);
    ls_oracle_free(&p->net, &whole);
    free_problem(p);
}
END_TEST

START_TEST(uneven_syncbn_has_the_statistics_of_one_batch)
{
    static const int batch[3] = {1, 4, 2}, together = 7;
    problem *p = make_uneven("resnet8", 9, 3, 1, batch, 3);
    int64_t image = 3 * 9 * 9;
    float *input = malloc((size_t)(together * image) * sizeof *input);
    int64_t target[7];
    for (int rank = 0, at = 0; rank < 3; at += batch[rank++]) {
        memcpy(input + at * image, p->input[rank], (size_t)(batch[rank] * image) * sizeof *input);
        memcpy(target + at, p->target[rank], (size_t)batch[rank] * sizeof *target);
    }
    const float *const one_input[] = {input};
    const int64_t *const one_target[] = {target};
    problem big = *p;
    big.step.world = big.step.stat_ranks = 1;
    big.step.batch = &together;
    big.step.input = one_input;
    big.step.target = one_target;
    ls_oracle_result ranks = run(p, (ls_oracle_mode){0}), one = run(&big, (ls_oracle_mode){0});
    ck_assert_int_eq(ls_oracle_stats_count(&p->step), ls_oracle_stats_count(&big.step));
    ck_assert_mem_eq(ranks.stats, one.stats,
                     (size_t)ls_oracle_stats_count(&p->step) * sizeof *one.stats);
    ck_assert_mem_eq(ranks.logits, one.logits, 7 * (size_t)p->net.classes * sizeof(double));
    /* the loss is another: a rank's image counts 1/(3 * its batch), not 1/7 */
    ck_assert_double_gt(relative(ranks.grad, one.grad, p->net.elements), 1e-2);
    free(input);
    ls_oracle_free(&p->net, &ranks);
    ls_oracle_free(&p->net, &one);
    free_problem(p);
}
END_TEST

/* What half costs is far above f32, below the gradient itself, and a power-of-two loss scale costs
 * f32 nothing. */
START_TEST(ideal_errors_have_their_order)
{
    problem *p = make_problem("resnet8", 16, 2, 1, 4, 1);
    ls_oracle_result plain = run(p, (ls_oracle_mode){0});
    ls_ideal_error_span whole = {0, p->net.elements};
    double ideal_error[4];
    for (int level = 0; level <= 3; level++) {
        p->step.level = level;
        ls_ideal_error_cost cost;
        ck_assert_int_eq(ls_ideal_error_measure(&p->step, &whole, 1, NULL, &cost), LS_OK);
        /* 1e-12: the same sum of n squares in two orders, n * 1e-16 */
        ck_assert_double_eq_tol(cost.error2[0], cost.whole_error2, 1e-12 * cost.whole_error2);
        ideal_error[level] = sqrt(cost.whole_error2 / cost.whole_grad2);
        ls_ideal_error_cost_free(&cost);
    }
    ck_assert_double_gt(ideal_error[0], 0x1p-24 / 4); /* a store in f32 costs about a unit */
    ck_assert_double_lt(ideal_error[0], 0x1p-24 * 64);
    for (int level = 1; level <= 3; level++) {
        ck_assert_double_gt(ideal_error[level], 500 * ideal_error[0]); /* units are 8192 apart */
        ck_assert_double_lt(ideal_error[level], 0.05);
    }
    p->step.level = 0;
    ls_oracle_result scaled = run(p, (ls_oracle_mode){.ideal = true});
    p->step.loss_scale = 1;
    ls_oracle_result unscaled = run(p, (ls_oracle_mode){.ideal = true});
    ck_assert_mem_eq(scaled.grad, unscaled.grad, (size_t)p->net.elements * sizeof(double));
    ls_oracle_free(&p->net, &unscaled);
    ls_oracle_free(&p->net, &scaled);
    ls_oracle_free(&p->net, &plain);
    free_problem(p);
}
END_TEST

/* bf16 has 8 times the unit of fp16; an overflowing loss scale is seen; noise moves an ideal by
 * about its ideal_error. */
START_TEST(types_scale_and_noise_are_used)
{
    problem *p = make_problem("resnet8", 16, 1, 1, 4, 1);
    p->step.level = 2;
    ls_oracle_result ideal = run(p, (ls_oracle_mode){.ideal = true});
    ls_oracle_result noisy = run(p, (ls_oracle_mode){.ideal = true, .noise_seed = 3});
    ls_oracle_result plain = run(p, (ls_oracle_mode){0});
    p->step.half = LS_BITS_BF16;
    ls_oracle_result coarse = run(p, (ls_oracle_mode){.ideal = true});
    double fp16 = relative(ideal.grad, plain.grad, p->net.elements);
    double bf16 = relative(coarse.grad, plain.grad, p->net.elements);
    double moved = relative(noisy.grad, ideal.grad, p->net.elements);
    ck_assert_msg(bf16 > 2 * fp16, "bf16 %g fp16 %g", bf16, fp16);
    ck_assert_msg(moved > 0 && moved < 4 * fp16, "noise moved by %g, ideal_error %g", moved, fp16);
    p->step.half = LS_BITS_F16;
    p->step.loss_scale = 0x1p24;
    ls_oracle_result over = run(p, (ls_oracle_mode){.ideal = true});
    ck_assert(!isfinite(relative(over.grad, plain.grad, p->net.elements)));
    ls_oracle_free(&p->net, &over);
    ls_oracle_free(&p->net, &coarse);
    ls_oracle_free(&p->net, &plain);
    ls_oracle_free(&p->net, &noisy);
    ls_oracle_free(&p->net, &ideal);
    free_problem(p);
}
END_TEST

/* Counts known from elsewhere: torchvision's parameters; multiply-adds of
 * ResNet-50 at 224. */
START_TEST(networks_have_their_sizes)
{
    static const struct {
        const char *arch;
        int classes, size, branches;
        int64_t elements;
    } rows[] = {
        {"resnet18", 1000, 224, 18, 11689512},   {"resnet34", 1000, 224, 34, 21797672},
        {"resnet50", 1000, 224, 50, 25557032},   {"resnet101", 1000, 224, 101, 44549160},
        {"resnet152", 1000, 224, 152, 60192808}, {"resnet20", 10, 32, 19, 269722},
        {"resnet110", 10, 32, 109, 1727962},
    };
    ls_nettab *net = malloc(sizeof *net);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ck_assert_int_eq(
            ls_nettab_build(rows[i].arch, rows[i].classes, rows[i].size, rows[i].size, net), LS_OK);
        ck_assert_msg(net->elements == rows[i].elements, "%s: %lld elements", rows[i].arch,
                      (long long)net->elements);
        ck_assert_msg(net->branch_count == rows[i].branches, "%s: %d branches", rows[i].arch,
                      net->branch_count);
    }
    ck_assert_int_eq(ls_nettab_build("resnet50", 1000, 224, 224, net), LS_OK);
    ck_assert_int_eq(ls_nettab_macs(net), 4089184256);
    ck_assert_int_eq(ls_nettab_build("resnet19", 10, 32, 32, net), LS_ERR_USAGE);
    free(net);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("oracle");
    TCase *tests = tcase_create("step");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, gradients_are_slopes, 0, sizeof slopes / sizeof slopes[0]);
    tcase_add_test(tests, threads_do_not_matter);
    tcase_add_test(tests, own_branches_forced_change_nothing);
    tcase_add_test(tests, uneven_ranks_are_steps_of_their_own);
    tcase_add_test(tests, uneven_syncbn_has_the_statistics_of_one_batch);
    tcase_add_test(tests, ideal_errors_have_their_order);
    tcase_add_test(tests, types_scale_and_noise_are_used);
    tcase_add_test(tests, networks_have_their_sizes);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
