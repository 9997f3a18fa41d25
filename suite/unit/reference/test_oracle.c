/* The oracle's step: its gradients are the slopes of its loss, in both forms of batch norm, with
 * accumulation and in every kind of network; results do not depend on threads; forced own branches
 * change nothing. */
#include <dirent.h>
#include <float.h>
#include <omp.h>

#include "kernels/core/path.h"
#include "reference/model/model.h"
#include "reference/oracle/oracle.h"
#include "reference/oracle/ideal_error.h"
#include "reference/oracle/planes.h"
#include "suite/inside/kernel.h"
#include "suite/unit/run_suite.h"

/* Uniform with variance 1, from a plain linear generator: fast, and good enough for inputs. */
static double draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int64_t)*state * 0x1p-63 * 1.7320508075688772;
}

/* Sums of a few terms up to 6 in FP64, in another order: some tens of units of 2^-53. */
#define FEW_TERMS 1e-14

/* Losses and gradients of torch.nn.functional.cross_entropy(..., label_smoothing=E) in float64,
 * torch 2.15: of three rows of four logits. */
TEST(losses_are_those_of_torch)
{
    static const double logits[3][4] = {
        {0.5, -1.25, 2.0, 0.125}, {3.0, 0.25, -0.5, 1.0}, {-2.0, 4.0, 0.0, 1.5}};
    static const int64_t target[3] = {2, 0, 3};
    static const double even[3] = {1, 1, 1};
    static const struct {
        double smoothing, loss[3], grad[3][4];
    } want[] = {
        {0,
         {0.3473127897970557, 0.2065754779421169, 2.597924386775989},
         {{0.15766026385263707, 0.02739724577511041, -0.2934157186650209, 0.10835820903727332},
          {-0.18663513196636372, 0.05199667639406631, 0.0245614907822552, 0.11007696479004225},
          {0.0022475278800564644, 0.9067174609924643, 0.016607109589647895, -0.9255720984621686}}},
        {0.1,
         {0.5129377897970557, 0.4128254779421169, 2.660424386775989},
         {{0.13266026385263707, 0.002397245775110409, -0.21841571866502096, 0.08335820903727331},
          {-0.11163513196636377, 0.02699667639406631, -0.0004385092177448015, 0.08507696479004226},
          {-0.022752472119943537, 0.8817174609924643, -0.008392890410352107, -0.8505720984621686}}},
        {0.75,
         {1.5895002897970558, 1.753450477942117, 3.066674386775989},
         {{-0.029839736147362933, -0.1601027542248896, 0.2690842813349791, -0.07914179096272668},
          {0.3758648680336363, -0.1355033236059337, -0.1629385092177448, -0.07742303520995775},
          {-0.18525247211994353, 0.7192174609924643, -0.1708928904103521, -0.3630720984621686}}},
        {1,
         {2.003562789797056, 2.269075477942117, 3.222924386775989},
         {{-0.09233973614736293, -0.2226027542248896, 0.4565842813349791, -0.14164179096272667},
          {0.5633648680336363, -0.1980033236059337, -0.2254385092177448, -0.13992303520995775},
          {-0.24775247211994353, 0.6567174609924643, -0.2333928904103521, -0.1755720984621686}}},
    };
    ls_planes x, grad;
    ck_assert_int_eq(ls_planes_allocate(3, 1, 1, 4, &x), LS_OK);
    ck_assert_int_eq(ls_planes_allocate(3, 1, 1, 4, &grad), LS_OK);
    for (int n = 0; n < 3; n++) {
        memcpy(x.value + n * x.pitch, logits[n], sizeof logits[n]);
    }
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        double loss[3];
        ls_planes_cross_entropy(&x, target, want[i].smoothing, even, loss, &grad);
        for (int n = 0; n < 3; n++) {
            ck_assert_double_le(fabs(loss[n] - want[i].loss[n]), FEW_TERMS);
            for (int c = 0; c < 4; c++) {
                double off = grad.value[n * grad.pitch + c] - want[i].grad[n][c];
                ck_assert_double_le(fabs(off), FEW_TERMS);
            }
        }
    }
    ls_planes_free(&x);
    ls_planes_free(&grad);
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
ROWS_TEST(gradients_are_slopes, slopes)
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

TEST(threads_do_not_matter)
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

TEST(own_branches_forced_change_nothing)
{
    problem *p = make_problem("resnet18", 32, 2, 1, 2, 1);
    ls_oracle_result own = run(p, (ls_oracle_mode){.keep_branches = true});
    double zero[LS_NETTAB_BRANCHES_MAX] = {0};
    ls_oracle_result forced =
        run(p, (ls_oracle_mode){.forced = &own.branches, .tie_limit = zero, .rank_grads = true});
    ck_assert_mem_eq(own.grad, forced.grad, (size_t)p->net.elements * sizeof(double));
    ls_oracle_result kept =
        run(p, (ls_oracle_mode){.forced = &own.branches, .tie_limit = zero, .keep_branches = true});
    ck_assert_mem_eq(&kept.branches, &forced.branches, sizeof kept.branches); /* none, either way */
    ck_assert_mem_ne(&own.branches, &forced.branches, sizeof own.branches);
    ls_oracle_free(&p->net, &kept);
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

/* Local batch norm: a rank of an uneven world computes what it would alone, and all ranks weigh the
 * same in the gradient, however many images they have. With SyncBN the statistics are those of one
 * big batch. Exact but for the sums' order: n * 1e-16 of their size. */
TEST(uneven_ranks_are_steps_of_their_own)
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

TEST(uneven_syncbn_has_the_statistics_of_one_batch)
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

/* What half costs is far above f32, below the gradient itself, and a power-of-two loss scale costs
 * f32 nothing. */
TEST(ideal_errors_have_their_order)
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

/* bf16 has 8 times the unit of fp16; an overflowing loss scale is seen; noise moves an ideal by
 * about its ideal_error. */
TEST(types_scale_and_noise_are_used)
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

/* ---- a forward pass -------------------------------------------------------------------------- */

static const struct formula_row {
    const char *arch;
    int size, world, accumulate, batch[4];
} formulas[] = {{"resnet8", 9, 3, 2, {1, 4, 2}},
                {"resnet20", 8, 1, 1, {3}},
                {"resnet18", 35, 2, 1, {2, 1}},
                {"resnet50", 33, 1, 1, {2}}};

/* Statistics of micro-step `group` of all, counted by micro-steps and ranks. */
static void expect_stats(const problem *p, const double *stats, int group,
                         const ls_kernel_interpreter *t, double limit)
{
    int groups = p->step.world * p->step.accumulate, norms = 0, seen = 0;
    for (int i = 0; i < t->n->network.layer_count; i++) {
        const ls_layer *layer = &t->n->layer[i];
        norms += layer->kind == LS_LAYER_BATCH_NORM;
        for (int k = 0; layer->kind == LS_LAYER_BATCH_NORM && k < p->net.node_count; k++) {
            const ls_nettab_node *node = &p->net.node[k];
            const double *mean = stats + ls_oracle_stats_of(&p->step, k);
            bool same = node->kind == LS_NETTAB_NORM && node->weight == layer->weight;
            seen += same;
            for (int c = 0; same && c < node->channels; c++) {
                int64_t of = (int64_t)group * node->channels + c;
                double v = t->variance[i][c];
                ck_assert_double_eq_tol(mean[of], t->mean[i][c], limit);
                ck_assert_double_eq_tol(mean[groups * node->channels + of], v, limit * (1 + v));
            }
        }
    }
    ck_assert_int_eq(seen, norms);
}

/* Logits, losses and statistics of every rank and micro-step, against the trainer's network in the
 * plain loops that kernels are judged by; FP64 on both sides, sums in another order: up to 4608
 * terms, and what the batch norms of 50 layers make of 1e-16 of each: measured below 1e-12. */
ROWS_TEST(a_forward_pass_is_its_formula, formulas)
{
    const struct formula_row *row = &formulas[_i];
    problem *p = make_uneven(row->arch, row->size, row->world, row->accumulate, row->batch, 1);
    ls_oracle_result have = run(p, (ls_oracle_mode){.forward_only = true});
    int classes = p->net.classes, image = 3 * row->size * row->size;
    const double limit = 1e-9, *logits = have.logits;
    static ls_kernel_net n;
    ls_network own;
    ck_assert_int_eq(ls_model_build(row->arch, classes, row->size, &own), LS_OK);
    ck_assert(own.layer_count <= LS_KERNEL_NET_LAYERS && own.param_count <= LS_KERNEL_NET_PARAMS);
    n.network = own;
    memcpy(n.layer, own.layer, (size_t)own.layer_count * sizeof *n.layer);
    memcpy(n.param, own.param, (size_t)own.param_count * sizeof *n.param);
    for (int rank = 0; rank < row->world; rank++) {
        int batch = row->batch[rank];
        double loss = 0;
        ls_kernel_interpreter t;
        ls_kernel_interpreter_make(&t, &n, batch, row->size, row->size, LS_KERNEL_ROUND_NONE);
        for (int k = 0; k < own.param_count; k++) {
            memcpy(t.param[k], p->param + p->net.param[k].offset,
                   (size_t)p->net.param[k].count * sizeof(double));
        }
        for (int micro = 0; micro < row->accumulate; micro++) {
            for (int i = 0; i < batch * image; i++) {
                t.value[0][i] = (double)p->input[rank][micro * batch * image + i];
            }
            ls_kernel_interpreter_forward(&t, p->target[rank] + micro * batch);
            for (int i = 0; i < batch * classes; i++) {
                ck_assert_double_eq_tol(*logits++, t.value[own.layer_count - 2][i], limit);
            }
            loss += t.loss / row->accumulate;
            expect_stats(p, have.stats, micro * row->world + rank, &t, limit);
        }
        ck_assert_double_eq_tol(have.loss[rank], loss, limit);
        ls_kernel_interpreter_free(&t);
    }
    ls_model_free(&own);
    ls_oracle_free(&p->net, &have);
    free_problem(p);
}

/* Values up to 16 that are kept in f32. */
static const double kept_limit = 1e-6;
/* The same sum of squares in two orders: n * 1e-16 of it. */
static const double sum_limit = 1e-12;

/* ---- forced branches ------------------------------------------------------------------------- */

static void set_limits(double limit[LS_NETTAB_BRANCHES_MAX], double value)
{
    for (int b = 0; b < LS_NETTAB_BRANCHES_MAX; b++) {
        limit[b] = value;
    }
}

/* Turned branches: counted, measured in units of their limit, and the first eight of those that are
 * no ties named by rank, micro-step, sample, channel, row and column. */
TEST(turned_branches_are_named)
{
    static const int batch[2] = {1, 3};
    problem *p = make_uneven("resnet18", 33, 2, 2, batch, 1);
    ls_oracle_result own = run(p, (ls_oracle_mode){.keep_branches = true, .keep_input = true});
    ls_branch_set *set = &own.branches;
    double limit[LS_NETTAB_BRANCHES_MAX];
    set_limits(limit, 1e9);
    ck_assert_int_eq(p->net.node[p->net.branch_node[0]].kind, LS_NETTAB_RELU);
    ck_assert_int_eq(p->net.node[p->net.branch_node[1]].kind, LS_NETTAB_POOL);
    /* the last ReLU [8][1][1][512], so that nothing else turns: sample 5 is rank 1's second image
     * of micro-step 1 (samples 4; 5, 6, 7 of ranks 0; 1) */
    int last = p->net.branch_count - 1, channels = 512;
    const ls_nettab_node *node = &p->net.node[p->net.branch_node[last]];
    int plane = node->height * node->width;
    ck_assert_int_eq(node->channels, channels);
    ck_assert_int_eq(set->elements[last], 8 * plane * channels);
    int64_t far = -1, near = -1;
    double distance[2] = {0, INFINITY};
    for (int64_t i = 6 * plane * channels; i < 7 * plane * channels; i++) {
        double x = fabs((double)own.kept_input[last][i]);
        far = x > distance[0] ? i : far;
        near = x < distance[1] ? i : near;
        distance[0] = fmax(distance[0], x);
        distance[1] = fmin(distance[1], x);
    }
    set->open[last][far] ^= 1;
    set->open[last][near] ^= 1;
    limit[last] = (distance[0] + distance[1]) / 2;
    ls_oracle_result forced =
        run(p, (ls_oracle_mode){.forced = set, .tie_limit = limit, .forward_only = true});
    ck_assert_int_eq(forced.turned, 2);
    ck_assert_int_eq(forced.violation_count, 1);
    ck_assert_double_eq_tol(forced.tie_ratio, distance[0] / limit[last], kept_limit);
    const ls_oracle_violation *v = &forced.violation[0];
    int64_t in_sample = far % (plane * channels);
    ck_assert(v->branch == last && v->rank == 1 && v->micro == 1 && v->sample == 1 &&
              v->channel == in_sample % channels && v->row == in_sample / channels / node->width &&
              v->column == in_sample / channels % node->width && !v->outside);
    ck_assert_double_eq_tol(fabs(v->value), distance[0], kept_limit);
    ck_assert(v->limit == limit[last]);
    ls_oracle_free(&p->net, &forced);
    forced = run(p, (ls_oracle_mode){.forced = set, .forward_only = true}); /* no limits */
    ck_assert_int_eq(forced.turned, 2);
    ck_assert_int_eq(forced.violation_count, 0);
    ck_assert(forced.tie_ratio == 0);
    ls_oracle_free(&p->net, &forced);
    /* nine far ones: all are counted, eight are kept */
    set->open[last][far] ^= 1;
    set->open[last][near] ^= 1;
    limit[last] = 0;
    for (int i = 0; i < 9; i++) {
        set->open[last][7 * i + 3] ^= 1;
    }
    forced = run(p, (ls_oracle_mode){.forced = set, .tie_limit = limit, .forward_only = true});
    ck_assert_int_eq(forced.turned, 9);
    ck_assert_int_eq(forced.violation_count, 9);
    for (int i = 0; i < LS_ORACLE_VIOLATIONS_MAX; i++) {
        v = &forced.violation[i];
        ck_assert_int_eq((v->row * node->width + v->column) * channels + v->channel, 7 * i + 3);
        ck_assert(v->rank == 0 && v->micro == 0 && v->sample == 0);
    }
    ls_oracle_free(&p->net, &forced);
    ls_oracle_free(&p->net, &own);
    free_problem(p);
}

/* A pool's index beside its window, before the plane, behind it; and another one of the window. */
TEST(turned_pools_are_named)
{
    problem *p = make_problem("resnet18", 33, 1, 1, 2, 1);
    const ls_nettab_node *node = &p->net.node[p->net.branch_node[1]];
    int out = node->width, in = 17, channels = 64; /* 33 / 2 = 17, / 2 = 9 */
    ck_assert_int_eq(out, 9);
    double limit[LS_NETTAB_BRANCHES_MAX];
    set_limits(limit, 1e9);
    /* sample 1, channel 5, output (4, 4): rows and columns 7 to 9 */

    static const struct {
        int row, column;
        bool outside;
    } rows[] = {{7, 7, false}, {9, 9, false}, {9, 7, false}, {7, 9, false},  {6, 8, true},
                {10, 8, true}, {8, 6, true},  {8, 10, true}, {-1, 16, true}, {17, 0, true}};
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        ls_oracle_result own = run(
            p, (ls_oracle_mode){.keep_branches = true, .keep_input = true, .forward_only = true});
        int32_t *index = &own.branches.index[1][((int64_t)out * out + 4 * out + 4) * channels + 5];
        const float *plane = own.kept_input[1] + (int64_t)in * in * channels + 5;
        int32_t chosen = rows[k].row * in + rows[k].column, first = *index;
        double gap = rows[k].outside ? INFINITY
                                     : (double)plane[(int64_t)first * channels] -
                                           (double)plane[(int64_t)chosen * channels];
        for (int i = 0; i < 9; i++) { /* the maximum, and the first in order of rows */
            int other = (7 + i / 3) * in + 7 + i % 3;
            ck_assert(plane[(int64_t)other * channels] < plane[(int64_t)first * channels] ||
                      (plane[(int64_t)other * channels] == plane[(int64_t)first * channels] &&
                       other >= first));
        }
        *index = chosen;
        ls_shards shards = ls_oracle_shards(&p->step);
        ck_assert_int_eq(ls_shards_samples(&shards), 2);
        limit[1] = gap > 0 && gap < INFINITY ? gap / 2 : 1e9;
        ls_oracle_mode mode = {.forced = &own.branches, .tie_limit = limit, .forward_only = true};
        if (!rows[k].outside) { /* one that is outside is not read either */
            ls_oracle_result forced = run(p, mode);
            ck_assert_int_ge(forced.turned, gap > 0);
            ck_assert_int_eq(forced.violation_count, gap > 0);
            if (gap > 0) {
                const ls_oracle_violation *v = &forced.violation[0];
                ck_assert(v->branch == 1 && v->sample == 1 && v->channel == 5 && v->row == 4 &&
                          v->column == 4 && !v->outside);
                ck_assert_double_eq_tol(v->value, gap, kept_limit);
            }
            ls_oracle_free(&p->net, &forced);
        }
        ls_oracle_free(&p->net, &own);
    }
    free_problem(p);
}

/* ---- the ideal's cost ------------------------------------------------------------------------ */

static int files_in(const char *folder)
{
    int count = 0;
    DIR *entries = opendir(folder);
    for (struct dirent *entry; entries != NULL && (entry = readdir(entries)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    if (entries != NULL) {
        closedir(entries);
    }
    return count;
}

static void expect_cost(const problem *p, const ls_ideal_error_cost *have,
                        const ls_ideal_error_cost *want, int spans)
{
    size_t one = sizeof(double), count = (size_t)spans;
    ck_assert_mem_eq(have->error2, want->error2, count * one);
    ck_assert_mem_eq(have->grad2, want->grad2, count * one);
    ck_assert_mem_eq(have->branch_rms, want->branch_rms, (size_t)p->net.branch_count * one);
    for (int i = 0; i < 2 * p->net.node_count; i++) { /* only norms have statistics */
        ck_assert(p->net.node[i / 2].kind != LS_NETTAB_NORM ||
                  have->stats_error2[i] == want->stats_error2[i]);
    }
    ck_assert(have->whole_error2 == want->whole_error2 && have->whole_grad2 == want->whole_grad2 &&
              have->logits_error2 == want->logits_error2 && have->logits2 == want->logits2);
}

/* The squares of the differences and of `plain`, which statistics do not have. */
static void expect_sums(const double *ideal, const double *plain, int64_t count, double error2,
                        const double *square2)
{
    double error = 0, square = 0;
    for (int64_t i = 0; i < count; i++) {
        error += pow(ideal[i] - plain[i], 2);
        square += pow(plain[i], 2);
    }
    ck_assert_double_eq_tol(error2, error, sum_limit * error + DBL_MIN);
    if (square2 != NULL) {
        ck_assert_double_eq_tol(*square2, square, sum_limit * square + DBL_MIN);
    }
}

/* Each figure of a cost, from the two runs that it compares. */
TEST(costs_are_their_formula)
{
    static const int batch[2] = {2, 3};
    problem *p = make_uneven("resnet8", 9, 2, 2, batch, 1);
    p->step.level = 2;
    ls_ideal_error_span spans[] = {{0, 5}, {7, 100}, {p->net.elements - 1, 1}};
    ls_ideal_error_cost cost;
    ck_assert_int_eq(ls_ideal_error_measure(&p->step, spans, 3, NULL, &cost), LS_OK);
    ls_oracle_result ideal =
        run(p, (ls_oracle_mode){.ideal = true, .keep_branches = true, .keep_input = true});
    ls_oracle_result plain =
        run(p, (ls_oracle_mode){.forced = &ideal.branches, .keep_input = true});
    for (int k = 0; k < 3; k++) {
        expect_sums(ideal.grad + spans[k].from, plain.grad + spans[k].from, spans[k].count,
                    cost.error2[k], &cost.grad2[k]);
    }
    expect_sums(ideal.logits, plain.logits, 10 * 10, cost.logits_error2, &cost.logits2);
    int64_t begin = 0;
    for (int i = 0; i < 2 * p->net.node_count; i++) {
        const ls_nettab_node *node = &p->net.node[i / 2];
        int64_t count = node->kind == LS_NETTAB_NORM ? 4 * node->channels : 0;
        expect_sums(ideal.stats + begin, plain.stats + begin, count, cost.stats_error2[i], NULL);
        begin += count;
    }
    ck_assert_int_eq(begin, ls_oracle_stats_count(&p->step));
    for (int b = 0; b < p->net.branch_count; b++) {
        double sum = 0;
        for (int64_t i = 0; i < ideal.branches.elements[b]; i++) {
            sum += pow((double)ideal.kept_input[b][i] - (double)plain.kept_input[b][i], 2);
        }
        double rms = sqrt(sum / (double)ideal.branches.elements[b]);
        ck_assert_double_gt(rms, 0);
        ck_assert_double_eq_tol(cost.branch_rms[b], rms, kept_limit);
        ck_assert_double_eq_tol(cost.branch_rms[b] / rms, 1, 1e4 * kept_limit); /* of 1e-3 */
    }
    ls_oracle_free(&p->net, &ideal);
    ls_oracle_free(&p->net, &plain);
    ls_ideal_error_cost_free(&cost);
    free_problem(p);
}

static int first_norm(const problem *p)
{
    int node = 0;
    while (p->net.node[node].kind != LS_NETTAB_NORM) {
        node++;
    }
    return node;
}

/* Kept results: found again, never another step's, and not where the file is damaged. */
TEST(kept_results_belong_to_their_step)
{
    char root[] = "/tmp/test_oracle.XXXXXX", folder[64], path[400];
    ck_assert_ptr_nonnull(mkdtemp(root));
    snprintf(folder, sizeof folder, "%s/kept", root);
    static const int batch[2] = {2, 2};
    problem *p = make_uneven("resnet8", 8, 2, 1, batch, 1);
    ls_ideal_error_span spans[] = {{0, 5}, {7, 100}};
    ls_ideal_error_cost first, again;
    enum { CHANGES = 17 };
    int files = 0;
    for (int change = 0; change < CHANGES; change++) {
        /* each is another step, the ones before included */
        p->input[1][3 * 8 * 8 * 2 - 1] += change == 1 ? 1 : 0;
        p->target[1][1] = (p->target[1][1] + (change == 2)) % 10;
        p->param[p->net.elements - 1] += change == 3 ? 1 : 0;
        p->step.level = change < 4 ? 1 : 2;
        p->step.half = change < 5 || change >= 15 ? LS_BITS_F16 : LS_BITS_BF16;
        p->step.loss_scale = change < 6 ? 128 : 64;
        p->step.predivide = change < 7 ? 1 : 2;
        p->step.reduce = change < 8 ? LS_BITS_F64 : LS_BITS_F32;
        p->step.average = change < 9 ? p->step.average : LS_ORACLE_SUM;
        p->step.stat_ranks = change < 10 || change == 16 ? 1 : 2;
        spans[1].count = change < 11 ? 100 : 99;
        spans[0].from = change < 12 ? 0 : 1;
        p->batch[0] = change < 13 || change == 16 ? 2 : 1;
        p->step.label_smoothing = change < 14 ? 0 : 0.1;
        p->step.applied[first_norm(p)] = change >= 15; /* an ideal that rounds scale and offset */
        p->step.world = change < 16 ? 2 : 1;
        ck_assert_int_eq(ls_ideal_error_measure(&p->step, spans, 2, folder, &first), LS_OK);
        ck_assert_msg(files_in(folder) == ++files, "change %d: %d files", change, files_in(folder));
        ck_assert_int_eq(ls_ideal_error_measure(&p->step, spans, 2, folder, &again), LS_OK);
        ck_assert_int_eq(files_in(folder), files);
        expect_cost(p, &again, &first, 2);
        ls_ideal_error_cost_free(&again);
        ck_assert_int_eq(ls_ideal_error_measure(&p->step, spans, 2, NULL, &again), LS_OK);
        expect_cost(p, &again, &first, 2);
        ls_ideal_error_cost_free(&again);
        if (change < CHANGES - 1) {
            ls_ideal_error_cost_free(&first);
        }
    }
    /* a bit of each part of a file changed: the result stays right */
    static const int64_t places[] = {0, 8, 16, 24, 32, 40, 48, 100, -1};
    for (size_t k = 0; k < sizeof places / sizeof places[0]; k++) {
        DIR *entries = opendir(folder);
        for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
            FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r+b");
            if (file != NULL) {
                ck_assert_int_eq(fseek(file, places[k], places[k] < 0 ? SEEK_END : SEEK_SET), 0);
                int byte = fgetc(file);
                ck_assert_int_eq(fseek(file, -1, SEEK_CUR), 0);
                fputc(byte ^ 0x10, file);
                fclose(file);
            }
        }
        closedir(entries);
        ck_assert_int_eq(ls_ideal_error_measure(&p->step, spans, 2, folder, &again), LS_OK);
        expect_cost(p, &again, &first, 2);
        ls_ideal_error_cost_free(&again);
    }
    ls_ideal_error_cost_free(&first);
    /* forced runs: everything that is kept */
    ls_oracle_result own = run(p, (ls_oracle_mode){.keep_branches = true});
    double limit[LS_NETTAB_BRANCHES_MAX] = {0};
    own.branches.open[2][9] ^= 1;
    for (int change = 0; change < 4; change++) {
        own.branches.open[0][0] ^= change == 1;
        p->step.label_smoothing = change == 2 ? 0 : 0.1;
        set_limits(limit, change == 3 ? 1e9 : 0);
        ls_oracle_result want =
            run(p, (ls_oracle_mode){.forced = &own.branches, .tie_limit = limit});
        files = files_in(folder);
        for (int time = 0; time < 2; time++) {
            ls_oracle_result kept;
            ck_assert_int_eq(ls_ideal_error_forced(&p->step, &own.branches, limit, folder, &kept),
                             LS_OK);
            ck_assert_int_eq(files_in(folder), files + 1);
            ck_assert_mem_eq(kept.grad, want.grad, (size_t)p->net.elements * sizeof(double));
            ck_assert_mem_eq(kept.logits, want.logits, 2 * 10 * sizeof(double));
            ck_assert_mem_eq(kept.loss, want.loss, sizeof(double));
            ck_assert_mem_eq(kept.stats, want.stats,
                             (size_t)ls_oracle_stats_count(&p->step) * sizeof(double));
            ck_assert(kept.turned == want.turned && kept.tie_ratio == want.tie_ratio &&
                      kept.violation_count == want.violation_count);
            ck_assert_int_eq(want.violation_count > 0, change != 3);
            for (int i = 0; i < want.violation_count && i < LS_ORACLE_VIOLATIONS_MAX; i++) {
                ck_assert(kept.violation[i].channel == want.violation[i].channel &&
                          kept.violation[i].value == want.violation[i].value);
            }
            ls_oracle_free(&p->net, &kept);
        }
        ls_oracle_free(&p->net, &want);
    }
    ls_oracle_free(&p->net, &own);
    ls_path_remove_tree(root);
    free_problem(p);
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* Names and sizes as the trainer's own table has them, which was written independently. */
TEST(networks_are_the_trainers)
{
    static const char *const archs[] = {"resnet8",  "resnet20",  "resnet32", "resnet44",
                                        "resnet56", "resnet110", "resnet18", "resnet34",
                                        "resnet50", "resnet101", "resnet152"};
    ls_nettab *net = malloc(sizeof *net);
    for (size_t a = 0; a < sizeof archs / sizeof archs[0]; a++) {
        ls_network own;
        ck_assert(ls_nettab_knows(archs[a]));
        ck_assert_int_eq(ls_nettab_build(archs[a], 7, 65, 65, net), LS_OK);
        ck_assert_int_eq(ls_model_build(archs[a], 7, 65, &own), LS_OK);
        ck_assert_int_eq(net->param_count, own.param_count);
        ck_assert_int_eq(net->branch_count, own.branch_count);
        int64_t offset = 0;
        for (int i = 0; i < net->param_count; i++) {
            const ls_nettab_param *param = &net->param[i];
            ck_assert_str_eq(param->name, own.param[i].name);
            ck_assert_int_eq(param->count, ls_shape_count(&own.param[i].shape));
            ck_assert_int_eq(param->offset, offset);
            ck_assert_int_eq(ls_nettab_find_param(net, param->name), i);
            const ls_nettab_node *node = &net->node[param->node];
            ck_assert(node->weight == i || node->bias == i);
            offset += param->count;
        }
        ck_assert_int_eq(net->elements, offset);
        ck_assert_int_eq(ls_nettab_find_param(net, "fc"), -1);
        ls_model_free(&own);
    }
    ck_assert_int_eq(ls_nettab_build("resnet50", 1000, 224, 224, net), LS_OK);
    ck_assert(net->elements == 25557032 && ls_nettab_macs(net) == 4089184256); /* torchvision's */
    ck_assert_int_eq(ls_nettab_build("resnet19", 10, 32, 32, net), LS_ERR_USAGE);
    ck_assert(!ls_nettab_knows("resnet") && !ls_nettab_knows("resnet1521"));
    ck_assert_int_eq(ls_nettab_build("resnet8", 1, 1, 1, net), LS_OK);
    ck_assert_int_eq(ls_nettab_build("resnet8", 0, 8, 8, net), LS_ERR_USAGE);
    ck_assert_int_eq(ls_nettab_build("resnet8", 1, 0, 8, net), LS_ERR_USAGE);
    ck_assert_int_eq(ls_nettab_build("resnet8", 1, 8, 0, net), LS_ERR_USAGE);
    free(net);
}

TEST_MAIN("oracle", .timeout_s = 60)
