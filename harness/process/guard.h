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
#ifndef LS_GUARD_H
#define LS_GUARD_H

#include "kernels/core/status.h"

/* Returns in the program alone, whose pid is new. To be called at the start, with one thread.
 * Signals that are ignored stay ignored. LS_ERR_INFRA when a process cannot be made. */
ls_status ls_guard_begin(void);
/* The same, for a program that runs one command in its own place (waiting.h): the program stays
 * in the caller's process group, so that it and the command may use the terminal. The terminal's
 * signals reach them without the first process, which does not forward those. */
ls_status ls_guard_begin_in_place(void);

#endif
