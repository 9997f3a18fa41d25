/* Zeroed device memory and pinned host memory. A few large blocks are allocated at start; nothing
 * here is called within a step. */
#include "backend.h"

#include "kernels/core/log.h"

static ls_status refused(cudaError_t error, int64_t bytes, const char *purpose, const char *where)
{
    size_t free_bytes = 0, total = 0;
    (void)cudaGetLastError(); /* reported here; must not surface at the next call */
    if (error == cudaErrorMemoryAllocation && cudaMemGetInfo(&free_bytes, &total) == cudaSuccess) {
        return ls_log_fail(LS_ERR_INFRA,
                           "no %s memory for %s: %.1f MB wanted, %.1f of %.1f MB free", where,
                           purpose, (double)bytes / 1048576, (double)free_bytes / 1048576,
                           (double)total / 1048576);
    }
    ls_log_error("no %s memory for %s: %lld bytes: %s", where, purpose, (long long)bytes,
                 cudaGetErrorString(error));
    return ls_cuda_check(error, "allocate", __FILE__, __LINE__);
}

ls_status ls_cuda_take(int64_t bytes, const char *purpose, void **out)
{
    void *memory = NULL;
    if (bytes < 0) {
        return ls_log_fail(LS_ERR_INFRA, "no device memory for %s: %lld bytes: negative", purpose,
                           (long long)bytes);
    }
    cudaError_t error = cudaMalloc(&memory, bytes > 0 ? (size_t)bytes : 1);
    if (error != cudaSuccess) {
        return refused(error, bytes, purpose, "device");
    }
    /* our streams do not wait for the default one, so the host waits until the memory is zero */
    error = cudaMemsetAsync(memory, 0, bytes > 0 ? (size_t)bytes : 1, NULL);
    if (error == cudaSuccess) {
        error = cudaStreamSynchronize(NULL);
    }
    if (error != cudaSuccess) {
        (void)cudaFree(memory);
        return ls_cuda_check(error, "clear fresh memory", __FILE__, __LINE__);
    }
    *out = memory;
    return LS_OK;
}

void ls_cuda_give(void *memory)
{
    if (memory != NULL) {
        (void)cudaFree(memory);
    }
}

ls_status ls_cuda_take_host(int64_t bytes, const char *purpose, void **out)
{
    void *memory = NULL;
    cudaError_t error = cudaHostAlloc(&memory, bytes > 0 ? (size_t)bytes : 1, cudaHostAllocDefault);
    if (error != cudaSuccess) {
        return refused(error, bytes, purpose, "pinned host");
    }
    *out = memory;
    return LS_OK;
}

void ls_cuda_give_host(void *memory)
{
    if (memory != NULL) {
        (void)cudaFreeHost(memory);
    }
}
