/* A group of processes that we start, watch and end; beside proc_isolated.h the one place that
 * forks. Nothing is left behind: each child dies with us (PR_SET_PDEATHSIG), is signalled by pid
 * only, and its own children are ended with it (process group). */
#ifndef LS_PROC_H
#define LS_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "kernels/core/status.h"

typedef struct ls_proc_spec {
    char *const *argv;        /* argv[0] is looked up in PATH */
    char *const *environment; /* the whole environment, NAME=value, NULL at the end */
    const char *log_path;     /* stdout and stderr are appended there; NULL: inherited */
    const char *directory;    /* NULL: inherited */
    int input;                /* its standard input; 0: /dev/null */
    int cpu_first, cpu_count; /* bind to these cores; cpu_count 0: no binding */
    int64_t file_bytes_max;   /* no file may grow longer (RLIMIT_FSIZE); 0: as inherited */
} ls_proc_spec;

typedef struct ls_proc {
    pid_t pid;         /* 0: never started or already reaped */
    pid_t started_pid; /* stays when it is reaped, for messages */
    bool ended;
    int code;   /* exit code, or 128 + signal */
    int signal; /* 0 when it left by itself */
    int64_t started_ns, ended_ns;
    double user_s, system_s;
    int64_t rss_bytes_max; /* peak resident memory */
} ls_proc;

/* Starts one child. LS_ERR_USAGE when the program cannot be found or run (named), LS_ERR_INFRA
 * otherwise. */
ls_status ls_proc_start(const ls_proc_spec *spec, ls_proc *out);
/* Waits until some child of the group ends, or until `deadline_ns` (ls_clock_ns time; < 0: never),
 * or until a signal asked this program to stop. Fills the entry that ended and returns its index;
 * -1: deadline; -2: asked to stop; -3: none is running. No polling interval, no sleep. */
int ls_proc_wait_any(ls_proc *group, int count, int64_t deadline_ns);
/* Waits until none runs any more or until the deadline, whatever signals come. True: none runs. */
bool ls_proc_wait_all(ls_proc *group, int count, int64_t deadline_ns);
/* Sends a signal to everything that still runs. */
void ls_proc_signal_all(const ls_proc *group, int count, int signal);
/* Ends what still runs: TERM, wait `grace_s`, KILL; reaps everything. */
void ls_proc_end_all(ls_proc *group, int count, double grace_s);

/* Processes that a child started in a session of their own and left behind. From the first call on
 * they become our children when their parent ends (PR_SET_CHILD_SUBREAPER), so that they can be
 * found: whoever is our child at the end and was none at the beginning. */
typedef struct ls_proc_strays {
    int count;
    pid_t *known; /* our children at the beginning, malloc'ed */
} ls_proc_strays;
void ls_proc_strays_begin(ls_proc_strays *strays);
/* Kills and reaps them, and what they started; returns how many there were. Call when every child
 * of the group has been reaped. */
int ls_proc_strays_end(ls_proc_strays *strays);

/* Kills and reaps one child. One that a driver holds in the kernel does not even end then, and is
 * left. */
void ls_proc_strays_end_one(pid_t pid);

/* SIGINT, SIGTERM, SIGHUP (unless ignored at start) make ls_proc_wait_any return -2 from now on. */
ls_status ls_proc_catch_signals(void);
int ls_proc_caught_signal(void); /* 0: none */

#endif
