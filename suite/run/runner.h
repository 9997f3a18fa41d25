/* One run: its jobs are started one after another, each case is judged as soon as its last job has
 * ended, everything is written where it can be picked up again (design.md section 5). */
#ifndef LS_RUNNER_H
#define LS_RUNNER_H

#include <stdio.h>

#include "harness/machine/findings.h"
#include "harness/machine/load.h"
#include "select.h"
#include "suite/suite.h"

typedef struct ls_run {
    char directory[512]; /* absolute */
    ls_matrix_site site;
    ls_matrix bench; /* the bench's jobs that stand for themselves; empty for conform */
    ls_matrix jobs;  /* all, filled by ls_runner_plan */
    ls_case_list cases;
    int (*case_job)[LS_CASE_JOBS_MAX]; /* [cases.count] which of `jobs` each case reads */
    ls_verdict *verdict;               /* [cases.count] */
    bool *judged;                      /* [cases.count] */
    bool *done;                        /* [jobs.count] has been run or read back */
    ls_record *record;                 /* [jobs.count] valid where done */
    int resumed_jobs;
    ls_select_list claim, waivers;
    char claim_name[64];
    uint64_t seed;
    bool fail_early, stopped, bench_run;
    char title[96], label[64], where[200], command[1024];
    char baseline[512]; /* "": none */
    char commit[48];
    bool dirty;
    cJSON *options;  /* effective, for run.json */
    cJSON *measured; /* NULL, or further members of run.json: what was measured beside the jobs */
    ls_findings findings; /* of the GPUs, gpus.h */
    cJSON *gpus;          /* NULL, or what each said of itself before the jobs */
    double estimate_s;
    int64_t started_ns, job_ns, swapped_pages; /* job_ns: when the running job began */
    ls_load load;                              /* when the run was opened */
} ls_run;

/* Lists the jobs of all cases and of the bench, each once, and estimates their time. */
void ls_runner_plan(ls_run *run);
/* The plan on the terminal: jobs with their seconds. At most 80 columns. */
void ls_runner_print_plan(const ls_run *run, FILE *to);
/* Makes the run's folder, run.json and results/latest; reads back the verdicts of an interrupted
 * run. */
ls_status ls_runner_open(ls_run *run);
/* Runs and judges. LS_ERR_INFRA only where nothing can go on; a failing job is no failure of this
 * call. */
ls_status ls_runner_run(ls_run *run);
/* Verdicts, tables, headline, report, the terminal's last lines. Returns the program's exit code.
 */
int ls_runner_finish(ls_run *run);
void ls_runner_free(ls_run *run);

/* Judges case `index` from the records of its jobs, applies waivers, prints it unless it is good.
 */
void ls_runner_judge(ls_run *run, int index);

#endif
