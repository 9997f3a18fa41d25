/* Convolution in double, as sums over taps and channels for four pixels and sixteen channels at a
 * time. A linear layer is a 1x1 convolution of a 1x1 image. One thread sums each output element in
 * a fixed order without fused multiply-add, so the bits are the same on every machine. */
#ifndef LS_ORACLE_PRODUCTS_H
#define LS_ORACLE_PRODUCTS_H

#include "planes.h"
#include "shards.h"

typedef struct ls_products_shape {
    int kernel, stride, pad;
} ls_products_shape;

/* out[n,o,y,x] = sum over i, ky, kx of in[n,i,y*stride+ky-pad,x*stride+kx-pad] * weight[o,i,ky,kx];
 * weight [out->channels, in->channels, kernel, kernel]. `out` is allocated by the caller. */
ls_status ls_products_forward(ls_products_shape shape, const ls_planes *in, const double *weight,
                              ls_planes *out);
/* Gradient of the input from the gradient of the output: overwrites in_grad. */
ls_status ls_products_input_grad(ls_products_shape shape, const ls_planes *out_grad,
                                 const double *weight, ls_planes *in_grad);
/* Gradient of the weight, separately for every chunk: overwrites weight_grad[chunks][out channels,
 * in channels, kernel, kernel]. */
ls_status ls_products_weight_grad(ls_products_shape shape, const ls_planes *in,
                                  const ls_planes *out_grad, const ls_shards *shards,
                                  double *weight_grad);

#endif
