#include "judges.h"

#include <string.h>

#include "kernels/core/text.h"

static int64_t last_step(const ls_record_rank *rank)
{
    return rank->step_count > 0 ? rank->step[rank->step_count - 1].step : 0;
}

int ls_judge_runs(const ls_record *a, const ls_record *b, int64_t after, unsigned mask,
                  ls_verdict *out)
{
    int compared = 0;
    for (int k = 0; k < a->world && k < b->world; k++) {
        int64_t last = last_step(&a->rank[k]), other = last_step(&b->rank[k]);
        char who[32];
        ls_text_put(who, sizeof who, "rank=%d", k);
        for (int64_t step = after + 1; step <= last || step <= other; step++) {
            const ls_record_step *x = ls_record_find_step(&a->rank[k], step);
            const ls_record_step *y = ls_record_find_step(&b->rank[k], step);
            if (x == NULL || y == NULL) {
                ls_verdict_fail(out, "rank=%d has no event of step %d in the %s run", k, (int)step,
                                x == NULL ? "first" : "second");
                continue;
            }
            compared += ls_judge_digests(x, y, mask, who, out);
            if (strcmp(x->loss_bits, y->loss_bits) != 0) {
                ls_verdict_fail(out, "rank=%d step %d: loss %s, expected %s", k, (int)step,
                                y->loss_bits, x->loss_bits);
            }
        }
    }
    if (compared == 0) {
        ls_verdict_set(out, last_step(&a->rank[0]) == 0 ? LS_FAIL : LS_UNSUPPORTED,
                       "no digests to compare");
    }
    return compared;
}
