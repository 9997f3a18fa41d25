/* Runs a job on this machine or on its hosts (remote_job.h) and writes its record, job.json. */
#ifndef LS_JOB_RUN_H
#define LS_JOB_RUN_H

#include "harness/hosts/outcome.h"
#include "job.h"

/* Runs the job until all ranks have ended, one has failed or the deadline has passed. Writes
 * rank<k>.log and, at the end, <directory>/job.json (command, environment without LS_TOKEN,
 * outcome). A job whose job.json says "done" is not run again: `resumed` is set and the outcome is
 * read back. on_tick (may be NULL) is called about once a second for a progress line. */
ls_status ls_job_run(const ls_job *job, void (*on_tick)(void *context), void *context,
                     ls_outcome *outcome, bool *resumed);

/* Whether ls_job_run would read the outcome back. */
bool ls_job_is_done(const ls_job *job);

#endif
