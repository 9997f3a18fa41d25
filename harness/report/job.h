/* A run's folder in memory, read once (load.h) and shared by everything that reports (report.h
 * names the files), and the questions that reports ask about one of its jobs. */
#ifndef LS_REPORT_JOB_H
#define LS_REPORT_JOB_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "harness/run/record.h"
#include "kernels/core/json.h"
#include "kernels/core/status.h"
#include "stats.h"

/* The steady window of a finished job. The slowest rank (largest sum of step times in the window)
 * decides: ranks wait for each other, and a maximum per step would count their jitter twice. */
typedef struct ls_report_speed {
    int count;           /* steps measured: after the warm-up, not skipped or audited */
    int64_t first, last; /* their step numbers */
    int warmup_count, skipped_count, audited_count; /* left out */
    int slowest_rank;
    double *step_ms, *images_per_s; /* [count], slowest rank, in order of time */
    ls_stats_interval rate;         /* images per second of the whole world */
    ls_stats_interval step;         /* ms */
    double p90_ms, p99_ms;
    double spread; /* (greatest - least p50 of a rank) / least */
    /* The rank whose own time (of a step, less its wait for reductions) is longest over the median
     * of the others' in the same steps; and that in the second half over the first. NaN: one rank,
     * or no such times. */
    int straggler;
    ls_stats_interval straggler_ratio;
    double straggler_past;
    ls_stats_halves halves;
    ls_stats_interval halves_ratio; /* step time, second half / first */
    /* medians, parts of the slowest rank's steps; NaN where events do not say */
    double data_ms, forward_ms, backward_ms, comm_ms, exposed_ms, optimizer_ms;
    double bus_bytes_per_s;       /* nccl-tests' definition: bytes * 2(W-1)/W / time, or NaN */
    ls_stats_interval efficiency; /* rate / (world * rate of the world of one), or NaN */
    double roofline_share;        /* or NaN */
    double first_step_s; /* start of the launcher to the end of the first step on the slowest rank,
                            digests and dumps taken out; NaN: not reported */
} ls_report_speed;

typedef struct ls_report_job {
    ls_record *record;    /* owned */
    const ls_spec *spec;  /* of the record */
    cJSON *gradients;     /* compare.json: the errors of its judged gradients, or NULL */
    double crowd_ends_ns; /* steps that end later are not measured: speed.c */
    ls_report_speed speed;
} ls_report_job;

/* A line of verdicts.jsonl. */
typedef struct ls_report_verdict {
    ls_verdict_code code; /* LS_VERDICT_CODES: the line has none that is known */
    bool in_claim;
    bool decides; /* the exit code: in the claim, and of MANNERS only where the run says so */
    const char *id, *family; /* of the case; "?" where the line does not say */
    cJSON *json;             /* the whole line; owned */
} ls_report_verdict;

typedef struct ls_report_run {
    char directory[PATH_MAX];
    cJSON *record; /* run.json */
    int job_count;
    ls_report_job *job; /* ordered by role, network, level, world, nodes, bucket size */
    int verdict_count;
    ls_report_verdict *verdict; /* in the order of the file */
} ls_report_run;

/* load.c: reads the jobs and computes their speed. Reading is lenient where a run may have been cut
 * short: a job without job.json, a rank without events or with a damaged line are kept and marked,
 * never dropped and never zero. LS_ERR_USAGE when `directory` is no run, LS_ERR_INFRA when it
 * cannot be read. */
ls_status ls_report_load(const char *directory, ls_report_run *out);
/* run.json and the verdicts alone, into a zeroed run; nothing of a file that is not there. */
ls_status ls_report_load_verdicts(const char *directory, ls_report_run *run);
void ls_report_load_free(ls_report_run *run);

/* speed.c. */
/* Fills job->speed of every job of the run; jobs that did not finish keep count 0. */
void ls_report_speed_compute(ls_report_run *run);
/* Percentile of a rank's measured step times; NaN without any. */
double ls_report_speed_rank_ms(const ls_report_job *job, int rank, double fraction);
void ls_report_speed_free(ls_report_speed *speed);
/* The job's time waiting for the last reductions: its own events, else the phases job of the same
 * level, world, nodes and bucket size, whose step differs only by its marks. NaN when neither says.
 */
double ls_report_speed_exposed_ms(const ls_report_run *run, const ls_report_job *job);
/* The job that `job` is compared with for scaling: world of one, equal in all else; NULL when not
 * run. */
const ls_report_job *ls_report_speed_base(const ls_report_run *run, const ls_report_job *job);

/* Threads that all ranks of the job have together, no more than the machine has cores. */
int ls_report_speed_threads(const ls_report_run *run, const ls_report_job *job);

/* job.c. */
/* The jobs of a role, of any (LS_ROLE_COUNT). */
#define ls_report_each(job, run, role)                                                     \
    for (const ls_report_job *job = ls_report_job_after((run), (role), NULL); job != NULL; \
         job = ls_report_job_after((run), (role), job))
/* The first one after `job` (NULL: of all); NULL where there is none. */
const ls_report_job *ls_report_job_after(const ls_report_run *run, ls_role role,
                                         const ls_report_job *job);
/* Collects the jobs of a role that are points of a sweep (0: any), finished with times. */
int ls_report_job_select(const ls_report_run *run, ls_role role, unsigned sweep,
                         const ls_report_job **jobs, int room);

/* "O2", or "O2 bf16" where half is not fp16. */
const char *ls_report_job_level(const ls_report_job *job, char text[24]);
/* "rank" for a job of one, else "ranks": behind its number. */
const char *ls_report_job_ranks(const ls_report_job *job);
/* "25 MB", "delayed"; "-" for the dialect's own rule. */
const char *ls_report_job_bucket(const ls_report_job *job, char text[24]);
/* "done", "CRASH rank 3, signal 9", "FAIL rank 2, exit code 12 (non-finite state)", "TIMEOUT", ...
 */
const char *ls_report_job_state(const ls_report_job *job, char text[96]);
/* Why steps were not launched as one graph each; NULL where they were, or nothing is reported. */
const char *ls_report_job_no_graph(const ls_report_job *job);
/* The gradient checks of numerics.md section 5 that its own shape passed: "FP64 samples, FP32 step
 * 1"; "" for none. */
const char *ls_report_job_gradient_checks(const ls_report_job *job, char text[64]);
/* Largest resident memory of any rank, or NaN. */
double ls_report_job_peak_bytes(const ls_report_job *job);

/* Same network, opt level, half type and image size, and the same of `further` of these. */
enum {
    LS_ALIKE_WORLD = 1,
    LS_ALIKE_NODES = 2,
    LS_ALIKE_BATCH = 4,
    LS_ALIKE_BUCKET = 8,
    LS_ALIKE_ALL = 15,
};
bool ls_report_job_alike(const ls_report_job *a, const ls_report_job *b, unsigned further);
bool ls_report_job_has_speed(const ls_report_job *job);
/* Whether its figure may be printed as a result. */
bool ls_report_job_is_result(const ls_report_job *job);
/* Why not: "" when it may; else the state, or the verdict of a case that used the job, or "not
 * checked". */
const char *ls_report_job_reason(const ls_report_run *run, const ls_report_job *job,
                                 char text[160]);
/* Whether a verdict was given on this job. */
bool ls_report_job_in_verdict(const ls_report_job *job, const ls_report_verdict *verdict);

#endif
