/* The door of the store: connections without the job's token neither get in nor in the way, and a
 * listener without it learns nothing. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "harness/store/gate.h"
#include "harness/store/store_server.h"
#include "kernels/core/text.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"
#include "world.h"

static int dial(int port)
{
    struct sockaddr_in at = world_loopback(port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    RANK_CHECK(fd >= 0);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int listen_anywhere(int *port)
{
    struct sockaddr_in at = world_loopback(0);
    socklen_t bytes = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 8) == 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    *port = ntohs(at.sin_port);
    return fd;
}

enum { NONCE = LS_GATE_NONCE_BYTES, PROOF = LS_SHA256_BYTES, CLAIM = LS_GATE_CLAIM_BYTES };

/* ---- connections without the token ---------------------------------------------------------- */

enum { STRANGERS = 1000, DESCRIPTORS = 256, AT_ONCE = 32, SAID_BYTES_MAX = 8192 };

/* Connects STRANGERS times and keeps every connection: silent, half a message, or garbage. Reports
 * on `said` and leaves when `leave` ends. */
static int strange(int rank, int world, int port, void *context)
{
    const int *pipes = context;
    char garbage[200];
    (void)rank, (void)world;
    memset(garbage, 'G', sizeof garbage);
    struct rlimit limit;
    RANK_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    RANK_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int i = 0, fd; i < STRANGERS; i++) {
        while ((fd = dial(port)) < 0) { /* rank 0 does not listen yet */
            (void)poll(NULL, 0, 5);
        }
        if (i % 3 > 0) {
            (void)send(fd, garbage, i % 3 == 1 ? 10 : sizeof garbage, MSG_NOSIGNAL);
        }
    }
    char byte = 1;
    close(pipes[3]);
    RANK_CHECK(write(pipes[1], &byte, 1) == 1);
    RANK_CHECK(read(pipes[2], &byte, 1) == 0);
    return 0;
}

/* With few descriptors, and as many strangers as would fit three times: rank 1 joins, rank 0 can
 * open files, values arrive. */
static int besieged(int rank, int world, int port, void *context)
{
    const int *pipes = context;
    ls_store *store = NULL;
    struct rlimit limit = {DESCRIPTORS, DESCRIPTORS};
    RANK_CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    ls_store_options options = world_store(rank, world, port, 20.0);
    if (rank == 1) {
        char byte; /* the strangers were first */
        RANK_CHECK(read(pipes[0], &byte, 1) == 1);
    }
    RANK_CHECK(ls_store_open(&options, &store) == LS_OK);
    RANK_CHECK(ls_store_barrier(store, "met", -1) == LS_OK);
    for (int i = 0; i < AT_ONCE; i++) {
        RANK_CHECK(open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0);
    }
    RANK_CHECK(ls_store_barrier(store, "saved", -1) == LS_OK);
    ls_store_close(store, 5.0);
    return 0;
}

TEST(strangers_are_dropped)
{
    int pipes[4], port = world_free_port();
    struct stat said;
    int errors = memfd_create("errors", MFD_CLOEXEC);
    ck_assert(errors >= 0 && fcntl(errors, F_SETFL, O_APPEND) >= 0);
    ck_assert_int_ge(dup2(errors, STDERR_FILENO), 0);
    ck_assert(pipe2(pipes, O_CLOEXEC) == 0 && pipe2(pipes + 2, O_CLOEXEC) == 0);
    pid_t stranger = world_fork(9, 2, port, strange, pipes);
    pid_t first = world_fork(0, 2, port, besieged, pipes);
    pid_t second = world_fork(1, 2, port, besieged, pipes);
    ck_assert_int_eq(world_join(second), 0);
    ck_assert_int_eq(world_join(first), 0);
    close(pipes[3]);
    ck_assert_int_eq(world_join(stranger), 0);
    static char text[SAID_BYTES_MAX + 1];
    ck_assert_int_eq(fstat(errors, &said), 0);
    ck_assert_int_lt(said.st_size, SAID_BYTES_MAX);
    ck_assert_int_gt(pread(errors, text, SAID_BYTES_MAX, 0), 0);
    ck_assert_ptr_nonnull(strstr(text, "store: refused 127.0.0.1:"));
    ck_assert_ptr_nonnull(strstr(text, " more connections"));
}

/* Connects from a process with descriptors of its own; every connection is closed soon. */
static int turned_away(int rank, int world, int port, void *context)
{
    char got[64];
    (void)rank, (void)world, (void)context;
    for (int fd = 3; fd < DESCRIPTORS; fd++) {
        (void)close(fd);
    }
    for (int i = 0; i < 100; i++) {
        int fd = dial(port);
        RANK_CHECK(fd >= 0);
        while (recv(fd, got, sizeof got, 0) > 0) {
        }
        close(fd);
    }
    return 0;
}

static int entering(int rank, int world, int port, void *context)
{
    struct sockaddr_in at = world_loopback(port);
    unsigned char key[LS_SHA256_BYTES];
    char why[256];
    int fd = -1;
    (void)context;
    ls_store_options options = world_store(0, world, port, 5.0); /* the store's own */
    ls_gate_claim claim = {.rank = rank, .world = world, .further = 1};
    ls_store_server_key(&options, key);
    return ls_gate_enter((struct sockaddr *)&at, sizeof at, key, &claim, ls_clock_after(5),
                         ls_clock_after(5), &fd, why, sizeof why) == LS_GATE_IN
               ? 0
               : 1;
}

/* A process that has used up its descriptors, or all but those that are kept for its files, refuses
 * connections at once, goes on, and admits ranks when it has descriptors again. */
LOOP_TEST(descriptors_run_out, 2)
{
    enum { SPARE = 10 };
    struct rlimit limit = {DESCRIPTORS, DESCRIPTORS};
    ls_store *store = NULL;
    int opened[DESCRIPTORS], count = 0;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    int port = world_free_port();
    ls_store_options options = world_store(0, 1, port, 5.0);
    ck_assert_int_eq(ls_store_open(&options, &store), LS_OK);
    while ((opened[count] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) {
        count++;
    }
    for (int i = 0; i < SPARE * _i; i++) {
        close(opened[--count]);
    }
    pid_t stranger = world_fork(9, 1, port, turned_away, NULL);
    ck_assert_int_eq(world_join(stranger), 0);
    ck_assert_int_eq(ls_store_set(store, "a", "b", 1), LS_OK);
    while (count > 0) {
        close(opened[--count]);
    }
    pid_t rank = world_fork(0, 1, port, entering, NULL);
    ck_assert_int_eq(world_join(rank), 0);
    ls_store_close(store, 0);
}

/* ---- listeners without the token ------------------------------------------------------------ */

static int joining(int rank, int world, int port, void *context)
{
    ls_store *store = NULL;
    (void)context;
    ls_store_options options = world_store(rank, world, port, 1.0);
    return ls_store_open(&options, &store);
}

/* Greets as a store does, answers with a wrong proof and keeps all that the caller sends. */
LOOP_TEST(token_is_not_sent, 2)
{
    char heard[4096] = "", greeting[8 + NONCE] = "LSSTORE2";
    size_t used = 0;
    int port;
    int listener = listen_anywhere(&port);
    memcpy(greeting, _i == 0 ? "LSSTORE1" : "LSSTORE2", 8);
    pid_t caller = world_fork(1, 2, port, joining, NULL);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    close(listener);
    ck_assert_int_eq(send(fd, greeting, sizeof greeting, MSG_NOSIGNAL), sizeof greeting);
    for (ssize_t got; (got = recv(fd, heard + used, sizeof heard - used, 0)) > 0;) {
        used += (size_t)got;
        (void)send(fd, greeting, NONCE, MSG_NOSIGNAL);
    }
    close(fd);
    ck_assert_int_eq(world_join(caller), LS_ERR_RENDEZVOUS);
    ck_assert_ptr_null(memmem(heard, used, "secret", 6));
    ck_assert_uint_le(used, NONCE); /* not even a proof */
}

/* Forwards between a caller and the right store: the proofs hold the port that was called. */
TEST(proofs_are_not_relayed)
{
    char data[8 + NONCE];
    int port, store_port = world_free_port(), ahead = -1;
    int listener = listen_anywhere(&port);
    pid_t caller = world_fork(1, 2, port, joining, NULL);
    pid_t server = world_fork(0, 2, store_port, joining, NULL);
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    close(listener);
    while ((ahead = dial(store_port)) < 0) {
        (void)poll(NULL, 0, 5);
    }
    ck_assert_int_eq(recv(ahead, data, sizeof data, MSG_WAITALL), sizeof data);
    ck_assert_int_eq(send(fd, data, sizeof data, MSG_NOSIGNAL), sizeof data);
    ck_assert_int_eq(recv(fd, data, NONCE, MSG_WAITALL), NONCE);
    ck_assert_int_eq(send(ahead, data, NONCE, MSG_NOSIGNAL), NONCE);
    ck_assert_int_eq(recv(ahead, data, NONCE, MSG_WAITALL), NONCE);
    ck_assert_int_eq(send(fd, data, NONCE, MSG_NOSIGNAL), NONCE);
    ck_assert_int_eq(recv(fd, data, 1, 0), 0); /* it proves nothing to this listener */
    close(fd);
    close(ahead);
    ck_assert_int_eq(world_join(caller), LS_ERR_RENDEZVOUS);
    ck_assert_int_eq(world_join(server), LS_ERR_RENDEZVOUS);
}

/* ---- two jobs ------------------------------------------------------------------------------- */

/* Under torchrun without a run id of its own ("none"), on neighbouring ports. */
static int neighbouring(int rank, int world, int port, void *context)
{
    const char *job = context;
    ls_store *store = NULL;
    void *values[2];
    size_t bytes[2];
    ls_store_options options = world_store(rank, world, port, 6.0);
    options.run_id = "none";
    options.probe = true;
    RANK_CHECK(ls_store_open(&options, &store) == LS_OK);
    RANK_CHECK(ls_store_exchange(store, "job", job, 1, values, bytes) == LS_OK);
    for (int i = 0; i < world; i++) {
        RANK_CHECK(bytes[i] == 1 && *(char *)values[i] == *job);
        free(values[i]);
    }
    RANK_CHECK(ls_store_barrier(store, "end", -1) == LS_OK);
    ls_store_close(store, 5.0);
    return 0;
}

LOOP_TEST(neighbouring_ports, 4)
{
    static const int order[4][4] = {{2, 1, 0, 3}, {0, 3, 1, 2}, {1, 3, 2, 0}, {2, 0, 3, 1}};
    pid_t pid[4];
    int port = world_free_port();
    port = port > 65000 ? port - 100 : port;
    for (int i = 0; i < 4; i++) { /* ranks 0 and 1 of job a, then those of b */
        int who = order[_i][i];
        pid[i] = world_fork(who % 2, 2, port + who / 2, neighbouring, who < 2 ? "a" : "b");
        (void)poll(NULL, 0, 20); /* so that the order is usually this one */
    }
    int failed = 0;
    for (int i = 0; i < 4; i++) {
        failed += world_join(pid[i]) != 0;
    }
    ck_assert_int_eq(failed, 0);
}

/* Four of the ports that are probed belong to services that say nothing. */
TEST(silent_ports)
{
    enum { SILENT = 4 };
    int port = 0, code[2];
    for (int taken = 0; taken < SILENT;) { /* four free ports in a row */
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        port = taken == 0 ? world_free_port() - 1 : port;
        struct sockaddr_in at = world_loopback(port + 1 + taken);
        bool free = bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 8) == 0;
        taken = free ? taken + 1 : 0;
    }
    ck_assert_int_eq(world_run_at(port, 2, neighbouring, "c", code), 0);
}

/* ---- the caller ------------------------------------------------------------------------------ */

enum { NOTHING_BYTES = LS_GATE_GREETING_BYTES + LS_GATE_NONCE_BYTES + LS_SHA256_BYTES };

/* What listens sends the first bytes of this, and then ends the connection or says nothing more. */
static const struct {
    const char *greeting;
    int bytes;
    bool silent;
    double limit_s; /* for its proof; long where it says enough at once */
    ls_gate_result result;
    const char *why;
} listeners[] = {
    {"", 0, false, 5, LS_GATE_CLOSED, "it was reached, then closed the connection"},
    {"", 0, true, 0.1, LS_GATE_CLOSED, "another service listens there, not a Lockstep store"},
    {"HTTP/1.1", 8, true, 5, LS_GATE_CLOSED, "another service listens there, not a Lockstep store"},
    {"LSSTORE1", 8, true, 5, LS_GATE_CLOSED,
     "another version of Lockstep listens there, not this one"},
    {LS_GATE_GREETING, 8, true, 0.5, LS_GATE_CLOSED, "it was reached, then did not answer"},
    {LS_GATE_GREETING, 8, false, 5, LS_GATE_CLOSED, "it was reached, then closed the connection"},
    {LS_GATE_GREETING, NOTHING_BYTES - 1, true, 0.5, LS_GATE_CLOSED,
     "it was reached, then did not answer"},
    {LS_GATE_GREETING, NOTHING_BYTES, true, 5, LS_GATE_OTHER_JOB,
     "it belongs to another job (its token, run id or MASTER_PORT differs from this rank's)"},
};

typedef struct listener {
    int fd, which, accepted;
} listener;

static void *serve_bytes(void *context)
{
    listener *self = context;
    char sent[NOTHING_BYTES] = "";
    memcpy(sent, listeners[self->which].greeting, strlen(listeners[self->which].greeting));
    for (int fd; (fd = accept(self->fd, NULL, NULL)) >= 0; self->accepted++) {
        (void)send(fd, sent, (size_t)listeners[self->which].bytes, MSG_NOSIGNAL);
        if (!listeners[self->which].silent) {
            (void)shutdown(fd, SHUT_WR);
        }
    }
    return NULL;
}

ROWS_TEST(what_listens_is_named, listeners)
{
    unsigned char key[LS_SHA256_BYTES] = "key";
    ls_gate_claim claim = {.world = 2};
    bool other = listeners[_i].result == LS_GATE_OTHER_JOB;
    char why[256] = "";
    int port = 0, fd = -1;
    listener self = {.fd = listen_anywhere(&port), .which = _i};
    struct sockaddr_in at = world_loopback(port);
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, serve_bytes, &self), 0);
    ck_assert_int_eq(ls_gate_enter((struct sockaddr *)&at, sizeof at, key, &claim,
                                   ls_clock_after(listeners[_i].limit_s), ls_clock_after(5), &fd,
                                   why, sizeof why),
                     listeners[_i].result);
    ck_assert_str_eq(why, listeners[_i].why);
    int64_t began_ns = ls_clock_ns();
    ck_assert_int_eq(ls_gate_enter_again((struct sockaddr *)&at, sizeof at, key, &claim,
                                         ls_clock_after(other ? 5 : 0.3), &fd, why, sizeof why),
                     listeners[_i].result);
    ck_assert_int_eq(fd, -1);
    ck_assert_double_lt(ls_clock_ms_between(began_ns, ls_clock_ns()), 4000);
    (void)shutdown(self.fd, SHUT_RDWR);
    pthread_join(thread, NULL);
    if (other) {
        ck_assert_int_eq(self.accepted, 2);
    } else if (!listeners[_i].silent) { /* 5, 10, 20, 40, 80 and 100 ms between 7 attempts */
        ck_assert_int_ge(self.accepted, 1 + 2);
        ck_assert_int_le(self.accepted, 1 + 7);
    }
}

/* ---- the protocol, byte for byte ---------------------------------------------------------------
 */

static const unsigned char job_key[LS_SHA256_BYTES] = "the key of a job";

static ls_gate *open_gate(int pending_max)
{
    struct sockaddr_in at = world_loopback(0);
    ls_gate *gate = NULL;
    ck_assert_int_eq(
        ls_gate_open("gate", (struct sockaddr *)&at, sizeof at, job_key, pending_max, &gate),
        LS_OK);
    ck_assert_int_gt(ls_gate_port(gate), 0);
    return gate;
}

/* As gate.h says: role, both nonces, the port, and the claim of a caller. */
static void prove(char role, const unsigned char *listener, const unsigned char *caller, int port,
                  const unsigned char *claim, unsigned char *proof)
{
    unsigned char data[1 + 2 * NONCE + 2 + CLAIM] = {(unsigned char)role};
    memcpy(data + 1, listener, NONCE);
    memcpy(data + 1 + NONCE, caller, NONCE);
    data[1 + 2 * NONCE] = (unsigned char)(port / 256);
    data[2 + 2 * NONCE] = (unsigned char)(port % 256);
    if (claim != NULL) {
        memcpy(data + 3 + 2 * NONCE, claim, CLAIM);
    }
    ls_sha256_hmac(job_key, sizeof job_key, data, sizeof data, proof);
}

/* Lets the gate work until `bytes` have come from it; true with a guest. */
static bool recv_claim(ls_gate *gate, int fd, void *data, size_t bytes, ls_gate_guest *guest)
{
    char *at = data;
    bool in = false;
    for (size_t used = 0; used < bytes;) {
        in = ls_gate_next(gate, guest) || in;
        ssize_t got = recv(fd, at + used, bytes - used, MSG_DONTWAIT);
        ck_assert(got > 0 || (got < 0 && errno == EAGAIN));
        used += got > 0 ? (size_t)got : 0;
    }
    return in;
}

static void send_all(int fd, const void *data, size_t bytes)
{
    ck_assert_int_eq(send(fd, data, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
}

/* Until the gate has closed the connection; no guest comes in. */
static void assert_refused(ls_gate *gate, int fd)
{
    char byte;
    ls_gate_guest guest;
    ssize_t got;
    do {
        ck_assert(!ls_gate_next(gate, &guest));
        got = recv(fd, &byte, 1, MSG_DONTWAIT);
        ck_assert(got <= 0);
    } while (got < 0 && errno == EAGAIN);
    close(fd);
}

static int port_of(int fd)
{
    struct sockaddr_in own;
    socklen_t bytes = sizeof own;
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&own, &bytes), 0);
    return ntohs(own.sin_port);
}

/* What a caller does wrong; the first two get in, by words of any length. */
static const struct {
    const char *fault, *said; /* after the address; "": nothing */
} callers[] = {
    {"none", NULL},
    {"in pieces", NULL},
    {"first bit", "which does not know this job's token"},
    {"last bit", "which does not know this job's token"},
    {"another claim", "which does not know this job's token"},
    {"another port", "which does not know this job's token"},
    {"the listener's proof", "which does not know this job's token"},
    {"leaves after the proof",
     "which belongs to another job (different token, run id or MASTER_PORT)"},
    {"leaves in its claim",
     "which belongs to another job (different token, run id or MASTER_PORT)"},
    {"leaves before", ""},
};

ROWS_TEST(callers_prove_the_key, callers)
{
    static const unsigned char claim[CLAIM] = {7, 1, 0, 0, 9,    2, 0, 0,
                                               1, 0, 0, 0, 0xff, 0, 0, 0x80};
    const char *fault = callers[_i].fault;
    unsigned char greeting[LS_GATE_GREETING_BYTES + NONCE], caller[NONCE], wanted[PROOF],
        theirs[PROOF], last[CLAIM + PROOF];
    char welcome = 0, said[300] = "";
    ls_gate_guest guest = {.fd = -1};
    close(STDIN_FILENO);
    ls_gate *gate = open_gate(4);
    int port = ls_gate_port(gate);
    ck_assert(ls_gate_deadline_ns(gate) == INT64_MAX && !ls_gate_next(gate, &guest));
    int64_t before_ns = ls_clock_ns(), limit_ns = LS_GATE_LIMIT_S * INT64_C(1000000000);
    int fd = dial(port);
    catch_lines();
    ck_assert_int_eq(ls_clock_poll(ls_gate_fd(gate), POLLIN, ls_clock_after(5)), 1);
    ck_assert(!recv_claim(gate, fd, greeting, sizeof greeting, &guest));
    ck_assert_mem_eq(greeting, "LSSTORE2", 8);
    ck_assert_int_ge(ls_gate_deadline_ns(gate), before_ns + limit_ns);
    ck_assert_int_le(ls_gate_deadline_ns(gate), ls_clock_ns() + limit_ns);
    memset(caller, 'c', sizeof caller);
    send_all(fd, caller, strcmp(fault, "leaves before") == 0 ? NONCE - 1 : NONCE);
    if (strcmp(fault, "leaves before") != 0) {
        ck_assert(!recv_claim(gate, fd, theirs, sizeof theirs, &guest));
        prove('L', greeting + 8, caller, port, NULL, wanted);
        ck_assert_mem_eq(theirs, wanted, sizeof wanted);
        memcpy(last, claim, CLAIM);
        prove(strcmp(fault, "the listener's proof") == 0 ? 'L' : 'C', greeting + 8, caller,
              strcmp(fault, "another port") == 0 ? port ^ 1 : port, claim, last + CLAIM);
        last[CLAIM] ^= strcmp(fault, "first bit") == 0 ? 0x80 : 0;
        last[CLAIM + PROOF - 1] ^= strcmp(fault, "last bit") == 0 ? 1 : 0;
        last[0] ^= strcmp(fault, "another claim") == 0 ? 1 : 0;
        size_t sent = strcmp(fault, "leaves in its claim") == 0      ? sizeof last - 1
                      : strcmp(fault, "leaves after the proof") == 0 ? 0
                                                                     : sizeof last;
        for (size_t i = 0; strcmp(fault, "in pieces") == 0 && i + 1 < sent; i++) {
            send_all(fd, last + i, 1);
            ck_assert(!ls_gate_next(gate, &guest));
        }
        send_all(fd, strcmp(fault, "in pieces") == 0 ? last + sent - 1 : last,
                 strcmp(fault, "in pieces") == 0 ? 1 : sent);
    }
    LS_TEXT(who, 40, "127.0.0.1:%d", port_of(fd));
    if (callers[_i].said == NULL) {
        ck_assert(recv_claim(gate, fd, &welcome, 1, &guest));
        ck_assert_int_eq(welcome, LS_GATE_WELCOME);
        ck_assert(guest.claim.rank == 0x107 && guest.claim.world == 0x209);
        ck_assert(guest.claim.further == 1 && guest.claim.timeout_ms == INT32_MIN + 0xff);
        ck_assert_str_eq(guest.who, who);
        ck_assert_int_eq(fcntl(guest.fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
        ck_assert_int_eq(fcntl(guest.fd, F_GETFD), FD_CLOEXEC);
        close(guest.fd);
        ck_assert_int_eq(recv(fd, &welcome, 1, 0), 0); /* the gate kept no copy */
        close(fd);
    } else {
        (void)shutdown(fd, strncmp(fault, "leaves", 6) == 0 ? SHUT_WR : SHUT_RD);
        if (callers[_i].said[0] != '\0') {
            snprintf(said, sizeof said, "warning: gate: refused %s, %s\n", who, callers[_i].said);
        }
        assert_refused(gate, fd);
    }
    ck_assert(ls_gate_deadline_ns(gate) == INT64_MAX && !ls_gate_next(gate, &guest));
    ls_gate_close(gate);
    ck_assert_str_eq(caught_lines(), said);
    ck_assert_int_eq(fcntl(STDIN_FILENO, F_GETFD), -1); /* which was free, and is again */
    ck_assert_int_eq(dial(port), -1);
}

/* Four lines, then at the end how many more. */
LOOP_TEST(refusals_are_counted, 3)
{
    int count = 3 + _i;
    ls_gate *gate = open_gate(1);
    char wanted[1000] = "", greeting[LS_GATE_GREETING_BYTES + NONCE];
    const char *all = wanted;
    int fd[16];
    catch_lines();
    for (int i = 0; i <= count; i++) {
        ls_gate_guest guest;
        fd[i] = dial(ls_gate_port(gate));
        ck_assert(!recv_claim(gate, fd[i], greeting, sizeof greeting, &guest));
        ck_assert_int_eq(recv(fd[i], greeting, 1, MSG_DONTWAIT), -1);
        if (i > 0) {
            ck_assert_int_eq(recv(fd[i - 1], greeting, 1, 0), 0);
        }
        if (i > 0 && i <= 4) {
            ls_text_add(wanted, sizeof wanted,
                        "test_gate: warning: gate: refused 127.0.0.1:%d, the oldest of too many "
                        "connections without a proof\n",
                        port_of(fd[i - 1]));
        }
    }
    if (count > 4) {
        ls_text_add(wanted, sizeof wanted,
                    "test_gate: warning: gate: refused %d more connections\n", count - 4);
    }
    ls_gate_close(gate);
    ck_assert_str_eq(caught_text(), all);
    ck_assert_int_eq(recv(fd[count], greeting, 1, 0), 0);
}

/* One that leaves makes room; the oldest of the others goes first, and the last one gets in. */
TEST(pending_connections_keep_their_order)
{
    enum { MOST = 3, ALL = 6 };
    static const int ended_at[ALL] = {4, 2, 5, ALL, ALL, ALL};
    ls_gate *gate = open_gate(MOST);
    ls_gate_guest guest;
    unsigned char greeting[ALL][LS_GATE_GREETING_BYTES + NONCE], byte;
    unsigned char caller[NONCE] = "nonce", theirs[PROOF], last[CLAIM + PROOF] = "claim";
    int fd[ALL];
    catch_lines();
    for (int i = 0; i < ALL; i++) {
        fd[i] = dial(ls_gate_port(gate));
        ck_assert(!recv_claim(gate, fd[i], greeting[i], sizeof greeting[i], &guest));
        if (i == 2) {
            (void)shutdown(fd[1], SHUT_WR);
            ck_assert(!ls_gate_next(gate, &guest));
        }
        for (int k = 0; k <= i; k++) {
            ck_assert_int_eq(recv(fd[k], &byte, 1, MSG_DONTWAIT), i >= ended_at[k] ? 0 : -1);
        }
    }
    send_all(fd[4], caller, sizeof caller); /* between two others */
    ck_assert(!recv_claim(gate, fd[4], theirs, sizeof theirs, &guest));
    prove('C', greeting[4] + 8, caller, ls_gate_port(gate), last, last + CLAIM);
    send_all(fd[4], last, sizeof last);
    ck_assert(recv_claim(gate, fd[4], &byte, 1, &guest));
    ck_assert_int_eq(byte, LS_GATE_WELCOME);
    ck_assert_int_ne(ls_gate_deadline_ns(gate), INT64_MAX);
    ls_gate_close(gate);
    for (int i = 3; i < ALL; i++) {
        ck_assert_int_eq(recv(fd[i], &byte, 1, MSG_DONTWAIT), i == 4 ? -1 : 0);
        close(fd[i]);
    }
    close(guest.fd);
    (void)caught_text();
}

/* Fills the descriptors below `fd`, which is then the next one. */
static void fill_up_to(int fd)
{
    int last;
    do {
        last = open("/dev/null", O_RDONLY | O_CLOEXEC);
    } while (last >= 0 && last < fd);
    ck_assert(fd == 40 ? last == -1 && errno == EMFILE : last == fd);
    if (last >= 0) {
        close(last);
    }
}

/* With 40 descriptors a gate leaves 10 to the rest of the process, and has as many pending. */
TEST(few_descriptors)
{
    static const char *const short_of =
        "because this process is short of descriptors (ulimit -n); it may try again";
    struct rlimit few = {40, 40};
    char greeting[LS_GATE_GREETING_BYTES + NONCE], wanted[1000];
    ls_gate_guest guest;
    int fd[5];
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    ls_gate *gate = open_gate(64);
    catch_lines();
    for (int i = 0; i < 5; i++) {
        fd[i] = dial(ls_gate_port(gate));
    }
    int at[5];
    for (int i = 0; i < 5; i++) {
        at[i] = port_of(fd[i]);
    }
    fill_up_to(30); /* nothing is pending that could leave */
    ls_text_put(wanted, sizeof wanted,
                "test_gate: warning: gate: refused 127.0.0.1:%d, %s\n"
                "test_gate: warning: gate: refused 127.0.0.1:%d, %s\n",
                at[0], short_of, at[1], short_of);
    for (int i = 0; i < 2; i++) {
        ck_assert(!ls_gate_next(gate, &guest));
        ck_assert_int_eq(recv(fd[i], greeting, 1, 0), 0);
    }
    close(29); /* one fits, and leaves for the next */
    ck_assert(!recv_claim(gate, fd[2], greeting, sizeof greeting, &guest));
    ck_assert_int_eq(recv(fd[2], greeting, 1, MSG_DONTWAIT), -1);
    ck_assert(!recv_claim(gate, fd[3], greeting, sizeof greeting, &guest));
    ck_assert_int_eq(recv(fd[2], greeting, 1, 0), 0);
    ls_text_add(wanted, sizeof wanted,
                "test_gate: warning: gate: refused 127.0.0.1:%d, the oldest of too many "
                "connections without a proof\n",
                at[2]);
    fill_up_to(40); /* none at all */
    ck_assert(!ls_gate_next(gate, &guest));
    ck_assert_int_eq(recv(fd[4], greeting, 1, 0), 0);
    ls_text_add(wanted, sizeof wanted, "test_gate: warning: gate: refused a connection, %s\n",
                short_of);
    ck_assert_int_eq(open("/dev/null", O_RDONLY | O_CLOEXEC), -1); /* the gate keeps its last one */
    ls_gate_close(gate);
    ck_assert_int_eq(recv(fd[3], greeting, 1, 0), 0);
    ck_assert_str_eq(caught_text(), wanted);
}

static void *enter_and_keep(void *context)
{
    struct sockaddr_in at = world_loopback(ls_gate_port(context));
    ls_gate_claim claim = {.rank = -2, .world = 70000, .further = 1, .timeout_ms = 1 << 30};
    char why[100] = "as before";
    int *fd = malloc(sizeof *fd);
    ck_assert_int_eq(ls_gate_enter((struct sockaddr *)&at, sizeof at, job_key, &claim,
                                   ls_clock_after(10), ls_clock_after(10), fd, why, sizeof why),
                     LS_GATE_IN);
    ck_assert_str_eq(why, "as before");
    return fd;
}

TEST(a_caller_and_a_gate)
{
    ls_gate *gate = open_gate(4);
    ls_gate_guest guest = {.fd = -1};
    pthread_t thread;
    void *fd = NULL;
    char text[6] = "";
    ck_assert_int_eq(pthread_create(&thread, NULL, enter_and_keep, gate), 0);
    while (!ls_gate_next(gate, &guest)) {
        ck_assert_int_eq(ls_clock_poll(ls_gate_fd(gate), POLLIN, ls_clock_after(10)), 1);
    }
    pthread_join(thread, &fd);
    ck_assert(guest.claim.rank == -2 && guest.claim.world == 70000);
    ck_assert(guest.claim.further == 1 && guest.claim.timeout_ms == 1 << 30);
    ck_assert_int_eq(ls_gate_transfer(*(int *)fd, POLLOUT, "hello", 5, ls_clock_after(5)), 1);
    ck_assert_int_eq(ls_gate_transfer(guest.fd, POLLIN, text, 3, ls_clock_after(5)), 1);
    ck_assert_str_eq(text, "hel");
    ck_assert_int_eq(ls_gate_transfer(guest.fd, POLLIN, text + 3, 3, ls_clock_after(0.02)), 0);
    ck_assert_str_eq(text, "hello");
    close(*(int *)fd);
    ck_assert_int_eq(ls_gate_transfer(guest.fd, POLLIN, text, 1, ls_clock_after(5)), -1);
    ck_assert_int_eq(errno, ECONNRESET);
    ck_assert_int_eq(ls_gate_transfer(-1, POLLIN, text, 1, ls_clock_after(5)), -1);
    ck_assert_int_eq(errno, EBADF);
    close(guest.fd);
    free(fd);
    ls_gate_close(gate);
}

TEST(a_gate_that_cannot_be_opened)
{
    int port, fd = listen_anywhere(&port);
    struct sockaddr_in at = world_loopback(port);
    ls_gate *gate = NULL;
    close(STDIN_FILENO);
    ck_assert_int_eq(ls_gate_open("gate", (struct sockaddr *)&at, sizeof at, job_key, 4, &gate),
                     LS_ERR_INFRA);
    ck_assert_int_eq(errno, EADDRINUSE);
    ck_assert_ptr_null(gate);
    ck_assert_int_eq(fcntl(STDIN_FILENO, F_GETFD), -1);
    close(fd);
}

TEST_MAIN("gate", .timeout_s = 60)
