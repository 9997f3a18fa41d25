#include <math.h>
#include <stdlib.h>

#include "kernels/core/log.h"
#include "fuse.h"
#include "ops.h"
#include "conv_trial.h"

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

static ls_status take_all(gate_trial *t)
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

static ls_status fill(gate_trial *t)
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

static ls_status judge(gate_trial *t, const ls_conv_plan *plain, const ls_conv_plan *fused,
                       ls_conv_trial_finding *found)
{
    LS_TRY(take_all(t));
    LS_TRY(fill(t));
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
    LS_THEN(status, judge(&t, plain, fused, &found));
    ls_conv_trial_close(&t.base);
    free(t.host);
    free(t.host_exact);
    if (status == LS_OK) {
        ls_conv_trial_settle(layer, &found, fused);
    }
    return status;
}
