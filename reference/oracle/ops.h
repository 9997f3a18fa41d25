/* The layers without products: ReLU and max-pool (the branches), shortcut, mean over the plane,
 * cross entropy; forward and backward in double. */
#ifndef LS_ORACLE_OPS_H
#define LS_ORACLE_OPS_H

#include <stdbool.h>

#include "nettab.h"
#include "planes.h"

/* open[i] = x > 0. */
void ls_ops_relu_branches(const ls_planes *in, uint8_t *open);
/* out = open ? in : 0. */
void ls_ops_relu(const ls_planes *in, const uint8_t *open, ls_planes *out);
/* index[i] = row*width+column of the first maximum of the window in row order; padding never wins.
 */
void ls_ops_pool_branches(const ls_nettab_node *node, const ls_planes *in, int32_t *index);
/* Whether `index` is in the window of output (row, column). */
bool ls_ops_pool_inside(const ls_nettab_node *node, const ls_planes *in, int row, int column,
                        int32_t index);
/* out = in at index; 0 for an index outside its window. */
void ls_ops_pool(const ls_planes *in, const int32_t *index, ls_planes *out);
/* in_grad (zeroed by the caller) += out_grad at index. */
void ls_ops_pool_grad(const ls_planes *out_grad, const int32_t *index, ls_planes *in_grad);
/* Every stride-th pixel, from pixel -pad on; channels beyond the input's are zero. */
void ls_ops_shortcut(const ls_nettab_node *node, const ls_planes *in, ls_planes *out);
void ls_ops_shortcut_grad(const ls_nettab_node *node, const ls_planes *out_grad,
                          ls_planes *in_grad);
void ls_ops_mean(const ls_planes *in, ls_planes *out);
void ls_ops_mean_grad(const ls_planes *out_grad, ls_planes *in_grad);
/* sum += other. */
void ls_ops_add(ls_planes *sum, const ls_planes *other);
/* loss[samples] = -sum of q log softmax(logits); logits_grad = (softmax - q) * factor[sample]. q is
 * 1 - smoothing + smoothing / classes for the target, smoothing / classes for the others (Szegedy
 * et al. 2016, section 7; torch.nn.CrossEntropyLoss). */
void ls_ops_cross_entropy(const ls_planes *logits, const int64_t *target, double smoothing,
                          const double *factor, double *loss, ls_planes *logits_grad);

#endif
