/* The state of one run of `lockstep`: its jobs, their records, its cases and their verdicts. */
#ifndef LS_RUN_H
#define LS_RUN_H

#include "harness/machine/findings.h"
#include "harness/machine/load.h"
#include "select.h"
#include "suite/suite.h"

typedef struct ls_run {
    char directory[512]; /* absolute */
    ls_matrix_site site;
    ls_matrix bench; /* the bench's own jobs, which no case asks for; empty for conform */
    ls_matrix jobs;  /* all, filled by ls_runner_plan */
    ls_case_list cases;
    int (*case_job)[LS_CASE_JOBS_MAX]; /* [cases.count] which of `jobs` each case reads */
    ls_verdict *verdict;               /* [cases.count] */
    bool *judged;                      /* [cases.count] */
    bool *done;                        /* [jobs.count] has been run or read back */
    bool *kept;                        /* [jobs.count] an earlier run of this folder did it */
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
    cJSON *options;       /* effective, for run.json */
    cJSON *measured;      /* NULL, or further members of run.json: measured outside the jobs */
    ls_findings findings; /* of the GPUs, gpus.h */
    cJSON *gpus;          /* NULL, or what each said of itself before the jobs */
    int64_t started_ns, job_ns, swapped_pages; /* job_ns: when the running job began */
    ls_load load;                              /* when the run was opened */
} ls_run;

#endif
