/* A copy at the memory's full rate: each thread has four accesses of 16 bytes in flight. */
#include "launch.h"

#include "bound.h"

enum { THREADS = 256, DEPTH = 4, VECTOR = 16 };

LS_KERNEL copy_vectors(char *to, const char *from, int64_t count)
{
    int64_t first = (int64_t)blockIdx.x * THREADS * DEPTH + threadIdx.x;
    ls_vector held[DEPTH];
    for (int k = 0; k < DEPTH; k++) {
        int64_t at = first + (int64_t)k * THREADS;
        if (at < count) {
            held[k] = ls_vector_load(from + at * VECTOR);
        }
    }
    for (int k = 0; k < DEPTH; k++) {
        int64_t at = first + (int64_t)k * THREADS;
        if (at < count) {
            ls_vector_store(to + at * VECTOR, held[k]);
        }
    }
}

ls_status ls_rates_copy(struct CUstream_st *stream, void *to, const void *from, int64_t bytes)
{
    int64_t count = bytes / VECTOR, block = THREADS * DEPTH;
    LS_LAUNCH(copy_vectors, (unsigned)((count + block - 1) / block), THREADS, stream, (char *)to,
              (const char *)from, count);
    return LS_OK;
}
