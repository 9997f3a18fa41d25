/* The exercise of collectives on an engine that is this test: what it asks for, what it counts
 * where the engine is right and where it is wrong in one place, and its rates. */
#include <sys/wait.h>

#include "kernels/core/clock.h"
#include "kernels/core/digest.h"
#include "reference/comm/exercise.h"
#include "kernels/core/status.h"
#include "suite/unit/run_suite.h"
#include "host_device.h"
#include "suite/unit/golden.h"

/* A product in another order. */
static const double bus_limit = 1e-12;

enum { WORLD = 3, COUNT = 5, OPS = 16 };

/* Where the engine is wrong. */
typedef enum fault { RIGHT, FIRST, LAST, BEFORE, BEHIND, GIVEN, FAILS, STALE, SLOW, OTHER } fault;

struct ls_comm {
    int rank;
    fault fault;
    ls_comm_redop wrong_redop; /* OTHER: what the engine does instead */
    int ops, done;             /* done: without barriers */
    ls_comm_op op[OPS];
};

/* The data, from the definition in reference/comm/pattern.h. */
static int32_t element(int rank, int64_t index)
{
    uint64_t h = 2654435761ull * (uint64_t)index + 40503ull * (uint64_t)rank + 12345ull;
    h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9ull;
    h = h ^ (h >> 32);
    return (int32_t)((int64_t)(h % 134217729) - 67108864);
}

static int32_t factor(int rank, int64_t index)
{
    uint64_t h = 2654435761ull * (uint64_t)index + 40503ull * (uint64_t)rank + 12345ull;
    h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9ull;
    h = (h ^ (h >> 32)) >> 32;
    int32_t odd = 3 + 2 * (int32_t)(h % 120);
    return (h >> 20 & 1) != 0 ? -odd : odd;
}

/* Over ranks 0 to 2. */
static int32_t reduced(ls_comm_redop redop, int64_t index)
{
    int32_t a = element(0, index), b = element(1, index), c = element(2, index);
    int32_t most = a > b ? a : b, least = a < b ? a : b;
    return redop == LS_COMM_PROD  ? factor(0, index) * factor(1, index) * factor(2, index)
           : redop == LS_COMM_MAX ? (most > c ? most : c)
           : redop == LS_COMM_MIN ? (least < c ? least : c)
                                  : a + b + c;
}

/* The result of an operation on a rank, and how many elements it has. */
static int result_of(const ls_comm_op *op, int rank, int32_t *out)
{
    bool parts = op->kind == LS_COMM_ALL_GATHER || op->kind == LS_COMM_GATHER ||
                 op->kind == LS_COMM_ALL_TO_ALL;
    int many = parts ? WORLD : 1;
    bool at_root = op->kind == LS_COMM_REDUCE || op->kind == LS_COMM_GATHER;
    if ((at_root && rank != op->root) || op->kind == LS_COMM_SEND || op->kind == LS_COMM_BARRIER) {
        return 0;
    }
    for (int i = 0; i < many * COUNT; i++) {
        int own = rank * COUNT + i;
        out[i] = op->kind == LS_COMM_ALL_REDUCE || op->kind == LS_COMM_REDUCE
                     ? reduced(op->redop, i)
                 : op->kind == LS_COMM_REDUCE_SCATTER ? reduced(op->redop, own)
                 : op->kind == LS_COMM_BROADCAST || op->kind == LS_COMM_RECV ? element(op->root, i)
                 : op->kind == LS_COMM_SCATTER    ? element(op->root, own)
                 : op->kind == LS_COMM_ALL_TO_ALL ? element(i / COUNT, rank * COUNT + i % COUNT)
                                                  : element(i / COUNT, i % COUNT);
    }
    return many * COUNT;
}

static ls_status begin(ls_comm *comm, const ls_comm_op *op, ls_event *after, ls_comm_handle *handle)
{
    (void)after, (void)handle;
    int32_t result[WORLD * COUNT];
    ls_comm_op done = *op;
    done.redop = comm->fault == OTHER ? comm->wrong_redop : op->redop;
    int count = result_of(&done, comm->rank, result);
    ck_assert_int_lt(comm->ops, OPS);
    comm->op[comm->ops++] = *op;
    if (comm->fault == FAILS) {
        return LS_ERR_PEER_LOST;
    }
    if (comm->fault == SLOW && op->kind != LS_COMM_BARRIER) {
        for (int64_t begin_ns = ls_clock_ns(); ls_clock_ns() - begin_ns < 1000000;) {
        }
    }
    comm->done += op->kind != LS_COMM_BARRIER;
    if (op->kind == LS_COMM_BARRIER || (comm->fault == STALE && comm->done > 1)) {
        return LS_OK;
    }
    char *bytes = op->buffer;
    memmove(op->buffer, result, (size_t)count * sizeof *result);
    if (op->kind == LS_COMM_SEND) {
        return LS_OK;
    }
    if (comm->fault == FIRST && count > 0) {
        bytes[0] ^= 1;
    } else if (comm->fault == LAST && count > 0) {
        bytes[4 * count - 1] ^= 1;
    } else if (comm->fault == BEFORE) {
        bytes[-1] ^= 1;
    } else if (comm->fault == BEHIND) {
        bytes[4 * count] ^= 1;
    } else if (comm->fault == GIVEN && op->input != NULL) {
        ((char *)(uintptr_t)op->input)[1] ^= 1;
    }
    return LS_OK;
}

static ls_status wait_done(ls_comm *comm, ls_comm_handle *handle, ls_stream *stream)
{
    (void)comm, (void)handle, (void)stream;
    return LS_OK;
}

static const ls_comm_api api = {.name = "test", .begin = begin, .wait = wait_done};

static ls_exercise_peer peer_of(ls_comm *comm)
{
    return (ls_exercise_peer){
        .rank = comm->rank, .members = ls_pattern_all(WORLD), .api = &api, .comm = comm};
}

static const struct row {
    ls_comm_kind kind;
    const char *name;
    bool gives_many, gets_many, root_gives, root_gets;
    double bus; /* bytes on the bus for each byte of the size: nccl-tests' factor for 3 ranks */
} rows[] = {
    {LS_COMM_ALL_REDUCE, "all_reduce", false, false, false, false, 4.0 / 3},
    {LS_COMM_REDUCE_SCATTER, "reduce_scatter", true, false, false, false, 2.0 / 3},
    {LS_COMM_ALL_GATHER, "all_gather", false, true, false, false, 2.0 / 3},
    {LS_COMM_BROADCAST, "broadcast", false, false, true, false, 1},
    {LS_COMM_REDUCE, "reduce", false, false, false, true, 1},
    {LS_COMM_GATHER, "gather", false, true, false, true, 2.0 / 3},
    {LS_COMM_SCATTER, "scatter", true, false, true, false, 2.0 / 3},
    {LS_COMM_SEND, "send", false, false, false, false, 1},
    {LS_COMM_ALL_TO_ALL, "all_to_all", true, true, false, false, 2.0 / 3},
};

static bool out_of_place_only(const struct row *row)
{
    return row->kind == LS_COMM_SEND || row->kind == LS_COMM_ALL_TO_ALL;
}

ROWS_TEST(counts_and_rates, rows)
{
    const struct row *row = &rows[_i];
    bool sends = row->kind == LS_COMM_SEND;
    ck_assert_str_eq(ls_comm_kind_name(row->kind), row->name);
    ck_assert_int_eq(ls_exercise_can_be_in_place(row->kind), !out_of_place_only(row));
    for (int k = 0; k < 3 * 2 * 2 * 6; k++) {
        int rank = k % 3, root = k / 3 % 2 * 2;
        bool in_place = k / 6 % 2 != 0;
        ls_comm comm = {.rank = rank, .fault = (fault)(k / 12)};
        ls_exercise_peer peer = peer_of(&comm);
        int iterations = comm.fault == RIGHT ? 3 : 1;
        ls_exercise what = {.kind = row->kind,
                            .dtype = LS_I32,
                            .data = LS_PATTERN_EXACT,
                            .count = COUNT,
                            .root = root,
                            .in_place = in_place,
                            .offset = k % 4,
                            .iterations = iterations};
        ls_exercise_result have;
        if (in_place && (out_of_place_only(row) || comm.fault > LAST)) {
            continue; /* in one buffer other places are neighbours */
        }
        ck_assert_int_eq(ls_exercise_run(&peer, &what, &have), LS_OK);
        int outputs = row->root_gets && rank != root ? 0 : row->gets_many ? WORLD * COUNT : COUNT;
        int inputs = row->root_gives && rank != root ? 0 : row->gives_many ? WORLD * COUNT : COUNT;
        bool element_wrong = outputs > 0 && (comm.fault == FIRST || comm.fault == LAST);
        bool nothing = outputs == 0 && row->kind == LS_COMM_GATHER && comm.fault == BEHIND;
        bool behind = comm.fault == BEHIND && outputs > 0;
        ck_assert_int_eq(have.checked, outputs * iterations);
        ck_assert_msg(have.wrong == element_wrong + (comm.fault == GIVEN && inputs > 0 && !sends),
                      "%s, rank %d of root %d, fault %d: %lld wrong", row->name, rank, root,
                      comm.fault, (long long)have.wrong);
        ck_assert_msg(have.guards == (comm.fault == BEFORE) + behind + nothing,
                      "%s, rank %d of root %d, fault %d: %lld guards", row->name, rank, root,
                      comm.fault, (long long)have.guards);
        ck_assert_int_eq(have.telling, 0);
        int32_t result[WORLD * COUNT];
        int source = sends ? (rank + WORLD - 1) % WORLD : root;
        ls_comm_op op = {.kind = sends ? LS_COMM_RECV : row->kind, .root = source};
        result_of(&op, rank, result);
        if (!element_wrong) {
            ck_assert_uint_eq(have.digest,
                              ls_digest_update(LS_DIGEST_START, result, 4 * (size_t)outputs));
        }
        double size = 4.0 * COUNT * (row->gives_many || row->gets_many ? WORLD : 1);
        ck_assert(have.us > 0 && have.algbw_gb_s == size / have.us * 1e-3);

        ck_assert_double_eq_tol(have.busbw_gb_s / have.algbw_gb_s, row->bus, bus_limit);
        /* the calls: a barrier before each of several iterations, and what each operation has */
        int each = (sends ? 2 : 1) + (iterations > 1);
        ck_assert_int_eq(comm.ops, each * iterations);
        for (int i = 0; i < comm.ops; i++) {
            const ls_comm_op *asked = &comm.op[i];
            int number = i % each - (iterations > 1);
            bool first_sends = sends && (rank == 0) == (number == 0);
            if (number < 0) {
                ck_assert_int_eq(asked->kind, LS_COMM_BARRIER);
                continue;
            }
            ck_assert(asked->count == COUNT && asked->dtype == LS_I32);
            ck_assert_int_eq(asked->kind, !sends        ? row->kind
                                          : first_sends ? LS_COMM_SEND
                                                        : LS_COMM_RECV);
            ck_assert_int_eq(asked->root, !sends        ? root
                                          : first_sends ? (rank + 1) % WORLD
                                                        : source);
            int64_t apart = (const char *)asked->buffer - (const char *)asked->input;
            if (in_place) {
                int64_t part = (int64_t)rank * COUNT * 4;
                ck_assert_int_eq(apart, row->gives_many ? part : row->gets_many ? -part : 0);
            }
            const char *start = in_place && row->gives_many ? asked->input : asked->buffer;
            ck_assert(sends || (uintptr_t)start % 64 == (uintptr_t)what.offset * 4 % 64);
        }
    }
}

/* An engine that leaves the buffer as it is from its second operation on: a result of the first
 * does not count again. */
ROWS_TEST(an_old_result_is_none, rows)
{
    const struct row *row = &rows[_i];
    for (int rank = 0; rank < WORLD && row->kind != LS_COMM_SEND; rank++) {
        ls_comm comm = {.rank = rank, .fault = STALE};
        ls_exercise_peer peer = peer_of(&comm);
        ls_exercise what = {.kind = row->kind, .dtype = LS_I32, .count = COUNT, .iterations = 3};
        ls_exercise_result have;
        ck_assert_int_eq(ls_exercise_run(&peer, &what, &have), LS_OK);
        int outputs = row->root_gets && rank != 0 ? 0 : row->gets_many ? WORLD * COUNT : COUNT;
        ck_assert_int_eq(have.wrong, 2 * outputs);
        ck_assert_int_eq(have.guards, 0);
    }
}

/* What operators give, and that an engine which takes another one, or forgets a rank's factor, is
 * wrong everywhere or, between maximum and minimum, wherever the ranks differ. */
TEST(operators_are_told_apart)
{
    static const ls_comm_kind kinds[] = {LS_COMM_ALL_REDUCE, LS_COMM_REDUCE_SCATTER,
                                         LS_COMM_REDUCE};
    for (int k = 0; k < 3 * 4 * 4; k++) {
        ls_comm_redop redop = (ls_comm_redop)(k / 4 % 4), other = (ls_comm_redop)(k % 4);
        ls_comm comm = {.rank = 1, .fault = OTHER, .wrong_redop = other};
        ls_exercise_peer peer = peer_of(&comm);
        ls_exercise what = {.kind = kinds[k / 16],
                            .redop = redop,
                            .dtype = LS_I32,
                            .count = COUNT,
                            .root = 1,
                            .iterations = 1};
        ls_exercise_result have;
        ck_assert_int_eq(ls_exercise_run(&peer, &what, &have), LS_OK);
        ck_assert_int_eq(comm.op[0].redop, redop);
        ck_assert_int_eq(have.checked, COUNT);
        ck_assert_int_eq(have.wrong, redop == other ? 0 : COUNT);
    }
}

/* Members with other ranks in the world than in the communicator: data is of the former. */
TEST(members_give_their_own_data)
{
    ls_comm comm = {.rank = 1};
    ls_exercise_peer peer = peer_of(&comm);
    ls_exercise what = {
        .kind = LS_COMM_ALL_GATHER, .dtype = LS_I32, .count = COUNT, .iterations = 1};
    ls_exercise_result have;
    peer.members.rank[2] = 4; /* but the engine gives rank 2's */
    ck_assert_int_eq(ls_exercise_run(&peer, &what, &have), LS_OK);
    ck_assert_int_eq(have.wrong, COUNT);
    what.kind = LS_COMM_ALL_REDUCE;
    ck_assert_int_eq(ls_exercise_run(&peer, &what, &have), LS_OK);
    ck_assert_int_eq(have.wrong, COUNT);
    what.kind = LS_COMM_ALL_TO_ALL;
    ck_assert_int_eq(ls_exercise_run(&peer, &what, &have), LS_OK);
    ck_assert_int_eq(have.wrong, COUNT);
}

/* An element of any type, and its number. */
typedef union element_bytes {
    char bytes[8];
    float f32;
    uint16_t half;
    double f64;
    int64_t i64;
    int32_t i32;
    uint8_t u8;
} element_bytes;

static double number_of(ls_dtype dtype, element_bytes e)
{
    return dtype == LS_F32    ? (double)e.f32
           : dtype == LS_F64  ? e.f64
           : dtype == LS_I64  ? (double)e.i64
           : dtype == LS_I32  ? (double)e.i32
           : dtype == LS_U8   ? (double)e.u8
           : dtype == LS_BF16 ? (double)ls_half_bf16_to_f32(e.half)
                              : (double)ls_half_fp16_to_f32(e.half);
}

/* Factors of every type against the definition: none is 1, 16 ranks' product is exact. */
TEST(factors_of_every_type)
{
    static const ls_dtype types[] = {LS_F32, LS_F16, LS_BF16, LS_F64, LS_I64, LS_I32, LS_U8};
    for (int64_t i = 0; i < 200; i++) {
        uint64_t g = 2654435761ull * (uint64_t)i + 12345ull;
        g = (g ^ (g >> 29)) * 0xbf58476d1ce4e5b9ull;
        g = (g ^ (g >> 32)) >> 32;
        double product = 1;
        for (int rank = 0; rank < LS_PATTERN_WORLD_MAX; rank++) {
            int32_t integer = factor(rank, i);
            bool up = ((g >> (rank / 2) & 1) != 0) == (rank % 2 == 0);
            bool three = rank < 5 && (g >> (8 + rank) & 1) != 0;
            double value = (integer < 0 ? -1 : 1) * (up ? 2 : 0.5) * (three ? 3 : 1);
            product *= value;
            for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
                element_bytes have;
                ls_pattern_fill(LS_PATTERN_FACTORS, types[t], rank, i, 1, &have);
                double got = number_of(types[t], have);
                double want = types[t] < LS_I64   ? value
                              : types[t] == LS_U8 ? (double)(integer < 0 ? -integer : integer)
                                                  : (double)integer;
                ck_assert_double_eq(got, want);
                ck_assert_double_ne(got, 1);
            }
        }
        ck_assert(ls_half_bf16_to_f32(ls_half_f32_to_bf16((float)product)) == (float)product);
        ck_assert(ls_half_fp16_to_f32(ls_half_f32_to_fp16((float)product)) == (float)product);
    }
}

/* The mean time of an operation: what it takes at least, and not more than the whole run allows. */
TEST(times_are_of_one_operation)
{
    ls_comm comm = {.fault = SLOW};
    ls_exercise_peer peer = peer_of(&comm);
    ls_exercise what = {
        .kind = LS_COMM_ALL_REDUCE, .dtype = LS_I32, .count = COUNT, .iterations = 4};
    ls_exercise_result have;
    int64_t begin_ns = ls_clock_ns();
    ck_assert_int_eq(ls_exercise_run(&peer, &what, &have), LS_OK);
    double whole_us = (double)(ls_clock_ns() - begin_ns) / 1000;
    ck_assert(have.us >= 1000 && have.us <= whole_us / 4);
}

/* ---- buffers in a device's memory ------------------------------------------------------------ */

static int blocks;
static void *last_block[2];

static ls_status device_alloc(ls_backend *backend, int64_t bytes, const char *purpose, void **out)
{
    LS_TRY(host_memory_alloc(backend, bytes, purpose, out));
    last_block[blocks++ % 2] = *out;
    return LS_OK;
}

static void device_free(ls_backend *backend, void *memory)
{
    blocks--;
    host_memory_free(backend, memory);
}

/* The engine works on the device's copy: one operation is judged, the others follow it together. */
ROWS_TEST(buffers_of_a_device, rows)
{
    const struct row *row = &rows[_i];
    ls_backend_api device = HOST_API;
    device.memory_alloc = device_alloc;
    device.memory_free = device_free;
    for (int k = 0; k < 3 * 2 * 3; k++) {
        bool in_place = k / 3 % 2 != 0, sends = row->kind == LS_COMM_SEND;
        int rank = k % 3;
        static const fault faults[] = {RIGHT, LAST, BEHIND};
        ls_comm comm = {.rank = rank, .fault = faults[k / 6]};
        ls_exercise_peer peer = {.rank = rank,
                                 .members = ls_pattern_all(WORLD),
                                 .api = &api,
                                 .comm = &comm,
                                 .backend_api = &device};
        int iterations = comm.fault == RIGHT ? 3 : 1;
        ls_exercise what = {.kind = row->kind,
                            .dtype = LS_I32,
                            .count = COUNT,
                            .in_place = in_place,
                            .iterations = iterations};
        ls_exercise_result have;
        if (in_place && (out_of_place_only(row) || comm.fault == BEHIND)) {
            continue;
        }
        ck_assert_int_eq(ls_exercise_run(&peer, &what, &have), LS_OK);
        ck_assert_int_eq(blocks, 0);
        int outputs = row->root_gets && rank != 0 ? 0 : row->gets_many ? WORLD * COUNT : COUNT;
        bool nothing = outputs == 0 && row->kind == LS_COMM_GATHER;
        ck_assert_int_eq(have.checked, outputs);
        ck_assert_int_eq(have.wrong, comm.fault == LAST && outputs > 0);
        ck_assert_int_eq(have.guards, comm.fault == BEHIND && (outputs > 0 || nothing));
        int each = sends ? 2 : 1;
        ck_assert_int_eq(comm.ops, iterations == 1 ? each : 4 * each + 2);
        for (int i = 0; i < comm.ops; i++) {
            bool barrier = iterations > 1 && (i == 0 || i == each + 1);
            ck_assert_int_eq(comm.op[i].kind == LS_COMM_BARRIER, barrier);
        }
    }
    /* lost: the buffers stay, for a device that may still wait */
    ls_comm comm = {.fault = FAILS};
    ls_exercise_peer peer = {
        .members = ls_pattern_all(WORLD), .api = &api, .comm = &comm, .backend_api = &device};
    ls_exercise what = {.kind = row->kind, .dtype = LS_I32, .count = COUNT, .iterations = 1};
    ls_exercise_result have;
    ck_assert_int_eq(ls_exercise_run(&peer, &what, &have), LS_ERR_PEER_LOST);
    ck_assert_int_eq(blocks, 2);
    device_free(NULL, last_block[0]);
    device_free(NULL, last_block[1]);
}

TEST(an_engines_error_comes_back)
{
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        for (int iterations = 1; iterations < 3; iterations++) {
            ls_comm comm = {.rank = 1, .fault = FAILS};
            ls_exercise_peer peer = peer_of(&comm);
            ls_exercise what = {
                .kind = rows[k].kind, .dtype = LS_I32, .count = COUNT, .iterations = iterations};
            ls_exercise_result have = {.wrong = -7};
            ck_assert_int_eq(ls_exercise_run(&peer, &what, &have), LS_ERR_PEER_LOST);
            ck_assert(comm.ops == 1 && have.wrong == -7);
        }
    }
}

/* Elements of every type, and the range of integers whose sums over 64 ranks are exact. */
TEST(elements_of_every_type)
{
    static const struct {
        ls_dtype dtype;
        int64_t limit;
    } types[] = {{LS_F32, 1 << 19}, {LS_F16, 127},     {LS_BF16, 15}, {LS_F64, 1 << 26},
                 {LS_I64, 1 << 26}, {LS_I32, 1 << 26}, {LS_U8, 0}};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++) {
        ls_dtype dtype = types[t].dtype;
        ck_assert(ls_pattern_has(LS_PATTERN_EXACT, dtype));
        ck_assert_int_eq(ls_pattern_has(LS_PATTERN_ROUGH, dtype),
                         dtype == LS_F32 || dtype == LS_F16 || dtype == LS_BF16);
        for (int64_t i = 0; i < 300; i++) {
            int rank = (int)(i % 7);
            uint64_t h = 2654435761ull * (uint64_t)i + 40503ull * (uint64_t)rank + 12345ull;
            h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9ull;
            h = h ^ (h >> 32);
            uint64_t range = 2 * (uint64_t)types[t].limit + 1;
            int64_t value =
                types[t].limit == 0 ? (int64_t)(h % 256) : (int64_t)(h % range) - types[t].limit;
            element_bytes have;
            ls_pattern_fill(LS_PATTERN_EXACT, dtype, rank, i, 1, &have);
            ck_assert_double_eq(number_of(dtype, have), (double)value);
            ck_assert_int_eq(ls_pattern_count_wrong(LS_PATTERN_EXACT, dtype, rank, i, 1, &have), 0);
            have.bytes[0] ^= 1;
            ck_assert_int_eq(ls_pattern_count_wrong(LS_PATTERN_EXACT, dtype, rank, i, 1, &have), 1);
        }
    }
}

/* ---- lockstep-collectives as it is run ------------------------------------------------------- */

/* A quotient in another order. */
static const double rate_limit = 1e-12;

static char folder[] = "/tmp/test_collectives.XXXXXX";

/* Runs one rank, or two where `launcher`; their output goes to `folder`/said. The exit status. */
static int try(const char *launcher, const char *run_dir, const char *arguments)
{
    char path[2][1024] = {""}, command[4000];
    ck_assert(launcher == NULL || ls_path_find("lockstep-launch", path[0], sizeof path[0]));
    ck_assert(ls_path_find("lockstep-collectives", path[1], sizeof path[1]));
    ls_text_put(command, sizeof command,
                "unset RANK WORLD_SIZE LS_NODE_ADDR; LS_RUN_DIR=%s %s %s %s --device=cpu %s "
                ">%s/said 2>&1",
                run_dir, path[0], launcher != NULL ? launcher : "", path[1], arguments, folder);
    int state = system(command);
    ck_assert(WIFEXITED(state));
    return WEXITSTATUS(state);
}

static void run(const char *launcher, const char *run_dir, const char *arguments)
{
    int status = try(launcher, run_dir, arguments);
    ck_assert_msg(status == 0, "%s: status %d", arguments, status);
}

static double member_of(const cJSON *event, const char *key)
{
    const cJSON *value = cJSON_GetObjectItem(event, key);
    ck_assert_msg(cJSON_IsNumber(value), "%s", key);
    return value->valuedouble;
}

/* The events of a rank; what is of this machine or this moment is judged and left out. */
static cJSON *events_of(int rank)
{
    static const char *const volatile_keys[] = {"engine_text", "transport",  "us",
                                                "algbw_gb_s",  "busbw_gb_s", "begun_ns",
                                                "done_ns",     "all_done_ns"};
    LS_TEXT(path, 300, "%s/run/rank%d.jsonl", folder, rank);
    char *text = ls_text_read(path), *rest = NULL;
    ck_assert_ptr_nonnull(text);
    cJSON *events = cJSON_CreateArray();
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        cJSON *event = ls_json_parse(line, NULL);
        ck_assert_msg(event != NULL, "%s", line);
        const char *name = ls_json_string(event, "event", "");
        if (strcmp(name, "start") == 0) {
            ck_assert_ptr_nonnull(strstr(ls_json_string(event, "engine_text", ""), "Gloo"));
            ck_assert_str_ne(ls_json_string(event, "transport", ""), "");
        } else if (strcmp(name, "collective") == 0) {
            double us = member_of(event, "bytes") / member_of(event, "algbw_gb_s") * 1e-3;
            ck_assert_double_eq_tol(member_of(event, "us") / us, 1, rate_limit);
            ck_assert(member_of(event, "busbw_gb_s") <= member_of(event, "algbw_gb_s"));
        }
        for (size_t k = 0; k < sizeof volatile_keys / sizeof volatile_keys[0]; k++) {
            cJSON_DeleteItemFromObject(event, volatile_keys[k]);
        }
        cJSON_AddItemToArray(events, event);
    }
    free(text);
    return events;
}

/* No rank leaves a barrier before the last has come; the clock is one for all. */
static void judge_barriers(cJSON *const rank[2])
{
    for (int i = 0; i < cJSON_GetArraySize(rank[0]); i++) {
        cJSON *event[2] = {cJSON_GetArrayItem(rank[0], i), cJSON_GetArrayItem(rank[1], i)};
        for (int k = 0; k < 2 && strcmp(ls_json_string(event[k], "event", ""), "barrier") == 0;
             k++) {
            ck_assert(member_of(event[k], "begin_ns") > 0);
            ck_assert(member_of(event[k], "end_ns") > member_of(event[0], "begin_ns"));
            ck_assert(member_of(event[k], "end_ns") > member_of(event[1], "begin_ns"));
        }
        for (int k = 0; k < 2; k++) {
            cJSON_DeleteItemFromObject(event[k], "begin_ns");
            cJSON_DeleteItemFromObject(event[k], "end_ns");
        }
    }
}

static const char *const jobs[] = {
    "--ops=gather,send --dtypes=int64,fp16 --counts=W+1,W-1 --offsets=1 --iters=2 --barriers=5",
    "--ops=all_reduce,all_gather --dtypes=bf16,int32,fp32 --counts=5 --data=rough --in-place=yes",
    "--ops=all_to_all,reduce --redop=max,prod --dtypes=uint8,fp32 --counts=3 --group-size=2",
    "--ops=none",
};

TEST(events_of_two_ranks)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    LS_TEXT(run_dir, 300, "%s/run", folder); /* the first job makes it */
    for (size_t k = 0; k < sizeof jobs / sizeof jobs[0]; k++) {
        run("--nproc-per-node=2", run_dir, jobs[k]);
        cJSON *rank[2] = {events_of(0), events_of(1)};
        ck_assert_int_eq(cJSON_GetArraySize(rank[0]), cJSON_GetArraySize(rank[1]));
        judge_barriers(rank);
        fprintf(to, "==== %s\n", jobs[k]);
        for (int r = 0; r < 2; r++) {
            const cJSON *event;
            cJSON_ArrayForEach(event, rank[r])
            {
                char *line = cJSON_PrintUnformatted(event);
                fprintf(to, "%d %s\n", r, line);
                cJSON_free(line);
            }
            cJSON_Delete(rank[r]);
        }
    }
    fclose(to);
    ls_path_remove_tree(folder);
    golden_check("suite/unit/reference/expected/collectives.jsonl", golden_sections(text, 0));
}

/* The table of one rank and of rank 0 of two; digits of times and rates as '#'. */
TEST(rows_of_the_table)
{
    static const char *const launchers[] = {NULL, "--nproc-per-node=2", NULL, NULL};
    static const char *const arguments[] = {
        "--ops=reduce_scatter,reduce,send --counts=0,1099 --dtypes=fp64",
        "--ops=reduce_scatter,reduce,send --counts=0,1099 --dtypes=fp64", "",
        "--ops=all --in-place=no --dtypes=uint8,bf16 --counts=1"};
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    LS_TEXT(said, 300, "%s/said", folder);
    for (int k = 0; k < 4; k++) {
        run(launchers[k], "", arguments[k]);
        char *table = ls_text_read(said), *rest = NULL;
        for (char *line = strtok_r(table, "\n", &rest); line != NULL;
             line = strtok_r(NULL, "\n", &rest)) {
            enum { TIMES = 62, TIMES_END = 91 };
            bool row = line[0] != '#' && strlen(line) > TIMES_END;
            fprintf(to, row ? "%.*s | %s\n" : "%.*s%s\n", row ? TIMES : 200, line,
                    row ? line + TIMES_END : "");
        }
        free(table);
    }
    fclose(to);
    ls_path_remove_tree(folder);
    golden_check("suite/unit/reference/expected/collectives.txt", text);
}

#define ALLOWED_COUNTS ": allowed: at most 32 whole numbers, W-1 or W+1, comma between"

#define ALLOWED_GROUPS \
    "; allowed: ranks of this world, 0 to 0, each in one group or in none, such as 0,1;2,3"

TEST(limits_of_arguments)
{
    static const struct {
        const char *argument, *said; /* NULL: taken */
    } rows[] = {
        {"--iters=0", NULL},
        {"--iters=1000000", NULL},
        {"--iters=1000001", "--iters '1000001': allowed: 0 to 1000000"},
        {"--barriers=1000001", "--barriers '1000001': allowed: 0 to 1000000"},
        {"--offsets=16", NULL},
        {"--offsets=17", "--offsets '17': allowed: 0 to 16"},
        {"--absent=16", "--absent '16': allowed: 0 to 15"},
        {"--absent=15",
         "--absent 15: allowed: a rank of this world, which has 1; at least 2 are needed"},
        {"--timeout=1000000", NULL},
        {"--timeout=0.5", NULL},
        {"--timeout=1000001", "--timeout '1000001': allowed: above 0, at most 1000000 s"},
        {"--timeout=0", "--timeout '0': allowed: above 0, at most 1000000 s"},
        {"--timeout=5s", "--timeout '5s': allowed: above 0, at most 1000000 s"},
        {"--counts=1099511627776", NULL},
        {"--counts=0", NULL},
        {"--counts=1099511627777", "--counts '1099511627777'" ALLOWED_COUNTS},
        {"--counts=9223372036854775808", "--counts '9223372036854775808'" ALLOWED_COUNTS},
        {"--counts=-1", "--counts '-1'" ALLOWED_COUNTS},
        {"--counts=1,", "--counts '1,'" ALLOWED_COUNTS},
        {"--counts=W+1x", "--counts 'W+1x'" ALLOWED_COUNTS},
        {"--counts=1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5", NULL},
        {"--counts=1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6",
         "--counts '1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7,8,9,1,2,3,4,5,"
         "6'" ALLOWED_COUNTS},
        {"--in-place=maybe", "--in-place 'maybe': allowed: no|yes|both"},
        {"--data=x", "--data 'x': allowed: exact|rough"},
        {"--comm=x", "--comm 'x': allowed: self|gloo|nccl"},
        {"--device=x", "--device 'x': allowed: auto|cpu|cuda"},
        {"--ops=al",
         "--ops 'al': allowed: all, none, or some of all_reduce, reduce_scatter, all_gather, "
         "broadcast, reduce, gather, scatter, send, all_to_all"},
        {"--ops=send,send",
         "--ops 'send,send': allowed: all, none, or some of all_reduce, reduce_scatter, "
         "all_gather, broadcast, reduce, gather, scatter, send, all_to_all"},
        {"--ops=reduce --redop=all", NULL},
        {"--ops=all -o min,prod", NULL},
        {"--redop=sum", "--redop sum: none of --ops reduces; all_reduce, reduce_scatter and "
                        "reduce do"},
        {"--redop=al", "--redop 'al': allowed: all, or some of sum, max, min, prod"},
        {"--redop=", "--redop '': allowed: all, or some of sum, max, min, prod"},
        {"--group-size=1", NULL},
        {"--group-size=17", "--group-size '17': allowed: 1 to 16"},
        {"--group-size=0", "--group-size '0': allowed: 1 to 16"},
        {"--group-size=2", "--group-size 2: allowed: a divisor of the number of ranks, which is 1"},
        {"--groups=0", NULL},
        {"--groups=0 --group-size=1", "--groups 0 and --group-size 1: give one of them"},
        {"--groups=1", "--groups '1': a rank is not of this world" ALLOWED_GROUPS},
        {"--groups=", "--groups '': a group is empty" ALLOWED_GROUPS},
        {"'--groups=0;'", "--groups '0;': a group is empty" ALLOWED_GROUPS},
        {"--groups=00x", "--groups '00x': not a list of ranks" ALLOWED_GROUPS},
        {"--groups=99999999999999999999",
         "--groups '99999999999999999999': not a list of ranks" ALLOWED_GROUPS},
        {"--ops=send --in-place=yes", "--in-place yes: none of --ops works in place"},
        {"--in-place=yes", NULL},
        {"--dtypes=fp32,fp3",
         "--dtypes 'fp32,fp3': allowed: some of fp32, fp16, bf16, fp64, int64, int32, uint8"},
        {"x", "unexpected argument 'x'"},
    };
    ck_assert_ptr_nonnull(mkdtemp(folder));
    LS_TEXT(path, 300, "%s/said", folder);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        LS_TEXT(arguments, 300, "--ops=none %s", rows[i].argument);
        int status = try(NULL, "", arguments);
        char *said = ls_text_read(path), *error = strstr(said, "error: ");
        LS_TEXT(line, 400, "error: %s\n", rows[i].said);
        ck_assert_msg(status == (rows[i].said == NULL ? 0 : LS_ERR_USAGE), "%s: status %d: %s",
                      arguments, status, said);
        ck_assert(rows[i].said != NULL || error == NULL);
        if (rows[i].said != NULL) {
            ck_assert_ptr_nonnull(error);
            ck_assert_str_eq(error, line);
        }
        free(said);
    }
    ls_path_remove_tree(folder);
}

TEST_MAIN("exercise", .timeout_s = 40)
