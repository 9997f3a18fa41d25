/* From a run's folder to the model that reports read. Reading is lenient where a run may have been
 * cut short: a job without job.json, a rank without events or with a damaged line are kept and
 * marked, never dropped and never zero. */
#ifndef LS_REPORT_LOAD_H
#define LS_REPORT_LOAD_H

#include "job.h"
#include "kernels/core/status.h"

/* Reads the jobs and computes their speed. LS_ERR_USAGE when `directory` is no run, LS_ERR_INFRA
 * when it cannot be read. */
ls_status ls_report_load(const char *directory, ls_report_run *out);
void ls_report_load_free(ls_report_run *run);

#endif
