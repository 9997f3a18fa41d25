/* Connections between all pairs of ranks: each ends at the right rank, and who is missing is named.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>

#include "harness/store/gate.h"
#include "harness/store/mesh.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "world.h"

static ls_status connect_all(ls_store *store, const char *name, int rank, int world,
                             const char *address, double limit_s, int *fd)
{
    struct sockaddr_in own = {.sin_family = AF_INET};
    LS_ASSERT(inet_pton(AF_INET, address, &own.sin_addr) == 1);
    return ls_mesh_connect(store, name, rank, world, (struct sockaddr *)&own, sizeof own,
                           ls_clock_after(limit_s), fd);
}

/* Each pair exchanges who they are; two meshes do not mix. */
static int meshing(int rank, int world, int port, void *context)
{
    char longest[LS_STORE_KEY_BYTES_MAX - 9]; /* with "/address/0" */
    const char *const names[] = {"data", longest};
    ls_store *store = NULL;
    ls_store_options options = world_store(rank, world, port, 20);
    int fd[2][WORLD_MAX];
    (void)context;
    memset(longest, 'l', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    RANK_CHECK(ls_store_open(&options, &store) == LS_OK);
    for (int m = 0; m < 2; m++) {
        RANK_CHECK(connect_all(store, names[m], rank, world, "127.0.0.1", 20, fd[m]) == LS_OK);
        RANK_CHECK(fd[m][rank] == -1);
        for (int other = 0; other < world; other++) {
            unsigned char me[2] = {(unsigned char)m, (unsigned char)rank};
            RANK_CHECK(other == rank || send(fd[m][other], me, 2, MSG_NOSIGNAL) == 2);
        }
    }
    for (int m = 0; m < 2; m++) {
        for (int other = 0; other < world; other++) {
            unsigned char who[2];
            int no_delay = 0;
            socklen_t bytes = sizeof no_delay;
            if (other == rank) {
                continue;
            }
            RANK_CHECK(ls_gate_transfer(fd[m][other], POLLIN, who, 2, ls_clock_after(10)) == 1);
            RANK_CHECK(who[0] == m && who[1] == other);
            RANK_CHECK(fcntl(fd[m][other], F_GETFL) & O_NONBLOCK);
            RANK_CHECK(getsockopt(fd[m][other], IPPROTO_TCP, TCP_NODELAY, &no_delay, &bytes) == 0);
            RANK_CHECK(no_delay != 0);
            RANK_CHECK(ls_gate_transfer(fd[m][other], POLLIN, who, 1, ls_clock_after(0)) == 0);
        }
    }
    RANK_CHECK(ls_store_barrier(store, "end", -1) == LS_OK);
    ls_store_close(store, 10);
    return 0;
}

LOOP_TEST(each_pair_is_connected, 3)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(1 + 2 * _i, meshing, NULL, code), 0);
}

static ls_store *lone_store(void)
{
    ls_store *store = NULL;
    ls_store_options options = world_store(0, 1, 0, 20);
    ck_assert_int_eq(ls_store_open(&options, &store), LS_OK);
    return store;
}

/* Rank 0 of three: wrong claims are refused, rank 2 comes twice, rank 1 does not. Descriptor 0 is
 * free, and so becomes rank 2's connection. */
static void *call_rank_0(void *context)
{
    static const ls_gate_claim claims[] = {{.rank = 0, .world = 3},
                                           {.rank = 3, .world = 3},
                                           {.rank = 2, .world = 2},
                                           {.rank = 2, .world = 3},
                                           {.rank = 2, .world = 3}};
    ls_store *store = context;
    void *value = NULL;
    size_t bytes;
    char why[256];
    int port = 0, fd;
    unsigned char key[LS_SHA256_BYTES];
    ls_store_key(store, "mesh", key);
    ck_assert_int_eq(ls_store_get(store, "mesh/address/0", 5, &value, &bytes), LS_OK);
    ck_assert_int_eq(sscanf(value, "127.0.0.1 %d", &port), 1);
    free(value);
    struct sockaddr_in at = world_loopback(port);
    close(STDIN_FILENO);
    for (size_t i = 0; i < sizeof claims / sizeof *claims; i++) {
        pid_t pid = fork(); /* whose own descriptors are others */
        if (pid == 0) {
            _exit(ls_gate_enter((struct sockaddr *)&at, sizeof at, key, &claims[i],
                                ls_clock_after(5), ls_clock_after(5), &fd, why,
                                sizeof why) != LS_GATE_IN);
        }
        ck_assert_int_eq(world_join(pid), 0);
    }
    return NULL;
}

TEST(the_missing_one_is_named)
{
    static const char *const refused[] = {"0 of 3", "3 of 3", "2 of 2"};
    int fd[3], end = 0;
    ls_store *store = lone_store();
    pthread_t thread;
    double after_s = 0;
    catch_lines();
    ck_assert_int_eq(pthread_create(&thread, NULL, call_rank_0, store), 0);
    ck_assert_int_eq(connect_all(store, "mesh", 0, 3, "127.0.0.1", 1, fd), LS_ERR_RENDEZVOUS);
    pthread_join(thread, NULL);
    const char *at = caught_text();
    ck_assert(fd[0] == -1 && fd[1] == -1 && fd[2] == -1);
    ck_assert_int_eq(fcntl(STDIN_FILENO, F_GETFD), -1);
    for (int i = 0; i < 3; i++) {
        char rank[8] = "";
        at = strstr(at, ": ");
        ck_assert(sscanf(at, ": warning: mesh: refused 127.0.0.1:%*d: rank %6[^\n]\n%n", rank,
                         &end) == 1);
        ck_assert_str_eq(rank, refused[i]);
        at += end;
    }
    at = strstr(at, ": ");
    end = 0;
    ck_assert(sscanf(at,
                     ": error: mesh: rank 1 did not connect to rank 0 of 3 in %lf s, nor did 0 "
                     "others\n%n",
                     &after_s, &end) == 1);
    ck_assert(end > 0 && at[end] == '\0');
    ck_assert(after_s >= 1 && after_s < 20);
    ls_store_close(store, 0);
}

TEST(all_the_missing_are_counted)
{
    int fd[4];
    ls_store *store = lone_store();
    catch_lines();
    ck_assert_int_eq(connect_all(store, "none", 0, 4, "127.0.0.1", 0.01, fd), LS_ERR_RENDEZVOUS);
    double after_s = 0;
    int end = 0;
    ck_assert(sscanf(caught_lines(),
                     "error: none: rank 1 did not connect to rank 0 of 4 in %lf s, nor did 2 "
                     "others%n",
                     &after_s, &end) == 1);
    /* the deadline, and less than the limit of the test */
    ck_assert(end > 0 && after_s >= 0.01 && after_s < 20);
    ls_store_close(store, 0);
}

TEST(an_address_that_is_not_published)
{
    int fd[2];
    ls_store *store = lone_store();
    int64_t began_ns = ls_clock_ns();
    catch_lines();
    ck_assert_int_eq(connect_all(store, "mesh", 1, 2, "127.0.0.1", 0.1, fd), LS_ERR_RENDEZVOUS);
    double waited_ms = ls_clock_ms_between(began_ns, ls_clock_ns());
    ck_assert(waited_ms >= 99 && waited_ms < 10e3); /* the store's limit is in whole ms */
    ck_assert_ptr_nonnull(strstr(caught_text(), "'mesh/address/0'"));
    ls_store_close(store, 0);
}

LOOP_TEST(an_address_that_is_none, 4)
{
    static const struct {
        const char *own, *published, *said;
        ls_status status;
    } rows[] = {
        {"127.0.0.1", "127.0.0.1", "rank 0 has published '127.0.0.1', which is no address\n",
         LS_ERR_RENDEZVOUS},
        {"127.0.0.1", "nowhere 1", "rank 0 has published 'nowhere', which is no address\n",
         LS_ERR_RENDEZVOUS},
        {"127.0.0.1", "127.0.0.1 1", "rank 1 of 2 did not reach rank 0 at 127.0.0.1 port 1 in ",
         LS_ERR_RENDEZVOUS},
        {"198.51.100.7", "127.0.0.1 1", "rank 1 cannot listen: Cannot assign requested address\n",
         LS_ERR_INFRA},
    };
    int fd[2];
    ls_store *store = lone_store();
    ck_assert_int_eq(
        ls_store_set(store, "mesh/address/0", rows[_i].published, strlen(rows[_i].published)),
        LS_OK);
    catch_lines();
    ck_assert_int_eq(connect_all(store, "mesh", 1, 2, rows[_i].own, 10, fd), rows[_i].status);
    const char *said = caught_lines();
    ck_assert_msg(strncmp(said, "error: mesh: ", 13) == 0 &&
                      strncmp(said + 13, rows[_i].said, strlen(rows[_i].said)) == 0 &&
                      strchr(said, '\n')[1] == '\0',
                  "%s", said);
    if (_i == 2) {
        char *rest = NULL;
        double after_s = strtod(said + 13 + strlen(rows[_i].said), &rest);
        ck_assert(after_s > 0 && after_s < 1);
        ck_assert_str_eq(rest, " s: Connection refused\n");
    }
    ck_assert(fd[0] == -1 && fd[1] == -1);
    ls_store_close(store, 0);
}

TEST_MAIN("mesh", .timeout_s = 60)
