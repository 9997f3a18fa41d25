/* Judging a job that was observed from outside: any model, any script (README.md here). */
#ifndef LS_OBSERVE_H
#define LS_OBSERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"
#include "suite/observe/trace/finding.h"

/* All rules, in the order of the report: rules/rules.def. */
const ls_observe_rule *ls_observe_rules(int *count);

/* Whether all that the finding's rule can say is guessed: its verdict decides nothing. */
bool ls_observe_is_hint(const ls_observe_finding *finding);

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
/* Says that the job of `directory` went on from a file that this one saved, or with its schedule,
 * where it did: this one ended before its training did. */
bool ls_observe_goes_on(ls_observe_trace *trace, const char *directory);
/* Whether the job ended by itself with code 0, and every rank was seen to its end: else what was
 * judged is a part of it, and `why` says which, "; " before each reason. */
bool ls_observe_is_whole(const ls_observe_trace *trace, char *why, size_t bytes);
/* The most training backward passes of a rank that reached no step of an optimizer. */
int ls_observe_unused(const ls_observe_trace *trace);
void ls_observe_judge_one(const ls_observe_trace *trace, const ls_observe_rule *rule,
                          ls_observe_finding *out);
/* Judges every rule. */
void ls_observe_judge_all(const ls_observe_trace *trace, ls_observe_result *out);
/* The law that fails and makes the finding's fail, too, at the end of what follows from what
 * (rules/follows.def); NULL: it follows from none. */
const char *ls_observe_root(const ls_observe_result *result, const ls_observe_finding *finding);
void ls_observe_result_free(ls_observe_result *result);

/* live.c: a job that still runs. */
/* Copies what a job has written into the new folder `to`, up to the last step, at most `most`, that
 * all its ranks have closed, as if it had ended there; *step: which, 0: none yet, no folder. */
ls_status ls_live_cut(const char *directory, const char *to, int64_t most, int64_t *step);
/* Judges the laws whose FAIL stays one whatever comes later: rules/live.def. */
void ls_live_judge(const ls_observe_trace *trace, ls_observe_result *out);

#endif
