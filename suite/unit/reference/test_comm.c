/* The engines: every operation, type and size over 1 to 5 forked ranks on data whose sums are
 * exact; both transports alike. */
#include "kernels/core/half.h"
#include "kernels/core/rng.h"
#include "suite/unit/run_suite.h"
#include "comm_peer.h"

static int all_operations(int rank, int world, int port, void *engine)
{
    static const ls_comm_kind sums[] = {LS_COMM_ALL_REDUCE, LS_COMM_REDUCE, LS_COMM_REDUCE_SCATTER};
    static const ls_comm_kind moves[] = {LS_COMM_BROADCAST, LS_COMM_ALL_GATHER, LS_COMM_GATHER,
                                         LS_COMM_SCATTER, LS_COMM_ALL_TO_ALL};
    static const int64_t counts[] = {0, 1, 3, 127, 1025, 20011};
    peer self = open_peer(engine, rank, world, port, 20.0);
    int round = 0;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        for (size_t k = 0; k < sizeof sums / sizeof *sums; k++) {
            for (int dtype = LS_F32; dtype <= LS_U8; dtype++, round++) {
                one_operation(&self, sums[k], (ls_dtype)dtype, counts[c], round % 2, round % world);
                for (int redop = LS_COMM_MAX; redop <= LS_COMM_PROD; redop++) {
                    one_reduction(&self, sums[k], (ls_comm_redop)redop, (ls_dtype)dtype, counts[c],
                                  round % 2, round % world);
                }
            }
        }
        for (size_t k = 0; k < sizeof moves / sizeof *moves; k++, round++) {
            one_operation(&self, moves[k], LS_F16, counts[c], round % 2, round % world);
            one_operation(&self, moves[k], LS_F64, counts[c], round % 2, (round + 1) % world);
        }
        const ls_comm_op barrier = {.kind = LS_COMM_BARRIER, .label = "test"};
        RANK_CHECK(ls_comm_run(self.api, self.comm, &barrier, NULL) == LS_OK);
    }
    /* several segments per chunk, uneven */
    one_operation(&self, LS_COMM_ALL_REDUCE, LS_F32, 1000003, 1, 0);
    one_operation(&self, LS_COMM_REDUCE, LS_BF16, 500009, 1, world - 1);
    one_reduction(&self, LS_COMM_ALL_REDUCE, LS_COMM_PROD, LS_F16, 1000003, 1, 0);
    one_reduction(&self, LS_COMM_ALL_REDUCE, LS_COMM_MIN, LS_I32, 300007, 0, 0);
    one_operation(&self, LS_COMM_ALL_TO_ALL, LS_F32, 100003, 1, 0);
    RANK_CHECK(self.api->poll(self.comm) == LS_OK);
    return close_peer(&self);
}

LOOP_TEST(every_operation, 4 * ENGINES)
{
    static const int worlds[] = {1, 2, 3, 5};
    int code[WORLD_MAX];
    ck_assert_int_eq(
        world_run(worlds[_i / ENGINES], all_operations, (void *)engines[_i % ENGINES], code), 0);
}

TEST(self_engine)
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

/* A backend's memory: the host copies through a buffer of its own, after `after` is complete, and
 * begin returns when the copy is. The steps are noted by their letters; one of them may fail. */
typedef struct noting {
    char steps[16];
    char fails;
    float memory[4]; /* of the backend: filled by copy_in */
} noting;

static ls_status note(noting *n, char step)
{
    n->steps[strlen(n->steps)] = step;
    return step == n->fails ? LS_ERR_DEVICE_LOST : LS_OK;
}

static ls_status create(ls_backend *backend, ls_stream **out)
{
    *out = (ls_stream *)backend;
    return note((noting *)(void *)backend, 'c');
}

static ls_status after_event(ls_event *event)
{
    return note((noting *)(void *)event, 'a');
}

static ls_status take_out(ls_backend *backend, ls_stream *stream, void *host, const void *from,
                          int64_t bytes)
{
    ck_assert_ptr_eq(stream, backend);
    memcpy(host, from, (size_t)bytes);
    return note((noting *)(void *)backend, 'o');
}

static ls_status put_in(ls_backend *backend, ls_stream *stream, void *to, const void *host,
                        int64_t bytes)
{
    ck_assert_ptr_eq(stream, backend);
    memcpy(to, host, (size_t)bytes);
    return note((noting *)(void *)backend, 'i');
}

static ls_status complete(ls_stream *stream)
{
    return note((noting *)(void *)stream, 'w');
}

static void destroy(ls_stream *stream)
{
    (void)note((noting *)(void *)stream, 'd');
}

LOOP_TEST(self_copies_within_a_backend, 6)
{
    static const struct {
        char fails;
        const char *steps;
    } runs[] = {{'-', "caoiwd"}, {'c', "c"},     {'a', "cad"},
                {'o', "caod"},   {'i', "caoid"}, {'w', "caoiwd"}};
    static const ls_backend_api table = {.stream_create = create,
                                         .event_wait = after_event,
                                         .copy_out = take_out,
                                         .copy_in = put_in,
                                         .stream_wait = complete,
                                         .stream_destroy = destroy};
    noting n = {"", runs[_i].fails, {0, 0, 0, 9}};
    float input[4] = {1, 2, 3, 4};
    const ls_comm_api *api = NULL;
    ls_comm *comm = NULL;
    ls_comm_handle handle;
    ls_comm_options options = {
        .world = 1, .name = "test", .backend_api = &table, .backend = (ls_backend *)(void *)&n};
    ck_assert_int_eq(ls_comm_load("self", &api), LS_OK);
    ck_assert_int_eq(api->open(&options, &comm), LS_OK);
    ls_comm_op op = {.kind = LS_COMM_ALL_REDUCE,
                     .dtype = LS_F32,
                     .count = 3,
                     .input = input,
                     .buffer = n.memory};
    ck_assert_int_eq(api->begin(comm, &op, (ls_event *)(void *)&n, &handle),
                     runs[_i].fails == '-' ? LS_OK : LS_ERR_DEVICE_LOST);
    ck_assert_str_eq(n.steps, runs[_i].steps);
    if (strchr(n.steps, 'i') != NULL) {
        ck_assert(n.memory[0] == 1 && n.memory[2] == 3 && n.memory[3] == 9);
    }
    n.steps[0] = '\0'; /* in place there is nothing to copy */
    op.input = op.buffer;
    ck_assert_int_eq(api->begin(comm, &op, NULL, &handle), LS_OK);
    ck_assert_int_eq(n.steps[0], '\0');
    op.kind = LS_COMM_SEND;
    ck_assert_int_eq(api->begin(comm, &op, NULL, &handle), LS_ERR_USAGE);
    op.kind = LS_COMM_RECV;
    ck_assert_int_eq(api->begin(comm, &op, NULL, &handle), LS_ERR_USAGE);
    op.kind = LS_COMM_BARRIER;
    ck_assert_int_eq(api->wait(comm, &handle, NULL), LS_OK);
    api->abort(comm);
    ck_assert_int_eq(api->begin(comm, &op, NULL, &handle), LS_ERR_PEER_LOST);
    ck_assert_int_eq(api->wait(comm, &handle, NULL), LS_ERR_PEER_LOST);
    ck_assert_int_eq(api->poll(comm), LS_ERR_PEER_LOST);
    api->close(comm);
}

/* Operations that no engine begins; the next one is number 0. */
static int refused(int rank, int world, int port, void *engine)
{
    peer self = open_peer(engine, rank, world, port, 20.0);
    float memory[8] = {0};
    const ls_comm_op wrong[] = {
        {.kind = LS_COMM_ALL_TO_ALL, .buffer = memory, .count = 1},
        {.kind = LS_COMM_ALL_TO_ALL, .buffer = memory, .input = memory, .count = 1},
        {.kind = LS_COMM_ALL_TO_ALL, .buffer = memory, .input = memory + world - 1, .count = 1},
        {.kind = LS_COMM_ALL_TO_ALL, .buffer = memory + world - 1, .input = memory, .count = 1},
        {.kind = LS_COMM_BROADCAST, .buffer = memory, .count = 1, .redop = LS_COMM_MAX},
        {.kind = LS_COMM_ALL_TO_ALL,
         .buffer = memory,
         .input = memory + world,
         .count = 1,
         .redop = LS_COMM_PROD},
        {.kind = LS_COMM_ALL_REDUCE,
         .buffer = memory,
         .count = 1,
         .redop = LS_COMM_MIN,
         .factor = 0.5f},
        {.kind = LS_COMM_REDUCE, .buffer = memory, .count = 1, .factor = 0.5f},
    };
    ls_comm_handle handle;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        RANK_CHECK(self.api->begin(self.comm, &wrong[i], NULL, &handle) == LS_ERR_USAGE);
    }
    const ls_comm_op right[] = {
        {.kind = LS_COMM_ALL_TO_ALL, .buffer = memory, .input = memory + world, .count = 1},
        {.kind = LS_COMM_ALL_TO_ALL, .buffer = memory},
        {.kind = LS_COMM_ALL_REDUCE,
         .buffer = memory,
         .count = 1,
         .redop = LS_COMM_MAX,
         .factor = 1.0f},
    };
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        RANK_CHECK(self.api->begin(self.comm, &right[i], NULL, &handle) == LS_OK);
        RANK_CHECK(handle.number == i);
        RANK_CHECK(self.api->wait(self.comm, &handle, NULL) == LS_OK);
    }
    return close_peer(&self);
}

LOOP_TEST(what_no_engine_begins, 4)
{
    static const char *const which[] = {"self", "gloo", "gloo over TCP", "gloo"};
    static const int worlds[] = {1, 1, 2, 3};
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(worlds[_i], refused, (void *)which[_i], code), 0);
}

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
    return close_peer(&self);
}

RANGE_TEST(factors, 2 * ENGINES, 4 * ENGINES)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(
        world_run(_i / ENGINES, factor_on_the_way, (void *)engines[_i % ENGINES], code), 0);
}

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

/* From just above the size of a direct exchange up to more pieces than a pipe holds, in chunks of
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
    return close_peer(&self);
}

RANGE_TEST(transports_agree, 2, 6)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(_i, both_ways, (void *)engines[0], code), 0);
}

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
    return close_peer(&self);
}

TEST(shared_memory_forbidden)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(3, forbidden, (void *)engines[1], code), 0);
}

/* ---- Gloo's two operands --------------------------------------------------------------------- */

enum { COUNT = 1009 };

static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16, LS_F64, LS_I64, LS_I32, LS_U8};
enum { TYPES = sizeof types / sizeof *types };

typedef union number {
    unsigned char bytes[8];
    float f32;
    uint16_t half;
    double f64;
    int64_t i64;
    int32_t i32;
    uint8_t u8;
} number;

/* Any bits; one float in eight is a special value. */
static number any(ls_dtype dtype, uint64_t stream, int i)
{
    static const double special[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0, 1.0, -1.0, 65504.0};
    ls_rng_block words = ls_rng_philox(11, stream, (uint64_t)i);
    number n;
    memcpy(n.bytes, words.word, sizeof n.bytes);
    double value = special[words.word[2] % 8];
    if (dtype < LS_I64 && words.word[3] % 8 == 0) {
        n.f64 = value;
        n.f32 = dtype == LS_F32 ? (float)value : n.f32;
        n.half = dtype == LS_F16    ? ls_half_f32_to_fp16((float)value)
                 : dtype == LS_BF16 ? ls_half_f32_to_bf16((float)value)
                                    : n.half;
    }
    return n;
}

static double double_of(ls_dtype dtype, number n)
{
    return dtype == LS_F32    ? (double)n.f32
           : dtype == LS_F16  ? (double)ls_half_fp16_to_f32(n.half)
           : dtype == LS_BF16 ? (double)ls_half_bf16_to_f32(n.half)
                              : n.f64;
}

/* A product of floats narrower than 64 bits is exact in double, and a sum as if it were. */
static bool float_is_right(ls_comm_redop redop, ls_dtype dtype, number a, number b, number got)
{
    double x = double_of(dtype, a), y = double_of(dtype, b), have = double_of(dtype, got), want;
    if (redop == LS_COMM_PROD || redop == LS_COMM_SUM) {
        want = redop == LS_COMM_PROD ? x * y : x + y;
        want = dtype == LS_F64 ? want : (double)(float)want;
        want = dtype == LS_F16    ? (double)ls_half_fp16_to_f32(ls_half_f32_to_fp16((float)want))
               : dtype == LS_BF16 ? (double)ls_half_bf16_to_f32(ls_half_f32_to_bf16((float)want))
                                  : want;
    } else if (isnan(x) || isnan(y)) {
        want = NAN;
    } else if (x == y) {
        bool negative = redop == LS_COMM_MAX ? signbit(x) && signbit(y) : signbit(x) || signbit(y);
        want = x == 0 ? (negative ? -0.0 : 0.0) : x;
    } else {
        want = (redop == LS_COMM_MAX) == (x > y) ? x : y;
    }
    return isnan(want) ? isnan(have) : have == want && signbit(have) == signbit(want);
}

static bool is_right(ls_comm_redop redop, ls_dtype dtype, number a, number b, number got)
{
    if (dtype < LS_I64) {
        return float_is_right(redop, dtype, a, b, got);
    }
    int64_t x = dtype == LS_I64 ? a.i64 : dtype == LS_I32 ? a.i32 : a.u8;
    int64_t y = dtype == LS_I64 ? b.i64 : dtype == LS_I32 ? b.i32 : b.u8;
    int64_t want = redop == LS_COMM_PROD               ? (int64_t)((uint64_t)x * (uint64_t)y)
                   : redop == LS_COMM_SUM              ? (int64_t)((uint64_t)x + (uint64_t)y)
                   : (redop == LS_COMM_MAX) == (x > y) ? x
                                                       : y;
    return dtype == LS_I64   ? got.i64 == want
           : dtype == LS_I32 ? got.i32 == (int32_t)(uint32_t)(uint64_t)want
                             : got.u8 == (uint8_t)want;
}

LOOP_TEST(two_operands, 4 * TYPES)
{
    ls_comm_redop redop = (ls_comm_redop)(LS_COMM_SUM + _i / TYPES);
    ls_dtype dtype = types[_i % TYPES];
    size_t bytes = ls_dtype_bytes(dtype);
    unsigned char to[COUNT * 8 + 1], from[COUNT * 8 + 1];
    for (int i = 0; i < COUNT; i++) { /* one byte off any alignment */
        memcpy(to + 1 + (size_t)i * bytes, any(dtype, 1, i).bytes, bytes);
        memcpy(from + 1 + (size_t)i * bytes, any(dtype, 2, i).bytes, bytes);
    }
    ls_gloo_reduce(redop, dtype, to + 1, from + 1, COUNT);
    for (int i = 0; i < COUNT; i++) {
        number got = {{0}}, a = any(dtype, 1, i), b = any(dtype, 2, i), given = {{0}};
        memcpy(got.bytes, to + 1 + (size_t)i * bytes, bytes);
        memcpy(given.bytes, from + 1 + (size_t)i * bytes, bytes);
        ck_assert(memcmp(given.bytes, b.bytes, bytes) == 0);
        ck_assert_msg(is_right(redop, dtype, a, b, got), "%s, %s, element %d: %g and %g give %g",
                      ls_comm_redop_name(redop), ls_dtype_label(dtype), i, double_of(dtype, a),
                      double_of(dtype, b), double_of(dtype, got));
    }
}

/* The bits of a maximum and a minimum do not depend on the order, NaN's included. */
TEST(extremes_have_no_order)
{
    for (int k = 0; k < 2 * TYPES; k++) {
        ls_comm_redop redop = k < TYPES ? LS_COMM_MAX : LS_COMM_MIN;
        ls_dtype dtype = types[k % TYPES];
        for (int i = 0; i < COUNT; i++) {
            number a = any(dtype, 1, i), b = any(dtype, 2, i), c = a, d = b;
            ls_gloo_reduce(redop, dtype, a.bytes, b.bytes, 1);
            ls_gloo_reduce(redop, dtype, d.bytes, c.bytes, 1);
            ck_assert(memcmp(a.bytes, d.bytes, ls_dtype_bytes(dtype)) == 0);
        }
    }
}

/* ---- groups of ranks ------------------------------------------------------------------------- */

TEST(texts_of_groups)
{
    ls_rank_groups groups;
    int place = -1;
    ck_assert_int_eq(ls_arguments_read_groups("4,3,1;0", 6, &groups), LS_OK);
    ck_assert_int_eq(groups.count, 2);
    ck_assert_int_eq(groups.group[0].count, 3);
    ck_assert_int_eq(groups.group[1].count, 1);
    static const int groups_of[] = {1, 0, -1, 0, 0, -1}, places[] = {0, 0, -1, 1, 2, -1};
    for (int rank = 0; rank < 6; rank++) {
        place = -1;
        ck_assert_int_eq(ls_arguments_find_group(&groups, rank, &place), groups_of[rank]);
        ck_assert_int_eq(place, places[rank]);
    }
    ck_assert_int_eq(ls_arguments_read_groups("0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15", 16, &groups),
                     LS_OK);
    ck_assert_int_eq(groups.count, 16);
    char wrong[] = "|;|0;|;0|0;;1|0,|,0|0,,1|0,0|0,1;1|6|-1|+1| 1|1 |x|0x1|0.5|0:1|"
                   "99999999999999999999|0;1;2;3;4;5;";
    int count = 0;
    for (char *rest = wrong, *one; (one = strsep(&rest, "|")) != NULL; count++) {
        groups.count = 77;
        ck_assert_msg(ls_arguments_read_groups(one, 6, &groups) == LS_ERR_USAGE, "'%s'", one);
        ck_assert_int_eq(groups.count, 77);
    }
    ck_assert_int_eq(count, 21);
    ck_assert_int_eq(
        ls_arguments_read_groups("0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;0", 16, &groups),
        LS_ERR_USAGE);
}

TEST(sizes_of_groups)
{
    ls_rank_groups groups;
    int place = -1;
    for (int size = 1; size <= 7; size++) {
        bool divides = 6 % size == 0;
        ck_assert_int_eq(ls_arguments_groups_of_size(size, 6, &groups),
                         divides ? LS_OK : LS_ERR_USAGE);
        for (int rank = 0; rank < 6 && divides; rank++) {
            ck_assert_int_eq(ls_arguments_find_group(&groups, rank, &place), rank / size);
            ck_assert_int_eq(place, rank % size);
        }
        ck_assert(!divides || groups.count == 6 / size);
    }
    ck_assert_int_eq(ls_arguments_groups_of_size(0, 6, &groups), LS_ERR_USAGE);
    ck_assert_int_eq(ls_arguments_groups_of_size(-2, 6, &groups), LS_ERR_USAGE);
}

TEST_MAIN("comm", .timeout_s = 60)
