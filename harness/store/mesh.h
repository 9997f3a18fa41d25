/* Connections between all pairs of the ranks of a group, each opened with proofs that both ends
 * belong to the job (gate.h). The ranks find each other through the store. */
#ifndef LS_MESH_H
#define LS_MESH_H

#include <stdint.h>
#include <sys/socket.h>

#include "store.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Listens at `own`, whose port is 0, until every higher rank has connected, and connects to the
 * lower ones. fd[world] gets non-blocking sockets without Nagle's delay, -1 at `rank`; the caller
 * closes them. All ranks of the group call it with the same `name`, which is used once in a job.
 * LS_ERR_RENDEZVOUS, logged with the missing ranks, at the deadline or when a rank has left. */
ls_status ls_mesh_connect(ls_store *store, const char *name, int rank, int world,
                          const struct sockaddr *own, socklen_t own_bytes, int64_t deadline_ns,
                          int *fd);

#ifdef __cplusplus
}
#endif
#endif
