/* One run: its jobs are started one after another, each case is judged as soon as its last job has
 * ended, everything is written where it can be picked up again (design.md section 5). */
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
