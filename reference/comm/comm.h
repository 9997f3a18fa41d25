/* The contract of a communication engine: `self` (a world of one, built in), `gloo` and `nccl`
 * (shared objects loaded at run time). One `ls_comm` is one communicator: the gradients have one,
 * SyncBN's small collectives another. All ranks of a communicator call the same operations in the
 * same order; each operation carries its number in that order and a label, so that an error can
 * name a mismatch or a missing rank. A communicator may consist of some of a job's ranks (SyncBN's
 * groups, torch's new_group): its ranks then count from 0 within it, also in messages.
 *
 * begin/wait. `begin` accepts an operation whose buffer is valid once `after` has happened, and
 * returns at once. `wait` makes the stream wait for the result (NCCL), or blocks the host until the
 * result is there (Gloo, self; NCCL if the stream is NULL or the operation is a barrier). Errors
 * and deadlines surface in `begin`, `wait` and `poll`; after one, the communicator only accepts
 * `abort` and `close`. Handles belong to the caller, one per operation, and must not move until
 * waited for. Between begin and wait the host never blocks, so the operations of an asynchronous
 * engine can be recorded into a graph; if the recording is discarded, `wait` only releases the
 * handle.
 *
 * When a rank dies, the engine's own error or the deadline becomes LS_ERR_PEER_LOST in every
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
    LS_COMM_ALL_REDUCE,     /* input[count] -> buffer[count], reduced over ranks by `redop` */
    LS_COMM_BROADCAST,      /* input[count] at root -> buffer[count] */
    LS_COMM_ALL_GATHER,     /* input[count] -> buffer[world*count], in rank order */
    LS_COMM_REDUCE_SCATTER, /* input[world*count] -> buffer[count], reduced */
    LS_COMM_REDUCE,     /* input[count] -> buffer[count] at root, reduced; elsewhere undefined */
    LS_COMM_GATHER,     /* input[count] -> buffer[world*count] at root; elsewhere untouched */
    LS_COMM_SCATTER,    /* input[world*count] at root -> buffer[count] */
    LS_COMM_SEND,       /* buffer[count] to rank `root` */
    LS_COMM_RECV,       /* buffer[count] from rank `root` */
    LS_COMM_BARRIER,    /* no rank leaves before the last has entered */
    LS_COMM_ALL_TO_ALL, /* input[world*count] -> buffer[world*count]: part k of rank r's input
                           becomes part r of rank k's buffer. Never in place, as in NCCL: the two
                           must not overlap */
} ls_comm_kind;

/* How all_reduce, reduce_scatter and reduce combine two values; other kinds have LS_COMM_SUM.
 *
 * Sums and products of 16-bit types are computed in f32 and round once per operation, to nearest
 * even (numerics.md section 1); those of integers wrap. LS_COMM_MAX and LS_COMM_MIN of floats are
 * IEEE 754-2019's maximum and minimum: one NaN among the values gives a (quiet) NaN, and -0 is
 * below +0, so that the result has the same bits in any order. NCCL's documentation says neither;
 * its kernels (v2.28) take fmaxf, __hmax, ...: a NaN is lost where another rank has a number. */
typedef enum ls_comm_redop { LS_COMM_SUM, LS_COMM_MAX, LS_COMM_MIN, LS_COMM_PROD } ls_comm_redop;

typedef struct ls_comm_op {
    ls_comm_kind kind;
    void *buffer;
    const void *input; /* read only; NULL: it is at the start of buffer. In place, if the two differ
                          in size: the smaller is this rank's part of the larger */
    int64_t count;     /* elements per rank, as listed above */
    ls_dtype dtype;
    int root;
    ls_comm_redop redop; /* the same on all ranks, as kind, count and type */
    float factor; /* all-reduce: the sum is multiplied by it, rounded once more; 0 and 1: not. Only
                     if the engine's `scales` allows it */
    const char *label; /* "bucket 3", "layer1.0.bn1 statistics"; lives as long as the handle */
} ls_comm_op;

typedef struct ls_comm_handle {
    ls_comm_op op;
    uint64_t number;     /* of this operation on its communicator, from 0 */
    int64_t begun_ns;    /* ls_clock_ns when the caller began it */
    int64_t started_ns;  /* when the engine began to execute it; 0 if the engine does not know */
    int64_t finished_ns; /* when the result arrived; valid after wait */
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
    bool one_host; /* all ranks of the communicator are on one node, according to the launcher:
                      large sums may go through shared memory. LS_SHM=0 forbids it */
    /* For device engines. */
    double open_s;      /* deadline of the rendezvous; 0: timeout_s */
    bool deterministic; /* algorithm, protocol and channels are pinned */
    bool oversubscribe; /* ranks may share a device; else that is LS_ERR_INFRA */
    ls_comm *other;     /* of this process, in use at the same time: operations of the two never run
                           at once; closed in any order. NULL: none */
} ls_comm_options;

enum { LS_COMM_ABI = 8 };

typedef struct ls_comm_api {
    int abi;                                 /* LS_COMM_ABI */
    const char *name;                        /* "self", "gloo", "nccl" */
    void (*describe)(char *text, int bytes); /* library, version, path really loaded */
    ls_status (*open)(const ls_comm_options *options, ls_comm **out);
    ls_status (*begin)(ls_comm *comm, const ls_comm_op *op, ls_event *after,
                       ls_comm_handle *handle);
    ls_status (*wait)(ls_comm *comm, ls_comm_handle *handle, ls_stream *stream);
    /* Whether an all-reduce of this type accepts a factor: the rank that holds an element's sum
     * scales it once, before it sends it to the others. NULL: never. */
    bool (*scales)(ls_dtype dtype);
    ls_status (*poll)(ls_comm *comm); /* LS_OK, or the first error */
    void (*abort)(ls_comm *comm);     /* from any thread: pending waits return LS_ERR_PEER_LOST */
    void (*close)(
        ls_comm *comm); /* after the graphs that hold its operations have been destroyed */
    /* How the elements of large sums travel: "TCP", "shared memory"; between hosts NCCL's "IB",
     * "Socket" or a plug-in's name; NULL in a world of one, and where the engine does not say.
     * Engines with a single transport have no such entry. */
    const char *(*transport)(const ls_comm *comm);

    /* ---- for asynchronous engines; NULL elsewhere ---- */

    /* Operations begun from now on run after all work enqueued on `stream`. */
    ls_status (*begin_after)(ls_comm *comm, ls_stream *stream);
    /* `poll` for a caller that has waited since begun_ns (ls_clock_ns) for work launched with a
     * graph rather than begun here: also checks at intervals that all ranks are still alive. */
    ls_status (*poll_peers)(ls_comm *comm, int64_t begun_ns);
    /* Device memory that the engine moves fastest: zeroed, aligned as the backend's, and registered
     * with the network if all ranks could do that. All ranks call it in the same order with the
     * same arguments. LS_ERR_UNSUPPORTED, logged, if this rank has none: use the backend's memory.
     * It stays valid until memory_free, which comes after close. */
    ls_status (*memory_alloc)(ls_comm *comm, int64_t bytes, const char *purpose, void **out);
    void (*memory_free)(void *memory);
} ls_comm_api;

#define LS_COMM_ENTRY "ls_comm_entry"
typedef const ls_comm_api *ls_comm_entry_fn(void);

/* begin and wait in one call, after all work enqueued on `stream`. The result is valid for later
 * work on `stream`, and for the host if `stream` is NULL (and after every barrier). */
ls_status ls_comm_run(const ls_comm_api *api, ls_comm *comm, const ls_comm_op *op,
                      ls_stream *stream);
const char *ls_comm_kind_name(ls_comm_kind kind);    /* "all_reduce" */
const char *ls_comm_redop_name(ls_comm_redop redop); /* "sum", "max", "min", "prod": nccl-tests' */
bool ls_comm_kind_reduces(ls_comm_kind kind);        /* by `redop` */
/* What every engine asks of an operation before it begins. LS_ERR_USAGE, logged, for an operator or
 * a factor where nothing is reduced, a factor of anything but a sum, and an all_to_all whose input
 * is missing or overlaps the buffer. */
ls_status ls_comm_check(const ls_comm_op *op, int world);

/* comm_load.c: finds an engine by name; "self" is built in, the others are shared objects whose ABI
 * is checked. LS_ERR_USAGE for an unknown name. */
ls_status ls_comm_load(const char *name, const ls_comm_api **out);
/* The built-in engine of a world of one. */
const ls_comm_api *ls_comm_load_self(void);

/* gloo_reduce.c: to[i] = to[i] combined with from[i]. Any alignment; the two must not overlap. */
void ls_gloo_reduce(ls_comm_redop redop, ls_dtype dtype, void *to, const void *from, int64_t count);
/* to[i] *= factor, f32. */
void ls_gloo_scale(void *to, float factor, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
