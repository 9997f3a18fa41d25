/* The traffic model: the bytes that every pass of a training step moves through memory and the
 * operations of its products, from the lowered network alone. It counts each tensor once per read
 * or write and assumes that no cache keeps anything between passes; a mask is one bit per element.
 * cuda_bound.c and cpu_passes.c put its figures next to measured times, `lockstep layers --predict`
 * prints them without a device. */
#ifndef LS_TRAFFIC_H
#define LS_TRAFFIC_H

#include "lowered.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_traffic_part {
    LS_TRAFFIC_IMAGE,           /* f32 images in the order and type of the first product (op 0) */
    LS_TRAFFIC_PRODUCT,         /* forward */
    LS_TRAFFIC_PRODUCT_WEIGHTS, /* backward: gradient of the weight */
    LS_TRAFFIC_PRODUCT_DATA,    /* backward: gradient of the input */
    LS_TRAFFIC_STATISTICS,      /* batch norm, forward: mean and variance */
    LS_TRAFFIC_APPLY,           /* and the result, with add and ReLU */
    LS_TRAFFIC_SUMS,            /* batch norm, backward: sums of g and g * (x - mean) */
    LS_TRAFFIC_NORM_BACK,       /* and the gradient of its input */
    LS_TRAFFIC_SIMPLE,          /* pools, averages, sums and ReLUs of their own, forward */
    LS_TRAFFIC_SIMPLE_BACK,
    LS_TRAFFIC_PARTS,
} ls_traffic_part;

/* Ways to move fewer bytes, each a bit. The fused ones are cuDNN's graphs of several operations. */
enum {
    /* a convolution of 7 x 7, stride 2 over an image of 3 channels becomes one of 4 x 4, stride 1
     * over its 2 x 2 blocks as channels */
    LS_TRAFFIC_BLOCKED_STEM = 1 << 0,
    /* a convolution also sums its output and its squares: no statistics pass */
    LS_TRAFFIC_FUSE_STATISTICS = 1 << 1,
    /* the gradient of a join's output is added, masked and summed by the convolution that completes
     * it: no sums pass */
    LS_TRAFFIC_FUSE_JOINS = 1 << 2,
    /* norm and ReLU between two convolutions are applied by the second one and by its gradient of
     * the weight: the result is not stored. With LS_TRAFFIC_FUSE_INNER, without which the mask
     * would be missing */
    LS_TRAFFIC_FUSE_APPLY = 1 << 3,
    /* between two convolutions, the second one's gradient of its input is masked and summed: no
     * sums pass */
    LS_TRAFFIC_FUSE_INNER = 1 << 4,
    /* the CPU backend: no masks (the ReLU of an add is read from its output, any other computed
     * again), a norm's second sweep finds what the first one has read in a cache, and sums of
     * gradients before pools are passes of their own, which are not in the list */
    LS_TRAFFIC_ON_CPU = 1 << 5,
};

/* One pass, or one part of it where an operation takes several. */
typedef struct ls_traffic {
    ls_traffic_part part;
    int op;          /* index into ls_lower.op */
    int norm;        /* statistics of a dual norm: 0 or 1 */
    double bytes;    /* 0: the part is fused into another one */
    double epilogue; /* of them, those that a product reads besides its own operands */
    double flops;    /* 2 per multiply-add, with the padding of the stored channels */
    int channels;    /* of products: stored channels of the input */
} ls_traffic;

/* Fills `list`, in order of execution, and returns the number of entries; at most
 * ls_traffic_most(lower). image_channels: stored channels of the image (input.cu pads them).
 * ways: LS_TRAFFIC_... bits. */
int ls_traffic_list(const ls_lower *lower, int image_channels, int ways, ls_traffic *list);
int ls_traffic_most(const ls_lower *lower);
/* "forward", "backward weights", ... */
const char *ls_traffic_part_name(ls_traffic_part part);
/* Whether the part belongs to the forward pass. */
bool ls_traffic_is_forward(ls_traffic_part part);
bool ls_traffic_is_product(ls_traffic_part part);

#ifdef __cplusplus
}
#endif
#endif
