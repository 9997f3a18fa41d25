/* A step of a network measured pass by pass, alone on its device: what `lockstep layers` prints and
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

#ifdef __cplusplus
}
#endif
#endif
