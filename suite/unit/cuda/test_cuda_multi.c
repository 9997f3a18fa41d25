/* The multi-tensor kernels on the emulation, bit for bit against the CPU's functions: every type,
 * every optimizer, views at every alignment, both values of the flags; and lists in graphs. */
#include "kernels/optimizers.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/ops.h"
#include "suite/unit/run_suite.h"

#include "place.h"

static const int64_t SIZES[] = {17, 0, 1, 3, 4, 5, 64, 511, 8193, 512, 513, 16384, 7, 33001, 10};
enum { TENSORS = sizeof SIZES / sizeof SIZES[0], GAP = 64 };

/* Two copies of a list of tensors, the host's for the CPU, each tensor a few elements off
 * alignment, in a poisoned block that is compared as a whole. */
typedef struct twin {
    ls_tensor host[TENSORS], device[TENSORS];
    unsigned char *block, *have;
    void *memory;
    size_t bytes;
} twin;

static const ls_backend_api *cpu;
static ls_backend *cpu_backend;
static ls_backend gpu;
static ls_stream stream;
static ls_step_state *device_state;

static void set_up(void)
{
    ls_backend_options options = {.threads = 1};
    void *state = NULL;
    ck_assert_int_eq(ls_load_backend("cpu", &cpu), LS_OK);
    ck_assert_int_eq(cpu->open(&options, &cpu_backend), LS_OK);
    gpu = (ls_backend){.processors = 4, .tables = ls_multi_tables_create()};
    stream = (ls_stream){.backend = &gpu};
    ck_assert_int_eq(cudaStreamCreateWithFlags(&stream.native, cudaStreamNonBlocking), cudaSuccess);
    ck_assert_int_eq(cudaMalloc(&state, sizeof *device_state), cudaSuccess);
    device_state = state;
}

static void tear_down(void)
{
    ls_multi_tables_destroy(gpu.tables);
    cudaFree(device_state);
    cudaStreamDestroy(stream.native);
    cpu->close(cpu_backend);
}

static void put_state(const ls_step_state *state)
{
    ck_assert_int_eq(cudaMemcpy(device_state, state, sizeof *state, cudaMemcpyHostToDevice),
                     cudaSuccess);
}

static void check_state(const ls_step_state *want)
{
    ls_step_state have;
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
    ck_assert_int_eq(cudaMemcpy(&have, device_state, sizeof have, cudaMemcpyDeviceToHost),
                     cudaSuccess);
    ck_assert_int_eq(have.overflow, want->overflow);
    ck_assert_int_eq(have.first_bad_grad, want->first_bad_grad);
    ck_assert_int_eq(have.first_bad_state, want->first_bad_state);
    ck_assert_int_eq(have.skipped, want->skipped);
    ck_assert_int_eq(have.step_count, want->step_count);
    ck_assert_int_eq(memcmp(&have, want, sizeof have), 0);
}

static void put_value(ls_tensor tensor, int64_t i, float value)
{
    uint16_t half =
        tensor.dtype == LS_F16 ? ls_half_f32_to_fp16(value) : ls_half_f32_to_bf16(value);
    if (tensor.dtype == LS_F32) {
        memcpy((float *)tensor.data + i, &value, sizeof value);
    } else {
        memcpy((uint16_t *)tensor.data + i, &half, sizeof half);
    }
}

/* Values over many binades; type(i) = types[i % 3]. `seed` also turns the alignments. */
static twin twin_make(const ls_dtype *types, unsigned seed, float scale)
{
    twin t = {0};
    size_t at = 0, place[TENSORS];
    for (unsigned i = 0; i < TENSORS; i++) {
        size_t each = ls_dtype_bytes(types[i % 3]);
        place[i] = (at + (size_t)GAP + 63) / 64 * 64 + (i * 3 + seed) % 8 * each;
        at = place[i] + (size_t)SIZES[i] * each;
    }
    t.bytes = at + (size_t)GAP;
    t.block = aligned_alloc(64, (t.bytes + 63) / 64 * 64);
    t.have = malloc(t.bytes);
    ck_assert(t.block != NULL && t.have != NULL);
    memset(t.block, PLACE_POISON, t.bytes);
    ck_assert_int_eq(cudaMalloc(&t.memory, t.bytes), cudaSuccess);
    for (int i = 0; i < TENSORS; i++) {
        t.host[i] = (ls_tensor){t.block + place[i], types[i % 3], SIZES[i]};
        t.device[i] = (ls_tensor){(char *)t.memory + place[i], types[i % 3], SIZES[i]};
        for (int64_t k = 0; k < SIZES[i]; k++) {
            ls_rng_block b = ls_rng_philox(seed, (uint64_t)i, (uint64_t)k);
            float value = (float)(int32_t)b.word[0] * 4.656612873e-10f * scale;
            put_value(t.host[i], k, ldexpf(value, -(int)(b.word[1] % 30)));
        }
    }
    return t;
}

static void twin_upload(const twin *t)
{
    ck_assert_int_eq(cudaMemcpy(t->memory, t->block, t->bytes, cudaMemcpyHostToDevice),
                     cudaSuccess);
}

static bool is_nan(ls_tensor tensor, const unsigned char *at)
{
    uint32_t word = 0;
    memcpy(&word, at, ls_dtype_bytes(tensor.dtype));
    return tensor.dtype == LS_F32   ? (word & 0x7fffffffu) > 0x7f800000u
           : tensor.dtype == LS_F16 ? (word & 0x7fffu) > 0x7c00u
                                    : (word & 0x7fffu) > 0x7f80u;
}

/* Checks that all bytes are equal, except the payloads of NaN. */
static void twin_check(const char *what, const twin *t)
{
    ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
    ck_assert_int_eq(cudaMemcpy(t->have, t->memory, t->bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < TENSORS; i++) {
        size_t each = ls_dtype_bytes(t->host[i].dtype);
        size_t start = (size_t)((unsigned char *)t->host[i].data - t->block);
        for (int64_t k = 0; k < SIZES[i]; k++) {
            unsigned char *a = t->block + start + (size_t)k * each;
            unsigned char *b = t->have + start + (size_t)k * each;
            if (is_nan(t->host[i], a) && is_nan(t->host[i], b)) {
                memcpy(b, a, each);
            }
            PLACE_CHECK(memcmp(a, b, each) == 0, "%s: tensor %d, element %lld of %lld differs",
                        what, i, (long long)k, (long long)SIZES[i]);
        }
    }
    PLACE_CHECK(memcmp(t->block, t->have, t->bytes) == 0, "%s: a byte outside the tensors", what);
}

static void twin_free(twin *t)
{
    free(t->block);
    free(t->have);
    cudaFree(t->memory);
}

static ls_tensor_list host_list(const twin *t)
{
    return (ls_tensor_list){TENSORS, t->host};
}

static ls_tensor_list device_list(const twin *t)
{
    return (ls_tensor_list){TENSORS, t->device};
}

static const ls_dtype F32S[] = {LS_F32, LS_F32, LS_F32}, F16S[] = {LS_F16, LS_F16, LS_F16};
static const ls_dtype BF16S[] = {LS_BF16, LS_BF16, LS_BF16}, MIXED[] = {LS_F16, LS_F32, LS_BF16};
static const ls_dtype *const KINDS[] = {F32S, F16S, BF16S, MIXED};

/* ---- one tensor ------------------------------------------------------------------------------ */

LOOP_TEST(convert_scale_accumulate, 4)
{
    static const float factors[] = {1.0f, 1.0f / 3.0f, 65536.0f};
    for (int k = 0; k < 4; k++) {
        twin to = twin_make(KINDS[_i], (unsigned)k, 4), from = twin_make(KINDS[k], 9, 60000);
        twin sum = twin_make(F32S, (unsigned)_i, 1);
        put_value(from.host[0], 3, NAN);
        put_value(from.host[8], 8192, -INFINITY);
        twin_upload(&to);
        twin_upload(&from);
        twin_upload(&sum);
        for (int i = 0; i < TENSORS; i++) {
            float factor = factors[i % 3];
            cpu->convert(cpu_backend, NULL, to.host[i], from.host[i], factor);
            ck_assert_int_eq(ls_multi_convert(&gpu, &stream, to.device[i], from.device[i], factor),
                             LS_OK);
            cpu->accumulate(cpu_backend, NULL, sum.host[i], from.host[i], i % 4 == 0);
            ck_assert_int_eq(
                ls_multi_accumulate(&gpu, &stream, sum.device[i], from.device[i], i % 4 == 0),
                LS_OK);
            cpu->scale(cpu_backend, NULL, from.host[i], factor);
            ck_assert_int_eq(ls_multi_scale(&gpu, &stream, from.device[i], factor), LS_OK);
        }
        twin_check("converted", &to);
        twin_check("accumulated", &sum);
        twin_check("scaled", &from);
        twin_free(&to);
        twin_free(&from);
        twin_free(&sum);
    }
}

/* ---- unscale --------------------------------------------------------------------------------- */

static void check_unscale(const twin *to, const twin *from)
{
    ls_step_state state = {.loss_scale = 1024,
                           .inv_loss_scale = 1.0f / 1023,
                           .first_bad_grad = 5,
                           .overflow = 7,
                           .growth_count = 3};
    const ls_tensor_list none = {0, NULL};
    put_state(&state);
    twin_upload(from);
    if (to != NULL) {
        twin_upload(to);
    }
    cpu->unscale_check(cpu_backend, NULL, to == NULL ? none : host_list(to), host_list(from),
                       &state);
    ck_assert_int_eq(ls_multi_unscale_check(&gpu, &stream, to == NULL ? none : device_list(to),
                                            device_list(from), device_state),
                     LS_OK);
    check_state(&state);
    twin_check("from", from);
    if (to != NULL && to != from) {
        twin_check("to", to);
    }
}

LOOP_TEST(unscale, 4)
{
    for (int k = 0; k < 4; k++) {
        twin to = twin_make(KINDS[k], (unsigned)(k + 2), 1);
        twin from = twin_make(KINDS[_i], (unsigned)k, 1000);
        check_unscale(&to, &from);
        check_unscale(NULL, &from);
        check_unscale(&from, &from);
        twin_free(&to);
        twin_free(&from);
    }
}

/* It is found wherever it is, and the lowest tensor is named. */
LOOP_TEST(unscale_sees_what_is_not_finite, 4)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    twin to = twin_make(F32S, 1, 1);
    for (int n = 0; n < 3 * TENSORS; n++) {
        twin from = twin_make(KINDS[_i], (unsigned)n, 1);
        int i = n % TENSORS, other = (n + 4) % TENSORS;
        if (SIZES[i] > 0) {
            put_value(from.host[i], n < TENSORS ? SIZES[i] - 1 : n * 77 % SIZES[i], bad[n % 3]);
        }
        if (n % 2 == 0 && SIZES[other] > 0) {
            put_value(from.host[other], 0, bad[n / 2 % 3]);
        }
        check_unscale(n % 3 == 0 ? NULL : n % 3 == 1 ? &to : &from, &from);
        twin_free(&from);
    }
    twin_free(&to);
}

/* A finite gradient that overflows a half after unscaling counts as an overflow. */
TEST(unscale_into_half_overflows)
{
    twin to = twin_make(F16S, 1, 1), from = twin_make(F32S, 2, 1);
    put_value(from.host[10], 512, 3e38f);
    check_unscale(&to, &from);
    check_unscale(NULL, &from);
    twin_free(&to);
    twin_free(&from);
}

/* ---- optimizers ------------------------------------------------------------------------------ */

#define BETAS .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8
static const ls_optimizer_config CONFIGS[] = {
    {.kind = LS_OPTIMIZER_SGD},
    {.kind = LS_OPTIMIZER_SGD, .momentum = 0.9, .weight_decay = 1e-4},
    {.kind = LS_OPTIMIZER_SGD, .momentum = 0.9, .nesterov = true},
    {.kind = LS_OPTIMIZER_ADAM, BETAS, .weight_decay = 0.01},
    {.kind = LS_OPTIMIZER_ADAM, BETAS, .uncorrected = true},
    {.kind = LS_OPTIMIZER_ADAMW, BETAS, .weight_decay = 0.1},
    {.kind = LS_OPTIMIZER_LARS,
     .momentum = 0.9,
     .weight_decay = 1e-4,
     .trust = 0.02,
     .epsilon = 1e-8},
    {.kind = LS_OPTIMIZER_LARS, .weight_decay = 0.1, .trust = 0.02, .clip = true},
    {.kind = LS_OPTIMIZER_LAMB, BETAS, .weight_decay = 0.01, .max_grad_norm = 1},
    {.kind = LS_OPTIMIZER_LAMB, BETAS, .weight_decay = 0.01, .l2 = true, .nvlamb = true},
/* every optimizer, with all constants */
#define LS_OPTIMIZER(KIND, ...)   \
    {.kind = LS_OPTIMIZER_##KIND, \
     BETAS,                       \
     .momentum = 0.9,             \
     .weight_decay = 0.01,        \
     .max_grad_norm = 1,          \
     .trust = 0.02},
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
};
enum { CONFIG_COUNT = sizeof CONFIGS / sizeof CONFIGS[0] };

typedef struct optimizer {
    twin value, grad, moment1, moment2, copy;
    ls_optimizer_args host, device;
    ls_step_state state;
} optimizer;

/* values: types of the parameters; copies: of their copies, NULL for none. */
static void optimizer_make(optimizer *o, const ls_optimizer_config *config, const ls_dtype *values,
                           const ls_dtype *copies)
{
    int moments = ls_optimizers_moments_used(config);
    *o = (optimizer){.value = twin_make(values, 1, 1),
                     .grad = twin_make(F32S, 2, 1),
                     .moment1 = twin_make(F32S, 3, 0),
                     .moment2 = twin_make(F32S, 4, 0),
                     .copy = twin_make(copies == NULL ? F32S : copies, 5, 1)};
    o->host = (ls_optimizer_args){.value = host_list(&o->value), .grad = host_list(&o->grad)};
    o->device = (ls_optimizer_args){.value = device_list(&o->value), .grad = device_list(&o->grad)};
    if (moments > 0) {
        o->host.moment1 = host_list(&o->moment1);
        o->device.moment1 = device_list(&o->moment1);
    }
    if (moments > 1) {
        o->host.moment2 = host_list(&o->moment2);
        o->device.moment2 = device_list(&o->moment2);
    }
    if (copies != NULL) { /* batch norm's "copy" is the parameter itself */
        o->copy.host[6] = o->value.host[6];
        o->copy.device[6] = o->value.device[6];
        o->host.copy = host_list(&o->copy);
        o->device.copy = device_list(&o->copy);
    }
    o->state = (ls_step_state){.loss_scale = 1,
                               .inv_loss_scale = 1,
                               .lr = 0.1f,
                               .first_bad_grad = -1,
                               .first_bad_state = 9};
    twin_upload(&o->value);
    twin_upload(&o->moment1);
    twin_upload(&o->moment2);
    twin_upload(&o->copy);
    put_state(&o->state);
}

static void optimizer_step(optimizer *o, const ls_optimizer_config *config, bool dynamic)
{
    twin_upload(&o->grad);
    put_state(&o->state);
    cpu->optimizer_step(cpu_backend, NULL, config, &o->host, dynamic, &o->state);
    ck_assert_int_eq(
        ls_multi_optimizer_step(&gpu, &stream, config, &o->device, dynamic, device_state), LS_OK);
    check_state(&o->state);
    twin_check("value", &o->value);
    twin_check("gradient", &o->grad);
    twin_check("first moment", &o->moment1);
    twin_check("second moment", &o->moment2);
    /* the entry that is the value itself is not in this block */
    ls_tensor mine = o->copy.host[6];
    o->copy.host[6] = (ls_tensor){o->copy.block, LS_F32, 0};
    bool is_value = mine.data == o->value.host[6].data;
    if (!is_value) {
        o->copy.host[6] = mine;
    }
    ck_assert_int_eq(
        cudaMemcpy(o->copy.have, o->copy.memory, o->copy.bytes, cudaMemcpyDeviceToHost),
        cudaSuccess);
    if (is_value) {
        ck_assert_int_eq(memcmp(o->copy.have, o->copy.block, o->copy.bytes), 0);
    } else {
        twin_check("copy", &o->copy);
    }
    o->copy.host[6] = mine;
}

static void optimizer_free(optimizer *o)
{
    twin_free(&o->value);
    twin_free(&o->grad);
    twin_free(&o->moment1);
    twin_free(&o->moment2);
    twin_free(&o->copy);
}

LOOP_TEST(optimizers, CONFIG_COUNT)
{
    const ls_optimizer_config *config = &CONFIGS[_i];
    for (int form = 0; form < 4; form++) { /* f32; masters with fp16, bf16 copies; half */
        optimizer o;
        optimizer_make(&o, config, form == 3 ? MIXED : F32S,
                       form == 0   ? NULL
                       : form == 1 ? F16S
                       : form == 2 ? MIXED
                                   : NULL);
        for (int step = 0; step < 4; step++) {
            o.state.overflow = step == 1;
            optimizer_step(&o, config, true);
            ck_assert_int_eq(o.state.skipped, step == 1);
            ck_assert_int_eq(o.state.step_count, step == 0 ? 1 : step);
        }
        optimizer_free(&o);
    }
}

/* A static scale takes the step despite non-finite values, and the state names the tensor. */
LOOP_TEST(optimizers_report_what_is_not_finite, CONFIG_COUNT)
{
    const ls_optimizer_config *config = &CONFIGS[_i];
    optimizer o;
    optimizer_make(&o, config, F32S, F16S);
    put_value(o.grad.host[8], 8192, INFINITY);
    put_value(o.grad.host[13], 20000, NAN);
    o.state.overflow = 1;
    optimizer_step(&o, config, false);
    ck_assert_int_eq(o.state.skipped, 0);
    ck_assert_int_ge(o.state.first_bad_state, 0);
    optimizer_free(&o);
    /* a finite master whose half copy overflows */
    optimizer_make(&o, config, F32S, F16S);
    put_value(o.value.host[9], 511, 1e5f); /* LARS and LAMB take a tenth at most */
    twin_upload(&o.value);
    optimizer_step(&o, config, true);
    ck_assert_int_eq(o.state.first_bad_state, 9);
    optimizer_free(&o);
}

/* Clipped gradients and their norm have the CPU's bits; after an overflow they stay as they are. */
TEST(clips)
{
    static const ls_clip_config configs[] = {
        {.max_norm = 0.5}, {.max_norm = 1e9}, {.max_value = 0.25}, {0}};
    for (int n = 0; n < 8; n++) {
        optimizer o;
        optimizer_make(&o, &CONFIGS[0], F32S, NULL);
        o.state.overflow = n / 4;
        o.state.loss_scale = 64; /* of no influence */
        twin_upload(&o.grad);
        put_state(&o.state);
        ck_assert_int_eq(cpu->clip(cpu_backend, NULL, &configs[n % 4], o.host.grad, true, &o.state),
                         LS_OK);
        ck_assert_int_eq(
            ls_multi_clip(&gpu, &stream, &configs[n % 4], o.device.grad, true, device_state),
            LS_OK);
        check_state(&o.state);
        ck_assert(n / 4 == 1 ? isnan(o.state.grad_norm) : o.state.grad_norm > 0.5f);
        twin_check("gradient", &o.grad);
        optimizer_free(&o);
    }
}

/* ---- loss scale, graphs ---------------------------------------------------------------------- */

LOOP_TEST(scaler, 3)
{
    static const ls_scaler_config configs[] = {
        {true, 2.0f, 0.5f, 2, 0.0f, 16777216.0f},
        {true, 2.0f, 0.25f, 1, 8.0f, INFINITY},
        {false, 2.0f, 0.5f, 2, 0.0f, 16777216.0f},
    };
    ls_step_state state = {.loss_scale = 65536, .inv_loss_scale = 1.0f / 65536};
    for (int n = 0; n < 60; n++) {
        state.overflow = n % 7 == 3 || (n > 25 && n < 40);
        put_state(&state);
        cpu->scaler_update(cpu_backend, NULL, &configs[_i], &state);
        ck_assert_int_eq(ls_multi_scaler_update(&gpu, &stream, &configs[_i], device_state), LS_OK);
        check_state(&state);
    }
}

static ls_status enqueue_step(optimizer *o, const ls_optimizer_config *config,
                              const ls_tensor_list *grad)
{
    LS_TRY(ls_multi_unscale_check(&gpu, &stream, *grad, *grad, device_state));
    return ls_multi_optimizer_step(&gpu, &stream, config, &o->device, true, device_state);
}

/* A new list cannot be used while a graph is recorded; one that was used before can, and each
 * launch equals a call. */
LOOP_TEST(lists_in_graphs, CONFIG_COUNT)
{
    const ls_optimizer_config *config = &CONFIGS[_i];
    optimizer o;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    optimizer_make(&o, config, F32S, F16S);
    ls_tensor_list grad = o.device.grad;
    twin_upload(&o.grad);
    o.state.inv_loss_scale = 1.0f / 3;
    put_state(&o.state);
    ck_assert_int_eq(cudaStreamBeginCapture(stream.native, cudaStreamCaptureModeThreadLocal),
                     cudaSuccess);
    ck_assert_int_eq(enqueue_step(&o, config, &grad), LS_ERR_USAGE);
    ck_assert_int_eq(cudaStreamEndCapture(stream.native, &graph), cudaSuccess);
    cudaGraphDestroy(graph);
    ck_assert_int_eq(enqueue_step(&o, config, &grad), LS_OK);
    ck_assert_int_eq(cudaStreamSynchronize(stream.native), cudaSuccess);
    ck_assert_int_eq(cudaStreamBeginCapture(stream.native, cudaStreamCaptureModeThreadLocal),
                     cudaSuccess);
    ck_assert_int_eq(enqueue_step(&o, config, &grad), LS_OK);
    ck_assert_int_eq(cudaStreamEndCapture(stream.native, &graph), cudaSuccess);
    ck_assert_int_eq(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int launch = 0; launch < 2; launch++) {
        ck_assert_int_eq(cudaGraphLaunch(exec, stream.native), cudaSuccess);
    }
    for (int step = 0; step < 3; step++) {
        cpu->unscale_check(cpu_backend, NULL, o.host.grad, o.host.grad, &o.state);
        cpu->optimizer_step(cpu_backend, NULL, config, &o.host, true, &o.state);
    }
    check_state(&o.state);
    twin_check("value", &o.value);
    twin_check("gradient", &o.grad);
    twin_check("first moment", &o.moment1);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    optimizer_free(&o);
}

/* Another order of blocks must not change the named tensor or any sum. */
TEST(order_of_blocks_is_nothing)
{
    setenv("LS_EMULATED_ORDER", "backward", 1);
    for (int k = 0; k < CONFIG_COUNT; k++) {
        optimizer o;
        optimizer_make(&o, &CONFIGS[k], F32S, F16S);
        put_value(o.grad.host[11], 5, 1e30f);
        optimizer_step(&o, &CONFIGS[k], true);
        optimizer_free(&o);
    }
    twin from = twin_make(F16S, 3, 1);
    put_value(from.host[4], 1, NAN);
    put_value(from.host[13], 33000, NAN);
    check_unscale(NULL, &from);
    twin_free(&from);
}

TEST_MAIN("cuda_multi", .timeout_s = 60, .before = set_up, .after = tear_down)
