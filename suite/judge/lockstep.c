#include "judges.h"

#include "diagnose_digests.h"
#include "kernels/core/text.h"

void ls_judge_lockstep(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    unsigned mask = row->job[0].sync_bn ? LS_JUDGE_EVERYTHING : LS_JUDGE_REPLICA;
    int steps = job->rank[0].step_count, compared = 0;
    for (int k = 0; k < job->world; k++) {
        if (job->rank[k].step_count != steps) {
            ls_verdict_fail(out, "rank=%d took %d steps, rank 0 took %d", k,
                            job->rank[k].step_count, steps);
            continue;
        }
        char who[32];
        ls_text_put(who, sizeof who, "rank=%d", k);
        for (int i = 0; i < steps && k > 0; i++) {
            compared +=
                ls_judge_digests(&job->rank[0].step[i], &job->rank[k].step[i], mask, who, out);
        }
        for (int i = 0; i < steps; i++) {
            if (job->rank[k].step[i].loss_scale != job->rank[0].step[i].loss_scale ||
                job->rank[k].step[i].skipped != job->rank[0].step[i].skipped) {
                ls_verdict_fail(out, "rank=%d step %d: loss scale or skip differs from rank 0", k,
                                (int)job->rank[k].step[i].step);
            }
        }
    }
    if (compared == 0) {
        ls_verdict_set(out, steps == 0 ? LS_FAIL : LS_UNSUPPORTED, "no digests in %d steps", steps);
    }
    ls_verdict_pass(out, "%d digests of %d ranks equal over %d steps", compared, job->world, steps);
    for (int k = 1; k < job->world && out->code == LS_FAIL && out->cause[0] == '\0'; k++) {
        ls_diagnose_replicas(&job->rank[0], &job->rank[k], out->cause, (int)sizeof out->cause);
    }
}

/* Differences between two runs, and the digests that differ with them. */
struct pair {
    const char *text;
    unsigned differs; /* 1u << ls_record_digest */
};
