/* Convolution and linear layers: products of oneDNN, made to fit. Each pass of a layer takes the
 * first of these that oneDNN has without falling to its reference code, for half types on the
 * processor's units for them (ls_backend_is_native: 1, 2 and, in fp16, 3), else in f32 with the
 * operands converted on the way (1, 2 and 4):
 *   1. the layout of the activations as it is;
 *   2. the layer as one matrix product, where an image has so few pixels that most taps only see
 *      padding (a 3x3 on a 1x1 image is its centre tap);
 *   3. channels last, the only layout that oneDNN convolves in fp16, with the activations reordered
 *      on the way;
 *   4. plain NCHW, with the activations reordered on the way.
 * The gradient of weights may have a second way, in channels last: one matrix product of the
 * output's gradient with the unfolded input. ls_conv_choose takes one of the two. On AMX the
 * input's gradient of strides, 1x1 kernels and small images is a matrix product with all taps,
 * whose result is folded. */
#ifndef LS_CPU_CONV_H
#define LS_CPU_CONV_H

#include "backend.h"
#include "dnn.h"

typedef struct ls_conv ls_conv;

/* in_block, out_block: layout of the activations, as in dnn.h; type: of stored activations and of
 * rounded weights. data_gradient: the backward pass computes the input's gradient. `name`: for
 * messages. */
ls_status ls_conv_create(ls_backend *backend, const char *name, const ls_dnn_shape *shape,
                         int in_block, int out_block, ls_dtype type, bool data_gradient,
                         ls_conv **out);
void ls_conv_destroy(ls_conv *conv);
/* Bytes of the packed weights, which live as long as the plan, and of the scratch memory that all
 * passes share. */
size_t ls_conv_weight_bytes(const ls_conv *conv);
size_t ls_conv_scratch_bytes(const ls_conv *conv);
/* `memory`: weight_bytes, zeroed; `scratch`: scratch_bytes; both 64-byte aligned. */
void ls_conv_place(ls_conv *conv, void *memory, void *scratch);
/* One line of the plan: "jit:avx2" for all passes, "jit:avx2 in f32" with operands converted, or
 * "forward jit:avx2, weights gemm:jit". */
void ls_conv_describe(const ls_conv *conv, char *text, size_t bytes);
/* "jit:avx2 in f32 (reordered to plain)": of one pass, which exists. */
void ls_conv_describe_pass(const ls_conv *conv, ls_dnn_pass which, char *text, size_t bytes);

/* The units of a pass: "AMX", as its implementation's name says, "f32" where operands are
 * converted, "" where the name says neither; NULL: there is no such pass. */
const char *ls_conv_units(const ls_conv *conv, ls_dnn_pass which);

/* The way of the gradient of weights: "direct" or "unfolded"; "only" where there is one. choose:
 * LS_ERR_USAGE for another word, LS_ERR_UNSUPPORTED for a way that this layer lacks, logged. */
const char *ls_conv_choice(const ls_conv *conv);
ls_status ls_conv_choose(ls_conv *conv, const char *choice);
/* Times both ways and takes the faster one. Before ls_conv_place. */
ls_status ls_conv_benchmark(ls_conv *conv);

/* Rounds the weight to the activation type and packs it for both passes. weight: [out,in,k,k]. */
ls_status ls_conv_pack(ls_conv *conv, const ls_tensor *weight);
ls_status ls_conv_forward(ls_conv *conv, const void *in, void *out);
/* The same with the result in f32: of a linear layer, which adds its bias afterwards. */
ls_status ls_conv_forward_wide(ls_conv *conv, const void *in, float *out);
ls_status ls_conv_backward_data(ls_conv *conv, void *in_grad, const void *out_grad);
/* grad: plain, overwritten; rounded to the activation type, then stored in its own type. */
ls_status ls_conv_backward_weights(ls_conv *conv, const void *in, const void *out_grad,
                                   const ls_tensor *grad);

/* Whether every pass takes the activations in their own type. */
bool ls_conv_is_direct(const ls_conv *conv);
/* One pass without packing, unpacking or reordering, for timing, of a direct convolution; the
 * weight has arbitrary values. */
ls_status ls_conv_product_only(ls_conv *conv, ls_dnn_pass which, void *in, void *out);

#endif
