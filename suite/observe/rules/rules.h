/* The judges of all rules: one of each row of rules.def, in <family>.c. */
#ifndef LS_OBSERVE_RULES_H
#define LS_OBSERVE_RULES_H

#include "suite/observe/trace/trace.h"

#define LS_OBSERVE_RULE(id, claim, requirement, judge, jobs, sentence, sure, wrong_if, show) \
    ls_observe_judge judge;
#include "rules.def"
#undef LS_OBSERVE_RULE

/* All rules, in the order of the report. */
const ls_observe_rule *ls_rules_all(int *count);

#endif
