/* Step times of finished jobs to images per second, percentiles, phases and efficiency. */
#ifndef LS_REPORT_SPEED_H
#define LS_REPORT_SPEED_H

#include "job.h"

/* Fills job->speed of every job of the run; jobs that did not finish keep count 0. */
void ls_report_speed_compute(ls_report_run *run);
void ls_report_speed_free(ls_report_speed *speed);
/* The job's time waiting for the last reductions: its own events, else the phases job of the same
 * level, world, nodes and bucket size, whose step differs only by its marks. NaN when neither says.
 */
double ls_report_speed_exposed_ms(const ls_report_run *run, const ls_report_job *job);
/* The job that `job` is compared with for scaling: world of one, equal in all else; NULL when not
 * run. */
const ls_report_job *ls_report_speed_base(const ls_report_run *run, const ls_report_job *job);

/* Threads that all ranks of the job have together, no more than the machine has cores. */
int ls_report_speed_threads(const ls_report_run *run, const ls_report_job *job);

#endif
