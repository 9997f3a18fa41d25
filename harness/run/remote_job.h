/* A job whose ranks run on other machines: one channel to a launcher on each host (remote.h), and
 * one outcome put together from the launchers' reports. */
#ifndef LS_REMOTE_JOB_H
#define LS_REMOTE_JOB_H

#include "harness/hosts/outcome.h"
#include "job.h"

/* Runs the ranks of a job with hosts. The caller frees the outcome's ranks, after an error too. */
ls_status ls_remote_job_run(const ls_job *job, const char *token, void (*on_tick)(void *),
                            void *context, ls_outcome *outcome);

#endif
