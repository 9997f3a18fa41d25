#include "store_link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/core/clock.h"

int64_t ls_store_link_rest_ns(int64_t deadline_ns)
{
    int64_t rest = deadline_ns - ls_clock_ns();
    return rest > 0 ? rest : 0;
}

static int send_all(int fd, const void *data, size_t bytes, int64_t deadline_ns)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            at += sent;
            bytes -= (size_t)sent;
            continue;
        }
        if (errno == EINTR) {
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
            return -1;
        }
        int ready = ls_clock_poll(fd, POLLOUT, deadline_ns);
        if (ready <= 0) {
            return ready;
        }
    }
    return 1;
}

static int recv_all(int fd, void *data, size_t bytes, int64_t deadline_ns)
{
    char *at = data;
    while (bytes > 0) {
        ssize_t got = recv(fd, at, bytes, MSG_DONTWAIT);
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
            continue;
        }
        if (got == 0) {
            errno = ECONNRESET;
            return -1;
        }
        if (errno == EINTR) {
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
            return -1;
        }
        int ready = ls_clock_poll(fd, POLLIN, deadline_ns);
        if (ready <= 0) {
            return ready;
        }
    }
    return 1;
}

int ls_store_link_ask(int fd, const ls_store_header *header, const char *key, const void *value,
                      int64_t deadline_ns)
{
    unsigned char small[LS_STORE_HEADER_BYTES + LS_STORE_KEY_BYTES_MAX];
    ls_store_wire_put(header, small);
    memcpy(small + LS_STORE_HEADER_BYTES, key, header->key_bytes);
    int done = send_all(fd, small, LS_STORE_HEADER_BYTES + header->key_bytes, deadline_ns);
    return done > 0 ? send_all(fd, value, header->value_bytes, deadline_ns) : done;
}

int ls_store_link_answer(int fd, int64_t deadline_ns, ls_store_answer *out)
{
    unsigned char bytes[LS_STORE_HEADER_BYTES];
    int done = recv_all(fd, bytes, sizeof bytes, deadline_ns);
    if (done <= 0) {
        return done;
    }
    ls_store_header header = ls_store_wire_get(bytes);
    if (header.magic != LS_STORE_MAGIC || header.value_bytes > LS_STORE_VALUE_BYTES_MAX) {
        errno = EPROTO;
        return -1;
    }
    char *value = malloc((size_t)header.value_bytes + 1);
    if (value == NULL) {
        errno = ENOMEM;
        return -1;
    }
    done = recv_all(fd, value, header.value_bytes, deadline_ns);
    if (done <= 0) {
        free(value);
        return done;
    }
    value[header.value_bytes] = '\0';
    *out = (ls_store_answer){.status = (ls_status)header.verb,
                             .number = header.number,
                             .value = value,
                             .bytes = header.value_bytes};
    return 1;
}

/* ---- connecting ----------------------------------------------------------------------------- */

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

bool ls_store_link_reach(const struct sockaddr *at, socklen_t at_bytes, int64_t deadline_ns,
                         int *out, char *why, size_t why_bytes)
{
    char greeting[LS_STORE_GREETING_BYTES];
    int fd = -1;
    int done = connect_to(at, at_bytes, deadline_ns, &fd);
    if (done <= 0) {
        snprintf(why, why_bytes, "%s", done == 0 ? "no answer" : strerror(errno));
        return false;
    }
    done = recv_all(fd, greeting, sizeof greeting, deadline_ns);
    if (done > 0 && memcmp(greeting, LS_STORE_GREETING, sizeof greeting) == 0) {
        *out = fd;
        return true;
    }
    snprintf(why, why_bytes, "another service listens there, not a Lockstep store");
    close(fd);
    return false;
}
