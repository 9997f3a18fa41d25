/* Whether an engine adds a gradient to another as it must: product and old value are added in f32
 * and the sum is rounded once (LS_CONV_DX_ADDED). cuDNN has no note for engines that round the
 * product to the half type first. In 9.19 engine 63 with its knob 25 at 1 gave sums that were up to
 * 3.9 ulp off at the first convolution of ResNet-50's layer4 with 256 images on an H200. So
 * engines are tried before they are considered.
 *
 * The operands are integers: dy of -8 to 8, w so that a product's deviation is about 2048, old
 * values of a size that the type holds exactly. Products and sums are exact in f32 (at most 2^24),
 * whatever the order, but mostly not in the half type: a sum that is rounded once has one right
 * value, and one that is rounded twice often has another. */
#ifndef LS_CUDA_CONV_ONTO_H
#define LS_CUDA_CONV_ONTO_H

#include "conv_parts.h"

typedef struct ls_conv_onto ls_conv_onto;

/* Whether engines of that key are to be tried: in a half type, on a device that can execute. */
bool ls_conv_onto_judges(const ls_backend *backend, const ls_conv_key *key);
/* Takes device memory: two arrays like x, and w and dy. `key` must outlive it. */
ls_status ls_conv_onto_open(ls_backend *backend, const ls_conv_key *key, ls_conv_onto **out);
/* *executed: cuDNN's answer. *right: the elements looked at are right; they are the same for every
 * engine of a key. An error is the device's. */
ls_status ls_conv_onto_try(ls_conv_onto *onto, cudnnBackendDescriptor_t plan,
                           int64_t workspace_bytes, cudnnStatus_t *executed, bool *right);
void ls_conv_onto_close(ls_conv_onto *onto); /* NULL is allowed */

#endif
