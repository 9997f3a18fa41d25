/* The trainer's networks against the oracle's own table, layer by layer: what gradients show for
 * the small ones, shown for all. */
#include "../suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../harness/text.h"
#include "../../reference/model.h"
#include "../../reference/oracle/nettab.h"

enum { CLASSES = 10, IMAGE = 64 };

static const char *const archs[] = {"resnet8",  "resnet20",  "resnet32", "resnet44",
                                    "resnet56", "resnet110", "resnet18", "resnet34",
                                    "resnet50", "resnet101", "resnet152"};

/* torchvision's BatchNorm2d: eps 1e-5, momentum 0.1, as f32 */
static const float norm_epsilon = 1e-5f, norm_momentum = 0.1f;

static const ls_layer *find(const ls_network *network, const char *name)
{
    for (int i = 0; i < network->layer_count; i++) {
        if (strcmp(network->layer[i].name, name) == 0) {
            return &network->layer[i];
        }
    }
    return NULL;
}

static void compare_layers(const ls_network *network, const ls_nettab *table, ls_verdict *out)
{
    for (int i = 0; i < table->node_count; i++) {
        const ls_nettab_node *want = &table->node[i];
        bool product = want->kind == LS_NETTAB_CONV || want->kind == LS_NETTAB_POOL;
        if (!product && want->kind != LS_NETTAB_NORM) {
            continue;
        }
        const ls_layer *layer = find(network, want->name);
        if (layer == NULL || layer->channels != want->channels) {
            ls_verdict_set(out, LS_FAIL, "%s: %s, expected %d channels", want->name,
                           layer == NULL ? "there is no such layer" : "other channels",
                           want->channels);
        } else if (product && (layer->kernel != want->kernel || layer->stride != want->stride ||
                               layer->pad != want->pad)) {
            ls_verdict_set(out, LS_FAIL,
                           "%s: kernel %d stride %d padding %d, expected %d, %d and %d", want->name,
                           layer->kernel, layer->stride, layer->pad, want->kernel, want->stride,
                           want->pad);
            ls_text_put(out->cause, sizeof out->cause, "%s",
                        layer->stride != want->stride ? "another convolution carries the stride"
                                                      : "another kernel or padding");
        } else if (!product &&
                   (layer->epsilon != norm_epsilon || layer->momentum != norm_momentum)) {
            ls_verdict_set(out, LS_FAIL, "%s: eps %g momentum %g, expected %g and %g", want->name,
                           (double)layer->epsilon, (double)layer->momentum, (double)norm_epsilon,
                           (double)norm_momentum);
            ls_text_put(out->cause, sizeof out->cause, "batch norm's constants are not torch's");
        }
    }
}

static void judge_network(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const char *arch = archs[row->number[0]];
    ls_nettab *table = calloc(1, sizeof *table);
    ls_network network;
    LS_ASSERT(table != NULL);
    if (ls_nettab_build(arch, CLASSES, IMAGE, IMAGE, table) != LS_OK ||
        ls_model_build(arch, CLASSES, IMAGE, &network) != LS_OK) {
        ls_verdict_set(out, LS_FAIL, "%s cannot be built", arch);
        free(table);
        return;
    }
    if (network.param_count != table->param_count) {
        ls_verdict_set(out, LS_FAIL, "%d parameters, expected %d", network.param_count,
                       table->param_count);
    }
    for (int i = 0; i < table->param_count && out->code == LS_PASS; i++) {
        const ls_param *param = &network.param[i];
        if (strcmp(param->name, table->param[i].name) != 0 ||
            ls_shape_count(&param->shape) != table->param[i].count) {
            ls_verdict_set(out, LS_FAIL, "parameter %d is %s of %lld elements, expected %s of %lld",
                           i, param->name, (long long)ls_shape_count(&param->shape),
                           table->param[i].name, (long long)table->param[i].count);
        }
    }
    if (out->code == LS_PASS) {
        compare_layers(&network, table, out);
    }
    int64_t macs = ls_model_macs(&network, IMAGE), want = ls_nettab_macs(table);
    if (macs != want) {
        ls_verdict_set(out, LS_FAIL, "%lld multiply-adds an image, expected %lld", (long long)macs,
                       (long long)want);
    }
    if (out->code == LS_PASS) {
        ls_text_put(out->evidence, sizeof out->evidence, "%d layers and %d parameters alike",
                    network.layer_count, network.param_count);
    }
    ls_model_free(&network);
    free(table);
}

void ls_network_cases(const ls_case_settings *settings, ls_case_list *list)
{
    (void)settings;
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++) {
        ls_case *row = ls_rows_add(list, judge_network, "N1", "network.%s", archs[i]);
        row->kind = LS_INSIDE;
        row->number[0] = (int)i;
    }
}
