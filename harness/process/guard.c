
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/core/log.h"
#include "proc.h"

static const char guard_name[] = "ls-guard";

/* The signals that a process waits for: its child's end, its parent's (SIGRTMIN), and those that it
 * forwards. */
static sigset_t awaited(void)
{
    static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGRTMIN);
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++) {
        struct sigaction now;
        if (sigaction(forwarded[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN) {
            sigaddset(&set, forwarded[i]);
        }
    }
    return set;
}

/* Reaps all that have ended; true, and the code to leave with, when the child is among them. */
static bool has_ended(pid_t child, int *code)
{
    int state;
    bool ended = false;
    for (pid_t pid; (pid = waitpid(-1, &state, WNOHANG)) > 0;) {
        if (pid == child) {
            *code = WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
            ended = true;
        }
    }
    return ended;
}

/* Until the child or the parent ends; then nothing below this process is left. A terminal's signals
 * reach a program that stays in the caller's group without this process. */
static int watch(pid_t child, const sigset_t *set, bool in_place)
{
    int code = 128 + SIGKILL;
    for (;;) {
        siginfo_t info = {0};
        int got = sigwaitinfo(set, &info);
        if (got == SIGRTMIN || (got == SIGCHLD && has_ended(child, &code))) {
            ls_proc_orphans all = {0, NULL};
            (void)ls_proc_orphans_end(&all);
            return code;
        }
        if (got > 0 && got != SIGCHLD && !(in_place && info.si_code == SI_KERNEL)) {
            kill(child, got);
        }
    }
}

/* Goes on in a new child, which gets `parent_died` when this process ends. */
static ls_status continue_below(int parent_died, bool in_place)
{
    sigset_t set = awaited(), before;
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* fails on kernels without it: orphans go to init */
    (void)signal(SIGCHLD, SIG_DFL);         /* ignored, children would leave no code */
    sigprocmask(SIG_BLOCK, &set, &before);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        if (prctl(PR_SET_PDEATHSIG, parent_died) != 0 || getppid() != parent) {
            _exit(128 + SIGKILL);
        }
        sigprocmask(SIG_SETMASK, &before, NULL);
        return LS_OK;
    }
    if (child < 0) {
        sigprocmask(SIG_SETMASK, &before, NULL);
        return ls_log_fail(LS_ERR_INFRA, "cannot start a child: %s", strerror(errno));
    }
    _exit(watch(child, &set, in_place));
}

ls_status ls_guard_begin(bool in_place)
{
    char name[16] = ""; /* as prctl wants it */
    pid_t group = getpgrp();
    fflush(NULL);
    (void)prctl(PR_GET_NAME, name);
    LS_TRY(continue_below(SIGRTMIN, in_place));
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_NAME, guard_name);
    LS_TRY(continue_below(SIGKILL, in_place));
    (void)prctl(PR_SET_NAME, name);
    if (in_place) {
        (void)setpgid(0, group);
    }
    return LS_OK;
}
