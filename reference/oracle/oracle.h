/* THE JUDGE: one training step in FP64, plain loops, sharing no arithmetic with the code under test
 * (numerics.md section 4). One call computes forward, mean softmax cross entropy (smoothed where
 * the step says so), backward and the averaged gradient of all ranks and micro-steps of one step
 * (each rank's loss is the mean over its own samples and all ranks weigh the same, however many
 * they have), as one of
 *
 *   FP64, own branches      the network's gradient
 *   FP64, forced branches   the same on the ReLU and max-pool branches of a dump
 *   ideal                   FP64 inside each operation, one rounding where the level stores a value
 *                           (numerics.md section 1), own branches, the dump's loss scale,
 * micro-gradients, reduction and unscaling in the types of the level
 *
 * Results do not depend on the number of threads: every output is summed by one thread in one
 * order.
 *
 * An ideal run stores: input, activations and their gradients in f32 (O0) or half;
 * batch-norm mean, 1/sqrt(var + eps) and parameter sums in f32; gradients of products in f32 (O0)
 * or half, of batch norm in f32 (O3: half); (p - y)*S/(N*A) in f32, then in the type of the logits;
 * sums of two gradients at a fork, in the activation type; of batch norms that the next convolution
 * applies, scale and offset of forward in fp16. FP64 and ideal both use the weights of
 * the dump unchanged; O1 rounds the product's weights (and the bias) to half for the operation. */
#ifndef LS_ORACLE_H
#define LS_ORACLE_H

#include "kernels/core/status.h"
#include "oracle_step.h"

/* The step. LS_ERR_INFRA without memory; on failure nothing is left to free. */
ls_status ls_oracle_run(const ls_oracle_step *step, const ls_oracle_mode *mode,
                        ls_oracle_result *out);
void ls_oracle_free(const ls_nettab *net, ls_oracle_result *result);

#endif
