/* Requests and replies of the store's server, and its state. Private to store_server.c (listening,
 * accepting, the thread) and store_serve.c. */
#ifndef LS_STORE_SERVE_H
#define LS_STORE_SERVE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "harness/process/waiting.h"
#include "kernels/core/status.h"
#include "gate.h"
#include "store_wire.h"

/* The keys and values: a hash table that holds copies. */
typedef struct ls_store_entry {
    struct ls_store_entry *next;
    char *key;
    void *value; /* followed by a 0 that `bytes` does not count */
    size_t bytes;
} ls_store_entry;

enum { LS_STORE_KEYS_BUCKETS = 1024 };

typedef struct ls_store_keys {
    ls_store_entry *bucket[LS_STORE_KEYS_BUCKETS];
} ls_store_keys;
void ls_store_serve_free(ls_store_keys *keys);

#define LS_STORE_NEVER INT64_MAX

typedef struct ls_store_peer {
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
} ls_store_peer;

struct ls_store_server {
    pthread_t thread;
    ls_gate *gate;
    int wake, world;
    int *primary_of; /* [world]: ls_store_presence */
    char (*who_of)[LS_GATE_WHO_BYTES];
    int joined;
    ls_store_peer *connection; /* [count] */
    int count, capacity;
    struct pollfd *polled; /* [capacity + 2] */
    ls_store_keys keys;
    ls_waiting waiting;           /* for ranks that have not joined */
    atomic_int_least64_t stop_ns; /* 0: serve on; else when to stop at the latest */
    pthread_mutex_t address_lock;
    char address[INET6_ADDRSTRLEN]; /* under address_lock */
};

typedef enum ls_store_presence {
    LS_STORE_ABSENT, /* has not joined */
    LS_STORE_HERE,
    LS_STORE_GONE, /* said goodbye */
    LS_STORE_LOST, /* its connection ended without a goodbye */
} ls_store_presence;

/* Replies to the claim of a connection that has passed the gate. False: drop it. */
bool ls_store_serve_claim(struct ls_store_server *server, ls_store_peer *peer,
                          const ls_gate_claim *claim);
/* Reads without blocking and serves a complete request. False: drop the connection. */
bool ls_store_serve_read(struct ls_store_server *server, ls_store_peer *peer);
/* Continues to send a reply; the next poll reports a broken connection. */
void ls_store_serve_flush(ls_store_peer *peer);
/* Replies that a request failed; no other reply may be pending on that connection. */
void ls_store_serve_refuse(ls_store_peer *peer, ls_status status, const char *text);
/* Text of the ranks that have not joined: "missing of 8: rank 3, 5". */
void ls_store_serve_missing(const struct ls_store_server *server, char *text, size_t text_bytes);

#endif
