/* How a job or a node's share of it ended, as JSON: in job.json and in a launcher's report. */
#ifndef LS_OUTCOME_H
#define LS_OUTCOME_H

#include "kernels/core/json.h"
#include "harness/run/job.h"

/* {"state","first_rank","code","signal","seconds","ranks":[{rank,code,signal,seconds,...}]}; ranks
 * are numbered from `first`. */
cJSON *ls_outcome_json(const ls_job_outcome *outcome, int first);
/* Back into ranks[ranks] (the caller frees it with ls_job_outcome_free); times count from 0. False
 * when it is not an outcome of that many ranks. */
bool ls_outcome_read(const cJSON *object, int first, int ranks, ls_job_outcome *out);
/* Sums and peaks of the ranks into the outcome's own fields. */
void ls_outcome_add_up(ls_job_outcome *outcome);

#endif
