/* Settings and arguments that nothing refuses and that mean something else than they say: each an
 * event of the attach module (misuse.py, targets.py, transforms.py), judged under the rule that it
 * breaks. */
#ifndef LS_OBSERVE_MISUSE_H
#define LS_OBSERVE_MISUSE_H

#include "suite/observe/trace/trace.h"

/* Fails where a rank reports one of that rule's kinds; the rule by its name in rules.def. */
void ls_misuse_judge(const ls_observe_trace *trace, const char *rule, ls_observe_finding *out);

#endif
