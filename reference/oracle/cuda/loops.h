/* The loops of ../loops.h on a device. */
#ifndef LS_ORACLE_CUDA_LOOPS_H
#define LS_ORACLE_CUDA_LOOPS_H

#include "launch.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "reference/oracle/loops.h"

ls_status ls_products_cuda_forward(ls_loops_shape shape, const ls_planes *in, const double *weight,
                                   ls_planes *out);
ls_status ls_products_cuda_input_grad(ls_loops_shape shape, const ls_planes *out_grad,
                                      const double *weight, ls_planes *in_grad);
ls_status ls_products_cuda_weight_grad(ls_loops_shape shape, const ls_planes *in,
                                       const ls_planes *out_grad, const ls_shards *shards,
                                       double *weight_grad);
/* Only the right form. */
ls_status ls_norm_cuda_forward(const ls_planes *in, const double *weight, const double *bias,
                               const ls_shards *shards, int group_chunks, ls_bits_type store,
                               ls_norm_stats *stats, ls_planes *out);
ls_status ls_norm_cuda_backward(const ls_planes *in, const double *weight,
                                const ls_norm_stats *stats, const ls_shards *shards,
                                ls_bits_type store, const ls_planes *out_grad, ls_planes *in_grad,
                                double *weight_grad, double *bias_grad);

/* Doubles on the device while one operation of the judge runs. */

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

#ifdef __cplusplus
}
#endif

#endif
