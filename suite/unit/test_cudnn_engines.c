/* Which engines the real cuDNN gives the networks, asked without a GPU: cuDNN takes a description
 * of a device instead of one, and makes plans for it that only cannot be executed.
 *
 *   test_cudnn_engines                                     the test
 *   test_cudnn_engines DEVICE ARCH BATCH SIZE TYPE [deterministic] [tf32]
 *                      what would be taken: H200 resnet50 256 224 fp16 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/cuda/conv_plans.h"
#include "../../kernels/lower.h"
#include "../../reference/model.h"

/* The backend's other files need a device. */
ls_status ls_cuda_check_dnn(cudnnStatus_t status, const char *call, const char *file, int line)
{
    if (status == CUDNN_STATUS_SUCCESS) {
        return LS_OK;
    }
    char text[512] = "";
    cudnnGetLastErrorString(text, sizeof text);
    fprintf(stderr, "%s:%d: %s: %s: %s\n", file, line, call, cudnnGetErrorString(status), text);
    return LS_ERR_INFRA;
}

/* ---- devices ----------------------------------------------------------------------------------
 */

/* Of the data sheets and of the CUDA programming guide's table of compute capabilities. */
static const struct device {
    const char *name;
    int version, processors, shared_kb, l2_mb;
    double memory_gb;
} devices[] = {
    {"A100", 800, 108, 163, 40, 80},
    {"H200", 900, 132, 227, 60, 141},
    {"B200", 1000, 148, 227, 126, 180},
};

enum { DEVICES = sizeof devices / sizeof devices[0] };

/* The members are those that cuDNN 9.19 asks for, by name, when one is not there. */
static ls_status describe_device(const struct device *d, cudnnBackendDescriptor_t *out)
{
    char text[1024];
    int bytes = snprintf(
        text, sizeof text,
        "{\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], "
        "\"regsPerBlock\": 65536, \"multiProcessorCount\": %d, \"warpSize\": 32, "
        "\"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": %d, "
        "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, "
        "\"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, "
        "\"pciDeviceId\": 0, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, "
        "\"totalGlobalMem\": %.0f, \"smClockRateKHz\": 1980000, \"memClockRateKHz\": 2619000, "
        "\"l2CacheSize\": %d, \"cudaDeviceId\": 0, \"deviceVer\": %d, \"driverVer\": 13000, "
        "\"deviceName\": \"NVIDIA %s\"}",
        d->processors, d->shared_kb * 1024, d->memory_gb * 1e9, d->l2_mb << 20, d->version,
        d->name);
    LS_CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, out));
    LS_CUDNN(cudnnBackendSetAttribute(*out, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                      CUDNN_TYPE_CHAR, bytes, text));
    LS_CUDNN(cudnnBackendFinalize(*out));
    return LS_OK;
}

/* ---- networks ---------------------------------------------------------------------------------
 */

typedef struct asked {
    const struct device *device;
    const char *arch;
    int batch, size;
    ls_dtype type;
    bool deterministic, tf32;
} asked;

static size_t slot_bytes(void *context, const ls_plan_options *options, int channels, int height,
                         int width, bool is_input)
{
    (void)context;
    (void)is_input;
    return (size_t)options->batch * (size_t)channels * (size_t)height * (size_t)width *
           ls_dtype_bytes(options->activation);
}

typedef void visit_conv(ls_backend *backend, const char *name, const ls_conv_shape *shape,
                        ls_dtype type, ls_conv *conv);

/* `every`: those too whose plans another layer has brought. */
static ls_status each_conv(ls_backend *backend, const ls_lower *lower, const asked *q, bool every,
                           visit_conv *visit)
{
    for (int i = 0; i < lower->op_count; i++) {
        const ls_op *op = &lower->op[i];
        if (op->kind != LS_OP_CONV) {
            continue;
        }
        const ls_layer *layer = &lower->network->layer[op->layer];
        const ls_slot *in = &lower->slot[op->in], *out = &lower->slot[op->out];
        bool image = lower->network->layer[in->layer].kind == LS_LAYER_INPUT;
        int stored = image ? 16 / (int)ls_dtype_bytes(q->type) : in->channels;
        ls_conv_shape shape = {q->batch,    stored,     in->height,    in->width,     out->channels,
                               out->height, out->width, layer->kernel, layer->stride, layer->pad};
        ls_conv *conv = NULL;
        int64_t before = backend->plans ? backend->plans->searched : 0;
        LS_TRY(ls_conv_create(backend, layer->name, &shape, q->type, !image, &conv));
        bool fresh = backend->plans->searched > before;
        if (fresh || every) {
            visit(backend, layer->name, &shape, q->type, conv);
        }
        ls_conv_destroy(conv);
    }
    return LS_OK;
}

/* Plans for all convolutions of a network, as a backend of that device would find them. */
static ls_status ask(const asked *q, bool every, visit_conv *visit)
{
    ls_network network;
    ls_lower lower;
    ls_backend backend = {
        .deterministic = q->deterministic, .tf32 = q->tf32, .workspace_limit = INT64_C(1) << 30};
    ls_plan_options options = {
        .batch = q->batch, .height = q->size, .width = q->size, .activation = q->type};
    LS_TRY(describe_device(q->device, &backend.described));
    LS_TRY(ls_model_build(q->arch, 1000, q->size, &network));
    LS_TRY(ls_lower_create(&network, &options, slot_bytes, NULL, &lower));
    ls_status status = each_conv(&backend, &lower, q, every, visit);
    ls_conv_plans_destroy(backend.plans);
    ls_lower_free(&lower);
    ls_model_free(&network);
    ls_conv_graph_drop(backend.described);
    return status;
}

/* ---- the test: an engine for every pass, and the same one again by its name ---------------------
 */

static void engine_and_again(ls_backend *backend, const char *name, const ls_conv_shape *shape,
                             ls_dtype type, ls_conv *conv)
{
    char choice[4096], again[4096];
    ls_conv_choice(conv, choice, sizeof choice);
    int64_t bytes = ls_conv_workspace_bytes(conv);
    ck_assert_int_le(bytes, backend->workspace_limit);
    /* Another rank: what this one has found is taken away, so that the text has to do. */
    ls_backend other = *backend;
    ls_conv *follower = NULL;
    bool wants_dx = strstr(choice, " - ") == NULL;
    ck_assert_int_eq(ls_conv_create(&other, name, shape, type, wants_dx, &follower), LS_OK);
    other.plans = NULL;
    ck_assert_int_eq(ls_conv_choose(follower, choice), LS_OK);
    ls_conv_choice(follower, again, sizeof again);
    ck_assert_str_eq(again, choice);
    ck_assert_int_eq(ls_conv_workspace_bytes(follower), bytes);
    ls_conv_destroy(follower);
    ls_conv_plans_destroy(other.plans);
}

static const struct row {
    int device;
    const char *arch;
    int batch, size;
    ls_dtype type;
    bool deterministic, tf32;
} rows[] = {
    {1, "resnet50", 256, 224, LS_F16, true, false}, {1, "resnet50", 256, 224, LS_F32, true, false},
    {1, "resnet50", 64, 224, LS_F32, true, true},   {1, "resnet50", 64, 224, LS_BF16, true, false},
    {1, "resnet20", 16, 32, LS_F16, true, false},   {1, "resnet20", 16, 32, LS_F32, true, false},
    {1, "resnet18", 8, 64, LS_F32, false, false},   {0, "resnet50", 64, 224, LS_F16, true, false},
    {2, "resnet50", 64, 224, LS_F16, true, false},
};

START_TEST(every_pass_has_an_engine)
{
    const struct row *r = &rows[_i];
    const asked q = {&devices[r->device], r->arch, r->batch, r->size, r->type,
                     r->deterministic,    r->tf32};
    ck_assert_int_eq(ask(&q, false, engine_and_again), LS_OK);
}
END_TEST

/* ---- the table --------------------------------------------------------------------------------
 */

static void print_conv(ls_backend *backend, const char *name, const ls_conv_shape *shape,
                       ls_dtype type, ls_conv *conv)
{
    (void)backend;
    (void)shape;
    (void)type;
    char text[2048];
    ls_conv_describe(conv, text, sizeof text);
    printf("%s: %s\n", name, text);
}

static int print_table(int count, char **word)
{
    asked q = {.arch = word[1], .batch = atoi(word[2]), .size = atoi(word[3])};
    for (int i = 0; i < DEVICES; i++) {
        q.device = strcmp(devices[i].name, word[0]) == 0 ? &devices[i] : q.device;
    }
    bool known = false;
    for (ls_dtype type = LS_F32; type <= LS_BF16; type++) {
        if (strcmp(ls_dtype_label(type), word[4]) == 0) {
            q.type = type;
            known = true;
        }
    }
    for (int i = 5; i < count; i++) {
        q.deterministic = q.deterministic || strcmp(word[i], "deterministic") == 0;
        q.tf32 = q.tf32 || strcmp(word[i], "tf32") == 0;
    }
    if (!known || !q.device) {
        fprintf(stderr, "devices: A100 H200 B200; types: fp32 fp16 bf16\n");
        return LS_ERR_USAGE;
    }
    return (int)ask(&q, true, print_conv);
}

int main(int count, char **word)
{
    if (count > 5) {
        return print_table(count - 1, word + 1);
    }
    cudnnBackendDescriptor_t device = NULL;
    if (cudnnGetVersion() / 100 != 919 && describe_device(&devices[0], &device) != LS_OK) {
        printf("not run: cuDNN %zu wants devices described otherwise than 9.19\n",
               cudnnGetVersion());
        return 0;
    }
    ls_conv_graph_drop(device);
    Suite *suite = suite_create("cudnn engines");
    TCase *c = tcase_create("engines");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, every_pass_has_an_engine, 0, sizeof rows / sizeof rows[0]);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK); /* the libraries are large: loaded once */
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed;
}
