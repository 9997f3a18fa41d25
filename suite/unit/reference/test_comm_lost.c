/* The engines with operations under way: their order; what survivors see when a rank dies, does not
 * come or aborts. */
#include <check.h>
#include <poll.h>
#include <pthread.h>

#include "suite/unit/run_suite.h"
#include "comm_peer.h"

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

TEST(order_is_kept)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(3, overlapping, "gloo", code), 0);
}

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

RANGE_TEST(killed_rank, 2 * ENGINES, 5 * ENGINES)
{
    int code[WORLD_MAX];
    int world = _i / ENGINES;
    world_run(world, dying, (void *)engines[_i % ENGINES], code);
    for (int rank = 0; rank < world; rank++) {
        ck_assert_int_eq(code[rank], rank == 1 ? 128 + SIGKILL : LS_ERR_PEER_LOST);
    }
}

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
                         .label = "absent peer"};
        status = ls_comm_run(self.api, self.comm, &op, NULL);
        double waited_ms = ls_clock_ms_between(began_ns, ls_clock_ns());
        RANK_CHECK(waited_ms > 500 && waited_ms < 1900);
    }
    (void)ls_store_barrier(self.store, "end", 5.0);
    close_peer(&self);
    return status;
}

LOOP_TEST(missing_rank, ENGINES)
{
    int code[WORLD_MAX];
    world_run(3, absent, (void *)engines[_i], code);
    for (int rank = 0; rank < 3; rank++) {
        ck_assert_int_eq(code[rank], LS_ERR_PEER_LOST);
    }
}

/* Ranks that reduce by unlike operators wait for each other until the deadline. */
static int unlike(int rank, int world, int port, void *engine)
{
    peer self = open_peer(engine, rank, world, port, 1.0);
    ls_comm_op op = {.kind = LS_COMM_ALL_REDUCE,
                     .buffer = many,
                     .count = count_of(engine),
                     .redop = rank == 1 ? LS_COMM_MAX : LS_COMM_SUM,
                     .label = "unlike operators"};
    ls_status status = ls_comm_run(self.api, self.comm, &op, NULL);
    (void)ls_store_barrier(self.store, "end", 5.0);
    close_peer(&self);
    return status;
}

LOOP_TEST(unlike_operators, ENGINES)
{
    int code[WORLD_MAX];
    world_run(2, unlike, (void *)engines[_i], code);
    ck_assert_int_eq(code[0], LS_ERR_PEER_LOST);
    ck_assert_int_eq(code[1], LS_ERR_PEER_LOST);
}

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

LOOP_TEST(abort_ends_waits, ENGINES)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(2, aborting, (void *)engines[_i], code), 0);
}

TEST_MAIN("comm lost", .timeout_s = 60)
