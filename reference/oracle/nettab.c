#include "nettab.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/log.h"

/* torchvision: blocks per stage, and whether a block is a bottleneck. */
typedef struct imagenet_row {
    const char *arch;
    bool bottleneck;
    int blocks[4];
} imagenet_row;

static const imagenet_row imagenet[] = {
    {"resnet18", false, {2, 2, 2, 2}},  {"resnet34", false, {3, 4, 6, 3}},
    {"resnet50", true, {3, 4, 6, 3}},   {"resnet101", true, {3, 4, 23, 3}},
    {"resnet152", true, {3, 8, 36, 3}},
};

/* He et al. 2015, section 4.2: depth 6n+2. */
typedef struct cifar_row {
    const char *arch;
    int blocks;
} cifar_row;

static const cifar_row cifar[] = {
    {"resnet8", 1},  {"resnet20", 3}, {"resnet32", 5},
    {"resnet44", 7}, {"resnet56", 9}, {"resnet110", 18},
};

static int add_node(ls_nettab *net, ls_nettab_kind kind, int input, const char *name)
{
    LS_ASSERT(net->node_count < LS_NETTAB_NODES_MAX);
    int index = net->node_count++;
    ls_nettab_node *node = &net->node[index];
    *node = (ls_nettab_node){.kind = kind,
                             .input = input,
                             .other = -1,
                             .stride = 1,
                             .weight = -1,
                             .bias = -1,
                             .branch = -1};
    snprintf(node->name, sizeof node->name, "%s", name);
    if (input >= 0) {
        node->channels = net->node[input].channels;
        node->height = net->node[input].height;
        node->width = net->node[input].width;
    }
    if (kind == LS_NETTAB_RELU || kind == LS_NETTAB_POOL) {
        LS_ASSERT(net->branch_count < LS_NETTAB_BRANCHES_MAX);
        net->branch_node[net->branch_count] = index;
        node->branch = net->branch_count++;
    }
    return index;
}

static int add_param(ls_nettab *net, int node, const char *suffix, int64_t count)
{
    LS_ASSERT(net->param_count < LS_NETTAB_PARAMS_MAX);
    ls_nettab_param *param = &net->param[net->param_count];
    ls_nettab_node user = net->node[node];
    snprintf(param->name, sizeof param->name, "%s.%s", user.name, suffix);
    param->node = node;
    param->count = count;
    param->offset = net->elements;
    net->elements += count;
    return net->param_count++;
}

static int window(int size, int kernel, int stride, int pad)
{
    return (size + 2 * pad - kernel) / stride + 1;
}

static int add_conv(ls_nettab *net, int input, const char *name, int channels, int kernel,
                    int stride)
{
    int index = add_node(net, LS_NETTAB_CONV, input, name);
    ls_nettab_node *node = &net->node[index];
    node->kernel = kernel;
    node->stride = stride;
    node->pad = kernel / 2;
    int64_t fan_in = (int64_t)node->channels * kernel * kernel;
    node->channels = channels;
    node->height = window(node->height, kernel, stride, node->pad);
    node->width = window(node->width, kernel, stride, node->pad);
    node->weight = add_param(net, index, "weight", channels * fan_in);
    return index;
}

static int add_norm(ls_nettab *net, int input, const char *name)
{
    int index = add_node(net, LS_NETTAB_NORM, input, name);
    net->node[index].weight = add_param(net, index, "weight", net->node[index].channels);
    net->node[index].bias = add_param(net, index, "bias", net->node[index].channels);
    return index;
}

static int add_conv_norm(ls_nettab *net, int input, const char *block, const char *conv,
                         const char *norm, int channels, int kernel, int stride)
{
    char name[48];
    snprintf(name, sizeof name, "%s%s", block, conv);
    int index = add_conv(net, input, name, channels, kernel, stride);
    snprintf(name, sizeof name, "%s%s", block, norm);
    return add_norm(net, index, name);
}

static int add_relu(ls_nettab *net, int input, const char *block, const char *relu)
{
    char name[48];
    snprintf(name, sizeof name, "%s%s", block, relu);
    return add_node(net, LS_NETTAB_RELU, input, name);
}

static int add_sum(ls_nettab *net, int branch, int shortcut, const char *block)
{
    char name[48];
    snprintf(name, sizeof name, "%sadd", block);
    int index = add_node(net, LS_NETTAB_ADD, branch, name);
    net->node[index].other = shortcut;
    return index;
}

/* torchvision's BasicBlock and Bottleneck (expansion 4). */
static int add_imagenet_block(ls_nettab *net, int input, const char *block, bool bottleneck,
                              int width, int stride)
{
    int channels = bottleneck ? width * 4 : width;
    int out;
    if (bottleneck) {
        out = add_conv_norm(net, input, block, "conv1", "bn1", width, 1, 1);
        out = add_relu(net, out, block, "relu1");
        out = add_conv_norm(net, out, block, "conv2", "bn2", width, 3, stride);
        out = add_relu(net, out, block, "relu2");
        out = add_conv_norm(net, out, block, "conv3", "bn3", channels, 1, 1);
    } else {
        out = add_conv_norm(net, input, block, "conv1", "bn1", width, 3, stride);
        out = add_relu(net, out, block, "relu1");
        out = add_conv_norm(net, out, block, "conv2", "bn2", width, 3, 1);
    }
    int shortcut = input;
    if (stride != 1 || net->node[input].channels != channels) {
        shortcut =
            add_conv_norm(net, input, block, "downsample.0", "downsample.1", channels, 1, stride);
    }
    out = add_sum(net, out, shortcut, block);
    return add_relu(net, out, block, bottleneck ? "relu3" : "relu2");
}

static int add_imagenet(ls_nettab *net, const imagenet_row *row)
{
    int out = add_conv_norm(net, 0, "", "conv1", "bn1", 64, 7, 2);
    out = add_relu(net, out, "", "relu");
    out = add_node(net, LS_NETTAB_POOL, out, "maxpool");
    ls_nettab_node *pool = &net->node[out];
    pool->kernel = 3;
    pool->stride = 2;
    pool->pad = 1;
    pool->height = window(pool->height, 3, 2, 1);
    pool->width = window(pool->width, 3, 2, 1);
    for (int stage = 0; stage < 4; stage++) {
        for (int i = 0; i < row->blocks[stage]; i++) {
            char block[32];
            snprintf(block, sizeof block, "layer%d.%d.", stage + 1, i);
            out = add_imagenet_block(net, out, block, row->bottleneck, 64 << stage,
                                     stage > 0 && i == 0 ? 2 : 1);
        }
    }
    return out;
}

static int add_cifar_block(ls_nettab *net, int input, const char *block, int channels, int stride)
{
    int out = add_conv_norm(net, input, block, "conv1", "bn1", channels, 3, stride);
    out = add_relu(net, out, block, "relu1");
    out = add_conv_norm(net, out, block, "conv2", "bn2", channels, 3, 1);
    int shortcut = input;
    if (stride != 1 || net->node[input].channels != channels) {
        char name[48];
        snprintf(name, sizeof name, "%sshortcut", block);
        shortcut = add_node(net, LS_NETTAB_SHORTCUT, input, name);
        ls_nettab_node *node = &net->node[shortcut];
        node->channels = channels;
        node->stride = stride;
        node->height = (node->height + stride - 1) / stride;
        node->width = (node->width + stride - 1) / stride;
    }
    out = add_sum(net, out, shortcut, block);
    return add_relu(net, out, block, "relu2");
}

static int add_cifar(ls_nettab *net, const cifar_row *row)
{
    int out = add_conv_norm(net, 0, "", "conv1", "bn1", 16, 3, 1);
    out = add_relu(net, out, "", "relu");
    for (int stage = 0; stage < 3; stage++) {
        for (int i = 0; i < row->blocks; i++) {
            char block[32];
            snprintf(block, sizeof block, "layer%d.%d.", stage + 1, i);
            out = add_cifar_block(net, out, block, 16 << stage, stage > 0 && i == 0 ? 2 : 1);
        }
    }
    return out;
}

static void add_head(ls_nettab *net, int input)
{
    int mean = add_node(net, LS_NETTAB_MEAN, input, "avgpool");
    net->node[mean].height = 1;
    net->node[mean].width = 1;
    int index = add_node(net, LS_NETTAB_LINEAR, mean, "fc");
    ls_nettab_node *node = &net->node[index];
    int64_t features = node->channels;
    node->channels = net->classes;
    node->weight = add_param(net, index, "weight", features * net->classes);
    node->bias = add_param(net, index, "bias", net->classes);
}

bool ls_nettab_knows(const char *arch)
{
    bool known = false;
    for (size_t i = 0; i < sizeof imagenet / sizeof imagenet[0]; i++) {
        known = known || strcmp(arch, imagenet[i].arch) == 0;
    }
    for (size_t i = 0; i < sizeof cifar / sizeof cifar[0]; i++) {
        known = known || strcmp(arch, cifar[i].arch) == 0;
    }
    return known;
}

ls_status ls_nettab_build(const char *arch, int classes, int height, int width, ls_nettab *out)
{
    if (classes < 1 || height < 1 || width < 1) {
        return ls_log_fail(LS_ERR_USAGE,
                           "oracle: %d classes at %dx%d pixels: all must be at least 1", classes,
                           height, width);
    }
    memset(out, 0, sizeof *out);
    snprintf(out->arch, sizeof out->arch, "%s", arch);
    out->classes = classes;
    add_node(out, LS_NETTAB_INPUT, -1, "input");
    out->node[0].channels = 3;
    out->node[0].height = height;
    out->node[0].width = width;
    int last = -1;
    for (size_t i = 0; i < sizeof imagenet / sizeof imagenet[0] && last < 0; i++) {
        if (strcmp(arch, imagenet[i].arch) == 0) {
            last = add_imagenet(out, &imagenet[i]);
        }
    }
    for (size_t i = 0; i < sizeof cifar / sizeof cifar[0] && last < 0; i++) {
        if (strcmp(arch, cifar[i].arch) == 0) {
            last = add_cifar(out, &cifar[i]);
        }
    }
    if (last < 0) {
        return ls_log_fail(LS_ERR_USAGE, "oracle: unknown network '%s': " LS_NETTAB_NAMES, arch);
    }
    add_head(out, last);
    return LS_OK;
}

int ls_nettab_find_param(const ls_nettab *net, const char *name)
{
    for (int i = 0; i < net->param_count; i++) {
        if (strcmp(net->param[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

int64_t ls_nettab_macs(const ls_nettab *net)
{
    int64_t macs = 0;
    for (int i = 0; i < net->node_count; i++) {
        const ls_nettab_node *node = &net->node[i];
        if (node->kind == LS_NETTAB_CONV || node->kind == LS_NETTAB_LINEAR) {
            macs += net->param[node->weight].count * node->height * node->width;
        }
    }
    return macs;
}
