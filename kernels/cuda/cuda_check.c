#include "check.h"

#include "kernels/core/log.h"

bool ls_cuda_is_fatal(cudaError_t error)
{
    switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
#if CUDART_VERSION >= 13000
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
#endif
        return true;
    default:
        return false;
    }
}

bool ls_cuda_is_lost(void)
{
    size_t free_bytes, total;
    cudaError_t answer = cudaMemGetInfo(&free_bytes, &total);
    return ls_cuda_is_fatal(answer);
}

ls_status ls_cuda_check(cudaError_t error, const char *call, const char *file, int line)
{
    if (error == cudaSuccess) {
        return LS_OK;
    }
    ls_log_error("%s:%d: %s: %s (%s)", file, line, call, cudaGetErrorString(error),
                 cudaGetErrorName(error));
    return ls_cuda_is_fatal(error) ? LS_ERR_DEVICE_LOST : LS_ERR_INFRA;
}
