/* Requests and replies of the store's server, byte for byte, over a pair of sockets: what each
 * request answers, whom it wakes, and what it leaves in the server. */
#include <check.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness/store/store_serve.h"
#include "kernels/core/clock.h"
#include "kernels/core/text.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"

enum { PEERS = 3, WORLD = 40 };

static struct ls_store_server server;
static ls_store_peer peer[PEERS];
static int client[PEERS]; /* the other ends */

static void set_up(void)
{
    server = (struct ls_store_server){.world = 3, .connection = peer, .count = PEERS};
    server.primary_of = calloc(WORLD, sizeof *server.primary_of);
    server.who_of = calloc(WORLD, sizeof *server.who_of);
    ck_assert(server.primary_of != NULL && server.who_of != NULL);
    for (int i = 0; i < PEERS; i++) {
        int ends[2];
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        peer[i] = (ls_store_peer){.fd = ends[0], .rank = i, .deadline_ns = LS_STORE_NEVER};
        snprintf(peer[i].who, sizeof peer[i].who, "host:%d", i);
        client[i] = ends[1];
    }
}

static void tear_down(void)
{
    for (int i = 0; i < PEERS; i++) {
        close(peer[i].fd);
        close(client[i]);
        free(peer[i].body);
        free(peer[i].out);
    }
    atomic_store(&server.stop_ns, 1); /* lies after the keys and is not taken for one */
    ls_store_serve_free(&server.keys);
    for (int i = 0; i < LS_STORE_KEYS_BUCKETS; i++) {
        ck_assert_ptr_null(server.keys.bucket[i]);
    }
    free(server.primary_of);
    free(server.who_of);
}

/* A request of `who` in two pieces; what reading it returns. */
static bool ask_in(int who, size_t first, ls_store_header header, const char *key,
                   const char *value)
{
    unsigned char bytes[LS_STORE_HEADER_BYTES + 600];
    size_t used = LS_STORE_HEADER_BYTES + header.key_bytes + header.value_bytes;
    ck_assert_uint_le(used, sizeof bytes);
    ls_store_wire_put(&header, bytes);
    memcpy(bytes + LS_STORE_HEADER_BYTES, key, header.key_bytes);
    memcpy(bytes + LS_STORE_HEADER_BYTES + header.key_bytes, value, header.value_bytes);
    first = first < used ? first : used - 1;
    ck_assert_int_eq(send(client[who], bytes, first, MSG_NOSIGNAL), (ssize_t)first);
    ck_assert(ls_store_serve_read(&server, &peer[who])); /* waits for the rest */
    ck_assert(peer[who].out == NULL && peer[who].waiting == 0);
    ck_assert_int_eq(send(client[who], bytes + first, used - first, MSG_NOSIGNAL),
                     (ssize_t)(used - first));
    return ls_store_serve_read(&server, &peer[who]);
}

static bool ask(int who, ls_store_verb verb, const char *key, const char *value, int64_t number)
{
    return ask_in(who, 1,
                  (ls_store_header){.magic = LS_STORE_MAGIC,
                                    .verb = verb,
                                    .key_bytes = (uint32_t)strlen(key),
                                    .value_bytes = (uint32_t)strlen(value),
                                    .number = number},
                  key, value);
}

static void assert_silent(int who)
{
    char byte;
    ck_assert_int_eq(recv(client[who], &byte, 1, MSG_DONTWAIT), -1);
}

/* `who` has got this reply and no byte more, and may send its next request. */
static void assert_reply(int who, ls_status status, const char *value, int64_t number)
{
    size_t length = strlen(value);
    unsigned char got[LS_STORE_HEADER_BYTES + 1024];
    ck_assert_int_eq(recv(client[who], got, sizeof got, MSG_DONTWAIT),
                     (ssize_t)(LS_STORE_HEADER_BYTES + length));
    ls_store_header header = ls_store_wire_get(got);
    ck_assert_uint_eq(header.magic, LS_STORE_MAGIC);
    ck_assert_uint_eq(header.verb, status);
    ck_assert_uint_eq(header.key_bytes, 0);
    ck_assert_uint_eq(header.value_bytes, length);
    ck_assert_int_eq(header.number, number);
    ck_assert_mem_eq(got + LS_STORE_HEADER_BYTES, value, length);
    const ls_store_peer *p = &peer[who];
    ck_assert(p->waiting == 0 && p->body == NULL && p->out == NULL);
    ck_assert_int_eq(p->deadline_ns, LS_STORE_NEVER);
    ck_assert(p->header_used == 0 && p->body_used == 0 && p->out_bytes == 0 && p->out_sent == 0);
}

/* A request that is answered at once. */
static void served(int who, ls_store_verb verb, const char *key, const char *value, int64_t number,
                   ls_status status, const char *answer, int64_t sum)
{
    ck_assert(ask(who, verb, key, value, number));
    assert_reply(who, status, answer, sum);
}

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
    served(0, LS_STORE_SET, "a", "one", 0, LS_OK, "", 0);
    served(1, LS_STORE_GET, "a", "", 5, LS_OK, "one", 0);
    served(1, LS_STORE_WAIT, "a", "", 5, LS_OK, "", 0);
    served(1, LS_STORE_SET, "a", "longer than before", 0, LS_OK, "", 0);
    served(0, LS_STORE_GET, "a", "", 0, LS_OK, "longer than before", 0);
    served(0, LS_STORE_SET, "a", "", 0, LS_OK, "", 0);
    served(0, LS_STORE_GET, "a", "", 0, LS_OK, "", 0);
    served(0, LS_STORE_SET, "", "of no name", 0, LS_OK, "", 0);
    served(0, LS_STORE_GET, "", "", 0, LS_OK, "of no name", 0);
    served(2, LS_STORE_ADD, "n", "", -7, LS_OK, "", -7);
    served(2, LS_STORE_ADD, "n", "", 10, LS_OK, "", 3);
    served(0, LS_STORE_GET, "n", "", 0, LS_OK, "3", 0);
    served(2, LS_STORE_ADD, "n", "", INT64_MAX, LS_ERR_USAGE, too_large, 0);
    served(0, LS_STORE_GET, "n", "", 0, LS_OK, "3", 0);
    served(2, LS_STORE_ADD, "n", "", INT64_MAX - 3, LS_OK, "", INT64_MAX);
    served(2, LS_STORE_ADD, "least", "", INT64_MIN, LS_OK, "", INT64_MIN);
    served(2, LS_STORE_ADD, "least", "", -1, LS_ERR_USAGE, too_large, 0);
    served(0, LS_STORE_GET, "least", "", 0, LS_OK, "-9223372036854775808", 0);
    served(2, LS_STORE_ADD, "a", "", 1, LS_ERR_USAGE, no_number, 0);
    served(0, LS_STORE_SET, "a", "9223372036854775808", 0, LS_OK, "", 0);
    served(2, LS_STORE_ADD, "a", "", -1, LS_ERR_USAGE, no_number, 0);
    served(0, LS_STORE_SET, "a", "12 ", 0, LS_OK, "", 0);
    served(2, LS_STORE_ADD, "a", "", 1, LS_ERR_USAGE, no_number, 0);
    served(0, LS_STORE_GET, "a", "", 0, LS_OK, "12 ", 0);
}

/* Also where an allocation has room for the value alone, and is full of digits. */
TEST(values_of_each_length)
{
    enum { LONGEST = 520 };
    (void)mallopt(M_PERTURB, 0xff ^ '5');
    for (int length = 1; length <= LONGEST; length++) {
        LS_TEXT(key, 16, "%d", length);
        LS_TEXT(value, LONGEST + 1, "%0*d", length, 7);
        served(0, LS_STORE_SET, key, value, 0, LS_OK, "", 0);
        served(1, LS_STORE_GET, key, "", 0, LS_OK, value, 0);
        served(1, LS_STORE_ADD, key, "", 2, LS_OK, "", 9);
    }
}

/* More keys than buckets: each finds its own value, also after all have been overwritten. */
TEST(keys_do_not_mix)
{
    enum { KEYS = 2 * LS_STORE_KEYS_BUCKETS };
    for (int round = 0; round < 2; round++) {
        for (int get = 0; get < 2; get++) {
            for (int i = 0; i < KEYS; i++) {
                LS_TEXT(key, 32, "key/%d", i);
                LS_TEXT(value, 32, "%d of %d", i, round);
                served(0, get ? LS_STORE_GET : LS_STORE_SET, key, get ? "" : value, 0, LS_OK,
                       get ? value : "", 0);
            }
        }
    }
    int entries = 0;
    for (int i = 0; i < LS_STORE_KEYS_BUCKETS; i++) {
        for (const ls_store_entry *at = server.keys.bucket[i]; at != NULL; at = at->next) {
            ck_assert_str_eq(strchr((char *)at->value, '\0') - 5, " of 1");
            ck_assert_uint_eq(at->bytes, strlen(at->value));
            entries++;
        }
    }
    ck_assert_int_eq(entries, KEYS);
}

/* Wherever a request is cut into two pieces. */
TEST(a_request_may_come_in_pieces)
{
    for (size_t first = 1; first < LS_STORE_HEADER_BYTES + 8; first++) {
        LS_TEXT(value, 16, "v%03zu", first);
        ck_assert(ask_in(
            0, first,
            (ls_store_header){
                .magic = LS_STORE_MAGIC, .verb = LS_STORE_SET, .key_bytes = 4, .value_bytes = 4},
            "keys", value));
        assert_reply(0, LS_OK, "", 0);
        served(1, LS_STORE_GET, "keys", "", 0, LS_OK, value, 0);
    }
}

/* What follows a request stays in the socket until that one has been answered. */
TEST(one_request_at_a_time)
{
    unsigned char bytes[2 * (LS_STORE_HEADER_BYTES + 6)];
    for (int i = 0; i < 2; i++) {
        unsigned char *at = bytes + i * (LS_STORE_HEADER_BYTES + 6);
        ls_store_header header = {
            .magic = LS_STORE_MAGIC, .verb = LS_STORE_SET, .key_bytes = 2, .value_bytes = 4};
        ls_store_wire_put(&header, at);
        memcpy(at + LS_STORE_HEADER_BYTES, i == 0 ? "k1val1" : "k2val2", 6);
    }
    ck_assert_int_eq(send(client[0], bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    ck_assert(ls_store_serve_read(&server, &peer[0]));
    assert_reply(0, LS_OK, "", 0);
    ck_assert(ask(1, LS_STORE_GET, "k2", "", 1500));
    assert_silent(1);
    ck_assert(ls_store_serve_read(&server, &peer[0]));
    assert_reply(0, LS_OK, "", 0);
    assert_reply(1, LS_OK, "val2", 0);
    served(1, LS_STORE_GET, "k1", "", 0, LS_OK, "val1", 0);
}

TEST(waiters_of_the_key_are_woken)
{
    int64_t before_ns = ls_clock_ns();
    ck_assert(ask(0, LS_STORE_GET, "k", "", 1500));
    ck_assert(ask(1, LS_STORE_WAIT, "k", "", 2500));
    int64_t after_ns = ls_clock_ns();
    ck_assert_int_eq(peer[0].waiting, LS_STORE_GET);
    ck_assert_int_eq(peer[1].waiting, LS_STORE_WAIT);
    for (int i = 0; i < 2; i++) {
        int64_t limit_ns = i == 0 ? 1500000000 : 2500000000;
        ck_assert_int_ge(peer[i].deadline_ns, before_ns + limit_ns);
        ck_assert_int_le(peer[i].deadline_ns, after_ns + limit_ns);
    }
    served(2, LS_STORE_SET, "other", "x", 0, LS_OK, "", 0);
    assert_silent(0);
    assert_silent(1);
    served(2, LS_STORE_SET, "k", "now", 0, LS_OK, "", 0);
    assert_reply(0, LS_OK, "now", 0);
    assert_reply(1, LS_OK, "", 0);
    ck_assert(ask(0, LS_STORE_GET, "sum", "", 1500));
    ck_assert(ask(1, LS_STORE_GET, "another", "", 1500));
    served(2, LS_STORE_ADD, "sum", "", 12, LS_OK, "", 12);
    assert_reply(0, LS_OK, "12", 0);
    assert_silent(1);
    ls_store_serve_refuse(&peer[1], LS_ERR_RENDEZVOUS, "it was not set");
    assert_reply(1, LS_ERR_RENDEZVOUS, "it was not set", 0);
    peer[1].waiting = LS_STORE_HELLO; /* has no key */
    served(2, LS_STORE_SET, "another", "x", 0, LS_OK, "", 0);
    ck_assert_int_eq(peer[1].waiting, LS_STORE_HELLO);
    assert_silent(1);
}

/* The place of a connection that was dropped still has what it waited for. */
TEST(dropped_connections_get_nothing)
{
    server.count = 2;
    server.world = 1;
    ck_assert(ask(2, LS_STORE_GET, "k", "", 1500));
    served(0, LS_STORE_SET, "k", "v", 0, LS_OK, "", 0);
    ck_assert_int_eq(peer[2].waiting, LS_STORE_GET);
    peer[2].waiting = LS_STORE_HELLO;
    ck_assert(ls_store_serve_claim(&server, &peer[1], &(ls_gate_claim){.world = 1}));
    assert_reply(1, LS_OK, "", 0);
    ck_assert_int_eq(peer[2].waiting, LS_STORE_HELLO);
    assert_silent(2);
}

/* A reply that does not fit the socket's buffer goes on when the client has read. */
TEST(a_large_reply_is_sent_as_it_is_read)
{
    enum { LARGE = LS_STORE_VALUE_BYTES_MAX };
    unsigned char bytes[LS_STORE_HEADER_BYTES + 1];
    char *value = malloc(LARGE), *got = malloc(LS_STORE_HEADER_BYTES + LARGE);
    ck_assert(value != NULL && got != NULL);
    for (int i = 0; i < LARGE; i++) {
        value[i] = (char)(i * 31 >> 3);
    }
    ls_store_header header = {
        .magic = LS_STORE_MAGIC, .verb = LS_STORE_SET, .key_bytes = 1, .value_bytes = LARGE};
    ls_store_wire_put(&header, bytes);
    bytes[LS_STORE_HEADER_BYTES] = 'L';
    ck_assert_int_eq(send(client[0], bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    for (size_t sent = 0; sent < LARGE;) {
        ssize_t now = send(client[0], value + sent, LARGE - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        sent += now > 0 ? (size_t)now : 0;
        ck_assert(ls_store_serve_read(&server, &peer[0]));
    }
    assert_reply(0, LS_OK, "", 0);
    ck_assert(ask(1, LS_STORE_GET, "L", "", 0));
    ck_assert_ptr_nonnull(peer[1].out);
    ck_assert_uint_eq(peer[1].out_bytes, LS_STORE_HEADER_BYTES + LARGE);
    ck_assert(peer[1].out_sent > 0 && peer[1].out_sent < peer[1].out_bytes);
    for (size_t used = 0; used < LS_STORE_HEADER_BYTES + LARGE;) {
        ssize_t now = recv(client[1], got + used, LS_STORE_HEADER_BYTES + LARGE - used, 0);
        ck_assert_int_gt(now, 0);
        used += (size_t)now;
        if (peer[1].out != NULL) {
            ls_store_serve_flush(&peer[1]);
        }
    }
    ck_assert(peer[1].out == NULL && peer[1].out_bytes == 0 && peer[1].out_sent == 0);
    ck_assert_uint_eq(ls_store_wire_get((unsigned char *)got).value_bytes, LARGE);
    ck_assert_mem_eq(got + LS_STORE_HEADER_BYTES, value, LARGE);
    assert_silent(1);
    free(value);
    free(got);
}

/* ---- what is dropped --------------------------------------------------------------------------
 */

/* On both sides of each limit of a header; the server drops the others with a line. */
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
    ls_store_wire_put(&headers[_i].header, bytes);
    ck_assert_int_eq(send(client[1], bytes, sizeof bytes, MSG_NOSIGNAL), sizeof bytes);
    catch_lines();
    ck_assert(ls_store_serve_read(&server, &peer[1]) == headers[_i].sane);
    const char *said = caught_lines();
    ck_assert_str_eq(said, headers[_i].sane
                               ? ""
                               : "warning: store: dropped host:1 (rank 1): malformed header\n");
    assert_silent(1);
}

TEST(what_ends_a_connection)
{
    static const int unknown[] = {0, LS_STORE_HELLO, LS_STORE_WHO_LEFT + 1};
    server.primary_of[1] = server.primary_of[2] = LS_STORE_HERE;
    peer[2].primary = true;
    ck_assert(ls_store_serve_read(&server, &peer[0])); /* nothing has come */
    for (int i = 0; i < 3; i++) {
        ck_assert(!ask(0, (ls_store_verb)unknown[i], "k", "v", 0));
        assert_silent(0);
        free(peer[0].body);
        peer[0].body = NULL;
        peer[0].header_used = peer[0].body_used = 0;
    }
    ck_assert(!ask(1, LS_STORE_BYE, "", "", 0)); /* a further connection of its rank */
    ck_assert_int_eq(server.primary_of[1], LS_STORE_HERE);
    free(peer[1].body);
    peer[1].body = NULL;
    ck_assert(!ask(2, LS_STORE_BYE, "", "", 0));
    ck_assert_int_eq(server.primary_of[2], LS_STORE_GONE);
    ck_assert_int_eq(server.primary_of[0], LS_STORE_ABSENT);
    close(client[0]);
    client[0] = -1;
    ck_assert(!ls_store_serve_read(&server, &peer[0]));
    peer[1].header_used = peer[1].body_used = 0;
    ck_assert(ask(1, LS_STORE_WHO_LEFT, "", "", 0));
    close(client[1]); /* with a reply unread: reset */
    client[1] = -1;
    ck_assert(!ls_store_serve_read(&server, &peer[1]));
}

TEST(who_has_left)
{
    static const struct {
        int presence[3], left;
    } rows[] = {{{LS_STORE_HERE, LS_STORE_HERE, LS_STORE_HERE}, -1},
                {{LS_STORE_HERE, LS_STORE_ABSENT, LS_STORE_HERE}, -1},
                {{LS_STORE_GONE, LS_STORE_LOST, LS_STORE_HERE}, 0},
                {{LS_STORE_HERE, LS_STORE_LOST, LS_STORE_GONE}, 1},
                {{LS_STORE_HERE, LS_STORE_HERE, LS_STORE_GONE}, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        memcpy(server.primary_of, rows[i].presence, sizeof rows[i].presence);
        server.primary_of[3] = LS_STORE_LOST; /* outside the world of 3 */
        served(0, LS_STORE_WHO_LEFT, "", "", 0, LS_OK, "", rows[i].left);
    }
}

/* ---- ranks ------------------------------------------------------------------------------------
 */

TEST(missing_ranks_are_listed)
{
    static const struct {
        int world, here; /* ranks 0 to here - 1 */
        size_t bytes;
        const char *text;
    } rows[] = {
        {3, 0, 256, "missing of 3: rank 0, 1, 2"},
        {3, 2, 256, "missing of 3: rank 2"},
        {3, 3, 256, "missing of 3: rank"},
        {17, 1, 256, "missing of 17: rank 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16"},
        {18, 1, 256,
         "missing of 18: rank 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 ..."},
        {40, 10, 256,
         "missing of 40: rank 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25 ..."},
        {40, 10, 84,
         "missing of 40: rank 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25 "},
        {40, 10, 24, "missing of 40: rank 10,"},
        {40, 10, 8, "missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[256];
        memset(text, '!', sizeof text);
        server.world = rows[i].world;
        for (int rank = 0; rank < WORLD; rank++) {
            server.primary_of[rank] =
                rank >= rows[i].here ? LS_STORE_ABSENT : LS_STORE_HERE + rank % 3;
        }
        ls_store_serve_missing(&server, text, rows[i].bytes);
        ck_assert_str_eq(text, rows[i].text);
        ck_assert(rows[i].bytes == sizeof text || text[rows[i].bytes] == '!');
    }
}

static bool claimed(int who, int rank, int world, int further)
{
    ls_gate_claim claim = {.rank = rank, .world = world, .further = further, .timeout_ms = 1500};
    return ls_store_serve_claim(&server, &peer[who], &claim);
}

TEST(claims_that_are_refused)
{
    static const struct {
        int rank, world, further;
        const char *text;
    } rows[] = {{1, 2, 0, "rank 1 has world size 2, rank 0 has 3"},
                {1, 4, 1, "rank 1 has world size 4, rank 0 has 3"},
                {3, 3, 0, "rank 3 is out of range, allowed: 0 to 2"},
                {3, 3, 1, "rank 3 is out of range, allowed: 0 to 2"},
                {-1, 3, 0, "rank -1 is out of range, allowed: 0 to 2"},
                {2, 3, 0, "rank 2 has joined twice: first as elsewhere:9, now as host:1"}};
    server.primary_of[2] = LS_STORE_GONE; /* also when the first has left */
    strcpy(server.who_of[2], "elsewhere:9");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        catch_lines();
        peer[1].rank = -1;
        ck_assert(!claimed(1, rows[i].rank, rows[i].world, rows[i].further));
        LS_TEXT(line, 200, "error: store: refused host:1: %s\n", rows[i].text);
        ck_assert_str_eq(caught_lines(), line);
        assert_reply(1, LS_ERR_USAGE, rows[i].text, 0);
        ck_assert(peer[1].rank == -1 && !peer[1].primary && server.joined == 0);
    }
    ck_assert_int_eq(server.primary_of[0], LS_STORE_ABSENT);
    ck_assert_int_eq(server.primary_of[1], LS_STORE_ABSENT);
    ck_assert_str_eq(server.who_of[2], "elsewhere:9");
}

/* The first connections of all ranks are answered together, further ones at once. */
TEST(ranks_join_together)
{
    static const int order[] = {2, 0, 1};
    server.count = 2;
    for (int i = 0; i < 2; i++) {
        int64_t before_ns = ls_clock_ns();
        peer[i].rank = -1;
        ck_assert(claimed(i, order[i], 3, 0));
        ck_assert_int_ge(peer[i].deadline_ns, before_ns + 1500000000);
        ck_assert_int_le(peer[i].deadline_ns, ls_clock_ns() + 1500000000);
        ck_assert(peer[i].primary && peer[i].rank == order[i] && server.joined == i + 1);
        ck_assert_int_eq(peer[i].waiting, LS_STORE_HELLO);
        ck_assert_int_eq(server.primary_of[order[i]], LS_STORE_HERE);
        ck_assert_str_eq(server.who_of[order[i]], peer[i].who);
        assert_silent(i);
    }
    server.count = 3;
    ck_assert(claimed(2, 0, 3, 1));
    assert_reply(2, LS_OK, "", 0);
    ck_assert(!peer[2].primary && peer[2].rank == 0 && server.joined == 2);
    ck_assert(claimed(2, 1, 3, 0));
    for (int i = 0; i < PEERS; i++) {
        assert_reply(i, LS_OK, "", 0);
        ck_assert_int_eq(server.primary_of[i], LS_STORE_HERE);
    }
    ck_assert_int_eq(server.joined, 3);
}

TEST_MAIN("store_serve", .before = set_up, .after = tear_down)
