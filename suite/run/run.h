/* The state of one run of `lockstep`: its jobs, their records, its cases and their verdicts; and
 * the smaller parts of running it. */
#ifndef LS_RUN_H
#define LS_RUN_H

#include <stdio.h>

#include "harness/machine/findings.h"
#include "harness/machine/machine.h"
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
    ls_findings findings; /* of the GPUs */
    cJSON *gpus;          /* NULL, or what each said of itself before the jobs */
    int64_t started_ns, job_ns, swapped_pages; /* job_ns: when the running job began */
    ls_machine_load_times load;                /* when the run was opened */
} ls_run;

/* ---- verdicts.c: verdicts.jsonl, and a verdict's lines on the terminal ----------------------- */

/* Appends case `index` to verdicts.jsonl: an interrupted run loses nothing that was judged. */
ls_status ls_verdicts_append(const ls_run *run, int index);
/* Rewrites the whole file in the order of the cases. */
ls_status ls_verdicts_write(const ls_run *run);
/* Takes over the verdicts of an interrupted run that passed. */
ls_status ls_verdicts_read_back(ls_run *run);
/* "not ok ..." at once; cause and repeat follow at the end. Nothing for a case that passed. */
void ls_verdicts_print(const ls_run *run, int index, FILE *to);
/* The command that repeats one case. */
void ls_verdicts_repeat(const ls_run *run, int index, char *text, size_t bytes);

/* ---- progress.c: one line that is rewritten on a terminal, plain lines elsewhere ------------- */

/* Seconds: estimates of the jobs before the running one, of that one and of those after it; the
 * real time of those before it and of the running one so far. */
typedef struct ls_progress_times {
    double before_s, job_s, after_s, elapsed_s, running_s;
} ls_progress_times;

/* Seconds left, estimated at the pace of the jobs before. While a job runs they decrease with the
 * clock, down to the estimate of the jobs after it. */
double ls_progress_left_s(const ls_progress_times *times);

void ls_progress_job(const ls_run *run, int index);  /* is running */
void ls_progress_done(const ls_run *run, int index); /* has ended */
void ls_progress_note(const char *format, ...)
    __attribute__((format(printf, 1, 2))); /* terminal only */
void ls_progress_clear(void);              /* before other output */

/* ---- gpus.c: checked before anything is timed, monitored while jobs run; decide MACHINE ------ */

/* On a run with device CUDA: checks the GPUs, prints the findings and opens the monitor that the
 * jobs get. ranks: the most on this machine at a time. */
void ls_gpus_begin(ls_run *run, int ranks);
/* Adds a finding, with its GPU, for each rank whose bits differ from those of the others. */
void ls_gpus_compare_bits(ls_run *run);
/* Closes the monitor; its findings are in run->findings. May be called twice. */
void ls_gpus_end(ls_run *run);

/* ---- budget.c: the time and number of jobs that a list of cases may take --------------------- */

typedef struct ls_budget {
    double seconds; /* 0: none */
    int jobs;       /* 0: any number */
} ls_budget;

/* From the list's line "# budget: 90 s, 25 jobs" (the jobs may be left out); zeroed where it has
 * none. LS_ERR_USAGE for a line that is neither. Several lists of a run add up. */
ls_status ls_budget_read(const char *path, ls_budget *sum);
/* The whole suite's. */
ls_budget ls_budget_whole(void);
/* One line when the run took longer or has more jobs than it may, with the jobs that took longest.
 * Seconds are meant for a machine that does nothing else: more is reported, and fails nothing. */
void ls_budget_report(const ls_budget *budget, const ls_run *run, double seconds, FILE *to);

#endif
