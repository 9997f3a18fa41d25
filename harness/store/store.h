/* The rendezvous store: a small TCP key-value server inside rank 0, and its clients. `get` and
 * `wait` block until a key is set or a deadline has passed; `add` counts. The ranks use it to find
 * each other and to compare digests, never for data. Requests and replies are bounded in size, a
 * connection opens with proofs of the job's token (gate.h), and a client that dies is dropped
 * without effect on the others. All calls are thread-safe. */
#ifndef LS_STORE_H
#define LS_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/digest.h"
#include "kernels/core/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How a rank joins the store, and the store's limits. */

enum {
    LS_STORE_KEY_BYTES_MAX = 256,
    LS_STORE_VALUE_BYTES_MAX = 4 << 20,
    LS_STORE_CLIENTS_MAX = 4096,
    LS_STORE_PORT_PROBES = 16, /* under torchrun: MASTER_PORT+1 .. MASTER_PORT+16 */
};

typedef struct ls_store_options {
    int rank, world;
    const char *address; /* MASTER_ADDR: name or number, IPv4 or IPv6 */
    int port;            /* MASTER_PORT; 0: any, for a world of one */
    bool probe; /* another program owns the port (torchrun's agent): rank 0 takes the first free one
                   of port+1..port+16, and clients search these for magic and run id */
    const char *run_id; /* LS_TOKEN, TORCHELASTIC_RUN_ID, ...; "" when there is none */
    double timeout_s;   /* of the rendezvous, and the default of every wait */
} ls_store_options;

typedef struct ls_store ls_store;

/* Rank 0 listens and serves on a thread of its own; every rank, also rank 0, connects. Returns when
 * all ranks have connected. LS_ERR_INFRA when the port is in use (with address, port and the
 * system's text); LS_ERR_RENDEZVOUS at the deadline, with the missing ranks or the address that did
 * not answer; LS_ERR_USAGE for a rank out of range, a duplicate rank or different world sizes. */
ls_status ls_store_open(const ls_store_options *options, ls_store **out);
/* Rank 0 serves until the others have closed their stores or `linger_s` has passed. */
void ls_store_close(ls_store *store, double linger_s);
/* A key that only the ranks of this job can make, another one for each purpose. */
void ls_store_key(const ls_store *store, const char *purpose, unsigned char key[LS_SHA256_BYTES]);
/* The numeric address at which peers reach this rank: that of the interface that routes to rank 0;
 * on rank 0's machine the address at which other machines reached it (loopback without any). */
void ls_store_local_address(ls_store *store, char *text, int text_bytes);

/* Sets or overwrites a key and wakes its waiters. A value may be empty and hold any bytes. */
ls_status ls_store_set(ls_store *store, const char *key, const void *value, size_t bytes);
/* Waits for the key. *value is malloc'ed and ends with a 0 that *bytes does not count. At the
 * deadline LS_ERR_RENDEZVOUS, logged with the key; the connection stays usable. timeout_s < 0: the
 * default. */
ls_status ls_store_get(ls_store *store, const char *key, double timeout_s, void **value,
                       size_t *bytes);
ls_status ls_store_wait(ls_store *store, const char *const *keys, int count, double timeout_s);
/* Adds to a decimal number (absent: 0) and returns the sum. LS_ERR_USAGE when the value is not a
 * number. */
ls_status ls_store_add(ls_store *store, const char *key, int64_t amount, int64_t *sum);
/* A rank that has closed its store, has died or was disconnected; -1: none. When rank 0 has ended:
 * LS_ERR_PEER_LOST, logged. For waits that do not end with a peer: a GPU that waits for a change in
 * another's memory waits forever. */
ls_status ls_store_who_left(ls_store *store, int *rank);
/* An all-gather: each rank sets `<name>/<rank>` and gets the values of all, values[world], each
 * malloc'ed. For small values such as digests of options. */
ls_status ls_store_exchange(ls_store *store, const char *name, const void *mine, size_t bytes,
                            void **values, size_t *value_bytes);
/* A barrier through the store; a `name` works once. */
ls_status ls_store_barrier(ls_store *store, const char *name, double timeout_s);

#ifdef __cplusplus
}
#endif

#endif
