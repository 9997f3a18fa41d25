/* Convolutions that apply the batch norm before them, on the emulated cuDNN: their results, whether
 * these admit the engines, how the choice travels as text, and plans that use them: against the
 * interpreter at 20 seeds, in evaluation, with a second stream, exported. */
#include "kernels/cuda/conv/conv_internal.h"
#include "kernels/cuda/conv/fuse.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "cuda_plan.h"
#include "cuda_products.h"

enum { SEEDS = 20 };

/* ---- one convolution ------------------------------------------------------------------------- */

static const ls_conv_shape shapes[] = {
    {2, 16, 17, 9, 24, 17, 9, 3, 1, 1},
    {3, 16, 8, 7, 16, 4, 4, 3, 2, 1}, /* strided; the last column is reached by no tap */
    {5, 32, 5, 6, 16, 5, 6, 1, 1, 0}, /* more rows than one tile of the engine has */
    {6, 16, 7, 6, 32, 4, 3, 1, 2, 0},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static ls_conv *applying_conv(bench *b, const ls_conv_shape *shape, ls_dtype type)
{
    ls_conv *conv = NULL;
    ck_assert_int_eq(ls_conv_create(b->backend, "it", shape, type, LS_CONV_DX_WRITTEN, &conv),
                     LS_OK);
    ck_assert_int_eq(ls_conv_fuse(conv, LS_CONV_DATA_GATED, ls_fuse_admit_gate), LS_OK);
    ck_assert_int_eq(ls_conv_fuse_applied(conv, ls_fuse_admit, ls_fuse_admit_weights), LS_OK);
    return conv;
}

/* Integers: the operand, both results and the sums have one right value each, those of the plain
 * passes on the operand in memory. */
LOOP_TEST(results_and_sums_are_exact, 2 * SHAPES)
{
    const ls_conv_shape *s = &shapes[_i / 2];
    int64_t in = ls_conv_graph_count(s, LS_CONV_AS_X), out = ls_conv_graph_count(s, LS_CONV_AS_Y);
    int64_t weights = ls_conv_graph_count(s, LS_CONV_AS_W), channels = s->in_channels;
    int64_t step = ls_conv_sums_step(s->out_channels);
    bench b = bench_open(false, false, _i % 2 == 1);
    ls_conv *conv = applying_conv(&b, s, LS_F16);
    ck_assert(ls_conv_applies(conv));
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
    double *sum = values(&b, LS_F32, sums, 2 * step);
    ck_assert_mem_eq(got, wanted, (size_t)out * sizeof *got);
    ck_assert_mem_eq(got_dw, wanted_dw, (size_t)weights * sizeof *got_dw);
    for (int64_t c = 0; c < s->out_channels; c++) {
        double total = 0, squares = 0;
        for (int64_t i = c; i < out; i += s->out_channels) {
            total += wanted[i];
            squares += wanted[i] * wanted[i];
        }
        ck_assert_double_lt(squares, 0x1p24);
        ck_assert_double_eq(sum[c], total);
        ck_assert_double_eq(sum[step + c], squares);
    }
    void *memory[] = {x, w, dy, full, scale, bias, y[0], y[1], dw[0], dw[1], sums};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        b.api->memory_free(b.backend, memory[i]);
    }
    double *host[] = {x_value, w_value, dy_value, scale_value, bias_value, operand,
                      got,     wanted,  got_dw,   wanted_dw,   sum};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) {
        free(host[i]);
    }
    ls_conv_destroy(conv);
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
        ls_conv *conv = applying_conv(&b, rows[i].shape, rows[i].type);
        const char *said = caught_text();
        unsetenv("LS_EMULATED_UNFUSED");
        ck_assert_str_eq(said, "");
        ck_assert_int_eq(ls_conv_applies(conv), rows[i].fused);
        ls_conv_destroy(conv);
        bench_close(&b);
    }
}

static const char forward[] = "applying forward with sums", weights[] = "applying backward weights";

/* Shapes 0 has padding. */
static const struct fault {
    const char *what, *pass, *says;
} faults[] = {
    {"apply:relu", forward, "a value of y in channel "},
    {"apply:padding", forward, "a value of y in channel "},
    {"apply:twice", forward, "a value of y in channel "},
    {"apply:last", forward, "a value of y in channel "},
    {"apply-weights:relu", weights, "a gradient of the weight in channel "},
    {"apply-weights:padding", weights, "a gradient of the weight in channel "},
    {"apply-weights:twice", weights, "a gradient of the weight in channel "},
    {"apply-weights:last", weights, "a gradient of the weight in channel 15 "},
    {"sums:unrounded", forward, " of y in channel "},
    {"sums:result", forward, "a value of y in channel 23 "},
    {"sums:tile", forward, " of y in channel "},
    {"sums:last", forward, " of y in channel 23 "},
    {"sums:square", forward, "1 / deviation of y in channel 23 "},
};

ROWS_TEST(wrong_results_are_not_admitted, faults)
{
    const struct fault *f = &faults[_i];
    char what[128];
    bench b = bench_open(false, false, false);
    setenv("LS_EMULATED_CONV_WRONG", f->what, 1);
    catch_lines();
    ls_conv *conv = applying_conv(&b, &shapes[0], LS_F16);
    char *said = strdup(caught_text());
    catch_lines();
    ls_conv *second = applying_conv(&b, &shapes[0], LS_F16);
    const char *again = caught_text();
    unsetenv("LS_EMULATED_CONV_WRONG");
    snprintf(what, sizeof what,
             "it, and layers of its shape: the %s of engine eng41_k2=0_k14=3 is not used: on exact "
             "data ",
             f->pass);
    const char *parts[] = {what, f->says, ", wanted ", " within "};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        ck_assert_msg(strstr(said, parts[i]) != NULL, "\"%s\" is not in: %s", parts[i], said);
    }
    ck_assert(!ls_conv_applies(conv) && !ls_conv_applies(second));
    ck_assert_str_eq(again, ""); /* the shape is known */
    free(said);
    ls_conv_destroy(second);
    ls_conv_destroy(conv);
    bench_close(&b);
}

/* Without a gated gradient the mask would be missing. */
TEST(without_a_gate_nothing_is_applied)
{
    bench b = bench_open(false, false, false);
    char text[1024];
    setenv("LS_EMULATED_CONV_WRONG", "gate:mask", 1);
    catch_lines();
    ls_conv *conv = applying_conv(&b, &shapes[0], LS_F16);
    ck_assert_ptr_nonnull(strstr(caught_text(), "the gated backward data with sums of engine"));
    unsetenv("LS_EMULATED_CONV_WRONG");
    ck_assert(!ls_conv_applies(conv));
    ls_conv_choice(conv, text, sizeof text);
    ck_assert_str_eq(text, "eng15 eng15 eng15");
    ls_conv_destroy(conv);
    bench_close(&b);
}

/* Mistakes that come later than the trial. */
LOOP_TEST(right_results_are_admitted, 3)
{
    static const char *const kinds[] = {"apply:stale", "sums:stale", "apply:none"};
    for (int i = 0; i < SHAPES; i++) {
        bench b = bench_open(false, false, false);
        setenv("LS_EMULATED_CONV_WRONG", kinds[_i], 1);
        catch_lines();
        ls_conv *conv = applying_conv(&b, &shapes[i], LS_F16);
        const char *said = caught_text();
        unsetenv("LS_EMULATED_CONV_WRONG");
        ck_assert_str_eq(said, "");
        ck_assert(ls_conv_applies(conv));
        ls_conv_destroy(conv);
        bench_close(&b);
    }
}

TEST(choice_travels_as_text)
{
    static const char *const other =
        "eng15 eng15 eng15 gate=eng41_k2=2_k14=4 apply=eng41_k2=2_k14=4 weigh=eng41_k2=0_k14=3";
    static const char *const parts[] = {
        "eng15 eng15 eng15 apply=eng41_k2=0_k14=3 weigh=eng41_k2=0_k14=3",
        "eng15 eng15 eng15 gate=eng41_k2=0_k14=3 weigh=eng41_k2=0_k14=3",
        "eng15 eng15 eng15 gate=eng41_k2=0_k14=3 apply=eng41_k2=0_k14=3",
    };
    bench b = bench_open(false, false, false);
    ls_conv *conv = applying_conv(&b, &shapes[0], LS_F16);
    char text[1024], described[2048];
    ls_conv_choice(conv, text, sizeof text);
    ck_assert_str_eq(text, "eng15 eng15 eng15 gate=eng41_k2=0_k14=3 apply=eng41_k2=0_k14=3 "
                           "weigh=eng41_k2=0_k14=3");
    ck_assert_int_eq(ls_conv_choose(conv, other), LS_OK);
    ls_conv_choice(conv, text, sizeof text);
    ck_assert_str_eq(text, other);
    ls_conv_describe(conv, described, sizeof described);
    ck_assert_ptr_nonnull(strstr(described, "applying forward with sums eng41_k2=2_k14=4 "));
    ck_assert_ptr_nonnull(strstr(described, "; applying backward weights eng41_k2=0_k14=3 "));
    ck_assert_int_eq(ls_conv_choose(conv, "eng15 eng15 eng15 apply=eng15"), LS_ERR_UNSUPPORTED);
    ck_assert(ls_conv_applies(conv));
    for (int i = 0; i < 3; i++) { /* one word alone is of no use */
        ck_assert_int_eq(ls_conv_choose(conv, parts[i]), LS_OK);
        ck_assert(!ls_conv_applies(conv));
        ls_conv_choice(conv, text, sizeof text);
        ck_assert_str_eq(text,
                         i == 0 ? "eng15 eng15 eng15" : "eng15 eng15 eng15 gate=eng41_k2=0_k14=3");
    }
    ls_conv_destroy(conv);
    bench_close(&b);
}

/* ---- plans ----------------------------------------------------------------------------------- */

static ls_kernel_subject_options fused_level(int opt_level, uint64_t seed)
{
    ls_kernel_subject_options o = cuda_level(opt_level, LS_F16);
    o.fuse = true;
    o.seed = seed;
    return o;
}

/* Norms that the plan names as applied; its description has as many forwards that apply one. */
static int count_applied(const ls_kernel_subject *s)
{
    ls_plan_info info;
    int names = 0, lines = 0;
    s->api->plan_info(s->plan, &info);
    for (const char *at = info.applied; at != NULL; at = strchr(at + 1, ',')) {
        names++;
    }
    for (const char *at = info.fusions; (at = strstr(at, "applying forward")) != NULL; at++) {
        lines++;
    }
    ck_assert_int_eq(names, lines);
    return names;
}

/* Networks of cpu_plan.h, and how many norms between two convolutions they have. */
static const struct judged {
    int network, applied;
} judged[] = {{0, 2}, {1, 6}, {2, 3}, {4, 4}};
enum { JUDGED = sizeof judged / sizeof judged[0] };

LOOP_TEST(gradients_at_many_seeds, (JUDGED * SEEDS))
{
    const struct judged *j = &judged[_i % JUDGED];
    ls_kernel_net n;
    networks[j->network](&n);
    ls_kernel_subject s;
    ls_kernel_subject_options o = fused_level(1 + _i / JUDGED % 3, (uint64_t)(_i / JUDGED));
    cuda_make(&s, &n, sizes[j->network], o);
    ck_assert_int_eq(count_applied(&s), j->applied);
    plan_step(&s);
    judge_plan(&s, cuda_scale(&o));
    ls_kernel_subject_free(&s);
}

/* Not unasked, not in another type, not where decisions of ReLUs are given, and not where one of
 * the three engines is missing or wrong. */
TEST(only_where_it_is_asked_for_and_right)
{
    static const char *const wrong[] = {
        "", "", "", "", "gate:mask", "apply-forward:twice", "apply-weights:last", "none"};
    ls_kernel_net n;
    networks[1](&n);
    for (int i = 0; i < 8; i++) {
        ls_kernel_subject s;
        ls_kernel_subject_options o = cuda_level(i == 1 ? 0 : 2, i == 2 ? LS_BF16 : LS_F16);
        o.fuse = i > 0;
        o.forced_branches = i == 3;
        setenv("LS_EMULATED_CONV_WRONG", wrong[i], 1);
        cuda_make(&s, &n, sizes[1], o);
        unsetenv("LS_EMULATED_CONV_WRONG");
        ck_assert_int_eq(count_applied(&s), i == 7 ? 6 : 0);
        ls_kernel_subject_free(&s);
    }
}

static float *logits_of(const ls_kernel_subject *s, int64_t *count)
{
    *count = (int64_t)s->options.batch * s->n->network.num_classes;
    float *logits = malloc((size_t)*count * sizeof *logits);
    ck_assert_int_eq(s->api->plan_export(s->plan, s->stream, LS_EXPORT_LOGITS, 0, logits,
                                         *count * (int64_t)sizeof *logits),
                     LS_OK);
    return logits;
}

/* Evaluation stores the norms' outputs, as without fusing: the same bits, before a step has changed
 * the running statistics. A step after it is as one without. */
TEST(evaluation_applies_nothing)
{
    ls_kernel_net n;
    networks[1](&n);
    ls_kernel_subject s[2], once;
    int64_t count = 0;
    float *logits[2];
    for (int i = 0; i < 2; i++) {
        ls_kernel_subject_options o = fused_level(2, 3);
        o.fuse = i == 0;
        cuda_make(&s[i], &n, sizes[1], o);
        s[i].api->plan_evaluate(s[i].plan, true);
        ck_assert_int_eq(s[i].api->plan_forward(s[i].plan, s[i].stream, s[i].input, s[i].target),
                         LS_OK);
        logits[i] = logits_of(&s[i], &count);
        s[i].api->plan_evaluate(s[i].plan, false);
    }
    ck_assert_int_gt(count_applied(&s[0]), 0);
    ck_assert_mem_eq(logits[0], logits[1], (size_t)count * sizeof *logits[0]);
    cuda_make(&once, &n, sizes[1], fused_level(2, 3));
    plan_step(&once);
    plan_step(&s[0]);
    ck_assert(cuda_same(&once, &s[0]));
    free(logits[0]);
    free(logits[1]);
    ls_kernel_subject_free(&once);
    ls_kernel_subject_free(&s[1]);
    ls_kernel_subject_free(&s[0]);
}

/* Kernels that start early wait for what a product has summed. */
LOOP_TEST(early_starts_give_the_same_bits, JUDGED)
{
    ls_kernel_net n;
    networks[judged[_i].network](&n);
    ls_kernel_subject s[2];
    for (int i = 0; i < 2; i++) {
        setenv("LS_PDL", i == 0 ? "0" : "1", 1);
        cuda_make(&s[i], &n, sizes[judged[_i].network], fused_level(2, 5));
        plan_step(&s[i]);
        plan_step(&s[i]);
    }
    unsetenv("LS_PDL");
    ck_assert_int_eq(count_applied(&s[1]), judged[_i].applied);
    ck_assert(cuda_same(&s[0], &s[1]));
    ls_kernel_subject_free(&s[1]);
    ls_kernel_subject_free(&s[0]);
}

/* The output of an applied norm and ReLU is computed when it is exported: above 0 where its bits
 * say so, 0 elsewhere, the same again after backward. */
TEST(outputs_are_exported)
{
    ls_kernel_net n;
    networks[1](&n);
    ls_kernel_subject s;
    cuda_make(&s, &n, sizes[1], fused_level(2, 7));
    ls_kernel_interpreter extents;
    ls_kernel_interpreter_make(&extents, &n, s.options.batch, s.options.height, s.options.width,
                               LS_KERNEL_ROUND_NONE);
    ck_assert_int_eq(s.api->plan_forward(s.plan, s.stream, s.input, s.target), LS_OK);
    int judged_layers = 0;
    float *first[64] = {NULL};
    for (int turn = 0; turn < 2; turn++) {
        for (int l = 0; l < n.network.layer_count; l++) {
            const ls_layer *layer = &n.network.layer[l];
            int64_t count = extents.size[l].count;
            if (layer->kind != LS_LAYER_RELU) {
                continue;
            }
            float *value = malloc((size_t)count * sizeof *value);
            uint8_t *bits = malloc((size_t)(count + 7) / 8);
            ck_assert_int_eq(s.api->plan_export(s.plan, s.stream, LS_EXPORT_ACTIVATION, l, value,
                                                count * (int64_t)sizeof *value),
                             LS_OK);
            ck_assert_int_eq(s.api->plan_export(s.plan, s.stream, LS_EXPORT_RELU_BITS,
                                                layer->branch, bits, (count + 7) / 8),
                             LS_OK);
            int64_t open = 0;
            for (int64_t i = 0; i < count; i++) {
                ck_assert_int_eq(bits[i / 8] >> i % 8 & 1, value[i] > 0);
                ck_assert(value[i] >= 0);
                open += value[i] > 0;
            }
            ck_assert(open > count / 8 && open < count);
            if (turn == 0) {
                first[layer->branch] = value;
            } else {
                ck_assert_mem_eq(value, first[layer->branch], (size_t)count * sizeof *value);
                free(value);
                free(first[layer->branch]);
            }
            free(bits);
            judged_layers++;
        }
        if (turn == 0) {
            ck_assert_int_eq(s.api->plan_backward(s.plan, s.stream, 1, NULL, NULL), LS_OK);
        }
    }
    ck_assert_int_gt(judged_layers, 2 * 6);
    ls_kernel_interpreter_free(&extents);
    ls_kernel_subject_free(&s);
}

int main(void)
{
    use_emulation();
    return RUN_TESTS("cuda apply", .timeout_s = 120);
}
