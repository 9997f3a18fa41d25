/* Errors of the runtime, turned at the call. */
#ifndef LS_CUDA_CHECK_H
#define LS_CUDA_CHECK_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "kernels/core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* After such an error the device answers every call of this process with the same one: illegal
 * address, launch failure, ECC, lost device. */
bool ls_cuda_is_fatal(cudaError_t error);
/* Asks the device. For failures of libraries, whose own runtime's errors this one has not seen. */
bool ls_cuda_is_lost(void);
/* Logs a failed call with the library's text; LS_ERR_DEVICE_LOST for fatal errors, else
 * LS_ERR_INFRA. */
ls_status ls_cuda_check(cudaError_t error, const char *call, const char *file, int line);

#define LS_CUDA(call) LS_TRY(ls_cuda_check((call), #call, __FILE__, __LINE__))

#ifdef __cplusplus
}
#endif
#endif
