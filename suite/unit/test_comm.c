/* The engines: every operation, type and size over 1 to 5 forked ranks on data whose sums are
 * exact; rounding of 16-bit sums against the scalar model; what survivors see when a rank dies. */
#include <check.h>
#include <math.h>
#include <string.h>
#include <poll.h>
#include <pthread.h>

#include "../../kernels/core/digest.h"
#include "../../kernels/core/half.h"
#include "../../kernels/core/rng.h"
#include "../../reference/comm/comm.h"
#include "world.h"

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

static void open_comm(peer *self, const char *name, bool one_host, double timeout_s, ls_comm **out)
{
    ls_comm_options options = {.rank = self->rank,
                               .world = self->world,
                               .store = self->store,
                               .name = name,
                               .timeout_s = timeout_s,
                               .one_host = one_host};
    RANK_CHECK(self->api->open(&options, out) == LS_OK);
}

static peer open_peer(const char *engine, int rank, int world, int port, double timeout_s)
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

static void close_peer(peer *self)
{
    self->api->close(self->comm);
    ls_store_close(self->store, 5.0);
}

/* ---- exact data ----------------------------------------------------------------------------- */

/* Small integers: sums over five ranks are exact in every type, bf16's 8 bits included. */
static int term(int rank, int64_t index)
{
    return (int)((index * 7 + rank * 13) % 17);
}

static void put(ls_dtype dtype, char *at, int64_t index, int value)
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

static void expect(ls_dtype dtype, const char *at, int64_t index, int value)
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
static guarded guarded_alloc(ls_dtype dtype, int64_t elements, int skew)
{
    guarded area = {.bytes = (size_t)elements * ls_dtype_bytes(dtype)};
    size_t front = GUARD + (size_t)skew * ls_dtype_bytes(dtype);
    area.block = aligned_alloc(64, (front + area.bytes + GUARD + 63) / 64 * 64);
    RANK_CHECK(area.block != NULL);
    memset(area.block, POISON, front + area.bytes + GUARD);
    area.data = area.block + front;
    return area;
}

static void guarded_free(guarded *area)
{
    for (int i = 1; i <= GUARD; i++) {
        RANK_CHECK((unsigned char)area->data[-i] == POISON);
        RANK_CHECK((unsigned char)area->data[(int64_t)area->bytes + i - 1] == POISON);
    }
    free(area->block);
}

static int sum_of(int world, int64_t index)
{
    int sum = 0;
    for (int rank = 0; rank < world; rank++) {
        sum += term(rank, index);
    }
    return sum;
}

/* Elements of input and buffer per kind, for `count`. */
static bool many_in(ls_comm_kind kind)
{
    return kind == LS_COMM_REDUCE_SCATTER || kind == LS_COMM_SCATTER;
}

static bool many_out(ls_comm_kind kind)
{
    return kind == LS_COMM_ALL_GATHER || kind == LS_COMM_GATHER;
}

static bool in_place_only(ls_comm_kind kind)
{
    return kind == LS_COMM_ALL_REDUCE || kind == LS_COMM_BROADCAST || kind == LS_COMM_REDUCE ||
           kind == LS_COMM_SEND || kind == LS_COMM_RECV;
}

static void check_result(const peer *self, const ls_comm_op *op)
{
    bool at_root = self->rank == op->root;
    for (int64_t i = 0; i < op->count; i++) {
        switch (op->kind) {
        case LS_COMM_ALL_REDUCE:
            expect(op->dtype, op->buffer, i, sum_of(self->world, i));
            break;
        case LS_COMM_BROADCAST:
            expect(op->dtype, op->buffer, i, term(op->root, i));
            break;
        case LS_COMM_REDUCE:
            if (at_root) {
                expect(op->dtype, op->buffer, i, sum_of(self->world, i));
            }
            break;
        case LS_COMM_REDUCE_SCATTER:
            expect(op->dtype, op->buffer, i, sum_of(self->world, self->rank * op->count + i));
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
        default:
            break;
        }
    }
}

static void one_operation(const peer *self, ls_comm_kind kind, ls_dtype dtype, int64_t count,
                          int skew, int root)
{
    int64_t in_elements = many_in(kind) ? self->world * count : count;
    guarded buffer = guarded_alloc(dtype, many_out(kind) ? self->world * count : count, skew);
    guarded input = guarded_alloc(dtype, in_elements, 1 - skew);
    char *from = in_place_only(kind) ? buffer.data : input.data;
    for (int64_t i = 0; i < in_elements; i++) {
        put(dtype, from, i, term(self->rank, i));
    }
    ls_comm_op op = {.kind = kind,
                     .buffer = buffer.data,
                     .input = in_place_only(kind) ? NULL : input.data,
                     .count = count,
                     .dtype = dtype,
                     .root = root,
                     .label = "test"};
    ls_comm_handle handle;
    RANK_CHECK(self->api->begin(self->comm, &op, NULL, &handle) == LS_OK);
    RANK_CHECK(self->api->wait(self->comm, &handle, NULL) == LS_OK);
    RANK_CHECK(handle.finished_ns >= handle.started_ns && handle.started_ns >= handle.begun_ns);
    check_result(self, &op);
    guarded_free(&buffer);
    guarded_free(&input);
}

static int all_operations(int rank, int world, int port, void *engine)
{
    static const ls_comm_kind sums[] = {LS_COMM_ALL_REDUCE, LS_COMM_REDUCE, LS_COMM_REDUCE_SCATTER};
    static const ls_comm_kind moves[] = {LS_COMM_BROADCAST, LS_COMM_ALL_GATHER, LS_COMM_GATHER,
                                         LS_COMM_SCATTER};
    static const int64_t counts[] = {0, 1, 3, 127, 1025, 20011};
    peer self = open_peer(engine, rank, world, port, 20.0);
    int round = 0;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (size_t k = 0; k < sizeof sums / sizeof *sums; k++) {
            for (int dtype = LS_F32; dtype <= LS_U8; dtype++, round++) {
                one_operation(&self, sums[k], (ls_dtype)dtype, counts[c], round % 2, round % world);
            }
        }
        for (size_t k = 0; k < sizeof moves / sizeof *moves; k++, round++) {
            one_operation(&self, moves[k], LS_F16, counts[c], round % 2, round % world);
            one_operation(&self, moves[k], LS_F64, counts[c], round % 2, (round + 1) % world);
        }
        one_operation(&self, LS_COMM_BARRIER, LS_U8, 0, 0, 0);
    }
    /* several segments per chunk, uneven */
    one_operation(&self, LS_COMM_ALL_REDUCE, LS_F32, 1000003, 1, 0);
    one_operation(&self, LS_COMM_REDUCE, LS_BF16, 500009, 1, world - 1);
    RANK_CHECK(self.api->poll(self.comm) == LS_OK);
    close_peer(&self);
    return 0;
}

START_TEST(every_operation)
{
    static const int worlds[] = {1, 2, 3, 5};
    int code[WORLD_MAX];
    ck_assert_int_eq(
        world_run(worlds[_i / ENGINES], all_operations, (void *)engines[_i % ENGINES], code), 0);
}
END_TEST

START_TEST(self_engine)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(1, all_operations, "self", code), 0);
    const ls_comm_api *api = NULL;
    ck_assert_int_eq(ls_comm_load("self", &api), LS_OK);
    ls_comm *comm = NULL;
    ls_comm_options two = {.rank = 0, .world = 2, .name = "test", .timeout_s = 1};
    ck_assert_int_eq(api->open(&two, &comm), LS_ERR_USAGE);
    ck_assert_int_eq(ls_comm_load("mpi", &api), LS_ERR_USAGE);
}
END_TEST

/* ---- rounding ------------------------------------------------------------------------------- */

static uint16_t pattern(int rank, int64_t index)
{
    return (uint16_t)ls_rng_philox(5, (uint64_t)rank, (uint64_t)index).word[0];
}

static uint16_t model_sum(ls_dtype dtype, uint16_t a, uint16_t b)
{
    return dtype == LS_F16 ? ls_half_f32_to_fp16(ls_half_fp16_to_f32(a) + ls_half_fp16_to_f32(b))
                           : ls_half_f32_to_bf16(ls_half_bf16_to_f32(a) + ls_half_bf16_to_f32(b));
}

static bool is_nan(ls_dtype dtype, uint16_t bits)
{
    return isnan(dtype == LS_F16 ? ls_half_fp16_to_f32(bits) : ls_half_bf16_to_f32(bits));
}

/* All 16-bit patterns meet others at random: ties, subnormals, overflow, inf and NaN included. */
static int rounding(int rank, int world, int port, void *engine)
{
    peer self = open_peer(engine, rank, world, port, 20.0);
    static const int64_t counts[] = {4001, 60013}; /* exchanged directly; around the ring */
    for (int dtype = LS_F16; dtype <= LS_BF16; dtype++) {
        for (int c = 0; c < 2; c++) {
            int64_t count = counts[c];
            uint16_t *data = malloc((size_t)count * sizeof *data);
            RANK_CHECK(data != NULL);
            for (int64_t i = 0; i < count; i++) {
                data[i] = pattern(rank, i);
            }
            ls_comm_op op = {.kind = LS_COMM_ALL_REDUCE,
                             .buffer = data,
                             .count = count,
                             .dtype = (ls_dtype)dtype,
                             .label = "rounding"};
            RANK_CHECK(ls_comm_run(self.api, self.comm, &op, NULL) == LS_OK);
            for (int64_t i = 0; i < count && world == 2; i++) {
                uint16_t wanted = model_sum((ls_dtype)dtype, pattern(0, i), pattern(1, i));
                RANK_CHECK(data[i] == wanted ||
                           (is_nan((ls_dtype)dtype, wanted) && is_nan((ls_dtype)dtype, data[i])));
            }
            uint64_t digest = ls_digest_update(LS_DIGEST_START, data, (size_t)count * 2);
            uint64_t all[WORLD_MAX];
            ls_comm_op gather = {.kind = LS_COMM_ALL_GATHER,
                                 .buffer = all,
                                 .input = &digest,
                                 .count = 1,
                                 .dtype = LS_I64,
                                 .label = "digests"};
            RANK_CHECK(ls_comm_run(self.api, self.comm, &gather, NULL) == LS_OK);
            for (int other = 0; other < world; other++) {
                RANK_CHECK(all[other] == digest);
            }
            free(data);
        }
    }
    close_peer(&self);
    return 0;
}

START_TEST(half_sums)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(_i / ENGINES, rounding, (void *)engines[_i % ENGINES], code), 0);
}
END_TEST

/* The factor of an average, taken on the way, is the same bits as multiplying the sum afterwards.
 */
static int factor_on_the_way(int rank, int world, int port, void *engine)
{
    peer self = open_peer(engine, rank, world, port, 20.0);
    static const int64_t counts[] = {1, 1009, 300007}; /* exchanged directly; around the ring */
    const float factor = 1.0f / (float)world;
    RANK_CHECK(self.api->scales != NULL && self.api->scales(LS_F32));
    for (int c = 0; c < 3; c++) {
        int64_t count = counts[c];
        float *plain = malloc((size_t)count * sizeof *plain);
        float *scaled = malloc((size_t)count * sizeof *scaled);
        RANK_CHECK(plain != NULL && scaled != NULL);
        for (int64_t i = 0; i < count; i++) {
            plain[i] = scaled[i] = (float)(i % 1013 + 1) / (float)(3 * rank + 7);
        }
        ls_comm_op op = {.kind = LS_COMM_ALL_REDUCE,
                         .buffer = plain,
                         .count = count,
                         .dtype = LS_F32,
                         .label = "plain"};
        RANK_CHECK(ls_comm_run(self.api, self.comm, &op, NULL) == LS_OK);
        op.buffer = scaled;
        op.factor = factor;
        op.label = "scaled";
        RANK_CHECK(ls_comm_run(self.api, self.comm, &op, NULL) == LS_OK);
        for (int64_t i = 0; i < count; i++) {
            RANK_CHECK(scaled[i] == plain[i] * factor);
        }
        free(plain);
        free(scaled);
    }
    close_peer(&self);
    return 0;
}

START_TEST(factors)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(
        world_run(_i / ENGINES, factor_on_the_way, (void *)engines[_i % ENGINES], code), 0);
}
END_TEST

/* ---- the two transports ---------------------------------------------------------------------- */

/* Any bits: sums round, so another order of additions would show. No NaN: which of two comes out is
 * the processor's choice. */
static void put_bits(ls_dtype dtype, char *at, int rank, int64_t index)
{
    ls_rng_block words = ls_rng_philox(9, (uint64_t)rank, (uint64_t)index);
    float value = ldexpf((float)(int32_t)words.word[0], (int)(words.word[1] % 24) - 40);
    uint16_t fp16 = ls_half_f32_to_fp16(value), bf16 = ls_half_f32_to_bf16(value);
    if (dtype == LS_F32) {
        memcpy(at + index * 4, &value, sizeof value);
    } else {
        memcpy(at + index * 2, dtype == LS_F16 ? &fp16 : &bf16, sizeof fp16);
    }
}

static void same_bits(const peer *self, ls_comm *const comm[2], ls_dtype dtype, int64_t count)
{
    size_t bytes = (size_t)count * ls_dtype_bytes(dtype);
    char *sum[2] = {malloc(bytes), malloc(bytes)};
    for (int k = 0; k < 2; k++) {
        RANK_CHECK(sum[k] != NULL);
        for (int64_t i = 0; i < count; i++) {
            put_bits(dtype, sum[k], self->rank, i);
        }
        ls_comm_op op = {.kind = LS_COMM_ALL_REDUCE,
                         .buffer = sum[k],
                         .count = count,
                         .dtype = dtype,
                         .factor = dtype == LS_F32 ? 1.0f / 3.0f : 1.0f,
                         .label = "both ways"};
        RANK_CHECK(ls_comm_run(self->api, comm[k], &op, NULL) == LS_OK);
    }
    RANK_CHECK(memcmp(sum[0], sum[1], bytes) == 0);
    free(sum[0]);
    free(sum[1]);
}

/* From just above what is exchanged directly up to more pieces than a pipe holds, in chunks of
 * uneven length. */
static int both_ways(int rank, int world, int port, void *engine)
{
    static const int64_t counts[] = {32771, 60013, 2600011};
    peer self = open_peer(engine, rank, world, port, 20.0);
    ls_comm *other = NULL;
    open_comm(&self, "TCP", false, 20.0, &other);
    ls_comm *const comm[2] = {self.comm, other};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (int dtype = LS_F32; dtype <= LS_BF16; dtype++) {
            same_bits(&self, comm, (ls_dtype)dtype, counts[c]);
        }
    }
    self.api->close(other);
    close_peer(&self);
    return 0;
}

START_TEST(transports_agree)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(_i, both_ways, (void *)engines[0], code), 0);
}
END_TEST

/* One rank that may not is enough. */
static int forbidden(int rank, int world, int port, void *engine)
{
    if (rank == 1) {
        setenv("LS_SHM", "0", 1);
    }
    peer self = open_peer(engine, rank, world, port, 20.0);
    ls_comm *comm = NULL;
    open_comm(&self, "asked", true, 20.0, &comm);
    RANK_CHECK(strcmp(self.api->transport(comm), "TCP") == 0);
    self.api->close(comm);
    setenv("LS_SHM", "yes", 1);
    ls_comm_options wrong = {.rank = rank,
                             .world = world,
                             .store = self.store,
                             .name = "wrong",
                             .timeout_s = 20.0,
                             .one_host = true};
    RANK_CHECK(self.api->open(&wrong, &comm) == LS_ERR_USAGE);
    close_peer(&self);
    return 0;
}

START_TEST(shared_memory_forbidden)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(3, forbidden, (void *)engines[1], code), 0);
}
END_TEST

/* ---- order, pairs, deaths ------------------------------------------------------------------- */

/* Many operations under way at once keep their order; sends pair with receives while a third rank
 * works on. */
static int overlapping(int rank, int world, int port, void *engine)
{
    enum { MANY = 40 };
    peer self = open_peer(engine, rank, world, port, 20.0);
    static float data[MANY][777];
    ls_comm_handle handle[MANY];
    for (int k = 0; k < MANY; k++) {
        for (int i = 0; i < 777; i++) {
            data[k][i] = (float)(rank + k + i);
        }
        ls_comm_op op = {.kind = LS_COMM_ALL_REDUCE,
                         .buffer = data[k],
                         .count = 777,
                         .dtype = LS_F32,
                         .label = "many"};
        RANK_CHECK(self.api->begin(self.comm, &op, NULL, &handle[k]) == LS_OK);
        RANK_CHECK(handle[k].number == (uint64_t)k);
    }
    for (int k = MANY - 1; k >= 0; k--) {
        RANK_CHECK(self.api->wait(self.comm, &handle[k], NULL) == LS_OK);
        RANK_CHECK(k == MANY - 1 || handle[k].finished_ns <= handle[k + 1].started_ns);
        for (int i = 0; i < 777; i++) {
            RANK_CHECK(data[k][i] == (float)(world * (k + i) + world * (world - 1) / 2));
        }
    }
    int32_t token[3] = {rank, rank, rank};
    ls_comm_op pass = {.kind = rank == 0 ? LS_COMM_SEND : LS_COMM_RECV,
                       .buffer = token,
                       .count = 3,
                       .dtype = LS_I32,
                       .root = rank == 0 ? 1 : 0,
                       .label = "pass"};
    if (rank < 2) { /* ranks 0 and 1 only: later operations of all three still meet */
        RANK_CHECK(ls_comm_run(self.api, self.comm, &pass, NULL) == LS_OK);
        RANK_CHECK(token[0] == 0 && token[2] == 0);
    }
    one_operation(&self, LS_COMM_ALL_REDUCE, LS_F32, 99, 0, 0);
    close_peer(&self);
    return 0;
}

START_TEST(order_is_kept)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(3, overlapping, "gloo", code), 0);
}
END_TEST

static int dying(int rank, int world, int port, void *engine)
{
    peer self = open_peer(engine, rank, world, port, 20.0);
    one_operation(&self, LS_COMM_ALL_REDUCE, LS_F32, 100, 0, 0);
    if (rank == 1) {
        raise(SIGKILL);
    }
    int64_t began_ns = ls_clock_ns();
    static float data[500000];
    ls_comm_op op = {.kind = LS_COMM_ALL_REDUCE,
                     .buffer = data,
                     .count = 500000,
                     .dtype = LS_F32,
                     .label = "after a death"};
    ls_status status = LS_OK;
    for (int i = 0; i < 3 && status == LS_OK; i++) {
        status = ls_comm_run(self.api, self.comm, &op, NULL);
    }
    RANK_CHECK(status == LS_ERR_PEER_LOST);
    RANK_CHECK(self.api->poll(self.comm) == LS_ERR_PEER_LOST);
    RANK_CHECK(ls_comm_run(self.api, self.comm, &op, NULL) == LS_ERR_PEER_LOST);
    RANK_CHECK(ls_clock_ms_between(began_ns, ls_clock_ns()) < 10e3); /* half of the deadline */
    self.api->close(self.comm);
    return status;
}

START_TEST(killed_rank)
{
    int code[WORLD_MAX];
    int world = _i / ENGINES;
    world_run(world, dying, (void *)engines[_i % ENGINES], code);
    for (int rank = 0; rank < world; rank++) {
        ck_assert_int_eq(code[rank], rank == 1 ? 128 + SIGKILL : LS_ERR_PEER_LOST);
    }
}
END_TEST

/* One element goes directly over TCP whatever the rest does; this many go around the ring. */
static float many[100000];

static int64_t count_of(const char *engine)
{
    return strcmp(engine, "gloo") == 0 ? 100000 : 1;
}

/* A rank that does not come is waited for until the deadline, not twice as long. */
static int absent(int rank, int world, int port, void *engine)
{
    peer self = open_peer(engine, rank, world, port, 1.0);
    ls_status status = LS_ERR_PEER_LOST;
    if (rank != 1) {
        int64_t began_ns = ls_clock_ns();
        ls_comm_op op = {.kind = LS_COMM_ALL_REDUCE,
                         .buffer = many,
                         .count = count_of(engine),
                         .label = "nobody there"};
        status = ls_comm_run(self.api, self.comm, &op, NULL);
        double waited_ms = ls_clock_ms_between(began_ns, ls_clock_ns());
        RANK_CHECK(waited_ms > 500 && waited_ms < 1900);
    }
    (void)ls_store_barrier(self.store, "end", 5.0);
    close_peer(&self);
    return status;
}

START_TEST(missing_rank)
{
    int code[WORLD_MAX];
    world_run(3, absent, (void *)engines[_i], code);
    for (int rank = 0; rank < 3; rank++) {
        ck_assert_int_eq(code[rank], LS_ERR_PEER_LOST);
    }
}
END_TEST

static void *abort_later(void *argument)
{
    peer *self = argument;
    /* so that the other thread is usually waiting; either order of abort and wait must end alike */
    (void)poll(NULL, 0, 50);
    self->api->abort(self->comm);
    return NULL;
}

static int aborting(int rank, int world, int port, void *engine)
{
    peer self = open_peer(engine, rank, world, port, 20.0);
    if (rank == 0) {
        pthread_t thread;
        ls_comm_op op = {.kind = LS_COMM_ALL_REDUCE,
                         .buffer = many,
                         .count = count_of(engine),
                         .label = "aborted"};
        ls_comm_handle handle;
        int64_t began_ns = ls_clock_ns();
        RANK_CHECK(self.api->begin(self.comm, &op, NULL, &handle) == LS_OK);
        RANK_CHECK(pthread_create(&thread, NULL, abort_later, &self) == 0);
        RANK_CHECK(self.api->wait(self.comm, &handle, NULL) == LS_ERR_PEER_LOST);
        RANK_CHECK(ls_clock_ms_between(began_ns, ls_clock_ns()) < 10e3);
        pthread_join(thread, NULL);
        RANK_CHECK(self.api->begin(self.comm, &op, NULL, &handle) == LS_ERR_PEER_LOST);
    }
    RANK_CHECK(ls_store_barrier(self.store, "end", 10.0) == LS_OK);
    close_peer(&self);
    return 0;
}

START_TEST(abort_ends_waits)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(2, aborting, (void *)engines[_i], code), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("comm");
    TCase *tests = tcase_create("engines");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, self_engine);
    tcase_add_loop_test(tests, every_operation, 0, 4 * ENGINES);
    tcase_add_loop_test(tests, half_sums, 2 * ENGINES, 4 * ENGINES);
    tcase_add_loop_test(tests, factors, 2 * ENGINES, 4 * ENGINES);
    tcase_add_loop_test(tests, transports_agree, 2, 6);
    tcase_add_test(tests, shared_memory_forbidden);
    tcase_add_test(tests, order_is_kept);
    tcase_add_loop_test(tests, killed_rank, 2 * ENGINES, 5 * ENGINES);
    tcase_add_loop_test(tests, missing_rank, 0, ENGINES);
    tcase_add_loop_test(tests, abort_ends_waits, 0, ENGINES);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed;
}
