#include "compare.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/oracle/oracle.h"
#include "compare_judgement.h"
#include "compare_optim.h"
#include "diagnose_digests.h"
#include "diagnose_step.h"

/* Uses the optimizer named in the metadata: a case that sets one uses its own facts. */
static ls_status judge_optimizer(ls_compare_judgement *j)
{
    ls_update_rule rule;
    bool skipped;
    if (!ls_compare_optim_rule(j->evidence->file[0], j->nesterov, &rule, &skipped)) {
        return LS_OK;
    }
    ls_compare_optim_result result;
    int before = j->checks.count;
    LS_TRY(ls_compare_optim_step(j->evidence->file[0], &rule, j->skipped, &j->checks, &result));
    j->verdict->next_judged = result.judged;
    j->verdict->next_ratio = result.ratio;
    if (j->checks.count > before && j->verdict->cause[0] == '\0') {
        return ls_diagnose_step(j->evidence->file[0], &rule, j->skipped, j->verdict->cause,
                                (int)sizeof j->verdict->cause);
    }
    return LS_OK;
}

/* A wrong gradient on another rank can explain more than rank 0's, which may be right or only show
 * the position of a race. */
static void judge_replicas(ls_compare_judgement *j)
{
    static const char place[] = "wrong: "; /* the prefix that ls_diagnose_gradient writes */
    char *cause = j->verdict->cause;
    size_t used = strlen(cause), room = sizeof j->verdict->cause - used;
    int before = j->checks.count;
    ls_compare_checks_replicas(j->evidence, "grad", "reduced gradients", &j->checks);
    if (j->checks.count > before && (used == 0 || strncmp(cause, place, sizeof place - 1) == 0)) {
        snprintf(cause + used, room, "%s%s", used == 0 ? "" : "; ", LS_DIAGNOSE_DIGESTS_GRADIENTS);
    }
}

static ls_status judge(ls_compare_judgement *j)
{
    ls_compare_verdict *v = j->verdict;
    LS_TRY(ls_compare_facts_read(j));
    ls_compare_checks_replicas(j->evidence, "param", "parameters before the step", &j->checks);
    if (j->finite || !j->skipped) {
        LS_TRY(ls_compare_checks_loss(j->evidence, &j->checks));
    }
    LS_TRY(ls_compare_gradient_judge(j));
    judge_replicas(j);
    ls_compare_checks_replicas(j->evidence, "next", "parameters after the step", &j->checks);
    if (j->finite) {
        LS_TRY(ls_compare_checks_reduce(j->evidence, j->evidence->step.level, &j->checks,
                                        &v->reduce_judged));
    }
    return j->finite || j->skipped ? judge_optimizer(j) : LS_OK;
}

ls_status ls_compare_step(const ls_compare_facts *facts, int file_count, const char *const *path,
                          const char *json_path, ls_compare_verdict *out)
{
    ls_compare_verdict verdict = {0};
    ls_compare_judgement j = {.facts = facts, .verdict = &verdict};
    LS_TRY(ls_evidence_load(facts->arch, file_count, path, &j.evidence));
    ls_status status;
    LS_TRY_GOTO(status, judge(&j), free_judgement);
    ls_compare_verdict_conclude(&j);
    if (json_path != NULL) {
        LS_TRY_GOTO(status, ls_compare_verdict_write(&j, json_path), free_judgement);
    }
    *out = verdict;
free_judgement:
    ls_compare_spans_free(&j.spans);
    ls_ideal_error_cost_free(&j.cost);
    ls_oracle_free(&j.evidence->net, &j.forced);
    free(j.tie_limit);
    ls_evidence_free(j.evidence);
    return status;
}
