/* The loss scale against a state machine of the suite's own (apex/amp/scaler.py, numerics.md
 * section 2.6): which steps are skipped, the scale of every step on every rank, and that a skipped
 * step changes nothing. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/judge/diagnose_scaler.h"
#include "suite/judge/judges.h"
#include "suite/judge/scaler.h"
#include "suite/cases/overflow.h"
#include "scaler_rows.h"
#include "suite/cases/timed.h"

typedef struct script {
    const char *name;
    const char *overflows; /* --overflow-at: "STEP[:RANK],..." */
    int world, level, steps;
    const char *dialect;
    double init, lowest, highest; /* 0: no such option */
    int interval;
    bool by_data; /* by the batches, with no --overflow-at: works for any subject */
    /* --overflow-as; "": the first element of the gradient ready first, inf. By data: "" wrong
     * targets, "nan" a pixel, "sum@STEP:RANK,..." targets that overflow in the sum of ranks only */
    const char *as;
    int accumulate; /* micro-steps */
} script;

static const script scripts[] = {
    {"plain.o1", "3,5,6", 1, 1, 12, "apex", 1024, 0, 0, 3, false, "", 1},
    {"plain.o2", "3,5,6", 1, 2, 12, "apex", 1024, 0, 0, 3, false, "", 1},
    {"first.o2", "1", 2, 2, 6, "apex", 1024, 0, 0, 2, false, "", 1},
    {"one-rank.o1", "2:1,5:0", 2, 1, 10, "apex", 1024, 0, 0, 3, false, "", 1},
    {"one-rank.o2", "2:1,5:0", 2, 2, 10, "apex", 1024, 0, 0, 3, false, "", 1},
    {"last-rank.o2.w3", "3:2,4:2", 3, 2, 10, "apex", 1024, 0, 0, 4, false, "", 1},
    {"dynamic.o0", "2:1", 2, 0, 8, "apex", 1024, 0, 0, 3, false, "", 1},
    {"dynamic.o3", "2:1", 2, 3, 8, "apex", 1024, 0, 0, 3, false, "", 1},
    {"ceiling.o2", "5", 2, 2, 14, "apex", 1024, 0, 2048, 2, false, "", 1},
    {"floor.o2", "2", 2, 2, 8, "apex", 1024, 512, 0, 3, false, "", 1},
    {"torch.o2", "2:0,6:1", 2, 2, 12, "torch", 1024, 0, 0, 3, false, "", 1},
    {"data.o1", "2:1,4:0", 2, 1, 6, "apex", LS_OVERFLOW_SCALE, 0, 0, 2000, true, "", 1},
    {"data.o2", "2:1,4:0", 2, 2, 6, "apex", LS_OVERFLOW_SCALE, 0, 0, 2000, true, "", 1},
    {"data.o3", "3:0", 2, 3, 5, "apex", LS_OVERFLOW_SCALE, 0, 0, 2000, true, "", 1},
    /* intervals and limits */
    {"every-step.o2", "3", 2, 2, 6, "apex", 256, 0, 0, 1, false, "", 1},
    {"due.o2", "3,6,9", 1, 2, 12, "apex", 1024, 0, 0, 3, false, "", 1},
    {"due.torch.o1", "2,4", 2, 1, 8, "torch", 1024, 0, 0, 2, false, "", 1},
    {"in-a-row.o1", "2,3,4,5,6,7", 2, 1, 10, "apex", 65536, 0, 0, 2, false, "", 1},
    /* a growth that would pass it stops at it */
    {"past-ceiling.o2", "5", 2, 2, 14, "apex", 1024, 0, 3000, 2, false, "", 1},
    {"at-ceiling.o2", "4", 2, 2, 8, "apex", 2048, 0, 2048, 2, false, "", 1},
    {"clamped-down.o2", "3", 2, 2, 6, "apex", 65536, 0, 512, 2, false, "", 1},
    {"clamped-up.o2", "4", 2, 2, 6, "apex", 256, 1024, 0, 2, false, "", 1},
    {"below-one.o2", "1,2,3", 1, 2, 6, "apex", 2, 0, 0, 2, false, "", 1},
    {"floor.torch.o2", "2", 2, 2, 6, "torch", 1024, 512, 0, 2, false, "", 1},
    {"ceiling.torch.o1", "5", 2, 1, 9, "torch", 1024, 0, 4096, 1, false, "", 1},
    {"four-ranks.o1", "2:3,4:0", 4, 1, 6, "apex", 1024, 0, 0, 2, false, "", 1},
    {"four-ranks.o2", "2:3,4:0", 4, 2, 6, "apex", 1024, 0, 0, 2, false, "", 1},
    /* what is not finite, and where; conv1 is in the last bucket */
    {"nan.o1", "2:1,4:0", 2, 1, 5, "apex", 1024, 0, 0, 9, false, "nan", 1},
    {"nan.o2", "2:1,4:0", 2, 2, 5, "apex", 1024, 0, 0, 9, false, "nan", 1},
    {"minus-inf.o2", "2:1", 2, 2, 4, "apex", 1024, 0, 0, 9, false, "-inf", 1},
    {"last-element.o2", "2:1", 2, 2, 4, "apex", 1024, 0, 0, 9, false, "inf@fc.weight:last", 1},
    {"middle-element.o1", "2:0", 2, 1, 4, "apex", 1024, 0, 0, 9, false,
     "nan@layer2.0.conv1.weight:middle", 1},
    {"middle-element.o2", "2:0", 2, 2, 4, "apex", 1024, 0, 0, 9, false,
     "nan@layer2.0.conv1.weight:middle", 1},
    {"last-bucket.o1", "2:1", 2, 1, 4, "apex", 1024, 0, 0, 9, false, "inf@conv1.weight:first", 1},
    {"last-bucket.o2", "2:1", 2, 2, 4, "apex", 1024, 0, 0, 9, false, "nan@conv1.weight:last", 1},
    {"last-bucket.w3.o2", "2:2", 3, 2, 4, "apex", 1024, 0, 0, 9, false, "-inf@conv1.weight:middle",
     1},
    {"norm-weight.o2", "2:1", 2, 2, 4, "apex", 1024, 0, 0, 9, false, "inf@bn1.weight:last", 1},
    {"norm-bias.o2", "2:0", 2, 2, 4, "apex", 1024, 0, 0, 9, false, "nan@layer3.0.bn2.bias:last", 1},
    {"norm-bias.o3", "2:1", 2, 3, 4, "apex", 1024, 0, 0, 9, false, "nan@layer3.0.bn2.bias:first",
     1},
    {"bias.o0", "2:1", 2, 0, 4, "apex", 1024, 0, 0, 9, false, "nan@fc.bias:last", 1},
    /* with accumulation: a spoilt micro-step is one skip, and S is constant inside the step */
    {"micro-first.o1", "2:1,4:0", 2, 1, 6, "apex", 1024, 0, 0, 2, false, "inf@fc.bias:first:0", 3},
    {"micro-first.o2", "2:1,4:0", 2, 2, 6, "apex", 1024, 0, 0, 2, false, "nan@conv1.weight:last:0",
     3},
    {"micro-middle.o2", "3:0", 2, 2, 6, "apex", 1024, 0, 0, 2, false, "-inf@bn1.bias:middle:1", 3},
    {"micro-last.o2", "3:0", 2, 2, 6, "apex", 1024, 0, 0, 2, false, "inf@conv1.weight:first:2", 3},
    /* the ceiling of 2^24 that nobody asked for; torch has none */
    {"cap.o0", "1", 2, 0, 8, "apex", 8388608, 0, 0, 2, false, "", 1},
    {"cap.torch.o0", "1", 2, 0, 8, "torch", 8388608, 0, 0, 2, false, "", 1},
    /* one NaN in one rank's images */
    {"nan-image.o1", "2:1", 2, 1, 5, "apex", 1024, 0, 0, 2000, true, "nan", 1},
    {"nan-image.o2", "3:0", 2, 2, 5, "apex", 1024, 0, 0, 2000, true, "nan", 1},
    /* each rank's gradient is 32768 and finite, their sum is not; at half the scale it is */
    {"sum.o2", "2", 2, 2, 6, "apex", 131072, 0, 0, 2000, true, "sum@1:0,2:0,2:1,4:0,4:1", 1},
    {"sum.o3", "3", 2, 3, 6, "apex", 131072, 0, 0, 2000, true, "sum@2:1,3:0,3:1,5:0,5:1", 1},
};

/* Whether `step` overflows by the script on `rank`; -1: on whatever rank, as gradients are reduced
 * before they are looked at. Without a rank every one is meant. */
static bool scripted(const char *overflows, int64_t step, int rank)
{
    char copy[128];
    ls_text_put(copy, sizeof copy, "%s", overflows);
    char *rest = NULL;
    for (char *word = strtok_r(copy, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        const char *colon = strchr(word, ':');
        bool here = rank < 0 || colon == NULL || atoi(colon + 1) == rank;
        if (atoll(word) == step && here) {
            return true;
        }
    }
    return false;
}

static ls_judge_scaler_machine machine_start(const script *s)
{
    ls_judge_scaler_machine m = {s->init, s->lowest, s->highest > 0 ? s->highest : INFINITY, 0,
                                 s->interval};
    m.scale = m.scale > m.lowest ? m.scale : m.lowest; /* limits hold from the start */
    m.scale = m.scale < m.highest ? m.scale : m.highest;
    if (s->highest <= 0 && strcmp(s->dialect, "apex") == 0) {
        m.highest = 16777216; /* 2^24: Apex's default max_loss_scale */
    }
    return m;
}

enum { TRACE_MAX = 64 };

static void explain(const script *s, const ls_record *job, int rank, ls_verdict *out)
{
    ls_judge_scaler_machine m = machine_start(s);
    bool overflow[TRACE_MAX], own[TRACE_MAX], skipped[TRACE_MAX];
    double scale[TRACE_MAX], next[TRACE_MAX];
    int count = s->steps < TRACE_MAX ? s->steps : TRACE_MAX;
    for (int i = 0; i < count; i++) {
        const ls_record_step *seen = ls_record_find_step(&job->rank[rank], i + 1);
        if (seen == NULL) {
            return;
        }
        overflow[i] = scripted(s->overflows, i + 1, -1);
        own[i] = scripted(s->overflows, i + 1, rank);
        scale[i] = seen->loss_scale;
        next[i] = seen->loss_scale_next;
        skipped[i] = seen->skipped;
    }
    ls_diagnose_scaler trace = {m.scale,  m.lowest, m.highest, m.interval, count,
                                overflow, own,      scale,     next,       skipped};
    ls_diagnose_scaler_find(&trace, out->cause, (int)sizeof out->cause);
}

/* One rank's trace; returns how many steps were skipped. */
static int judge_rank(const script *s, const ls_record *job, int rank, ls_verdict *out)
{
    ls_judge_scaler_machine m = machine_start(s);
    int skipped = 0;
    for (int64_t step = 1; step <= s->steps; step++) {
        const ls_record_step *seen = ls_record_find_step(&job->rank[rank], step);
        if (seen == NULL) {
            ls_verdict_fail(out, "rank=%d has no event of step %d", rank, (int)step);
            return skipped;
        }
        if (isnan(seen->loss_scale) || isnan(seen->loss_scale_next)) {
            ls_verdict_set(out, LS_UNSUPPORTED, "rank=%d step %d: the event has no loss scale",
                           rank, (int)step);
            return skipped;
        }
        double scale = m.scale;
        bool overflow = scripted(s->overflows, step, -1);
        double next = ls_judge_scaler_tick(&m, overflow);
        skipped += seen->skipped;
        if (seen->loss_scale != scale || seen->loss_scale_next != next ||
            seen->skipped != overflow) {
            ls_verdict_fail(out, "rank=%d step %d: scale %g, then %g, %s; expected %g, then %g, %s",
                            rank, (int)step, seen->loss_scale, seen->loss_scale_next,
                            seen->skipped ? "skipped" : "taken", scale, next,
                            overflow ? "skipped" : "taken");
            explain(s, job, rank, out);
            return skipped;
        }
    }
    return skipped;
}

static void judge_trace(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const script *s = &scripts[row->number[0]];
    int skipped = 0;
    for (int k = 0; k < job->world; k++) {
        skipped += judge_rank(s, job, k, out);
    }
    if (skipped == 0) {
        ls_verdict_set(out, LS_WEAK, "no overflow happened");
    }
    ls_verdict_pass(out, "%d steps on %d ranks as the state machine says, %d skipped", s->steps,
                    job->world, skipped / job->world);
}

/* Digests of this step against those of the step before: equal where nothing may change. */
static void judge_digests(const ls_record_rank *rank, int k, int64_t step, ls_verdict *out)
{
    const ls_record_step *now = ls_record_find_step(rank, step);
    const ls_record_step *before = ls_record_find_step(rank, step - 1);
    if (now == NULL || before == NULL) {
        return;
    }
    if ((now->digest_mask & 1u << LS_RECORD_PARAM) == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "rank=%d step %d: no digest of the parameters", k,
                       (int)step);
        return;
    }
    static const ls_record_digest still[] = {LS_RECORD_PARAM, LS_RECORD_MASTER, LS_RECORD_STATE};
    for (size_t i = 0; i < sizeof still / sizeof *still; i++) {
        bool both = (now->digest_mask & before->digest_mask & 1u << still[i]) != 0;
        if (now->skipped && both && strcmp(now->digest[still[i]], before->digest[still[i]]) != 0) {
            ls_verdict_fail(out, "rank=%d step %d was skipped, but %s changed (%s to %s)", k,
                            (int)step, ls_record_digest_name(still[i]), before->digest[still[i]],
                            now->digest[still[i]]);
        }
    }
    if (!now->skipped &&
        strcmp(now->digest[LS_RECORD_PARAM], before->digest[LS_RECORD_PARAM]) == 0) {
        ls_verdict_fail(out, "rank=%d step %d was taken, but no parameter changed", k, (int)step);
    }
    bool buffers = (now->digest_mask & before->digest_mask & 1u << LS_RECORD_BUFFER) != 0;
    if (now->skipped && buffers &&
        strcmp(now->digest[LS_RECORD_BUFFER], before->digest[LS_RECORD_BUFFER]) == 0) {
        ls_verdict_fail(out,
                        "rank=%d step %d was skipped: running statistics move in its forward, but "
                        "did not",
                        k, (int)step);
    }
}

static void judge_still(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    const script *s = &scripts[row->number[0]];
    int skipped = 0;
    for (int k = 0; k < job->world; k++) {
        for (int64_t step = 2; step <= s->steps; step++) {
            const ls_record_step *seen = ls_record_find_step(&job->rank[k], step);
            skipped += seen != NULL && seen->skipped;
            judge_digests(&job->rank[k], k, step, out);
        }
    }
    if (skipped == 0) {
        ls_verdict_set(out, LS_WEAK, "no step after the first was skipped");
    }
    ls_verdict_pass(out, "%d skipped steps changed no parameter, master or moment", skipped);
}

static ls_spec script_spec(const ls_case_settings *settings, const script *s)
{
    ls_spec spec = ls_rows_evidence(settings, s->level, s->world, 1,
                                    strcmp(s->dialect, "torch") == 0 ? LS_BUCKET_OWN : 0.1);
    ls_text_put(spec.arch, sizeof spec.arch, "resnet8");
    ls_text_put(spec.dialect, sizeof spec.dialect, "%s", s->dialect);
    ls_text_put(spec.loss_scale, sizeof spec.loss_scale, "dynamic");
    spec.dump_steps[0] = '\0';
    spec.steps = s->steps;
    if (s->by_data) {
        bool sum = strncmp(s->as, "sum@", 4) == 0;
        ls_overflow_kind kind = sum                ? LS_OVERFLOW_SUM
                                : s->as[0] != '\0' ? LS_OVERFLOW_NAN
                                                   : LS_OVERFLOW_TARGETS;
        ls_overflow_spec_of(&spec, kind, sum ? s->as + 4 : s->overflows, s->init);
        ls_text_add(spec.extra, sizeof spec.extra, "%s", sum ? " --average=post" : "");
        return spec;
    }
    ls_text_put(spec.extra, sizeof spec.extra,
                "--init-scale=%.9g --growth-interval=%d --overflow-at=%s", s->init, s->interval,
                s->overflows);
    spec.accumulate = s->accumulate;
    if (s->as[0] != '\0') {
        ls_text_add(spec.extra, sizeof spec.extra, " --overflow-as=%s", s->as);
    }
    if (s->lowest > 0) {
        ls_text_add(spec.extra, sizeof spec.extra, " --min-loss-scale=%g", s->lowest);
    }
    if (s->highest > 0) {
        ls_text_add(spec.extra, sizeof spec.extra, " --max-loss-scale=%g", s->highest);
    }
    return spec;
}

/* A static scale is never skipped and never changed; what it lets through ends the run. */
static void judge_static(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    for (int k = 0; k < job->world; k++) {
        for (int i = 0; i < job->rank[k].step_count; i++) {
            const ls_record_step *seen = &job->rank[k].step[i];
            if (seen->skipped || seen->loss_scale != 128 || seen->loss_scale_next != 128) {
                if (seen->skipped) {
                    ls_verdict_cause(out, "steps are skipped under a static scale, too");
                }
                ls_verdict_fail(out, "rank=%d step %d: static scale 128 became %g, %s", k,
                                (int)seen->step, seen->loss_scale_next,
                                seen->skipped ? "skipped" : "taken");
            }
        }
    }
    if (job->state != LS_RECORD_FAILED || job->code != LS_ERR_NON_FINITE) {
        ls_verdict_fail(out, "expected exit code 12 after an infinite gradient, got %d", job->code);
    }
    ls_verdict_pass(out, "the infinite gradient was applied and ended the run with exit code 12");
}

/* An overflow at the floor ends the run (where we deviate from Apex: requirements.txt, S4). */
static void judge_floor(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    if (job->state != LS_RECORD_FAILED || job->code != LS_ERR_NON_FINITE) {
        ls_verdict_fail(out, "expected exit code 12 at the floor, got %d", job->code);
        ls_verdict_cause(out, "the floor of the scale is not kept");
    }
    for (int k = 0; k < job->world; k++) {
        const ls_record_step *seen = ls_record_find_step(&job->rank[k], 2);
        if (seen == NULL || !seen->skipped || seen->loss_scale_next != 512) {
            ls_verdict_fail(out, "rank=%d step 2: expected a skipped step and scale 512", k);
        }
    }
    ls_verdict_pass(out,
                    "the second overflow, at --min-loss-scale, ended the run with exit code 12");
}

static void add_timed(const ls_case_settings *settings, ls_case_list *list)
{
    for (int i = 0; settings->bench != NULL && i < settings->bench->count; i++) {
        const ls_spec *spec = &settings->bench->spec[i];
        if (spec->role == LS_ROLE_THROUGHPUT && spec->level > 0) {
            char id[64];
            ls_timed_id(spec, id);
            ls_case *row = ls_rows_add(list, ls_judge_scaler, "S1", "scaler.timed.%s", id);
            row->job_count = 1;
            row->job[0] = *spec;
        }
    }
}

/* The fiftieth overflow in a row ends the run, and the line says what was bad. */
static void judge_streak(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    char line[240];
    ls_record_last_line(job, 0, line, (int)sizeof line);
    (void)row;
    if (job->state != LS_RECORD_FAILED || job->code != LS_ERR_NON_FINITE) {
        ls_verdict_fail(out, "expected exit code 12 after 50 overflows, got %d",
                        job->state == LS_RECORD_DONE ? 0 : job->code);
    }
    const ls_record_step *last = ls_record_find_step(&job->rank[0], 50);
    if (last == NULL || !last->skipped || ls_record_find_step(&job->rank[0], 51) != NULL) {
        ls_verdict_fail(out, "the run must end with step 50; it has %d steps",
                        job->rank[0].step_count);
    }
    if (strstr(line, "50 overflows in a row") == NULL || strstr(line, "fc.bias") == NULL) {
        ls_verdict_fail(out, "the last line names neither the streak nor fc.bias: %s", line);
    }
    ls_verdict_pass(out, "%s", line);
}

static void add_streak(const ls_case_settings *settings, ls_case_list *list)
{
    ls_case *row = ls_rows_add(list, judge_streak, "S5", "scaler.streak-ends.o2");
    row->job_count = 1;
    row->judges_outcome = true;
    ls_spec *spec = &row->job[0];
    *spec = script_spec(settings, &scripts[1]);
    spec->steps = 52;
    /* 2^60: fifty halvings stay above the floor of 2^-24 */
    ls_text_put(spec->extra, sizeof spec->extra,
                "--init-scale=1152921504606846976 --max-loss-scale=1152921504606846976 "
                "--overflow-as=nan@fc.bias --overflow-at=1");
    for (int step = 2; step <= 52; step++) {
        ls_text_add(spec->extra, sizeof spec->extra, ",%d", step);
    }
}

/* Saved one clean step before S doubles: the resumed run doubles at the same step. */
static void add_resumed(const ls_case_settings *settings, ls_case_list *list)
{
    for (int level = 1; level <= 2; level++) {
        ls_case *row = ls_rows_add(list, ls_judge_resume, "S7", "scaler.resumed.o%d", level);
        script s = {"", "2:1,9:0", 2, level, 10, "apex", 1024, 0, 0, 4, false, "", 1};
        row->job_count = 3;
        ls_spec straight = script_spec(settings, &s), saved = straight, resumed = straight;
        char id[96];
        saved.steps = 5; /* overflow at 2, clean 3, 4, 5: the fourth clean step is 6 */
        ls_text_add(saved.extra, sizeof saved.extra, " --save={self}/checkpoint.safetensors");
        ls_matrix_id(&saved, id);
        ls_text_add(resumed.extra, sizeof resumed.extra,
                    " --resume={job:%s}/checkpoint.safetensors", id);
        row->job[0] = straight;
        row->job[1] = saved;
        row->job[2] = resumed;
    }
}

/* Saved within a row of overflows: the row goes on, so that it ends the run where it would have. */
static void add_resumed_row(const ls_case_settings *settings, ls_case_list *list)
{
    ls_case *row = ls_rows_add(list, ls_judge_resume, "S8", "scaler.resumed.row.o2");
    script s = {"", "2:1,3:0,4:1", 2, 2, 6, "apex", 1024, 0, 0, 4, false, "", 1};
    ls_spec straight = script_spec(settings, &s), saved = straight, resumed = straight;
    char id[96];
    saved.steps = 3;
    ls_text_add(saved.extra, sizeof saved.extra, " --save={self}/checkpoint.safetensors");
    ls_matrix_id(&saved, id);
    ls_text_add(resumed.extra, sizeof resumed.extra, " --resume={job:%s}/checkpoint.safetensors",
                id);
    row->job_count = 3;
    row->job[0] = straight;
    row->job[1] = saved;
    row->job[2] = resumed;
}

void ls_scaler_cases(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        ls_spec spec = script_spec(settings, &scripts[i]);
        /* a trainer that divides first, as torch does, has no sum that overflows */
        bool sum = strncmp(scripts[i].as, "sum@", 4) == 0;
        ls_case *row = ls_rows_add(list, judge_trace, "S1", "%s.%s",
                                   sum ? "average" : "scaler.trace", scripts[i].name);
        row->job_count = 1;
        row->job[0] = spec;
        row->number[0] = (int)i;
        if (scripts[i].overflows[0] == '1' || scripts[i].by_data) {
            continue; /* nothing stands before the first step; gradients of zero move nothing */
        }
        row = ls_rows_add(list, judge_still, "S2", "scaler.skip.%s", scripts[i].name);
        row->job_count = 1;
        row->job[0] = spec;
        row->number[0] = (int)i;
    }
    ls_case *row = ls_rows_add(list, judge_static, "S3", "scaler.static.o2");
    row->job_count = 1;
    row->job[0] = ls_rows_evidence(settings, 2, 2, 1, 0.1);
    ls_text_put(row->job[0].arch, sizeof row->job[0].arch, "resnet8");
    row->job[0].dump_steps[0] = '\0';
    row->job[0].steps = 6;
    ls_text_put(row->job[0].extra, sizeof row->job[0].extra, "--overflow-at=3:1");
    row->judges_outcome = true;
    row = ls_rows_add(list, judge_floor, "S4", "scaler.floor-ends.o2");
    row->job_count = 1;
    row->job[0] = script_spec(settings, &scripts[1]);
    row->job[0].steps = 5;
    ls_text_put(row->job[0].extra, sizeof row->job[0].extra,
                "--init-scale=1024 --growth-interval=9 --min-loss-scale=512 --overflow-at=2,3");
    row->judges_outcome = true;
    add_streak(settings, list);
    add_resumed(settings, list);
    add_resumed_row(settings, list);
    ls_scaler_machine_cases(list);
    add_timed(settings, list);
}
