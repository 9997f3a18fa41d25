/* Gradients of whole small networks on the CPU backend against the interpreter, on the subject's
 * own or on forced branches, judged by what ideal rounding costs (the bound of the conformance
 * suite). */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "cpu_plan.h"

/* ---- gradients ------------------------------------------------------------------------------- */

static void check_network(build *make, int batch, int height, int width,
                          ls_kernel_subject_options o)
{
    ls_kernel_net n;
    make(&n);
    ls_kernel_subject s;
    plan_make(&s, &n, batch, height, width, o);
    double scale = o.activation == LS_F32 ? 1 : 128;
    s.state->loss_scale = (float)scale;
    plan_step(&s);
    judge_plan(&s, scale);
    ls_kernel_subject_free(&s);
}

START_TEST(gradients_f32)
{
    const int *size = sizes[_i];
    ls_kernel_subject_options two_threads = {.threads = 2};
    check_network(networks[_i], size[0], size[1], size[2], two_threads);
}
END_TEST

START_TEST(gradients_half)
{
    ls_dtype type = _i % 2 == 0 ? LS_F16 : LS_BF16;
    const int *size = sizes[_i / 2];
    ls_kernel_subject_options o1 = {.threads = 1, .activation = type};
    check_network(networks[_i / 2], size[0], size[1], size[2], o1);
    ls_kernel_subject_options o2 = {
        .threads = 1, .activation = type, .param_type = type, .grad_type = type};
    check_network(networks[_i / 2], size[0], size[1], size[2], o2);
}
END_TEST

START_TEST(odd_sizes)
{
    static const int odd[][3] = {{1, 37, 33}, {3, 19, 27}, {1, 40, 40}};
    check_network(build_basic, odd[_i][0], odd[_i][1], odd[_i][2], ONE_THREAD);
}
END_TEST

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

START_TEST(a_gradient_that_is_read_once_more)
{
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16};
    ls_kernel_subject_options o = {.threads = 2, .activation = types[_i]};
    check_network(build_shared, 3, 7, 9, o);
}
END_TEST

/* ---- forced branches ------------------------------------------------------------------------- */

/* A plan that can be forced, unforced or on its own branches, gives the bits of the fused one. */
START_TEST(forced_plan_is_the_same)
{
    ls_kernel_net n;
    networks[_i](&n);
    const int *size = sizes[_i];
    ls_kernel_subject a, b;
    for (int type = LS_F32; type <= LS_F16; type++) {
        ls_kernel_subject_options o = {.threads = 2, .activation = (ls_dtype)type};
        plan_make(&a, &n, size[0], size[1], size[2], o);
        o.forced_branches = true;
        plan_make(&b, &n, size[0], size[1], size[2], o);
        plan_step(&a);
        for (int forced = 0; forced < 2; forced++) {
            if (forced == 1) {
                force_like(&a, &b, 0);
            }
            plan_step(&b);
            plan_same(&a, &b);
        }
        ls_kernel_subject_free(&a);
        ls_kernel_subject_free(&b);
    }
}
END_TEST

/* Far from ties: every seventh ReLU turned, against the interpreter on the same branches. */
START_TEST(forced_branches_are_taken)
{
    ls_kernel_net n;
    networks[_i](&n);
    const int *size = sizes[_i];
    ls_kernel_subject own, s;
    ls_kernel_subject_options o = {.threads = 2};
    plan_make(&own, &n, size[0], size[1], size[2], o);
    o.forced_branches = true;
    plan_make(&s, &n, size[0], size[1], size[2], o);
    plan_step(&own);
    force_like(&own, &s, 7);
    plan_step(&s);
    bool differs = false;
    for (int p = 0; p < n.network.param_count; p++) {
        differs =
            differs || memcmp(own.grad[p].data, s.grad[p].data, ls_tensor_bytes(&s.grad[p])) != 0;
    }
    ck_assert(differs);
    judge_plan(&s, 1); /* mirrors what it exports: the forced branches */
    int branch = 0;
    for (; branch < n.network.branch_count; branch++) {
        ck_assert_int_eq(s.api->plan_force(s.plan, s.stream, branch, NULL, 0), LS_OK);
    }
    plan_step(&s);
    plan_same(&own, &s);
    uint8_t little[4] = {0};
    ck_assert_int_eq(s.api->plan_force(s.plan, s.stream, 0, little, 4), LS_ERR_USAGE);
    ck_assert_int_eq(s.api->plan_force(s.plan, s.stream, branch, little, 4), LS_ERR_USAGE);
    ck_assert_int_eq(own.api->plan_force(own.plan, own.stream, 0, little, 4), LS_ERR_USAGE);
    ls_kernel_subject_free(&own);
    ls_kernel_subject_free(&s);
}
END_TEST

/* E[x^2] - E[x]^2 in f32 would lose 20 of its 24 bits here. */
START_TEST(large_mean_keeps_its_digits)
{
    ls_kernel_net n;
    ls_kernel_net_start(&n);
    ls_kernel_net_finish(
        &n, ls_kernel_net_relu(&n, ls_kernel_net_norm(&n, ls_kernel_net_conv(&n, 0, 16, 1, 1, 0))),
        4);
    ls_kernel_subject s;
    plan_make(&s, &n, 4, 40, 40, ONE_THREAD);
    for (int64_t i = 0; i < 4 * 3 * 1600; i++) {
        s.input[i] = 1000 + s.input[i];
    }
    plan_forward(&s);
    ls_kernel_interpreter exact, ideal;
    plan_mirror(&s, LS_KERNEL_ROUND_NONE, &exact);
    plan_mirror(&s, LS_KERNEL_ROUND_F32, &ideal);
    ls_kernel_interpreter_forward(&exact, s.target);
    ls_kernel_interpreter_forward(&ideal, s.target);
    judge_loss(&s, &exact, &ideal, judge_factors(LS_F32).large);
    ls_kernel_interpreter_free(&exact);
    ls_kernel_interpreter_free(&ideal);
    ls_kernel_subject_free(&s);
}
END_TEST

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

/* Gradients of a convolution before a batch norm sum to zero over a channel, so that with a mean of
 * m deviations in its input all but 1/m of the products of its weight gradient cancel, while the
 * partial sums grow with m: one f32 sum (that is what oneDNN takes) errs by 300 times the ideal's
 * one rounding per stored value. Statistics, affine gradients and what follows keep their digits.
 */
START_TEST(large_mean_costs_the_weights_alone)
{
    ls_kernel_net n;
    ls_kernel_net_start(&n);
    int conv = ls_kernel_net_conv(&n, 0, 16, 1, 1, 0), weight = n.layer[conv].weight;
    ls_kernel_net_finish(&n, ls_kernel_net_relu(&n, ls_kernel_net_norm(&n, conv)), 4);
    ls_kernel_subject s;
    plan_make(&s, &n, 4, 32, 32, ONE_THREAD);
    for (int64_t i = 0; i < 4 * 3 * 1024; i++) {
        s.input[i] = 1000 + s.input[i];
    }
    plan_step(&s);
    ls_kernel_interpreter exact, ideal;
    plan_mirror(&s, LS_KERNEL_ROUND_NONE, &exact);
    plan_mirror(&s, LS_KERNEL_ROUND_F32, &ideal);
    ls_kernel_interpreter_forward(&exact, s.target);
    ls_kernel_interpreter_backward(&exact, s.target, 1);
    ls_kernel_interpreter_forward(&ideal, s.target);
    ls_kernel_interpreter_backward(&ideal, s.target, 1);
    for (int p = 0; p < n.network.param_count; p++) {
        double *g = gradient_of(&s, p);
        distance e = between(g, exact.param_grad[p], s.grad[p].count);
        distance r = between(ideal.param_grad[p], exact.param_grad[p], s.grad[p].count);
        /* 4: sums in another order have another error of that size; 0.7 seen */
        double limit = p == weight ? 4 * sum_in_order(&s, &exact, conv, weight)
                                   : judge_factors(LS_F32).large * r.difference;
        ck_assert_msg(e.difference <= limit, "gradient of %s: e %.3g, limit %.3g", n.param[p].name,
                      e.difference / e.size, limit / e.size);
        free(g);
    }
    ls_kernel_interpreter_free(&exact);
    ls_kernel_interpreter_free(&ideal);
    ls_kernel_subject_free(&s);
}
END_TEST

/* ---- networks that cannot be lowered --------------------------------------------------------- */

/* One layer of build_basic at 24 x 24 pixels takes other values; -1: stays as it is. */
static const struct {
    int layer, kind, input, kernel, pad; /* layer: below 0 counted from the end */
    ls_dtype activation;
    ls_status status;
    const char *why;
} refused[] = {
    {0, -1, -2, -1, -1, LS_F64, LS_ERR_UNSUPPORTED, "activations are fp32, fp16 or bf16, not fp64"},
    {0, LS_LAYER_RELU, -2, -1, -1, LS_F32, LS_ERR_UNSUPPORTED,
     "a network starts with the input and ends with cross entropy"},
    {-1, LS_LAYER_LINEAR, -2, -1, -1, LS_F32, LS_ERR_UNSUPPORTED,
     "a network starts with the input and ends with cross entropy"},
    {10, -1, 10, -1, -1, LS_F32, LS_ERR_UNSUPPORTED,
     "layer it reads layer 10, which does not come before it"},
    {10, -1, -1, -1, -1, LS_F32, LS_ERR_UNSUPPORTED,
     "layer it reads layer -1, which does not come before it"},
    {4, -1, 2, -1, -1, LS_F32, LS_ERR_UNSUPPORTED,
     "layer relu has 0 readers; 1 or 2 are supported"},
    {7, -1, 4, -1, -1, LS_F32, LS_ERR_UNSUPPORTED, "has 3 readers; 1 or 2 are supported"},
    {1, -1, -2, 31, -1, LS_F32, LS_ERR_USAGE,
     "layer it: an image of 24 x 24 is too small for its 31 x 31 kernel"},
    {-3, LS_LAYER_MAX_POOL, -2, 1, 0, LS_F32, LS_ERR_USAGE,
     ": a linear layer reads [N,C,1,1], not 3 x 3 pixels"},
    {4, -1, -2, 17, 8, LS_F32, LS_ERR_USAGE,
     "layer it: no max pool of kernel 17, padding 8 on 12 x 12 pixels"},
    {4, -1, -2, 3, 3, LS_F32, LS_ERR_USAGE,
     "layer it: no max pool of kernel 3, padding 3 on 12 x 12 pixels"},
    {4, -1, -2, 13, 0, LS_F32, LS_ERR_USAGE,
     "layer it: no max pool of kernel 13, padding 0 on 12 x 12 pixels"},
    {3, 99, -2, -1, -1, LS_F32, LS_ERR_UNSUPPORTED,
     "layer it has kind 99, which this backend does not know"},
};

START_TEST(refused_networks)
{
    ls_kernel_net n;
    ls_kernel_subject s;
    build_basic(&n);
    plan_make(&s, &n, 4, 24, 24, ONE_THREAD);
    int at = refused[_i].layer < 0 ? n.network.layer_count + refused[_i].layer : refused[_i].layer;
    ls_layer *layer = &n.layer[at];
    strcpy(n.layer[3].name, "relu");
    strcpy(layer->name, "it");
    layer->kind = refused[_i].kind < 0 ? layer->kind : (ls_layer_kind)refused[_i].kind;
    int *input = &layer->input[layer->kind == LS_LAYER_ADD]; /* of an add: its shortcut */
    *input = refused[_i].input < -1 ? *input : refused[_i].input;
    layer->kernel = refused[_i].kernel < 0 ? layer->kernel : refused[_i].kernel;
    layer->pad = refused[_i].pad < 0 ? layer->pad : refused[_i].pad;
    ls_plan_options options = {
        .batch = 4, .height = 24, .width = 24, .activation = refused[_i].activation};
    ls_plan *plan = NULL;
    catch_lines();
    ls_status status = s.api->plan_create(s.backend, &n.network, &options, &plan);
    const char *said = caught_text();
    ck_assert_int_eq(status, refused[_i].status);
    ck_assert_ptr_null(plan);
    ck_assert_str_ne(said, "");
    ck_assert_msg(strstr(said, refused[_i].why) != NULL, "%s", said);
    ls_kernel_subject_free(&s);
}
END_TEST

static void add_tests(Suite *suite, const char *name, void (*layout)(void))
{
    TCase *c = tcase_create(name);
    tcase_set_timeout(c, 60);
    tcase_add_unchecked_fixture(c, layout, NULL);
    int count = sizeof networks / sizeof networks[0];
    tcase_add_loop_test(c, gradients_f32, 0, count);
    tcase_add_loop_test(c, gradients_half, 0, 2 * count);
    tcase_add_loop_test(c, odd_sizes, 0, 3);
    tcase_add_loop_test(c, a_gradient_that_is_read_once_more, 0, 3);
    tcase_add_loop_test(c, forced_plan_is_the_same, 0, count);
    tcase_add_loop_test(c, forced_branches_are_taken, 0, count);
    tcase_add_test(c, large_mean_keeps_its_digits);
    tcase_add_test(c, large_mean_costs_the_weights_alone);
    tcase_add_loop_test(c, refused_networks, 0, (int)(sizeof refused / sizeof *refused));
    suite_add_tcase(suite, c);
}

int main(void)
{
    Suite *suite = suite_create("cpu plan");
    add_tests(suite, "plan", in_blocks);
    add_tests(suite, "plan, channels last", in_channels_last);
    return run_suite(suite);
}
