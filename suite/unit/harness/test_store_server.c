/* The store's server from outside: where it listens, whom it admits, what it answers and when, and
 * when it ends. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <malloc.h>
#include <poll.h>

#include "harness/store/gate.h"
#include "harness/store/store_server.h"
#include "kernels/core/text.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "world.h"

static ls_store_options where(int world, const char *address, int port)
{
    return (ls_store_options){
        .world = world, .address = address, .port = port, .run_id = "secret", .timeout_s = 5};
}

static ls_store_server *start(int world, const char *address)
{
    ls_store_server *server = NULL;
    ls_store_options options = where(world, address, 0);
    ck_assert_int_eq(ls_store_server_start(&options, &server), LS_OK);
    ck_assert_int_gt(ls_store_server_port(server), 0);
    return server;
}

/* A connection to that address of this machine that has passed the gate; -1: nothing listens. */
static int enter(const ls_store_server *server, const char *address, ls_gate_claim claim)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr_in four = {.sin_family = AF_INET};
    bool is_four = inet_pton(AF_INET, address, &four.sin_addr) == 1;
    ck_assert(is_four || inet_pton(AF_INET6, address, &six.sin6_addr) == 1);
    four.sin_port = six.sin6_port = htons((uint16_t)ls_store_server_port(server));
    unsigned char key[LS_SHA256_BYTES];
    ls_store_options options = where(1, "", 0);
    char why[256];
    int fd = -1;
    ls_store_server_key(&options, key);
    ls_gate_result result =
        ls_gate_enter(is_four ? (struct sockaddr *)&four : (struct sockaddr *)&six,
                      is_four ? sizeof four : sizeof six, key, &claim, ls_clock_after(10),
                      ls_clock_after(10), &fd, why, sizeof why);
    ck_assert_msg(result == LS_GATE_IN || result == LS_GATE_UNREACHED, "%s", why);
    return result == LS_GATE_IN ? fd : -1;
}

static int enter_rank(const ls_store_server *server, int rank, int world, int timeout_ms)
{
    int fd = enter(server, "127.0.0.1",
                   (ls_gate_claim){.rank = rank, .world = world, .timeout_ms = timeout_ms});
    ck_assert_int_ge(fd, 0);
    return fd;
}

static void assert_sum(int fd, ls_status status, const char *value, int64_t number)
{
    unsigned char bytes[LS_STORE_HEADER_BYTES];
    char text[600] = "";
    ck_assert_int_eq(ls_gate_transfer(fd, POLLIN, bytes, sizeof bytes, ls_clock_after(10)), 1);
    ls_store_header header = ls_store_wire_get(bytes);
    ck_assert_uint_lt(header.value_bytes, sizeof text);
    ck_assert_int_eq(ls_gate_transfer(fd, POLLIN, text, header.value_bytes, ls_clock_after(10)), 1);
    ck_assert_str_eq(text, value);
    ck_assert_uint_eq(header.verb, status);
    ck_assert_uint_eq(header.magic, LS_STORE_MAGIC);
    ck_assert_uint_eq(header.key_bytes, 0);
    ck_assert_int_eq(header.number, number);
}

static void assert_reply(int fd, ls_status status, const char *value)
{
    assert_sum(fd, status, value, 0);
}

/* Nothing has come by the time that the server has answered another connection. */
static void assert_silent(int fd)
{
    char byte;
    ck_assert_int_eq(recv(fd, &byte, 1, MSG_DONTWAIT), -1);
}

/* A further connection of rank 0, which has been answered. */
static int enter_further(const ls_store_server *server, int world)
{
    int fd = enter(server, "127.0.0.1", (ls_gate_claim){.world = world, .further = 1});
    ck_assert_int_ge(fd, 0);
    assert_reply(fd, LS_OK, "");
    return fd;
}

static size_t put_request(unsigned char bytes[700], ls_store_verb verb, const char *key,
                          const char *value, int64_t number)
{
    ls_store_header header = {.magic = LS_STORE_MAGIC,
                              .verb = verb,
                              .key_bytes = (uint32_t)strlen(key),
                              .value_bytes = (uint32_t)strlen(value),
                              .number = number};
    ls_store_wire_put(&header, bytes);
    snprintf((char *)bytes + LS_STORE_HEADER_BYTES, 700 - LS_STORE_HEADER_BYTES, "%s%s", key,
             value);
    return LS_STORE_HEADER_BYTES + strlen(key) + strlen(value);
}

static void send_bytes(int fd, void *bytes, size_t count)
{
    ck_assert_int_eq(ls_gate_transfer(fd, POLLOUT, bytes, count, ls_clock_after(10)), 1);
}

static void ask(int fd, ls_store_verb verb, const char *key, const char *value, int64_t number)
{
    unsigned char bytes[700];
    send_bytes(fd, bytes, put_request(bytes, verb, key, value, number));
}

static void assert_ended(int fd)
{
    char byte;
    ck_assert_int_eq(ls_gate_transfer(fd, POLLIN, &byte, 1, ls_clock_after(10)), -1);
    close(fd);
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(folder);
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

/* ---- where it listens -------------------------------------------------------------------------
 */

TEST(the_key_is_of_token_and_port)
{
    /* openssl dgst -sha256 -hmac secret */
    static const unsigned char wanted[LS_SHA256_BYTES] = {
        0xa8, 0xa3, 0xa2, 0xaf, 0xf8, 0x9f, 0x1f, 0xca, 0x47, 0xcc, 0xaa,
        0xb5, 0xcc, 0xd3, 0xff, 0x01, 0xff, 0x2a, 0x82, 0xbc, 0x4a, 0xaa,
        0xc8, 0xb9, 0x86, 0x8f, 0xee, 0x6d, 0xf6, 0x20, 0x03, 0x2c};
    unsigned char key[LS_SHA256_BYTES];
    ls_store_options options = where(2, "127.0.0.1", 29500);
    ls_store_server_key(&options, key);
    ck_assert_mem_eq(key, wanted, sizeof key);
    options.port++;
    ls_store_server_key(&options, key);
    ck_assert_mem_ne(key, wanted, sizeof key);
    options = where(2, "127.0.0.1", 29500);
    options.run_id = "another";
    ls_store_server_key(&options, key);
    ck_assert_mem_ne(key, wanted, sizeof key);
}

static const struct {
    const char *address;
    bool one, two, six; /* reached at 127.0.0.1, 127.0.0.2, ::1 */
} addresses[] = {
    {"127.0.0.1", true, false, false}, {"127.0.0.2", false, true, false},
    {"127.local", true, false, false}, {"localhost", true, false, false},
    {"::1", false, false, true},       {"0.0.0.0", true, true, true},
    {"1270.host", true, true, true},   {"localhost.localdomain", true, true, true},
};

ROWS_TEST(it_listens_at_all_interfaces_or_at_a_loopback_one, addresses)
{
    int six = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    bool has_six = six >= 0 && bind(six, (struct sockaddr *)&at, sizeof at) == 0;
    close(six);
    if (!has_six && strcmp(addresses[_i].address, "::1") == 0) {
        return;
    }
    ls_store_server *server = start(1, addresses[_i].address);
    ls_gate_claim claim = {.world = 1, .further = 1};
    ck_assert((enter(server, "127.0.0.1", claim) >= 0) == addresses[_i].one);
    ck_assert((enter(server, "127.0.0.2", claim) >= 0) == addresses[_i].two);
    ck_assert(!has_six || (enter(server, "::1", claim) >= 0) == addresses[_i].six);
    ls_store_server_stop(server, 0);
}

/* What rank 0 publishes: the address of this machine that was called last, unless a loopback one.
 */
TEST(the_address_that_was_called)
{
    static const char *const loops[] = {"127.0.0.1", "127.3.2.1", "::1"};
    struct ifaddrs *all = NULL;
    char known[64] = "", text[64], last[64] = "";
    ck_assert_int_eq(getifaddrs(&all), 0);
    ls_store_server *server = start(1, "any");
    for (const struct ifaddrs *at = all; at != NULL; at = at->ifa_next) {
        for (int i = 0; i < 3; i++) { /* says nothing new */
            int fd = enter(server, loops[i], (ls_gate_claim){.world = 1, .further = 1});
            if (fd >= 0) {
                assert_reply(fd, LS_OK, "");
                close(fd);
            }
            text[0] = '\0';
            ck_assert(ls_store_server_address(server, text, sizeof text) == (last[0] != '\0'));
            ck_assert_str_eq(text, last);
        }
        const struct sockaddr_in *four = (struct sockaddr_in *)at->ifa_addr;
        const struct sockaddr_in6 *six = (struct sockaddr_in6 *)at->ifa_addr;
        if (four == NULL || (four->sin_family != AF_INET && four->sin_family != AF_INET6) ||
            (four->sin_family == AF_INET && ntohl(four->sin_addr.s_addr) >> 24 == 127) ||
            (four->sin_family == AF_INET6 &&
             (IN6_IS_ADDR_LOOPBACK(&six->sin6_addr) || IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr)))) {
            continue;
        }
        ck_assert_ptr_nonnull(inet_ntop(four->sin_family,
                                        four->sin_family == AF_INET ? (void *)&four->sin_addr
                                                                    : (void *)&six->sin6_addr,
                                        known, sizeof known));
        int fd = enter(server, known, (ls_gate_claim){.world = 1, .further = 1});
        if (fd < 0) {
            continue;
        }
        assert_reply(fd, LS_OK, "");
        close(fd);
        strcpy(last, known);
        ck_assert(ls_store_server_address(server, text, sizeof text));
        ck_assert_str_eq(text, known);
        ck_assert(ls_store_server_address(server, text, 4));
        ck_assert(strlen(text) == 3 && strncmp(text, known, 3) == 0);
    }
    freeifaddrs(all);
    ls_store_server_stop(server, 0);
    server = start(1, "localhost");
    int fd = enter_further(server, 1);
    ck_assert(!ls_store_server_address(server, text, sizeof text));
    close(fd);
    ls_store_server_stop(server, 0);
}

/* `count` sockets that listen on the ports after the one returned, and none on the next one. */
static int take_ports(int *fd, int count)
{
    int base = 0;
    for (int taken = 0; taken <= count;) {
        if (taken == 0) {
            base = world_free_port() % 60000 + 1024;
        }
        fd[taken] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        struct sockaddr_in at = world_loopback(base + 1 + taken);
        bool mine =
            bind(fd[taken], (struct sockaddr *)&at, sizeof at) == 0 && listen(fd[taken], 1) == 0;
        taken++;
        while (!mine && taken > 0) {
            close(fd[--taken]);
        }
    }
    close(fd[count]);
    return base;
}

TEST(the_first_free_port_of_sixteen)
{
    static const int taken[] = {0, 1, 15, 16};
    for (int i = 0; i < 4; i++) {
        int fd[LS_STORE_PORT_PROBES + 1], port = take_ports(fd, taken[i]);
        ls_store_server *server = NULL;
        ls_store_options options = where(1, "127.0.0.1", port);
        options.probe = true;
        catch_lines();
        ls_status status = ls_store_server_start(&options, &server);
        LS_TEXT(said, 400, "%s", caught_lines());
        if (taken[i] < LS_STORE_PORT_PROBES) {
            ck_assert_int_eq(status, LS_OK);
            ck_assert_str_eq(said, "");
            ck_assert_int_eq(ls_store_server_port(server), port + 1 + taken[i]);
            ls_store_server_stop(server, 0);
        } else {
            LS_TEXT(wanted, 400,
                    "error: store: cannot listen on 127.0.0.1:%d or on the 15 ports before it: "
                    "%s\n",
                    port + LS_STORE_PORT_PROBES, strerror(EADDRINUSE));
            ck_assert_int_eq(status, LS_ERR_INFRA);
            ck_assert_str_eq(said, wanted);
            options.probe = false;
            options.port++;
            catch_lines();
            ck_assert_int_eq(ls_store_server_start(&options, &server), LS_ERR_INFRA);
            ls_text_put(wanted, sizeof wanted, "error: store: cannot listen on 127.0.0.1:%d: %s\n",
                        port + 1, strerror(EADDRINUSE));
            ck_assert_str_eq(caught_lines(), wanted);
            ck_assert_ptr_null(server);
        }
        for (int k = 0; k < taken[i]; k++) {
            close(fd[k]);
        }
    }
}

/* ---- connections ------------------------------------------------------------------------------
 */

TEST(many_connections_are_served)
{
    enum { MANY = 150 };
    int fd[MANY], before = open_descriptors();
    ls_store_server *server = start(1, "127.0.0.1");
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < MANY; i++) {
            LS_TEXT(key, 16, "%d", i);
            if (round == 0) {
                fd[i] = enter_further(server, 1);
            }
            ask(fd[i], round == 0 ? LS_STORE_SET : LS_STORE_GET, key, round == 0 ? key : "", 0);
            assert_reply(fd[i], LS_OK, round == 0 ? "" : key);
        }
    }
    ask(fd[0], LS_STORE_BYE, "", "", 0); /* the last one takes its place */
    assert_ended(fd[0]);
    ask(fd[MANY - 1], LS_STORE_GET, "7", "", 0);
    assert_reply(fd[MANY - 1], LS_OK, "7");
    ls_store_server_stop(server, 0);
    for (int i = 1; i < MANY; i++) {
        assert_ended(fd[i]);
    }
    ck_assert_int_eq(open_descriptors(), before);
}

TEST(deadlines_are_kept)
{
    ls_store_server *server = start(3, "127.0.0.1");
    int64_t began_ns = ls_clock_ns();
    int rank = enter_rank(server, 1, 3, 100);
    assert_reply(rank, LS_ERR_RENDEZVOUS, "missing of 3: rank 0, 2");
    ck_assert_double_ge(ls_clock_ms_between(began_ns, ls_clock_ns()), 100);
    static const ls_store_verb verbs[] = {LS_STORE_GET, LS_STORE_WAIT};
    int patient = enter_further(server, 3);
    ask(patient, LS_STORE_WAIT, "late", "", 20000);
    for (int i = 0; i < 2; i++) {
        began_ns = ls_clock_ns();
        ask(rank, verbs[i], "k", "", 50);
        assert_reply(rank, LS_ERR_RENDEZVOUS, "it was not set");
        ck_assert_double_ge(ls_clock_ms_between(began_ns, ls_clock_ns()), 50);
    }
    ask(rank, LS_STORE_SET, "late", "v", 0); /* the connection goes on */
    assert_reply(rank, LS_OK, "");
    assert_reply(patient, LS_OK, "");
    ask(rank, LS_STORE_GET, "late", "", 0);
    assert_reply(rank, LS_OK, "v");
    ls_store_server_stop(server, 0);
    assert_ended(rank);
    assert_ended(patient);
}

/* It alone is cut off. */
TEST(claims_that_are_refused)
{
    static const struct {
        ls_gate_claim claim;
        const char *said; /* the beginning */
    } rows[] = {{{2, 2, 0, 9000}, "rank 2 is out of range, allowed: 0 to 1"},
                {{2, 2, 1, 9000}, "rank 2 is out of range, allowed: 0 to 1"},
                {{-1, 2, 0, 9000}, "rank -1 is out of range, allowed: 0 to 1"},
                {{1, 3, 1, 9000}, "rank 1 has world size 3, rank 0 has 2"},
                {{1, 2, 0, 9000}, "rank 1 has joined twice: first as 127.0.0.1:"}};
    ls_store_server *server = start(2, "127.0.0.1");
    int first = enter_rank(server, 0, 2, 10000), second = enter_rank(server, 1, 2, 10000);
    assert_reply(first, LS_OK, "");
    assert_reply(second, LS_OK, "");
    ask(second, LS_STORE_BYE, "", "", 0); /* joined twice also when it has left */
    assert_ended(second);
    catch_lines();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned char bytes[LS_STORE_HEADER_BYTES];
        char text[256] = "";
        int fd = enter(server, "127.0.0.1", rows[i].claim);
        ck_assert_int_eq(ls_gate_transfer(fd, POLLIN, bytes, sizeof bytes, ls_clock_after(10)), 1);
        ck_assert_uint_eq(ls_store_wire_get(bytes).verb, LS_ERR_USAGE);
        ck_assert_int_eq(ls_gate_transfer(fd, POLLIN, text, ls_store_wire_get(bytes).value_bytes,
                                          ls_clock_after(10)),
                         1);
        ck_assert_msg(strncmp(text, rows[i].said, strlen(rows[i].said)) == 0, "%s", text);
        assert_ended(fd);
    }
    ask(first, LS_STORE_WHO_LEFT, "", "", 0);
    assert_sum(first, LS_OK, "", 1);
    ls_store_server_stop(server, 20);
    const char *lines = caught_text();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_assert_ptr_nonnull(strstr(lines, rows[i].said));
    }
    close(first);
}

/* The first connections of all ranks are answered together, further ones at once. A rank that said
 * goodbye and one that is cut off are not awaited at the end. */
TEST(ranks_join_together_and_end)
{
    ls_store_server *server = start(3, "127.0.0.1");
    int rank[3];
    for (int i = 0; i < 3; i++) {
        rank[i] = enter_rank(server, i, 3, 10000);
        if (i < 2) {
            close(enter_further(server, 3));
            assert_silent(rank[0]);
        }
    }
    for (int i = 0; i < 3; i++) {
        assert_reply(rank[i], LS_OK, "");
    }
    ask(rank[0], LS_STORE_WHO_LEFT, "", "", 0);
    assert_sum(rank[0], LS_OK, "", -1);
    ask(rank[1], LS_STORE_BYE, "", "", 0);
    assert_ended(rank[1]);
    close(rank[2]);
    int64_t began_ns = ls_clock_ns();
    ls_store_server_stop(server, 20);
    ck_assert_double_lt(ls_clock_ms_between(began_ns, ls_clock_ns()), 10e3);
    assert_ended(rank[0]);
}

/* With its address; the end of a further connection is not reported. */
TEST(a_lost_rank_is_reported)
{
    ls_store_server *server = start(2, "127.0.0.1");
    int rank[2] = {enter_rank(server, 0, 2, 10000), enter_rank(server, 1, 2, 10000)};
    struct sockaddr_in own;
    socklen_t bytes = sizeof own;
    assert_reply(rank[0], LS_OK, "");
    assert_reply(rank[1], LS_OK, "");
    ck_assert_int_eq(getsockname(rank[1], (struct sockaddr *)&own, &bytes), 0);
    int further = enter(server, "127.0.0.1", (ls_gate_claim){.rank = 1, .world = 2, .further = 1});
    assert_reply(further, LS_OK, "");
    catch_lines();
    close(further);
    close(rank[1]);
    for (int64_t left = -1; left != 1;) { /* until the server has seen it */
        unsigned char reply[LS_STORE_HEADER_BYTES];
        ask(rank[0], LS_STORE_WHO_LEFT, "", "", 0);
        ck_assert_int_eq(ls_gate_transfer(rank[0], POLLIN, reply, sizeof reply, ls_clock_after(10)),
                         1);
        left = ls_store_wire_get(reply).number;
    }
    LS_TEXT(wanted, 200, "warning: store: rank 1 (127.0.0.1:%d) left without goodbye\n",
            ntohs(own.sin_port));
    ck_assert_str_eq(caught_lines(), wanted);
    ls_store_server_stop(server, 10);
    close(rank[0]);
}

/* ---- requests ---------------------------------------------------------------------------------
 */

TEST(a_header_is_little_endian)
{
    static const unsigned char wanted[LS_STORE_HEADER_BYTES] = {
        'L', 'S', 'S', '2', 5, 0, 0, 0, 0, 1, 0, 0, 0, 0, 64, 0, 2, 1, 0, 0, 0, 0, 0, 0x80};
    unsigned char bytes[LS_STORE_HEADER_BYTES];
    ls_store_header header = {.magic = LS_STORE_MAGIC,
                              .verb = LS_STORE_ADD,
                              .key_bytes = LS_STORE_KEY_BYTES_MAX,
                              .value_bytes = LS_STORE_VALUE_BYTES_MAX,
                              .number = INT64_MIN + 258};
    ls_store_wire_put(&header, bytes);
    ck_assert_mem_eq(bytes, wanted, sizeof wanted);
    ls_store_header back = ls_store_wire_get(bytes);
    ck_assert_mem_eq(&back, &header, sizeof header);
}

TEST(each_request_is_answered)
{
    static const char no_number[] = "its value is not a decimal number",
                      too_large[] = "the sum overflows 64 bits";
    static const struct {
        ls_store_verb verb;
        const char *key, *value;
        int64_t number;
        ls_status status;
        const char *answer;
        int64_t sum;
    } rows[] = {
        {LS_STORE_SET, "a", "one", 0, LS_OK, "", 0},
        {LS_STORE_GET, "a", "", 5, LS_OK, "one", 0},
        {LS_STORE_WAIT, "a", "", 5, LS_OK, "", 0},
        {LS_STORE_SET, "a", "longer than before", 0, LS_OK, "", 0},
        {LS_STORE_GET, "a", "", 0, LS_OK, "longer than before", 0},
        {LS_STORE_SET, "a", "", 0, LS_OK, "", 0},
        {LS_STORE_GET, "a", "", 0, LS_OK, "", 0},
        {LS_STORE_SET, "", "of no name", 0, LS_OK, "", 0},
        {LS_STORE_GET, "", "", 0, LS_OK, "of no name", 0},
        {LS_STORE_ADD, "n", "", -7, LS_OK, "", -7},
        {LS_STORE_ADD, "n", "", 10, LS_OK, "", 3},
        {LS_STORE_GET, "n", "", 0, LS_OK, "3", 0},
        {LS_STORE_ADD, "n", "", INT64_MAX, LS_ERR_USAGE, too_large, 0},
        {LS_STORE_GET, "n", "", 0, LS_OK, "3", 0},
        {LS_STORE_ADD, "n", "", INT64_MAX - 3, LS_OK, "", INT64_MAX},
        {LS_STORE_ADD, "least", "", INT64_MIN, LS_OK, "", INT64_MIN},
        {LS_STORE_ADD, "least", "", -1, LS_ERR_USAGE, too_large, 0},
        {LS_STORE_GET, "least", "", 0, LS_OK, "-9223372036854775808", 0},
        {LS_STORE_ADD, "a", "", 1, LS_ERR_USAGE, no_number, 0},
        {LS_STORE_SET, "a", "9223372036854775808", 0, LS_OK, "", 0},
        {LS_STORE_ADD, "a", "", -1, LS_ERR_USAGE, no_number, 0},
        {LS_STORE_SET, "a", "12 ", 0, LS_OK, "", 0},
        {LS_STORE_ADD, "a", "", 1, LS_ERR_USAGE, no_number, 0},
        {LS_STORE_GET, "a", "", 0, LS_OK, "12 ", 0},
        {LS_STORE_SET, "a", "", 0, LS_OK, "", 0},
        {LS_STORE_ADD, "a", "", 1, LS_ERR_USAGE, no_number, 0},
    };
    ls_store_server *server = start(1, "127.0.0.1");
    int fd = enter_further(server, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ask(fd, rows[i].verb, rows[i].key, rows[i].value, rows[i].number);
        assert_sum(fd, rows[i].status, rows[i].answer, rows[i].sum);
    }
    ls_store_server_stop(server, 0);
}

/* Also where an allocation has room for the value alone, and is full of digits. */
TEST(values_of_each_length)
{
    enum { LONGEST = 520 };
    (void)mallopt(M_PERTURB, 0xff ^ '5');
    ls_store_server *server = start(1, "127.0.0.1");
    int fd = enter_further(server, 1);
    for (int length = 1; length <= LONGEST; length++) {
        LS_TEXT(key, 16, "%d", length);
        LS_TEXT(value, LONGEST + 1, "%0*d", length, 7);
        ask(fd, LS_STORE_SET, key, value, 0);
        assert_reply(fd, LS_OK, "");
        ask(fd, LS_STORE_GET, key, "", 0);
        assert_reply(fd, LS_OK, value);
        ask(fd, LS_STORE_ADD, key, "", 2);
        assert_sum(fd, LS_OK, "", 9);
    }
    ls_store_server_stop(server, 0);
}

/* Cut into two at any place, and two at once: the second waits for the reply to the first. */
TEST(requests_in_pieces_and_together)
{
    unsigned char bytes[1400];
    ls_store_server *server = start(1, "127.0.0.1");
    int fd = enter_further(server, 1), other = enter_further(server, 1);
    for (size_t first = 1; first < LS_STORE_HEADER_BYTES + 8; first++) {
        LS_TEXT(value, 16, "v%03zu", first);
        size_t used = put_request(bytes, LS_STORE_SET, "keys", value, 0);
        send_bytes(fd, bytes, first);
        ask(other, LS_STORE_WHO_LEFT, "", "", 0); /* the server has seen the first piece */
        assert_sum(other, LS_OK, "", -1);
        send_bytes(fd, bytes + first, used - first);
        assert_reply(fd, LS_OK, "");
        ask(fd, LS_STORE_GET, "keys", "", 0);
        assert_reply(fd, LS_OK, value);
    }
    size_t used = put_request(bytes, LS_STORE_SET, "k1", "val1", 0);
    used += put_request(bytes + used, LS_STORE_GET, "k1", "", 0);
    send_bytes(fd, bytes, used);
    assert_reply(fd, LS_OK, "");
    assert_reply(fd, LS_OK, "val1");
    ls_store_server_stop(server, 0);
}

TEST(waiters_of_the_key_are_woken)
{
    ls_store_server *server = start(1, "127.0.0.1");
    int get = enter_further(server, 1), wait = enter_further(server, 1),
        set = enter_further(server, 1);
    for (int sum = 0; sum < 2; sum++) {
        const char *key = sum ? "sum" : "k";
        ask(get, LS_STORE_GET, key, "", 15000);
        ask(wait, LS_STORE_WAIT, key, "", 15000);
        ask(set, LS_STORE_SET, "other", "x", 0);
        assert_reply(set, LS_OK, "");
        assert_silent(get);
        assert_silent(wait);
        ask(set, sum ? LS_STORE_ADD : LS_STORE_SET, key, sum ? "" : "now", sum ? 12 : 0);
        assert_sum(set, LS_OK, "", sum ? 12 : 0);
        assert_reply(get, LS_OK, sum ? "12" : "now");
        assert_reply(wait, LS_OK, "");
    }
    ls_store_server_stop(server, 0);
}

/* On both sides of each limit of a header. */
static const struct {
    ls_store_header header;
    bool sane;
} headers[] = {
    {{LS_STORE_MAGIC, LS_STORE_GET, LS_STORE_KEY_BYTES_MAX, LS_STORE_VALUE_BYTES_MAX, 0}, true},
    {{LS_STORE_MAGIC + 1, LS_STORE_GET, 1, 0, 0}, false},
    {{LS_STORE_MAGIC - 1, LS_STORE_GET, 1, 0, 0}, false},
    {{LS_STORE_MAGIC, LS_STORE_GET, LS_STORE_KEY_BYTES_MAX + 1, 0, 0}, false},
    {{LS_STORE_MAGIC, LS_STORE_GET, 1, LS_STORE_VALUE_BYTES_MAX + 1, 0}, false},
    {{LS_STORE_MAGIC, LS_STORE_GET, 1, 0, -1}, false},
    {{LS_STORE_MAGIC, LS_STORE_GET, 1, 0, INT32_MAX *INT64_C(1000)}, true},
    {{LS_STORE_MAGIC, LS_STORE_GET, 1, 0, INT32_MAX *INT64_C(1000) + 1}, false},
    {{LS_STORE_MAGIC, LS_STORE_ADD, 1, 0, INT64_MIN}, true},
    {{LS_STORE_MAGIC, LS_STORE_ADD, 1, 0, INT64_MAX}, true},
};

ROWS_TEST(malformed_headers_are_dropped, headers)
{
    unsigned char bytes[LS_STORE_HEADER_BYTES];
    ls_store_server *server = start(1, "127.0.0.1");
    int fd = enter_further(server, 1), other = enter_further(server, 1);
    ls_store_wire_put(&headers[_i].header, bytes);
    catch_lines();
    send_bytes(fd, bytes, sizeof bytes);
    if (headers[_i].sane) { /* the server waits for the rest */
        ask(other, LS_STORE_WHO_LEFT, "", "", 0);
        assert_sum(other, LS_OK, "", -1);
        assert_silent(fd);
    } else {
        assert_ended(fd);
    }
    ls_store_server_stop(server, 0);
    ck_assert((strstr(caught_text(), "(rank 0): malformed header\n") == NULL) == headers[_i].sane);
}

/* Verbs that are none, and a byte while a reply is owed. */
TEST(what_ends_a_connection)
{
    static const int verbs[] = {0, LS_STORE_HELLO, LS_STORE_WHO_LEFT + 1, LS_STORE_GET};
    ls_store_server *server = start(1, "127.0.0.1");
    catch_lines();
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        int fd = enter_further(server, 1);
        ask(fd, (ls_store_verb)verbs[i], "never", "", 5000);
        if (verbs[i] == LS_STORE_GET) {
            send_bytes(fd, "!", 1);
        }
        assert_ended(fd);
    }
    ls_store_server_stop(server, 0);
    ck_assert_ptr_nonnull(
        strstr(caught_text(), "(rank 0): a request before the reply to the last one\n"));
}

/* ---- the end ----------------------------------------------------------------------------------
 */

TEST(it_lingers_for_other_ranks_only)
{
    enum { LINGER_MS = 150 };
    for (int other = 0; other < 2; other++) {
        ls_store_server *server = start(3, "127.0.0.1");
        int fd = enter_rank(server, 2 * other, 3, 20000);
        int known = enter_further(server, 3); /* so that the rank has been admitted */
        int64_t began_ns = ls_clock_ns();
        ls_store_server_stop(server, other ? LINGER_MS * 1e-3 : 20);
        double waited_ms = ls_clock_ms_between(began_ns, ls_clock_ns());
        ck_assert_double_lt(waited_ms, 10e3);
        ck_assert(!other || waited_ms >= LINGER_MS);
        assert_reply(fd, LS_ERR_RENDEZVOUS,
                     other ? "missing of 3: rank 0, 1" : "missing of 3: rank 1, 2");
        assert_ended(fd);
        assert_ended(known);
    }
}

TEST_MAIN("store_server", .timeout_s = 40)
