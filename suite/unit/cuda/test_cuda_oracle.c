/* The judge's loops on a device against those of the CPU: every product and both batch norms, over
 * shapes, strides, uneven shares and channel counts that do not fill a vector; then whole steps. On
 * the emulation. */
#include "kernels/kernels.h"
#include "reference/oracle/loops.h"
#include "reference/oracle/nettab.h"
#include "reference/oracle/oracle.h"
#include "suite/unit/run_suite.h"
#include "use_emulation.h"

/* numerics.md section 5: FP64 on both sides, but sums in another order; n <= 5000 terms cost at
 * most n * 2^-53 = 6e-13 of the sum of their magnitudes. */
static const double same_limit = 1e-12;

static const ls_loops *device_loops(void)
{
    ls_loops_entry_fn *entry = NULL;
    char why[256];
    ck_assert_int_eq(ls_load_symbol("oracle_cuda", LS_LOOPS_ENTRY, &entry), LS_OK);
    ck_assert_int_eq(entry()->abi, LS_LOOPS_ABI);
    ck_assert_msg(entry()->ready(why, sizeof why), "%s", why);
    return entry();
}

/* Uniform with variance 1. */
static double draw(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int64_t)*state * 0x1p-63 * 1.7320508075688772;
}

static double *draw_list(int64_t count, uint64_t seed)
{
    double *list = malloc((size_t)count * sizeof *list);
    for (int64_t i = 0; i < count; i++) {
        list[i] = draw(&seed);
    }
    return list;
}

/* Random values; the padding channels of a pixel stay 0, as in the oracle. */
static ls_planes make_planes(int samples, int height, int width, int channels, uint64_t seed)
{
    ls_planes planes;
    ck_assert_int_eq(ls_planes_allocate(samples, height, width, channels, &planes), LS_OK);
    for (int64_t i = 0; seed != 0 && i < ls_planes_count(&planes); i++) {
        planes.value[i] = i % planes.pitch < channels ? draw(&seed) : 0;
    }
    return planes;
}

/* The largest difference, in units of the list's root mean square. */
static double difference(const double *a, const double *b, int64_t count)
{
    double square = 0, most = 0;
    for (int64_t i = 0; i < count; i++) {
        double off = fabs(a[i] - b[i]);
        most = off > most || isnan(off) ? off : most;
        square += b[i] * b[i];
    }
    ck_assert(square > 0);
    return most / sqrt(square / (double)count);
}

static void check_planes(ls_planes *got, ls_planes *wanted, const char *what)
{
    double off = difference(got->value, wanted->value, ls_planes_count(got));
    ck_assert_msg(off <= same_limit, "%s differs by %g", what, off);
    ls_planes_free(got);
    ls_planes_free(wanted);
}

static void check_list(double *got, double *wanted, int64_t count, const char *what)
{
    double off = difference(got, wanted, count);
    ck_assert_msg(off <= same_limit, "%s differs by %g", what, off);
    free(got);
    free(wanted);
}

typedef struct product_row {
    int samples, height, width, in, out, kernel, stride, pad;
} product_row;

static const product_row products[] = {
    {2, 7, 9, 3, 5, 3, 1, 1},   {3, 8, 8, 16, 17, 3, 2, 1}, {2, 9, 7, 20, 33, 1, 1, 0},
    {4, 6, 6, 17, 16, 1, 2, 0}, {2, 15, 13, 3, 8, 7, 2, 3}, {5, 1, 1, 40, 10, 1, 1, 0},
    {1, 1, 1, 1, 1, 1, 1, 0},
};

ROWS_TEST(products_are_the_same, products)
{
    const product_row *row = &products[_i];
    const ls_loops *on[2] = {device_loops(), ls_loops_cpu()};
    ls_loops_shape shape = {row->kernel, row->stride, row->pad};
    int out_height = (row->height + 2 * row->pad - row->kernel) / row->stride + 1;
    int out_width = (row->width + 2 * row->pad - row->kernel) / row->stride + 1;
    int64_t weights = (int64_t)row->in * row->out * row->kernel * row->kernel;
    int batch[2] = {row->samples > 1 ? row->samples - 1 : row->samples, 1};
    ls_shards shards = {row->samples > 1 ? 2 : 1, 1, batch};
    int chunks = ls_shards_chunks(&shards);
    ls_planes in = make_planes(row->samples, row->height, row->width, row->in, 3);
    ls_planes out_grad = make_planes(row->samples, out_height, out_width, row->out, 5);
    double *weight = draw_list(weights, 7);
    ls_planes out[2], in_grad[2];
    double *weight_grad[2];
    for (int k = 0; k < 2; k++) {
        out[k] = make_planes(row->samples, out_height, out_width, row->out, 0);
        in_grad[k] = make_planes(row->samples, row->height, row->width, row->in, 0);
        weight_grad[k] = calloc((size_t)(weights * chunks), sizeof(double));
        ck_assert_int_eq(on[k]->products_forward(shape, &in, weight, &out[k]), LS_OK);
        ck_assert_int_eq(on[k]->products_input_grad(shape, &out_grad, weight, &in_grad[k]), LS_OK);
        ck_assert_int_eq(
            on[k]->products_weight_grad(shape, &in, &out_grad, &shards, weight_grad[k]), LS_OK);
    }
    check_planes(&out[0], &out[1], "the output");
    check_planes(&in_grad[0], &in_grad[1], "the gradient of the input");
    check_list(weight_grad[0], weight_grad[1], weights * chunks, "the gradient of the weight");
    ls_planes_free(&in);
    ls_planes_free(&out_grad);
    free(weight);
}

typedef struct norm_row {
    int world, accumulate, batch[3], group, height, width, channels;
    ls_bits_type store;
} norm_row;

static const norm_row norms[] = {
    {1, 1, {4}, 1, 5, 5, 3, LS_BITS_F64},     {2, 1, {3, 2}, 2, 4, 3, 16, LS_BITS_F64},
    {2, 2, {2, 3}, 1, 3, 3, 17, LS_BITS_F32}, {3, 2, {1, 4, 2}, 3, 4, 4, 20, LS_BITS_F32},
    {1, 1, {130}, 1, 1, 1, 33, LS_BITS_F64},  {2, 1, {1, 1}, 1, 7, 5, 64, LS_BITS_F32},
};

ROWS_TEST(norms_are_the_same, norms)
{
    const norm_row *row = &norms[_i];
    const ls_loops *on[2] = {device_loops(), ls_loops_cpu()};
    ls_shards shards = {row->world, row->accumulate, row->batch};
    int samples = (int)ls_shards_samples(&shards), chunks = ls_shards_chunks(&shards);
    ls_planes in = make_planes(samples, row->height, row->width, row->channels, 11);
    ls_planes grad = make_planes(samples, row->height, row->width, row->channels, 13);
    double *weight = draw_list(row->channels, 17), *bias = draw_list(row->channels, 19);
    ls_planes out[2], in_grad[2];
    bool in_half = _i % 2 == 1;
    ls_norm_stats stats[2] = {{.in_half = in_half}, {.in_half = in_half}};
    double *sums[2][2];
    size_t count = (size_t)chunks * (size_t)row->channels;
    for (int k = 0; k < 2; k++) {
        out[k] = make_planes(samples, row->height, row->width, row->channels, 0);
        in_grad[k] = make_planes(samples, row->height, row->width, row->channels, 0);
        sums[k][0] = calloc(count, sizeof(double));
        sums[k][1] = calloc(count, sizeof(double));
        ck_assert_int_eq(on[k]->norm_forward(&in, weight, bias, &shards, row->group, row->store,
                                             &stats[k], &out[k]),
                         LS_OK);
    }
    check_planes(&out[0], &out[1], "the output");
    ck_assert_int_eq(stats[0].groups, stats[1].groups);
    ck_assert(difference(stats[0].mean, stats[1].mean, stats[0].groups * in.pitch) <= same_limit);
    ck_assert(difference(stats[0].inv_std, stats[1].inv_std, stats[0].groups * in.pitch) <=
              same_limit);
    for (int k = 0; k < 2; k++) { /* from the same statistics */
        ck_assert_int_eq(on[k]->norm_backward(&in, weight, &stats[1], &shards, row->store, &grad,
                                              &in_grad[k], sums[k][0], sums[k][1]),
                         LS_OK);
    }
    check_planes(&in_grad[0], &in_grad[1], "the gradient of the input");
    check_list(sums[0][0], sums[1][0], (int64_t)count, "the gradient of the weight");
    check_list(sums[0][1], sums[1][1], (int64_t)count, "the gradient of the bias");
    ls_norm_stats_free(&stats[0]);
    ls_norm_stats_free(&stats[1]);
    ls_planes_free(&in);
    ls_planes_free(&grad);
    free(weight);
    free(bias);
}

/* A whole step, on the branches of the first: nothing else may differ. */
TEST(steps_are_the_same)
{
    ls_nettab net;
    enum { SIZE = 8, BATCH = 4 };
    int batch[2] = {BATCH, BATCH};
    float image[2][BATCH * 3 * SIZE * SIZE];
    int64_t target[2][BATCH];
    const float *input[2] = {image[0], image[1]};
    const int64_t *targets[2] = {target[0], target[1]};
    uint64_t state = 23;
    ck_assert_int_eq(ls_nettab_build("resnet8", 10, SIZE, SIZE, &net), LS_OK);
    for (int rank = 0; rank < 2; rank++) {
        for (size_t i = 0; i < sizeof image[0] / sizeof image[0][0]; i++) {
            image[rank][i] = (float)draw(&state);
        }
        for (int i = 0; i < BATCH; i++) {
            target[rank][i] = (i + rank) % 10;
        }
    }
    double *param = draw_list(net.elements, 29);
    ls_oracle_step step = {.net = &net,
                           .world = 2,
                           .accumulate = 1,
                           .batch = batch,
                           .stat_ranks = 2,
                           .input = input,
                           .target = targets,
                           .param = param,
                           .loss_scale = 1,
                           .half = LS_BITS_F16,
                           .predivide = 1};
    ls_oracle_mode own = {.keep_branches = true};
    ls_oracle_result cpu, device;
    setenv("LS_ORACLE", "cpu", 1);
    ck_assert_int_eq(ls_oracle_run(&step, &own, &cpu), LS_OK);
    setenv("LS_ORACLE", "cuda", 1);
    ls_oracle_mode forced = {.forced = &cpu.branches};
    ck_assert_int_eq(ls_oracle_run(&step, &forced, &device), LS_OK);
    unsetenv("LS_ORACLE");
    /* a dozen consecutive operations propagate each other's rounding */
    double off = difference(device.grad, cpu.grad, net.elements);
    ck_assert_msg(off <= 100 * same_limit, "gradients differ by %g", off);
    ls_oracle_free(&net, &cpu);
    ls_oracle_free(&net, &device);
    free(param);
}

/* A request for the device must not fall back to the CPU. */
TEST(no_device_is_an_error)
{
    const ls_loops *loops = NULL;
    setenv("LS_ORACLE", "cuda", 1);
    setenv("LS_EMULATED_DEVICES", "0", 1);
    ck_assert_int_eq(ls_loops_choose(1, &loops), LS_ERR_INFRA);
    setenv("LS_ORACLE", "gpu", 1);
    ck_assert_int_eq(ls_loops_choose(1, &loops), LS_ERR_USAGE);
    unsetenv("LS_ORACLE");
    ck_assert_int_eq(ls_loops_choose(1e15, &loops), LS_OK);
    ck_assert_str_eq(loops->name, "cpu");
}

int main(void)
{
    use_emulation();
    return RUN_TESTS("oracle_cuda", .timeout_s = 60);
}
