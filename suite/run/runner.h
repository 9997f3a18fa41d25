/* Runs jobs one after another, judges each case as soon as its last job has ended, and writes all
 * results so that an interrupted run can be resumed (design.md section 5). */
#ifndef LS_RUNNER_H
#define LS_RUNNER_H

#include <stdio.h>

#include "run.h"

/* Lists the jobs of all cases and of the bench, each once. */
void ls_runner_plan(ls_run *run);
/* Where the folder holds an interrupted run: takes over its verdicts, and marks the jobs that are
 * not run again. */
ls_status ls_runner_look_back(ls_run *run);
/* Two lines without the last newline: where it runs, and how much of it is left. */
void ls_runner_print_size(const ls_run *run, FILE *to);
/* The plan on the terminal: the jobs that are left, with their seconds. At most 80 columns. */
void ls_runner_print_plan(const ls_run *run, FILE *to);
/* Makes the run's folder, run.json and results/latest; reads back the verdicts of an interrupted
 * run. */
ls_status ls_runner_open(ls_run *run);
/* Runs and judges. LS_ERR_INFRA only when the run cannot continue; a failing job does not fail this
 * call. */
ls_status ls_runner_run(ls_run *run);
/* Writes verdicts, tables, headline, report and the last lines of the terminal. Returns the exit
 * code of the program. */
int ls_runner_finish(ls_run *run);
void ls_runner_free(ls_run *run);

/* Judges case `index` from the records of its jobs, applies waivers, and prints it unless it
 * passed. */
void ls_runner_judge(ls_run *run, int index);

#endif
