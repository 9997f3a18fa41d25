/* The GPUs of this machine while jobs run: about once a second power, temperatures, clocks,
 * throttle reasons and every counter of errors, written beside the job's events
 * (jobs/<id>/gpu.jsonl, one object per device and second: {"at_ns", "gpu", then what is known of
 * nvml.h's readings}). What rises, falls or is held back meanwhile becomes a finding. One NVML
 * query of all that takes a millisecond or so of one core of the harness, none of a rank's. */
#ifndef LS_WATCH_GPU_H
#define LS_WATCH_GPU_H

#include "findings.h"

typedef struct ls_watch_gpu ls_watch_gpu;

/* Takes the counters as they stand now. NULL without NVML or devices: nothing is watched.
 * `findings` is the caller's and outlives the watch. */
ls_watch_gpu *ls_watch_gpu_open(ls_findings *findings);
/* Readings from now on go to `folder`/gpu.jsonl, begun anew; NULL: nowhere. */
ls_status ls_watch_gpu_job(ls_watch_gpu *watch, const char *folder);
/* Reads all devices once; `watch` may be NULL. */
void ls_watch_gpu_tick(ls_watch_gpu *watch);
/* A last reading, then what holds for the whole: throttled seconds, links slow under load. */
void ls_watch_gpu_close(ls_watch_gpu *watch);

#endif
