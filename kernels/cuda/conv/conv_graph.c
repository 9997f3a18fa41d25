#include "conv_internal.h"

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
    /* of LS_CONV_DATA_JOINED, too */
    JOIN_OTHER = GATE_LISTS + LS_CONV_GATE_LISTS,
    JOIN_RESIDUAL,
    /* of LS_CONV_DATA_JOINED_TWICE, too */
    JOIN_MEAN,
    JOIN_INV_STD,
    JOIN_SCALE,
    JOIN_BIAS,
    JOIN_LISTS,
};

#define GATE_TENSORS                                                                           \
    [GATE_RESULT] = {LS_CONV_ID_GATED, LS_CONV_AS_X}, [GATE_W] = {LS_CONV_ID_W, LS_CONV_AS_W}, \
    [GATE_DY] = {LS_CONV_ID_Y, LS_CONV_AS_Y}, [GATE_X] = {LS_CONV_ID_NORMED, LS_CONV_AS_X},    \
    [GATE_MEAN] = {LS_CONV_ID_MEAN, LS_CONV_PER_INPUT},                                        \
    [GATE_INV_STD] = {LS_CONV_ID_INV_STD, LS_CONV_PER_INPUT},                                  \
    [GATE_SCALE] = {LS_CONV_ID_SCALE, LS_CONV_PER_INPUT},                                      \
    [GATE_BIAS] = {LS_CONV_ID_BIAS, LS_CONV_PER_INPUT}, LISTS(GATE_LISTS, LS_CONV_ID_LISTS)
#define LISTS(first, id)                                                                          \
    [first] = {id, LS_CONV_PER_INPUT}, [(first) + 1] = {(id) + 1, LS_CONV_PER_INPUT},             \
    [(first) + 2] = {(id) + 2, LS_CONV_PER_INPUT}, [(first) + 3] = {(id) + 3, LS_CONV_PER_INPUT}, \
    [(first) + 4] = {(id) + 4, LS_CONV_PER_INPUT}
#define JOIN_TENSORS                                               \
    GATE_TENSORS, [JOIN_OTHER] = {LS_CONV_ID_OTHER, LS_CONV_AS_X}, \
                  [JOIN_RESIDUAL] = {LS_CONV_ID_RESIDUAL, LS_CONV_AS_X}

/* The tensors in memory of the passes that apply a norm; further ones are the sums of forward. */
enum { APPLY_X, APPLY_W, APPLY_Y, APPLY_SCALE, APPLY_BIAS, APPLY_SUM, APPLY_SQUARES };

#define PLAIN_TENSORS                                           \
    {LS_CONV_ID_X, LS_CONV_AS_X}, {LS_CONV_ID_W, LS_CONV_AS_W}, \
    {                                                           \
        LS_CONV_ID_Y, LS_CONV_AS_Y                              \
    }
#define APPLY_TENSORS                                                                     \
    [APPLY_X] = {LS_CONV_ID_RAW, LS_CONV_AS_X}, [APPLY_W] = {LS_CONV_ID_W, LS_CONV_AS_W}, \
    [APPLY_Y] = {LS_CONV_ID_Y, LS_CONV_AS_Y},                                             \
    [APPLY_SCALE] = {LS_CONV_ID_SCALE, LS_CONV_HALF_PER_INPUT},                           \
    [APPLY_BIAS] = {LS_CONV_ID_BIAS, LS_CONV_HALF_PER_INPUT}
#define SUMS                                   \
    {LS_CONV_ID_SUM, LS_CONV_PER_OUTPUT},      \
    {                                          \
        LS_CONV_ID_SQUARES, LS_CONV_PER_OUTPUT \
    }

static const ls_conv_kind kinds[LS_CONV_PASSES] = {
    [LS_CONV_FORWARD] = {"forward", NULL, LS_CONV_FORWARD, 3, {PLAIN_TENSORS}},
    [LS_CONV_BACKWARD_DATA] = {"backward data", NULL, LS_CONV_BACKWARD_DATA, 3, {PLAIN_TENSORS}},
    [LS_CONV_BACKWARD_WEIGHTS] =
        {"backward weights", NULL, LS_CONV_BACKWARD_WEIGHTS, 3, {PLAIN_TENSORS}},
    [LS_CONV_FORWARD_SUMS] =
        {"forward with sums", "sums=", LS_CONV_FORWARD, 5, {PLAIN_TENSORS, SUMS}},
    [LS_CONV_DATA_GATED] = {"gated backward data with sums",
                            "gate=",
                            LS_CONV_BACKWARD_DATA,
                            GATE_LISTS + LS_CONV_GATE_LISTS,
                            {GATE_TENSORS}},
    [LS_CONV_DATA_JOINED] = {"joined backward data with sums",
                             "join=",
                             LS_CONV_BACKWARD_DATA,
                             JOIN_RESIDUAL + 1,
                             {JOIN_TENSORS}},
    [LS_CONV_DATA_JOINED_TWICE] =
        {"joined backward data with sums of two norms",
         "join2=",
         LS_CONV_BACKWARD_DATA,
         JOIN_LISTS + LS_CONV_GATE_LISTS,
         {JOIN_TENSORS, [JOIN_MEAN] = {LS_CONV_ID_SECOND_MEAN, LS_CONV_PER_INPUT},
          [JOIN_INV_STD] = {LS_CONV_ID_SECOND_INV_STD, LS_CONV_PER_INPUT},
          [JOIN_SCALE] = {LS_CONV_ID_SECOND_SCALE, LS_CONV_PER_INPUT},
          [JOIN_BIAS] = {LS_CONV_ID_SECOND_BIAS, LS_CONV_PER_INPUT},
          LISTS(JOIN_LISTS, LS_CONV_ID_SECOND_LISTS)}},
    [LS_CONV_FORWARD_APPLIED] =
        {"applying forward with sums", "apply=", LS_CONV_FORWARD, 7, {APPLY_TENSORS, SUMS}},
    [LS_CONV_WEIGHTS_APPLIED] =
        {"applying backward weights", "weigh=", LS_CONV_BACKWARD_WEIGHTS, 5, {APPLY_TENSORS}},
};

/* The tensors of a batch norm in a gated gradient. */
typedef struct gate_side {
    int x, mean, inv_std, scale, bias, lists;
} gate_side;

static const gate_side gate_sides[2] = {
    {GATE_X, GATE_MEAN, GATE_INV_STD, GATE_SCALE, GATE_BIAS, GATE_LISTS},
    {JOIN_RESIDUAL, JOIN_MEAN, JOIN_INV_STD, JOIN_SCALE, JOIN_BIAS, JOIN_LISTS},
};

static void set_side(const ls_conv_shape *shape, const gate_side *side, const ls_conv_gate *gate,
                     const void **data)
{
    data[side->x] = gate->x;
    data[side->mean] = gate->mean;
    data[side->inv_std] = gate->inv_std;
    data[side->scale] = gate->scale;
    data[side->bias] = gate->bias;
    for (int i = 0; i < LS_CONV_GATE_LISTS; i++) {
        data[side->lists + i] = gate->sums + i * ls_conv_sums_step(shape->in_channels);
    }
}

void ls_conv_graph_gate(const ls_conv_shape *shape, void *g, const void *w, const void *dy,
                        const ls_conv_gate *gate, const void **data)
{
    data[GATE_RESULT] = g;
    data[GATE_W] = w;
    data[GATE_DY] = dy;
    set_side(shape, &gate_sides[0], gate, data);
}

void ls_conv_graph_join(const ls_conv_shape *shape, void *g, const void *w, const void *dy,
                        const ls_conv_join *join, const void **data)
{
    ls_conv_graph_gate(shape, g, w, dy, &join->side[0], data);
    data[JOIN_OTHER] = join->other;
    if (join->twice) {
        set_side(shape, &gate_sides[1], &join->side[1], data);
    } else {
        data[JOIN_RESIDUAL] = join->residual;
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
static ls_status build_norm_sums(ls_conv_graph *g, const gate_side *side)
{
    const struct {
        cudnnBackendAttributeName_t name;
        int tensor;
    } parts[] = {
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC, side->x},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC, GATE_RESULT},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC, side->mean},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC, side->inv_std},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC, side->scale},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC, side->lists + LS_CONV_GATE_SUM_X},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC, side->lists + LS_CONV_GATE_SUM},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC, side->lists + 2},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC, side->lists + 3},
        {CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS, side->lists + 4},
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

/* A norm's output, computed once more: four steps, whose ids begin at `first`. */
static ls_status build_normed(const ls_conv_key *key, ls_conv_graph *g, const gate_side *side,
                              int64_t first, cudnnBackendDescriptor_t *out)
{
    const struct {
        cudnnPointwiseMode_t mode;
        int second;
    } steps[] = {{CUDNN_POINTWISE_SUB, side->mean},
                 {CUDNN_POINTWISE_MUL, side->inv_std},
                 {CUDNN_POINTWISE_MUL, side->scale},
                 {CUDNN_POINTWISE_ADD, side->bias}};
    cudnnBackendDescriptor_t value = g->tensor[side->x], next = NULL;
    for (int i = 0; i < (int)(sizeof steps / sizeof *steps); i++) {
        LS_TRY(build_within(key, g, first + i, &next));
        LS_TRY(build_pointwise(g, steps[i].mode, value, g->tensor[steps[i].second], next));
        value = next;
    }
    *out = value;
    return LS_OK;
}

/* to = a + b, inside the graph. */
static ls_status build_added(const ls_conv_key *key, ls_conv_graph *g, int64_t id,
                             cudnnBackendDescriptor_t a, cudnnBackendDescriptor_t b,
                             cudnnBackendDescriptor_t *to)
{
    LS_TRY(build_within(key, g, id, to));
    return build_pointwise(g, CUDNN_POINTWISE_ADD, a, b, *to);
}

/* Backward data -> RELU_BWD -> BN_BWD_WEIGHTS, the ReLU by the norm's output, computed once more.
 * At the end of a block -> ADD -> RELU_BWD, by that plus the residual, or plus another norm's
 * output, which then has sums of its own. */
static ls_status build_gate(const ls_conv_key *key, ls_conv_graph *g)
{
    enum { STEPS = 4 };
    bool joined = key->pass != LS_CONV_DATA_GATED, twice = key->pass == LS_CONV_DATA_JOINED_TWICE;
    cudnnBackendDescriptor_t dx = NULL, output = NULL, other = NULL, sum = NULL;
    LS_TRY(build_within(key, g, LS_CONV_ID_X, &dx));
    LS_TRY(build_product(key, g, dx, g->tensor[GATE_W], g->tensor[GATE_DY]));
    if (joined) {
        LS_TRY(build_added(key, g, LS_CONV_ID_SUMMED, dx, g->tensor[JOIN_OTHER], &sum));
        dx = sum;
    }
    LS_TRY(build_normed(key, g, &gate_sides[0], LS_CONV_ID_WITHIN, &output));
    if (joined) {
        other = g->tensor[JOIN_RESIDUAL];
        if (twice) {
            LS_TRY(build_normed(key, g, &gate_sides[1], LS_CONV_ID_WITHIN + STEPS, &other));
        }
        LS_TRY(build_added(key, g, LS_CONV_ID_SUMMED + 1, output, other, &sum));
        output = sum;
    }
    LS_TRY(build_pointwise(g, CUDNN_POINTWISE_RELU_BWD, output, dx, g->tensor[GATE_RESULT]));
    LS_TRY(build_norm_sums(g, &gate_sides[0]));
    return twice ? build_norm_sums(g, &gate_sides[1]) : LS_OK;
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
    if (key->pass == LS_CONV_DATA_GATED || key->pass == LS_CONV_DATA_JOINED ||
        key->pass == LS_CONV_DATA_JOINED_TWICE) {
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
