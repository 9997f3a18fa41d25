#include "proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/list.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"

/* The signals that ask a program to stop. They are blocked and stay pending until they are read, so
 * the kernel keeps the state "asked to stop" and no variable is needed. */
static const int stop_signals[] = {SIGINT, SIGTERM, SIGHUP};
/* Those that are for the children: a batch system announces the end of the job's time with one. */
static const int passed_signals[] = {SIGUSR1, SIGUSR2};
enum {
    STOP_SIGNALS = sizeof stop_signals / sizeof *stop_signals,
    PASSED_SIGNALS = sizeof passed_signals / sizeof *passed_signals,
    POLL_NS = 100000000, /* between checks of the children, when no descriptor is left for them */
    ROUNDS = 64,         /* generations of orphans that each start another in a new session */
    DIE_S = 5,           /* from KILL to the end; only a process stuck in the kernel takes longer */
};

/* ---- starting ------------------------------------------------------------------------------- */

_Noreturn static void fail_child(int report)
{
    int failed = errno;
    (void)!write(report, &failed, sizeof failed);
    _exit(127);
}

_Noreturn static void run_child(const ls_proc_spec *spec, pid_t parent, int log, int report)
{
    sigset_t stop;
    sigemptyset(&stop);
    for (int i = 0; i < STOP_SIGNALS; i++) {
        sigaddset(&stop, stop_signals[i]);
    }
    for (int i = 0; i < PASSED_SIGNALS; i++) {
        sigaddset(&stop, passed_signals[i]);
    }
    if ((!spec->in_place && setpgid(0, 0) != 0) || prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
        fail_child(report);
    }
    if (getppid() != parent) { /* the parent ended before prctl took effect */
        _exit(127);
    }
    /* a process of a background group is stopped when it reads the terminal */
    int input = spec->input > 0 ? spec->input : open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (input < 0 || dup2(input, STDIN_FILENO) < 0) {
        fail_child(report);
    }
    if (log >= 0 && (dup2(log, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0)) {
        fail_child(report);
    }
    if (spec->output > 0 && dup2(spec->output, STDOUT_FILENO) < 0) {
        fail_child(report);
    }
    if (spec->directory != NULL && chdir(spec->directory) != 0) {
        fail_child(report);
    }
    if (spec->file_bytes_max > 0) {
        struct rlimit limit = {(rlim_t)spec->file_bytes_max, (rlim_t)spec->file_bytes_max};
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) {
            fail_child(report);
        }
    }
    sigprocmask(SIG_UNBLOCK, &stop, NULL);
    (void)signal(SIGXFSZ, SIG_DFL); /* which this program's main ignores */
    (void)signal(SIGPIPE, SIG_DFL); /* which the launcher of a node may */
    execvpe(spec->argv[0], spec->argv, spec->environment);
    fail_child(report);
}

static ls_status open_log(const char *path, int *out)
{
    *out = -1;
    if (path == NULL) {
        return LS_OK;
    }
    *out = ls_file_open_to_write(path, O_APPEND);
    if (*out < 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot open the log %s: %s", path, strerror(errno));
    }
    return LS_OK;
}

ls_status ls_proc_start(const ls_proc_spec *spec, ls_proc *out)
{
    int log = -1, report[2], failed = 0;
    LS_TRY(open_log(spec->log_path, &log));
    if (pipe2(report, O_CLOEXEC) != 0) {
        ls_log_error("cannot start '%s': %s", spec->argv[0], strerror(errno));
        if (log >= 0) {
            close(log);
        }
        return LS_ERR_INFRA;
    }
    fflush(NULL);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        run_child(spec, parent, log, report[1]);
    }
    int fork_errno = errno;
    if (log >= 0) {
        close(log);
    }
    close(report[1]);
    if (pid < 0) {
        close(report[0]);
        return ls_log_fail(LS_ERR_INFRA, "cannot start '%s': %s", spec->argv[0],
                           strerror(fork_errno));
    }
    /* The parent sets the group too, so that it exists when this function returns; after exec this
     * fails, and the child has set it. */
    if (!spec->in_place) {
        (void)setpgid(pid, pid);
    }
    ssize_t got;
    do { /* exec closes the pipe: no bytes mean that the program runs */
        got = read(report[0], &failed, sizeof failed);
    } while (got < 0 && errno == EINTR);
    close(report[0]);
    if (got != 0) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
        }
        bool program = failed == ENOENT || failed == EACCES || failed == ENOEXEC ||
                       failed == ENOTDIR || failed == EISDIR;
        bool there = spec->directory == NULL || spec->argv[0][0] == '/'; /* as the child saw it */
        char why[PATH_MAX];
        if (!program || !there || ls_path_check_program(spec->argv[0], why, sizeof why) == 0) {
            ls_text_put(why, sizeof why, "%s", strerror(failed));
        }
        ls_log_error("cannot run '%s'%s%s: %s", spec->argv[0],
                     spec->directory != NULL ? " in " : "",
                     spec->directory != NULL ? spec->directory : "", why);
        return program ? LS_ERR_USAGE : LS_ERR_INFRA;
    }
    *out = (ls_proc){
        .pid = pid, .started_pid = pid, .in_place = spec->in_place, .started_ns = ls_clock_ns()};
    return LS_OK;
}

/* ---- waiting -------------------------------------------------------------------------------- */

/* The rest of its process group is killed first: as long as the leader is not reaped, its pid
 * cannot be reused. */
bool ls_proc_reap(ls_proc *one)
{
    siginfo_t info = {.si_pid = 0};
    struct rusage used;
    int state = 0;
    if (waitid(P_PID, (id_t)one->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0) {
        if (info.si_pid == 0) {
            return false;
        }
        kill(-one->pid, SIGKILL);
    }
    pid_t pid = one->pid;
    one->pid = 0;
    one->ended = true;
    one->ended_ns = ls_clock_ns();
    if (wait4(pid, &state, 0, &used) != pid) { /* SIGCHLD is ignored: the kernel drops the code */
        ls_log_error("process %d ended, but its exit code is lost: %s", (int)pid, strerror(errno));
        one->code = LS_ERR_INFRA;
        return true;
    }
    one->signal = WIFSIGNALED(state) ? WTERMSIG(state) : 0;
    one->code = one->signal != 0 ? 128 + one->signal : WEXITSTATUS(state);
    one->user_s = (double)used.ru_utime.tv_sec + (double)used.ru_utime.tv_usec * 1e-6;
    one->system_s = (double)used.ru_stime.tv_sec + (double)used.ru_stime.tv_usec * 1e-6;
    one->rss_bytes_max = (int64_t)used.ru_maxrss * 1024;
    return true;
}

/* A descriptor that is readable while one of the signals is pending; -1 when none is blocked. */
static int descriptor_of(const int *signals, int count)
{
    sigset_t blocked, wanted;
    bool any = false;
    sigemptyset(&wanted);
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    for (int i = 0; i < count; i++) {
        if (sigismember(&blocked, signals[i])) {
            sigaddset(&wanted, signals[i]);
            any = true;
        }
    }
    return any ? signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK) : -1;
}

static void pass_on(const ls_proc *group, int count, int descriptor)
{
    struct signalfd_siginfo info;
    while (read(descriptor, &info, sizeof info) == (ssize_t)sizeof info) {
        ls_proc_signal_all(group, count, (int)info.ssi_signo);
    }
}

static int wait_any(ls_proc *group, int count, int64_t deadline_ns, bool stop_on_signal)
{
    struct pollfd *polled = ls_list_make((size_t)count + 2, sizeof *polled);
    int open_count = 0, result = -3;
    bool must_poll = false;
    for (int i = 0; i < count && result == -3; i++) {
        if (group[i].pid > 0 && ls_proc_reap(&group[i])) {
            result = i;
        } else if (group[i].pid > 0) {
            int fd = (int)syscall(SYS_pidfd_open, group[i].pid, 0);
            must_poll = must_poll || fd < 0;
            polled[open_count++] = (struct pollfd){.fd = fd, .events = POLLIN};
        }
    }
    bool waits = result == -3 && open_count > 0;
    int stop = stop_on_signal && waits ? descriptor_of(stop_signals, STOP_SIGNALS) : -1;
    int passed = waits ? descriptor_of(passed_signals, PASSED_SIGNALS) : -1;
    polled[open_count] = (struct pollfd){.fd = stop, .events = POLLIN};
    polled[open_count + 1] = (struct pollfd){.fd = passed, .events = POLLIN};
    while (result == -3 && open_count > 0) {
        int64_t rest_ns = deadline_ns < 0 ? INT64_MAX : deadline_ns - ls_clock_ns();
        rest_ns = rest_ns < 0 ? 0 : rest_ns;
        bool last = !must_poll || rest_ns <= POLL_NS;
        rest_ns = last ? rest_ns : POLL_NS;
        struct timespec limit = {.tv_sec = rest_ns / 1000000000, .tv_nsec = rest_ns % 1000000000};
        int ready =
            ppoll(polled, (nfds_t)open_count + 2, rest_ns == INT64_MAX ? NULL : &limit, NULL);
        if (ready < 0) {
            LS_ASSERT(errno == EINTR);
            continue;
        }
        for (int i = 0; i < count && result == -3; i++) {
            result = group[i].pid > 0 && ls_proc_reap(&group[i]) ? i : -3;
        }
        if (polled[open_count + 1].revents != 0) {
            pass_on(group, count, passed);
        }
        if (result == -3 && polled[open_count].revents != 0) {
            result = -2;
        } else if (result == -3 && ready == 0 && last) {
            result = -1;
        }
    }
    for (int i = 0; i <= open_count + 1; i++) {
        if (polled[i].fd >= 0) {
            close(polled[i].fd);
        }
    }
    free(polled);
    return result;
}

int ls_proc_wait_any(ls_proc *group, int count, int64_t deadline_ns)
{
    return wait_any(group, count, deadline_ns, true);
}

void ls_proc_signal_all(const ls_proc *group, int count, int signal)
{
    for (int i = 0; i < count; i++) {
        if (group[i].pid > 0) {
            kill(group[i].in_place ? group[i].pid : -group[i].pid, signal);
        }
    }
}

bool ls_proc_wait_all(ls_proc *group, int count, int64_t deadline_ns)
{
    int ended = 0;
    while (ended >= 0) {
        ended = wait_any(group, count, deadline_ns, false);
    }
    return ended == -3;
}

void ls_proc_end_all(ls_proc *group, int count, double grace_s)
{
    int64_t deadline_ns = ls_clock_after(grace_s);
    ls_proc_signal_all(group, count, SIGTERM);
    ls_proc_signal_all(group, count, SIGCONT);
    (void)ls_proc_wait_all(group, count, deadline_ns);
    ls_proc_signal_all(group, count, SIGKILL);
    (void)ls_proc_wait_all(group, count, -1);
}

/* ---- orphans -------------------------------------------------------------------------------- */

/* Parent of a process, or 0 when the process has ended. Parses /proc/<pid>/stat, "pid (name) state
 * ppid ...", from its last ')', because the name may contain any character. */
static pid_t parent_of(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = '\0';
    char *end = text + bytes;
    while (end > text && *end != ')') {
        end--;
    }
    char state;
    int parent;
    return sscanf(end, ") %c %d", &state, &parent) == 2 ? (pid_t)parent : 0;
}

/* This process's children as a malloc'ed list; returns their number. */
static int list_children(pid_t **out)
{
    *out = NULL;
    DIR *folder = opendir("/proc");
    if (folder == NULL) {
        return 0;
    }
    int count = 0;
    pid_t self = getpid();
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid <= 0 || parent_of(pid) != self) {
            continue;
        }
        *out = realloc(*out, (size_t)(count + 1) * sizeof **out);
        LS_MEMORY(*out != NULL);
        (*out)[count++] = pid;
    }
    closedir(folder);
    return count;
}

void ls_proc_orphans_begin(ls_proc_orphans *orphans)
{
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
        ls_log_warn("cannot adopt the processes that a rank leaves behind: %s",
                    errno == EINVAL ? "old kernel" : "no permission");
    }
    orphans->count = list_children(&orphans->known);
}

static bool is_known(const ls_proc_orphans *orphans, pid_t pid)
{
    for (int i = 0; i < orphans->count; i++) {
        if (orphans->known[i] == pid) {
            return true;
        }
    }
    return false;
}

/* An unreaped child's pid cannot have been reused. */
void ls_proc_kill_child(pid_t pid)
{
    kill(pid, SIGKILL);
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd >= 0) {
        (void)ls_clock_poll(fd, POLLIN, ls_clock_after(DIE_S));
        close(fd);
    }
    (void)waitpid(pid, NULL, fd >= 0 ? WNOHANG : 0);
}

int ls_proc_orphans_end(ls_proc_orphans *orphans)
{
    int ended = 0, fresh = 1;
    for (int round = 0; fresh > 0 && round < ROUNDS; round++) {
        pid_t *child = NULL;
        int count = list_children(&child);
        fresh = 0;
        for (int i = 0; i < count; i++) {
            if (!is_known(orphans, child[i])) {
                /* its own children are adopted and ended in the next round */
                ls_proc_kill_child(child[i]);
                fresh++;
            }
        }
        free(child);
        ended += fresh;
    }
    free(orphans->known);
    orphans->known = NULL;
    orphans->count = 0;
    return ended;
}

/* ---- being asked to stop -------------------------------------------------------------------- */

static ls_status block(const int *signals, int count)
{
    sigset_t wanted;
    sigemptyset(&wanted);
    for (int i = 0; i < count; i++) {
        struct sigaction now;
        if (sigaction(signals[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) {
            sigaddset(&wanted, signals[i]); /* one that nohup ignores stays ignored */
        }
    }
    int failed = pthread_sigmask(SIG_BLOCK, &wanted, NULL);
    if (failed != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot block signals: %s", strerror(failed));
    }
    return LS_OK;
}

ls_status ls_proc_catch_signals(void)
{
    return block(stop_signals, STOP_SIGNALS);
}

ls_status ls_proc_pass_signals(void)
{
    return block(passed_signals, PASSED_SIGNALS);
}

int ls_proc_caught_signal(void)
{
    sigset_t pending;
    if (sigpending(&pending) != 0) {
        return 0;
    }
    for (int i = 0; i < STOP_SIGNALS; i++) {
        if (sigismember(&pending, stop_signals[i])) {
            return stop_signals[i];
        }
    }
    return 0;
}

int ls_proc_stopped_code(void)
{
    int caught = ls_proc_caught_signal();
    return 128 + (caught != 0 ? caught : SIGINT);
}

/* ---- text from another process -------------------------------------------------------------- */

_Noreturn static void run_isolated(ls_proc_isolated_fn *function, void *context, pid_t parent,
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
        run_isolated(function, context, parent, ends[1]);
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
static bool reap_by(pid_t pid, int64_t deadline_ns, int *status)
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
    bool ended = whole && reap_by(isolated->pid, deadline_ns, &status);
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

bool ls_proc_isolated_ready(const ls_proc_isolated *isolated)
{
    siginfo_t info = {.si_pid = 0};
    int got = waitid(P_PID, (id_t)isolated->pid, &info, WEXITED | WNOHANG | WNOWAIT);
    return got != 0 || info.si_pid != 0;
}

void ls_proc_isolated_recede(int limit_s)
{
    struct rlimit limit = {(rlim_t)limit_s, (rlim_t)limit_s};
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    /* a tenth of a processor where others want all of it: SCHED_IDLE gets a third of a percent */
    (void)setpriority(PRIO_PROCESS, 0, 10);
    (void)setrlimit(RLIMIT_CPU, &limit);
    if (null >= 0) {
        (void)dup2(null, STDERR_FILENO);
        close(null);
    }
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
