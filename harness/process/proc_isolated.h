/* A function run in a process of its own, for what may hang, abort or keep a device: asking a
 * driver, measuring beside the jobs. It answers with text. */
#ifndef LS_PROC_ISOLATED_H
#define LS_PROC_ISOLATED_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "kernels/core/status.h"

/* Runs in the child; what it writes to `answer` is the answer. Its status is the child's exit code.
 */
typedef ls_status ls_proc_isolated_fn(void *context, FILE *answer);

typedef struct ls_proc_isolated {
    pid_t pid;
    int input; /* our end of the pipe */
} ls_proc_isolated;

/* The caller has one thread, or its other threads hold no lock that the function wants. */
ls_status ls_proc_isolated_start(ls_proc_isolated_fn *function, void *context,
                                 ls_proc_isolated *out);
/* The whole answer, malloc'ed, once the child has ended with 0; NULL with one line in why[bytes]
 * when it failed, died or was not done at `deadline_ns` (ls_clock_ns time; it is then killed). */
char *ls_proc_isolated_answer(ls_proc_isolated *aside, int64_t deadline_ns, char *why,
                              size_t bytes);

#endif
