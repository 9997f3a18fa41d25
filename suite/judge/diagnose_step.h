/* Finds the cause of a wrong optimizer step: steps with one mistake each are recomputed from the
 * dump, and the one that reproduces it is the cause. */
#ifndef LS_DIAGNOSE_STEP_H
#define LS_DIAGNOSE_STEP_H

#include "compare_optim.h"

/* One line, "" if no mistake fits. `rule` is the right one; `skipped`: whether the step was. */
ls_status ls_diagnose_step(const ls_dumpfile *file, const ls_update_rule *rule, bool skipped,
                           char *text, int text_bytes);

#endif
