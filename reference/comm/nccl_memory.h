/* Device memory registered with NCCL (ls_comm_api memory_alloc). */
#ifndef LS_NCCL_MEMORY_H
#define LS_NCCL_MEMORY_H

#include "nccl_data.h"

ls_status ls_nccl_memory_alloc(ls_comm *comm, int64_t bytes, const char *purpose, void **out);
void ls_nccl_memory_free(void *memory);
/* Before the communicator is destroyed. */
void ls_nccl_memory_deregister(ls_comm *comm);

#endif
