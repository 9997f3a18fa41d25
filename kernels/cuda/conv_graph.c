#include "conv_parts.h"

#include <string.h>

/* The tensors of LS_CONV_DATA_GATED in memory. */
enum {
    GATE_RESULT,
    GATE_W,
    GATE_DY,
    GATE_X,
    GATE_MEAN,
    GATE_INV_STD,
    GATE_SCALE,
    GATE_BIAS,
    GATE_LISTS,
};

/* The tensors in memory of the passes that apply a norm; further ones are the sums of forward. */
enum { APPLY_X, APPLY_W, APPLY_Y, APPLY_SCALE, APPLY_BIAS, APPLY_SUM, APPLY_SQUARES };

static const ls_conv_kind kinds[LS_CONV_PASSES] = {
    [LS_CONV_FORWARD] = {"forward",
                         NULL,
                         LS_CONV_FORWARD,
                         3,
                         {{LS_CONV_ID_X, LS_CONV_AS_X},
                          {LS_CONV_ID_W, LS_CONV_AS_W},
                          {LS_CONV_ID_Y, LS_CONV_AS_Y}}},
    [LS_CONV_BACKWARD_DATA] = {"backward data",
                               NULL,
                               LS_CONV_BACKWARD_DATA,
                               3,
                               {{LS_CONV_ID_X, LS_CONV_AS_X},
                                {LS_CONV_ID_W, LS_CONV_AS_W},
                                {LS_CONV_ID_Y, LS_CONV_AS_Y}}},
    [LS_CONV_BACKWARD_WEIGHTS] = {"backward weights",
                                  NULL,
                                  LS_CONV_BACKWARD_WEIGHTS,
                                  3,
                                  {{LS_CONV_ID_X, LS_CONV_AS_X},
                                   {LS_CONV_ID_W, LS_CONV_AS_W},
                                   {LS_CONV_ID_Y, LS_CONV_AS_Y}}},
    [LS_CONV_FORWARD_SUMS] = {"forward with sums",
                              "sums=",
                              LS_CONV_FORWARD,
                              5,
                              {{LS_CONV_ID_X, LS_CONV_AS_X},
                               {LS_CONV_ID_W, LS_CONV_AS_W},
                               {LS_CONV_ID_Y, LS_CONV_AS_Y},
                               {LS_CONV_ID_SUM, LS_CONV_PER_OUTPUT},
                               {LS_CONV_ID_SQUARES, LS_CONV_PER_OUTPUT}}},
    [LS_CONV_DATA_GATED] = {"gated backward data with sums",
                            "gate=",
                            LS_CONV_BACKWARD_DATA,
                            GATE_LISTS + LS_CONV_GATE_LISTS,
                            {[GATE_RESULT] = {LS_CONV_ID_GATED, LS_CONV_AS_X},
                             [GATE_W] = {LS_CONV_ID_W, LS_CONV_AS_W},
                             [GATE_DY] = {LS_CONV_ID_Y, LS_CONV_AS_Y},
                             [GATE_X] = {LS_CONV_ID_NORMED, LS_CONV_AS_X},
                             [GATE_MEAN] = {LS_CONV_ID_MEAN, LS_CONV_PER_INPUT},
                             [GATE_INV_STD] = {LS_CONV_ID_INV_STD, LS_CONV_PER_INPUT},
                             [GATE_SCALE] = {LS_CONV_ID_SCALE, LS_CONV_PER_INPUT},
                             [GATE_BIAS] = {LS_CONV_ID_BIAS, LS_CONV_PER_INPUT},
                             [GATE_LISTS] = {LS_CONV_ID_LISTS, LS_CONV_PER_INPUT},
                             {LS_CONV_ID_LISTS + 1, LS_CONV_PER_INPUT},
                             {LS_CONV_ID_LISTS + 2, LS_CONV_PER_INPUT},
                             {LS_CONV_ID_LISTS + 3, LS_CONV_PER_INPUT},
                             {LS_CONV_ID_LISTS + 4, LS_CONV_PER_INPUT}}},
    [LS_CONV_FORWARD_APPLIED] = {"applying forward with sums",
                                 "apply=",
                                 LS_CONV_FORWARD,
                                 7,
                                 {[APPLY_X] = {LS_CONV_ID_RAW, LS_CONV_AS_X},
                                  [APPLY_W] = {LS_CONV_ID_W, LS_CONV_AS_W},
                                  [APPLY_Y] = {LS_CONV_ID_Y, LS_CONV_AS_Y},
                                  [APPLY_SCALE] = {LS_CONV_ID_SCALE, LS_CONV_HALF_PER_INPUT},
                                  [APPLY_BIAS] = {LS_CONV_ID_BIAS, LS_CONV_HALF_PER_INPUT},
                                  [APPLY_SUM] = {LS_CONV_ID_SUM, LS_CONV_PER_OUTPUT},
                                  [APPLY_SQUARES] = {LS_CONV_ID_SQUARES, LS_CONV_PER_OUTPUT}}},
    [LS_CONV_WEIGHTS_APPLIED] = {"applying backward weights",
                                 "weigh=",
                                 LS_CONV_BACKWARD_WEIGHTS,
                                 5,
                                 {[APPLY_X] = {LS_CONV_ID_RAW, LS_CONV_AS_X},
                                  [APPLY_W] = {LS_CONV_ID_W, LS_CONV_AS_W},
                                  [APPLY_Y] = {LS_CONV_ID_Y, LS_CONV_AS_Y},
                                  [APPLY_SCALE] = {LS_CONV_ID_SCALE, LS_CONV_HALF_PER_INPUT},
                                  [APPLY_BIAS] = {LS_CONV_ID_BIAS, LS_CONV_HALF_PER_INPUT}}},
};

void ls_conv_graph_gate(const ls_conv_shape *shape, void *g, const void *w, const void *dy,
                        const ls_conv_gate *gate, const void **data)
{
    data[GATE_RESULT] = g;
    data[GATE_W] = w;
    data[GATE_DY] = dy;
    data[GATE_X] = gate->x;
    data[GATE_MEAN] = gate->mean;
    data[GATE_INV_STD] = gate->inv_std;
    data[GATE_SCALE] = gate->scale;
    data[GATE_BIAS] = gate->bias;
    for (int i = 0; i < LS_CONV_GATE_LISTS; i++) {
        data[GATE_LISTS + i] = gate->sums + i * ls_conv_sums_step(shape->in_channels);
    }
}

const ls_conv_kind *ls_conv_graph_kind(ls_conv_pass pass)
{
    return &kinds[pass];
}

void ls_conv_graph_drop(cudnnBackendDescriptor_t descriptor)
{
    if (descriptor) {
        cudnnBackendDestroyDescriptor(descriptor);
    }
}

static ls_status set_one(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                         cudnnBackendAttributeType_t type, const void *value)
{
    LS_CUDNN(cudnnBackendSetAttribute(descriptor, name, type, 1, value));
    return LS_OK;
}

static ls_status set_numbers(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                             int64_t count, const int64_t *value)
{
    LS_CUDNN(cudnnBackendSetAttribute(descriptor, name, CUDNN_TYPE_INT64, count, value));
    return LS_OK;
}

static cudnnDataType_t data_type(ls_dtype type)
{
    LS_ASSERT(type == LS_F32 || type == LS_F16 || type == LS_BF16);
    return type == LS_F32   ? CUDNN_DATA_FLOAT
           : type == LS_F16 ? CUDNN_DATA_HALF
                            : CUDNN_DATA_BFLOAT16;
}

/* Dimensions in cuDNN's order: images, channels, height, width; of a weight out, in, height, width.
 */
static void dimensions_of(const ls_conv_shape *s, ls_conv_extent extent, int64_t *to)
{
    const int64_t of[][4] = {
        [LS_CONV_AS_X] = {s->batch, s->in_channels, s->in_height, s->in_width},
        [LS_CONV_AS_W] = {s->out_channels, s->in_channels, s->kernel, s->kernel},
        [LS_CONV_AS_Y] = {s->batch, s->out_channels, s->out_height, s->out_width},
        [LS_CONV_HALF_PER_INPUT] = {1, s->in_channels, 1, 1},
        [LS_CONV_PER_OUTPUT] = {1, s->out_channels, 1, 1},
        [LS_CONV_PER_INPUT] = {1, s->in_channels, 1, 1},
    };
    memcpy(to, of[extent], sizeof of[extent]);
}

int64_t ls_conv_graph_count(const ls_conv_shape *shape, ls_conv_extent extent)
{
    int64_t d[4];
    dimensions_of(shape, extent, d);
    return d[0] * d[1] * d[2] * d[3];
}

ls_dtype ls_conv_graph_type(const ls_conv_key *key, ls_conv_extent extent)
{
    return extent <= LS_CONV_HALF_PER_INPUT ? key->type : LS_F32;
}

/* A descriptor that lives as long as the graph. */
static ls_status make(ls_conv_graph *g, cudnnBackendDescriptorType_t type,
                      cudnnBackendDescriptor_t *out)
{
    LS_ASSERT(g->parts < LS_CONV_PARTS_MOST);
    LS_CUDNN(cudnnBackendCreateDescriptor(type, out));
    g->part[g->parts++] = *out;
    return LS_OK;
}

static ls_status make_operation(ls_conv_graph *g, cudnnBackendDescriptorType_t type,
                                cudnnBackendDescriptor_t *out)
{
    LS_TRY(make(g, type, out));
    LS_ASSERT(g->operations < LS_CONV_OPERATIONS_MOST);
    g->operation[g->operations++] = *out;
    return LS_OK;
}

/* Strides put the channels innermost. within: only inside the graph, not in memory. */
static ls_status build_tensor(ls_conv_graph *g, int64_t id, ls_dtype type, const int64_t *dimension,
                              bool within, cudnnBackendDescriptor_t *out)
{
    int64_t channels = dimension[1], width = dimension[3];
    int64_t stride[4] = {dimension[2] * width * channels, 1, width * channels, channels};
    cudnnDataType_t element = data_type(type);
    int64_t alignment = LS_CONV_ALIGNMENT;
    LS_TRY(make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, out));
    LS_TRY(set_one(*out, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &element));
    LS_TRY(set_numbers(*out, CUDNN_ATTR_TENSOR_DIMENSIONS, 4, dimension));
    LS_TRY(set_numbers(*out, CUDNN_ATTR_TENSOR_STRIDES, 4, stride));
    LS_TRY(set_numbers(*out, CUDNN_ATTR_TENSOR_UNIQUE_ID, 1, &id));
    LS_TRY(set_numbers(*out, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1, &alignment));
    if (within) {
        LS_TRY(set_one(*out, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &within));
    }
    LS_CUDNN(cudnnBackendFinalize(*out));
    return LS_OK;
}

static ls_status build_tensors(const ls_conv_key *key, ls_conv_graph *g)
{
    const ls_conv_kind *kind = ls_conv_graph_kind(key->pass);
    for (int i = 0; i < kind->count; i++) {
        int64_t dimension[4];
        ls_conv_extent extent = kind->tensor[i].extent;
        dimensions_of(&key->shape, extent, dimension);
        LS_TRY(build_tensor(g, kind->tensor[i].id, ls_conv_graph_type(key, extent), dimension,
                            false, &g->tensor[i]));
    }
    return LS_OK;
}

static ls_status build_convolution(const ls_conv_shape *s, ls_conv_graph *g,
                                   cudnnBackendDescriptor_t *out)
{
    int64_t dimensions = 2, stride[2] = {s->stride, s->stride}, pad[2] = {s->pad, s->pad};
    int64_t dilation[2] = {1, 1};
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    LS_TRY(make(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, out));
    LS_TRY(set_one(*out, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &compute));
    LS_TRY(set_one(*out, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, &mode));
    LS_TRY(set_numbers(*out, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 1, &dimensions));
    LS_TRY(set_numbers(*out, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 2, stride));
    LS_TRY(set_numbers(*out, CUDNN_ATTR_CONVOLUTION_DILATIONS, 2, dilation));
    LS_TRY(set_numbers(*out, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 2, pad));
    LS_TRY(set_numbers(*out, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 2, pad));
    LS_CUDNN(cudnnBackendFinalize(*out));
    return LS_OK;
}

/* The same roles have different attribute names in each of the three operations. */
enum { OPERANDS = 3 };

static const struct operation_names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t alpha, beta, conv, operand[OPERANDS];
} operations[LS_CONV_PLAIN_PASSES] = {
    [LS_CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                         {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                          CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y}},
    [LS_CONV_BACKWARD_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                               {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY}},
    [LS_CONV_BACKWARD_WEIGHTS] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                                  CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                  {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}},
};

/* result = 1 * convolution + beta * result; with beta 0 the old values are not read. x, w, y: the
 * operands and the result, or their gradients. */
static ls_status build_product(const ls_conv_key *key, ls_conv_graph *g, cudnnBackendDescriptor_t x,
                               cudnnBackendDescriptor_t w, cudnnBackendDescriptor_t y)
{
    const struct operation_names *n = &operations[ls_conv_graph_kind(key->pass)->plain];
    cudnnBackendDescriptor_t conv = NULL, product = NULL, operand[OPERANDS] = {x, w, y};
    float alpha = 1, beta = key->onto ? 1 : 0;
    LS_TRY(build_convolution(&key->shape, g, &conv));
    LS_TRY(make_operation(g, n->type, &product));
    for (int i = 0; i < OPERANDS; i++) {
        LS_TRY(set_one(product, n->operand[i], CUDNN_TYPE_BACKEND_DESCRIPTOR, &operand[i]));
    }
    LS_TRY(set_one(product, n->conv, CUDNN_TYPE_BACKEND_DESCRIPTOR, &conv));
    LS_TRY(set_one(product, n->alpha, CUDNN_TYPE_FLOAT, &alpha));
    LS_TRY(set_one(product, n->beta, CUDNN_TYPE_FLOAT, &beta));
    LS_CUDNN(cudnnBackendFinalize(product));
    return LS_OK;
}

/* The sums of y and of y^2, per channel, in f32. */
static ls_status build_sums(ls_conv_graph *g, cudnnBackendDescriptor_t y,
                            cudnnBackendDescriptor_t sum, cudnnBackendDescriptor_t squares)
{
    cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t sums = NULL;
    LS_TRY(make_operation(g, CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, &sums));
    LS_TRY(set_one(sums, CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, &mode));
    LS_TRY(set_one(sums, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &compute));
    LS_TRY(set_one(sums, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &y));
    LS_TRY(
        set_one(sums, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &sum));
    LS_TRY(set_one(sums, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                   &squares));
    LS_CUDNN(cudnnBackendFinalize(sums));
    return LS_OK;
}

/* A tensor as large as x, in f32, inside the graph. */
static ls_status build_within(const ls_conv_key *key, ls_conv_graph *g, int64_t id,
                              cudnnBackendDescriptor_t *out)
{
    int64_t dimension[4];
    dimensions_of(&key->shape, LS_CONV_AS_X, dimension);
    return build_tensor(g, id, LS_F32, dimension, true, out);
}

/* to = a OP b; RELU_FWD: to = relu(a); RELU_BWD: to = b where a > 0, else 0. */
static ls_status build_pointwise(ls_conv_graph *g, cudnnPointwiseMode_t mode,
                                 cudnnBackendDescriptor_t a, cudnnBackendDescriptor_t b,
                                 cudnnBackendDescriptor_t to)
{
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t how = NULL, op = NULL;
    bool gates = mode == CUDNN_POINTWISE_RELU_BWD;
    LS_TRY(make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &how));
    LS_TRY(set_one(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode));
    LS_TRY(set_one(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &compute));
    LS_CUDNN(cudnnBackendFinalize(how));
    LS_TRY(make_operation(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, &op));
    LS_TRY(set_one(op, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                   &how));
    LS_TRY(set_one(op, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, &a));
    if (b != NULL) {
        LS_TRY(set_one(op,
                       gates ? CUDNN_ATTR_OPERATION_POINTWISE_DYDESC
                             : CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
                       CUDNN_TYPE_BACKEND_DESCRIPTOR, &b));
    }
    LS_TRY(set_one(
        op, gates ? CUDNN_ATTR_OPERATION_POINTWISE_DXDESC : CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
        CUDNN_TYPE_BACKEND_DESCRIPTOR, &to));
    LS_CUDNN(cudnnBackendFinalize(op));
    return LS_OK;
}

/* The sums of a batch norm's gradient, from its input and the gradient behind it. */
static ls_status build_norm_sums(ls_conv_graph *g)
{
    static const struct {
        cudnnBackendAttributeName_t name;
        int tensor;
    } parts[] = {
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, GATE_X},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, GATE_RESULT},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, GATE_MEAN},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, GATE_INV_STD},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, GATE_SCALE},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, GATE_LISTS + LS_CONV_GATE_SUM_X},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, GATE_LISTS + LS_CONV_GATE_SUM},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, GATE_LISTS + 2},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, GATE_LISTS + 3},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, GATE_LISTS + 4},
    };
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnBackendDescriptor_t sums = NULL;
    LS_TRY(make_operation(g, CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR, &sums));
    LS_TRY(set_one(sums, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_TYPE_DATA_TYPE,
                   &compute));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        LS_TRY(set_one(sums, parts[i].name, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                       &g->tensor[parts[i].tensor]));
    }
    LS_CUDNN(cudnnBackendFinalize(sums));
    return LS_OK;
}

/* Backward data -> RELU_BWD -> BN_BWD_WEIGHTS, the ReLU by the norm's output, computed once more.
 */
static ls_status build_gate(const ls_conv_key *key, ls_conv_graph *g)
{
    static const struct {
        cudnnPointwiseMode_t mode;
        int second;
    } steps[] = {{CUDNN_POINTWISE_SUB, GATE_MEAN},
                 {CUDNN_POINTWISE_MUL, GATE_INV_STD},
                 {CUDNN_POINTWISE_MUL, GATE_SCALE},
                 {CUDNN_POINTWISE_ADD, GATE_BIAS}};
    cudnnBackendDescriptor_t dx = NULL, value = g->tensor[GATE_X], next = NULL;
    LS_TRY(build_within(key, g, LS_CONV_ID_X, &dx));
    LS_TRY(build_product(key, g, dx, g->tensor[GATE_W], g->tensor[GATE_DY]));
    for (int i = 0; i < (int)(sizeof steps / sizeof *steps); i++) {
        LS_TRY(build_within(key, g, LS_CONV_ID_WITHIN + i, &next));
        LS_TRY(build_pointwise(g, steps[i].mode, value, g->tensor[steps[i].second], next));
        value = next;
    }
    LS_TRY(build_pointwise(g, CUDNN_POINTWISE_RELU_BWD, value, dx, g->tensor[GATE_RESULT]));
    return build_norm_sums(g);
}

/* MUL scale, ADD bias, RELU_FWD -> the product of that and, forward, its sums. */
static ls_status build_applied(const ls_conv_key *key, ls_conv_graph *g)
{
    cudnnBackendDescriptor_t *t = g->tensor, scaled = NULL, moved = NULL, x = NULL;
    LS_TRY(build_within(key, g, LS_CONV_ID_WITHIN, &scaled));
    LS_TRY(build_pointwise(g, CUDNN_POINTWISE_MUL, t[APPLY_X], t[APPLY_SCALE], scaled));
    LS_TRY(build_within(key, g, LS_CONV_ID_WITHIN + 1, &moved));
    LS_TRY(build_pointwise(g, CUDNN_POINTWISE_ADD, scaled, t[APPLY_BIAS], moved));
    LS_TRY(build_within(key, g, LS_CONV_ID_X, &x));
    LS_TRY(build_pointwise(g, CUDNN_POINTWISE_RELU_FWD, moved, NULL, x));
    LS_TRY(build_product(key, g, x, t[APPLY_W], t[APPLY_Y]));
    return key->pass == LS_CONV_FORWARD_APPLIED
               ? build_sums(g, t[APPLY_Y], t[APPLY_SUM], t[APPLY_SQUARES])
               : LS_OK;
}

static ls_status build_operations(const ls_conv_key *key, ls_conv_graph *g)
{
    cudnnBackendDescriptor_t *t = g->tensor;
    if (key->pass == LS_CONV_DATA_GATED) {
        return build_gate(key, g);
    }
    if (key->pass == LS_CONV_FORWARD_APPLIED || key->pass == LS_CONV_WEIGHTS_APPLIED) {
        return build_applied(key, g);
    }
    LS_TRY(build_product(key, g, t[0], t[1], t[2]));
    return key->pass == LS_CONV_FORWARD_SUMS ? build_sums(g, t[2], t[3], t[4]) : LS_OK;
}

static ls_status build(const ls_conv_key *key, ls_conv_graph *g)
{
    LS_TRY(build_tensors(key, g));
    LS_TRY(build_operations(key, g));
    LS_TRY(make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &g->graph));
    LS_CUDNN(cudnnBackendSetAttribute(g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, g->operations, g->operation));
    if (!g->target.properties) {
        LS_TRY(set_one(g->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE,
                       &g->target.handle));
    }
    LS_CUDNN(cudnnBackendFinalize(g->graph));
    return LS_OK;
}

ls_status ls_conv_graph_build(const ls_conv_target *target, const ls_conv_key *key,
                              ls_conv_graph *out)
{
    ls_conv_graph g = {.target = *target};
    ls_status status = build(key, &g);
    if (status != LS_OK) {
        ls_conv_graph_free(&g);
        return status;
    }
    *out = g;
    return LS_OK;
}

void ls_conv_graph_free(ls_conv_graph *g)
{
    while (g->parts > 0) {
        ls_conv_graph_drop(g->part[--g->parts]);
    }
    *g = (ls_conv_graph){0};
}
