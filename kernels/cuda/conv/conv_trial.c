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
