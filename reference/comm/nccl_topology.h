/* Finds ranks that share a device, before the first call of NCCL. */
#ifndef LS_NCCL_TOPOLOGY_H
#define LS_NCCL_TOPOLOGY_H

#include "nccl_data.h"

/* Sets the environment variables that NCCL reads at its first call. *max_ctas: the most thread
 * blocks an operation may have, 0 for no limit. LS_ERR_INFRA if ranks share a device without
 * options->oversubscribe. */
ls_status ls_nccl_topology(ls_comm *comm, const ls_comm_options *options, int *max_ctas);

#endif
