/* A step of a network measured pass by pass, alone on its device, the lower bound of its time (its
 * convolutions alone), and rates of the device without a network: what `lockstep layers` prints and
 * a bench records, of either backend. */
#ifndef LS_PASSES_H
#define LS_PASSES_H

#include <math.h>

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_pass_kind {
    LS_PASS_FORWARD,
    LS_PASS_BACKWARD, /* the whole backward, or the gradient of a product's weight */
    LS_PASS_DATA,     /* backward, the gradient of a product's input */
    LS_PASS_UPDATE,   /* CPU: after backward: gradients unscaled, parameters stepped and packed */
} ls_pass_kind;

typedef struct ls_pass {
    char name[64];   /* name of the operation's layer */
    bool product;    /* convolution or inner product */
    bool norm;       /* batch norm */
    char engine[64]; /* of a product, "eng37_k2=5", "cuBLASLt", "jit:avx2"; "": own kernels */
    ls_pass_kind kind;
    double ms;    /* median time of the pass within the step: between events around it (GPU), or
                     between clock readings (CPU) */
    double bytes; /* of all tensors that it must read or write (kernels/traffic.h) */
    double flops; /* of products */
} ls_pass;

typedef struct ls_step_passes {
    double convolutions_ms; /* forward, backward data (except for the image), backward weights with
                               the plan's own engines, back to back; NaN: not without conversions */
    double forward_ms, backward_ms; /* the whole plan, not observed */
    double update_ms;               /* CPU: what follows backward; GPU: 0, not measured */
    int pass_count;                 /* 0 where only the whole was asked for */
    ls_pass *pass;                  /* in order of execution; malloc'ed, the caller frees it */
    char *engines;                  /* the plan's fusions and engines, one line each; malloc'ed */
} ls_step_passes;

/* Between -0.5 and 0.5. */
static inline float ls_passes_number(uint64_t i)
{
    return (float)((i * 2654435761u >> 8) & 0xffff) * 0x1p-16f - 0.5f;
}

/* Element i of a parameter of the measured step. Weights of products are scaled about as in He et
 * al., so that activations keep their magnitude and no sum overflows: a processor's clock depends
 * on the values it processes. */
static inline float ls_passes_value(const ls_param *param, int64_t i)
{
    int64_t fan_in = 1;
    for (int d = 1; d < param->shape.rank; d++) {
        fan_in *= param->shape.dim[d];
    }
    switch (param->role) {
    case LS_PARAM_NORM_WEIGHT:
        return 1;
    case LS_PARAM_CONV_WEIGHT:
    case LS_PARAM_LINEAR_WEIGHT: /* a uniform distribution has a variance of 1/12 */
        return ls_passes_number((uint64_t)i) * sqrtf(24.0f / (float)fan_in);
    default:
        return 0;
    }
}

/* ---- what both backends measure with --------------------------------------------------------- */

/* An open backend with a plan, bound to values. */
typedef struct ls_passes_values {
    const ls_backend_api *api; /* set by the caller, as the next two */
    const ls_network *network;
    const ls_plan_options *options;
    ls_backend *backend;
    ls_stream *stream;
    ls_plan *plan;
    void *memory;                          /* of the tensors and the state */
    ls_tensor *param, *grad, *buffer;      /* as bound: of the type of activations, norms f32 */
    ls_tensor *master, *unscaled, *moment; /* f32; where parameters are f32, or without `masters`,
                                              the parameters themselves, and the gradients */
    ls_step_state *state;
    float *input;    /* host */
    int64_t *target; /* host */
} ls_passes_values;

/* masters: with what an optimizer's step needs, as at O2. To be closed after a failure, too. */
ls_status ls_passes_open(const ls_backend_options *how, bool masters, ls_passes_values *values);
void ls_passes_close(ls_passes_values *values);

/* ---- CPU: extra symbols of ls_cpu.so, found with ls_load_symbol("cpu", ...) ------------------ */

#define LS_CPU_BOUND_ENTRY "ls_cpu_convolutions_ms"

/* The convolutions of `network` at options->batch x height x width, forward, backward data (except
 * for the image) and backward weights, the primitives that a plan uses, back to back in their
 * blocked layouts with nothing between them: no packing, no batch norm, no linear layer. In
 * options->activation where they run on the processor's units for it, in f32 where none does;
 * LS_ERR_UNSUPPORTED where only some do.
 * threads: as in ls_backend_options; repeats: at least 1, after one that is not counted. Writes the
 * median of the repeats in milliseconds. LS_ERR_USAGE for bad counts, or plan_create's status. */
typedef ls_status ls_cpu_bound_fn(const ls_network *network, const ls_plan_options *options,
                                  int threads, int repeats, double *ms_median);
ls_cpu_bound_fn ls_cpu_convolutions_ms;

/* The machine's best rates with `threads`, independent of the network: bytes read plus bytes
 * written per second by copies far larger than any cache, and operations per second of a product of
 * two 1024 x 1024 matrices (2 n^3 each); medians of five. Half types: on the processor's units for
 * them, NaN where it has none. */
#define LS_CPU_RATES_ENTRY "ls_cpu_rates"

typedef struct ls_cpu_rates_measured {
    double copy_bytes_per_s, matrix_flop_per_s, bf16_flop_per_s, f16_flop_per_s;
} ls_cpu_rates_measured;

/* threads: 1 or more. LS_ERR_INFRA without memory. */
typedef ls_status ls_cpu_rates_fn(int threads, ls_cpu_rates_measured *out);
ls_cpu_rates_fn ls_cpu_rates;

#define LS_CPU_PASSES_ENTRY "ls_cpu_passes"

typedef struct ls_cpu_passes_options {
    int threads, repeats; /* as above; repeats at most 64 */
    bool emulate_half;    /* as in ls_backend_options */
    bool native_half;     /* the same */
    bool passes;          /* also each pass by itself */
} ls_cpu_passes_options;

/* A step of the network at options->batch x height x width with activations of that type and plain
 * SGD with momentum; with a half type parameters and gradients are half, masters f32, as at O2.
 * LS_ERR_USAGE for bad counts, or plan_create's status. */
typedef ls_status ls_cpu_passes_fn(const ls_network *network, const ls_plan_options *plan,
                                   const ls_cpu_passes_options *options, ls_step_passes *out);
ls_cpu_passes_fn ls_cpu_passes;

/* ---- CUDA: extra symbols of ls_cuda.so; they open the device and close it again -------------- */

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

#ifdef __cplusplus
}
#endif
#endif
