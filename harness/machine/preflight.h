/* Checks the GPUs before anything is timed. It takes seconds and changes nothing. The result is a
 * list of findings (findings.h) and a record of the values read. */
#ifndef LS_PREFLIGHT_H
#define LS_PREFLIGHT_H

#include "findings.h"
#include "nvml.h"

typedef struct ls_preflight_question {
    const char *sysfs;  /* where the PCI bus is listed: "/sys" */
    bool oversubscribe; /* several ranks on one GPU */
} ls_preflight_question;

/* Adds to `findings`; a missing library is one finding. `gpus`: an array that gets the facts of
 * each device, or NULL. */
void ls_preflight_look(const ls_preflight_question *question, ls_findings *findings, cJSON *gpus);

#endif
