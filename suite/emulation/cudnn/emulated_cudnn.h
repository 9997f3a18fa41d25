/* The part of cuDNN's backend API that convolutions use, emulated on the CPU: descriptors that
 * store their attributes, the checks that the documentation requires, a list of engines with all
 * kinds of notes, and plain loops. Where the real library may be lenient this one reports an error.
 */
#ifndef LS_EMULATED_CUDNN_H
#define LS_EMULATED_CUDNN_H

#include <cudnn.h>
#include <stdbool.h>

enum { EMULATED_ATTRIBUTES = 12, EMULATED_PASSES = 3, EMULATED_KNOBS = 2, EMULATED_EXTRAS = 23 };

typedef struct emulated_tensor {
    cudnnDataType_t type;
    int64_t id, alignment;
    int64_t images, channels, height, width; /* of a weight: out, in, height, width */
    bool within;                             /* a graph's own: not in memory */
} emulated_tensor;

/* What a graph does besides its convolution. */
typedef enum emulated_fusion {
    EMULATED_ALONE,
    EMULATED_SUMS,  /* the sums of the result and of its squares, per channel: extra[0] and [1] */
    EMULATED_APPLY, /* relu(scale * x + bias) in place of x, and forward the sums: extra[] by
                       emulated_apply */
    EMULATED_GATE,  /* backward data into ReLU and batch norm: extra[] by emulated_gate */
    EMULATED_JOIN,  /* the same onto a second gradient, the ReLU of norm + residual or of two norms:
                       extra[] by emulated_join, too */
} emulated_fusion;

/* The tensors of EMULATED_APPLY; the sums as in EMULATED_SUMS, of forward only. */
typedef enum emulated_apply {
    APPLY_SUM,
    APPLY_SQUARES,
    APPLY_X,
    APPLY_SCALE,
    APPLY_BIAS,
    APPLY_TENSORS,
} emulated_apply;

/* The tensors of EMULATED_GATE: the norm's input, the gradient behind the ReLU, values and sums of
 * channels, and the coefficients of dx = dy * DY_FACTOR + x * X_FACTOR + OFFSET. */
typedef enum emulated_gate {
    GATE_X,
    GATE_GRADIENT,
    GATE_MEAN,
    GATE_INV_STD,
    GATE_SCALE,
    GATE_BIAS,
    GATE_SCALE_GRADIENT,
    GATE_BIAS_GRADIENT,
    GATE_DY_FACTOR,
    GATE_X_FACTOR,
    GATE_OFFSET,
    GATE_TENSORS,
} emulated_gate;

/* The further tensors of EMULATED_JOIN: the second gradient; the residual or, in the place of
 * GATE_X, the second norm's input; behind them that norm's, in the order of emulated_gate from
 * GATE_GRADIENT on, where there is one. */
typedef enum emulated_join {
    JOIN_OTHER = GATE_TENSORS,
    JOIN_RESIDUAL,
    JOIN_SECOND = JOIN_RESIDUAL, /* + emulated_gate */
    JOIN_TENSORS = JOIN_SECOND + GATE_TENSORS,
} emulated_join;

/* One convolution pass, copied by value into every object made from it. */
typedef struct emulated_problem {
    int pass; /* 0 forward, 1 backward data, 2 backward weights */
    emulated_tensor x, w, y;
    int64_t stride[2], pad[2];
    float beta; /* factor of the result's old values */
    emulated_fusion fusion;
    int extra_count;
    emulated_tensor extra[EMULATED_EXTRAS];
} emulated_problem;

typedef struct emulated_knob {
    cudnnBackendKnobType_t type;
    int64_t value;
} emulated_knob;

typedef struct emulated_attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    void *values;
} emulated_attribute;

typedef struct emulated_descriptor {
    uint32_t magic;
    cudnnBackendDescriptorType_t type;
    bool final;
    int users; /* final descriptors made from this one and not yet destroyed */
    int attribute_count;
    emulated_attribute attribute[EMULATED_ATTRIBUTES];
    emulated_problem problem; /* of an operation, a graph and the objects made from a graph */
    int64_t engine;           /* of an engine, a configuration or a plan */
    int knob_count;           /* of a configuration, which has its own values */
    emulated_knob knob[EMULATED_KNOBS];
    bool slow;               /* of a plan */
    int64_t workspace_bytes; /* of a plan */
    int executions;          /* of a variant pack */
} emulated_descriptor;

struct cudnnContext {
    cudaStream_t stream;
    uint32_t executions;
};

/* Stores a line for cudnnGetLastErrorString; returns the status. */
cudnnStatus_t emulated_cudnn_error(cudnnStatus_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* NULL if it is not a live descriptor. */
emulated_descriptor *emulated_cudnn_descriptor(cudnnBackendDescriptor_t descriptor);
const emulated_attribute *emulated_cudnn_find(const emulated_descriptor *descriptor,
                                              cudnnBackendAttributeName_t name);
/* Adds or replaces; for SetAttribute and for descriptors that cuDNN itself fills. */
void emulated_cudnn_store(emulated_descriptor *descriptor, cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, int64_t count, const void *values);
int64_t emulated_cudnn_number(const emulated_descriptor *descriptor,
                              cudnnBackendAttributeName_t name);
size_t emulated_cudnn_bytes(cudnnDataType_t type);

/* emulated_cudnn_graphs.c: operations besides the convolution, and a graph of `count` operations,
 * of which the first or, after three that apply a norm, the fourth is the convolution; the problem
 * that they make together. */
cudnnStatus_t emulated_graphs_finalize_sums(emulated_descriptor *operation);
cudnnStatus_t emulated_graphs_finalize_pointwise(emulated_descriptor *operation);
cudnnStatus_t emulated_graphs_finalize_norm_sums(emulated_descriptor *operation);
cudnnStatus_t emulated_graphs_join(emulated_descriptor *const *operation, int64_t count,
                                   emulated_problem *out);

/* emulated_cudnn_final.c: checks the requirements of a final descriptor; the dimensions of a
 * tensor. */
emulated_tensor emulated_cudnn_tensor(const emulated_descriptor *descriptor);
cudnnStatus_t emulated_cudnn_finalize(emulated_descriptor *descriptor);

/* emulated_cudnn_engines.c: the offered engines. */
cudnnStatus_t emulated_engines_finalize_engine(emulated_descriptor *engine);
cudnnStatus_t emulated_engines_finalize_config(emulated_descriptor *config);
cudnnStatus_t emulated_engines_finalize_plan(emulated_descriptor *plan,
                                             const emulated_descriptor *config);
/* Attributes that are computed on request; *known false for others. */
cudnnStatus_t emulated_engines_get(emulated_descriptor *descriptor,
                                   cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, int64_t requested,
                                   int64_t *count, void *values, bool *known);

/* emulated_cudnn_loops.c: the computation of an engine. */
typedef struct emulated_execution {
    emulated_problem problem;
    void *x, *w, *y, *extra[EMULATED_EXTRAS], *workspace;
    int64_t workspace_bytes;
    bool repeated;     /* the variant pack has been executed before */
    bool rounds_first; /* the product, to the result's type, before it is added to old values */
    bool tf32;         /* f32 operands are rounded to TF32 */
    bool wrong;        /* the result has large errors */
    bool backward;     /* sums run in reverse order */
    int times;         /* the work is repeated this often */
} emulated_execution;

bool emulated_loops_run(void *execution);

#endif
