#include "judges.h"

#include <math.h>
#include <string.h>

/* A scale below 1 makes gradients smaller than they are: half overflows no more because of it. */
static const double least_scale = 1;

/* Steps without an update at the end of a record, whose losses are not finite: one step's images
 * may be spoilt. */
enum { LOST_IN_A_ROW = 3 };

void ls_judge_training_skip(const ls_record_step *before, const ls_record_step *now, int rank,
                            ls_verdict *out)
{
    static const ls_record_digest still[] = {LS_RECORD_PARAM, LS_RECORD_MASTER, LS_RECORD_STATE};
    for (size_t i = 0; i < sizeof still / sizeof *still && now->skipped; i++) {
        bool both = (now->digest_mask & before->digest_mask & 1u << still[i]) != 0;
        if (both && strcmp(now->digest[still[i]], before->digest[still[i]]) != 0) {
            ls_verdict_fail(out, "rank=%d step %d was skipped, but %s changed (%s to %s)", rank,
                            (int)now->step, ls_record_digest_name(still[i]),
                            before->digest[still[i]], now->digest[still[i]]);
        }
    }
}

void ls_judge_training_steps(const ls_record *job, ls_verdict *out)
{
    for (int k = 0; k < job->world; k++) {
        for (int i = 0; i < job->rank[k].step_count; i++) {
            const ls_record_step *now = &job->rank[k].step[i];
            if (now->loss_lost && !now->skipped) {
                ls_verdict_fail(out, "rank=%d step %d was taken with a loss that is not finite", k,
                                (int)now->step);
            }
            if (i > 0) {
                ls_judge_training_skip(now - 1, now, k, out);
            }
        }
    }
}

/* Steps at the end that were skipped; *lost: the last of them whose loss is not finite. */
static int skipped_at_the_end(const ls_record_rank *rank, int *lost)
{
    int skipped = 0;
    *lost = 0;
    for (int i = rank->step_count - 1; i >= 0 && rank->step[i].skipped; i--) {
        *lost += rank->step[i].loss_lost && *lost == skipped;
        skipped++;
    }
    return skipped;
}

void ls_judge_training_taken(const ls_record *job, ls_verdict *out)
{
    for (int k = 0; k < job->world; k++) {
        const ls_record_rank *rank = &job->rank[k];
        int lost, skipped = skipped_at_the_end(rank, &lost);
        if (skipped == 0 || (skipped < rank->step_count && lost < LOST_IN_A_ROW)) {
            continue;
        }
        const ls_record_step *last = &rank->step[rank->step_count - 1];
        if (skipped < rank->step_count) {
            ls_verdict_fail(out,
                            "rank=%d: from step %d on every step is skipped and no loss is "
                            "finite: the run trains no more",
                            k, (int)(last->step - lost + 1));
            continue;
        }
        bool dead = lost > 0 || last->loss_scale_next < least_scale;
        ls_verdict_set(out, dead ? LS_FAIL : LS_WEAK,
                       "rank=%d: all %d steps are skipped%s: nothing was trained", k, skipped,
                       lost > 0 ? ", and the loss is not finite"
                       : dead   ? ", and the loss scale is below 1"
                                : "");
    }
}

/* Taken steps whose rate is not 0, and those among them that moved parameters or masters; both
 * counted where the step before reports the same digests. */
typedef struct moves {
    int taken, looked, moved;
} moves;

static moves count_moves(const ls_record_rank *rank)
{
    moves m = {0, 0, 0};
    for (int i = 0; i < rank->step_count; i++) {
        const ls_record_step *now = &rank->step[i];
        m.taken += !now->skipped;
        if (i == 0 || now->skipped || now->lr == 0) {
            continue;
        }
        unsigned values = 1u << LS_RECORD_PARAM | 1u << LS_RECORD_MASTER;
        unsigned both = now->digest_mask & now[-1].digest_mask & values;
        bool moved = false;
        for (int d = 0; d < LS_RECORD_DIGESTS; d++) {
            moved =
                moved || ((both & 1u << d) != 0 && strcmp(now->digest[d], now[-1].digest[d]) != 0);
        }
        m.looked += both != 0;
        m.moved += moved;
    }
    return m;
}

void ls_judge_training(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int steps = 0, losses = 0;
    moves sum = {0, 0, 0};
    ls_judge_training_steps(job, out);
    ls_judge_training_taken(job, out);
    for (int k = 0; k < job->world; k++) {
        const ls_record_rank *rank = &job->rank[k];
        moves m = count_moves(rank);
        if (m.looked > 0 && m.moved == 0) {
            ls_verdict_fail(out,
                            "rank=%d: no parameter changes in %d taken steps: nothing was "
                            "trained",
                            k, m.looked);
        }
        for (int i = 0; i < rank->step_count; i++) {
            losses += rank->step[i].loss_lost || !isnan(rank->step[i].loss);
        }
        steps += rank->step_count;
        sum.taken += m.taken;
        sum.looked += m.looked;
    }
    if (losses + sum.looked == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the events have neither losses nor digests of param");
    }
    int ranks = job->world > 0 ? job->world : 1;
    ls_verdict_pass(out, "%d of %d steps taken, %s%s", sum.taken / ranks, steps / ranks,
                    losses > 0 ? "each with a finite loss" : "without losses in the events",
                    sum.looked > 0 ? "; parameters move" : "; without digests of param");
}
