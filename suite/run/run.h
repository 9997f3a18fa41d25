/* The state of one run of `lockstep`: its jobs, their records, its cases and their verdicts; and
 * the smaller parts of running it. */
#ifndef LS_RUN_H
#define LS_RUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "harness/machine/findings.h"
#include "harness/machine/machine.h"
#include "harness/run/job.h"
#include "harness/run/record.h"
#include "suite/suite.h"
#include "select.h"

/* What a foreign subject refused in one job: the option as it names it, and with its value as the
 * job gave it ("--optimizer=lamb"). */
typedef struct ls_refusal {
    char option[64], setting[160], why[240], job[96];
} ls_refusal;

typedef struct ls_refusals {
    int count, capacity;
    ls_refusal *one;
} ls_refusals;

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
    ls_refusals refusals;
    ls_fork_server fork_server; /* of the subject, once a rank has said that it can be one */
    bool forks;                 /* it was started */
    int resumed_jobs;
    ls_select_list claim, waivers;
    ls_select_list manners; /* requirements */
    bool gate_manners;      /* they decide the exit code, too */
    char claim_name[64];
    int claim_cases; /* of the claim, before some were selected; 0: those of this run */
    uint64_t seed;
    double budget_s; /* what all jobs may take; 0: any time */
    bool fail_early, stopped, bench_run;
    bool by_observe;  /* jobs are judged by the rules of `lockstep observe`, not by their cases */
    bool keeps_dumps; /* of all jobs */
    bool untimed;     /* which jobs follow depends on those before: no time left is shown */
    bool started;     /* a job of another trainer has shown that its command starts */
    char unstarted[600]; /* why it does not; "": it does, or was not tried yet */
    char title[96], label[64], where[200];
    char *command;      /* malloc'ed: as it was started, for a shell */
    char *go_on;        /* malloc'ed: the line that goes on with it when it was stopped */
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

/* ---- start.c: how long a subject takes to start, and whether it starts at all ------------ */

/* Runs the subject once, alone and for one small step, and sets site->start_s to the time. That of
 * an interrupted run in the site's folder is taken over. LS_ERR_USAGE when the command cannot be
 * run. */
ls_status ls_start_measure(ls_matrix_site *site);
/* After each job, `status` being that of running it: if no rank of the first one wrote an event,
 * the plainest job shows whether the subject starts. If it does not, run->unstarted says why, its
 * log's last lines are printed, and LS_OK is returned: no further job is to run. Else returns
 * `status`. */
ls_status ls_start_check(ls_run *run, const ls_record *first, ls_status status);

/* Finds a Python interpreter for trainers in PyTorch, with numpy and PyTorch 1.13 or later:
 * `asked`, or if it is NULL the first of python3 and /usr/bin/python3. False, and why:
 * none has them. */
bool ls_start_find_python(const char *asked, char *python, size_t bytes, char *why,
                          size_t why_bytes);

/* ---- gpus.c: checked before anything is timed, monitored while jobs run; decide MACHINE ------ */

/* On a run with device CUDA: checks the GPUs, prints the findings and opens the monitor that the
 * jobs get. ranks: the most on this machine at a time. */
void ls_gpus_begin(ls_run *run, int ranks);
/* Adds a finding, with its GPU, for each rank whose bits differ from those of the others. */
void ls_gpus_compare_bits(ls_run *run);
/* Closes the monitor; its findings are in run->findings. May be called twice. */
void ls_gpus_end(ls_run *run);

/* ---- refusals.c: a foreign subject is asked once for an option that it refuses ----------------
 */

/* Remembers what a job that ended with code 4 was refused for, where its events name the option. */
void ls_refusals_learn(ls_refusals *list, const ls_job *job, const ls_record *record);
/* Whether a word of a command is that option: in either spelling, with or without a value. */
bool ls_refusals_names(const char *word, const char *option);
/* Whether the job's command has the same option with the same value as a refused one: *out is then
 * the record of a job that was refused for it. */
bool ls_refusals_foretell(const ls_refusals *list, const ls_job *job, ls_record *out);

/* ---- cases.c --------------------------------------------------------------------------------- */

/* Adds the cases of every family; free with ls_rows_free. */
void ls_cases_all(const ls_case_settings *settings, ls_case_list *list);

/* ---- runner.c ------------------------------------------------------------------------------- */

/* Runs jobs one after another, judges each case as soon as its last job has ended, and writes all
 * results so that an interrupted run can be resumed (run_files.md).
 *
 * Lists the jobs of all cases and of the bench, each once. */
void ls_runner_plan(ls_run *run);
/* Where the folder holds an earlier run: checks that its files are whole (manifest.h), takes over
 * its verdicts, and marks the jobs that are not run again. */
ls_status ls_runner_look_back(ls_run *run);
/* Cases, jobs that are left, and about how long they take; without a newline. */
void ls_runner_print_size(const ls_run *run, FILE *to);
/* The plan on the terminal: the jobs that are left, with their seconds. At most 80 columns. */
void ls_runner_print_plan(const ls_run *run, FILE *to);
/* Makes the run's folder, run.json and results/latest; reads back the verdicts of an interrupted
 * run. */
ls_status ls_runner_open(ls_run *run);
/* results/latest, a link to results/runs/<run>, where `directory` is one of those. Failing to make
 * it is no error. */
void ls_runner_link_latest(const char *directory);
/* Whether a run of that folder was finished: only then run.json has its headline. */
bool ls_runner_was_finished(const char *directory);
/* Runs one job and reads its record; run->done[index] where there is one. A job that would be
 * refused again is not run. */
ls_status ls_runner_run_job(ls_run *run, int index);
/* Runs and judges. LS_ERR_INFRA only when the run cannot continue; a failing job does not fail this
 * call. */
ls_status ls_runner_run(ls_run *run);
/* Writes verdicts, tables, headline, report and the last lines of the terminal. Returns the exit
 * code of the program. */
int ls_runner_finish(ls_run *run);
/* Its last part: plots, pages and the terminal's lines from a folder whose run.json, verdicts and
 * tables are written; results/latest. */
ls_status ls_runner_report(const char *directory);
void ls_runner_free(ls_run *run);

/* Judges case `index` from the records of its jobs, applies waivers, and prints it unless it
 * passed. */
void ls_runner_judge(ls_run *run, int index);

/* ---- budget.c ---------------------------------------------------------------------------------
 */

/* The time and number of jobs that cases may take. */

/* A time such as 90s, 10m, 1h or, in seconds, 600. LS_ERR_USAGE names the option, its value and
 * what is allowed. */
ls_status ls_budget_parse(const char *name, const char *text, double *seconds);
/* Seconds that judging the case takes, without its jobs. */
double ls_budget_judging_s(const ls_case *row);
/* Keeps the cases whose jobs fit into run->budget_s, in the order in which they tell most: those of
 * the claim first, then those whose requirement has the fewest so far, then rows that most
 * plots share, then the shortest. Of
 * run->bench keeps the jobs of these cases, and of the baselines those that still fit. Prints what
 * is left out, after `mark`, and notes it in run->options. */
void ls_budget_choose(ls_run *run, const char *mark);
/* Whether the job would end within run->budget_s at the pace of the jobs before. */
bool ls_budget_allows(const ls_run *run, int job);
/* Leaves the cases that were not judged out of the run. */
void ls_budget_cut(ls_run *run);

typedef struct ls_budget {
    double seconds; /* 0: none */
    int jobs;       /* 0: any number */
} ls_budget;

/* From the list's line "# budget: 90 s, 25 jobs" (the jobs may be left out); zeroed where it has
 * none. LS_ERR_USAGE for a line that is neither. Several lists of a run add up. */
ls_status ls_budget_read(const char *path, ls_budget *sum);
/* One line when the run took longer or has more jobs than it may, with the jobs that took longest.
 * Seconds are meant for a machine that does nothing else: more is reported, and fails nothing. */
void ls_budget_report(const ls_budget *budget, const ls_run *run, double seconds, FILE *to);

#endif
