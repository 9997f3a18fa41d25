/* Messages of the network: the store's protocol. */
#include "fuzz.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/store/gate.h"
#include "harness/store/store_server.h"
#include "kernels/core/clock.h"
#include "kernels/core/log.h"

static size_t put_request(unsigned char *at, ls_store_verb verb, const char *key, const void *value,
                          size_t value_bytes, int64_t number)
{
    ls_store_header header = {.magic = LS_STORE_MAGIC,
                              .verb = verb,
                              .key_bytes = (uint32_t)strlen(key),
                              .value_bytes = (uint32_t)value_bytes,
                              .number = number};
    ls_store_wire_put(&header, at);
    memcpy(at + LS_STORE_HEADER_BYTES, key, header.key_bytes);
    memcpy(at + LS_STORE_HEADER_BYTES + header.key_bytes, value, value_bytes);
    return LS_STORE_HEADER_BYTES + header.key_bytes + value_bytes;
}

static void seed_store(fuzz *f)
{
    unsigned char data[1024];
    size_t used = put_request(data, LS_STORE_SET, "key/0", "value", 5, 0);
    used += put_request(data + used, LS_STORE_GET, "key/0", "", 0, 1);
    used += put_request(data + used, LS_STORE_WAIT, "absent", "", 0, 1);
    used += put_request(data + used, LS_STORE_ADD, "count", "", 0, 5);
    used += put_request(data + used, LS_STORE_WHO_LEFT, "", "", 0, 0);
    used += put_request(data + used, LS_STORE_BYE, "", "", 0, 0);
    fuzz_add_seed(f, data, used);
    ls_store_options options = {
        .rank = 0, .world = 2, .address = "127.0.0.1", .port = 0, .run_id = "id", .timeout_s = 5};
    ls_store_server_key(&options, f->key);
    LS_ASSERT(ls_store_server_start(&options, &f->server) == LS_OK);
}

/* Everything is sent in one piece or two; whatever the server answers is read until it has nothing
 * more to say at once. Every connection must at least be greeted or answered: the server lives. */
static void read_store(fuzz *f, const bytes *b)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)ls_store_server_port(f->server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char answer[4096];
    int fd = -1;
    if (fuzz_below(f, 4) == 0) { /* the gate; else the server behind it */
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        LS_ASSERT(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    } else {
        ls_gate_claim claim = {.rank = (int)fuzz_below(f, 3),
                               .world = 2,
                               .further = fuzz_below(f, 8) > 0,
                               .timeout_ms = 50};
        LS_ASSERT(ls_gate_enter((struct sockaddr *)&at, sizeof at, f->key, &claim,
                                ls_clock_after(INPUT_LIMIT_S / 2),
                                ls_clock_after(INPUT_LIMIT_S / 2), &fd, answer,
                                sizeof answer) == LS_GATE_IN);
    }
    struct pollfd polled = {.fd = fd, .events = POLLIN};
    LS_ASSERT(poll(&polled, 1, 1000 * INPUT_LIMIT_S / 2) == 1);
    size_t part = fuzz_below(f, b->count + 1);
    (void)send(fd, b->at, part, MSG_NOSIGNAL);
    (void)send(fd, b->at + part, b->count - part, MSG_NOSIGNAL);
    while (poll(&polled, 1, 2) == 1 && recv(fd, answer, sizeof answer, 0) > 0) {
    }
    struct linger reset = {.l_onoff = 1}; /* no port stays behind in TIME_WAIT */
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fd);
}

/* The other way round: a caller that another program answers. */
static void read_answer(fuzz *f, const bytes *b)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t at_bytes = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd = -1;
    LS_ASSERT(listener >= 0 && bind(listener, (struct sockaddr *)&at, at_bytes) == 0 &&
              listen(listener, 1) == 0 &&
              getsockname(listener, (struct sockaddr *)&at, &at_bytes) == 0);
    char answer[64], why[200];
    size_t bytes = fuzz_below(f, 4) == 0 ? 0 : fuzz_below(f, sizeof answer);
    memset(answer, 'x', sizeof answer);
    memcpy(answer, b->at, b->count < sizeof answer ? b->count : sizeof answer);
    if (fuzz_below(f, 2) == 0) {
        memcpy(answer, LS_GATE_GREETING, LS_GATE_GREETING_BYTES - fuzz_below(f, 2));
    }
    pid_t pid = fork();
    if (pid == 0) {
        int caller = accept(listener, NULL, NULL);
        (void)send(caller, answer, bytes, MSG_NOSIGNAL);
        (void)recv(caller, answer, sizeof answer, 0);
        _exit(0);
    }
    ls_gate_claim claim = {.rank = 1, .world = 2, .timeout_ms = 50};
    if (ls_gate_enter((struct sockaddr *)&at, at_bytes, f->key, &claim, ls_clock_after(0.05),
                      ls_clock_after(0.05), &fd, why, sizeof why) == LS_GATE_IN) {
        LS_ASSERT(false); /* it does not know the key */
    }
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    close(listener);
}

static void read_both(fuzz *f, const bytes *b)
{
    (fuzz_below(f, 64) == 0 ? read_answer : read_store)(f, b);
}

static void stop_store(fuzz *f)
{
    ls_store_server_stop(f->server, 0);
}

const reader fuzz_wire_readers[] = {
    {"store", seed_store, NULL, read_both, stop_store},
    {0},
};
