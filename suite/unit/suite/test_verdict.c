/* How a job's end becomes a verdict, and verdicts become the headline. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "reference/files/safetensors.h"
#include "suite/cases/rows.h"
#include "suite/judge/judges.h"
#include "suite/run/headline.h"
#include "suite/run/run.h"
#include "kernels/core/path.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

static ls_verdict of_ending(const char *state, int first_rank, int code, int signal,
                            const char *log)
{
    char folder[64];
    fake_folder(folder, sizeof folder);
    const int codes[2] = {10, code};
    fake_outcome(folder, state, first_rank, code, signal, codes);
    FILE *file = fake_open(folder, "rank1.log");
    fprintf(file, "first line\n%s\n\n", log);
    fclose(file);
    file = fake_open(folder, "rank1.jsonl");
    fprintf(file, "{\"event\":\"start\",\"schema\":1}\n{\"event\":\"unsupported\",\"option\":"
                  "\"--sync-bn\",\"why\":\"not built\"}\n");
    if (strcmp(state, "done") != 0) {
        fprintf(file, "{\"event\":\"step\",\"st"); /* cut off: no wonder when it ended badly */
    }
    fclose(file);
    ls_record record = fake_read(folder);
    ls_verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    bool decided = ls_verdict_of_outcome(&record, &verdict);
    ck_assert_int_eq(decided, verdict.code != LS_PASS);
    ls_record_free(&record);
    ls_path_remove_tree(folder);
    return verdict;
}

TEST(every_ending_has_its_code)
{
    ck_assert_int_eq(of_ending("done", -1, 0, 0, "").code, LS_PASS);
    ls_verdict v = of_ending("killed", 1, 137, 9, "");
    ck_assert_int_eq(v.code, LS_CRASH);
    ck_assert_ptr_nonnull(strstr(v.evidence, "rank=1 signal=9"));
    v = of_ending("failed", 1, 4, 0, "");
    ck_assert_int_eq(v.code, LS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(v.evidence, "--sync-bn: not built"));
    v = of_ending("failed", 1, 3, 0, "disk is full");
    ck_assert_int_eq(v.code, LS_INFRA);
    ck_assert_ptr_nonnull(strstr(v.evidence, "disk is full"));
    ck_assert_int_eq(of_ending("failed", 1, 1, 0, "").code, LS_FAIL);
    ck_assert_int_eq(of_ending("failed", 1, 2, 0, "").code, LS_FAIL);
    ck_assert_int_eq(of_ending("failed", 1, 12, 0, "").code, LS_FAIL);
    ck_assert_int_eq(of_ending("failed", 1, 10, 0, "").code, LS_CRASH);
    ck_assert_int_eq(of_ending("failed", 1, 77, 0, "").code, LS_CRASH);
    ck_assert_int_eq(of_ending("timed out", -1, 0, 0, "").code, LS_TIMEOUT);
    ck_assert_int_eq(of_ending("stopped", -1, 0, 0, "").code, LS_SKIP);
    ck_assert_int_eq(of_ending("not started", -1, 0, 0, "").code, LS_INFRA);
}

/* What two ranks' records break of the protocol, given what was asked; "": nothing. */
#define WORDS(options) "\"world\":2,\"options\":{" options "}"
static const struct broken {
    ls_spec spec; /* by default O1, resnet8, two steps; NULL in `unasked` */
    bool unasked;
    const char *start[2]; /* of each rank */
    int first, last;      /* steps */
    const char *end;      /* the end event; "": none */
    ls_verdict_code code;
    const char *evidence;
} broken[] = {
    {.start = {WORDS(""), WORDS("")}, .evidence = ""},
    {.start = {WORDS("\"opt-level\":\"O1\""), WORDS("\"arch\":\"resnet8\"")}, .evidence = ""},
    {.start = {WORDS("\"opt-level\":\"O2\""), WORDS("\"opt-level\":\"O2\"")},
     .code = LS_FAIL,
     .evidence = "rank=0 was asked for opt level O1 and says that it ran O2"},
    {.spec = {.level = -1},
     .start = {WORDS("\"opt-level\":\"O2\""), WORDS("\"opt-level\":\"O2\"")},
     .evidence = ""},
    {.unasked = true,
     .start = {WORDS("\"opt-level\":\"O2\""), WORDS("\"opt-level\":\"O2\"")},
     .evidence = ""},
    {.start = {WORDS(""), WORDS("\"arch\":\"resnet20\"")},
     .code = LS_FAIL,
     .evidence = "rank=1 was asked for resnet8 and says that it trained resnet20"},
    {.start = {WORDS("\"lr\":0.1"), WORDS("\"lr\":0.2")},
     .code = LS_FAIL,
     .evidence = "rank=1 was started with another --lr than rank 0"},
    {.start = {"\"world\":2,\"rank\":1", "\"world\":2,\"rank\":1"},
     .code = LS_FAIL,
     .evidence = "rank0.jsonl says that it is of rank 1"},
    {.start = {WORDS(""), "\"world\":1"},
     .code = LS_FAIL,
     .evidence = "rank=1 says that it is one of 1 ranks: there are 2"},
    /* each rank has a job and options of its own */
    {.spec = {.wrap = LS_WRAP_EACH},
     .start = {"\"world\":1,\"rank\":0,\"options\":{\"lr\":0.1,\"arch\":\"resnet20\"}",
               "\"world\":1,\"rank\":0,\"options\":{\"lr\":0.2,\"opt-level\":\"O3\"}"},
     .evidence = ""},
    {.spec = {.wrap = LS_WRAP_EACH},
     .start = {WORDS(""), WORDS("")},
     .code = LS_FAIL,
     .evidence = "rank=0 says that it is one of 2 ranks: there are 1"},
    {.start = {WORDS(""), WORDS("")},
     .first = 2,
     .code = LS_FAIL,
     .evidence = "rank=0 resumed nothing, but its first step is 2"},
    {.spec = {.extra = "--resume x"}, .start = {WORDS(""), WORDS("")}, .first = 2, .evidence = ""},
    {.unasked = true, .start = {WORDS(""), WORDS("")}, .first = 2, .evidence = ""},
    {.unasked = true,
     .start = {WORDS("\"resume\":null"), WORDS("\"resume\":null")},
     .first = 2,
     .code = LS_FAIL,
     .evidence = "rank=0 resumed nothing, but its first step is 2"},
    {.start = {WORDS(""), WORDS("")},
     .last = 3,
     .code = LS_FAIL,
     .evidence = "rank=0 left with code 0, but its last step is 3 of 2"},
    {.spec = {.warmup_steps = 1}, .start = {WORDS(""), WORDS("")}, .last = 3, .evidence = ""},
    {.spec = {.extra = "--epochs=1"}, .start = {WORDS(""), WORDS("")}, .last = 3, .evidence = ""},
    {.start = {WORDS(""), WORDS("")},
     .end = "",
     .code = LS_FAIL,
     .evidence = "rank=0 left with code 0, but its events stop after step 2 without an end event"},
    {.start = {WORDS(""), WORDS("")},
     .end = "{\"event\":\"end\",\"code\":3}\n",
     .code = LS_FAIL,
     .evidence = "rank=0 ended with code 3, as its end event says"},
    {.start = {NULL, WORDS("")},
     .code = LS_FAIL,
     .evidence = "rank=0 left with code 0, but wrote no start event"},
};

ROWS_TEST(records_keep_the_protocol, broken)
{
    const struct broken *row = &broken[_i];
    char folder[64];
    fake_folder(folder, sizeof folder);
    for (int k = 0; k < 2; k++) {
        LS_TEXT(name, 32, "rank%d.jsonl", k);
        FILE *file = fake_open(folder, name);
        if (row->start[k] != NULL) {
            fprintf(file, "{\"event\":\"start\",\"schema\":1,%s}\n", row->start[k]);
        }
        int last = row->last > 0 ? row->last : 2;
        for (int i = row->first > 0 ? row->first : 1; i <= last; i++) {
            fprintf(file, "{\"event\":\"step\",\"step\":%d}\n", i);
        }
        fputs(row->end == NULL ? "{\"event\":\"end\",\"code\":0}\n" : row->end, file);
        fclose(file);
    }
    fake_outcome(folder, "done", -1, 0, 0, (const int[]){0, 0});
    ls_record record = fake_read(folder);
    ls_spec spec = row->spec;
    spec.level = spec.level == 0 ? 1 : spec.level;
    spec.steps = 2;
    ls_text_put(spec.arch, sizeof spec.arch, "resnet8");
    ls_verdict v = {0};
    bool breaks = ls_protocol_breaks(&record, row->unasked ? NULL : &spec, &v);
    ck_assert_msg(v.code == row->code && strstr(v.evidence, row->evidence) != NULL &&
                      breaks == (row->code != LS_PASS),
                  "row %d: %s", _i, v.evidence);
    ls_record_free(&record);
    ls_path_remove_tree(folder);
}

TEST(an_update_is_a_step_that_was_taken)
{
    char folder[64];
    fake_folder(folder, sizeof folder);
    const fake_step step[] = {{.step = 1}, {.step = 2, .skipped = 1}, {.step = 3}};
    fake_rank(folder, 0, step, 3);
    fake_rank(folder, 1, step, 3);
    fake_outcome(folder, "done", -1, 0, 0, (const int[]){0, 0});
    ls_record record = fake_read(folder);
    static const struct {
        int64_t update;
        bool skipped;
        const char *evidence;
    } row[] = {{1, false, "rank=0: the dump of step 1 is missing or broken"},
               {1, true, "the dump of step 2 is missing"},
               {2, false, "the dump of step 3 is missing"},
               {2, false, "rank 0 has no event of step 4"}};
    for (int i = 0; i < 4; i++) {
        ls_verdict v = {0};
        int64_t update;
        bool skipped;
        ck_assert_ptr_null(ls_dumps_open_update(&record, i + 1, &update, &skipped, &v));
        ck_assert_int_eq(update, row[i].update);
        ck_assert_int_eq(skipped, row[i].skipped);
        ck_assert_msg(v.code == LS_FAIL && strstr(v.evidence, row[i].evidence) != NULL, "%s",
                      v.evidence);
    }
    ls_record_free(&record);
    ls_path_remove_tree(folder);
}

/* Dumps of two steps: the second begins with what the first ended with. */
static const struct followed {
    const char *next, *param; /* tensors' names in the first and in the second step */
    ls_dtype held;            /* in the second; the first ends with f32 */
    float value;              /* the first ends with 1 */
    const char *evidence;     /* "": nothing is wrong, or it cannot be compared */
} followed[] = {
    {"next/w", "param/w", LS_F32, 1, ""},
    {"next/w", "param/w", LS_F32, 2, "step 2 begins with another w than step 1 ended with"},
    {"next/u", "param/w", LS_F32, 2, ""},
    {"next/w", "param/u", LS_F32, 2, ""},
    {"next/w", "param/w", LS_I32, 2, ""},
};

ROWS_TEST(steps_follow_each_other, followed)
{
    const struct followed *row = &followed[_i];
    char folder[64];
    const ls_shape shape = {1, {1}};
    const float one = 1;
    fake_folder(folder, sizeof folder);
    ls_record job = {.world = 1};
    ls_text_put(job.directory, sizeof job.directory, "%s", folder);
    ls_verdict alone = {0}, v = {0};
    LS_TEXT(dumps, 100, "%s/dump", folder);
    ck_assert_int_eq(mkdir(dumps, 0777), 0);
    for (int step = 1; step <= 2; step++) {
        char path[700];
        ls_safetensors_writer *writer;
        ls_dumps_path(&job, step, 0, path, sizeof path);
        ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
        ls_safetensors_metadata(writer, "step", "%d", step);
        ls_safetensors_add(writer, step == 1 ? row->next : row->param,
                           step == 1 ? LS_F32 : row->held, &shape, step == 1 ? &one : &row->value);
        if (step == 2) {
            ls_safetensors_add(writer, "next/w", LS_F32, &shape, &one);
        }
        ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
    }
    ls_judge_gradients_follow(&job, 1, &alone); /* of the step before there is no dump */
    ls_judge_gradients_follow(&job, 2, &v);
    ck_assert_int_eq(alone.code, LS_PASS);
    ck_assert_msg(v.code == (row->evidence[0] == '\0' ? LS_PASS : LS_FAIL) &&
                      strstr(v.evidence, row->evidence) != NULL,
                  "row %d: %s", _i, v.evidence);
    ls_path_remove_tree(folder);
}

/* What a job would leave, by its events or else by its command. */
static const struct announced {
    const char *options, *command;
    int announced, steps;
    const char *missing, *save; /* "": there is none */
} announced[] = {
    {"", "\"trainer\"", 0, 0, "", ""},
    {"", "\"trainer\",\"--dump-steps\",\"1,3\",\"--dump-ranks=all\",\"--save=x.pth\"", 4, 2,
     "dump/step000001.rank0.safetensors", "x.pth"},
    {"", "\"trainer\",\"--dump-steps=3,9\",\"--save-dir\",\"/nowhere\",\"4\"", 1, 1,
     "dump/step000003.rank0.safetensors", "/nowhere/last.safetensors"},
    {"\"dump_steps\":[2],\"dump-ranks\":\"all\"", "\"trainer\",\"--dump-steps=1,3\"", 2, 1,
     "dump/step000002.rank0.safetensors", ""},
    {"\"dump-steps\":2,\"dump-ranks\":0,\"save\":\"\"", "\"trainer\",\"--save=x.pth\"", 1, 1,
     "dump/step000002.rank0.safetensors", ""},
    {"\"dump-steps\":\"0,1\"", "\"trainer\"", 0, 0, "", ""},
};

ROWS_TEST(what_is_announced_may_be_missing, announced)
{
    const struct announced *row = &announced[_i];
    char folder[64], path[700];
    fake_folder(folder, sizeof folder);
    for (int k = 0; k < 2; k++) {
        LS_TEXT(name, 32, "rank%d.jsonl", k);
        FILE *file = fake_open(folder, name);
        fprintf(file, "{\"event\":\"start\",\"schema\":1,\"options\":{%s}}\n", row->options);
        for (int i = 1; i <= 3; i++) {
            fprintf(file, "{\"event\":\"step\",\"step\":%d}\n", i);
        }
        fclose(file);
    }
    FILE *file = fake_open(folder, "job.json");
    fprintf(file,
            "{\"schema\":1,\"facts\":{\"world\":2},\"command\":[%s],\"outcome\":{\"state\":"
            "\"done\",\"ranks\":[{\"rank\":0,\"code\":0},{\"rank\":1,\"code\":0}]}}\n",
            row->command);
    fclose(file);
    ls_record record = fake_read(folder);
    ls_announced_dumps dumps = ls_announced_dumps_of(&record);
    ck_assert_int_eq(dumps.announced, row->announced);
    ck_assert_int_eq(dumps.there, 0);
    ck_assert_int_eq(dumps.step_count, row->steps);
    ck_assert_str_eq(dumps.missing, row->missing);
    bool missing = ls_announced_save_missing(&record, path, sizeof path);
    ck_assert_msg(missing == (row->save[0] != '\0') && (!missing || strcmp(path, row->save) == 0),
                  "row %d: %s", _i, path);
    free(dumps.step);
    ls_record_free(&record);
    ls_path_remove_tree(folder);
}

TEST(the_first_bad_finding_stays)
{
    ls_verdict v;
    memset(&v, 0, sizeof v);
    ls_verdict_set(&v, LS_FAIL, "first");
    ls_verdict_set(&v, LS_WEAK, "second");
    ck_assert_int_eq(v.code, LS_FAIL);
    ck_assert_str_eq(v.evidence, "first");
}

TEST(a_pass_carries_what_it_compared)
{
    ls_verdict out = {0};
    ls_verdict_pass(&out, 3, "3 steps");
    ls_verdict_pass(&out, 4, "4 digests");
    ls_verdict_close(&out);
    ck_assert_int_eq(out.code, LS_PASS);
    ck_assert_int_eq(out.compared, 7);
    ck_assert_str_eq(out.evidence, "4 digests");
    ls_verdict_pass(&out, 0, "%d tensors", 0); /* a part of it */
    ck_assert_int_eq(out.code, LS_WEAK);
    ck_assert_str_eq(out.evidence, "nothing was compared: 0 tensors");
}

TEST(a_judge_that_concludes_nothing_is_weak)
{
    ls_verdict out = {0};
    ls_verdict_close(&out);
    ck_assert_int_eq(out.code, LS_WEAK);
    ck_assert_str_eq(out.evidence, "the judge compared nothing");
    out = (ls_verdict){.code = LS_SKIP};
    ls_verdict_close(&out);
    ck_assert_int_eq(out.code, LS_SKIP);
}

LOOP_TEST(a_line_that_passes_over_nothing_has_not_passed, 6)
{
    static const struct {
        const char *line;
        ls_verdict_code code;
    } lines[] = {{"{\"verdict\":\"PASS\",\"compared\":1}", LS_PASS},
                 {"{\"verdict\":\"PASS\"}", LS_PASS}, /* of an older version */
                 {"{\"verdict\":\"PASS\",\"compared\":0}", LS_WEAK},
                 {"{\"verdict\":\"PASS\",\"compared\":\"many\"}", LS_WEAK},
                 {"{\"verdict\":\"FAIL\",\"compared\":0}", LS_FAIL},
                 {"{\"verdict\":\"GOOD\"}", LS_VERDICT_CODES}};
    cJSON *json = ls_json_parse(lines[_i].line, NULL);
    ck_assert_int_eq(ls_verdict_code_in(json), lines[_i].code);
    cJSON_Delete(json);
}

TEST(gradients_that_stayed_local_are_never_right)
{
    ls_record_rank rank;
    memset(&rank, 0, sizeof rank);
    rank.start = cJSON_Parse("{\"options\":{\"no-reduce\":true}}");
    ls_record record;
    memset(&record, 0, sizeof record);
    record.state = LS_RECORD_DONE;
    record.world = 1;
    record.rank = &rank;
    ls_verdict v;
    memset(&v, 0, sizeof v);
    ck_assert(ls_verdict_of_outcome(&record, &v));
    ck_assert_int_eq(v.code, LS_FAIL);
    ck_assert_ptr_nonnull(strstr(v.evidence, "--no-reduce"));
    static const struct {
        ls_record_state state;
        ls_verdict_code code;
    } others[] = {{LS_RECORD_UNKNOWN, LS_FAIL},
                  {LS_RECORD_TIMED_OUT, LS_TIMEOUT}, /* how it ended comes first */
                  {LS_RECORD_STOPPED, LS_SKIP},
                  {LS_RECORD_NOT_STARTED, LS_INFRA}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        memset(&v, 0, sizeof v);
        record.state = others[i].state;
        ck_assert(ls_verdict_of_outcome(&record, &v));
        ck_assert_int_eq(v.code, others[i].code);
    }
    cJSON_Delete(rank.start);
}

/* Of a claim of that many cases, of which the first `count` were selected. */
static ls_headline headline_of(int count, const ls_verdict_code *code, int claim_cases)
{
    const ls_case_settings settings = {.seed = 0};
    const ls_row row = {.requirement = "G1"};
    ls_run run;
    memset(&run, 0, sizeof run);
    ls_verdict verdict[8];
    memset(verdict, 0, sizeof verdict);
    for (int i = 0; i < count; i++) {
        ls_rows_format(&run.cases, &settings, &row, "in.case%d: w1", i);
        verdict[i].code = code[i];
    }
    ls_rows_format(&run.cases, &settings, &row, "out.case: w1");
    verdict[count].code = LS_FAIL; /* outside the claim: counted, no more */
    run.verdict = verdict;
    run.claim_cases = claim_cases;
    ls_text_put(run.claim_name, sizeof run.claim_name, "x");
    ls_select_add(&run.claim, "in.*", "");
    ls_headline headline;
    ls_headline_decide(&run, &headline);
    ls_rows_free(&run.cases);
    ls_select_free(&run.claim);
    return headline;
}

/* Cases of manners have a line of their own, which decides the exit code where the gate asks for
 * it, and of a run that has no others. */
TEST(manners_are_not_correctness)
{
    static const struct {
        ls_verdict_code correct[2], manners[2]; /* of the first cases of each */
        int corrects, all;
        bool gate;
        ls_headline_correct value;
        int exit;
        const char *why, *manners_why;
    } run_of[] = {
        {{LS_PASS},
         {LS_PASS, LS_PASS},
         1,
         3,
         false,
         LS_CORRECT_YES,
         0,
         "claim x: 1 of 1 cases",
         "usage, refusals and their words"},
        {{LS_PASS},
         {LS_PASS, LS_FAIL},
         1,
         3,
         false,
         LS_CORRECT_YES,
         0,
         "claim x: 1 of 1 cases",
         "usage, refusals and their words, 1 FAIL; the exit code leaves them out "
         "without --gate manners"},
        {{LS_PASS},
         {LS_PASS, LS_FAIL},
         1,
         3,
         true,
         LS_CORRECT_YES,
         LS_ERR_CHECK,
         "claim x: 1 of 1 cases",
         "usage, refusals and their words, 1 FAIL; they decide the exit code"},
        {{LS_FAIL},
         {LS_PASS, LS_PASS},
         1,
         3,
         false,
         LS_CORRECT_NO,
         LS_ERR_CHECK,
         "claim x: 0 of 1 cases, 1 FAIL",
         "usage, refusals and their words"},
        {{LS_PASS},
         {LS_PASS, LS_INFRA},
         1,
         3,
         true,
         LS_CORRECT_YES,
         LS_ERR_INFRA,
         "claim x: 1 of 1 cases",
         "usage, refusals and their words, 1 INFRA; they decide the exit code"},
        {{LS_PASS, LS_PASS},
         {LS_PASS, LS_FAIL},
         2,
         76,
         false,
         LS_CORRECT_NOT_SHOWN,
         0,
         "claim x: 4 of 76 cases selected, 3 passed",
         "usage, refusals and their words, 1 FAIL; the exit code leaves them out "
         "without --gate manners"},
        {{0},
         {LS_PASS, LS_PASS},
         0,
         76,
         false,
         LS_CORRECT_NOT_SHOWN,
         0,
         "claim x: 2 of 76 cases selected, all passed",
         "usage, refusals and their words"},
        {{0},
         {LS_PASS, LS_FAIL},
         0,
         76,
         false,
         LS_CORRECT_NOT_SHOWN,
         LS_ERR_CHECK,
         "claim x: 2 of 76 cases selected, 1 passed",
         "usage, refusals and their words, 1 FAIL; they decide the exit code"},
    };
    const ls_case_settings settings = {.seed = 0};
    for (size_t i = 0; i < sizeof run_of / sizeof *run_of; i++) {
        ls_verdict verdict[4] = {0};
        ls_run run = {.claim_name = "x",
                      .claim_cases = run_of[i].all,
                      .gate_manners = run_of[i].gate,
                      .verdict = verdict};
        ls_select_add(&run.claim, "*", "");
        ls_select_add(&run.manners, "Q7", "");
        for (int c = 0; c < run_of[i].corrects + 2; c++) {
            bool manners = c >= run_of[i].corrects;
            ls_rows_format(&run.cases, &settings, &(ls_row){.requirement = manners ? "Q7" : "G1"},
                           "case%d: w1", c);
            verdict[c].code =
                manners ? run_of[i].manners[c - run_of[i].corrects] : run_of[i].correct[c];
        }
        ls_headline h;
        ls_headline_decide(&run, &h);
        ck_assert_int_eq(h.correct, run_of[i].value);
        ck_assert_int_eq(ls_headline_exit(&h), run_of[i].exit);
        ck_assert_str_eq(h.correct_why, run_of[i].why);
        ck_assert_str_eq(h.manners_why, run_of[i].manners_why);
        cJSON *json = ls_headline_json(&h);
        const cJSON *manners = cJSON_GetObjectItem(json, "manners");
        ck_assert_str_eq(ls_json_string(manners, "value", ""),
                         run_of[i].manners[1] == LS_PASS ? "2 of 2" : "1 of 2");
        cJSON_Delete(json);
        ls_rows_free(&run.cases);
        ls_select_free(&run.claim);
        ls_select_free(&run.manners);
    }
}

TEST(correct_needs_every_case_of_the_claim)
{
    const ls_verdict_code good[] = {LS_PASS, LS_WAIVED, LS_PASS};
    ls_headline h = headline_of(3, good, 3);
    ck_assert_int_eq(h.correct, LS_CORRECT_YES);
    ck_assert_int_eq(h.passed, 3);
    ck_assert_int_eq(h.failed, 0);
    ck_assert_ptr_nonnull(
        strstr(h.correct_why, "3 of 3 cases, 1 of them waived; 0 of 1 outside it"));
    static const ls_verdict_code wrong[] = {LS_FAIL, LS_CRASH, LS_TIMEOUT};
    static const ls_verdict_code open[] = {LS_WEAK, LS_SKIP, LS_UNSUPPORTED, LS_INFRA};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const ls_verdict_code codes[] = {LS_PASS, wrong[i], LS_WEAK};
        h = headline_of(3, codes, 3);
        ck_assert_int_eq(h.correct, LS_CORRECT_NO);
        ck_assert_int_eq(h.failed, 2);
    }
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        const ls_verdict_code codes[] = {LS_PASS, open[i]};
        h = headline_of(2, codes, 2);
        ck_assert_int_eq(h.correct, LS_CORRECT_NOT_SHOWN);
        ck_assert_int_eq(ls_headline_exit(&h), open[i] == LS_INFRA ? LS_ERR_INFRA : LS_ERR_CHECK);
    }
}

/* A part of the claim that passed ends with 0 and shows nothing of the claim. */
TEST(a_part_of_the_claim_is_no_yes)
{
    static const struct {
        ls_verdict_code code[3];
        int count, exit;
        ls_headline_correct correct;
        const char *why;
    } part[] = {
        {{LS_PASS}, 1, 0, LS_CORRECT_NOT_SHOWN, "claim x: 1 of 76 cases selected, all passed; "},
        {{LS_PASS, LS_WAIVED},
         2,
         0,
         LS_CORRECT_NOT_SHOWN,
         "claim x: 2 of 76 cases selected, all passed, 1 of them waived; "},
        {{LS_PASS, LS_WEAK},
         2,
         LS_ERR_CHECK,
         LS_CORRECT_NOT_SHOWN,
         "claim x: 2 of 76 cases selected, 1 passed, 1 WEAK; "},
        {{LS_PASS, LS_PASS, LS_FAIL},
         3,
         LS_ERR_CHECK,
         LS_CORRECT_NO,
         "claim x: 3 of 76 cases selected, 2 passed, 1 FAIL; "},
        {{LS_PASS, LS_INFRA},
         2,
         LS_ERR_INFRA,
         LS_CORRECT_NOT_SHOWN,
         "claim x: 2 of 76 cases selected, 1 passed, 1 INFRA; "},
        {{LS_PASS}, 0, LS_ERR_CHECK, LS_CORRECT_NOT_SHOWN, "claim x: 0 of 76 cases selected; "},
    };
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        ls_headline h = headline_of(part[i].count, part[i].code, 76);
        ck_assert_int_eq(h.correct, part[i].correct);
        ck_assert_msg(strncmp(h.correct_why, part[i].why, strlen(part[i].why)) == 0, "%s",
                      h.correct_why);
        ck_assert_int_eq(ls_headline_exit(&h), part[i].exit);
    }
}

/* A case that the claim has where it is offered, and that the trainer does not offer, is not of the
 * claim; one that fails is. */
TEST(what_is_not_offered_is_not_of_the_claim)
{
    static const struct {
        ls_verdict_code optional;
        ls_headline_correct correct;
        const char *why;
    } run_of[] = {
        {LS_UNSUPPORTED, LS_CORRECT_YES,
         "claim x: 1 of 1 cases; 1 that it has where offered are not"},
        {LS_PASS, LS_CORRECT_YES, "claim x: 2 of 2 cases"},
        {LS_FAIL, LS_CORRECT_NO, "claim x: 1 of 2 cases, 1 FAIL"},
        {LS_WEAK, LS_CORRECT_NOT_SHOWN, "claim x: 1 of 2 cases, 1 WEAK"},
    };
    for (size_t i = 0; i < sizeof run_of / sizeof *run_of; i++) {
        const ls_case_settings settings = {.seed = 0};
        ls_verdict verdict[2] = {{.code = LS_PASS}, {.code = run_of[i].optional}};
        ls_run run;
        memset(&run, 0, sizeof run);
        ls_rows_format(&run.cases, &settings, &(ls_row){.requirement = "G1"}, "in.always: w1");
        ls_rows_format(&run.cases, &settings, &(ls_row){.requirement = "G1"}, "in.clip: w1");
        run.verdict = verdict;
        run.claim_cases = 2;
        ls_text_put(run.claim_name, sizeof run.claim_name, "x");
        ls_select_add(&run.claim, "in.always", "");
        ls_select_add(&run.claim, "in.clip", "where offered");
        ls_headline h;
        ls_headline_decide(&run, &h);
        ck_assert_int_eq(h.correct, run_of[i].correct);
        ck_assert_str_eq(h.correct_why, run_of[i].why);
        ck_assert_int_eq(ls_headline_in_claim(&run, 1), run_of[i].optional != LS_UNSUPPORTED);
        ls_rows_free(&run.cases);
        ls_select_free(&run.claim);
    }
}

TEST(no_case_shows_nothing)
{
    ls_headline h = headline_of(0, NULL, 0);
    ck_assert_int_ne(h.correct, LS_CORRECT_YES);
    ck_assert_int_eq(h.passed, 0);
}

TEST_MAIN("verdict")
