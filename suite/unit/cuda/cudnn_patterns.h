/* The graphs to query: one convolution with the operations that NVIDIA documents around it. */
#ifndef LS_UNIT_CUDNN_PATTERNS_H
#define LS_UNIT_CUDNN_PATTERNS_H

#include <stdio.h>
#include <string.h>

#include "kernels/cuda/conv/conv_internal.h"

/* Operation graphs with more than one convolution, in the patterns that cuDNN documents, for
 * queries whether cuDNN supports them. A refusal is a result: its text is kept, and later calls are
 * skipped. */

typedef cudnnBackendDescriptor_t dnn; /* any descriptor */

enum { MOST_PARTS = 96, MOST_OPS = 20 };

typedef struct fused {
    ls_conv_graph whole; /* target, and the graph once it is final */
    const ls_conv_shape *shape;
    cudnnDataType_t type;
    dnn part[MOST_PARTS], op[MOST_OPS];
    int parts, ops;
    cudnnStatus_t status; /* of the first refused call */
    char refused[512];    /* that call and cuDNN's own words; "" if none was refused */
} fused;

/* ---- descriptors ----------------------------------------------------------------------------- */

static inline void refuse(fused *g, cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS || g->status != CUDNN_STATUS_SUCCESS) {
        return;
    }
    char text[400] = "";
    cudnnGetLastErrorString(text, sizeof text);
    g->status = status;
    snprintf(g->refused, sizeof g->refused, "%s: %s: %s", what, cudnnGetErrorString(status), text);
}

static inline dnn make(fused *g, cudnnBackendDescriptorType_t type)
{
    dnn made = NULL;
    LS_ASSERT(g->parts < MOST_PARTS);
    if (g->status == CUDNN_STATUS_SUCCESS) {
        refuse(g, cudnnBackendCreateDescriptor(type, &made), "create");
        g->part[g->parts++] = made;
    }
    return made;
}

static inline void set(fused *g, dnn d, cudnnBackendAttributeName_t name,
                       cudnnBackendAttributeType_t type, int64_t count, const void *value)
{
    char what[64];
    if (g->status == CUDNN_STATUS_SUCCESS) {
        snprintf(what, sizeof what, "attribute %d", (int)name);
        refuse(g, cudnnBackendSetAttribute(d, name, type, count, value), what);
    }
}

static inline void set_part(fused *g, dnn d, cudnnBackendAttributeName_t name, dnn part)
{
    set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

static inline void finish(fused *g, dnn d, const char *what)
{
    if (g->status == CUDNN_STATUS_SUCCESS) {
        refuse(g, cudnnBackendFinalize(d), what);
    }
}

static inline void finish_op(fused *g, dnn d, const char *what)
{
    finish(g, d, what);
    LS_ASSERT(g->ops < MOST_OPS);
    g->op[g->ops++] = d;
}

/* ---- tensors --------------------------------------------------------------------------------- */

typedef enum kept { IN_MEMORY, WITHIN, BY_VALUE } kept;

static inline dnn graph_tensor(fused *g, cudnnDataType_t type, kept where, int64_t n, int64_t c,
                               int64_t h, int64_t w)
{
    int64_t dimension[4] = {n, c, h, w}, stride[4] = {h * w * c, 1, w * c, c};
    int64_t id = g->parts + 1, alignment = 16;
    bool yes = true;
    dnn t = make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dimension);
    set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (where != IN_MEMORY) {
        set(g, t, where == WITHIN ? CUDNN_ATTR_TENSOR_IS_VIRTUAL : CUDNN_ATTR_TENSOR_IS_BY_VALUE,
            CUDNN_TYPE_BOOLEAN, 1, &yes);
    }
    finish(g, t, "tensor");
    return t;
}

/* A tensor as large as the convolution's input; in memory of the graph's type, inside the graph
 * f32. */
static inline dnn input(fused *g, kept where)
{
    const ls_conv_shape *s = g->shape;
    return graph_tensor(g, where == WITHIN ? CUDNN_DATA_FLOAT : g->type, where, s->batch,
                        s->in_channels, s->in_height, s->in_width);
}

static inline dnn output(fused *g, cudnnDataType_t type, kept where)
{
    const ls_conv_shape *s = g->shape;
    return graph_tensor(g, type, where, s->batch, s->out_channels, s->out_height, s->out_width);
}

static inline dnn weight(fused *g)
{
    const ls_conv_shape *s = g->shape;
    return graph_tensor(g, g->type, IN_MEMORY, s->out_channels, s->in_channels, s->kernel,
                        s->kernel);
}

static inline dnn per_channel(fused *g, cudnnDataType_t type, int channels)
{
    return graph_tensor(g, type, IN_MEMORY, 1, channels, 1, 1);
}

static inline void per_channels(fused *g, int count, int channels, dnn *out)
{
    for (int i = 0; i < count; i++) {
        out[i] = per_channel(g, CUDNN_DATA_FLOAT, channels);
    }
}

static inline void set_parts(fused *g, dnn op, int count, const cudnnBackendAttributeName_t *name,
                             const dnn *part)
{
    for (int i = 0; i < count; i++) {
        set_part(g, op, name[i], part[i]);
    }
}

/* ---- operations ------------------------------------------------------------------------------ */

/* y = f(x) or f(x, b) */
static inline void pointwise(fused *g, cudnnPointwiseMode_t mode, dnn x, dnn b, dnn y)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    dnn how = make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(g, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    set(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    finish(g, how, "pointwise");
    dnn op = make(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (mode == CUDNN_POINTWISE_RELU_BWD) { /* b: the gradient of the ReLU's output, y: of x */
        set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, b);
        set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, y);
    } else {
        if (b) {
            set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
        }
        set_part(g, op, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    }
    finish_op(g, op, "pointwise operation");
}

static inline void convolution(fused *g, ls_conv_pass pass, dnn x, dnn w, dnn y, float beta)
{
    static const cudnnBackendDescriptorType_t types[LS_CONV_PASSES] = {
        CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
    };
    static const cudnnBackendAttributeName_t names[LS_CONV_PASSES][6] = {
        {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
        {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
    };
    const ls_conv_shape *s = g->shape;
    int64_t two = 2, stride[2] = {s->stride, s->stride}, pad[2] = {s->pad, s->pad};
    int64_t dilation[2] = {1, 1};
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    float alpha = 1;
    dnn conv = make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set(g, conv, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    set(g, conv, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(g, conv, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &two);
    set(g, conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride);
    set(g, conv, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation);
    set(g, conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pad);
    set(g, conv, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pad);
    finish(g, conv, "convolution");
    dnn op = make(g, types[pass]);
    set_part(g, op, names[pass][0], x);
    set_part(g, op, names[pass][1], w);
    set_part(g, op, names[pass][2], y);
    set_part(g, op, names[pass][3], conv);
    set(g, op, names[pass][4], CUDNN_TYPE_FLOAT, 1, &alpha);
    set(g, op, names[pass][5], CUDNN_TYPE_FLOAT, 1, &beta);
    finish_op(g, op, "convolution operation");
}

/* Sum and sum of squares of y per channel, f32. */
static inline void statistics(fused *g, dnn y)
{
    cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    int channels = g->shape->out_channels;
    dnn sum = per_channel(g, CUDNN_DATA_FLOAT, channels);
    dnn squares = per_channel(g, CUDNN_DATA_FLOAT, channels);
    dnn op = make(g, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
    set(g, op, CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, 1, &mode);
    set(g, op, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    set_part(g, op, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, y);
    set_part(g, op, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, sum);
    set_part(g, op, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, squares);
    finish_op(g, op, "statistics");
}

/* relu(scale x + bias): the batch norm before a convolution, in its simplest form, with scale and
 * bias of type `channel_type`. Its parts are f32, as in NVIDIA's examples. */
static inline dnn apply(fused *g, dnn x, cudnnDataType_t channel_type)
{
    int channels = g->shape->in_channels;
    dnn scale = per_channel(g, channel_type, channels),
        bias = per_channel(g, channel_type, channels);
    dnn scaled = input(g, WITHIN), normed = input(g, WITHIN), y = input(g, WITHIN);
    pointwise(g, CUDNN_POINTWISE_MUL, x, scale, scaled);
    pointwise(g, CUDNN_POINTWISE_ADD, scaled, bias, normed);
    pointwise(g, CUDNN_POINTWISE_RELU_FWD, normed, NULL, y);
    return y;
}

/* (x - mean) (1 / deviation) scale + bias, of which `part` are the four. */
static inline dnn norm(fused *g, dnn x, dnn *part)
{
    static const cudnnPointwiseMode_t mode[4] = {CUDNN_POINTWISE_SUB, CUDNN_POINTWISE_MUL,
                                                 CUDNN_POINTWISE_MUL, CUDNN_POINTWISE_ADD};
    per_channels(g, 4, g->shape->in_channels, part);
    for (int i = 0; i < 4; i++) {
        dnn y = input(g, WITHIN);
        pointwise(g, mode[i], x, part[i], y);
        x = y;
    }
    return x;
}

/* The sums of a batch norm's gradient, and the coefficients of its gradient of x. */
static inline void norm_sums(fused *g, dnn x, dnn dy, dnn mean, dnn deviation, dnn scale)
{
    static const cudnnBackendAttributeName_t out[5] = {
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC,
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC,
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC,
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC,
        CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS,
    };
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    dnn result[5];
    per_channels(g, 5, g->shape->in_channels, result);
    dnn op = make(g, CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR);
    set(g, op, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &compute);
    set_part(g, op, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, x);
    set_part(g, op, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, dy);
    set_part(g, op, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, mean);
    set_part(g, op, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, deviation);
    set_part(g, op, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, scale);
    set_parts(g, op, 5, out, result);
    finish_op(g, op, "sums of the batch norm's gradient");
}

/* Batch norm in training, with running statistics, of the convolution's output. */
static inline void norm_forward(fused *g, dnn x, dnn y)
{
    static const cudnnBackendAttributeName_t names[8] = {
        CUDNN_ATTR_OPERATION_NORM_FWD_SCALE_DESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_BIAS_DESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_MEAN_DESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_INV_VARIANCE_DESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_MEAN_DESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_INPUT_RUNNING_VAR_DESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_MEAN_DESC,
        CUDNN_ATTR_OPERATION_NORM_FWD_OUTPUT_RUNNING_VAR_DESC,
    };
    cudnnBackendNormMode_t mode = CUDNN_BATCH_NORM;
    cudnnBackendNormFwdPhase_t phase = CUDNN_NORM_FWD_TRAINING;
    dnn part[8];
    per_channels(g, 8, g->shape->out_channels, part);
    dnn epsilon = graph_tensor(g, CUDNN_DATA_FLOAT, BY_VALUE, 1, 1, 1, 1);
    dnn momentum = graph_tensor(g, CUDNN_DATA_FLOAT, BY_VALUE, 1, 1, 1, 1);
    dnn op = make(g, CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR);
    set(g, op, CUDNN_ATTR_OPERATION_NORM_FWD_MODE, CUDNN_TYPE_NORM_MODE, 1, &mode);
    set(g, op, CUDNN_ATTR_OPERATION_NORM_FWD_PHASE, CUDNN_TYPE_NORM_FWD_PHASE, 1, &phase);
    set_part(g, op, CUDNN_ATTR_OPERATION_NORM_FWD_XDESC, x);
    set_parts(g, op, 8, names, part);
    set_part(g, op, CUDNN_ATTR_OPERATION_NORM_FWD_EPSILON_DESC, epsilon);
    set_part(g, op, CUDNN_ATTR_OPERATION_NORM_FWD_EXP_AVG_FACTOR_DESC, momentum);
    set_part(g, op, CUDNN_ATTR_OPERATION_NORM_FWD_YDESC, y);
    finish_op(g, op, "batch norm");
}

static inline void norm_backward(fused *g, dnn x, dnn dy, dnn dx)
{
    static const cudnnBackendAttributeName_t names[5] = {
        CUDNN_ATTR_OPERATION_NORM_BWD_SCALE_DESC,        CUDNN_ATTR_OPERATION_NORM_BWD_MEAN_DESC,
        CUDNN_ATTR_OPERATION_NORM_BWD_INV_VARIANCE_DESC, CUDNN_ATTR_OPERATION_NORM_BWD_DSCALE_DESC,
        CUDNN_ATTR_OPERATION_NORM_BWD_DBIAS_DESC,
    };
    cudnnBackendNormMode_t mode = CUDNN_BATCH_NORM;
    dnn part[5];
    per_channels(g, 5, g->shape->out_channels, part);
    dnn op = make(g, CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR);
    set(g, op, CUDNN_ATTR_OPERATION_NORM_BWD_MODE, CUDNN_TYPE_NORM_MODE, 1, &mode);
    set_part(g, op, CUDNN_ATTR_OPERATION_NORM_BWD_XDESC, x);
    set_part(g, op, CUDNN_ATTR_OPERATION_NORM_BWD_DYDESC, dy);
    set_parts(g, op, 5, names, part);
    set_part(g, op, CUDNN_ATTR_OPERATION_NORM_BWD_DXDESC, dx);
    finish_op(g, op, "batch norm's gradient");
}

/* ---- life ------------------------------------------------------------------------------------ */

static inline fused fused_begin(const ls_conv_target *target, const ls_conv_shape *shape,
                                ls_dtype type)
{
    fused g = {.whole.target = *target, .shape = shape};
    g.type = type == LS_F32   ? CUDNN_DATA_FLOAT
             : type == LS_F16 ? CUDNN_DATA_HALF
                              : CUDNN_DATA_BFLOAT16;
    return g;
}

static inline void fused_finish(fused *g)
{
    dnn graph = make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->ops, g->op);
    if (!g->whole.target.properties) {
        set(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
            &g->whole.target.handle);
    }
    finish(g, graph, "graph");
    g->whole.graph = graph;
}

static inline void fused_free(fused *g)
{
    while (g->parts > 0) {
        ls_conv_graph_drop(g->part[--g->parts]);
    }
}

/* ---- graphs: `with` says what is in them beyond the convolution ------------------------------ */

enum {
    PLAIN = 0,
    STATS = 1, /* statistics of the output */
    APPLY = 2, /* to the input; 32: with scale and bias in f32 */
    APPLY32 = 4,
    ONTO = 8,   /* with BETA 1 */
    ADDED = 16, /* a second gradient, a residual */
    DUAL = 32   /* two norms */
};

static inline dnn applied(fused *g, int with)
{
    dnn x = input(g, IN_MEMORY);
    return with & (APPLY | APPLY32) ? apply(g, x, with & APPLY ? g->type : CUDNN_DATA_FLOAT) : x;
}

static inline void forward(fused *g, int with)
{
    dnn x = applied(g, with), w = weight(g), y = output(g, g->type, IN_MEMORY);
    convolution(g, LS_CONV_FORWARD, x, w, y, 0);
    if (with & STATS) {
        statistics(g, y);
    }
}

/* The end of a residual block with a projection, before the next block's first convolution: both
 * branches' batch norms, sum and ReLU, whose result is kept. */
static inline void join_forward_stats(fused *g, int with)
{
    (void)with;
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

/* With both ONTO and ADDED there is no tensor in memory to add to: a library that honours beta
 * cannot support it. */
static inline void data(fused *g, int with)
{
    dnn w = weight(g), dy = output(g, g->type, IN_MEMORY), dx = input(g, IN_MEMORY);
    dnn own = with & ADDED ? input(g, WITHIN) : dx;
    convolution(g, LS_CONV_BACKWARD_DATA, own, w, dy, with & ONTO ? 1 : 0);
    if (with & ADDED) {
        pointwise(g, CUDNN_POINTWISE_ADD, own, input(g, IN_MEMORY), dx);
    }
}

/* Backward data into the batch norm and ReLU before the convolution: the norm's output is
 * recomputed from x for the ReLU. */
static inline void data_relu_norm(fused *g, int with)
{
    dnn w = weight(g), dy = output(g, g->type, IN_MEMORY), dx = input(g, WITHIN);
    dnn x = input(g, IN_MEMORY), masked = input(g, IN_MEMORY), part[4];
    convolution(g, LS_CONV_BACKWARD_DATA, dx, w, dy, 0);
    if (with & ADDED) {
        dnn other = input(g, IN_MEMORY), sum = input(g, WITHIN);
        pointwise(g, CUDNN_POINTWISE_ADD, dx, other, sum);
        dx = sum;
    }
    pointwise(g, CUDNN_POINTWISE_RELU_BWD, norm(g, x, part), dx, masked);
    norm_sums(g, x, masked, part[0], part[1], part[2]);
}

/* The same where the ReLU is open as the stored output says, whatever a recomputed one would say.
 */
static inline void data_relu_of_stored_norm(fused *g, int with)
{
    (void)with;
    int channels = g->shape->in_channels;
    dnn w = weight(g), dy = output(g, g->type, IN_MEMORY), dx = input(g, WITHIN);
    dnn x = input(g, IN_MEMORY), y = input(g, IN_MEMORY), masked = input(g, IN_MEMORY), part[3];
    convolution(g, LS_CONV_BACKWARD_DATA, dx, w, dy, 0);
    per_channels(g, 3, channels, part); /* mean, 1 / deviation, scale */
    pointwise(g, CUDNN_POINTWISE_RELU_BWD, y, dx, masked);
    norm_sums(g, x, masked, part[0], part[1], part[2]);
}

/* Backward data into the end of a residual block: onto a second gradient, then through the ReLU of
 * norm + residual, or of two norms' sum, which is recomputed. */
static inline void data_join(fused *g, int with)
{
    dnn w = weight(g), dy = output(g, g->type, IN_MEMORY), own = input(g, WITHIN);
    dnn other = input(g, IN_MEMORY), dx = input(g, WITHIN), masked = input(g, IN_MEMORY);
    dnn x[2] = {input(g, IN_MEMORY), input(g, IN_MEMORY)}, normed[2] = {NULL, x[1]}, part[2][4];
    int norms = with & DUAL ? 2 : 1;
    convolution(g, LS_CONV_BACKWARD_DATA, own, w, dy, 0);
    pointwise(g, CUDNN_POINTWISE_ADD, own, other, dx);
    for (int k = 0; k < norms; k++) {
        normed[k] = norm(g, x[k], part[k]);
    }
    dnn sum = input(g, WITHIN);
    pointwise(g, CUDNN_POINTWISE_ADD, normed[0], normed[1], sum);
    pointwise(g, CUDNN_POINTWISE_RELU_BWD, sum, dx, masked);
    for (int k = 0; k < norms; k++) {
        norm_sums(g, x[k], masked, part[k][0], part[k][1], part[k][2]);
    }
}

/* Without the sums, through a stored mask. */
static inline void data_add_mask(fused *g, int with)
{
    (void)with;
    const ls_conv_shape *s = g->shape;
    dnn w = weight(g), dy = output(g, g->type, IN_MEMORY), own = input(g, WITHIN);
    dnn other = input(g, IN_MEMORY), dx = input(g, WITHIN), masked = input(g, IN_MEMORY);
    dnn mask = graph_tensor(g, CUDNN_DATA_BOOLEAN, IN_MEMORY, s->batch, s->in_channels,
                            s->in_height, s->in_width);
    convolution(g, LS_CONV_BACKWARD_DATA, own, w, dy, 0);
    pointwise(g, CUDNN_POINTWISE_ADD, own, other, dx);
    pointwise(g, CUDNN_POINTWISE_MUL, dx, mask, masked);
}

static inline void weights(fused *g, int with)
{
    dnn x = applied(g, with), dw = weight(g), dy = output(g, g->type, IN_MEMORY);
    convolution(g, LS_CONV_BACKWARD_WEIGHTS, x, dw, dy, 0);
}

static inline void norm_relu(fused *g, int with)
{
    dnn x = output(g, g->type, IN_MEMORY), z = output(g, CUDNN_DATA_FLOAT, WITHIN);
    dnn y = output(g, g->type, IN_MEMORY), mask = output(g, CUDNN_DATA_BOOLEAN, IN_MEMORY);
    dnn zero = graph_tensor(g, CUDNN_DATA_FLOAT, BY_VALUE, 1, 1, 1, 1);
    norm_forward(g, x, z);
    if (with & ADDED) {
        dnn other = output(g, g->type, IN_MEMORY), sum = output(g, CUDNN_DATA_FLOAT, WITHIN);
        pointwise(g, CUDNN_POINTWISE_ADD, z, other, sum);
        z = sum;
    }
    pointwise(g, CUDNN_POINTWISE_RELU_FWD, z, NULL, y);
    pointwise(g, CUDNN_POINTWISE_CMP_GT, y, zero, mask);
}

static inline void relu_norm_back(fused *g, int with)
{
    (void)with;
    dnn dy = output(g, g->type, IN_MEMORY), mask = output(g, CUDNN_DATA_BOOLEAN, IN_MEMORY);
    dnn masked = output(g, g->type, IN_MEMORY);
    dnn x = output(g, g->type, IN_MEMORY), dx = output(g, g->type, IN_MEMORY);
    pointwise(g, CUDNN_POINTWISE_MUL, dy, mask, masked);
    norm_backward(g, x, masked, dx);
}

static const struct pattern {
    const char *name, *what;
    void (*build)(fused *g, int with);
    int with;
    bool inner;   /* of a convolution after a batch norm, not of the image's */
    bool of_norm; /* of a batch norm as large as the convolution's output */
} patterns[] = {
    {"forward", "ConvFwd", forward, PLAIN, false, false},
    {"forward+stats", "ConvFwd -> GenStats", forward, STATS, false, false},
    {"apply+forward+stats", "MUL scale, ADD bias, RELU_FWD -> ConvFwd -> GenStats (ConvBNfprop)",
     forward, APPLY | STATS, true, false},
    {"apply32+forward+stats", "the same with scale and bias in f32", forward, APPLY32 | STATS, true,
     false},
    {"apply+forward", "the same as ConvBNfprop without GenStats", forward, APPLY, true, false},
    {"join+forward+stats",
     "two times MUL, ADD -> ADD -> RELU_FWD, kept -> ConvFwd -> GenStats (DBARCS)",
     join_forward_stats, PLAIN, true, false},
    {"data", "ConvBwdData", data, PLAIN, true, false},
    {"data-onto", "ConvBwdData with ALPHA 1 and BETA 1, onto the tensor in memory", data, ONTO,
     true, false},
    {"data+add", "ConvBwdData -> ADD of a second gradient", data, ADDED, true, false},
    {"data-onto+add", "the same with BETA 1, onto a tensor that is not in memory: not to be had",
     data, ONTO | ADDED, true, false},
    {"data+relu+norm", "ConvBwdData -> RELU_BWD -> BN_BWD_WEIGHTS (DgradDreluBNBwdWeight)",
     data_relu_norm, PLAIN, true, false},
    {"data+relu-of-y+norm",
     "the same with RELU_BWD by the stored output of the ReLU, not recomputed",
     data_relu_of_stored_norm, PLAIN, true, false},
    {"data+add+relu+norm", "the same with ADD of a second gradient before RELU_BWD", data_relu_norm,
     ADDED, true, false},
    {"data+add+relu-of-join+norm",
     "ConvBwdData -> ADD -> RELU_BWD by norm + residual -> BN_BWD_WEIGHTS: a block's end",
     data_join, PLAIN, true, false},
    {"data+add+relu-of-joined-norms+norms",
     "the same by the sum of two norms -> BN_BWD_WEIGHTS twice: a block's end with a projection",
     data_join, DUAL, true, false},
    {"data+add+mask", "ConvBwdData -> ADD -> MUL by bitmask", data_add_mask, PLAIN, true, false},
    {"weights", "ConvBwdFilter", weights, PLAIN, false, false},
    {"apply+weights", "MUL scale, ADD bias, RELU_FWD -> ConvBwdFilter (ConvBNwgrad)", weights,
     APPLY, true, false},
    {"norm+relu", "NormForward -> RELU_FWD, bitmask", norm_relu, PLAIN, false, true},
    {"norm+add+relu", "NormForward -> ADD -> RELU_FWD, bitmask (NormAddRelu)", norm_relu, ADDED,
     false, true},
    {"relu+norm-back", "MUL by bitmask, kept -> NormBackward (DReluForkDNorm)", relu_norm_back,
     PLAIN, false, true},
};

enum { PATTERNS = sizeof patterns / sizeof patterns[0] };

#endif
