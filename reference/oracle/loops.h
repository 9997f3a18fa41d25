/* The judge's heavy loops: on the CPU (loops.c, norm.c), or on a GPU as plain FP64 kernels
 * (cuda/, build/lib/ls_oracle_cuda.so), which share nothing with the kernels under test and agree
 * with the CPU's to 1e-12. Both have the same prototypes and work on host memory. */
#ifndef LS_ORACLE_LOOPS_H
#define LS_ORACLE_LOOPS_H

#include <stdbool.h>

#include "norm.h"
#include "planes.h"
#include "shards.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LS_LOOPS_ABI = 1 };

/* A convolution; a linear layer is a 1x1 convolution of a 1x1 image. */
typedef struct ls_loops_shape {
    int kernel, stride, pad;
} ls_loops_shape;

typedef struct ls_loops {
    int abi;          /* LS_LOOPS_ABI */
    const char *name; /* "cpu", "cuda" */
    /* Whether they can run here; `why` receives the reason, or the device's name. */
    bool (*ready)(char *why, int why_bytes);
    /* out[n,o,y,x] = sum over i, ky, kx of in[n,i,y*stride+ky-pad,x*stride+kx-pad] *
     * weight[o,i,ky,kx]; weight [out->channels, in->channels, kernel, kernel]. `out` is allocated
     * by the caller. */
    ls_status (*products_forward)(ls_loops_shape shape, const ls_planes *in, const double *weight,
                                  ls_planes *out);
    /* Gradient of the input from the gradient of the output: overwrites in_grad. */
    ls_status (*products_input_grad)(ls_loops_shape shape, const ls_planes *out_grad,
                                     const double *weight, ls_planes *in_grad);
    /* Gradient of the weight, separately for every chunk: overwrites weight_grad[chunks][out
     * channels, in channels, kernel, kernel]. */
    ls_status (*products_weight_grad)(ls_loops_shape shape, const ls_planes *in,
                                      const ls_planes *out_grad, const ls_shards *shards,
                                      double *weight_grad);
    /* As in norm.h. */
    ls_status (*norm_forward)(const ls_planes *in, const double *weight, const double *bias,
                              const ls_shards *shards, int group_chunks, ls_bits_type store,
                              ls_norm_stats *stats, ls_planes *out);
    ls_status (*norm_backward)(const ls_planes *in, const double *weight,
                               const ls_norm_stats *stats, const ls_shards *shards,
                               ls_bits_type store, const ls_planes *out_grad, ls_planes *in_grad,
                               double *weight_grad, double *bias_grad);
} ls_loops;

/* The CPU's loops. */
const ls_loops *ls_loops_cpu(void);
/* The loops for a step of that many multiply-adds. LS_ORACLE=cpu or cuda decides (cuda without a
 * device is LS_ERR_INFRA); by default the device, if there is one, runs steps that would take the
 * CPU more than seconds. */
ls_status ls_loops_choose(double multiply_adds, const ls_loops **out);

/* The symbol exported by ls_oracle_cuda.so. */
#define LS_LOOPS_ENTRY "ls_loops_entry"
typedef const ls_loops *ls_loops_entry_fn(void);

#ifdef __cplusplus
}
#endif
#endif
