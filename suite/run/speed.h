/* SPEED: this run's throughput against an earlier run's (BASELINE=). */
#ifndef LS_SPEED_H
#define LS_SPEED_H

#include "run.h"

typedef struct ls_speed_verdict {
    bool below; /* a baseline was given and missed */
    char value[24], why[320];
} ls_speed_verdict;

/* LS_ERR_USAGE when `baseline` is neither a run's folder with a summary.json nor such a file. */
ls_status ls_speed_check_baseline(const char *baseline);
/* A timed job is below when its whole interval is under the baseline's whole interval;
 * oversubscribed jobs and figures without a result gate nothing. Among three or more GPUs `why`
 * names the slowest, with its distance to the median of the others. */
void ls_speed_decide(const ls_run *run, ls_speed_verdict *out);

#endif
