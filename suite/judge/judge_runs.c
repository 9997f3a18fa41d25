#include "judges.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "diagnose.h"

/* ---- whether a run trains ------------------------------------------------------------------ */

/* A scale below 1 makes gradients smaller than they are: half overflows no more because of it. */
static const double least_scale = 1;

/* Steps without an update at the end of a record, whose losses are not finite: one step's images
 * may be spoilt. */
enum { LOST_IN_A_ROW = 3 };

/* Steps whose losses are not equal by chance. */
enum { REPEATS_MIN = 3 };

static bool has_both(const ls_record_step *a, const ls_record_step *b, ls_record_digest digest)
{
    return (a->digest_mask & b->digest_mask & 1u << digest) != 0;
}

static bool has_equal(const ls_record_step *a, const ls_record_step *b, ls_record_digest digest)
{
    return has_both(a, b, digest) && strcmp(a->digest[digest], b->digest[digest]) == 0;
}

static bool has_other(const ls_record_step *a, const ls_record_step *b, ls_record_digest digest)
{
    return has_both(a, b, digest) && strcmp(a->digest[digest], b->digest[digest]) != 0;
}

void ls_judge_training_skip(const ls_record_step *before, const ls_record_step *now, int rank,
                            ls_verdict *out)
{
    static const ls_record_digest still[] = {LS_RECORD_PARAM, LS_RECORD_MASTER, LS_RECORD_STATE};
    for (size_t i = 0; i < sizeof still / sizeof *still && now->skipped; i++) {
        if (has_other(before, now, still[i])) {
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

/* Comparing updates shows nothing where none was made: WEAK if a rank skipped every step; FAIL if
 * its losses are not finite then, or its scale has fallen below 1, or both begin after some taken
 * steps.
 */
static void check_taken(const ls_record *job, ls_verdict *out)
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
        m.looked +=
            has_both(now - 1, now, LS_RECORD_PARAM) || has_both(now - 1, now, LS_RECORD_MASTER);
        m.moved +=
            has_other(now - 1, now, LS_RECORD_PARAM) || has_other(now - 1, now, LS_RECORD_MASTER);
    }
    return m;
}

/* Whether all these steps give a finite loss, and its bits are those of the one before. */
static bool repeats(const ls_record_step *a, const ls_record_step *b)
{
    bool both = !isnan(a->loss) && !isnan(b->loss) && !a->loss_lost && !b->loss_lost;
    return both && a->loss == b->loss && strcmp(a->loss_bits, b->loss_bits) == 0;
}

/* What a run that trains does not repeat: the loss from step to step, and from rank to rank, as
 * each has images of its own; the gradient from one step to the next, when parameters have moved.
 */
static void judge_repeats(const ls_record *job, int k, ls_verdict *out)
{
    const ls_record_rank *rank = &job->rank[k], *first = &job->rank[0];
    int of_before = 0, of_first = 0, steps = rank->step_count;
    for (int i = 0; i < steps; i++) {
        const ls_record_step *now = &rank->step[i];
        of_first += k > 0 && i < first->step_count && repeats(&first->step[i], now);
        of_before += i > 0 && repeats(now - 1, now);
        bool taken = i > 0 && !now->skipped && !now[-1].skipped;
        if (taken && has_equal(now - 1, now, LS_RECORD_GRAD) &&
            has_other(now - 1, now, LS_RECORD_PARAM)) {
            ls_verdict_fail(out,
                            "rank=%d step %d: the gradient is that of the step before, bit for "
                            "bit, and the parameters are not",
                            k, (int)now->step);
        }
    }
    if (steps >= REPEATS_MIN && of_before == steps - 1) {
        ls_verdict_fail(out, "rank=%d: the loss is %.9g in each of %d steps", k, rank->step[0].loss,
                        steps);
    }
    if (steps >= REPEATS_MIN && of_first == steps) {
        ls_verdict_fail(out,
                        "rank=%d has rank 0's loss in each of %d steps: they train on the same "
                        "images, or report the mean over ranks",
                        k, steps);
    }
}

void ls_judge_training(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    int steps = 0, losses = 0, idle = 0;
    moves sum = {0, 0, 0};
    ls_judge_training_steps(job, out);
    check_taken(job, out);
    for (int k = 0; k < job->world; k++) {
        const ls_record_rank *rank = &job->rank[k];
        moves m = count_moves(rank);
        if (m.looked > 0 && m.moved == 0) {
            ls_verdict_fail(out,
                            "rank=%d: no parameter changes in %d taken steps: nothing was "
                            "trained",
                            k, m.looked);
        }
        judge_repeats(job, k, out);
        for (int i = 0; i < rank->step_count; i++) {
            idle += rank->step[i].lr == 0;
            losses += rank->step[i].loss_lost || !isnan(rank->step[i].loss);
        }
        steps += rank->step_count;
        sum.taken += m.taken;
        sum.looked += m.looked;
    }
    int ranks = job->world > 0 ? job->world : 1;
    if (idle == steps) {
        ls_verdict_set(out, LS_WEAK, "the rate is 0 in all %d steps: nothing was trained",
                       steps / ranks);
    }
    if (losses + sum.looked == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "the events have neither losses nor digests of param");
    }
    ls_verdict_pass(out, losses + sum.looked, "%d of %d steps taken, %s%s", sum.taken / ranks,
                    steps / ranks,
                    losses > 0 ? "each with a finite loss" : "without losses in the events",
                    sum.looked > 0 ? "; parameters move" : "; without digests of param");
}

/* ---- the loss scale ---------------------------------------------------------------------------
 */

double ls_judge_scaler_tick(ls_judge_scaler_machine *m, bool overflow)
{
    if (overflow) {
        m->scale = m->scale / 2 > m->lowest ? m->scale / 2 : m->lowest;
        m->clean = 0;
    } else if (++m->clean >= m->interval) {
        m->scale = m->scale * 2 < m->highest ? m->scale * 2 : m->highest;
        m->clean = 0;
    }
    return m->scale;
}

/* The machine as the rank's own start event describes it, with Apex's defaults for what it omits.
 * It starts with the scale that was asked for; a resumed one with that of its first step. */
static ls_judge_scaler_machine machine_of(const ls_record_rank *rank, bool dynamic,
                                          const char *asked)
{
    const cJSON *options = ls_json_get(rank->start, "options");
    bool torch = strcmp(ls_json_string(options, "dialect", "apex"), "torch") == 0;
    ls_judge_scaler_machine m = {rank->step[0].loss_scale,
                                 ls_json_number(options, "min-loss-scale", 0), 0, 0,
                                 ls_json_int(options, "growth-interval", 2000)};
    m.highest = ls_json_number(options, "max-loss-scale", 0);
    if (m.highest <= 0) {
        m.highest = torch ? INFINITY : 16777216; /* 2^24: Apex's default max_loss_scale */
    }
    if (rank->step[0].step == 1) {
        double first = ls_json_number(options, "init-scale", m.scale);
        m.scale = dynamic ? fmin(fmax(first, m.lowest), m.highest) : m.scale;
        m.scale = dynamic || asked[0] == '\0' ? m.scale : strtod(asked, NULL);
    }
    return m;
}

/* The first step whose scale does not follow from the skipped steps; NULL if all do. */
static const ls_record_step *first_wrong(const ls_record_rank *rank, ls_judge_scaler_machine m,
                                         bool dynamic, double *expected, double *expected_next)
{
    for (int i = 0; i < rank->step_count; i++) {
        const ls_record_step *seen = &rank->step[i];
        double scale = *expected = m.scale;
        *expected_next = dynamic ? ls_judge_scaler_tick(&m, seen->skipped) : scale;
        if (seen->loss_scale != scale || seen->loss_scale_next != *expected_next ||
            (seen->skipped && !dynamic)) {
            return seen;
        }
    }
    return NULL;
}

/* A resumed run starts with a count of clean steps that its record does not contain: any count is
 * accepted. Those that do not reach the interval within the record are all like 0. */
static const ls_record_step *follows(const ls_record_rank *rank, bool dynamic, const char *asked,
                                     double *expected, double *expected_next)
{
    ls_judge_scaler_machine m = machine_of(rank, dynamic, asked);
    const ls_record_step *wrong = first_wrong(rank, m, dynamic, expected, expected_next);
    bool resumed = rank->step[0].step > 1;
    int least = m.interval - rank->step_count > 1 ? m.interval - rank->step_count : 1;
    for (m.clean = least; resumed && wrong != NULL && m.clean < m.interval; m.clean++) {
        if (first_wrong(rank, m, dynamic, &(double){0}, &(double){0}) == NULL) {
            return NULL;
        }
    }
    return wrong;
}

/* Whether a step's event lacks what the rule is about. */
static const char *lacks(const ls_record_rank *rank, bool dynamic)
{
    for (int i = 0; i < rank->step_count; i++) {
        const ls_record_step *seen = &rank->step[i];
        if (isnan(seen->loss_scale) || isnan(seen->loss_scale_next)) {
            return "the events have no loss scale";
        }
        if (dynamic && !seen->skip_given) {
            return "the events do not say whether a step was skipped";
        }
    }
    return NULL;
}

/* Overflows may occur at any step; given the skipped steps, the scales must follow. */
void ls_judge_scaler(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const char *asked = row->job[0].loss_scale;
    bool dynamic = strcmp(asked, "dynamic") == 0;
    int skipped = 0, moved = 0, followed = 0;
    for (int k = 0; k < job->world; k++) {
        const ls_record_rank *rank = &job->rank[k];
        if (rank->step_count == 0) {
            ls_verdict_fail(out, "rank=%d has no steps", k);
            return;
        }
        const char *lacking = lacks(rank, dynamic);
        if (lacking != NULL) {
            ls_verdict_set(out, LS_UNSUPPORTED, "rank=%d: %s", k, lacking);
            continue;
        }
        double scale = 0, next = 0;
        const ls_record_step *wrong = follows(rank, dynamic, asked, &scale, &next);
        if (wrong != NULL) {
            ls_verdict_fail(out, "rank=%d step %d: scale %g, then %g, %s; expected %g, then %g", k,
                            (int)wrong->step, wrong->loss_scale, wrong->loss_scale_next,
                            wrong->skipped ? "skipped" : "taken", scale, next);
        }
        followed += rank->step_count;
        for (int i = 0; i < rank->step_count; i++) {
            skipped += rank->step[i].skipped;
            moved += rank->step[i].loss_scale_next != rank->step[i].loss_scale;
        }
    }
    ls_judge_training_steps(job, out);
    check_taken(job, out);
    if (dynamic && moved == 0 && !ls_spec_is_timed(&row->job[0])) {
        ls_verdict_set(out, LS_WEAK,
                       "the scale stays at %g: nothing shows how it grows or backs off",
                       job->rank[0].step[0].loss_scale);
    }
    int ranks = job->world > 0 ? job->world : 1;
    ls_verdict_pass(out, followed, "scale follows its rule, %d skipped steps, %d changes",
                    skipped / ranks, moved / ranks);
}

/* ---- runs compared --------------------------------------------------------------------------- */

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
    check_taken(a, out);
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
    check_taken(job, out);
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
