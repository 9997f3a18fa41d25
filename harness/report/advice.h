/* What the numbers say to somebody who chooses settings, in sentences; every one is computed, and
 * says when it cannot be said. */
#ifndef LS_REPORT_ADVICE_H
#define LS_REPORT_ADVICE_H

#include "job.h"

/* Array of strings, owned by the caller; at least one sentence. */
cJSON *ls_report_advice_make(const ls_report_run *run);

#endif
