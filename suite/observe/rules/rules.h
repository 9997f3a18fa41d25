/* The judges of all rules: one of each row of rules.def, in <family>.c. */
#ifndef LS_OBSERVE_RULES_H
#define LS_OBSERVE_RULES_H

#include "suite/observe/trace/samples.h"
#include "suite/observe/trace/trace.h"

#define LS_OBSERVE_RULE(id, claim, requirement, judge, jobs, sentence, sure, wrong_if, show) \
    ls_observe_judge judge;
#include "rules.def"
#undef LS_OBSERVE_RULE

/* ---- what several judges share --------------------------------------------------------------- */

/* misuse.c: settings and arguments that nothing refuses and that mean something else than they say,
 * each an event of the attach module (misuse.py). Fails where a rank
 * reports one of that rule's kinds; the rule by its name in rules.def. */
void ls_misuse_judge(const ls_observe_trace *trace, const char *rule, ls_observe_finding *out);

/* restored.c: what a job does after it restored its state. */
/* Data that were trained on before the file was written. Of attached jobs that restored an
 * optimizer, where the job that wrote the file is known and had as many ranks. */
void ls_restored_judge_data(const ls_observe_trace *trace, ls_observe_finding *out);
/* The pass of the first steps has the same data as the last one before the file, and the sampler's
 * epoch behind it, or its own where the file cut it. */
bool ls_restored_follows_pass(const ls_observe_rank *rank, const ls_observe_rank *before,
                              int64_t saved);
/* restored_state.c */
/* Moments and settings that came to other parameters than in the job that wrote the file. */
void ls_restored_judge_places(const ls_observe_trace *trace, ls_observe_finding *out);
/* Parameters that a file gave values, which were drawn again before training. */
void ls_restored_judge_overwritten(const ls_observe_trace *trace, ls_observe_finding *out);
/* Parameters that a file lacks, which hold what they were drawn with when they are used. */
void ls_restored_judge_left(const ls_observe_trace *trace, ls_observe_finding *out);
/* Schedules that begin anew. */
void ls_restored_judge_schedules(const ls_observe_trace *trace, ls_observe_finding *out);
/* Averages of weights whose count of updates begins anew. */
void ls_restored_judge_averages(const ls_observe_trace *trace, ls_observe_finding *out);
/* Whether the rank goes on with the job that wrote the file, in all that the file holds but for the
 * moments of its one optimizer. */
bool ls_restored_goes_on(const ls_observe_trace *trace, int k, const ls_event *load);

/* restored_rate.c: a rate that was multiplied by the number of ranks after the optimizer's state
 * was loaded, which holds it multiplied already (`again`: the job writes the file that it was
 * loaded from); or, of jobs that count on from their file, one that the script sets by its count of
 * steps, and that climbs again as at the first start. */
void ls_restored_rate_judge(const ls_observe_rank *rank, int k, bool again, bool counts_on,
                            ls_observe_finding *out);

/* still.c: whether what is trained moves; fails where it does not. */
void ls_still_judge_optimizers(const ls_observe_trace *trace, ls_observe_finding *out);
/* Copies that an optimizer steps in the place of the model's parameters; true: it fails. */
bool ls_still_judge_copies(const ls_observe_trace *trace, ls_observe_finding *out);
void ls_still_judge_branches(const ls_observe_trace *trace, ls_observe_finding *out);
/* Copies of a model's weights on a rank; returns how often one was looked at. */
int ls_still_judge_shadows(const ls_observe_trace *trace, int rank, ls_observe_finding *out);
/* Returns the number of validations whose weights are known. */
int ls_still_judge_validations(const ls_observe_trace *trace, ls_observe_finding *out);

/* used.c: the most backward passes of a rank that reached no step; whether gradients are made by
 * closures, within steps; and batches of a step whose gradients are cleared for the next one. */
int ls_thrown_lost(const ls_observe_trace *trace);
bool ls_thrown_closure(const ls_observe_trace *trace);
void ls_thrown_judge_cleared(const ls_observe_trace *trace, int rank, ls_observe_finding *out);

/* own.c: whether the script scales its losses by itself; and the judgement of its scale, false:
 * there is none. */
bool ls_own_scale(const ls_observe_trace *trace);
bool ls_own_scale_judge(const ls_observe_trace *trace, ls_observe_finding *out);

/* parts.c: what ranks hold in common of a model whose parts they divide, by a library or the
 * script; true: it fails. */
bool ls_parts_judge_models(const ls_observe_trace *trace, ls_observe_finding *out);
/* Of optimizer.clip: a norm that counts what ranks hold in common once for each of them. */
bool ls_parts_judge_norm(const ls_observe_trace *trace, ls_observe_finding *out);
bool ls_parts_judge_replicated(const ls_observe_trace *trace, ls_observe_finding *out);
/* A hint where norms that ranks begin with in common are stepped by gradients of their own. */
void ls_parts_guess_norms(const ls_observe_trace *trace, ls_observe_finding *out);

/* split.c: why replicas that were equal hold different values after a step. */
/* Two ranks that differ after a step. */
typedef struct ls_split {
    int64_t step; /* 0: none */
    int a, b;
} ls_split;

/* The lowest number from n on of a step that any rank has; INT64_MAX: there is none. */
int64_t ls_split_next_step(const ls_observe_trace *trace, int64_t n);
/* The cause, the place and the advice: a step that one rank skipped, unlike rates, a file that one
 * rank loaded, else what samples of a step near it show. `what`: "model" or "optimizer". */
void ls_split_blame(const ls_observe_trace *trace, ls_split at, const ls_samples *samples,
                    const char *what, ls_observe_finding *out);

/* step.c: what an optimizer's rule asks of a parameter in exact arithmetic. The sampled elements
 * before and after the step of an attached job, and where they should be by gradient, state and
 * settings, before any rounding. False, with nothing to free, where no optimizer with a known rule
 * took the parameter in that step. */
bool ls_rules_step_expect(const ls_samples *samples, int rank, const char *name, ls_values *param,
                          ls_values *next, ls_values *wanted);

#endif
