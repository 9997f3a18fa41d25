/* The time and number of jobs that cases may take. */
#ifndef LS_BUDGET_H
#define LS_BUDGET_H

#include "run.h"

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
/* The whole suite's. */
ls_budget ls_budget_whole(void);
/* One line when the run took longer or has more jobs than it may, with the jobs that took longest.
 * Seconds are meant for a machine that does nothing else: more is reported, and fails nothing. */
void ls_budget_report(const ls_budget *budget, const ls_run *run, double seconds, FILE *to);

#endif
