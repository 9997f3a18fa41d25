/* The judges of all rules: one of each row of rules.def, in rules_<family>.c. */
#ifndef LS_OBSERVE_RULES_H
#define LS_OBSERVE_RULES_H

#include "trace.h"

#define LS_OBSERVE_RULE(id, claim, requirement, judge, sentence) ls_observe_judge judge;
#include "rules.def"
#undef LS_OBSERVE_RULE

#endif
