/* Runs one command in this program's place: with its standard input, output and error, its terminal
 * and its process group, so that the command behaves as if the shell had started it. */
#ifndef LS_FOREGROUND_H
#define LS_FOREGROUND_H

#include "kernels/core/status.h"
#include "proc.h"
#include "waiting.h"

/* Waits until the command has ended, and ends what it has left running. `waiting` says meanwhile
 * what the command waits for; its limit_s, where there is one, is the deadline, after which the
 * command is ended (TERM, 5 s, KILL), *late is true and the cause is waiting->cause. After
 * ls_guard_begin_in_place, which renames the program for that time. INT, TERM, HUP, USR1 and USR2
 * that reach this program alone are passed on, as often as they come; those of a terminal and of a
 * kill of the whole group have reached the command already. Signals do not end this program
 * meanwhile. LS_ERR_USAGE, logged, when the command cannot be found or run. */
ls_status ls_foreground_run(char *const *argv, char *const *environment, ls_waiting *waiting,
                            ls_proc *out, bool *late);

#endif
