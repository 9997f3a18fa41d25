/* Whole small networks on the CPU backend against the interpreter of cpu_net.h: gradients on the
 * subject's own branches, judged by what ideal rounding costs (the bound of the conformance suite),
 * order of the ready calls, exports, repeatability, finite differences, SyncBN. */
#include "cpu_subject.h"

#define F32_UNIT 0x1p-24 /* half the distance of two f32 values near 1 */

typedef void build(net *n);

static void build_basic(net *n) /* a stem with pool, equal and projected blocks, as resnet18 */
{
    net_start(n);
    int x = net_relu(n, net_norm(n, net_conv(n, 0, 16, 7, 2, 3)));
    x = net_pool(n, x, 3, 2, 1);
    x = net_block(n, x, 16, 1, 0);
    x = net_block(n, x, 32, 2, 0);
    net_finish(n, x, 7);
}

static void build_bottleneck(net *n)
{
    net_start(n);
    int x = net_relu(n, net_norm(n, net_conv(n, 0, 16, 3, 1, 1)));
    x = net_pool(n, x, 3, 2, 1);
    x = net_bottleneck(n, x, 16, 1);
    x = net_bottleneck(n, x, 16, 2);
    x = net_bottleneck(n, x, 16, 1);
    net_finish(n, x, 10);
}

static void build_padded(net *n) /* CIFAR: option A shortcuts, 24 channels are no multiple of 16 */
{
    net_start(n);
    int x = net_relu(n, net_norm(n, net_conv(n, 0, 16, 3, 1, 1)));
    x = net_block(n, x, 16, 1, 'A');
    x = net_block(n, x, 24, 2, 'A');
    x = net_block(n, x, 64, 2, 'A');
    net_finish(n, x, 10);
}

static void build_odd(net *n) /* nothing fuses: ReLU, add and pool alone; 5 channels */
{
    net_start(n);
    int a = net_conv(n, 0, 5, 3, 1, 1);
    int b = net_relu(n, a);
    int c = net_pool(n, b, 2, 2, 0);
    int d = net_conv(n, c, 5, 3, 1, 1);
    int e = net_relu(n, net_sum(n, d, c));
    int f = net_norm(n, net_conv(n, e, 8, 1, 1, 0));
    int g = net_sum(n, f, net_conv(n, e, 8, 1, 1, 0)); /* an add without ReLU */
    int h = net_pool(n, g, 2, 1, 1);
    net_finish(n, h, 4);
}

static void
build_tiny(net *n) /* down to one pixel: every convolution of the end is a matrix product */
{
    net_start(n);
    int x = net_relu(n, net_norm(n, net_conv(n, 0, 16, 3, 2, 1)));
    x = net_block(n, x, 32, 2, 0);
    x = net_block(n, x, 32, 1, 0);
    x = net_block(n, x, 64, 2, 0);
    x = net_block(n, x, 64, 1, 0);
    net_finish(n, x, 10);
}

/* ---- judging gradients ----------------------------------------------------------------------- */

typedef struct distance {
    double difference, size;
    int64_t count;
} distance;

static distance between(const double *a, const double *b, int64_t count)
{
    distance d = {0, 0, count};
    for (int64_t i = 0; i < count; i++) {
        d.difference += (a[i] - b[i]) * (a[i] - b[i]);
        d.size += b[i] * b[i];
    }
    return (distance){sqrt(d.difference), sqrt(d.size), count};
}

static double *gradient_of(const subject *s, int p)
{
    double *g = net_doubles(s->grad[p].count);
    for (int64_t i = 0; i < s->grad[p].count; i++) {
        g[i] = subject_read(&s->grad[p], i);
    }
    return g;
}

/* Factors of the bound e <= factor * r, r being what one rounding per stored value costs: whole
 * gradient, tensors of 64 elements and more, smaller tensors. For f32 all are 32, because the order
 * of a sum is free; for half levels 2, 4 and 8. */
typedef struct factors {
    double whole, large, small;
} factors;

static const factors F32 = {32, 32, 32}, HALF = {2, 4, 8};

/* Logits by the same bound; the loss is that of the subject's own logits, stored in f32. */
static void judge_loss(const subject *s, interpreter *exact, const interpreter *ideal,
                       double factor)
{
    int linear = s->n->network.layer_count - 2;
    int64_t count = exact->size[linear].count;
    float logits[512];
    ck_assert_int_le(count, 512);
    ck_assert_int_eq(
        s->api->plan_export(s->plan, s->stream, LS_EXPORT_LOGITS, 0, logits, count * 4), LS_OK);
    double *own = net_doubles(count);
    for (int64_t i = 0; i < count; i++) {
        own[i] = (double)logits[i];
    }
    distance e = between(own, exact->value[linear], count);
    distance r = between(ideal->value[linear], exact->value[linear], count);
    ck_assert_msg(e.difference <= factor * r.difference, "logits: e %.3g, r %.3g",
                  e.difference / e.size, r.difference / e.size);
    double *kept = exact->value[linear];
    exact->value[linear] = own;
    net_loss(exact, linear + 1, s->target, false, 0);
    exact->value[linear] = kept;
    free(own);
    /* 4e-7: exp and log are good to one unit of f32 (6e-8) each, and so is the loss when stored */
    ck_assert_msg(fabs((double)s->state->loss - exact->loss) <= 4e-7 * (1 + exact->loss),
                  "loss %.9g, its logits give %.9g", (double)s->state->loss, exact->loss);
}

static void judge(const subject *s, rounding type, factors limit, double scale)
{
    interpreter exact, ideal;
    subject_mirror(s, ROUND_NONE, &exact);
    subject_mirror(s, type, &ideal);
    interpreter_forward(&exact, s->target);
    interpreter_backward(&exact, s->target, scale);
    interpreter_forward(&ideal, s->target);
    interpreter_backward(&ideal, s->target, scale);
    judge_loss(s, &exact, &ideal, limit.large);
    const ls_network *w = &s->n->network;
    double whole = 0, whole_e = 0, whole_r = 0;
    int64_t all = 0;
    for (int p = 0; p < w->param_count; p++) {
        distance d = between(exact.param_grad[p], exact.param_grad[p], s->grad[p].count);
        whole += d.size * d.size;
        all += d.count;
    }
    ck_assert(whole > 0);
    for (int p = 0; p < w->param_count; p++) {
        double *g = gradient_of(s, p);
        int64_t count = s->grad[p].count;
        distance e = between(g, exact.param_grad[p], count);
        distance r = between(ideal.param_grad[p], exact.param_grad[p], count);
        double floor = 1e-3 * sqrt(whole) * sqrt((double)count / (double)all);
        double D = e.size > floor ? e.size : floor;
        double factor = count >= 64 ? limit.large : limit.small;
        ck_assert_msg(e.difference / D <= factor * r.difference / D,
                      "gradient of %s (%lld elements, role %d): e %.3g, r %.3g", w->param[p].name,
                      (long long)count, (int)w->param[p].role, e.difference / D, r.difference / D);
        whole_e += e.difference * e.difference;
        whole_r += r.difference * r.difference;
        free(g);
    }
    ck_assert_msg(whole_e <= limit.whole * limit.whole * whole_r, "whole gradient: e %.3g, r %.3g",
                  sqrt(whole_e / whole), sqrt(whole_r / whole));
    if (getenv("LS_TEST_PRINT") != NULL) {
        printf("e/r %.2f  r %.2g\n", sqrt(whole_e / whole_r), sqrt(whole_r / whole));
    }
    interpreter_free(&exact);
    interpreter_free(&ideal);
}

static void check_network(build *make, int batch, int height, int width, subject_options o)
{
    net n;
    make(&n);
    subject s;
    subject_make(&s, &n, batch, height, width, o);
    double scale = o.activation == LS_F32 ? 1 : 128;
    s.state->loss_scale = (float)scale;
    subject_step(&s);
    rounding type = o.activation == LS_F32   ? ROUND_F32
                    : o.activation == LS_F16 ? ROUND_F16
                                             : ROUND_BF16;
    judge(&s, type, o.activation == LS_F32 ? F32 : HALF, scale);
    subject_free(&s);
}

static build *const networks[] = {build_basic, build_bottleneck, build_padded, build_odd,
                                  build_tiny};
static const int sizes[][3] = {{4, 24, 24}, {4, 12, 12}, {4, 12, 12}, {3, 11, 9}, {16, 16, 16}};

START_TEST(gradients_f32)
{
    const int *size = sizes[_i];
    subject_options two_threads = {.threads = 2};
    check_network(networks[_i], size[0], size[1], size[2], two_threads);
}
END_TEST

START_TEST(gradients_half)
{
    ls_dtype type = _i % 2 == 0 ? LS_F16 : LS_BF16;
    const int *size = sizes[_i / 2];
    subject_options o1 = {.threads = 1, .activation = type};
    check_network(networks[_i / 2], size[0], size[1], size[2], o1);
    subject_options o2 = {.threads = 1, .activation = type, .param_type = type, .grad_type = type};
    check_network(networks[_i / 2], size[0], size[1], size[2], o2);
}
END_TEST

START_TEST(odd_sizes)
{
    static const int odd[][3] = {{1, 37, 33}, {3, 19, 27}, {1, 40, 40}};
    check_network(build_basic, odd[_i][0], odd[_i][1], odd[_i][2], SUBJECT_F32);
}
END_TEST

/* ---- order, exports, repeats ----------------------------------------------------------------- */

START_TEST(ready_order)
{
    net n;
    build_basic(&n);
    subject s;
    subject_make(&s, &n, 2, 20, 20, SUBJECT_F32);
    subject_step(&s);
    int expected[NET_PARAMS], count = 0;
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
    subject_free(&s);
}
END_TEST

static ls_status refuse_third(void *context, int param)
{
    (void)param;
    int *count = context;
    return ++*count == 3 ? LS_ERR_PEER_LOST : LS_OK;
}

START_TEST(ready_failure_ends_backward)
{
    net n;
    build_basic(&n);
    subject s;
    subject_make(&s, &n, 2, 20, 20, SUBJECT_F32);
    subject_forward(&s);
    int count = 0;
    ck_assert_int_eq(s.api->plan_backward(s.plan, s.stream, 1, refuse_third, &count),
                     LS_ERR_PEER_LOST);
    ck_assert_int_eq(count, 3);
    subject_free(&s);
}
END_TEST

START_TEST(repeats_bitwise)
{
    net n;
    networks[_i](&n);
    subject a, b;
    const int *size = sizes[_i];
    subject_options two_threads = {.threads = 2};
    subject_make(&a, &n, size[0], size[1], size[2], two_threads);
    subject_make(&b, &n, size[0], size[1], size[2], two_threads);
    subject_step(&a);
    subject_step(&b);
    subject_step(&b); /* a second step on the same parameters overwrites, never adds */
    for (int p = 0; p < n.network.param_count; p++) {
        ck_assert_mem_eq(a.grad[p].data, b.grad[p].data, ls_tensor_bytes(&a.grad[p]));
    }
    ck_assert_mem_eq(&a.state->loss, &b.state->loss, sizeof a.state->loss);
    subject_free(&a);
    subject_free(&b);
}
END_TEST

START_TEST(power_of_two_scale_is_exact)
{
    net n;
    build_basic(&n);
    subject a, b;
    subject_make(&a, &n, 3, 20, 20, SUBJECT_F32);
    subject_make(&b, &n, 3, 20, 20, SUBJECT_F32);
    b.state->loss_scale = 1024;
    subject_step(&a);
    subject_step(&b);
    for (int p = 0; p < n.network.param_count; p++) {
        for (int64_t i = 0; i < a.grad[p].count; i++) {
            ck_assert(subject_read(&a.grad[p], i) * 1024 == subject_read(&b.grad[p], i));
        }
    }
    subject_free(&a);
    subject_free(&b);
}
END_TEST

START_TEST(finite_differences)
{
    net n;
    build_bottleneck(&n);
    subject s;
    subject_make(&s, &n, 4, 16, 16, SUBJECT_F32);
    subject_step(&s);
    interpreter t;
    subject_mirror(&s, ROUND_NONE, &t);
    for (int p = 0; p < n.network.param_count; p++) {
        int64_t i = ls_rng_below(5, (uint64_t)p, 0, (uint32_t)s.grad[p].count);
        double middle = t.param[p][i], h = 1e-5, loss[2];
        for (int k = 0; k < 2; k++) {
            t.param[p][i] = middle + (k == 0 ? -h : h);
            interpreter_forward(&t, s.target);
            loss[k] = t.loss;
        }
        t.param[p][i] = middle;
        double slope = (loss[1] - loss[0]) / (2 * h), g = subject_read(&s.grad[p], i);
        /* 1600 units: the subject's gradient is f32 through 12 layers, the slope loses 1e-16/1e-5
         * of the loss */
        ck_assert_msg(fabs(g - slope) <= 1600 * F32_UNIT * (fabs(slope) + 0.01),
                      "%s[%lld]: %g, slope %g", n.param[p].name, (long long)i, g, slope);
    }
    interpreter_free(&t);
    subject_free(&s);
}
END_TEST

START_TEST(branches_are_those_of_the_values)
{
    net n;
    build_basic(&n);
    subject s;
    subject_make(&s, &n, 3, 21, 22, SUBJECT_F32);
    subject_forward(&s);
    interpreter own, forced;
    subject_mirror(&s, ROUND_NONE, &forced);
    subject_mirror(&s, ROUND_NONE, &own);
    own.force = false;
    interpreter_forward(&own, s.target);
    int64_t flipped = 0, all = 0;
    for (int i = 0; i < n.network.layer_count; i++) {
        for (int64_t e = 0; n.layer[i].branch >= 0 && e < own.size[i].count; e++) {
            all++;
            if (n.layer[i].kind == LS_LAYER_RELU) {
                bool on = (forced.bits[i][e / 8] >> (e % 8) & 1) != 0;
                flipped += on != (own.value[i][e] > 0);
            } else {
                flipped += own.index[i][e] != forced.index[i][e];
            }
        }
    }
    /* only values within an f32 rounding of a tie may fall on the other side */
    ck_assert_msg(flipped * 10000 <= all, "%lld of %lld branches differ", (long long)flipped,
                  (long long)all);
    interpreter_free(&own);
    interpreter_free(&forced);
    subject_free(&s);
}
END_TEST

/* Exports every branch of `from`, turns every `turn`-th one (0: none), forces them on `to`. */
static void force_like(const subject *from, subject *to, int turn)
{
    const ls_network *w = &from->n->network;
    interpreter sizes;
    interpreter_make(&sizes, from->n, from->batch, from->height, from->width, ROUND_NONE);
    for (int i = 0; i < w->layer_count; i++) {
        int branch = w->layer[i].branch;
        if (branch < 0) {
            continue;
        }
        bool relu = w->layer[i].kind == LS_LAYER_RELU;
        int64_t count = sizes.size[i].count, bytes = relu ? (count + 7) / 8 : count * 4;
        uint8_t *data = malloc((size_t)bytes);
        ck_assert_int_eq(from->api->plan_export(from->plan, from->stream,
                                                relu ? LS_EXPORT_RELU_BITS : LS_EXPORT_POOL_INDEX,
                                                branch, data, bytes),
                         LS_OK);
        for (int64_t e = 0; turn > 0 && relu && e < count; e += turn) {
            data[e / 8] ^= (uint8_t)(1u << (e % 8));
        }
        ck_assert_int_eq(to->api->plan_force(to->plan, to->stream, branch, data, bytes), LS_OK);
        free(data);
    }
    interpreter_free(&sizes);
}

/* A plan that can be forced, unforced or on its own branches, gives the bits of the fused one. */
START_TEST(forced_plan_is_the_same)
{
    net n;
    networks[_i](&n);
    const int *size = sizes[_i];
    subject a, b;
    for (int type = LS_F32; type <= LS_F16; type++) {
        subject_options o = {.threads = 2, .activation = (ls_dtype)type};
        subject_make(&a, &n, size[0], size[1], size[2], o);
        o.forced_branches = true;
        subject_make(&b, &n, size[0], size[1], size[2], o);
        subject_step(&a);
        for (int forced = 0; forced < 2; forced++) {
            if (forced == 1) {
                force_like(&a, &b, 0);
            }
            subject_step(&b);
            for (int p = 0; p < n.network.param_count; p++) {
                ck_assert_mem_eq(a.grad[p].data, b.grad[p].data, ls_tensor_bytes(&a.grad[p]));
            }
            ck_assert_mem_eq(&a.state->loss, &b.state->loss, sizeof a.state->loss);
        }
        subject_free(&a);
        subject_free(&b);
    }
}
END_TEST

/* Far from ties: every seventh ReLU turned, against the interpreter on the same branches. */
START_TEST(forced_branches_are_taken)
{
    net n;
    networks[_i](&n);
    const int *size = sizes[_i];
    subject own, s;
    subject_options o = {.threads = 2};
    subject_make(&own, &n, size[0], size[1], size[2], o);
    o.forced_branches = true;
    subject_make(&s, &n, size[0], size[1], size[2], o);
    subject_step(&own);
    force_like(&own, &s, 7);
    subject_step(&s);
    bool differs = false;
    for (int p = 0; p < n.network.param_count; p++) {
        differs =
            differs || memcmp(own.grad[p].data, s.grad[p].data, ls_tensor_bytes(&s.grad[p])) != 0;
    }
    ck_assert(differs);
    judge(&s, ROUND_F32, F32, 1); /* mirrors what it exports: the forced branches */
    int branch = 0;
    for (; branch < n.network.branch_count; branch++) {
        ck_assert_int_eq(s.api->plan_force(s.plan, s.stream, branch, NULL, 0), LS_OK);
    }
    subject_step(&s);
    for (int p = 0; p < n.network.param_count; p++) {
        ck_assert_mem_eq(own.grad[p].data, s.grad[p].data, ls_tensor_bytes(&s.grad[p]));
    }
    uint8_t little[4] = {0};
    ck_assert_int_eq(s.api->plan_force(s.plan, s.stream, 0, little, 4), LS_ERR_USAGE);
    ck_assert_int_eq(s.api->plan_force(s.plan, s.stream, branch, little, 4), LS_ERR_USAGE);
    ck_assert_int_eq(own.api->plan_force(own.plan, own.stream, 0, little, 4), LS_ERR_USAGE);
    subject_free(&own);
    subject_free(&s);
}
END_TEST

START_TEST(exports_are_checked)
{
    net n;
    build_basic(&n);
    subject s;
    subject_make(&s, &n, 2, 20, 20, SUBJECT_F32);
    subject_forward(&s);
    float logits[14];
    ck_assert_int_eq(
        s.api->plan_export(s.plan, s.stream, LS_EXPORT_LOGITS, 0, logits, sizeof logits), LS_OK);
    interpreter t;
    subject_mirror(&s, ROUND_NONE, &t);
    interpreter_forward(&t, s.target);
    int linear = n.network.layer_count - 2;
    for (int i = 0; i < 14; i++) {
        /* 160 units: f32 through ten layers of values of order one */
        ck_assert(fabs((double)logits[i] - t.value[linear][i]) <=
                  1e-5 * (1 + fabs(t.value[linear][i])));
    }
    ck_assert_int_eq(s.api->plan_export(s.plan, s.stream, LS_EXPORT_LOGITS, 0, logits, 4),
                     LS_ERR_USAGE);
    ck_assert_int_eq(s.api->plan_export(s.plan, s.stream, LS_EXPORT_RELU_BITS, 99, logits, 4),
                     LS_ERR_USAGE);
    interpreter_free(&t);
    subject_free(&s);
}
END_TEST

START_TEST(running_statistics)
{
    net n;
    build_basic(&n);
    subject s;
    subject_make(&s, &n, 3, 20, 20, SUBJECT_F32);
    subject_forward(&s);
    subject_forward(&s);
    interpreter t;
    subject_mirror(&s, ROUND_NONE, &t);
    interpreter_forward(&t, s.target);
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
            ck_assert(fabs(subject_read(&s.buffer[l->running_mean], c) - mean) <=
                      160 * F32_UNIT * scale);
            ck_assert(fabs(subject_read(&s.buffer[l->running_var], c) - var) <=
                      160 * F32_UNIT * var);
        }
    }
    interpreter_free(&t);
    subject_free(&s);
}
END_TEST

START_TEST(bad_targets_are_named)
{
    net n;
    build_basic(&n);
    subject s;
    subject_make(&s, &n, 2, 20, 20, SUBJECT_F32);
    ck_assert_int_eq(s.api->plan_params_changed(s.plan, s.stream), LS_OK);
    s.target[1] = 7;
    ck_assert_int_eq(s.api->plan_forward(s.plan, s.stream, s.input, s.target), LS_ERR_USAGE);
    s.target[1] = -1;
    ck_assert_int_eq(s.api->plan_forward(s.plan, s.stream, s.input, s.target), LS_ERR_USAGE);
    subject_free(&s);
}
END_TEST

/* E[x^2] - E[x]^2 in f32 would lose 20 of its 24 bits here. */
START_TEST(large_mean_keeps_its_digits)
{
    net n;
    net_start(&n);
    net_finish(&n, net_relu(&n, net_norm(&n, net_conv(&n, 0, 16, 1, 1, 0))), 4);
    subject s;
    subject_make(&s, &n, 4, 40, 40, SUBJECT_F32);
    for (int64_t i = 0; i < 4 * 3 * 1600; i++) {
        s.input[i] = 1000 + s.input[i];
    }
    subject_forward(&s);
    interpreter exact, ideal;
    subject_mirror(&s, ROUND_NONE, &exact);
    subject_mirror(&s, ROUND_F32, &ideal);
    interpreter_forward(&exact, s.target);
    interpreter_forward(&ideal, s.target);
    judge_loss(&s, &exact, &ideal, F32.large);
    interpreter_free(&exact);
    interpreter_free(&ideal);
    subject_free(&s);
}
END_TEST

/* Error of the weight gradient of 1x1 convolution `layer` when it is one f32 sum over images and
 * pixels in order, from exact gradients. */
static double sum_in_order(const subject *s, const interpreter *exact, int layer, int weight)
{
    int64_t pixels = (int64_t)s->height * s->width;
    int outputs = exact->n->layer[layer].channels;
    double difference = 0;
    for (int c = 0; c < outputs; c++) {
        for (int k = 0; k < 3; k++) {
            float sum = 0;
            for (int64_t i = 0; i < s->batch * pixels; i++) {
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
    net n;
    net_start(&n);
    int conv = net_conv(&n, 0, 16, 1, 1, 0), weight = n.layer[conv].weight;
    net_finish(&n, net_relu(&n, net_norm(&n, conv)), 4);
    subject s;
    subject_make(&s, &n, 4, 32, 32, SUBJECT_F32);
    for (int64_t i = 0; i < 4 * 3 * 1024; i++) {
        s.input[i] = 1000 + s.input[i];
    }
    subject_step(&s);
    interpreter exact, ideal;
    subject_mirror(&s, ROUND_NONE, &exact);
    subject_mirror(&s, ROUND_F32, &ideal);
    interpreter_forward(&exact, s.target);
    interpreter_backward(&exact, s.target, 1);
    interpreter_forward(&ideal, s.target);
    interpreter_backward(&ideal, s.target, 1);
    for (int p = 0; p < n.network.param_count; p++) {
        double *g = gradient_of(&s, p);
        distance e = between(g, exact.param_grad[p], s.grad[p].count);
        distance r = between(ideal.param_grad[p], exact.param_grad[p], s.grad[p].count);
        /* 4: sums in another order have another error of that size; 0.7 seen */
        double limit =
            p == weight ? 4 * sum_in_order(&s, &exact, conv, weight) : F32.large * r.difference;
        ck_assert_msg(e.difference <= limit, "gradient of %s: e %.3g, limit %.3g", n.param[p].name,
                      e.difference / e.size, limit / e.size);
        free(g);
    }
    interpreter_free(&exact);
    interpreter_free(&ideal);
    subject_free(&s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cpu plan");
    TCase *c = tcase_create("plan");
    tcase_set_timeout(c, 60);
    int count = sizeof networks / sizeof networks[0];
    tcase_add_loop_test(c, gradients_f32, 0, count);
    tcase_add_loop_test(c, gradients_half, 0, 2 * count);
    tcase_add_loop_test(c, odd_sizes, 0, 3);
    tcase_add_test(c, ready_order);
    tcase_add_test(c, ready_failure_ends_backward);
    tcase_add_loop_test(c, repeats_bitwise, 0, count);
    tcase_add_test(c, power_of_two_scale_is_exact);
    tcase_add_test(c, finite_differences);
    tcase_add_test(c, branches_are_those_of_the_values);
    tcase_add_loop_test(c, forced_plan_is_the_same, 0, count);
    tcase_add_loop_test(c, forced_branches_are_taken, 0, count);
    tcase_add_test(c, exports_are_checked);
    tcase_add_test(c, running_statistics);
    tcase_add_test(c, bad_targets_are_named);
    tcase_add_test(c, large_mean_keeps_its_digits);
    tcase_add_test(c, large_mean_costs_the_weights_alone);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed;
}
