#include "emulated_cudnn.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "suite/emulation/runtime/emulate.h"

enum { MAGIC = 0x6e6e6463 };

static _Thread_local char last_error[256];

cudnnStatus_t emulated_cudnn_error(cudnnStatus_t status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

/* ---- the library ----------------------------------------------------------------------------- */

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch (CUDNN_STATUS_CATEGORY(status)) {
    case CUDNN_STATUS_SUCCESS:
        return "CUDNN_STATUS_SUCCESS";
    case 2000:
        return status == CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED
                   ? "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED"
                   : "CUDNN_STATUS_BAD_PARAM";
    case 3000:
        return "CUDNN_STATUS_NOT_SUPPORTED";
    case 5000:
        return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
        return "CUDNN_STATUS_INTERNAL_ERROR";
    }
}

void cudnnGetLastErrorString(char *message, size_t max_size)
{
    snprintf(message, max_size, "%s", last_error);
    last_error[0] = '\0';
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_INITIALIZED, "no device");
    }
    *handle = calloc(1, sizeof **handle);
    return *handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    if (!handle) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no handle");
    }
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- attributes: which a descriptor has, of which type, how many elements -------------------- */

typedef struct rule {
    cudnnBackendDescriptorType_t descriptor;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t least, most;
    bool optional;
} rule;

#define CONV_RULES(kind, prefix, x, w, y)                                \
    {kind, prefix##_##x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},           \
        {kind, prefix##_##w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},       \
        {kind, prefix##_##y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},       \
        {kind, prefix##_CONV_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1}, \
        {kind, prefix##_ALPHA, CUDNN_TYPE_FLOAT, 1, 1},                  \
    {                                                                    \
        kind, prefix##_BETA, CUDNN_TYPE_FLOAT, 1, 1                      \
    }

#define POINTWISE_RULE(name, optional)                                                       \
    {                                                                                        \
        CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_##name, \
            CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, optional                                    \
    }
#define NORM_RULE(name)                                                                     \
    {                                                                                       \
        CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR,                                  \
            CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_##name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1 \
    }

static const rule rules[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 3, 8},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 3, 8},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, 1, true},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE,
     1, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_CONV_MODE,
     CUDNN_TYPE_CONVOLUTION_MODE, 1, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1,
     1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 1,
     6},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64,
     1, 6},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 1,
     6},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64,
     1, 6},
    CONV_RULES(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
               CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD, X, W, Y),
    CONV_RULES(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA, DX, W, DY),
    CONV_RULES(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
               CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER, X, DW, DY),
    {CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, CUDNN_ATTR_OPERATION_GENSTATS_MODE,
     CUDNN_TYPE_GENSTATS_MODE, 1, 1},
    {CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC,
     CUDNN_TYPE_DATA_TYPE, 1, 1},
    {CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, CUDNN_ATTR_OPERATION_GENSTATS_XDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1,
     1},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1,
     1},
    POINTWISE_RULE(PW_DESCRIPTOR, false),
    POINTWISE_RULE(XDESC, false),
    POINTWISE_RULE(BDESC, true),
    POINTWISE_RULE(YDESC, true),
    POINTWISE_RULE(DYDESC, true),
    POINTWISE_RULE(DXDESC, true),
    {CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, 1},
    NORM_RULE(X_DESC),
    NORM_RULE(DY_DESC),
    NORM_RULE(MEAN_DESC),
    NORM_RULE(INVSTD_DESC),
    NORM_RULE(BN_SCALE_DESC),
    NORM_RULE(DBN_SCALE_DESC),
    NORM_RULE(DBN_BIAS_DESC),
    NORM_RULE(EQ_DY_SCALE_DESC),
    NORM_RULE(EQ_X_SCALE_DESC),
    NORM_RULE(EQ_BIAS),
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE,
     1, 1},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 16},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, 1},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, CUDNN_KNOB_TYPE_COUNTS, true},
    {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE,
     1, 1},
    {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1,
     1},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE,
     1, 1},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1,
     32},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
     CUDNN_TYPE_VOID_PTR, 1, 32},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR,
     1, 1},
};

enum { RULES = sizeof rules / sizeof rules[0] };

static const rule *rule_of(cudnnBackendDescriptorType_t descriptor,
                           cudnnBackendAttributeName_t name)
{
    for (int i = 0; i < RULES; i++) {
        if (rules[i].descriptor == descriptor && rules[i].name == name) {
            return &rules[i];
        }
    }
    return NULL;
}

static size_t type_bytes(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return 8;
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    default: /* float and the enums */
        return 4;
    }
}

size_t emulated_cudnn_bytes(cudnnDataType_t type)
{
    return type == CUDNN_DATA_FLOAT ? 4 : 2;
}

emulated_descriptor *emulated_cudnn_descriptor(cudnnBackendDescriptor_t descriptor)
{
    emulated_descriptor *d = descriptor;
    return d && d->magic == MAGIC ? d : NULL;
}

static emulated_attribute *find(emulated_descriptor *d, cudnnBackendAttributeName_t name)
{
    for (int i = 0; i < d->attribute_count; i++) {
        if (d->attribute[i].name == name) {
            return &d->attribute[i];
        }
    }
    return NULL;
}

const emulated_attribute *emulated_cudnn_find(const emulated_descriptor *d,
                                              cudnnBackendAttributeName_t name)
{
    return find((emulated_descriptor *)d, name);
}

void emulated_cudnn_store(emulated_descriptor *d, cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    emulated_attribute *a = find(d, name);
    if (!a) {
        if (d->attribute_count == EMULATED_ATTRIBUTES) {
            emulate_abort("cuDNN: more attributes than there is room for");
        }
        a = &d->attribute[d->attribute_count++];
        *a = (emulated_attribute){.name = name};
    }
    size_t bytes = (size_t)count * type_bytes(type);
    void *copy = malloc(bytes);
    if (!copy) {
        emulate_abort("cuDNN: no memory for an attribute");
    }
    memcpy(copy, values, bytes);
    free(a->values);
    a->type = type;
    a->count = count;
    a->values = copy;
}

int64_t emulated_cudnn_number(const emulated_descriptor *d, cudnnBackendAttributeName_t name)
{
    const emulated_attribute *a = emulated_cudnn_find(d, name);
    if (!a) {
        emulate_abort("cuDNN: a final descriptor is without attribute %d", (int)name);
    }
    return type_bytes(a->type) == 8 ? *(const int64_t *)a->values : *(const int *)a->values;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t *descriptor)
{
    bool known = false;
    for (int i = 0; i < RULES; i++) {
        known = known || rules[i].descriptor == type;
    }
    if (!known || !descriptor) {
        return emulated_cudnn_error(CUDNN_STATUS_NOT_SUPPORTED, "descriptor type %d", (int)type);
    }
    emulated_descriptor *d = calloc(1, sizeof *d);
    if (!d) {
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    }
    d->magic = MAGIC;
    d->type = type;
    *descriptor = d;
    return CUDNN_STATUS_SUCCESS;
}

/* Parts must outlive the objects made from them, except the parts of a configuration, which copies
 * them. */
static void use_parts(emulated_descriptor *d, int step)
{
    for (int i = 0; i < d->attribute_count; i++) {
        const emulated_attribute *a = &d->attribute[i];
        if (a->type != CUDNN_TYPE_BACKEND_DESCRIPTOR ||
            d->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR) {
            continue;
        }
        for (int64_t j = 0; j < a->count; j++) {
            ((emulated_descriptor **)a->values)[j]->users += step;
        }
    }
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor)
{
    emulated_descriptor *d = emulated_cudnn_descriptor(descriptor);
    if (!d) {
        emulate_abort("cuDNN: the object to destroy is not a descriptor");
    }
    if (d->users > 0) {
        emulate_abort("cuDNN: a descriptor of type %d is destroyed before the %d made of it",
                      (int)d->type, d->users);
    }
    if (d->final) {
        use_parts(d, -1);
    }
    for (int i = 0; i < d->attribute_count; i++) {
        free(d->attribute[i].values);
    }
    d->magic = 0;
    free(d);
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_parts(int64_t count, const void *values)
{
    for (int64_t i = 0; i < count; i++) {
        const emulated_descriptor *part =
            emulated_cudnn_descriptor(((const cudnnBackendDescriptor_t *)values)[i]);
        if (!part) {
            return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "element %d is no descriptor",
                                        (int)i);
        }
        if (!part->final) {
            return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                                        "element %d is not final", (int)i);
        }
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void *values)
{
    emulated_descriptor *d = emulated_cudnn_descriptor(descriptor);
    if (!d || !values) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor or values");
    }
    const rule *r = rule_of(d->type, name);
    if (d->final || !r) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM,
                                    "attribute %d: the descriptor of type %d %s", (int)name,
                                    (int)d->type, d->final ? "is final" : "has none such");
    }
    if (r->type != type) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE,
                                    "attribute %d is of type %d, not %d", (int)name, (int)r->type,
                                    (int)type);
    }
    if (count < r->least || count > r->most) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "attribute %d with %d elements",
                                    (int)name, (int)count);
    }
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        cudnnStatus_t status = check_parts(count, values);
        if (status != CUDNN_STATUS_SUCCESS) {
            return status;
        }
    }
    emulated_cudnn_store(d, name, type, count, values);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor)
{
    emulated_descriptor *d = emulated_cudnn_descriptor(descriptor);
    if (!d || d->final) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "no descriptor, or a final one");
    }
    for (int i = 0; i < RULES; i++) {
        if (rules[i].descriptor == d->type && !rules[i].optional && !find(d, rules[i].name)) {
            return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "attribute %d is not set",
                                        (int)rules[i].name);
        }
    }
    cudnnStatus_t status = emulated_cudnn_finalize(d);
    if (status == CUDNN_STATUS_SUCCESS) {
        d->final = true;
        use_parts(d, 1);
    }
    return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t *count, void *values)
{
    emulated_descriptor *d = emulated_cudnn_descriptor(descriptor);
    bool known = false;
    if (!d || requested < 0 || (requested > 0 && !values)) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "no descriptor, or no room");
    }
    if (!d->final) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                                    "attribute %d of a descriptor that is not final", (int)name);
    }
    cudnnStatus_t status = emulated_engines_get(d, name, type, requested, count, values, &known);
    if (known) {
        return status;
    }
    const emulated_attribute *a = find(d, name);
    if (!a || a->type != type || type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        return emulated_cudnn_error(CUDNN_STATUS_BAD_PARAM, "attribute %d cannot be read so",
                                    (int)name);
    }
    if (count) {
        *count = a->count;
    }
    int64_t given = requested < a->count ? requested : a->count;
    if (given > 0) {
        memcpy(values, a->values, type_bytes(type) * (size_t)given);
    }
    return CUDNN_STATUS_SUCCESS;
}
