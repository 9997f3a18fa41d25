/* Waits with a deadline for NCCL, for the device and for the other ranks, and aborts the
 * communicator after an error. */
#ifndef LS_NCCL_WAIT_H
#define LS_NCCL_WAIT_H

#include "nccl_data.h"

/* One iteration of a loop that has waited since begun_ns: yields the core. */
void ls_nccl_pause(int64_t begun_ns);
/* Waits until the last call has ended, at most to deadline_ns; ncclInProgress: it has not. polls:
 * calls ls_nccl_poll_peers meanwhile; if that fails, sets *aborted and comm->failed. */
ncclResult_t ls_nccl_settle(ls_comm *comm, int64_t deadline_ns, bool polls, bool *aborted);
/* Starts ncclCommAbort on its own thread, once. */
void ls_nccl_abort(ls_comm *comm);
/* Logs the first failure and aborts; returns its status. slot NULL: between operations. */
ls_status ls_nccl_fail(ls_comm *comm, const ls_nccl_slot *slot, ls_status status, const char *why);
/* The same at a deadline; names the ranks that did not reach theirs. */
ls_status ls_nccl_fail_late(ls_comm *comm, const ls_nccl_slot *slot, const char *what);
/* LS_OK, or the error of the communicator or of its oldest operation, including its deadline. */
ls_status ls_nccl_poll(ls_comm *comm);
/* Asks the store every half second whether a rank has left the job; begun_ns: start of the wait.
 * Where GPUs reach each other's memory, NCCL has no connection of its own that would break. */
ls_status ls_nccl_poll_peers(ls_comm *comm, int64_t begun_ns);
/* The status of a failed call. A system error or an internal one is either a lost peer or something
 * that this rank lacks, such as space in /dev/shm: the store knows within a second whether a rank
 * has left. */
ls_status ls_nccl_blame(const ls_comm *comm, ncclResult_t result);
/* Makes a finished operation's slot available again. */
void ls_nccl_release(ls_comm *comm, ls_nccl_slot *slot);

#endif
