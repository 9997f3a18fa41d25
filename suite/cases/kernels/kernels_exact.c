/* Convolutions of small integers: every partial sum is exact, so a backend must give the very same
 * number whatever its order of summation, tiling or padding; and statistics of such numbers far
 * from zero, which show what batch norm's own arithmetic loses. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/core/rng.h"
#include "suite/inside/kernel.h"

/* A 1x1 convolution makes `in` channels out of three; the second one is judged. */
static const struct shape {
    const char *name;
    int batch, height, width, in, out, kernel, stride, pad;
} shapes[] = {
    {"3x3", 2, 9, 7, 16, 16, 3, 1, 1},
    {"3x3-stride2", 2, 9, 8, 32, 16, 3, 2, 1},
    {"1x1", 3, 5, 7, 64, 32, 1, 1, 0},
    {"1x1-stride2", 2, 7, 7, 32, 64, 1, 2, 0},
    {"7x7-stride2", 1, 15, 13, 16, 16, 7, 2, 3},
    {"5x5", 2, 6, 6, 16, 16, 5, 1, 2},
    {"3x3-2x2", 4, 2, 2, 32, 32, 3, 1, 1},
    {"3x3-1x1", 5, 1, 1, 64, 64, 3, 1, 1},
    {"3x3-2x2-stride2", 3, 2, 2, 32, 64, 3, 2, 1},
    {"3x3-24channels", 2, 6, 5, 24, 24, 3, 1, 1},
    {"3x3-5channels", 1, 7, 6, 5, 7, 3, 1, 1},
    {"3x3-2x1", 2, 2, 1, 8, 8, 3, 1, 1},
    /* ResNet-50 at 224, one image each */
    {"resnet50.conv2-3x3", 1, 56, 56, 64, 64, 3, 1, 1},
    {"resnet50.conv2-expand", 1, 56, 56, 64, 256, 1, 1, 0},
    {"resnet50.conv3-3x3", 1, 56, 56, 128, 128, 3, 2, 1},
    {"resnet50.conv4-3x3", 1, 14, 14, 256, 256, 3, 1, 1},
    {"resnet50.conv5-3x3", 1, 7, 7, 512, 512, 3, 1, 1},
    {"resnet50.conv5-reduce", 1, 7, 7, 2048, 512, 1, 1, 0},
};
enum { SHAPES = sizeof shapes / sizeof *shapes, SAMPLES = 4000, EDGE = 8 };

static const struct type {
    const char *name;
    ls_dtype dtype;
    ls_kernel_rounding rounding;
} types[] = {{"f32", LS_F32, LS_KERNEL_ROUND_F32},
             {"fp16", LS_F16, LS_KERNEL_ROUND_F16},
             {"bf16", LS_BF16, LS_KERNEL_ROUND_BF16}};

/* Inputs -2..2, first weights -1..1: at most 6 after the first convolution. Second weights -1..1,
 * one in `sparse` not zero, so that at most 2^24 / 6 terms meet whatever the channels. */
static float integer_input(int64_t i)
{
    return (float)((int)ls_rng_below(21, 1, (uint64_t)i, 5) - 2);
}

static double integer_weight(const ls_kernel_net *n, int p, int64_t i)
{
    (void)n;
    return (double)((int)ls_rng_below(22, (uint64_t)p, (uint64_t)i, 3) - 1);
}

static int build(const struct shape *shape, ls_kernel_net *net)
{
    ls_kernel_net_start(net);
    int first = ls_kernel_net_conv(net, 0, shape->in, 1, 1, 0);
    int judged =
        ls_kernel_net_conv(net, first, shape->out, shape->kernel, shape->stride, shape->pad);
    ls_kernel_net_finish(net, judged, 10);
    return judged;
}

/* Element `at` of the judged output, in integers. */
static double expected_at(const struct shape *s, const float *in, const double *weight, int out_h,
                          int out_w, int64_t at)
{
    int ow = (int)(at % out_w), oh = (int)(at / out_w % out_h);
    int oc = (int)(at / out_w / out_h % s->out), n = (int)(at / out_w / out_h / s->out);
    double sum = 0;
    for (int ic = 0; ic < s->in; ic++) {
        for (int tap = 0; tap < s->kernel * s->kernel; tap++) {
            int h = oh * s->stride - s->pad + tap / s->kernel;
            int w = ow * s->stride - s->pad + tap % s->kernel;
            if (h >= 0 && h < s->height && w >= 0 && w < s->width) {
                int64_t x = (((int64_t)n * s->in + ic) * s->height + h) * s->width + w;
                sum += (double)in[x] *
                       weight[((int64_t)oc * s->in + ic) * s->kernel * s->kernel + tap];
            }
        }
    }
    return sum;
}

static void judge_elements(const struct shape *s, const struct type *type, const float *in,
                           const float *out, const double *weight, ls_verdict *verdict)
{
    int out_h = (s->height + 2 * s->pad - s->kernel) / s->stride + 1;
    int out_w = (s->width + 2 * s->pad - s->kernel) / s->stride + 1;
    int64_t count = (int64_t)s->batch * s->out * out_h * out_w, looked = 0, wrong = 0;
    bool all = count <= SAMPLES;
    for (int64_t k = 0; k < (all ? count : SAMPLES); k++) {
        int64_t at = all            ? k
                     : k < EDGE     ? k
                     : k < 2 * EDGE ? count - 1 - (k - EDGE)
                                    : ls_rng_below(23, 0, (uint64_t)k, (uint32_t)count);
        double want = ls_kernel_interpreter_round(expected_at(s, in, weight, out_h, out_w, at),
                                                  type->rounding);
        looked++;
        if ((double)out[at] != want && wrong++ == 0) {
            ls_verdict_fail(verdict, "element %lld of %lld is %.9g, the integers give %.9g",
                            (long long)at, (long long)count, (double)out[at], want);
        }
    }
    if (wrong == 0) {
        ls_verdict_pass(verdict, looked, "%lld of %lld elements equal to the last bit",
                        (long long)looked, (long long)count);
    }
}

struct trial {
    const struct shape *shape;
    const struct type *type;
};

static void judge_exact(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    const struct shape *shape = ((const struct trial *)row->data)->shape;
    const struct type *type = ((const struct trial *)row->data)->type;
    ls_kernel_net net;
    ls_kernel_subject s;
    int judged = build(shape, &net);
    ls_kernel_subject_options options = {.device = row->device,
                                         .batch = shape->batch,
                                         .height = shape->height,
                                         .width = shape->width,
                                         .threads = 1,
                                         .activation = type->dtype,
                                         .initial = integer_weight,
                                         .input = integer_input};
    ls_status status = ls_kernel_subject_make(&net, &options, &s);
    if (status != LS_OK) {
        ls_verdict_set(out, status == LS_ERR_UNSUPPORTED ? LS_UNSUPPORTED : LS_INFRA,
                       "the %s backend cannot run it: %s", row->device, ls_status_name(status));
        return;
    }
    status = ls_kernel_subject_forward(&s);
    int64_t in_count = (int64_t)shape->batch * shape->in * shape->height * shape->width;
    ls_kernel_interpreter sizes; /* only for the output's size */
    ls_kernel_interpreter_make(&sizes, &net, shape->batch, shape->height, shape->width,
                               LS_KERNEL_ROUND_NONE);
    int64_t out_count = sizes.size[judged].count;
    ls_kernel_interpreter_free(&sizes);
    float *in = ls_kernel_subject_activation(&s, judged - 1, in_count);
    float *values = ls_kernel_subject_activation(&s, judged, out_count);
    double *weight = ls_kernel_subject_read(&s, &s.param[net.layer[judged].weight]);
    if (status != LS_OK || in == NULL || values == NULL || weight == NULL) {
        ls_verdict_fail(out, "forward or export failed");
    } else {
        judge_elements(shape, type, in, values, weight, out);
    }
    free(in);
    free(values);
    free(weight);
    ls_kernel_subject_free(&s);
}

/* ---- statistics far from zero ---------------------------------------------------------------- */

enum { OFFSET = 1024, OFFSET_CHANNELS = 16, OFFSET_BATCH = 4, OFFSET_SIZE = 16 };

static float centred_input(int64_t i)
{
    return ((float)ls_rng_below(24, 1, (uint64_t)i, 16) - 8) / 4;
}

static float offset_input(int64_t i)
{
    return OFFSET + centred_input(i);
}

/* Sums of quarters times powers of two: at most 16 bits, so the convolution is exact in f32. */
static double offset_weight(int channel, int from)
{
    const double weight[3] = {1, 1.0 / (double)(1 << channel % 3), (double)(channel % 2)};
    return weight[from];
}

static double offset_initial(const ls_kernel_net *n, int p, int64_t i)
{
    if (n->param[p].role == LS_PARAM_CONV_WEIGHT) {
        return offset_weight((int)(i / 3), (int)(i % 3));
    }
    return n->param[p].role == LS_PARAM_NORM_WEIGHT ? 1 : 0;
}

/* Mean and squared deviations of one channel in two passes of FP64, from the input. */
static void exact_moments(const float *input, int channel, double *mean, double *unbiased)
{
    int64_t plane = OFFSET_SIZE * OFFSET_SIZE, count = OFFSET_BATCH * plane;
    double value[OFFSET_BATCH * OFFSET_SIZE * OFFSET_SIZE], sum = 0, m2 = 0;
    for (int64_t i = 0; i < count; i++) {
        value[i] = 0;
        for (int c = 0; c < 3; c++) {
            value[i] +=
                offset_weight(channel, c) * (double)input[(i / plane * 3 + c) * plane + i % plane];
        }
        sum += value[i];
    }
    *mean = sum / (double)count;
    for (int64_t i = 0; i < count; i++) {
        m2 += (value[i] - *mean) * (value[i] - *mean);
    }
    *unbiased = m2 / (double)(count - 1);
}

typedef struct moments_off { /* relative errors of the worst channel */
    double mean, variance;
} moments_off;

static ls_status measure_offset(const char *device, float (*input)(int64_t), moments_off *off)
{
    ls_kernel_net net;
    ls_kernel_subject s;
    ls_kernel_net_start(&net);
    int norm = ls_kernel_net_norm(&net, ls_kernel_net_conv(&net, 0, OFFSET_CHANNELS, 1, 1, 0));
    ls_kernel_net_finish(&net, ls_kernel_net_relu(&net, norm), 4);
    ls_kernel_subject_options options = {.device = device,
                                         .batch = OFFSET_BATCH,
                                         .height = OFFSET_SIZE,
                                         .width = OFFSET_SIZE,
                                         .threads = 1,
                                         .initial = offset_initial,
                                         .input = input};
    LS_TRY(ls_kernel_subject_make(&net, &options, &s));
    ls_status status = ls_kernel_subject_forward(&s);
    double *mean = ls_kernel_subject_read(&s, &s.buffer[net.layer[norm].running_mean]);
    double *var = ls_kernel_subject_read(&s, &s.buffer[net.layer[norm].running_var]);
    *off = (moments_off){0, 0};
    status = status == LS_OK && (mean == NULL || var == NULL) ? LS_ERR_INFRA : status;
    for (int c = 0; status == LS_OK && c < OFFSET_CHANNELS; c++) {
        double mu, unbiased;
        exact_moments(s.input, c, &mu, &unbiased);
        /* one forward from 0 and 1 with momentum 0.1; fmax would hide a NaN */
        double m = fabs(mean[c] - 0.1 * mu) / fmax(fabs(0.1 * mu), 0.1 * sqrt(unbiased));
        double v = fabs(var[c] - (0.9 + 0.1 * unbiased)) / (0.1 * unbiased);
        off->mean = !(m <= off->mean) ? m : off->mean;
        off->variance = !(v <= off->variance) ? v : off->variance;
    }
    free(mean);
    free(var);
    ls_kernel_subject_free(&s);
    return status;
}

static const ls_tol offset_units =
    LS_TOL(5e-6, "the convolution is exact here: what is left is f32 sums of at most 64 squared "
                 "deviations (6e-8 each), and running values near 1 stored in f32, of which the "
                 "variance is a tenth");

static void judge_offset(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)job;
    moments_off far, near;
    ls_status status = measure_offset(row->device, offset_input, &far);
    if (status != LS_OK) {
        ls_verdict_set(out, status == LS_ERR_UNSUPPORTED ? LS_UNSUPPORTED : LS_INFRA,
                       "the %s backend cannot run it: %s", row->device, ls_status_name(status));
        return;
    }
    double worst = far.variance >= far.mean ? far.variance : far.mean;
    ls_verdict_measured(out, worst, offset_units.value, "relative", offset_units.why);
    if (far.variance <= offset_units.value && far.mean <= offset_units.value) {
        ls_verdict_pass(out, 2 * OFFSET_CHANNELS,
                        "mean %.0e and variance %.0e off at a mean of about %d deviations",
                        far.mean, far.variance, OFFSET);
        return;
    }
    ls_verdict_fail(out, "running mean %.1e and variance %.1e off at a mean of %d", far.mean,
                    far.variance, OFFSET);
    if (measure_offset(row->device, centred_input, &near) == LS_OK &&
        near.variance <= offset_units.value && far.mean <= offset_units.value) {
        ls_verdict_cause(
            out, "the variance is right around zero and wrong far from it: its digits cancel, "
                 "as in E[x^2] - E[x]^2");
    }
}

void ls_kernels_exact_cases(const ls_case_settings *settings, ls_case_list *list)
{
    static const ls_row offset = {"kernels.statistics.offset.f32", "K3", judge_offset};
    for (int i = 0; i < SHAPES * 3; i++) {
        struct trial *trial = ls_rows_memory(list, sizeof *trial);
        const ls_row row = {.requirement = "K2", .judge = judge_exact, .data = trial};
        *trial = (struct trial){&shapes[i / 3], &types[i % 3]};
        ls_rows_format(list, settings, &row, "kernels.exact.%s.%s", trial->shape->name,
                       trial->type->name);
    }
    ls_rows_table(list, settings, &offset, 1);
}
