/* What the files of the NCCL engine know of each other. One `ls_comm` is one communicator on one
 * device with a stream of its own. All calls but abort come from one thread.
 *
 * The communicator is a non-blocking one, because only such a one can be aborted at any point: a
 * call may go on behind our back (ncclInProgress), and until it has ended nothing else may be asked
 * of the communicator, nor anything enqueued behind it on its stream (NCCL's user guide, "Group
 * calls", non-blocking groups). ls_nccl_settle waits for that. */
#ifndef LS_NCCL_H
#define LS_NCCL_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "comm.h"

/* One operation between its begin and its end on the device. */
typedef struct ls_nccl_slot {
    cudaEvent_t event; /* its end */
    ls_comm_kind kind;
    uint64_t number;
    int64_t bytes, begun_ns;
    char label[40];
    bool captured; /* into a graph: the event says nothing about the graph's launches */
    bool waited;   /* the caller is through with it */
    bool ended;    /* seen by ls_nccl_poll */
    struct ls_nccl_slot *next;
} ls_nccl_slot;

typedef struct ls_nccl_registration {
    void *memory, *handle;
    struct ls_nccl_registration *next;
} ls_nccl_registration;

struct ls_comm {
    ncclComm_t native; /* under `lock` where abort may come in between */
    int rank, world, device;
    char name[40];
    double timeout_s, open_s;
    ls_store *store;
    const ls_backend_api *backend_api;
    ls_backend *backend;
    cudaStream_t stream;
    cudaEvent_t order; /* begin_after: a point on another stream */
    int32_t *token;    /* device memory, what a barrier sums */
    uint64_t number;
    ls_nccl_slot *running, **running_end; /* begun, in order; the oldest first */
    int running_count;
    ls_nccl_slot *spare;
    ls_nccl_registration *registered;
    int allocations;
    int64_t peers_polled_ns; /* when the store was last asked who has left */
    int64_t waiting_ns;      /* since when somebody waits for recorded work; 0: nobody */
    ls_status failed;        /* told already */

    pthread_mutex_t lock;
    pthread_cond_t abort_ended;
    pthread_t abort_thread;
    bool aborted;    /* under lock: `native` belongs to the thread that aborts */
    bool abort_over; /* under lock */
};

/* nccl_error.c. What a lost peer looks like: a closed connection (ncclRemoteError), a socket or a
 * verb that fails (ncclSystemError), or a proxy that cannot go on (ncclInternalError). */
ls_status ls_nccl_status_of(ncclResult_t result);
/* The library's last error, or "". */
const char *ls_nccl_last_words(void);
/* Logs a failed call with NCCL's own text; the status that it stands for. */
ls_status ls_nccl_check(ls_comm *comm, ncclResult_t result, const char *call);
/* What the failure of a call stands for. An error of the system or of NCCL itself is what a lost
 * peer can look like, and what this rank lacks, such as room in /dev/shm: the store knows at once
 * or after a moment whether somebody has left. */
ls_status ls_nccl_blame(const ls_comm *comm, ncclResult_t result);
ls_status ls_nccl_check_cuda(cudaError_t error, const char *call);
#define LS_NCCL_CUDA(call) LS_TRY(ls_nccl_check_cuda((call), #call))

/* nccl.c. */
/* The communicator's state, or ncclInvalidUsage and *aborted. */
ncclResult_t ls_nccl_state(ls_comm *comm, bool *aborted);
/* Waits until the last call has ended, at most to deadline_ns. ncclInProgress: it has not. polls:
 * calls ls_nccl_poll_peers meanwhile; *aborted, then, with comm->failed. */
ncclResult_t ls_nccl_settle(ls_comm *comm, int64_t deadline_ns, bool polls, bool *aborted);
/* A turn of a loop that waits for something since begun_ns: gives the core away. */
void ls_nccl_pause(int64_t begun_ns);
/* Starts ncclCommAbort on a thread of its own, once. */
void ls_nccl_abort(ls_comm *comm);
ls_status ls_nccl_poll(ls_comm *comm);
/* What a wait since begun_ns asks now and then: whether a rank has left the job. Where GPUs reach
 * each other's memory NCCL itself has no connection that would break. */
ls_status ls_nccl_poll_peers(ls_comm *comm, int64_t begun_ns);

/* nccl_issue.c: the calls of one operation; `lock` is held. */
ncclResult_t ls_nccl_issue(ls_comm *comm, const ls_comm_op *op);
/* What is left to do once NCCL has enqueued its part: this rank's own piece, where it ended
 * elsewhere than asked. */
ncclResult_t ls_nccl_issue_rest(ls_comm *comm, const ls_comm_op *op);

/* nccl_init.c */
ls_status ls_nccl_open(const ls_comm_options *options, ls_comm **out);
void ls_nccl_close(ls_comm *comm);
void ls_nccl_describe(char *text, int bytes);
/* nccl_place.c: who shares a device, and the variables that NCCL reads at its first call.
 * *max_ctas: 0, or the most blocks an operation may have. */
ls_status ls_nccl_place(ls_comm *comm, const ls_comm_options *options, int *max_ctas);
/* nccl_memory.c */
ls_status ls_nccl_memory_alloc(ls_comm *comm, int64_t bytes, const char *purpose, void **out);
void ls_nccl_memory_free(void *memory);
void ls_nccl_memory_deregister(ls_comm *comm);

#endif
