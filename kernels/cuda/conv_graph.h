/* One convolution pass as an operation graph of the cuDNN backend API: three tensors, the
 * convolution, one operation. Further operations (statistics of the result, a sum with another
 * gradient) would join the same graph and the same search for an engine. */
#ifndef LS_CUDA_CONV_GRAPH_H
#define LS_CUDA_CONV_GRAPH_H

#include "conv.h"

typedef enum ls_conv_pass {
    LS_CONV_FORWARD,
    LS_CONV_BACKWARD_DATA,
    LS_CONV_BACKWARD_WEIGHTS,
    LS_CONV_PASSES,
} ls_conv_pass;

/* Everything that determines which engines exist and which are allowed. */
typedef struct ls_conv_key {
    ls_conv_pass pass;
    ls_conv_shape shape;
    ls_dtype type; /* of all three tensors; sums are f32 */
    bool onto;     /* the result is added to the old values: beta is 1 */
    bool deterministic, tf32;
    int64_t workspace_limit;
} ls_conv_key;

/* The device: that of a handle, or one described by properties (needs no GPU, and cannot execute
 * anything). */
typedef struct ls_conv_target {
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties; /* NULL: use the handle's device */
} ls_conv_target;

/* Ids of the tensors in a graph and in the pointers of an execution. */
enum { LS_CONV_ID_X = 'x', LS_CONV_ID_W = 'w', LS_CONV_ID_Y = 'y' };
enum { LS_CONV_TENSORS = 3, LS_CONV_ALIGNMENT = 16 };

typedef struct ls_conv_graph {
    ls_conv_target target;
    cudnnBackendDescriptor_t tensor[LS_CONV_TENSORS], conv, operation, graph;
} ls_conv_graph;

/* "forward", "backward data", "backward weights" */
const char *ls_conv_graph_pass_name(ls_conv_pass pass);
/* LS_ERR_INFRA if cuDNN rejects one of the descriptors; nothing is left allocated then. */
ls_status ls_conv_graph_build(const ls_conv_target *target, const ls_conv_key *key,
                              ls_conv_graph *out);
void ls_conv_graph_free(ls_conv_graph *graph);

/* Destroys a descriptor; NULL is allowed. */
void ls_conv_graph_drop(cudnnBackendDescriptor_t descriptor);

#endif
