/* Starts, supervises and ends a group of processes. Only this folder forks. No process is left
 * behind: each child dies with its parent (PR_SET_PDEATHSIG), its own children are ended with it
 * (process group; guard.h for those that left it), and signals go to pids only. */
#ifndef LS_PROC_H
#define LS_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <stddef.h>
#include <stdio.h>

#include "kernels/core/status.h"
#include "kernels/core/text.h"

typedef struct ls_proc_spec {
    char *const *argv;        /* argv[0] is searched for in PATH */
    char *const *environment; /* NAME=value strings, NULL at the end; nothing is inherited */
    const char *log_path;     /* stdout and stderr are appended to it; NULL: inherited */
    int output;               /* its standard output; 0: as log_path says */
    const char *directory;    /* NULL: inherited */
    int input;                /* its standard input; 0: /dev/null */
    int64_t file_bytes_max;   /* no file may grow longer (RLIMIT_FSIZE); 0: as inherited */
    /* It stays in this program's process group: it may use the terminal, whose signals reach it. */
    bool in_place;
} ls_proc_spec;

typedef struct ls_proc {
    pid_t pid;         /* 0: never started or already reaped */
    pid_t started_pid; /* kept after reaping, for messages */
    bool ended, in_place;
    int code;   /* exit code, or 128 + signal */
    int signal; /* that ended it; 0: it exited */
    int asked;  /* in the foreground: INT, TERM or HUP that came meanwhile; 0: none */
    int64_t started_ns, ended_ns;
    double user_s, system_s;
    int64_t rss_bytes_max; /* peak resident memory */
} ls_proc;

/* Starts one child. LS_ERR_USAGE, with the program's name, when it cannot be found or run;
 * LS_ERR_INFRA for other errors. */
ls_status ls_proc_start(const ls_proc_spec *spec, ls_proc *out);
/* Waits until a child of the group ends, `deadline_ns` has passed (ls_clock_ns time; < 0: no
 * deadline) or a signal asks this program to stop. Fills the entry that ended and returns its
 * index; -1: deadline; -2: asked to stop; -3: none is running. Blocks in ppoll, without a polling
 * interval. */
int ls_proc_wait_any(ls_proc *group, int count, int64_t deadline_ns);
/* Reaps the child without waiting: true, and its code and times, if it has ended. */
bool ls_proc_reap(ls_proc *one);
/* Waits until none is running or the deadline has passed; ignores stop signals. True: none runs. */
bool ls_proc_wait_all(ls_proc *group, int count, int64_t deadline_ns);
/* Sends a signal to the process group of each child that is still running; to the child alone where
 * it shares this program's. */
void ls_proc_signal_all(const ls_proc *group, int count, int signal);
/* Ends the children that are still running: TERM (and CONT, without which a stopped process
 * does not take it), up to `grace_s`, KILL. Reaps all of them. */
void ls_proc_end_all(ls_proc *group, int count, double grace_s);

/* Processes that a child started in a session of their own and left behind. After ..._begin they
 * become children of this process when their parent ends (PR_SET_CHILD_SUBREAPER); ..._end takes
 * every child that did not exist at the beginning for an orphan. */
typedef struct ls_proc_orphans {
    int count;
    pid_t *known; /* children at the beginning, malloc'ed */
} ls_proc_orphans;
void ls_proc_orphans_begin(ls_proc_orphans *orphans);
/* Kills and reaps the orphans and what they started; returns their number. Call it when every child
 * of the group has been reaped. */
int ls_proc_orphans_end(ls_proc_orphans *orphans);

/* Kills and reaps one child. A child that a driver holds in the kernel does not end even then: it
 * is left after 5 s. */
void ls_proc_kill_child(pid_t pid);

/* From now on SIGINT, SIGTERM and SIGHUP (unless ignored at start) make ls_proc_wait_any return -2.
 */
ls_status ls_proc_catch_signals(void);
/* From now on ls_proc_wait_any and ls_proc_wait_all pass SIGUSR1 and SIGUSR2 on to the children. */
ls_status ls_proc_pass_signals(void);
int ls_proc_caught_signal(void); /* 0: none */
int ls_proc_stopped_code(void);  /* 128 + that signal, to leave with; SIGINT where none came here */

/* Text from another process. A function runs in a process of its own because it may hang, abort or
 * keep a device: to query a driver, or to measure while jobs run. A program runs without a shell.
 */

/* Runs in the child and writes its result to `answer`. Its status is the child's exit code. */
typedef ls_status ls_proc_isolated_fn(void *context, FILE *answer);

typedef struct ls_proc_isolated {
    pid_t pid;
    int input; /* the parent's end of the pipe */
} ls_proc_isolated;

/* The caller has one thread, or its other threads hold no lock that the function takes. */
ls_status ls_proc_isolated_start(ls_proc_isolated_fn *function, void *context,
                                 ls_proc_isolated *out);
/* Waits for the child to exit with 0 and returns all that it wrote, malloc'ed. NULL, with one line
 * in why[bytes], when it failed, was killed or had not ended at `deadline_ns` (ls_clock_ns time);
 * in the last case it is killed here. */
char *ls_proc_isolated_answer(ls_proc_isolated *isolated, int64_t deadline_ns, char *why,
                              size_t bytes);

/* Whether its answer can be had without waiting: it has ended, or is about to. */
bool ls_proc_isolated_ready(const ls_proc_isolated *isolated);
/* In the child: it makes way for other processes (nice 10), runs for `limit_s` of processor time,
 * and says nothing on standard error. */
void ls_proc_isolated_recede(int limit_s);

/* All that a program writes to its standard output until it ends, at most limit_s; malloc'ed, never
 * NULL. Its messages are dropped. *code: its exit code, 128 + signal, or LS_ERR_INFRA when it could
 * not be started or had not ended. */
char *ls_proc_isolated_output(char *const *argv, double limit_s, int *code);

/* ---- guard.c ----------------------------------------------------------------------------------
 */

/* Ends everything that a program has started, also after kill -9 of the program. What a rank starts
 * may ignore TERM, leave its process group and outlive the rank; only an ancestor that adopts
 * orphans (PR_SET_CHILD_SUBREAPER) can find it. So the program becomes three processes:
 *
 *   first    the one that was started: waits, forwards signals, leaves with the program's code
 *   guard    in a process group of its own, under another name: kill -9 of the first process, of
 * its group or of all processes of its name does not reach it program  goes on and starts the ranks
 *
 * When the program ends, the guard kills what is left. When the first process ends before it, the
 * guard kills the program and what is left. When the guard ends before it, the program dies with it
 * (PR_SET_PDEATHSIG), as do its ranks, and the first process kills what is left. Only kill -9 of
 * both the first process and the guard leaves orphans of ranks. */

/* Returns in the program alone, whose pid is new. To be called at the start, with one thread.
 * Signals that are ignored stay ignored. LS_ERR_INFRA when a process cannot be made. in_place: it
 * runs one command in its own place (waiting.h) and stays in the caller's process group, so that it
 * and the command may use the terminal. The terminal's signals reach them without the first
 * process, which does not forward those. */
ls_status ls_guard_begin(bool in_place);

/* ---- fork_server.c ----------------------------------------------------------------------------
 */

/* Ranks that are forked from a process which has loaded their framework, in place of ranks that
 * each load it again: importing PyTorch takes longer than a small job. The fork server is the
 * command itself, without options and with LS_FORK_SERVER=1: what would run the rank waits for
 * requests on its standard input, a socket, and forks (suite/peers/fork_server.py; protocol.md). A
 * rank is forked twice, so that this program, which adopts orphans, becomes its parent: it is
 * waited for, signalled and killed as any other. */

typedef struct ls_fork_server {
    ls_words command; /* what it was started with: ranks have these words and options behind them */
    ls_proc process;
    int socket; /* -1: none runs, and every rank is started by exec */
} ls_fork_server;

/* Starts one: `command` is the words of a command, separated by blanks. It loads while the caller
 * goes on. */
ls_status ls_fork_server_open(const char *command, ls_fork_server *out);
void ls_fork_server_close(ls_fork_server *server);

/* Starts what `spec` says, as ls_proc_start does. False where the server cannot: it does not run,
 * the spec is of another command or wants its own terminal, descriptor or folder.
 * A server that fails is closed. To be called between ls_proc_orphans_begin and _end. */
bool ls_fork_server_start(ls_fork_server *server, const ls_proc_spec *spec, ls_proc *out);

#endif
