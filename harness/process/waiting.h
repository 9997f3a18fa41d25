/* What a program that waits is waiting for: a line on stderr after 10 s and each minute from there,
 * and the cause in the message of the one that gives up. Nothing is printed where no probe finds
 * that the program waits for something. */
#ifndef LS_WAITING_H
#define LS_WAITING_H

#include <stddef.h>
#include <stdint.h>

enum { LS_WAITING_TEXT_BYTES = 600 };

/* Writes what is waited for (a sentence without a full stop). Returns since when, in seconds, where
 * it knows (0: it does not); < 0: it finds nothing. */
typedef double ls_waiting_probe(void *context, char *text, size_t bytes);

typedef struct ls_waiting {
    ls_waiting_probe *const *probe; /* NULL at the end; the first that finds something speaks */
    void *context;                  /* of each probe */
    double limit_s;                 /* of the whole, for the line; <= 0: none */
    double first_s, again_s;        /* until the first line, and between lines */
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

#endif
