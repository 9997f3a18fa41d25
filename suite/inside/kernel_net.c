#include "kernel.h"

#include <stdio.h>
#include <string.h>

void ls_kernel_net_start(ls_kernel_net *n)
{
    memset(n, 0, sizeof *n);
    n->network.layer = n->layer;
    n->network.param = n->param;
    n->network.buffer = n->buffer;
    snprintf(n->network.arch, sizeof n->network.arch, "test");
    n->layer[0] = (ls_layer){.kind = LS_LAYER_INPUT,
                             .input = {-1, -1},
                             .channels = 3,
                             .weight = -1,
                             .bias = -1,
                             .running_mean = -1,
                             .running_var = -1,
                             .branch = -1};
    n->network.layer_count = 1;
}

static int add_layer(ls_kernel_net *n, ls_layer_kind kind, int in, int in2, int channels)
{
    int index = n->network.layer_count++;
    ls_layer *l = &n->layer[index];
    *l = (ls_layer){.kind = kind,
                    .input = {in, in2},
                    .channels = channels,
                    .kernel = 1,
                    .stride = 1,
                    .weight = -1,
                    .bias = -1,
                    .running_mean = -1,
                    .running_var = -1,
                    .branch = -1};
    if (kind == LS_LAYER_RELU || kind == LS_LAYER_MAX_POOL) {
        l->branch = n->network.branch_count++;
    }
    snprintf(l->name, sizeof l->name, "l%d", index);
    return index;
}

static int add_param(ls_kernel_net *n, ls_param_role role, int rank, int64_t a, int64_t b,
                     int64_t k)
{
    int index = n->network.param_count++;
    n->param[index].role = role;
    n->param[index].shape = (ls_shape){rank, {a, b, k, k, 0}};
    snprintf(n->param[index].name, sizeof n->param[index].name, "p%d", index);
    return index;
}

static int channels_of(const ls_kernel_net *n, int layer)
{
    return n->layer[layer].channels;
}

int ls_kernel_net_conv(ls_kernel_net *n, int in, int channels, int kernel, int stride, int pad)
{
    int l = add_layer(n, LS_LAYER_CONV, in, -1, channels);
    n->layer[l].kernel = kernel;
    n->layer[l].stride = stride;
    n->layer[l].pad = pad;
    n->layer[l].weight =
        add_param(n, LS_PARAM_CONV_WEIGHT, 4, channels, channels_of(n, in), kernel);
    return l;
}

int ls_kernel_net_norm(ls_kernel_net *n, int in)
{
    int channels = channels_of(n, in), l = add_layer(n, LS_LAYER_BATCH_NORM, in, -1, channels);
    n->layer[l].weight = add_param(n, LS_PARAM_NORM_WEIGHT, 1, channels, 0, 0);
    n->layer[l].bias = add_param(n, LS_PARAM_NORM_BIAS, 1, channels, 0, 0);
    n->layer[l].epsilon = 1e-5f;
    n->layer[l].momentum = 0.1f;
    for (int k = 0; k < 3; k++) {
        int b = n->network.buffer_count++;
        n->buffer[b].role = (ls_buffer_role)k;
        n->buffer[b].count = k == 2 ? 1 : channels;
        if (k == 0) {
            n->layer[l].running_mean = b;
        } else if (k == 1) {
            n->layer[l].running_var = b;
        }
    }
    return l;
}

int ls_kernel_net_relu(ls_kernel_net *n, int in)
{
    return add_layer(n, LS_LAYER_RELU, in, -1, channels_of(n, in));
}

int ls_kernel_net_sum(ls_kernel_net *n, int a, int b)
{
    return add_layer(n, LS_LAYER_ADD, a, b, channels_of(n, a));
}

int ls_kernel_net_pool(ls_kernel_net *n, int in, int kernel, int stride, int pad)
{
    int l = add_layer(n, LS_LAYER_MAX_POOL, in, -1, channels_of(n, in));
    n->layer[l].kernel = kernel;
    n->layer[l].stride = stride;
    n->layer[l].pad = pad;
    return l;
}

static int net_shortcut(ls_kernel_net *n, int in, int channels, int stride)
{
    int l = add_layer(n, LS_LAYER_SHORTCUT_PAD, in, -1, channels);
    n->layer[l].stride = stride;
    return l;
}

void ls_kernel_net_finish(ls_kernel_net *n, int in, int classes)
{
    int a = add_layer(n, LS_LAYER_AVG_POOL, in, -1, channels_of(n, in));
    int l = add_layer(n, LS_LAYER_LINEAR, a, -1, classes);
    n->layer[l].weight = add_param(n, LS_PARAM_LINEAR_WEIGHT, 2, classes, channels_of(n, a), 0);
    n->layer[l].bias = add_param(n, LS_PARAM_LINEAR_BIAS, 1, classes, 0, 0);
    add_layer(n, LS_LAYER_CROSS_ENTROPY, l, -1, classes);
    n->network.num_classes = classes;
}

int ls_kernel_net_block(ls_kernel_net *n, int in, int channels, int stride, char shortcut)
{
    int a = ls_kernel_net_relu(
        n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, in, channels, 3, stride, 1)));
    int b = ls_kernel_net_norm(n, ls_kernel_net_conv(n, a, channels, 3, 1, 1)), skip = in;
    if (stride != 1 || channels_of(n, in) != channels) {
        skip = shortcut == 'A'
                   ? net_shortcut(n, in, channels, stride)
                   : ls_kernel_net_norm(n, ls_kernel_net_conv(n, in, channels, 1, stride, 0));
    }
    return ls_kernel_net_relu(n, ls_kernel_net_sum(n, b, skip));
}

int ls_kernel_net_bottleneck(ls_kernel_net *n, int in, int channels, int stride)
{
    int a =
        ls_kernel_net_relu(n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, in, channels, 1, 1, 0)));
    int b = ls_kernel_net_relu(
        n, ls_kernel_net_norm(n, ls_kernel_net_conv(n, a, channels, 3, stride, 1)));
    int c = ls_kernel_net_norm(n, ls_kernel_net_conv(n, b, 4 * channels, 1, 1, 0)), skip = in;
    if (stride != 1 || channels_of(n, in) != 4 * channels) {
        skip = ls_kernel_net_norm(n, ls_kernel_net_conv(n, in, 4 * channels, 1, stride, 0));
    }
    return ls_kernel_net_relu(n, ls_kernel_net_sum(n, c, skip));
}
