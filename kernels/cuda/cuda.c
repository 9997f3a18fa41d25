/* The CUDA backend's table: device, streams, events, graphs and memory. Computations are in the
 * other files. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

/* A header-only library that looks for a profiler at its first call and does nothing without one.
 */
#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define LS_NVTX_THERE
#endif
#endif

#include "kernels/core/log.h"
#include "backend.h"
#include "kernels/cuda/plan/plan_internal.h"

/* ---- the device ------------------------------------------------------------------------------ */

/* Of one product: this, or a part of the GPU's memory where that is more. cuDNN's fast engines of
 * f32 keep copies of x and y there in a layout of their own: 1.2 GB in ResNet-50 at batch 256,
 * where the engine without one takes 50 times as long. */
enum { WORKSPACE_LIMIT_MB = 1024, WORKSPACE_PART = 32 };

static const char *visible(void)
{
    const char *set = getenv("CUDA_VISIBLE_DEVICES");
    return set != NULL ? set : "not set";
}

static ls_status find_device(const ls_backend_options *options, int *device)
{
    int count = 0, driver = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
        return ls_log_fail(
            LS_ERR_INFRA, "--device cuda: no NVIDIA GPU is visible here (CUDA_VISIBLE_DEVICES: %s)",
            visible());
    }
    if (error == cudaErrorInsufficientDriver) {
        (void)cudaDriverGetVersion(&driver);
        if (driver == 0) {
            ls_log_error("--device cuda: no NVIDIA driver is loaded, this program needs one for "
                         "CUDA %d.%d",
                         CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
        } else {
            ls_log_error("--device cuda: the driver is for CUDA %d.%d, this program needs %d.%d",
                         driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                         CUDART_VERSION % 1000 / 10);
        }
        return LS_ERR_INFRA;
    }
    if (error != cudaSuccess) {
        return ls_log_fail(LS_ERR_INFRA, "--device cuda: %s (%s)", cudaGetErrorString(error),
                           cudaGetErrorName(error));
    }
    *device = options->oversubscribe ? options->device_index % count : options->device_index;
    if (*device < 0 || *device >= count) {
        return ls_log_fail(LS_ERR_INFRA,
                           "--device cuda: no GPU number %d for local rank %d: %d visible "
                           "(CUDA_VISIBLE_DEVICES: %s; LS_OVERSUBSCRIBE=1 lets ranks share)",
                           options->device_index, options->local_rank, count, visible());
    }
    return LS_OK;
}

static void write_uuid(const cudaUUID_t *uuid, char *text, size_t bytes)
{
    const unsigned char *b = (const unsigned char *)uuid->bytes;
    snprintf(text, bytes,
             "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
}

static ls_status read_properties(ls_backend *backend)
{
    struct cudaDeviceProp properties;
    char uuid[48], pci[32];
    LS_CUDA(cudaGetDeviceProperties(&properties, backend->device));
    backend->major = properties.major;
    backend->minor = properties.minor;
    backend->processors = properties.multiProcessorCount;
    int64_t part = (int64_t)(properties.totalGlobalMem / WORKSPACE_PART);
    int64_t least = (int64_t)WORKSPACE_LIMIT_MB << 20;
    backend->workspace_limit = part > least ? part : least;
    write_uuid(&properties.uuid, uuid, sizeof uuid);
    snprintf(backend->name, sizeof backend->name, "%.44s (%s)", properties.name, uuid);
    if (properties.major < 8) {
        return ls_log_fail(
            LS_ERR_INFRA,
            "--device cuda: %s has compute capability %d.%d; 8.0 (A100) or newer is needed",
            backend->name, properties.major, properties.minor);
    }
    LS_CUDA(cudaDeviceGetPCIBusId(pci, sizeof pci, backend->device));
    ls_numa_bind(pci, backend->numa, sizeof backend->numa);
    return LS_OK;
}

static void cuda_close(ls_backend *backend)
{
    if (backend == NULL) {
        return;
    }
    ls_multi_tables_destroy(backend->tables);
    ls_conv_plans_destroy(backend->plans);
    if (backend->copy != NULL) {
        (void)cudaStreamDestroy(backend->copy);
    }
    if (backend->blas != NULL) {
        (void)cublasLtDestroy(backend->blas);
    }
    if (backend->dnn != NULL) {
        (void)cudnnDestroy(backend->dnn);
    }
    free(backend);
}

static ls_status start_libraries(ls_backend *backend)
{
    LS_CUDA(cudaSetDevice(backend->device));
    LS_TRY(read_properties(backend));
    LS_CUDA(cudaStreamCreateWithFlags(&backend->copy, cudaStreamNonBlocking));
    LS_CUDNN(cudnnCreate(&backend->dnn));
    LS_CUBLAS(cublasLtCreate(&backend->blas));
    return LS_OK;
}

static ls_status cuda_open(const ls_backend_options *options, ls_backend **out)
{
    int device = 0;
    LS_TRY(find_device(options, &device));
    ls_backend *backend = calloc(1, sizeof *backend);
    LS_TRY_MEMORY(backend != NULL, "the CUDA backend");
    backend->device = device;
    backend->deterministic = options->deterministic;
    backend->tf32 = options->tf32;
    backend->tables = ls_multi_tables_create();
    ls_status status = backend->tables != NULL ? LS_OK : LS_ERR_INFRA;
    LS_TRY_GOTO(status, status, close_backend);
    LS_TRY_GOTO(status, start_libraries(backend), close_backend);
    *out = backend;
    return LS_OK;
close_backend:
    cuda_close(backend);
    return status;
}

/* The path of the library that a function was loaded from. */
static const char *file_of(const void *function)
{
    Dl_info info;
    return dladdr(function, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "?";
}

/* ISO C has no cast from a function's address to void *. */
#define FILE_OF(function) file_of((const void *)(uintptr_t)(function))

static void cuda_describe(ls_backend *backend, ls_backend_info *out)
{
    *out = (ls_backend_info){.threads = 1};
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    size_t dnn = cudnnGetVersion(), blas = cublasLtGetVersion();
    snprintf(out->device, sizeof out->device, "%s", backend->name);
    snprintf(out->libraries, sizeof out->libraries,
             "driver for CUDA %d.%d; CUDA %d.%d (%s); cuDNN %zu.%zu.%zu (%s); cuBLASLt %zu.%zu.%zu "
             "(%s); %s",
             driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
             FILE_OF(cudaRuntimeGetVersion), dnn / 10000, dnn / 100 % 100, dnn % 100,
             FILE_OF(cudnnGetVersion), blas / 10000, blas / 100 % 100, blas % 100,
             FILE_OF(cublasLtGetVersion), backend->numa);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static ls_status cuda_memory_alloc(ls_backend *backend, int64_t bytes, const char *purpose,
                                   void **out)
{
    LS_CUDA(cudaSetDevice(backend->device)); /* applies to the calling host thread */
    return ls_cuda_take(bytes, purpose, out);
}

static void cuda_memory_free(ls_backend *backend, void *memory)
{
    (void)backend;
    ls_cuda_give(memory);
}

static ls_status cuda_host_alloc(ls_backend *backend, int64_t bytes, const char *purpose,
                                 void **out)
{
    LS_CUDA(cudaSetDevice(backend->device));
    return ls_cuda_take_host(bytes, purpose, out);
}

static void cuda_host_free(ls_backend *backend, void *memory)
{
    (void)backend;
    ls_cuda_give_host(memory);
}

/* A copy from or to memory that is not pinned makes the host wait for all earlier work on the
 * stream (except a small one to the device, which is staged at once). Inside the driver that wait
 * would not call the wait hook, so the host waits for the stream first, with the hook. */
static ls_status wait_where_driver_would(ls_backend *backend, ls_stream *stream, const void *host,
                                         int64_t staged_bytes, int64_t bytes)
{
    struct cudaPointerAttributes what;
    if (backend->on_wait == NULL || bytes <= staged_bytes) {
        return LS_OK;
    }
    LS_CUDA(cudaPointerGetAttributes(&what, host));
    return what.type == cudaMemoryTypeUnregistered ? ls_cuda_wait_stream(backend, stream->native)
                                                   : LS_OK;
}

static ls_status cuda_copy_in(ls_backend *backend, ls_stream *stream, void *to, const void *host,
                              int64_t bytes)
{
    enum { STAGED_BYTES = 64 << 10 }; /* CUDA runtime, "API synchronization behavior" */
    LS_TRY(wait_where_driver_would(backend, stream, host, STAGED_BYTES, bytes));
    LS_CUDA(cudaMemcpyAsync(to, host, (size_t)bytes, cudaMemcpyHostToDevice, stream->native));
    return LS_OK;
}

static ls_status cuda_copy_out(ls_backend *backend, ls_stream *stream, void *host, const void *from,
                               int64_t bytes)
{
    LS_TRY(wait_where_driver_would(backend, stream, host, 0, bytes));
    LS_CUDA(cudaMemcpyAsync(host, from, (size_t)bytes, cudaMemcpyDeviceToHost, stream->native));
    return LS_OK;
}

/* ---- streams and events ---------------------------------------------------------------------- */

static ls_status cuda_stream_create(ls_backend *backend, ls_stream **out)
{
    ls_stream *stream = calloc(1, sizeof *stream);
    LS_TRY_MEMORY(stream != NULL, "a stream");
    stream->backend = backend;
    ls_status status =
        ls_cuda_check(cudaStreamCreateWithFlags(&stream->native, cudaStreamNonBlocking),
                      "cudaStreamCreate", __FILE__, __LINE__);
    if (status != LS_OK) {
        free(stream);
        return status;
    }
    *out = stream;
    return LS_OK;
}

static void cuda_stream_destroy(ls_stream *stream)
{
    if (stream != NULL) {
        (void)cudaStreamDestroy(stream->native);
        free(stream);
    }
}

static ls_status cuda_stream_wait(ls_stream *stream)
{
    return ls_cuda_wait_stream(stream->backend, stream->native);
}

static ls_status cuda_event_create(ls_backend *backend, ls_event **out)
{
    ls_event *event = calloc(1, sizeof *event);
    LS_TRY_MEMORY(event != NULL, "an event");
    event->backend = backend;
    ls_status status = ls_cuda_check(cudaEventCreateWithFlags(&event->native, cudaEventDefault),
                                     "cudaEventCreate", __FILE__, __LINE__);
    if (status != LS_OK) {
        free(event);
        return status;
    }
    *out = event;
    return LS_OK;
}

static void cuda_event_destroy(ls_event *event)
{
    if (event != NULL) {
        (void)cudaEventDestroy(event->native);
        free(event);
    }
}

static ls_status cuda_event_record(ls_event *event, ls_stream *stream)
{
    LS_CUDA(cudaEventRecord(event->native, stream->native));
    return LS_OK;
}

static ls_status cuda_event_wait(ls_event *event)
{
    return ls_cuda_wait_event(event->backend, event->native);
}

static ls_status cuda_stream_after(ls_stream *stream, ls_event *event)
{
    LS_CUDA(cudaStreamWaitEvent(stream->native, event->native, 0));
    return LS_OK;
}

static ls_status cuda_event_ms(ls_event *from, ls_event *to, double *ms)
{
    float elapsed = 0;
    LS_CUDA(cudaEventElapsedTime(&elapsed, from->native, to->native));
    *ms = (double)elapsed;
    return LS_OK;
}

static void *cuda_stream_native(ls_stream *stream)
{
    return stream->native;
}

static void *cuda_event_native(ls_event *event)
{
    return event->native;
}

static void set_wait_hook(ls_backend *backend, ls_status (*on_wait)(void *context, double waited_s),
                          void *context)
{
    backend->on_wait = on_wait;
    backend->on_wait_context = context;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

/* For this thread only: another one may copy batches meanwhile. */
static ls_status cuda_graph_begin(ls_stream *stream)
{
    LS_CUDA(cudaStreamBeginCapture(stream->native, cudaStreamCaptureModeThreadLocal));
    return LS_OK;
}

/* Each node keeps the priority of the stream that it was recorded on; otherwise all would have the
 * priority of the launching stream, and reductions would lose theirs. */
static ls_status instantiate(ls_graph *graph, cudaGraph_t recorded, cudaStream_t stream)
{
    LS_CUDA(
        cudaGraphInstantiate(&graph->native, recorded, cudaGraphInstantiateFlagUseNodePriority));
    LS_CUDA(cudaGraphUpload(graph->native, stream));
    return LS_OK;
}

static void cuda_graph_destroy(ls_graph *graph)
{
    if (graph != NULL) {
        if (graph->native != NULL) {
            (void)cudaGraphExecDestroy(graph->native);
        }
        free(graph);
    }
}

/* Ends the recording in any state, for all streams that took part ("Creating a Graph Using Stream
 * Capture", invalidation, in CUDA's programming guide). */
static ls_status end_capture(ls_stream *stream, cudaGraph_t *recorded)
{
    cudaError_t ended = cudaStreamEndCapture(stream->native, recorded);
    (void)cudaGetLastError(); /* already reported; must not surface at the next launch */
    return ls_cuda_check(ended, "cudaStreamEndCapture", __FILE__, __LINE__);
}

static ls_status cuda_graph_end(ls_stream *stream, ls_graph **out)
{
    cudaGraph_t recorded = NULL;
    LS_TRY(end_capture(stream, &recorded));
    ls_graph *graph = calloc(1, sizeof *graph);
    ls_status status = graph != NULL ? instantiate(graph, recorded, stream->native)
                                     : ls_log_fail(LS_ERR_INFRA, "no memory for a graph");
    (void)cudaGraphDestroy(recorded);
    if (status != LS_OK) {
        (void)cudaGetLastError();
        cuda_graph_destroy(graph);
        return status;
    }
    *out = graph;
    return LS_OK;
}

static ls_status cuda_graph_launch(ls_graph *graph, ls_stream *stream)
{
    LS_CUDA(cudaGraphLaunch(graph->native, stream->native));
    return LS_OK;
}

/* ---- ranges on a profiler's timeline ----------------------------------------------------------
 */

static void range_push(ls_backend *backend, const char *name)
{
    (void)backend;
#ifdef LS_NVTX_THERE
    (void)nvtxRangePushA(name);
#else
    (void)name;
#endif
}

static void range_pop(ls_backend *backend)
{
    (void)backend;
#ifdef LS_NVTX_THERE
    (void)nvtxRangePop();
#endif
}

/* ---- the table ------------------------------------------------------------------------------- */

static const ls_backend_api table = {
    .abi = LS_BACKEND_ABI,
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .supports = ls_plan_supports,
    .memory_alloc = cuda_memory_alloc,
    .memory_free = cuda_memory_free,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_wait = cuda_stream_wait,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_wait = cuda_event_wait,
    .stream_after = cuda_stream_after,
    LS_ENTRIES,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_destroy = cuda_graph_destroy,
    .event_ms = cuda_event_ms,
    .stream_native = cuda_stream_native,
    .event_native = cuda_event_native,
    .batch_slots = ls_batch_slots,
    .batch_load = ls_batch_load,
    .batch_loaded = ls_batch_loaded,
    .plan_forward_loaded = ls_plan_forward_loaded,
    .batch_wait = ls_batch_wait,
    .batch_release = ls_batch_release,
    .engines_export = ls_engines_export,
    .engines_import = ls_engines_import,
    .set_wait_hook = set_wait_hook,
    .range_push = range_push,
    .range_pop = range_pop,
};

const ls_backend_api *ls_backend_entry(void)
{
    return &table;
}
