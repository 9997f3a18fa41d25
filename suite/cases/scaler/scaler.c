/* The loss scale against a state machine of the suite's own (apex/amp/scaler.py, numerics.md
 * section 2.6): which steps are skipped, the scale of every step on every rank, and that a skipped
 * step changes nothing. */
#include "suite/cases/rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/judge/diagnose.h"
#include "suite/judge/judges.h"

typedef struct script {
    const char *name, *job;
    const char *overflows; /* --overflow-at: "STEP[:RANK],..." */
    double init;
    int interval;
    double lowest, highest; /* 0: no such option */
    const char *as; /* --overflow-as; NULL: the first element of the gradient ready first, inf */
    /* by the batches, with no --overflow-at: works for any subject. "at": wrong targets, "nan" and
     * "spoilt": a pixel, "sum": targets that overflow in the sum of ranks only */
    const char *batches;
} script;

static const script scripts[] = {
    {"plain.o1", "O1 steps=12", "3,5,6", 1024, 3},
    {"plain.o2", "O2 steps=12", "3,5,6", 1024, 3},
    {"first.o2", "O2 w2 steps=6", "1", 1024, 2},
    {"one-rank.o1", "O1 w2 steps=10", "2:1,5:0", 1024, 3},
    {"one-rank.o2", "O2 w2 steps=10", "2:1,5:0", 1024, 3},
    {"last-rank.o2.w3", "O2 w3 steps=10", "3:2,4:2", 1024, 4},
    {"dynamic.o0", "O0 w2 steps=8", "2:1", 1024, 3},
    {"dynamic.o3", "O3 w2 steps=8", "2:1", 1024, 3},
    {"ceiling.o2", "O2 w2 steps=14", "5", 1024, 2, .highest = 2048},
    {"floor.o2", "O2 w2 steps=8", "2", 1024, 3, .lowest = 512},
    {"torch.o2", "O2 w2 steps=12 torch", "2:0,6:1", 1024, 3},
    {"data.o1", "O1 w2 steps=6", "2:1,4:0", LS_OVERFLOW_SCALE, 2000, .batches = "at@2:1,4:0"},
    {"data.o2", "O2 w2 steps=6", "2:1,4:0", LS_OVERFLOW_SCALE, 2000, .batches = "at@2:1,4:0"},
    {"data.o3", "O3 w2 steps=5", "3:0", LS_OVERFLOW_SCALE, 2000, .batches = "at@3:0"},
    /* intervals and limits */
    {"every-step.o2", "O2 w2 steps=6", "3", 256, 1},
    {"due.o2", "O2 steps=12", "3,6,9", 1024, 3},
    {"due.torch.o1", "O1 w2 steps=8 torch", "2,4", 1024, 2},
    {"in-a-row.o1", "O1 w2 steps=10", "2,3,4,5,6,7", 65536, 2},
    /* a growth that would pass it stops at it */
    {"past-ceiling.o2", "O2 w2 steps=14", "5", 1024, 2, .highest = 3000},
    {"at-ceiling.o2", "O2 w2 steps=8", "4", 2048, 2, .highest = 2048},
    {"clamped-down.o2", "O2 w2 steps=6", "3", 65536, 2, .highest = 512},
    {"clamped-up.o2", "O2 w2 steps=6", "4", 256, 2, .lowest = 1024},
    {"below-one.o2", "O2 steps=6", "1,2,3", 2, 2},
    {"floor.torch.o2", "O2 w2 steps=6 torch", "2", 1024, 2, .lowest = 512},
    {"ceiling.torch.o1", "O1 w2 steps=9 torch", "5", 1024, 1, .highest = 4096},
    {"four-ranks.o1", "O1 w4 steps=6", "2:3,4:0", 1024, 2},
    {"four-ranks.o2", "O2 w4 steps=6", "2:3,4:0", 1024, 2},
    /* what is not finite, and where; conv1 is in the last bucket */
    {"nan.o1", "O1 w2 steps=5", "2:1,4:0", 1024, 9, .as = "nan"},
    {"nan.o2", "O2 w2 steps=5", "2:1,4:0", 1024, 9, .as = "nan"},
    {"minus-inf.o2", "O2 w2 steps=4", "2:1", 1024, 9, .as = "-inf"},
    {"last-element.o2", "O2 w2 steps=4", "2:1", 1024, 9, .as = "inf@fc.weight:last"},
    {"middle-element.o1", "O1 w2 steps=4", "2:0", 1024, 9,
     .as = "nan@layer2.0.conv1.weight:middle"},
    {"middle-element.o2", "O2 w2 steps=4", "2:0", 1024, 9,
     .as = "nan@layer2.0.conv1.weight:middle"},
    {"last-bucket.o1", "O1 w2 steps=4", "2:1", 1024, 9, .as = "inf@conv1.weight:first"},
    {"last-bucket.o2", "O2 w2 steps=4", "2:1", 1024, 9, .as = "nan@conv1.weight:last"},
    {"last-bucket.w3.o2", "O2 w3 steps=4", "2:2", 1024, 9, .as = "-inf@conv1.weight:middle"},
    {"norm-weight.o2", "O2 w2 steps=4", "2:1", 1024, 9, .as = "inf@bn1.weight:last"},
    {"norm-bias.o2", "O2 w2 steps=4", "2:0", 1024, 9, .as = "nan@layer3.0.bn2.bias:last"},
    {"norm-bias.o3", "O3 w2 steps=4", "2:1", 1024, 9, .as = "nan@layer3.0.bn2.bias:first"},
    {"bias.o0", "O0 w2 steps=4", "2:1", 1024, 9, .as = "nan@fc.bias:last"},
    /* with accumulation: a spoilt micro-step is one skip, and S is constant inside the step */
    {"micro-first.o1", "O1 w2 steps=6 accumulate=3", "2:1,4:0", 1024, 2,
     .as = "inf@fc.bias:first:0"},
    {"micro-first.o2", "O2 w2 steps=6 accumulate=3", "2:1,4:0", 1024, 2,
     .as = "nan@conv1.weight:last:0"},
    {"micro-middle.o2", "O2 w2 steps=6 accumulate=3", "3:0", 1024, 2,
     .as = "-inf@bn1.bias:middle:1"},
    {"micro-last.o2", "O2 w2 steps=6 accumulate=3", "3:0", 1024, 2,
     .as = "inf@conv1.weight:first:2"},
    /* the default ceiling of 2^24; torch has none */
    {"cap.o0", "O0 w2 steps=8", "1", 8388608, 2},
    {"cap.torch.o0", "O0 w2 steps=8 torch", "1", 8388608, 2},
    /* one NaN in one rank's images */
    {"nan-image.o1", "O1 w2 steps=5", "2:1", 1024, 2000, .batches = "nan@2:1"},
    {"nan-image.o2", "O2 w2 steps=5", "3:0", 1024, 2000, .batches = "nan@3:0"},
    /* each rank's gradient is 32768 and finite, their sum is not; at half the scale it is */
    {"sum.o2", "O2 w2 steps=6", "2", 131072, 2000, .batches = "sum@1:0,2:0,2:1,4:0,4:1"},
    {"sum.o3", "O3 w2 steps=6", "3", 131072, 2000, .batches = "sum@2:1,3:0,3:1,5:0,5:1"},
    /* the scripts above for trainers without --overflow-at: at any scale a NaN in one rank's images
     * spoils the gradients of a step */
    {"plain.data.o1", "O1 steps=12", "3,5,6", 1024, 3, .batches = "spoilt@3:0,5:0,6:0"},
    {"one-rank.data.o1", "O1 w2 steps=10", "2:1,5:0", 1024, 3, .batches = "spoilt@2:1,5:0"},
    {"dynamic.data.o0", "O0 w2 steps=8", "2:1", 1024, 3, .batches = "spoilt@2:1"},
    {"due.data.torch.o1", "O1 w2 steps=8 torch", "2,4", 1024, 2, .batches = "spoilt@2:0,4:1"},
    {"in-a-row.data.o1", "O1 w2 steps=10", "2,3,4,5,6,7", 65536, 2,
     .batches = "spoilt@2:0,3:1,4:0,5:1,6:0,7:1"},
    {"four-ranks.data.o1", "O1 w4 steps=6", "2:3,4:0", 1024, 2, .batches = "spoilt@2:3,4:0"},
    {"micro-first.data.o1", "O1 w2 steps=6 accumulate=3", "2:1,4:0", 1024, 2,
     .batches = "spoilt@2:1,4:0"},
};

/* Whether `step` overflows by the script on `rank`; -1: on whatever rank, as gradients are reduced
 * before they are looked at. Without a rank every one is meant. */
static bool scripted(const char *overflows, int64_t step, int rank)
{
    LS_TEXT(copy, 128, "%s", overflows);
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

static ls_judge_scaler_machine machine_start(const ls_case *row)
{
    const script *s = row->data;
    ls_judge_scaler_machine m = {s->init, s->lowest, s->highest > 0 ? s->highest : INFINITY, 0,
                                 s->interval};
    m.scale = m.scale > m.lowest ? m.scale : m.lowest; /* limits hold from the start */
    m.scale = m.scale < m.highest ? m.scale : m.highest;
    if (s->highest <= 0 && strcmp(row->job[0].dialect, "apex") == 0) {
        m.highest = 16777216; /* 2^24: Apex's default max_loss_scale */
    }
    return m;
}

enum { TRACE_MAX = 64 };

static void explain(const ls_case *row, const ls_record *job, int rank, ls_verdict *out)
{
    const script *s = row->data;
    ls_judge_scaler_machine m = machine_start(row);
    bool overflow[TRACE_MAX], own[TRACE_MAX], skipped[TRACE_MAX];
    double scale[TRACE_MAX], next[TRACE_MAX];
    int count = row->job[0].steps < TRACE_MAX ? row->job[0].steps : TRACE_MAX;
    for (int i = 0; i < count; i++) {
        const ls_record_step *seen = ls_record_find_step(&job->rank[rank], i + 1);
        if (seen == NULL || isnan(seen->loss_scale) || isnan(seen->loss_scale_next)) {
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
static int judge_rank(const ls_case *row, const ls_record *job, int rank, ls_verdict *out)
{
    const script *s = row->data;
    ls_judge_scaler_machine m = machine_start(row);
    int skipped = 0;
    for (int64_t step = 1; step <= row->job[0].steps; step++) {
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
        if (!seen->skip_given) {
            ls_verdict_set(out, LS_UNSUPPORTED,
                           "rank=%d step %d: the event does not say whether it was skipped", rank,
                           (int)step);
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
            explain(row, job, rank, out);
            return skipped;
        }
    }
    return skipped;
}

static void judge_trace(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int skipped = 0;
    for (int k = 0; k < job->world; k++) {
        skipped += judge_rank(row, job, k, out);
    }
    if (skipped == 0) {
        ls_verdict_set(out, LS_WEAK, "no overflow happened");
    }
    ls_verdict_pass(out, (int64_t)row->job[0].steps * job->world,
                    "%d steps on %d ranks as the state machine says, %d skipped", row->job[0].steps,
                    job->world, skipped / job->world);
}

/* Digests of this step against those of the step before: equal where nothing may change. Returns
 * whether the step was skipped and they were compared. */
static bool judge_digests(const ls_record_rank *rank, int k, int64_t step, ls_verdict *out)
{
    const ls_record_step *now = ls_record_find_step(rank, step);
    const ls_record_step *before = ls_record_find_step(rank, step - 1);
    if (now == NULL || before == NULL) { /* a record with fewer steps breaks the protocol */
        return false;
    }
    if ((now->digest_mask & before->digest_mask & 1u << LS_RECORD_PARAM) == 0) {
        ls_verdict_set(out, LS_UNSUPPORTED, "rank=%d step %d: no digest of the parameters", k,
                       (int)step);
        return false;
    }
    ls_judge_training_skip(before, now, k, out);
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
    return now->skipped;
}

static void judge_still(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int skipped = 0;
    for (int k = 0; k < job->world; k++) {
        for (int64_t step = 2; step <= row->job[0].steps; step++) {
            skipped += judge_digests(&job->rank[k], k, step, out);
        }
    }
    if (skipped == 0) {
        ls_verdict_set(out, LS_WEAK, "no step after the first was skipped");
    }
    ls_verdict_pass(out, skipped, "%d skipped steps changed no parameter, master or moment",
                    skipped);
}

/* A static scale is never skipped and never changed; what it lets through ends the run. */
static void judge_static(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    int compared = 0;
    (void)row;
    for (int k = 0; k < job->world; k++) {
        if (job->rank[k].step_count < 2) {
            ls_verdict_fail(out, "rank=%d has %d step events: the infinite gradient is in step 3",
                            k, job->rank[k].step_count);
        }
        for (int i = 0; i < job->rank[k].step_count; i++, compared++) {
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
    ls_verdict_pass(out, compared,
                    "the infinite gradient was applied and ended the run with exit code 12");
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
    ls_verdict_pass(out, job->world,
                    "the second overflow, at --min-loss-scale, ended the run with exit code 12");
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
    ls_verdict_pass(out, 1, "%s", line);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void add_scripts(const ls_case_settings *settings, ls_case_list *list)
{
    for (size_t i = 0; i < sizeof scripts / sizeof *scripts; i++) {
        const script *s = &scripts[i];
        /* a trainer that divides first, as torch does, has no sum that overflows */
        bool sum = s->batches != NULL && strncmp(s->batches, "sum", 3) == 0;
        LS_TEXT(job, 400, "resnet8 scale=dynamic %s %s --init-scale=%.9g", s->job,
                strstr(s->job, "torch") == NULL ? "b0.1" : "", s->init);
        if (s->batches != NULL) {
            ls_text_add(job, sizeof job, " batches=%s%s", s->batches, sum ? " --average=post" : "");
            if (s->interval != 2000) { /* the default */
                ls_text_add(job, sizeof job, " --growth-interval=%d", s->interval);
            }
        } else {
            ls_text_add(job, sizeof job, " --growth-interval=%d --overflow-at=%s", s->interval,
                        s->overflows);
        }
        if (s->as != NULL) {
            ls_text_add(job, sizeof job, " --overflow-as=%s", s->as);
        }
        if (s->lowest > 0) {
            ls_text_add(job, sizeof job, " --min-loss-scale=%g", s->lowest);
        }
        if (s->highest > 0) {
            ls_text_add(job, sizeof job, " --max-loss-scale=%g", s->highest);
        }
        ls_rows_format(list, settings,
                       &(ls_row){.requirement = "S1", .judge = judge_trace, .data = s}, "%s.%s: %s",
                       sum ? "average" : "scaler.trace", s->name, job);
        /* nothing stands before the first step; gradients of zero move nothing */
        bool moves = s->batches == NULL || strncmp(s->batches, "spoilt", 6) == 0;
        if (s->overflows[0] != '1' && moves) {
            ls_rows_format(list, settings,
                           &(ls_row){.requirement = "S2", .judge = judge_still, .data = s},
                           "scaler.skip.%s: %s", s->name, job);
        }
    }
}

#define SMALL "resnet8 O2 b0.1 scale=dynamic "
/* Saved one clean step before S doubles (overflow at 2, clean 3, 4, 5: the fourth clean step is 6):
 * the resumed run doubles at the same step. */
#define BEFORE_GROWTH                                                          \
    "resnet8 O$1 w2 b0.1 scale=dynamic --init-scale=1024 --growth-interval=4 " \
    "--overflow-at=2:1,9:0 "
#define BEFORE_GROWTH_BY_DATA                                                 \
    "resnet8 O1 w2 b0.1 scale=dynamic --init-scale=1024 --growth-interval=4 " \
    "batches=spoilt@2:1,9:0 "
/* Saved within a row of overflows: the row goes on, so that it ends the run where it would have. */
#define WITHIN_ROW SMALL "w2 --init-scale=1024 --growth-interval=4 --overflow-at=2:1,3:0,4:1 "

static const ls_row rows[] = {
    {"scaler.static.o2", "S3", judge_static, "resnet8 O2 w2 b0.1 steps=6 --overflow-at=3:1",
     .judges_outcome = true},
    {"scaler.floor-ends.o2", "S4", judge_floor,
     SMALL "steps=5 --init-scale=1024 --growth-interval=9 --min-loss-scale=512 --overflow-at=2,3",
     .judges_outcome = true},
    /* 2^60: fifty halvings stay above the floor of 2^-24 */
    {"scaler.streak-ends.o2", "S5", judge_streak,
     SMALL
     "steps=52 --init-scale=1152921504606846976 --max-loss-scale=1152921504606846976 "
     "--overflow-as=nan@fc.bias --overflow-at=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,"
     "20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,"
     "49,50,51,52",
     .judges_outcome = true},
    {"scaler.resumed.o[1|2]", "S7", ls_judge_resume,
     BEFORE_GROWTH "steps=10 | " BEFORE_GROWTH
                   "steps=5 --save={self}/checkpoint.safetensors | " BEFORE_GROWTH
                   "steps=10 --resume={job:1}/checkpoint.safetensors"},
    {"scaler.resumed.data.o1", "S7", ls_judge_resume,
     BEFORE_GROWTH_BY_DATA "steps=10 | " BEFORE_GROWTH_BY_DATA
                           "steps=5 --save={self}/checkpoint.safetensors | " BEFORE_GROWTH_BY_DATA
                           "steps=10 --resume={job:1}/checkpoint.safetensors"},
    {"scaler.resumed.row.o2", "S8", ls_judge_resume,
     WITHIN_ROW "steps=6 | " WITHIN_ROW "steps=3 --save={self}/checkpoint.safetensors | " WITHIN_ROW
                "steps=6 --resume={job:1}/checkpoint.safetensors"},
};

static void add_timed(const ls_case_settings *settings, ls_case_list *list)
{
    for (int i = 0; settings->bench != NULL && i < settings->bench->count; i++) {
        const ls_spec *spec = &settings->bench->spec[i];
        if (spec->role == LS_ROLE_THROUGHPUT && spec->level > 0) {
            char id[64];
            ls_timed_id(spec, id);
            ls_rows_specs(list, settings, &(ls_row){.requirement = "S1", .judge = ls_judge_scaler},
                          spec, 1, "scaler.timed.%s", id);
        }
    }
}

void ls_scaler_cases(const ls_case_settings *settings, ls_case_list *list)
{
    add_scripts(settings, list);
    LS_ROWS(list, settings, rows);
    add_timed(settings, list);
}
