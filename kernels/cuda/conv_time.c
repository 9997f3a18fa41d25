#include <math.h>

#include "kernels/core/sort.h"
#include "conv_parts.h"

/* The first executions load code; a median of a few ignores one disturbed run. */
enum { WARM_UP = 2, RUNS = 5 };

typedef struct scratch {
    void *x, *w, *y, *workspace;
    cudaStream_t stream;
    cudaEvent_t mark[RUNS + 1];
} scratch;

static ls_status scratch_take(const ls_conv_key *key, int64_t workspace_bytes, scratch *s)
{
    const ls_conv_shape *h = &key->shape;
    int64_t unit = (int64_t)ls_dtype_bytes(key->type);
    int64_t x = (int64_t)h->batch * h->in_height * h->in_width * h->in_channels;
    int64_t w = (int64_t)h->out_channels * h->kernel * h->kernel * h->in_channels;
    int64_t y = (int64_t)h->batch * h->out_height * h->out_width * h->out_channels;
    LS_TRY(ls_cuda_take(x * unit, "timing of convolutions: x", &s->x));
    LS_TRY(ls_cuda_take(w * unit, "timing of convolutions: w", &s->w));
    LS_TRY(ls_cuda_take(y * unit, "timing of convolutions: y", &s->y));
    if (workspace_bytes > 0) {
        LS_TRY(ls_cuda_take(workspace_bytes, "timing of convolutions: workspace", &s->workspace));
    }
    LS_CUDA(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking));
    for (int i = 0; i <= RUNS; i++) {
        LS_CUDA(cudaEventCreateWithFlags(&s->mark[i], cudaEventDefault));
    }
    return LS_OK;
}

static void scratch_give(scratch *s)
{
    for (int i = 0; i <= RUNS; i++) {
        if (s->mark[i]) {
            cudaEventDestroy(s->mark[i]);
        }
    }
    if (s->stream) {
        cudaStreamDestroy(s->stream);
    }
    ls_cuda_give(s->workspace);
    ls_cuda_give(s->y);
    ls_cuda_give(s->w);
    ls_cuda_give(s->x);
}

static ls_status time_plan(ls_backend *backend, cudnnBackendDescriptor_t plan,
                           cudnnBackendDescriptor_t pack, scratch *s, double *ms)
{
    double run[RUNS];
    *ms = INFINITY;
    for (int i = -WARM_UP; i < RUNS; i++) {
        if (i >= 0) {
            LS_CUDA(cudaEventRecord(s->mark[i], s->stream));
        }
        if (cudnnBackendExecute(backend->dnn, plan, pack) != CUDNN_STATUS_SUCCESS) {
            (void)cudaGetLastError(); /* cleared: a plan that fails is a result here and must not
                                         surface at the next launch */
            LS_CUDA(cudaStreamSynchronize(s->stream));
            return LS_OK;
        }
    }
    LS_CUDA(cudaEventRecord(s->mark[RUNS], s->stream));
    LS_CUDA(cudaStreamSynchronize(s->stream));
    for (int i = 0; i < RUNS; i++) {
        float elapsed = 0;
        LS_CUDA(cudaEventElapsedTime(&elapsed, s->mark[i], s->mark[i + 1]));
        run[i] = elapsed;
    }
    *ms = ls_sort_median(run, RUNS);
    return LS_OK;
}

static ls_status time_all(ls_backend *backend, const ls_conv_key *key, int count,
                          const cudnnBackendDescriptor_t *plan, int64_t workspace_bytes, scratch *s,
                          double *ms)
{
    cudnnBackendDescriptor_t pack = NULL;
    LS_TRY(scratch_take(key, workspace_bytes, s));
    LS_CUDNN(cudnnSetStream(backend->dnn, s->stream));
    LS_TRY(ls_conv_plans_pack(s->x, s->w, s->y, s->workspace, &pack));
    ls_status status = LS_OK;
    for (int i = 0; i < count && status == LS_OK; i++) {
        status = time_plan(backend, plan[i], pack, s, &ms[i]);
    }
    ls_conv_graph_drop(pack);
    return status;
}

ls_status ls_conv_time_plans(ls_backend *backend, const ls_conv_key *key, int count,
                             const cudnnBackendDescriptor_t *plan, int64_t workspace_bytes,
                             double *ms)
{
    scratch s = {0};
    ls_status status = time_all(backend, key, count, plan, workspace_bytes, &s, ms);
    cudnnSetStream(backend->dnn, NULL);
    scratch_give(&s);
    return status;
}
