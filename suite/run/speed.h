/* SPEED: this run's throughput against an earlier run's (BASELINE=). */
#ifndef LS_SPEED_H
#define LS_SPEED_H

#include "headline.h"

/* LS_ERR_USAGE when `baseline` is neither a run's folder with a summary.json nor such a file. */
ls_status ls_speed_check_baseline(const char *baseline);
/* Fills speed_value, speed_why and below. A timed job is below when its whole interval is under the
 * baseline's whole interval; oversubscribed jobs and figures that are no result gate nothing. Of
 * three GPUs and more the slowest is named, with its distance to the median of the others. */
void ls_speed_decide(const ls_run *run, ls_headline *out);

#endif
