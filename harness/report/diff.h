/* Two runs, job by job, in words. */
#ifndef LS_REPORT_DIFF_H
#define LS_REPORT_DIFF_H

#include <stdio.h>

#include "kernels/core/json.h"
#include "kernels/core/status.h"

/* Compares throughput of equal jobs (same network, batch, level, half, world, nodes, bucket size,
 * dialect) in the summaries of two runs; `a` is the earlier one. `a` and `b` are run directories or
 * their summary.json. A job whose number is no result in one of the two is named, not compared.
 * LS_ERR_USAGE when one has no summary.json or no job is in both; else LS_OK: whether a difference
 * matters is the gate's to decide. */
ls_status ls_report_diff(const char *a, const char *b, FILE *to);
/* Reads the summary of a run: `where` is its folder or the file itself. LS_ERR_USAGE when neither.
 */
ls_status ls_report_diff_read(const char *where, cJSON **summary);
/* Whether two rows of summaries' `throughput` are of equal jobs. */
bool ls_report_diff_same_job(const cJSON *x, const cJSON *y);

#endif
