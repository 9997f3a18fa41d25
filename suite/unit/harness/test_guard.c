/* Whatever ends lockstep-launch or lockstep conform, nothing that their ranks started is left. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "harness/process/proc.h"
#include "kernels/core/clock.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/unit/run_suite.h"

enum { RANKS = 2 };

/* What a trainer with workers leaves: a worker that ignores TERM and a grandchild in a session of
 * its own. Both hold descriptor 9, a pipe. The rank itself waits, or stands still. */
#define LOOP "for I in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do sleep 1; done"
#define WORKERS                                     \
    "(trap '' TERM INT HUP; echo >&9; " LOOP ") & " \
    "setsid sh -c 'trap \"\" TERM INT HUP; echo >&9; " LOOP "' & "

typedef enum who { FIRST, GROUP, SECOND, THIRD } who; /* processes of the program, from outside */

static const struct ending {
    bool conform; /* else lockstep-launch */
    const char *rank;
    int signal;
    who who;
    int code;
    double within_s; /* protocol.md */
} endings[] = {
    {false, "wait", SIGKILL, FIRST, 128 + SIGKILL, 3},
    {false, "wait", SIGKILL, GROUP, 128 + SIGKILL, 3},
    {false, "wait", SIGKILL, SECOND, 128 + SIGKILL, 3},
    {false, "wait", SIGKILL, THIRD, 128 + SIGKILL, 3},
    {true, "wait", SIGKILL, FIRST, 128 + SIGKILL, 3},
    {true, "wait", SIGKILL, THIRD, 128 + SIGKILL, 3},
    {false, "kill -STOP $$", SIGKILL, FIRST, 128 + SIGKILL, 3},
    {false, "wait", SIGTERM, FIRST, 128 + SIGTERM, 8},
    {false, "kill -STOP $$", SIGTERM, FIRST, 128 + SIGTERM, 3},
    {false, "kill -STOP $$", SIGTERM, GROUP, 128 + SIGTERM, 3},
    {true, "kill -STOP $$", SIGTERM, FIRST, 128 + SIGTERM, 3},
    {true, "wait", SIGINT, FIRST, 128 + SIGINT, 8},
    {true, "wait", SIGHUP, GROUP, 128 + SIGHUP, 8},
};

static pid_t only_child(pid_t parent)
{
    LS_TEXT(path, 80, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *file = fopen(path, "r");
    int child = 0;
    ck_assert_msg(file != NULL && fscanf(file, "%d", &child) == 1, "%d has no child", (int)parent);
    fclose(file);
    return child;
}

static ls_proc start(const struct ending *e, const char *folder)
{
    char program[1024];
    ls_path_program(program, sizeof program);
    ls_text_add(program, sizeof program, "/../%s", e->conform ? "lockstep" : "lockstep-launch");
    LS_TEXT(script, 100, "%s/rank.sh", folder);
    LS_TEXT(subject, 120, "sh %s", script);
    LS_TEXT(run, 100, "%s/run", folder);
    LS_TEXT(log, 100, "%s/log", folder);
    FILE *file = fopen(script, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, WORKERS "%s\n", e->rank);
    fclose(file);
    char *conform[] = {program,     "conform", "--case", "gradients.o0.w2.b0.1mb", "--out", run,
                       "--subject", subject,   NULL};
    char *launch[] = {program, "--nproc-per-node=2", "sh", script, NULL};
    ls_proc_spec spec = {
        .argv = e->conform ? conform : launch, .environment = environ, .log_path = log};
    ls_proc started;
    ck_assert_int_eq(ls_proc_start(&spec, &started), LS_OK);
    return started;
}

ROWS_TEST(nothing_is_left, endings)
{
    const struct ending *e = &endings[_i];
    char folder[] = "/tmp/lockstep-guard-XXXXXX", byte;
    int ends[2];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(fcntl(ends[0], F_SETFD, FD_CLOEXEC), 0);
    ck_assert_int_eq(dup2(ends[1], 9), 9);
    close(ends[1]);
    ls_proc program = start(e, folder);
    close(9);
    for (int i = 0; i < 2 * RANKS; i++) {
        ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    }
    pid_t target = e->who == GROUP ? -program.pid : program.pid;
    for (int depth = SECOND; depth <= (int)e->who; depth++) {
        target = only_child(target);
    }
    int64_t deadline_ns = ls_clock_after(e->within_s);
    ck_assert_int_eq(kill(target, e->signal), 0);
    struct pollfd polled = {.fd = ends[0], .events = POLLIN};
    int64_t rest_ms = (deadline_ns - ls_clock_ns()) / 1000000;
    ck_assert_msg(poll(&polled, 1, (int)rest_ms) == 1 && read(ends[0], &byte, 1) == 0,
                  "a worker is left after %g s", e->within_s);
    ck_assert(ls_proc_wait_all(&program, 1, deadline_ns));
    ck_assert_int_eq(program.code, e->code);
    close(ends[0]);
    ls_path_remove_tree(folder);
}

/* ---- the three processes ----------------------------------------------------------------------
 */

static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGQUIT};

typedef struct program_state {
    pid_t pid, parent, group;
    char name[16];
    int death_signal, is_subreaper;
    bool child_signal_is_default, parent_signal_is_blocked, other_is_blocked, usual_is_blocked;
} program_state;

/* Writes its state and then each signal that it gets, until SIGQUIT; leaves a process behind. */
_Noreturn static void program(int out)
{
    program_state state = {.pid = getpid(), .parent = getppid(), .group = getpgrp()};
    sigset_t set, own, blocked;
    struct sigaction now;
    sigprocmask(SIG_BLOCK, NULL, &blocked);
    state.parent_signal_is_blocked = sigismember(&blocked, SIGRTMIN);
    state.usual_is_blocked = sigismember(&blocked, SIGTERM) || sigismember(&blocked, SIGCHLD);
    state.other_is_blocked = sigismember(&blocked, SIGWINCH);
    sigaction(SIGCHLD, NULL, &now);
    state.child_signal_is_default = now.sa_handler == SIG_DFL;
    prctl(PR_GET_NAME, state.name);
    prctl(PR_GET_PDEATHSIG, &state.death_signal);
    prctl(PR_GET_CHILD_SUBREAPER, &state.is_subreaper);
    sigfillset(&set);
    sigprocmask(SIG_SETMASK, &set, NULL);
    if (fork() == 0) { /* an orphan that ends is no reason to end */
        _exit(fork() == 0 ? 3 : 0);
    }
    (void)wait(NULL);
    sigemptyset(&own);
    sigaddset(&own, SIGCHLD);
    (void)sigwaitinfo(&own, NULL); /* of that child; the guard keeps its own to itself */
    if (fork() == 0) {
        setsid();
        pause();
        _exit(0);
    }
    if (write(out, &state, sizeof state) != sizeof state) {
        _exit(99);
    }
    for (int got; (got = sigwaitinfo(&set, NULL)) != SIGQUIT;) {
        if (got == SIGALRM) {
            sigprocmask(SIG_UNBLOCK, &set, NULL);
            raise(SIGTERM);
        }
        char byte = (char)got;
        (void)!write(out, &byte, 1);
    }
    _exit(7);
}

/* The first process, with SIGUSR2 ignored, SIGWINCH blocked, and a text that is buffered. */
static pid_t start_guarded(int *from)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t first = fork();
    ck_assert_int_ge(first, 0);
    if (first == 0) {
        FILE *buffered = fdopen(dup(ends[1]), "w");
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGWINCH);
        sigprocmask(SIG_SETMASK, &set, NULL);
        for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++) {
            (void)signal(forwarded[i], SIG_DFL); /* as Check may not have left them */
        }
        (void)signal(SIGUSR2, SIG_IGN);
        (void)signal(SIGCHLD, SIG_IGN);
        prctl(PR_SET_NAME, "subject");
        close(ends[0]);
        fputs("buffered", buffered);
        if (ls_guard_begin(false) != LS_OK) {
            _exit(98);
        }
        program(ends[1]);
    }
    close(ends[1]);
    *from = ends[0];
    return first;
}

static void read_whole(int from, void *data, size_t bytes)
{
    for (size_t used = 0; used < bytes;) {
        ssize_t got = read(from, (char *)data + used, bytes - used);
        ck_assert_int_gt(got, 0);
        used += (size_t)got;
    }
}

static void assert_name(pid_t pid, const char *wanted)
{
    LS_TEXT(path, 64, "/proc/%d/comm", (int)pid);
    char name[32] = "";
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%31s", name), 1);
    fclose(file);
    ck_assert_str_eq(name, wanted);
}

/* Who gets which signal, and the first one's code; each leaves nothing. */
static const struct {
    who who;
    int signal, code;
} ends[] = {
    {FIRST, SIGQUIT, 7},
    {FIRST, SIGKILL, 128 + SIGKILL},
    {SECOND, SIGKILL, 128 + SIGKILL},
    {THIRD, SIGKILL, 128 + SIGKILL},
    {THIRD, SIGALRM, 128 + SIGTERM},
    {SECOND, SIGQUIT, 7},
};

ROWS_TEST(a_program_below_its_guard, ends)
{
    int from, state;
    char text[8], byte = 0;
    program_state at;
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* gets the guard's code when the first has ended */
    pid_t first = start_guarded(&from);
    read_whole(from, text, sizeof text);
    ck_assert_mem_eq(text, "buffered", sizeof text);
    read_whole(from, &at, sizeof at);
    pid_t guard = only_child(first), pid[] = {first, first, guard, at.pid};
    ck_assert_int_eq(at.parent, guard);
    ck_assert_int_eq(getpgid(first), getpgrp());
    ck_assert_int_eq(getpgid(guard), guard);
    ck_assert_int_eq(at.group, guard);
    assert_name(first, "subject");
    assert_name(guard, "ls-guard");
    ck_assert_str_eq(at.name, "subject");
    ck_assert_int_eq(at.death_signal, SIGKILL);
    ck_assert_int_eq(at.is_subreaper, 0);
    ck_assert(at.child_signal_is_default && at.other_is_blocked);
    ck_assert(!at.usual_is_blocked && !at.parent_signal_is_blocked);
    for (size_t i = 0; forwarded[i] != SIGQUIT; i++) {
        ck_assert_int_eq(kill(first, SIGUSR2), 0); /* is ignored */
        ck_assert_int_eq(kill(first, forwarded[i]), 0);
        read_whole(from, &byte, 1);
        ck_assert_int_eq(byte, forwarded[i]);
    }
    ck_assert_int_eq(kill(pid[ends[_i].who], ends[_i].signal), 0);
    ck_assert_int_eq(waitpid(first, &state, 0), first);
    ck_assert_int_eq(WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state), ends[_i].code);
    ck_assert_int_eq(read(from, &byte, 1), 0); /* nothing is left that holds it */
    if (pid[ends[_i].who] == first && ends[_i].signal == SIGKILL) {
        ck_assert_int_eq(waitpid(-1, &state, 0), guard);
        ck_assert(WIFEXITED(state) && WEXITSTATUS(state) == 128 + SIGKILL);
    }
    ck_assert_int_eq(waitpid(-1, &state, WNOHANG), -1);
    close(from);
}

TEST_MAIN("guard")
