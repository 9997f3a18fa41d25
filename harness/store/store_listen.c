#include "store_listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/core/log.h"

/* MASTER_ADDR may be a name that only others resolve rightly (Debian maps the host's own name to
 * 127.0.1.1): so everything is listened on, unless the address says loopback in so many words. */
static int listen_at(const char *address, int port, int *bound_port)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    bool is_six = strcmp(address, "::1") == 0;
    bool is_four = strncmp(address, "127.", 4) == 0 || strcmp(address, "localhost") == 0;
    six.sin6_addr = is_six ? in6addr_loopback : in6addr_any;
    four.sin_addr.s_addr = htonl(INADDR_ANY);
    if (is_four && inet_pton(AF_INET, address, &four.sin_addr) != 1) {
        four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    int on = 1, off = 0;
    int fd = is_four ? -1 : socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool use_six = fd >= 0;
    if (use_six) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, is_six ? &on : &off, sizeof on);
    } else {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    if (fd < 0) {
        return -1;
    }
    struct sockaddr_storage own;
    socklen_t own_bytes = sizeof own;
    const struct sockaddr *at = use_six ? (struct sockaddr *)&six : (struct sockaddr *)&four;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, at, use_six ? sizeof six : sizeof four) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)&own, &own_bytes) != 0) {
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
    }
    *bound_port = ntohs(use_six ? ((struct sockaddr_in6 *)&own)->sin6_port
                                : ((struct sockaddr_in *)&own)->sin_port);
    return fd;
}

ls_status ls_store_listen(const ls_store_options *options, int *listener, int *bound_port)
{
    int first = options->probe ? options->port + 1 : options->port;
    int last = options->probe ? options->port + LS_STORE_PORT_PROBES : options->port;
    for (int port = first; port <= last; port++) {
        *listener = listen_at(options->address, port, bound_port);
        if (*listener >= 0) {
            return LS_OK;
        }
        if (errno != EADDRINUSE || port == last) {
            ls_log_error("store: cannot listen on %s:%d%s: %s", options->address, port,
                         options->probe ? " (nor on the ports before it)" : "", strerror(errno));
            return LS_ERR_INFRA;
        }
    }
    return LS_ERR_INFRA;
}

static bool is_loopback(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET) {
        return (ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24) == 127;
    }
    const struct in6_addr *six = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

bool ls_store_listen_reached_as(int fd, char *text, size_t text_bytes)
{
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    char host[INET6_ADDRSTRLEN + 16];
    if (getsockname(fd, (struct sockaddr *)&own, &bytes) != 0 || is_loopback(&own) ||
        getnameinfo((struct sockaddr *)&own, bytes, host, sizeof host, NULL, 0, NI_NUMERICHOST) !=
            0) {
        return false;
    }
    snprintf(text, text_bytes, "%s", strncmp(host, "::ffff:", 7) == 0 ? host + 7 : host);
    return true;
}
