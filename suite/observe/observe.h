/* Judging a job that was observed from outside: any model, any script (README.md here). */
#ifndef LS_OBSERVE_H
#define LS_OBSERVE_H

#include <stdbool.h>
#include <stdio.h>

#include "kernels/core/status.h"
#include "suite/suite.h"

/* What the rules read: the events and samples of all ranks. trace.h */
typedef struct ls_observe_trace ls_observe_trace;

typedef struct ls_observe_rule ls_observe_rule;

typedef struct ls_observe_finding {
    const ls_observe_rule *rule;
    ls_verdict verdict;
    char where[320];  /* the user's call that is to blame, "train.py:41", or "" */
    char advice[400]; /* what to change there, or "" */
} ls_observe_finding;

/* A rule: one invariant of any DDP or AMP training. Fills `out`, whose verdict comes as PASS with
 * empty texts: FAIL; WEAK where nothing happened that could show it; UNSUPPORTED where it could not
 * be seen, with the reason; SKIP where it does not concern the job (no scaler, one rank). */
typedef void ls_observe_judge(const ls_observe_trace *trace, ls_observe_finding *out);

struct ls_observe_rule {
    const char *id;          /* "scaler.trace" */
    const char *claim;       /* "any-ddp", "any-amp" or "both" */
    const char *requirement; /* "J7" in requirements.txt */
    const char *sentence;    /* what holds, for the report */
    ls_observe_judge *judge;
};

/* All rules, in the order of the report: rules.c. */
const ls_observe_rule *ls_observe_rules(int *count);

/* A job's verdicts. */
typedef struct ls_observe_result {
    int count;
    ls_observe_finding *finding;
} ls_observe_result;

/* Reads a folder of events and samples. LS_ERR_USAGE where it holds none, LS_ERR_INFRA where a file
 * cannot be read; a broken line is kept in the trace and fails every rule that needs what follows.
 */
ls_status ls_observe_read(const char *directory, ls_observe_trace **out);
void ls_observe_free(ls_observe_trace *trace);
/* Says that the job went on from a file that the job of `directory` saved, where it did: both are
 * then compared. False where it did not, or that job cannot be read. */
bool ls_observe_continue(ls_observe_trace *trace, const char *directory);
void ls_observe_judge_one(const ls_observe_trace *trace, const ls_observe_rule *rule,
                          ls_observe_finding *out);
/* Judges every rule. */
void ls_observe_judge_all(const ls_observe_trace *trace, ls_observe_result *out);
void ls_observe_result_free(ls_observe_result *result);

#endif
