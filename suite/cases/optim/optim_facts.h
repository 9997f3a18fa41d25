/* What the families optim and masters read of a job: a step's dump, and which update it is. */
#ifndef LS_OPTIM_FACTS_H
#define LS_OPTIM_FACTS_H

#include "reference/oracle/dumpfile.h"
#include "suite/cases/rows.h"

/* Rank 0's dump of `step`. *update: how many steps were taken up to it, from the events, so that a
 * skipped one is not counted. False, with the verdict set, where dump or events are missing. */
bool ls_optim_facts_open(const ls_record *job, int64_t step, ls_dumpfile **file, int64_t *update,
                         bool *skipped, ls_verdict *out);

/* optim_ends.c, optim_inside.c */
void ls_optim_ends_cases(const ls_case_settings *settings, ls_case_list *list);
void ls_optim_inside_cases(const ls_case_settings *settings, ls_case_list *list);

#endif
