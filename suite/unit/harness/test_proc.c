/* Child processes: how they end, how they are ended, and that nothing is left behind. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "harness/process/proc.h"
#include "kernels/core/clock.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/unit/caught.h"
#include "suite/unit/run_suite.h"

static int64_t after(double seconds)
{
    return ls_clock_ns() + (int64_t)(seconds * 1e9);
}

static ls_proc start_shell(const char *script)
{
    char *argv[] = {"sh", "-c", (char *)script, NULL};
    ls_proc_spec spec = {.argv = argv, .environment = environ};
    ls_proc child;
    ck_assert_int_eq(ls_proc_start(&spec, &child), LS_OK);
    ck_assert_int_gt(child.pid, 0);
    return child;
}

/* As start_shell, with descriptor 9 a pipe, whose end is seen when the last process that holds it
 * is gone. Waits until `ready` bytes have come. */
static ls_proc start_piped(const char *script, int ready, int *read_end)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(fcntl(ends[0], F_SETFD, FD_CLOEXEC), 0);
    ck_assert_int_eq(dup2(ends[1], 9), 9);
    close(ends[1]);
    ls_proc child = start_shell(script);
    close(9);
    for (char byte; ready > 0; ready--) {
        ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    }
    *read_end = ends[0];
    return child;
}

static void assert_pipe_ends(int read_end, double limit_s)
{
    struct pollfd polled = {.fd = read_end, .events = POLLIN};
    int64_t deadline_ns = after(limit_s);
    char bytes[64];
    while (poll(&polled, 1, (int)((deadline_ns - ls_clock_ns()) / 1000000)) == 1) {
        if (read(read_end, bytes, sizeof bytes) == 0) {
            close(read_end);
            return;
        }
    }
    ck_abort_msg("a process that should be gone still holds the pipe");
}

LOOP_TEST(exit_codes, 6)
{
    static const char *const scripts[] = {"exit 0",   "exit 1",     "exit 10",
                                          "exit 255", "kill -9 $$", "kill -SEGV $$"};
    static const int codes[] = {0, 1, 10, 255, 128 + SIGKILL, 128 + SIGSEGV};
    static const int signals[] = {0, 0, 0, 0, SIGKILL, SIGSEGV};
    ls_proc child = start_shell(scripts[_i]);
    ck_assert_int_eq(ls_proc_wait_any(&child, 1, after(10)), 0);
    ck_assert(child.ended);
    ck_assert_int_eq(child.pid, 0);
    ck_assert_int_eq(child.code, codes[_i]);
    ck_assert_int_eq(child.signal, signals[_i]);
    ck_assert_int_ge(child.ended_ns, child.started_ns);
    ck_assert_int_gt(child.rss_bytes_max, 100000);
    ck_assert_int_eq(ls_proc_wait_any(&child, 1, -1), -3); /* none is running */
}

TEST(which_one_ended)
{
    ls_proc group[3] = {start_shell("exec sleep 30"), start_shell("exit 3"),
                        start_shell("exec sleep 30")};
    ck_assert_int_eq(ls_proc_wait_any(group, 3, after(10)), 1);
    ck_assert_int_eq(group[1].code, 3);
    int64_t began_ns = ls_clock_ns();
    ck_assert_int_eq(ls_proc_wait_any(group, 3, after(0.1)), -1);
    ck_assert_double_ge(ls_clock_ms_between(began_ns, ls_clock_ns()), 99);
    ls_proc_end_all(group, 3, 5.0);
    for (int i = 0; i < 3; i += 2) {
        ck_assert_int_eq(group[i].signal, SIGTERM);
    }
    ck_assert_double_lt(ls_clock_ms_between(began_ns, ls_clock_ns()),
                        4000); /* not the whole grace */
}

/* A stopped process takes TERM only when it is continued. */
TEST(stopped_child_takes_term)
{
    siginfo_t stopped;
    ls_proc child = start_shell("kill -STOP $$; exec sleep 30");
    ck_assert_int_eq(waitid(P_PID, (id_t)child.pid, &stopped, WSTOPPED | WNOWAIT), 0);
    int64_t began_ns = ls_clock_ns();
    ls_proc_end_all(&child, 1, 5.0);
    ck_assert_int_eq(child.signal, SIGTERM);
    ck_assert_double_lt(ls_clock_ms_between(began_ns, ls_clock_ns()), 4000);
}

TEST(ignores_term)
{
    int read_end;
    ls_proc child = start_piped("trap '' TERM; echo >&9; while :; do sleep 1; done", 1, &read_end);
    int64_t began_ns = ls_clock_ns();
    ls_proc_end_all(&child, 1, 0.2);
    double took_ms = ls_clock_ms_between(began_ns, ls_clock_ns());
    ck_assert_int_eq(child.signal, SIGKILL);
    ck_assert_double_ge(took_ms, 199);
    assert_pipe_ends(read_end, 5.0); /* its sleep too */
}

/* A rank that leaves while its own children run: they end with it. */
TEST(grandchildren_end)
{
    int read_end;
    ls_proc child = start_piped("sleep 30 & echo >&9; exit 4", 1, &read_end);
    ck_assert_int_eq(ls_proc_wait_any(&child, 1, after(10)), 0);
    ck_assert_int_eq(child.code, 4);
    assert_pipe_ends(read_end, 5.0);
}

/* The parent is killed by SIGKILL: its children die with it. */
TEST(parent_dies)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t starter = fork();
    ck_assert_int_ge(starter, 0);
    if (starter == 0) {
        close(ends[0]);
        dup2(ends[1], 9);
        close(ends[1]);
        (void)start_shell("echo >&9; exec sleep 30");
        pause();
        _exit(1);
    }
    close(ends[1]);
    char byte;
    ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    kill(starter, SIGKILL);
    ck_assert_int_eq(waitpid(starter, NULL, 0), starter);
    assert_pipe_ends(ends[0], 5.0);
}

TEST(cannot_start)
{
    char *missing[] = {"/nonexistent/program", NULL}, *folder[] = {"/tmp", NULL};
    char *fine[] = {"true", NULL};
    ls_proc child = {.pid = -7};
    ls_proc_spec spec = {.argv = missing, .environment = environ};
    errno = EINTR; /* of an earlier call: no reason to repeat one that has succeeded */
    ck_assert_int_eq(ls_proc_start(&spec, &child), LS_ERR_USAGE);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1); /* reaped */
    spec.argv = folder;
    ck_assert_int_eq(ls_proc_start(&spec, &child), LS_ERR_USAGE);
    spec.argv = fine;
    spec.log_path = "/nonexistent/log";
    ck_assert_int_eq(ls_proc_start(&spec, &child), LS_ERR_INFRA);
    ck_assert_int_eq(child.pid, -7); /* outputs are written only on success */
}

TEST(environment_directory_log)
{
    char log_path[] = "/tmp/ls_proc_XXXXXX", text[256] = "";
    int log = mkstemp(log_path);
    ck_assert_int_ge(log, 0);
    char *argv[] = {"sh", "-c", "echo \"$ONLY|$HOME|$(pwd)\"; echo error >&2; cat", NULL};
    char *environment[] = {"ONLY=this", "PATH=/usr/bin:/bin", NULL};
    ls_proc_spec spec = {
        .argv = argv, .environment = environment, .log_path = log_path, .directory = "/usr"};
    for (int i = 0; i < 2; i++) { /* the second is appended */
        ls_proc child;
        ck_assert_int_eq(ls_proc_start(&spec, &child), LS_OK);
        ck_assert_int_eq(ls_proc_wait_any(&child, 1, after(10)), 0);
        ck_assert_int_eq(child.code, 0);
    }
    ck_assert_int_gt(pread(log, text, sizeof text - 1, 0), 0);
    ck_assert_str_eq(text, "this||/usr\nerror\nthis||/usr\nerror\n");
    close(log);
    unlink(log_path);
}

LOOP_TEST(asked_to_stop, 3)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    ls_proc child = start_shell("exec sleep 30");
    ck_assert_int_eq(ls_proc_caught_signal(), 0);
    ck_assert_int_eq(ls_proc_catch_signals(), LS_OK);
    ck_assert_int_eq(ls_proc_wait_any(&child, 1, after(0.05)), -1);
    kill(getpid(), signals[_i]);
    ck_assert_int_eq(ls_proc_wait_any(&child, 1, after(10)), -2);
    ck_assert_int_eq(ls_proc_caught_signal(), signals[_i]);
    ck_assert_int_eq(ls_proc_wait_any(&child, 1, after(10)), -2); /* from now on */
    ls_proc later = start_shell("kill -TERM $$; exit 1");         /* children do not inherit it */
    ls_proc_end_all(&later, 1, 5.0);
    ck_assert_int_eq(later.signal, SIGTERM);
    ls_proc_end_all(&child, 1, 5.0);
    ck_assert_int_eq(child.signal, SIGTERM);
}

TEST(a_file_stops_growing)
{
    char log[] = "/tmp/lockstep-proc-XXXXXX";
    int descriptor = mkstemp(log);
    ck_assert_int_ge(descriptor, 0);
    char *argv[] = {"yes", NULL};
    ls_proc_spec spec = {
        .argv = argv, .environment = environ, .log_path = log, .file_bytes_max = 100000};
    ls_proc child;
    ck_assert_int_eq(ls_proc_start(&spec, &child), LS_OK);
    ck_assert_int_eq(ls_proc_wait_any(&child, 1, after(10)), 0);
    ck_assert_int_eq(child.signal, SIGXFSZ);
    ck_assert_int_eq(lseek(descriptor, 0, SEEK_END), 100000);
    close(descriptor);
    unlink(log);
}

TEST(orphans_are_ended_and_others_are_not)
{
    int others, orphans;
    ls_proc other = start_piped("echo >&9; sleep 300", 1, &others);
    ls_proc_orphans found;
    ls_proc_orphans_begin(&found);
    ls_proc child = start_piped("setsid sh -c 'setsid sh -c \"echo >&9; sleep 300\" & echo >&9;"
                                " sleep 300' & exit 0",
                                2, &orphans);
    ck_assert_int_eq(ls_proc_wait_any(&child, 1, after(10)), 0);
    ck_assert_int_ge(ls_proc_orphans_end(&found), 2);
    assert_pipe_ends(orphans, 1);
    ck_assert_int_eq(kill(other.pid, 0), 0);
    ls_proc_end_all(&other, 1, 0);
    close(others);
}

static int open_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(folder);
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

/* context: what the child does once it has answered. */
static ls_status answer_and(void *context, FILE *to)
{
    const char *then = context;
    fprintf(to, "forty-two");
    if (strcmp(then, "hang") == 0) {
        pause();
    } else if (strncmp(then, "close", 5) == 0) {
        fflush(to);
        close(fileno(to));
    }
    if (strcmp(then, "close and hang") == 0) {
        pause();
    } else if (strcmp(then, "kill") == 0) {
        raise(SIGKILL);
    }
    return strstr(then, "fail") != NULL ? LS_ERR_RENDEZVOUS : LS_OK;
}

/* Also where descriptor 0 is free and becomes the child's. */
LOOP_TEST(an_isolated_process_is_awaited_until_its_deadline_only, 14)
{
    static const struct {
        const char *then, *answer, *why;
    } row[] = {{"end", "forty-two", ""},
               {"fail", NULL, "failed: rendezvous timed out"},
               {"hang", NULL, "no answer in time"},
               {"close and hang", NULL, "no answer in time"},
               {"close", NULL, "failed: infrastructure"},
               {"close and fail", NULL, "failed: rendezvous timed out"},
               {"kill", NULL, "ended by signal 9 (Killed)"}};
    const char *then = row[_i / 2].then;
    ls_proc_isolated aside;
    char why[120] = "";
    if (_i % 2 == 1) {
        close(STDIN_FILENO);
    }
    int before = open_descriptors();
    ck_assert_int_eq(ls_proc_isolated_start(answer_and, (void *)then, &aside), LS_OK);
    double limit_s = strstr(then, "hang") != NULL ? 0.05 : 20;
    errno = EINTR; /* of an earlier call */
    char *answer = ls_proc_isolated_answer(&aside, after(limit_s), why, sizeof why);
    ck_assert_pstr_eq(answer, row[_i / 2].answer);
    ck_assert_str_eq(why, row[_i / 2].why);
    ck_assert_int_eq(aside.pid, 0);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1); /* nothing is left behind */
    ck_assert_int_eq(open_descriptors(), before);
    free(answer);
}

static ls_status answer_digits(void *context, FILE *to)
{
    for (int i = 0; i < *(int *)context; i++) {
        putc('0' + i % 10, to);
    }
    return LS_OK;
}

/* Writes on when its first byte alone has been read. */
static ls_status answer_slowly(void *context, FILE *to)
{
    int unread = 1;
    (void)context;
    fputc('0', to);
    fflush(to);
    while (ioctl(fileno(to), FIONREAD, &unread) == 0 && unread > 0) {
        (void)poll(NULL, 0, 1);
    }
    fputs("12", to);
    return unread == 0 ? LS_OK : LS_ERR_INFRA;
}

LOOP_TEST(an_answer_of_any_length_is_whole, 10)
{
    static int lengths[] = {0, 1, 4095, 4096, 4097, 8191, 8192, 24576, 300000, 3};
    ls_proc_isolated aside;
    char why[120] = "";
    ls_proc_isolated_fn *function = _i == 9 ? answer_slowly : answer_digits;
    ck_assert_int_eq(ls_proc_isolated_start(function, &lengths[_i], &aside), LS_OK);
    char *answer = ls_proc_isolated_answer(&aside, after(20), why, sizeof why);
    ck_assert_ptr_nonnull(answer);
    ck_assert_uint_eq(strlen(answer), lengths[_i]);
    for (int i = 0; i < lengths[_i]; i++) {
        ck_assert_int_eq(answer[i], '0' + i % 10);
    }
    free(answer);
}

/* Its one more descriptor is that of the answer; what its parent has buffered is not its own. */
static ls_status answer_descriptors(void *context, FILE *to)
{
    (void)context;
    fflush(NULL);
    fprintf(to, "%d", open_descriptors());
    return LS_OK;
}

TEST(an_isolated_process_takes_little_with_it)
{
    ls_proc_isolated aside;
    char why[120] = "", wanted[16], text[16] = "";
    FILE *buffered = tmpfile();
    ck_assert_ptr_nonnull(buffered);
    fputs("once", buffered);
    snprintf(wanted, sizeof wanted, "%d", open_descriptors() + 1);
    ck_assert_int_eq(ls_proc_isolated_start(answer_descriptors, NULL, &aside), LS_OK);
    char *answer = ls_proc_isolated_answer(&aside, after(20), why, sizeof why);
    ck_assert_pstr_eq(answer, wanted);
    fflush(buffered);
    ck_assert_int_eq(pread(fileno(buffered), text, sizeof text - 1, 0), 4);
    ck_assert_str_eq(text, "once");
    fclose(buffered);
    free(answer);
}

static ls_status answer_receding(void *context, FILE *to)
{
    struct rlimit limit;
    (void)context;
    ls_proc_isolated_recede(7);
    ck_assert_int_eq(getrlimit(RLIMIT_CPU, &limit), 0);
    fprintf(to, "nice %d, policy %d, %d s", getpriority(PRIO_PROCESS, 0), sched_getscheduler(0),
            (int)limit.rlim_cur);
    return LS_OK;
}

/* Where ranks want all processors it gets a share of one: what it finds is said while they run. */
TEST(a_process_that_recedes_is_not_starved)
{
    ls_proc_isolated aside;
    char why[120] = "";
    LS_TEXT(wanted, 80, "nice 10, policy %d, 7 s", SCHED_OTHER);
    ck_assert_int_eq(ls_proc_isolated_start(answer_receding, NULL, &aside), LS_OK);
    char *answer = ls_proc_isolated_answer(&aside, after(20), why, sizeof why);
    ck_assert_pstr_eq(answer, wanted);
    free(answer);
}

LOOP_TEST(the_output_of_a_program, 6)
{
    static const struct {
        const char *program, *script, *text;
        int code;
    } rows[] = {
        {"sh", "printf out; echo message >&2; exit 7", "out", 7},
        {"sh", "exit 0", "", 0},
        {"sh", "printf out; kill -KILL $$", "out", 128 + SIGKILL},
        {"sh", "printf out; exec sleep 20", "out", LS_ERR_INFRA},
        {"sh", "printf out; exec >&-; exec sleep 20", "out", LS_ERR_INFRA},
        {"/nonexistent/program", "exit 0", "", LS_ERR_INFRA},
    };
    char *argv[] = {(char *)rows[_i].program, "-c", (char *)rows[_i].script, NULL};
    int code = -1, before = open_descriptors();
    bool hangs = strstr(rows[_i].script, "sleep") != NULL;
    catch_lines();
    char *text = ls_proc_isolated_output(argv, hangs ? 0.1 : 20, &code);
    ck_assert_str_eq(caught_text(), "");
    if (hangs) { /* what it had written by then */
        ck_assert_int_eq(strncmp(text, rows[_i].text, strlen(text)), 0);
    } else {
        ck_assert_str_eq(text, rows[_i].text);
    }
    ck_assert_int_eq(code, rows[_i].code);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_int_eq(open_descriptors(), before);
    free(text);
}

/* Descriptors 3 and 4 of the child are not inherited; its input and output are those given, and
 * what it writes to stderr goes to the log. */
TEST(input_and_output)
{
    char log_path[] = "/tmp/ls_proc_XXXXXX", text[64] = "";
    int log = mkstemp(log_path), in[2], out[2];
    ck_assert(log >= 0 && pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
    ck_assert_int_eq(write(in[1], "line\n", 5), 5);
    close(in[1]);
    char *argv[] = {"sh", "-c", "cat; echo error >&2", NULL};
    ls_proc_spec spec = {.argv = argv,
                         .environment = environ,
                         .log_path = log_path,
                         .input = in[0],
                         .output = out[1]};
    ls_proc child;
    errno = EINTR; /* of an earlier call: no reason to read the pipe of the start again */
    ck_assert_int_eq(ls_proc_start(&spec, &child), LS_OK);
    close(out[1]);
    ck_assert_int_eq(ls_proc_wait_any(&child, 1, after(10)), 0);
    ck_assert_int_eq(read(out[0], text, sizeof text), 5);
    ck_assert_mem_eq(text, "line\n", 5);
    ck_assert_int_eq(read(out[0], text, sizeof text), 0);
    ck_assert_int_eq(pread(log, text, sizeof text, 0), 6);
    ck_assert_mem_eq(text, "error\n", 6);
    close(in[0]);
    close(out[0]);
    close(log);
    unlink(log_path);
}

/* What the kernel has counted for all children of this process is that of its only one. */
TEST(times_and_memory)
{
    struct rusage used;
    ls_proc child =
        start_shell("i=0; while [ $i -lt 30000 ]; do i=$((i + 1)); done; cat /proc/self/stat "
                    ">/dev/null 2>&1");
    pid_t pid = child.pid;
    ck_assert_int_eq(child.started_pid, pid);
    ck_assert(ls_proc_wait_all(&child, 1, after(20)));
    ck_assert_int_eq(getrusage(RUSAGE_CHILDREN, &used), 0);
    ck_assert_int_eq(child.started_pid, pid);
    /* 2e-6: both are whole microseconds */
    ck_assert_double_eq_tol(
        child.user_s, (double)used.ru_utime.tv_sec + (double)used.ru_utime.tv_usec * 1e-6, 2e-6);
    ck_assert_double_eq_tol(child.system_s,
                            (double)used.ru_stime.tv_sec + (double)used.ru_stime.tv_usec * 1e-6,
                            2e-6); /* the same */
    ck_assert_double_gt(child.user_s + child.system_s, 0);
    ck_assert_int_eq(child.rss_bytes_max, (int64_t)used.ru_maxrss * 1024);
}

TEST(an_exit_code_that_the_kernel_drops)
{
    (void)signal(SIGCHLD, SIG_IGN);
    ls_proc child = start_shell("exit 0");
    ck_assert_int_eq(ls_proc_wait_any(&child, 1, after(10)), 0);
    ck_assert(child.ended && child.pid == 0);
    ck_assert_int_eq(child.code, LS_ERR_INFRA);
}

/* What nohup ignores stays ignored; the others are taken. */
TEST(a_signal_that_is_ignored)
{
    (void)signal(SIGHUP, SIG_IGN);
    ck_assert_int_eq(ls_proc_stopped_code(), 128 + SIGINT);
    ck_assert_int_eq(ls_proc_catch_signals(), LS_OK);
    kill(getpid(), SIGHUP);
    ck_assert_int_eq(ls_proc_caught_signal(), 0);
    ck_assert_int_eq(ls_proc_stopped_code(), 128 + SIGINT);
    ls_proc child = start_shell("exec sleep 30");
    ck_assert_int_eq(ls_proc_wait_any(&child, 1, after(0.02)), -1);
    kill(getpid(), SIGTERM);
    ck_assert_int_eq(ls_proc_stopped_code(), 128 + SIGTERM);
    ck_assert(!ls_proc_wait_all(&child, 1, after(0.02))); /* which is not for this wait */
    ls_proc_kill_child(child.pid);
    ck_assert_int_eq(waitpid(child.pid, NULL, WNOHANG), -1); /* reaped */
}

/* TERM to those that run, in a group of their own each; the ended ones are left alone. */
TEST(signals_go_to_the_running_ones)
{
    ls_proc group[3] = {{.pid = 0}, start_shell("exit 0"), start_shell("exec sleep 30")};
    ck_assert_int_eq(ls_proc_wait_any(group, 3, after(10)), 1);
    ck_assert_int_eq(getpgid(group[2].pid), group[2].pid);
    ls_proc_signal_all(group, 3, SIGTERM); /* 0 would be this program's own group */
    ck_assert_int_eq(ls_proc_wait_any(group, 3, after(10)), 2);
    ck_assert_int_eq(group[2].signal, SIGTERM);
    ck_assert_int_eq(group[2].code, 128 + SIGTERM);
    ck_assert_int_eq(ls_proc_wait_any(group, 3, -1), -3);
}

/* ---- ranks that a fork server starts --------------------------------------------------------- */

static char folder[] = "/tmp/lockstep-fork-XXXXXX";
static char command[1400];

/* loads a file of its own once, then prints its process and arguments; waits if one is "wait" */
static const char trainer[] = "import os, signal, sys\n"
                              "sys.path.insert(0, sys.argv[1])\n"
                              "loaded = os.getpid()\n"
                              "import fork_server\n"
                              "fork_server.serve(lambda: None)\n"
                              "print(os.getppid(), os.getpgid(0) == os.getpid(),\n"
                              "      loaded != os.getpid(), sys.argv[2:], os.environ.get('A'),\n"
                              "      os.environ.get('LS_FORK_SERVER'), sys.stdin.read() == '')\n"
                              "sys.stdout.flush()\n"
                              "if 'wait' in sys.argv:\n"
                              "    signal.pause()\n"
                              "os._exit(7)\n";

static bool python_is_here(void)
{
    return system("python3 -c pass 2>/dev/null") == 0;
}

static void make_trainer(void)
{
    char peers[1024];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert(ls_path_find("suite/peers", peers, sizeof peers));
    LS_TEXT(path, 200, "%s/trainer.py", folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(trainer, file), 0);
    ck_assert_int_eq(fclose(file), 0);
    ls_text_put(command, sizeof command, "python3 %s %s", path, peers);
}

static void remove_trainer(void)
{
    ls_path_remove_tree(folder);
}

static void read_log(const char *path, char text[400])
{
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    text[fread(text, 1, 399, file)] = '\0';
    fclose(file);
}

typedef struct asked {
    ls_words words;
    char log[200];
    ls_proc_spec spec;
} asked;

static char *const surroundings[] = {"A=b=c", "PATH=/usr/local/bin:/usr/bin:/bin", NULL};

static void ask(asked *a, const char *options)
{
    *a = (asked){.words = {0, 0, NULL}};
    LS_TEXT(all, 1600, "%s %s", command, options);
    ls_words_split(&a->words, all);
    ls_text_put(a->log, sizeof a->log, "%s/%s.log", folder, options);
    a->spec =
        (ls_proc_spec){.argv = a->words.word, .environment = surroundings, .log_path = a->log};
}

TEST(a_rank_is_a_child_of_this_program)
{
    if (!python_is_here()) {
        return;
    }
    ls_fork_server server;
    ls_proc_orphans orphans;
    ls_proc rank;
    asked a;
    char text[400];
    ck_assert_int_eq(ls_fork_server_open(command, &server), LS_OK);
    ls_proc_orphans_begin(&orphans);
    for (int round = 0; round < 2; round++) {
        ask(&a, round == 0 ? "first" : "second");
        ck_assert(ls_fork_server_start(&server, &a.spec, &rank));
        ck_assert_int_eq(ls_proc_wait_any(&rank, 1, ls_clock_after(60)), 0);
        ck_assert_int_eq(rank.code, 7);
        read_log(a.log, text);
        LS_TEXT(want, 200, "%d True True ['%s'] b=c None True\n", (int)getpid(),
                round == 0 ? "first" : "second");
        ck_assert_str_eq(text, want);
        ls_words_free(&a.words);
    }
    ck_assert_int_eq(ls_proc_orphans_end(&orphans), 0);
    ls_fork_server_close(&server);
}

TEST(a_rank_is_killed_by_its_pid)
{
    if (!python_is_here()) {
        return;
    }
    ls_fork_server server;
    ls_proc_orphans orphans;
    ls_proc rank;
    asked a;
    ck_assert_int_eq(ls_fork_server_open(command, &server), LS_OK);
    ls_proc_orphans_begin(&orphans);
    ask(&a, "wait");
    ck_assert(ls_fork_server_start(&server, &a.spec, &rank));
    ck_assert_int_eq(kill(rank.pid, SIGKILL), 0);
    ck_assert_int_eq(ls_proc_wait_any(&rank, 1, ls_clock_after(60)), 0);
    ck_assert_int_eq(rank.signal, SIGKILL);
    ls_words_free(&a.words);
    ck_assert_int_eq(ls_proc_orphans_end(&orphans), 0);
    ls_fork_server_close(&server);
}

/* What it cannot start is left to exec, and a server that has ended is closed. */
TEST(another_command_is_not_its)
{
    if (!python_is_here()) {
        return;
    }
    ls_fork_server server;
    ls_proc rank;
    asked a;
    char *const other[] = {"sh", "-c", "exit 0", NULL};
    ck_assert_int_eq(ls_fork_server_open(command, &server), LS_OK);
    ask(&a, "first");
    ls_proc_spec spec = a.spec;
    spec.argv = other;
    ck_assert(!ls_fork_server_start(&server, &spec, &rank));
    spec = a.spec;
    spec.directory = "/";
    ck_assert(!ls_fork_server_start(&server, &spec, &rank));
    ck_assert(!ls_fork_server_start(NULL, &a.spec, &rank));
    ck_assert_int_eq(kill(server.process.pid, SIGKILL), 0);
    ck_assert(!ls_fork_server_start(&server, &a.spec, &rank));
    ck_assert_int_lt(server.socket, 0);
    ls_words_free(&a.words);
    ls_fork_server_close(&server);
}

TEST_MAIN("proc", .timeout_s = 200, .begin = make_trainer, .end = remove_trainer)
