/* Kernels of the audit and their launches: on a device as in reference/oracle/cuda/launch.h, whose
 * parts are the only ones used; with LS_AUDIT_CPU as loops over blocks of one thread, which OpenMP
 * distributes. Further names:
 *
 *   LS_BLOCK          in front of a kernel's first parameter
 *   LS_THREADS(n)     threads of a block: n on a device, one on the CPU
 *   audit_stream      a stream's own handle */
#ifndef LS_ORACLE_AUDIT_LAUNCH_H
#define LS_ORACLE_AUDIT_LAUNCH_H

#ifdef LS_AUDIT_CPU

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/log.h"
#include "kernels/core/status.h"

typedef void *audit_stream;

struct dim3 {
    unsigned x, y;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1) : x(x_), y(y_)
    {
    }
};

#define LS_KERNEL static void
#define LS_DEVICE static inline
#define LS_SHARED(type, name, count) type name[count]
#define LS_BLOCK [[maybe_unused]] const dim3 blockIdx,
#define threadIdx dim3(0, 0)
#define LS_THREADS(n) 1
#define __syncthreads() ((void)0)

template <typename... P, typename... A>
static inline void audit_run(void (*kernel)(const dim3, P...), dim3 grid, A... arguments)
{
    int64_t blocks = (int64_t)grid.x * grid.y;
#pragma omp parallel for schedule(dynamic, 16) if (blocks >= 64)
    for (int64_t i = 0; i < blocks; i++) {
        kernel(dim3((unsigned)(i % grid.x), (unsigned)(i / grid.x)), (P)arguments...);
    }
}

#define LS_LAUNCH(kernel, grid, block, stream, ...)   \
    do {                                              \
        (void)(block), (void)(stream);                \
        audit_run(kernel, dim3(grid), ##__VA_ARGS__); \
    } while (0)

/* Blocks of `threads` that cover `count` elements. */
static inline unsigned ls_launch_blocks(int64_t count, int threads)
{
    return (unsigned)((count + threads - 1) / threads);
}

#else

#include "reference/oracle/cuda/launch.h"

typedef cudaStream_t audit_stream;

#define LS_BLOCK
#define LS_THREADS(n) (n)

#endif

#endif
