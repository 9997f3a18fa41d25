/* The variables in which launchers pass a process its place, and what contradicts there. */
#ifndef LS_LAUNCHERS_H
#define LS_LAUNCHERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ls_launcher {
    const char *name;
    const char *rank, *world; /* world NULL: it passes no number of ranks */
    const char *local_rank, *local_world, *node;
    bool outer; /* starts other launchers, too, whose ranks inherit its variables */
} ls_launcher;

/* launchers.def: the first that is set decides. */
enum {
#define LAUNCHER(...) +1
    LS_LAUNCHERS = 0
#include "launchers.def"
#undef LAUNCHER
};
extern const ls_launcher ls_launchers[LS_LAUNCHERS];

/* The value of a variable; NULL where it is not set, or empty. */
const char *ls_launchers_value(const char *name);
/* Whether NAME=value is a launcher's rank or number of ranks, here or on its machine. */
bool ls_launchers_is_place(const char *entry);
/* The next launcher after this one (NULL: the first) whose world has several ranks; NULL: none. */
const ls_launcher *ls_launchers_next_world(const ls_launcher *after);
/* Whether an address is this machine wherever it is used (127.*, ::1, localhost); `resolve`: also a
 * name that this machine resolves to such a one, as Debian's /etc/hosts does with its own. */
bool ls_launchers_is_loopback(const char *address, bool resolve);

#endif
