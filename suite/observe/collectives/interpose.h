/* The parts of ls_nccl_interpose.so, which LD_PRELOAD puts before NCCL: its calls go on to the
 * library that the caller is linked with, and what they reduce is looked at in sampled calls.
 *
 * interpose_nccl.c     the calls: one function for each that NCCL exports and that matters here
 * interpose_real.c     the real functions, found from the caller
 * interpose_comms.c    communicators: a name that all ranks derive alike, the number of a call
 * interpose_samples.c  copies of elements before and after, and their lines
 *
 * What rests on documentation and has been run on an emulation only: everything said of streams,
 * events and captures (CUDA 13 runtime API reference: cudaMemcpyAsync, cudaEventQuery,
 * cudaStreamIsCapturing, cudaThreadExchangeStreamCaptureMode) and of groups and non-blocking
 * communicators (NCCL 2.28 user guide: "Group Calls", "Fault Tolerance"). */
#ifndef LS_INTERPOSE_H
#define LS_INTERPOSE_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>

#include "journal.h"

/* ---- interpose_real.c ------------------------------------------------------------------------ */

typedef enum ls_real_name {
#define LS_INTERPOSE_NCCL(name) LS_REAL_##name,
#define LS_INTERPOSE_CUDA(name) LS_REAL_##name,
#include "interpose.def"
#undef LS_INTERPOSE_NCCL
#undef LS_INTERPOSE_CUDA
    LS_REAL_COUNT,
    LS_REAL_FIRST_OF_CUDA = LS_REAL_cudaMemcpyAsync,
} ls_real_name;

/* The functions that one library of the process is linked with. */
typedef struct ls_real {
    void *base; /* of that library */
    bool has_cuda;
    void *function[LS_REAL_COUNT]; /* NULL: it has none */
} ls_real;

/* Those of the library that the address lies in; never NULL. A process may hold several NCCLs. */
const ls_real *ls_interpose_real(const void *caller);

/* A function of the table with the type of its declaration; calls with NULL are the caller's. */
#define LS_REAL(real, name)                           \
    (*(union {                                        \
          void *const *symbol;                        \
          __typeof__(&name) const *function;          \
      }){.symbol = &(real)->function[LS_REAL_##name]} \
          .function)

/* ---- interpose_comms.c ----------------------------------------------------------------------- */

/* A communicator; copied, so that no lock is held while it is used. */
typedef struct ls_interpose_comm {
    ncclComm_t native;
    uint64_t id; /* the same on all its ranks; 0: made by a call that is not known here */
    int rank, world, device;
} ls_interpose_comm;

/* A collective of a communicator, before it is made. */
typedef struct ls_interpose_call {
    const char *op; /* "all_reduce" */
    const void *send;
    void *receive;
    uint64_t count; /* as in nccl.h */
    ncclDataType_t type;
    int redop, root; /* -1: has none */
    cudaStream_t stream;
    ls_interpose_comm comm;
    uint64_t number; /* of the communicator's calls, from 0, alike on all ranks */
    uint64_t chain;  /* hash of all its calls up to this */
    bool chosen;     /* to be sampled: a function of the numbers alone */
} ls_interpose_call;

/* Makes one known, on the current device; id is the hash of what all ranks were given. False where
 * the process is not observed. */
bool ls_interpose_add(const ls_real *real, ncclComm_t native, uint64_t id, int rank, int world);
void ls_interpose_remove(ncclComm_t native);
/* One that ncclCommSplit or ncclCommShrink will store in *where: by the end of the call, of the
 * group, or of the parent's progress. The parent's rank and world are no use for it. */
void ls_interpose_expect(ncclComm_t parent, ncclComm_t *where, uint64_t salt);
/* What was expected from `parent` (NULL: from any, by this thread) is there, or will not come. */
void ls_interpose_arrived(const ls_real *real, ncclComm_t parent, bool failed);
/* Numbers the call of that communicator; false where the process is not observed. */
bool ls_interpose_count(ncclComm_t native, ls_interpose_call *call);
uint64_t ls_interpose_mix(uint64_t number);
uint64_t ls_interpose_hash(uint64_t hash, const void *data, size_t bytes);
ls_journal *ls_interpose_journal(void);

/* ---- interpose_samples.c --------------------------------------------------------------------- */

typedef struct ls_interpose_slot ls_interpose_slot;

const char *ls_interpose_type_name(ncclDataType_t type);
const char *ls_interpose_redop_name(int redop);
/* Pinned memory and events for the current device; when a communicator is made, because CUDA may
 * wait for the device here, and a kernel that waits for another rank would hold it. */
void ls_interpose_prepare(const ls_real *real);
bool ls_interpose_is_capturing(const ls_real *real, cudaStream_t stream);
/* Enqueues copies of what the call sends. NULL: it is not sampled. */
ls_interpose_slot *ls_interpose_before(const ls_real *real, const ls_interpose_call *call);
/* After the call: copies of what it receives, at once or, in a group, by ls_interpose_group_over.
 */
void ls_interpose_after(const ls_real *real, ls_interpose_slot *slot, ncclResult_t result,
                        bool in_group);
/* The outermost group of this thread has ended; with an error, nothing was launched for sure. */
void ls_interpose_group_over(const ls_real *real, ncclResult_t result);
/* A non-blocking communicator has finished what was in progress when ls_interpose_deferred gave
 * `until`: another thread may have begun more since NCCL was asked. */
uint64_t ls_interpose_deferred(void);
void ls_interpose_progressed(const ls_real *real, ncclComm_t native, uint64_t until);
/* Forgets what waits for that communicator. */
void ls_interpose_drop(ncclComm_t native);
/* Writes the samples that have been copied; queries events, waits for nothing. */
void ls_interpose_harvest(const ls_real *real);

#endif
