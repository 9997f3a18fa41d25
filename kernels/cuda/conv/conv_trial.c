#include "conv_trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/half.h"
#include "kernels/core/log.h"
#include "kernels/cuda/ops.h"

/* ---- memory ---------------------------------------------------------------------------------- */

ls_status ls_conv_trial_take(ls_conv_trial *t, int64_t bytes, void *out)
{
    LS_ASSERT(t->arrays < LS_CONV_TRIAL_ARRAYS);
    LS_TRY(ls_cuda_take(bytes, "admitting a fused convolution", &t->array[t->arrays]));
    memcpy(out, &t->array[t->arrays++], sizeof t->array[0]);
    return LS_OK;
}

ls_status ls_conv_trial_open(ls_backend *backend, int64_t workspace_bytes, ls_conv_trial *out)
{
    *out = (ls_conv_trial){.backend = backend, .stream.backend = backend};
    LS_CUDA(cudaStreamCreateWithFlags(&out->stream.native, cudaStreamNonBlocking));
    if (workspace_bytes > 0) {
        LS_TRY(ls_conv_trial_take(out, workspace_bytes, &out->workspace));
    }
    return ls_conv_trial_take(out, (int64_t)sizeof *out->first, &out->first);
}

void ls_conv_trial_close(ls_conv_trial *t)
{
    if (t->stream.native != NULL) {
        cudaStreamDestroy(t->stream.native);
    }
    while (t->arrays > 0) {
        ls_cuda_give(t->array[--t->arrays]);
    }
}

/* ---- execution ------------------------------------------------------------------------------- */

ls_status ls_conv_trial_run(ls_conv_trial *t, ls_conv_pass pass, cudnnBackendDescriptor_t plan,
                            void *workspace, const void *const *data, cudnnStatus_t *executed)
{
    cudnnHandle_t dnn = t->backend->dnn;
    cudnnBackendDescriptor_t pack = NULL;
    LS_TRY(ls_conv_plans_pack(pass, data, workspace, &pack));
    ls_status status = ls_cuda_check_dnn(cudnnSetStream(dnn, t->stream.native), "set the stream",
                                         __FILE__, __LINE__);
    if (status == LS_OK) {
        *executed = cudnnBackendExecute(dnn, plan, pack);
        if (*executed != CUDNN_STATUS_SUCCESS) {
            (void)cudaGetLastError(); /* an answer here: it must not surface at the next launch */
        }
        status = ls_cuda_wait_stream(t->backend, t->stream.native);
    }
    cudnnSetStream(dnn, NULL);
    ls_conv_graph_drop(pack);
    return status;
}

ls_status ls_conv_trial_execute(ls_conv_trial *t, const ls_conv_plan *plan, const void *const *data)
{
    cudnnStatus_t executed = CUDNN_STATUS_SUCCESS;
    LS_TRY(ls_conv_trial_run(t, plan->key.pass, plan->plan, t->workspace, data, &executed));
    return ls_cuda_check_dnn(executed, "execute a convolution", __FILE__, __LINE__);
}

ls_status ls_conv_trial_bring(ls_conv_trial *t, void *host, const void *from, int64_t bytes)
{
    LS_TRY(ls_cuda_wait_stream(t->backend, t->stream.native));
    LS_CUDA(cudaMemcpyAsync(host, from, (size_t)bytes, cudaMemcpyDeviceToHost, t->stream.native));
    return ls_cuda_wait_stream(t->backend, t->stream.native);
}

/* ---- operands -------------------------------------------------------------------------------- */

/* The variance of integers of -8 to 8 is 24, of -A to A about A^2 / 3: a sum of n products has a
 * deviation of A sqrt(8n). bf16 holds integers up to 256. */
int ls_conv_trial_weight(const ls_conv_shape *shape)
{
    enum { DEVIATION = 2048, PER_WEIGHT = 8, MOST = 256 };
    double products = (double)shape->kernel * shape->kernel * shape->out_channels;
    int most = (int)(DEVIATION / sqrt(PER_WEIGHT * products));
    return most < 1 ? 1 : most > MOST ? MOST : most;
}

/* ---- verdict --------------------------------------------------------------------------------- */

/* Both matrices' row that differs, in memory of the host: [2][channels]. */
static ls_status compare_row(ls_conv_trial *t, const char *what, const uint16_t *got,
                             const uint16_t *wanted, int channels, uint16_t *row,
                             ls_conv_trial_finding *found)
{
    int64_t bytes = (int64_t)sizeof *row * channels;
    LS_TRY(ls_conv_trial_bring(t, row, got, bytes));
    LS_TRY(ls_conv_trial_bring(t, row + channels, wanted, bytes));
    for (int c = 0; c < channels && found->what == NULL; c++) {
        double a = (double)ls_half_fp16_to_f32(row[c]);
        double b = (double)ls_half_fp16_to_f32(row[channels + c]);
        if (!(a == b)) {
            *found = (ls_conv_trial_finding){what, c, a, b, 0};
        }
    }
    return LS_OK;
}

ls_status ls_conv_trial_compare(ls_conv_trial *t, const char *what, const uint16_t *got,
                                const uint16_t *wanted, int64_t rows, int channels,
                                ls_conv_trial_finding *found)
{
    unsigned none = ~0u, at = none;
    LS_CUDA(
        cudaMemcpyAsync(t->first, &none, sizeof none, cudaMemcpyHostToDevice, t->stream.native));
    LS_TRY(ls_fuse_differ(t->stream.native, got, wanted, rows, channels, t->first));
    LS_TRY(ls_conv_trial_bring(t, &at, t->first, sizeof at));
    if (at == none) {
        return LS_OK;
    }
    uint16_t *row = calloc(2 * (size_t)channels, sizeof *row);
    LS_TRY_MEMORY(row != NULL, "%d channels", channels);
    ls_status status = compare_row(t, what, got + (int64_t)at * channels,
                                   wanted + (int64_t)at * channels, channels, row, found);
    free(row);
    return status;
}

void ls_conv_trial_settle(const char *layer, const ls_conv_trial_finding *found,
                          ls_conv_plan *fused)
{
    char tag[LS_CONV_TAG_BYTES];
    fused->admission = found->what == NULL ? LS_CONV_ADMITTED : LS_CONV_REJECTED;
    if (found->what == NULL) {
        return;
    }
    ls_conv_engine_tag(&fused->engine, tag, sizeof tag);
    ls_log_warn("%s, and layers of its shape: the %s of engine %s is not used: on exact data %s in "
                "channel %lld is %.9g, wanted %.9g within %.3g",
                layer, ls_conv_graph_kind(fused->key.pass)->name, tag, found->what,
                (long long)found->channel, found->got, found->wanted, found->limit);
}

/* ---- engines that add ------------------------------------------------------------------------ */

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
