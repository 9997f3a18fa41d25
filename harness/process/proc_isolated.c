#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"

_Noreturn static void run_child(ls_proc_isolated_fn *function, void *context, pid_t parent,
                                int output)
{
    FILE *answer = fdopen(output, "w");
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || answer == NULL) {
        _exit(LS_ERR_INFRA);
    }
    ls_status status = function(context, answer);
    if (fclose(answer) != 0 && status == LS_OK) {
        status = LS_ERR_INFRA;
    }
    _exit((int)status); /* the exit handlers are the parent's and must not run here */
}

ls_status ls_proc_isolated_start(ls_proc_isolated_fn *function, void *context,
                                 ls_proc_isolated *out)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot make a pipe to a child: %s", strerror(errno));
    }
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        close(ends[0]);
        run_child(function, context, parent, ends[1]);
    }
    close(ends[1]);
    if (pid < 0) {
        ls_log_error("cannot start a child: %s", strerror(errno));
        close(ends[0]);
        return LS_ERR_INFRA;
    }
    *out = (ls_proc_isolated){.pid = pid, .input = ends[0]};
    return LS_OK;
}

/* Reads until the child closes its end of the pipe; false at the deadline. */
static bool read_all(int input, int64_t deadline_ns, char **text, size_t *used)
{
    size_t room = 0;
    for (;;) {
        if (ls_clock_poll(input, POLLIN, deadline_ns) <= 0) {
            return false;
        }
        if (*used + 4096 > room) {
            room = 2 * room + 8192;
            *text = realloc(*text, room);
            LS_MEMORY(*text != NULL);
        }
        ssize_t got = read(input, *text + *used, room - *used - 1);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return true;
        }
        *used += (size_t)got;
    }
}

/* Fills the child's wait status; false when it has not ended by the deadline. A process can hang in
 * its exit, while a driver releases a device. */
static bool reap(pid_t pid, int64_t deadline_ns, int *status)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    int ready = fd < 0 ? 0 : ls_clock_poll(fd, POLLIN, deadline_ns);
    if (fd >= 0) {
        close(fd);
    }
    /* without pidfd_open (Linux before 5.3) there is no wait with a deadline */
    return (fd < 0 || ready > 0) && waitpid(pid, status, 0) == pid;
}

char *ls_proc_isolated_answer(ls_proc_isolated *isolated, int64_t deadline_ns, char *why,
                              size_t bytes)
{
    char *text = NULL;
    size_t used = 0;
    int status = 0;
    bool whole = read_all(isolated->input, deadline_ns, &text, &used);
    close(isolated->input);
    bool ended = whole && reap(isolated->pid, deadline_ns, &status);
    if (!ended) {
        ls_proc_kill_child(isolated->pid);
    }
    isolated->pid = 0;
    if (!ended) {
        ls_text_put(why, bytes, "no answer in time");
    } else if (WIFSIGNALED(status)) {
        ls_text_put(why, bytes, "ended by signal %d (%s)", WTERMSIG(status),
                    strsignal(WTERMSIG(status)));
    } else if (WEXITSTATUS(status) != 0) {
        ls_text_put(why, bytes, "failed: %s", ls_status_name((ls_status)WEXITSTATUS(status)));
    } else {
        text[used] = '\0';
        return text;
    }
    free(text);
    return NULL;
}

char *ls_proc_isolated_output(char *const *argv, double limit_s, int *code)
{
    char *text = NULL;
    size_t used = 0;
    int64_t deadline_ns = ls_clock_after(limit_s);
    int ends[2];
    *code = LS_ERR_INFRA;
    if (ls_path_is_program(argv[0]) && pipe2(ends, O_CLOEXEC) == 0) {
        ls_proc process;
        ls_proc_spec spec = {
            .argv = argv, .environment = environ, .log_path = "/dev/null", .output = ends[1]};
        ls_status status = ls_proc_start(&spec, &process);
        close(ends[1]);
        if (status == LS_OK && read_all(ends[0], deadline_ns, &text, &used) &&
            ls_proc_wait_all(&process, 1, deadline_ns)) {
            *code = process.code;
        } else if (status == LS_OK) {
            ls_proc_end_all(&process, 1, 0);
        }
        close(ends[0]);
    }
    text = realloc(text, used + 1);
    LS_MEMORY(text != NULL);
    text[used] = '\0';
    return text;
}
