#include "conv_trial.h"

#include <stdlib.h>

#include "kernels/core/log.h"
#include "kernels/cuda/ops.h"

enum { SAMPLES = 1 << 14 };

struct ls_conv_onto {
    ls_conv_trial base;
    const ls_conv_key *key;
    uint16_t *dy, *w, *before, *dx;
    uint16_t *wanted; /* [SAMPLES] */
};

bool ls_conv_onto_judges(const ls_backend *backend, const ls_conv_key *key)
{
    return key->onto && key->type != LS_F32 && backend->described == NULL;
}

static ls_status fill(ls_conv_onto *o)
{
    const ls_conv_shape *s = &o->key->shape;
    ls_dtype type = o->key->type;
    cudaStream_t stream = o->base.stream.native;
    int old = type == LS_F16 ? 1000 : 200;
    LS_TRY(ls_fuse_fill_integers(stream, type, o->dy, ls_conv_graph_count(s, LS_CONV_AS_Y),
                                 LS_CONV_TRIAL_DY));
    LS_TRY(ls_fuse_fill_integers(stream, type, o->w, ls_conv_graph_count(s, LS_CONV_AS_W),
                                 ls_conv_trial_weight(s)));
    LS_TRY(
        ls_fuse_fill_integers(stream, type, o->before, ls_conv_graph_count(s, LS_CONV_AS_X), old));
    return ls_conv_onto_wanted(stream, type, s, o->dy, o->w, o->before, SAMPLES, o->wanted);
}

static ls_status take_all(ls_conv_onto *o)
{
    const ls_conv_shape *s = &o->key->shape;
    int64_t half = (int64_t)sizeof *o->dx, in = half * ls_conv_graph_count(s, LS_CONV_AS_X);
    LS_TRY(ls_conv_trial_take(&o->base, half * ls_conv_graph_count(s, LS_CONV_AS_Y), &o->dy));
    LS_TRY(ls_conv_trial_take(&o->base, half * ls_conv_graph_count(s, LS_CONV_AS_W), &o->w));
    LS_TRY(ls_conv_trial_take(&o->base, in, &o->before));
    LS_TRY(ls_conv_trial_take(&o->base, in, &o->dx));
    return ls_conv_trial_take(&o->base, half * SAMPLES, &o->wanted);
}

ls_status ls_conv_onto_open(ls_backend *backend, const ls_conv_key *key, ls_conv_onto **out)
{
    ls_conv_onto *o = calloc(1, sizeof *o);
    LS_TRY_MEMORY(o != NULL, "trying engines that add");
    o->key = key;
    ls_status status = ls_conv_trial_open(backend, 0, &o->base);
    LS_THEN(status, take_all(o));
    LS_THEN(status, fill(o));
    if (status != LS_OK) {
        ls_conv_onto_close(o);
        return status;
    }
    *out = o;
    return LS_OK;
}

void ls_conv_onto_close(ls_conv_onto *onto)
{
    if (onto != NULL) {
        ls_conv_trial_close(&onto->base);
        free(onto);
    }
}

static ls_status execute(ls_conv_onto *o, cudnnBackendDescriptor_t plan, void *workspace,
                         cudnnStatus_t *executed)
{
    const void *const data[] = {o->dx, o->w, o->dy};
    int64_t bytes = (int64_t)sizeof *o->dx * ls_conv_graph_count(&o->key->shape, LS_CONV_AS_X);
    LS_CUDA(cudaMemcpyAsync(o->dx, o->before, (size_t)bytes, cudaMemcpyDeviceToDevice,
                            o->base.stream.native));
    return ls_conv_trial_run(&o->base, o->key->pass, plan, workspace, data, executed);
}

ls_status ls_conv_onto_try(ls_conv_onto *onto, cudnnBackendDescriptor_t plan,
                           int64_t workspace_bytes, cudnnStatus_t *executed, bool *right)
{
    void *workspace = NULL;
    *right = false;
    if (workspace_bytes > 0) {
        LS_TRY(ls_cuda_take(workspace_bytes, "trying engines that add", &workspace));
    }
    ls_status status = execute(onto, plan, workspace, executed);
    ls_cuda_give(workspace);
    if (status != LS_OK || *executed != CUDNN_STATUS_SUCCESS) {
        return status;
    }
    unsigned differing = 0;
    ls_conv_trial *t = &onto->base;
    LS_CUDA(cudaMemsetAsync(t->first, 0, sizeof *t->first, t->stream.native));
    LS_TRY(ls_conv_onto_differing(t->stream.native, onto->key->type,
                                  ls_conv_graph_count(&onto->key->shape, LS_CONV_AS_X), onto->dx,
                                  onto->wanted, SAMPLES, t->first));
    LS_TRY(ls_conv_trial_bring(t, &differing, t->first, sizeof differing));
    *right = differing == 0;
    return LS_OK;
}
