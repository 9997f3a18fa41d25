/* A small network in a plan of its own, for cases that ask what an operation reads and writes:
 * every parameter, gradient and running statistic is a tensor that the case may look at and change.
 */
#ifndef LS_NET_H
#define LS_NET_H

#include "kernels/kernels.h"
#include "suite/inside/inside.h"

typedef struct ls_net {
    ls_device device;
    ls_network network; /* resnet8, 10 classes, 16 x 16 pixels */
    ls_plan *plan;
    int batch;
    ls_tensor *param, *grad, *buffer; /* indexed like the network's */
    ls_tensor state_memory;
    float *input;      /* [batch,3,16,16] */
    int64_t target[8]; /* [batch] */
    ls_verdict *verdict;
} ls_net;

/* `held`: the type of products' weights, biases and their gradients; batch norm is f32. False with
 * the verdict set. Weights and input come from `seed`, the running statistics are new. */
bool ls_net_open(ls_net *net, ls_dtype activation, ls_dtype held, int batch, uint64_t seed,
                 ls_verdict *verdict);
void ls_net_close(ls_net *net);
void ls_net_input(ls_net *net, uint64_t seed);
/* The parameter of that name; its values as f32, [count]; free them. */
int ls_net_find(const ls_net *net, const char *name);
float *ls_net_values(const ls_net *net, const ls_tensor *tensor);
void ls_net_set(ls_net *net, int param, const float *value);
/* Notifies the plan that parameters have changed. */
void ls_net_changed(ls_net *net);
/* Forward, and backward of loss * scale * factor; the loss. */
float ls_net_run(ls_net *net, float scale, float factor);
/* [batch * 10] */
void ls_net_logits(ls_net *net, float *logits);
/* F32 of layer `index`, *count elements, NULL where it is fused away; free it. */
float *ls_net_activation(ls_net *net, int index, int64_t *count);
/* Rounded on the bits of the double, by the oracle's rules. */
float ls_net_rounded(ls_dtype type, float value);

#endif
