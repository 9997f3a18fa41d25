#include "store_serve.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "kernels/core/clock.h"
#include "kernels/core/digest.h"
#include "kernels/core/log.h"

/* ---- keys ----------------------------------------------------------------------------------- */

static ls_store_entry **slot_of(ls_store_keys *keys, const char *key)
{
    uint64_t digest = ls_digest_update(LS_DIGEST_START, key, strlen(key));
    ls_store_entry **at = &keys->bucket[digest % LS_STORE_KEYS_BUCKETS];
    while (*at != NULL && strcmp((*at)->key, key) != 0) {
        at = &(*at)->next;
    }
    return at;
}

/* NULL for an absent key; valid until the next put. */
static const ls_store_entry *find(ls_store_keys *keys, const char *key)
{
    return *slot_of(keys, key);
}

/* Sets or overwrites; false when memory runs out. */
static bool put(ls_store_keys *keys, const char *key, const void *value, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    if (copy == NULL) {
        return false;
    }
    if (bytes > 0) {
        memcpy(copy, value, bytes);
    }
    copy[bytes] = '\0';
    ls_store_entry **at = slot_of(keys, key);
    if (*at == NULL) {
        ls_store_entry *fresh = calloc(1, sizeof *fresh);
        char *name = strdup(key);
        if (fresh == NULL || name == NULL) {
            free(fresh);
            free(name);
            free(copy);
            return false;
        }
        fresh->key = name;
        *at = fresh;
    }
    free((*at)->value);
    (*at)->value = copy;
    (*at)->bytes = bytes;
    return true;
}

void ls_store_serve_free(ls_store_keys *keys)
{
    for (int i = 0; i < LS_STORE_KEYS_BUCKETS; i++) {
        for (ls_store_entry *at = keys->bucket[i], *next; at != NULL; at = next) {
            next = at->next;
            free(at->key);
            free(at->value);
            free(at);
        }
        keys->bucket[i] = NULL;
    }
}

/* ---- replies --------------------------------------------------------------------------------- */

void ls_store_serve_flush(ls_store_peer *peer)
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

static void reply(ls_store_peer *peer, ls_status status, const void *value, size_t bytes,
                  int64_t number)
{
    LS_ASSERT(peer->out == NULL); /* one request at a time */
    ls_store_header header = {.magic = LS_STORE_MAGIC,
                              .verb = (uint32_t)status,
                              .value_bytes = (uint32_t)bytes,
                              .number = number};
    peer->waiting = 0;
    peer->deadline_ns = LS_STORE_NEVER;
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
    ls_store_serve_flush(peer);
}

void ls_store_serve_refuse(ls_store_peer *peer, ls_status status, const char *text)
{
    reply(peer, status, text, strlen(text), 0);
}

static void reply_entry(ls_store_peer *peer, const ls_store_entry *found)
{
    if (peer->request.verb == LS_STORE_GET) {
        /* reply() copies the value before it frees the body; the entry stays */
        reply(peer, LS_OK, found->value, found->bytes, 0);
    } else {
        reply(peer, LS_OK, NULL, 0, 0);
    }
}

static void wake_waiters(struct ls_store_server *server, const char *key)
{
    const ls_store_entry *found = find(&server->keys, key);
    for (int i = 0; i < server->count; i++) {
        ls_store_peer *peer = &server->connection[i];
        if ((peer->waiting == LS_STORE_GET || peer->waiting == LS_STORE_WAIT) &&
            strcmp(peer->body, key) == 0) {
            reply_entry(peer, found);
        }
    }
}

/* ---- ranks ---------------------------------------------------------------------------------- */

void ls_store_serve_missing(const struct ls_store_server *server, char *text, size_t text_bytes)
{
    size_t used = (size_t)snprintf(text, text_bytes, "missing of %d: rank", server->world);
    int listed = 0;
    for (int rank = 0; rank < server->world && used < text_bytes; rank++) {
        if (server->primary_of[rank] != LS_STORE_ABSENT) {
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

bool ls_store_serve_claim(struct ls_store_server *server, ls_store_peer *peer,
                          const ls_gate_claim *claim)
{
    char text[512] = "";
    int rank = claim->rank;
    if (claim->world != server->world) {
        snprintf(text, sizeof text, "rank %d has world size %d, rank 0 has %d", rank, claim->world,
                 server->world);
    } else if (rank < 0 || rank >= server->world) {
        snprintf(text, sizeof text, "rank %d is out of range, allowed: 0 to %d", rank,
                 server->world - 1);
    } else if (claim->further == 0 && server->primary_of[rank] != LS_STORE_ABSENT) {
        snprintf(text, sizeof text, "rank %d has joined twice: first as %s, now as %s", rank,
                 server->who_of[rank], peer->who);
    }
    if (text[0] != '\0') {
        ls_log_error("store: refused %s: %s", peer->who, text);
        ls_store_serve_refuse(peer, LS_ERR_USAGE, text); /* fits the socket's empty buffer */
        return false;
    }
    peer->rank = rank;
    if (claim->further != 0) {
        reply(peer, LS_OK, NULL, 0, 0);
        return true;
    }
    peer->primary = true;
    server->primary_of[rank] = LS_STORE_HERE;
    snprintf(server->who_of[rank], LS_GATE_WHO_BYTES, "%s", peer->who);
    server->joined++;
    peer->waiting = LS_STORE_HELLO;
    peer->deadline_ns = ls_clock_ns() + claim->timeout_ms * INT64_C(1000000);
    if (server->joined < server->world) {
        return true;
    }
    for (int i = 0; i < server->count; i++) {
        if (server->connection[i].waiting == LS_STORE_HELLO) {
            reply(&server->connection[i], LS_OK, NULL, 0, 0);
        }
    }
    return true;
}

/* ---- requests ------------------------------------------------------------------------------- */

static void add(struct ls_store_server *server, ls_store_peer *peer)
{
    const char *key = peer->body;
    const ls_store_entry *found = find(&server->keys, key);
    int64_t sum = 0;
    if (found != NULL) {
        char *end = NULL;
        errno = 0;
        sum = strtoll(found->value, &end, 10);
        if (errno != 0 || found->bytes == 0 || end != (char *)found->value + found->bytes) {
            ls_store_serve_refuse(peer, LS_ERR_USAGE, "its value is not a decimal number");
            return;
        }
    }
    if (__builtin_add_overflow(sum, peer->request.number, &sum)) {
        ls_store_serve_refuse(peer, LS_ERR_USAGE, "the sum overflows 64 bits");
        return;
    }
    char text[32];
    int bytes = snprintf(text, sizeof text, "%" PRId64, sum);
    if (!put(&server->keys, key, text, (size_t)bytes)) {
        ls_store_serve_refuse(peer, LS_ERR_INFRA, "rank 0 has no memory for it");
        return;
    }
    wake_waiters(server, key);
    reply(peer, LS_OK, NULL, 0, sum);
}

/* Serves the request in peer->request and peer->body. False: drop the connection. */
static bool serve(struct ls_store_server *server, ls_store_peer *peer)
{
    const ls_store_header *request = &peer->request;
    int64_t now_ns = ls_clock_ns();
    const char *key = peer->body;
    switch ((ls_store_verb)request->verb) {
    case LS_STORE_SET:
        if (!put(&server->keys, key, key + request->key_bytes + 1, request->value_bytes)) {
            ls_store_serve_refuse(peer, LS_ERR_INFRA, "rank 0 has no memory for it");
            return true;
        }
        wake_waiters(server, key);
        reply(peer, LS_OK, NULL, 0, 0);
        return true;
    case LS_STORE_GET:
    case LS_STORE_WAIT: {
        const ls_store_entry *found = find(&server->keys, key);
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
    case LS_STORE_WHO_LEFT: {
        int rank = 0;
        while (rank < server->world && server->primary_of[rank] != LS_STORE_GONE &&
               server->primary_of[rank] != LS_STORE_LOST) {
            rank++;
        }
        reply(peer, LS_OK, NULL, 0, rank < server->world ? rank : -1);
        return true;
    }
    case LS_STORE_BYE:
        if (peer->primary) {
            server->primary_of[peer->rank] = LS_STORE_GONE;
        }
        return false;
    default:
        return false;
    }
}

static bool header_is_sane(const ls_store_peer *peer)
{
    const ls_store_header *request = &peer->request;
    return request->magic == LS_STORE_MAGIC && request->key_bytes <= LS_STORE_KEY_BYTES_MAX &&
           request->value_bytes <= LS_STORE_VALUE_BYTES_MAX &&
           (request->verb == LS_STORE_ADD ||
            (request->number >= 0 && request->number <= INT32_MAX * INT64_C(1000)));
}

bool ls_store_serve_read(struct ls_store_server *server, ls_store_peer *peer)
{
    for (;;) {
        bool in_header = peer->header_used < LS_STORE_HEADER_BYTES;
        size_t body_bytes =
            in_header ? 0 : (size_t)peer->request.key_bytes + peer->request.value_bytes;
        /* the server puts a 0 between key and value */
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
                ls_log_warn("store: dropped %s (rank %d): malformed header", peer->who, peer->rank);
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
