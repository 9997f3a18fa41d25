#include "model.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/rng.h"

typedef enum block_kind { BLOCK_BASIC, BLOCK_BOTTLENECK, BLOCK_CIFAR } block_kind;

enum { STAGES_MAX = 4, IMAGE_SIZE_MAX = 4096, CLASSES_MAX = 1000000 };

typedef struct family {
    const char *arch;
    block_kind block;
    int stages;
    int blocks[STAGES_MAX];
} family;

/* torchvision: models/resnet.py; CIFAR: He et al. 2015, section 4.2, depth 6n+2. */
static const family families[] = {
    {"resnet8", BLOCK_CIFAR, 3, {1, 1, 1}},
    {"resnet20", BLOCK_CIFAR, 3, {3, 3, 3}},
    {"resnet32", BLOCK_CIFAR, 3, {5, 5, 5}},
    {"resnet44", BLOCK_CIFAR, 3, {7, 7, 7}},
    {"resnet56", BLOCK_CIFAR, 3, {9, 9, 9}},
    {"resnet110", BLOCK_CIFAR, 3, {18, 18, 18}},
    {"resnet18", BLOCK_BASIC, 4, {2, 2, 2, 2}},
    {"resnet34", BLOCK_BASIC, 4, {3, 4, 6, 3}},
    {"resnet50", BLOCK_BOTTLENECK, 4, {3, 4, 6, 3}},
    {"resnet101", BLOCK_BOTTLENECK, 4, {3, 4, 23, 3}},
    {"resnet152", BLOCK_BOTTLENECK, 4, {3, 8, 36, 3}},
};

static const family *find_family(const char *arch)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(families[i].arch, arch) == 0) {
            return &families[i];
        }
    }
    return NULL;
}

ls_status ls_model_check(const char *arch, int num_classes, int image_size)
{
    const family *found = find_family(arch);
    if (found == NULL) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--arch '%s': allowed: resnet8, resnet20, resnet32, resnet44, resnet56, "
                           "resnet110 (CIFAR); resnet18, resnet34, resnet50, resnet101, resnet152 "
                           "(ImageNet)",
                           arch);
    }
    if (num_classes < 2 || num_classes > CLASSES_MAX) {
        return ls_log_fail(LS_ERR_USAGE, "--num-classes %d: allowed: 2 to %d", num_classes,
                           CLASSES_MAX);
    }
    /* One pixel must remain before the last stage: the stem and stages halve 5 times, CIFAR's 2. */
    int smallest = found->block == BLOCK_CIFAR ? 4 : 32;
    if (image_size < smallest || image_size > IMAGE_SIZE_MAX) {
        return ls_log_fail(LS_ERR_USAGE, "--image-size %d: allowed for %s: %d to %d", image_size,
                           arch, smallest, IMAGE_SIZE_MAX);
    }
    return LS_OK;
}

/* ---- building -------------------------------------------------------------------------------- */

/* `last` is the layer whose output the next one reads. */
typedef struct builder {
    ls_network *network;
    int last, channels;
} builder;

static int add_param(ls_network *network, ls_param_role role, ls_shape shape, const char *layer,
                     const char *suffix)
{
    ls_param *param = &network->param[network->param_count];
    param->role = role;
    param->shape = shape;
    snprintf(param->name, sizeof param->name, "%.40s.%s", layer, suffix);
    return network->param_count++;
}

static int add_buffer(ls_network *network, ls_buffer_role role, int64_t count, const char *layer,
                      const char *suffix)
{
    ls_buffer *buffer = &network->buffer[network->buffer_count];
    buffer->role = role;
    buffer->count = count;
    snprintf(buffer->name, sizeof buffer->name, "%.40s.%s", layer, suffix);
    return network->buffer_count++;
}

static ls_layer *add_layer(builder *build, ls_layer_kind kind, const char *prefix, const char *name)
{
    ls_network *network = build->network;
    ls_layer *layer = &network->layer[network->layer_count];
    *layer = (ls_layer){.kind = kind,
                        .input = {build->last, -1},
                        .channels = build->channels,
                        .kernel = 1,
                        .stride = 1,
                        .weight = -1,
                        .bias = -1,
                        .running_mean = -1,
                        .running_var = -1,
                        .branch = -1};
    snprintf(layer->name, sizeof layer->name, "%s%s", prefix, name);
    build->last = network->layer_count++;
    return layer;
}

static void add_conv(builder *build, const char *prefix, const char *name, int channels, int kernel,
                     int stride)
{
    ls_shape shape = {4, {channels, build->channels, kernel, kernel}};
    ls_layer *layer = add_layer(build, LS_LAYER_CONV, prefix, name);
    layer->channels = channels;
    layer->kernel = kernel;
    layer->stride = stride;
    layer->pad = kernel / 2;
    layer->weight = add_param(build->network, LS_PARAM_CONV_WEIGHT, shape, layer->name, "weight");
    build->channels = channels;
}

static void add_norm(builder *build, const char *prefix, const char *name)
{
    ls_network *network = build->network;
    ls_shape shape = {1, {build->channels}};
    ls_layer *layer = add_layer(build, LS_LAYER_BATCH_NORM, prefix, name);
    layer->epsilon = LS_PLANT(norm_epsilon, 1e-5f, 1e-3f);
    layer->momentum = LS_PLANT(norm_momentum_turned, 0.1f, 0.9f);
    layer->weight = add_param(network, LS_PARAM_NORM_WEIGHT, shape, layer->name, "weight");
    layer->bias = add_param(network, LS_PARAM_NORM_BIAS, shape, layer->name, "bias");
    layer->running_mean =
        add_buffer(network, LS_BUFFER_RUNNING_MEAN, build->channels, layer->name, "running_mean");
    layer->running_var =
        add_buffer(network, LS_BUFFER_RUNNING_VAR, build->channels, layer->name, "running_var");
    add_buffer(network, LS_BUFFER_BATCHES_TRACKED, 1, layer->name, "num_batches_tracked");
}

static void add_relu(builder *build, const char *prefix, const char *name)
{
    add_layer(build, LS_LAYER_RELU, prefix, name)->branch = build->network->branch_count++;
}

static void add_max_pool(builder *build)
{
    ls_layer *layer = add_layer(build, LS_LAYER_MAX_POOL, "", "maxpool");
    layer->kernel = 3;
    layer->stride = 2;
    layer->pad = 1;
    layer->branch = build->network->branch_count++;
}

static void add_main_path(builder *build, block_kind kind, const char *prefix, int planes,
                          int stride)
{
    if (kind == BLOCK_BOTTLENECK) { /* v1.5: the 3x3 carries the stride */
        add_conv(build, prefix, "conv1", planes, 1, LS_PLANT(stride_on_1x1, 1, stride));
        add_norm(build, prefix, "bn1");
        add_relu(build, prefix, "relu1");
        add_conv(build, prefix, "conv2", planes, 3, LS_PLANT(stride_on_1x1, stride, 1));
        add_norm(build, prefix, "bn2");
        add_relu(build, prefix, "relu2");
        add_conv(build, prefix, "conv3", planes * 4, 1, 1);
        add_norm(build, prefix, "bn3");
        return;
    }
    add_conv(build, prefix, "conv1", planes, 3, LS_PLANT(stride_on_conv2, stride, 1));
    add_norm(build, prefix, "bn1");
    add_relu(build, prefix, "relu1");
    add_conv(build, prefix, "conv2", planes, 3, LS_PLANT(stride_on_conv2, 1, stride));
    add_norm(build, prefix, "bn2");
}

/* The shortcut comes after the main path, so that backward, from last to first, computes its
 * gradients before those of bn2: torch's observed order. */
static void add_block(builder *build, block_kind kind, int stage, int index, int planes, int stride)
{
    char prefix[32];
    snprintf(prefix, sizeof prefix, "layer%d.%d.", stage + 1, index);
    int input = build->last, input_channels = build->channels;
    add_main_path(build, kind, prefix, planes, stride);
    int main_end = build->last, main_channels = build->channels, shortcut = input;
    if (stride != 1 || input_channels != main_channels) {
        build->last = input;
        build->channels = input_channels;
        if (kind == BLOCK_CIFAR) {
            build->channels = main_channels;
            add_layer(build, LS_LAYER_SHORTCUT_PAD, prefix, "shortcut")->stride = stride;
        } else {
            add_conv(build, prefix, "downsample.0", main_channels, 1, stride);
            add_norm(build, prefix, "downsample.1");
        }
        shortcut = build->last;
    }
    ls_layer *sum = add_layer(build, LS_LAYER_ADD, prefix, "add");
    sum->input[0] = main_end;
    sum->input[1] = shortcut;
    add_relu(build, prefix, kind == BLOCK_BOTTLENECK ? "relu3" : "relu2");
}

static void add_head(builder *build, int num_classes)
{
    int features = build->channels;
    add_layer(build, LS_LAYER_AVG_POOL, "", "avgpool");
    ls_layer *linear = add_layer(build, LS_LAYER_LINEAR, "", "fc");
    linear->channels = num_classes;
    linear->weight = add_param(build->network, LS_PARAM_LINEAR_WEIGHT,
                               (ls_shape){2, {num_classes, features}}, "fc", "weight");
    linear->bias =
        add_param(build->network, LS_PARAM_LINEAR_BIAS, (ls_shape){1, {num_classes}}, "fc", "bias");
    build->channels = num_classes;
    add_layer(build, LS_LAYER_CROSS_ENTROPY, "", "loss");
}

static void add_everything(ls_network *network, const family *from)
{
    builder build = {network, -1, 3};
    bool cifar = from->block == BLOCK_CIFAR;
    int planes = cifar ? 16 : 64;
    add_layer(&build, LS_LAYER_INPUT, "", "input");
    add_conv(&build, "", "conv1", planes, cifar ? 3 : 7, cifar ? 1 : 2);
    add_norm(&build, "", "bn1");
    add_relu(&build, "", "relu");
    if (!cifar) {
        add_max_pool(&build);
    }
    for (int stage = 0; stage < from->stages; stage++) {
        for (int index = 0; index < from->blocks[stage]; index++) {
            int stride = stage > 0 && index == 0 ? 2 : 1;
            add_block(&build, from->block, stage, index, planes << stage, stride);
        }
    }
    add_head(&build, network->num_classes);
}

ls_status ls_model_build(const char *arch, int num_classes, int image_size, ls_network *out)
{
    LS_TRY(ls_model_check(arch, num_classes, image_size));
    const family *from = find_family(arch);
    int blocks = 0;
    for (int stage = 0; stage < from->stages; stage++) {
        blocks += from->blocks[stage];
    }
    /* The largest block (bottleneck with downsample) has 12 layers, 12 parameters and 12 buffers;
     * stem and head have 8, 5 and 3. */
    size_t room = 12 * (size_t)blocks + 8;
    ls_network network = {.num_classes = num_classes,
                          .layer = ls_list_make(room, sizeof *network.layer),
                          .param = ls_list_make(room, sizeof *network.param),
                          .buffer = ls_list_make(room, sizeof *network.buffer)};
    snprintf(network.arch, sizeof network.arch, "%s", arch);
    add_everything(&network, from);
    LS_ASSERT(network.layer_count <= (int)room && network.param_count <= (int)room &&
              network.buffer_count <= (int)room);
    *out = network;
    return LS_OK;
}

void ls_model_free(ls_network *network)
{
    free(network->layer);
    free(network->param);
    free(network->buffer);
    *network = (ls_network){0};
}

/* ---- values ---------------------------------------------------------------------------------- */

void ls_model_init_param(const ls_network *network, int param, uint64_t seed, float *value)
{
    LS_ASSERT(param >= 0 && param < network->param_count);
    const ls_param *entry = &network->param[param];
    const int64_t *dim = entry->shape.dim;
    int64_t count = ls_shape_count(&entry->shape);
    uint64_t stream = ls_rng_stream(entry->name);
    double deviation, bound;
    switch (entry->role) {
    case LS_PARAM_CONV_WEIGHT: /* He et al. 2015 (1502.01852), fan out */
        deviation = sqrt(2.0 / (double)(dim[0] * dim[2] * dim[3]));
        for (int64_t i = 0; i < count; i++) {
            value[i] = (float)(deviation * (double)ls_rng_normal(seed, stream, (uint64_t)i));
        }
        return;
    case LS_PARAM_NORM_WEIGHT:
    case LS_PARAM_NORM_BIAS:
        for (int64_t i = 0; i < count; i++) {
            value[i] = entry->role == LS_PARAM_NORM_WEIGHT ? 1.0f : 0.0f;
        }
        return;
    case LS_PARAM_LINEAR_WEIGHT:
    case LS_PARAM_LINEAR_BIAS: /* the bias follows its weight [out, fan in] */
        dim = network->param[entry->role == LS_PARAM_LINEAR_BIAS ? param - 1 : param].shape.dim;
        bound = 1.0 / sqrt((double)dim[1]);
        for (int64_t i = 0; i < count; i++) {
            double uniform = (double)ls_rng_uniform(seed, stream, (uint64_t)i);
            value[i] = (float)(bound * (2.0 * uniform - 1.0));
        }
        return;
    }
}

void ls_model_init_buffer(const ls_network *network, int buffer, float *value)
{
    LS_ASSERT(buffer >= 0 && buffer < network->buffer_count);
    const ls_buffer *entry = &network->buffer[buffer];
    for (int64_t i = 0; i < entry->count; i++) {
        value[i] = entry->role == LS_BUFFER_RUNNING_VAR ? 1.0f : 0.0f;
    }
}

int64_t ls_model_macs(const ls_network *network, int image_size)
{
    ls_layer_extent *extent = ls_list_make((size_t)network->layer_count, sizeof *extent);
    ls_model_extents(network, image_size, extent);
    int64_t macs = 0;
    for (int i = 0; i < network->layer_count; i++) {
        const ls_layer *layer = &network->layer[i];
        if (layer->kind == LS_LAYER_CONV || layer->kind == LS_LAYER_LINEAR) {
            const ls_shape *weight = &network->param[layer->weight].shape;
            macs += ls_shape_count(weight) * extent[i].height * extent[i].width;
        }
    }
    free(extent);
    return macs;
}

/* ---- the layers ------------------------------------------------------------------------------ */

void ls_model_extents(const ls_network *network, int image_size, ls_layer_extent *extent)
{
    for (int i = 0; i < network->layer_count; i++) {
        const ls_layer *layer = &network->layer[i];
        ls_layer_extent input = i == 0 ? (ls_layer_extent){layer->channels, image_size, image_size}
                                       : extent[layer->input[0]];
        ls_layer_extent output = {layer->channels, input.height, input.width};
        switch (layer->kind) {
        case LS_LAYER_CONV:
        case LS_LAYER_MAX_POOL:
        case LS_LAYER_SHORTCUT_PAD: /* kernel 1, pad 0 */
            output.height = (input.height + 2 * layer->pad - layer->kernel) / layer->stride + 1;
            output.width = (input.width + 2 * layer->pad - layer->kernel) / layer->stride + 1;
            break;
        case LS_LAYER_AVG_POOL:
        case LS_LAYER_LINEAR:
            output.height = output.width = 1;
            break;
        case LS_LAYER_CROSS_ENTROPY:
            output = (ls_layer_extent){1, 1, 1};
            break;
        case LS_LAYER_INPUT:
        case LS_LAYER_ENTRY:
        case LS_LAYER_EXIT:
        case LS_LAYER_BATCH_NORM:
        case LS_LAYER_RELU:
        case LS_LAYER_ADD:
            break;
        }
        extent[i] = output;
    }
}

void ls_model_backward_order(const ls_network *network, int *order)
{
    int next = 0,
        first_loose = 0; /* first_loose: parameters without a layer, of the auxiliary head */
    for (int i = 0; i < network->layer_count; i++) {
        first_loose =
            network->layer[i].weight >= first_loose ? network->layer[i].weight + 1 : first_loose;
        first_loose =
            network->layer[i].bias >= first_loose ? network->layer[i].bias + 1 : first_loose;
    }
    for (int i = network->param_count - 1; i >= first_loose; i--) {
        order[next++] = i;
    }
    for (int i = network->layer_count - 1; i >= 0; i--) {
        const ls_layer *layer = &network->layer[i];
        bool bias_first = layer->kind == LS_LAYER_LINEAR;
        int first = bias_first ? layer->bias : layer->weight;
        int second = bias_first ? layer->weight : layer->bias;
        if (first >= 0) {
            order[next++] = first;
        }
        if (second >= 0) {
            order[next++] = second;
        }
    }
    LS_ASSERT(next == network->param_count);
}
