/* Convolutions of the CUDA backend on the emulated cuDNN: results against plain loops, and the
 * choice among its engines, which offer wrong ones before right ones
 * (suite/emulation/cudnn/emulated_cudnn_engines.c). */
#include "kernels/cuda/conv/conv_internal.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "cuda_products.h"

/* ---- numbers --------------------------------------------------------------------------------- */

static const ls_conv_shape shapes[] = {
    {2, 8, 15, 11, 16, 8, 6, 7, 2, 3}, /* the stem, with channels up to 16 bytes a pixel */
    {2, 16, 7, 5, 24, 7, 5, 3, 1, 1},  /* 3x3 */
    {3, 16, 8, 7, 16, 4, 4, 3, 2, 1},  /* 3x3, strided; the last column is reached by no tap */
    {2, 32, 5, 6, 16, 5, 6, 1, 1, 0},  /* 1x1 */
    {2, 16, 7, 6, 32, 4, 3, 1, 2, 0},  /* 1x1, strided: unread pixels */
    {1, 5, 6, 6, 7, 6, 6, 3, 1, 1},    /* channels that tensor cores do not take */
    {4, 64, 1, 1, 64, 1, 1, 3, 1, 1},  /* all but one tap in the padding */
    {1, 16, 2, 3, 8, 1, 2, 3, 2, 1},
};

enum { SHAPES = sizeof shapes / sizeof shapes[0], TYPES = sizeof types / sizeof types[0] };

static void add_products(const ls_conv_shape *s, sums *t, int64_t pixel)
{
    int64_t column = pixel % s->out_width, row = pixel / s->out_width % s->out_height;
    int64_t image = pixel / s->out_width / s->out_height;
    for (int ky = 0; ky < s->kernel; ky++) {
        for (int kx = 0; kx < s->kernel; kx++) {
            int64_t h = row * s->stride - s->pad + ky, v = column * s->stride - s->pad + kx;
            if (h < 0 || v < 0 || h >= s->in_height || v >= s->in_width) {
                continue;
            }
            for (int k = 0; k < s->out_channels; k++) {
                for (int c = 0; c < s->in_channels; c++) {
                    int64_t x = ((image * s->in_height + h) * s->in_width + v) * s->in_channels + c;
                    int64_t w =
                        ((int64_t)(k * s->kernel + ky) * s->kernel + kx) * s->in_channels + c;
                    int64_t y = pixel * s->out_channels + k;
                    t->y[y] += t->x[x] * t->w[w];
                    t->dx[x] += t->dy[y] * t->w[w];
                    t->dw[w] += t->dy[y] * t->x[x];
                }
            }
        }
    }
}

static sums sums_of(const ls_conv_shape *s)
{
    sums t = sums_start((int64_t)s->batch * s->in_height * s->in_width * s->in_channels,
                        (int64_t)s->out_channels * s->kernel * s->kernel * s->in_channels,
                        (int64_t)s->batch * s->out_height * s->out_width * s->out_channels, 0);
    for (int64_t i = 0; i < (int64_t)s->batch * s->out_height * s->out_width; i++) {
        add_products(s, &t, i);
    }
    return t;
}

static void run_all(bench *b, ls_conv *conv, const tensors *d)
{
    ck_assert_int_eq(ls_conv_forward(conv, b->stream, d->x, d->w, d->y, b->workspace), LS_OK);
    ck_assert_int_eq(ls_conv_backward_data(conv, b->stream, d->dx, d->w, d->dy, b->workspace),
                     LS_OK);
    ck_assert_int_eq(ls_conv_backward_weights(conv, b->stream, d->dw, d->x, d->dy, b->workspace),
                     LS_OK);
}

static ls_conv *conv_of(bench *b, const ls_conv_shape *shape, ls_dtype type)
{
    return bench_conv(b, shape, type, LS_CONV_DX_WRITTEN);
}

/* In every mode: a wrong engine anywhere would show. The gradient of x may be added to x. */
static void check_modes(const ls_conv_shape *shape, ls_dtype type, ls_conv_dx dx)
{
    sums t = sums_of(shape);
    for (int64_t i = 0; i < t.x_count && dx == LS_CONV_DX_ADDED; i++) {
        t.dx[i] += t.x[i];
    }
    for (int mode = 0; mode < 8; mode++) {
        bench b = bench_open(mode & 1, mode & 2, mode & 4);
        ck_assert(dx != LS_CONV_DX_ADDED || ls_conv_adds(b.backend, shape, type));
        ls_conv *conv = bench_conv(&b, shape, type, dx);
        bench_workspace(&b, ls_conv_workspace_bytes(conv));
        tensors d = tensors_of(&b, type, &t);
        if (dx == LS_CONV_DX_ADDED) {
            put(&b, type, d.dx, t.x, t.x_count);
        }
        run_all(&b, conv, &d);
        all_equal(&b, type, &d, &t);
        tensors_free(&b, &d);
        bench_drop(&b, conv);
    }
    sums_free(&t);
}

LOOP_TEST(all_passes_are_exact, (SHAPES * TYPES))
{
    check_modes(&shapes[_i % SHAPES], types[_i / SHAPES], LS_CONV_DX_WRITTEN);
}

/* ---- gradients onto gradients ---------------------------------------------------------------- */

/* dx + the old values, in f32, rounded once: sums of half types do not fit their significands, so a
 * rounding in between would show. */
LOOP_TEST(gradients_are_added, (SHAPES * TYPES))
{
    check_modes(&shapes[_i % SHAPES], types[_i / SHAPES], LS_CONV_DX_ADDED);
}

static bool adds(bench *b, const ls_conv_shape *shape, const char *variable, const char *value)
{
    bool answer = true;
    setenv(variable, value, 1);
    catch_lines();
    answer = ls_conv_adds(b->backend, shape, LS_F16);
    const char *said = caught_text();
    unsetenv(variable);
    ck_assert_str_eq(said, ""); /* no error: there is an alternative */
    return answer;
}

/* Shape by shape, and never if that is requested. */
TEST(adding_can_be_had_or_not)
{
    bench b = bench_open(true, false, false);
    ck_assert(!adds(&b, &shapes[1], "LS_EMULATED_UNADDED", "all"));
    ck_assert(!adds(&b, &shapes[1], "LS_EMULATED_UNADDED", "3"));
    ck_assert(adds(&b, &shapes[3], "LS_EMULATED_UNADDED", "3"));
    ck_assert(!adds(&b, &shapes[3], "LS_CUDNN_ADD", "0"));
    ck_assert(adds(&b, &shapes[3], "LS_CUDNN_ADD", "1"));
    bench_close(&b);
}

/* Engines that round the product before they add it are not used, whatever the heuristics think of
 * them; the one whose type is as wide as its sums may. */
LOOP_TEST(adding_rounds_once, TYPES)
{
    for (int benchmark = 0; benchmark < 2; benchmark++) {
        bench b = bench_open(true, false, benchmark == 1);
        char text[1024];
        setenv("LS_EMULATED_ROUNDS_FIRST", "21", 1);
        ls_conv *conv = bench_conv(&b, &shapes[1], types[_i], LS_CONV_DX_ADDED);
        ls_conv_describe(conv, text, sizeof text);
        const char *added = strstr(text, "backward data, added eng");
        ck_assert_ptr_nonnull(added);
        ck_assert_msg(types[_i] == LS_F32 || strncmp(added + 24, "21_", 3) != 0, "%s", text);
        ls_conv_destroy(conv);
        ck_assert_int_eq(!adds(&b, &shapes[2], "LS_EMULATED_ROUNDS_FIRST", "all"), true);
        ck_assert(adds(&b, &shapes[3], "LS_EMULATED_ROUNDS_FIRST", "99"));
        unsetenv("LS_EMULATED_ROUNDS_FIRST");
        bench_close(&b);
    }
}

/* An engine that another rank or a file names is tried, too. */
TEST(named_engines_round_once)
{
    bench b = bench_open(true, false, false);
    ls_conv *conv = bench_conv(&b, &shapes[1], LS_F16, LS_CONV_DX_ADDED);
    char choice[1024];
    ls_conv_choice(conv, choice, sizeof choice);
    bench_drop(&b, conv);
    b = bench_open(true, false, false);
    setenv("LS_EMULATED_ROUNDS_FIRST", "21", 1);
    conv = bench_conv(&b, &shapes[1], LS_F16, LS_CONV_DX_ADDED);
    setenv("LS_EMULATED_ROUNDS_FIRST", "all", 1);
    catch_lines();
    ls_status status = ls_conv_choose(conv, choice);
    const char *said = caught_text();
    unsetenv("LS_EMULATED_ROUNDS_FIRST");
    ck_assert_msg(status == LS_ERR_UNSUPPORTED, "%s: %s", choice, said);
    ck_assert_ptr_nonnull(strstr(said, "such engines do not round once what they add to here"));
    bench_drop(&b, conv);
}

/* The same shape has a plan for each kind of write, and the description says which. */
TEST(adding_is_a_plan_of_its_own)
{
    bench b = bench_open(true, false, false);
    ls_conv *written = conv_of(&b, &shapes[1], LS_F16);
    ls_conv *added = bench_conv(&b, &shapes[1], LS_F16, LS_CONV_DX_ADDED);
    char text[1024];
    ls_conv_describe(written, text, sizeof text);
    ck_assert_ptr_null(strstr(text, "added"));
    ls_conv_describe(added, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "backward data, added eng"));
    ck_assert_int_eq(b.backend->plans->searched, 4);
    ls_conv_destroy(added);
    ls_conv_destroy(written);
    bench_close(&b);
}

/* ---- engines --------------------------------------------------------------------------------- */

static const struct taken {
    ls_dtype type;
    bool deterministic, tf32;
    int channels;
    const char *choice;
} taken[] = {
    /* engines that cannot be built or are too large are skipped; the first allowed one is used */
    {LS_F16, false, false, 16, "eng15 eng15 eng15"},
    {LS_BF16, false, false, 16, "eng15 eng15 eng15"},
    {LS_F16, true, false, 16, "eng21_k2=0_k14=3 eng21_k2=0_k14=3 eng21_k2=0_k14=3"},
    {LS_BF16, true, false, 16, "eng21_k2=0_k14=3 eng21_k2=0_k14=3 eng21_k2=0_k14=3"},
    /* no tensor cores: mode B, and under deterministic only the fallback has one */
    {LS_F32, false, false, 16, "eng22 eng22 eng22"},
    {LS_F32, true, false, 16, "eng30 eng30 eng30"},
    {LS_F32, false, true, 16, "eng15 eng15 eng15"},
    {LS_F32, true, true, 16, "eng21_k2=0_k14=3 eng21_k2=0_k14=3 eng21_k2=0_k14=3"},
    /* channels that tensor cores do not take */
    {LS_F16, false, false, 5, "eng22 eng22 eng22"},
    {LS_F16, true, false, 5, "eng30 eng30 eng30"},
};

ROWS_TEST(engines_are_taken_by_their_notes, taken)
{
    const struct taken *c = &taken[_i];
    ls_conv_shape shape = {1, c->channels, 6, 6, c->channels, 6, 6, 3, 1, 1};
    bench b = bench_open(c->deterministic, c->tf32, false);
    ls_conv *conv = conv_of(&b, &shape, c->type);
    bench_chose(conv, c->choice);
    bench_drop(&b, conv);
}

TEST(description_names_engine_and_notes)
{
    bench b = bench_open(true, false, false);
    ls_conv *conv = conv_of(&b, &shapes[1], LS_F16);
    char text[1024];
    ls_conv_describe(conv, text, sizeof text);
    ck_assert_str_eq(text, "forward eng21_k2=0_k14=3 0.1 MB [tensor core, graph nodes]; "
                           "backward data eng21_k2=0_k14=3 0.1 MB [tensor core, graph nodes]; "
                           "backward weights eng21_k2=0_k14=3 0.1 MB [tensor core, graph nodes]");
    ck_assert_int_eq(ls_conv_workspace_bytes(conv), 65536);
    bench_drop(&b, conv);
}

static double *forward_twice(bool deterministic, double **second, int64_t *count)
{
    const ls_conv_shape *s = &shapes[1];
    bench b = bench_open(deterministic, false, false);
    ls_conv *conv = conv_of(&b, s, LS_F32);
    bench_workspace(&b, ls_conv_workspace_bytes(conv));
    sums t = sums_of(s);
    double *x = normals("x", t.x_count), *w = normals("w", t.w_count);
    void *dx = tensor(&b, LS_F32, x, t.x_count), *dw = tensor(&b, LS_F32, w, t.w_count);
    void *y = tensor(&b, LS_F32, NULL, t.y_count);
    double *result[2];
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(ls_conv_forward(conv, b.stream, dx, dw, y, b.workspace), LS_OK);
        result[i] = values(&b, LS_F32, y, t.y_count);
    }
    *count = t.y_count;
    *second = result[1];
    b.api->memory_free(b.backend, dx);
    b.api->memory_free(b.backend, dw);
    b.api->memory_free(b.backend, y);
    free(x);
    free(w);
    sums_free(&t);
    bench_drop(&b, conv);
    return result[0];
}

/* Otherwise the chosen engine is one whose sums run in another order each time. */
TEST(deterministic_repeats_bit_for_bit)
{
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        int64_t count = 0;
        double *second = NULL, *first = forward_twice(deterministic, &second, &count);
        bool same = memcmp(first, second, (size_t)count * sizeof *first) == 0;
        ck_assert_int_eq(same, deterministic);
        free(first);
        free(second);
    }
}

/* 1 + 2^-12 is no TF32 value. */
TEST(tf32_only_where_allowed)
{
    ls_conv_shape shape = {1, 8, 1, 1, 8, 1, 1, 1, 1, 0};
    double x[8] = {1 + 0x1p-12}, w[64] = {1};
    for (int tf32 = 0; tf32 < 2; tf32++) {
        bench b = bench_open(true, tf32, false);
        ls_conv *conv = conv_of(&b, &shape, LS_F32);
        bench_workspace(&b, ls_conv_workspace_bytes(conv));
        void *dx = tensor(&b, LS_F32, x, 8), *dw = tensor(&b, LS_F32, w, 64);
        void *y = tensor(&b, LS_F32, NULL, 8);
        ck_assert_int_eq(ls_conv_forward(conv, b.stream, dx, dw, y, b.workspace), LS_OK);
        double *got = values(&b, LS_F32, y, 8);
        ck_assert_double_eq(got[0], tf32 ? 1 : 1 + 0x1p-12);
        free(got);
        b.api->memory_free(b.backend, dx);
        b.api->memory_free(b.backend, dw);
        b.api->memory_free(b.backend, y);
        bench_drop(&b, conv);
    }
}

TEST(refusals_are_logged)
{
    bench b = bench_open(true, false, false);
    b.backend->workspace_limit = 1024;
    ls_conv *conv = NULL;
    catch_lines();
    ls_status status =
        ls_conv_create(b.backend, "layer2.0.conv1", &shapes[1], LS_F32, LS_CONV_DX_WRITTEN, &conv);
    const char *text = caught_text();
    ck_assert_int_eq(status, LS_ERR_UNSUPPORTED);
    ck_assert_ptr_null(conv);
    const char *parts[] = {"layer2.0.conv1: cuDNN 91900 has no engine that may be used for its "
                           "forward (fp32, image 2x16x7x5",
                           "15 configurations seen: 1 sum in less than f32, 1 convert operands "
                           "down, 3 use Winograd or FFT, 2 do not repeat bit for bit "
                           "(--deterministic), 3 use tensor cores on f32 (no --tf32), 1 want "
                           "reordered operands, 1 carry a note unknown to this program, 2 want "
                           "more workspace than allowed (0.0 MB; the least is 0.0 MB), 1 could not "
                           "be built (CUDNN_STATUS_NOT_SUPPORTED)"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        ck_assert_msg(strstr(text, parts[i]) != NULL, "\"%s\" is not in: %s", parts[i], text);
    }
    bench_close(&b);
}

/* A newer library that gives every engine a note of its own: the first that nothing else excludes
 * is taken, with a warning for each pass; without such a note nothing is said. */
TEST(notes_of_a_newer_library)
{
    bench b = bench_open(false, false, false);
    ls_conv *conv = NULL;
    char text[2048];
    ls_status status = LS_OK;
    setenv("LS_EMULATED_FLAGS", "all", 1);
    catch_lines();
    status =
        ls_conv_create(b.backend, "layer2.0.conv1", &shapes[1], LS_F16, LS_CONV_DX_WRITTEN, &conv);
    const char *said = caught_text();
    unsetenv("LS_EMULATED_FLAGS");
    ck_assert_int_eq(status, LS_OK);
    ck_assert_msg(strstr(said, "warning: layer2.0.conv1: cuDNN 91900 gives each of its engines for "
                               "the forward that could be used a note unknown") != NULL,
                  "%s", said);
    ls_conv_describe(conv, text, sizeof text);
    ck_assert_msg(strstr(text, "eng15") != NULL && strstr(text, "unknown") != NULL, "%s", text);
    bench_drop(&b, conv);
}

/* ---- one choice for all ranks ---------------------------------------------------------------- */

/* The first tile of engine 21 is twelve times slower than its others. */
TEST(benchmark_takes_a_fast_one)
{
    bench b = bench_open(true, false, true);
    ls_conv *conv = conv_of(&b, &shapes[1], LS_F16);
    char choice[1024], text[1024];
    ls_conv_choice(conv, choice, sizeof choice);
    ls_conv_describe(conv, text, sizeof text);
    ck_assert_msg(strstr(choice, "k2=0") == NULL, "%s", text);
    ck_assert_msg(strstr(text, "ms, best of 3;") != NULL, "%s", text);
    bench other = bench_open(true, false, false);
    ls_conv *follower = conv_of(&other, &shapes[1], LS_F16);
    ck_assert_int_eq(ls_conv_choose(follower, choice), LS_OK);
    bench_chose(follower, choice);
    sums t = sums_of(&shapes[1]);
    tensors d = tensors_of(&other, LS_F16, &t);
    bench_workspace(&other, ls_conv_workspace_bytes(follower));
    run_all(&other, follower, &d);
    all_equal(&other, LS_F16, &d, &t);
    tensors_free(&other, &d);
    sums_free(&t);
    ls_conv_destroy(follower);
    ls_conv_destroy(conv);
    bench_close(&other);
    bench_close(&b);
}

static const struct unfit {
    const char *text;
    ls_status status;
} unfit[] = {
    {"", LS_ERR_USAGE},
    {"eng30 eng30", LS_ERR_USAGE},
    {"eng30 eng30 eng30 eng30", LS_ERR_USAGE},
    {"eng30 - eng30", LS_ERR_USAGE},
    {"eng30 eng30 30", LS_ERR_USAGE},
    {"eng30 eng30 eng30_k2", LS_ERR_USAGE},
    {"eng30 eng30 eng-1", LS_ERR_USAGE},
    {"eng30 eng30 eng99", LS_ERR_UNSUPPORTED},      /* no such engine */
    {"eng30 eng30 eng16", LS_ERR_UNSUPPORTED},      /* cannot be built */
    {"eng30 eng30 eng3", LS_ERR_UNSUPPORTED},       /* Winograd, whichever rank has chosen it */
    {"eng30 eng30 eng15", LS_ERR_UNSUPPORTED},      /* deterministic here */
    {"eng30 eng30 eng17", LS_ERR_UNSUPPORTED},      /* its workspace */
    {"eng30 eng30 eng21_k2=4", LS_ERR_UNSUPPORTED}, /* the knob ends at 3 */
    {"eng30 eng30 eng30_k2=1", LS_ERR_UNSUPPORTED}, /* no such knob */
};

ROWS_TEST(choices_that_do_not_fit_change_nothing, unfit)
{
    bench b = bench_open(true, false, false);
    ls_conv *conv = conv_of(&b, &shapes[1], LS_F16);
    char before[1024], after[1024];
    ls_status status = LS_OK;
    ls_conv_choice(conv, before, sizeof before);
    catch_lines();
    status = ls_conv_choose(conv, unfit[_i].text);
    const char *said = caught_text();
    ck_assert_int_eq(status, unfit[_i].status);
    ck_assert_msg(strstr(said, "layer1.0.conv1: ") != NULL, "%s", said);
    ls_conv_choice(conv, after, sizeof after);
    ck_assert_str_eq(after, before);
    bench_drop(&b, conv);
}

/* A rank whose GPU has less memory follows, up to four times its own limit. */
TEST(choices_of_a_larger_gpu)
{
    bench b = bench_open(true, false, false);
    b.backend->workspace_limit = 65536 / 4;
    ls_conv *conv = conv_of(&b, &shapes[1], LS_F16);
    ck_assert_int_le(ls_conv_workspace_bytes(conv), 65536 / 4);
    ck_assert_int_eq(ls_conv_choose(conv, "eng30 eng30 eng21_k2=1"), LS_OK);
    ck_assert_int_eq(ls_conv_workspace_bytes(conv), 65536);
    ls_conv_destroy(conv);
    b.backend->workspace_limit = 65536 / 4 - 1;
    conv = conv_of(&b, &shapes[1], LS_F16);
    catch_lines();
    ck_assert_int_eq(ls_conv_choose(conv, "eng30 eng30 eng21_k2=1"), LS_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(caught_text(), "want more workspace than allowed"));
    bench_drop(&b, conv);
}

TEST(equal_shapes_share_plans)
{
    bench b = bench_open(false, false, false);
    ls_conv *one = conv_of(&b, &shapes[1], LS_F16), *two = conv_of(&b, &shapes[1], LS_F16);
    ck_assert_int_eq(b.backend->plans->asked, 6);
    ck_assert_int_eq(b.backend->plans->searched, 3);
    ls_conv *other_type = conv_of(&b, &shapes[1], LS_BF16);
    ck_assert_int_eq(b.backend->plans->searched, 6);
    ls_conv_shape wider = shapes[1];
    wider.batch = 3;
    ls_conv *other_shape = conv_of(&b, &wider, LS_F16);
    ck_assert_int_eq(b.backend->plans->searched, 9);
    ls_conv *stem = bench_conv(&b, &shapes[0], LS_F16, LS_CONV_DX_NONE);
    ck_assert_int_eq(b.backend->plans->searched, 11); /* the image's gradient is not needed */
    bench_chose(stem, "eng15 - eng15");
    ck_assert_int_eq(ls_conv_choose(stem, "eng22 - eng15"), LS_OK);
    bench_chose(one, "eng15 eng15 eng15");
    ls_conv_destroy(one);
    ls_conv_destroy(two);
    ls_conv_destroy(other_type);
    ls_conv_destroy(other_shape);
    ls_conv_destroy(stem);
    bench_close(&b);
}

/* ---- recorded work, wrong arguments ---------------------------------------------------------- */

/* A convolution with its operands in fp16 and their exact results. */
typedef struct loaded {
    bench b;
    ls_conv *conv;
    sums t;
    tensors d;
} loaded;

static loaded load(const ls_conv_shape *shape, bool deterministic)
{
    loaded l = {.b = bench_open(deterministic, false, false)};
    l.conv = conv_of(&l.b, shape, LS_F16);
    bench_workspace(&l.b, ls_conv_workspace_bytes(l.conv));
    l.t = sums_of(shape);
    l.d = tensors_of(&l.b, LS_F16, &l.t);
    return l;
}

static void unload(loaded *l)
{
    tensors_free(&l->b, &l->d);
    sums_free(&l->t);
    ls_conv_destroy(l->conv);
    bench_close(&l->b);
}

TEST(recorded_work_runs_again)
{
    loaded l = load(&shapes[2], false);
    double *zero = calloc((size_t)l.t.x_count, sizeof *zero);
    double *none = calloc((size_t)l.t.y_count, sizeof *none);
    ls_graph *graph = NULL;
    ck_assert_int_eq(l.b.api->graph_begin(l.b.stream), LS_OK);
    run_all(&l.b, l.conv, &l.d);
    ck_assert_int_eq(l.b.api->graph_end(l.b.stream, &graph), LS_OK);
    double *untouched = values(&l.b, LS_F16, l.d.y, l.t.y_count);
    ck_assert(isnan(untouched[0]));
    free(untouched);
    put(&l.b, LS_F16, l.d.x, zero, l.t.x_count);
    ck_assert_int_eq(l.b.api->graph_launch(graph, l.b.stream), LS_OK);
    equal(LS_F16, values(&l.b, LS_F16, l.d.y, l.t.y_count), none, l.t.y_count, "forward of zeros");
    put(&l.b, LS_F16, l.d.x, l.t.x, l.t.x_count);
    ck_assert_int_eq(l.b.api->graph_launch(graph, l.b.stream), LS_OK);
    all_equal(&l.b, LS_F16, &l.d, &l.t);
    l.b.api->graph_destroy(graph);
    free(zero);
    free(none);
    unload(&l);
}

/* The last pointers are cached: others must not be mistaken for them. */
TEST(pointers_may_change)
{
    loaded l = load(&shapes[3], true);
    tensors e = tensors_of(&l.b, LS_F16, &l.t);
    double *zero = calloc((size_t)l.t.x_count, sizeof *zero);
    double *none = calloc((size_t)l.t.y_count, sizeof *none);
    void *x = tensor(&l.b, LS_F16, zero, l.t.x_count);
    run_all(&l.b, l.conv, &l.d);
    ck_assert_int_eq(ls_conv_forward(l.conv, l.b.stream, x, l.d.w, l.d.y, l.b.workspace), LS_OK);
    equal(LS_F16, values(&l.b, LS_F16, l.d.y, l.t.y_count), none, l.t.y_count, "another x");
    run_all(&l.b, l.conv, &e);
    all_equal(&l.b, LS_F16, &e, &l.t);
    l.b.api->memory_free(l.b.backend, x);
    free(zero);
    free(none);
    tensors_free(&l.b, &e);
    unload(&l);
}

TEST(bad_pointers_are_an_error)
{
    loaded l = load(&shapes[1], true);
    ls_status status[3] = {LS_OK, LS_OK, LS_OK};
    catch_lines();
    status[0] = ls_conv_forward(l.conv, l.b.stream, (char *)l.d.x + 2, l.d.w, l.d.y, l.b.workspace);
    status[1] = ls_conv_forward(l.conv, l.b.stream, l.d.x, l.d.w, l.d.y, NULL);
    status[2] = ls_conv_forward(l.conv, l.b.stream, l.d.x, l.d.w, l.t.y, l.b.workspace);
    const char *said = caught_text();
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(status[i], LS_ERR_INFRA);
    }
    ck_assert_msg(strstr(said, "cudnnBackendExecute") != NULL, "%s", said);
    run_all(&l.b, l.conv, &l.d);
    all_equal(&l.b, LS_F16, &l.d, &l.t);
    unload(&l);
}

TEST_MAIN("cuda conv", .timeout_s = 60)
