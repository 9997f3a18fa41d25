#include "waiting.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "kernels/core/clock.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"

static const int64_t LOOK_NS = INT64_C(2000000000);

ls_waiting ls_waiting_begin(ls_waiting_probe *const *probe, void *context, double limit_s)
{
    return (ls_waiting){
        .probe = probe, .context = context, .limit_s = limit_s, .first_s = 10, .again_s = 60};
}

/* Writes the cause; returns since when, < 0: there is none. */
static double find_cause(ls_waiting *waiting)
{
    for (int i = 0; waiting->probe[i] != NULL; i++) {
        double since_s = waiting->probe[i](waiting->context, waiting->cause, sizeof waiting->cause);
        if (since_s >= 0) {
            return since_s;
        }
    }
    waiting->cause[0] = '\0';
    return -1;
}

const char *ls_waiting_cause(ls_waiting *waiting)
{
    (void)find_cause(waiting);
    return waiting->cause;
}

int64_t ls_waiting_look(ls_waiting *waiting)
{
    int64_t now_ns = ls_clock_ns();
    if (now_ns < waiting->look_ns) {
        return waiting->look_ns;
    }
    waiting->look_ns = now_ns + LOOK_NS;
    double waited_s = find_cause(waiting);
    if (waited_s < 0) {
        waiting->since_ns = waiting->said_ns = 0;
        return waiting->look_ns;
    }
    waiting->since_ns = waiting->since_ns == 0 ? now_ns : waiting->since_ns;
    waited_s = fmax(waited_s, ls_clock_ms_between(waiting->since_ns, now_ns) * 1e-3);
    double quiet_s = ls_clock_ms_between(waiting->said_ns, now_ns) * 1e-3;
    if (waiting->said_ns == 0 ? waited_s >= waiting->first_s : quiet_s >= waiting->again_s) {
        LS_TEXT(limit, 40, " (limit %.4g s)", waiting->limit_s);
        ls_log_note("waiting for %.0f s%s: %s", waited_s, waiting->limit_s > 0 ? limit : "",
                    waiting->cause);
        waiting->said_ns = now_ns;
    }
    return waiting->look_ns;
}

/* ---- one command in this program's place ---------------------------------------------------- */

static const int passed[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

enum {
    PASSED = sizeof passed / sizeof *passed,
    /* A kill of the group reaches this program twice, by itself and through the guard; the second
     * one comes within milliseconds, on a crowded machine later. */
    SAME_NS = 1000000000,
    END_S = 5, /* between TERM and KILL at the deadline */
};

/* Another name than that of the first process: `pkill NAME` then reaches that one alone, whose
 * signal is passed on, and a signal that comes straight to this process was sent to the group. */
static const char own_name[] = "ls-foreground";

static int index_of(int signal)
{
    int index = 0;
    while (index < PASSED && passed[index] != signal) {
        index++;
    }
    return index;
}

/* Until one of the set comes, or the command must be looked at again; -1 then. */
static int await_signal(const sigset_t *set, siginfo_t *info, ls_waiting *waiting, int64_t end_ns)
{
    int64_t until_ns = ls_waiting_look(waiting), now_ns = ls_clock_ns();
    until_ns = end_ns < until_ns ? end_ns : until_ns;
    int64_t rest_ns = until_ns > now_ns ? until_ns - now_ns : 0;
    struct timespec rest = {rest_ns / 1000000000, rest_ns % 1000000000};
    return sigtimedwait(set, info, &rest);
}

/* Until the command has ended; false: it is to be ended. `set` is blocked, and holds SIGCHLD.
 */
static bool pass_signals(ls_proc *command, const sigset_t *set, ls_waiting *waiting)
{
    int64_t end_ns = waiting->limit_s > 0 ? ls_clock_after(waiting->limit_s) : INT64_MAX;
    int64_t direct_ns[PASSED];
    for (int i = 0; i < PASSED; i++) {
        direct_ns[i] = ls_clock_ns() - SAME_NS;
    }
    pid_t guard = getppid();
    while (!ls_proc_reap(command)) {
        siginfo_t info;
        int got = await_signal(set, &info, waiting, end_ns);
        int index = index_of(got);
        if (ls_clock_ns() >= end_ns) {
            (void)ls_waiting_cause(waiting);
            return false;
        }
        waiting->stopped = waiting->watch != NULL && waiting->watch(waiting->watched);
        if (waiting->stopped) {
            return false;
        }
        if (got < 0 || index == PASSED) {
            continue;
        }
        int64_t now_ns = ls_clock_ns();
        command->asked = got == SIGUSR1 || got == SIGUSR2 ? command->asked : got;
        if (info.si_code == SI_KERNEL || info.si_pid != guard) {
            direct_ns[index] = now_ns;
        } else if (now_ns - direct_ns[index] >= SAME_NS) {
            ls_proc_signal_all(command, 1, got);
        }
    }
    return true;
}

ls_status ls_waiting_run(char *const *argv, char *const *environment, ls_waiting *waiting,
                         ls_proc *out, bool *late)
{
    sigset_t before, waited;
    char name[16] = "";
    ls_proc_orphans left = {0, NULL};
    int input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3); /* -1: it is closed; /dev/null then */
    ls_proc_spec spec = {
        .argv = argv, .environment = environment, .input = input, .in_place = true};
    sigprocmask(SIG_BLOCK, NULL, &before);
    ls_status status = ls_proc_catch_signals();
    LS_THEN(status, ls_proc_pass_signals());
    (void)prctl(PR_GET_NAME, name);
    (void)prctl(PR_SET_NAME, own_name);
    ls_proc_orphans_begin(&left);
    LS_THEN(status, ls_proc_start(&spec, out));
    if (status == LS_OK) {
        /* not before the start: the command would inherit a blocked SIGCHLD */
        sigprocmask(SIG_BLOCK, NULL, &waited);
        sigaddset(&waited, SIGCHLD);
        sigprocmask(SIG_SETMASK, &waited, NULL);
        bool ended = pass_signals(out, &waited, waiting);
        *late = !ended && !waiting->stopped;
        if (!ended) {
            out->asked = SIGTERM;
            ls_proc_end_all(out, 1, END_S);
        }
        if (waiting->unwatch != NULL) {
            waiting->unwatch(waiting->watched);
        }
    }
    (void)ls_proc_orphans_end(&left);
    (void)prctl(PR_SET_NAME, name);
    /* what came for the command and too late for it is not for this program */
    for (int i = 0; i < PASSED; i++) {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, passed[i]);
        (void)sigtimedwait(&one, NULL, &(struct timespec){0, 0});
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (input >= 0) {
        close(input);
    }
    return status;
}
