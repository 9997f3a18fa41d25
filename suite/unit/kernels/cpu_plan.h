/* Small networks and the steps of a plan, for the tests of plans. */
#ifndef LS_UNIT_CPU_PLAN_H
#define LS_UNIT_CPU_PLAN_H

#include <check.h>
#include <stdlib.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "suite/inside/kernel.h"

#define F32_UNIT 0x1p-24 /* half the distance of two f32 values near 1 */

static const ls_kernel_subject_options ONE_THREAD = {.threads = 1}; /* LS_F32 is 0 */

/* Fixtures: the layout of the activations of all plans that follow. */
static inline void in_blocks(void)
{
    setenv("LS_CPU_LAYOUT", "blocked", 1);
}

static inline void in_channels_last(void)
{
    setenv("LS_CPU_LAYOUT", "channels_last", 1);
}

typedef void build(ls_kernel_net *n);

static inline void
build_basic(ls_kernel_net *n) /* a stem with pool, equal and projected blocks, as resnet18 */
{
    ls_kernel_net_start(n);
    int x = ls_kernel_net_relu(n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, 0, 16, 7, 2, 3)));
    x = ls_kernel_net_pool(n, x, 3, 2, 1);
    x = ls_kernel_net_block(n, x, 16, 1, 0);
    x = ls_kernel_net_block(n, x, 32, 2, 0);
    ls_kernel_net_finish(n, x, 7);
}

static inline void build_bottleneck(ls_kernel_net *n)
{
    ls_kernel_net_start(n);
    int x = ls_kernel_net_relu(n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, 0, 16, 3, 1, 1)));
    x = ls_kernel_net_pool(n, x, 3, 2, 1);
    x = ls_kernel_net_bottleneck(n, x, 16, 1);
    x = ls_kernel_net_bottleneck(n, x, 16, 2);
    x = ls_kernel_net_bottleneck(n, x, 16, 1);
    ls_kernel_net_finish(n, x, 10);
}

static inline void
build_padded(ls_kernel_net *n) /* CIFAR: option A shortcuts, 24 channels are no multiple of 16 */
{
    ls_kernel_net_start(n);
    int x = ls_kernel_net_relu(n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, 0, 16, 3, 1, 1)));
    x = ls_kernel_net_block(n, x, 16, 1, 'A');
    x = ls_kernel_net_block(n, x, 24, 2, 'A');
    x = ls_kernel_net_block(n, x, 64, 2, 'A');
    ls_kernel_net_finish(n, x, 10);
}

static inline void
build_odd(ls_kernel_net *n) /* nothing fuses: ReLU, add and pool alone; 5 channels */
{
    ls_kernel_net_start(n);
    int a = ls_kernel_net_conv(n, 0, 5, 3, 1, 1);
    int b = ls_kernel_net_relu(n, a);
    int c = ls_kernel_net_pool(n, b, 2, 2, 0);
    int d = ls_kernel_net_conv(n, c, 5, 3, 1, 1);
    int e = ls_kernel_net_relu(n, ls_kernel_net_sum(n, d, c));
    int f = ls_kernel_net_norm(n, ls_kernel_net_conv(n, e, 8, 1, 1, 0));
    /* an add without ReLU, of a norm that comes second */
    int g = ls_kernel_net_sum(n, ls_kernel_net_conv(n, e, 8, 1, 1, 0), f);
    int h = ls_kernel_net_pool(n, g, 2, 1, 1);
    ls_kernel_net_finish(n, h, 4);
}

static inline void build_tiny(
    ls_kernel_net *n) /* down to one pixel: every convolution of the end is a matrix product */
{
    ls_kernel_net_start(n);
    int x = ls_kernel_net_relu(n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, 0, 16, 3, 2, 1)));
    x = ls_kernel_net_block(n, x, 32, 2, 0);
    x = ls_kernel_net_block(n, x, 32, 1, 0);
    x = ls_kernel_net_block(n, x, 64, 2, 0);
    x = ls_kernel_net_block(n, x, 64, 1, 0);
    ls_kernel_net_finish(n, x, 10);
}

static build *const networks[] = {build_basic, build_bottleneck, build_padded, build_odd,
                                  build_tiny};
static const int sizes[][3] = {{4, 24, 24}, {4, 12, 12}, {4, 12, 12}, {3, 11, 9}, {16, 16, 16}};

static inline void plan_make(ls_kernel_subject *s, const ls_kernel_net *n, int batch, int height,
                             int width, ls_kernel_subject_options options)
{
    options.device = options.device != NULL ? options.device : "cpu";
    options.batch = batch;
    options.height = height;
    options.width = width;
    ck_assert_int_eq(ls_kernel_subject_make(n, &options, s), LS_OK);
}

static inline void plan_forward(ls_kernel_subject *s)
{
    ck_assert_int_eq(ls_kernel_subject_forward(s), LS_OK);
}

static inline void plan_step(ls_kernel_subject *s)
{
    ck_assert_int_eq(ls_kernel_subject_step(s), LS_OK);
}

static inline bool plan_same_tensor(const ls_kernel_subject *a, const ls_tensor *x,
                                    const ls_kernel_subject *b, const ls_tensor *y)
{
    double *left = ls_kernel_subject_read(a, x), *right = ls_kernel_subject_read(b, y);
    ck_assert(left != NULL && right != NULL);
    bool same = memcmp(left, right, (size_t)x->count * sizeof *left) == 0;
    free(left);
    free(right);
    return same;
}

/* Whether all gradients and the loss are equal to the last bit. */
static inline bool plan_same(const ls_kernel_subject *a, const ls_kernel_subject *b)
{
    ls_step_state x, y;
    ck_assert_int_eq(ls_kernel_subject_get_state(a, &x), LS_OK);
    ck_assert_int_eq(ls_kernel_subject_get_state(b, &y), LS_OK);
    bool same = memcmp(&x.loss, &y.loss, sizeof x.loss) == 0;
    for (int p = 0; p < a->n->network.param_count; p++) {
        same = same && plan_same_tensor(a, &a->grad[p], b, &b->grad[p]);
    }
    return same;
}

static inline ls_status plan_refuse_third(void *context, int param)
{
    (void)param;
    int *count = context;
    return ++*count == 3 ? LS_ERR_PEER_LOST : LS_OK;
}

/* The callback of a gradient fails: backward ends there, with that status. */
static inline void plan_ends_where_refused(ls_kernel_subject *s)
{
    int count = 0;
    plan_forward(s);
    ck_assert_int_eq(s->api->plan_backward(s->plan, s->stream, 1, plan_refuse_third, &count),
                     LS_ERR_PEER_LOST);
    ck_assert_int_eq(count, 3);
}

/* Of seven classes. */
static inline void plan_refuses_targets(ls_kernel_subject *s)
{
    static const int64_t wrong[] = {7, -1};
    for (int i = 0; i < 2; i++) {
        s->target[1] = wrong[i];
        ck_assert_int_eq(s->api->plan_forward(s->plan, s->stream, s->input, s->target),
                         LS_ERR_USAGE);
    }
}

static inline void plan_mirror(const ls_kernel_subject *s, ls_kernel_rounding type,
                               ls_kernel_interpreter *t)
{
    ck_assert_int_eq(ls_kernel_subject_mirror(s, type, t), LS_OK);
}

/* Loss and gradients of a plan, on any backend, against the interpreter on the plan's own branches,
 * judged by what ideal rounding costs (the bound of the conformance suite). */

typedef struct distance {
    double difference, size;
    int64_t count;
} distance;

static inline distance between(const double *a, const double *b, int64_t count)
{
    distance d = {0, 0, count};
    for (int64_t i = 0; i < count; i++) {
        d.difference += (a[i] - b[i]) * (a[i] - b[i]);
        d.size += b[i] * b[i];
    }
    return (distance){sqrt(d.difference), sqrt(d.size), count};
}

static inline double *gradient_of(const ls_kernel_subject *s, int p)
{
    double *g = ls_kernel_subject_read(s, &s->grad[p]);
    ck_assert_ptr_nonnull(g);
    return g;
}

/* Factors of the bound e <= factor * r, r being what one rounding per stored value costs: whole
 * gradient, tensors of 64 elements and more, smaller tensors. For f32 all are 32, because the order
 * of a sum is free; for half levels 2, 4 and 8. */
typedef struct factors {
    double whole, large, small;
} factors;

static inline factors judge_factors(ls_dtype activation)
{
    return activation == LS_F32 ? (factors){32, 32, 32} : (factors){2, 4, 8};
}

/* Logits by the same bound; the loss is that of the subject's own logits, stored in f32. */
static inline void judge_loss(const ls_kernel_subject *s, ls_kernel_interpreter *exact,
                              const ls_kernel_interpreter *ideal, double factor)
{
    int linear = s->n->network.layer_count - 2;
    int64_t count = exact->size[linear].count;
    float logits[512];
    ck_assert_int_le(count, 512);
    ck_assert_int_eq(
        s->api->plan_export(s->plan, s->stream, LS_EXPORT_LOGITS, 0, logits, count * 4), LS_OK);
    double *own = malloc((size_t)count * sizeof *own);
    ck_assert_ptr_nonnull(own);
    for (int64_t i = 0; i < count; i++) {
        own[i] = (double)logits[i];
    }
    distance e = between(own, exact->value[linear], count);
    distance r = between(ideal->value[linear], exact->value[linear], count);
    ck_assert_msg(e.difference <= factor * r.difference, "logits: e %.3g, r %.3g",
                  e.difference / e.size, r.difference / e.size);
    double *kept = exact->value[linear];
    exact->value[linear] = own;
    ls_kernel_interpreter_loss(exact, linear + 1, s->target, false, 0);
    exact->value[linear] = kept;
    free(own);
    ls_step_state state;
    ck_assert_int_eq(ls_kernel_subject_get_state(s, &state), LS_OK);
    /* 4e-7: exp and log are good to one unit of f32 (6e-8) each, and so is the loss when stored */
    ck_assert_msg(fabs((double)state.loss - exact->loss) <= 4e-7 * (1 + exact->loss),
                  "loss %.9g, its logits give %.9g", (double)state.loss, exact->loss);
}

/* Loss and gradients of the step that the subject has taken, of loss * scale, on its own branches.
 */
static inline void judge_plan(const ls_kernel_subject *s, double scale)
{
    ls_dtype activation = s->options.activation;
    factors limit = judge_factors(activation);
    ls_kernel_rounding type = activation == LS_F32   ? LS_KERNEL_ROUND_F32
                              : activation == LS_F16 ? LS_KERNEL_ROUND_F16
                                                     : LS_KERNEL_ROUND_BF16;
    ls_kernel_interpreter exact, ideal;
    plan_mirror(s, LS_KERNEL_ROUND_NONE, &exact);
    plan_mirror(s, type, &ideal);
    ls_kernel_interpreter_forward(&exact, s->target);
    ls_kernel_interpreter_backward(&exact, s->target, scale);
    ls_kernel_interpreter_forward(&ideal, s->target);
    ls_kernel_interpreter_backward(&ideal, s->target, scale);
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
    ls_kernel_interpreter_free(&exact);
    ls_kernel_interpreter_free(&ideal);
}

/* Exports every branch of `from`, turns every `turn`-th one (0: none), forces them on `to`. */
static inline void force_like(const ls_kernel_subject *from, ls_kernel_subject *to, int turn)
{
    const ls_network *w = &from->n->network;
    ls_kernel_interpreter sizes;
    ls_kernel_interpreter_make(&sizes, from->n, from->options.batch, from->options.height,
                               from->options.width, LS_KERNEL_ROUND_NONE);
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
    ls_kernel_interpreter_free(&sizes);
}

/* The same plan twice: plain, and with branches that can be forced. */
static inline void plan_pair(const ls_kernel_net *n, const int *size, ls_kernel_subject_options o,
                             ls_kernel_subject *own, ls_kernel_subject *forced)
{
    for (int i = 0; i < 2; i++) {
        ls_kernel_subject *s = i == 0 ? own : forced;
        o.forced_branches = i == 1;
        plan_make(s, n, size[0], size[1], size[2], o);
        ck_assert_int_eq(ls_kernel_subject_set_scale(s, o.activation == LS_F32 ? 1 : 128), LS_OK);
    }
}

/* A plan with forced_branches, unforced or forced to its own branches, gives the bits of the fused
 * one. */
static inline void forced_is_the_same(build *make, const int *size, ls_kernel_subject_options o)
{
    ls_kernel_net n;
    make(&n);
    ls_kernel_subject a, b;
    plan_pair(&n, size, o, &a, &b);
    plan_step(&a);
    plan_step(&b);
    ck_assert(plan_same(&a, &b));
    force_like(&a, &b, 0);
    plan_step(&b);
    ck_assert(plan_same(&a, &b));
    ls_kernel_subject_free(&a);
    ls_kernel_subject_free(&b);
}

/* Far from ties: every seventh ReLU turned, against the interpreter on the same branches. */
static inline void forced_is_taken(build *make, const int *size, ls_kernel_subject_options o)
{
    ls_kernel_net n;
    make(&n);
    ls_kernel_subject own, s;
    plan_pair(&n, size, o, &own, &s);
    plan_step(&own);
    force_like(&own, &s, 7);
    plan_step(&s);
    ck_assert(!plan_same(&own, &s));
    judge_plan(&s, 1); /* mirrors what it exports: the forced branches */
    int branch = 0;
    for (; branch < n.network.branch_count; branch++) {
        ck_assert_int_eq(s.api->plan_force(s.plan, s.stream, branch, NULL, 0), LS_OK);
    }
    uint8_t little[4] = {0}; /* refused, without an effect */
    ck_assert_int_eq(s.api->plan_force(s.plan, s.stream, 0, little, 4), LS_ERR_USAGE);
    ck_assert_int_eq(s.api->plan_force(s.plan, s.stream, branch, little, 4), LS_ERR_USAGE);
    ck_assert_int_eq(own.api->plan_force(own.plan, own.stream, 0, little, 4), LS_ERR_USAGE);
    plan_step(&s);
    ck_assert(plan_same(&own, &s));
    ls_kernel_subject_free(&own);
    ls_kernel_subject_free(&s);
}

#endif
