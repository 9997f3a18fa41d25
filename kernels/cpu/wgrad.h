/* Gradients of the weights of a 3x3 convolution on small images, from bf16 operands on AVX512-BF16:
 * sums in f32, one rounding at the end. oneDNN's code of this pass falls to a fifth of the units'
 * rate on images of few pixels, where it also multiplies the padding. */
#ifndef LS_CPU_WGRAD_H
#define LS_CPU_WGRAD_H

#include "dnn.h"

/* Whether this code knows the shape and is the faster one: a 3x3 kernel with padding, activations
 * in blocks of 16 channels on both sides, an output of at most 256 pixels. */
bool ls_wgrad_takes(const ls_dnn_shape *shape, int in_block, int out_block);
/* Scratch memory of a run, 64-byte aligned. */
size_t ls_wgrad_scratch_bytes(const ls_dnn_shape *shape);
/* grad [out,in,3,3], f32 or bf16, overwritten: bf16(sum over images and pixels of out_grad * in).
 * in, out_grad: bf16, "N x C/16 x HW x 16". Only for a shape that is taken, on a processor with the
 * units (ls_dnn_half_units). */
void ls_wgrad_run(const ls_dnn_shape *shape, const uint16_t *in, const uint16_t *out_grad,
                  const ls_tensor *grad, void *scratch, int threads);

/* ---- wgrad_wide.c ---------------------------------------------------------------------------- */

/* Gradients of the weights of 1x1 and 3x3 convolutions in f32 on AVX-512, from operands of any
 * type: sums in f32, one rounding at the end. oneDNN's code of this pass falls to a third of the
 * f32 units' rate on images of few pixels, and takes half types only as f32, by a pass over memory
 * for each operand; here they are converted in cache. */

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
