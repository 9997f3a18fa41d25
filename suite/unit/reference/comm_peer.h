/* Test helper: a rank with an engine under test, and one operation on data whose sums are exact. */
#ifndef LS_UNIT_COMM_PEER_H
#define LS_UNIT_COMM_PEER_H

#include <string.h>

#include "kernels/core/half.h"
#include "reference/comm/comm.h"
#include "suite/unit/harness/world.h"

#if defined(__SANITIZE_THREAD__)
/* Gloo guards the end of a buffer with the reference count of a std::shared_ptr (its
 * common/memory.h). The library is not instrumented, so the sanitizer does not see that. */
const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:gloo::transport::tcp::UnboundBuffer";
}
#endif

enum { GUARD = 64, POISON = 0xa5 };

typedef struct peer {
    int rank, world;
    const ls_comm_api *api;
    ls_comm *comm;
    ls_store *store;
} peer;

/* Gloo twice: large sums through memory that the ranks share, and over TCP. */
static const char *const engines[] = {"gloo", "gloo over TCP"};
enum { ENGINES = sizeof engines / sizeof *engines };

static inline void open_comm(peer *self, const char *name, bool one_host, double timeout_s,
                             ls_comm **out)
{
    ls_comm_options options = {.rank = self->rank,
                               .world = self->world,
                               .store = self->store,
                               .name = name,
                               .timeout_s = timeout_s,
                               .one_host = one_host};
    RANK_CHECK(self->api->open(&options, out) == LS_OK);
}

static inline peer open_peer(const char *engine, int rank, int world, int port, double timeout_s)
{
    peer self = {.rank = rank, .world = world};
    ls_store_options where = {.rank = rank,
                              .world = world,
                              .address = "127.0.0.1",
                              .port = port,
                              .run_id = "test_comm",
                              .timeout_s = timeout_s};
    RANK_CHECK(ls_store_open(&where, &self.store) == LS_OK);
    bool self_engine = strcmp(engine, "self") == 0, one_host = strcmp(engine, "gloo") == 0;
    RANK_CHECK(ls_comm_load(self_engine ? "self" : "gloo", &self.api) == LS_OK);
    open_comm(&self, "test", one_host, timeout_s, &self.comm);
    if (world > 1) {
        RANK_CHECK(strcmp(self.api->transport(self.comm), one_host ? "shared memory" : "TCP") == 0);
    }
    return self;
}

static inline void close_peer(peer *self)
{
    self->api->close(self->comm);
    ls_store_close(self->store, 5.0);
}

/* ---- exact data ----------------------------------------------------------------------------- */

/* Small integers: sums over five ranks are exact in every type, bf16's 8 bits included. */
static inline int term(int rank, int64_t index)
{
    return (int)((index * 7 + rank * 13) % 17);
}

static inline void put(ls_dtype dtype, char *at, int64_t index, int value)
{
    char *to = at + index * (int64_t)ls_dtype_bytes(dtype);
    float f32 = (float)value;
    double f64 = value;
    int64_t i64 = value;
    int32_t i32 = value;
    uint8_t u8 = (uint8_t)value;
    uint16_t fp16 = ls_half_f32_to_fp16(f32), bf16 = ls_half_f32_to_bf16(f32);
    const void *from[] = {[LS_F32] = &f32, [LS_F16] = &fp16, [LS_BF16] = &bf16, [LS_F64] = &f64,
                          [LS_I64] = &i64, [LS_I32] = &i32,  [LS_U8] = &u8};
    memcpy(to, from[dtype], ls_dtype_bytes(dtype));
}

static inline void expect(ls_dtype dtype, const char *at, int64_t index, int value)
{
    char wanted[8];
    size_t bytes = ls_dtype_bytes(dtype);
    put(dtype, wanted, 0, value);
    RANK_CHECK(memcmp(at + index * (int64_t)bytes, wanted, bytes) == 0);
}

typedef struct guarded {
    char *block, *data;
    size_t bytes;
} guarded;

/* `elements` of dtype, `skew` elements off a 64-byte boundary, poisoned, with guards on both sides.
 */
static inline guarded guarded_alloc(ls_dtype dtype, int64_t elements, int skew)
{
    guarded area = {.bytes = (size_t)elements * ls_dtype_bytes(dtype)};
    size_t front = GUARD + (size_t)skew * ls_dtype_bytes(dtype);
    area.block = aligned_alloc(64, (front + area.bytes + GUARD + 63) / 64 * 64);
    RANK_CHECK(area.block != NULL);
    memset(area.block, POISON, front + area.bytes + GUARD);
    area.data = area.block + front;
    return area;
}

static inline void guarded_free(guarded *area)
{
    for (int i = 1; i <= GUARD; i++) {
        RANK_CHECK((unsigned char)area->data[-i] == POISON);
        RANK_CHECK((unsigned char)area->data[(int64_t)area->bytes + i - 1] == POISON);
    }
    free(area->block);
}

/* What a rank gives to a reduction: factors are 2 and 3 (a product of five has 8 bits), maxima and
 * minima are of either sign. */
static inline int operand(ls_comm_redop redop, ls_dtype dtype, int rank, int64_t index)
{
    int value = term(rank, index);
    return redop == LS_COMM_PROD                    ? 2 + value % 2
           : redop == LS_COMM_SUM || dtype == LS_U8 ? value
                                                    : value - 8;
}

static inline int reduced(const ls_comm_op *op, int world, int64_t index)
{
    int result = operand(op->redop, op->dtype, 0, index);
    for (int rank = 1; rank < world; rank++) {
        int next = operand(op->redop, op->dtype, rank, index);
        switch (op->redop) {
        case LS_COMM_SUM:
            result += next;
            break;
        case LS_COMM_PROD:
            result *= next;
            break;
        case LS_COMM_MAX:
            result = next > result ? next : result;
            break;
        case LS_COMM_MIN:
            result = next < result ? next : result;
            break;
        }
    }
    return result;
}

/* Elements of input and buffer per kind, for `count`. */
static inline bool many_in(ls_comm_kind kind)
{
    return kind == LS_COMM_REDUCE_SCATTER || kind == LS_COMM_SCATTER || kind == LS_COMM_ALL_TO_ALL;
}

static inline bool many_out(ls_comm_kind kind)
{
    return kind == LS_COMM_ALL_GATHER || kind == LS_COMM_GATHER || kind == LS_COMM_ALL_TO_ALL;
}

static inline bool in_place_only(ls_comm_kind kind)
{
    return kind == LS_COMM_ALL_REDUCE || kind == LS_COMM_BROADCAST || kind == LS_COMM_REDUCE ||
           kind == LS_COMM_SEND || kind == LS_COMM_RECV;
}

static inline void check_result(const peer *self, const ls_comm_op *op)
{
    bool at_root = self->rank == op->root;
    for (int64_t i = 0; i < op->count; i++) {
        switch (op->kind) {
        case LS_COMM_ALL_REDUCE:
            expect(op->dtype, op->buffer, i, reduced(op, self->world, i));
            break;
        case LS_COMM_BROADCAST:
            expect(op->dtype, op->buffer, i, term(op->root, i));
            break;
        case LS_COMM_REDUCE:
            if (at_root) {
                expect(op->dtype, op->buffer, i, reduced(op, self->world, i));
            }
            break;
        case LS_COMM_REDUCE_SCATTER:
            expect(op->dtype, op->buffer, i, reduced(op, self->world, self->rank * op->count + i));
            break;
        case LS_COMM_SCATTER:
            expect(op->dtype, op->buffer, i, term(op->root, self->rank * op->count + i));
            break;
        case LS_COMM_ALL_GATHER:
        case LS_COMM_GATHER:
            for (int rank = 0; rank < self->world; rank++) {
                if (at_root || op->kind == LS_COMM_ALL_GATHER) {
                    expect(op->dtype, op->buffer, rank * op->count + i, term(rank, i));
                }
            }
            break;
        case LS_COMM_ALL_TO_ALL:
            for (int rank = 0; rank < self->world; rank++) {
                expect(op->dtype, op->buffer, rank * op->count + i,
                       term(rank, self->rank * op->count + i));
            }
            break;
        default:
            break;
        }
    }
}

static inline void one_reduction(const peer *self, ls_comm_kind kind, ls_comm_redop redop,
                                 ls_dtype dtype, int64_t count, int skew, int root)
{
    int64_t in_elements = many_in(kind) ? self->world * count : count;
    guarded buffer = guarded_alloc(dtype, many_out(kind) ? self->world * count : count, skew);
    guarded input = guarded_alloc(dtype, in_elements, 1 - skew);
    char *from = in_place_only(kind) ? buffer.data : input.data;
    for (int64_t i = 0; i < in_elements; i++) {
        put(dtype, from, i, operand(redop, dtype, self->rank, i));
    }
    ls_comm_op op = {.kind = kind,
                     .buffer = buffer.data,
                     .input = in_place_only(kind) ? NULL : input.data,
                     .count = count,
                     .dtype = dtype,
                     .root = root,
                     .redop = redop,
                     .label = "test"};
    ls_comm_handle handle;
    RANK_CHECK(self->api->begin(self->comm, &op, NULL, &handle) == LS_OK);
    RANK_CHECK(self->api->wait(self->comm, &handle, NULL) == LS_OK);
    RANK_CHECK(handle.finished_ns >= handle.started_ns && handle.started_ns >= handle.begun_ns);
    check_result(self, &op);
    guarded_free(&buffer);
    guarded_free(&input);
}

/* Sums, where something is reduced. */
static inline void one_operation(const peer *self, ls_comm_kind kind, ls_dtype dtype, int64_t count,
                                 int skew, int root)
{
    one_reduction(self, kind, LS_COMM_SUM, dtype, count, skew, root);
}

#endif
