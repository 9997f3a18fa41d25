/* Probes the hosts of a run before anything is planned: whether each can be reached, sees the
 * folder of the results and has this build, how many cores it has, and on which device ranks would
 * run. A host that does not see the folder gets the programs. */
#ifndef LS_PROBE_H
#define LS_PROBE_H

#include <stdbool.h>

#include "hosts.h"
#include "kernels/core/status.h"

enum { LS_PROBE_LIMIT_S = 25 }; /* for all hosts at once to connect, start and answer */

typedef struct ls_probe {
    char hostname[64], cpu[96];
    double cores;
    int devices;    /* devices: NVIDIA ones on its PCI bus */
    char device[8]; /* "cpu", "cuda" */
} ls_probe;

typedef struct ls_probe_question {
    const char *folder; /* of the results, absolute; made if it is missing */
    const char *device; /* "auto", "cuda", "cpu" */
    int ranks;          /* per host; 0: one per device, else one per core, at most 8 */
    bool oversubscribe;
} ls_probe_question;

/* Asks all hosts at once; fills probe[hosts->count], and the programs, master address and ports of
 * `hosts`. LS_ERR_INFRA, with a line per host, when it cannot be reached (with ssh's message), has
 * another build, no room for the programs or too few devices; LS_ERR_USAGE when ranks is 0 and the
 * hosts would run different numbers of ranks or use different devices. */
ls_status ls_probe_hosts(ls_hosts *hosts, const ls_probe_question *question, ls_probe *probe);
/* Runs on the host: prints one line of JSON. `marker` is a file that contains LS_TOKEN, if it is
 * the same file there. */
ls_status ls_probe_answer(const char *marker, const char *device, int ranks, bool oversubscribe);
/* The default number of ranks of a machine. */
int ls_probe_usual_ranks(int devices, double cores);

#endif
