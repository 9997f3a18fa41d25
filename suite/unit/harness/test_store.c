/* The rendezvous store: the value of a key, the deadlines of waits, and the message of each rank if
 * the world does not come together, read from the ranks' standard error. Connections between all
 * pairs of ranks: each ends at the right rank, and who is missing is named. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>

#include "harness/store/gate.h"
#include "harness/store/store_server.h"
#include "harness/store/mesh.h"
#include "suite/unit/run_suite.h"
#include "world.h"
#include "suite/unit/caught.h"

static ls_store *lone_store(int port, double timeout_s)
{
    ls_store *store = NULL;
    ls_store_options options = world_store(0, 1, port, timeout_s);
    ck_assert_int_eq(ls_store_open(&options, &store), LS_OK);
    return store;
}

/* ---- messages ------------------------------------------------------------------------------- */

enum { SAID_BYTES = 1 << 14 };

/* From here on standard error goes into a file without a name, inherited by forked ranks. */
static int listen_to_errors(void)
{
    int fd = memfd_create("errors", MFD_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_ge(fcntl(fd, F_SETFL, O_APPEND), 0);
    ck_assert_int_ge(dup2(fd, STDERR_FILENO), 0);
    return fd;
}

static void assert_said(int fd, const char *text)
{
    static char said[SAID_BYTES];
    ssize_t bytes = pread(fd, said, sizeof said - 1, 0);
    ck_assert_int_ge(bytes, 0);
    said[bytes] = '\0';
    ck_assert_msg(strstr(said, text) != NULL, "'%s' is not in:\n%s", text, said);
}

/* ---- keys ----------------------------------------------------------------------------------- */

static void assert_value(ls_store *store, const char *key, const void *wanted, size_t wanted_bytes)
{
    void *value = NULL;
    size_t bytes = 0;
    ck_assert_int_eq(ls_store_get(store, key, 1.0, &value, &bytes), LS_OK);
    ck_assert_uint_eq(bytes, wanted_bytes);
    ck_assert_mem_eq(value, wanted, bytes);
    ck_assert_int_eq(((char *)value)[bytes], '\0');
    free(value);
}

TEST(values)
{
    ls_store *store = lone_store(0, 5.0);
    char binary[256];
    for (int i = 0; i < 256; i++) {
        binary[i] = (char)(255 - i);
    }
    ck_assert_int_eq(ls_store_set(store, "a", "first", 5), LS_OK);
    assert_value(store, "a", "first", 5);
    ck_assert_int_eq(ls_store_set(store, "a", "2nd", 3), LS_OK);
    assert_value(store, "a", "2nd", 3);
    ck_assert_int_eq(ls_store_set(store, "empty", NULL, 0), LS_OK);
    assert_value(store, "empty", "", 0);
    ck_assert_int_eq(ls_store_set(store, "binary", binary, sizeof binary), LS_OK);
    assert_value(store, "binary", binary, sizeof binary);
    ls_store_close(store, 0);
}

TEST(sizes_are_bounded)
{
    listen_to_errors();
    ls_store *store = lone_store(0, 5.0);
    size_t most = LS_STORE_VALUE_BYTES_MAX;
    char *large = malloc(most + 1);
    ck_assert_ptr_nonnull(large);
    for (size_t i = 0; i <= most; i++) {
        large[i] = (char)(i * 31 >> 3);
    }
    ck_assert_int_eq(ls_store_set(store, "large", large, most), LS_OK);
    assert_value(store, "large", large, most);
    ck_assert_int_eq(ls_store_set(store, "larger", large, most + 1), LS_ERR_USAGE);
    char key[LS_STORE_KEY_BYTES_MAX + 2];
    memset(key, 'k', sizeof key);
    key[LS_STORE_KEY_BYTES_MAX] = '\0';
    ck_assert_int_eq(ls_store_set(store, key, "v", 1), LS_OK);
    assert_value(store, key, "v", 1);
    key[LS_STORE_KEY_BYTES_MAX] = 'k';
    key[LS_STORE_KEY_BYTES_MAX + 1] = '\0';
    ck_assert_int_eq(ls_store_set(store, key, "v", 1), LS_ERR_USAGE);
    free(large);
    ls_store_close(store, 0);
}

TEST(missing_key)
{
    int errors = listen_to_errors();
    ls_store *store = lone_store(0, 5.0);
    void *value = NULL;
    size_t bytes = 77;
    int64_t began_ns = ls_clock_ns();
    ck_assert_int_eq(ls_store_get(store, "missing", 0.2, &value, &bytes), LS_ERR_RENDEZVOUS);
    double waited_ms = ls_clock_ms_between(began_ns, ls_clock_ns());
    ck_assert_double_ge(waited_ms, 195);
    ck_assert_double_lt(waited_ms, 2000);
    ck_assert_ptr_null(value); /* outputs are written only on success */
    ck_assert_uint_eq(bytes, 77);
    assert_said(errors, "'missing'");
    ck_assert_int_eq(ls_store_set(store, "missing", "now", 3), LS_OK);
    assert_value(store, "missing", "now", 3);
    ls_store_close(store, 0);
}

static void *set_late(void *store)
{
    ck_assert_int_eq(ls_store_set(store, "late", "x", 1), LS_OK);
    return NULL;
}

static void *get_late(void *store)
{
    void *value = NULL;
    size_t bytes = 0;
    ls_status status = ls_store_get(store, "late", 10.0, &value, &bytes);
    free(value);
    return status == LS_OK && bytes == 1 ? store : NULL;
}

TEST(get_before_set)
{
    enum { GETTERS = 6 };
    ls_store *store = lone_store(0, 10.0);
    pthread_t getter[GETTERS], setter;
    for (int i = 0; i < GETTERS; i++) {
        ck_assert_int_eq(pthread_create(&getter[i], NULL, get_late, store), 0);
    }
    /* a get with a deadline in this thread gives the others the time to be waiting, and shows that
     * their waiting does not hold up this one */
    void *value = NULL;
    size_t bytes = 0;
    listen_to_errors();
    ck_assert_int_eq(ls_store_get(store, "never", 0.1, &value, &bytes), LS_ERR_RENDEZVOUS);
    ck_assert_int_eq(pthread_create(&setter, NULL, set_late, store), 0);
    for (int i = 0; i < GETTERS; i++) {
        void *result = NULL;
        pthread_join(getter[i], &result);
        ck_assert_ptr_eq(result, store);
    }
    pthread_join(setter, NULL);
    ls_store_close(store, 0);
}

/* Which sums there are: test_store_server.c. */
TEST(adding)
{
    int errors = listen_to_errors();
    ls_store *store = lone_store(0, 5.0);
    int64_t sum = -1;
    ck_assert_int_eq(ls_store_add(store, "n", -5, &sum), LS_OK);
    ck_assert_int_eq(sum, -5);
    assert_value(store, "n", "-5", 2);
    ck_assert_int_eq(ls_store_set(store, "n", "12x", 3), LS_OK);
    ck_assert_int_eq(ls_store_add(store, "n", 1, &sum), LS_ERR_USAGE);
    ck_assert_int_eq(sum, -5);
    assert_value(store, "n", "12x", 3);
    assert_said(errors, "not a decimal number");
    ls_store_close(store, 0);
}

/* ---- ranks ---------------------------------------------------------------------------------- */

static ls_store *rank_store(int rank, int world, int port, double timeout_s)
{
    ls_store *store = NULL;
    ls_store_options options = world_store(rank, world, port, timeout_s);
    RANK_CHECK(ls_store_open(&options, &store) == LS_OK);
    return store;
}

static int counting(int rank, int world, int port, void *context)
{
    enum { TIMES = 50 };
    (void)context;
    ls_store *store = rank_store(rank, world, port, 20.0);
    int64_t sum = 0;
    for (int i = 0; i < TIMES; i++) {
        int64_t now = 0;
        RANK_CHECK(ls_store_add(store, "n", rank + 1, &now) == LS_OK);
        RANK_CHECK(now > sum); /* every answer is a sum that no other rank received */
        sum = now;
    }
    RANK_CHECK(ls_store_barrier(store, "counted", -1) == LS_OK);
    RANK_CHECK(ls_store_add(store, "n", 0, &sum) == LS_OK);
    RANK_CHECK(sum == TIMES * world * (world + 1) / 2);
    char mine[16];
    void *values[WORLD_MAX];
    size_t bytes[WORLD_MAX];
    snprintf(mine, sizeof mine, "%.*s", rank, "abcdefgh"); /* rank 0's is empty */
    RANK_CHECK(ls_store_exchange(store, "digest", mine, strlen(mine), values, bytes) == LS_OK);
    for (int other = 0; other < world; other++) {
        RANK_CHECK(bytes[other] == (size_t)other);
        RANK_CHECK(memcmp(values[other], "abcdefgh", bytes[other]) == 0);
        free(values[other]);
    }
    char address[64];
    ls_store_local_address(store, address, sizeof address);
    RANK_CHECK(strcmp(address, "127.0.0.1") == 0);
    ls_store_close(store, 10.0);
    return 0;
}

TEST(many_ranks)
{
    int code[WORLD_MAX];
    ck_assert_int_eq(world_run(6, counting, NULL, code), 0);
}

/* The answer to a wrong second rank; rank 0 keeps waiting for the right one, until its own
 * deadline. */
typedef struct intruder {
    int rank, world;
    const char *run_id;
    ls_status status;
    const char *said, *said_at_0;
} intruder;

static const intruder intruders[] = {
    {1, 2, "other", LS_ERR_RENDEZVOUS, "belongs to another job", "which belongs to another job"},
    {2, 3, "secret", LS_ERR_USAGE, "rank 2 has world size 3, rank 0 has 2", "refused 127.0.0.1"},
    {1, 3, "secret", LS_ERR_USAGE, "rank 1 has world size 3, rank 0 has 2", "missing of 2: rank 1"},
};

static int intruding(int rank, int world, int port, void *context)
{
    const intruder *who = context;
    ls_store *store = NULL;
    ls_store_options options = world_store(rank, world, port, rank == 0 ? 0.5 : 5.0);
    if (rank == 1) {
        options.rank = who->rank;
        options.world = who->world;
        options.run_id = who->run_id;
    }
    return ls_store_open(&options, &store);
}

LOOP_TEST(wrong_world_or_token, 3)
{
    int errors = listen_to_errors(), code[WORLD_MAX];
    intruder who = intruders[_i];
    world_run(2, intruding, &who, code);
    ck_assert_int_eq(code[0], LS_ERR_RENDEZVOUS);
    ck_assert_int_eq(code[1], who.status);
    assert_said(errors, who.said);
    assert_said(errors, who.said_at_0);
    assert_said(errors, "missing of 2: rank 1");
}

static int twice(int rank, int world, int port, void *context)
{
    (void)world;
    (void)context;
    ls_store *store = NULL;
    ls_store_options options = world_store(rank == 2 ? 1 : rank, 3, port, 1.0);
    return ls_store_open(&options, &store); /* ranks 0, 1 and 1 of 3: rank 2 never comes */
}

TEST(duplicate_and_missing_rank)
{
    int errors = listen_to_errors(), code[WORLD_MAX];
    int64_t began_ns = ls_clock_ns();
    world_run(3, twice, NULL, code);
    double waited_ms = ls_clock_ms_between(began_ns, ls_clock_ns());
    ck_assert_double_ge(waited_ms, 995);  /* at T */
    ck_assert_double_lt(waited_ms, 1900); /* not at 2 T */
    ck_assert_int_eq(code[0], LS_ERR_RENDEZVOUS);
    ck_assert_int_eq(code[1] + code[2], LS_ERR_USAGE + LS_ERR_RENDEZVOUS); /* either came first */
    assert_said(errors, "rank 1 has joined twice: first as 127.0.0.1:");
    assert_said(errors, "missing of 3: rank 2");
}

/* Those that wait say for what, rank 0 after 10 s for the ranks that have not joined, the others
 * after 5 s for its store, and what to do. */
LOOP_TEST(waits_are_said, 3)
{
    static const struct {
        const char *address, *said;
        int rank, port;
    } rows[] = {
        {"127.0.0.1", " s (limit 10.5 s): all ranks to join, missing of 3: rank 1, 2\n", 0, 0},
        {"127.0.0.1",
         " s (limit 10.5 s): the store of rank 0 at 127.0.0.1 port 1: Connection refused; nothing "
         "listens there: is rank 0 started, with this port?\n",
         1, 1},
        {"nosuch.invalid",
         " not known; give MASTER_ADDR as a number, or add the name to /etc/hosts\n", 1, 1},
    };
    int errors = listen_to_errors();
    ls_store *store = NULL;
    ls_store_options options = world_store(rows[_i].rank, 3, rows[_i].port, 10.5);
    options.address = rows[_i].address;
    ck_assert_int_eq(ls_store_open(&options, &store), LS_ERR_RENDEZVOUS);
    assert_said(errors, "waiting for ");
    assert_said(errors, rows[_i].said);
}

/* An address of this machine that is no loopback, or "". */
static void outside_address(char *text, size_t bytes)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(9)};
    socklen_t at_bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    text[0] = '\0';
    inet_pton(AF_INET, "192.0.2.1", &at.sin_addr); /* reserved: any way out will do */
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0 &&
        getsockname(fd, (struct sockaddr *)&at, &at_bytes) == 0) {
        inet_ntop(AF_INET, &at.sin_addr, text, (socklen_t)bytes);
    }
    close(fd);
}

/* Rank 1's MASTER_ADDR is a loopback, as Debian's /etc/hosts has its machine's own name. */
static int by_loopback(int rank, int world, int port, void *context)
{
    const char *outside = context;
    ls_store *store = NULL;
    ls_store_options options = world_store(rank, world, port, 10.0);
    options.address = rank == 1 ? "127.0.0.1" : outside;
    RANK_CHECK(ls_store_open(&options, &store) == LS_OK);
    char address[64];
    ls_store_local_address(store, address, sizeof address);
    RANK_CHECK(strcmp(address, outside) == 0 ||
               (strncmp(address, "::ffff:", 7) == 0 && strcmp(address + 7, outside) == 0));
    ls_store_close(store, 10.0);
    return 0;
}

TEST(a_rank_on_rank_0s_machine_has_an_address_for_others)
{
    char outside[INET_ADDRSTRLEN];
    int code[WORLD_MAX];
    outside_address(outside, sizeof outside);
    if (outside[0] != '\0') { /* a machine without a network has no others */
        ck_assert_int_eq(world_run(3, by_loopback, outside, code), 0);
    }
}

TEST(wrong_options)
{
    int errors = listen_to_errors();
    ls_store *store = NULL;
    ls_store_options options = world_store(2, 2, 1, 1.0);
    ck_assert_int_eq(ls_store_open(&options, &store), LS_ERR_USAGE);
    assert_said(errors, "rank 2 is out of range in a world of 2, allowed: 0 to 1");
    options = world_store(0, LS_STORE_CLIENTS_MAX / 2 + 1, 1, 1.0);
    ck_assert_int_eq(ls_store_open(&options, &store), LS_ERR_USAGE);
    assert_said(errors, "ranks, allowed: 1 to ");
    char long_text[LS_STORE_KEY_BYTES_MAX + 2] = "";
    memset(long_text, 'l', sizeof long_text - 1);
    options = world_store(0, 1, 0, 1.0);
    options.run_id = long_text;
    ck_assert_int_eq(ls_store_open(&options, &store), LS_ERR_USAGE);
    options = world_store(0, 1, 0, 1.0);
    options.address = long_text;
    ck_assert_int_eq(ls_store_open(&options, &store), LS_ERR_USAGE);
    assert_said(errors, "run id of 6 bytes or address of ");
    options = world_store(0, 20, 0, 0.1);
    ck_assert_int_eq(ls_store_open(&options, &store), LS_ERR_RENDEZVOUS);
    assert_said(errors, "missing of 20: rank 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 "
                        "...");
    options = world_store(0, 17, 0, 0.1);
    ck_assert_int_eq(ls_store_open(&options, &store), LS_ERR_RENDEZVOUS);
    assert_said(errors, "missing of 17: rank 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, "
                        "16\n");
    options = world_store(0, 2, 70000, 1.0);
    ck_assert_int_eq(ls_store_open(&options, &store), LS_ERR_USAGE);
    options = world_store(0, 2, 1, 0);
    ck_assert_int_eq(ls_store_open(&options, &store), LS_ERR_USAGE);
    options = world_store(1, 2, world_free_port(), 0.3);
    ck_assert_int_eq(ls_store_open(&options, &store), LS_ERR_RENDEZVOUS);
    assert_said(errors, strerror(ECONNREFUSED));
}

/* ---- deaths --------------------------------------------------------------------------------- */

static int dying(int rank, int world, int port, void *context)
{
    (void)context;
    ls_store *store = rank_store(rank, world, port, 20.0);
    const char *key = "never";
    int gone = 0;
    RANK_CHECK(ls_store_who_left(store, &gone) == LS_OK);
    RANK_CHECK(rank == 2 || gone == -1); /* rank 1 may have died before rank 2 asked */
    if (rank == 1) {                     /* dies while the server owes it a reply */
        alarm(1);
        (void)ls_store_wait(store, &key, 1, 15.0);
    }
    RANK_CHECK(ls_store_set(store, rank == 0 ? "zero" : "two", "x", 1) == LS_OK);
    key = rank == 0 ? "two" : "zero";
    RANK_CHECK(ls_store_wait(store, &key, 1, 10.0) == LS_OK);
    int64_t began_ns = ls_clock_ns();
    int left = -1;
    while (left < 0 && ls_clock_ms_between(began_ns, ls_clock_ns()) < 10e3) {
        RANK_CHECK(ls_store_who_left(store, &left) == LS_OK);
    }
    RANK_CHECK(left == 1);
    RANK_CHECK(ls_store_set(store, rank == 0 ? "zero knows" : "two knows", "x", 1) == LS_OK);
    key = rank == 0 ? "two knows" : "zero knows";
    RANK_CHECK(ls_store_wait(store, &key, 1, 10.0) == LS_OK);
    began_ns = ls_clock_ns();
    ls_store_close(store, 10.0); /* does not linger for the dead */
    return ls_clock_ms_between(began_ns, ls_clock_ns()) < 5000 ? 0 : 1;
}

TEST(killed_client)
{
    int code[WORLD_MAX];
    listen_to_errors();
    world_run(3, dying, NULL, code);
    ck_assert_int_eq(code[0], 0);
    ck_assert_int_eq(code[1], 128 + SIGALRM);
    ck_assert_int_eq(code[2], 0);
}

static int server_dies(int rank, int world, int port, void *context)
{
    (void)context;
    ls_store *store = rank_store(rank, world, port, 20.0);
    if (rank == 0) {
        const char *key = "hello";
        RANK_CHECK(ls_store_wait(store, &key, 1, 10.0) == LS_OK);
        raise(SIGKILL);
    }
    /* rank 0 may be gone before the reply to this is out */
    ls_status status = ls_store_set(store, "hello", "", 0);
    RANK_CHECK(status == LS_OK || status == LS_ERR_PEER_LOST);
    const char *key = "never";
    int64_t began_ns = ls_clock_ns();
    RANK_CHECK(ls_store_wait(store, &key, 1, 15.0) == LS_ERR_PEER_LOST);
    RANK_CHECK(ls_store_set(store, "more", "", 0) == LS_ERR_PEER_LOST);
    RANK_CHECK(ls_clock_ms_between(began_ns, ls_clock_ns()) < 7e3);
    ls_store_close(store, 1.0);
    return 0;
}

TEST(killed_server)
{
    int code[WORLD_MAX];
    listen_to_errors();
    world_run(2, server_dies, NULL, code);
    ck_assert_int_eq(code[0], 128 + SIGKILL);
    ck_assert_int_eq(code[1], 0);
}

/* ---- false servers -------------------------------------------------------------------------- */

/* What listens on rank 0's port knows the key and breaks the protocol: joining goes on until its
 * deadline, a request ends with the rank as lost. */
typedef struct falsehood {
    ls_store_header welcome, reply; /* magic 0: the connection ends instead */
    ls_status status;
    const char *said;
} falsehood;

enum { ENDS_EARLY = 100 }; /* value bytes that are announced and do not come */
static const falsehood falsehoods[] = {
    {{0}, {0}, LS_ERR_RENDEZVOUS, "rank 0 was reached, then closed the connection"},
    {{.magic = 1}, {0}, LS_ERR_RENDEZVOUS, "rank 0 was reached, then closed the connection"},
    {{.magic = LS_STORE_MAGIC, .value_bytes = LS_STORE_VALUE_BYTES_MAX + 1},
     {0},
     LS_ERR_RENDEZVOUS,
     "rank 0 was reached, then closed the connection"},
    {{.magic = LS_STORE_MAGIC, .value_bytes = ENDS_EARLY},
     {0},
     LS_ERR_RENDEZVOUS,
     "rank 0 was reached, then closed the connection"},
    {{.magic = LS_STORE_MAGIC}, {0}, LS_ERR_PEER_LOST, "has left (key 'k')"},
    {{.magic = LS_STORE_MAGIC},
     {.magic = 1},
     LS_ERR_PEER_LOST,
     "has left (key 'k'): Protocol error"},
    {{.magic = LS_STORE_MAGIC},
     {.magic = LS_STORE_MAGIC, .value_bytes = LS_STORE_VALUE_BYTES_MAX + 1},
     LS_ERR_PEER_LOST,
     "has left (key 'k'): Protocol error"},
    {{.magic = LS_STORE_MAGIC}, {.magic = LS_STORE_MAGIC}, LS_OK, ""},
};

static int deceived(int rank, int world, int port, void *context)
{
    const falsehood *f = context;
    ls_store *store = NULL;
    ls_store_options options =
        world_store(rank, world, port, f->status == LS_ERR_RENDEZVOUS ? 0.3 : 5);
    ls_status status = ls_store_open(&options, &store);
    return status == LS_OK ? ls_store_set(store, "k", "v", 1) : status;
}

static void answer(int fd, const ls_store_header *header)
{
    unsigned char bytes[LS_STORE_HEADER_BYTES];
    ls_store_wire_put(header, bytes);
    if (header->magic != 0) {
        ck_assert_int_eq(send(fd, bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    }
}

ROWS_TEST(a_false_server_is_found_out, falsehoods)
{
    const falsehood *f = &falsehoods[_i];
    int errors = listen_to_errors();
    struct sockaddr_in at = world_loopback(0);
    int port = world_free_port();
    unsigned char key[LS_SHA256_BYTES], request[LS_STORE_HEADER_BYTES + 2];
    ls_gate *gate = NULL;
    ls_gate_guest guest;
    ls_store_options options = world_store(0, 2, port, 5.0);
    at.sin_port = htons((uint16_t)port);
    ls_store_server_key(&options, key);
    ck_assert_int_eq(ls_gate_open("false", (struct sockaddr *)&at, sizeof at, key, 4, &gate),
                     LS_OK);
    pid_t pid = world_fork(1, 2, port, deceived, (void *)f);
    int state, code = -1;
    while (code < 0) {
        (void)ls_clock_poll(ls_gate_fd(gate), POLLIN, ls_clock_after(0.02));
        while (ls_gate_next(gate, &guest)) {
            answer(guest.fd, &f->welcome);
            bool joined = f->status != LS_ERR_RENDEZVOUS;
            if (joined && ls_gate_transfer(guest.fd, POLLIN, request, sizeof request,
                                           ls_clock_after(2)) == 1) {
                ck_assert_mem_eq(request + LS_STORE_HEADER_BYTES, "kv", 2);
                answer(guest.fd, &f->reply);
            }
            close(guest.fd);
        }
        code = waitpid(pid, &state, WNOHANG) == pid ? WEXITSTATUS(state) : -1;
    }
    ck_assert_int_eq(code, f->status);
    assert_said(errors, f->said);
    ls_gate_close(gate);
}

/* ---- connections between all pairs of ranks -------------------------------------------------- */

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
    ls_store *store = lone_store(0, 20);
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
    ls_store *store = lone_store(0, 20);
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
    ls_store *store = lone_store(0, 20);
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
    ls_store *store = lone_store(0, 20);
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

TEST_MAIN("store", .timeout_s = 60)
