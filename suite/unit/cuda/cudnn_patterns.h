/* The graphs to query: one convolution with the operations that NVIDIA documents around it. */
#ifndef LS_UNIT_CUDNN_PATTERNS_H
#define LS_UNIT_CUDNN_PATTERNS_H

#include "cudnn_graphs.h"

static inline void forward(fused *g)
{
    dnn x = input(g, IN_MEMORY), w = weight(g), y = output(g, g->type, IN_MEMORY);
    convolution(g, LS_CONV_FORWARD, x, w, y, 0);
}

static inline void forward_stats(fused *g)
{
    dnn x = input(g, IN_MEMORY), w = weight(g), y = output(g, g->type, IN_MEMORY);
    convolution(g, LS_CONV_FORWARD, x, w, y, 0);
    statistics(g, y);
}

static inline void apply_forward_stats(fused *g)
{
    dnn x = apply(g, input(g, IN_MEMORY), CUDNN_DATA_FLOAT);
    dnn w = weight(g), y = output(g, g->type, IN_MEMORY);
    convolution(g, LS_CONV_FORWARD, x, w, y, 0);
    statistics(g, y);
}

/* The same with scale and bias in f32. */
static inline void apply32_forward_stats(fused *g)
{
    dnn x = apply_of(g, input(g, IN_MEMORY), CUDNN_DATA_FLOAT, CUDNN_DATA_FLOAT);
    dnn w = weight(g), y = output(g, g->type, IN_MEMORY);
    convolution(g, LS_CONV_FORWARD, x, w, y, 0);
    statistics(g, y);
}

static inline void apply_forward(fused *g)
{
    dnn x = apply(g, input(g, IN_MEMORY), CUDNN_DATA_FLOAT);
    dnn w = weight(g), y = output(g, g->type, IN_MEMORY);
    convolution(g, LS_CONV_FORWARD, x, w, y, 0);
}

/* The end of a residual block with a projection, before the next block's first convolution: both
 * branches' batch norms, sum and ReLU, whose result is kept. */
static inline void join_forward_stats(fused *g)
{
    int channels = g->shape->in_channels;
    dnn branch[2], w = weight(g), y = output(g, g->type, IN_MEMORY);
    dnn sum = input(g, WITHIN), joined = input(g, IN_MEMORY);
    for (int i = 0; i < 2; i++) {
        dnn x = input(g, IN_MEMORY), scaled = input(g, WITHIN);
        branch[i] = input(g, WITHIN);
        pointwise(g, CUDNN_POINTWISE_MUL, x, per_channel(g, g->type, channels), scaled);
        pointwise(g, CUDNN_POINTWISE_ADD, scaled, per_channel(g, g->type, channels), branch[i]);
    }
    pointwise(g, CUDNN_POINTWISE_ADD, branch[0], branch[1], sum);
    pointwise(g, CUDNN_POINTWISE_RELU_FWD, sum, NULL, joined);
    convolution(g, LS_CONV_FORWARD, joined, w, y, 0);
    statistics(g, y);
}

static inline void data(fused *g)
{
    dnn dx = input(g, IN_MEMORY), w = weight(g), dy = output(g, g->type, IN_MEMORY);
    convolution(g, LS_CONV_BACKWARD_DATA, dx, w, dy, 0);
}

static inline void data_onto(fused *g)
{
    dnn dx = input(g, IN_MEMORY), w = weight(g), dy = output(g, g->type, IN_MEMORY);
    convolution(g, LS_CONV_BACKWARD_DATA, dx, w, dy, 1);
}

static inline void data_and_add(fused *g, float beta)
{
    dnn w = weight(g), dy = output(g, g->type, IN_MEMORY);
    dnn own = input(g, WITHIN), other = input(g, IN_MEMORY), dx = input(g, IN_MEMORY);
    convolution(g, LS_CONV_BACKWARD_DATA, own, w, dy, beta);
    pointwise(g, CUDNN_POINTWISE_ADD, own, other, dx);
}

static inline void data_add(fused *g)
{
    data_and_add(g, 0);
}

/* There is no tensor in memory to add to: a library that honours beta cannot support it. */
static inline void data_onto_add(fused *g)
{
    data_and_add(g, 1);
}

/* Backward data into the batch norm and ReLU before the convolution: the norm's output is
 * recomputed from x for the ReLU; with a second gradient of the ReLU's output if `joined`. */
static inline void data_relu_norm(fused *g, bool joined)
{
    int channels = g->shape->in_channels;
    dnn w = weight(g), dy = output(g, g->type, IN_MEMORY), dx = input(g, WITHIN);
    dnn x = input(g, IN_MEMORY), masked = input(g, IN_MEMORY), made[4], part[4];
    convolution(g, LS_CONV_BACKWARD_DATA, dx, w, dy, 0);
    if (joined) {
        dnn other = input(g, IN_MEMORY), sum = input(g, WITHIN);
        pointwise(g, CUDNN_POINTWISE_ADD, dx, other, sum);
        dx = sum;
    }
    for (int i = 0; i < 4; i++) { /* mean, 1 / deviation, scale, bias */
        part[i] = per_channel(g, CUDNN_DATA_FLOAT, channels);
        made[i] = input(g, WITHIN);
    }
    pointwise(g, CUDNN_POINTWISE_SUB, x, part[0], made[0]);
    pointwise(g, CUDNN_POINTWISE_MUL, made[0], part[1], made[1]);
    pointwise(g, CUDNN_POINTWISE_MUL, made[1], part[2], made[2]);
    pointwise(g, CUDNN_POINTWISE_ADD, made[2], part[3], made[3]);
    pointwise(g, CUDNN_POINTWISE_RELU_BWD, made[3], dx, masked);
    norm_sums(g, x, masked, part[0], part[1], part[2]);
}

static inline void data_norm(fused *g)
{
    data_relu_norm(g, false);
}

/* The same where the ReLU is open as the stored output says, whatever a recomputed one would say.
 */
static inline void data_relu_of_stored_norm(fused *g)
{
    int channels = g->shape->in_channels;
    dnn w = weight(g), dy = output(g, g->type, IN_MEMORY), dx = input(g, WITHIN);
    dnn x = input(g, IN_MEMORY), y = input(g, IN_MEMORY), masked = input(g, IN_MEMORY), part[3];
    convolution(g, LS_CONV_BACKWARD_DATA, dx, w, dy, 0);
    per_channels(g, 3, channels, part); /* mean, 1 / deviation, scale */
    pointwise(g, CUDNN_POINTWISE_RELU_BWD, y, dx, masked);
    norm_sums(g, x, masked, part[0], part[1], part[2]);
}

static inline void data_add_norm(fused *g)
{
    data_relu_norm(g, true);
}

/* Backward data into the end of a residual block: onto a second gradient, then through the ReLU of
 * norm + residual, or of two norms' sum (`dual`), which is recomputed. */
static inline void data_join(fused *g, bool dual)
{
    int channels = g->shape->in_channels;
    dnn w = weight(g), dy = output(g, g->type, IN_MEMORY), own = input(g, WITHIN);
    dnn other = input(g, IN_MEMORY), dx = input(g, WITHIN), masked = input(g, IN_MEMORY);
    dnn x[2] = {input(g, IN_MEMORY), input(g, IN_MEMORY)}, normed[2] = {NULL, x[1]}, part[2][4];
    convolution(g, LS_CONV_BACKWARD_DATA, own, w, dy, 0);
    pointwise(g, CUDNN_POINTWISE_ADD, own, other, dx);
    for (int k = 0; k < (dual ? 2 : 1); k++) {
        dnn made[4];
        per_channels(g, 4, channels, part[k]); /* mean, 1 / deviation, scale, bias */
        for (int i = 0; i < 4; i++) {
            made[i] = input(g, WITHIN);
        }
        pointwise(g, CUDNN_POINTWISE_SUB, x[k], part[k][0], made[0]);
        pointwise(g, CUDNN_POINTWISE_MUL, made[0], part[k][1], made[1]);
        pointwise(g, CUDNN_POINTWISE_MUL, made[1], part[k][2], made[2]);
        pointwise(g, CUDNN_POINTWISE_ADD, made[2], part[k][3], made[3]);
        normed[k] = made[3];
    }
    dnn sum = input(g, WITHIN);
    pointwise(g, CUDNN_POINTWISE_ADD, normed[0], normed[1], sum);
    pointwise(g, CUDNN_POINTWISE_RELU_BWD, sum, dx, masked);
    for (int k = 0; k < (dual ? 2 : 1); k++) {
        norm_sums(g, x[k], masked, part[k][0], part[k][1], part[k][2]);
    }
}

static inline void data_join_norm(fused *g)
{
    data_join(g, false);
}

static inline void data_join_norms(fused *g)
{
    data_join(g, true);
}

/* Without the sums, through a stored mask. */
static inline void data_add_mask(fused *g)
{
    const ls_conv_shape *s = g->shape;
    dnn w = weight(g), dy = output(g, g->type, IN_MEMORY), own = input(g, WITHIN);
    dnn other = input(g, IN_MEMORY), dx = input(g, WITHIN), masked = input(g, IN_MEMORY);
    dnn mask = graph_tensor(g, CUDNN_DATA_BOOLEAN, IN_MEMORY, s->batch, s->in_channels,
                            s->in_height, s->in_width);
    convolution(g, LS_CONV_BACKWARD_DATA, own, w, dy, 0);
    pointwise(g, CUDNN_POINTWISE_ADD, own, other, dx);
    pointwise(g, CUDNN_POINTWISE_MUL, dx, mask, masked);
}

static inline void weights(fused *g)
{
    dnn x = input(g, IN_MEMORY), dw = weight(g), dy = output(g, g->type, IN_MEMORY);
    convolution(g, LS_CONV_BACKWARD_WEIGHTS, x, dw, dy, 0);
}

static inline void apply_weights(fused *g)
{
    dnn x = apply(g, input(g, IN_MEMORY), CUDNN_DATA_FLOAT);
    dnn dw = weight(g), dy = output(g, g->type, IN_MEMORY);
    convolution(g, LS_CONV_BACKWARD_WEIGHTS, x, dw, dy, 0);
}

static inline void norm_relu_mask(fused *g, bool added)
{
    dnn x = output(g, g->type, IN_MEMORY), z = output(g, CUDNN_DATA_FLOAT, WITHIN);
    dnn y = output(g, g->type, IN_MEMORY), mask = output(g, CUDNN_DATA_BOOLEAN, IN_MEMORY);
    dnn zero = graph_tensor(g, CUDNN_DATA_FLOAT, BY_VALUE, 1, 1, 1, 1);
    norm_forward(g, x, z);
    if (added) {
        dnn other = output(g, g->type, IN_MEMORY), sum = output(g, CUDNN_DATA_FLOAT, WITHIN);
        pointwise(g, CUDNN_POINTWISE_ADD, z, other, sum);
        z = sum;
    }
    pointwise(g, CUDNN_POINTWISE_RELU_FWD, z, NULL, y);
    pointwise(g, CUDNN_POINTWISE_CMP_GT, y, zero, mask);
}

static inline void norm_relu(fused *g)
{
    norm_relu_mask(g, false);
}

static inline void norm_add_relu(fused *g)
{
    norm_relu_mask(g, true);
}

static inline void relu_norm_back(fused *g)
{
    dnn dy = output(g, g->type, IN_MEMORY), mask = output(g, CUDNN_DATA_BOOLEAN, IN_MEMORY);
    dnn masked = output(g, g->type, IN_MEMORY);
    dnn x = output(g, g->type, IN_MEMORY), dx = output(g, g->type, IN_MEMORY);
    pointwise(g, CUDNN_POINTWISE_MUL, dy, mask, masked);
    norm_backward(g, x, masked, dx);
}

static const struct pattern {
    const char *name, *what;
    void (*build)(fused *g);
    bool inner;   /* of a convolution after a batch norm, not of the image's */
    bool of_norm; /* of a batch norm as large as the convolution's output */
} patterns[] = {
    {"forward", "ConvFwd", forward, false, false},
    {"forward+stats", "ConvFwd -> GenStats", forward_stats, false, false},
    {"apply+forward+stats", "MUL scale, ADD bias, RELU_FWD -> ConvFwd -> GenStats (ConvBNfprop)",
     apply_forward_stats, true, false},
    {"apply32+forward+stats", "the same with scale and bias in f32", apply32_forward_stats, true,
     false},
    {"apply+forward", "the same as ConvBNfprop without GenStats", apply_forward, true, false},
    {"join+forward+stats",
     "two times MUL, ADD -> ADD -> RELU_FWD, kept -> ConvFwd -> GenStats (DBARCS)",
     join_forward_stats, true, false},
    {"data", "ConvBwdData", data, true, false},
    {"data-onto", "ConvBwdData with ALPHA 1 and BETA 1, onto the tensor in memory", data_onto, true,
     false},
    {"data+add", "ConvBwdData -> ADD of a second gradient", data_add, true, false},
    {"data-onto+add", "the same with BETA 1, onto a tensor that is not in memory: not to be had",
     data_onto_add, true, false},
    {"data+relu+norm", "ConvBwdData -> RELU_BWD -> BN_BWD_WEIGHTS (DgradDreluBNBwdWeight)",
     data_norm, true, false},
    {"data+relu-of-y+norm",
     "the same with RELU_BWD by the stored output of the ReLU, not recomputed",
     data_relu_of_stored_norm, true, false},
    {"data+add+relu+norm", "the same with ADD of a second gradient before RELU_BWD", data_add_norm,
     true, false},
    {"data+add+relu-of-join+norm",
     "ConvBwdData -> ADD -> RELU_BWD by norm + residual -> BN_BWD_WEIGHTS: a block's end",
     data_join_norm, true, false},
    {"data+add+relu-of-joined-norms+norms",
     "the same by the sum of two norms -> BN_BWD_WEIGHTS twice: a block's end with a projection",
     data_join_norms, true, false},
    {"data+add+mask", "ConvBwdData -> ADD -> MUL by bitmask", data_add_mask, true, false},
    {"weights", "ConvBwdFilter", weights, false, false},
    {"apply+weights", "MUL scale, ADD bias, RELU_FWD -> ConvBwdFilter (ConvBNwgrad)", apply_weights,
     true, false},
    {"norm+relu", "NormForward -> RELU_FWD, bitmask", norm_relu, false, true},
    {"norm+add+relu", "NormForward -> ADD -> RELU_FWD, bitmask (NormAddRelu)", norm_add_relu, false,
     true},
    {"relu+norm-back", "MUL by bitmask, kept -> NormBackward (DReluForkDNorm)", relu_norm_back,
     false, true},
};

enum { PATTERNS = sizeof patterns / sizeof patterns[0] };

#endif
