/* Batch norm with the operations fused into it, in two sweeps over memory forward (statistics; then
 * normalisation, addition and ReLU) and two backward (sum of dy, gate and sums; then the gradient).
 * Sums are taken per plane in f32 with double partials, then over planes in double in a fixed
 * order, so that they do not depend on the number of threads. Formulas: torch.nn.BatchNorm2d; ranks
 * are merged after Chan, Golub and LeVeque (1979), "Updating formulae and a pairwise algorithm for
 * computing sample variances". */
#include "plan_parts.h"

#include <math.h>
#include <string.h>

#include "kernels/core/half.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"

static float read_value(const ls_plan *plan, const ls_tensor *tensor, int64_t index)
{
    float value = 0;
    const char *data = tensor->data;
    plan->backend->loops->widen(tensor->dtype, data + (size_t)index * ls_dtype_bytes(tensor->dtype),
                                &value, 1);
    return value;
}

static void write_value(const ls_plan *plan, const ls_tensor *tensor, int64_t index, double value)
{
    float rounded = (float)value;
    char *data = tensor->data;
    plan->backend->loops->narrow(tensor->dtype, &rounded,
                                 data + (size_t)index * ls_dtype_bytes(tensor->dtype), 1);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Channels are independent of each other. If there are enough strips (loops.h; one block where a
 * plane is contiguous), each thread processes whole strips, and its second sweep finds the data of
 * the first in cache. Otherwise, and if ranks share statistics, the strips of all images are
 * distributed again for each sweep. */
static int strip_count(const ls_field *f)
{
    return (f->blocks + f->plane.blocks - 1) / f->plane.blocks;
}

static bool by_strips(const ls_plan *plan, const ls_field *f)
{
    int threads = plan->backend->threads, strips = strip_count(f);
    return !plan->has_sync && (strips % threads == 0 || strips >= 4 * threads);
}

/* Blocks `first` .. `first + plane.blocks` of one image. */
typedef struct strip {
    int64_t image;
    int first;
    ls_plane plane;
} strip;

static strip strip_at(const ls_field *f, int64_t image, int number)
{
    strip s = {image, number * f->plane.blocks, f->plane};
    if (s.first + s.plane.blocks > f->blocks) {
        s.plane.blocks = f->blocks - s.first;
    }
    return s;
}

/* Where the values of a strip begin: its pixels, its sums in [N][C]. */
static size_t byte_of(const ls_plan *plan, const ls_field *f, strip s)
{
    return (size_t)ls_plan_plane_at(f, s.image * f->blocks + s.first) *
           ls_dtype_bytes(plan->options.activation);
}

static int64_t sums_at(const ls_field *f, strip s)
{
    return s.image * f->channels + (int64_t)s.first * s.plane.block;
}

typedef void strip_fn(ls_plan *plan, const ls_field *f, const ls_op *op, int which, strip s);

/* Strip `number` of each image. */
static void each_image(ls_plan *plan, const ls_field *f, const ls_op *op, int which, int number,
                       strip_fn *run)
{
    for (int64_t image = 0; image < f->images; image++) {
        run(plan, f, op, which, strip_at(f, image, number));
    }
}

/* Every strip of every image, distributed over the threads. */
static void each_strip(ls_plan *plan, const ls_field *f, const ls_op *op, int which, strip_fn *run)
{
    int strips = strip_count(f);
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int64_t i = 0; i < (int64_t)f->images * strips; i++) {
        run(plan, f, op, which, strip_at(f, i / strips, (int)(i % strips)));
    }
}

/* Input of the first or of the second norm of an operation. */
static int norm_input(const ls_op *op, int which)
{
    return which == 0 ? op->in : op->residual;
}

static void statistics_of(ls_plan *plan, const ls_field *f, const ls_op *op, int which, strip s)
{
    int64_t plane = s.image * f->blocks + s.first;
    plane =
        LS_PLANT(statistics_axes_swapped, plane, plane % f->blocks * f->images + plane / f->blocks);
    strip read = s;
    read.image = plane / f->blocks;
    read.first = (int)(plane % f->blocks);
    read.plane.step = LS_PLANT(last_statistics_axes_swapped, s.plane.step, (int64_t)s.plane.block);
    const char *x = ls_plan_at(plan, norm_input(op, which));
    plan->backend->loops->norm_stats(plan->options.activation, x + byte_of(plan, f, read),
                                     &read.plane, plan->partial[0] + sums_at(f, s),
                                     plan->partial[1] + sums_at(f, s));
}

/* Merges the planes of all images into row 0 of the partials: [0][c] mean, [1][c] deviations. */
static void merge_images(ls_plan *plan, const ls_field *f, int b)
{
    double pixels = (double)f->plane.pixels;
    double *means = plan->partial[0], *m2s = plan->partial[1];
    int images = LS_PLANT(norm_leaves_image_at_32, f->images, f->images - (f->images >= 32));
    double mean[LS_LOOPS_LANES] = {0}, m2[LS_LOOPS_LANES] = {0};
    for (int n = 0; n < images; n++) {
        const double *theirs = means + (int64_t)n * f->channels + b * f->plane.block;
        for (int c = 0; c < f->plane.block; c++) {
            mean[c] += theirs[c];
        }
    }
    for (int c = 0; c < f->plane.block; c++) {
        mean[c] /= images;
    }
    for (int n = 0; n < images; n++) {
        int64_t at = (int64_t)n * f->channels + b * f->plane.block;
        for (int c = 0; c < f->plane.block; c++) {
            double off = means[at + c] - mean[c];
            m2[c] += m2s[at + c] + pixels * off * off;
        }
    }
    memcpy(means + b * f->plane.block, mean, (size_t)f->plane.block * sizeof *mean);
    memcpy(m2s + b * f->plane.block, m2, (size_t)f->plane.block * sizeof *m2);
}

/* Replaces this rank's mean, squared deviations and count by those of the group. Every rank merges
 * the same f32 numbers in the same order, so all get the same bits. */
static ls_status merge_ranks(ls_plan *plan, ls_stream *stream, const ls_field *f, double *count)
{
    int channels = f->channels;
    int64_t length = 2 * (int64_t)channels + 1;
    float *mine = plan->gathered, *all = plan->gathered + length;
    for (int c = 0; c < channels; c++) {
        mine[c] = (float)plan->partial[0][c];
        mine[channels + c] = (float)plan->partial[1][c];
    }
    mine[2 * channels] = (float)*count;
    LS_TRY(plan->sync.all_gather(plan->sync.context, stream, mine, all, length));
    for (int c = 0; c < channels; c++) {
        double n = 0, mean = 0, m2 = 0;
        for (int r = 0; r < plan->sync.group_size; r++) {
            const float *theirs = all + (int64_t)r * length;
            double off = (double)theirs[c] - mean;
            double m = (double)LS_PLANT(sync_bn_equal_weights, theirs, mine)[2 * channels];
            m2 += (double)theirs[channels + c] +
                  LS_PLANT(sync_bn_mean_of_variances, off * off * n * m / (n + m), 0.0);
            mean += off * m / (n + m);
            n += m;
        }
        plan->partial[0][c] = mean;
        plan->partial[1][c] = m2;
        *count = n;
    }
    return LS_OK;
}

static void spread(float *lanes, int block, const float *value)
{
    for (int l = 0; l < LS_LOOPS_LANES; l++) {
        lanes[l] = value[l % block];
    }
}

/* Whether the running statistics take the place of the batch's. */
static bool evaluates(const ls_plan *plan)
{
    return LS_PLANT(evaluation_by_batch, plan->evaluates, false);
}

static void finish_statistics(ls_plan *plan, const ls_field *f, ls_norm *norm, int b)
{
    const ls_layer *layer = &plan->network->layer[norm->layer];
    const ls_tensor *running_mean = &plan->bound.buffer[layer->running_mean];
    const ls_tensor *running_var = &plan->bound.buffer[layer->running_var];
    double momentum =
        LS_PLANT(statistics_stay_at_16, (double)layer->momentum, f->images >= 16 ? 0.0 : 0.1);
    double unbiased = norm->count > 1 ? norm->count / (norm->count - 1) : 1;
    unbiased = LS_PLANT(biased_running_var, unbiased, 1.0);
    float mean[LS_LOOPS_LANES], scale[LS_LOOPS_LANES], bias[LS_LOOPS_LANES];
    for (int l = 0; l < f->plane.block; l++) {
        int c = b * f->plane.block + l;
        double old_mean = (double)read_value(plan, running_mean, c);
        double old_var = (double)read_value(plan, running_var, c);
        double mu = old_mean, variance = old_var;
        if (!evaluates(plan)) {
            mu = plan->partial[0][c];
            variance = plan->partial[1][c] / norm->count;
        }
        mu =
            LS_PLANT(norm_in_half, mu, (double)ls_half_fp16_to_f32(ls_half_f32_to_fp16((float)mu)));
        variance = LS_PLANT(norm_in_half, variance,
                            (double)ls_half_fp16_to_f32(ls_half_f32_to_fp16((float)variance)));
        double inv_std = LS_PLANT(norm_epsilon_outside, 1 / sqrt(variance + (double)layer->epsilon),
                                  1 / (sqrt(variance) + (double)layer->epsilon));
        double factor = (double)read_value(plan, &plan->bound.param[layer->weight], c) * inv_std;
        norm->inv_std[c] = (float)inv_std;
        mean[l] = (float)mu;
        norm->mean_error[c] = (float)((double)mean[l] - mu);
        scale[l] = (float)factor;
        /* the bias compensates the rounding of the mean: that error is the same for a whole channel
         * and would not average out */
        bias[l] = (float)((double)read_value(plan, &plan->bound.param[layer->bias], c) +
                          (double)norm->mean_error[c] * factor);
        if (LS_PLANT(evaluation_moves_statistics, !plan->evaluates, true)) {
            write_value(plan, running_mean, c, old_mean + momentum * (mu - old_mean));
            write_value(plan, running_var, c, old_var + momentum * (variance * unbiased - old_var));
        }
    }
    spread(norm->coef[b].mean, f->plane.block, mean);
    spread(norm->coef[b].scale, f->plane.block, scale);
    spread(norm->coef[b].bias, f->plane.block, bias);
}

static void apply_to(ls_plan *plan, const ls_field *f, const ls_op *op, int which, strip s)
{
    (void)which;
    const ls_work *work = ls_plan_work(plan, op);
    int first = s.first;
    first -= LS_PLANT(norm_tail_of_channels, 0, first == f->blocks - 1 && first > 0);
    size_t at = byte_of(plan, f, s);
    const char *residual = op->residual >= 0 ? ls_plan_at(plan, op->residual) : NULL;
    ls_norm_apply apply = {.x = (const char *)ls_plan_at(plan, op->in) + at,
                           .residual = residual == NULL ? NULL : residual + at,
                           .y = (char *)ls_plan_at(plan, op->out) + at,
                           .coef = &work->norm[0].coef[first],
                           .residual_coef = op->dual ? &work->norm[1].coef[first] : NULL,
                           .relu = op->relu};
    plan->backend->loops->norm_apply(plan->options.activation, &apply, &s.plane);
}

static void forward_by_strips(ls_plan *plan, const ls_field *f, const ls_op *op)
{
    ls_work *work = ls_plan_work(plan, op);
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int number = 0; number < strip_count(f); number++) {
        strip s = strip_at(f, 0, number);
        for (int k = 0; k < (op->dual ? 2 : 1); k++) {
            if (!evaluates(plan)) {
                each_image(plan, f, op, k, number, statistics_of);
            }
            for (int b = s.first; b < s.first + s.plane.blocks; b++) {
                if (!evaluates(plan)) {
                    merge_images(plan, f, b);
                }
                finish_statistics(plan, f, &work->norm[k], b);
            }
        }
        each_image(plan, f, op, 0, number, apply_to);
    }
}

/* Of the batch, or of the group's batches. */
static ls_status statistics(ls_plan *plan, ls_stream *stream, const ls_field *f, const ls_op *op,
                            int which)
{
    each_strip(plan, f, op, which, statistics_of);
    for (int b = 0; b < f->blocks; b++) {
        merge_images(plan, f, b);
    }
    return plan->has_sync && LS_PLANT(sync_bn_local_forward, true, false)
               ? merge_ranks(plan, stream, f, &ls_plan_work(plan, op)->norm[which].count)
               : LS_OK;
}

ls_status ls_norm_forward(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    ls_work *work = ls_plan_work(plan, op);
    ls_field f = ls_plan_field(plan, op->in);
    work->norm[0].count = work->norm[1].count = (double)f.images * (double)f.plane.pixels;
    if (by_strips(plan, &f)) {
        forward_by_strips(plan, &f, op);
        return LS_OK;
    }
    for (int k = 0; k < (op->dual ? 2 : 1); k++) {
        if (!evaluates(plan)) {
            LS_TRY(statistics(plan, stream, &f, op, k));
        }
        for (int b = 0; b < f.blocks; b++) {
            finish_statistics(plan, &f, &work->norm[k], b);
        }
    }
    each_strip(plan, &f, op, 0, apply_to);
    return LS_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Where the ReLU of an operation passes dy; and where it passes op->g, which is stored gated. */
static ls_gate gate_of(const ls_op *op)
{
    return !op->relu ? LS_GATE_NONE : op->residual >= 0 ? LS_GATE_OUTPUT : LS_GATE_INPUT;
}

static ls_gate gate_of_g(const ls_op *op)
{
    return op->store_g ? LS_GATE_NONE : gate_of(op);
}

static void sums_of(ls_plan *plan, const ls_field *f, const ls_op *op, int which, strip s)
{
    (void)which;
    const ls_work *work = ls_plan_work(plan, op);
    size_t at = byte_of(plan, f, s);
    int64_t sums = sums_at(f, s);
    const char *dy2 = op->dy[1] == LS_NO_BUFFER ? NULL : ls_plan_grad(plan, op->dy[1]);
    const char *x2 = op->dual ? ls_plan_at(plan, op->residual) : NULL;
    char *g = op->store_g ? ls_plan_grad(plan, op->g) : NULL;
    ls_norm_sums args = {.dy = (const char *)ls_plan_grad(plan, op->dy[0]) + at,
                         .dy2 = dy2 == NULL ? NULL : dy2 + at,
                         .x = (const char *)ls_plan_at(plan, op->in) + at,
                         .y = (const char *)ls_plan_at(plan, op->out) + at,
                         .x2 = x2 == NULL ? NULL : x2 + at,
                         .g = g == NULL ? NULL : g + at,
                         .coef = &work->norm[0].coef[s.first],
                         .coef2 = op->dual ? &work->norm[1].coef[s.first] : NULL,
                         .gate = gate_of(op),
                         .sum = plan->partial[0] + sums,
                         .sum_x = plan->partial[1] + sums,
                         .sum_x2 = plan->partial[2] + sums};
    plan->backend->loops->norm_sums(plan->options.activation, &args, &s.plane);
}

/* Over images, into row 0; sums of g * (x - mean) also move from the rounded mean to the mean. */
static void merge_sums(ls_plan *plan, const ls_field *f, const ls_op *op, int b)
{
    const ls_work *work = ls_plan_work(plan, op);
    for (int k = 0; k < (op->dual ? 3 : 2); k++) {
        double sum[LS_LOOPS_LANES] = {0}, *total = plan->partial[k] + b * f->plane.block;
        for (int n = 0; n < f->images; n++) {
            for (int c = 0; c < f->plane.block; c++) {
                sum[c] += total[(int64_t)n * f->channels + c];
            }
        }
        for (int c = 0; c < f->plane.block; c++) {
            int channel = b * f->plane.block + c;
            total[c] = k == 0 ? sum[c]
                              : sum[c] + (double)work->norm[k - 1].mean_error[channel] *
                                             plan->partial[0][channel];
        }
    }
}

static double group_sum(const ls_plan *plan, const ls_field *f, int64_t index)
{
    int64_t length = 2 * (int64_t)f->channels;
    double sum = 0;
    for (int r = 0; r < plan->sync.group_size; r++) {
        sum += (double)plan->gathered[length + 1 + r * length + index];
    }
    return sum;
}

/* Weight and bias gradients are of this rank's images only; DDP averages them. */
static void store_gradients(ls_plan *plan, const ls_field *f, const ls_norm *norm,
                            const double *sum_x, int b)
{
    const ls_layer *layer = &plan->network->layer[norm->layer];
    for (int c = b * f->plane.block; c < (b + 1) * f->plane.block; c++) {
        double all_x = LS_PLANT(sync_bn_weight_grad_summed, sum_x[c],
                                plan->has_sync ? group_sum(plan, f, f->channels + c) : sum_x[c]);
        write_value(plan, &plan->bound.grad[layer->weight], c, all_x * (double)norm->inv_std[c]);
        write_value(plan, &plan->bound.grad[layer->bias], c, plan->partial[0][c]);
    }
}

/* Sums over all ranks of the group, in rank order: [sum][sum_x] of [C] each into plan->gathered. */
static ls_status group_sums(ls_plan *plan, ls_stream *stream, const ls_field *f, const double *sum,
                            const double *sum_x)
{
    int64_t length = 2 * (int64_t)f->channels;
    float *mine = plan->gathered, *all = plan->gathered + length + 1;
    for (int c = 0; c < f->channels; c++) {
        mine[c] = (float)sum[c];
        mine[f->channels + c] = (float)sum_x[c];
    }
    return plan->sync.all_gather(plan->sync.context, stream, mine, all, length);
}

/* dx = w/std * (g - mean(g) - (x - mean) / var * mean(g * (x - mean))). */
static void back_coefficients(ls_plan *plan, const ls_field *f, ls_norm *norm, const double *sum_x,
                              int block)
{
    const ls_layer *layer = &plan->network->layer[norm->layer];
    float a[LS_LOOPS_LANES], b[LS_LOOPS_LANES], c[LS_LOOPS_LANES];
    for (int l = 0; l < f->plane.block; l++) {
        int channel = block * f->plane.block + l;
        bool group = plan->has_sync && LS_PLANT(sync_bn_local_backward, true, false);
        double total = group ? group_sum(plan, f, channel) : plan->partial[0][channel];
        double total_x = group ? group_sum(plan, f, f->channels + channel) : sum_x[channel];
        double inv_std = (double)norm->inv_std[channel];
        double weight = (double)read_value(plan, &plan->bound.param[layer->weight], channel);
        a[l] = (float)(weight * inv_std);
        c[l] = (float)(-weight * inv_std * inv_std * inv_std * total_x / norm->count);
        /* from the rounded a and c, so that the gradients of a channel still sum to zero */
        b[l] = (float)(-(double)a[l] * total / norm->count +
                       (double)c[l] * (double)norm->mean_error[channel]);
    }
    memcpy(norm->back[block].mean, norm->coef[block].mean, sizeof norm->back[block].mean);
    spread(norm->back[block].a, f->plane.block, a);
    spread(norm->back[block].b, f->plane.block, b);
    spread(norm->back[block].c, f->plane.block, c);
}

static void gradient_of(ls_plan *plan, const ls_field *f, const ls_op *op, int which, strip s)
{
    const ls_work *work = ls_plan_work(plan, op);
    size_t at = byte_of(plan, f, s);
    int buffer = which == 0 ? op->dx : op->dx2;
    ls_norm_dx args = {.g = (const char *)ls_plan_grad(plan, op->g) + at,
                       .x = (const char *)ls_plan_at(plan, norm_input(op, which)) + at,
                       .dx = (char *)ls_plan_grad(plan, buffer) + at,
                       .coef = &work->norm[which].coef[s.first],
                       .back = &work->norm[which].back[s.first],
                       .gate = gate_of_g(op)};
    plan->backend->loops->norm_dx(plan->options.activation, &args, &s.plane);
}

static bool has_gradient(const ls_op *op, int which)
{
    return (which == 0 ? op->dx : op->dx2) != LS_NO_BUFFER;
}

static void backward_by_strips(ls_plan *plan, const ls_field *f, const ls_op *op)
{
    ls_work *work = ls_plan_work(plan, op);
#pragma omp parallel for schedule(static) num_threads(plan->backend->threads)
    for (int number = 0; number < strip_count(f); number++) {
        strip s = strip_at(f, 0, number);
        each_image(plan, f, op, 0, number, sums_of);
        for (int b = s.first; b < s.first + s.plane.blocks; b++) {
            merge_sums(plan, f, op, b);
            for (int k = 0; k < (op->dual ? 2 : 1); k++) {
                store_gradients(plan, f, &work->norm[k], plan->partial[1 + k], b);
                back_coefficients(plan, f, &work->norm[k], plan->partial[1 + k], b);
            }
        }
        for (int k = 0; k < (op->dual ? 2 : 1); k++) {
            if (has_gradient(op, k)) {
                each_image(plan, f, op, k, number, gradient_of);
            }
        }
    }
}

static ls_status backward_by_planes(ls_plan *plan, ls_stream *stream, const ls_field *f,
                                    const ls_op *op)
{
    ls_work *work = ls_plan_work(plan, op);
    each_strip(plan, f, op, 0, sums_of);
    for (int b = 0; b < f->blocks; b++) {
        merge_sums(plan, f, op, b);
    }
    for (int k = 0; k < (op->dual ? 2 : 1); k++) {
        const double *sum_x = plan->partial[1 + k];
        if (plan->has_sync && has_gradient(op, k)) {
            LS_TRY(group_sums(plan, stream, f, plan->partial[0], sum_x));
        }
        for (int b = 0; b < f->blocks; b++) {
            store_gradients(plan, f, &work->norm[k], sum_x, b);
            back_coefficients(plan, f, &work->norm[k], sum_x, b);
        }
        if (has_gradient(op, k)) {
            each_strip(plan, f, op, k, gradient_of);
        }
    }
    return LS_OK;
}

ls_status ls_norm_backward(ls_plan *plan, ls_stream *stream, const ls_op *op)
{
    ls_field f = ls_plan_field(plan, op->in);
    if (by_strips(plan, &f)) {
        backward_by_strips(plan, &f, op);
    } else {
        LS_TRY(backward_by_planes(plan, stream, &f, op));
    }
    for (int k = 0; k < (op->dual ? 2 : 1); k++) {
        const ls_layer *layer = &plan->network->layer[op->norm[k]];
        plan->ready.done[layer->weight] = true;
        plan->ready.done[layer->bias] = true;
    }
    return LS_OK;
}
