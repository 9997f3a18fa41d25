#include "judges.h"

#include <math.h>
#include <string.h>

#include "diagnose.h"

/* Compares the digests in `mask`, which both steps or neither must have: FAIL if b's differs from
 * a's, with `who` ("rank=1") in front. Returns the number compared. */
static int compare_digests(const ls_record_step *a, const ls_record_step *b, unsigned mask,
                           const char *who, ls_verdict *out)
{
    int compared = 0;
    if (a->step != b->step || ((a->digest_mask ^ b->digest_mask) & mask) != 0) {
        ls_verdict_fail(out, "%s step %d: compared with step %d, which reports %s digests", who,
                        (int)b->step, (int)a->step, a->step != b->step ? "its own" : "other");
    }
    for (int d = 0; d < LS_RECORD_DIGESTS; d++) {
        if ((mask & a->digest_mask & b->digest_mask & 1u << d) == 0) {
            continue;
        }
        compared++;
        if (strcmp(a->digest[d], b->digest[d]) != 0) {
            ls_verdict_fail(out, "%s step %d: %s is %s, expected %s", who, (int)a->step,
                            ls_record_digest_name((ls_record_digest)d), b->digest[d], a->digest[d]);
        }
    }
    return compared;
}

/* Numbers of events: NaN is one that neither gives. */
static bool equal_numbers(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static int64_t last_step(const ls_record_rank *rank)
{
    return rank->step_count > 0 ? rank->step[rank->step_count - 1].step : 0;
}

/* The names of judged digests that earlier steps have and the last one lacks, which says nothing of
 * the end of the run; "" if there are none. */
static void find_ended(const ls_record_rank *rank, unsigned mask, char *text, size_t bytes)
{
    unsigned all = 0;
    text[0] = '\0';
    for (int i = 0; i < rank->step_count; i++) {
        all |= rank->step[i].digest_mask & mask;
    }
    for (int d = 0; d < LS_RECORD_DIGESTS && all != 0; d++) {
        if ((all & ~rank->step[rank->step_count - 1].digest_mask & 1u << d) != 0) {
            ls_text_add(text, bytes, " %s", ls_record_digest_name((ls_record_digest)d));
        }
    }
}

int ls_judge_runs(const ls_record *a, const ls_record *b, int64_t after, unsigned mask,
                  ls_verdict *out)
{
    int compared = 0;
    for (int k = 0; k < a->world && k < b->world; k++) {
        int64_t last = last_step(&a->rank[k]), other = last_step(&b->rank[k]);
        LS_TEXT(who, 32, "rank=%d", k);
        for (int64_t step = after + 1; step <= last || step <= other; step++) {
            const ls_record_step *x = ls_record_find_step(&a->rank[k], step);
            const ls_record_step *y = ls_record_find_step(&b->rank[k], step);
            if (x == NULL || y == NULL) {
                ls_verdict_fail(out, "rank=%d has no event of step %d in the %s run", k, (int)step,
                                x == NULL ? "first" : "second");
                break; /* a step may have any number: not each up to it is looked for */
            }
            compared += compare_digests(x, y, mask, who, out);
            if (strcmp(x->loss_bits, y->loss_bits) != 0) {
                ls_verdict_fail(out, "rank=%d step %d: loss %s, expected %s", k, (int)step,
                                y->loss_bits, x->loss_bits);
            }
        }
    }
    ls_judge_training_taken(a, out);
    if (compared == 0) {
        ls_verdict_set(out, last_step(&a->rank[0]) == 0 ? LS_FAIL : LS_UNSUPPORTED,
                       "no digests to compare");
    }
    return compared;
}

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
        LS_TEXT(who, 32, "rank=%d", k);
        for (int i = 0; i < steps && k > 0; i++) {
            compared +=
                compare_digests(&job->rank[0].step[i], &job->rank[k].step[i], mask, who, out);
        }
        for (int i = 0; i < steps; i++) {
            if (!equal_numbers(job->rank[k].step[i].loss_scale, job->rank[0].step[i].loss_scale) ||
                job->rank[k].step[i].skipped != job->rank[0].step[i].skipped) {
                ls_verdict_fail(out, "rank=%d step %d: loss scale or skip differs from rank 0", k,
                                (int)job->rank[k].step[i].step);
            }
            if (!equal_numbers(job->rank[k].step[i].lr, job->rank[0].step[i].lr)) {
                ls_verdict_fail(out, "rank=%d step %d: lr %g, rank 0's is %g", k,
                                (int)job->rank[k].step[i].step, job->rank[k].step[i].lr,
                                job->rank[0].step[i].lr);
            }
        }
    }
    ls_judge_training_taken(job, out);
    char ended[80];
    find_ended(&job->rank[0], mask, ended, sizeof ended);
    if (ended[0] != '\0') {
        ls_verdict_set(out, LS_WEAK, "the last of %d steps has no digest of%s", steps, ended);
    }
    if (compared == 0) {
        ls_verdict_set(out, steps == 0 ? LS_FAIL : LS_UNSUPPORTED, "no digests in %d steps", steps);
    }
    ls_verdict_pass(out, compared, "%d digests of %d ranks equal over %d steps", compared,
                    job->world, steps);
    for (int k = 1; k < job->world && out->code == LS_FAIL && out->cause[0] == '\0'; k++) {
        ls_diagnose_replicas(&job->rank[0], &job->rank[k], row->job[0].sync_bn, out->cause,
                             (int)sizeof out->cause);
    }
}

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
            LS_TEXT(who, 40, "rank=%d resumed,", k);
            compared += compare_digests(a, b, LS_JUDGE_EVERYTHING, who, out);
            if (strcmp(a->loss_bits, b->loss_bits) != 0 ||
                !equal_numbers(a->loss_scale, b->loss_scale) || !equal_numbers(a->lr, b->lr)) {
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
    ls_verdict_pass(out, compared, "saved at %d, resumed to %d: %d digests equal to the last bit",
                    saved_at, last, compared);
}

void ls_judge_same(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const ls_judge_difference *allowed = row->data;
    bool resumed = row->job_count == 3;
    int compared = ls_judge_runs(&job[0], &job[resumed ? 2 : 1], resumed ? row->job[1].steps : 0,
                                 LS_JUDGE_EVERYTHING & ~allowed->digests, out);
    ls_verdict_pass(out, compared, "%d digests equal to the last bit: %s", compared, allowed->text);
}

ls_compare_optim_result ls_judge_update(const ls_dumpfile *file, const ls_update_rule *rule,
                                        int64_t step, bool skipped, ls_verdict *out)
{
    static const ls_tol formula =
        LS_TOL(1, "twice what f32's roundings can add up to in this formula, per element");
    ls_compare_checks checks = {0};
    ls_compare_optim_result result = {0};
    ls_status status = ls_compare_optim_step(file, rule, skipped, &checks, &result);
    if (status == LS_OK && checks.count > 0) {
        ls_verdict_fail(out, "step %d: %.280s; %d in all", (int)step, checks.line, checks.count);
        (void)ls_diagnose_step(file, rule, skipped, out->cause, (int)sizeof out->cause);
    } else if (status != LS_OK || !result.judged) {
        ls_verdict_set(out, status == LS_OK ? LS_UNSUPPORTED : LS_INFRA,
                       "step %d cannot be judged: %s", (int)step,
                       status == LS_OK ? result.why : ls_status_name(status));
    }
    if (!skipped) {
        (void)ls_verdict_worst(out, result.ratio, &formula, "x limit");
    }
    return result;
}
