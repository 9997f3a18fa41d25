/* The lower bound of a training step's time on this GPU, and a breakdown of its time: extra symbols
 * of ls_cuda.so, found with ls_load_symbol("cuda", ...). They open the device themselves and close
 * it again. */
#ifndef LS_CUDA_BOUND_H
#define LS_CUDA_BOUND_H

#include "kernels/passes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- rates of the device, without a network -------------------------------------------------- */

#define LS_CUDA_RATES_ENTRY "ls_cuda_rates"

typedef struct ls_cuda_rates_options {
    int device;         /* CUDA's index */
    int64_t copy_bytes; /* read, and as many written: several GB, so that caches do not help */
    int side;           /* of the square matrices: 8192 */
    int repeats;        /* the median of these counts, after one warm-up; 1 to 64 */
} ls_cuda_rates_options;

/* Measured rates, and the rates that the device's attributes imply; NaN: unknown. */
typedef struct ls_cuda_rates_measured {
    char device[96], address[32]; /* "NVIDIA H200 (GPU-uuid)", "0000:17:00.0" */
    double copy_bytes_per_s;      /* read plus written, by a kernel in 16-byte accesses */
    double memory_bytes_per_s;    /* memory clock x 2 x bus width */
    /* 2 n^3 per product, with the network's own cuBLASLt calls; tf32: f32 operands, tensor cores */
    double f32_flop_per_s, tf32_flop_per_s, f16_flop_per_s, bf16_flop_per_s;
    /* multiprocessors x clock x operations of one multiprocessor per clock (dense) */
    double f32_device_flop_per_s, f16_device_flop_per_s;
} ls_cuda_rates_measured;

/* A rate that cannot be measured is NaN, after its error and a warning. LS_ERR_USAGE for bad
 * counts, LS_ERR_INFRA without the device, or the last error if no rate can be measured. */
typedef ls_status ls_cuda_rates_fn(const ls_cuda_rates_options *options,
                                   ls_cuda_rates_measured *out);
ls_cuda_rates_fn ls_cuda_rates;

/* ---- the network, pass by pass --------------------------------------------------------------- */

#define LS_CUDA_BOUND_ENTRY "ls_cuda_bound"

typedef struct ls_cuda_bound_options {
    int device;
    bool tf32;
    int repeats; /* as above */
    bool passes; /* also time each pass by itself */
} ls_cuda_bound_options;

/* The network at options->batch x height x width with activations of that type; batch norm's
 * parameters are f32. LS_ERR_UNSUPPORTED or LS_ERR_INFRA from plan_create. */
typedef ls_status ls_cuda_bound_fn(const ls_network *network, const ls_plan_options *plan,
                                   const ls_cuda_bound_options *options, ls_step_passes *out);
ls_cuda_bound_fn ls_cuda_bound;

/* rates.cu: copies a multiple of 16 bytes; both addresses aligned to 16. */
struct CUstream_st;
ls_status ls_rates_copy(struct CUstream_st *stream, void *to, const void *from, int64_t bytes);

#ifdef __cplusplus
}
#endif
#endif
