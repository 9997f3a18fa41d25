/* The GPU engine: NCCL behind the contract of comm.h. `begin` enqueues on the communicator's own
 * stream after the caller's event; `wait` makes the caller's stream wait, never the host. So a step
 * with its reductions can be recorded into a graph. A lost peer shows as a device that never
 * finishes, so every wait of the host for the device calls ls_nccl_poll, which checks NCCL's own
 * error and the oldest operation's deadline. */

#include <stdio.h>
#include <stdlib.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "nccl_internal.h"

static ls_status take_slot(ls_comm *comm, const ls_comm_op *op, ls_nccl_slot **out)
{
    ls_nccl_slot *slot = comm->spare;
    if (slot != NULL) {
        comm->spare = slot->next;
    } else {
        slot = calloc(1, sizeof *slot);
        LS_MEMORY(slot != NULL);
        ls_status status =
            ls_nccl_check_cuda(cudaEventCreateWithFlags(&slot->event, cudaEventDisableTiming),
                               "cudaEventCreateWithFlags");
        if (status != LS_OK) {
            free(slot);
            return status;
        }
    }
    cudaEvent_t event = slot->event;
    *slot = (ls_nccl_slot){.event = event,
                           .kind = op->kind,
                           .number = comm->number++,
                           .bytes = op->count * (int64_t)ls_dtype_bytes(op->dtype),
                           .begun_ns = ls_clock_ns()};
    snprintf(slot->label, sizeof slot->label, "%s", op->label != NULL ? op->label : "");
    *out = slot;
    return LS_OK;
}

/* ---- an operation's calls of NCCL, on the communicator's stream ------------------------------ */

static ncclDataType_t type_of(ls_dtype dtype)
{
    static const ncclDataType_t types[] = {
        [LS_F32] = ncclFloat32, [LS_F16] = ncclFloat16, [LS_BF16] = ncclBfloat16,
        [LS_F64] = ncclFloat64, [LS_I64] = ncclInt64,   [LS_I32] = ncclInt32,
        [LS_U8] = ncclUint8};
    return types[dtype];
}

static ncclRedOp_t operator_of(ls_comm_redop redop)
{
    static const ncclRedOp_t operators[] = {[LS_COMM_SUM] = ncclSum,
                                            [LS_COMM_MAX] = ncclMax,
                                            [LS_COMM_MIN] = ncclMin,
                                            [LS_COMM_PROD] = ncclProd};
    return LS_PLANT(cuda_min_as_max, operators[redop],
                    redop == LS_COMM_MIN ? ncclMax : operators[redop]);
}

/* An operation's arguments in NCCL's terms. */
typedef struct call {
    ls_comm *comm;
    const ls_comm_op *op;
    const char *input;
    char *buffer;
    size_t count, part; /* part: bytes of `count` elements */
    ncclDataType_t type;
    ncclRedOp_t redop;
} call;

static call call_of(ls_comm *comm, const ls_comm_op *op)
{
    return (call){.comm = comm,
                  .op = op,
                  .input = op->input != NULL ? op->input : op->buffer,
                  .buffer = op->buffer,
                  .count = (size_t)op->count,
                  .part = (size_t)op->count * ls_dtype_bytes(op->dtype),
                  .type = type_of(op->dtype),
                  .redop = operator_of(op->redop)};
}

static ncclResult_t move(const call *c, void *to, const void *from)
{
    if (to == from || c->part == 0) {
        return ncclSuccess;
    }
    cudaError_t error =
        cudaMemcpyAsync(to, from, c->part, cudaMemcpyDeviceToDevice, c->comm->stream);
    return error == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

/* Without a separate input, ours is at the start of the buffer; NCCL's "in place" expects it at
 * this rank's part. */
static ncclResult_t all_gather(const call *c)
{
    char *mine = c->buffer + (size_t)c->comm->rank * c->part;
    const char *input = c->input;
    if (c->op->input == NULL) {
        ncclResult_t moved = move(c, mine, c->buffer);
        if (moved != ncclSuccess) {
            return moved;
        }
        input = mine;
    }
    return ncclAllGather(input, c->buffer, c->count, c->type, c->comm->native, c->comm->stream);
}

/* Gather, scatter and all_to_all: sends and receives in one group, as the user guide composes them
 * (NCCL has ncclAlltoAll from 2.28 on). The root exchanges a part with each peer, in all_to_all
 * every rank does. The own part is copied first, because nothing may follow the group on the stream
 * before it has ended. */
static ncclResult_t exchange(const call *c)
{
    ls_comm *comm = c->comm;
    bool all = c->op->kind == LS_COMM_ALL_TO_ALL, gathers = c->op->kind == LS_COMM_GATHER;
    bool root = comm->rank == c->op->root, many = all || root;
    size_t mine = (size_t)comm->rank * c->part;
    ncclResult_t result = ncclSuccess;
    if (all || (root && gathers)) {
        result = move(c, c->buffer + mine, c->input + (all ? mine : 0));
    }
    if (result != ncclSuccess || (result = ncclGroupStart()) != ncclSuccess) {
        return result;
    }
    int first = many ? 0 : c->op->root, end = many ? comm->world : c->op->root + 1;
    for (int peer = first; peer < end && result == ncclSuccess; peer++) {
        size_t offset = many ? (size_t)peer * c->part : 0;
        size_t sent = all ? LS_PLANT(cuda_all_to_all_keeps_parts, offset, mine) : offset;
        if (peer == comm->rank) {
            continue;
        }
        if (all || root != gathers) {
            result = ncclSend(c->input + sent, c->count, c->type, peer, comm->native, comm->stream);
        }
        if (result == ncclSuccess && (all || root == gathers)) {
            result =
                ncclRecv(c->buffer + offset, c->count, c->type, peer, comm->native, comm->stream);
        }
    }
    ncclResult_t ended = ncclGroupEnd();
    return result != ncclSuccess && result != ncclInProgress ? result : ended;
}

/* Called with `lock` held. */
static ncclResult_t issue(ls_comm *comm, const ls_comm_op *op)
{
    const call taken = call_of(comm, op), *c = &taken;
    switch (op->kind) {
    case LS_COMM_ALL_REDUCE:
        return ncclAllReduce(c->input, c->buffer, c->count, c->type, c->redop, comm->native,
                             comm->stream);
    case LS_COMM_BROADCAST:
        return ncclBroadcast(c->input, c->buffer, c->count, c->type, op->root, comm->native,
                             comm->stream);
    case LS_COMM_REDUCE:
        return ncclReduce(c->input, c->buffer, c->count, c->type, c->redop, op->root, comm->native,
                          comm->stream);
    case LS_COMM_ALL_GATHER:
        return all_gather(c);
    case LS_COMM_REDUCE_SCATTER:
        return ncclReduceScatter(
            c->input, op->input == NULL ? c->buffer + (size_t)comm->rank * c->part : c->buffer,
            c->count, c->type, c->redop, comm->native, comm->stream);
    case LS_COMM_ALL_TO_ALL:
    case LS_COMM_GATHER:
    case LS_COMM_SCATTER:
        return exchange(c);
    case LS_COMM_SEND:
        return ncclSend(c->buffer, c->count, c->type, op->root, comm->native, comm->stream);
    case LS_COMM_RECV:
        return ncclRecv(c->buffer, c->count, c->type, op->root, comm->native, comm->stream);
    case LS_COMM_BARRIER:
        return ncclAllReduce(comm->token, comm->token, 1, ncclInt32, ncclSum, comm->native,
                             comm->stream);
    }
    return ncclInvalidArgument;
}

/* Called once NCCL has enqueued its part: copies this rank's own piece if NCCL left it elsewhere
 * than the caller asked. */
static ncclResult_t issue_rest(ls_comm *comm, const ls_comm_op *op)
{
    const call c = call_of(comm, op);
    size_t mine = (size_t)comm->rank * c.part;
    if (op->kind == LS_COMM_SCATTER && comm->rank == op->root) {
        return move(&c, c.buffer, c.input + mine);
    }
    if (op->kind == LS_COMM_REDUCE_SCATTER && op->input == NULL) {
        return move(&c, c.buffer, c.buffer + mine);
    }
    return ncclSuccess;
}

/* ---- the order of two communicators ---------------------------------------------------------- */

/* Kernels of two communicators that run at once may wait for each other's processors for ever,
 * unless all ranks start them in one order. Therefore an operation starts after the last operation
 * of the other communicator has ended: in the program's order, which is that of all ranks.
 * NCCL_LAUNCH_ORDER_IMPLICIT=1 is meant for that, but on an H200 the driver (580) ended with a
 * segmentation fault when it uploaded a step recorded so (NCCL 2.28.3 and 2.28.9).
 *
 * An operation of a recorded step follows those of the same recording only, one that is not
 * recorded only such: what came before a step, the step's own stream has waited for. */
static ls_status follow_other(const ls_comm *comm, bool captured)
{
    const ls_comm *other = comm->other;
    if (other == NULL || other->last == NULL || other->last_captured != captured) {
        return LS_OK;
    }
    if (captured) {
        enum cudaStreamCaptureStatus others = cudaStreamCaptureStatusNone;
        LS_NCCL_CUDA(cudaStreamIsCapturing(other->stream, &others));
        if (others == cudaStreamCaptureStatusNone) { /* an earlier recording's */
            return LS_OK;
        }
    }
    LS_NCCL_CUDA(cudaStreamWaitEvent(comm->stream, other->last, 0));
    return LS_OK;
}

/* ---- operations ------------------------------------------------------------------------------ */

static ls_status enqueue(ls_comm *comm, const ls_comm_op *op, ls_nccl_slot *slot)
{
    bool aborted = false;
    pthread_mutex_lock(&comm->lock);
    aborted = comm->aborted;
    ncclResult_t result = aborted ? ncclSuccess : issue(comm, op);
    pthread_mutex_unlock(&comm->lock);
    if (!aborted && result == ncclInProgress) {
        int64_t deadline_ns = slot->begun_ns + (int64_t)(comm->timeout_s * 1e9);
        result = ls_nccl_settle(comm, deadline_ns, true, &aborted);
    }
    if (aborted) {
        return comm->failed != LS_OK ? comm->failed : LS_ERR_PEER_LOST;
    }
    if (result == ncclInProgress) {
        return ls_nccl_fail_late(comm, slot, "not enqueued");
    }
    result = result == ncclSuccess ? issue_rest(comm, op) : result;
    if (result != ncclSuccess) {
        return ls_nccl_fail(comm, slot, ls_nccl_blame(comm, result), ncclGetErrorString(result));
    }
    return LS_OK;
}

/* A device's queue holds about a thousand launches; a launch that finds it full blocks inside the
 * driver, where no deadline applies. SyncBN needs a few launches per operation, so the host stays
 * at most AHEAD_MOST operations ahead of the device. */
static ls_status throttle(ls_comm *comm)
{
    enum { AHEAD_MOST = 64 };
    int64_t begun_ns = ls_clock_ns();
    LS_TRY(ls_nccl_poll(comm));
    while (comm->running_count >= AHEAD_MOST) {
        ls_nccl_pause(begun_ns);
        LS_TRY(ls_nccl_poll(comm));
    }
    return LS_OK;
}

static ls_status begin(ls_comm *comm, const ls_comm_op *op, ls_event *after, ls_comm_handle *handle)
{
    LS_ASSERT(op->count >= 0 && op->root >= 0 && op->root < comm->world);
    LS_TRY(ls_comm_check(op, comm->world));
    LS_TRY(throttle(comm));
    if (after != NULL) {
        LS_NCCL_CUDA(cudaStreamWaitEvent(comm->stream, comm->backend_api->event_native(after), 0));
    }
    ls_nccl_slot *slot = NULL;
    LS_TRY(take_slot(comm, op, &slot));
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    ls_status status =
        ls_nccl_check_cuda(cudaStreamIsCapturing(comm->stream, &capture), "cudaStreamIsCapturing");
    slot->captured = capture != cudaStreamCaptureStatusNone;
    LS_THEN(status, follow_other(comm, slot->captured));
    LS_THEN(status, enqueue(comm, op, slot));
    LS_THEN(status,
            ls_nccl_check_cuda(cudaEventRecord(slot->event, comm->stream), "cudaEventRecord"));
    if (status != LS_OK) {
        ls_nccl_release(comm, slot);
        return status;
    }
    comm->last = slot->event;
    comm->last_captured = slot->captured;
    if (!slot->captured) {
        *comm->running_end = slot;
        comm->running_end = &slot->next;
        comm->running_count++;
    }
    *handle = (ls_comm_handle){
        .op = *op, .number = slot->number, .begun_ns = slot->begun_ns, .engine = slot};
    return LS_OK;
}

/* The host waits for an operation, subject to its deadline and to the state of the peers. */
static ls_status wait_on_host(ls_comm *comm, const ls_nccl_slot *slot)
{
    int64_t begun_ns = ls_clock_ns();
    LS_ASSERT(!slot->captured);
    for (;;) {
        LS_TRY(ls_nccl_poll(comm));
        if (slot->ended) {
            return LS_OK;
        }
        ls_nccl_pause(begun_ns);
    }
}

/* Whether the operation was captured into a recording that ended before `wait`: a recording that
 * succeeds waits for everything begun in it, so this one was discarded. */
static ls_status is_dropped(const ls_comm *comm, const ls_nccl_slot *slot, bool *dropped)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    LS_NCCL_CUDA(slot->captured ? cudaStreamIsCapturing(comm->stream, &capture) : cudaSuccess);
    *dropped = slot->captured && capture == cudaStreamCaptureStatusNone;
    return LS_OK;
}

static ls_status wait_nccl(ls_comm *comm, ls_comm_handle *handle, ls_stream *stream)
{
    ls_nccl_slot *slot = handle->engine;
    LS_ASSERT(slot != NULL);
    bool dropped = false;
    ls_status status = comm->failed;
    LS_THEN(status, is_dropped(comm, slot, &dropped));
    if (status == LS_OK && stream != NULL && !dropped) {
        cudaStream_t native = comm->backend_api->stream_native(stream);
        status =
            ls_nccl_check_cuda(cudaStreamWaitEvent(native, slot->event, 0), "cudaStreamWaitEvent");
    }
    if (status == LS_OK && !dropped && (stream == NULL || handle->op.kind == LS_COMM_BARRIER)) {
        status = wait_on_host(comm, slot);
    }
    handle->engine = NULL;
    handle->finished_ns = ls_clock_ns();
    slot->waited = true;
    if (slot->captured || slot->ended) {
        ls_nccl_release(comm, slot);
    }
    return status;
}

static ls_status poll_peers(ls_comm *comm, int64_t begun_ns)
{
    comm->waiting_ns = begun_ns;
    ls_status status = ls_nccl_poll(comm);
    status = status == LS_OK ? ls_nccl_poll_peers(comm, begun_ns) : status;
    if (status == LS_OK && ls_clock_ms_between(begun_ns, ls_clock_ns()) > comm->timeout_s * 1e3) {
        status = ls_nccl_fail_late(comm, NULL, "the device's work, or an answer, has not come");
    }
    comm->waiting_ns = 0;
    return status;
}

static ls_status begin_after(ls_comm *comm, ls_stream *stream)
{
    LS_NCCL_CUDA(cudaEventRecord(comm->order, comm->backend_api->stream_native(stream)));
    LS_NCCL_CUDA(cudaStreamWaitEvent(comm->stream, comm->order, 0));
    return LS_OK;
}

const ls_comm_api *ls_comm_entry(void);
const ls_comm_api *ls_comm_entry(void)
{
    static const ls_comm_api table = {
        .abi = LS_COMM_ABI,
        .name = "nccl",
        .describe = ls_nccl_describe,
        .open = ls_nccl_open,
        .begin = begin,
        .wait = wait_nccl,
        .poll = ls_nccl_poll,
        .abort = ls_nccl_abort,
        .close = ls_nccl_close,
        .transport = ls_nccl_network,
        .begin_after = begin_after,
        .poll_peers = poll_peers,
        .memory_alloc = ls_nccl_memory_alloc,
        .memory_free = ls_nccl_memory_free,
    };
    return &table;
}
