#include "fuse.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/half.h"
#include "kernels/core/log.h"
#include "ops.h"

/* Mean and variance of x are 11.5 and 5.25 (8 to 15); of weights drawn from -A to A the variance is
 * A^2 / 3. A sum of n products then has a deviation of A sqrt(1.75 n). */
enum { DEVIATION = 512, MEAN_UNIT = 44 /* DEVIATION / 11.5, rounded down */ };
static const double PER_WEIGHT = 1.75;

/* f32 values of one way to the statistics, [step] each but for `back`. */
enum { MEAN, INV_STD, SCALE, BIAS, BACK, COUNT = BACK + 4, PARAMETERS, LISTS = PARAMETERS + 4 };

typedef struct trial {
    const ls_conv_shape *shape;
    int64_t rows, step;
    uint16_t *x, *w, *y, *plain;
    float *sums, *kept[2], *partial; /* kept: of the fused pass, of the plain one */
    unsigned *first;                 /* differing row */
    void *workspace;
    ls_stream stream;
    float *host[2];
    uint16_t *row[2]; /* host: rows that differ */
} trial;

/* What is wrong with a channel. */
typedef struct finding {
    const char *what;
    int64_t channel;
    double got, wanted, limit;
} finding;

/* ---- memory ---------------------------------------------------------------------------------- */

static ls_status take(int64_t bytes, void *out)
{
    void *memory = NULL;
    LS_TRY(ls_cuda_take(bytes, "admitting a fused convolution", &memory));
    memcpy(out, &memory, sizeof memory);
    return LS_OK;
}

static ls_status take_all(ls_backend *backend, int64_t workspace_bytes, trial *t)
{
    const ls_conv_shape *s = t->shape;
    int64_t half = (int64_t)sizeof *t->x, channels = s->out_channels;
    LS_TRY(take(half * s->batch * s->in_height * s->in_width * s->in_channels, &t->x));
    LS_TRY(take(half * channels * s->kernel * s->kernel * s->in_channels, &t->w));
    LS_TRY(take(half * t->rows * channels, &t->y));
    LS_TRY(take(half * t->rows * channels, &t->plain));
    LS_TRY(take(2 * t->step * (int64_t)sizeof *t->sums, &t->sums));
    size_t partial = ls_norm_partial_bytes(t->rows, (int)channels, backend->processors);
    LS_TRY(take((int64_t)partial, &t->partial));
    LS_TRY(take((int64_t)sizeof *t->first, &t->first));
    LS_TRY(take(workspace_bytes, &t->workspace));
    for (int i = 0; i < 2; i++) {
        LS_TRY(take(LISTS * t->step * (int64_t)sizeof *t->kept[i], &t->kept[i]));
        t->host[i] = calloc((size_t)(LISTS * t->step), sizeof *t->host[i]);
        t->row[i] = calloc((size_t)channels, sizeof *t->row[i]);
        LS_TRY_MEMORY(t->host[i] != NULL && t->row[i] != NULL, "%d channels", (int)channels);
    }
    t->stream.backend = backend;
    LS_CUDA(cudaStreamCreateWithFlags(&t->stream.native, cudaStreamNonBlocking));
    return LS_OK;
}

static void give_all(trial *t)
{
    void *memory[] = {t->x,         t->w,     t->y,       t->plain,   t->sums,
                      t->workspace, t->first, t->partial, t->kept[0], t->kept[1]};
    if (t->stream.native != NULL) {
        cudaStreamDestroy(t->stream.native);
    }
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        ls_cuda_give(memory[i]);
    }
    for (int i = 0; i < 2; i++) {
        free(t->host[i]);
        free(t->row[i]);
    }
}

/* ---- execution ------------------------------------------------------------------------------- */

static ls_status execute(ls_backend *backend, const ls_conv_plan *plan, const void *const *data,
                         trial *t)
{
    cudnnBackendDescriptor_t pack = NULL;
    LS_TRY(ls_conv_plans_pack(plan->key.pass, data, t->workspace, &pack));
    ls_status status = ls_cuda_check_dnn(cudnnSetStream(backend->dnn, t->stream.native),
                                         "set the stream", __FILE__, __LINE__);
    LS_THEN(status, ls_cuda_check_dnn(cudnnBackendExecute(backend->dnn, plan->plan, pack),
                                      "execute a convolution", __FILE__, __LINE__));
    LS_THEN(status, ls_cuda_wait_stream(backend, t->stream.native));
    cudnnSetStream(backend->dnn, NULL);
    ls_conv_graph_drop(pack);
    return status;
}

static ls_status fill(trial *t)
{
    const ls_conv_shape *s = t->shape;
    int taps = s->kernel * s->kernel, products = taps * s->in_channels;
    int most = (int)(DEVIATION / sqrt(PER_WEIGHT * products));
    LS_TRY(ls_fuse_fill(t->stream.native, t->x,
                        (int64_t)s->batch * s->in_height * s->in_width * s->in_channels));
    /* the tap that no pixel has in the padding */
    return ls_fuse_fill_weight(t->stream.native, t->w, s->out_channels, taps, s->in_channels,
                               s->pad * s->kernel + s->pad, most > 1 ? most : 1, MEAN_UNIT);
}

/* Statistics of t->y; of `sums` unless NULL. */
static ls_status statistics(ls_backend *backend, trial *t, const float *sums, float *kept)
{
    int channels = t->shape->out_channels;
    ls_norm_side side = {.epsilon = 1e-5f, .momentum = 0.1f};
    side.kept = (ls_norm_kept){.mean = kept + MEAN * t->step,
                               .inv_std = kept + INV_STD * t->step,
                               .scale = kept + SCALE * t->step,
                               .bias = kept + BIAS * t->step,
                               .back = kept + BACK * t->step,
                               .count = kept + COUNT * t->step};
    ls_tensor *parameter[] = {&side.weight, &side.bias, &side.running_mean, &side.running_var};
    for (int i = 0; i < 4; i++) { /* zeros: neither mean nor deviation depends on them */
        *parameter[i] = (ls_tensor){kept + (PARAMETERS + i) * t->step, LS_F32, channels};
    }
    ls_norm_call call = {.type = LS_F16,
                         .rows = t->rows,
                         .channels = channels,
                         .processors = backend->processors,
                         .side[0] = side,
                         .x = t->y,
                         .sum[0] = sums,
                         .squares[0] = sums == NULL ? NULL : sums + t->step,
                         .partial = t->partial,
                         .group = 1};
    return ls_norm_statistics(t->stream.native, &call);
}

static ls_status bring(trial *t, void *host, const void *from, int64_t bytes)
{
    LS_TRY(ls_cuda_wait_stream(t->stream.backend, t->stream.native));
    LS_CUDA(cudaMemcpyAsync(host, from, (size_t)bytes, cudaMemcpyDeviceToHost, t->stream.native));
    return ls_cuda_wait_stream(t->stream.backend, t->stream.native);
}

/* ---- verdict --------------------------------------------------------------------------------- */

/* The first element of y that the plain forward has otherwise. */
static ls_status judge_result(trial *t, finding *found)
{
    unsigned none = ~0u, row = none;
    int channels = t->shape->out_channels;
    LS_CUDA(
        cudaMemcpyAsync(t->first, &none, sizeof none, cudaMemcpyHostToDevice, t->stream.native));
    LS_TRY(ls_fuse_differ(t->stream.native, t->y, t->plain, t->rows, channels, t->first));
    LS_TRY(bring(t, &row, t->first, sizeof row));
    if (row == none) {
        return LS_OK;
    }
    int64_t bytes = (int64_t)sizeof *t->y * channels;
    LS_TRY(bring(t, t->row[0], t->y + (int64_t)row * channels, bytes));
    LS_TRY(bring(t, t->row[1], t->plain + (int64_t)row * channels, bytes));
    for (int c = 0; c < channels && found->what == NULL; c++) {
        double got = (double)ls_half_fp16_to_f32(t->row[0][c]);
        double wanted = (double)ls_half_fp16_to_f32(t->row[1][c]);
        if (!(got == wanted)) {
            *found = (finding){"a value of y", c, got, wanted, 0};
        }
    }
    return LS_OK;
}

static bool apart(double got, double wanted, double limit)
{
    return !(fabs(got - wanted) <= limit);
}

static void judge_statistics(const trial *t, finding *found)
{
    const double u = 0x1p-24, error = 16 * sqrt((double)t->rows) * u;
    int64_t channels = t->shape->out_channels;
    for (int64_t c = 0; c < channels && found->what == NULL; c++) {
        double mean[2], inv_std[2];
        for (int i = 0; i < 2; i++) { /* the mean was stored with its rounding error */
            mean[i] = (double)t->host[i][MEAN * t->step + c] -
                      (double)t->host[i][BACK * t->step + 3 * channels + c];
            inv_std[i] = (double)t->host[i][INV_STD * t->step + c];
        }
        double off = error / inv_std[1] + 2 * u * fabs(mean[1]);
        double part = (error + 2 * u) * inv_std[1];
        if (apart(mean[0], mean[1], off)) {
            *found = (finding){"the mean of y", c, mean[0], mean[1], off};
        } else if (apart(inv_std[0], inv_std[1], part)) {
            *found = (finding){"1 / deviation of y", c, inv_std[0], inv_std[1], part};
        }
    }
}

static ls_status judge(ls_backend *backend, const ls_conv_plan *plain, const ls_conv_plan *fused,
                       trial *t, finding *found)
{
    const void *own[] = {t->x, t->w, t->plain};
    const void *all[] = {t->x, t->w, t->y, t->sums, t->sums + t->step};
    LS_TRY(fill(t));
    LS_TRY(ls_cuda_wait_stream(backend, t->stream.native));
    LS_TRY(execute(backend, plain, own, t));
    LS_TRY(execute(backend, fused, all, t));
    LS_TRY(judge_result(t, found));
    LS_TRY(statistics(backend, t, t->sums, t->kept[0]));
    LS_TRY(statistics(backend, t, NULL, t->kept[1]));
    for (int i = 0; i < 2; i++) {
        LS_TRY(bring(t, t->host[i], t->kept[i], LISTS * t->step * (int64_t)sizeof *t->host[i]));
    }
    if (found->what == NULL) {
        judge_statistics(t, found);
    }
    return LS_OK;
}

static void report(const char *layer, const ls_conv_plan *fused, const finding *found)
{
    char tag[LS_CONV_TAG_BYTES];
    ls_conv_engine_tag(&fused->engine, tag, sizeof tag);
    ls_log_warn("%s, and layers of its shape: the %s of engine %s is not used: on exact data %s in "
                "channel %lld is %.9g, wanted %.9g within %.3g",
                layer, ls_conv_graph_pass_name(fused->key.pass), tag, found->what,
                (long long)found->channel, found->got, found->wanted, found->limit);
}

ls_status ls_fuse_admit(ls_backend *backend, const char *layer, const ls_conv_plan *plain,
                        ls_conv_plan *fused)
{
    const ls_conv_shape *s = &fused->key.shape;
    trial t = {.shape = s,
               .rows = (int64_t)s->batch * s->out_height * s->out_width,
               .step = ls_conv_sums_step(s->out_channels)};
    finding found = {0};
    int64_t own = plain->engine.workspace_bytes, other = fused->engine.workspace_bytes;
    LS_ASSERT(fused->key.type == LS_F16);
    ls_status status = take_all(backend, own > other ? own : other, &t);
    LS_THEN(status, judge(backend, plain, fused, &t, &found));
    give_all(&t);
    if (status == LS_OK) {
        fused->admission = found.what == NULL ? LS_CONV_ADMITTED : LS_CONV_REJECTED;
        if (found.what != NULL) {
            report(layer, fused, &found);
        }
    }
    return status;
}
