/* Kernels and their launches. Every .cu file includes this first and uses only the parts of CUDA
 * listed here, because it is also compiled for the CPU, where tests run it without a GPU:
 *
 *   LS_KERNEL name(...)           a kernel, static; may be a template
 *   LS_DEVICE type name(...)      a function of kernels; LS_HOST_DEVICE: of both sides
 *   LS_LAUNCH(kernel, grid, block, stream, ...)
 *                                 in a function that returns ls_status; grid and block are numbers
 *                                 or dim3; name<a, b> goes in parentheses
 *   LS_LAUNCH_BEHIND(early, kernel, ...)
 *                                 the same directly behind another LS_LAUNCH on that stream; early:
 *                                 its blocks may start before the other's have ended (below)
 *   LS_SHARED(type, name, count); a shared array; one dimension, at most 48 KB in a block
 *   threadIdx blockIdx blockDim gridDim, __syncthreads, __syncwarp, __shfl_sync, __shfl_down_sync,
 *   __shfl_xor_sync, __ballot_sync, __any_sync, __popc, __ffs, __threadfence, __ldcg,
 *   atomicOr, atomicMin, atomicMax, atomicInc, atomicAdd (of integers: sums of floats keep their
 *   order)
 *   ls_vector                     16 bytes, loaded and stored at once
 *
 * A warp has 32 lanes; every lane named in a mask takes part, and every thread of the block reaches
 * each __syncthreads: no thread returns before. Products and sums are rounded one by one, as
 * written (no contraction); fmaf requests a single rounding.
 *
 * Programmatic dependent launch (CUDA Programming Guide, "Programmatic Dependent Launch and
 * Synchronization"; from compute capability 9.0 on). The blocks of a kernel that LS_LAUNCH_BEHIND
 * has launched early start once every block of the kernel before it has called ls_launch_next or
 * has ended. So all its threads call ls_launch_wait before they touch memory of the device: it
 * returns when the kernel before has completed and its writes are visible. That kernel may itself
 * have been launched early; then it has waited, too, and its completion implies that of all before
 * it: therefore no thread of it may return, or call ls_launch_next, without having waited. In a
 * recorded step the launch is an edge of the graph of the programmatic type. The emulation aborts
 * where a kernel breaks one of these rules. */
#ifndef LS_CUDA_LAUNCH_H
#define LS_CUDA_LAUNCH_H

#include <stdint.h>

#include "check.h"

enum { LS_WARP = 32 };

#ifdef LS_CUDA_EMULATED

#include "emulated_launch.h"

#else

#define LS_KERNEL static __global__ void
#define LS_DEVICE static __device__ inline
#define LS_HOST_DEVICE static __host__ __device__ inline
#define LS_SHARED(type, name, count) __shared__ type name[count]

#define LS_LAUNCH(kernel, grid, block, stream, ...)                                       \
    do {                                                                                  \
        kernel<<<(grid), (block), 0, (stream)>>>(__VA_ARGS__);                            \
        LS_TRY(ls_cuda_check(cudaGetLastError(), "launch " #kernel, __FILE__, __LINE__)); \
    } while (0)

#define LS_LAUNCH_BEHIND(early, kernel, grid, block_size, on, ...)                                \
    do {                                                                                          \
        cudaLaunchAttribute serial[1] = {};                                                       \
        cudaLaunchConfig_t launch = {};                                                           \
        serial[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;                        \
        serial[0].val.programmaticStreamSerializationAllowed = 1;                                 \
        launch.gridDim = (grid);                                                                  \
        launch.blockDim = (block_size);                                                           \
        launch.stream = (on);                                                                     \
        launch.attrs = serial;                                                                    \
        launch.numAttrs = (early) ? 1 : 0;                                                        \
        LS_TRY(ls_cuda_check(cudaLaunchKernelEx(&launch, kernel, __VA_ARGS__), "launch " #kernel, \
                             __FILE__, __LINE__));                                                \
    } while (0)

LS_DEVICE void ls_launch_wait(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
}

LS_DEVICE void ls_launch_next(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
}

LS_DEVICE void ls_vector_check(const void *memory)
{
    (void)memory;
}

#endif

/* 16 bytes, the widest access of a thread; addresses must be multiples of 16. */
typedef struct alignas(16) ls_vector {
    uint32_t word[4];
} ls_vector;

/* On the device a single access to global memory that the compiler does not split. */
LS_DEVICE ls_vector ls_vector_load(const void *from)
{
    ls_vector_check(from);
#ifdef LS_CUDA_EMULATED
    return *(const ls_vector *)from;
#else
    uint4 all = *(const uint4 *)from;
    return {{all.x, all.y, all.z, all.w}};
#endif
}

LS_DEVICE void ls_vector_store(void *to, ls_vector value)
{
    ls_vector_check(to);
#ifdef LS_CUDA_EMULATED
    *(ls_vector *)to = value;
#else
    __stwb((uint4 *)to, make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]));
#endif
}

/* Blocks of `threads` that cover `count` elements. */
static inline unsigned ls_launch_blocks(int64_t count, int threads)
{
    return (unsigned)((count + threads - 1) / threads);
}

#endif
