/* Whole small networks on the CUDA backend with an emulated device: losses and gradients against
 * the interpreter, all exports against the CPU backend, forced branches. */
#include "suite/unit/run_suite.h"
#include "cuda_plan.h"

/* ---- against the interpreter
 * --------------------------------------------------------------------- */

static void check_network(int which, ls_kernel_subject_options o)
{
    ls_kernel_net n;
    networks[which](&n);
    ls_kernel_subject s;
    cuda_make(&s, &n, sizes[which], o);
    plan_step(&s);
    judge_plan(&s, cuda_scale(&o));
    ls_kernel_subject_free(&s);
}

enum { NETWORKS = sizeof networks / sizeof *networks };

ROWS_TEST(gradients_f32, networks)
{
    check_network(_i, cuda_level(0, LS_F16));
}

/* Network, then half type; O1 and O2 have the same rounding in the interpreter. */
LOOP_TEST(gradients_half, 2 * NETWORKS)
{
    ls_dtype half = _i % 2 == 0 ? LS_F16 : LS_BF16;
    check_network(_i / 2, cuda_level(1, half));
    check_network(_i / 2, cuda_level(2, half));
}

/* ---- compared with the CPU backend ----------------------------------------------------------- */

/* Sum of squares of the difference over that of b. */
static double relative(const double *a, const double *b, int64_t count)
{
    distance d = between(a, b, count);
    return d.size > 0 ? d.difference / d.size : d.difference;
}

static void same_shape_of_run(const ls_kernel_subject *a, const ls_kernel_subject *b)
{
    ls_plan_info x, y;
    a->api->plan_info(a->plan, &x);
    b->api->plan_info(b->plan, &y);
    ck_assert(x.flops == y.flops);
    ck_assert_int_eq(a->ready_count, b->ready_count);
    ck_assert_mem_eq(a->ready, b->ready, (size_t)a->ready_count * sizeof a->ready[0]);
}

static void tensors_alike(const ls_kernel_subject *a, const ls_kernel_subject *b,
                          const ls_tensor *x, const ls_tensor *y, double limit, const char *name)
{
    double *left = ls_kernel_subject_read(a, x), *right = ls_kernel_subject_read(b, y);
    ck_assert(left != NULL && right != NULL);
    double e = relative(left, right, x->count);
    ck_assert_msg(e <= limit, "%s: %.3g from the CPU backend's, %.3g allowed", name, e, limit);
    free(left);
    free(right);
}

static void activations_alike(const ls_kernel_subject *a, const ls_kernel_subject *b, double limit)
{
    ls_kernel_interpreter t;
    ls_kernel_interpreter_make(&t, a->n, a->options.batch, a->options.height, a->options.width,
                               LS_KERNEL_ROUND_NONE);
    int stored = 0;
    for (int i = 0; i < a->n->network.layer_count - 1; i++) {
        int64_t count = t.size[i].count;
        float *x = ls_kernel_subject_activation(a, i, count);
        float *y = ls_kernel_subject_activation(b, i, count);
        ck_assert_int_eq(x == NULL, y == NULL); /* both fuse the same layers */
        double difference = 0, size = 0;
        for (int64_t e = 0; x != NULL && e < count; e++) {
            double d = (double)x[e] - (double)y[e];
            difference += d * d;
            size += (double)y[e] * (double)y[e];
        }
        ck_assert_msg(difference <= limit * limit * size, "layer %d: %.3g of %.3g", i,
                      sqrt(difference), sqrt(size));
        stored += x != NULL;
        free(x);
        free(y);
    }
    ck_assert_int_gt(stored, 3);
    ls_kernel_interpreter_free(&t);
}

/* The CPU backend on the CUDA backend's branches, so that only rounding differs. Layers differ by
 * at most the unit times the depth, twice (both round), with room for the order of sums. */
static void against_cpu(int which, int opt_level, ls_dtype half)
{
    static const double unit[] = {[LS_F32] = 0x1p-24, [LS_F16] = 0x1p-11, [LS_BF16] = 0x1p-8};
    ls_kernel_net n;
    networks[which](&n);
    ls_kernel_subject_options o = cuda_level(opt_level, half);
    ls_kernel_subject gpu, cpu;
    cuda_make(&gpu, &n, sizes[which], o);
    o.device = "cpu";
    o.threads = 1;
    o.forced_branches = true;
    cuda_make(&cpu, &n, sizes[which], o);
    plan_step(&gpu);
    force_like(&gpu, &cpu, 0);
    plan_step(&cpu);
    double limit = unit[o.activation] * n.network.layer_count;
    same_shape_of_run(&gpu, &cpu);
    for (int b = 0; b < n.network.buffer_count; b++) {
        if (n.buffer[b].role != LS_BUFFER_BATCHES_TRACKED) {
            double stored = unit[o.buffer_type] > limit ? unit[o.buffer_type] : limit;
            tensors_alike(&gpu, &cpu, &gpu.buffer[b], &cpu.buffer[b], stored, n.buffer[b].name);
        }
    }
    for (int p = 0; p < n.network.param_count; p++) {
        /* 16: gradients pass the depth a second time, and norms' biases nearly cancel */
        tensors_alike(&gpu, &cpu, &gpu.grad[p], &cpu.grad[p], 16 * limit, n.param[p].name);
    }
    ls_kernel_subject_free(&cpu);
    o.forced_branches = false;
    cuda_make(&cpu, &n, sizes[which], o);
    plan_step(&cpu);
    activations_alike(&gpu, &cpu, 4 * limit); /* 4: some branches may differ */
    ls_kernel_subject_free(&cpu);
    ls_kernel_subject_free(&gpu);
}

ROWS_TEST(like_the_cpu_f32, networks)
{
    against_cpu(_i, 0, LS_F16);
}

LOOP_TEST(like_the_cpu_half, 2 * NETWORKS)
{
    for (int opt_level = 1; opt_level <= 3; opt_level++) {
        against_cpu(_i / 2, opt_level, _i % 2 == 0 ? LS_F16 : LS_BF16);
    }
}

/* ---- gradients onto gradients ---------------------------------------------------------------- */

/* Convolutions whose gradient is added to another: one per block. In the odd network the sum passes
 * one buffer to both of its operands, where adding is not allowed. */
static const int joins[] = {2, 3, 3, 1, 4};

static int count_added(const ls_kernel_subject *s)
{
    ls_plan_info info;
    int count = 0;
    s->api->plan_info(s->plan, &info);
    for (const char *at = info.fusions; (at = strstr(at, ", added")) != NULL; at++) {
        count++;
    }
    return count;
}

/* The largest difference of the two, relative to the gradients. */
static double apart(const ls_kernel_subject *a, const ls_kernel_subject *b)
{
    double most = 0;
    for (int p = 0; p < a->n->network.param_count; p++) {
        double *x = ls_kernel_subject_read(a, &a->grad[p]);
        double *y = ls_kernel_subject_read(b, &b->grad[p]);
        double e = relative(x, y, a->grad[p].count);
        most = e > most ? e : most;
        free(x);
        free(y);
    }
    return most;
}

/* Adding in the products saves one rounding compared with adding in the operations behind them;
 * nothing else changes. */
LOOP_TEST(added_by_products_or_behind, 3 * NETWORKS)
{
    static const double unit[] = {[LS_F32] = 0x1p-24, [LS_F16] = 0x1p-11, [LS_BF16] = 0x1p-8};
    int which = _i / 3;
    ls_dtype type = (ls_dtype)(_i % 3);
    ls_kernel_net n;
    networks[which](&n);
    ls_kernel_subject_options o = cuda_level(type == LS_F32 ? 0 : 1, type);
    ls_kernel_subject products, behind, wrong;
    cuda_make(&products, &n, sizes[which], o);
    setenv("LS_CUDNN_ADD", "0", 1);
    cuda_make(&behind, &n, sizes[which], o);
    unsetenv("LS_CUDNN_ADD");
    cuda_make(&wrong, &n, sizes[which], o);
    ck_assert_int_eq(count_added(&products), joins[which]);
    ck_assert_int_eq(count_added(&behind), 0);
    plan_step(&products);
    plan_step(&behind);
    setenv("LS_EMULATED_CONV_WRONG", "beta", 1); /* the old values are not added */
    plan_step(&wrong);
    unsetenv("LS_EMULATED_CONV_WRONG");
    /* half a unit more or less at a join, propagated by later layers: one unit for each */
    double limit = unit[type] * n.network.layer_count;
    double right = apart(&products, &behind), left_out = apart(&wrong, &behind);
    ck_assert_msg(right <= limit, "%.3g apart, %.3g allowed", right, limit);
    /* sums are f32: storing them as f32 loses nothing before the other is added */
    ck_assert_int_eq(right > 0, type != LS_F32);
    ck_assert_msg(left_out > 4 * limit, "%.3g with a term left out", left_out);
    plan_step(&wrong); /* nothing is added to values of the previous step */
    ck_assert(plan_same(&wrong, &products));
    ls_kernel_subject_free(&wrong);
    ls_kernel_subject_free(&behind);
    ls_kernel_subject_free(&products);
}

/* If only some shapes have engines for it, the others use the alternative. */
LOOP_TEST(added_shape_by_shape, 2)
{
    ls_kernel_net n;
    networks[1](&n); /* bottlenecks: the adding convolutions are 1x1 and, outside blocks, 3x3 */
    ls_kernel_subject s;
    setenv("LS_EMULATED_UNADDED", _i == 0 ? "3" : "1", 1);
    cuda_make(&s, &n, sizes[1], cuda_level(0, LS_F16));
    unsetenv("LS_EMULATED_UNADDED");
    ck_assert_int_eq(count_added(&s), _i == 0 ? 3 : 0);
    plan_step(&s);
    judge_plan(&s, 1);
    ls_kernel_subject_free(&s);
}

/* ---- the stem over blocks of pixels -----------------------------------------------------------
 */

/* With LS_STEM_S2D=0 the plain stem of 7x7: the same sums in another order, of the whole network's
 * gradients; in f32 always the plain one, bit by bit. */
LOOP_TEST(stem_in_blocks_or_plain, 6)
{
    static const double unit[] = {[LS_F32] = 0x1p-24, [LS_F16] = 0x1p-11, [LS_BF16] = 0x1p-8};
    ls_dtype type = (ls_dtype)(_i % 3);
    ls_kernel_net n;
    build_basic(&n);
    ls_kernel_subject_options o = cuda_level(type == LS_F32 ? 0 : 1 + _i / 3, type);
    ls_kernel_subject blocks, plain;
    cuda_make(&blocks, &n, sizes[0], o);
    setenv("LS_STEM_S2D", "0", 1);
    cuda_make(&plain, &n, sizes[0], o);
    unsetenv("LS_STEM_S2D");
    plan_step(&blocks);
    plan_step(&plain);
    double e = apart(&blocks, &plain), limit = unit[type] * n.network.layer_count;
    ck_assert_msg(e <= limit, "%.3g apart, %.3g allowed", e, limit);
    ck_assert(e == 0 || type != LS_F32);
    ls_plan_info with, without;
    blocks.api->plan_info(blocks.plan, &with);
    plain.api->plan_info(plain.plan, &without);
    /* an image of 24 x 24 x 8, or of 15 x 15 x 16 */
    int64_t saved = type == LS_F32 ? 0 : sizes[0][0] * (24 * 24 * 8 - 15 * 15 * 16) * 2 / 256 * 256;
    ck_assert_int_eq(without.activation_bytes - with.activation_bytes, saved);
    judge_plan(&plain, cuda_scale(&o));         /* gradients_half judges the other */
    const char *engines = NULL, *others = NULL; /* of one are not taken for the other */
    ck_assert_int_eq(plain.api->engines_export(plain.plan, &engines), LS_OK);
    ck_assert_int_eq(blocks.api->engines_export(blocks.plan, &others), LS_OK);
    ck_assert_int_eq(strcmp(engines, others) == 0, type == LS_F32);
    ls_status taken = type == LS_F32 ? LS_OK : LS_ERR_USAGE;
    ck_assert_int_eq(blocks.api->engines_import(blocks.plan, engines), taken);
    ck_assert_int_eq(plain.api->engines_import(plain.plan, others), taken);
    ls_kernel_subject_free(&blocks);
    ls_kernel_subject_free(&plain);
}

/* ---- forced branches ------------------------------------------------------------------------- */

LOOP_TEST(forced_plan_is_the_same, 2 * NETWORKS)
{
    forced_is_the_same(networks[_i / 2], sizes[_i / 2], cuda_level(_i % 2 == 0 ? 0 : 2, LS_F16));
}

ROWS_TEST(forced_branches_are_taken, networks)
{
    forced_is_taken(networks[_i], sizes[_i], cuda_level(0, LS_F16));
}

/* Every seventh window of the pool chooses its last pixel instead. */
static void turn_pool(const ls_kernel_subject *own, ls_kernel_subject *s, int layer)
{
    const ls_layer *pool = &own->n->layer[layer];
    ls_kernel_interpreter t;
    ls_kernel_interpreter_make(&t, own->n, own->options.batch, own->options.height,
                               own->options.width, LS_KERNEL_ROUND_NONE);
    ls_kernel_plane in = t.size[pool->input[0]], out = t.size[layer];
    int32_t *index = t.index[layer];
    ck_assert_int_eq(own->api->plan_export(own->plan, own->stream, LS_EXPORT_POOL_INDEX,
                                           pool->branch, index, out.count * 4),
                     LS_OK);
    for (int64_t i = 0; i < out.count; i += 7) {
        int pixel = (int)(i % ((int64_t)out.height * out.width));
        int h = pixel / out.width * pool->stride - pool->pad + pool->kernel - 1;
        int w = pixel % out.width * pool->stride - pool->pad + pool->kernel - 1;
        h = h < in.height ? h : in.height - 1;
        w = w < in.width ? w : in.width - 1;
        index[i] = h * in.width + w;
    }
    ck_assert_int_eq(s->api->plan_force(s->plan, s->stream, pool->branch, index, out.count * 4),
                     LS_OK);
    ls_kernel_interpreter_free(&t);
}

TEST(forced_pool_is_taken)
{
    ls_kernel_net n;
    build_basic(&n);
    ls_kernel_subject own, s;
    plan_pair(&n, sizes[0], cuda_level(0, LS_F16), &own, &s);
    plan_step(&own);
    force_like(&own, &s, 0);
    for (int i = 0; i < n.network.layer_count; i++) {
        if (n.layer[i].kind == LS_LAYER_MAX_POOL) {
            turn_pool(&own, &s, i);
        }
    }
    plan_step(&s);
    ck_assert(!plan_same(&own, &s));
    judge_plan(&s, 1);
    ls_kernel_subject_free(&own);
    ls_kernel_subject_free(&s);
}

TEST(wrong_branches_are_refused)
{
    ls_kernel_net n;
    build_basic(&n);
    ls_kernel_subject plain, s;
    plan_pair(&n, sizes[0], cuda_level(0, LS_F16), &plain, &s);
    int pool = -1;
    for (int i = 0; i < n.network.layer_count; i++) {
        pool = n.layer[i].kind == LS_LAYER_MAX_POOL ? n.layer[i].branch : pool;
    }
    /* 4 images of 16 channels, pooled from 12 x 12 to 6 x 6: index 143 is in the last window alone
     */
    int32_t index[4 * 16 * 36];
    for (int i = 0; i < 4 * 16 * 36; i++) {
        index[i] = 143;
    }
    ck_assert_int_eq(s.api->plan_force(s.plan, s.stream, pool, index, sizeof index), LS_ERR_USAGE);
    plan_step(&plain);
    plan_step(&s); /* a refused branch has no effect */
    ck_assert(plan_same(&plain, &s));
    ls_kernel_subject_free(&plain);
    ls_kernel_subject_free(&s);
}

int main(void)
{
    use_emulation();
    return RUN_TESTS("cuda plan", .timeout_s = 120);
}
