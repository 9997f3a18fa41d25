#include "nccl_parts.h"

#include "kernels/core/log.h"
#include "kernels/cuda/check.h"

ls_status ls_nccl_status_of(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
    case ncclInProgress:
        return LS_OK;
    case ncclUnhandledCudaError: /* includes missing memory and refused calls */
        return ls_cuda_is_lost() ? LS_ERR_DEVICE_LOST : LS_ERR_INFRA;
    case ncclSystemError:
    case ncclInternalError:
    case ncclRemoteError:
        return LS_ERR_PEER_LOST;
    default:
        return LS_ERR_INFRA;
    }
}

const char *ls_nccl_last_words(void)
{
    const char *text = ncclGetLastError(NULL); /* unused: it has no communicator (api/comms) */
    return text != NULL ? text : "";
}

ls_status ls_nccl_check(const ls_comm *comm, ncclResult_t result, const char *call)
{
    if (ls_nccl_status_of(result) == LS_OK) {
        return LS_OK;
    }
    const char *words = ls_nccl_last_words();
    ls_log_error("nccl '%s': %s: %s%s%s", comm != NULL ? comm->name : "", call,
                 ncclGetErrorString(result), words[0] != '\0' ? ": " : "", words);
    return ls_nccl_status_of(result);
}

ls_status ls_nccl_check_cuda(cudaError_t error, const char *call)
{
    if (error == cudaSuccess) {
        return LS_OK;
    }
    ls_log_error("nccl: %s: %s", call, cudaGetErrorString(error));
    return ls_cuda_is_fatal(error) ? LS_ERR_DEVICE_LOST : LS_ERR_INFRA;
}
