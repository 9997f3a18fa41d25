/* Why replicas that were equal hold different values after a step. Part of replicas.step and
 * replicas.state. */
#ifndef LS_OBSERVE_RULES_SPLIT_H
#define LS_OBSERVE_RULES_SPLIT_H

#include "suite/observe/trace/samples.h"
#include "suite/observe/trace/trace.h"

/* Two ranks that differ after a step. */
typedef struct ls_split {
    int64_t step; /* 0: none */
    int a, b;
} ls_split;

int64_t ls_split_first_step(const ls_observe_trace *trace); /* of any rank */
/* The lowest number from n on of a step that any rank has; INT64_MAX: there is none. */
int64_t ls_split_next_step(const ls_observe_trace *trace, int64_t n);
/* The cause, the place and the advice: a step that one rank skipped, unlike rates, a file that one
 * rank loaded, else what samples of a step near it show. `what`: "model" or "optimizer". */
void ls_split_blame(const ls_observe_trace *trace, ls_split at, const ls_samples *samples,
                    const char *what, ls_observe_finding *out);

#endif
