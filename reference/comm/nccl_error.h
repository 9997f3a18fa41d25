/* Turns errors of NCCL and CUDA into ls_status, and logs them. */
#ifndef LS_NCCL_ERROR_H
#define LS_NCCL_ERROR_H

#include "nccl_data.h"

/* A lost peer shows as a closed connection (ncclRemoteError), a failing socket or verb
 * (ncclSystemError) or a proxy that cannot continue (ncclInternalError): LS_ERR_PEER_LOST. */
ls_status ls_nccl_status_of(ncclResult_t result);
/* The library's last error, or "". */
const char *ls_nccl_last_words(void);
/* Logs a failed call with NCCL's own text and returns its status. comm: for its name; may be NULL.
 */
ls_status ls_nccl_check(const ls_comm *comm, ncclResult_t result, const char *call);
ls_status ls_nccl_check_cuda(cudaError_t error, const char *call);
#define LS_NCCL_CUDA(call) LS_TRY(ls_nccl_check_cuda((call), #call))

#endif
