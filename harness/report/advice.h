/* Advice on settings, in sentences. Every sentence is computed from the run; where the run does not
 * suffice, it says so. */
#ifndef LS_REPORT_ADVICE_H
#define LS_REPORT_ADVICE_H

#include "job.h"

/* Array of strings, owned by the caller; at least one sentence. */
cJSON *ls_report_advice_make(const ls_report_run *run);

#endif
