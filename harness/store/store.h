/* The rendezvous store: a small TCP key-value server inside rank 0, and its clients. Keys are set
 * once the other ranks need them; `get` and `wait` block until a deadline; `add` counts. Used to
 * find each other and to compare digests, never for data. Every request and reply is bounded in
 * size, carries the job's token, and a client that dies is dropped without harm to the others. All
 * calls are safe from several threads. */
#ifndef LS_STORE_H
#define LS_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    LS_STORE_KEY_BYTES_MAX = 256,
    LS_STORE_VALUE_BYTES_MAX = 4 << 20,
    LS_STORE_CLIENTS_MAX = 4096,
    LS_STORE_PORT_PROBES = 16, /* under torchrun: MASTER_PORT+1 .. MASTER_PORT+16 */
};

typedef struct ls_store ls_store;

typedef struct ls_store_options {
    int rank, world;
    const char *address; /* MASTER_ADDR: name or number, IPv4 or IPv6 */
    int port;            /* MASTER_PORT; 0 only for a lone server in tests (ls_store_port tells) */
    bool probe; /* the port belongs to somebody else (torchrun's agent): rank 0 takes the first
                   free one of port+1..port+16, clients look there for magic and run id */
    const char *run_id; /* LS_TOKEN, TORCHELASTIC_RUN_ID, ...; "" when there is none */
    double timeout_s;   /* of the rendezvous and default of every wait */
} ls_store_options;

/* Rank 0 listens and serves on a thread of its own; every rank (0 too) connects. Returns when this
 * rank is connected. LS_ERR_INFRA when the port is in use (names address, port, system's text);
 * LS_ERR_RENDEZVOUS at the deadline, with the ranks that are missing (rank 0) or what was tried;
 * LS_ERR_USAGE for a rank out of range, a duplicate rank or different world sizes, each by name. */
ls_status ls_store_open(const ls_store_options *options, ls_store **out);
/* Rank 0 stays until the others have said goodbye or `linger_s` is over. */
void ls_store_close(ls_store *store, double linger_s);
int ls_store_port(const ls_store *store);
/* The number under which peers reach this rank: that of the interface that routes to rank 0; on
 * rank 0 the one the others have reached it under (a loopback number when all are on this machine).
 */
void ls_store_local_address(const ls_store *store, char *text, int text_bytes);

/* Overwrites; wakes waiters. Empty values are allowed, values may hold any bytes. */
ls_status ls_store_set(ls_store *store, const char *key, const void *value, size_t bytes);
/* Waits for the key; *value is malloc'ed, with a terminating 0 that *bytes does not count. At the
 * deadline LS_ERR_RENDEZVOUS, logged with the key; the connection stays usable. timeout_s < 0: the
 * default. */
ls_status ls_store_get(ls_store *store, const char *key, double timeout_s, void **value,
                       size_t *bytes);
ls_status ls_store_wait(ls_store *store, const char *const *keys, int count, double timeout_s);
/* Adds to a decimal number (absent: 0) and returns the sum. LS_ERR_USAGE when it is no number. */
ls_status ls_store_add(ls_store *store, const char *key, int64_t amount, int64_t *sum);
/* A rank that has closed its store, has died or was cut off; -1: none. Rank 0's own end is
 * LS_ERR_PEER_LOST, logged. For those that wait where an end does not show: a GPU that waits for
 * another's memory to change waits for ever. */
ls_status ls_store_who_left(ls_store *store, int *rank);
/* All ranks set `<name>/<rank>` and get everybody's: values[world] (malloc'ed each). For digests of
 * options and the like. */
ls_status ls_store_exchange(ls_store *store, const char *name, const void *mine, size_t bytes,
                            void **values, size_t *value_bytes);
/* A barrier in the store; `name` is used once. */
ls_status ls_store_barrier(ls_store *store, const char *name, double timeout_s);

#ifdef __cplusplus
}
#endif
#endif
