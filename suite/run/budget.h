/* The time and number of jobs that a list of cases may take, and the jobs that took most. */
#ifndef LS_BUDGET_H
#define LS_BUDGET_H

#include <stdio.h>

#include "runner.h"

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
void ls_budget_tell(const ls_budget *budget, const ls_run *run, double seconds, FILE *to);

#endif
