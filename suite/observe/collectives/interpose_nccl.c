/* NCCL's collectives, groups and communicators, as a library before NCCL exports them: each goes on
 * to the real function with the same arguments and returns its result. */
#include "interpose.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const uint64_t NAME_SEED = UINT64_C(14695981039346656037);

/* NCCL calls some of its own functions by their public names: those are not calls of the user. */
static _Thread_local struct {
    int depth; /* of groups */
    bool inside;
} of_thread;

/* A program that has linked a function has it somewhere; where that is not found, the call fails as
 * NCCL's own would. */
static ncclResult_t missing(const char *name)
{
    fprintf(stderr, "lockstep observe: the NCCL that this process uses has no %s\n", name);
    return ncclInvalidUsage;
}

/* The caller's NCCL, which has that function. */
#define FIND(real, name)                                                  \
    const ls_real *real = ls_interpose_real(__builtin_return_address(0)); \
    if (LS_REAL(real, name) == NULL) {                                    \
        return missing(#name);                                            \
    }

/* ---- collectives ----------------------------------------------------------------------------- */

static void write_call(const ls_real *real, const ls_interpose_call *call)
{
    ls_journal_add(ls_interpose_journal(), false,
                   "{\"event\":\"call\",\"comm\":\"%016" PRIx64
                   "\",\"comm_rank\":%d,\"number\":%" PRIu64 ",\"op\":\"%s\",\"elements\":%" PRIu64
                   ",\"type\":\"%s\",\"reduce\":\"%s\",\"root\":%d,\"chain\":\"%016" PRIx64
                   "\",\"captured\":%s,\"at_ns\":%" PRId64 "}",
                   call->comm.id, call->comm.rank, call->number, call->op, call->count,
                   ls_interpose_type_name(call->type), ls_interpose_redop_name(call->redop),
                   call->root, call->chain,
                   real->has_cuda && ls_interpose_is_capturing(real, call->stream) ? "true"
                                                                                   : "false",
                   ls_journal_now_ns());
    ls_journal_flush(ls_interpose_journal()); /* a call that hangs is the last one in the file */
}

/* Before the real call; NULL: nothing is to be done after it. NCCL drops a collective without
 * elements before it is one, whatever the other ranks do. */
static ls_interpose_slot *before(const ls_real *real, ls_interpose_call call, ncclComm_t native)
{
    if (call.count == 0 || of_thread.inside || !ls_interpose_count(native, &call) ||
        call.comm.id == 0) {
        return NULL;
    }
    write_call(real, &call);
    return ls_interpose_before(real, &call);
}

static ncclResult_t after(const ls_real *real, ls_interpose_slot *slot, ncclResult_t result)
{
    ls_interpose_after(real, slot, result, of_thread.depth > 0);
    return result;
}

/* The real call with `inside` set; a macro, because each function has its own arguments. */
#define COLLECTIVE(name, call, native, ...)                                      \
    do {                                                                         \
        FIND(real, name)                                                         \
        ls_interpose_slot *slot = before(real, (ls_interpose_call)call, native); \
        bool was_inside = of_thread.inside;                                      \
        of_thread.inside = true;                                                 \
        ncclResult_t result = LS_REAL(real, name)(__VA_ARGS__);                  \
        of_thread.inside = was_inside;                                           \
        return after(real, slot, result);                                        \
    } while (0)
#define CALL(...)   \
    {               \
        __VA_ARGS__ \
    }

LS_JOURNAL_EXPORT ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count,
                                             ncclDataType_t type, ncclRedOp_t redop,
                                             ncclComm_t comm, cudaStream_t stream)
{
    COLLECTIVE(ncclAllReduce,
               CALL("all_reduce", send, receive, count, type, (int)redop, -1, stream), comm, send,
               receive, count, type, redop, comm, stream);
}

LS_JOURNAL_EXPORT ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count,
                                                 ncclDataType_t type, ncclRedOp_t redop,
                                                 ncclComm_t comm, cudaStream_t stream)
{
    COLLECTIVE(ncclReduceScatter,
               CALL("reduce_scatter", send, receive, count, type, (int)redop, -1, stream), comm,
               send, receive, count, type, redop, comm, stream);
}

LS_JOURNAL_EXPORT ncclResult_t ncclAllGather(const void *send, void *receive, size_t count,
                                             ncclDataType_t type, ncclComm_t comm,
                                             cudaStream_t stream)
{
    COLLECTIVE(ncclAllGather, CALL("all_gather", send, receive, count, type, -1, -1, stream), comm,
               send, receive, count, type, comm, stream);
}

LS_JOURNAL_EXPORT ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count,
                                             ncclDataType_t type, int root, ncclComm_t comm,
                                             cudaStream_t stream)
{
    COLLECTIVE(ncclBroadcast, CALL("broadcast", send, receive, count, type, -1, root, stream), comm,
               send, receive, count, type, root, comm, stream);
}

LS_JOURNAL_EXPORT ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type, int root,
                                         ncclComm_t comm, cudaStream_t stream)
{
    COLLECTIVE(ncclBcast, CALL("broadcast", buffer, buffer, count, type, -1, root, stream), comm,
               buffer, count, type, root, comm, stream);
}

LS_JOURNAL_EXPORT ncclResult_t ncclReduce(const void *send, void *receive, size_t count,
                                          ncclDataType_t type, ncclRedOp_t redop, int root,
                                          ncclComm_t comm, cudaStream_t stream)
{
    COLLECTIVE(ncclReduce, CALL("reduce", send, receive, count, type, (int)redop, root, stream),
               comm, send, receive, count, type, redop, root, comm, stream);
}

/* ---- groups ---------------------------------------------------------------------------------- */

LS_JOURNAL_EXPORT ncclResult_t ncclGroupStart(void)
{
    FIND(real, ncclGroupStart);
    of_thread.depth += !of_thread.inside;
    return LS_REAL(real, ncclGroupStart)();
}

/* The end of the outermost group: its calls are on their streams, will be (ncclInProgress), or are
 * not. */
static void close_group(const ls_real *real, ncclResult_t result)
{
    if (of_thread.inside || of_thread.depth == 0 || --of_thread.depth > 0) {
        return;
    }
    ls_interpose_group_over(real, result);
    if (result != ncclInProgress) {
        ls_interpose_arrived(real, NULL, result != ncclSuccess);
    }
}

LS_JOURNAL_EXPORT ncclResult_t ncclGroupEnd(void)
{
    FIND(real, ncclGroupEnd);
    ncclResult_t result = LS_REAL(real, ncclGroupEnd)();
    close_group(real, result);
    return result;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0)
/* Ends the group without launching it. */
LS_JOURNAL_EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
    FIND(real, ncclGroupSimulateEnd);
    ncclResult_t result = LS_REAL(real, ncclGroupSimulateEnd)(info);
    close_group(real, ncclInvalidUsage);
    return result;
}
#endif

/* ---- communicators --------------------------------------------------------------------------- */

/* NCCL stores a new communicator before ncclCommInitRank returns, also in a group and if it is
 * still in progress (init.cc, ncclCommInitRankDev). */
static ncclResult_t made(const ls_real *real, ncclResult_t result, const ncclComm_t *out,
                         const void *ids, size_t bytes, int rank, int world)
{
    if ((result == ncclSuccess || result == ncclInProgress) && !of_thread.inside &&
        ls_interpose_add(real, *out, ls_interpose_hash(NAME_SEED, ids, bytes), rank, world)) {
        ls_interpose_prepare(real);
    }
    return result;
}

LS_JOURNAL_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *out, int world, ncclUniqueId id,
                                                int rank)
{
    FIND(real, ncclCommInitRank);
    ncclResult_t result = LS_REAL(real, ncclCommInitRank)(out, world, id, rank);
    return made(real, result, out, &id, sizeof id, rank, world);
}

LS_JOURNAL_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int world, ncclUniqueId id,
                                                      int rank, ncclConfig_t *config)
{
    FIND(real, ncclCommInitRankConfig);
    ncclResult_t result = LS_REAL(real, ncclCommInitRankConfig)(out, world, id, rank, config);
    return made(real, result, out, &id, sizeof id, rank, world);
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 23, 0)
LS_JOURNAL_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t *out, int world, int rank,
                                                        int count, ncclUniqueId *ids,
                                                        ncclConfig_t *config)
{
    FIND(real, ncclCommInitRankScalable);
    ncclResult_t result =
        LS_REAL(real, ncclCommInitRankScalable)(out, world, rank, count, ids, config);
    return made(real, result, out, ids, (size_t)(count > 0 ? count : 0) * sizeof *ids, rank, world);
}
#endif

/* All ranks are of this process. */
LS_JOURNAL_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t *out, int count, const int *devices)
{
    FIND(real, ncclCommInitAll);
    bool was_inside = of_thread.inside;
    of_thread.inside = true;
    ncclResult_t result = LS_REAL(real, ncclCommInitAll)(out, count, devices);
    of_thread.inside = was_inside;
    int device = 0;
    if (result != ncclSuccess || !real->has_cuda ||
        LS_REAL(real, cudaGetDevice)(&device) != cudaSuccess) {
        return result;
    }
    uint64_t name[2] = {(uint64_t)ls_journal_now_ns(), (uint64_t)(uintptr_t)out[0]};
    for (int i = 0; i < count; i++) {
        (void)LS_REAL(real, cudaSetDevice)(devices != NULL ? devices[i] : i);
        (void)made(real, result, &out[i], name, sizeof name, i, count);
    }
    (void)LS_REAL(real, cudaSetDevice)(device);
    return result;
}

/* A child is stored when it is complete, which in a group or without blocking is later. */
static void born(const ls_real *real, ncclResult_t result, ncclComm_t parent, ncclComm_t *out,
                 uint64_t salt)
{
    ls_interpose_expect(parent, out, salt);
    if (result != ncclInProgress && (of_thread.depth == 0 || result != ncclSuccess)) {
        ls_interpose_arrived(real, parent, result != ncclSuccess);
    }
}

LS_JOURNAL_EXPORT ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
                                             ncclConfig_t *config)
{
    FIND(real, ncclCommSplit);
    ncclResult_t result = LS_REAL(real, ncclCommSplit)(comm, color, key, out, config);
    born(real, result, comm, out, (uint64_t)(int64_t)color);
    return result;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
LS_JOURNAL_EXPORT ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int count,
                                              ncclComm_t *out, ncclConfig_t *config, int flags)
{
    FIND(real, ncclCommShrink);
    ncclResult_t result = LS_REAL(real, ncclCommShrink)(comm, excluded, count, out, config, flags);
    born(real, result, comm, out,
         ls_interpose_hash(NAME_SEED, excluded, (size_t)(count > 0 ? count : 0) * sizeof(int)));
    return result;
}
#endif

LS_JOURNAL_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    FIND(real, ncclCommDestroy);
    ls_interpose_harvest(real);
    ls_interpose_drop(comm);
    ls_interpose_remove(comm);
    return LS_REAL(real, ncclCommDestroy)(comm);
}

LS_JOURNAL_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    FIND(real, ncclCommAbort);
    ls_interpose_drop(comm);
    ls_interpose_remove(comm);
    return LS_REAL(real, ncclCommAbort)(comm);
}

LS_JOURNAL_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    FIND(real, ncclCommGetAsyncError);
    uint64_t until = ls_interpose_deferred();
    ncclResult_t result = LS_REAL(real, ncclCommGetAsyncError)(comm, error);
    if (result == ncclSuccess && *error == ncclSuccess) {
        ls_interpose_progressed(real, comm, until);
        ls_interpose_arrived(real, comm, false);
        ls_interpose_harvest(real);
    }
    return result;
}
