#include "rules.h"

#define LS_OBSERVE_RULE(id, claim, requirement, judge, jobs, sentence, sure, wrong_if, show) \
    {id, claim, requirement, jobs, sentence, sure, wrong_if, show, judge},
static const ls_observe_rule rules[] = {
#include "rules.def"
};
#undef LS_OBSERVE_RULE

const ls_observe_rule *ls_rules_all(int *count)
{
    *count = (int)(sizeof rules / sizeof *rules);
    return rules;
}
