/* Fused products on the emulated cuDNN: which shapes have an engine, whether its results admit it,
 * how the choice travels as text, and plans that use it, against the interpreter at 20 seeds. */
#include "kernels/cuda/conv/conv_internal.h"
#include "kernels/cuda/conv/fuse.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "cuda_plan.h"
#include "cuda_products.h"

enum { SEEDS = 20 };

/* ---- one convolution ------------------------------------------------------------------------- */

static const ls_conv_shape shapes[] = {
    {2, 8, 15, 11, 16, 8, 6, 7, 2, 3}, /* the stem, with channels up to 16 bytes a pixel */
    {2, 16, 17, 9, 24, 17, 9, 3, 1, 1},
    {3, 16, 8, 7, 16, 4, 4, 3, 2, 1}, /* strided; the last column is reached by no tap */
    {5, 32, 5, 6, 16, 5, 6, 1, 1, 0}, /* more rows than one tile of the engine has */
    {6, 16, 7, 6, 32, 4, 3, 1, 2, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static int tried; /* fused plans shown to admit_and_count */

static ls_status admit_and_count(ls_backend *backend, const char *layer, const ls_conv_plan *plain,
                                 ls_conv_plan *fused)
{
    (void)backend;
    ck_assert_ptr_nonnull(layer);
    ck_assert_int_eq(plain->key.pass, LS_CONV_FORWARD);
    ck_assert_int_eq(fused->key.pass, LS_CONV_FORWARD_SUMS);
    tried++;
    fused->admission = LS_CONV_ADMITTED;
    return LS_OK;
}

static ls_conv *fused_conv(bench *b, const ls_conv_shape *shape, ls_dtype type,
                           ls_conv_admit_fn *admit)
{
    ls_conv *conv = NULL;
    ck_assert_int_eq(ls_conv_create(b->backend, "it", shape, type, LS_CONV_DX_WRITTEN, &conv),
                     LS_OK);
    ck_assert_int_eq(ls_conv_fuse(conv, LS_CONV_FORWARD_SUMS, admit), LS_OK);
    return conv;
}

/* Integers whose sums are exact: the result, rounded once, and its sums have one right value. */
LOOP_TEST(results_and_sums_are_exact, 2 * SHAPES)
{
    const ls_conv_shape *s = &shapes[_i / 2];
    int64_t rows = (int64_t)s->batch * s->out_height * s->out_width, channels = s->out_channels;
    int64_t x_count = (int64_t)s->batch * s->in_height * s->in_width * s->in_channels;
    int64_t w_count = channels * s->kernel * s->kernel * s->in_channels;
    int64_t step = ls_conv_sums_step((int)channels);
    bench b = bench_open(false, false, _i % 2 == 1);
    ls_conv *conv = fused_conv(&b, s, LS_F16, ls_fuse_admit);
    ck_assert(ls_conv_fuses(conv, LS_CONV_FORWARD_SUMS));
    bench_workspace(&b, ls_conv_workspace_bytes(conv));
    double *x_value = integers("x", x_count), *w_value = integers("w", w_count);
    void *x = tensor(&b, LS_F16, x_value, x_count), *w = tensor(&b, LS_F16, w_value, w_count);
    void *y = tensor(&b, LS_F16, NULL, rows * channels), *sums = tensor(&b, LS_F32, NULL, 2 * step);
    void *plain = tensor(&b, LS_F16, NULL, rows * channels);
    ck_assert_int_eq(ls_conv_forward_sums(conv, b.stream, x, w, y, sums, b.workspace), LS_OK);
    ck_assert_int_eq(ls_conv_forward(conv, b.stream, x, w, plain, b.workspace), LS_OK);
    double *got = values(&b, LS_F16, y, rows * channels);
    double *wanted = values(&b, LS_F16, plain, rows * channels);
    double *sum = values(&b, LS_F32, sums, 2 * step);
    ck_assert_mem_eq(got, wanted, (size_t)(rows * channels) * sizeof *got);
    for (int64_t c = 0; c < channels; c++) {
        double total = 0, squares = 0;
        for (int64_t row = 0; row < rows; row++) {
            double value = wanted[row * channels + c];
            total += value;
            squares += value * value;
        }
        ck_assert_double_lt(squares, 0x1p24);
        ck_assert_double_eq(sum[c], total);
        ck_assert_double_eq(sum[step + c], squares);
    }
    void *memory[] = {x, w, y, sums, plain};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        b.api->memory_free(b.backend, memory[i]);
    }
    free(x_value);
    free(w_value);
    free(got);
    free(wanted);
    free(sum);
    ls_conv_destroy(conv);
    bench_close(&b);
}

/* f32, bf16, channels that tensor cores do not take, and what the library does not offer. */
TEST(without_an_engine_nothing_is_fused)
{
    static const ls_conv_shape odd = {1, 5, 6, 6, 7, 6, 6, 3, 1, 1};
    static const struct {
        const ls_conv_shape *shape;
        ls_dtype type;
        const char *unfused;
        bool fused;
    } rows[] = {
        {&shapes[1], LS_F32, "", false},  {&shapes[1], LS_BF16, "", false},
        {&odd, LS_F16, "", false},        {&shapes[1], LS_F16, "all", false},
        {&shapes[1], LS_F16, "3", false}, {&shapes[3], LS_F16, "3", true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bench b = bench_open(false, false, false);
        setenv("LS_EMULATED_UNFUSED", rows[i].unfused, 1);
        catch_lines();
        ls_conv *conv = fused_conv(&b, rows[i].shape, rows[i].type, ls_fuse_admit);
        const char *said = caught_text();
        unsetenv("LS_EMULATED_UNFUSED");
        char text[1024];
        ls_conv_choice(conv, text, sizeof text);
        ck_assert_str_eq(said, ""); /* no error: there is an alternative */
        ck_assert_int_eq(ls_conv_fuses(conv, LS_CONV_FORWARD_SUMS), rows[i].fused);
        ck_assert_int_eq(strstr(text, "sums=") != NULL, rows[i].fused);
        ls_conv_destroy(conv);
        bench_close(&b);
    }
}

static const struct fault {
    const char *what, *says;
} faults[] = {
    {"unrounded", "mean of y in channel "}, /* sums of values before they are stored */
    {"tile", "mean of y in channel 0 "},    /* the last rows are left out */
    {"last", "mean of y in channel 23 "},   /* one channel's sum */
    {"square", "1 / deviation of y in channel 23 "},
    {"result", "a value of y in channel 23 "}, /* the last element of y itself */
};

ROWS_TEST(wrong_results_are_not_admitted, faults)
{
    char fault[64];
    bench b = bench_open(false, false, false);
    snprintf(fault, sizeof fault, "sums:%s", faults[_i].what);
    setenv("LS_EMULATED_CONV_WRONG", fault, 1);
    catch_lines();
    ls_conv *conv = fused_conv(&b, &shapes[1], LS_F16, ls_fuse_admit);
    char *said = strdup(caught_text());
    catch_lines();
    ls_conv *second = fused_conv(&b, &shapes[1], LS_F16, ls_fuse_admit);
    const char *again = caught_text();
    unsetenv("LS_EMULATED_CONV_WRONG");
    const char *parts[] = {"it, and layers of its shape: the forward with sums of engine "
                           "eng41_k2=0_k14=3 is not used: on exact data ",
                           faults[_i].says, ", wanted ", " within "};
    ck_assert(!ls_conv_fuses(conv, LS_CONV_FORWARD_SUMS) &&
              !ls_conv_fuses(second, LS_CONV_FORWARD_SUMS));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        ck_assert_msg(strstr(said, parts[i]) != NULL, "\"%s\" is not in: %s", parts[i], said);
    }
    ck_assert_str_eq(again, ""); /* the shape is known */
    free(said);
    ls_conv_destroy(second);
    ls_conv_destroy(conv);
    bench_close(&b);
}

TEST(equal_shapes_are_tried_once)
{
    bench b = bench_open(false, false, false);
    tried = 0;
    ls_conv *conv[3];
    for (int i = 0; i < 3; i++) {
        conv[i] = fused_conv(&b, &shapes[i == 2 ? 3 : 1], LS_F16, admit_and_count);
    }
    ck_assert_int_eq(tried, 2);
    for (int i = 0; i < 3; i++) {
        ck_assert(ls_conv_fuses(conv[i], LS_CONV_FORWARD_SUMS));
        ls_conv_destroy(conv[i]);
    }
    bench_close(&b);
}

/* ---- the choice as text ---------------------------------------------------------------------- */

TEST(choice_travels_as_text)
{
    static const char *const other = "eng15 eng15 eng15 sums=eng41_k2=2_k14=4";
    bench b = bench_open(false, false, false);
    ls_conv *conv = fused_conv(&b, &shapes[1], LS_F16, admit_and_count);
    char text[1024], described[2048];
    ls_conv_choice(conv, text, sizeof text);
    ck_assert_str_eq(text, "eng15 eng15 eng15 sums=eng41_k2=0_k14=3");
    tried = 0;
    ck_assert_int_eq(ls_conv_choose(conv, other), LS_OK);
    ck_assert_int_eq(tried, 1); /* on this rank, too */
    ls_conv_choice(conv, text, sizeof text);
    ck_assert_str_eq(text, other);
    ls_conv_describe(conv, described, sizeof described);
    ck_assert(strncmp(described, "forward with sums eng41_k2=2_k14=4 ", 35) == 0);
    ck_assert_int_eq(ls_conv_choose(conv, "eng15 eng15 eng15"), LS_OK);
    ck_assert(!ls_conv_fuses(conv, LS_CONV_FORWARD_SUMS));
    ls_conv_describe(conv, described, sizeof described);
    ck_assert(strncmp(described, "forward eng15 ", 14) == 0);
    ls_conv_destroy(conv);
    bench_close(&b);
}

/* All configurations with sums that may be used, as of other passes. */
TEST(engines_with_sums_are_timed)
{
    bench b = bench_open(false, false, true);
    ls_conv *conv = fused_conv(&b, &shapes[1], LS_F16, ls_fuse_admit);
    char described[2048];
    ls_conv_describe(conv, described, sizeof described);
    ck_assert(ls_conv_fuses(conv, LS_CONV_FORWARD_SUMS));
    const char *timed = strstr(described, " ms, best of ");
    ck_assert(timed != NULL && timed < strstr(described, "backward data"));
    ck_assert_int_eq(atoi(timed + strlen(" ms, best of ")), 3);
    ls_conv_destroy(conv);
    bench_close(&b);
}

static const struct wrong_choice {
    const char *text;
    ls_status status;
} wrong_choices[] = {
    {"eng15 eng15 eng15 eng41", LS_ERR_USAGE},
    {"eng15 eng15 eng15 sums=", LS_ERR_USAGE},
    {"eng15 eng15 eng15 sums=eng41 more", LS_ERR_USAGE},
    {"eng15 eng15 sums=eng41", LS_ERR_USAGE},
    {"eng15 eng15 eng15 sums=eng41 sums=eng41", LS_ERR_USAGE},
    {"eng15 eng15 eng15 sums=eng15", LS_ERR_UNSUPPORTED}, /* of plain graphs */
    {"eng41 eng15 eng15", LS_ERR_UNSUPPORTED},            /* of fused ones */
    {"eng15 eng15 eng15 sums=eng40", LS_ERR_UNSUPPORTED}, /* refused for its notes */
};

ROWS_TEST(wrong_choices_are_refused, wrong_choices)
{
    bench b = bench_open(false, false, false);
    ls_conv *conv = fused_conv(&b, &shapes[1], LS_F16, admit_and_count), *plain = NULL;
    ck_assert_int_eq(ls_conv_choose(conv, wrong_choices[_i].text), wrong_choices[_i].status);
    ck_assert(ls_conv_fuses(conv, LS_CONV_FORWARD_SUMS)); /* unchanged */
    ck_assert_int_eq(
        ls_conv_create(b.backend, "it", &shapes[1], LS_F16, LS_CONV_DX_WRITTEN, &plain), LS_OK);
    ck_assert_int_eq(ls_conv_choose(plain, "eng15 eng15 eng15 sums=eng41"), LS_ERR_USAGE);
    ls_conv_destroy(plain);
    ls_conv_destroy(conv);
    bench_close(&b);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static ls_kernel_subject_options fused_level(uint64_t seed)
{
    ls_kernel_subject_options o = cuda_level(2, LS_F16);
    o.fuse = true;
    o.seed = seed;
    return o;
}

static int count_fused(const ls_kernel_subject *s)
{
    ls_plan_info info;
    int count = 0;
    s->api->plan_info(s->plan, &info);
    for (const char *at = info.fusions; (at = strstr(at, "forward with sums")) != NULL; at++) {
        count++;
    }
    return count;
}

/* Networks of cpu_plan.h with norms behind convolutions, and how many of these fuse: all. The
 * last one ends with 16 rows per channel. */
static const struct judged {
    int network, fused;
} judged[] = {{0, 6}, {1, 12}, {2, 7}, {4, 11}};
enum { JUDGED = sizeof judged / sizeof judged[0] };

LOOP_TEST(gradients_at_many_seeds, (JUDGED * SEEDS))
{
    const struct judged *j = &judged[_i % JUDGED];
    ls_kernel_net n;
    networks[j->network](&n);
    ls_kernel_subject s;
    ls_kernel_subject_options o = fused_level((uint64_t)(_i / JUDGED));
    cuda_make(&s, &n, sizes[j->network], o);
    ck_assert_int_eq(count_fused(&s), j->fused);
    plan_step(&s);
    judge_plan(&s, cuda_scale(&o));
    ls_kernel_subject_free(&s);
}

/* Statistics of the step before would be those of other weights. */
TEST(sums_are_of_this_step)
{
    ls_kernel_net n;
    networks[0](&n);
    ls_kernel_subject s;
    ls_kernel_subject_options o = fused_level(1);
    cuda_make(&s, &n, sizes[0], o);
    plan_step(&s);
    for (int64_t i = 0; i < 4 * 3 * 24 * 24; i++) {
        s.input[i] = 3 - 2 * s.input[i];
    }
    plan_step(&s);
    judge_plan(&s, cuda_scale(&o));
    ls_kernel_subject_free(&s);
}

/* Plans whose branches can be forced fuse as well, and give the same bits. */
TEST(forced_branches_go_with_it)
{
    ls_kernel_net n;
    networks[0](&n);
    ls_kernel_subject own, forced;
    ls_kernel_subject_options o = fused_level(2);
    setenv("LS_EMULATED_UNADDED", "all", 1);
    cuda_make(&own, &n, sizes[0], o);
    o.forced_branches = true;
    cuda_make(&forced, &n, sizes[0], o);
    unsetenv("LS_EMULATED_UNADDED");
    ck_assert_int_eq(count_fused(&forced), count_fused(&own));
    plan_step(&own);
    force_like(&own, &forced, 0);
    plan_step(&forced);
    judge_plan(&forced, cuda_scale(&o));
    ls_kernel_subject_free(&own);
    ls_kernel_subject_free(&forced);
}

/* A plan that was not asked for it, of another type, or of a deterministic device does not fuse. */
TEST(only_where_it_is_asked_for)
{
    ls_kernel_net n;
    networks[0](&n);
    ls_kernel_subject_options o[3] = {cuda_level(2, LS_F16), cuda_level(0, LS_F16),
                                      cuda_level(1, LS_BF16)};
    for (int i = 0; i < 3; i++) {
        ls_kernel_subject s;
        o[i].fuse = i > 0;
        cuda_make(&s, &n, sizes[0], o[i]);
        ck_assert_int_eq(count_fused(&s), 0);
        ls_kernel_subject_free(&s);
    }
}

int main(void)
{
    use_emulation();
    return RUN_TESTS("cuda fuse", .timeout_s = 120);
}
