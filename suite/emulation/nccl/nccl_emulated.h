/* NCCL emulated between processes of this machine, for tests: nccl.h's functions over the emulated
 * runtime's streams. As in the library, a call of a non-blocking communicator continues for a while
 * after it has returned (ncclInProgress), and until it has ended every other call is refused;
 * enqueued work runs when all ranks have enqueued theirs, and a dead rank shows as ncclRemoteError
 * in those that wait for it, whose work stays on the device until they abort. Stricter than the
 * library where that would hang or write outside a buffer: it refuses ranks that call different
 * operations, and buffers outside device memory, that overlap, or that are freed while registered.
 *
 * LS_EMULATED_SILENT=1: a lost rank does not show, as between GPUs that reach each other's memory.
 * LS_EMULATED_SUM_WRONG=I: element I of every f32 sum of a part has one bit flipped.
 * LS_EMULATED_NO_SHM=1: no communicator can be opened, for want of shared memory.
 */
#ifndef LS_NCCL_EMULATED_H
#define LS_NCCL_EMULATED_H

#include <nccl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NET_RANKS_MAX = 16,
    NET_RING_BYTES = 1 << 16,
};

/* ---- nccl_net.c: ranks that share memory ----------------------------------------------------- */

typedef enum net_state { NET_ABSENT, NET_JOINED, NET_FINAL, NET_LEFT, NET_ABORTED } net_state;

/* The data that a rank publishes when it joins. */
typedef struct net_member {
    _Atomic int state;
    uint64_t host;   /* hash of the host's name or of NCCL_HOSTID */
    char device[16]; /* bus address */
} net_member;

typedef struct net_channel {
    _Atomic uint64_t written, read; /* total bytes */
    unsigned char ring[NET_RING_BYTES];
} net_channel;

typedef struct net {
    int rank, world, file;
    struct net_segment *segment;
    size_t bytes;
} net;

/* Creates the memory of a communicator and its name. */
bool net_create(char *name, size_t name_bytes);
/* Opens the memory with that name and joins; false: see errno. */
bool net_join(net *to, const char *name, int rank, int world, const net_member *me);
bool net_all_joined(net *of);
const net_member *net_member_of(const net *of, int rank);
void net_set_state(net *of, net_state state);
/* Whether the process of that rank has ended, left or aborted. */
bool net_is_lost(const net *of, int rank);
/* Whether all ranks have reached NET_FINAL or later. */
bool net_all_final(const net *of);
/* Send and receive as much as fits; return the number of bytes. */
size_t net_send(net *of, int to, const void *data, size_t bytes);
size_t net_receive(net *of, int from, void *data, size_t bytes);
void net_leave(net *of);

/* ---- nccl_work.c --------------------------------------------------------------------------- */

size_t sum_type_bytes(ncclDataType_t type);
/* to[count] = term[first] + term[first+1] + ... (or `redop` in place of +) over `world` terms round
 * the ring, rounded to the type after each operation, as a ring's hops do. `to` may be one of the
 * terms. Maximum and minimum of floats are fmax's and fmin's, as in the library's kernels
 * (reduce_kernel.h): a NaN gives way to a number. */
void sum_ring(ncclRedOp_t redop, ncclDataType_t type, int world, const void *const *term, int first,
              size_t at, size_t count, void *to);

/* ---- nccl_work.c: enqueued work -------------------------------------------------------------- */

typedef enum call_kind {
    CALL_ALL_REDUCE,
    CALL_REDUCE_SCATTER,
    CALL_REDUCE,
    CALL_ALL_GATHER,
    CALL_BROADCAST,
    CALL_SEND,
    CALL_RECEIVE,
} call_kind;

typedef struct call {
    call_kind kind;
    const unsigned char *input;
    unsigned char *output;
    uint64_t count; /* as in nccl.h */
    ncclDataType_t type;
    int root; /* or the peer */
    ncclRedOp_t redop;
} call;

/* The calls of one group, or one call, which proceed concurrently. Unchanged while a graph may
 * launch it again. */
typedef struct batch {
    struct ncclComm *comm;
    cudaStream_t stream;
    int count;
    bool captured;      /* into a graph: on all ranks or on none */
    struct batch *next; /* list of all batches of the communicator */
    call call[];
} batch;

typedef struct registration {
    void *memory;
    size_t bytes;
    struct registration *next;
} registration;

struct ncclComm {
    uint64_t magic;
    net net;
    int rank, world, device;
    bool blocking, joined, finalizing;
    uint64_t messages[2][NET_RANKS_MAX]; /* sent to, received from each rank */
    int hold;                            /* queries still to be answered with ncclInProgress */
    batch *waiting;                      /* enqueued when hold has ended */
    batch *all;
    registration *registered;
    _Atomic int error; /* ncclResult_t of the running work */
    _Atomic bool aborted;
    struct ncclComm *next; /* list of all in the process */
};

/* Enqueues the batch on its stream. */
cudaError_t work_enqueue(batch *group);
/* Keeps the text for ncclGetLastError, prints it to stderr, and returns the result. */
ncclResult_t nccl_warn(ncclResult_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
