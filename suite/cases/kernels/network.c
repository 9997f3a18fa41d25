/* The trainer's networks against the oracle's own table, layer by layer: what gradients show for
 * the small ones, shown for all. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/model/model.h"
#include "reference/oracle/nettab.h"
#include "suite/judge/judges.h"

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

/* A network that is nearly certain, and right: (p - y) / N is below what half precision holds,
 * until it is multiplied by the loss scale. The last bias' gradient is the mean of those numbers,
 * which the dumped logits give in FP64. */

enum { STEPS = 2 };

static const ls_tol halves = LS_TOL(
    0x1p-9, "three roundings to half, 2^-11 each at most: the loss gradient's, its sum's over "
            "the batch and the sum's over the ranks; one spare");
static const ls_tol single = LS_TOL(
    0x1p-21, "softmax in f32: an exponential, a sum of ten and a quotient, 2^-24 each, taken "
             "from 1 where the class is right");

/* In f32, or at O1 as the last product gives them. */
static bool are_logits(const ls_dumpfile_entry *entry)
{
    return entry != NULL && (strcmp(entry->dtype, "F32") == 0 || strcmp(entry->dtype, "F16") == 0 ||
                             strcmp(entry->dtype, "BF16") == 0);
}

/* Adds this rank's sum of (p - y) and of p. */
static bool add_rank(const ls_dumpfile *file, double *sum, double *magnitude, int *images)
{
    const ls_dumpfile_entry *logits = ls_dumpfile_find(file, "logits");
    const ls_dumpfile_entry *target = ls_dumpfile_find(file, "target");
    if (!are_logits(logits) || target == NULL || strcmp(target->dtype, "I64") != 0 ||
        logits->count != target->count * CLASSES) {
        return false;
    }
    double *values = ls_dumps_values(logits), *right = ls_dumps_values(target);
    for (int n = 0; n < target->count; n++) {
        const double *row = values + n * CLASSES;
        double total = 0, most = -INFINITY;
        for (int c = 0; c < CLASSES; c++) {
            most = fmax(most, row[c]);
        }
        for (int c = 0; c < CLASSES; c++) {
            total += exp(row[c] - most);
        }
        for (int c = 0; c < CLASSES; c++) {
            double p = exp(row[c] - most) / total, others = 0;
            for (int k = 0; k < CLASSES && c == (int)right[n];
                 k++) { /* 1 - p without cancellation */
                others += k == c ? 0 : exp(row[k] - most) / total;
            }
            sum[c] += c == (int)right[n] ? -others : p;
            magnitude[c] += p;
        }
    }
    *images += (int)target->count;
    free(values);
    free(right);
    return true;
}

static void judge_step(const ls_record *job, int step, ls_verdict *out)
{
    double sum[CLASSES] = {0}, magnitude[CLASSES] = {0}, bias[CLASSES];
    int images = 0;
    for (int k = 0; k < job->world; k++) {
        ls_dumpfile *file = ls_dumps_open(job, step, k, out);
        if (file == NULL) {
            return;
        }
        const ls_dumpfile_entry *grad = ls_dumpfile_find(file, "grad/fc.bias");
        if (grad != NULL && strcmp(grad->dtype, "F32") == 0 && grad->count == CLASSES &&
            add_rank(file, sum, magnitude, &images)) {
            ls_dumpfile_read(grad, bias);
        } else {
            ls_verdict_fail(out, "step %d rank=%d: no logits, target or grad/fc.bias", step, k);
        }
        ls_dumpfile_close(file);
    }
    for (int c = 0; c < CLASSES && out->code == LS_PASS; c++) {
        double want = sum[c] / images, limit = halves.value * fabs(want);
        limit += single.value * magnitude[c] / images;
        double off = fabs(bias[c] - want);
        if (!ls_verdict_worst(out, off / limit, &(const ls_tol){1, halves.why}, "of the limit")) {
            ls_verdict_fail(
                out,
                "step %d fc.bias[%d]: gradient %.4g, (p - y) / N of the logits is %.4g, "
                "limit=%.1e",
                step, c, bias[c], want, limit);
            ls_verdict_cause(out, "%s",
                             bias[c] == 0
                                 ? "the loss gradient is rounded away: it is cast to half "
                                   "before it is scaled, or softmax is computed in half"
                                 : "the loss gradient has fewer bits than half: it is cast "
                                   "before it is scaled, or softmax is computed in half");
        }
    }
}

static void judge_small(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    for (int step = 1; step <= STEPS && out->code == LS_PASS; step++) {
        judge_step(job, step, out);
    }
    ls_verdict_pass(out, STEPS * CLASSES, "gradients of the last bias at %.2f of their limit",
                    out->value);
}

/* Logit c of LS_OVERFLOW_EXACT: 1.5 x 1024, and 15 x 1.5 + 48 x 0.5 times (c + 1) / 8. All partial
 * sums are multiples of 1/16 below 2^11: exact in f32 in any order. Rounded once, where values from
 * 1024 to 2047 stand 1 (fp16) or 8 (bf16) apart. */
static double exact_logit(int c, double spacing)
{
    double sum = 1536 + 46.5 * (c + 1) / 8;
    return spacing == 0 ? sum : spacing * nearbyint(sum / spacing);
}

static void judge_exact(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_spec *spec = &row->job[0];
    double spacing = spec->level == 0 ? 0 : strcmp(spec->half, "bf16") == 0 ? 8 : 1;
    ls_dumpfile *file = ls_dumps_open(job, 1, 0, out);
    if (file == NULL) {
        return;
    }
    const ls_dumpfile_entry *logits = ls_dumpfile_find(file, "logits");
    int64_t count = are_logits(logits) ? logits->count : 0;
    double *values = count > 0 ? ls_dumps_values(logits) : NULL;
    for (int64_t i = 0; i < count && out->code == LS_PASS; i++) {
        double got = values[i];
        double want = exact_logit((int)(i % CLASSES), spacing);
        if (got != want) {
            ls_verdict_fail(out, "logit %d of sample %d is %.9g, the sum rounded once is %.9g",
                            (int)(i % CLASSES), (int)(i / CLASSES), got, want);
            ls_verdict_cause(out, "%s",
                             spacing == 0
                                 ? "products are rounded on the way"
                                 : "products accumulate in half, or are rounded on the way");
        }
    }
    free(values);
    ls_dumpfile_close(file);
    if (count == 0) {
        ls_verdict_fail(out, "the dump has no logits");
    }
    ls_verdict_pass(out, count, "%d logits exact to the last bit", (int)count);
}

static const ls_row rows[] = {
    {"exact.o[0|1|2|3].w1", "G7", judge_exact, "O$1 steps=1 dump=1 batches=exact@"},
    {"exact.bf16.o[1|2|3].w1", "G7", judge_exact, "O$1 bf16 steps=1 dump=1 batches=exact@"},
    {"small.o[1|2|3].w2", "G6", judge_small, "O$1 w2 b0.1 dump=1,2 scale=1048576 batches=nearly@"},
};

void ls_network_cases(const ls_case_settings *settings, ls_case_list *list)
{
    /* these have every kind of parameter, and the others' are many */
    static const char *const started[] = {"resnet8", "resnet18"};
    LS_ROWS(list, settings, rows);
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "N1", .judge = judge_network}),
                 "network.%s", archs);
    LS_ROWS_EACH(list, settings, &((ls_row){.requirement = "N2", .judge = judge_start}),
                 "network.start.%s", started);
}
