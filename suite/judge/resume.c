#include "judges.h"

#include <string.h>

#include "diagnose_digests.h"
#include "kernels/core/text.h"

void ls_judge_resume(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const int saved_at = row->job[1].steps, last = row->job[0].steps;
    int compared = 0;
    for (int k = 0; k < job[0].world; k++) {
        for (int64_t step = saved_at + 1; step <= last; step++) {
            const ls_record_step *a = ls_record_find_step(&job[0].rank[k], step);
            const ls_record_step *b = ls_record_find_step(&job[2].rank[k], step);
            if (a == NULL || b == NULL) {
                ls_verdict_fail(out, "rank=%d has no event of step %d in the %s run", k, (int)step,
                                a == NULL ? "uninterrupted" : "resumed");
                continue;
            }
            char who[40];
            ls_text_put(who, sizeof who, "rank=%d resumed,", k);
            compared += ls_judge_digests(a, b, LS_JUDGE_EVERYTHING, who, out);
            if (strcmp(a->loss_bits, b->loss_bits) != 0 || a->loss_scale != b->loss_scale ||
                a->lr != b->lr) {
                ls_verdict_fail(out, "rank=%d step %d: loss, loss scale or lr differs", k,
                                (int)step);
            }
        }
        const ls_record_step *again = ls_record_find_step(&job[2].rank[k], saved_at);
        if (again != NULL) {
            ls_verdict_fail(out, "rank=%d did step %d again after resume", k, saved_at);
        }
    }
    for (int k = 0; k < job[0].world && out->code == LS_FAIL && out->cause[0] == '\0'; k++) {
        ls_diagnose_resume(&job[0].rank[k], &job[2].rank[k], saved_at + 1, out->cause,
                           (int)sizeof out->cause);
    }
    if (compared == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "no digests to compare");
    }
    ls_verdict_pass(out, "saved at %d, resumed to %d: %d digests equal to the last bit", saved_at,
                    last, compared);
}
