/* Errors of cuDNN and cuBLASLt as a status (cuda_check.c has those of the runtime, which the NCCL
 * engine shares). */
#include "backend.h"
#include "kernels/core/log.h"

ls_status ls_cuda_check_dnn(cudnnStatus_t status, const char *call, const char *file, int line)
{
    if (status == CUDNN_STATUS_SUCCESS) {
        return LS_OK;
    }
    char text[512] = "";
    cudnnGetLastErrorString(text, sizeof text);
    ls_log_error("%s:%d: %s: %s%s%s", file, line, call, cudnnGetErrorString(status),
                 text[0] != '\0' ? ": " : "", text);
    return ls_cuda_is_lost() ? LS_ERR_DEVICE_LOST : LS_ERR_INFRA;
}

ls_status ls_cuda_check_blas(cublasStatus_t status, const char *call, const char *file, int line)
{
    if (status == CUBLAS_STATUS_SUCCESS) {
        return LS_OK;
    }
    ls_log_error("%s:%d: %s: %s", file, line, call, cublasLtGetStatusString(status));
    return ls_cuda_is_lost() ? LS_ERR_DEVICE_LOST : LS_ERR_INFRA;
}
