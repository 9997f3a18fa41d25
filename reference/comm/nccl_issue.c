#include "nccl_parts.h"

static ncclDataType_t type_of(ls_dtype dtype)
{
    static const ncclDataType_t types[] = {
        [LS_F32] = ncclFloat32, [LS_F16] = ncclFloat16, [LS_BF16] = ncclBfloat16,
        [LS_F64] = ncclFloat64, [LS_I64] = ncclInt64,   [LS_I32] = ncclInt32,
        [LS_U8] = ncclUint8};
    return types[dtype];
}

/* An operation's arguments in NCCL's terms. */
typedef struct call {
    ls_comm *comm;
    const ls_comm_op *op;
    const char *input;
    char *buffer;
    size_t count, part; /* part: bytes of `count` elements */
    ncclDataType_t type;
} call;

static call call_of(ls_comm *comm, const ls_comm_op *op)
{
    return (call){.comm = comm,
                  .op = op,
                  .input = op->input != NULL ? op->input : op->buffer,
                  .buffer = op->buffer,
                  .count = (size_t)op->count,
                  .part = (size_t)op->count * ls_dtype_bytes(op->dtype),
                  .type = type_of(op->dtype)};
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

/* Gather and scatter: sends and receives in one group. The root exchanges a part with each peer. */
static ncclResult_t exchange(const call *c, bool gathers)
{
    ls_comm *comm = c->comm;
    bool root = comm->rank == c->op->root;
    ncclResult_t result = ncclSuccess;
    if (root && gathers) {
        result = move(c, c->buffer + (size_t)comm->rank * c->part, c->input);
    }
    if (result != ncclSuccess || (result = ncclGroupStart()) != ncclSuccess) {
        return result;
    }
    int first = root ? 0 : c->op->root, end = root ? comm->world : c->op->root + 1;
    for (int peer = first; peer < end && result == ncclSuccess; peer++) {
        size_t offset = root ? (size_t)peer * c->part : 0;
        if (peer == comm->rank) {
            continue;
        }
        result =
            root == gathers
                ? ncclRecv(c->buffer + offset, c->count, c->type, peer, comm->native, comm->stream)
                : ncclSend(c->input + offset, c->count, c->type, peer, comm->native, comm->stream);
    }
    ncclResult_t ended = ncclGroupEnd();
    return result != ncclSuccess && result != ncclInProgress ? result : ended;
}

ncclResult_t ls_nccl_issue(ls_comm *comm, const ls_comm_op *op)
{
    const call taken = call_of(comm, op), *c = &taken;
    switch (op->kind) {
    case LS_COMM_ALL_REDUCE:
        return ncclAllReduce(c->input, c->buffer, c->count, c->type, ncclSum, comm->native,
                             comm->stream);
    case LS_COMM_BROADCAST:
        return ncclBroadcast(c->input, c->buffer, c->count, c->type, op->root, comm->native,
                             comm->stream);
    case LS_COMM_REDUCE:
        return ncclReduce(c->input, c->buffer, c->count, c->type, ncclSum, op->root, comm->native,
                          comm->stream);
    case LS_COMM_ALL_GATHER:
        return all_gather(c);
    case LS_COMM_REDUCE_SCATTER:
        return ncclReduceScatter(
            c->input, op->input == NULL ? c->buffer + (size_t)comm->rank * c->part : c->buffer,
            c->count, c->type, ncclSum, comm->native, comm->stream);
    case LS_COMM_GATHER:
        return exchange(c, true);
    case LS_COMM_SCATTER:
        return exchange(c, false);
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

ncclResult_t ls_nccl_issue_rest(ls_comm *comm, const ls_comm_op *op)
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
