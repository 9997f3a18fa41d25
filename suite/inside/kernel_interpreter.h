/* A plain double interpreter of small networks: direct loops over NCHW that share nothing with what
 * they judge. Every stored value is rounded where `type` says so; branches (ReLU, max-pool) can be
 * forced to what the subject took. */
#ifndef LS_KERNEL_INTERPRETER_H
#define LS_KERNEL_INTERPRETER_H

#include "kernel_net.h"

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
    double loss;
} ls_kernel_interpreter;

double ls_kernel_interpreter_round(double x, ls_kernel_rounding type);
/* Allocates everything, zeroed; free with ls_kernel_interpreter_free. */
void ls_kernel_interpreter_make(ls_kernel_interpreter *t, const ls_kernel_net *n, int batch,
                                int height, int width, ls_kernel_rounding type);
void ls_kernel_interpreter_free(ls_kernel_interpreter *t);
/* From value[0] and param[]; fills value[], mean[], variance[] and loss. */
void ls_kernel_interpreter_forward(ls_kernel_interpreter *t, const int64_t *target);
/* Of loss * scale; fills grad[] and param_grad[]. */
void ls_kernel_interpreter_backward(ls_kernel_interpreter *t, const int64_t *target, double scale);
/* Loss (and with `backward` the gradient of loss * scale) of layer i, the cross entropy, from the
 * logits that its input holds. */
void ls_kernel_interpreter_loss(ls_kernel_interpreter *t, int i, const int64_t *target,
                                bool backward, double scale);

#endif
