/* Executes an operation when its turn on the stream has come: each rank sends its part to all that
 * need it and receives theirs; sums are then computed in the order of a ring. */
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include "nccl_emulated.h"
#include "suite/emulation/runtime/emulate.h"
#include "kernels/core/half.h"

/* Both ends of a transfer must agree on this. */
typedef struct header {
    uint32_t kind, type, root, captured;
    uint64_t count, number, redop;
} header;

typedef struct transfer {
    bool sends;
    int peer, of; /* index of its call */
    unsigned char *data;
    size_t bytes, done;
    size_t header_done;
    header mine, theirs;
} transfer;

/* One launch of a batch. */
typedef struct run {
    const batch *group;
    int count;
    transfer *transfer;
    unsigned char **parts; /* [calls * world]: the terms received for a sum, NULL elsewhere */
} run;

typedef struct arguments {
    batch *group;
    run *run;
} arguments;

static const char *kind_name(uint32_t kind)
{
    static const char *const names[] = {"all_reduce", "reduce_scatter", "reduce", "all_gather",
                                        "broadcast",  "send",           "recv"};
    return kind < sizeof names / sizeof *names ? names[kind] : "?";
}

static size_t part_bytes(const call *c)
{
    return (size_t)c->count * sum_type_bytes(c->type);
}

static bool sums(const call *c)
{
    return c->kind == CALL_ALL_REDUCE || c->kind == CALL_REDUCE_SCATTER || c->kind == CALL_REDUCE;
}

/* ---- which bytes go where -------------------------------------------------------------------- */

static void add(run *r, int of, bool sends, int peer, const void *data, size_t bytes)
{
    const batch *group = r->group;
    const call *c = &group->call[of];
    transfer *t = &r->transfer[r->count++];
    bool pair = c->kind == CALL_SEND || c->kind == CALL_RECEIVE;
    uint64_t *number = &group->comm->messages[sends ? 0 : 1][peer];
    *t = (transfer){.sends = sends, .peer = peer, .of = of, .bytes = bytes};
    memcpy(&t->data, &data, sizeof t->data); /* sent data is only read */
    t->mine = (header){.kind = pair ? CALL_SEND : c->kind,
                       .type = (uint32_t)c->type,
                       .root = pair ? 0 : (uint32_t)c->root,
                       .captured = group->captured,
                       .count = c->count,
                       .number = (*number)++,
                       .redop = (uint64_t)c->redop};
}

static void take(run *r, int of, int peer, size_t bytes)
{
    int world = r->group->comm->world;
    unsigned char *part = malloc(bytes + 1);
    if (part == NULL) {
        emulate_abort("no memory for %zu bytes of a sum", bytes);
    }
    r->parts[of * world + peer] = part;
    add(r, of, false, peer, part, bytes);
}

static void plan(run *r, int of)
{
    const call *c = &r->group->call[of];
    const ncclComm_t comm = r->group->comm;
    size_t bytes = part_bytes(c);
    bool root = comm->rank == c->root;
    for (int peer = 0; peer < comm->world; peer++) {
        if (c->kind == CALL_SEND || c->kind == CALL_RECEIVE ? peer != c->root
                                                            : peer == comm->rank) {
            continue;
        }
        switch (c->kind) {
        case CALL_ALL_REDUCE:
            add(r, of, true, peer, c->input, bytes);
            take(r, of, peer, bytes);
            break;
        case CALL_REDUCE_SCATTER:
            add(r, of, true, peer, c->input + (size_t)peer * bytes, bytes);
            take(r, of, peer, bytes);
            break;
        case CALL_REDUCE:
            if (root) {
                take(r, of, peer, bytes);
            } else if (peer == c->root) {
                add(r, of, true, peer, c->input, bytes);
            }
            break;
        case CALL_ALL_GATHER:
            add(r, of, true, peer, c->input, bytes);
            add(r, of, false, peer, c->output + (size_t)peer * bytes, bytes);
            break;
        case CALL_BROADCAST:
            if (root) {
                add(r, of, true, peer, c->input, bytes);
            } else if (peer == c->root) {
                add(r, of, false, peer, c->output, bytes);
            }
            break;
        case CALL_SEND:
            add(r, of, true, peer, c->input, bytes);
            break;
        case CALL_RECEIVE:
            add(r, of, false, peer, c->output, bytes);
            break;
        }
    }
}

static run *start(const batch *group)
{
    size_t most = (size_t)group->count * (size_t)group->comm->world;
    run *r = calloc(1, sizeof *r);
    r->group = group;
    r->transfer = calloc(2 * most, sizeof *r->transfer);
    r->parts = calloc(most, sizeof *r->parts);
    for (int i = 0; i < group->count; i++) {
        plan(r, i);
    }
    return r;
}

/* ---- moving them ----------------------------------------------------------------------------- */

static void fail(ncclComm_t comm, ncclResult_t result)
{
    int none = ncclSuccess;
    (void)atomic_compare_exchange_strong(&comm->error, &none, (int)result);
}

static void compare(ncclComm_t comm, const transfer *t)
{
    if (memcmp(&t->mine, &t->theirs, sizeof t->mine) != 0) {
        fail(comm,
             nccl_warn(ncclInvalidUsage,
                       "rank %d calls %s (operation %llu with it, %llu elements of type %u, root "
                       "%u, operator %d%s), rank %d calls %s (operation %llu, %llu elements of "
                       "type %u, root %u, operator %d%s)",
                       comm->rank, kind_name(t->mine.kind), (unsigned long long)t->mine.number,
                       (unsigned long long)t->mine.count, t->mine.type, t->mine.root,
                       (int)t->mine.redop, t->mine.captured ? ", in a graph" : "", t->peer,
                       kind_name(t->theirs.kind), (unsigned long long)t->theirs.number,
                       (unsigned long long)t->theirs.count, t->theirs.type, t->theirs.root,
                       (int)t->theirs.redop, t->theirs.captured ? ", in a graph" : ""));
    }
}

/* Sends the header, then data; returns the number of bytes. */
static size_t advance(ncclComm_t comm, transfer *t)
{
    size_t moved = 0, size = sizeof t->mine;
    if (t->header_done < size) {
        moved = t->sends ? net_send(&comm->net, t->peer, (char *)&t->mine + t->header_done,
                                    size - t->header_done)
                         : net_receive(&comm->net, t->peer, (char *)&t->theirs + t->header_done,
                                       size - t->header_done);
        t->header_done += moved;
        if (t->header_done == size && !t->sends) {
            compare(comm, t);
        }
    }
    if (t->header_done == size && t->done < t->bytes && atomic_load(&comm->error) == ncclSuccess) {
        size_t now = t->sends
                         ? net_send(&comm->net, t->peer, t->data + t->done, t->bytes - t->done)
                         : net_receive(&comm->net, t->peer, t->data + t->done, t->bytes - t->done);
        t->done += now;
        moved += now;
    }
    return moved;
}

static bool is_done(const transfer *t)
{
    return t->header_done == sizeof t->mine && t->done == t->bytes;
}

/* Transfers between two ranks run one after another, all ranks concurrently. Returns whether all
 * are complete. */
static bool move_all(ncclComm_t comm, run *r)
{
    size_t moved = 0;
    int waiting_for = -1;
    bool busy[2][NET_RANKS_MAX] = {{false}};
    for (int i = 0; i < r->count; i++) {
        transfer *t = &r->transfer[i];
        bool *line = &busy[t->sends][t->peer];
        if (is_done(t) || *line) {
            continue;
        }
        moved += advance(comm, t);
        *line = !is_done(t);
        waiting_for = *line ? t->peer : waiting_for;
    }
    if (waiting_for >= 0 && moved == 0 && net_is_lost(&comm->net, waiting_for)) {
        fail(comm, nccl_warn(ncclRemoteError, "the connection to rank %d is closed", waiting_for));
    }
    return waiting_for < 0;
}

/* ---- results --------------------------------------------------------------------------------- */

static void sum(const run *r, int of)
{
    const call *c = &r->group->call[of];
    const ncclComm_t comm = r->group->comm;
    size_t bytes = part_bytes(c), world = (size_t)comm->world;
    const void *term[NET_RANKS_MAX];
    for (int rank = 0; rank < comm->world; rank++) {
        term[rank] = r->parts[of * comm->world + rank];
    }
    term[comm->rank] =
        c->kind == CALL_REDUCE_SCATTER ? c->input + (size_t)comm->rank * bytes : c->input;
    if (c->kind != CALL_ALL_REDUCE) { /* the ring ends at the rank that keeps the sum */
        sum_ring(c->redop, c->type, comm->world, term, (comm->rank + 1) % comm->world, 0,
                 (size_t)c->count, c->output);
        return;
    }
    size_t piece = ((size_t)c->count + world - 1) / world;
    for (size_t k = 0; k < world; k++) { /* piece k ends at rank k */
        size_t from = k * piece, to = from + piece < c->count ? from + piece : (size_t)c->count;
        if (from < to) {
            sum_ring(c->redop, c->type, comm->world, term, (int)((k + 1) % world), from, to - from,
                     c->output);
        }
    }
}

static void conclude(const run *r)
{
    for (int i = 0; i < r->group->count; i++) {
        const call *c = &r->group->call[i];
        const ncclComm_t comm = r->group->comm;
        size_t bytes = part_bytes(c);
        if (sums(c) && (c->kind != CALL_REDUCE || comm->rank == c->root)) {
            sum(r, i);
        } else if (c->kind == CALL_ALL_GATHER) {
            memmove(c->output + (size_t)comm->rank * bytes, c->input, bytes);
        } else if (c->kind == CALL_BROADCAST && comm->rank == c->root) {
            memmove(c->output, c->input, bytes);
        }
    }
}

static void finish(run *r)
{
    int parts = r->group->count * r->group->comm->world;
    for (int i = 0; i < parts; i++) {
        free(r->parts[i]);
    }
    free(r->parts);
    free(r->transfer);
    free(r);
}

static bool work(void *given)
{
    arguments *a = given;
    ncclComm_t comm = a->group->comm;
    if (comm->net.segment == NULL && !atomic_load(&comm->aborted)) {
        emulate_abort("an operation of a communicator that was destroyed is launched");
    }
    bool left = atomic_load(&comm->aborted); /* stops the kernel */
    if (!left && atomic_load(&comm->error) != ncclSuccess) {
        return false;
    }
    if (!left && a->run == NULL) {
        a->run = start(a->group);
    }
    if (!left && (!move_all(comm, a->run) || atomic_load(&comm->error) != ncclSuccess)) {
        return false;
    }
    if (!left) {
        conclude(a->run);
    }
    if (a->run != NULL) {
        finish(a->run);
        a->run = NULL;
    }
    return true;
}

cudaError_t work_enqueue(batch *group)
{
    arguments a = {.group = group};
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    (void)cudaStreamIsCapturing(group->stream, &capture);
    group->captured = capture != cudaStreamCaptureStatusNone;
    return emulate_enqueue(group->stream, work, &a, sizeof a);
}

size_t sum_type_bytes(ncclDataType_t type)
{
    switch (type) {
    case ncclUint8:
        return 1;
    case ncclFloat16:
    case ncclBfloat16:
        return 2;
    case ncclInt32:
    case ncclFloat32:
        return 4;
    case ncclInt64:
    case ncclFloat64:
        return 8;
    default:
        return 0; /* not used here */
    }
}

typedef union number {
    uint8_t u8;
    uint16_t u16;
    uint32_t u32; /* integers wrap */
    uint64_t u64;
    float f32;
    double f64;
} number;

static uint64_t combine_integers(ncclRedOp_t redop, uint64_t a, uint64_t b)
{
    int64_t x = (int64_t)a, y = (int64_t)b;
    switch (redop) {
    case ncclProd:
        return a * b;
    case ncclMax:
        return x > y ? a : b;
    case ncclMin:
        return x < y ? a : b;
    default:
        return a + b;
    }
}

static float combine_f32(ncclRedOp_t redop, float a, float b)
{
    return redop == ncclProd  ? a * b
           : redop == ncclMax ? fmaxf(a, b)
           : redop == ncclMin ? fminf(a, b)
                              : a + b;
}

static number combine(ncclRedOp_t redop, ncclDataType_t type, number a, number b)
{
    switch (type) {
    case ncclUint8:
        a.u8 = (uint8_t)combine_integers(redop, a.u8, b.u8);
        return a;
    case ncclInt32:
        a.u32 = (uint32_t)combine_integers(redop, (uint64_t)(int64_t)(int32_t)a.u32,
                                           (uint64_t)(int64_t)(int32_t)b.u32);
        return a;
    case ncclInt64:
        a.u64 = combine_integers(redop, a.u64, b.u64);
        return a;
    case ncclFloat16:
        a.u16 = ls_half_f32_to_fp16(
            combine_f32(redop, ls_half_fp16_to_f32(a.u16), ls_half_fp16_to_f32(b.u16)));
        return a;
    case ncclBfloat16:
        a.u16 = ls_half_f32_to_bf16(
            combine_f32(redop, ls_half_bf16_to_f32(a.u16), ls_half_bf16_to_f32(b.u16)));
        return a;
    case ncclFloat32:
        a.f32 = combine_f32(redop, a.f32, b.f32);
        return a;
    default:
        a.f64 = redop == ncclProd  ? a.f64 * b.f64
                : redop == ncclMax ? fmax(a.f64, b.f64)
                : redop == ncclMin ? fmin(a.f64, b.f64)
                                   : a.f64 + b.f64;
        return a;
    }
}

/* LS_EMULATED_SUM_WRONG=I: the element whose f32 sums have a bit flipped; -1: none. */
static int64_t wrong_element(ncclDataType_t type)
{
    const char *index = getenv("LS_EMULATED_SUM_WRONG");
    return index != NULL && type == ncclFloat32 ? strtoll(index, NULL, 10) : -1;
}

void sum_ring(ncclRedOp_t redop, ncclDataType_t type, int world, const void *const *term, int first,
              size_t at, size_t count, void *to)
{
    size_t bytes = sum_type_bytes(type);
    int64_t wrong = wrong_element(type);
    for (size_t i = at; i < at + count; i++) {
        number sum;
        memcpy(&sum, (const char *)term[first] + i * bytes, bytes);
        for (int k = 1; k < world; k++) {
            number next;
            memcpy(&next, (const char *)term[(first + k) % world] + i * bytes, bytes);
            sum = combine(redop, type, sum, next);
        }
        sum.u32 ^= (int64_t)i == wrong ? UINT32_C(1) << 21 : 0;
        memcpy((char *)to + i * bytes, &sum, bytes);
    }
}
