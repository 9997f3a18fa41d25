/* The engines with operations under way: their order; what survivors see when a rank dies, does not
 * come or aborts. */
#include <poll.h>
#include <pthread.h>
#include <dirent.h>

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
        RANK_CHECK(handle[k].finished_ns >= handle[k].started_ns &&
                   handle[k].started_ns >= handle[k].begun_ns);
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
    return close_peer(&self);
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
    return close_peer(&self);
}

LOOP_TEST(abort_ends_waits, ENGINES)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(2, aborting, (void *)engines[_i], code), 0);
}

/* The Gloo engine while another process of this machine connects to every port that the ranks
 * listen on, as soon as it appears, and says nothing, garbage or what a Gloo pair would say. And
 * with a peer that never answers. */

enum { RANKS = 3, PORTS_MAX = 4096, LINE_MAX_BYTES = 512 };

/* ---- the intruder --------------------------------------------------------------------------- */

static int inodes_of(pid_t pid, unsigned long *inode, int most)
{
    char path[300], target[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *list = opendir(path);
    for (struct dirent *entry; list != NULL && (entry = readdir(list)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)pid, entry->d_name);
        ssize_t bytes = readlink(path, target, sizeof target - 1);
        target[bytes > 0 ? bytes : 0] = '\0';
        if (count < most && sscanf(target, "socket:[%lu]", &inode[count]) == 1) {
            count++;
        }
    }
    if (list != NULL) {
        closedir(list);
    }
    return count;
}

static void intrude(int port, int kind)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    /* a Gloo pair's message: bytes in all, code "ready to send", slot, three lengths */
    size_t words[6] = {sizeof words, 2, 77, 0, 8, 0};
    char garbage[200];
    memset(garbage, 'G', sizeof garbage);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* stays open */
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0 && kind > 0) {
        (void)send(fd, kind == 1 ? (void *)garbage : words, kind == 1 ? sizeof garbage : 48,
                   MSG_NOSIGNAL);
    }
}

/* Until it is killed. */
static int intruding(const pid_t *victim, int kind)
{
    static char seen[65536];
    unsigned long inode[64];
    char line[LINE_MAX_BYTES];
    for (;;) {
        for (int rank = 0; rank < RANKS; rank++) {
            int count = inodes_of(victim[rank], inode, 64);
            FILE *table = fopen("/proc/net/tcp", "re");
            while (table != NULL && fgets(line, sizeof line, table) != NULL) {
                unsigned port = 0, state = 0;
                unsigned long of = 0;
                if (sscanf(line, "%*d: %*x:%x %*x:%*x %x %*x:%*x %*x:%*x %*x %*u %*u %lu", &port,
                           &state, &of) != 3 ||
                    state != 10 || seen[port] != 0) {
                    continue;
                }
                for (int i = 0; i < count; i++) {
                    if (inode[i] == of) {
                        seen[port] = 1;
                        intrude((int)port, kind);
                    }
                }
            }
            if (table != NULL) {
                fclose(table);
            }
        }
    }
    return 0;
}

/* ---- launches under attack ------------------------------------------------------------------ */

static int reducing(int rank, int world, int port, void *context)
{
    char byte;
    RANK_CHECK(read(*(int *)context, &byte, 1) == 1);
    peer self = open_peer("gloo over TCP", rank, world, port, 10.0);
    one_operation(&self, LS_COMM_ALL_REDUCE, LS_F32, 999, 0, 0);
    one_operation(&self, LS_COMM_BROADCAST, LS_I64, 5, 0, 1);
    return close_peer(&self);
}

LOOP_TEST(intruders_stay_outside, 9)
{
    int go[2], failed = 0, port = world_free_port();
    pid_t pid[RANKS];
    ck_assert_int_eq(pipe(go), 0);
    for (int rank = 0; rank < RANKS; rank++) {
        pid[rank] = world_fork(rank, RANKS, port, reducing, &go[0]);
    }
    fflush(NULL);
    pid_t intruder = fork();
    if (intruder == 0) {
        ck_assert_int_eq(write(go[1], "123", RANKS), RANKS);
        alarm(WORLD_LIMIT_S);
        _exit(intruding(pid, _i % 3));
    }
    for (int rank = 0; rank < RANKS; rank++) {
        failed += world_join(pid[rank]) != 0;
    }
    kill(intruder, SIGKILL);
    ck_assert_int_eq(world_join(intruder), 128 + SIGKILL);
    ck_assert_int_eq(failed, 0);
}

/* ---- a peer that never answers -------------------------------------------------------------- */

/* Rank 0 publishes a port at which connections are taken and nothing is said. */
static int silent(int rank, int world, int port, void *context)
{
    ls_store *store = NULL;
    ls_comm *comm = NULL;
    const ls_comm_api *api = NULL;
    ls_store_options where = world_store(rank, world, port, 10);
    (void)context;
    RANK_CHECK(ls_store_open(&where, &store) == LS_OK);
    if (rank == 0) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t bytes = sizeof at;
        char text[64];
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        RANK_CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
        RANK_CHECK(listen(fd, 8) == 0);
        RANK_CHECK(getsockname(fd, (struct sockaddr *)&at, &bytes) == 0);
        snprintf(text, sizeof text, "127.0.0.1 %d", ntohs(at.sin_port));
        RANK_CHECK(ls_store_set(store, "gloo/test/address/0", text, strlen(text)) == LS_OK);
        RANK_CHECK(ls_store_barrier(store, "end", 10) == LS_OK);
    } else {
        ls_comm_options options = {
            .rank = rank, .world = world, .store = store, .name = "test", .timeout_s = 1};
        RANK_CHECK(ls_comm_load("gloo", &api) == LS_OK);
        int64_t begun_ns = ls_clock_ns();
        RANK_CHECK(api->open(&options, &comm) == LS_ERR_RENDEZVOUS);
        double waited_ms = ls_clock_ms_between(begun_ns, ls_clock_ns());
        RANK_CHECK(waited_ms > 900 && waited_ms < 2500);
        RANK_CHECK(ls_store_barrier(store, "end", 10) == LS_OK);
    }
    ls_store_close(store, 5.0);
    return 0;
}

TEST(silent_peer)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(2, silent, NULL, code), 0);
}

TEST_MAIN("comm lost", .timeout_s = 60)
