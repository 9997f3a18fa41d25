#include <math.h>
#include <stdio.h>

#include "kernels/core/sort.h"
#include "kernels/core/log.h"
#include "kernels/passes.h"
#include "kernels/cuda/conv/conv.h"
#include "kernels/cuda/ops.h"

enum { REPEATS_MAX = 64 };

/* ---- timing ---------------------------------------------------------------------------------- */

typedef struct timer {
    ls_backend *backend;
    ls_stream *stream;
    cudaEvent_t from, to;
} timer;

typedef ls_status timed_fn(void *context);

static ls_status time_once(const timer *t, timed_fn *timed, void *context, double *ms)
{
    float elapsed = 0;
    LS_CUDA(cudaEventRecord(t->from, t->stream->native));
    LS_TRY(timed(context));
    LS_CUDA(cudaEventRecord(t->to, t->stream->native));
    LS_TRY(ls_cuda_wait_event(t->backend, t->to));
    LS_CUDA(cudaEventElapsedTime(&elapsed, t->from, t->to));
    *ms = elapsed;
    return LS_OK;
}

static ls_status median_ms(const timer *t, timed_fn *timed, void *context, int repeats, double *out)
{
    double ms[REPEATS_MAX], first = 0;
    LS_TRY(time_once(t, timed, context, &first));
    for (int i = 0; i < repeats; i++) {
        LS_TRY(time_once(t, timed, context, &ms[i]));
    }
    *out = ls_sort_median(ms, repeats);
    return LS_OK;
}

/* ---- copies ---------------------------------------------------------------------------------- */

typedef struct copying {
    const timer *timer;
    void *from, *to;
    int64_t bytes;
} copying;

static ls_status copy(void *context)
{
    const copying *c = context;
    return ls_simple_copy(c->timer->stream->native, c->to, c->from, c->bytes);
}

static ls_status measure_copy(const timer *t, const ls_cuda_rates_options *options,
                              double *bytes_per_s)
{
    copying c = {.timer = t, .bytes = options->copy_bytes / 16 * 16};
    double ms = 0;
    ls_status status = LS_OK;
    LS_TRY_GOTO(status, ls_cuda_take(c.bytes, "copies", &c.from), give);
    LS_TRY_GOTO(status, ls_cuda_take(c.bytes, "copies", &c.to), give);
    LS_TRY_GOTO(status, ls_cuda_fill_pattern(t->stream->native, c.from, LS_F32, c.bytes / 4), give);
    LS_TRY_GOTO(status, median_ms(t, copy, &c, options->repeats, &ms), give);
    *bytes_per_s = 2.0 * (double)c.bytes / (ms * 1e-3);
give:
    ls_cuda_give(c.from);
    ls_cuda_give(c.to);
    return status;
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct multiplying {
    const timer *timer;
    ls_linear *linear;
    void *x, *w, *y, *workspace;
} multiplying;

static ls_status multiply(void *context)
{
    const multiplying *m = context;
    return ls_linear_backward_data(m->linear, m->timer->stream, m->y, m->w, m->x, m->workspace);
}

static ls_status measure_products(const timer *t, const ls_cuda_rates_options *options,
                                  ls_dtype type, bool tf32, double *flop_per_s)
{
    int side = options->side;
    int64_t count = (int64_t)side * side, bytes = count * (int64_t)ls_dtype_bytes(type);
    multiplying m = {.timer = t};
    double ms = 0;
    ls_status status = LS_OK;
    t->backend->tf32 = tf32;
    LS_TRY_GOTO(status,
                ls_linear_create(t->backend, "a square product", side, side, side, type, &m.linear),
                give);
    LS_TRY_GOTO(status, ls_cuda_take(bytes, "a matrix", &m.x), give);
    LS_TRY_GOTO(status, ls_cuda_take(bytes, "a matrix", &m.w), give);
    LS_TRY_GOTO(status, ls_cuda_take(bytes, "a matrix", &m.y), give);
    int64_t workspace = ls_linear_workspace_bytes(m.linear);
    LS_TRY_GOTO(status, ls_cuda_take(workspace > 0 ? workspace : 256, "a workspace", &m.workspace),
                give);
    LS_TRY_GOTO(status, ls_cuda_fill_pattern(t->stream->native, m.x, type, count), give);
    LS_TRY_GOTO(status, ls_cuda_fill_pattern(t->stream->native, m.w, type, count), give);
    LS_TRY_GOTO(status, median_ms(t, multiply, &m, options->repeats, &ms), give);
    *flop_per_s = 2.0 * side * side * (double)side / (ms * 1e-3);
give:
    if (m.linear != NULL) {
        ls_linear_destroy(m.linear);
    }
    ls_cuda_give(m.x);
    ls_cuda_give(m.w);
    ls_cuda_give(m.y);
    ls_cuda_give(m.workspace);
    return status;
}

/* ---- what the device says -------------------------------------------------------------------- */

/* Operations of one multiprocessor per clock, 2 per multiply-add: dense f16 with f32 sums on tensor
 * cores, and plain f32 (NVIDIA's architecture white papers for A100, GA102, AD102, H100,
 * Blackwell). */
static void per_clock(int major, int minor, double *f16, double *f32)
{
    static const struct {
        int major, minor;
        double f16, f32;
    } known[] = {{8, 0, 2048, 128},
                 {8, 6, 512, 256},
                 {8, 9, 1024, 256},
                 {9, 0, 4096, 256},
                 {10, 0, 8192, 256}};
    *f16 = *f32 = NAN;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].major == major && known[i].minor == minor) {
            *f16 = known[i].f16;
            *f32 = known[i].f32;
        }
    }
}

static double attribute(const ls_backend *backend, enum cudaDeviceAttr which)
{
    int value = 0;
    cudaError_t error = cudaDeviceGetAttribute(&value, which, backend->device);
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* an unsupported attribute is not an error */
    }
    return error == cudaSuccess && value > 0 ? value : NAN;
}

static void describe(const ls_backend *backend, ls_cuda_rates_measured *out)
{
    double f16, f32;
    per_clock(backend->major, backend->minor, &f16, &f32);
    double clock_hz = 1e3 * attribute(backend, cudaDevAttrClockRate); /* the attribute is in kHz */
    double memory_hz = 1e3 * attribute(backend, cudaDevAttrMemoryClockRate);
    double bus_bytes = attribute(backend, cudaDevAttrGlobalMemoryBusWidth) / 8;
    out->memory_bytes_per_s = 2 * memory_hz * bus_bytes; /* double data rate */
    out->f16_device_flop_per_s = backend->processors * clock_hz * f16;
    out->f32_device_flop_per_s = backend->processors * clock_hz * f32;
    snprintf(out->device, sizeof out->device, "%s", backend->name);
    if (cudaDeviceGetPCIBusId(out->address, (int)sizeof out->address, backend->device) !=
        cudaSuccess) {
        (void)cudaGetLastError();
        out->address[0] = '\0';
    }
    for (char *c = out->address; *c != '\0'; c++) { /* sysfs uses lower case */
        *c = (char)(*c >= 'A' && *c <= 'F' ? *c - 'A' + 'a' : *c);
    }
}

static ls_status measure(const timer *t, const ls_cuda_rates_options *options,
                         ls_cuda_rates_measured *out)
{
    const struct {
        const char *name;
        ls_dtype type;
        bool tf32;
        double *out;
    } products[] = {{"f16", LS_F16, false, &out->f16_flop_per_s},
                    {"bf16", LS_BF16, false, &out->bf16_flop_per_s},
                    {"tf32", LS_F32, true, &out->tf32_flop_per_s},
                    {"f32", LS_F32, false, &out->f32_flop_per_s}};
    enum { PRODUCTS = sizeof products / sizeof *products };
    describe(t->backend, out);
    ls_status copies = measure_copy(t, options, &out->copy_bytes_per_s), failure = copies;
    int failed = copies != LS_OK;
    if (copies != LS_OK) {
        ls_log_warn("the rate of copies is unknown");
        out->copy_bytes_per_s = NAN;
    }
    for (int i = 0; i < PRODUCTS; i++) {
        ls_status status =
            measure_products(t, options, products[i].type, products[i].tf32, products[i].out);
        if (status != LS_OK) {
            ls_log_warn("the rate of %s products is unknown", products[i].name);
            *products[i].out = NAN;
            failure = status;
            failed++;
        }
    }
    return failed == PRODUCTS + 1 ? failure : LS_OK;
}

ls_status ls_cuda_rates(const ls_cuda_rates_options *options, ls_cuda_rates_measured *out)
{
    if (options->repeats < 1 || options->repeats > REPEATS_MAX || options->side < 1 ||
        options->copy_bytes < 16) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "rates of %d repeats (1 to %d), matrices of %d (1 or more), %lld bytes (16 or "
            "more)",
            options->repeats, (int)REPEATS_MAX, options->side, (long long)options->copy_bytes);
    }
    const ls_backend_api *api = ls_backend_entry();
    const ls_backend_options how = {
        .device_index = options->device, .local_ranks = 1, .oversubscribe = true};
    ls_cuda_rates_measured measured = {0};
    timer t = {0};
    ls_status status = LS_OK;
    LS_TRY(api->open(&how, &t.backend));
    LS_TRY_GOTO(status, api->stream_create(t.backend, &t.stream), close);
    LS_TRY_GOTO(status, ls_cuda_check(cudaEventCreate(&t.from), "an event", __FILE__, __LINE__),
                destroy);
    LS_TRY_GOTO(status, ls_cuda_check(cudaEventCreate(&t.to), "an event", __FILE__, __LINE__),
                destroy);
    status = measure(&t, options, &measured);
    if (status == LS_OK) {
        *out = measured;
    }
destroy:
    if (t.from != NULL) {
        cudaEventDestroy(t.from);
    }
    if (t.to != NULL) {
        cudaEventDestroy(t.to);
    }
    api->stream_destroy(t.stream);
close:
    api->close(t.backend);
    return status;
}
