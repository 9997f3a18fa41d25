/* The GPUs of a run, one by one: its speed alone, the rates it reached outside the jobs, its
 * temperature. Ranks that reduce wait for each other and have one speed; a GPU's own shows in the
 * job without reduction (role no_comm). Empty for runs on the CPU. */
#ifndef LS_REPORT_GPUS_H
#define LS_REPORT_GPUS_H

#include "harness/machine/nvml.h"
#include "job.h"

enum { LS_REPORT_GPUS_MAX = 64 };

typedef struct ls_report_gpu {
    int rank, gpu;                /* gpu: NVML's index where its UUID is known, else the rank */
    char device[96], address[32]; /* "NVIDIA H200 (GPU-...)"; "" where not reported */
    double images_per_s;          /* alone; NaN where the job has no such figure */
    double behind;                /* of the median of the others: 0.038 is 3.8 % under it; NaN */
    double copy_bytes_per_s;      /* measured outside the jobs, or NaN, as what follows */
    double copy_share;            /* of memory clock x bus width */
    double f16_flop_per_s, tf32_flop_per_s, f32_flop_per_s;
    double power_w, sm_mhz, most_c; /* mean, mean under load, highest of the job that was watched */
} ls_report_gpu;

/* Fills gpu[most]; returns how many. *alone: whether images_per_s are of ranks that did not wait.
 */
int ls_report_gpus_list(const ls_report_run *run, ls_report_gpu *gpu, int most, bool *alone);
/* The GPU farthest under its neighbours; NULL with fewer than three figures: two do not say which
 * of them is the odd one. */
const ls_report_gpu *ls_report_gpus_worst(const ls_report_gpu *gpu, int count);

typedef struct ls_report_reading {
    double at_ns;
    int gpu;
    double value[LS_NVML_READING_COUNT]; /* NaN where unknown */
} ls_report_reading;

/* jobs/<id>/gpu.jsonl, malloc'ed, in order of time; 0 where there is none. */
int ls_report_gpus_readings(const ls_report_job *job, ls_report_reading **out);

/* [{"rank","gpu","device","address","images_per_s","behind",...}] for summary.json. */
cJSON *ls_report_gpus_json(const ls_report_run *run);

#endif
