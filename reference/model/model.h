/* The networks: torchvision's ResNet-18/34/50/101/152 (v1.5: the 3x3 carries the stride) and the
 * CIFAR ResNets 6n+2 (8, 20, 32, 44, 56, 110; option A shortcuts), with torchvision's names, order
 * and initialisation (torchvision/models/resnet.py; He et al. 2015). */
#ifndef LS_MODEL_H
#define LS_MODEL_H

#include "kernels/kernels.h"

/* Builds the list of layers, parameters and buffers. LS_ERR_USAGE for an unknown network (the line
 * names all known ones) or an image too small for it. */
ls_status ls_model_build(const char *arch, int num_classes, int image_size, ls_network *out);
void ls_model_free(ls_network *network);
/* The checks of ls_model_build without building. */
ls_status ls_model_check(const char *arch, int num_classes, int image_size);

/* Initial value of every element: pure function of (seed, name, index). Convolutions normal with
 * standard deviation sqrt(2/(out*k*k)); norm weight 1 and bias 0; linear uniform in
 * +-1/sqrt(fan_in); CIFAR: the same rules. value: f32 [count of param]. */
void ls_model_init_param(const ls_network *network, int param, uint64_t seed, float *value);
/* running_mean 0, running_var 1. */
void ls_model_init_buffer(const ls_network *network, int buffer, float *value);

typedef struct ls_layer_extent {
    int channels, height, width; /* of the layer's output, for one image; cross entropy: 1,1,1 */
} ls_layer_extent;

/* extent[layer_count] for square images. */
void ls_model_extents(const ls_network *network, int image_size, ls_layer_extent *extent);
/* order[param_count]: parameter indices in the order in which backward computes their gradients:
 * layers from last to first; a linear layer's bias before its weight, a norm's weight before its
 * bias (torch's observed order). Parameters without a layer come first, in reverse order. */
void ls_model_backward_order(const ls_network *network, int *order);

/* Multiply-adds of one image, forward, convolutions and linear: resnet50 at 224 has 4,089,184,256.
 */
int64_t ls_model_macs(const ls_network *network, int image_size);

#endif
