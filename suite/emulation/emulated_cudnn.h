/* The part of cuDNN's backend API that convolutions use, played on the CPU: descriptors that hold
 * what they were given, the checks that the documentation asks for, a list of engines with all
 * sorts of notes, and plain loops. What the real library may be lenient about is an error here. */
#ifndef LS_EMULATED_CUDNN_H
#define LS_EMULATED_CUDNN_H

#include <cudnn.h>
#include <stdbool.h>

enum { EMULATED_ATTRIBUTES = 12, EMULATED_PASSES = 3, EMULATED_KNOBS = 2 };

typedef struct emulated_tensor {
    cudnnDataType_t type;
    int64_t id, alignment;
    int64_t images, channels, height, width; /* of a weight: out, in, height, width */
} emulated_tensor;

/* One convolution pass, copied by value into whatever is made of it. */
typedef struct emulated_problem {
    int pass; /* 0 forward, 1 backward data, 2 backward weights */
    emulated_tensor x, w, y;
    int64_t stride[2], pad[2];
    float beta; /* of what stands where the result goes */
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
    int users; /* final descriptors that are made of this one and not destroyed yet */
    int attribute_count;
    emulated_attribute attribute[EMULATED_ATTRIBUTES];
    emulated_problem problem; /* of an operation, a graph and what comes of a graph */
    int64_t engine;           /* of an engine, a configuration or a plan */
    int knob_count;           /* of a configuration; the values are its own */
    emulated_knob knob[EMULATED_KNOBS];
    bool slow;               /* of a plan */
    int64_t workspace_bytes; /* of a plan */
} emulated_descriptor;

struct cudnnContext {
    cudaStream_t stream;
    uint32_t executions;
};

/* A line for cudnnGetLastErrorString, and the status. */
cudnnStatus_t emulated_cudnn_error(cudnnStatus_t status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* NULL where it is none (any more). */
emulated_descriptor *emulated_cudnn_descriptor(cudnnBackendDescriptor_t descriptor);
const emulated_attribute *emulated_cudnn_find(const emulated_descriptor *descriptor,
                                              cudnnBackendAttributeName_t name);
/* Adds or replaces; for SetAttribute and for descriptors that cuDNN itself fills. */
void emulated_cudnn_store(emulated_descriptor *descriptor, cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, int64_t count, const void *values);
int64_t emulated_cudnn_number(const emulated_descriptor *descriptor,
                              cudnnBackendAttributeName_t name);
size_t emulated_cudnn_bytes(cudnnDataType_t type);

/* emulated_cudnn_final.c: what a descriptor needs before it is final. */
cudnnStatus_t emulated_cudnn_finalize(emulated_descriptor *descriptor);

/* emulated_cudnn_engines.c: what engines there are. */
cudnnStatus_t emulated_engines_finalize_engine(emulated_descriptor *engine);
cudnnStatus_t emulated_engines_finalize_config(emulated_descriptor *config);
cudnnStatus_t emulated_engines_finalize_plan(emulated_descriptor *plan,
                                             const emulated_descriptor *config);
/* Attributes that are computed when asked for; *known false for others. */
cudnnStatus_t emulated_engines_get(emulated_descriptor *descriptor,
                                   cudnnBackendAttributeName_t name,
                                   cudnnBackendAttributeType_t type, int64_t requested,
                                   int64_t *count, void *values, bool *known);

/* emulated_cudnn_loops.c: how an engine computes. */
typedef struct emulated_execution {
    emulated_problem problem;
    void *x, *w, *y, *workspace;
    int64_t workspace_bytes;
    bool tf32;     /* f32 operands lose the bits that TF32 has not */
    bool wrong;    /* the result is far off */
    bool backward; /* sums run from the end */
    int times;     /* the work is done over and over */
} emulated_execution;

bool emulated_loops_run(void *execution);

#endif
