/* What was asked of the job, from the facts given and the dump's metadata. */
#ifndef LS_COMPARE_FACTS_H
#define LS_COMPARE_FACTS_H

#include "compare_judgement.h"

/* Fills level, bounds, nesterov, skipped, finite and the evidence's step. LS_ERR_USAGE for a step
 * that cannot be. */
ls_status ls_compare_facts_read(ls_compare_judgement *j);

#endif
