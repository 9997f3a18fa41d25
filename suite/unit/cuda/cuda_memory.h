/* Test helper: the part of a backend's table that an engine needs (memory, streams, events,
 * graphs), directly on the CUDA runtime, so that engines are tested without the backend's kernels.
 */
#ifndef LS_UNIT_CUDA_MEMORY_H
#define LS_UNIT_CUDA_MEMORY_H

#include <cuda_runtime_api.h>
#include <stdlib.h>

#include "kernels/kernels.h"

struct ls_backend {
    int device;
};

static inline ls_status cuda_memory_ok(cudaError_t error)
{
    return error == cudaSuccess ? LS_OK : LS_ERR_INFRA;
}

static ls_status cuda_memory_alloc(ls_backend *backend, int64_t bytes, const char *purpose,
                                   void **out)
{
    (void)backend;
    (void)purpose;
    LS_TRY(cuda_memory_ok(cudaMalloc(out, (size_t)bytes)));
    LS_TRY(cuda_memory_ok(cudaMemset(*out, 0, (size_t)bytes)));
    return cuda_memory_ok(cudaStreamSynchronize(NULL));
}

static void cuda_memory_free(ls_backend *backend, void *memory)
{
    (void)backend;
    (void)cudaFree(memory);
}

static ls_status cuda_memory_in(ls_backend *backend, ls_stream *stream, void *to, const void *host,
                                int64_t bytes)
{
    (void)backend;
    return cuda_memory_ok(cudaMemcpyAsync(to, host, (size_t)bytes, cudaMemcpyHostToDevice,
                                          (cudaStream_t)(void *)stream));
}

static ls_status cuda_memory_out(ls_backend *backend, ls_stream *stream, void *host,
                                 const void *from, int64_t bytes)
{
    (void)backend;
    return cuda_memory_ok(cudaMemcpyAsync(host, from, (size_t)bytes, cudaMemcpyDeviceToHost,
                                          (cudaStream_t)(void *)stream));
}

/* Streams and events of the runtime. */
static ls_status cuda_memory_stream(ls_backend *backend, ls_stream **out)
{
    cudaStream_t stream = NULL;
    (void)backend;
    LS_TRY(cuda_memory_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    *out = (ls_stream *)(void *)stream;
    return LS_OK;
}

static ls_status cuda_memory_stream_wait(ls_stream *stream)
{
    return cuda_memory_ok(cudaStreamSynchronize((cudaStream_t)(void *)stream));
}

static ls_status cuda_memory_event(ls_backend *backend, ls_event **out)
{
    cudaEvent_t event = NULL;
    (void)backend;
    LS_TRY(cuda_memory_ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)));
    *out = (ls_event *)(void *)event;
    return LS_OK;
}

static ls_status cuda_memory_record(ls_event *event, ls_stream *stream)
{
    return cuda_memory_ok(
        cudaEventRecord((cudaEvent_t)(void *)event, (cudaStream_t)(void *)stream));
}

static void *cuda_memory_stream_native(ls_stream *stream)
{
    return stream;
}

static void *cuda_memory_event_native(ls_event *event)
{
    return event;
}

static const ls_backend_api CUDA_MEMORY = {
    .abi = LS_BACKEND_ABI,
    .name = "cuda",
    .memory_alloc = cuda_memory_alloc,
    .memory_free = cuda_memory_free,
    .copy_in = cuda_memory_in,
    .copy_out = cuda_memory_out,
    .stream_create = cuda_memory_stream,
    .stream_wait = cuda_memory_stream_wait,
    .event_create = cuda_memory_event,
    .event_record = cuda_memory_record,
    .stream_native = cuda_memory_stream_native,
    .event_native = cuda_memory_event_native,
};

#endif
