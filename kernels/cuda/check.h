/* Turns errors of the runtime into ls_status at the call. */
#ifndef LS_CUDA_CHECK_H
#define LS_CUDA_CHECK_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "kernels/core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the device answers all later calls of this process with this error: illegal address,
 * launch failure, ECC error, lost device. */
bool ls_cuda_is_fatal(cudaError_t error);
/* Queries the device. For failures inside libraries, whose errors this program's runtime has not
 * seen. */
bool ls_cuda_is_lost(void);
/* Logs a failed call with the library's text; LS_ERR_DEVICE_LOST for fatal errors, else
 * LS_ERR_INFRA. */
ls_status ls_cuda_check(cudaError_t error, const char *call, const char *file, int line);

#define LS_CUDA(call) LS_TRY(ls_cuda_check((call), #call, __FILE__, __LINE__))

#ifdef __cplusplus
}
#endif
#endif
