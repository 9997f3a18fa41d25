/* A run's directory in memory, read once and shared by everything that reports (report.h names the
 * files). Reading is forgiving where a run may have been cut short: a job without job.json, a rank
 * without events or with a damaged line are kept and marked, never dropped and never zero. */
#ifndef LS_REPORT_DATA_H
#define LS_REPORT_DATA_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/json.h"
#include "kernels/core/status.h"
#include "harness/run/spec.h"
#include "stats.h"

typedef enum ls_report_kind {
    LS_REPORT_PARAMETERS,
    LS_REPORT_MASTERS,
    LS_REPORT_MOMENTS,
    LS_REPORT_GRADIENTS,
    LS_REPORT_ACTIVATIONS,
    LS_REPORT_WORKSPACE, /* packed weights, scratch, running statistics, accumulators */
    LS_REPORT_KINDS,
} ls_report_kind;

typedef struct ls_report_step {
    int64_t step;
    double loss, scale, scale_next, lr, images; /* NaN where the event does not say */
    bool skipped;
    double at_ns; /* when it ended, ls_clock_ns; NaN: not told */
    double total_ms, data_ms, forward_ms, backward_ms, comm_ms, exposed_ms,
        optimizer_ms; /* or NaN */
} ls_report_step;

typedef struct ls_report_rank {
    bool started, ended, damaged;
    int threads;       /* as the start event says; 0: it does not */
    char device[96];   /* "NVIDIA H200 (GPU-...)" */
    char level[8];     /* the options' own; jobs of independent runs have several */
    bool graph_told;   /* on a device that could launch steps as graphs, whether they were: */
    char no_graph[80]; /* why not; "": they were */
    int step_count;
    ls_report_step *step;
    double reduced_bytes; /* sum of the latest bucket layout; NaN: no `buckets` event */
    int bucket_count;
    int code, signal;                   /* from job.json; 0 where it says nothing */
    double rss_bytes_max;               /* or NaN */
    double kind_bytes[LS_REPORT_KINDS]; /* memory of the trainer by kind; NaN where not told */
    double instrument_ms;               /* of its first step: digests and dumps; NaN */
} ls_report_rank;

typedef enum ls_report_state {
    LS_REPORT_DONE,
    LS_REPORT_FAILED,
    LS_REPORT_CRASHED,
    LS_REPORT_TIMED_OUT,
    LS_REPORT_STOPPED,
    LS_REPORT_NOT_STARTED,
    LS_REPORT_UNFINISHED, /* a directory without job.json: the run was cut short */
} ls_report_state;

/* What the steady window of a finished job says. The slowest rank (largest sum of step times in the
 * window) decides: ranks wait for each other, and a maximum per step would count their jitter
 * twice. */
typedef struct ls_report_speed {
    int count;                       /* steps measured: after the warm-up, not skipped */
    int64_t first, last;             /* their step numbers */
    int warmup_count, skipped_count; /* left out */
    int slowest_rank;
    double *step_ms, *images_per_s; /* [count], slowest rank, in order of time */
    ls_stats_interval rate;         /* images per second of the whole world */
    ls_stats_interval step;         /* ms */
    double p90_ms, p99_ms;
    double *rank_p50_ms, *rank_p90_ms, *rank_p99_ms; /* [rank_count] */
    double spread;                                   /* (greatest - least p50 of a rank) / least */
    ls_stats_halves halves;
    ls_stats_interval halves_ratio; /* step time, second half / first */
    /* medians over all ranks and measured steps, NaN where events do not say */
    double data_ms, forward_ms, backward_ms, comm_ms, exposed_ms, optimizer_ms;
    double bus_bytes_per_s;       /* nccl-tests' definition: bytes * 2(W-1)/W / time, or NaN */
    ls_stats_interval efficiency; /* rate / (world * rate of the world of one), or NaN */
    double roofline_share;        /* or NaN */
    double first_step_s; /* start of the launcher to the end of the first step on the slowest rank,
                            digests and dumps taken out; NaN: not told */
} ls_report_speed;

typedef struct ls_report_job {
    char id[128], label[96];
    ls_role role;
    char arch[32], level[8], half[8], dialect[8], rung[24];
    int image_size, batch_size, world, nodes, threads, warmup_steps;
    double bucket_mb; /* 0: delayed */
    bool simulated, oversubscribed, half_emulated, sync_bn;
    bool checked, checked_known;
    unsigned sweep;
    ls_report_state state;
    int first_rank, code, signal;
    double seconds, started_ns; /* ls_clock_ns; NaN: not told */
    double crowd_ends_ns;       /* steps that end later are not measured: report_speed.c */
    int rank_count;
    ls_report_rank *rank;
    cJSON *record;  /* job.json, or NULL */
    cJSON *compare; /* compare.json, or NULL */
    ls_report_speed speed;
} ls_report_job;

typedef struct ls_report_run {
    char directory[PATH_MAX];
    cJSON *record; /* run.json; an empty object when there is none */
    int job_count;
    ls_report_job *job; /* ordered by role, network, level, world, nodes, bucket size */
    cJSON *verdicts;    /* array, in the order of the file */
} ls_report_run;

/* LS_ERR_USAGE when `directory` is no run, LS_ERR_INFRA when it cannot be read. */
ls_status ls_report_data_open(const char *directory, ls_report_run *out);
void ls_report_data_close(ls_report_run *run);

/* "O2", or "O2 bf16" where half is not fp16. */
const char *ls_report_data_level(const ls_report_job *job, char text[24]);
/* "25 MB" or "delayed". */
const char *ls_report_data_bucket(double bucket_mb, char text[24]);
/* "done", "CRASH rank 3, signal 9", "FAIL rank 2, exit code 12 (non-finite state)", "TIMEOUT", ...
 */
/* Why steps were not launched as one graph each; NULL where they were, or nothing is said. */
const char *ls_report_data_no_graph(const ls_report_job *job);
const char *ls_report_data_state(const ls_report_job *job, char text[96]);
/* Whether its figure may be printed as a result. */
bool ls_report_data_shown(const ls_report_job *job);
/* Why not: "" when it may; else the state, or the verdict of a case that used the job, or "not
 * checked". */
const char *ls_report_data_reason(const ls_report_run *run, const ls_report_job *job,
                                  char text[160]);
/* A member of the verdict as text, "" where absent; the level of O0..O3 as a number, -1 otherwise.
 */
int ls_report_data_level_number(const ls_report_job *job);
/* Whether a verdict was given on this job. */
bool ls_report_data_names(const cJSON *verdict, const ls_report_job *job);
bool ls_report_data_has_speed(const ls_report_job *job);

#endif
