/* Zeroed device memory and pinned host memory. A few large blocks are allocated at start; nothing
 * here is called within a step. */
#include "backend.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/half.h"
#include "kernels/core/log.h"

enum { PATTERN = 1 << 16 };

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

/* The first part from the host; each copy on the device doubles what there is. */
static ls_status spread(cudaStream_t stream, char *memory, size_t bytes, const char *part,
                        size_t part_bytes)
{
    size_t done = bytes < part_bytes ? bytes : part_bytes;
    LS_CUDA(cudaMemcpyAsync(memory, part, done, cudaMemcpyHostToDevice, stream));
    while (done < bytes) {
        size_t next = done < bytes - done ? done : bytes - done;
        LS_CUDA(cudaMemcpyAsync(memory + done, memory, next, cudaMemcpyDeviceToDevice, stream));
        done += next;
    }
    LS_CUDA(cudaStreamSynchronize(stream));
    return LS_OK;
}

ls_status ls_cuda_fill_pattern(cudaStream_t stream, void *memory, ls_dtype type, int64_t count)
{
    size_t element = ls_dtype_bytes(type);
    char *part = malloc(PATTERN * element);
    LS_TRY_MEMORY(part != NULL, "a pattern of %d elements", (int)PATTERN);
    for (uint32_t i = 0; i < PATTERN; i++) {
        float value = (float)((i * 2654435761u >> 8) & 0xffff) * 0x1p-16f - 0.5f;
        uint16_t half = type == LS_F16 ? ls_half_f32_to_fp16(value) : ls_half_f32_to_bf16(value);
        memcpy(part + i * element, type == LS_F32 ? (void *)&value : (void *)&half, element);
    }
    ls_status status = spread(stream, memory, (size_t)count * element, part, PATTERN * element);
    free(part);
    return status;
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
