/* Progress while jobs run: one line that is rewritten on a terminal, plain lines
 * elsewhere. */
#ifndef LS_PROGRESS_H
#define LS_PROGRESS_H

#include "run.h"

/* Seconds: estimates of the jobs before the running one, of it, of those after it; what those
 * before it really took; since when it runs. */
typedef struct ls_progress_times {
    double before_s, job_s, after_s, elapsed_s, running_s;
} ls_progress_times;

/* Seconds left: the estimate at the pace of the jobs before. While a job runs it falls as the clock
 * goes, but not below what comes after the job. */
double ls_progress_left_s(const ls_progress_times *times);

void ls_progress_job(const ls_run *run, int index);  /* is running */
void ls_progress_done(const ls_run *run, int index); /* has ended */
void ls_progress_note(const char *format, ...)
    __attribute__((format(printf, 1, 2))); /* terminal only */
void ls_progress_clear(void);              /* before other output */

#endif
