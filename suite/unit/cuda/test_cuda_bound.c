/* Rates and passes on the emulated device: every pass has a time and its bytes, and the bytes add
 * up to the traffic model's value for ResNet-50. The times themselves are meaningless here. */
#include "kernels/passes.h"
#include "kernels/traffic.h"
#include "reference/model/model.h"
#include "suite/commands/bench_internal.h"
#include "suite/unit/run_suite.h"

TEST(rates_are_measured_and_the_device_described)
{
    ls_cuda_rates_measured rates;
    const ls_cuda_rates_options options = {
        .device = 1, .copy_bytes = 100000, .side = 24, .repeats = 3};
    ck_assert_int_eq(ls_cuda_rates(&options, &rates), LS_OK);
    ck_assert(rates.copy_bytes_per_s > 0 && rates.f32_flop_per_s > 0 && rates.f16_flop_per_s > 0);
    ck_assert(rates.bf16_flop_per_s > 0 && rates.tf32_flop_per_s > 0);
    ck_assert_int_gt((int)strlen(rates.device), 5);
    ls_cuda_rates_options wrong = options;
    wrong.repeats = 0;
    ck_assert_int_eq(ls_cuda_rates(&wrong, &rates), LS_ERR_USAGE);
}

/* The emulated cuBLASLt offers no algorithm for f32 that may be taken: other rates are measured. */
TEST(a_rate_that_fails_is_unknown)
{
    ls_cuda_rates_measured rates;
    const ls_cuda_rates_options options = {.copy_bytes = 100000, .side = 24, .repeats = 1};
    setenv("LS_EMULATED_FLAGS", "all", 1);
    ck_assert_int_eq(ls_cuda_rates(&options, &rates), LS_OK);
    unsetenv("LS_EMULATED_FLAGS");
    ck_assert(isnan(rates.f32_flop_per_s) && isnan(rates.tf32_flop_per_s));
    ck_assert(rates.copy_bytes_per_s > 0 && rates.f16_flop_per_s > 0 && rates.bf16_flop_per_s > 0);
}

static ls_step_passes measure(const char *arch, int size, int batch, ls_dtype type, bool fuse)
{
    ls_network network;
    ls_step_passes measured;
    const ls_plan_options plan = {
        .batch = batch, .height = size, .width = size, .activation = type, .fuse = fuse};
    const ls_cuda_bound_options options = {.device = 0, .repeats = 1, .passes = true};
    ck_assert_int_eq(ls_model_build(arch, 10, size, &network), LS_OK);
    ck_assert_int_eq(ls_cuda_bound(&network, &plan, &options, &measured), LS_OK);
    ls_model_free(&network);
    return measured;
}

TEST(every_pass_has_a_time)
{
    ls_step_passes m = measure("resnet8", 16, 2, LS_F16, false);
    int forward = 0, backward = 0, data = 0;
    ck_assert(m.convolutions_ms > 0 && m.forward_ms > 0 && m.backward_ms > 0);
    for (int i = 0; i < m.pass_count; i++) {
        const ls_pass *pass = &m.pass[i];
        ck_assert_msg(pass->ms >= 0 && pass->bytes > 0 && pass->name[0] != '\0', "%s", pass->name);
        ck_assert((pass->flops > 0) == pass->product);
        ck_assert_int_eq(pass->engine[0] != '\0', pass->product);
        ck_assert_int_eq(pass->norm, strstr(pass->name, "bn") != NULL);
        forward += pass->kind == LS_PASS_FORWARD;
        backward += pass->kind == LS_PASS_BACKWARD;
        data += pass->kind == LS_PASS_DATA;
    }
    /* 7 convolutions and the inner product; the first wants no gradient of the image */
    ck_assert_int_eq(data, 7);
    ck_assert_int_eq(forward, backward);
    ck_assert_int_eq(m.pass_count, forward + backward + data);
    free(m.pass);
    free(m.engines);
}

static size_t no_bytes(void *context, const ls_plan_options *options, int channels, int height,
                       int width, bool is_input)
{
    (void)context, (void)options, (void)channels, (void)height, (void)width, (void)is_input;
    return 0;
}

static bool every_product_adds(void *context, const ls_lower *lower, const ls_op *op)
{
    (void)context, (void)lower, (void)op;
    return true;
}

/* Bytes of all passes of the traffic model, the statistics of the stem's output left out. */
static double predicted(const char *arch, int size, int batch, int ways)
{
    ls_network network;
    ls_lower lower;
    const ls_plan_options plan = {
        .batch = batch, .height = size, .width = size, .activation = LS_F16};
    const ls_lower_backend backend = {no_bytes, every_product_adds, .gates_twice = true};
    ck_assert_int_eq(ls_model_build(arch, 10, size, &network), LS_OK);
    ck_assert_int_eq(ls_lower_create(&network, &plan, &backend, &lower), LS_OK);
    ls_traffic *list = malloc((size_t)ls_traffic_most(&lower) * sizeof *list);
    ck_assert_ptr_nonnull(list);
    double bytes = 0;
    int count = ls_traffic_list(&lower, 8, ways, list), statistics = 0;
    for (int i = 0; i < count; i++) {
        bool stem = list[i].part == LS_TRAFFIC_STATISTICS && statistics++ == 0;
        bytes += stem ? 0 : list[i].bytes;
    }
    free(list);
    ls_lower_free(&lower);
    ls_model_free(&network);
    return bytes;
}

static double measured_bytes(bool fuse)
{
    ls_step_passes m = measure("resnet20", 16, 8, LS_F16, fuse);
    double bytes = 0;
    for (int i = 0; i < m.pass_count; i++) {
        bytes += m.pass[i].bytes;
    }
    ck_assert_int_eq(strstr(m.engines, "applying forward") != NULL, fuse);
    ck_assert_int_eq(strstr(m.engines, "joined backward data") != NULL, fuse);
    free(m.pass);
    free(m.engines);
    return bytes;
}

/* What a fused plan says it moves less is what `lockstep layers --predict` predicts for it, and the
 * stem's statistics, because the emulated cuDNN sums those, too. */
TEST(fused_passes_move_the_predicted_bytes)
{
    int ways = LS_TRAFFIC_FUSE_STATISTICS | LS_TRAFFIC_FUSE_INNER | LS_TRAFFIC_FUSE_APPLY |
               LS_TRAFFIC_FUSE_JOINS;
    double stem = 8.0 * 16 * 16 * 16 * 2; /* images, channels, pixels, bytes */
    double saved = measured_bytes(false) - measured_bytes(true) - stem;
    ck_assert_double_eq(saved,
                        predicted("resnet20", 16, 8, 0) - predicted("resnet20", 16, 8, ways));
    ck_assert(saved > 0);
}

TEST(a_slow_gpu_is_found_among_its_neighbours)
{
    ls_findings findings = {0, 0, NULL};
    cJSON *rates = cJSON_CreateArray();
    for (int gpu = 0; gpu < 4; gpu++) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddNumberToObject(one, "gpu", gpu);
        cJSON_AddNumberToObject(one, "copy_bytes_per_s", gpu == 1 ? 3.9e12 : 4.3e12);
        cJSON_AddNumberToObject(one, "memory_bytes_per_s", 4.8e12);
        cJSON_AddNumberToObject(one, "f16_flop_per_s", gpu == 3 ? 6e14 : 7e14);
        cJSON_AddItemToArray(rates, one);
    }
    ls_roofline_gpu_compare(rates, &findings);
    ck_assert_int_eq(findings.count, 2);
    ck_assert_int_eq(findings.list[0].gpu, 1);
    ck_assert_int_eq(findings.list[0].code, LS_FINDING_SLOW_COPY);
    ck_assert_int_eq(findings.list[1].gpu, 3);
    ck_assert_int_eq(findings.list[1].code, LS_FINDING_SLOW_MATRIX);
    ls_findings_free(&findings);
    for (int gpu = 0; gpu < 4; gpu++) { /* all equal, and all far below their memory's rate */
        cJSON_SetNumberValue(
            cJSON_GetObjectItem(cJSON_GetArrayItem(rates, gpu), "copy_bytes_per_s"), 3e12);
    }
    ls_roofline_gpu_compare(rates, &findings);
    ck_assert_int_eq(findings.count, 5);
    ls_findings_free(&findings);
    cJSON_Delete(rates);
}

TEST_MAIN("cuda_bound", .timeout_s = 60)
