/* A tensor: a logical shape, an element type and an address in backend memory. Everything that has
 * an `ls_tensor` (parameters, gradients, buffers, masters, moments) is stored plain and unpadded,
 * in torchvision's order of dimensions. Activations belong to the backend, in a layout of its
 * choice, and never have one. */
#ifndef LS_CORE_TENSOR_H
#define LS_CORE_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* dtype.c: element types, their names and sizes. */
typedef enum ls_dtype {
    LS_F32,
    LS_F16,
    LS_BF16,
    LS_F64,
    LS_I64,
    LS_I32,
    LS_U8,
} ls_dtype;

size_t ls_dtype_bytes(ls_dtype dtype);
/* The name used by the safetensors format: "F32", "F16", "BF16", "F64", "I64", "I32", "U8". */
const char *ls_dtype_name(ls_dtype dtype);
/* The name used on command lines: "fp32", "fp16", "bf16", ... */
const char *ls_dtype_label(ls_dtype dtype);
/* Index of the first element of data[count], in host memory, that is inf or NaN; -1 if there is
 * none, as in integers. */
int64_t ls_dtype_non_finite(ls_dtype dtype, const void *data, int64_t count);

enum { LS_RANK_MAX = 5 };

typedef struct ls_shape {
    int rank; /* number of dimensions; 0 is a scalar */
    int64_t dim[LS_RANK_MAX];
} ls_shape;

typedef struct ls_tensor {
    void *data; /* backend memory, not owned */
    ls_dtype dtype;
    int64_t count; /* elements */
} ls_tensor;

/* A list of tensors that one call processes in one pass. */
typedef struct ls_tensor_list {
    int count;
    const ls_tensor *tensor;
} ls_tensor_list;

static inline int64_t ls_shape_count(const ls_shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->rank; i++) {
        count *= shape->dim[i];
    }
    return count;
}

static inline size_t ls_tensor_bytes(const ls_tensor *tensor)
{
    return (size_t)tensor->count * ls_dtype_bytes(tensor->dtype);
}

#ifdef __cplusplus
}
#endif
#endif
