/* The NCCL calls of each operation, enqueued on the communicator's stream. */
#ifndef LS_NCCL_ISSUE_H
#define LS_NCCL_ISSUE_H

#include "nccl_data.h"

/* Called with `lock` held. */
ncclResult_t ls_nccl_issue(ls_comm *comm, const ls_comm_op *op);
/* Called once NCCL has enqueued its part: copies this rank's own piece if NCCL left it elsewhere
 * than the caller asked. */
ncclResult_t ls_nccl_issue_rest(ls_comm *comm, const ls_comm_op *op);

#endif
