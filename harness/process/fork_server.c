#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"

enum { ANSWER_S = 120 }; /* it may still be loading, on a machine that others use */

ls_status ls_fork_server_open(const char *command, ls_fork_server *out)
{
    int ends[2];
    *out = (ls_fork_server){.socket = -1};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return ls_log_fail(LS_ERR_INFRA, "a socket for the fork server: %s", strerror(errno));
    }
    ls_words environment = {0, 0, NULL};
    for (char **entry = environ; *entry != NULL; entry++) {
        ls_words_add(&environment, "%s", *entry);
    }
    ls_words_add(&environment, "LS_FORK_SERVER=1");
    ls_words_split(&out->command, command);
    ls_proc_spec spec = {.argv = out->command.word,
                         .environment = environment.word,
                         .log_path = "/dev/null",
                         .input = ends[1]};
    ls_status status = ls_proc_start(&spec, &out->process);
    ls_words_free(&environment);
    close(ends[1]);
    out->socket = ends[0];
    if (status != LS_OK) {
        ls_fork_server_close(out);
    }
    return status;
}

void ls_fork_server_close(ls_fork_server *server)
{
    if (server->socket >= 0) {
        close(server->socket);
    }
    if (server->process.pid > 0) {
        ls_proc_kill_child(server->process.pid);
    }
    ls_words_free(&server->command);
    *server = (ls_fork_server){.socket = -1};
}

/* ---- requests -------------------------------------------------------------------------------- */

static bool can_start(const ls_fork_server *server, const ls_proc_spec *spec)
{
    if (server == NULL || server->socket < 0 || spec->input != 0 || spec->output != 0 ||
        spec->directory != NULL || spec->in_place || spec->log_path == NULL) {
        return false;
    }
    for (int i = 0; i < server->command.count; i++) {
        if (spec->argv[i] == NULL || strcmp(spec->argv[i], server->command.word[i]) != 0) {
            return false;
        }
    }
    return true;
}

static void add(char **text, size_t *bytes, const char *word)
{
    size_t length = strlen(word) + 1;
    char *grown = realloc(*text, *bytes + length);
    LS_MEMORY(grown != NULL);
    memcpy(grown + *bytes, word, length);
    *text = grown;
    *bytes += length;
}

/* Words that each end with a 0 byte: this program's pid, the limit of files, the number of
 * arguments, these, the environment. */
static char *request_of(const ls_fork_server *server, const ls_proc_spec *spec, size_t *bytes)
{
    char *text = NULL;
    int arguments = 0;
    char *const *own = spec->argv + server->command.count;
    while (own[arguments] != NULL) {
        arguments++;
    }
    *bytes = 0;
    LS_TEXT(parent, 32, "%lld", (long long)getpid());
    LS_TEXT(limit, 32, "%lld", (long long)spec->file_bytes_max);
    LS_TEXT(count, 32, "%d", arguments);
    add(&text, bytes, parent);
    add(&text, bytes, limit);
    add(&text, bytes, count);
    for (int i = 0; i < arguments; i++) {
        add(&text, bytes, own[i]);
    }
    for (char *const *entry = spec->environment; *entry != NULL; entry++) {
        add(&text, bytes, *entry);
    }
    return text;
}

static bool send_all(int socket, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t sent = send(socket, text, bytes, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) {
            continue;
        }
        if (sent <= 0) {
            return false;
        }
        text += sent;
        bytes -= (size_t)sent;
    }
    return true;
}

/* The number of bytes, with the descriptor of the log, then the request. */
static bool send_request(int socket, int log, const char *text, size_t bytes)
{
    int32_t length = (int32_t)bytes;
    struct iovec part = {.iov_base = &length, .iov_len = sizeof length};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof log);
    memcpy(CMSG_DATA(header), &log, sizeof log);
    ssize_t sent;
    do {
        sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)sizeof length && send_all(socket, text, bytes);
}

/* The pid of the new process, which it writes itself as a child of this program; 0: none came. */
static pid_t read_answer(int socket)
{
    int32_t pid = 0;
    size_t got = 0;
    int64_t deadline_ns = ls_clock_after(ANSWER_S);
    while (got < sizeof pid) {
        int64_t rest_ms = (deadline_ns - ls_clock_ns()) / 1000000;
        struct pollfd polled = {.fd = socket, .events = POLLIN};
        int ready = rest_ms > 0 ? poll(&polled, 1, (int)rest_ms) : 0;
        if (ready < 0 && errno == EINTR) {
            continue;
        }
        ssize_t bytes = ready > 0 ? read(socket, (char *)&pid + got, sizeof pid - got) : 0;
        if (bytes <= 0) {
            return 0;
        }
        got += (size_t)bytes;
    }
    return pid;
}

bool ls_fork_server_start(ls_fork_server *server, const ls_proc_spec *spec, ls_proc *out)
{
    if (!can_start(server, spec)) {
        return false;
    }
    int log = ls_file_open_to_write(spec->log_path, O_APPEND);
    if (log < 0) {
        return false; /* ls_proc_start says why */
    }
    size_t bytes;
    char *text = request_of(server, spec, &bytes);
    bool sent = send_request(server->socket, log, text, bytes);
    pid_t pid = sent ? read_answer(server->socket) : 0;
    free(text);
    close(log);
    if (pid <= 0) {
        ls_log_warn("the fork server of '%s' does not answer; ranks load what they need themselves",
                    server->command.word[0]);
        ls_fork_server_close(server);
        return false;
    }
    *out = (ls_proc){.pid = pid, .started_pid = pid, .started_ns = ls_clock_ns()};
    return true;
}
