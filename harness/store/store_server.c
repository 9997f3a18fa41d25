#include "store.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"
#include "gate.h"
#include "store_serve.h"

enum { PENDING = 64 /* connections without a proof, besides one for each rank */ };

void ls_store_server_key(const ls_store_options *options, unsigned char key[LS_SHA256_BYTES])
{
    LS_TEXT(purpose, 64, "Lockstep job, MASTER_PORT %d",
            LS_PLANT(jobs_without_port, options->port, 0));
    ls_sha256_hmac(options->run_id, strlen(options->run_id), purpose, strlen(purpose), key);
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
    ls_store_peer *peer = &server->connection[index];
    if (peer->primary && server->primary_of[peer->rank] == LS_STORE_HERE) {
        server->primary_of[peer->rank] = LS_STORE_LOST;
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
    ls_store_peer *more = realloc(server->connection, (size_t)capacity * sizeof *more);
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

static void admit(ls_store_server *server, const ls_gate_guest *guest)
{
    if (server->count >= LS_STORE_CLIENTS_MAX ||
        (server->count == server->capacity && !grow(server))) {
        ls_log_warn("store: refused a connection beyond %d", server->count);
        close(guest->fd);
        return;
    }
    ls_store_peer *peer = &server->connection[server->count++];
    *peer = (ls_store_peer){.fd = guest->fd, .rank = -1, .deadline_ns = LS_STORE_NEVER};
    memcpy(peer->who, guest->who, sizeof peer->who);
    char own[sizeof server->address];
    if (reached_as(guest->fd, own, sizeof own)) {
        pthread_mutex_lock(&server->address_lock);
        memcpy(server->address, own, sizeof own);
        pthread_mutex_unlock(&server->address_lock);
    }
    if (!ls_store_serve_claim(server, peer, &guest->claim)) {
        drop(server, server->count - 1);
    }
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Replies to the requests whose deadline has passed. Returns the next deadline. */
static int64_t expire(ls_store_server *server, int64_t now_ns)
{
    int64_t next_ns = ls_gate_deadline_ns(server->gate);
    for (int i = server->count - 1; i >= 0; i--) {
        ls_store_peer *peer = &server->connection[i];
        if (peer->deadline_ns > now_ns) {
            next_ns = peer->deadline_ns < next_ns ? peer->deadline_ns : next_ns;
        } else if (peer->waiting == LS_STORE_HELLO) {
            char text[256];
            ls_store_serve_missing(server, text, sizeof text);
            ls_store_serve_refuse(peer, LS_ERR_RENDEZVOUS, text);
        } else {
            ls_store_serve_refuse(peer, LS_ERR_RENDEZVOUS, "it was not set");
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
        others = others || server->primary_of[rank] == LS_STORE_HERE;
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
    if (until_ns != LS_STORE_NEVER) {
        int64_t rest_ns = until_ns > now_ns ? until_ns - now_ns : 0;
        limit = (struct timespec){.tv_sec = rest_ns / 1000000000, .tv_nsec = rest_ns % 1000000000};
    }
    return ppoll(polled, (nfds_t)(server->count + 2), until_ns == LS_STORE_NEVER ? NULL : &limit,
                 NULL);
}

static void handle(ls_store_server *server, int index, short events)
{
    ls_store_peer *peer = &server->connection[index];
    bool keep = true;
    if (peer->out != NULL) {
        ls_store_serve_flush(peer);
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
        keep = ls_store_serve_read(server, peer);
    }
    if (!keep) {
        drop(server, index);
    }
}

static double find_missing(void *context, char *text, size_t bytes)
{
    const ls_store_server *server = context;
    char missing[256];
    ls_store_serve_missing(server, missing, sizeof missing);
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
            char text[256];
            ls_store_serve_missing(server, text, sizeof text);
            ls_store_serve_refuse(&server->connection[i], LS_ERR_RENDEZVOUS, text);
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
    ls_store_serve_free(&server->keys);
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
    ls_store_server *server = calloc(1, sizeof *server);
    if (server == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "store: no memory");
    }
    ls_status status = LS_ERR_INFRA;
    server->world = options->world;
    server->waiting = ls_waiting_begin(probes, server, options->timeout_s);
    pthread_mutex_init(&server->address_lock, NULL);
    server->primary_of = calloc((size_t)options->world, sizeof *server->primary_of);
    server->who_of = calloc((size_t)options->world, sizeof *server->who_of);
    server->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->primary_of == NULL || server->who_of == NULL || server->wake < 0 || !grow(server)) {
        ls_log_error("store: no memory or descriptors for %d ranks: %s", options->world,
                     strerror(errno));
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
