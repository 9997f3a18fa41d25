#include "store_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <search.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "gate.h"
#include "harness/process/waiting.h"
#include "kernels/core/clock.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"

enum { PENDING = 64 /* connections without a proof, besides one for each rank */ };

static const int64_t NEVER = INT64_MAX;

typedef struct client {
    int fd;
    int rank;
    bool primary; /* the first connection of its rank: its end is the rank's end */
    char who[LS_GATE_WHO_BYTES];
    unsigned char header[LS_STORE_HEADER_BYTES];
    size_t header_used;
    ls_store_header request;
    char *body; /* key, 0, value; malloc'ed */
    size_t body_used;
    ls_store_verb waiting; /* HELLO, GET, WAIT: its reply is pending; else 0 */
    int64_t deadline_ns;   /* of the reply to the claim, or of the wait */
    unsigned char *out;
    size_t out_bytes, out_sent;
} client;

typedef enum presence {
    ABSENT, /* has not joined */
    HERE,
    GONE, /* said goodbye */
    LOST, /* its connection ended without a goodbye */
} presence;

struct ls_store_server {
    pthread_t thread;
    ls_gate *gate;
    int wake, world;
    presence *primary_of; /* [world] */
    char (*who_of)[LS_GATE_WHO_BYTES];
    int joined, count;
    client *connection;           /* [LS_STORE_CLIENTS_MAX], the first `count` */
    struct pollfd *polled;        /* of each connection, behind `wake` and the gate */
    void *keys;                   /* a tree (tsearch) of entries */
    ls_waiting waiting;           /* for ranks that have not joined */
    atomic_int_least64_t stop_ns; /* 0: serve on; else when to stop at the latest */
    pthread_mutex_t address_lock;
    char address[INET6_ADDRSTRLEN]; /* under address_lock */
};

void ls_store_server_key(const ls_store_options *options, unsigned char key[LS_SHA256_BYTES])
{
    LS_TEXT(purpose, 64, "Lockstep job, MASTER_PORT %d",
            LS_PLANT(jobs_without_port, options->port, 0));
    ls_sha256_hmac(options->run_id, strlen(options->run_id), purpose, strlen(purpose), key);
}

/* ---- keys ----------------------------------------------------------------------------------- */

typedef struct setting {
    char *key;
    char *value; /* followed by a 0 that `bytes` does not count */
    size_t bytes;
} setting;

static int order_keys(const void *a, const void *b)
{
    return strcmp(((const setting *)a)->key, ((const setting *)b)->key);
}

/* NULL for an absent key. */
static setting *find(ls_store_server *server, const char *key)
{
    setting **found = tfind(&(setting){.key = (char *)key}, &server->keys, order_keys);
    return found == NULL ? NULL : *found;
}

/* Sets or overwrites. */
static void put(ls_store_server *server, const char *key, const void *value, size_t bytes)
{
    setting *at = find(server, key);
    if (at == NULL) {
        at = ls_list_make(1, sizeof *at);
        at->key = strdup(key);
        LS_MEMORY(at->key != NULL && tsearch(at, &server->keys, order_keys) != NULL);
    }
    free(at->value);
    at->value = ls_list_make(bytes + 1, 1);
    memcpy(at->value, value, bytes);
    at->bytes = bytes;
}

static void free_setting(void *one)
{
    free(((setting *)one)->key);
    free(((setting *)one)->value);
    free(one);
}

/* ---- replies --------------------------------------------------------------------------------- */

/* Continues to send a reply; the next poll reports a broken connection. */
static void flush(client *peer)
{
    while (peer->out_sent < peer->out_bytes) {
        ssize_t sent = send(peer->fd, peer->out + peer->out_sent, peer->out_bytes - peer->out_sent,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            return; /* full: continued at POLLOUT; broken: the next poll reports it */
        }
        peer->out_sent += (size_t)sent;
    }
    free(peer->out);
    peer->out = NULL;
    peer->out_bytes = peer->out_sent = 0;
}

static void reply(client *peer, ls_status status, const void *value, size_t bytes, int64_t number)
{
    LS_ASSERT(peer->out == NULL); /* one request at a time */
    ls_store_header header = {.magic = LS_STORE_MAGIC,
                              .verb = (uint32_t)status,
                              .value_bytes = (uint32_t)bytes,
                              .number = number};
    peer->waiting = 0;
    peer->deadline_ns = NEVER;
    peer->out = ls_list_make(LS_STORE_HEADER_BYTES + bytes, 1);
    ls_store_wire_put(&header, peer->out);
    memcpy(peer->out + LS_STORE_HEADER_BYTES, value, bytes);
    peer->out_bytes = LS_STORE_HEADER_BYTES + bytes;
    free(peer->body);
    peer->body = NULL;
    peer->header_used = peer->body_used = 0;
    flush(peer);
}

static void reply_good(client *peer, int64_t number)
{
    reply(peer, LS_OK, "", 0, number);
}

static void refuse(client *peer, ls_status status, const char *text)
{
    reply(peer, status, text, strlen(text), 0);
}

static void reply_setting(client *peer, const setting *found)
{
    reply(peer, LS_OK, found->value, peer->request.verb == LS_STORE_GET ? found->bytes : 0, 0);
}

static void wake_waiters(ls_store_server *server, const char *key)
{
    const setting *found = find(server, key);
    for (int i = 0; i < server->count; i++) {
        client *peer = &server->connection[i];
        if ((peer->waiting == LS_STORE_GET || peer->waiting == LS_STORE_WAIT) &&
            strcmp(peer->body, found->key) == 0) {
            reply_setting(peer, found);
        }
    }
}

/* ---- ranks ---------------------------------------------------------------------------------- */

/* Text of the ranks that have not joined: "missing of 8: rank 3, 5". */
static void list_missing(const ls_store_server *server, char *text, size_t text_bytes)
{
    int listed = 0;
    ls_text_put(text, text_bytes, "missing of %d: rank", server->world);
    for (int rank = 0; rank < server->world && listed <= 16; rank++) {
        if (server->primary_of[rank] == ABSENT && listed++ < 16) {
            ls_text_add(text, text_bytes, "%s %d", listed == 1 ? "" : ",", rank);
        }
    }
    ls_text_add(text, text_bytes, "%s", listed > 16 ? " ..." : "");
}

/* Replies to the claim of a connection that has passed the gate. False: drop it. */
static bool take_claim(ls_store_server *server, client *peer, const ls_gate_claim *claim)
{
    char text[512] = "";
    int rank = claim->rank;
    if (claim->world != server->world) {
        snprintf(text, sizeof text, "rank %d has world size %d, rank 0 has %d", rank, claim->world,
                 server->world);
    } else if (rank < 0 || rank >= server->world) {
        snprintf(text, sizeof text, "rank %d is out of range, allowed: 0 to %d", rank,
                 server->world - 1);
    } else if (claim->further == 0 && server->primary_of[rank] != ABSENT) {
        snprintf(text, sizeof text, "rank %d has joined twice: first as %s, now as %s", rank,
                 server->who_of[rank], peer->who);
    }
    if (text[0] != '\0') {
        ls_log_error("store: refused %s: %s", peer->who, text);
        refuse(peer, LS_ERR_USAGE, text); /* fits the socket's empty buffer */
        return false;
    }
    peer->rank = rank;
    if (claim->further != 0) {
        reply_good(peer, 0);
        return true;
    }
    peer->primary = true;
    server->primary_of[rank] = HERE;
    snprintf(server->who_of[rank], LS_GATE_WHO_BYTES, "%s", peer->who);
    server->joined++;
    peer->waiting = LS_STORE_HELLO;
    peer->deadline_ns = ls_clock_ns() + claim->timeout_ms * INT64_C(1000000);
    for (int i = 0; server->joined == server->world && i < server->count; i++) {
        if (server->connection[i].waiting == LS_STORE_HELLO) {
            reply_good(&server->connection[i], 0);
        }
    }
    return true;
}

/* ---- requests ------------------------------------------------------------------------------- */

static void add(ls_store_server *server, client *peer)
{
    const char *key = peer->body;
    const setting *found = find(server, key);
    int64_t sum = 0;
    if (found != NULL) {
        char *end = NULL;
        errno = 0;
        sum = strtoll(found->value, &end, 10);
        if (errno != 0 || found->bytes == 0 || end != found->value + found->bytes) {
            refuse(peer, LS_ERR_USAGE, "its value is not a decimal number");
            return;
        }
    }
    if (__builtin_add_overflow(sum, peer->request.number, &sum)) {
        refuse(peer, LS_ERR_USAGE, "the sum overflows 64 bits");
        return;
    }
    LS_TEXT(text, 32, "%" PRId64, sum);
    put(server, key, text, strlen(text));
    wake_waiters(server, key);
    reply_good(peer, sum);
}

/* Serves the request in peer->request and peer->body. False: drop the connection. */
static bool serve(ls_store_server *server, client *peer)
{
    const ls_store_header *request = &peer->request;
    const char *key = peer->body;
    switch ((ls_store_verb)request->verb) {
    case LS_STORE_SET:
        put(server, key, key + request->key_bytes + 1, request->value_bytes);
        wake_waiters(server, key);
        reply_good(peer, 0);
        return true;
    case LS_STORE_GET:
    case LS_STORE_WAIT: {
        const setting *found = find(server, key);
        if (found != NULL) {
            reply_setting(peer, found);
        } else {
            peer->waiting = (ls_store_verb)request->verb;
            peer->deadline_ns = ls_clock_ns() + request->number * 1000000;
        }
        return true;
    }
    case LS_STORE_ADD:
        add(server, peer);
        return true;
    case LS_STORE_WHO_LEFT: {
        int rank = 0;
        while (rank < server->world && server->primary_of[rank] != GONE &&
               server->primary_of[rank] != LOST) {
            rank++;
        }
        reply_good(peer, rank < server->world ? rank : -1);
        return true;
    }
    case LS_STORE_BYE:
        if (peer->primary) {
            server->primary_of[peer->rank] = GONE;
        }
        return false;
    default:
        return false;
    }
}

static bool header_is_sane(const client *peer)
{
    const ls_store_header *request = &peer->request;
    return request->magic == LS_STORE_MAGIC && request->key_bytes <= LS_STORE_KEY_BYTES_MAX &&
           request->value_bytes <= LS_STORE_VALUE_BYTES_MAX &&
           (request->verb == LS_STORE_ADD ||
            (request->number >= 0 && request->number <= INT32_MAX * INT64_C(1000)));
}

/* Reads without blocking and serves a complete request. False: drop the connection. */
static bool read_request(ls_store_server *server, client *peer)
{
    for (;;) {
        bool in_header = peer->header_used < LS_STORE_HEADER_BYTES;
        size_t key_bytes = peer->request.key_bytes,
               body_bytes = in_header ? 0 : key_bytes + peer->request.value_bytes;
        /* the server puts a 0 between key and value */
        size_t gap = peer->body_used >= key_bytes ? 1 : 0;
        char *to = in_header ? (char *)peer->header + peer->header_used
                             : peer->body + peer->body_used + gap;
        size_t wanted = in_header  ? LS_STORE_HEADER_BYTES - peer->header_used
                        : gap == 0 ? key_bytes - peer->body_used
                                   : body_bytes - peer->body_used;
        if (in_header || wanted > 0) {
            ssize_t got = recv(peer->fd, to, wanted, MSG_DONTWAIT);
            if (got < 0 && errno == EINTR) {
                continue;
            }
            if (got <= 0) {
                return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
            }
            *(in_header ? &peer->header_used : &peer->body_used) += (size_t)got;
        }
        if (in_header && peer->header_used == LS_STORE_HEADER_BYTES) {
            peer->request = ls_store_wire_get(peer->header);
            if (!header_is_sane(peer)) {
                ls_log_warn("store: dropped %s (rank %d): malformed header", peer->who, peer->rank);
                return false;
            }
            peer->body =
                ls_list_make((size_t)peer->request.key_bytes + peer->request.value_bytes + 2, 1);
        } else if (!in_header && peer->body_used == body_bytes) {
            return serve(server, peer);
        }
    }
}

/* ---- listening ------------------------------------------------------------------------------ */

/* Listens on all interfaces unless the address is a literal loopback one: MASTER_ADDR may be a name
 * that only the other hosts resolve correctly (Debian maps the host's own name to 127.0.1.1). */
static ls_status open_gate(ls_store_server *server, const ls_store_options *options, int port)
{
    const char *address = options->address;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    bool is_six = strcmp(address, "::1") == 0;
    bool is_four = strncmp(address, "127.", 4) == 0 || strcmp(address, "localhost") == 0;
    six.sin6_addr = is_six ? in6addr_loopback : in6addr_any;
    four.sin_addr.s_addr = htonl(INADDR_ANY);
    if (is_four && inet_pton(AF_INET, address, &four.sin_addr) != 1) {
        four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    unsigned char key[LS_SHA256_BYTES];
    ls_store_server_key(options, key);
    int most = server->world + PENDING;
    ls_status status = LS_ERR_INFRA;
    errno = EAFNOSUPPORT;
    if (!is_four) {
        status =
            ls_gate_open("store", (struct sockaddr *)&six, sizeof six, key, most, &server->gate);
    }
    if (status != LS_OK && errno == EAFNOSUPPORT) { /* a machine without IPv6 */
        status =
            ls_gate_open("store", (struct sockaddr *)&four, sizeof four, key, most, &server->gate);
    }
    return status;
}

static ls_status listen_on(ls_store_server *server, const ls_store_options *options)
{
    int first = options->probe ? options->port + 1 : options->port;
    int last = options->probe ? options->port + LS_STORE_PORT_PROBES : options->port;
    for (int port = first; port <= last; port++) {
        if (open_gate(server, options, port) == LS_OK) {
            return LS_OK;
        }
        if (errno != EADDRINUSE || port == last) {
            return ls_log_fail(
                LS_ERR_INFRA, "store: cannot listen on %s:%d%s: %s", options->address, port,
                options->probe ? " or on the 15 ports before it" : "", strerror(errno));
        }
    }
    return LS_ERR_INFRA;
}

static bool is_loopback(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET) {
        return (ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24) == 127;
    }
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

/* The address at which the peer of an accepted connection reached this host; false for a loopback
 * address. */
static bool reached_as(int fd, char *text, size_t text_bytes)
{
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    char host[INET6_ADDRSTRLEN + 16];
    if (getsockname(fd, (struct sockaddr *)&own, &bytes) != 0 || is_loopback(&own) ||
        getnameinfo((struct sockaddr *)&own, bytes, host, sizeof host, NULL, 0, NI_NUMERICHOST) !=
            0) {
        return false;
    }
    ls_text_put(text, text_bytes, "%s", strncmp(host, "::ffff:", 7) == 0 ? host + 7 : host);
    return true;
}

/* ---- connections ---------------------------------------------------------------------------- */

static void drop(ls_store_server *server, int index)
{
    client *peer = &server->connection[index];
    if (peer->primary && server->primary_of[peer->rank] == HERE) {
        server->primary_of[peer->rank] = LOST;
        if (atomic_load(&server->stop_ns) == 0) {
            ls_log_warn("store: rank %d (%s) left without goodbye", peer->rank, peer->who);
        }
    }
    close(peer->fd);
    free(peer->body);
    free(peer->out);
    server->connection[index] = server->connection[--server->count];
}

static void admit(ls_store_server *server, const ls_gate_guest *guest)
{
    if (server->count == LS_STORE_CLIENTS_MAX) {
        ls_log_warn("store: refused a connection beyond %d", server->count);
        close(guest->fd);
        return;
    }
    client *peer = &server->connection[server->count++];
    *peer = (client){.fd = guest->fd, .rank = -1, .deadline_ns = NEVER};
    memcpy(peer->who, guest->who, sizeof peer->who);
    char own[sizeof server->address];
    if (reached_as(guest->fd, own, sizeof own)) {
        pthread_mutex_lock(&server->address_lock);
        memcpy(server->address, own, sizeof own);
        pthread_mutex_unlock(&server->address_lock);
    }
    if (!take_claim(server, peer, &guest->claim)) {
        drop(server, server->count - 1);
    }
}

/* ---- the thread ----------------------------------------------------------------------------- */

static void refuse_missing(const ls_store_server *server, client *peer)
{
    char text[256];
    list_missing(server, text, sizeof text);
    refuse(peer, LS_ERR_RENDEZVOUS, text);
}

/* Replies to the requests whose deadline has passed. Returns the next deadline. */
static int64_t expire(ls_store_server *server, int64_t now_ns)
{
    int64_t next_ns = ls_gate_deadline_ns(server->gate);
    for (int i = server->count - 1; i >= 0; i--) {
        client *peer = &server->connection[i];
        if (peer->deadline_ns > now_ns) {
            next_ns = peer->deadline_ns < next_ns ? peer->deadline_ns : next_ns;
        } else if (peer->waiting == LS_STORE_HELLO) {
            refuse_missing(server, peer);
        } else {
            refuse(peer, LS_ERR_RENDEZVOUS, "it was not set");
        }
    }
    return next_ns;
}

static bool may_stop(const ls_store_server *server, int64_t stop_ns, int64_t now_ns)
{
    if (stop_ns == 0) {
        return false;
    }
    bool others = false;
    for (int rank = 1; rank < server->world; rank++) {
        others = others || server->primary_of[rank] == HERE;
    }
    return !others || now_ns >= stop_ns;
}

static int poll_all(ls_store_server *server, int64_t now_ns, int64_t until_ns)
{
    struct pollfd *polled = server->polled;
    polled[0] = (struct pollfd){.fd = server->wake, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = ls_gate_fd(server->gate), .events = POLLIN};
    for (int i = 0; i < server->count; i++) {
        /* while a reply is pending, only the end of the connection matters */
        short events = server->connection[i].out != NULL ? POLLOUT : POLLIN;
        polled[i + 2] = (struct pollfd){.fd = server->connection[i].fd, .events = events};
    }
    struct timespec limit;
    if (until_ns != NEVER) {
        int64_t rest_ns = until_ns > now_ns ? until_ns - now_ns : 0;
        limit = (struct timespec){.tv_sec = rest_ns / 1000000000, .tv_nsec = rest_ns % 1000000000};
    }
    return ppoll(polled, (nfds_t)(server->count + 2), until_ns == NEVER ? NULL : &limit, NULL);
}

static void handle(ls_store_server *server, int index, short events)
{
    client *peer = &server->connection[index];
    bool keep = true;
    if (peer->out != NULL) {
        flush(peer);
        keep = (events & (POLLERR | POLLHUP | POLLNVAL)) == 0;
    } else if (peer->waiting != 0) {
        char byte;
        ssize_t got = recv(peer->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        keep = got < 0 && (errno == EAGAIN || errno == EINTR);
        if (got > 0) {
            ls_log_warn("store: dropped %s (rank %d): a request before the reply to the last one",
                        peer->who, peer->rank);
        }
    } else {
        keep = read_request(server, peer);
    }
    if (!keep) {
        drop(server, index);
    }
}

static double find_missing(void *context, char *text, size_t bytes)
{
    const ls_store_server *server = context;
    char missing[256];
    list_missing(server, missing, sizeof missing);
    ls_text_put(text, bytes, "all ranks to join, %s", missing);
    return server->joined < server->world ? 0 : -1;
}

static ls_waiting_probe *const probes[] = {find_missing, NULL};

static void *serve_all(void *argument)
{
    ls_store_server *server = argument;
    for (;;) {
        int64_t now_ns = ls_clock_ns();
        int64_t stop_ns = atomic_load(&server->stop_ns);
        if (may_stop(server, stop_ns, now_ns)) {
            break;
        }
        ls_gate_guest guest;
        while (ls_gate_next(server->gate, &guest)) {
            admit(server, &guest);
        }
        int64_t until_ns = expire(server, now_ns);
        if (server->joined < server->world && stop_ns == 0) {
            int64_t look_ns = ls_waiting_look(&server->waiting);
            until_ns = look_ns < until_ns ? look_ns : until_ns;
        }
        if (stop_ns != 0 && stop_ns < until_ns) {
            until_ns = stop_ns;
        }
        int ready = poll_all(server, now_ns, until_ns);
        if (ready <= 0) {
            continue; /* a deadline, or EINTR */
        }
        if (server->polled[0].revents != 0) {
            uint64_t count;
            (void)!read(server->wake, &count, sizeof count);
        }
        /* backwards, because drop() moves the last connection into the gap */
        for (int i = server->count - 1; i >= 0; i--) {
            if (server->polled[i + 2].revents != 0) {
                handle(server, i, server->polled[i + 2].revents);
            }
        }
    }
    for (int i = 0; i < server->count; i++) {
        if (server->connection[i].waiting == LS_STORE_HELLO) {
            refuse_missing(server, &server->connection[i]);
        }
    }
    return NULL;
}

/* ---- start and stop ------------------------------------------------------------------------- */

static void free_server(ls_store_server *server)
{
    for (int i = 0; i < server->count; i++) {
        close(server->connection[i].fd);
        free(server->connection[i].body);
        free(server->connection[i].out);
    }
    tdestroy(server->keys, free_setting);
    ls_gate_close(server->gate);
    if (server->wake >= 0) {
        close(server->wake);
    }
    pthread_mutex_destroy(&server->address_lock);
    free(server->connection);
    free(server->polled);
    free(server->primary_of);
    free(server->who_of);
    free(server);
}

ls_status ls_store_server_start(const ls_store_options *options, ls_store_server **out)
{
    ls_store_server *server = ls_list_make(1, sizeof *server);
    ls_status status = LS_ERR_INFRA;
    server->world = options->world;
    server->waiting = ls_waiting_begin(probes, server, options->timeout_s);
    pthread_mutex_init(&server->address_lock, NULL);
    server->primary_of = ls_list_make((size_t)options->world, sizeof *server->primary_of);
    server->who_of = ls_list_make((size_t)options->world, sizeof *server->who_of);
    server->connection = ls_list_make(LS_STORE_CLIENTS_MAX, sizeof *server->connection);
    server->polled = ls_list_make(LS_STORE_CLIENTS_MAX + 2, sizeof *server->polled);
    server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->wake < 0) {
        ls_log_error("store: no descriptors for %d ranks: %s", options->world, strerror(errno));
        goto free_it;
    }
    LS_TRY_GOTO(status, listen_on(server, options), free_it);
    int failed = pthread_create(&server->thread, NULL, serve_all, server);
    if (failed != 0) {
        status = ls_log_fail(LS_ERR_INFRA, "store: cannot start the server's thread: %s",
                             strerror(failed));
        goto free_it;
    }
    *out = server;
    return LS_OK;
free_it:
    free_server(server);
    return status;
}

int ls_store_server_port(const ls_store_server *server)
{
    return ls_gate_port(server->gate);
}

bool ls_store_server_address(ls_store_server *server, char *text, int text_bytes)
{
    pthread_mutex_lock(&server->address_lock);
    bool known = server->address[0] != '\0';
    if (known) {
        snprintf(text, (size_t)text_bytes, "%s", server->address);
    }
    pthread_mutex_unlock(&server->address_lock);
    return known;
}

void ls_store_server_stop(ls_store_server *server, double linger_s)
{
    atomic_store(&server->stop_ns, ls_clock_after(linger_s) + 1);
    uint64_t one = 1;
    (void)!write(server->wake, &one, sizeof one);
    pthread_join(server->thread, NULL);
    free_server(server);
}
