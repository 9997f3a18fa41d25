/* A tensor: a logical shape, an element type and an address in backend memory. Everything that has
 * an `ls_tensor` (parameters, gradients, buffers, masters, moments) is stored plain and unpadded,
 * in torchvision's order of dimensions. Activations belong to the backend, in a layout of its
 * choice, and never have one. */
#ifndef LS_CORE_TENSOR_H
#define LS_CORE_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

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
