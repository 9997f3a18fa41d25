/* Properties of a list of layers: sizes, products, the order of backward. */
#ifndef LS_LAYERS_H
#define LS_LAYERS_H

#include "kernels/kernels.h"

typedef struct ls_layer_extent {
    int channels, height, width; /* of the layer's output, for one image; cross entropy: 1,1,1 */
} ls_layer_extent;

/* extent[layer_count] for square images. */
void ls_layers_extents(const ls_network *network, int image_size, ls_layer_extent *extent);
/* order[param_count]: parameter indices in the order in which backward computes their gradients:
 * layers from last to first; a linear layer's bias before its weight, a norm's weight before its
 * bias (torch's observed order). Parameters without a layer come first, in reverse order. */
void ls_layers_backward_order(const ls_network *network, int *order);

#endif
