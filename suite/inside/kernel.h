/* What the cases inside the suite's own process judge kernels with. */
#ifndef LS_KERNEL_H
#define LS_KERNEL_H

#include "kernels/kernels.h"

/* Small networks, built layer by layer, for the judging of single operations of a backend. Every
 * function but start and finish adds layers behind layer `in` and returns the last one's index.
 * There is room for a ResNet-50. */
enum { LS_KERNEL_NET_LAYERS = 192, LS_KERNEL_NET_PARAMS = 176, LS_KERNEL_NET_BUFFERS = 176 };

typedef struct ls_kernel_net {
    ls_network network;
    ls_layer layer[LS_KERNEL_NET_LAYERS];
    ls_param param[LS_KERNEL_NET_PARAMS];
    ls_buffer buffer[LS_KERNEL_NET_BUFFERS];
} ls_kernel_net;

/* Layer 0: the input, three channels. The struct must stay where it is. */
void ls_kernel_net_start(ls_kernel_net *n);
int ls_kernel_net_conv(ls_kernel_net *n, int in, int channels, int kernel, int stride, int pad);
int ls_kernel_net_norm(ls_kernel_net *n, int in);
int ls_kernel_net_relu(ls_kernel_net *n, int in);
int ls_kernel_net_sum(ls_kernel_net *n, int a, int b);
int ls_kernel_net_pool(ls_kernel_net *n, int in, int kernel, int stride, int pad);
/* conv-norm-relu-conv-norm, add, relu; the shortcut where sizes change: 'A' padded, else projected.
 */
int ls_kernel_net_block(ls_kernel_net *n, int in, int channels, int stride, char shortcut);
/* 1x1, 3x3 with the stride, 1x1 to four times the channels; projected shortcut. */
int ls_kernel_net_bottleneck(ls_kernel_net *n, int in, int channels, int stride);
/* Average pool, linear, cross entropy. */
void ls_kernel_net_finish(ls_kernel_net *n, int in, int classes);

/* A plain double interpreter of small networks: direct loops over NCHW that share nothing with what
 * they judge. Every stored value is rounded where `type` says so; branches (ReLU, max-pool) can be
 * forced to what the subject took. */
typedef enum ls_kernel_rounding {
    LS_KERNEL_ROUND_NONE,
    LS_KERNEL_ROUND_F32,
    LS_KERNEL_ROUND_F16,
    LS_KERNEL_ROUND_BF16,
} ls_kernel_rounding;

typedef struct ls_kernel_plane {
    int channels, height, width;
    int64_t count; /* elements of the layer's output, all samples */
} ls_kernel_plane;

typedef struct ls_kernel_interpreter {
    const ls_kernel_net *n;
    int batch;
    ls_kernel_rounding type;
    ls_kernel_plane size[LS_KERNEL_NET_LAYERS];
    double *value[LS_KERNEL_NET_LAYERS], *grad[LS_KERNEL_NET_LAYERS];
    double *param[LS_KERNEL_NET_PARAMS], *param_grad[LS_KERNEL_NET_PARAMS];
    double *mean[LS_KERNEL_NET_LAYERS], *variance[LS_KERNEL_NET_LAYERS]; /* of batch norms */
    uint8_t *bits[LS_KERNEL_NET_LAYERS];                                 /* of ReLUs */
    int32_t *index[LS_KERNEL_NET_LAYERS]; /* chosen or forced pool indices */
    bool force;
    bool evaluates; /* batch norms take mean and variance as they are */
    double loss;
} ls_kernel_interpreter;

double ls_kernel_interpreter_round(double x, ls_kernel_rounding type);
/* Allocates everything, zeroed; free with ls_kernel_interpreter_free. */
void ls_kernel_interpreter_make(ls_kernel_interpreter *t, const ls_kernel_net *n, int batch,
                                int height, int width, ls_kernel_rounding type);
void ls_kernel_interpreter_free(ls_kernel_interpreter *t);
/* From value[0] and param[]; fills value[], mean[] and variance[] (unless `evaluates`) and loss. */
void ls_kernel_interpreter_forward(ls_kernel_interpreter *t, const int64_t *target);
/* Of loss * scale; fills grad[] and param_grad[]. */
void ls_kernel_interpreter_backward(ls_kernel_interpreter *t, const int64_t *target, double scale);
/* Loss (and with `backward` the gradient of loss * scale) of layer i, the cross entropy, from the
 * logits that its input holds. */
void ls_kernel_interpreter_loss(ls_kernel_interpreter *t, int i, const int64_t *target,
                                bool backward, double scale);

/* A plan of a backend with memory for its parameters, as the cases of family `kernels` drive it:
 * everything goes in and out through the backend's own copies, so any device can be the subject. */
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
    bool fuse;     /* products also sum for the norm behind; not deterministic then */
    uint64_t seed; /* of parameters, input and targets */
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
