/* Whatever ends lockstep-launch or lockstep conform, nothing that their ranks started is left. */
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
    double within_s; /* design.md section 4 */
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

START_TEST(nothing_is_left)
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
END_TEST

int main(void)
{
    Suite *suite = suite_create("guard");
    TCase *tests = tcase_create("guard");
    tcase_add_loop_test(tests, nothing_is_left, 0, sizeof endings / sizeof *endings);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
