/* Small networks and the steps of a plan, for the tests of plans. */
#ifndef LS_UNIT_CPU_PLAN_H
#define LS_UNIT_CPU_PLAN_H

#include <check.h>
#include <stdlib.h>

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

/* All gradients and the loss to the last bit, in memory of the host. */
static inline void plan_same(const ls_kernel_subject *a, const ls_kernel_subject *b)
{
    for (int p = 0; p < a->n->network.param_count; p++) {
        ck_assert_mem_eq(a->grad[p].data, b->grad[p].data, ls_tensor_bytes(&a->grad[p]));
    }
    ck_assert_mem_eq(&a->state->loss, &b->state->loss, sizeof a->state->loss);
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

#endif
