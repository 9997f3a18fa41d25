#include "gate.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/plant.h"

enum {
    NONCE = LS_GATE_NONCE_BYTES,
    PROOF = LS_SHA256_BYTES,
    CLAIM = LS_GATE_CLAIM_BYTES,
    EVENTS = 32,
    REFUSALS_SAID = 4, /* lines about refused connections in each period, then a count */
    REFUSALS_PERIOD_S = 10,
    RESERVE = 64, /* descriptors left to the rest of the process, or a quarter of its limit */
};

/* ---- proofs --------------------------------------------------------------------------------- */

/* What both sides have said so far. */
typedef struct talk {
    unsigned char listener[NONCE], caller[NONCE];
    uint16_t port;
} talk;

static void prove(const unsigned char *key, char role, const talk *of, const unsigned char *claim,
                  unsigned char proof[PROOF])
{
    unsigned char data[1 + 2 * NONCE + 2 + CLAIM] = {(unsigned char)role};
    memcpy(data + 1, of->listener, NONCE);
    memcpy(data + 1 + NONCE, of->caller, NONCE);
    data[1 + 2 * NONCE] = (unsigned char)(of->port >> 8);
    data[2 + 2 * NONCE] = (unsigned char)of->port;
    if (claim != NULL) {
        memcpy(data + 3 + 2 * NONCE, claim, CLAIM);
    }
    ls_sha256_hmac(key, LS_SHA256_BYTES, data, sizeof data, proof);
}

/* In a time that does not depend on where they differ. */
static bool is_equal(const unsigned char *a, const unsigned char *b)
{
    unsigned char differs = 0;
    for (int i = 0; i < PROOF; i++) {
        differs |= a[i] ^ b[i];
    }
    return LS_PLANT(token_not_checked, differs == 0, true);
}

static void make_nonce(unsigned char nonce[NONCE])
{
    LS_ASSERT(getrandom(nonce, NONCE, 0) == NONCE);
}

static uint16_t port_of(const struct sockaddr *at)
{
    return ntohs(at->sa_family == AF_INET6 ? ((const struct sockaddr_in6 *)at)->sin6_port
                                           : ((const struct sockaddr_in *)at)->sin_port);
}

/* ---- the listener --------------------------------------------------------------------------- */

/* A connection without a proof. */
typedef struct pending {
    int fd;
    bool challenged; /* the listener's proof has been sent */
    int64_t deadline_ns;
    talk said;
    unsigned char got[CLAIM + PROOF];
    size_t used;
    char who[LS_GATE_WHO_BYTES];
} pending;

struct ls_gate {
    const char *name;
    int listener, events, spare; /* epoll; a descriptor to give up when there is no other */
    uint16_t port;
    unsigned char key[LS_SHA256_BYTES];
    int pending_max, count;
    rlim_t high_fd;   /* at this descriptor and above the process is short of them */
    pending *waiting; /* [count], the oldest first */
    int refused;      /* in this period */
    int64_t period_end_ns;
};

static void count_refused(ls_gate *gate)
{
    if (gate->refused > REFUSALS_SAID) {
        ls_log_warn("%s: refused %d more connections", gate->name, gate->refused - REFUSALS_SAID);
    }
    gate->refused = 0;
}

static void report_refused(ls_gate *gate, const char *who, const char *why)
{
    int64_t now_ns = ls_clock_ns();
    if (now_ns >= gate->period_end_ns) {
        count_refused(gate);
        gate->period_end_ns = now_ns + REFUSALS_PERIOD_S * INT64_C(1000000000);
    }
    if (gate->refused++ < REFUSALS_SAID) {
        ls_log_warn("%s: refused %s, %s", gate->name, who, why);
    }
}

/* Forgets a pending connection; the caller of this function has closed or taken its descriptor. */
static void drop(ls_gate *gate, int index)
{
    gate->count--;
    memmove(&gate->waiting[index], &gate->waiting[index + 1],
            (size_t)(gate->count - index) * sizeof *gate->waiting);
}

static void refuse(ls_gate *gate, int index, const char *why)
{
    if (why != NULL) {
        report_refused(gate, gate->waiting[index].who, why);
    }
    close(gate->waiting[index].fd);
    drop(gate, index);
}

/* False: not all of it fitted into the socket's buffer, which is empty, or the peer is gone. */
static bool send_now(int fd, const void *data, size_t bytes)
{
    return send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

/* Accepts one and refuses it: with no descriptor left, a connection would stay in the queue. */
static void refuse_without_descriptor(ls_gate *gate)
{
    if (gate->spare >= 0) {
        close(gate->spare);
    }
    int fd = accept4(gate->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) {
        close(fd);
    }
    gate->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void accept_one(ls_gate *gate)
{
    static const char *const scarce =
        "because this process is short of descriptors (ulimit -n); it may try again";
    struct sockaddr_storage from;
    socklen_t bytes = sizeof from;
    int fd =
        accept4(gate->listener, (struct sockaddr *)&from, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE) {
            report_refused(gate, "a connection", scarce);
            refuse_without_descriptor(gate);
        }
        return;
    }
    pending peer = {.fd = fd, .said.port = gate->port};
    char host[INET6_ADDRSTRLEN + 16], service[8];
    if (getnameinfo((struct sockaddr *)&from, bytes, host, sizeof host, service, sizeof service,
                    NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
        snprintf(peer.who, sizeof peer.who, "%.45s:%.5s", host, service);
    }
    bool is_scarce = (rlim_t)fd >= gate->high_fd;
    if (is_scarce && gate->count == 0) {
        report_refused(gate, peer.who, scarce);
        close(fd);
        return;
    }
    if (is_scarce || gate->count == gate->pending_max) {
        refuse(gate, 0, "the oldest of too many connections without a proof");
    }
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* affects speed only */
    unsigned char hello[LS_GATE_GREETING_BYTES + NONCE];
    make_nonce(peer.said.listener);
    memcpy(hello, LS_GATE_GREETING, LS_GATE_GREETING_BYTES);
    memcpy(hello + LS_GATE_GREETING_BYTES, peer.said.listener, NONCE);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(gate->events, EPOLL_CTL_ADD, fd, &event) != 0 ||
        !send_now(fd, hello, sizeof hello)) {
        close(fd);
        return;
    }
    peer.deadline_ns = ls_clock_after(LS_GATE_LIMIT_S);
    gate->waiting[gate->count++] = peer;
}

/* Takes what a pending connection has sent; true when that proves the key. */
static bool recv_claim(ls_gate *gate, int index, ls_gate_guest *out)
{
    static const char *const other_job =
        "which belongs to another job (different token, run id or MASTER_PORT)";
    pending *peer = &gate->waiting[index];
    for (;;) {
        size_t wanted = peer->challenged ? CLAIM + PROOF : NONCE;
        ssize_t got = recv(peer->fd, peer->got + peer->used, wanted - peer->used, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
            return false;
        }
        if (got <= 0) { /* a caller of another job leaves when it has seen our proof */
            refuse(gate, index, peer->challenged ? other_job : NULL);
            return false;
        }
        peer->used += (size_t)got;
        if (peer->used < wanted) {
            continue;
        }
        unsigned char proof[PROOF];
        if (peer->challenged) {
            prove(gate->key, 'C', &peer->said, peer->got, proof);
            const char welcome = LS_GATE_WELCOME;
            bool equal = is_equal(proof, peer->got + CLAIM);
            if (!equal || !send_now(peer->fd, &welcome, 1)) {
                refuse(gate, index, equal ? NULL : "which does not know this job's token");
                return false;
            }
            uint32_t word[4];
            memcpy(word, peer->got, sizeof word);
            *out = (ls_gate_guest){.fd = peer->fd,
                                   .claim = {.rank = (int32_t)le32toh(word[0]),
                                             .world = (int32_t)le32toh(word[1]),
                                             .further = (int32_t)le32toh(word[2]),
                                             .timeout_ms = (int32_t)le32toh(word[3])}};
            memcpy(out->who, peer->who, sizeof out->who);
            (void)epoll_ctl(gate->events, EPOLL_CTL_DEL, peer->fd, NULL);
            drop(gate, index);
            return true;
        }
        memcpy(peer->said.caller, peer->got, NONCE);
        peer->used = 0;
        peer->challenged = true;
        prove(gate->key, 'L', &peer->said, NULL, proof);
        if (!send_now(peer->fd, proof, sizeof proof)) {
            refuse(gate, index, NULL);
            return false;
        }
    }
}

bool ls_gate_next(ls_gate *gate, ls_gate_guest *out)
{
    struct epoll_event event[EVENTS];
    while (gate->count > 0 && ls_clock_ns() >= gate->waiting[0].deadline_ns) {
        refuse(gate, 0, "which has not shown in time that it belongs to this job");
    }
    int ready = epoll_wait(gate->events, event, EVENTS, 0);
    for (int i = 0; i < ready; i++) {
        if (event[i].data.fd == gate->listener) {
            accept_one(gate);
            continue;
        }
        int index = 0;
        while (index < gate->count && gate->waiting[index].fd != event[i].data.fd) {
            index++;
        }
        /* gone: dropped for a connection accepted in this round */
        if (index < gate->count && recv_claim(gate, index, out)) {
            return true; /* the remaining events are reported again */
        }
    }
    return false;
}

int64_t ls_gate_deadline_ns(const ls_gate *gate)
{
    return gate->count > 0 ? gate->waiting[0].deadline_ns : INT64_MAX;
}

int ls_gate_fd(const ls_gate *gate)
{
    return gate->events;
}

int ls_gate_port(const ls_gate *gate)
{
    return gate->port;
}

static int listen_at(const struct sockaddr *at, socklen_t at_bytes, uint16_t *port)
{
    struct sockaddr_storage own;
    socklen_t own_bytes = sizeof own;
    int on = 1, off = 0, saved;
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -1;
    }
    if (at->sa_family == AF_INET6) { /* IPv4 too, unless the address is one of IPv6 */
        bool any = IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)at)->sin6_addr);
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, any ? &off : &on, sizeof on);
    }
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        bind(fd, at, at_bytes) == 0 && listen(fd, SOMAXCONN) == 0 &&
        getsockname(fd, (struct sockaddr *)&own, &own_bytes) == 0) {
        *port = port_of((struct sockaddr *)&own);
        return fd;
    }
    saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

ls_status ls_gate_open(const char *name, const struct sockaddr *at, socklen_t at_bytes,
                       const unsigned char key[LS_SHA256_BYTES], int pending_max, ls_gate **out)
{
    struct rlimit limit = {.rlim_cur = 256};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t quarter = limit.rlim_cur / 4, reserve = quarter < RESERVE ? quarter : RESERVE;
    ls_gate *gate = calloc(1, sizeof *gate);
    if (gate == NULL) {
        return LS_ERR_INFRA;
    }
    *gate = (ls_gate){.name = name, .listener = -1, .events = -1, .spare = -1};
    gate->high_fd = limit.rlim_cur - reserve;
    gate->pending_max = quarter < (rlim_t)pending_max ? (int)quarter : pending_max;
    gate->pending_max = gate->pending_max < 1 ? 1 : gate->pending_max;
    memcpy(gate->key, key, sizeof gate->key);
    gate->waiting = malloc((size_t)gate->pending_max * sizeof *gate->waiting);
    gate->listener = listen_at(at, at_bytes, &gate->port);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = gate->listener};
    if (gate->waiting == NULL || gate->listener < 0 ||
        (gate->events = epoll_create1(EPOLL_CLOEXEC)) < 0 ||
        epoll_ctl(gate->events, EPOLL_CTL_ADD, gate->listener, &event) != 0) {
        int saved = errno;
        ls_gate_close(gate);
        errno = saved;
        return LS_ERR_INFRA;
    }
    gate->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    *out = gate;
    return LS_OK;
}

void ls_gate_close(ls_gate *gate)
{
    if (gate == NULL) {
        return;
    }
    count_refused(gate);
    while (gate->count > 0) {
        refuse(gate, gate->count - 1, NULL);
    }
    const int descriptors[] = {gate->listener, gate->events, gate->spare};
    for (size_t i = 0; i < sizeof descriptors / sizeof *descriptors; i++) {
        if (descriptors[i] >= 0) {
            close(descriptors[i]);
        }
    }
    free(gate->waiting);
    free(gate);
}

/* ---- the caller ----------------------------------------------------------------------------- */

int ls_gate_transfer(int fd, short direction, void *data, size_t bytes, int64_t deadline_ns)
{
    char *at = data;
    while (bytes > 0) {
        ssize_t moved = direction == POLLOUT ? send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                                             : recv(fd, at, bytes, MSG_DONTWAIT);
        if (moved > 0) {
            at += moved;
            bytes -= (size_t)moved;
            continue;
        }
        if (moved == 0) {
            errno = ECONNRESET;
            return -1;
        }
        if (errno == EINTR) {
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
            return -1;
        }
        int ready = ls_clock_poll(fd, direction, deadline_ns);
        if (ready <= 0) {
            return ready;
        }
    }
    return 1;
}

/* 1: connected; 0: deadline; -1: refused (errno). */
static int connect_to(const struct sockaddr *at, socklen_t at_bytes, int64_t deadline_ns, int *out)
{
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        return -1;
    }
    int done = 1, failed = 0, on = 1;
    if (connect(fd, at, at_bytes) != 0) {
        failed = errno;
        if (failed == EINPROGRESS || failed == EINTR) {
            socklen_t bytes = sizeof failed;
            done = ls_clock_poll(fd, POLLOUT, deadline_ns);
            if (done > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &bytes) != 0) {
                failed = errno;
            }
        }
    }
    if (done > 0 && failed == 0) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* affects speed only */
        *out = fd;
        return 1;
    }
    close(fd);
    errno = failed;
    return done > 0 ? -1 : done;
}

static ls_gate_result exchange(int fd, uint16_t port, const unsigned char *key,
                               const ls_gate_claim *claim, int64_t proof_ns, int64_t deadline_ns,
                               char *why, size_t why_bytes)
{
    unsigned char greeting[LS_GATE_GREETING_BYTES], theirs[PROOF], mine[PROOF], last[CLAIM + PROOF];
    talk said = {.port = port};
    int done = ls_gate_transfer(fd, POLLIN, greeting, sizeof greeting, proof_ns);
    bool ours = done > 0 && memcmp(greeting, LS_GATE_GREETING, sizeof greeting) == 0;
    if (done >= 0 && !ours) {
        bool other = done > 0 && memcmp(greeting, LS_GATE_GREETING, sizeof greeting - 1) == 0;
        snprintf(why, why_bytes, "another %s listens there, not %s",
                 other ? "version of Lockstep" : "service",
                 other ? "this one" : "a Lockstep store");
        return LS_GATE_CLOSED;
    }
    make_nonce(said.caller);
    if (done < 0 || (done = ls_gate_transfer(fd, POLLIN, said.listener, NONCE, proof_ns)) <= 0 ||
        (done = ls_gate_transfer(fd, POLLOUT, said.caller, NONCE, proof_ns)) <= 0 ||
        (done = ls_gate_transfer(fd, POLLIN, theirs, PROOF, proof_ns)) <= 0) {
        snprintf(why, why_bytes, "it was reached, then %s",
                 done == 0 ? "did not answer" : "closed the connection");
        return LS_GATE_CLOSED;
    }
    prove(key, 'L', &said, NULL, mine);
    if (!is_equal(mine, theirs)) {
        snprintf(why, why_bytes,
                 "it belongs to another job (its token, run id or MASTER_PORT differs from this "
                 "rank's)");
        return LS_GATE_OTHER_JOB;
    }
    uint32_t word[4] = {htole32((uint32_t)claim->rank), htole32((uint32_t)claim->world),
                        htole32((uint32_t)claim->further), htole32((uint32_t)claim->timeout_ms)};
    memcpy(last, word, sizeof word);
    prove(key, 'C', &said, last, last + CLAIM);
    char welcome = 0;
    if (ls_gate_transfer(fd, POLLOUT, last, sizeof last, deadline_ns) <= 0 ||
        ls_gate_transfer(fd, POLLIN, &welcome, 1, deadline_ns) <= 0 || welcome != LS_GATE_WELCOME) {
        snprintf(why, why_bytes, "it was reached, then closed the connection or did not answer");
        return LS_GATE_CLOSED;
    }
    return LS_GATE_IN;
}

ls_gate_result ls_gate_enter(const struct sockaddr *at, socklen_t at_bytes,
                             const unsigned char key[LS_SHA256_BYTES], const ls_gate_claim *claim,
                             int64_t proof_ns, int64_t deadline_ns, int *out, char *why,
                             size_t why_bytes)
{
    int fd = -1;
    proof_ns = proof_ns < deadline_ns ? proof_ns : deadline_ns;
    int done = connect_to(at, at_bytes, proof_ns, &fd);
    if (done <= 0) {
        snprintf(why, why_bytes, "%s", done == 0 ? "no answer" : strerror(errno));
        return done == 0 ? LS_GATE_CLOSED : LS_GATE_UNREACHED;
    }
    ls_gate_result result =
        exchange(fd, port_of(at), key, claim, proof_ns, deadline_ns, why, why_bytes);
    if (result == LS_GATE_IN) {
        *out = fd;
    } else {
        close(fd);
    }
    return result;
}

ls_gate_result ls_gate_enter_again(const struct sockaddr *at, socklen_t at_bytes,
                                   const unsigned char key[LS_SHA256_BYTES],
                                   const ls_gate_claim *claim, int64_t deadline_ns, int *out,
                                   char *why, size_t why_bytes)
{
    enum { PAUSE_MS_FIRST = 5, PAUSE_MS_LAST = 100 };
    for (int pause_ms = PAUSE_MS_FIRST;;) {
        ls_gate_result result =
            ls_gate_enter(at, at_bytes, key, claim, ls_clock_after(LS_GATE_ATTEMPT_S), deadline_ns,
                          out, why, why_bytes);
        int64_t until_ns = ls_clock_after(pause_ms * 1e-3);
        if (result != LS_GATE_CLOSED || until_ns >= deadline_ns) {
            return result;
        }
        (void)ls_clock_poll(-1, 0, until_ns);
        pause_ms = pause_ms * 2 < PAUSE_MS_LAST ? pause_ms * 2 : PAUSE_MS_LAST;
    }
}
