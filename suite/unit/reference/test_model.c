/* Networks: counts, names and order of torchvision 0.14 and of the CIFAR paper
 * (He et al. 2015), torch's order of backward and the statistics of the initial values. */
#include "kernels/core/text.h"
#include "reference/model/model.h"
#include "suite/unit/run_suite.h"

typedef struct golden {
    const char *arch;
    int classes, image_size;
    int64_t elements;
    int params, buffers;
    int64_t macs, norm_elements;
} golden;

/* buffers: state entries - parameter tensors */
static const golden goldens[] = {
    {"resnet18", 1000, 224, 11689512, 62, 60, 1814073344, 9600},
    {"resnet34", 1000, 224, 21797672, 110, 108, 3663761408, 17024},
    {"resnet50", 1000, 224, 25557032, 161, 159, 4089184256, 53120},
    {"resnet101", 1000, 224, 44549160, 314, 312, 7801405440, 105344},
    {"resnet152", 1000, 224, 60192808, 467, 465, 11513626624, 151424},
    {"resnet8", 10, 16, 75290, 23, 21, 3060352, -1}, /* 6n + 2 with n = 1 */
    {"resnet20", 10, 32, 269722, 59, 57, 40551040, -1},
    {"resnet32", 10, 32, 464154, 95, 93, 68862592, -1},
    {"resnet44", 10, 32, 658586, 131, 129, 97174144, -1},
    {"resnet56", 10, 32, 853018, 167, 165, 125485696, -1},
    {"resnet110", 10, 32, 1727962, 329, 327, 252887680, -1},
};

ROWS_TEST(counts, goldens)
{
    const golden *want = &goldens[_i];
    ls_network network;
    ck_assert_int_eq(ls_model_build(want->arch, want->classes, want->image_size, &network), LS_OK);
    int64_t elements = 0, norm_elements = 0;
    for (int p = 0; p < network.param_count; p++) {
        const ls_param *param = &network.param[p];
        elements += ls_shape_count(&param->shape);
        if (param->role == LS_PARAM_NORM_WEIGHT || param->role == LS_PARAM_NORM_BIAS) {
            norm_elements += ls_shape_count(&param->shape);
        }
    }
    ck_assert_int_eq(elements, want->elements);
    ck_assert_int_eq(network.param_count, want->params);
    ck_assert_int_eq(network.buffer_count, want->buffers);
    ck_assert_int_eq(ls_model_macs(&network, want->image_size), want->macs);
    if (want->norm_elements >= 0) {
        ck_assert_int_eq(norm_elements, want->norm_elements);
    }
    ls_model_free(&network);
}

TEST(names_and_order)
{
    ls_network network;
    char params[400] = "", buffers[200] = "";
    ck_assert_int_eq(ls_model_build("resnet50", 1000, 224, &network), LS_OK);
    for (int i = 0; i < 16; i++) {
        ls_text_add(params, sizeof params, " %s", network.param[i].name);
    }
    for (int i = 0; i < 4; i++) {
        ls_text_add(buffers, sizeof buffers, " %s", network.buffer[i].name);
    }
    ck_assert_str_eq(
        params + 1, "conv1.weight bn1.weight bn1.bias layer1.0.conv1.weight layer1.0.bn1.weight "
                    "layer1.0.bn1.bias layer1.0.conv2.weight layer1.0.bn2.weight layer1.0.bn2.bias "
                    "layer1.0.conv3.weight layer1.0.bn3.weight layer1.0.bn3.bias "
                    "layer1.0.downsample.0.weight layer1.0.downsample.1.weight "
                    "layer1.0.downsample.1.bias layer1.1.conv1.weight");
    ck_assert_str_eq(buffers + 1, "bn1.running_mean bn1.running_var bn1.num_batches_tracked "
                                  "layer1.0.bn1.running_mean");
    ck_assert_str_eq(network.param[159].name, "fc.weight");
    ck_assert_str_eq(network.param[160].name, "fc.bias");
    ck_assert_str_eq(network.arch, "resnet50");
    ls_model_free(&network);
}

static const ls_layer *layer_named(const ls_network *network, const char *name)
{
    for (int i = 0; i < network->layer_count; i++) {
        if (strcmp(network->layer[i].name, name) == 0) {
            return &network->layer[i];
        }
    }
    ck_abort_msg("no layer %s", name);
    return NULL;
}

/* v1.5: the 3x3 carries the stride; stage 1 of a bottleneck network has a downsample of stride 1.
 */
TEST(strides)
{
    ls_network network;
    ck_assert_int_eq(ls_model_build("resnet50", 1000, 224, &network), LS_OK);
    ck_assert_int_eq(layer_named(&network, "layer2.0.conv1")->stride, 1);
    ck_assert_int_eq(layer_named(&network, "layer2.0.conv2")->stride, 2);
    ck_assert_int_eq(layer_named(&network, "layer2.0.conv2")->pad, 1);
    ck_assert_int_eq(layer_named(&network, "layer1.0.downsample.0")->stride, 1);
    ck_assert_int_eq(layer_named(&network, "layer2.0.downsample.0")->stride, 2);
    ck_assert_int_eq(layer_named(&network, "layer2.0.downsample.0")->pad, 0);
    const ls_layer *sum = layer_named(&network, "layer2.0.add");
    ck_assert_str_eq(network.layer[sum->input[0]].name, "layer2.0.bn3");
    ck_assert_str_eq(network.layer[sum->input[1]].name, "layer2.0.downsample.1");
    const ls_layer *shortcut = layer_named(&network, "layer2.0.downsample.0");
    ck_assert_str_eq(network.layer[shortcut->input[0]].name, "layer1.2.relu3");
    ck_assert_str_eq(network.layer[layer_named(&network, "layer2.0.conv1")->input[0]].name,
                     "layer1.2.relu3");
    ls_model_free(&network);
}

/* Layers read only earlier ones; branches are numbered in order of execution; the last layer is the
 * loss. */
ROWS_TEST(lists_are_sound, goldens)
{
    ls_network network;
    ck_assert_int_eq(ls_model_build(goldens[_i].arch, 10, 64, &network), LS_OK);
    int branch = 0;
    ck_assert_int_eq(network.layer[0].kind, LS_LAYER_INPUT);
    for (int i = 1; i < network.layer_count; i++) {
        const ls_layer *layer = &network.layer[i];
        ck_assert(layer->input[0] >= 0 && layer->input[0] < i && layer->input[1] < i);
        ck_assert((layer->input[1] >= 0) == (layer->kind == LS_LAYER_ADD));
        bool is_branch = layer->kind == LS_LAYER_RELU || layer->kind == LS_LAYER_MAX_POOL;
        ck_assert_int_eq(layer->branch, is_branch ? branch : -1);
        branch += is_branch;
        for (int j = 0; j < i; j++) {
            ck_assert_str_ne(network.layer[j].name, layer->name);
        }
    }
    ck_assert_int_eq(branch, network.branch_count);
    ck_assert_int_eq(network.layer[network.layer_count - 1].kind, LS_LAYER_CROSS_ENTROPY);
    ls_model_free(&network);
}

TEST(extents)
{
    ls_network network;
    ls_layer_extent extent[256];
    ck_assert_int_eq(ls_model_build("resnet18", 10, 225, &network), LS_OK);
    ck_assert_int_lt(network.layer_count, 256);
    ls_model_extents(&network, 225, extent);
    ptrdiff_t pool = layer_named(&network, "maxpool") - network.layer;
    ptrdiff_t last = layer_named(&network, "layer4.1.bn2") - network.layer;
    ck_assert_int_eq(extent[pool - 1].height, 113);
    ck_assert_int_eq(extent[pool].height, 57);
    ck_assert_int_eq(extent[last].height, 8);
    ck_assert_int_eq(extent[last].channels, 512);
    ck_assert_int_eq(extent[network.layer_count - 2].channels, 10);
    ls_model_free(&network);
    ck_assert_int_eq(ls_model_build("resnet20", 10, 32, &network), LS_OK);
    ls_model_extents(&network, 32, extent);
    ptrdiff_t shortcut = layer_named(&network, "layer2.0.shortcut") - network.layer;
    ck_assert_int_eq(extent[shortcut].channels, 32);
    ck_assert_int_eq(extent[shortcut].height, 16);
    ls_model_free(&network);
}

/* What torch 1.13 is seen to do. */
TEST(backward_order)
{
    ls_network network;
    int order[64];
    bool seen[64] = {false};
    char first[400] = "";
    ck_assert_int_eq(ls_model_build("resnet18", 1000, 224, &network), LS_OK);
    ls_model_backward_order(&network, order);
    for (int i = 0; i < 14; i++) {
        ls_text_add(first, sizeof first, " %s", network.param[order[i]].name);
    }
    ck_assert_str_eq(
        first + 1, "fc.bias fc.weight layer4.1.bn2.weight layer4.1.bn2.bias layer4.1.conv2.weight "
                   "layer4.1.bn1.weight layer4.1.bn1.bias layer4.1.conv1.weight "
                   "layer4.0.downsample.1.weight layer4.0.downsample.1.bias "
                   "layer4.0.downsample.0.weight layer4.0.bn2.weight layer4.0.bn2.bias "
                   "layer4.0.conv2.weight");
    for (int i = 0; i < network.param_count; i++) {
        ck_assert(!seen[order[i]]);
        seen[order[i]] = true;
    }
    ck_assert_str_eq(network.param[order[61]].name, "conv1.weight");
    ls_model_free(&network);
}

typedef struct moments {
    double mean, variance, least, most;
} moments;

static moments measure(const float *value, int64_t count)
{
    moments found = {0, 0, value[0], value[0]};
    for (int64_t i = 0; i < count; i++) {
        found.mean += value[i];
        found.least = fmin(found.least, value[i]);
        found.most = fmax(found.most, value[i]);
    }
    found.mean /= (double)count;
    for (int64_t i = 0; i < count; i++) {
        found.variance += (value[i] - found.mean) * (value[i] - found.mean);
    }
    found.variance /= (double)count;
    return found;
}

/* Five standard errors of the estimates: a right generator fails once in a million draws, and the
 * draw is fixed. Standard errors: mean s/sqrt(n); variance of a normal s^2*sqrt(2/n). */
TEST(initial_values)
{
    ls_network network;
    ck_assert_int_eq(ls_model_build("resnet18", 1000, 224, &network), LS_OK);
    float *value = malloc(sizeof *value * 4000000);
    for (int p = 0; p < network.param_count; p++) {
        const ls_param *param = &network.param[p];
        int64_t count = ls_shape_count(&param->shape);
        double n = (double)count;
        if (param->role == LS_PARAM_CONV_WEIGHT && count > 200000) {
            continue; /* the same code; keeps the test short */
        }
        ls_model_init_param(&network, p, 7, value);
        moments found = measure(value, count);
        if (param->role == LS_PARAM_CONV_WEIGHT) {
            const int64_t *dim = param->shape.dim;
            double variance = 2.0 / (double)(dim[0] * dim[2] * dim[3]);
            ck_assert_double_le(fabs(found.mean), 5 * sqrt(variance / n));
            ck_assert_double_le(fabs(found.variance / variance - 1), 5 * sqrt(2 / n));
        } else if (param->role == LS_PARAM_NORM_WEIGHT || param->role == LS_PARAM_NORM_BIAS) {
            double want = param->role == LS_PARAM_NORM_WEIGHT ? 1 : 0;
            ck_assert(found.least == want && found.most == want);
        } else { /* uniform in +-b: variance b^2/3, its standard error b^2/3*sqrt(0.8/n) */
            double bound = 1 / sqrt(512.0);
            ck_assert_double_le(fmax(-found.least, found.most), bound);
            ck_assert_double_le(fabs(found.mean), 5 * bound / sqrt(3 * n));
            ck_assert_double_le(fabs(found.variance * 3 / (bound * bound) - 1), 5 * sqrt(0.8 / n));
            ck_assert_double_ge(fmax(-found.least, found.most), bound * (1 - 20 / n));
        }
    }
    free(value);
    ls_model_free(&network);
}

/* A value depends on seed, name and index only: the same parameter of another network is the same.
 */
TEST(initial_values_are_pure)
{
    ls_network small, large;
    float a[64 * 3 * 49], b[64 * 3 * 49], c[64 * 3 * 49];
    ck_assert_int_eq(ls_model_build("resnet18", 10, 64, &small), LS_OK);
    ck_assert_int_eq(ls_model_build("resnet50", 1000, 224, &large), LS_OK);
    ls_model_init_param(&small, 0, 3, a);
    ls_model_init_param(&large, 0, 3, b);
    ls_model_init_param(&small, 0, 4, c);
    ck_assert_mem_eq(a, b, sizeof a);
    ck_assert_mem_ne(a, c, sizeof a);
    float buffer[64];
    ls_model_init_buffer(&small, 0, buffer);
    ck_assert(buffer[0] == 0.0f && buffer[63] == 0.0f);
    ls_model_init_buffer(&small, 1, buffer);
    ck_assert(buffer[0] == 1.0f && buffer[63] == 1.0f);
    ls_model_free(&small);
    ls_model_free(&large);
}

TEST(refusals)
{
    ls_network network;
    ck_assert_int_eq(ls_model_build("resnet19", 10, 224, &network), LS_ERR_USAGE);
    ck_assert_int_eq(ls_model_build("", 10, 224, &network), LS_ERR_USAGE);
    ck_assert_int_eq(ls_model_build("resnet18", 1, 224, &network), LS_ERR_USAGE);
    ck_assert_int_eq(ls_model_build("resnet18", 10, 31, &network), LS_ERR_USAGE);
    ck_assert_int_eq(ls_model_build("resnet20", 10, 3, &network), LS_ERR_USAGE);
    ck_assert_int_eq(ls_model_check("resnet20", 10, 4), LS_OK);
    ck_assert_int_eq(ls_model_check("resnet18", 10, 32), LS_OK);
}

TEST_MAIN("model")
