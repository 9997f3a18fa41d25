/* A look at the hosts of a run before anything is planned: can each be reached, does it see the
 * folder of the results, how many cores has it, on which device would ranks run. */
#ifndef LS_PROBE_H
#define LS_PROBE_H

#include <stdbool.h>

#include "hosts.h"

enum { LS_PROBE_LIMIT_S = 25 }; /* for all hosts together: to connect, to start, to answer */

typedef struct ls_probe {
    char hostname[64], cpu[96];
    int cores, devices; /* devices: NVIDIA ones on its PCI bus */
    char device[8];     /* "cpu", "cuda" */
} ls_probe;

typedef struct ls_probe_question {
    const char *folder; /* where results are written, absolute; made if it is not there */
    const char *device; /* "auto", "cuda", "cpu" */
    int ranks;          /* per host; 0: one per device, else one per core, at most 8 */
    bool oversubscribe;
} ls_probe_question;

/* Asks all hosts at once; fills look[hosts->count], and master_address and ports of `hosts`.
 * LS_ERR_INFRA with a line per host that cannot be reached (ssh's own text), does not see the
 * folder, or has too few devices; LS_ERR_USAGE when hosts differ in what ranks == 0 leaves open. */
ls_status ls_probe_at(ls_hosts *hosts, const ls_probe_question *question, ls_probe *look);
/* On the host: one line of JSON on standard output. `marker` is a file that holds LS_TOKEN. */
ls_status ls_probe_answer(const char *marker, const char *device, int ranks, bool oversubscribe);
/* Ranks of a machine with so many devices and cores, where nobody said. */
int ls_probe_usual_ranks(int devices, int cores);

#endif
