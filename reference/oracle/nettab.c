#include "nettab.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "kernels/core/log.h"

/* torchvision's networks, and those of He et al. 2015, section 4.2, of depth 6n+2. */
typedef struct row {
    const char *arch;
    bool cifar, bottleneck;
    int blocks[4]; /* of each stage */
} row;

static const row rows[] = {
    {"resnet18", false, false, {2, 2, 2, 2}},  {"resnet34", false, false, {3, 4, 6, 3}},
    {"resnet50", false, true, {3, 4, 6, 3}},   {"resnet101", false, true, {3, 4, 23, 3}},
    {"resnet152", false, true, {3, 8, 36, 3}}, {"resnet8", true, false, {1, 1, 1}},
    {"resnet20", true, false, {3, 3, 3}},      {"resnet32", true, false, {5, 5, 5}},
    {"resnet44", true, false, {7, 7, 7}},      {"resnet56", true, false, {9, 9, 9}},
    {"resnet110", true, false, {18, 18, 18}},
};

static const row *find_row(const char *arch)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(arch, rows[i].arch) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

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

/* A node whose name follows the block's. */
static int add_named(ls_nettab *net, ls_nettab_kind kind, int input, const char *block,
                     const char *own)
{
    char name[48];
    snprintf(name, sizeof name, "%s%s", block, own);
    return add_node(net, kind, input, name);
}

static int add_conv_norm(ls_nettab *net, int input, const char *block, const char *conv,
                         const char *norm, int channels, int kernel, int stride)
{
    int index = add_named(net, LS_NETTAB_CONV, input, block, conv);
    ls_nettab_node *node = &net->node[index];
    int64_t fan_in = (int64_t)node->channels * kernel * kernel;
    node->kernel = kernel;
    node->stride = stride;
    node->pad = kernel / 2;
    node->channels = channels;
    node->height = window(node->height, kernel, stride, node->pad);
    node->width = window(node->width, kernel, stride, node->pad);
    node->weight = add_param(net, index, "weight", channels * fan_in);
    index = add_named(net, LS_NETTAB_NORM, index, block, norm);
    net->node[index].weight = add_param(net, index, "weight", channels);
    net->node[index].bias = add_param(net, index, "bias", channels);
    return index;
}

/* Option A: every stride-th pixel, channels of zeros. */
static int add_shortcut(ls_nettab *net, int input, const char *block, int channels, int stride)
{
    int shortcut = add_named(net, LS_NETTAB_SHORTCUT, input, block, "shortcut");
    ls_nettab_node *node = &net->node[shortcut];
    node->channels = channels;
    node->stride = stride;
    node->height = (node->height + stride - 1) / stride;
    node->width = (node->width + stride - 1) / stride;
    return shortcut;
}

/* torchvision's BasicBlock and Bottleneck (expansion 4). */
static int add_block(ls_nettab *net, const row *row, int input, const char *block, int width,
                     int stride)
{
    int channels = row->bottleneck ? width * 4 : width, out, shortcut = input;
    if (row->bottleneck) {
        out = add_conv_norm(net, input, block, "conv1", "bn1", width, 1, 1);
        out = add_named(net, LS_NETTAB_RELU, out, block, "relu1");
        out = add_conv_norm(net, out, block, "conv2", "bn2", width, 3, stride);
        out = add_named(net, LS_NETTAB_RELU, out, block, "relu2");
        out = add_conv_norm(net, out, block, "conv3", "bn3", channels, 1, 1);
    } else {
        out = add_conv_norm(net, input, block, "conv1", "bn1", width, 3, stride);
        out = add_named(net, LS_NETTAB_RELU, out, block, "relu1");
        out = add_conv_norm(net, out, block, "conv2", "bn2", width, 3, 1);
    }
    if (stride != 1 || net->node[input].channels != channels) {
        shortcut = row->cifar ? add_shortcut(net, input, block, channels, stride)
                              : add_conv_norm(net, input, block, "downsample.0", "downsample.1",
                                              channels, 1, stride);
    }
    out = add_named(net, LS_NETTAB_ADD, out, block, "add");
    net->node[out].other = shortcut;
    return add_named(net, LS_NETTAB_RELU, out, block, row->bottleneck ? "relu3" : "relu2");
}

static int add_blocks(ls_nettab *net, const row *row)
{
    int width = row->cifar ? 16 : 64;
    int out =
        add_conv_norm(net, 0, "", "conv1", "bn1", width, row->cifar ? 3 : 7, row->cifar ? 1 : 2);
    out = add_node(net, LS_NETTAB_RELU, out, "relu");
    if (!row->cifar) {
        out = add_node(net, LS_NETTAB_POOL, out, "maxpool");
        ls_nettab_node *pool = &net->node[out];
        pool->kernel = 3;
        pool->stride = 2;
        pool->pad = 1;
        pool->height = window(pool->height, 3, 2, 1);
        pool->width = window(pool->width, 3, 2, 1);
    }
    for (int stage = 0; stage < 4; stage++) {
        for (int i = 0; i < row->blocks[stage]; i++) {
            char block[32];
            snprintf(block, sizeof block, "layer%d.%d.", stage + 1, i);
            out = add_block(net, row, out, block, width << stage, stage > 0 && i == 0 ? 2 : 1);
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
    return find_row(arch) != NULL;
}

ls_status ls_nettab_build(const char *arch, int classes, int height, int width, ls_nettab *out)
{
    if (classes < 1 || height < 1 || width < 1) {
        return ls_log_fail(LS_ERR_USAGE,
                           "oracle: %d classes at %dx%d pixels: all must be at least 1", classes,
                           height, width);
    }
    const row *row = find_row(arch);
    if (row == NULL) {
        return ls_log_fail(LS_ERR_USAGE, "oracle: unknown network '%s': " LS_NETTAB_NAMES, arch);
    }
    memset(out, 0, sizeof *out);
    snprintf(out->arch, sizeof out->arch, "%s", arch);
    out->classes = classes;
    add_node(out, LS_NETTAB_INPUT, -1, "input");
    out->node[0].channels = 3;
    out->node[0].height = height;
    out->node[0].width = width;
    add_head(out, add_blocks(out, row));
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
