/* Why the ranks of a job that runs below this process do not get on: probes for a launcher and for
 * `lockstep observe` (harness/process/waiting.h). */
#ifndef LS_AWAITED_H
#define LS_AWAITED_H

#include <stdbool.h>

#include "harness/process/waiting.h"

typedef struct ls_awaited {
    const char *directory[2]; /* where ranks write events; NULL: none */
    /* What a rank was doing, from its files there; NULL: by its last event. */
    void (*describe)(const char *directory, int rank, char *text, size_t bytes);
    double idle_s;            /* files that have not changed for so long are waited for */
    uint64_t seen, described; /* of all files, when they last changed, and when `ranks` was made */
    int64_t seen_ns;
    char ranks[400];
} ls_awaited;

/* Files are waited for when they have not changed for a minute. */
ls_awaited ls_awaited_begin(const char *directory, const char *second);
/* For ls_waiting_begin, with an ls_awaited as context: a process that a signal or a debugger has
 * stopped; a rank that waits to join its group, and why; no step. */
extern ls_waiting_probe *const ls_awaited_probes[];
/* A sentence where /dev/shm is too small for batches of a DataLoader's workers. */
bool ls_awaited_shared_memory(char *text, size_t bytes);

#endif
