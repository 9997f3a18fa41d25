/* Text from another process. A function runs in a process of its own because it may hang, abort or
 * keep a device: to query a driver, or to measure while jobs run. A program runs without a shell.
 */
#ifndef LS_PROC_ISOLATED_H
#define LS_PROC_ISOLATED_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "kernels/core/status.h"

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

/* All that a program writes to its standard output until it ends, at most limit_s; malloc'ed, never
 * NULL. Its messages are dropped. *code: its exit code, 128 + signal, or LS_ERR_INFRA when it could
 * not be started or had not ended. */
char *ls_proc_isolated_output(char *const *argv, double limit_s, int *code);

#endif
