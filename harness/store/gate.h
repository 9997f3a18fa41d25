/* A listening socket that lets in only the processes of its job. Both ends show that they know the
 * job's key, and neither reveals it: mutual authentication in three passes (ISO/IEC 9798-4) with
 * HMAC-SHA256.
 *
 *     listener -> caller   LS_GATE_GREETING, nonce of the listener
 *     caller -> listener   nonce of the caller
 *     listener -> caller   proof over "L", both nonces and the port
 *     caller -> listener   claim; proof over "C", both nonces, the port and the claim
 *     listener -> caller   LS_GATE_WELCOME
 *
 * A caller proves nothing to a listener that has not shown the key first. A proof answers fresh
 * nonces, so that none can be replayed, and holds the port that was called, so that a listener on
 * another port cannot relay it.
 *
 * Connections without a proof are few, short-lived and quiet: at most `pending_max`, of which the
 * oldest leaves for a new one; LS_GATE_LIMIT_S each; a few lines in the log, then a count. They
 * never take the process's last descriptors. */
#ifndef LS_GATE_H
#define LS_GATE_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "kernels/core/digest.h"
#include "kernels/core/status.h"

#define LS_GATE_GREETING "LSSTORE2"
#define LS_GATE_WELCOME 'W'

enum {
    LS_GATE_GREETING_BYTES = 8,
    LS_GATE_NONCE_BYTES = 32,
    LS_GATE_CLAIM_BYTES = 16, /* ls_gate_claim on the wire: four little-endian words */
    LS_GATE_WHO_BYTES = INET6_ADDRSTRLEN + 8,
    LS_GATE_LIMIT_S = 5,
    LS_GATE_ATTEMPT_S = 10, /* for the caller, before it tries again */
};

/* The caller's place in the job. */
typedef struct ls_gate_claim {
    int32_t rank, world;
    int32_t further;    /* 1: another connection of a rank that has joined */
    int32_t timeout_ms; /* how long the caller waits for the reply to its claim */
} ls_gate_claim;

/* A caller that has shown the key. */
typedef struct ls_gate_guest {
    int fd; /* non-blocking; the receiver closes it */
    ls_gate_claim claim;
    char who[LS_GATE_WHO_BYTES]; /* address and port */
} ls_gate_guest;

typedef struct ls_gate ls_gate;

/* Listens at `at`; port 0: any. The messages start with `name`. LS_ERR_INFRA, errno set and not
 * logged, when the address or port cannot be taken. */
ls_status ls_gate_open(const char *name, const struct sockaddr *at, socklen_t at_bytes,
                       const unsigned char key[LS_SHA256_BYTES], int pending_max, ls_gate **out);
void ls_gate_close(ls_gate *gate);
int ls_gate_port(const ls_gate *gate);
/* A descriptor that is readable when ls_gate_next has something to do. */
int ls_gate_fd(const ls_gate *gate);
/* When ls_gate_next has something to do at the latest; INT64_MAX: nothing is pending. */
int64_t ls_gate_deadline_ns(const ls_gate *gate);
/* Works on pending connections without blocking; true with a caller that has shown the key. */
bool ls_gate_next(ls_gate *gate, ls_gate_guest *out);

typedef enum ls_gate_result {
    LS_GATE_IN,
    LS_GATE_UNREACHED, /* no connection: the other side's refusal, or an error of this one */
    LS_GATE_CLOSED,    /* no answer or proof in time, or the connection ended first */
    LS_GATE_OTHER_JOB, /* a gate whose listener does not know this key */
} ls_gate_result;

/* The caller's side: connects and exchanges proofs. The listener has until proof_ns for its proof:
 * only after that is it known to be worth waiting for. Unless LS_GATE_IN, `why` has the reason. */
ls_gate_result ls_gate_enter(const struct sockaddr *at, socklen_t at_bytes,
                             const unsigned char key[LS_SHA256_BYTES], const ls_gate_claim *claim,
                             int64_t proof_ns, int64_t deadline_ns, int *out, char *why,
                             size_t why_bytes);
/* The same again and again until the deadline while the result is LS_GATE_CLOSED: under many
 * connections without a proof a gate may have dropped this one. */
ls_gate_result ls_gate_enter_again(const struct sockaddr *at, socklen_t at_bytes,
                                   const unsigned char key[LS_SHA256_BYTES],
                                   const ls_gate_claim *claim, int64_t deadline_ns, int *out,
                                   char *why, size_t why_bytes);
/* Sends (POLLOUT) or receives (POLLIN) all the bytes. 1: done, 0: deadline, -1: the connection has
 * ended (errno). */
int ls_gate_transfer(int fd, short direction, void *data, size_t bytes, int64_t deadline_ns);

#endif
