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

/* Monitors the GPUs of this machine while jobs run. About once a second it reads power,
 * temperatures, clocks, throttle reasons and error counters and writes them next to the job's
 * events (jobs/<id>/gpu.jsonl, one object per device and second: {"at_ns", "gpu", known readings of
 * nvml.h}). Rising counters, lost links and throttling become findings. A query takes about a
 * millisecond of one core of the harness and no time of a rank. */

typedef struct ls_watch_gpu ls_watch_gpu;

/* Reads the counters to compare with. NULL without NVML or devices. `findings` is not owned. */
ls_watch_gpu *ls_watch_gpu_open(ls_findings *findings);
/* Writes further readings to a new <folder>/gpu.jsonl; NULL: to no file. */
ls_status ls_watch_gpu_job(ls_watch_gpu *watch, const char *folder);
/* Reads all devices once. `watch` may be NULL. */
void ls_watch_gpu_tick(ls_watch_gpu *watch);
/* Takes a last reading and adds the findings of the whole time: throttling, links that were slow
 * under load. */
void ls_watch_gpu_close(ls_watch_gpu *watch);

#endif
