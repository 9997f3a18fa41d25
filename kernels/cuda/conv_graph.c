#include "conv_parts.h"

const char *ls_conv_graph_pass_name(ls_conv_pass pass)
{
    static const char *const name[LS_CONV_PASSES] = {"forward", "backward data", "backward weights",
                                                     "forward with sums"};
    return name[pass];
}

int ls_conv_graph_ids(ls_conv_pass pass, int64_t *id)
{
    static const int64_t ids[LS_CONV_TENSORS_MOST] = {LS_CONV_ID_X, LS_CONV_ID_W, LS_CONV_ID_Y,
                                                      LS_CONV_ID_SUM, LS_CONV_ID_SQUARES};
    int count = pass == LS_CONV_FORWARD_SUMS ? LS_CONV_TENSORS_MOST : LS_CONV_TENSORS;
    for (int i = 0; id != NULL && i < count; i++) {
        id[i] = ids[i];
    }
    return count;
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

/* Dimensions in cuDNN's order (images, channels, height, width; for a weight: out, in, height,
 * width), with strides that put the channels innermost. */
static ls_status build_tensor(int64_t id, ls_dtype type, int images, int channels, int height,
                              int width, cudnnBackendDescriptor_t *out)
{
    int64_t dimension[4] = {images, channels, height, width};
    int64_t stride[4] = {(int64_t)height * width * channels, 1, (int64_t)width * channels,
                         channels};
    cudnnDataType_t element = data_type(type);
    int64_t alignment = LS_CONV_ALIGNMENT;
    LS_CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, out));
    LS_TRY(set_one(*out, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &element));
    LS_TRY(set_numbers(*out, CUDNN_ATTR_TENSOR_DIMENSIONS, 4, dimension));
    LS_TRY(set_numbers(*out, CUDNN_ATTR_TENSOR_STRIDES, 4, stride));
    LS_TRY(set_numbers(*out, CUDNN_ATTR_TENSOR_UNIQUE_ID, 1, &id));
    LS_TRY(set_numbers(*out, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1, &alignment));
    LS_CUDNN(cudnnBackendFinalize(*out));
    return LS_OK;
}

static ls_status build_tensors(const ls_conv_key *key, ls_conv_graph *g)
{
    const ls_conv_shape *s = &key->shape;
    LS_TRY(build_tensor(LS_CONV_ID_X, key->type, s->batch, s->in_channels, s->in_height,
                        s->in_width, &g->tensor[0]));
    LS_TRY(build_tensor(LS_CONV_ID_W, key->type, s->out_channels, s->in_channels, s->kernel,
                        s->kernel, &g->tensor[1]));
    LS_TRY(build_tensor(LS_CONV_ID_Y, key->type, s->batch, s->out_channels, s->out_height,
                        s->out_width, &g->tensor[2]));
    if (key->pass != LS_CONV_FORWARD_SUMS) {
        return LS_OK;
    }
    LS_TRY(build_tensor(LS_CONV_ID_SUM, LS_F32, 1, s->out_channels, 1, 1, &g->tensor[3]));
    return build_tensor(LS_CONV_ID_SQUARES, LS_F32, 1, s->out_channels, 1, 1, &g->tensor[4]);
}

static ls_status build_convolution(const ls_conv_shape *s, cudnnBackendDescriptor_t *out)
{
    int64_t dimensions = 2, stride[2] = {s->stride, s->stride}, pad[2] = {s->pad, s->pad};
    int64_t dilation[2] = {1, 1};
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    LS_CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, out));
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
static const struct operation_names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t alpha, beta, conv, tensor[LS_CONV_TENSORS];
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

/* result = 1 * convolution + beta * result; with beta 0 the old values are not read. */
static ls_status build_operation(const ls_conv_key *key, ls_conv_graph *g)
{
    bool fused = key->pass == LS_CONV_FORWARD_SUMS;
    const struct operation_names *n = &operations[fused ? LS_CONV_FORWARD : key->pass];
    float alpha = 1, beta = key->onto ? 1 : 0;
    LS_CUDNN(cudnnBackendCreateDescriptor(n->type, &g->operation));
    for (int i = 0; i < LS_CONV_TENSORS; i++) {
        LS_TRY(set_one(g->operation, n->tensor[i], CUDNN_TYPE_BACKEND_DESCRIPTOR, &g->tensor[i]));
    }
    LS_TRY(set_one(g->operation, n->conv, CUDNN_TYPE_BACKEND_DESCRIPTOR, &g->conv));
    LS_TRY(set_one(g->operation, n->alpha, CUDNN_TYPE_FLOAT, &alpha));
    LS_TRY(set_one(g->operation, n->beta, CUDNN_TYPE_FLOAT, &beta));
    LS_CUDNN(cudnnBackendFinalize(g->operation));
    return LS_OK;
}

/* The sums of y and of y^2, per channel, in f32. */
static ls_status build_sums(ls_conv_graph *g)
{
    cudnnGenStatsMode_t mode = CUDNN_GENSTATS_SUM_SQSUM;
    cudnnDataType_t compute = CUDNN_DATA_FLOAT;
    LS_CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, &g->fused));
    LS_TRY(set_one(g->fused, CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE, &mode));
    LS_TRY(
        set_one(g->fused, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &compute));
    LS_TRY(set_one(g->fused, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                   &g->tensor[2]));
    LS_TRY(set_one(g->fused, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                   &g->tensor[3]));
    LS_TRY(set_one(g->fused, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                   &g->tensor[4]));
    LS_CUDNN(cudnnBackendFinalize(g->fused));
    return LS_OK;
}

static ls_status build(const ls_conv_key *key, ls_conv_graph *g)
{
    LS_TRY(build_tensors(key, g));
    LS_TRY(build_convolution(&key->shape, &g->conv));
    LS_TRY(build_operation(key, g));
    if (key->pass == LS_CONV_FORWARD_SUMS) {
        LS_TRY(build_sums(g));
    }
    LS_CUDNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &g->graph));
    cudnnBackendDescriptor_t operation[2] = {g->operation, g->fused};
    LS_CUDNN(cudnnBackendSetAttribute(g->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, g->fused == NULL ? 1 : 2,
                                      operation));
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
    ls_conv_graph_drop(g->graph);
    ls_conv_graph_drop(g->fused);
    ls_conv_graph_drop(g->operation);
    ls_conv_graph_drop(g->conv);
    for (int i = 0; i < LS_CONV_TENSORS_MOST; i++) {
        ls_conv_graph_drop(g->tensor[i]);
    }
    *g = (ls_conv_graph){0};
}
