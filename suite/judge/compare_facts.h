/* Combines the given facts of a job with the dump's metadata. */
#ifndef LS_COMPARE_FACTS_H
#define LS_COMPARE_FACTS_H

#include "compare_judgement.h"

/* Fills level, bounds, nesterov, skipped, finite and the evidence's step. LS_ERR_USAGE for an
 * impossible step. */
ls_status ls_compare_facts_read(ls_compare_judgement *j);

#endif
