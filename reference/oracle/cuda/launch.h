/* Kernels of the judge and their launches; nothing here is shared with the kernels under test.
 * Every .cu file of this folder includes this first, and uses only the parts of CUDA listed here:
 *
 *   LS_KERNEL name(...)     a kernel, static; may be a template
 *   LS_DEVICE type name()   a function of kernels
 *   LS_LAUNCH(kernel, grid, block, stream, ...)
 *                           in a function that returns ls_status
 *   LS_SHARED(type, name, count)
 *   threadIdx blockIdx blockDim gridDim, __syncthreads (reached by every thread of the block)
 *
 * With LS_CUDA_EMULATED the same files are compiled for the CPU, where tests run them. */
#ifndef LS_ORACLE_CUDA_LAUNCH_H
#define LS_ORACLE_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/log.h"
#include "kernels/core/status.h"

/* Logs a failed call of the runtime. A persistent error makes the device lost. */
static inline ls_status ls_launch_check(cudaError_t error, const char *call)
{
    if (error == cudaSuccess) {
        return LS_OK;
    }
    ls_log_error("judge on the device: %s: %s (%s)", call, cudaGetErrorString(error),
                 cudaGetErrorName(error));
    bool lost = error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure ||
                error == cudaErrorMisalignedAddress || error == cudaErrorECCUncorrectable;
    return lost ? LS_ERR_DEVICE_LOST : LS_ERR_INFRA;
}

#define LS_DEVICE_CALL(call) LS_TRY(ls_launch_check((call), #call))

#ifdef LS_CUDA_EMULATED

#include <emulated_launch.h>

#undef LS_LAUNCH
#define LS_LAUNCH(kernel, grid, block, stream, ...)                                                \
    LS_TRY(                                                                                        \
        ls_launch_check(emulate_start(#kernel, false, kernel, grid, block, stream, ##__VA_ARGS__), \
                        "launch " #kernel))

#else

#define LS_KERNEL static __global__ void
#define LS_DEVICE static __device__ inline
#define LS_SHARED(type, name, count) __shared__ type name[count]
#define LS_LAUNCH(kernel, grid, block, stream, ...)                     \
    do {                                                                \
        kernel<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__);          \
        LS_TRY(ls_launch_check(cudaGetLastError(), "launch " #kernel)); \
    } while (0)

#endif

/* Blocks of `threads` that cover `count` elements. */
static inline unsigned ls_launch_blocks(int64_t count, int threads)
{
    return (unsigned)((count + threads - 1) / threads);
}

#endif
