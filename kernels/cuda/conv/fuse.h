/* Fused graphs of cuDNN come without notes on their arithmetic, so each shape is admitted by its
 * results, once, when a plan is created.
 *
 * Forward with sums: its operands are integers in f16 whose every partial sum is exact in f32 (at
 * most 2^24), so that y, rounded once, has one right value, whatever the order of the sum: it must
 * be that of the plain forward in every element. Deviations of y are about 512; one channel in four
 * has a mean of about 0, 1, 4 and 8 deviations. y is then mostly above 2048, where f16 holds even
 * numbers and multiples of 4, so that sums of values that were not yet rounded differ.
 *
 * From the sums of y and y^2 the norm computes mean and deviation as in a step, and from the same y
 * as without fusing. With N rows and u = 2^-24 they may be apart by what f32 sums over N rows may
 * lose (numerics.md section 5, point 3): the mean by 16 sqrt(N) u deviations and 2u of itself,
 * 1/deviation by (16 sqrt(N) + 2) u of itself: the audit's bounds. The plain statistics, taken
 * about a mean of the first rows, have an error of a few u.
 *
 * Gated gradients (LS_CONV_DATA_GATED): dy, w, the norm's input x, mean, scale and bias are
 * integers (scales also 1/2), so that the plain gradient, the norm's output and the decision of
 * each ReLU have one right value; outputs of exactly 0, which a ReLU closes, are among them.
 * Gradients have deviations of about 2048; the mean of x is 0, 1, 4 and 8 of its deviations. g must
 * be the plain gradient where the ReLU is open, else 0, in every element. Both sums must be those
 * of that g, which are computed in integers, within the audit's bound for sums of N terms
 * (numerics.md section 5, point 3): 16 sqrt(N) u (|s| + 4 sqrt(q)) + 2u|s|, q the sum of squares.
 *
 * At the end of a block (LS_CONV_DATA_JOINED, LS_CONV_DATA_JOINED_TWICE) the second gradient and
 * the residual, or the second norm, are integers, too. g takes the second gradient's place, as in a
 * plan, and the plain gradient is added to it; each norm has its own sums.
 *
 * Passes that apply a norm (LS_CONV_FORWARD_APPLIED, LS_CONV_WEIGHTS_APPLIED): x, scale and bias
 * are integers, so that relu(scale * x + bias) has one right value, an integer up to 29. Where f16
 * would round scale * x, an engine that rounds it before it adds the bias differs; where the bias
 * is above 0, one that applies the norm to the padding does. The plain pass gets that output from
 * memory. Forward: as above, of that product. Weights: dy is -1, 0 or 1, partial sums are exact in
 * f32, and dw must be the plain one in every element.
 */
#ifndef LS_CUDA_FUSE_H
#define LS_CUDA_FUSE_H

#include "conv_internal.h"

/* Executes both plans of one shape and sets fused->admission; a warning names layer, channel, value
 * and bound where it is rejected. An error is the device's. Of LS_CONV_FORWARD_SUMS and
 * LS_CONV_FORWARD_APPLIED. */
ls_status ls_fuse_admit(ls_backend *backend, const char *layer, const ls_conv_plan *plain,
                        ls_conv_plan *fused);
/* The same of a gradient of the weight that applies a norm. */
ls_status ls_fuse_admit_weights(ls_backend *backend, const char *layer, const ls_conv_plan *plain,
                                ls_conv_plan *fused);
/* The same of a gated gradient, joined or not, and the plain one, added to another or not. */
ls_status ls_fuse_admit_gate(ls_backend *backend, const char *layer, const ls_conv_plan *plain,
                             ls_conv_plan *fused);

#endif
