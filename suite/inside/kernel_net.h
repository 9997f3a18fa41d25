/* Small networks, built layer by layer, for the judging of single operations of a backend. Every
 * function but start and finish adds layers behind layer `in` and returns the last one's index. */
#ifndef LS_KERNEL_NET_H
#define LS_KERNEL_NET_H

#include "kernels/kernels.h"

enum { LS_KERNEL_NET_LAYERS = 64, LS_KERNEL_NET_PARAMS = 96, LS_KERNEL_NET_BUFFERS = 96 };

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

#endif
