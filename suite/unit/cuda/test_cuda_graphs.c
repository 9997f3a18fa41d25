/* Graphs of several operations on the emulated cuDNN, as NVIDIA documents them (cudnn_patterns.h):
 * their results against plain loops, and graphs that do not fit together. */
#include "suite/unit/run_suite.h"
#include "cuda_products.h"
#include "cudnn_patterns.h"

enum { SEEDS = 20, CONFIGS = 8 };

static const ls_conv_shape shape = {2, 16, 9, 8, 24, 9, 8, 3, 1, 1};

/* The tensors of data_relu_norm in the order in which it creates them; an id is one more. */
enum { W, DY, X = 3, MASKED, MEAN = 7, INV_STD, SCALE, BIAS, RESULTS = 25 };
enum { SCALE_GRADIENT, BIAS_GRADIENT, DY_FACTOR, X_FACTOR, OFFSET, SUMS };
enum { POINTERS = 8 + SUMS };

typedef struct gate {
    bench b;
    double *w, *dy, *x, *mean, *inv_std, *scale, *bias;
    void *device[POINTERS];
    int64_t id[POINTERS];
    int64_t pixels;
} gate;

static int64_t in_count(void)
{
    return (int64_t)shape.batch * shape.in_height * shape.in_width * shape.in_channels;
}

static double *drawn(uint64_t seed, uint64_t stream, int64_t count, ls_dtype type, double middle)
{
    double *to = malloc((size_t)count * sizeof *to);
    for (int64_t i = 0; i < count; i++) {
        to[i] = round_to(type, middle + (double)ls_rng_normal(seed, stream, (uint64_t)i) / 4);
    }
    return to;
}

static void gate_make(gate *t, uint64_t seed)
{
    int channels = shape.in_channels;
    int64_t out = (int64_t)shape.batch * shape.out_height * shape.out_width * shape.out_channels;
    int64_t weights = (int64_t)shape.out_channels * shape.kernel * shape.kernel * channels;
    const struct {
        int tensor;
        ls_dtype type;
        int64_t count;
        double middle;
        double **value;
    } operands[] = {{W, LS_F16, weights, 0, &t->w},
                    {DY, LS_F16, out, 0, &t->dy},
                    {X, LS_F16, in_count(), 0.5, &t->x},
                    {MEAN, LS_F32, channels, 0.5, &t->mean},
                    {INV_STD, LS_F32, channels, 4, &t->inv_std},
                    {SCALE, LS_F32, channels, 1, &t->scale},
                    {BIAS, LS_F32, channels, 0, &t->bias}};
    enum { OPERANDS = sizeof operands / sizeof *operands };
    *t = (gate){.b = bench_open(true, false, false), .pixels = in_count() / channels};
    for (int i = 0; i < OPERANDS; i++) {
        *operands[i].value =
            drawn(seed, (uint64_t)i, operands[i].count, operands[i].type, operands[i].middle);
        t->device[i] = tensor(&t->b, operands[i].type, *operands[i].value, operands[i].count);
        t->id[i] = operands[i].tensor + 1;
    }
    t->device[OPERANDS] = tensor(&t->b, LS_F16, NULL, in_count());
    t->id[OPERANDS] = MASKED + 1;
    for (int i = 0; i < SUMS; i++) {
        t->device[OPERANDS + 1 + i] = tensor(&t->b, LS_F32, NULL, channels);
        t->id[OPERANDS + 1 + i] = RESULTS + i + 1;
    }
}

static void gate_free(gate *t)
{
    double *value[] = {t->w, t->dy, t->x, t->mean, t->inv_std, t->scale, t->bias};
    for (size_t i = 0; i < sizeof value / sizeof *value; i++) {
        free(value[i]);
    }
    for (int i = 0; i < POINTERS; i++) {
        t->b.api->memory_free(t->b.backend, t->device[i]);
    }
    bench_close(&t->b);
}

/* Executes the graph by the first engine whose notes allow it. */
static void execute(gate *t)
{
    ls_conv_target target = {.handle = t->b.backend->dnn};
    ls_conv_key key = {.shape = shape, .type = LS_F16, .workspace_limit = INT64_C(1) << 30};
    fused g = fused_begin(&target, &shape, LS_F16);
    data_relu_norm(&g, PLAIN);
    fused_finish(&g);
    ck_assert_msg(g.status == CUDNN_STATUS_SUCCESS, "%s", g.refused);
    dnn config[CONFIGS], plan = NULL, pack = NULL;
    int count = 0;
    ck_assert_int_eq(ls_conv_engine_list(&g.whole, CUDNN_HEUR_MODE_A, CONFIGS, config, &count),
                     LS_OK);
    int64_t bytes = 0;
    for (int i = 0; i < count; i++) {
        ls_conv_engine engine;
        ck_assert_int_eq(ls_conv_engine_read(config[i], &engine), LS_OK);
        if (plan == NULL && ls_conv_engine_judge(&engine, &key) == LS_CONV_TAKEN) {
            ck_assert_int_eq(ls_conv_engine_plan(&target, config[i], &plan, &bytes),
                             CUDNN_STATUS_SUCCESS);
        }
    }
    ck_assert_ptr_nonnull(plan);
    bench_workspace(&t->b, bytes);
    ck_assert_int_eq(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack), 0);
    ck_assert_int_eq(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                              CUDNN_TYPE_INT64, POINTERS, t->id),
                     0);
    ck_assert_int_eq(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                              CUDNN_TYPE_VOID_PTR, POINTERS, t->device),
                     0);
    ck_assert_int_eq(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                              CUDNN_TYPE_VOID_PTR, 1, &t->b.workspace),
                     0);
    ck_assert_int_eq(cudnnBackendFinalize(pack), 0);
    ck_assert_int_eq(cudnnSetStream(t->b.backend->dnn, t->b.stream->native), 0);
    ck_assert_int_eq(cudnnBackendExecute(t->b.backend->dnn, plan, pack), 0);
    ck_assert_int_eq(t->b.api->stream_wait(t->b.stream), LS_OK);
    ls_conv_graph_drop(pack);
    ls_conv_graph_drop(plan);
    for (int i = 0; i < count; i++) {
        ls_conv_graph_drop(config[i]);
    }
    fused_free(&g);
}

/* The gradient of one element of the convolution's input, and the sum of its terms' sizes. */
static double gradient_at(const gate *t, int64_t i, double *size)
{
    const ls_conv_shape *s = &shape;
    int64_t c = i % s->in_channels, pixel = i / s->in_channels;
    int64_t column = pixel % s->in_width, row = pixel / s->in_width % s->in_height;
    int64_t image = pixel / s->in_width / s->in_height;
    double sum = 0;
    *size = 0;
    for (int tap = 0; tap < s->kernel * s->kernel; tap++) {
        int64_t h = row + s->pad - tap / s->kernel, v = column + s->pad - tap % s->kernel;
        for (int k = 0;
             h >= 0 && v >= 0 && h < s->out_height && v < s->out_width && k < s->out_channels;
             k++) {
            double g =
                t->dy[((image * s->out_height + h) * s->out_width + v) * s->out_channels + k];
            double term = g * t->w[((int64_t)k * s->kernel * s->kernel + tap) * s->in_channels + c];
            sum += term;
            *size += fabs(term);
        }
    }
    return sum;
}

static bool near(double got, double wanted, double limit)
{
    return fabs(got - wanted) <= limit;
}

/* Elements of the gradient that are wrong: f32 sums of 216 terms lose at most 216 u of their sizes,
 * storing half an ulp of f16. Near a tie (4 roundings of the norm's output) either is right. */
static int wrong_gradients(gate *t)
{
    double *got = values(&t->b, LS_F16, t->device[7], in_count());
    int wrong = 0, open = 0;
    for (int64_t i = 0; i < in_count(); i++) {
        int64_t c = i % shape.in_channels;
        double size = 0, sum = gradient_at(t, i, &size);
        double scaled = (t->x[i] - t->mean[c]) * t->inv_std[c] * t->scale[c];
        double value = scaled + t->bias[c], tie = 4 * 0x1p-24 * (fabs(scaled) + fabs(t->bias[c]));
        double limit = 216 * 0x1p-24 * size + 0x1p-11 * fabs(sum) + 0x1p-25;
        bool passes = near(got[i], sum, limit), stops = got[i] == 0;
        wrong += !(fabs(value) <= tie ? passes || stops : value > 0 ? passes : stops);
        open += value > 0;
    }
    ck_assert_int_gt(open, (int)(in_count() / 8));
    ck_assert_int_lt(open, (int)(in_count() * 7 / 8));
    free(got);
    return wrong;
}

/* Sums of channels that are not those of the stored gradient: 144 terms in f32 lose at most 144 u
 * of their sizes, and what is computed from the sums a few u more. */
static int wrong_sums(gate *t)
{
    const double lose = (144 + 8) * 0x1p-24;
    int channels = shape.in_channels, wrong = 0;
    double rows = (double)t->pixels, *sum[SUMS],
           *g = values(&t->b, LS_F16, t->device[7], in_count());
    for (int k = 0; k < SUMS; k++) {
        sum[k] = values(&t->b, LS_F32, t->device[8 + k], channels);
    }
    for (int c = 0; c < channels; c++) {
        double plain = 0, weighted = 0, size = 0, weighted_size = 0;
        for (int64_t i = c; i < in_count(); i += channels) {
            double normed = (t->x[i] - t->mean[c]) * t->inv_std[c];
            plain += g[i];
            weighted += g[i] * normed;
            size += fabs(g[i]);
            weighted_size += fabs(g[i] * normed);
        }
        double factor = t->scale[c] * t->inv_std[c], slope = factor * t->inv_std[c] / rows;
        double offset = -factor * plain / rows + slope * weighted * t->mean[c];
        wrong +=
            !near(sum[BIAS_GRADIENT][c], plain, lose * size) +
            !near(sum[SCALE_GRADIENT][c], weighted, lose * weighted_size) +
            !near(sum[DY_FACTOR][c], factor, lose * fabs(factor)) +
            !near(sum[X_FACTOR][c], -slope * weighted, lose * fabs(slope) * weighted_size) +
            !near(sum[OFFSET][c], offset,
                  lose * (fabs(factor) * size / rows + fabs(slope * t->mean[c]) * weighted_size));
    }
    for (int k = 0; k < SUMS; k++) {
        free(sum[k]);
    }
    free(g);
    return wrong;
}

LOOP_TEST(gradient_into_relu_and_norm, SEEDS)
{
    gate t;
    gate_make(&t, (uint64_t)_i);
    execute(&t);
    ck_assert_int_eq(wrong_gradients(&t), 0);
    ck_assert_int_eq(wrong_sums(&t), 0);
    gate_free(&t);
}

/* An engine that forgets the ReLU; one with a wrong sum. */
LOOP_TEST(mistakes_are_seen, 2)
{
    gate t;
    gate_make(&t, 1);
    setenv("LS_EMULATED_CONV_WRONG", _i == 0 ? "gate:mask" : "gate:last", 1);
    execute(&t);
    unsetenv("LS_EMULATED_CONV_WRONG");
    ck_assert_int_eq(wrong_gradients(&t) > 0, _i == 0);
    ck_assert_int_eq(wrong_sums(&t) > 0, _i == 1);
    gate_free(&t);
}

/* Graphs that cuDNN does not offer, and those that are not emulated. */
TEST(other_graphs_are_refused)
{
    static const struct {
        void (*build)(fused *g, int with);
        int with;
    } rows[] = {{data_relu_of_stored_norm, PLAIN}, {data_relu_norm, ADDED}, {data, ADDED}};
    bench b = bench_open(true, false, false);
    ls_conv_target target = {.handle = b.backend->dnn};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fused g = fused_begin(&target, &shape, LS_F16);
        rows[i].build(&g, rows[i].with);
        fused_finish(&g);
        ck_assert_int_eq(g.status, CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
        fused_free(&g);
    }
    bench_close(&b);
}

TEST_MAIN("cuda graphs", .timeout_s = 60)
