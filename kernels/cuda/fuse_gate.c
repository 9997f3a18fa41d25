#include <math.h>
#include <stdlib.h>

#include "kernels/core/log.h"
#include "fuse.h"
#include "ops.h"
#include "trial.h"

/* The variance of integers of -8 to 8 is 24, of -A to A about A^2 / 3: a sum of n products has a
 * deviation of A sqrt(8n). */
enum { DEVIATION = 2048, DY_MOST = 8 };
static const double PER_WEIGHT = 8;

enum { SUM, SQUARES, SUM_X, SQUARES_X, EXACT_LISTS };

typedef struct gate_trial {
    ls_trial base;
    const ls_conv_shape *shape;
    int64_t rows, step;
    int channels;
    uint16_t *dy, *w, *x, *g, *plain;
    float *mean, *ones, *scale, *bias, *sums;
    unsigned long long *exact;
    float *host;
    long long *host_exact;
} gate_trial;

/* ---- operands -------------------------------------------------------------------------------- */

static ls_status take_channels(gate_trial *t, int64_t lists, float **out)
{
    return ls_trial_take(&t->base, lists * t->step * (int64_t)sizeof **out, out);
}

static ls_status take_all(gate_trial *t)
{
    const ls_conv_shape *s = t->shape;
    int64_t half = (int64_t)sizeof *t->x, in = half * ls_conv_graph_count(s, LS_CONV_AS_X);
    LS_TRY(ls_trial_take(&t->base, half * ls_conv_graph_count(s, LS_CONV_AS_Y), &t->dy));
    LS_TRY(ls_trial_take(&t->base, half * ls_conv_graph_count(s, LS_CONV_AS_W), &t->w));
    LS_TRY(ls_trial_take(&t->base, in, &t->x));
    LS_TRY(ls_trial_take(&t->base, in, &t->g));
    LS_TRY(ls_trial_take(&t->base, in, &t->plain));
    float **const list[] = {&t->mean, &t->ones, &t->scale, &t->bias};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        LS_TRY(take_channels(t, 1, list[i]));
    }
    LS_TRY(take_channels(t, LS_CONV_GATE_LISTS, &t->sums));
    int64_t exact = EXACT_LISTS * (int64_t)sizeof *t->exact * t->channels;
    LS_TRY(ls_trial_take(&t->base, exact, &t->exact));
    t->host = calloc((size_t)(LS_CONV_GATE_LISTS * t->step), sizeof *t->host);
    t->host_exact = calloc(EXACT_LISTS * (size_t)t->channels, sizeof *t->host_exact);
    LS_TRY_MEMORY(t->host != NULL && t->host_exact != NULL, "%d channels", t->channels);
    return LS_OK;
}

static ls_status fill(gate_trial *t)
{
    const ls_conv_shape *s = t->shape;
    cudaStream_t stream = t->base.stream.native;
    int most = (int)(DEVIATION / sqrt(PER_WEIGHT * s->kernel * s->kernel * s->out_channels));
    LS_TRY(ls_fuse_fill_integers(stream, t->dy, ls_conv_graph_count(s, LS_CONV_AS_Y), DY_MOST));
    LS_TRY(ls_fuse_fill_integers(stream, t->w, ls_conv_graph_count(s, LS_CONV_AS_W),
                                 most > 1 ? most : 1));
    LS_TRY(ls_fuse_ones(stream, t->ones, t->channels));
    LS_TRY(ls_fuse_fill_norm(stream, t->mean, t->scale, t->bias, t->channels));
    return ls_fuse_fill_normed(stream, t->x, t->mean, t->rows, t->channels);
}

/* ---- verdict --------------------------------------------------------------------------------- */

static void judge_sum(const gate_trial *t, const char *what, int list, int exact, int channel,
                      ls_trial_finding *found)
{
    const double u = 0x1p-24;
    double sum = (double)t->host_exact[exact * t->channels + channel];
    double squares = (double)t->host_exact[(exact + 1) * t->channels + channel];
    double walk = fabs(sum) + 4 * sqrt(squares), got = (double)t->host[list * t->step + channel];
    double limit = 16 * sqrt((double)t->rows) * u * walk + 2 * u * fabs(sum);
    if (found->what == NULL && !(fabs(got - sum) <= limit)) {
        *found = (ls_trial_finding){what, channel, got, sum, limit};
    }
}

static ls_status judge_sums(gate_trial *t, ls_trial_finding *found)
{
    LS_TRY(ls_fuse_gate_sums(t->base.stream.native, t->plain, t->x, t->mean, t->rows, t->channels,
                             t->exact));
    LS_TRY(ls_trial_bring(&t->base, t->host, t->sums,
                          LS_CONV_GATE_LISTS * t->step * (int64_t)sizeof *t->host));
    LS_TRY(ls_trial_bring(&t->base, t->host_exact, t->exact,
                          EXACT_LISTS * (int64_t)sizeof *t->exact * t->channels));
    for (int c = 0; c < t->channels; c++) {
        judge_sum(t, "the sum of g", LS_CONV_GATE_SUM, SUM, c, found);
        judge_sum(t, "the sum of g * (x - mean)", LS_CONV_GATE_SUM_X, SUM_X, c, found);
    }
    return LS_OK;
}

static ls_status judge(gate_trial *t, const ls_conv_plan *plain, const ls_conv_plan *fused,
                       ls_trial_finding *found)
{
    LS_TRY(take_all(t));
    LS_TRY(fill(t));
    const ls_conv_gate gate = {t->x, t->mean, t->ones, t->scale, t->bias, t->sums};
    const void *own[] = {t->plain, t->w, t->dy}, *all[LS_CONV_TENSORS_MOST];
    ls_conv_graph_gate(t->shape, t->g, t->w, t->dy, &gate, all);
    LS_TRY(ls_trial_execute(&t->base, plain, own));
    LS_TRY(ls_trial_execute(&t->base, fused, all));
    LS_TRY(ls_fuse_gate(t->base.stream.native, t->plain, t->x, t->mean, t->scale, t->bias, t->rows,
                        t->channels));
    LS_TRY(ls_trial_compare(&t->base, "a value of g", t->g, t->plain, t->rows, t->channels, found));
    return judge_sums(t, found);
}

ls_status ls_fuse_admit_gate(ls_backend *backend, const char *layer, const ls_conv_plan *plain,
                             ls_conv_plan *fused)
{
    const ls_conv_shape *s = &fused->key.shape;
    gate_trial t = {.shape = s,
                    .rows = (int64_t)s->batch * s->in_height * s->in_width,
                    .step = ls_conv_sums_step(s->in_channels),
                    .channels = s->in_channels};
    ls_trial_finding found = {0};
    LS_ASSERT(fused->key.type == LS_F16 && !plain->key.onto);
    ls_status status = ls_trial_open(backend, plain, fused, &t.base);
    LS_THEN(status, judge(&t, plain, fused, &found));
    ls_trial_close(&t.base);
    free(t.host);
    free(t.host_exact);
    if (status == LS_OK) {
        ls_trial_settle(layer, &found, fused);
    }
    return status;
}
