/* Activations of the oracle: doubles in the order sample, row, column, channel. The channels of
 * each pixel are padded with zeros to a multiple of 16, so that loops over channels consist of
 * whole vectors. */
#ifndef LS_ORACLE_PLANES_H
#define LS_ORACLE_PLANES_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"
#include "nettab.h"

enum { LS_PLANES_LANES = 16 };

typedef struct ls_planes {
    double *value; /* NULL: not allocated */
    int samples, height, width, channels;
    int pitch; /* doubles per pixel: channels rounded up */
} ls_planes;

/* Zeroed memory for the shape; logs and returns LS_ERR_INFRA without memory. */
ls_status ls_planes_allocate(int samples, int height, int width, int channels, ls_planes *out);
void ls_planes_free(ls_planes *planes);

static inline int ls_planes_round_up(int count, int multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

static inline int64_t ls_planes_pixels(const ls_planes *planes)
{
    return (int64_t)planes->samples * planes->height * planes->width;
}

static inline int64_t ls_planes_count(const ls_planes *planes)
{
    return ls_planes_pixels(planes) * planes->pitch;
}

/* The layers without products: ReLU and max-pool (the branches), shortcut, mean over the plane,
 * cross entropy; forward and backward in double. */

/* open[i] = x > 0. */
void ls_planes_relu_branches(const ls_planes *in, uint8_t *open);
/* out = open ? in : 0. */
void ls_planes_relu(const ls_planes *in, const uint8_t *open, ls_planes *out);
/* index[i] = row*width+column of the first maximum of the window in row order; padding never wins.
 */
void ls_planes_pool_branches(const ls_nettab_node *node, const ls_planes *in, int32_t *index);
/* Whether `index` is in the window of output (row, column). */
bool ls_planes_pool_inside(const ls_nettab_node *node, const ls_planes *in, int row, int column,
                           int32_t index);
/* out = in at index; 0 for an index outside its window. */
void ls_planes_pool(const ls_planes *in, const int32_t *index, ls_planes *out);
/* in_grad (zeroed by the caller) += out_grad at index. */
void ls_planes_pool_grad(const ls_planes *out_grad, const int32_t *index, ls_planes *in_grad);
/* Every stride-th pixel, from pixel -pad on; channels beyond the input's are zero. */
void ls_planes_shortcut(const ls_nettab_node *node, const ls_planes *in, ls_planes *out);
void ls_planes_shortcut_grad(const ls_nettab_node *node, const ls_planes *out_grad,
                             ls_planes *in_grad);
void ls_planes_mean(const ls_planes *in, ls_planes *out);
void ls_planes_mean_grad(const ls_planes *out_grad, ls_planes *in_grad);
/* sum += other. */
void ls_planes_add(ls_planes *sum, const ls_planes *other);
/* loss[samples] = -sum of q log softmax(logits); logits_grad = (softmax - q) * factor[sample]. q is
 * 1 - smoothing + smoothing / classes for the target, smoothing / classes for the others (Szegedy
 * et al. 2016, section 7; torch.nn.CrossEntropyLoss). */
void ls_planes_cross_entropy(const ls_planes *logits, const int64_t *target, double smoothing,
                             const double *factor, double *loss, ls_planes *logits_grad);

#endif
