#include "fuse.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/core/log.h"
#include "kernels/cuda/ops.h"
#include "conv_trial.h"

/* Mean and variance of x are 11.5 and 5.25 (8 to 15); of weights drawn from -A to A the variance is
 * A^2 / 3. A sum of n products then has a deviation of A sqrt(1.75 n). */
enum { DEVIATION = 512, MEAN_UNIT = 44 /* DEVIATION / 11.5, rounded down */ };
static const double PER_WEIGHT = 1.75;
/* The same of the output of an applied norm (ls_fuse_fill_applied): 6.8 and about 50. */
enum { APPLIED_MEAN_UNIT = 75 };
static const double APPLIED_PER_WEIGHT = 16.6;

/* f32 values of one way to the statistics, [step] each but for `back`. */
enum { MEAN, INV_STD, SCALE, BIAS, BACK, COUNT = BACK + 4, PARAMETERS, LISTS = PARAMETERS + 4 };

typedef struct sums_trial {
    ls_conv_trial base;
    const ls_conv_shape *shape;
    int64_t rows, step;
    bool applies;
    uint16_t *x, *w, *y, *plain; /* x: of the product, also where it applies a norm, of `raw` */
    uint16_t *raw, *scale, *bias;
    float *sums, *kept[2], *partial; /* kept: of the fused pass, of the plain one */
    float *host[2];
} sums_trial;

/* ---- operands -------------------------------------------------------------------------------- */

static ls_status take_all(sums_trial *t)
{
    const ls_conv_shape *s = t->shape;
    int64_t half = (int64_t)sizeof *t->x, channels = s->out_channels;
    LS_TRY(ls_conv_trial_take(&t->base, half * ls_conv_graph_count(s, LS_CONV_AS_X), &t->x));
    LS_TRY(ls_conv_trial_take(&t->base, half * ls_conv_graph_count(s, LS_CONV_AS_W), &t->w));
    if (t->applies) {
        LS_TRY(ls_conv_trial_take(&t->base, half * ls_conv_graph_count(s, LS_CONV_AS_X), &t->raw));
        LS_TRY(ls_conv_trial_take(&t->base, half * s->in_channels, &t->scale));
        LS_TRY(ls_conv_trial_take(&t->base, half * s->in_channels, &t->bias));
    }
    LS_TRY(ls_conv_trial_take(&t->base, half * t->rows * channels, &t->y));
    LS_TRY(ls_conv_trial_take(&t->base, half * t->rows * channels, &t->plain));
    LS_TRY(ls_conv_trial_take(&t->base, 2 * t->step * (int64_t)sizeof *t->sums, &t->sums));
    size_t partial = ls_norm_partial_bytes(t->rows, (int)channels, t->base.backend->processors);
    LS_TRY(ls_conv_trial_take(&t->base, (int64_t)partial, &t->partial));
    for (int i = 0; i < 2; i++) {
        LS_TRY(ls_conv_trial_take(&t->base, LISTS * t->step * (int64_t)sizeof *t->kept[i],
                                  &t->kept[i]));
        t->host[i] = calloc((size_t)(LISTS * t->step), sizeof *t->host[i]);
        LS_TRY_MEMORY(t->host[i] != NULL, "%d channels", (int)channels);
    }
    return LS_OK;
}

static ls_status fill(sums_trial *t)
{
    const ls_conv_shape *s = t->shape;
    int taps = s->kernel * s->kernel, products = taps * s->in_channels;
    int most = (int)(DEVIATION / sqrt((t->applies ? APPLIED_PER_WEIGHT : PER_WEIGHT) * products));
    cudaStream_t stream = t->base.stream.native;
    int64_t count = ls_conv_graph_count(s, LS_CONV_AS_X), rows = count / s->in_channels;
    if (t->applies) {
        LS_TRY(ls_fuse_fill_applied(stream, t->raw, t->scale, t->bias, rows, s->in_channels));
        LS_TRY(ls_fuse_apply(stream, t->raw, t->scale, t->bias, t->x, NULL, rows, s->in_channels));
    } else {
        LS_TRY(ls_fuse_fill(stream, t->x, count));
    }
    /* the tap that no pixel has in the padding */
    return ls_fuse_fill_weight(stream, t->w, s->out_channels, taps, s->in_channels,
                               s->pad * s->kernel + s->pad, most > 1 ? most : 1,
                               t->applies ? APPLIED_MEAN_UNIT : MEAN_UNIT);
}

/* Statistics of t->y; of `sums` unless NULL. */
static ls_status statistics(sums_trial *t, const float *sums, float *kept)
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
                         .processors = t->base.backend->processors,
                         .side[0] = side,
                         .x = t->y,
                         .sum[0] = sums,
                         .squares[0] = sums == NULL ? NULL : sums + t->step,
                         .partial = t->partial,
                         .group = 1};
    return ls_norm_statistics(t->base.stream.native, &call);
}

/* ---- verdict --------------------------------------------------------------------------------- */

static bool apart(double got, double wanted, double limit)
{
    return !(fabs(got - wanted) <= limit);
}

static void judge_statistics(const sums_trial *t, ls_conv_trial_finding *found)
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
            *found = (ls_conv_trial_finding){"the mean of y", c, mean[0], mean[1], off};
        } else if (apart(inv_std[0], inv_std[1], part)) {
            *found = (ls_conv_trial_finding){"1 / deviation of y", c, inv_std[0], inv_std[1], part};
        }
    }
}

static ls_status judge(sums_trial *t, const ls_conv_plan *plain, const ls_conv_plan *fused,
                       ls_conv_trial_finding *found)
{
    LS_TRY(take_all(t));
    const void *own[] = {t->x, t->w, t->plain};
    const void *all[] = {t->x, t->w, t->y, t->sums, t->sums + t->step};
    const void *applied[] = {t->raw, t->w, t->y, t->scale, t->bias, t->sums, t->sums + t->step};
    LS_TRY(fill(t));
    LS_TRY(ls_conv_trial_execute(&t->base, plain, own));
    LS_TRY(ls_conv_trial_execute(&t->base, fused, t->applies ? applied : all));
    LS_TRY(ls_conv_trial_compare(&t->base, "a value of y", t->y, t->plain, t->rows,
                                 t->shape->out_channels, found));
    LS_TRY(statistics(t, t->sums, t->kept[0]));
    LS_TRY(statistics(t, NULL, t->kept[1]));
    for (int i = 0; i < 2; i++) {
        LS_TRY(ls_conv_trial_bring(&t->base, t->host[i], t->kept[i],
                                   LISTS * t->step * (int64_t)sizeof *t->host[i]));
    }
    judge_statistics(t, found);
    return LS_OK;
}

ls_status ls_fuse_admit(ls_backend *backend, const char *layer, const ls_conv_plan *plain,
                        ls_conv_plan *fused)
{
    const ls_conv_shape *s = &fused->key.shape;
    sums_trial t = {.shape = s,
                    .rows = (int64_t)s->batch * s->out_height * s->out_width,
                    .step = ls_conv_sums_step(s->out_channels),
                    .applies = fused->key.pass == LS_CONV_FORWARD_APPLIED};
    ls_conv_trial_finding found = {0};
    LS_ASSERT(fused->key.type == LS_F16);
    ls_status status = ls_conv_trial_open(backend, ls_conv_plans_workspace(plain, fused), &t.base);
    LS_THEN(status, judge(&t, plain, fused, &found));
    ls_conv_trial_close(&t.base);
    free(t.host[0]);
    free(t.host[1]);
    if (status == LS_OK) {
        ls_conv_trial_settle(layer, &found, fused);
    }
    return status;
}

enum { OTHER_MOST = 1000, RESIDUAL_MOST = 9 };

enum { SUM, SQUARES, SUM_X, SQUARES_X, EXACT_LISTS };

/* A norm whose sums the pass makes. */
typedef struct gate_side {
    uint16_t *x;
    float *mean, *scale, *bias, *sums;
    unsigned long long *exact;
} gate_side;

typedef struct gate_trial {
    ls_conv_trial base;
    const ls_conv_shape *shape;
    int64_t rows, step;
    int channels, sides;
    bool joins;
    uint16_t *dy, *w, *g, *plain; /* joins: g and plain hold the second gradient before */
    uint16_t *residual;           /* of a join with one norm */
    float *ones;
    gate_side side[2];
    float *host;
    long long *host_exact;
} gate_trial;

/* ---- operands -------------------------------------------------------------------------------- */

static ls_status take_channels(gate_trial *t, int64_t lists, float **out)
{
    return ls_conv_trial_take(&t->base, lists * t->step * (int64_t)sizeof **out, out);
}

static ls_status take_side(gate_trial *t, gate_side *side)
{
    int64_t in = (int64_t)sizeof *side->x * ls_conv_graph_count(t->shape, LS_CONV_AS_X);
    LS_TRY(ls_conv_trial_take(&t->base, in, &side->x));
    LS_TRY(take_channels(t, 1, &side->mean));
    LS_TRY(take_channels(t, 1, &side->scale));
    LS_TRY(take_channels(t, 1, &side->bias));
    LS_TRY(take_channels(t, LS_CONV_GATE_LISTS, &side->sums));
    int64_t exact = EXACT_LISTS * (int64_t)sizeof *side->exact * t->channels;
    return ls_conv_trial_take(&t->base, exact, &side->exact);
}

static ls_status take_gate(gate_trial *t)
{
    const ls_conv_shape *s = t->shape;
    int64_t half = (int64_t)sizeof *t->g, in = half * ls_conv_graph_count(s, LS_CONV_AS_X);
    LS_TRY(ls_conv_trial_take(&t->base, half * ls_conv_graph_count(s, LS_CONV_AS_Y), &t->dy));
    LS_TRY(ls_conv_trial_take(&t->base, half * ls_conv_graph_count(s, LS_CONV_AS_W), &t->w));
    LS_TRY(ls_conv_trial_take(&t->base, in, &t->g));
    LS_TRY(ls_conv_trial_take(&t->base, in, &t->plain));
    LS_TRY(take_channels(t, 1, &t->ones));
    for (int k = 0; k < t->sides; k++) {
        LS_TRY(take_side(t, &t->side[k]));
    }
    if (t->joins && t->sides == 1) {
        LS_TRY(ls_conv_trial_take(&t->base, in, &t->residual));
    }
    t->host = calloc((size_t)(LS_CONV_GATE_LISTS * t->step), sizeof *t->host);
    t->host_exact = calloc(EXACT_LISTS * (size_t)t->channels, sizeof *t->host_exact);
    LS_TRY_MEMORY(t->host != NULL && t->host_exact != NULL, "%d channels", t->channels);
    return LS_OK;
}

static ls_status fill_gate(gate_trial *t)
{
    const ls_conv_shape *s = t->shape;
    cudaStream_t stream = t->base.stream.native;
    int64_t in = ls_conv_graph_count(s, LS_CONV_AS_X);
    LS_TRY(ls_fuse_fill_integers(stream, LS_F16, t->dy, ls_conv_graph_count(s, LS_CONV_AS_Y),
                                 LS_CONV_TRIAL_DY));
    LS_TRY(ls_fuse_fill_integers(stream, LS_F16, t->w, ls_conv_graph_count(s, LS_CONV_AS_W),
                                 ls_conv_trial_weight(s)));
    LS_TRY(ls_fuse_ones(stream, t->ones, t->channels));
    for (int k = 0; k < t->sides; k++) {
        gate_side *n = &t->side[k];
        LS_TRY(ls_fuse_fill_norm(stream, n->mean, n->scale, n->bias, t->channels, k == 1));
        LS_TRY(ls_fuse_fill_normed(stream, n->x, n->mean, t->rows, t->channels, k == 1));
    }
    if (t->joins) {
        LS_TRY(ls_fuse_fill_integers(stream, LS_F16, t->g, in, OTHER_MOST));
        LS_TRY(ls_fuse_fill_integers(stream, LS_F16, t->plain, in, OTHER_MOST));
    }
    return t->residual != NULL
               ? ls_fuse_fill_integers(stream, LS_F16, t->residual, in, RESIDUAL_MOST)
               : LS_OK;
}

/* ---- verdict --------------------------------------------------------------------------------- */

static void judge_sum(const gate_trial *t, const char *what, int list, int exact, int channel,
                      ls_conv_trial_finding *found)
{
    const double u = 0x1p-24;
    double sum = (double)t->host_exact[exact * t->channels + channel];
    double squares = (double)t->host_exact[(exact + 1) * t->channels + channel];
    double walk = fabs(sum) + 4 * sqrt(squares), got = (double)t->host[list * t->step + channel];
    double limit = 16 * sqrt((double)t->rows) * u * walk + 2 * u * fabs(sum);
    if (found->what == NULL && !(fabs(got - sum) <= limit)) {
        *found = (ls_conv_trial_finding){what, channel, got, sum, limit};
    }
}

static ls_status judge_sums(gate_trial *t, int side, ls_conv_trial_finding *found)
{
    const gate_side *n = &t->side[side];
    LS_TRY(ls_fuse_gate_sums(t->base.stream.native, t->plain, n->x, n->mean, t->rows, t->channels,
                             n->exact));
    LS_TRY(ls_conv_trial_bring(&t->base, t->host, n->sums,
                               LS_CONV_GATE_LISTS * t->step * (int64_t)sizeof *t->host));
    LS_TRY(ls_conv_trial_bring(&t->base, t->host_exact, n->exact,
                               EXACT_LISTS * (int64_t)sizeof *n->exact * t->channels));
    for (int c = 0; c < t->channels; c++) {
        judge_sum(t, side == 0 ? "the sum of g" : "the sum of g, of the second norm,",
                  LS_CONV_GATE_SUM, SUM, c, found);
        judge_sum(t,
                  side == 0 ? "the sum of g * (x - mean)"
                            : "the sum of g * (x - mean) of the second norm",
                  LS_CONV_GATE_SUM_X, SUM_X, c, found);
    }
    return LS_OK;
}

static ls_conv_gate gate_of(const gate_trial *t, int side)
{
    const gate_side *n = &t->side[side];
    return (ls_conv_gate){n->x, n->mean, t->ones, n->scale, n->bias, n->sums};
}

/* The fused pass in place, where it joins: as plans run it. */
static ls_status execute(gate_trial *t, const ls_conv_plan *fused)
{
    const void *all[LS_CONV_TENSORS_MOST];
    if (t->joins) {
        const ls_conv_join join = {.side = {gate_of(t, 0), gate_of(t, 1)},
                                   .residual = t->residual,
                                   .other = t->g,
                                   .twice = t->sides == 2};
        ls_conv_graph_join(t->shape, t->g, t->w, t->dy, &join, all);
    } else {
        const ls_conv_gate gate = gate_of(t, 0);
        ls_conv_graph_gate(t->shape, t->g, t->w, t->dy, &gate, all);
    }
    return ls_conv_trial_execute(&t->base, fused, all);
}

static ls_status judge_gate(gate_trial *t, const ls_conv_plan *plain, const ls_conv_plan *fused,
                            ls_conv_trial_finding *found)
{
    LS_TRY(take_gate(t));
    LS_TRY(fill_gate(t));
    const gate_side *a = &t->side[0], *b = &t->side[1];
    const void *own[] = {t->plain, t->w, t->dy};
    LS_TRY(ls_conv_trial_execute(&t->base, plain, own));
    LS_TRY(execute(t, fused));
    const ls_fuse_normed first = {a->x, a->mean, a->scale, a->bias};
    const ls_fuse_normed second = {t->sides == 2 ? b->x : t->residual, b->mean, b->scale, b->bias};
    LS_TRY(ls_fuse_gate(t->base.stream.native, t->plain, first, second, t->rows, t->channels));
    LS_TRY(ls_conv_trial_compare(&t->base, "a value of g", t->g, t->plain, t->rows, t->channels,
                                 found));
    for (int k = 0; k < t->sides; k++) {
        LS_TRY(judge_sums(t, k, found));
    }
    return LS_OK;
}

ls_status ls_fuse_admit_gate(ls_backend *backend, const char *layer, const ls_conv_plan *plain,
                             ls_conv_plan *fused)
{
    const ls_conv_shape *s = &fused->key.shape;
    gate_trial t = {.shape = s,
                    .rows = (int64_t)s->batch * s->in_height * s->in_width,
                    .step = ls_conv_sums_step(s->in_channels),
                    .channels = s->in_channels,
                    .sides = fused->key.pass == LS_CONV_DATA_JOINED_TWICE ? 2 : 1,
                    .joins = fused->key.pass != LS_CONV_DATA_GATED};
    ls_conv_trial_finding found = {0};
    LS_ASSERT(fused->key.type == LS_F16 && plain->key.onto == t.joins);
    ls_status status = ls_conv_trial_open(backend, ls_conv_plans_workspace(plain, fused), &t.base);
    LS_THEN(status, judge_gate(&t, plain, fused, &found));
    ls_conv_trial_close(&t.base);
    free(t.host);
    free(t.host_exact);
    if (status == LS_OK) {
        ls_conv_trial_settle(layer, &found, fused);
    }
    return status;
}

enum { DY_MOST = 1 };

typedef struct weights_trial {
    ls_conv_trial base;
    const ls_conv_shape *shape;
    uint16_t *raw, *scale, *bias, *x, *dy, *dw, *plain;
} weights_trial;

static ls_status take_weights(weights_trial *t)
{
    const ls_conv_shape *s = t->shape;
    int64_t half = (int64_t)sizeof *t->x, in = half * ls_conv_graph_count(s, LS_CONV_AS_X);
    int64_t weights = half * ls_conv_graph_count(s, LS_CONV_AS_W);
    LS_TRY(ls_conv_trial_take(&t->base, in, &t->raw));
    LS_TRY(ls_conv_trial_take(&t->base, in, &t->x));
    LS_TRY(ls_conv_trial_take(&t->base, half * s->in_channels, &t->scale));
    LS_TRY(ls_conv_trial_take(&t->base, half * s->in_channels, &t->bias));
    LS_TRY(ls_conv_trial_take(&t->base, half * ls_conv_graph_count(s, LS_CONV_AS_Y), &t->dy));
    LS_TRY(ls_conv_trial_take(&t->base, weights, &t->dw));
    return ls_conv_trial_take(&t->base, weights, &t->plain);
}

static ls_status judge_weights(weights_trial *t, const ls_conv_plan *plain,
                               const ls_conv_plan *fused, ls_conv_trial_finding *found)
{
    const ls_conv_shape *s = t->shape;
    int channels = s->in_channels;
    int64_t rows = ls_conv_graph_count(s, LS_CONV_AS_X) / channels;
    cudaStream_t stream = t->base.stream.native;
    LS_TRY(take_weights(t));
    LS_TRY(ls_fuse_fill_applied(stream, t->raw, t->scale, t->bias, rows, channels));
    LS_TRY(ls_fuse_apply(stream, t->raw, t->scale, t->bias, t->x, NULL, rows, channels));
    LS_TRY(ls_fuse_fill_integers(stream, LS_F16, t->dy, ls_conv_graph_count(s, LS_CONV_AS_Y),
                                 DY_MOST));
    const void *own[] = {t->x, t->plain, t->dy};
    const void *all[] = {t->raw, t->dw, t->dy, t->scale, t->bias};
    LS_TRY(ls_conv_trial_execute(&t->base, plain, own));
    LS_TRY(ls_conv_trial_execute(&t->base, fused, all));
    return ls_conv_trial_compare(&t->base, "a gradient of the weight", t->dw, t->plain,
                                 ls_conv_graph_count(s, LS_CONV_AS_W) / channels, channels, found);
}

ls_status ls_fuse_admit_weights(ls_backend *backend, const char *layer, const ls_conv_plan *plain,
                                ls_conv_plan *fused)
{
    weights_trial t = {.shape = &fused->key.shape};
    ls_conv_trial_finding found = {0};
    LS_ASSERT(fused->key.type == LS_F16);
    ls_status status = ls_conv_trial_open(backend, ls_conv_plans_workspace(plain, fused), &t.base);
    LS_THEN(status, judge_weights(&t, plain, fused, &found));
    ls_conv_trial_close(&t.base);
    if (status == LS_OK) {
        ls_conv_trial_settle(layer, &found, fused);
    }
    return status;
}
