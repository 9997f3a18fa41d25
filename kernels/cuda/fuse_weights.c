#include "fuse.h"
#include "ops.h"
#include "conv_trial.h"

enum { DY_MOST = 1 };

typedef struct weights_trial {
    ls_conv_trial base;
    const ls_conv_shape *shape;
    uint16_t *raw, *scale, *bias, *x, *dy, *dw, *plain;
} weights_trial;

static ls_status take_all(weights_trial *t)
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

static ls_status judge(weights_trial *t, const ls_conv_plan *plain, const ls_conv_plan *fused,
                       ls_conv_trial_finding *found)
{
    const ls_conv_shape *s = t->shape;
    int channels = s->in_channels;
    int64_t rows = ls_conv_graph_count(s, LS_CONV_AS_X) / channels;
    cudaStream_t stream = t->base.stream.native;
    LS_TRY(take_all(t));
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
    LS_THEN(status, judge(&t, plain, fused, &found));
    ls_conv_trial_close(&t.base);
    if (status == LS_OK) {
        ls_conv_trial_settle(layer, &found, fused);
    }
    return status;
}
