/* Data of the NCCL engine. One `ls_comm` is one communicator on one device with its own stream. All
 * calls except abort come from one thread.
 *
 * The communicator is non-blocking, because only then can it be aborted at any point (unless
 * LS_NCCL_BLOCKING=1, to find out whether that is at fault: then a peer that is lost while ranks
 * connect is left to the launcher). A call may
 * continue in the background (ncclInProgress); until it has ended, no other call may use the
 * communicator and nothing else may be enqueued on its stream (NCCL's user guide, "Group calls",
 * non-blocking groups). ls_nccl_settle waits for that. */
#ifndef LS_NCCL_INTERNAL_H
#define LS_NCCL_INTERNAL_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "comm.h"

/* One operation between its begin and its end on the device. */
typedef struct ls_nccl_slot {
    cudaEvent_t event; /* recorded at its end */
    ls_comm_kind kind;
    uint64_t number;
    int64_t bytes, begun_ns;
    char label[40];
    bool captured; /* into a graph: the event does not follow the graph's launches */
    bool waited;   /* the caller has called wait */
    bool ended;    /* ls_nccl_poll has seen the event */
    struct ls_nccl_slot *next;
} ls_nccl_slot;

typedef struct ls_nccl_registration {
    void *memory, *handle;
    struct ls_nccl_registration *next;
} ls_nccl_registration;

struct ls_comm {
    ncclComm_t native; /* under `lock` wherever abort may intervene */
    int rank, world, device;
    char name[40];
    struct ls_comm *other; /* in use at the same time; NULL: none */
    cudaEvent_t last;      /* the end of the last operation begun; NULL: none yet */
    bool last_captured;
    char log[480], network[32]; /* NCCL's own log if it is read here, and the network it names */
    double timeout_s, open_s;
    ls_store *store;
    const ls_backend_api *backend_api;
    ls_backend *backend;
    cudaStream_t stream;
    cudaEvent_t order; /* begin_after: a point on another stream */
    int32_t *token;    /* device memory, the operand of a barrier's sum */
    uint64_t number;
    ls_nccl_slot *running, **running_end; /* in order of begin, oldest first */
    int running_count;
    ls_nccl_slot *spare;
    ls_nccl_registration *registered;
    int allocations;
    int64_t peers_polled_ns; /* time of the last query to the store for ranks that left */
    int64_t waiting_ns;      /* start of a wait for recorded work; 0: none */
    ls_status failed;        /* the first error, already logged */

    pthread_mutex_t lock;
    pthread_cond_t abort_ended;
    pthread_t abort_thread;
    bool aborted;    /* under lock: `native` belongs to the aborting thread */
    bool abort_over; /* under lock */
};

/* nccl_wait.c: errors of NCCL and CUDA as ls_status, logged; waits with a deadline for NCCL, for
 * the device and for the other ranks; abort. */
/* A lost peer shows as a closed connection (ncclRemoteError), a failing socket or verb
 * (ncclSystemError) or a proxy that cannot continue (ncclInternalError): LS_ERR_PEER_LOST. */
ls_status ls_nccl_status_of(ncclResult_t result);
/* The library's last error, or "". */
const char *ls_nccl_last_words(void);
/* Logs a failed call with NCCL's own text; returns its status. comm: for its name; may be NULL. */
ls_status ls_nccl_check(const ls_comm *comm, ncclResult_t result, const char *call);
ls_status ls_nccl_check_cuda(cudaError_t error, const char *call);
#define LS_NCCL_CUDA(call) LS_TRY(ls_nccl_check_cuda((call), #call))

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

/* nccl_init.c */
ls_status ls_nccl_open(const ls_comm_options *options, ls_comm **out);
void ls_nccl_close(ls_comm *comm);
void ls_nccl_describe(char *text, int bytes);

/* Of the network between hosts "IB", "Socket" or a plug-in's name; NULL: unknown. */
const char *ls_nccl_network(const ls_comm *comm);
/* Device memory registered with NCCL (ls_comm_api memory_alloc). */
ls_status ls_nccl_memory_alloc(ls_comm *comm, int64_t bytes, const char *purpose, void **out);
void ls_nccl_memory_free(void *memory);

#endif
