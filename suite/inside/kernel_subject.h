/* A plan of a backend with memory for its parameters, as the cases of family `kernels` drive it:
 * everything goes in and out through the backend's own copies, so any device can be the subject. */
#ifndef LS_KERNEL_SUBJECT_H
#define LS_KERNEL_SUBJECT_H

#include "kernel_interpreter.h"

enum { LS_KERNEL_SUBJECT_BATCH_MAX = 64 };

typedef struct ls_kernel_subject_options {
    const char *device; /* "cpu", "cuda" */
    int batch, height, width;
    int threads;
    ls_dtype activation;             /* of products */
    ls_dtype param_type, grad_type;  /* of convolutions and linear */
    ls_dtype norm_type, buffer_type; /* batch norm's parameters with their gradients; buffers */
    /* initial value of element i of parameter p, rounded to its type; NULL: normal, as He et al. */
    double (*initial)(const ls_kernel_net *n, int p, int64_t i);
    float (*input)(int64_t i);     /* NULL: normal */
    const ls_norm_sync *norm_sync; /* NULL: local statistics */
    bool forced_branches;          /* the plan can be forced */
} ls_kernel_subject_options;

typedef struct ls_kernel_subject {
    const ls_backend_api *api;
    ls_backend *backend;
    ls_stream *stream;
    ls_plan *plan;
    const ls_kernel_net *n;
    ls_kernel_subject_options options;
    ls_tensor param[LS_KERNEL_NET_PARAMS], grad[LS_KERNEL_NET_PARAMS];
    ls_tensor buffer[LS_KERNEL_NET_BUFFERS];
    ls_step_state *state; /* backend memory */
    int ready[LS_KERNEL_NET_PARAMS], ready_count;
    int64_t target[LS_KERNEL_SUBJECT_BATCH_MAX];
    float *input; /* host, NCHW */
} ls_kernel_subject;

/* Opens the backend and makes plan and memory, gradients poisoned with large values. Loss scale 1.
 * On failure nothing is left to free. */
ls_status ls_kernel_subject_make(const ls_kernel_net *n, const ls_kernel_subject_options *options,
                                 ls_kernel_subject *s);
void ls_kernel_subject_free(ls_kernel_subject *s);
/* Parameters are announced as changed, then forward (and backward). */
ls_status ls_kernel_subject_forward(ls_kernel_subject *s);
ls_status ls_kernel_subject_step(ls_kernel_subject *s);

ls_status ls_kernel_subject_get_state(const ls_kernel_subject *s, ls_step_state *out);
ls_status ls_kernel_subject_set_scale(ls_kernel_subject *s, float loss_scale);
/* Element i of a tensor in host memory. */
double ls_kernel_subject_get(const ls_tensor *host, int64_t i);
void ls_kernel_subject_put(const ls_tensor *host, int64_t i, double value);
/* A tensor's elements as doubles, for the caller to free; NULL where the copy failed. */
double *ls_kernel_subject_read(const ls_kernel_subject *s, const ls_tensor *from);
/* What the last forward left at a layer, F32 NCHW, for the caller to free; NULL where it is never
 * stored. */
float *ls_kernel_subject_activation(const ls_kernel_subject *s, int layer, int64_t count);
/* An interpreter of the same network, values, input and branches as the last forward. */
ls_status ls_kernel_subject_mirror(const ls_kernel_subject *s, ls_kernel_rounding type,
                                   ls_kernel_interpreter *t);

#endif
