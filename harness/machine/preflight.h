/* A look at the GPUs before anything is timed: seconds, and nothing is changed. What it finds is
 * findings.h's; what it read goes into the run's record. */
#ifndef LS_PREFLIGHT_H
#define LS_PREFLIGHT_H

#include "findings.h"
#include "nvml.h"

typedef struct ls_preflight_question {
    const char *sysfs;  /* where the PCI bus is seen: "/sys" */
    bool oversubscribe; /* several ranks on one GPU */
} ls_preflight_question;

/* Adds to `findings`. `gpus`: an array for what each device says of itself, or NULL. Without the
 * library that is one finding. */
void ls_preflight_look(const ls_preflight_question *question, ls_findings *findings, cJSON *gpus);

#endif
