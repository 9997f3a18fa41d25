/* Gradients of whole small networks on the CPU backend against the interpreter, on the subject's
 * own or on forced branches, judged by what ideal rounding costs (the bound of the conformance
 * suite); and steps of such networks. */
#include <sys/mman.h>

#include "kernels/core/rng.h"
#include "kernels/core/text.h"
#include "reference/oracle/bits.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "cpu_plan.h"

/* Of each test: its network, the plan of it and an interpreter, freed behind the test. */
static ls_kernel_net n;
static ls_kernel_subject s;
static ls_kernel_interpreter t;

static void open_plan(build *make, int batch, int height, int width, ls_kernel_subject_options o)
{
    make(&n);
    plan_make(&s, &n, batch, height, width, o);
}

static void close_plan(void)
{
    if (t.n != NULL) {
        ls_kernel_interpreter_free(&t);
    }
    if (s.n != NULL) {
        ls_kernel_subject_free(&s);
    }
}

/* The interpreter of the plan's network, after its forward. */
static void mirror(void)
{
    plan_mirror(&s, LS_KERNEL_ROUND_NONE, &t);
    ls_kernel_interpreter_forward(&t, s.target);
}

enum { NETWORKS = sizeof networks / sizeof networks[0] };

/* ---- gradients ------------------------------------------------------------------------------- */

static void check_network(build *make, int batch, int height, int width,
                          ls_kernel_subject_options o)
{
    open_plan(make, batch, height, width, o);
    double scale = o.activation == LS_F32 ? 1 : 128;
    s.state->loss_scale = (float)scale;
    plan_step(&s);
    judge_plan(&s, scale);
    ls_kernel_subject_free(&s);
}

LOOP_TEST(gradients_f32, NETWORKS)
{
    const int *size = sizes[_i];
    ls_kernel_subject_options two_threads = {.threads = 2};
    check_network(networks[_i], size[0], size[1], size[2], two_threads);
}

LOOP_TEST(gradients_half, 2 * NETWORKS)
{
    ls_dtype type = _i % 2 == 0 ? LS_F16 : LS_BF16;
    const int *size = sizes[_i / 2];
    ls_kernel_subject_options o1 = {.threads = 1, .activation = type};
    check_network(networks[_i / 2], size[0], size[1], size[2], o1);
    ls_kernel_subject_options o2 = {
        .threads = 1, .activation = type, .param_type = type, .grad_type = type};
    check_network(networks[_i / 2], size[0], size[1], size[2], o2);
}

LOOP_TEST(odd_sizes, 3)
{
    static const int odd[][3] = {{1, 37, 33}, {3, 19, 27}, {1, 40, 40}};
    check_network(build_basic, odd[_i][0], odd[_i][1], odd[_i][2], ONE_THREAD);
}

/* A gradient that two layers read until the end of backward: the sum of a ReLU's two contributions
 * cannot be written over the first of them. */
static void build_shared(ls_kernel_net *n)
{
    ls_kernel_net_start(n);
    int a = ls_kernel_net_conv(n, 0, 8, 3, 1, 1);
    int b = ls_kernel_net_relu(n, a);
    int c = ls_kernel_net_conv(n, b, 8, 3, 1, 1);
    ls_kernel_net_finish(n, ls_kernel_net_sum(n, ls_kernel_net_sum(n, b, a), c), 4);
}

LOOP_TEST(a_gradient_that_is_read_once_more, 3)
{
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};
    ls_kernel_subject_options o = {.threads = 2, .activation = types[_i]};
    check_network(build_shared, 3, 7, 9, o);
}

/* ---- forced branches ------------------------------------------------------------------------- */

LOOP_TEST(forced_plan_is_the_same, NETWORKS)
{
    for (int type = LS_F32; type <= LS_F16; type++) {
        ls_kernel_subject_options o = {.threads = 2, .activation = (ls_dtype)type};
        forced_is_the_same(networks[_i], sizes[_i], o);
    }
}

LOOP_TEST(forced_branches_are_taken, NETWORKS)
{
    ls_kernel_subject_options two_threads = {.threads = 2};
    forced_is_taken(networks[_i], sizes[_i], two_threads);
}

/* Error of the weight gradient of 1x1 convolution `layer` when it is one f32 sum over images and
 * pixels in order, from exact gradients. */
static double sum_in_order(const ls_kernel_subject *s, const ls_kernel_interpreter *exact,
                           int layer, int weight)
{
    int64_t pixels = (int64_t)s->options.height * s->options.width;
    int outputs = exact->n->layer[layer].channels;
    double difference = 0;
    for (int c = 0; c < outputs; c++) {
        for (int k = 0; k < 3; k++) {
            float sum = 0;
            for (int64_t i = 0; i < s->options.batch * pixels; i++) {
                int64_t image = i / pixels, p = i % pixels;
                double dy = exact->grad[layer][(image * outputs + c) * pixels + p];
                sum = fmaf((float)dy, s->input[(image * 3 + k) * pixels + p], sum);
            }
            double d = (double)sum - exact->param_grad[weight][c * 3 + k];
            difference += d * d;
        }
    }
    return sqrt(difference);
}

/* Of values with a large mean. E[x^2] - E[x]^2 in f32 would lose 20 of its 24 bits here. Gradients
 * of a convolution before a batch norm sum to zero over a channel, so that with a mean of m
 * deviations in its input all but 1/m of the products of its weight gradient cancel, while the
 * partial sums grow with m: one f32 sum (that is what oneDNN takes) errs by 300 times the ideal's
 * one rounding per stored value. Statistics, affine gradients and what follows keep their digits.
 */
TEST(large_mean_costs_the_weights_alone)
{
    ls_kernel_net_start(&n);
    int conv = ls_kernel_net_conv(&n, 0, 16, 1, 1, 0), weight = n.layer[conv].weight;
    ls_kernel_net_finish(&n, ls_kernel_net_relu(&n, ls_kernel_net_norm(&n, conv)), 4);
    plan_make(&s, &n, 4, 32, 32, ONE_THREAD);
    for (int64_t i = 0; i < 4 * 3 * 1024; i++) {
        s.input[i] = 1000 + s.input[i];
    }
    plan_step(&s);
    ls_kernel_interpreter ideal;
    plan_mirror(&s, LS_KERNEL_ROUND_NONE, &t);
    plan_mirror(&s, LS_KERNEL_ROUND_F32, &ideal);
    ls_kernel_interpreter_forward(&t, s.target);
    ls_kernel_interpreter_backward(&t, s.target, 1);
    ls_kernel_interpreter_forward(&ideal, s.target);
    ls_kernel_interpreter_backward(&ideal, s.target, 1);
    judge_loss(&s, &t, &ideal, judge_factors(LS_F32).large);
    for (int p = 0; p < n.network.param_count; p++) {
        double *g = gradient_of(&s, p);
        distance e = between(g, t.param_grad[p], s.grad[p].count);
        distance r = between(ideal.param_grad[p], t.param_grad[p], s.grad[p].count);
        /* 4: sums in another order have another error of that size; 0.7 seen */
        double limit = p == weight ? 4 * sum_in_order(&s, &t, conv, weight)
                                   : judge_factors(LS_F32).large * r.difference;
        ck_assert_msg(e.difference <= limit, "gradient of %s: e %.3g, limit %.3g", n.param[p].name,
                      e.difference / e.size, limit / e.size);
        free(g);
    }
    ls_kernel_interpreter_free(&ideal);
}

/* The CPU hands on what test_lower.c checks. */
TEST(a_refused_network)
{
    open_plan(build_basic, 4, 24, 24, ONE_THREAD);
    n.layer[1].kernel = 31;
    ls_plan_options options = {.batch = 4, .height = 24, .width = 24};
    ls_plan *plan = NULL;
    catch_lines();
    ls_status status = s.api->plan_create(s.backend, &n.network, &options, &plan);
    ck_assert_ptr_nonnull(strstr(caught_text(), "24 x 24 is too small for its 31 x 31 kernel"));
    ck_assert_int_eq(status, LS_ERR_USAGE);
    ck_assert_ptr_null(plan);
}

/* ---- steps: order of the ready calls, repeats, exports, finite differences, statistics ---------
 */

TEST(ready_order)
{
    open_plan(build_basic, 2, 20, 20, ONE_THREAD);
    plan_step(&s);
    int expected[LS_KERNEL_NET_PARAMS], count = 0;
    for (int i = n.network.layer_count - 1; i > 0; i--) {
        const ls_layer *l = &n.layer[i];
        if (l->kind == LS_LAYER_LINEAR) {
            expected[count++] = l->bias;
            expected[count++] = l->weight;
        } else if (l->kind == LS_LAYER_BATCH_NORM) {
            expected[count++] = l->weight;
            expected[count++] = l->bias;
        } else if (l->kind == LS_LAYER_CONV) {
            expected[count++] = l->weight;
        }
    }
    ck_assert_int_eq(s.ready_count, count);
    for (int i = 0; i < count; i++) {
        ck_assert_int_eq(s.ready[i], expected[i]);
    }
}

TEST(ready_failure_ends_backward)
{
    open_plan(build_basic, 2, 20, 20, ONE_THREAD);
    plan_ends_where_refused(&s);
}

LOOP_TEST(repeats_bitwise, NETWORKS)
{
    networks[_i](&n);
    ls_kernel_subject a, b;
    const int *size = sizes[_i];
    ls_kernel_subject_options two_threads = {.threads = 2};
    plan_make(&a, &n, size[0], size[1], size[2], two_threads);
    plan_make(&b, &n, size[0], size[1], size[2], two_threads);
    plan_step(&a);
    plan_step(&b);
    plan_step(&b); /* a second step on the same parameters overwrites, never adds */
    ck_assert(plan_same(&a, &b));
    ls_kernel_subject_free(&a);
    ls_kernel_subject_free(&b);
}

TEST(power_of_two_scale_is_exact)
{
    build_basic(&n);
    ls_kernel_subject a, b;
    plan_make(&a, &n, 3, 20, 20, ONE_THREAD);
    plan_make(&b, &n, 3, 20, 20, ONE_THREAD);
    b.state->loss_scale = 1024;
    plan_step(&a);
    plan_step(&b);
    for (int p = 0; p < n.network.param_count; p++) {
        for (int64_t i = 0; i < a.grad[p].count; i++) {
            ck_assert(ls_kernel_subject_get(&a.grad[p], i) * 1024 ==
                      ls_kernel_subject_get(&b.grad[p], i));
        }
    }
    ls_kernel_subject_free(&a);
    ls_kernel_subject_free(&b);
}

TEST(finite_differences)
{
    open_plan(build_bottleneck, 4, 16, 16, ONE_THREAD);
    plan_step(&s);
    plan_mirror(&s, LS_KERNEL_ROUND_NONE, &t);
    for (int p = 0; p < n.network.param_count; p++) {
        int64_t i = ls_rng_below(5, (uint64_t)p, 0, (uint32_t)s.grad[p].count);
        double middle = t.param[p][i], h = 1e-5, loss[2];
        for (int k = 0; k < 2; k++) {
            t.param[p][i] = middle + (k == 0 ? -h : h);
            ls_kernel_interpreter_forward(&t, s.target);
            loss[k] = t.loss;
        }
        t.param[p][i] = middle;
        double slope = (loss[1] - loss[0]) / (2 * h), g = ls_kernel_subject_get(&s.grad[p], i);
        /* 1600 units: the subject's gradient is f32 through 12 layers, the slope loses 1e-16/1e-5
         * of the loss */
        ck_assert_msg(fabs(g - slope) <= 1600 * F32_UNIT * (fabs(slope) + 0.01),
                      "%s[%lld]: %g, slope %g", n.param[p].name, (long long)i, g, slope);
    }
}

TEST(branches_are_those_of_the_values)
{
    open_plan(build_basic, 3, 21, 22, ONE_THREAD);
    plan_forward(&s);
    ls_kernel_interpreter forced;
    plan_mirror(&s, LS_KERNEL_ROUND_NONE, &forced);
    plan_mirror(&s, LS_KERNEL_ROUND_NONE, &t);
    t.force = false;
    ls_kernel_interpreter_forward(&t, s.target);
    int64_t flipped = 0, all = 0;
    for (int i = 0; i < n.network.layer_count; i++) {
        for (int64_t e = 0; n.layer[i].branch >= 0 && e < t.size[i].count; e++) {
            all++;
            if (n.layer[i].kind == LS_LAYER_RELU) {
                bool on = (forced.bits[i][e / 8] >> (e % 8) & 1) != 0;
                flipped += on != (t.value[i][e] > 0);
            } else {
                flipped += t.index[i][e] != forced.index[i][e];
            }
        }
    }
    /* only values within an f32 rounding of a tie may fall on the other side */
    ck_assert_msg(flipped * 10000 <= all, "%lld of %lld branches differ", (long long)flipped,
                  (long long)all);
    ls_kernel_interpreter_free(&forced);
}

static void all_stored(const double *value, int64_t count, ls_bits_type type, const char *what)
{
    for (int64_t i = 0; i < count; i++) {
        ck_assert_msg(ls_bits_round(type, value[i]) == value[i], "%s[%lld] = %.17g was not rounded",
                      what, (long long)i, value[i]);
    }
}

/* The interpreter rounds in place, and gcc 12.2's SLP vectoriser drops the rounding of
 * `p[0] = (double)(float)p[0]; p[1] = (double)(float)p[1]`. Its loops keep theirs; this test would
 * see a compiler that does not. */
LOOP_TEST(stored_values_are_of_their_type, 3)
{
    static const ls_kernel_rounding type[] = {LS_KERNEL_ROUND_F32, LS_KERNEL_ROUND_F16,
                                              LS_KERNEL_ROUND_BF16};
    static const ls_bits_type bits[] = {LS_BITS_F32, LS_BITS_F16, LS_BITS_BF16};
    build_odd(&n);
    ls_kernel_interpreter_make(&t, &n, 3, 11, 9, type[_i]);
    for (int p = 0; p < n.network.param_count; p++) {
        for (int64_t k = 0; k < ls_shape_count(&n.param[p].shape); k++) {
            t.param[p][k] = (double)ls_rng_normal(7, (uint64_t)p, (uint64_t)k) / 3;
        }
    }
    for (int64_t k = 0; k < t.size[0].count; k++) {
        t.value[0][k] = (double)ls_rng_normal(3, 1, (uint64_t)k) / 3;
    }
    const int64_t target[] = {0, 3, 1};
    ls_kernel_interpreter_forward(&t, target);
    ls_kernel_interpreter_backward(&t, target, 128);
    for (int i = 0; i < n.network.layer_count; i++) {
        all_stored(t.value[i], t.size[i].count, bits[_i], "value");
        all_stored(t.grad[i], t.size[i].count, bits[_i], "grad");
    }
    for (int p = 0; p < n.network.param_count; p++) {
        bool norm =
            n.param[p].role == LS_PARAM_NORM_WEIGHT || n.param[p].role == LS_PARAM_NORM_BIAS;
        all_stored(t.param_grad[p], ls_shape_count(&n.param[p].shape),
                   norm ? LS_BITS_F32 : bits[_i], "param_grad");
    }
}

/* Export of `bytes` bytes: nothing behind them is written. The caller frees it. */
static uint8_t *guarded_export(ls_kernel_subject *s, ls_export what, int index, int64_t bytes)
{
    enum { GUARD = 64 };
    uint8_t *data = malloc((size_t)bytes + GUARD);
    ck_assert_ptr_nonnull(data);
    memset(data, 0xa5, (size_t)bytes + GUARD);
    ck_assert_int_eq(s->api->plan_export(s->plan, s->stream, what, index, data, bytes), LS_OK);
    for (int i = 0; i < GUARD; i++) {
        ck_assert_uint_eq(data[bytes + i], 0xa5);
    }
    return data;
}

/* Bits and choices of every branch are those of the activations that can be seen, and the last
 * byte's further bits are 0. */
LOOP_TEST(exports_agree_and_end, NETWORKS)
{
    networks[_i](&n);
    const int *size = sizes[_i];
    ls_kernel_subject_options two_threads = {.threads = 2};
    plan_make(&s, &n, size[0], size[1], size[2], two_threads);
    plan_forward(&s);
    plan_mirror(&s, LS_KERNEL_ROUND_NONE, &t);
    for (int i = 0; i < n.network.layer_count; i++) {
        const ls_layer *layer = &n.layer[i];
        int64_t count = t.size[i].count;
        if (layer->kind == LS_LAYER_MAX_POOL) {
            free(guarded_export(&s, LS_EXPORT_POOL_INDEX, layer->branch, 4 * count));
        } else if (layer->kind == LS_LAYER_RELU) {
            int64_t bytes = (count + 7) / 8;
            uint8_t *bits = guarded_export(&s, LS_EXPORT_RELU_BITS, layer->branch, bytes);
            uint8_t *value = guarded_export(&s, LS_EXPORT_ACTIVATION, i, 4 * count);
            for (int64_t k = 0; k < 8 * bytes; k++) {
                bool open = k < count && ((float *)(void *)value)[k] > 0;
                ck_assert_int_eq(bits[k / 8] >> (k % 8) & 1, open);
            }
            free(bits);
            free(value);
        }
    }
    float little; /* what an export needs is more, or there is no such branch */
    ck_assert_int_eq(s.api->plan_export(s.plan, s.stream, LS_EXPORT_LOGITS, 0, &little, 4),
                     LS_ERR_USAGE);
    ck_assert_int_eq(s.api->plan_export(s.plan, s.stream, LS_EXPORT_RELU_BITS, 99, &little, 4),
                     LS_ERR_USAGE);
}

/* A pool's forced choice lies in its window and in the image: each index of the input plane for
 * outputs in a corner, inside, and in the last corner of the last plane. */
TEST(forced_choices_lie_in_their_window)
{
    enum { IN = 10, OUT = 5, PLANES = 2 * 16, COUNT = PLANES * OUT * OUT };
    static const int64_t outputs[] = {0, 3 * OUT * OUT + 7, COUNT - 1};
    build_basic(&n);
    ls_kernel_subject s;
    ls_kernel_subject_options forcing = {.threads = 2, .forced_branches = true};
    plan_make(&s, &n, 2, 20, 20, forcing);
    plan_forward(&s);
    int pool = 0;
    while (n.layer[pool].kind != LS_LAYER_MAX_POOL) {
        pool++;
    }
    int branch = n.layer[pool].branch, taken = 0;
    int32_t *index = (int32_t *)(void *)guarded_export(&s, LS_EXPORT_POOL_INDEX, branch, 4 * COUNT);
    float loss = s.state->loss;
    for (int k = 0; k < 3; k++) {
        int64_t at = outputs[k];
        int row = (int)(at % (OUT * OUT)) / OUT * 2 - 1, column = (int)(at % OUT) * 2 - 1;
        int32_t own = index[at];
        for (int32_t choice = -IN; choice <= IN * IN + IN; choice++) {
            bool inside = choice >= 0 && choice < IN * IN && choice / IN >= row &&
                          choice / IN < row + 3 && choice % IN >= column &&
                          choice % IN < column + 3;
            index[at] = choice;
            catch_lines();
            ls_status status =
                s.api->plan_force(s.plan, s.stream, branch, index, 4 * (int64_t)COUNT);
            LS_TEXT(said, 200, "error: %s: forced index %d of output %lld is outside its window\n",
                    n.layer[pool].name, choice, (long long)at);
            ck_assert_str_eq(caught_lines(), inside ? "" : said);
            ck_assert_int_eq(status, inside ? LS_OK : LS_ERR_USAGE);
            taken += inside;
        }
        index[at] = own;
        plan_forward(&s); /* the last one was refused: the values decide */
        ck_assert_mem_eq(&s.state->loss, &loss, sizeof loss);
    }
    ck_assert_int_eq(taken, 2 * 2 + 3 * 3 + 3 * 3); /* the last row is in the image */
    free(index);
}

TEST(running_statistics)
{
    open_plan(build_basic, 3, 20, 20, ONE_THREAD);
    plan_forward(&s);
    plan_forward(&s);
    mirror();
    for (int i = 0; i < n.network.layer_count; i++) {
        const ls_layer *l = &n.layer[i];
        if (l->kind != LS_LAYER_BATCH_NORM) {
            continue;
        }
        double count = (double)t.size[i].count / t.size[i].channels;
        for (int c = 0; c < t.size[i].channels; c++) {
            double variance = t.variance[i][c] * count / (count - 1);
            double mean = 0.19 * t.mean[i][c], var = 0.81 + 0.19 * variance;
            double scale = sqrt(t.variance[i][c]);
            /* 160 units: statistics of f32 values that come through up to ten layers */
            ck_assert(fabs(ls_kernel_subject_get(&s.buffer[l->running_mean], c) - mean) <=
                      160 * F32_UNIT * scale);
            ck_assert(fabs(ls_kernel_subject_get(&s.buffer[l->running_var], c) - var) <=
                      160 * F32_UNIT * var);
        }
    }
}

TEST(bad_targets_are_named)
{
    open_plan(build_basic, 2, 20, 20, ONE_THREAD);
    ck_assert_int_eq(s.api->plan_params_changed(s.plan, s.stream), LS_OK);
    plan_refuses_targets(&s);
}

int main(void)
{
    int failed = RUN_TESTS("cpu plan", .timeout_s = 60, .begin = in_blocks, .after = close_plan);
    return RUN_TESTS("cpu plan, channels last", .timeout_s = 60, .begin = in_channels_last,
                     .after = close_plan) |
           failed;
}
