/* Gradients of the weights of 1x1 and 3x3 convolutions in f32 on AVX-512, from operands of any
 * type: sums in f32, one rounding at the end. oneDNN's code of this pass falls to a third of the
 * f32 units' rate on images of few pixels, and takes half types only as f32, by a pass over memory
 * for each operand; here they are converted in cache. */
#ifndef LS_CPU_WGRAD_WIDE_H
#define LS_CPU_WGRAD_WIDE_H

#include "dnn.h"
#include "kernels/core/tensor.h"

/* Whether this code knows the shape, is the faster one and has work for all threads: activations of
 * that type in blocks of 16 channels; 1x1 of a half type, without padding and with input channels
 * in blocks of 64; or 3x3 with padding on an output of few pixels. */
bool ls_wgrad_wide_takes(const ls_dnn_shape *shape, ls_dtype type, int in_block, int out_block,
                         int threads);
/* Scratch memory of a run, 64-byte aligned. */
size_t ls_wgrad_wide_scratch_bytes(const ls_dnn_shape *shape, ls_dtype type, int threads);
/* grad [out,in,k,k], overwritten: sum over images and pixels of out_grad * in, rounded to `type`,
 * the operands' own, and stored in the gradient's. in, out_grad: "N x C/16 x HW x 16". Only for a
 * shape that is taken, on a processor with AVX-512. */
void ls_wgrad_wide_run(const ls_dnn_shape *shape, ls_dtype type, const void *in,
                       const void *out_grad, const ls_tensor *grad, void *scratch, int threads);

#endif
