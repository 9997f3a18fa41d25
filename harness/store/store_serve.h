/* One store server's connections and what is asked over them. Private to store_server.c (listening,
 * accepting, the thread) and store_serve.c (requests and replies). */
#ifndef LS_STORE_SERVE_H
#define LS_STORE_SERVE_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "store_keys.h"
#include "store_wire.h"

enum { LS_STORE_WHO_BYTES = INET6_ADDRSTRLEN + 8 };
#define LS_STORE_NEVER INT64_MAX

typedef struct ls_store_peer {
    int fd;
    int rank;     /* -1 until its hello was accepted */
    bool primary; /* the first of its rank: its end is the rank's end */
    char who[LS_STORE_WHO_BYTES];
    unsigned char header[LS_STORE_HEADER_BYTES];
    size_t header_used;
    ls_store_header request;
    char *body; /* key, 0, value; malloc'ed */
    size_t body_used;
    ls_store_verb waiting; /* HELLO, GET, WAIT: its reply is owed; else 0 */
    int64_t deadline_ns;   /* of the hello or of the wait */
    unsigned char *out;
    size_t out_bytes, out_sent;
} ls_store_peer;

struct ls_store_server {
    pthread_t thread;
    int listener, wake, port, world;
    char run_id[LS_STORE_KEY_BYTES_MAX + 1];
    int *primary_of; /* [world]: ls_store_presence */
    char (*who_of)[LS_STORE_WHO_BYTES];
    int joined;
    ls_store_peer *connection; /* [count] */
    int count, capacity;
    struct pollfd *polled; /* [capacity + 2] */
    ls_store_keys keys;
    int64_t accept_after_ns;
    atomic_int_least64_t stop_ns; /* 0: run; else the end of the lingering */
    pthread_mutex_t address_lock;
    char address[INET6_ADDRSTRLEN]; /* under address_lock */
};

typedef enum ls_store_presence {
    LS_STORE_ABSENT, /* not yet */
    LS_STORE_HERE,
    LS_STORE_GONE, /* said goodbye */
    LS_STORE_LOST,
} ls_store_presence;

/* Reads what is there and serves whole requests. False: drop the connection. */
bool ls_store_serve_read(struct ls_store_server *server, ls_store_peer *peer);
/* Sends what a reply still has to send; a broken connection shows in the next poll. */
void ls_store_serve_flush(ls_store_peer *peer);
/* The reply to a request that failed; nothing may be going out on that connection. */
void ls_store_serve_refuse(ls_store_peer *peer, ls_status status, const char *text);
/* "missing of 8: rank 3, 5" */
void ls_store_serve_missing(const struct ls_store_server *server, char *text, size_t text_bytes);

#endif
