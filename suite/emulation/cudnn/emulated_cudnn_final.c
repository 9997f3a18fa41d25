/* Requirements of cuDNN's documentation for final descriptors, for two-dimensional convolutions of
 * tensors whose channels are innermost. */
#include <stdlib.h>
#include <string.h>

#include "emulated_cudnn.h"

static const int64_t *numbers(const emulated_descriptor *d, cudnnBackendAttributeName_t name,
                              int64_t *count)
{
    const emulated_attribute *a = emulated_cudnn_find(d, name);
    *count = a->count;
    return a->values;
}

static emulated_descriptor *part(const emulated_descriptor *d, cudnnBackendAttributeName_t name)
{
    return ((emulated_descriptor **)emulated_cudnn_find(d, name)->values)[0];
}

/* ---- tensors, convolutions ------------------------------------------------------------------- */

static cudnnStatus_t finalize_tensor(emulated_descriptor *d)
{
    int64_t rank = 0, strides = 0;
    const int64_t *dimension = numbers(d, CUDNN_ATTR_TENSOR_DIMENSIONS, &rank);
    const int64_t *stride = numbers(d, CUDNN_ATTR_TENSOR_STRIDES, &strides);
    int64_t type = emulated_cudnn_number(d, CUDNN_ATTR_TENSOR_DATA_TYPE);
    int64_t alignment = emulated_cudnn_number(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
    if (rank != strides || rank != 4) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "%d dimensions, %d strides", (int)rank,
                                    (int)strides);
    }
    for (int64_t i = 0; i < rank; i++) {
        if (dimension[i] < 1 || stride[i] < 1) {
            return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM,
                                        "dimension or stride %d is not positive", (int)i);
        }
    }
    if (type != CUDNN_DATA_FLOAT && type != CUDNN_DATA_HALF && type != CUDNN_DATA_BFLOAT16) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "data type %d",
                                    (int)type);
    }
    if (alignment < (int64_t)emulated_cudnn_bytes((cudnnDataType_t)type) ||
        (alignment & (alignment - 1)) != 0) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "alignment of %d bytes",
                                    (int)alignment);
    }
    if (stride[1] != 1 || stride[3] != dimension[1] || stride[2] != dimension[3] * stride[3] ||
        stride[0] != dimension[2] * stride[2]) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT,
                                    "channels are not innermost, or there are gaps");
    }
    return CUDNN_STATUS_SUCCESS;
}

static bool is_within(const emulated_descriptor *d)
{
    const emulated_attribute *a = emulated_cudnn_find(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    return a && *(const bool *)a->values;
}

emulated_tensor emulated_cudnn_tensor(const emulated_descriptor *d)
{
    int64_t rank = 0;
    const int64_t *n = numbers(d, CUDNN_ATTR_TENSOR_DIMENSIONS, &rank);
    return (emulated_tensor){(cudnnDataType_t)emulated_cudnn_number(d, CUDNN_ATTR_TENSOR_DATA_TYPE),
                             emulated_cudnn_number(d, CUDNN_ATTR_TENSOR_UNIQUE_ID),
                             emulated_cudnn_number(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
                             n[0],
                             n[1],
                             n[2],
                             n[3],
                             is_within(d)};
}

static cudnnStatus_t finalize_convolution(emulated_descriptor *d)
{
    static const cudnnBackendAttributeName_t lists[] = {
        CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
        CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS};
    int64_t dimensions = emulated_cudnn_number(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        int64_t count = 0, least = i < 2 ? 1 : 0;
        const int64_t *n = numbers(d, lists[i], &count);
        if (count != dimensions) {
            return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM,
                                        "attribute %d: %d elements for %d dimensions",
                                        (int)lists[i], (int)count, (int)dimensions);
        }
        for (int64_t j = 0; j < count; j++) {
            if (n[j] < least) {
                return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "attribute %d is %d",
                                            (int)lists[i], (int)n[j]);
            }
        }
    }
    if (emulated_cudnn_number(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != CUDNN_DATA_FLOAT) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "sums are f32 here");
    }
    if (emulated_cudnn_number(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED, "only cross correlation here");
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- operations ------------------------------------------------------------------------------ */

static const struct operation_names {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, w, y, conv, alpha, beta;
} operations[EMULATED_PASSES] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

static cudnnStatus_t check_problem(const emulated_problem *p)
{
    const emulated_tensor *x = &p->x, *w = &p->w, *y = &p->y;
    if (x->id == w->id || x->id == y->id || w->id == y->id) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                                    "tensors share an id");
    }
    if (w->type != y->type || (x->type != w->type && !x->within)) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "types differ");
    }
    int64_t height = (x->height + 2 * p->pad[0] - w->height) / p->stride[0] + 1;
    int64_t width = (x->width + 2 * p->pad[1] - w->width) / p->stride[1] + 1;
    if (w->channels != x->channels || w->images != y->channels || x->images != y->images ||
        y->height != height || y->width != width || x->height + 2 * p->pad[0] < w->height ||
        x->width + 2 * p->pad[1] < w->width) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                                    "the result should be %dx%d", (int)height, (int)width);
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_operation(emulated_descriptor *d, int pass)
{
    const struct operation_names *n = &operations[pass];
    const emulated_descriptor *x = part(d, n->x), *w = part(d, n->w), *y = part(d, n->y);
    const emulated_descriptor *conv = part(d, n->conv);
    float alpha = 0, beta = 0;
    int64_t count = 0;
    if (x->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR || w->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR ||
        y->type != CUDNN_BACKEND_TENSOR_DESCRIPTOR ||
        conv->type != CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "of an operation");
    }
    memcpy(&alpha, emulated_cudnn_find(d, n->alpha)->values, sizeof alpha);
    memcpy(&beta, emulated_cudnn_find(d, n->beta)->values, sizeof beta);
    if (alpha != 1) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED, "alpha %g", (double)alpha);
    }
    const int64_t *stride = numbers(conv, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &count);
    const int64_t *before = numbers(conv, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &count);
    const int64_t *after = numbers(conv, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &count);
    const int64_t *dilation = numbers(conv, CUDNN_ATTR_CONVOLUTION_DILATIONS, &count);
    if (count != 2 || before[0] != after[0] || before[1] != after[1] || dilation[0] != 1 ||
        dilation[1] != 1) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED, "pads on one side, or dilation");
    }
    d->problem = (emulated_problem){.pass = pass,
                                    .x = emulated_cudnn_tensor(x),
                                    .w = emulated_cudnn_tensor(w),
                                    .y = emulated_cudnn_tensor(y),
                                    .stride = {stride[0], stride[1]},
                                    .pad = {before[0], before[1]},
                                    .beta = beta};
    return check_problem(&d->problem);
}

/* ---- graphs, engines and plans --------------------------------------------------------------- */

static bool is_convolution(const emulated_descriptor *d)
{
    bool found = false;
    for (int pass = 0; pass < EMULATED_PASSES; pass++) {
        found = found || d->type == operations[pass].type;
    }
    return found;
}

static cudnnStatus_t finalize_graph(emulated_descriptor *d)
{
    const emulated_attribute *operation = emulated_cudnn_find(d, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    if (emulated_cudnn_number(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE) == 0) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no handle");
    }
    emulated_descriptor **part = operation->values;
    enum { BEHIND_A_NORM = 3 };
    bool applies = part[0]->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR &&
                   operation->count > BEHIND_A_NORM;
    if (!is_convolution(part[applies ? BEHIND_A_NORM : 0])) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                                    "no convolution in a graph");
    }
    d->problem = part[0]->problem;
    return operation->count == 1 ? CUDNN_STATUS_SUCCESS
                                 : emulated_graphs_join(part, operation->count, &d->problem);
}

static cudnnStatus_t take_problem(emulated_descriptor *d, cudnnBackendAttributeName_t name,
                                  cudnnBackendDescriptorType_t type)
{
    const emulated_descriptor *from = part(d, name);
    if (from->type != type) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "of attribute %d",
                                    (int)name);
    }
    d->problem = from->problem;
    return CUDNN_STATUS_SUCCESS;
}

/* Convolutions whose results no engine adds to old values: LS_EMULATED_UNADDED. */
static bool unadded(const emulated_problem *p)
{
    const char *asked = getenv("LS_EMULATED_UNADDED");
    return p->beta != 0 && asked &&
           (strcmp(asked, "all") == 0 || strtoll(asked, NULL, 10) == p->w.height);
}

/* Fused graphs take fp16 alone, and not where LS_EMULATED_UNFUSED says so; joined gradients those
 * of convolutions with stride 1. */
static bool unfused(const emulated_problem *p)
{
    const char *asked = getenv("LS_EMULATED_UNFUSED"), *rank = getenv("RANK");
    const char *only = asked ? strchr(asked, ':') : NULL;
    if (p->fusion == EMULATED_ALONE || p->w.type != CUDNN_DATA_HALF ||
        (p->fusion == EMULATED_JOIN && p->stride[0] != 1)) {
        return p->fusion != EMULATED_ALONE;
    }
    return asked && (!only || strcmp(only + 1, rank ? rank : "0") == 0) &&
           (strncmp(asked, "all", 3) == 0 || strtoll(asked, NULL, 10) == p->w.height);
}

static cudnnStatus_t finalize_heuristics(emulated_descriptor *d)
{
    int64_t mode = emulated_cudnn_number(d, CUDNN_ATTR_ENGINEHEUR_MODE);
    if (mode != CUDNN_HEUR_MODE_A && mode != CUDNN_HEUR_MODE_B &&
        mode != CUDNN_HEUR_MODE_FALLBACK) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED, "mode %d", (int)mode);
    }
    cudnnStatus_t status = take_problem(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                                        CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (status == CUDNN_STATUS_SUCCESS && unadded(&d->problem)) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED, "beta %g", (double)d->problem.beta);
    }
    if (status == CUDNN_STATUS_SUCCESS && unfused(&d->problem)) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "a fused graph");
    }
    return status;
}

static cudnnStatus_t finalize_engine(emulated_descriptor *d)
{
    cudnnStatus_t status =
        take_problem(d, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    return status == CUDNN_STATUS_SUCCESS ? emulated_engines_finalize_engine(d) : status;
}

static cudnnStatus_t finalize_config(emulated_descriptor *d)
{
    cudnnStatus_t status =
        take_problem(d, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    return status == CUDNN_STATUS_SUCCESS ? emulated_engines_finalize_config(d) : status;
}

static cudnnStatus_t finalize_plan(emulated_descriptor *d)
{
    cudnnStatus_t status = take_problem(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                        CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (status != CUDNN_STATUS_SUCCESS) {
        return status;
    }
    if (emulated_cudnn_number(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) == 0) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no handle");
    }
    return emulated_engines_finalize_plan(d, part(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG));
}

static cudnnStatus_t finalize_pack(emulated_descriptor *d)
{
    int64_t ids = 0, pointers = 0;
    const int64_t *id = numbers(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &ids);
    numbers(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &pointers);
    if (ids != pointers) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "%d ids, %d pointers", (int)ids,
                                    (int)pointers);
    }
    for (int64_t i = 0; i < ids; i++) {
        for (int64_t j = 0; j < i; j++) {
            if (id[i] == id[j]) {
                return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                                            "id %d twice", (int)id[i]);
            }
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t emulated_cudnn_finalize(emulated_descriptor *d)
{
    switch (d->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        return finalize_tensor(d);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
        return finalize_convolution(d);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        return finalize_operation(d, 0);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        return finalize_operation(d, 1);
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        return finalize_operation(d, 2);
    case CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR:
        return emulated_graphs_finalize_sums(d);
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
        return emulated_graphs_finalize_pointwise(d);
    case CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR:
        return emulated_graphs_finalize_norm_sums(d);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        return finalize_graph(d);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        return finalize_heuristics(d);
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        return finalize_engine(d);
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        return finalize_config(d);
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        return finalize_plan(d);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        return finalize_pack(d);
    default: /* the choice of a knob, which its configuration checks */
        return CUDNN_STATUS_SUCCESS;
    }
}
