/* The trainer's networks against the oracle's own table, layer by layer: what gradients show for
 * the small ones, shown for all. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/model/model.h"
#include "reference/oracle/nettab.h"

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
            ls_verdict_fail(out, "%s: %s, expected %d channels", want->name,
                            layer == NULL ? "there is no such layer" : "other channels",
                            want->channels);
        } else if (product && (layer->kernel != want->kernel || layer->stride != want->stride ||
                               layer->pad != want->pad)) {
            ls_verdict_fail(out, "%s: kernel %d stride %d padding %d, expected %d, %d and %d",
                            want->name, layer->kernel, layer->stride, layer->pad, want->kernel,
                            want->stride, want->pad);
            ls_verdict_cause(out, "%s",
                             layer->stride != want->stride
                                 ? "another convolution carries the stride"
                                 : "another kernel or padding");
        } else if (!product &&
                   (layer->epsilon != norm_epsilon || layer->momentum != norm_momentum)) {
            ls_verdict_fail(out, "%s: eps %g momentum %g, expected %g and %g", want->name,
                            (double)layer->epsilon, (double)layer->momentum, (double)norm_epsilon,
                            (double)norm_momentum);
            ls_verdict_cause(out, "batch norm's constants are not torch's");
        }
    }
}

static void judge_network(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const char *arch = *(const char *const *)row->data;
    ls_nettab *table = calloc(1, sizeof *table);
    ls_network network;
    LS_MEMORY(table != NULL);
    if (ls_nettab_build(arch, CLASSES, IMAGE, IMAGE, table) != LS_OK ||
        ls_model_build(arch, CLASSES, IMAGE, &network) != LS_OK) {
        ls_verdict_fail(out, "%s cannot be built", arch);
        free(table);
        return;
    }
    if (network.param_count != table->param_count) {
        ls_verdict_fail(out, "%d parameters, expected %d", network.param_count, table->param_count);
    }
    for (int i = 0; i < table->param_count && out->code == LS_PASS; i++) {
        const ls_param *param = &network.param[i];
        if (strcmp(param->name, table->param[i].name) != 0 ||
            ls_shape_count(&param->shape) != table->param[i].count) {
            ls_verdict_fail(out, "parameter %d is %s of %lld elements, expected %s of %lld", i,
                            param->name, (long long)ls_shape_count(&param->shape),
                            table->param[i].name, (long long)table->param[i].count);
        }
    }
    if (out->code == LS_PASS) {
        compare_layers(&network, table, out);
    }
    int64_t macs = ls_model_macs(&network, IMAGE), want = ls_nettab_macs(table);
    if (macs != want) {
        ls_verdict_fail(out, "%lld multiply-adds an image, expected %lld", (long long)macs,
                        (long long)want);
    }
    ls_verdict_pass(out, table->param_count + network.layer_count,
                    "%d layers and %d parameters alike", network.layer_count, network.param_count);
    ls_model_free(&network);
    free(table);
}

/* ---- values that training starts from -------------------------------------------------------- */

static const ls_tol deviations =
    LS_TOL(6, "standard deviations of a sample's deviation and mean: beyond it once in 10^9, and "
              "there are some hundred tensors");

/* torchvision: convolutions normal with variance 2 / fan out, batch norms 1 and 0; torch's Linear
 * uniform within 1 / sqrt(fan in), weight and bias. */
static void judge_values(const ls_param *param, const ls_param *weight, const float *value,
                         ls_verdict *out)
{
    int64_t count = ls_shape_count(&param->shape);
    const int64_t *dim = param->shape.dim;
    bool conv = param->role == LS_PARAM_CONV_WEIGHT;
    bool scale = param->role == LS_PARAM_NORM_WEIGHT, norm = param->role == LS_PARAM_NORM_BIAS;
    double sum = 0, squares = 0, most = 0;
    for (int64_t i = 0; i < count; i++) {
        double x = (double)value[i];
        if ((scale || norm) && x != (scale ? 1 : 0)) {
            ls_verdict_fail(out, "%s element %d is %g, expected %d", param->name, (int)i, x, scale);
            return;
        }
        sum += x;
        squares += x * x;
        most = fabs(x) > most ? fabs(x) : most;
    }
    if (scale || norm) {
        return;
    }
    double bound = 1 / sqrt((double)weight->shape.dim[1]), n = (double)count;
    double want = conv ? sqrt(2.0 / (double)(dim[0] * dim[2] * dim[3])) : bound / sqrt(3);
    /* of a sample's deviation: sqrt((kurtosis - 1) / 4n), 3 for the normal, 1.8 for the uniform */
    double spread = sqrt((conv ? 2.0 : 0.8) / (4 * n)), got = sqrt(squares / n);
    double off = fabs(got / want - 1) / spread, mean = fabs(sum / n) / (want / sqrt(n));
    bool spread_well = ls_verdict_worst(out, off, &deviations, "deviations");
    if (!spread_well || mean > deviations.value || (!conv && most > bound)) {
        ls_verdict_fail(out, "%s: deviation %g, mean %g, at most %g; expected %g, 0%s", param->name,
                        got, sum / n, most, want, conv ? "" : ", within the bound");
    }
}

static void judge_start(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const char *arch = *(const char *const *)row->data;
    ls_network network;
    if (ls_model_build(arch, 100, IMAGE, &network) != LS_OK) {
        ls_verdict_fail(out, "%s cannot be built", arch);
        return;
    }
    for (int p = 0; p < network.param_count; p++) {
        int64_t count = ls_shape_count(&network.param[p].shape);
        float *value = malloc((size_t)count * sizeof *value);
        float *other = malloc((size_t)count * sizeof *other);
        LS_MEMORY(value != NULL && other != NULL);
        bool bias = network.param[p].role == LS_PARAM_LINEAR_BIAS;
        ls_model_init_param(&network, p, 7, value);
        ls_model_init_param(&network, p, 8, other);
        judge_values(&network.param[p], &network.param[bias ? p - 1 : p], value, out);
        bool same = memcmp(value, other, (size_t)count * sizeof *value) == 0;
        bool norm = network.param[p].role == LS_PARAM_NORM_WEIGHT ||
                    network.param[p].role == LS_PARAM_NORM_BIAS;
        if (same != norm) {
            ls_verdict_fail(out, "%s is %s under two seeds", network.param[p].name,
                            same ? "the same" : "not the same");
        }
        free(value);
        free(other);
    }
    for (int b = 0; b < network.buffer_count; b++) {
        float value[4096] = {0};
        const ls_buffer *buffer = &network.buffer[b];
        if (buffer->role == LS_BUFFER_BATCHES_TRACKED || buffer->count > 4096) {
            continue;
        }
        ls_model_init_buffer(&network, b, value);
        for (int i = 0; i < (int)buffer->count; i++) {
            if (value[i] != (buffer->role == LS_BUFFER_RUNNING_VAR ? 1.0f : 0.0f)) {
                ls_verdict_fail(out, "%s starts with %g", buffer->name, (double)value[i]);
            }
        }
    }
    ls_verdict_pass(out, network.param_count,
                    "%d parameters start as torchvision's, off by %.1f deviations at most",
                    network.param_count, out->value);
    ls_model_free(&network);
}

void ls_network_cases(const ls_case_settings *settings, ls_case_list *list)
{
    /* these have every kind of parameter, and the others' are many */
    static const char *const started[] = {"resnet8", "resnet18"};
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "N1", .judge = judge_network}),
                 "network.%s", archs);
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "N2", .judge = judge_start}),
                 "network.start.%s", started);
}
