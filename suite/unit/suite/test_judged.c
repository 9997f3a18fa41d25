/* Records of a foreign trainer that are wrong in one place: what `lockstep judge` prints and
 * returns.
 */
#include "suite/judge/judges.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

#define STEP(number, loss, members)                            \
    "{\"event\":\"step\",\"step\":" #number ",\"loss\":" #loss \
    ",\"lr\":0.1,\"loss_bits\":\"0x4020000@\"," members "}\n"
/* '@' is the rank's number. */
#define DIGEST(param, rest) "\"digest\":{\"param\":\"" param "\"" rest "}"
#define SCALE(now, next) "\"loss_scale\":" #now ",\"loss_scale_next\":" #next
#define TAKEN(now, next) SCALE(now, next) ",\"skipped\":false,"
#define SKIPPED(now, next) SCALE(now, next) ",\"skipped\":true,"
#define DYNAMIC "\"opt-level\":\"O1\",\"loss-scale\":\"dynamic\",\"growth-interval\":2"
#define FP32 "\"opt-level\":\"O0\",\"loss-scale\":\"1\""

#define SCALED(interval, more) \
    "\"opt-level\":\"O1\",\"loss-scale\":\"dynamic\",\"growth-interval\":" #interval "," more
/* Nothing moves, which is another judge's. */
#define FOUR(a, b, c, d)            \
    STEP(1, 2.5, a DIGEST("1", "")) \
    STEP(2, 2.4, b DIGEST("1", "")) STEP(3, 2.3, c DIGEST("1", "")) STEP(4, 2.2, d DIGEST("1", ""))
#define RESUMED(a, b, c) \
    STEP(5, 2.5, a DIGEST("1", "")) STEP(6, 2.4, b DIGEST("2", "")) STEP(7, 2.3, c DIGEST("3", ""))

static const struct job {
    const char *options, *steps; /* of each of two ranks */
    int code;
    const char *line, *absent; /* the output has the first, and not the second; NULL: any */
} jobs[] = {
    /* a right one */
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, 2.4, TAKEN(8, 16) DIGEST("2", ""))
         STEP(3, 2.3, SKIPPED(16, 8) DIGEST("2", "")) STEP(4, 2.2, TAKEN(8, 8) DIGEST("4", "")),
     0, "PASS scale follows its rule, 1 skipped steps, 2 changes", "not ok"},
    /* nothing was trained */
    {DYNAMIC,
     STEP(1, null, SKIPPED(8, 4) DIGEST("1", "")) STEP(2, null, SKIPPED(4, 2) DIGEST("1", "")), 1,
     "FAIL rank=0: all 2 steps are skipped, and the loss is not finite: nothing was trained",
     "PASS"},
    {DYNAMIC,
     STEP(1, 2.5, SKIPPED(1, 0.5) DIGEST("1", "")) STEP(2, 2.5, SKIPPED(0.5, 0.25) DIGEST("1", "")),
     1, "FAIL rank=0: all 2 steps are skipped, and the loss scale is below 1", "PASS"},
    {DYNAMIC,
     STEP(1, 2.5, SKIPPED(8, 4) DIGEST("1", "")) STEP(2, 2.5, SKIPPED(4, 2) DIGEST("1", "")), 1,
     "WEAK rank=0: all 2 steps are skipped: nothing was trained", "PASS"},
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(64, 64) DIGEST("1", "")) STEP(2, 2.5, TAKEN(64, 128) DIGEST("2", "")) STEP(
         3, null, SKIPPED(128, 64) DIGEST("2", "")) STEP(4, null, SKIPPED(64, 32) DIGEST("2", ""))
         STEP(5, null, SKIPPED(32, 16) DIGEST("2", "")),
     1, "FAIL rank=0: from step 3 on every step is skipped and no loss is finite", "PASS"},
    {FP32, STEP(1, 2.5, TAKEN(1, 1) DIGEST("1", "")) STEP(2, null, TAKEN(1, 1) DIGEST("2", "")), 1,
     "FAIL rank=0 step 2 was taken with a loss that is not finite", NULL},
    {FP32,
     STEP(1, 2.5,
          TAKEN(1, 1) DIGEST(
              "1",
              "")) "{\"event\":\"step\",\"step\":2,\"loss\":2.5,\"loss_bits\":\"0xffc00000\"}\n",
     1, "FAIL rank=0 step 2 was taken with a loss that is not finite", NULL},
    {FP32, STEP(1, 2.5, TAKEN(1, 1) DIGEST("1", "")) STEP(2, 2.4, TAKEN(1, 1) DIGEST("1", "")), 1,
     "FAIL rank=0: no parameter changes in 1 taken steps: nothing was trained", NULL},
    {FP32,
     "{\"event\":\"step\",\"step\":1,\"loss_scale\":1,\"loss_scale_next\":1}\n"
     "{\"event\":\"step\",\"step\":2,\"loss_scale\":1,\"loss_scale_next\":1}\n",
     4, "UNSUPPORTED the events have neither losses nor digests of param", NULL},
    /* a skipped step changes nothing */
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, 2.4, SKIPPED(8, 4) DIGEST("2", ""))
         STEP(3, 2.3, TAKEN(4, 4) DIGEST("3", "")),
     1, "FAIL rank=0 step 2 was skipped, but param changed (1 to 2)", NULL},
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", ",\"master\":\"a\""))
         STEP(2, 2.4, SKIPPED(8, 4) DIGEST("1", ",\"master\":\"b\""))
             STEP(3, 2.3, TAKEN(4, 4) DIGEST("3", ",\"master\":\"c\"")),
     1, "FAIL rank=0 step 2 was skipped, but master changed (a to b)", NULL},
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", ",\"state\":\"a\""))
         STEP(2, 2.4, SKIPPED(8, 4) DIGEST("1", ",\"state\":\"b\""))
             STEP(3, 2.3, TAKEN(4, 4) DIGEST("3", ",\"state\":\"c\"")),
     1, "FAIL rank=0 step 2 was skipped, but state changed (a to b)", NULL},
    /* the scale; only a resumed run may have counted clean steps before its first */
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(8, 16) DIGEST("1", "")) STEP(2, 2.4, TAKEN(16, 16) DIGEST("2", "")), 1,
     "FAIL rank=0 step 1: scale 8, then 16, taken; expected 8, then 8", NULL},
    {"\"opt-level\":\"O1\",\"loss-scale\":\"dynamic\"",
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, 2.4, TAKEN(8, 8) DIGEST("2", "")), 1,
     "WEAK the scale stays at 8: nothing shows how it grows or backs off", "FAIL"},
    {"\"opt-level\":\"O2\",\"loss-scale\":8",
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, 2.4, TAKEN(8, 8) DIGEST("2", "")), 0, "",
     "not ok"},
    {"\"opt-level\":\"O2\",\"loss-scale\":\"128\"",
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, 2.4, TAKEN(8, 8) DIGEST("2", "")), 1,
     "FAIL rank=0 step 1: scale 8, then 8, taken; expected 128, then 128", NULL},
    {DYNAMIC ",\"init-scale\":16",
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, 2.4, TAKEN(8, 16) DIGEST("2", "")), 1,
     "FAIL rank=0 step 1: scale 8, then 8, taken; expected 16, then 16", NULL},
    {DYNAMIC ",\"max-loss-scale\":1",
     STEP(1, 2.5, TAKEN(1, 1) DIGEST("1", "")) STEP(2, 2.4, TAKEN(1, 1) DIGEST("2", "")), 1,
     "WEAK the scale stays at 1: nothing shows how it grows or backs off", "FAIL"},
    {DYNAMIC,
     STEP(1, 2.5, SCALE(8, 8) "," DIGEST("1", "")) STEP(2, 2.4, SCALE(8, 16) "," DIGEST("2", "")),
     4, "UNSUPPORTED rank=0: the events do not say whether a step was skipped", NULL},
    {"\"opt-level\":\"O2\",\"loss-scale\":\"8\"",
     STEP(1, 2.5, SKIPPED(8, 8) DIGEST("1", "")) STEP(2, 2.4, TAKEN(8, 8) DIGEST("2", "")), 1,
     "FAIL rank=0 step 1: scale 8, then 8, skipped; expected 8, then 8", NULL},
    {"\"opt-level\":\"O1\",\"loss-scale\":\"dynamic\"",
     STEP(1, 2.5, "\"loss_scale\":8,\"skipped\":false," DIGEST("1", "")), 4,
     "UNSUPPORTED rank=0: the events have no loss scale", NULL},
    {SCALED(2, "\"min-loss-scale\":4"),
     FOUR(SKIPPED(8, 4), SKIPPED(4, 4), TAKEN(4, 4), TAKEN(4, 8)), 1,
     "PASS scale follows its rule, 2 skipped steps, 2 changes", NULL},
    {SCALED(1, "\"max-loss-scale\":16,\"init-scale\":64"),
     FOUR(TAKEN(16, 16), SKIPPED(16, 8), TAKEN(8, 16), TAKEN(16, 16)), 1,
     "PASS scale follows its rule, 1 skipped steps, 2 changes", NULL},
    {SCALED(1, "\"min-loss-scale\":16,\"init-scale\":8"),
     FOUR(TAKEN(16, 32), TAKEN(32, 64), TAKEN(64, 128), TAKEN(128, 256)), 1,
     "PASS scale follows its rule, 0 skipped steps, 4 changes", NULL},
    {SCALED(1, "\"dialect\":\"apex\""),
     FOUR(TAKEN(8388608, 16777216), TAKEN(16777216, 16777216), TAKEN(16777216, 16777216),
          TAKEN(16777216, 33554432)),
     1,
     "FAIL rank=0 step 4: scale 1.67772e+07, then 3.35544e+07, taken; expected 1.67772e+07, then 1",
     NULL},
    {SCALED(1, "\"dialect\":\"torch\""),
     FOUR(TAKEN(8388608, 16777216), TAKEN(16777216, 33554432), SKIPPED(33554432, 16777216),
          TAKEN(16777216, 33554432)),
     1, "PASS scale follows its rule, 1 skipped steps, 4 changes", NULL},
    {SCALED(4, "\"resume\":\"x\""), RESUMED(TAKEN(8, 8), TAKEN(8, 8), TAKEN(8, 16)), 0,
     "PASS scale follows its rule, 0 skipped steps, 1 changes", NULL},
    {SCALED(4, "\"resume\":\"x\""), RESUMED(TAKEN(8, 16), TAKEN(16, 16), TAKEN(16, 16)), 0,
     "PASS scale follows its rule, 0 skipped steps, 1 changes", NULL},
    {SCALED(4, "\"resume\":\"x\""), RESUMED(TAKEN(8, 8), TAKEN(8, 16), TAKEN(16, 32)), 1,
     "FAIL rank=0 step 6: scale 8, then 16, taken; expected 8, then 8", NULL},
    /* losses: two that are lost at the end, and three of which the last is not */
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, 2.4, TAKEN(8, 16) DIGEST("2", ""))
         STEP(3, null, SKIPPED(16, 8) DIGEST("2", "")) STEP(4, null, SKIPPED(8, 4) DIGEST("2", "")),
     0, "PASS 2 of 4 steps taken, each with a finite loss; parameters move", "not ok"},
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", "")) STEP(2, null, SKIPPED(8, 4) DIGEST("1", ""))
         STEP(3, null, SKIPPED(4, 2) DIGEST("1", "")) STEP(4, null, SKIPPED(2, 1) DIGEST("1", ""))
             STEP(5, 2.5, SKIPPED(1, 0.5) DIGEST("1", "")),
     0, "PASS 1 of 5 steps taken, each with a finite loss; without digests of param", "not ok"},
    {FP32, STEP(1, 2.5, TAKEN(1, 1) DIGEST("1", "")) STEP(2, 2.5, TAKEN(1, 1) DIGEST("2", "")), 0,
     "PASS 2 of 2 steps taken, each with a finite loss; parameters move", "not ok"},
    {FP32,
     STEP(1, 2.5, TAKEN(1, 1) DIGEST("1", "")) STEP(2, 2.5, TAKEN(1, 1) DIGEST("2", ""))
         STEP(3, 2.5, TAKEN(1, 1) DIGEST("3", "")),
     1, "FAIL rank=0: the loss is 2.5 in each of 3 steps", NULL},
    {FP32,
     STEP(1, 2.5, TAKEN(1, 1) DIGEST("1", ",\"grad\":\"a\""))
         STEP(2, 2.4, TAKEN(1, 1) DIGEST("1", ",\"grad\":\"a\""))
             STEP(3, 2.3, TAKEN(1, 1) DIGEST("2", ",\"grad\":\"b\"")),
     0, "PASS 3 of 3 steps taken, each with a finite loss; parameters move", "not ok"},
    {DYNAMIC,
     STEP(1, 2.5, TAKEN(8, 8) DIGEST("1", ",\"grad\":\"a\""))
         STEP(2, 2.4, SKIPPED(8, 4) DIGEST("1", ",\"grad\":\"b\""))
             STEP(3, 2.3, TAKEN(4, 4) DIGEST("2", ",\"grad\":\"b\"")),
     0, "PASS 2 of 3 steps taken, each with a finite loss; parameters move", "not ok"},
    /* what no event gives is equal on all ranks */
    {"\"opt-level\":\"O0\"", STEP(1, 2.5, DIGEST("1", "")) STEP(2, 2.4, DIGEST("2", "")), 4,
     "PASS 2 digests of 2 ranks equal", "FAIL"},
    /* causes stand on what the events have */
    {FP32, STEP(1, 2.5, TAKEN(1, 1) DIGEST("1@", "")) STEP(2, 2.4, TAKEN(1, 1) DIGEST("2@", "")), 1,
     "FAIL rank=1 step 1: param is 11, expected 10", "cause:"},
    {FP32,
     STEP(1, 2.5, TAKEN(1, 1) DIGEST("1@", ",\"grad\":\"a\""))
         STEP(2, 2.4, TAKEN(1, 1) DIGEST("2@", ",\"grad\":\"b\"")),
     1, "cause:  gradients are equal, parameters differ from the start", NULL},
    {FP32, STEP(1, 2.5, TAKEN(1, 1) DIGEST("1", "")) STEP(2, 2.4, TAKEN(1, 1) DIGEST("2@", "")), 1,
     "FAIL rank=1 step 2: param is 21, expected 20", "cause:"},
};

static void write_job(const char *folder, const struct job *job)
{
    for (int k = 0; k < 2; k++) {
        LS_TEXT(name, 32, "rank%d.jsonl", k);
        FILE *file = fake_open(folder, name);
        fprintf(file, "{\"event\":\"start\",\"schema\":1,\"world\":2,\"options\":{%s}}\n",
                job->options);
        for (const char *c = job->steps; *c != '\0'; c++) {
            fputc(*c == '@' ? '0' + k : *c, file);
        }
        fprintf(file, "{\"event\":\"end\"}\n");
        fclose(file);
    }
}

/* `lockstep judge` of the folder; the caller frees the output. */
static char *judge_folder(const char *folder, int *code)
{
    char *said;
    *code = fake_shell(folder, "lockstep judge $PWD", &said);
    return said;
}

ROWS_TEST(events_are_judged_as_they_lie, jobs)
{
    const struct job *job = &jobs[_i];
    int code;
    write_job(folder, job);
    char *said = judge_folder(folder, &code);
    ck_assert_msg(code == job->code && strstr(said, job->line) != NULL &&
                      (job->absent == NULL || strstr(said, job->absent) == NULL),
                  "%s: exit %d, expected %d and '%s', not '%s':\n%s", job->steps, code, job->code,
                  job->line, job->absent == NULL ? "" : job->absent, said);
    free(said);
}

/* Four steps of two ranks, and steps 3 and 4 resumed: one change each, of the last step of rank 1
 * unless another place is named. */
typedef enum change {
    NONE,
    PARAM,
    BUFFER,
    MASK, /* no digest of buffers */
    LOSS,
    SCALE,
    RATE,
    GONE,
    GONE_FIRST,
    AGAIN
} change;

static const struct resumed {
    change change;
    /* what the judges say of it; NULL: they pass */
    const char *resume, *runs, *runs_without_buffers, *cause;
    const char *lockstep, *shared; /* of the resumed run alone; with SyncBN, where that differs */
} resumed[] = {
    {.change = NONE},
    {PARAM, "rank=1 resumed, step 4: param is 00000000000003e7, expected 0000000000000004",
     "rank=1 step 4: param is 00000000000003e7, expected 0000000000000004",
     "rank=1 step 4: param is 00000000000003e7, expected 0000000000000004",
     "gradients and moments are equal, values are not: masters were made again from half weights, "
     "or the count of steps was not restored (first seen at step 4)",
     "rank=1 step 4: param is 00000000000003e7, expected 0000000000000004"},
    {BUFFER, "rank=1 resumed, step 4: buffer is 00000000000003e7, expected 0000000000000018",
     "rank=1 step 4: buffer is 00000000000003e7, expected 0000000000000018", NULL,
     "running statistics were not restored (first seen at step 4)", NULL,
     "rank=1 step 4: buffer is 00000000000003e7, expected 0000000000000018"},
    {MASK, "rank=1 resumed, step 4: compared with step 4, which reports other digests",
     "rank=1 step 4: compared with step 4, which reports other digests", NULL, NULL, NULL,
     "rank=1 step 4: compared with step 4, which reports other digests"},
    {LOSS, "rank=1 step 4: loss, loss scale or lr differs",
     "rank=1 step 4: loss 0x00002af8, expected 0x00000fa0",
     "rank=1 step 4: loss 0x00002af8, expected 0x00000fa0"},
    {SCALE, "rank=1 step 4: loss, loss scale or lr differs", NULL, NULL,
     "the count of clean steps was not restored (first seen at step 4)",
     "rank=1 step 4: loss scale or skip differs from rank 0"},
    {RATE, "rank=1 step 4: loss, loss scale or lr differs", NULL, NULL,
     "the learning rate's schedule was not restored (first seen at step 4)",
     "rank=1 step 4: lr 0.2, rank 0's is 0.1"},
    {GONE, "rank=1 has no event of step 4 in the resumed run",
     "rank=1 has no event of step 4 in the second run",
     "rank=1 has no event of step 4 in the second run", NULL, "rank=1 took 1 steps, rank 0 took 2"},
    {GONE_FIRST, "rank=1 has no event of step 4 in the uninterrupted run",
     "rank=1 has no event of step 4 in the first run",
     "rank=1 has no event of step 4 in the first run"},
    {AGAIN, "rank=1 did step 2 again after resume", NULL, NULL,
     "the count of steps is behind: step 2 was done again after the resume",
     "rank=1 took 3 steps, rank 0 took 2"},
};

static ls_record write_run(change change, bool is_resumed)
{
    char folder[64];
    fake_folder(folder, sizeof folder);
    for (int k = 0; k < 2; k++) {
        fake_step step[4];
        int count = 0, last = change == (is_resumed ? GONE : GONE_FIRST) && k == 1 ? 3 : 4;
        for (int i = is_resumed ? 3 - (change == AGAIN && k == 1) : 1; i <= last; i++) {
            unsigned n = (unsigned)i;
            step[count++] = (fake_step){i, i, 8, 8, 0, n, n + 10, n + 20, n + 30};
        }
        fake_step *end = &step[count - 1];
        if (is_resumed && k == 1) {
            end->param = change == PARAM ? 999 : end->param;
            end->buffer = change == BUFFER ? 999 : end->buffer;
            end->loss = change == LOSS ? 11 : end->loss;
            end->scale = change == SCALE ? 16 : end->scale;
        }
        fake_rank(folder, k, step, count);
    }
    fake_outcome(folder, "done", -1, 0, 0, (const int[]){0, 0});
    ls_record record = fake_read(folder);
    ls_record_step *end = &record.rank[1].step[record.rank[1].step_count - 1];
    end->digest_mask &= is_resumed && change == MASK ? ~(1u << LS_RECORD_BUFFER) : ~0u;
    end->lr = is_resumed && change == RATE ? 0.2 : end->lr;
    ls_path_remove_tree(folder);
    return record;
}

/* `says` NULL: it passes. */
static void expect(const ls_verdict *v, const char *says)
{
    ls_verdict_code code = says == NULL ? LS_PASS : LS_FAIL;
    ck_assert_msg(v->code == code && (says == NULL || strcmp(v->evidence, says) == 0),
                  "expected '%s', got %s: %s", says == NULL ? "" : says, ls_verdict_name(v->code),
                  v->evidence);
}

ROWS_TEST(a_resumed_run_is_the_uninterrupted_one, resumed)
{
    const struct resumed *r = &resumed[_i];
    ls_record job[3] = {[0] = write_run(r->change, false), [2] = write_run(r->change, true)};
    ls_case row = {.job = {{.steps = 4}, {.steps = 2}}};
    ls_verdict resume = {0}, runs = {0}, without = {0};
    ls_judge_resume(&row, job, &resume);
    expect(&resume, r->resume);
    ck_assert_str_eq(resume.cause, r->cause == NULL ? "" : r->cause);
    ls_judge_runs(&job[0], &job[2], 2, LS_JUDGE_EVERYTHING, &runs);
    expect(&runs, r->runs);
    int compared = ls_judge_runs(&job[0], &job[2], 2, LS_JUDGE_REPLICA, &without);
    expect(&without, r->runs_without_buffers);
    /* a case of three jobs, whose third goes on from the second, and of two jobs that are whole */
    ls_verdict three = {0}, but_buffers = {0}, two = {0};
    row.job_count = 3;
    row.data = LS_JUDGE_SAME("what");
    ls_judge_same(&row, job, &three);
    expect(&three, r->runs);
    row.data = LS_JUDGE_DIFFERENCE(1u << LS_RECORD_BUFFER, "what");
    ls_judge_same(&row, job, &but_buffers);
    expect(&but_buffers, r->runs_without_buffers);
    row.job_count = 2;
    ls_judge_same(&row, (ls_record[]){job[0], job[2]}, &two);
    expect(&two, "rank=0 has no event of step 1 in the second run");
    /* running statistics are ranks' own, unless SyncBN shares them */
    for (int sync = 0; sync < 2; sync++) {
        ls_verdict v = {0};
        row.job[0].sync_bn = sync == 1;
        ls_judge_lockstep(&row, &job[2], &v);
        expect(&v, sync == 1 && r->shared != NULL ? r->shared : r->lockstep);
        bool other = v.code == LS_FAIL && r->change == BUFFER;
        ck_assert(!other ||
                  strcmp(v.cause, "running statistics differ: SyncBN's moments are not those of "
                                  "all ranks (first at step 4)") == 0);
        ck_assert(r->change != PARAM ||
                  strcmp(v.cause, "gradients are equal, the step's result differs: learning rate, "
                                  "moments or a skip (first at step 4)") == 0);
        ck_assert(r->change != NONE ||
                  strcmp(v.evidence, sync == 1 ? "8 digests of 2 ranks equal over 2 steps"
                                               : "6 digests of 2 ranks equal over 2 steps") == 0);
    }
    if (r->change == NONE) {
        ck_assert_str_eq(three.evidence, "16 digests equal to the last bit: what");
        ck_assert_str_eq(but_buffers.evidence, "12 digests equal to the last bit: what");
        ck_assert_str_eq(resume.evidence,
                         "saved at 2, resumed to 4: 16 digests equal to the last bit");
        ck_assert_int_eq(resume.compared, 16); /* four digests of two steps of two ranks */
        ck_assert_int_eq(compared, 12);
        ls_judge_runs(&job[0], &job[2], 2, 1u << LS_RECORD_MASTER, &without);
        ck_assert_int_eq(without.code, LS_UNSUPPORTED);
        ls_verdict of_no_step = {0};
        for (int k = 0; k < 2; k++) {
            job[0].rank[k].step_count = job[2].rank[k].step_count = 0;
        }
        ls_judge_runs(&job[0], &job[2], 2, LS_JUDGE_REPLICA, &of_no_step);
        expect(&of_no_step, "no digests to compare");
        ck_assert_int_eq(of_no_step.code, LS_FAIL);
        ls_verdict of_nothing_new = {0};
        row.job[0].steps = row.job[1].steps;
        ls_judge_resume(&row, job, &of_nothing_new);
        ck_assert_int_eq(of_nothing_new.code, LS_UNSUPPORTED);
    }
    ls_record_free(&job[0]);
    ls_record_free(&job[2]);
}

/* What a trainer wrote that is right, edited: in a copy of the job's folder, by a shell that has
 * these functions. */
static const char functions[] =
    "export LC_ALL=C\n"
    "events() { sed -i -E \"$1\" rank[01].jsonl; }\n"
    "event() { sed -i -E \"/\\\"step\\\":$2,/$3\" rank$1.jsonl; }\n" /* RANK STEP SED */
    "dumps() { sed -i \"$1\" dump/*; }\n";

static const struct edit {
    const char *script;
    int code;
    const char *line;
} edits[] = {
    {":", 0, "4 passed, 0 failed"},
    {"events 's/\"arch\":\"resnet8\",//'", 0, "4 passed, 0 failed"},
    {"events 's/\"arch\":\"resnet8\"/\"arch\":\"vgg16\"/'", 4,
     "UNSUPPORTED the oracle does not know the network 'vgg16', only resnet18, 34"},
    {"events 's/\"arch\":\"resnet8\",//'; dumps 's/\"arch\":/\"brch\":/'", 4,
     "UNSUPPORTED neither the start event's options nor the dump name the network"},
    {"event 1 4 's/\"lr\":[^,]*/\"lr\":0.2/'", 1, "FAIL rank=1 step 4: lr 0.2, rank 0's is 0.1"},
    {"sed -i 's/\"opt-level\":\"O1\"/\"opt-level\":\"O0\"/' rank1.jsonl", 1,
     "FAIL rank=1 was started with another --opt-level than rank 0"},
    {"events 's/\"half_products\":\"[^\"]*/\"half_products\":\"fp16 on AMX-FP16/'", 1,
     "FAIL rank=0 says 'fp16 on AMX-FP16', but no implementation that it lists is for these units"},
    {"events 's/\"half_products\":\"[^\"]*/\"half_products\":\"fp16 on AMX-FP16/; "
     "s/\"fusions\":\"/&conv1: brgconv:avx512_core_amx_fp16, /'",
     0, "4 passed, 0 failed"},
    {"cp rank0.jsonl rank1.jsonl", 1, "FAIL rank1.jsonl says that it is of rank 0"},
    {"events 's/(\"event\":\"end\".*\"code\":)0/\\112/'", 1,
     "FAIL rank=0 ended with code 12, as its end event says"},
    {"events '/\"step\":[12],/d'", 1, "FAIL rank=0 resumed nothing, but its first step is 3"},
    {"event '[01]' 7 's/\"digest\":.[^}]*/\"digest\":{/'; "
     "event '[01]' 8 's/\"digest\":.[^}]*/\"digest\":{/'",
     1, "WEAK the last of 8 steps has no digest of param state scaler grad"},
    {"event '[01]' 2 's/\"grad\":\"[^\"]*/\"grad\":\"00000000deadbeef/'", 1,
     "FAIL rank=0 step 2: digest grad is 00000000deadbeef, that of the dump's grad/ is"},
    {"event '[01]' 5 's/\"grad\":\"[^\"]*/\"grad\":\"1/'; "
     "event '[01]' 6 's/\"grad\":\"[^\"]*/\"grad\":\"1/'",
     1, "FAIL rank=0 step 6: the gradient is that of the step before, bit for bit"},
    {"events 's/\"loss\":[^,]*,\"loss_bits\":\"[^\"]*/\"loss\":2.5,\"loss_bits\":\"0x40200000/'", 1,
     "FAIL rank=0: the loss is 2.5 in each of 8 steps"},
    {"for i in 1 2 3 4 5 6 7 8; do l=$(grep -o '\"step\":'$i',\"loss\":[^,]*,"
     "\"loss_bits\":\"[^\"]*' rank0.jsonl); sed -i \"s/\\\"step\\\":$i,\\\"loss\\\":[^,]*,"
     "\\\"loss_bits\\\":\\\"[^\\\"]*/$l/\" rank1.jsonl; done",
     1, "FAIL rank=1 has rank 0's loss in each of 8 steps: they train on the same images"},
    {"event 1 2 's/\"loss\":[^,]*,\"loss_bits\":\"[^\"]*/\"loss\":1.5,\"loss_bits\":\"0x3fc00000/'",
     1, "FAIL rank=1: the dump's loss is"},
    {"dumps 's/\"loss_scale\":\"1024\"/\"loss_scale\":\"2048\"/'", 1,
     "FAIL rank=0: the dump's metadata says loss_scale 2048, the events 1024"},
    {"dumps 's/\"momentum\":\"0.9\"/\"momentum\":\"0.8\"/'", 1,
     "FAIL rank=0: the dump's metadata says momentum 0.8, the events 0.9"},
    {"dumps '/\"step\":\"1\"/s/\"lr\":\"0.100000001/\"lr\":\"1.000000000/'; "
     "event '[01]' 1 's/\"lr\":[^,]*/\"lr\":1/'",
     1, "cause:  the rate is a tenth of the reported one"},
    {"events 's/\"momentum\":0.9,//'", 0, "4 passed, 0 failed"},
    {"dumps 's/\"half\":\"fp16\"/\"half\":\"bf16\"/'", 1,
     "FAIL rank=0: the dump's metadata says half bf16, asked was fp16"},
    {"event 0 2 's/\"lr\":[^,]*/\"lr\":0.2/'; event 1 2 's/\"lr\":[^,]*/\"lr\":0.2/'", 1,
     "FAIL rank=0: the dump's metadata says lr 0.1"},
    {"events 's/\"weight-decay\":0.0001/\"weight-decay\":0.0002/'", 1,
     "FAIL rank=0: the dump's metadata says weight_decay"},
    {"events 's/\"momentum\":/\"label-smoothing\":0.1,&/'", 1,
     "FAIL rank=0: the dump's metadata says label_smoothing 0"},
    {"events 's/\"momentum\":/\"clip-grad-norm\":1,&/'", 1,
     "FAIL rank=0: the dump's metadata says clip_grad_norm 0, the events 1"},
    {"events 's/\"momentum\":/\"clip-grad-value\":1,&/'", 1,
     "FAIL rank=0: the dump's metadata says clip_grad_value 0, the events 1"},
    {"events 's/\"options\":\\{/&\"data-parallel\":2,/'", 1,
     "FAIL rank=0: the dump's metadata says accumulate 1, the events 2"},
    {"events 's/\"options\":\\{/&\"data-parallel\":2,/'; dumps 's/\"accumulate\"/\"accumulat?\"/'",
     1, "FAIL rank=0: the dump's metadata says accumulate 1 (absent), the events 2"},
    {"events 's/\"options\":\\{/&\"model-parallel\":true,\"split-size\":1,/'", 1,
     "FAIL rank=0: the dump's metadata says accumulate 1, the events 4"},
    {"events 's/\"options\":\\{/&\"model-parallel\":true,\"split-size\":4,/'", 0,
     "4 passed, 0 failed"},
    {"dumps 's/\"skipped\":\"false\"/\"skipped\": \"true\"/'", 1,
     "cause:  the step was taken although it is skipped"},
    {"event '[01]' 2 's/\"skipped\":false/\"skipped\":true/'", 1,
     "FAIL rank=0: the dump's metadata says skipped false, the event true"},
    {"rm dump/step000002.rank1.*", 1,
     "WEAK the job left 3 of 4 announced dumps: dump/step000002.rank1.safetensors is missing"},
    {"event '[01]' 2 's/\"images\":4/\"images\":8/'", 1,
     "FAIL rank=0: the dump has 4 targets, the event 8 images"},
    {"events 's/\"skipped\":(true|false),//'", 4,
     "UNSUPPORTED rank=0: the events do not say whether a step was skipped"},
    {"event '[01]' 3 's/\"state\":\"[^\"]*/\"state\":\"1/'", 1,
     "FAIL rank=0 step 3 was skipped, but state changed"},
    {"events 's/\"lr\":0.1[0-9]*,\"images/\"lr\":0,\"images/'", 1,
     "WEAK the rate is 0 in all 8 steps: nothing was trained"},
    {"cp $other/dump/step000002* dump; for k in 0 1; do "
     "l=$(grep -o '\"step\":2,\"loss\":[^,]*,\"loss_bits\":\"[^\"]*' $other/rank$k.jsonl); "
     "event $k 2 \"s/\\\"step\\\":2,\\\"loss\\\":[^,]*,\\\"loss_bits\\\":\\\"[^\\\"]*/$l/\"; "
     "event $k 2 's/\"digest\":.[^}]*/\"digest\":{/'; done",
     1, "FAIL step 2 begins with another conv1.weight than step 1 ended with"},
};

static char right[64], other[64]; /* the folders of the job that is edited, and of one like it */

static void train(char *folder, size_t bytes, int seed)
{
    char program[1024];
    ls_path_program(program, sizeof program);
    fake_folder(folder, bytes);
    LS_TEXT(command, 2600,
            "LS_RUN_DIR=%s %s/../lockstep-launch --nproc-per-node 2 -- %s/../lockstep-train -a "
            "resnet8 --image-size 16 -b 4 --steps 8 --device cpu --seed %d --threads 1 "
            "--dump-steps 1,2 --dump-ranks all --opt-level O1 --loss-scale dynamic "
            "--init-scale 1024 --growth-interval 3 --overflow-at 3:1 >/dev/null 2>&1",
            folder, program, program, seed);
    LS_ASSERT(system(command) == 0);
}

ROWS_TEST(one_edit_each_is_named, edits)
{
    const struct edit *edit = &edits[_i];
    int code;
    FILE *script = fake_open(folder, "edit.sh");
    fprintf(script, "other=%s\n%s%s\n", other, functions, edit->script);
    fclose(script);
    LS_TEXT(command, 400, "cp -r %s/. %s && cd %s && sh edit.sh", right, folder, folder);
    ck_assert_int_eq(system(command), 0);
    char *said = judge_folder(folder, &code);
    ck_assert_msg(code == edit->code && strstr(said, edit->line) != NULL,
                  "%s: exit %d, expected %d and '%s':\n%s", edit->script, code, edit->code,
                  edit->line, said);
    free(said);
}

int main(void)
{
    train(right, sizeof right, 7);
    train(other, sizeof other, 8);
    int code = RUN_TESTS("judged", .timeout_s = 60, .before = fake_begin, .after = fake_end);
    ls_path_remove_tree(right);
    ls_path_remove_tree(other);
    return code;
}
