/* The store's server from outside: where it listens, whom it admits, when it answers late requests
 * and when it ends. */
#include <arpa/inet.h>
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/store/gate.h"
#include "harness/store/store.h"
#include "harness/store/store_wire.h"
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

static void assert_reply(int fd, ls_status status, const char *value)
{
    unsigned char bytes[LS_STORE_HEADER_BYTES];
    char text[256] = "";
    ck_assert_int_eq(ls_gate_transfer(fd, POLLIN, bytes, sizeof bytes, ls_clock_after(10)), 1);
    ls_store_header header = ls_store_wire_get(bytes);
    ck_assert_uint_lt(header.value_bytes, sizeof text);
    ck_assert_int_eq(ls_gate_transfer(fd, POLLIN, text, header.value_bytes, ls_clock_after(10)), 1);
    ck_assert_str_eq(text, value);
    ck_assert_uint_eq(header.verb, status);
}

static void ask(int fd, ls_store_verb verb, const char *key, const char *value, int64_t number)
{
    unsigned char bytes[LS_STORE_HEADER_BYTES + 64];
    ls_store_header header = {.magic = LS_STORE_MAGIC,
                              .verb = verb,
                              .key_bytes = (uint32_t)strlen(key),
                              .value_bytes = (uint32_t)strlen(value),
                              .number = number};
    ls_store_wire_put(&header, bytes);
    size_t used = LS_STORE_HEADER_BYTES + strlen(key) + strlen(value);
    ck_assert_uint_lt(used, sizeof bytes);
    snprintf((char *)bytes + LS_STORE_HEADER_BYTES, sizeof bytes - LS_STORE_HEADER_BYTES, "%s%s",
             key, value);
    ck_assert_int_eq(ls_gate_transfer(fd, POLLOUT, bytes, used, ls_clock_after(10)), 1);
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
    int fd = enter(server, "127.0.0.1", (ls_gate_claim){.world = 1, .further = 1});
    assert_reply(fd, LS_OK, "");
    ck_assert(!ls_store_server_address(server, text, sizeof text));
    close(fd);
    ls_store_server_stop(server, 0);
}

/* `count` sockets that listen on the ports after the one returned, and none on the next one. */
static int take_ports(int *fd, int count)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int base = 0;
    for (int taken = 0; taken <= count;) {
        if (taken == 0) {
            base = world_free_port() % 60000 + 1024;
        }
        fd[taken] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        at.sin_port = htons((uint16_t)(base + 1 + taken));
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
                fd[i] = enter(server, "127.0.0.1", (ls_gate_claim){.world = 1, .further = 1});
                ck_assert_int_ge(fd[i], 0);
                assert_reply(fd[i], LS_OK, "");
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

/* 64 and one for each rank may be without a proof; the next one takes the place of the oldest. */
TEST(strangers_have_few_places)
{
    enum { PLACES = 2 + 64 };
    ls_store_server *server = start(2, "127.0.0.1");
    struct sockaddr_in own, at = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)ls_store_server_port(server)),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof own;
    int fd[PLACES + 1];
    char greeting[LS_GATE_GREETING_BYTES + LS_GATE_NONCE_BYTES];
    catch_lines();
    for (int i = 0; i <= PLACES; i++) {
        fd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(connect(fd[i], (struct sockaddr *)&at, sizeof at), 0);
        ck_assert_int_eq(recv(fd[i], greeting, sizeof greeting, MSG_WAITALL), sizeof greeting);
        ck_assert_int_eq(recv(fd[0], greeting, 1, MSG_DONTWAIT), i < PLACES ? -1 : 0);
    }
    ck_assert_int_eq(recv(fd[1], greeting, 1, MSG_DONTWAIT), -1);
    ck_assert_int_eq(getsockname(fd[0], (struct sockaddr *)&own, &bytes), 0);
    LS_TEXT(wanted, 200,
            "warning: store: refused 127.0.0.1:%d, the oldest of too many connections without a "
            "proof\n",
            ntohs(own.sin_port));
    ls_store_server_stop(server, 0);
    ck_assert_str_eq(caught_lines(), wanted);
    for (int i = 0; i <= PLACES; i++) {
        close(fd[i]);
    }
}

TEST(deadlines_are_kept)
{
    ls_store_server *server = start(3, "127.0.0.1");
    int64_t began_ns = ls_clock_ns();
    int rank = enter_rank(server, 1, 3, 100);
    assert_reply(rank, LS_ERR_RENDEZVOUS, "missing of 3: rank 0, 2");
    ck_assert_double_ge(ls_clock_ms_between(began_ns, ls_clock_ns()), 100);
    static const ls_store_verb verbs[] = {LS_STORE_GET, LS_STORE_WAIT};
    int patient = enter(server, "127.0.0.1", (ls_gate_claim){.world = 3, .further = 1});
    assert_reply(patient, LS_OK, "");
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
TEST(a_claim_that_is_refused)
{
    ls_store_server *server = start(2, "127.0.0.1");
    int first = enter_rank(server, 0, 2, 10000), second = enter_rank(server, 1, 2, 10000);
    assert_reply(first, LS_OK, "");
    assert_reply(second, LS_OK, "");
    catch_lines();
    int third = enter_rank(server, 2, 2, 10000);
    assert_reply(third, LS_ERR_USAGE, "rank 2 is out of range, allowed: 0 to 1");
    assert_ended(third);
    ask(first, LS_STORE_SET, "k", "v", 0);
    assert_reply(first, LS_OK, "");
    ask(second, LS_STORE_GET, "k", "", 0);
    assert_reply(second, LS_OK, "v");
    ask(second, LS_STORE_BYE, "", "", 0);
    assert_ended(second);
    ls_store_server_stop(server, 20);
    ck_assert_ptr_nonnull(strstr(caught_text(), ": rank 2 is out of range, allowed: 0 to 1\n"));
    close(first);
}

/* A rank that said goodbye and one that is cut off. */
TEST(ranks_that_have_ended_are_not_awaited)
{
    ls_store_server *server = start(3, "127.0.0.1");
    int rank[3];
    for (int i = 0; i < 3; i++) {
        rank[i] = enter_rank(server, i, 3, 10000);
    }
    for (int i = 0; i < 3; i++) {
        assert_reply(rank[i], LS_OK, "");
    }
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

/* ---- the end ----------------------------------------------------------------------------------
 */

TEST(it_lingers_for_other_ranks_only)
{
    enum { LINGER_MS = 150 };
    for (int other = 0; other < 2; other++) {
        ls_store_server *server = start(3, "127.0.0.1");
        int fd = enter_rank(server, 2 * other, 3, 20000);
        int known = enter(server, "127.0.0.1", (ls_gate_claim){.world = 3, .further = 1});
        assert_reply(known, LS_OK, ""); /* so that the rank has been admitted */
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
