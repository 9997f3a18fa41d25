/* What a program that waits is waiting for: a line on stderr after 10 s and each minute from there,
 * and the cause in the message of the one that gives up. Nothing is printed where no probe finds
 * that the program waits for something. */
#ifndef LS_WAITING_H
#define LS_WAITING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/core/status.h"
#include "proc.h"

enum { LS_WAITING_TEXT_BYTES = 600 };

/* Writes what is waited for (a sentence without a full stop). Returns since when, in seconds, where
 * it knows (0: it does not); < 0: it finds nothing. */
typedef double ls_waiting_probe(void *context, char *text, size_t bytes);

/* Looks at what the program does meanwhile, about every two seconds; true: it is to be ended. */
typedef bool ls_waiting_watch(void *context);

typedef struct ls_waiting {
    ls_waiting_probe *const *probe; /* NULL at the end; the first that finds something speaks */
    void *context;                  /* of each probe */
    double limit_s;                 /* of the whole, for the line; <= 0: none */
    double first_s, again_s;        /* until the first line, and between lines */
    ls_waiting_watch *watch;        /* NULL: none */
    void (*unwatch)(void *context); /* when the program has ended, before what is left is */
    void *watched;                  /* of both */
    bool stopped;                   /* the watch had the program ended */
    /* ls_clock_ns; 0: the probes find nothing now */
    int64_t since_ns, said_ns;
    int64_t look_ns;                   /* when to look again */
    char cause[LS_WAITING_TEXT_BYTES]; /* what was found last; "": nothing */
} ls_waiting;

/* The waits of this project: 10 s and a minute. */
ls_waiting ls_waiting_begin(ls_waiting_probe *const *probe, void *context, double limit_s);
/* Looks, at most every two seconds, and prints when a line is due. Returns when to look again. */
int64_t ls_waiting_look(ls_waiting *waiting);
/* What is waited for; "": nothing is found. */
const char *ls_waiting_cause(ls_waiting *waiting);

/* Runs one command in this program's place: with its standard input, output and error, its terminal
 * and its process group, so that the command behaves as if the shell had started it. */

/* Waits until the command has ended, and ends what it has left running. `waiting` says meanwhile
 * what the command waits for; its limit_s, where there is one, is the deadline, after which the
 * command is ended (TERM, 5 s, KILL), *late is true and the cause is waiting->cause; its watch may
 * have it ended so before: waiting->stopped. After
 * ls_guard_begin, which renames the program for that time. INT, TERM, HUP, USR1 and USR2
 * that reach this program alone are passed on, as often as they come; those of a terminal and of a
 * kill of the whole group have reached the command already. Signals do not end this program
 * meanwhile. LS_ERR_USAGE, logged, when the command cannot be found or run. */
ls_status ls_waiting_run(char *const *argv, char *const *environment, ls_waiting *waiting,
                         ls_proc *out, bool *late);

#endif
