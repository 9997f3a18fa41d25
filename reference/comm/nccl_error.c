/* What NCCL's errors and CUDA's stand for. */
#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/cuda/check.h"
#include "nccl.h"

ls_status ls_nccl_status_of(ncclResult_t result)
{
    switch (result) {
    case ncclSuccess:
    case ncclInProgress:
        return LS_OK;
    case ncclUnhandledCudaError: /* also memory that is not there, or a call that is refused */
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

ls_status ls_nccl_check(ls_comm *comm, ncclResult_t result, const char *call)
{
    if (ls_nccl_status_of(result) == LS_OK) {
        return LS_OK;
    }
    const char *words = ls_nccl_last_words();
    ls_log_error("nccl '%s': %s: %s%s%s", comm != NULL ? comm->name : "", call,
                 ncclGetErrorString(result), words[0] != '\0' ? ": " : "", words);
    return ls_nccl_status_of(result);
}

ls_status ls_nccl_blame(const ls_comm *comm, ncclResult_t result)
{
    static const int64_t moment_ns = 1000000000;
    ls_status status = ls_nccl_status_of(result);
    if (status != LS_ERR_PEER_LOST || result == ncclRemoteError) {
        return status;
    }
    int rank = -1;
    int64_t begun_ns = ls_clock_ns();
    while (comm->store != NULL && ls_clock_ns() - begun_ns < moment_ns) {
        if (ls_store_who_left(comm->store, &rank) != LS_OK || rank >= 0) {
            return LS_ERR_PEER_LOST;
        }
        ls_nccl_pause(begun_ns);
    }
    return LS_ERR_INFRA;
}

ls_status ls_nccl_check_cuda(cudaError_t error, const char *call)
{
    if (error == cudaSuccess) {
        return LS_OK;
    }
    ls_log_error("nccl: %s: %s", call, cudaGetErrorString(error));
    return ls_cuda_is_fatal(error) ? LS_ERR_DEVICE_LOST : LS_ERR_INFRA;
}
