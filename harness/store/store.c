#include "store.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "harness/process/waiting.h"
#include "gate.h"
#include "store_server.h"

enum {
    IDLE_MAX = 16,
    RETRY_MS_FIRST = 10, /* between attempts to connect until rank 0 listens; doubles each time */
    RETRY_MS_LAST = 250,
    FIRST_LINE_S = 5,     /* of waiting for rank 0: a look-up of a name alone may take 10 s */
    PROBE_MS_FIRST = 100, /* for the proof of a port that is probed; doubles each time */
    PROBE_MS_LAST = 2000,
    REPLY_SLACK_MS = 2000, /* the server keeps the deadlines; after this much more it is lost */
};

#define UNKNOWN_NAME "the name does not resolve"

/* A connection carries one request at a time. A call takes an idle connection or opens another one,
 * so that a waiting `get` does not block the `set` of another thread. */
struct ls_store {
    int rank, world, port;
    double timeout_s;
    char address[256];
    unsigned char key[LS_SHA256_BYTES];
    char local_address[64];
    ls_store_server *server; /* rank 0 */
    struct sockaddr_storage at;
    socklen_t at_bytes;
    int primary; /* open as long as the store: the server takes its end for this rank's end */
    pthread_mutex_t lock;
    bool primary_busy;  /* under lock */
    int idle[IDLE_MAX]; /* under lock */
    int idle_count;
};

/* ---- one connection ------------------------------------------------------------------------- */

/* Sends whole requests and receives whole replies, each with a deadline. Functions that return int
 * return 1 when done, 0 when the deadline has passed, -1 when the connection has ended (errno). */
typedef struct reply {
    ls_status status;
    int64_t number;
    char *value; /* malloc'ed, 0 at the end */
    size_t bytes;
} reply;

/* Nanoseconds until then; 0 when it has passed. */
static int64_t rest_ns(int64_t deadline_ns)
{
    int64_t rest = deadline_ns - ls_clock_ns();
    return rest > 0 ? rest : 0;
}

static int send_request(int fd, const ls_store_header *header, const char *key, const void *value,
                        int64_t deadline_ns)
{
    unsigned char small[LS_STORE_HEADER_BYTES + LS_STORE_KEY_BYTES_MAX];
    ls_store_wire_put(header, small);
    memcpy(small + LS_STORE_HEADER_BYTES, key, header->key_bytes);
    int done = ls_gate_transfer(fd, POLLOUT, small, LS_STORE_HEADER_BYTES + header->key_bytes,
                                deadline_ns);
    return done > 0 ? ls_gate_transfer(fd, POLLOUT, (void *)value, header->value_bytes, deadline_ns)
                    : done;
}

static int receive_reply(int fd, int64_t deadline_ns, reply *out)
{
    unsigned char bytes[LS_STORE_HEADER_BYTES];
    int done = ls_gate_transfer(fd, POLLIN, bytes, sizeof bytes, deadline_ns);
    if (done <= 0) {
        return done;
    }
    ls_store_header header = ls_store_wire_get(bytes);
    if (header.magic != LS_STORE_MAGIC || header.value_bytes > LS_STORE_VALUE_BYTES_MAX) {
        errno = EPROTO;
        return -1;
    }
    char *value = ls_list_make((size_t)header.value_bytes + 1, 1);
    done = ls_gate_transfer(fd, POLLIN, value, header.value_bytes, deadline_ns);
    if (done <= 0) {
        free(value);
        return done;
    }
    *out = (reply){.status = (ls_status)header.verb,
                   .number = header.number,
                   .value = value,
                   .bytes = header.value_bytes};
    return 1;
}

/* ---- joining -------------------------------------------------------------------------------- */

static ls_gate_claim claim_of(const ls_store *store, bool further, int64_t deadline_ns)
{
    return (ls_gate_claim){.rank = store->rank,
                           .world = store->world,
                           .further = further,
                           .timeout_ms = (int32_t)(rest_ns(deadline_ns) / 1000000)};
}

/* The reply to the claim of a connection that has passed the gate. */
static int receive_welcome(int fd, int64_t deadline_ns, reply *out)
{
    return receive_reply(fd, deadline_ns + REPLY_SLACK_MS * INT64_C(1000000), out);
}

static void note_local_address(ls_store *store)
{
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    char host[sizeof store->local_address];
    if (getsockname(store->primary, (struct sockaddr *)&own, &bytes) == 0 &&
        getnameinfo((struct sockaddr *)&own, bytes, host, sizeof host, NULL, 0, NI_NUMERICHOST) ==
            0) {
        snprintf(store->local_address, sizeof store->local_address, "%s", host);
    }
}

typedef enum join_result { JOINED, NOT_YET, TURNED_AWAY } join_result;

/* One attempt at one address and port. TURNED_AWAY: the reason is in *status and logged. */
static join_result try_join(ls_store *store, const struct addrinfo *at, int port, bool probe,
                            double limit_s, int64_t deadline_ns, ls_status *status, char *why,
                            size_t why_bytes)
{
    struct sockaddr_storage where;
    memcpy(&where, at->ai_addr, at->ai_addrlen);
    if (where.ss_family == AF_INET6) {
        ((struct sockaddr_in6 *)&where)->sin6_port = htons((uint16_t)port);
    } else {
        ((struct sockaddr_in *)&where)->sin_port = htons((uint16_t)port);
    }
    ls_gate_claim claim = claim_of(store, false, deadline_ns);
    int fd = -1;
    ls_gate_result result =
        ls_gate_enter((struct sockaddr *)&where, at->ai_addrlen, store->key, &claim,
                      ls_clock_after(limit_s), deadline_ns, &fd, why, why_bytes);
    if (result == LS_GATE_OTHER_JOB && !probe) {
        *status = ls_log_fail(LS_ERR_RENDEZVOUS, "store at %s:%d: %s", store->address, port, why);
        return TURNED_AWAY;
    }
    if (result != LS_GATE_IN) { /* another job's store: this job's is on another port */
        return NOT_YET;
    }
    reply answer = {.status = LS_OK};
    int done = receive_welcome(fd, deadline_ns, &answer);
    if (done <= 0) {
        snprintf(why, why_bytes, "rank 0 was reached, then %s",
                 done == 0 ? "did not answer" : "closed the connection");
        close(fd);
        return NOT_YET;
    }
    if (answer.status == LS_OK) {
        free(answer.value);
        store->at = where;
        store->at_bytes = at->ai_addrlen;
        store->port = port;
        store->primary = fd;
        note_local_address(store);
        return JOINED;
    }
    close(fd);
    ls_log_error("store at %s:%d: %s", store->address, port, answer.value);
    free(answer.value);
    *status = answer.status;
    return TURNED_AWAY;
}

/* Why the last attempt failed. */
static double find_why(void *context, char *text, size_t bytes)
{
    ls_text_put(text, bytes, "%s", (const char *)context);
    return 0;
}

static ls_waiting_probe *const probes[] = {find_why, NULL};

/* What to do about a reason for which rank 0 is not reached. */
static const char *remedy_of(const char *why)
{
    static const struct {
        int error;
        const char *remedy;
    } rows[] = {
        {ENETUNREACH, "no interface of this machine leads there (`ip route get` and the address)"},
        {EHOSTUNREACH, "no machine has that address on this network: is it rank 0's?"},
        {ECONNREFUSED, "nothing listens there: is rank 0 started, with this port?"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strstr(why, strerror(rows[i].error)) != NULL) {
            return rows[i].remedy;
        }
    }
    return strncmp(why, UNKNOWN_NAME, strlen(UNKNOWN_NAME)) == 0
               ? "give MASTER_ADDR as a number, or add the name to /etc/hosts"
           : strcmp(why, "no answer") == 0
               ? "does a firewall drop the port, or is it a wrong address?"
               : "";
}

static ls_status join(ls_store *store, const ls_store_options *options, int64_t deadline_ns)
{
    char why[256] = "not tried", place[800], service[8];
    const char *remedy = "";
    ls_waiting waiting = ls_waiting_begin(probes, place, store->timeout_s);
    waiting.first_s = FIRST_LINE_S;
    bool probe = options->probe && store->server == NULL;
    int first = probe ? options->port + 1 : store->port;
    int last = probe ? options->port + LS_STORE_PORT_PROBES : store->port;
    int pause_ms = RETRY_MS_FIRST, probe_ms = PROBE_MS_FIRST;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    snprintf(service, sizeof service, "%d", first);
    for (;;) {
        int failed = getaddrinfo(store->address, service, &hints, &found);
        if (failed != 0 && strcmp(store->address, "localhost") == 0) {
            /* a minimal system image may lack /etc/hosts; the name's address is fixed (RFC
             * 6761, 6.3) */
            failed = getaddrinfo("127.0.0.1", service, &hints, &found);
        }
        if (failed != 0) { /* the name may appear together with its node; retry */
            snprintf(why, sizeof why, UNKNOWN_NAME ": %s", gai_strerror(failed));
            found = NULL;
        }
        for (const struct addrinfo *at = found; at != NULL; at = at->ai_next) {
            for (int port = first; port <= last && rest_ns(deadline_ns) > 0; port++) {
                ls_status status = LS_OK;
                join_result result =
                    try_join(store, at, port, probe, probe ? probe_ms * 1e-3 : LS_GATE_ATTEMPT_S,
                             deadline_ns, &status, why, sizeof why);
                if (result != NOT_YET) {
                    freeaddrinfo(found);
                    return status;
                }
            }
        }
        if (found != NULL) {
            freeaddrinfo(found);
        }
        int64_t rest = rest_ns(deadline_ns);
        if (rest == 0) {
            break;
        }
        remedy = remedy_of(why);
        ls_text_put(place, sizeof place, "the store of rank 0 at %s port %d: %s%s%s",
                    store->address, first, why, remedy[0] != '\0' ? "; " : "", remedy);
        (void)ls_waiting_look(&waiting);
        int64_t pause_ns = pause_ms * INT64_C(1000000);
        (void)ls_clock_poll(-1, 0, ls_clock_ns() + (pause_ns < rest ? pause_ns : rest));
        pause_ms = pause_ms * 2 < RETRY_MS_LAST ? pause_ms * 2 : RETRY_MS_LAST;
        probe_ms = probe_ms * 2 < PROBE_MS_LAST ? probe_ms * 2 : PROBE_MS_LAST;
    }
    LS_TEXT(ports, 32, first == last ? "%d" : "%d to %d", first, last);
    return ls_log_fail(LS_ERR_RENDEZVOUS,
                       "store: rank %d did not reach rank 0 at %s port %s within %.3g s: %s%s%s",
                       store->rank, store->address, ports, store->timeout_s, why,
                       remedy[0] != '\0' ? "; " : "", remedy);
}

static ls_status check_options(const ls_store_options *options)
{
    if (options->world < 1 || options->rank < 0 || options->rank >= options->world) {
        return ls_log_fail(LS_ERR_USAGE,
                           "store: rank %d is out of range in a world of %d, allowed: 0 to %d",
                           options->rank, options->world, options->world - 1);
    }
    if (options->world > LS_STORE_CLIENTS_MAX / 2) {
        return ls_log_fail(LS_ERR_USAGE, "store: world of %d ranks, allowed: 1 to %d",
                           options->world, LS_STORE_CLIENTS_MAX / 2);
    }
    int last = options->probe ? options->port + LS_STORE_PORT_PROBES : options->port;
    if (options->port < 0 || last > 65535 || (options->port == 0 && options->rank != 0)) {
        return ls_log_fail(LS_ERR_USAGE, "store: port %d, allowed: 1 to %d", options->port,
                           options->probe ? 65535 - LS_STORE_PORT_PROBES : 65535);
    }
    if (!(options->timeout_s > 0 && options->timeout_s <= 1e6)) {
        return ls_log_fail(LS_ERR_USAGE,
                           "store: deadline of %g s, allowed: more than 0, at most 1e6",
                           options->timeout_s);
    }
    if (strlen(options->run_id) > LS_STORE_KEY_BYTES_MAX ||
        strlen(options->address) >= sizeof((ls_store *)NULL)->address) {
        return ls_log_fail(
            LS_ERR_USAGE, "store: run id of %zu bytes or address of %zu bytes, allowed: %d and 255",
            strlen(options->run_id), strlen(options->address), LS_STORE_KEY_BYTES_MAX);
    }
    return LS_OK;
}

/* The key under which rank 0 leaves the address at which other machines reached it, or "". */
static const char reached_key[] = "store/reached";

static ls_status share_address(ls_store *store)
{
    char own[sizeof store->local_address] = "";
    if (store->server == NULL) {
        return LS_OK;
    }
    (void)ls_store_server_address(store->server, own, sizeof own);
    return ls_store_set(store, reached_key, own, strlen(own));
}

ls_status ls_store_open(const ls_store_options *options, ls_store **out)
{
    LS_TRY(check_options(options));
    int64_t deadline_ns = ls_clock_after(options->timeout_s);
    ls_store *store = ls_list_make(1, sizeof *store);
    ls_status status = LS_OK;
    store->rank = options->rank;
    store->world = options->world;
    store->port = options->port;
    store->timeout_s = options->timeout_s;
    store->primary = -1;
    snprintf(store->address, sizeof store->address, "%s", options->address);
    ls_store_server_key(options, store->key);
    pthread_mutex_init(&store->lock, NULL);
    if (options->rank == 0) {
        LS_TRY_GOTO(status, ls_store_server_start(options, &store->server), free_store);
        store->port = ls_store_server_port(store->server); /* of those that were probed */
    }
    LS_TRY_GOTO(status, join(store, options, deadline_ns), stop_server);
    LS_TRY_GOTO(status, share_address(store), close_connection);
    *out = store;
    return LS_OK;
close_connection:
    close(store->primary);
stop_server:
    if (store->server != NULL) {
        ls_store_server_stop(store->server, 0);
    }
free_store:
    pthread_mutex_destroy(&store->lock);
    free(store);
    return status;
}

void ls_store_close(ls_store *store, double linger_s)
{
    if (store == NULL) {
        return;
    }
    if (store->primary >= 0) {
        ls_store_header bye = {.magic = LS_STORE_MAGIC, .verb = LS_STORE_BYE};
        (void)send_request(store->primary, &bye, "", NULL, ls_clock_after(1.0));
        close(store->primary);
    }
    for (int i = 0; i < store->idle_count; i++) {
        close(store->idle[i]);
    }
    if (store->server != NULL) {
        ls_store_server_stop(store->server, linger_s);
    }
    pthread_mutex_destroy(&store->lock);
    free(store);
}

void ls_store_key(const ls_store *store, const char *purpose, unsigned char key[LS_SHA256_BYTES])
{
    ls_sha256_hmac(store->key, sizeof store->key, purpose, strlen(purpose), key);
}

/* A rank that reached rank 0 over the loopback is on its machine, whose own name may stand for the
 * loopback there (Debian: 127.0.1.1): others reach it where they reached rank 0. */
void ls_store_local_address(ls_store *store, char *text, int text_bytes)
{
    const char *own = store->local_address;
    char *reached = NULL;
    size_t bytes = 0;
    bool loopback = strncmp(own, "127.", 4) == 0 || strcmp(own, "::1") == 0 ||
                    strncmp(own, "::ffff:127.", 11) == 0;
    if (loopback && ls_store_get(store, reached_key, -1, (void **)&reached, &bytes) == LS_OK) {
        own = bytes > 0 ? reached : own;
    }
    snprintf(text, (size_t)text_bytes, "%s", own);
    free(reached);
}

/* ---- requests ------------------------------------------------------------------------------- */

static ls_status take_connection(ls_store *store, int64_t deadline_ns, int *out)
{
    pthread_mutex_lock(&store->lock);
    int fd = -1;
    if (!store->primary_busy && store->primary >= 0) {
        store->primary_busy = true;
        fd = store->primary;
    } else if (store->idle_count > 0) {
        fd = store->idle[--store->idle_count];
    }
    bool lost = store->primary < 0;
    pthread_mutex_unlock(&store->lock);
    if (fd >= 0) {
        *out = fd;
        return LS_OK;
    }
    char why[256] = "its connection ended earlier";
    reply answer = {.value = NULL};
    ls_gate_claim claim = claim_of(store, true, deadline_ns);
    if (lost || ls_gate_enter_again((struct sockaddr *)&store->at, store->at_bytes, store->key,
                                    &claim, deadline_ns, &fd, why, sizeof why) != LS_GATE_IN) {
        return ls_log_fail(LS_ERR_PEER_LOST, "store: rank 0 at %s:%d has left: %s", store->address,
                           store->port, why);
    }
    if (receive_welcome(fd, deadline_ns, &answer) <= 0 || answer.status != LS_OK) {
        ls_log_error("store: rank 0 at %s:%d refused another connection%s%s", store->address,
                     store->port, answer.value != NULL ? ": " : "",
                     answer.value != NULL ? answer.value : "");
        free(answer.value);
        close(fd);
        return LS_ERR_PEER_LOST;
    }
    free(answer.value);
    *out = fd;
    return LS_OK;
}

static void give_connection(ls_store *store, int fd, bool usable)
{
    pthread_mutex_lock(&store->lock);
    bool keep = usable;
    if (fd == store->primary) {
        store->primary_busy = false;
        store->primary = usable ? fd : -1;
    } else if (usable && store->idle_count < IDLE_MAX) {
        store->idle[store->idle_count++] = fd;
    } else {
        keep = false;
    }
    pthread_mutex_unlock(&store->lock);
    if (!keep) {
        close(fd);
    }
}

/* Sends a request and receives its reply. `limit_s` is the server's time to reply. A status in it
 * is logged ("set 'KEY': ..."); the caller frees out->value. */
static ls_status ask(ls_store *store, const char *what, ls_store_header header, const char *key,
                     const void *value, double limit_s, reply *out)
{
    size_t key_bytes = strlen(key);
    if (key_bytes > LS_STORE_KEY_BYTES_MAX || header.value_bytes > LS_STORE_VALUE_BYTES_MAX) {
        return ls_log_fail(
            LS_ERR_USAGE, "store: key of %zu bytes, value of %u bytes, allowed: %d and %d",
            key_bytes, header.value_bytes, LS_STORE_KEY_BYTES_MAX, LS_STORE_VALUE_BYTES_MAX);
    }
    header.magic = LS_STORE_MAGIC;
    header.key_bytes = (uint32_t)key_bytes;
    int64_t deadline_ns = ls_clock_after(limit_s) + REPLY_SLACK_MS * INT64_C(1000000);
    int fd = -1;
    LS_TRY(take_connection(store, deadline_ns, &fd));
    int done = send_request(fd, &header, key, value, deadline_ns);
    if (done > 0) {
        done = receive_reply(fd, deadline_ns, out);
    }
    int saved = errno;
    give_connection(store, fd, done > 0);
    if (done <= 0) {
        return ls_log_fail(LS_ERR_PEER_LOST, "store: rank 0 at %s:%d %s (key '%s')%s%s",
                           store->address, store->port,
                           done == 0 ? "stopped answering" : "has left", key, done == 0 ? "" : ": ",
                           done == 0 ? "" : strerror(saved));
    }
    if (out->status != LS_OK) {
        LS_TEXT(within, 40, " within %.3g s", limit_s);
        ls_log_error("store: %s '%s': %s%s", what, key, out->value,
                     out->status == LS_ERR_RENDEZVOUS ? within : "");
        free(out->value);
    }
    return out->status;
}

/* Of a reply without a value. */
static ls_status ask_number(ls_store *store, const char *what, ls_store_header header,
                            const char *key, const void *value, int64_t *number)
{
    reply answer = {.value = NULL};
    LS_TRY(ask(store, what, header, key, value, store->timeout_s, &answer));
    *number = answer.number;
    free(answer.value);
    return LS_OK;
}

ls_status ls_store_set(ls_store *store, const char *key, const void *value, size_t bytes)
{
    int64_t none;
    ls_store_header header = {.verb = LS_STORE_SET};
    header.value_bytes = bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)bytes;
    return ask_number(store, "set", header, key, value, &none);
}

static ls_status await(ls_store *store, ls_store_verb verb, const char *key, double limit_s,
                       reply *answer)
{
    ls_store_header header = {.verb = verb, .number = (int64_t)ceil(limit_s * 1e3)};
    return ask(store, "get", header, key, NULL, limit_s, answer);
}

ls_status ls_store_get(ls_store *store, const char *key, double timeout_s, void **value,
                       size_t *bytes)
{
    reply answer = {.value = NULL};
    double limit_s = timeout_s < 0 ? store->timeout_s : timeout_s;
    LS_TRY(await(store, LS_STORE_GET, key, limit_s, &answer));
    *value = answer.value;
    *bytes = answer.bytes;
    return LS_OK;
}

ls_status ls_store_wait(ls_store *store, const char *const *keys, int count, double timeout_s)
{
    int64_t deadline_ns = ls_clock_after(timeout_s < 0 ? store->timeout_s : timeout_s);
    for (int i = 0; i < count; i++) {
        reply answer = {.value = NULL};
        double limit_s = (double)rest_ns(deadline_ns) * 1e-9;
        LS_TRY(await(store, LS_STORE_WAIT, keys[i], limit_s, &answer));
        free(answer.value);
    }
    return LS_OK;
}

ls_status ls_store_add(ls_store *store, const char *key, int64_t amount, int64_t *sum)
{
    ls_store_header header = {.verb = LS_STORE_ADD, .number = amount};
    return ask_number(store, "add to", header, key, NULL, sum);
}

ls_status ls_store_who_left(ls_store *store, int *rank)
{
    int64_t left;
    ls_store_header header = {.verb = LS_STORE_WHO_LEFT};
    LS_TRY(ask_number(store, "ask who has left", header, "", NULL, &left));
    *rank = (int)left;
    return LS_OK;
}

ls_status ls_store_exchange(ls_store *store, const char *name, const void *mine, size_t bytes,
                            void **values, size_t *value_bytes)
{
    int64_t deadline_ns = ls_clock_after(store->timeout_s);
    LS_TEXT(key, LS_STORE_KEY_BYTES_MAX + 32, "%s/%d", name, store->rank);
    LS_TRY(ls_store_set(store, key, mine, bytes));
    for (int rank = 0; rank < store->world; rank++) {
        snprintf(key, sizeof key, "%s/%d", name, rank);
        double limit_s = (double)rest_ns(deadline_ns) * 1e-9;
        ls_status status = ls_store_get(store, key, limit_s, &values[rank], &value_bytes[rank]);
        if (status != LS_OK) {
            for (int i = 0; i < rank; i++) {
                free(values[i]);
            }
            if (status == LS_ERR_RENDEZVOUS) {
                ls_log_error("rank %d has not come as far as '%s'", rank, name);
            }
            return status;
        }
    }
    return LS_OK;
}

ls_status ls_store_barrier(ls_store *store, const char *name, double timeout_s)
{
    int64_t deadline_ns = ls_clock_after(timeout_s < 0 ? store->timeout_s : timeout_s);
    LS_TEXT(key, LS_STORE_KEY_BYTES_MAX + 32, "%s/%d", name, store->rank);
    LS_TRY(ls_store_set(store, key, NULL, 0));
    for (int rank = 0; rank < store->world; rank++) {
        snprintf(key, sizeof key, "%s/%d", name, rank);
        const char *one = key;
        LS_TRY(ls_store_wait(store, &one, 1, (double)rest_ns(deadline_ns) * 1e-9));
    }
    return LS_OK;
}
