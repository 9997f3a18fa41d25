/* Fused products on the emulated cuDNN, one convolution each: which shapes have an engine, its
 * results, whether these admit it, and how the choice travels as text. */
#include "kernels/cuda/conv/conv_internal.h"
#include "kernels/cuda/conv/fuse.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "cuda_products.h"
#include "use_emulation.h"

static const ls_conv_shape shapes[] = {
    {2, 8, 15, 11, 16, 8, 6, 7, 2, 3}, /* the stem, with channels up to 16 bytes a pixel */
    {2, 16, 17, 9, 24, 17, 9, 3, 1, 1},
    {3, 16, 8, 7, 16, 4, 4, 3, 2, 1}, /* strided; the last column is reached by no tap */
    {5, 32, 5, 6, 16, 5, 6, 1, 1, 0}, /* more rows than one tile of the engine has */
    {6, 16, 7, 6, 32, 4, 3, 1, 2, 0}, /* most pixels are reached by no tap */
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

typedef enum kind { SUMS, GATED, JOINED, TWICE, APPLIED, KINDS } kind;

static const ls_conv_pass passes[] = {LS_CONV_FORWARD_SUMS, LS_CONV_DATA_GATED, LS_CONV_DATA_JOINED,
                                      LS_CONV_DATA_JOINED_TWICE};

/* Fused, if that is admitted: forward with sums; the gated gradient, at the end of a block onto
 * another one; or the three passes that apply a norm. */
static ls_conv *fused_conv(bench *b, kind kind, const ls_conv_shape *shape, ls_dtype type)
{
    ls_conv_dx dx = kind == JOINED || kind == TWICE ? LS_CONV_DX_ADDED : LS_CONV_DX_WRITTEN;
    ls_conv *conv = bench_conv(b, shape, type, dx);
    ck_assert_int_eq(ls_conv_fuse(conv, passes[kind == APPLIED ? GATED : kind],
                                  kind == SUMS ? ls_fuse_admit : ls_fuse_admit_gate),
                     LS_OK);
    if (kind == APPLIED) {
        ck_assert_int_eq(ls_conv_fuse_applied(conv, ls_fuse_admit, ls_fuse_admit_weights), LS_OK);
    }
    return conv;
}

static bool fuses(const ls_conv *conv, kind kind)
{
    return kind == APPLIED ? ls_conv_applies(conv) : ls_conv_fuses(conv, passes[kind]);
}

/* ---- results --------------------------------------------------------------------------------- */

/* sums[2][step] of the channels of y. */
static void check_sums(bench *b, const void *sums, const double *y, int64_t count, int channels)
{
    int64_t step = ls_conv_sums_step(channels);
    double *sum = values(b, LS_F32, sums, 2 * step);
    for (int64_t c = 0; c < channels; c++) {
        double total = 0, squares = 0;
        for (int64_t i = c; i < count; i += channels) {
            total += y[i];
            squares += y[i] * y[i];
        }
        ck_assert_double_lt(squares, 0x1p24);
        ck_assert_double_eq(sum[c], total);
        ck_assert_double_eq(sum[step + c], squares);
    }
    free(sum);
}

/* Integers whose sums are exact: the result, rounded once, and its sums have one right value. */
LOOP_TEST(results_and_sums_are_exact, 2 * SHAPES)
{
    const ls_conv_shape *s = &shapes[_i / 2];
    int64_t in = ls_conv_graph_count(s, LS_CONV_AS_X), out = ls_conv_graph_count(s, LS_CONV_AS_Y);
    int64_t weights = ls_conv_graph_count(s, LS_CONV_AS_W);
    bench b = bench_open(false, false, _i % 2 == 1);
    ls_conv *conv = fused_conv(&b, SUMS, s, LS_F16);
    ck_assert(fuses(conv, SUMS));
    bench_workspace(&b, ls_conv_workspace_bytes(conv));
    double *x_value = integers("x", in), *w_value = integers("w", weights);
    void *x = tensor(&b, LS_F16, x_value, in), *w = tensor(&b, LS_F16, w_value, weights);
    void *y = tensor(&b, LS_F16, NULL, out), *plain = tensor(&b, LS_F16, NULL, out);
    void *sums = tensor(&b, LS_F32, NULL, 2 * ls_conv_sums_step(s->out_channels));
    ck_assert_int_eq(ls_conv_forward_sums(conv, b.stream, x, w, y, sums, b.workspace), LS_OK);
    ck_assert_int_eq(ls_conv_forward(conv, b.stream, x, w, plain, b.workspace), LS_OK);
    double *got = values(&b, LS_F16, y, out), *wanted = values(&b, LS_F16, plain, out);
    ck_assert_mem_eq(got, wanted, (size_t)out * sizeof *got);
    check_sums(&b, sums, wanted, out, s->out_channels);
    BENCH_FREE(&b, x, w, y, sums, plain);
    HOST_FREE(x_value, w_value, got, wanted);
    bench_drop(&b, conv);
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

static void check_norm_sums(bench *b, const integer_norm *n, const double *g, int64_t in,
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

/* Of a gated gradient, of one of a block's end with one norm and a residual, and of one with two,
 * both in place: the gradient, the decisions and the sums have one right value each. */
LOOP_TEST(gradients_and_sums_are_exact, 2 * (SHAPES - 1) + 4)
{
    bool joined = _i >= 2 * (SHAPES - 1), twice = joined && _i % 2 == 1;
    int joins = _i - 2 * (SHAPES - 1);
    const ls_conv_shape *s = &shapes[joined ? 1 + joins / 2 * 2 : 1 + _i / 2];
    kind kind = twice ? TWICE : joined ? JOINED : GATED;
    int64_t in = ls_conv_graph_count(s, LS_CONV_AS_X), out = ls_conv_graph_count(s, LS_CONV_AS_Y);
    int64_t weights = ls_conv_graph_count(s, LS_CONV_AS_W), channels = s->in_channels;
    bench b = bench_open(false, false, joined ? joins / 2 == 1 : _i % 2 == 1);
    ls_conv *conv = fused_conv(&b, kind, s, LS_F16);
    ck_assert(fuses(conv, kind));
    bench_workspace(&b, ls_conv_workspace_bytes(conv));
    double *dy_value = integers("dy", out), *w_value = integers("w", weights);
    double *other_value = integers("other", in);
    void *dy = tensor(&b, LS_F16, dy_value, out), *w = tensor(&b, LS_F16, w_value, weights);
    void *g = tensor(&b, LS_F16, joined ? other_value : NULL, in);
    void *plain = tensor(&b, LS_F16, joined ? other_value : NULL, in);
    integer_norm n[2] = {make_norm(&b, "", in, channels), make_norm(&b, "2", in, channels)};
    ls_conv_join join = {.other = g, .residual = n[1].device_x, .twice = twice};
    for (int k = 0; k < 2; k++) {
        void **d = n[k].device;
        join.side[k] = (ls_conv_gate){n[k].device_x, d[0], d[1], d[2], d[3], n[k].sums};
    }
    ck_assert_int_eq(
        joined ? ls_conv_backward_joined(conv, b.stream, g, w, dy, &join, b.workspace)
               : ls_conv_backward_gated(conv, b.stream, g, w, dy, &join.side[0], b.workspace),
        LS_OK);
    ck_assert_int_eq(ls_conv_backward_data(conv, b.stream, plain, w, dy, b.workspace), LS_OK);
    double *got = values(&b, LS_F16, g, in), *wanted = values(&b, LS_F16, plain, in);
    int ties = 0, by_other = 0;
    for (int64_t i = 0; i < in; i++) {
        int64_t c = i % channels;
        double own = normed_of(&n[0], i, c) * n[0].list[2][c] + n[0].list[3][c];
        double second = normed_of(&n[1], i, c) * n[1].list[2][c] + n[1].list[3][c];
        double more = twice ? second : joined ? n[1].x[i] : 0;
        wanted[i] = own + more > 0 ? wanted[i] : 0;
        ties += own + more == 0; /* which a ReLU closes */
        by_other += (own > 0) != (own + more > 0);
        ck_assert_double_eq(got[i], wanted[i]);
    }
    ck_assert(ties > 0 && (by_other > 0) == joined);
    for (int k = 0; k < (twice ? 2 : 1); k++) {
        check_norm_sums(&b, &n[k], wanted, in, channels);
    }
    BENCH_FREE(&b, dy, w, g, plain);
    HOST_FREE(dy_value, w_value, other_value, got, wanted);
    drop_norm(&b, &n[0]);
    drop_norm(&b, &n[1]);
    bench_drop(&b, conv);
}

/* Integers: the operand, both results and the sums have one right value each, those of the plain
 * passes on the operand in memory. */
LOOP_TEST(applied_results_and_sums_are_exact, 2 * (SHAPES - 1))
{
    const ls_conv_shape *s = &shapes[1 + _i / 2];
    int64_t in = ls_conv_graph_count(s, LS_CONV_AS_X), out = ls_conv_graph_count(s, LS_CONV_AS_Y);
    int64_t weights = ls_conv_graph_count(s, LS_CONV_AS_W), channels = s->in_channels;
    int64_t step = ls_conv_sums_step(s->out_channels);
    bench b = bench_open(false, false, _i % 2 == 1);
    ls_conv *conv = fused_conv(&b, APPLIED, s, LS_F16);
    ck_assert(fuses(conv, APPLIED));
    bench_workspace(&b, ls_conv_workspace_bytes(conv));
    double *x_value = integers("x", in), *w_value = integers("w", weights);
    double *dy_value = integers("dy", out);
    double *scale_value = integers("scale", channels), *bias_value = integers("bias", channels);
    double *operand = malloc((size_t)in * sizeof *operand);
    for (int64_t c = 0; c < channels; c++) {
        scale_value[c] = scale_value[c] < 0 ? -1 : 1;
    }
    int closed = 0, open_padding = 0;
    for (int64_t i = 0; i < in; i++) {
        double value = x_value[i] * scale_value[i % channels] + bias_value[i % channels];
        operand[i] = value > 0 ? value : 0;
        closed += value < 0;
        open_padding += bias_value[i % channels] > 0;
    }
    ck_assert(closed > 0 && open_padding > 0);
    void *x = tensor(&b, LS_F16, x_value, in), *w = tensor(&b, LS_F16, w_value, weights);
    void *dy = tensor(&b, LS_F16, dy_value, out), *full = tensor(&b, LS_F16, operand, in);
    void *scale = tensor(&b, LS_F16, scale_value, channels);
    void *bias = tensor(&b, LS_F16, bias_value, channels);
    void *y[2] = {tensor(&b, LS_F16, NULL, out), tensor(&b, LS_F16, NULL, out)};
    void *dw[2] = {tensor(&b, LS_F16, NULL, weights), tensor(&b, LS_F16, NULL, weights)};
    void *sums = tensor(&b, LS_F32, NULL, 2 * step);
    const ls_conv_applied applied = {x, scale, bias};
    ck_assert_int_eq(ls_conv_forward_applied(conv, b.stream, &applied, w, y[0], sums, b.workspace),
                     LS_OK);
    ck_assert_int_eq(ls_conv_forward(conv, b.stream, full, w, y[1], b.workspace), LS_OK);
    ck_assert_int_eq(
        ls_conv_backward_weights_applied(conv, b.stream, dw[0], &applied, dy, b.workspace), LS_OK);
    ck_assert_int_eq(ls_conv_backward_weights(conv, b.stream, dw[1], full, dy, b.workspace), LS_OK);
    double *got = values(&b, LS_F16, y[0], out), *wanted = values(&b, LS_F16, y[1], out);
    double *got_dw = values(&b, LS_F16, dw[0], weights);
    double *wanted_dw = values(&b, LS_F16, dw[1], weights);
    ck_assert_mem_eq(got, wanted, (size_t)out * sizeof *got);
    ck_assert_mem_eq(got_dw, wanted_dw, (size_t)weights * sizeof *got_dw);
    check_sums(&b, sums, wanted, out, s->out_channels);
    BENCH_FREE(&b, x, w, dy, full, scale, bias, y[0], y[1], dw[0], dw[1], sums);
    HOST_FREE(x_value, w_value, dy_value, scale_value, bias_value, operand, got, wanted, got_dw,
              wanted_dw);
    bench_drop(&b, conv);
}

/* ---- admission ------------------------------------------------------------------------------- */

/* f32, bf16, channels that tensor cores do not take, and what the library does not offer. */
LOOP_TEST(without_an_engine_nothing_is_fused, KINDS)
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
        char text[1024];
        setenv("LS_EMULATED_UNFUSED", rows[i].unfused, 1);
        catch_lines();
        ls_conv *conv = fused_conv(&b, (kind)_i, rows[i].shape, rows[i].type);
        const char *said = caught_text();
        unsetenv("LS_EMULATED_UNFUSED");
        ls_conv_choice(conv, text, sizeof text);
        ck_assert_str_eq(said, ""); /* no error: there is an alternative */
        ck_assert_int_eq(fuses(conv, (kind)_i), rows[i].fused);
        ck_assert_int_eq(strchr(text, '=') != NULL && strstr(text, "eng41") != NULL, rows[i].fused);
        bench_drop(&b, conv);
    }
}

static const char summed[] = "forward with sums", gate[] = "gated backward data with sums",
                  join[] = "joined backward data with sums",
                  twice[] = "joined backward data with sums of two norms",
                  forward[] = "applying forward with sums", weights[] = "applying backward weights";

static const struct fault {
    kind kind;
    const char *what, *pass, *says;
} faults[] = {
    {SUMS, "sums:unrounded", summed,
     "mean of y in channel "},                               /* of values before they are stored */
    {SUMS, "sums:tile", summed, "mean of y in channel 0 "},  /* the last rows are left out */
    {SUMS, "sums:last", summed, "mean of y in channel 23 "}, /* one channel's sum */
    {SUMS, "sums:square", summed, "1 / deviation of y in channel 23 "},
    {SUMS, "sums:result", summed, "a value of y in channel 23 "}, /* the last element of y itself */
    {GATED, "gate:mask", gate, "a value of g in channel "},
    {GATED, "gate:result", gate, "a value of g in channel 15 "},
    {GATED, "gate:tile", gate, "a value of g in channel "},
    {GATED, "gate:rows", gate, "the sum of g"},
    {GATED, "gate:last", gate, "the sum of g in channel 15 "},
    {GATED, "gate:weighted", gate, "the sum of g * (x - mean) in channel 15 "},
    {GATED, "gate:unrounded", gate, "the sum of g"},
    {JOINED, "gate:mask", join, "a value of g in channel "},
    {JOINED, "gate:other", join, "a value of g in channel "},
    {TWICE, "gate:other", twice, "a value of g in channel "},
    {JOINED, "gate:residual", join, "a value of g in channel "},
    {TWICE, "gate:residual", twice, "a value of g in channel "},
    {JOINED, "gate:last", join, "the sum of g in channel 15 "},
    {TWICE, "gate:weighted", twice, "the sum of g * (x - mean) in channel 15 "},
    {TWICE, "gate:second", twice, "the sum of g * (x - mean) of the second norm in channel 15 "},
    {TWICE, "gate:unrounded", twice, "the sum of g"},
    {JOINED, "gate:rows", join, "the sum of g"},
    {APPLIED, "gate:mask", gate, "a value of g in channel "}, /* the mask would be missing */
    {APPLIED, "apply:relu", forward, "a value of y in channel "},
    {APPLIED, "apply:padding", forward, "a value of y in channel "},
    {APPLIED, "apply:twice", forward, "a value of y in channel "},
    {APPLIED, "apply:last", forward, "a value of y in channel "},
    {APPLIED, "apply-weights:relu", weights, "a gradient of the weight in channel "},
    {APPLIED, "apply-weights:padding", weights, "a gradient of the weight in channel "},
    {APPLIED, "apply-weights:twice", weights, "a gradient of the weight in channel "},
    {APPLIED, "apply-weights:last", weights, "a gradient of the weight in channel 15 "},
    {APPLIED, "sums:unrounded", forward, " of y in channel "},
    {APPLIED, "sums:result", forward, "a value of y in channel 23 "},
    {APPLIED, "sums:tile", forward, " of y in channel "},
    {APPLIED, "sums:last", forward, " of y in channel 23 "},
    {APPLIED, "sums:square", forward, "1 / deviation of y in channel 23 "},
};

/* Shape 1 has padding. */
ROWS_TEST(wrong_results_are_not_admitted, faults)
{
    const struct fault *f = &faults[_i];
    char what[160];
    bench b = bench_open(false, false, false);
    setenv("LS_EMULATED_CONV_WRONG", f->what, 1);
    catch_lines();
    ls_conv *conv = fused_conv(&b, f->kind, &shapes[1], LS_F16);
    char *said = strdup(caught_text());
    catch_lines();
    ls_conv *second = fused_conv(&b, f->kind, &shapes[1], LS_F16);
    const char *again = caught_text();
    unsetenv("LS_EMULATED_CONV_WRONG");
    snprintf(what, sizeof what,
             "layer1.0.conv1, and layers of its shape: the %s of engine eng41_k2=0_k14=3 is not "
             "used: on exact "
             "data ",
             f->pass);
    const char *parts[] = {what, f->says, ", wanted ", " within "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        ck_assert_msg(strstr(said, parts[i]) != NULL, "\"%s\" is not in: %s", parts[i], said);
    }
    ck_assert(!fuses(conv, f->kind) && !fuses(second, f->kind));
    ck_assert_str_eq(again, ""); /* the shape is known */
    bench_chose(conv, f->kind == APPLIED && f->pass != gate
                          ? "eng15 eng15 eng15 gate=eng41_k2=0_k14=3"
                          : "eng15 eng15 eng15");
    free(said);
    ls_conv_destroy(second);
    bench_drop(&b, conv);
}

/* Mistakes that come later than the trial, and other decisions near ties. */
static const struct unseen {
    kind kind;
    const char *what;
} unseen[] = {{GATED, "gate:stale"},  {GATED, "gate:scale"},    {GATED, "gate:ties"},
              {GATED, "gate:none"},   {APPLIED, "apply:stale"}, {APPLIED, "sums:stale"},
              {APPLIED, "apply:none"}};

ROWS_TEST(right_results_are_admitted, unseen)
{
    for (int i = 1; i < SHAPES; i++) {
        bench b = bench_open(false, false, false);
        setenv("LS_EMULATED_CONV_WRONG", unseen[_i].what, 1);
        catch_lines();
        ls_conv *conv = fused_conv(&b, unseen[_i].kind, &shapes[i], LS_F16);
        const char *said = caught_text();
        unsetenv("LS_EMULATED_CONV_WRONG");
        ck_assert_str_eq(said, "");
        ck_assert(fuses(conv, unseen[_i].kind));
        bench_drop(&b, conv);
    }
}

/* All configurations that may be used, as of other passes. */
LOOP_TEST(engines_are_timed, 2)
{
    static const char *const own[] = {"forward with sums", "gated backward data with sums"};
    static const char *const next[] = {"backward data", "backward weights"};
    bench b = bench_open(false, false, true);
    ls_conv *conv = fused_conv(&b, (kind)_i, &shapes[1], LS_F16);
    char described[2048];
    ls_conv_describe(conv, described, sizeof described);
    ck_assert(fuses(conv, (kind)_i));
    const char *at = strstr(described, own[_i]);
    ck_assert_ptr_nonnull(at);
    const char *timed = strstr(at, " ms, best of ");
    ck_assert(timed != NULL && timed < strstr(at, next[_i]));
    ck_assert_int_eq(atoi(timed + strlen(" ms, best of ")), 3);
    bench_drop(&b, conv);
}

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

static ls_conv *counted_conv(bench *b, const ls_conv_shape *shape)
{
    ls_conv *conv = bench_conv(b, shape, LS_F16, LS_CONV_DX_WRITTEN);
    ck_assert_int_eq(ls_conv_fuse(conv, LS_CONV_FORWARD_SUMS, admit_and_count), LS_OK);
    return conv;
}

TEST(equal_shapes_are_tried_once)
{
    bench b = bench_open(false, false, false);
    tried = 0;
    ls_conv *conv[3];
    for (int i = 0; i < 3; i++) {
        conv[i] = counted_conv(&b, &shapes[i == 2 ? 3 : 1]);
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
    ls_conv *conv = counted_conv(&b, &shapes[1]);
    char described[2048];
    bench_chose(conv, "eng15 eng15 eng15 sums=eng41_k2=0_k14=3");
    tried = 0;
    ck_assert_int_eq(ls_conv_choose(conv, other), LS_OK);
    ck_assert_int_eq(tried, 1); /* on this rank, too */
    bench_chose(conv, other);
    ls_conv_describe(conv, described, sizeof described);
    ck_assert(strncmp(described, "forward with sums eng41_k2=2_k14=4 ", 35) == 0);
    ck_assert_int_eq(ls_conv_choose(conv, "eng15 eng15 eng15"), LS_OK);
    ck_assert(!ls_conv_fuses(conv, LS_CONV_FORWARD_SUMS));
    ls_conv_describe(conv, described, sizeof described);
    ck_assert(strncmp(described, "forward eng15 ", 14) == 0);
    bench_drop(&b, conv);
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
    ls_conv *conv = counted_conv(&b, &shapes[1]);
    ck_assert_int_eq(ls_conv_choose(conv, wrong_choices[_i].text), wrong_choices[_i].status);
    ck_assert(ls_conv_fuses(conv, LS_CONV_FORWARD_SUMS)); /* unchanged */
    ls_conv *plain = bench_conv(&b, &shapes[1], LS_F16, LS_CONV_DX_WRITTEN);
    ck_assert_int_eq(ls_conv_choose(plain, "eng15 eng15 eng15 sums=eng41"), LS_ERR_USAGE);
    ls_conv_destroy(plain);
    bench_drop(&b, conv);
}

TEST(choice_of_a_gate_travels_as_text)
{
    static const char *const other = "eng15 eng15 eng15 gate=eng41_k2=2_k14=4";
    bench b = bench_open(false, false, false);
    ls_conv *conv = fused_conv(&b, GATED, &shapes[1], LS_F16);
    char described[2048];
    bench_chose(conv, "eng15 eng15 eng15 gate=eng41_k2=0_k14=3");
    ck_assert_int_eq(ls_conv_choose(conv, other), LS_OK);
    bench_chose(conv, other);
    ls_conv_describe(conv, described, sizeof described);
    ck_assert_ptr_nonnull(strstr(described, "; gated backward data with sums eng41_k2=2_k14=4 "));
    ck_assert_ptr_null(strstr(described, "; backward data"));
    /* not asked for */
    ck_assert_int_eq(ls_conv_choose(conv, "eng15 eng15 eng15 sums=eng41"), LS_ERR_USAGE);
    ck_assert_int_eq(ls_conv_choose(conv, "eng15 eng15 eng15 gate=eng15"), LS_ERR_UNSUPPORTED);
    ck_assert(fuses(conv, GATED));
    ck_assert_int_eq(ls_conv_fuse(conv, LS_CONV_FORWARD_SUMS, ls_fuse_admit), LS_OK);
    bench_chose(conv, "eng15 eng15 eng15 sums=eng41_k2=0_k14=3 gate=eng41_k2=2_k14=4");
    ck_assert_int_eq(ls_conv_choose(conv, "eng15 eng15 eng15"), LS_OK);
    ck_assert(!fuses(conv, GATED));
    bench_drop(&b, conv);
}

/* Not with stride 2, silently; and its word travels as the others do. */
TEST(joins_have_words)
{
    static const char *const words[] = {"eng15 eng15 eng15 join=eng41_k2=0_k14=3",
                                        "eng15 eng15 eng15 join2=eng41_k2=0_k14=3"};
    bench b = bench_open(false, false, false);
    for (int twice = 0; twice < 2; twice++) {
        catch_lines();
        ls_conv *conv = fused_conv(&b, JOINED + twice, &shapes[2], LS_F16);
        ck_assert_str_eq(caught_text(), "");
        bench_chose(conv, "eng15 eng15 eng15");
        ls_conv_destroy(conv);
        conv = fused_conv(&b, JOINED + twice, &shapes[3], LS_F16);
        bench_chose(conv, words[twice]);
        ck_assert_int_eq(ls_conv_choose(conv, "eng15 eng15 eng15"), LS_OK);
        ck_assert_int_eq(ls_conv_choose(conv, words[twice]), LS_OK);
        ck_assert(fuses(conv, JOINED + twice));
        ls_conv_destroy(conv);
    }
    bench_close(&b);
}

TEST(choice_of_an_applied_norm_travels_as_text)
{
    static const char *const other =
        "eng15 eng15 eng15 gate=eng41_k2=2_k14=4 apply=eng41_k2=2_k14=4 weigh=eng41_k2=0_k14=3";
    static const char *const parts[] = {
        "eng15 eng15 eng15 apply=eng41_k2=0_k14=3 weigh=eng41_k2=0_k14=3",
        "eng15 eng15 eng15 gate=eng41_k2=0_k14=3 weigh=eng41_k2=0_k14=3",
        "eng15 eng15 eng15 gate=eng41_k2=0_k14=3 apply=eng41_k2=0_k14=3",
    };
    bench b = bench_open(false, false, false);
    ls_conv *conv = fused_conv(&b, APPLIED, &shapes[1], LS_F16);
    char described[2048];
    bench_chose(conv, "eng15 eng15 eng15 gate=eng41_k2=0_k14=3 apply=eng41_k2=0_k14=3 "
                      "weigh=eng41_k2=0_k14=3");
    ck_assert_int_eq(ls_conv_choose(conv, other), LS_OK);
    bench_chose(conv, other);
    ls_conv_describe(conv, described, sizeof described);
    ck_assert_ptr_nonnull(strstr(described, "applying forward with sums eng41_k2=2_k14=4 "));
    ck_assert_ptr_nonnull(strstr(described, "; applying backward weights eng41_k2=0_k14=3 "));
    ck_assert_int_eq(ls_conv_choose(conv, "eng15 eng15 eng15 apply=eng15"), LS_ERR_UNSUPPORTED);
    ck_assert(fuses(conv, APPLIED));
    for (int i = 0; i < 3; i++) { /* one word alone is of no use */
        ck_assert_int_eq(ls_conv_choose(conv, parts[i]), LS_OK);
        ck_assert(!fuses(conv, APPLIED));
        bench_chose(conv, i == 0 ? "eng15 eng15 eng15" : "eng15 eng15 eng15 gate=eng41_k2=0_k14=3");
    }
    bench_drop(&b, conv);
}

int main(void)
{
    use_emulation();
    return RUN_TESTS("cuda fuse", .timeout_s = 120);
}
