/* Data of the NCCL engine. One `ls_comm` is one communicator on one device with its own stream. All
 * calls except abort come from one thread.
 *
 * The communicator is non-blocking, because only then can it be aborted at any point. A call may
 * continue in the background (ncclInProgress); until it has ended, no other call may use the
 * communicator and nothing else may be enqueued on its stream (NCCL's user guide, "Group calls",
 * non-blocking groups). ls_nccl_settle waits for that. */
#ifndef LS_NCCL_DATA_H
#define LS_NCCL_DATA_H

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

#endif
