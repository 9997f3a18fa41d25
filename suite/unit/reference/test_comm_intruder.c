/* The Gloo engine while another process of this machine connects to every port that the ranks
 * listen on, as soon as it appears, and says nothing, garbage or what a Gloo pair would say. And
 * with a peer that never answers. */
#include <check.h>
#include <dirent.h>
#include <poll.h>

#include "comm_peer.h"
#include "suite/unit/run_suite.h"

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
    close_peer(&self);
    return 0;
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
    ls_store_options where = {.rank = rank,
                              .world = world,
                              .address = "127.0.0.1",
                              .port = port,
                              .run_id = "test_comm",
                              .timeout_s = 10};
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

TEST_MAIN("comm intruder", .timeout_s = 60)
