#include "store_server.h"

#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../kernels/core/clock.h"
#include "../kernels/core/log.h"
#include "store_keys.h"
#include "store_listen.h"
#include "store_wire.h"

enum {
    HELLO_LIMIT_S = 10,    /* a connection that has not said who it is by then is dropped */
    ACCEPT_PAUSE_MS = 100, /* out of descriptors: give others the time to close some */
    WHO_BYTES = INET6_ADDRSTRLEN + 8,
};
static const int64_t NEVER = INT64_MAX;

typedef struct connection {
    int fd;
    int rank;     /* -1 until its hello was accepted */
    bool primary; /* the first of its rank: its end is the rank's end */
    char who[WHO_BYTES];
    unsigned char header[LS_STORE_HEADER_BYTES];
    size_t header_used;
    ls_store_header request;
    char *body; /* key, 0, value; malloc'ed */
    size_t body_used;
    ls_store_verb waiting; /* HELLO, GET, WAIT: its reply is owed; else 0 */
    int64_t deadline_ns;   /* of the hello or of the wait */
    unsigned char *out;
    size_t out_bytes, out_sent;
} connection;

struct ls_store_server {
    pthread_t thread;
    int listener, wake, port, world;
    char run_id[LS_STORE_KEY_BYTES_MAX + 1];
    int *primary_of; /* [world]: 0 not yet, 1 here, 2 said goodbye, 3 lost */
    char (*who_of)[WHO_BYTES];
    int joined;
    connection *connection; /* [count] */
    int count, capacity;
    struct pollfd *polled; /* [capacity + 2] */
    ls_store_keys keys;
    int64_t accept_after_ns;
    atomic_int_least64_t stop_ns; /* 0: run; else the end of the lingering */
    pthread_mutex_t address_lock;
    char address[INET6_ADDRSTRLEN]; /* under address_lock */
};

enum { RANK_ABSENT, RANK_HERE, RANK_GONE, RANK_LOST };

/* ---- replies -------------------------------------------------------------------------------- */

static void flush_out(connection *peer)
{
    while (peer->out_sent < peer->out_bytes) {
        ssize_t sent = send(peer->fd, peer->out + peer->out_sent, peer->out_bytes - peer->out_sent,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent < 0) {
            return; /* full: POLLOUT goes on; broken: the next poll sees it */
        }
        peer->out_sent += (size_t)sent;
    }
    free(peer->out);
    peer->out = NULL;
    peer->out_bytes = peer->out_sent = 0;
}

static void reply(connection *peer, ls_status status, const void *value, size_t bytes,
                  int64_t number)
{
    LS_ASSERT(peer->out == NULL); /* one request at a time */
    ls_store_header header = {.magic = LS_STORE_MAGIC,
                              .verb = (uint32_t)status,
                              .value_bytes = (uint32_t)bytes,
                              .number = number};
    peer->waiting = 0;
    peer->deadline_ns = NEVER;
    free(peer->body);
    peer->body = NULL;
    peer->header_used = peer->body_used = 0;
    peer->out = malloc(LS_STORE_HEADER_BYTES + bytes);
    if (peer->out == NULL) {
        ls_log_error("store: no memory for a reply of %zu bytes to %s", bytes, peer->who);
        shutdown(peer->fd, SHUT_RDWR);
        return;
    }
    ls_store_wire_put(&header, peer->out);
    if (bytes > 0) {
        memcpy(peer->out + LS_STORE_HEADER_BYTES, value, bytes);
    }
    peer->out_bytes = LS_STORE_HEADER_BYTES + bytes;
    flush_out(peer);
}

static void reply_text(connection *peer, ls_status status, const char *text)
{
    reply(peer, status, text, strlen(text), 0);
}

static void reply_entry(connection *peer, const ls_store_entry *found)
{
    if (peer->request.verb == LS_STORE_GET) {
        /* the value outlives the reply's copy: body (the key) is freed in reply, the entry is not
         */
        reply(peer, LS_OK, found->value, found->bytes, 0);
    } else {
        reply(peer, LS_OK, NULL, 0, 0);
    }
}

static void wake_waiters(ls_store_server *server, const char *key)
{
    const ls_store_entry *found = ls_store_keys_find(&server->keys, key);
    for (int i = 0; i < server->count; i++) {
        connection *peer = &server->connection[i];
        if ((peer->waiting == LS_STORE_GET || peer->waiting == LS_STORE_WAIT) &&
            strcmp(peer->body, key) == 0) {
            reply_entry(peer, found);
        }
    }
}

/* ---- who is there --------------------------------------------------------------------------- */

static void missing_text(const ls_store_server *server, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "missing of %d: rank", server->world);
    int listed = 0;
    for (int rank = 0; rank < server->world && used < text_bytes; rank++) {
        if (server->primary_of[rank] != RANK_ABSENT) {
            continue;
        }
        if (listed == 16) {
            snprintf(text + used, text_bytes - used, " ...");
            return;
        }
        used +=
            (size_t)snprintf(text + used, text_bytes - used, "%s %d", listed == 0 ? "" : ",", rank);
        listed++;
    }
}

static void hello(ls_store_server *server, connection *peer, int64_t now_ns)
{
    char text[512] = "";
    const char *value = peer->body + peer->request.key_bytes + 1;
    bool known = strcmp(peer->body, server->run_id) == 0;
    if (!known || peer->request.value_bytes != LS_STORE_HELLO_BYTES) {
        ls_log_warn("store: refused %s, which does not belong to this job (other token or run id)",
                    peer->who);
        reply_text(peer, LS_ERR_RENDEZVOUS,
                   "it belongs to another job (its token or run id differs from this rank's)");
        return;
    }
    ls_store_hello told = ls_store_wire_get_hello((const unsigned char *)value);
    int rank = told.rank;
    if (told.world != server->world) {
        snprintf(text, sizeof text, "rank %d says the world has %d ranks, rank 0 says %d", rank,
                 told.world, server->world);
    } else if (rank < 0 || rank >= server->world) {
        snprintf(text, sizeof text, "rank %d is out of range, allowed: 0 to %d", rank,
                 server->world - 1);
    } else if (told.further == 0 && server->primary_of[rank] != RANK_ABSENT) {
        snprintf(text, sizeof text, "rank %d is there twice: taken by %s, now also by %s", rank,
                 server->who_of[rank], peer->who);
    }
    if (text[0] != '\0') {
        ls_log_error("store: refused %s: %s", peer->who, text);
        reply_text(peer, LS_ERR_USAGE, text);
        return;
    }
    peer->rank = rank;
    if (told.further != 0) {
        reply(peer, LS_OK, NULL, 0, 0);
        return;
    }
    peer->primary = true;
    server->primary_of[rank] = RANK_HERE;
    snprintf(server->who_of[rank], WHO_BYTES, "%s", peer->who);
    server->joined++;
    peer->waiting = LS_STORE_HELLO;
    peer->deadline_ns = now_ns + peer->request.number * 1000000;
    if (server->joined < server->world) {
        return;
    }
    for (int i = 0; i < server->count; i++) {
        if (server->connection[i].waiting == LS_STORE_HELLO) {
            reply(&server->connection[i], LS_OK, NULL, 0, 0);
        }
    }
}

/* ---- requests ------------------------------------------------------------------------------- */

static void add(ls_store_server *server, connection *peer)
{
    const char *key = peer->body;
    const ls_store_entry *found = ls_store_keys_find(&server->keys, key);
    int64_t sum = 0;
    if (found != NULL) {
        char *end = NULL;
        errno = 0;
        sum = strtoll(found->value, &end, 10);
        if (errno != 0 || found->bytes == 0 || end != (char *)found->value + found->bytes) {
            reply_text(peer, LS_ERR_USAGE, "its value is no decimal number");
            return;
        }
    }
    if (__builtin_add_overflow(sum, peer->request.number, &sum)) {
        reply_text(peer, LS_ERR_USAGE, "the sum leaves 64 bits");
        return;
    }
    char text[32];
    int bytes = snprintf(text, sizeof text, "%" PRId64, sum);
    if (!ls_store_keys_put(&server->keys, key, text, (size_t)bytes)) {
        reply_text(peer, LS_ERR_INFRA, "rank 0 has no memory for it");
        return;
    }
    wake_waiters(server, key);
    reply(peer, LS_OK, NULL, 0, sum);
}

/* One whole request lies in peer->request and peer->body. False: drop the connection. */
static bool serve(ls_store_server *server, connection *peer)
{
    const ls_store_header *request = &peer->request;
    int64_t now_ns = ls_clock_ns();
    if (request->verb == LS_STORE_HELLO) {
        if (peer->rank >= 0) {
            return false;
        }
        hello(server, peer, now_ns);
        return true;
    }
    const char *key = peer->body;
    switch ((ls_store_verb)request->verb) {
    case LS_STORE_SET:
        if (!ls_store_keys_put(&server->keys, key, key + request->key_bytes + 1,
                               request->value_bytes)) {
            reply_text(peer, LS_ERR_INFRA, "rank 0 has no memory for it");
            return true;
        }
        wake_waiters(server, key);
        reply(peer, LS_OK, NULL, 0, 0);
        return true;
    case LS_STORE_GET:
    case LS_STORE_WAIT: {
        const ls_store_entry *found = ls_store_keys_find(&server->keys, key);
        if (found != NULL) {
            reply_entry(peer, found);
        } else {
            peer->waiting = (ls_store_verb)request->verb;
            peer->deadline_ns = now_ns + request->number * 1000000;
        }
        return true;
    }
    case LS_STORE_ADD:
        add(server, peer);
        return true;
    case LS_STORE_BYE:
        if (peer->primary) {
            server->primary_of[peer->rank] = RANK_GONE;
        }
        return false;
    default:
        return false;
    }
}

static bool header_is_sane(const connection *peer)
{
    const ls_store_header *request = &peer->request;
    bool first = peer->rank < 0;
    uint32_t value_bytes_max = first ? LS_STORE_HELLO_BYTES : LS_STORE_VALUE_BYTES_MAX;
    return request->magic == LS_STORE_MAGIC && first == (request->verb == LS_STORE_HELLO) &&
           request->key_bytes <= LS_STORE_KEY_BYTES_MAX &&
           request->value_bytes <= value_bytes_max &&
           (request->verb == LS_STORE_ADD ||
            (request->number >= 0 && request->number <= INT32_MAX * INT64_C(1000)));
}

/* Reads what is there. False: drop the connection. */
static bool read_some(ls_store_server *server, connection *peer)
{
    for (;;) {
        bool in_header = peer->header_used < LS_STORE_HEADER_BYTES;
        size_t body_bytes =
            in_header ? 0 : (size_t)peer->request.key_bytes + peer->request.value_bytes;
        /* the key is followed by a 0 of ours, the value begins after it */
        size_t gap = peer->body_used >= peer->request.key_bytes ? 1 : 0;
        char *to = in_header ? (char *)peer->header + peer->header_used
                             : peer->body + peer->body_used + gap;
        size_t wanted = in_header  ? LS_STORE_HEADER_BYTES - peer->header_used
                        : gap == 0 ? peer->request.key_bytes - peer->body_used
                                   : body_bytes - peer->body_used;
        if (in_header || wanted > 0) {
            ssize_t got = recv(peer->fd, to, wanted, MSG_DONTWAIT);
            if (got < 0 && errno == EINTR) {
                continue;
            }
            if (got < 0) {
                return errno == EAGAIN || errno == EWOULDBLOCK;
            }
            if (got == 0) {
                return false;
            }
            *(in_header ? &peer->header_used : &peer->body_used) += (size_t)got;
        }
        if (in_header && peer->header_used == LS_STORE_HEADER_BYTES) {
            peer->request = ls_store_wire_get(peer->header);
            if (!header_is_sane(peer)) {
                ls_log_warn("store: dropped %s (rank %d): bad frame", peer->who, peer->rank);
                return false;
            }
            peer->body = calloc(1, (size_t)peer->request.key_bytes + peer->request.value_bytes + 2);
            if (peer->body == NULL) {
                ls_log_error("store: no memory for a request of %s", peer->who);
                return false;
            }
        } else if (!in_header &&
                   peer->body_used == (size_t)peer->request.key_bytes + peer->request.value_bytes) {
            return serve(server, peer);
        }
    }
}

/* ---- connections ---------------------------------------------------------------------------- */

static void drop(ls_store_server *server, int index)
{
    connection *peer = &server->connection[index];
    if (peer->primary && server->primary_of[peer->rank] == RANK_HERE) {
        server->primary_of[peer->rank] = RANK_LOST;
        if (atomic_load(&server->stop_ns) == 0) {
            ls_log_warn("store: rank %d (%s) left without goodbye", peer->rank, peer->who);
        }
    }
    close(peer->fd);
    free(peer->body);
    free(peer->out);
    server->connection[index] = server->connection[--server->count];
}

static bool grow(ls_store_server *server)
{
    int capacity = server->capacity == 0 ? 64 : server->capacity * 2;
    connection *more = realloc(server->connection, (size_t)capacity * sizeof *more);
    if (more != NULL) {
        server->connection = more;
    }
    struct pollfd *polled = realloc(server->polled, (size_t)(capacity + 2) * sizeof *polled);
    if (polled != NULL) {
        server->polled = polled;
    }
    if (more == NULL || polled == NULL) {
        return false;
    }
    server->capacity = capacity;
    return true;
}

static void accept_one(ls_store_server *server, int64_t now_ns)
{
    struct sockaddr_storage from;
    socklen_t bytes = sizeof from;
    int fd =
        accept4(server->listener, (struct sockaddr *)&from, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            ls_log_warn("store: cannot accept a connection: %s", strerror(errno));
            server->accept_after_ns = now_ns + ACCEPT_PAUSE_MS * INT64_C(1000000);
        }
        return;
    }
    if (server->count >= LS_STORE_CLIENTS_MAX ||
        (server->count == server->capacity && !grow(server))) {
        ls_log_warn("store: refused a connection beyond %d", server->count);
        close(fd);
        return;
    }
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* only a matter of speed */
    connection *peer = &server->connection[server->count++];
    *peer = (connection){
        .fd = fd, .rank = -1, .deadline_ns = now_ns + HELLO_LIMIT_S * INT64_C(1000000000)};
    char host[INET6_ADDRSTRLEN + 16], service[8];
    if (getnameinfo((struct sockaddr *)&from, bytes, host, sizeof host, service, sizeof service,
                    NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
        snprintf(peer->who, sizeof peer->who, "%.45s:%.5s", host, service);
    }
    char own[sizeof server->address];
    if (ls_store_listen_reached_as(fd, own, sizeof own)) {
        pthread_mutex_lock(&server->address_lock);
        memcpy(server->address, own, sizeof own);
        pthread_mutex_unlock(&server->address_lock);
    }
    /* 8 bytes into an empty socket buffer cannot block; a dead peer shows in the next poll */
    (void)!send(fd, LS_STORE_GREETING, LS_STORE_GREETING_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Replies to those whose time is over. Returns the next deadline. */
static int64_t expire(ls_store_server *server, int64_t now_ns)
{
    int64_t next_ns = NEVER;
    for (int i = server->count - 1; i >= 0; i--) {
        connection *peer = &server->connection[i];
        if (peer->deadline_ns > now_ns) {
            next_ns = peer->deadline_ns < next_ns ? peer->deadline_ns : next_ns;
        } else if (peer->waiting == LS_STORE_HELLO) {
            char text[256];
            missing_text(server, text, sizeof text);
            reply_text(peer, LS_ERR_RENDEZVOUS, text);
        } else if (peer->waiting != 0) {
            reply_text(peer, LS_ERR_RENDEZVOUS, "nobody set it");
        } else {
            ls_log_warn("store: dropped %s: it did not say who it is within %d s", peer->who,
                        HELLO_LIMIT_S);
            drop(server, i);
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
        others = others || server->primary_of[rank] == RANK_HERE;
    }
    return !others || now_ns >= stop_ns;
}

static int poll_all(ls_store_server *server, int64_t now_ns, int64_t until_ns)
{
    struct pollfd *polled = server->polled;
    bool paused = now_ns < server->accept_after_ns;
    polled[0] = (struct pollfd){.fd = server->wake, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = paused ? -1 : server->listener, .events = POLLIN};
    if (paused && server->accept_after_ns < until_ns) {
        until_ns = server->accept_after_ns;
    }
    for (int i = 0; i < server->count; i++) {
        /* while a reply is going out, or is owed, only the connection's end is of interest */
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
    connection *peer = &server->connection[index];
    bool keep = true;
    if (peer->out != NULL) {
        flush_out(peer);
        keep = (events & (POLLERR | POLLHUP | POLLNVAL)) == 0;
    } else if (peer->waiting != 0) {
        char byte;
        ssize_t got = recv(peer->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        keep = got < 0 && (errno == EAGAIN || errno == EINTR);
        if (got > 0) {
            ls_log_warn("store: dropped %s (rank %d): a request while one is owed", peer->who,
                        peer->rank);
        }
    } else {
        keep = read_some(server, peer);
    }
    if (!keep) {
        drop(server, index);
    }
}

static void *serve_all(void *argument)
{
    ls_store_server *server = argument;
    for (;;) {
        int64_t now_ns = ls_clock_ns();
        int64_t stop_ns = atomic_load(&server->stop_ns);
        if (may_stop(server, stop_ns, now_ns)) {
            break;
        }
        int64_t until_ns = expire(server, now_ns);
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
        /* from the end: drop() moves the last connection into the gap */
        for (int i = server->count - 1; i >= 0; i--) {
            if (server->polled[i + 2].revents != 0) {
                handle(server, i, server->polled[i + 2].revents);
            }
        }
        if ((server->polled[1].revents & POLLIN) != 0) {
            accept_one(server, now_ns);
        }
    }
    for (int i = 0; i < server->count; i++) {
        if (server->connection[i].waiting == LS_STORE_HELLO) {
            char text[256];
            missing_text(server, text, sizeof text);
            reply_text(&server->connection[i], LS_ERR_RENDEZVOUS, text);
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
    ls_store_keys_free(&server->keys);
    if (server->listener >= 0) {
        close(server->listener);
    }
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
    ls_store_server *server = calloc(1, sizeof *server);
    if (server == NULL) {
        ls_log_error("store: no memory");
        return LS_ERR_INFRA;
    }
    ls_status status = LS_ERR_INFRA;
    server->world = options->world;
    server->listener = -1;
    pthread_mutex_init(&server->address_lock, NULL);
    snprintf(server->run_id, sizeof server->run_id, "%s", options->run_id);
    server->primary_of = calloc((size_t)options->world, sizeof *server->primary_of);
    server->who_of = calloc((size_t)options->world, sizeof *server->who_of);
    server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->primary_of == NULL || server->who_of == NULL || server->wake < 0 || !grow(server)) {
        ls_log_error("store: no memory or descriptors for %d ranks: %s", options->world,
                     strerror(errno));
        goto free_it;
    }
    LS_TRY_GOTO(status, ls_store_listen(options, &server->listener, &server->port), free_it);
    int failed = pthread_create(&server->thread, NULL, serve_all, server);
    if (failed != 0) {
        ls_log_error("store: cannot start the server's thread: %s", strerror(failed));
        status = LS_ERR_INFRA;
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
    return server->port;
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
    atomic_store(&server->stop_ns, ls_clock_ns() + (int64_t)(linger_s * 1e9) + 1);
    uint64_t one = 1;
    (void)!write(server->wake, &one, sizeof one);
    pthread_join(server->thread, NULL);
    free_server(server);
}
