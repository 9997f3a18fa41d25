/* Gated gradients on the emulated cuDNN: their results, whether these admit the engine, how the
 * choice travels as text, plans that use them against the interpreter at 20 seeds, and what the
 * audit says near ties of the ReLU. */
#include "kernels/cuda/conv/conv_internal.h"
#include "kernels/cuda/conv/fuse.h"
#include "reference/oracle/audit/audit.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "cuda_plan.h"
#include "cuda_products.h"

enum { SEEDS = 20 };

/* ---- one convolution ------------------------------------------------------------------------- */

static const ls_conv_shape shapes[] = {
    {2, 16, 17, 9, 24, 17, 9, 3, 1, 1},
    {3, 16, 8, 7, 16, 4, 4, 3, 2, 1},
    {5, 32, 5, 6, 16, 5, 6, 1, 1, 0}, /* more rows than one tile of the engine has */
    {6, 16, 7, 6, 32, 4, 3, 1, 2, 0}, /* most pixels are reached by no tap */
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static ls_conv *gated_conv(bench *b, const ls_conv_shape *shape, ls_dtype type)
{
    ls_conv *conv = NULL;
    ck_assert_int_eq(ls_conv_create(b->backend, "it", shape, type, LS_CONV_DX_WRITTEN, &conv),
                     LS_OK);
    ck_assert_int_eq(ls_conv_fuse(conv, LS_CONV_DATA_GATED, ls_fuse_admit_gate), LS_OK);
    return conv;
}

/* The same at the end of a block, onto another gradient. */
static ls_conv *joined_conv(bench *b, const ls_conv_shape *shape, bool twice)
{
    ls_conv *conv = NULL;
    ls_conv_pass pass = twice ? LS_CONV_DATA_JOINED_TWICE : LS_CONV_DATA_JOINED;
    ck_assert_int_eq(ls_conv_create(b->backend, "it", shape, LS_F16, LS_CONV_DX_ADDED, &conv),
                     LS_OK);
    ck_assert_int_eq(ls_conv_fuse(conv, pass, ls_fuse_admit_gate), LS_OK);
    return conv;
}

static bool gates(const ls_conv *conv)
{
    return ls_conv_fuses(conv, LS_CONV_DATA_GATED);
}

/* Integers: the gradient, the decisions and the sums have one right value each. */
LOOP_TEST(results_and_sums_are_exact, 2 * SHAPES)
{
    const ls_conv_shape *s = &shapes[_i / 2];
    int64_t in = ls_conv_graph_count(s, LS_CONV_AS_X), out = ls_conv_graph_count(s, LS_CONV_AS_Y);
    int64_t weights = ls_conv_graph_count(s, LS_CONV_AS_W), channels = s->in_channels;
    int64_t step = ls_conv_sums_step((int)channels);
    bench b = bench_open(false, false, _i % 2 == 1);
    ls_conv *conv = gated_conv(&b, s, LS_F16);
    ck_assert(gates(conv));
    bench_workspace(&b, ls_conv_workspace_bytes(conv));
    double *dy_value = integers("dy", out), *w_value = integers("w", weights);
    double *x_value = integers("x", in), *list[4], inv_std_value[2] = {1, 2};
    static const char *const names[4] = {"mean", "inv_std", "scale", "bias"};
    void *device[4];
    for (int k = 0; k < 4; k++) {
        list[k] = integers(names[k], channels);
        for (int64_t c = 0; k == 1 && c < channels; c++) {
            list[k][c] = inv_std_value[c % 2];
        }
        device[k] = tensor(&b, LS_F32, list[k], channels);
    }
    void *dy = tensor(&b, LS_F16, dy_value, out), *w = tensor(&b, LS_F16, w_value, weights);
    void *x = tensor(&b, LS_F16, x_value, in), *g = tensor(&b, LS_F16, NULL, in);
    void *plain = tensor(&b, LS_F16, NULL, in);
    void *sums = tensor(&b, LS_F32, NULL, LS_CONV_GATE_LISTS * step);
    const ls_conv_gate gate = {x, device[0], device[1], device[2], device[3], sums};
    ck_assert_int_eq(ls_conv_backward_gated(conv, b.stream, g, w, dy, &gate, b.workspace), LS_OK);
    ck_assert_int_eq(ls_conv_backward_data(conv, b.stream, plain, w, dy, b.workspace), LS_OK);
    double *got = values(&b, LS_F16, g, in), *wanted = values(&b, LS_F16, plain, in);
    double *sum = values(&b, LS_F32, sums, LS_CONV_GATE_LISTS * step);
    int ties = 0;
    for (int64_t c = 0; c < channels; c++) {
        double total = 0, weighted = 0;
        for (int64_t i = c; i < in; i += channels) {
            double normed = (x_value[i] - list[0][c]) * list[1][c];
            double value = normed * list[2][c] + list[3][c];
            wanted[i] = value > 0 ? wanted[i] : 0;
            ties += value == 0;
            total += wanted[i];
            weighted += wanted[i] * normed;
        }
        ck_assert_double_eq(sum[LS_CONV_GATE_SUM * step + c], total);
        ck_assert_double_eq(sum[LS_CONV_GATE_SUM_X * step + c], weighted);
    }
    ck_assert_int_gt(ties, 0); /* which a ReLU closes */
    for (int64_t i = 0; i < in; i++) {
        ck_assert_double_eq(got[i], wanted[i]);
    }
    void *memory[] = {x, w, dy, g, plain, sums, device[0], device[1], device[2], device[3]};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        b.api->memory_free(b.backend, memory[i]);
    }
    double *host[] = {dy_value, w_value, x_value, got,     wanted,
                      sum,      list[0], list[1], list[2], list[3]};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) {
        free(host[i]);
    }
    ls_conv_destroy(conv);
    bench_close(&b);
}

/* A norm of integers on the device. */
typedef struct integer_norm {
    double *x, *list[4]; /* mean, inv_std, scale, bias */
    void *device_x, *device[4], *sums;
} integer_norm;

static integer_norm make_norm(bench *b, const char *suffix, int64_t in, int64_t channels)
{
    static const char *const names[] = {"mean", "inv_std", "scale", "bias"};
    integer_norm n;
    char name[32];
    snprintf(name, sizeof name, "x%s", suffix);
    n.x = integers(name, in);
    n.device_x = tensor(b, LS_F16, n.x, in);
    for (int k = 0; k < 4; k++) {
        snprintf(name, sizeof name, "%s%s", names[k], suffix);
        n.list[k] = integers(name, channels);
        for (int64_t c = 0; k == 1 && c < channels; c++) {
            n.list[k][c] = (double)(1 + c % 2);
        }
        n.device[k] = tensor(b, LS_F32, n.list[k], channels);
    }
    n.sums = tensor(b, LS_F32, NULL, LS_CONV_GATE_LISTS * ls_conv_sums_step((int)channels));
    return n;
}

static void drop_norm(bench *b, integer_norm *n)
{
    for (int k = 0; k < 4; k++) {
        b->api->memory_free(b->backend, n->device[k]);
        free(n->list[k]);
    }
    b->api->memory_free(b->backend, n->device_x);
    b->api->memory_free(b->backend, n->sums);
    free(n->x);
}

static double normed_of(const integer_norm *n, int64_t i, int64_t c)
{
    return (n->x[i] - n->list[0][c]) * n->list[1][c];
}

static void check_sums(bench *b, const integer_norm *n, const double *g, int64_t in,
                       int64_t channels)
{
    int64_t step = ls_conv_sums_step((int)channels);
    double *sum = values(b, LS_F32, n->sums, LS_CONV_GATE_LISTS * step);
    for (int64_t c = 0; c < channels; c++) {
        double total = 0, weighted = 0;
        for (int64_t i = c; i < in; i += channels) {
            total += g[i];
            weighted += g[i] * normed_of(n, i, c);
        }
        ck_assert_double_eq(sum[LS_CONV_GATE_SUM * step + c], total);
        ck_assert_double_eq(sum[LS_CONV_GATE_SUM_X * step + c], weighted);
    }
    free(sum);
}

/* Shapes of stride 1, in place; with one norm and a residual, and with two. */
LOOP_TEST(joined_results_and_sums_are_exact, 4)
{
    const ls_conv_shape *s = &shapes[_i / 2 == 0 ? 0 : 2];
    bool twice = _i % 2 == 1;
    int64_t in = ls_conv_graph_count(s, LS_CONV_AS_X), out = ls_conv_graph_count(s, LS_CONV_AS_Y);
    int64_t weights = ls_conv_graph_count(s, LS_CONV_AS_W), channels = s->in_channels;
    bench b = bench_open(false, false, _i / 2 == 1);
    ls_conv *conv = joined_conv(&b, s, twice);
    ck_assert(ls_conv_fuses(conv, twice ? LS_CONV_DATA_JOINED_TWICE : LS_CONV_DATA_JOINED));
    bench_workspace(&b, ls_conv_workspace_bytes(conv));
    double *dy_value = integers("dy", out), *w_value = integers("w", weights);
    double *other_value = integers("other", in);
    void *dy = tensor(&b, LS_F16, dy_value, out), *w = tensor(&b, LS_F16, w_value, weights);
    void *g = tensor(&b, LS_F16, other_value, in), *plain = tensor(&b, LS_F16, other_value, in);
    integer_norm n[2] = {make_norm(&b, "", in, channels), make_norm(&b, "2", in, channels)};
    ls_conv_join join = {.other = g, .residual = n[1].device_x, .twice = twice};
    for (int k = 0; k < 2; k++) {
        void **d = n[k].device;
        join.side[k] = (ls_conv_gate){n[k].device_x, d[0], d[1], d[2], d[3], n[k].sums};
    }
    ck_assert_int_eq(ls_conv_backward_joined(conv, b.stream, g, w, dy, &join, b.workspace), LS_OK);
    ck_assert_int_eq(ls_conv_backward_data(conv, b.stream, plain, w, dy, b.workspace), LS_OK);
    double *got = values(&b, LS_F16, g, in), *wanted = values(&b, LS_F16, plain, in);
    int ties = 0, by_other = 0;
    for (int64_t i = 0; i < in; i++) {
        int64_t c = i % channels;
        double own = normed_of(&n[0], i, c) * n[0].list[2][c] + n[0].list[3][c];
        double more =
            twice ? normed_of(&n[1], i, c) * n[1].list[2][c] + n[1].list[3][c] : n[1].x[i];
        wanted[i] = own + more > 0 ? wanted[i] : 0;
        ties += own + more == 0;
        by_other += (own > 0) != (own + more > 0);
        ck_assert_double_eq(got[i], wanted[i]);
    }
    ck_assert(ties > 0 && by_other > 0);
    check_sums(&b, &n[0], wanted, in, channels);
    if (twice) {
        check_sums(&b, &n[1], wanted, in, channels);
    }
    void *memory[] = {dy, w, g, plain};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        b.api->memory_free(b.backend, memory[i]);
    }
    double *host[] = {dy_value, w_value, other_value, got, wanted};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) {
        free(host[i]);
    }
    drop_norm(&b, &n[0]);
    drop_norm(&b, &n[1]);
    ls_conv_destroy(conv);
    bench_close(&b);
}

static const struct join_fault {
    const char *what, *says;
    bool twice;
} join_faults[] = {
    {"mask", "a value of g in channel ", false},
    {"other", "a value of g in channel ", false},
    {"other", "a value of g in channel ", true},
    {"residual", "a value of g in channel ", false},
    {"residual", "a value of g in channel ", true},
    {"last", "the sum of g in channel 15 ", false},
    {"weighted", "the sum of g * (x - mean) in channel 15 ", true},
    {"second", "the sum of g * (x - mean) of the second norm in channel 15 ", true},
    {"unrounded", "the sum of g", true},
    {"rows", "the sum of g", false},
};

ROWS_TEST(wrong_joins_are_not_admitted, join_faults)
{
    const struct join_fault *f = &join_faults[_i];
    char fault[64];
    bench b = bench_open(false, false, false);
    snprintf(fault, sizeof fault, "gate:%s", f->what);
    setenv("LS_EMULATED_CONV_WRONG", fault, 1);
    catch_lines();
    ls_conv *conv = joined_conv(&b, &shapes[0], f->twice);
    const char *said = caught_text();
    unsetenv("LS_EMULATED_CONV_WRONG");
    const char *parts[] = {
        f->twice ? "the joined backward data with sums of two norms of engine eng41_k2=0_k14=3 is "
                   "not used: on exact data "
                 : "the joined backward data with sums of engine eng41_k2=0_k14=3 is not used: on "
                   "exact data ",
        f->says};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        ck_assert_msg(strstr(said, parts[i]) != NULL, "\"%s\" is not in: %s", parts[i], said);
    }
    ck_assert(!ls_conv_fuses(conv, f->twice ? LS_CONV_DATA_JOINED_TWICE : LS_CONV_DATA_JOINED));
    ls_conv_destroy(conv);
    bench_close(&b);
}

/* Not with stride 2, silently; and its word travels as the others do. */
TEST(joins_have_words)
{
    bench b = bench_open(false, false, false);
    char text[1024];
    for (int twice = 0; twice < 2; twice++) {
        catch_lines();
        ls_conv *conv = joined_conv(&b, &shapes[1], twice == 1);
        ck_assert_str_eq(caught_text(), "");
        ls_conv_choice(conv, text, sizeof text);
        ck_assert_str_eq(text, "eng15 eng15 eng15");
        ls_conv_destroy(conv);
        conv = joined_conv(&b, &shapes[2], twice == 1);
        ls_conv_choice(conv, text, sizeof text);
        ck_assert_str_eq(text, twice == 0 ? "eng15 eng15 eng15 join=eng41_k2=0_k14=3"
                                          : "eng15 eng15 eng15 join2=eng41_k2=0_k14=3");
        ck_assert_int_eq(ls_conv_choose(conv, "eng15 eng15 eng15"), LS_OK);
        ck_assert_int_eq(ls_conv_choose(conv, text), LS_OK);
        ck_assert(
            ls_conv_fuses(conv, twice == 0 ? LS_CONV_DATA_JOINED : LS_CONV_DATA_JOINED_TWICE));
        ls_conv_destroy(conv);
    }
    bench_close(&b);
}

TEST(without_an_engine_nothing_is_fused)
{
    static const ls_conv_shape odd = {1, 5, 6, 6, 7, 6, 6, 3, 1, 1};
    static const struct {
        const ls_conv_shape *shape;
        ls_dtype type;
        const char *unfused;
        bool fused;
    } rows[] = {
        {&shapes[0], LS_F32, "", false},  {&shapes[0], LS_BF16, "", false},
        {&odd, LS_F16, "", false},        {&shapes[0], LS_F16, "all", false},
        {&shapes[0], LS_F16, "3", false}, {&shapes[2], LS_F16, "3", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bench b = bench_open(false, false, false);
        setenv("LS_EMULATED_UNFUSED", rows[i].unfused, 1);
        catch_lines();
        ls_conv *conv = gated_conv(&b, rows[i].shape, rows[i].type);
        const char *said = caught_text();
        unsetenv("LS_EMULATED_UNFUSED");
        ck_assert_str_eq(said, "");
        ck_assert_int_eq(gates(conv), rows[i].fused);
        ls_conv_destroy(conv);
        bench_close(&b);
    }
}

static const struct fault {
    const char *what, *says;
} faults[] = {
    {"mask", "a value of g in channel "},
    {"result", "a value of g in channel 15 "},
    {"tile", "a value of g in channel "},
    {"rows", "the sum of g"},
    {"last", "the sum of g in channel 15 "},
    {"weighted", "the sum of g * (x - mean) in channel 15 "},
    {"unrounded", "the sum of g"},
};

ROWS_TEST(wrong_results_are_not_admitted, faults)
{
    char fault[64];
    bench b = bench_open(false, false, false);
    snprintf(fault, sizeof fault, "gate:%s", faults[_i].what);
    setenv("LS_EMULATED_CONV_WRONG", fault, 1);
    catch_lines();
    ls_conv *conv = gated_conv(&b, &shapes[0], LS_F16);
    char *said = strdup(caught_text());
    catch_lines();
    ls_conv *second = gated_conv(&b, &shapes[0], LS_F16);
    const char *again = caught_text();
    unsetenv("LS_EMULATED_CONV_WRONG");
    const char *parts[] = {"it, and layers of its shape: the gated backward data with sums of "
                           "engine eng41_k2=0_k14=3 is not used: on exact data ",
                           faults[_i].says, ", wanted ", " within "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        ck_assert_msg(strstr(said, parts[i]) != NULL, "\"%s\" is not in: %s", parts[i], said);
    }
    ck_assert(!gates(conv) && !gates(second));
    ck_assert_str_eq(again, ""); /* the shape is known */
    free(said);
    ls_conv_destroy(second);
    ls_conv_destroy(conv);
    bench_close(&b);
}

/* Mistakes that come later than the trial, and other decisions near ties. */
LOOP_TEST(right_results_are_admitted, 4)
{
    static const char *const kinds[] = {"gate:stale", "gate:scale", "gate:ties", "gate:none"};
    for (int i = 0; i < SHAPES; i++) {
        bench b = bench_open(false, false, false);
        setenv("LS_EMULATED_CONV_WRONG", kinds[_i], 1);
        catch_lines();
        ls_conv *conv = gated_conv(&b, &shapes[i], LS_F16);
        const char *said = caught_text();
        unsetenv("LS_EMULATED_CONV_WRONG");
        ck_assert_str_eq(said, "");
        ck_assert(gates(conv));
        ls_conv_destroy(conv);
        bench_close(&b);
    }
}

TEST(choice_travels_as_text)
{
    static const char *const other = "eng15 eng15 eng15 gate=eng41_k2=2_k14=4";
    bench b = bench_open(false, false, false);
    ls_conv *conv = gated_conv(&b, &shapes[0], LS_F16);
    char text[1024], described[2048];
    ls_conv_choice(conv, text, sizeof text);
    ck_assert_str_eq(text, "eng15 eng15 eng15 gate=eng41_k2=0_k14=3");
    ck_assert_int_eq(ls_conv_choose(conv, other), LS_OK);
    ls_conv_choice(conv, text, sizeof text);
    ck_assert_str_eq(text, other);
    ls_conv_describe(conv, described, sizeof described);
    ck_assert_ptr_nonnull(strstr(described, "; gated backward data with sums eng41_k2=2_k14=4 "));
    ck_assert_ptr_null(strstr(described, "; backward data"));
    /* not asked for */
    ck_assert_int_eq(ls_conv_choose(conv, "eng15 eng15 eng15 sums=eng41"), LS_ERR_USAGE);
    ck_assert_int_eq(ls_conv_choose(conv, "eng15 eng15 eng15 gate=eng15"), LS_ERR_UNSUPPORTED);
    ck_assert(gates(conv));
    ck_assert_int_eq(ls_conv_fuse(conv, LS_CONV_FORWARD_SUMS, ls_fuse_admit), LS_OK);
    ls_conv_choice(conv, text, sizeof text);
    ck_assert_str_eq(text, "eng15 eng15 eng15 sums=eng41_k2=0_k14=3 gate=eng41_k2=2_k14=4");
    ck_assert_int_eq(ls_conv_choose(conv, "eng15 eng15 eng15"), LS_OK);
    ck_assert(!gates(conv));
    ls_conv_destroy(conv);
    bench_close(&b);
}

TEST(engines_are_timed)
{
    bench b = bench_open(false, false, true);
    ls_conv *conv = gated_conv(&b, &shapes[0], LS_F16);
    char described[2048];
    ls_conv_describe(conv, described, sizeof described);
    const char *own = strstr(described, "gated backward data with sums");
    ck_assert_ptr_nonnull(own);
    const char *timed = strstr(own, " ms, best of ");
    ck_assert(timed != NULL && timed < strstr(own, "backward weights"));
    ck_assert_int_eq(atoi(timed + strlen(" ms, best of ")), 3);
    ls_conv_destroy(conv);
    bench_close(&b);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static ls_kernel_subject_options gated_level(int opt_level, uint64_t seed)
{
    ls_kernel_subject_options o = cuda_level(opt_level, LS_F16);
    o.fuse = true;
    o.seed = seed;
    return o;
}

static int count_lines(const ls_kernel_subject *s, const char *what)
{
    ls_plan_info info;
    int count = 0;
    s->api->plan_info(s->plan, &info);
    for (const char *at = info.fusions; (at = strstr(at, what)) != NULL; at++) {
        count++;
    }
    return count;
}

static int count_gated(const ls_kernel_subject *s)
{
    return count_lines(s, "gated backward data");
}

/* Three blocks of one stage: two of their ends have no projection and convolutions of stride 1
 * behind them. */
static void build_stage(ls_kernel_net *n)
{
    ls_kernel_net_start(n);
    int x = ls_kernel_net_relu(n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, 0, 16, 3, 1, 1)));
    x = ls_kernel_net_pool(n, x, 3, 2, 1);
    for (int i = 0; i < 3; i++) {
        x = ls_kernel_net_block(n, x, 16, 1, 0);
    }
    ls_kernel_net_finish(n, x, 10);
}

/* Networks, most of cpu_plan.h, and how many norms between two convolutions they have; and of
 * ends of blocks behind which a convolution of stride 1 completes the gradient: those with one
 * norm, and with two. */
static const struct judged {
    build *make;
    const int *size;
    int gated, joined, twice;
} judged[] = {{build_basic, sizes[0], 2, 0, 0},
              {build_bottleneck, sizes[1], 6, 0, 2},
              {build_padded, sizes[2], 3, 0, 0},
              {build_tiny, sizes[4], 4, 0, 2},
              {build_stage, sizes[0], 3, 2, 0}};
enum { JUDGED = sizeof judged / sizeof judged[0] };

static void judge_step(const struct judged *j, ls_kernel_subject_options o)
{
    ls_kernel_net n;
    j->make(&n);
    ls_kernel_subject s;
    cuda_make(&s, &n, j->size, o);
    ck_assert_int_eq(count_gated(&s), j->gated);
    ck_assert_int_eq(count_lines(&s, "joined backward data"), j->joined + j->twice);
    ck_assert_int_eq(count_lines(&s, "of two norms"), j->twice);
    plan_step(&s);
    judge_plan(&s, cuda_scale(&o));
    ls_kernel_subject_free(&s);
}

LOOP_TEST(gradients_at_many_seeds, (JUDGED * SEEDS))
{
    judge_step(&judged[_i % JUDGED], gated_level(1 + _i / JUDGED % 3, (uint64_t)(_i / JUDGED)));
}

/* A ReLU that decides otherwise near ties does not show. */
LOOP_TEST(ties_do_not_show, JUDGED)
{
    setenv("LS_EMULATED_CONV_WRONG", "gate:ties", 1);
    judge_step(&judged[_i % JUDGED], gated_level(2, (uint64_t)(_i / JUDGED)));
    unsetenv("LS_EMULATED_CONV_WRONG");
}

/* Sums of the step before would be those of other gradients. */
TEST(sums_are_of_this_step)
{
    ls_kernel_net n;
    networks[1](&n);
    ls_kernel_subject s;
    ls_kernel_subject_options o = gated_level(2, 1);
    cuda_make(&s, &n, sizes[1], o);
    plan_step(&s);
    for (int64_t i = 0; i < (int64_t)sizes[1][0] * 3 * sizes[1][1] * sizes[1][2]; i++) {
        s.input[i] = 3 - 2 * s.input[i];
    }
    plan_step(&s);
    judge_plan(&s, cuda_scale(&o));
    ls_kernel_subject_free(&s);
}

/* Not unasked, not in another type, and not where decisions of ReLUs are given: the graph decides
 * by itself. */
TEST(only_where_it_is_asked_for)
{
    ls_kernel_net n;
    networks[1](&n);
    ls_kernel_subject_options o[4] = {cuda_level(2, LS_F16), cuda_level(0, LS_F16),
                                      cuda_level(1, LS_BF16), cuda_level(2, LS_F16)};
    for (int i = 0; i < 4; i++) {
        ls_kernel_subject s;
        o[i].fuse = i > 0;
        o[i].forced_branches = i == 3;
        cuda_make(&s, &n, sizes[1], o[i]);
        ck_assert_int_eq(count_gated(&s), 0);
        ck_assert_int_eq(count_lines(&s, "joined"), 0);
        ls_kernel_subject_free(&s);
    }
}

/* ---- the audit near ties --------------------------------------------------------------------- */

enum { WIDE = 8 }; /* channels, all alike */

/* z = x * weight + bias with x = 1: 16 u from 0 it is further than f32 can lose, 4 u it is not.
 * `got`: of the gradient, 3. */
static const struct tie {
    const char *what;
    double x, weight, bias, got;
    bool right;
    int join;        /* 1: the residual is added, 2: another norm's output of it */
    double residual; /* of weight 1 and bias 0 */
} tie_rows[] = {
    {"residual opens", 1, 1, -2, 3, true, 1, 1.5},
    {"residual opens, forgotten", 1, 1, -2, 0, false, 1, 1.5},
    {"residual closes", 1, 1, 0, 3, false, 1, -1.5},
    {"residual, tie", 1, 1, 0, 0, true, 1, -1},
    {"residual, tie, open", 1, 1, 4 * 0x1p-24, 3, true, 1, -1},
    {"residual, beyond a tie", 1, 1, 32 * 0x1p-24, 0, false, 1, -1},
    {"second norm opens", 1, 1, -2, 3, true, 2, 1.5},
    {"second norm opens, forgotten", 1, 1, -2, 0, false, 2, 1.5},
    {"second norm, tie", 1, 1, 0, 3, true, 2, -1},
    {"second norm, beyond a tie", 1, 1, 64 * 0x1p-24, 0, false, 2, -1},
    {"open", 1, 1, -1 + 16 * 0x1p-24, 3, true},
    {"open, forgotten", 1, 1, -1 + 16 * 0x1p-24, 0, false},
    {"closed", 1, 1, -1 - 16 * 0x1p-24, 0, true},
    {"closed, forgotten", 1, 1, -1 - 16 * 0x1p-24, 3, false},
    {"tie above 0", 1, 1, -1 + 4 * 0x1p-24, 3, true},
    {"tie above 0, closed", 1, 1, -1 + 4 * 0x1p-24, 0, true},
    {"tie below 0", 1, 1, -1 - 4 * 0x1p-24, 0, true},
    {"tie below 0, open", 1, 1, -1 - 4 * 0x1p-24, 3, true},
    {"tie, between both", 1, 1, -1 + 4 * 0x1p-24, 1.5, false},
    {"tie, wrong", 1, 1, -1 + 4 * 0x1p-24, 3.25, false},
    {"a channel that is off", 1, 0, 0, 0, true}, /* exactly 0: no rounding opens it */
    {"a channel that is off, open", 1, 0, 0, 3, false},
    {"no number", NAN, 1, 0, 3, true},
};

static ls_audit_tensor channel_values(bench *b, double value)
{
    double list[WIDE];
    for (int c = 0; c < WIDE; c++) {
        list[c] = value;
    }
    return (ls_audit_tensor){tensor(b, LS_F32, list, WIDE), WIDE, LS_AUDIT_F32};
}

static void *halves(bench *b, double value)
{
    double list[WIDE];
    for (int c = 0; c < WIDE; c++) {
        list[c] = value;
    }
    return tensor(b, LS_F16, list, WIDE);
}

ROWS_TEST(near_ties_are_judged_either_way, tie_rows)
{
    const struct tie *row = &tie_rows[_i];
    bench b = bench_open(false, false, false);
    double one[WIDE * WIDE] = {0};
    for (int c = 0; c < WIDE; c++) {
        one[c * WIDE + c] = 1;
    }
    ls_audit_entry_fn *entry = NULL;
    ck_assert_int_eq(ls_load_symbol("oracle_cuda", LS_AUDIT_ENTRY, &entry), LS_OK);
    const ls_audit_api *judge = entry();
    ls_audit_op op = {.kind = LS_AUDIT_CONV_DATA,
                      .type = LS_AUDIT_F16,
                      .images = 1,
                      .in_channels = WIDE,
                      .plain_channels = WIDE,
                      .in_height = 1,
                      .in_width = 1,
                      .out_channels = WIDE,
                      .out_height = 1,
                      .out_width = 1,
                      .kernel = 1,
                      .stride = 1,
                      .in_block = WIDE,
                      .out_block = WIDE,
                      .w = tensor(&b, LS_F16, one, WIDE * WIDE),
                      .dy = halves(&b, 3),
                      .dx = halves(&b, row->got),
                      .normed = halves(&b, row->x),
                      .group = 1};
    op.norm[0] = (ls_audit_norm){.weight = channel_values(&b, row->weight),
                                 .bias = channel_values(&b, row->bias),
                                 .mean = channel_values(&b, 0),
                                 .inv_std = channel_values(&b, 1)};
    op.norm[1] = (ls_audit_norm){.weight = channel_values(&b, 1),
                                 .bias = channel_values(&b, 0),
                                 .mean = channel_values(&b, 0),
                                 .inv_std = channel_values(&b, 1)};
    op.residual = row->join == 0 ? NULL : halves(&b, row->residual);
    op.dual = row->join == 2;
    void *room = NULL, *verdict = NULL;
    ls_audit_verdict found;
    ck_assert_int_eq(b.api->memory_alloc(b.backend, judge->room_bytes(WIDE, 1), "room", &room),
                     LS_OK);
    ck_assert_int_eq(b.api->memory_alloc(b.backend, sizeof found, "verdict", &verdict), LS_OK);
    void *stream = b.api->stream_native(b.stream);
    ck_assert_int_eq(judge->before(stream, &op, (ls_audit_draw){1, 1}, room), LS_OK);
    ck_assert_int_eq(judge->after(stream, &op, room, verdict), LS_OK);
    ck_assert_int_eq(b.api->copy_out(b.backend, b.stream, &found, verdict, sizeof found), LS_OK);
    ck_assert_int_eq(b.api->stream_wait(b.stream), LS_OK);
    ck_assert_int_eq(found.elements, WIDE);
    ck_assert_msg(found.bad == (row->right ? 0 : WIDE), "%s: %d elements are wrong", row->what,
                  (int)found.bad);
    void *memory[] = {op.w,
                      (void *)op.dy,
                      op.dx,
                      (void *)op.normed,
                      op.norm[0].weight.data,
                      op.norm[0].bias.data,
                      op.norm[0].mean.data,
                      op.norm[0].inv_std.data,
                      op.norm[1].weight.data,
                      op.norm[1].bias.data,
                      op.norm[1].mean.data,
                      op.norm[1].inv_std.data,
                      (void *)op.residual,
                      room,
                      verdict};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        b.api->memory_free(b.backend, memory[i]);
    }
    bench_close(&b);
}

int main(void)
{
    use_emulation();
    return RUN_TESTS("cuda gate", .timeout_s = 120);
}
