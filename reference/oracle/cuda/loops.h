/* The loops of ../loops.h on a device. */
#ifndef LS_ORACLE_CUDA_LOOPS_H
#define LS_ORACLE_CUDA_LOOPS_H

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

#ifdef __cplusplus
}
#endif
#endif
