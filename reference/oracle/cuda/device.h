/* Doubles on the device while one operation of the judge runs. */
#ifndef LS_ORACLE_CUDA_DEVICE_H
#define LS_ORACLE_CUDA_DEVICE_H

#include "launch.h"

/* Memory of one operation, freed together. Zero-initialise it. */
enum { LS_DEVICE_ARRAYS = 12 };
typedef struct ls_device_arrays {
    void *memory[LS_DEVICE_ARRAYS];
    int count;
} ls_device_arrays;

static inline ls_status ls_device_take(ls_device_arrays *arrays, int64_t count, double **out)
{
    void *memory = NULL;
    LS_ASSERT(arrays->count < LS_DEVICE_ARRAYS);
    LS_DEVICE_CALL(cudaMalloc(&memory, (size_t)(count > 0 ? count : 1) * sizeof **out));
    arrays->memory[arrays->count++] = memory;
    *out = (double *)memory;
    return LS_OK;
}

static inline ls_status ls_device_put(ls_device_arrays *arrays, const double *host, int64_t count,
                                      double **out)
{
    LS_TRY(ls_device_take(arrays, count, out));
    LS_DEVICE_CALL(cudaMemcpy(*out, host, (size_t)count * sizeof *host, cudaMemcpyHostToDevice));
    return LS_OK;
}

/* Waits for the preceding kernels. */
static inline ls_status ls_device_get(const double *device, int64_t count, double *host)
{
    LS_DEVICE_CALL(cudaMemcpy(host, device, (size_t)count * sizeof *host, cudaMemcpyDeviceToHost));
    return LS_OK;
}

static inline void ls_device_give(ls_device_arrays *arrays)
{
    for (int i = 0; i < arrays->count; i++) {
        (void)cudaFree(arrays->memory[i]);
    }
    arrays->count = 0;
}

#endif
