/* The contract of a communication engine: `self` (a world of one, built in), `gloo` and `nccl`
 * (shared objects loaded at run time). One `ls_comm` is one communicator: the gradients have one,
 * SyncBN's small collectives another. All ranks of a communicator call the same operations in the
 * same order; each operation carries that order's number and what it is for, so that a mismatch or
 * a missing rank can be named.
 *
 * begin/wait. `begin` takes an operation whose buffer is valid once `after` has happened, and
 * returns at once; `wait` makes the stream wait for the result (NCCL; the host, where the stream is
 * NULL or the operation a barrier) or blocks the host until it is there (Gloo, self). Errors and
 * deadlines surface in `begin`, `wait` and `poll`; after one, the communicator only accepts `abort`
 * and `close`. Handles belong to the caller, one per operation, and stay put until waited for.
 * Between begin and wait nothing asks the host to wait, so an asynchronous engine can
 * be recorded into a graph with the operations around it; where that recording comes to nothing,
 * `wait` only gives the handle back.
 *
 * When a rank dies: the engine's own error or the deadline turns into LS_ERR_PEER_LOST in every
 * survivor, logged once with operation, number, bytes and seconds waited. */
#ifndef LS_COMM_H
#define LS_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "harness/store/store.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ls_comm_kind {
    LS_COMM_ALL_REDUCE,     /* input[count] -> buffer[count], sum over ranks */
    LS_COMM_BROADCAST,      /* input[count] at root -> buffer[count] */
    LS_COMM_ALL_GATHER,     /* input[count] -> buffer[world*count], in rank order */
    LS_COMM_REDUCE_SCATTER, /* input[world*count] -> buffer[count], sum */
    LS_COMM_REDUCE,         /* input[count] -> buffer[count] at root, sum; elsewhere undefined */
    LS_COMM_GATHER,         /* input[count] -> buffer[world*count] at root; elsewhere untouched */
    LS_COMM_SCATTER,        /* input[world*count] at root -> buffer[count] */
    LS_COMM_SEND,           /* buffer[count] to rank `root` */
    LS_COMM_RECV,           /* buffer[count] from rank `root` */
    LS_COMM_BARRIER,        /* nobody leaves before the last has come */
} ls_comm_kind;

/* Sums of 16-bit types round once per addition, to nearest even (numerics.md section 1). */
typedef struct ls_comm_op {
    ls_comm_kind kind;
    void *buffer;
    const void *input; /* only read; NULL: it is at the start of buffer. In place, where the two
                          differ in size: this rank's part of the larger is the smaller */
    int64_t count;     /* elements per rank, as said above */
    ls_dtype dtype;
    int root;
    float factor; /* all-reduce: the sum is multiplied by it, rounded once more; 0 and 1: not. Only
                     where the engine's `scales` says so */
    const char *label; /* "bucket 3", "layer1.0.bn1 statistics"; lives as long as the handle */
} ls_comm_op;

typedef struct ls_comm_handle {
    ls_comm_op op;
    uint64_t number;     /* of this operation on its communicator, from 0 */
    int64_t begun_ns;    /* ls_clock_ns when the caller began it */
    int64_t started_ns;  /* when the engine started to work on it; 0 where the engine cannot tell */
    int64_t finished_ns; /* when the result was there; valid after wait */
    void *engine;        /* the engine's own */
} ls_comm_handle;

typedef struct ls_comm ls_comm;

typedef struct ls_comm_options {
    int rank, world;
    ls_store *store;     /* rendezvous; NULL for a world of one; borrowed until close */
    const char *name;    /* unique among the communicators of a job: "gradients", "norm" */
    double timeout_s;    /* deadline of every operation and of the rendezvous */
    const char *address; /* this rank's own address for its peers, NULL: the loopback interface when
                            MASTER_ADDR is one, else the interface that routes to it */
    const ls_backend_api *backend_api; /* device engines need its memory; CPU engines ignore both */
    ls_backend *backend;
    bool one_host; /* the launcher says that all ranks of the communicator are on one node: large
                      sums may go through memory that they share. LS_SHM=0 forbids it */
    /* Of device engines. */
    double open_s;      /* deadline of the rendezvous, where it is not timeout_s; 0: it is */
    bool deterministic; /* algorithm, protocol and channels are pinned */
    bool oversubscribe; /* ranks may share a device; else that is LS_ERR_INFRA */
    bool concurrent;    /* this process has another communicator that works at the same time */
} ls_comm_options;

enum { LS_COMM_ABI = 5 };

typedef struct ls_comm_api {
    int abi;                                 /* LS_COMM_ABI */
    const char *name;                        /* "self", "gloo", "nccl" */
    void (*describe)(char *text, int bytes); /* library, version, path really loaded */
    ls_status (*open)(const ls_comm_options *options, ls_comm **out);
    ls_status (*begin)(ls_comm *comm, const ls_comm_op *op, ls_event *after,
                       ls_comm_handle *handle);
    ls_status (*wait)(ls_comm *comm, ls_comm_handle *handle, ls_stream *stream);
    /* Whether an all-reduce of this type can take a factor: each element is then scaled once, by
     * the rank that holds its sum, before it goes to the others. NULL: never. */
    bool (*scales)(ls_dtype dtype);
    ls_status (*poll)(ls_comm *comm); /* LS_OK, or the error that has happened */
    void (*abort)(ls_comm *comm);     /* from any thread: pending waits return LS_ERR_PEER_LOST */
    void (*close)(ls_comm *comm);     /* graphs that hold its operations are gone by then */
    /* How the elements of large sums travel: "TCP", "shared memory"; NULL in a world of one. An
     * engine of one kind only has no such entry. */
    const char *(*transport)(const ls_comm *comm);

    /* ---- of asynchronous engines; NULL elsewhere ---- */

    /* What is begun from now on comes after all that is enqueued on `stream`. */
    ls_status (*begin_after)(ls_comm *comm, ls_stream *stream);
    /* poll for a caller that has waited since begun_ns (ls_clock_ns) for work launched with a
     * graph, not begun here: now and then asks the store whether all ranks are still there. */
    ls_status (*poll_peers)(ls_comm *comm, int64_t begun_ns);
    /* Device memory that the engine moves best: zeroed, aligned as the backend's, and known to the
     * network where all ranks could do that. All ranks call it alike, in one order.
     * LS_ERR_UNSUPPORTED, told, where this rank cannot: take the backend's. It stays until
     * memory_free, which comes after close. */
    ls_status (*memory_alloc)(ls_comm *comm, int64_t bytes, const char *purpose, void **out);
    void (*memory_free)(void *memory);
} ls_comm_api;

#define LS_COMM_ENTRY "ls_comm_entry"
typedef const ls_comm_api *ls_comm_entry_fn(void);

/* reference/comm/comm.c: finds an engine by name ("self" is built in) and checks its ABI. */
ls_status ls_comm_load(const char *name, const ls_comm_api **out);
/* begin and wait in one, after what is enqueued on `stream`; the result is there for what follows
 * on `stream`, and for the host too where that is NULL (and after every barrier). */
ls_status ls_comm_run(const ls_comm_api *api, ls_comm *comm, const ls_comm_op *op,
                      ls_stream *stream);
const char *ls_comm_kind_name(ls_comm_kind kind); /* "all_reduce" */

#ifdef __cplusplus
}
#endif
#endif
