/* Judges against records that are wrong in one place each: every planted fault is caught, and a
 * clean record raises nothing. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "suite/cases/collectives/collectives.h"
#include "suite/cases/rows.h"
#include "suite/detect/detect_internal.h"
#include "suite/run/run.h"
#include "suite/judge/judges.h"
#include "kernels/core/file.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/run/select.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"

static ls_case_list all(void)
{
    ls_case_settings settings = {.seed = 7, .bench = NULL};
    ls_case_list list = {0, 0, NULL};
    ls_cases_all(&settings, &list);
    return list;
}

static ls_verdict judge(ls_case_judge *judge_it, const ls_case *row, const char *folder)
{
    ls_record record = fake_read(folder);
    ls_verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    judge_it(row, &record, &verdict);
    ls_record_free(&record);
    return verdict;
}

static const int fine[2] = {0, 0};

/* scaler.trace.first.o2: overflow at step 1, interval 2, start 1024, 6 steps */
static const fake_step clean_trace[6] = {
    {1, 2.0, 1024, 512, 1, 1, 1, 1, 9},  {2, 2.0, 512, 512, 0, 2, 2, 2, 8},
    {3, 2.0, 512, 1024, 0, 3, 3, 3, 7},  {4, 2.0, 1024, 1024, 0, 4, 4, 4, 6},
    {5, 2.0, 1024, 2048, 0, 5, 5, 5, 5}, {6, 2.0, 2048, 2048, 0, 6, 6, 6, 4}};

static ls_verdict judge_trace(const fake_step *rank0, const fake_step *rank1)
{
    char folder[64];
    fake_folder(folder, sizeof folder);
    fake_rank(folder, 0, rank0, 6);
    fake_rank(folder, 1, rank1, 6);
    fake_outcome(folder, "done", -1, 0, 0, fine);
    ls_case_list list = all();
    const ls_case *row = fake_case(&list, "scaler.trace.first.o2");
    ck_assert_ptr_nonnull(row);
    ls_verdict verdict = judge(row->judge, row, folder);
    ls_rows_free(&list);
    ls_path_remove_tree(folder);
    return verdict;
}

TEST(the_right_trace_passes)
{
    ck_assert_int_eq(judge_trace(clean_trace, clean_trace).code, LS_PASS);
}

TEST(a_wrong_trace_fails)
{
    static const struct {
        int step;
        double scale, next;
        int skipped;
    } fault[] = {
        {0, 1024, 1024, 1}, /* not halved */
        {0, 1024, 256, 1},  /* quartered */
        {0, 1024, 512, 0},  /* overflow, yet taken */
        {2, 512, 512, 0},   /* not grown: > instead of >= */
        {1, 512, 1024, 0},  /* grown one step early */
        {4, 1024, 1024, 0}, /* count not restarted after growth */
        {3, 1024, 1024, 1}, /* skipped without an overflow */
        {5, 1024, 2048, 0}, /* used a stale scale */
    };
    for (size_t i = 0; i < sizeof fault / sizeof *fault; i++) {
        fake_step wrong[6];
        memcpy(wrong, clean_trace, sizeof wrong);
        wrong[fault[i].step].scale = fault[i].scale;
        wrong[fault[i].step].next = fault[i].next;
        wrong[fault[i].step].skipped = fault[i].skipped;
        ck_assert_int_eq(judge_trace(clean_trace, wrong).code, LS_FAIL);
        ck_assert_int_eq(judge_trace(wrong, clean_trace).code, LS_FAIL);
    }
}

static ls_verdict judge_skip(const fake_step *step, int count)
{
    char folder[64];
    fake_folder(folder, sizeof folder);
    fake_rank(folder, 0, step, count);
    fake_rank(folder, 1, step, count);
    fake_outcome(folder, "done", -1, 0, 0, fine);
    ls_case_list list = all();
    const ls_case *row = fake_case(&list, "scaler.skip.one-rank.o2");
    ck_assert_ptr_nonnull(row);
    ls_verdict verdict = judge(row->judge, row, folder);
    ls_rows_free(&list);
    ls_path_remove_tree(folder);
    return verdict;
}

TEST(a_skipped_step_changes_nothing)
{
    fake_step step[3] = {{1, 2, 1024, 1024, 0, 1, 1, 1, 1},
                         {2, 2, 1024, 512, 1, 1, 1, 2, 2},
                         {3, 2, 512, 512, 0, 3, 3, 3, 3}};
    ck_assert_int_eq(judge_skip(step, 3).code, LS_PASS);
    step[1].param = 5;
    ck_assert_int_eq(judge_skip(step, 3).code, LS_FAIL);
    step[1].param = 1;
    step[1].state = 5;
    ck_assert_int_eq(judge_skip(step, 3).code, LS_FAIL);
    step[1].state = 1;
    step[1].buffer = 1; /* running statistics stood still */
    ck_assert_int_eq(judge_skip(step, 3).code, LS_FAIL);
    step[1].buffer = 2;
    step[2].param = 1; /* a taken step that moved nothing */
    ck_assert_int_eq(judge_skip(step, 3).code, LS_FAIL);
    step[1].skipped = 0;
    step[1].param = 2;
    step[2].param = 3;
    ck_assert_int_eq(judge_skip(step, 3).code, LS_WEAK); /* nothing was skipped: nothing shown */
}

static ls_verdict judge_lockstep(const fake_step *rank1, int count1, bool sync_bn)
{
    char folder[64];
    fake_folder(folder, sizeof folder);
    fake_rank(folder, 0, clean_trace, 6);
    fake_rank(folder, 1, rank1, count1);
    fake_outcome(folder, "done", -1, 0, 0, fine);
    ls_case row;
    memset(&row, 0, sizeof row);
    row.job[0].sync_bn = sync_bn;
    ls_verdict verdict = judge(ls_judge_lockstep, &row, folder);
    ls_path_remove_tree(folder);
    return verdict;
}

TEST(replicas_that_drift_apart_fail)
{
    fake_step other[6];
    memcpy(other, clean_trace, sizeof other);
    ck_assert_int_eq(judge_lockstep(other, 6, true).code, LS_PASS);
    ck_assert_int_eq(judge_lockstep(other, 5, true).code, LS_FAIL);
    other[3].buffer = 77; /* local batch norm: each rank its own statistics */
    ck_assert_int_eq(judge_lockstep(other, 6, false).code, LS_PASS);
    ck_assert_int_eq(judge_lockstep(other, 6, true).code, LS_FAIL);
    other[3].buffer = clean_trace[3].buffer;
    other[5].param = 77;
    ls_verdict verdict = judge_lockstep(other, 6, false);
    ck_assert_int_eq(verdict.code, LS_FAIL);
    ck_assert_ptr_nonnull(strstr(verdict.evidence, "rank=1 step 6"));
    ck_assert_str_ne(verdict.cause, "");
    other[5].param = clean_trace[5].param;
    other[0].grad = 77;
    ck_assert_int_eq(judge_lockstep(other, 6, false).code, LS_FAIL);
    other[0].grad = clean_trace[0].grad;
    other[4].scale = 1;
    ck_assert_int_eq(judge_lockstep(other, 6, false).code, LS_FAIL);
}

TEST(a_pair_that_differs_in_one_bit_fails)
{
    char a[64], b[64];
    fake_step other[6];
    ls_case_list list = all();
    const ls_case *row = fake_case(&list, "ddp.world1.o0");
    ck_assert_ptr_nonnull(row);
    for (int fault = 0; fault < 5; fault++) {
        memcpy(other, clean_trace, sizeof other);
        other[2].param += fault == 1;
        other[0].grad += fault == 2;
        other[5].loss += fault == 3 ? 0.5 : 0;
        fake_folder(a, sizeof a);
        fake_folder(b, sizeof b);
        for (int rank = 0; rank < 2; rank++) {
            fake_rank(a, rank, clean_trace, 6);
            fake_rank(b, rank, other, fault == 4 ? 5 : 6);
        }
        ls_record record[2] = {fake_read(a), fake_read(b)};
        ls_verdict verdict;
        memset(&verdict, 0, sizeof verdict);
        row->judge(row, record, &verdict);
        ck_assert_int_eq(verdict.code, fault == 0 ? LS_PASS : LS_FAIL);
        ls_record_free(&record[0]);
        ls_record_free(&record[1]);
        ls_path_remove_tree(a);
        ls_path_remove_tree(b);
    }
    ls_rows_free(&list);
}

/* One step of a rank alone, as its record says it. */
static ls_record read_step(const char *folder, const char *options, const char *step)
{
    FILE *file = fake_open(folder, "rank0.jsonl");
    fprintf(file,
            "{\"event\":\"start\",\"schema\":1,\"options\":{%s}}\n"
            "{\"event\":\"step\",%s,\"skipped\":false,\"digest\":{\"param\":\"1\"}}\n",
            options, step);
    fclose(file);
    return fake_read(folder);
}

/* A record chooses its numbers: none of them is a number of turns. */
TEST(a_huge_number_does_not_keep_the_judge_busy)
{
    ls_case row = {.job_count = 1};
    ls_text_put(row.job[0].loss_scale, sizeof row.job[0].loss_scale, "dynamic");
    char a[64], b[64];
    fake_folder(a, sizeof a);
    fake_folder(b, sizeof b);
    ls_record record[2] = {
        read_step(a, "\"growth-interval\":2147483647",
                  "\"step\":9007199254740991,\"loss_scale\":8,\"loss_scale_next\":9"),
        read_step(b, "", "\"step\":1,\"loss_scale\":1,\"loss_scale_next\":1")};
    ls_verdict verdict = {.code = LS_PASS};
    ls_judge_scaler(&row, &record[0], &verdict);
    ck_assert_msg(verdict.code == LS_FAIL, "%s", verdict.evidence);
    verdict = (ls_verdict){.code = LS_PASS};
    ck_assert_int_eq(ls_judge_runs(&record[0], &record[1], 0, LS_JUDGE_EVERYTHING, &verdict), 0);
    ck_assert_msg(verdict.code == LS_FAIL, "%s", verdict.evidence);
    for (int i = 0; i < 2; i++) {
        ls_record_free(&record[i]);
    }
    ls_path_remove_tree(a);
    ls_path_remove_tree(b);
}

/* Resumed before its scale doubles: the count of clean steps is what the record leaves open. */
TEST(a_resumed_scale_may_double_at_any_step)
{
    ls_case row = {.job_count = 1};
    ls_text_put(row.job[0].loss_scale, sizeof row.job[0].loss_scale, "dynamic");
    char folder[64];
    fake_folder(folder, sizeof folder);
    ls_record record = read_step(folder, "\"growth-interval\":2147483647",
                                 "\"step\":7,\"loss_scale\":8,\"loss_scale_next\":16");
    ls_verdict verdict = {.code = LS_PASS};
    ls_judge_scaler(&row, &record, &verdict);
    ck_assert_msg(verdict.code == LS_PASS, "%s", verdict.evidence);
    ls_record_free(&record);
    ls_path_remove_tree(folder);
}

TEST(a_killed_rank_must_be_named_and_the_others_leave_with_10)
{
    static const struct {
        const char *state;
        int first, signal, other;
        ls_verdict_code expected;
    } ending[] = {{"killed", 1, 9, 10, LS_PASS},  {"killed", 0, 9, 10, LS_FAIL},
                  {"killed", 1, 11, 10, LS_FAIL}, {"killed", 1, 9, 0, LS_FAIL},
                  {"killed", 1, 9, 137, LS_FAIL}, {"done", -1, 0, 0, LS_WEAK},
                  {"failed", 1, 0, 10, LS_FAIL}};
    ls_case_list list = all();
    const ls_case *row = fake_case(&list, "launch.kill.rank1");
    ck_assert_ptr_nonnull(row);
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++) {
        char folder[64];
        fake_folder(folder, sizeof folder);
        int codes[2] = {ending[i].other, 128 + ending[i].signal};
        fake_outcome(folder, ending[i].state, ending[i].first, codes[1], ending[i].signal, codes);
        ck_assert_int_eq(judge(row->judge, row, folder).code, ending[i].expected);
        ls_path_remove_tree(folder);
    }
    ls_rows_free(&list);
}

TEST(every_case_has_a_requirement_and_every_requirement_a_case)
{
    /* the bench's own rows too */
    ls_matrix bench = {0, 0, NULL, NULL};
    ls_spec spec = ls_matrix_spec(LS_ROLE_THROUGHPUT);
    spec.level = 2;
    spec.followed = true;
    spec.world = 2;
    spec.bucket_mb = 25;
    ls_matrix_add(&bench, &spec);
    spec.bucket_mb = 5;
    ls_matrix_add(&bench, &spec);
    ls_spec curves = ls_matrix_spec(LS_ROLE_CURVES);
    ls_text_put(curves.each, sizeof curves.each, "--opt-level=O0|--opt-level=O1");
    ls_matrix_add(&bench, &curves);
    ls_case_settings settings = {.seed = 7, .bench = &bench};
    ls_case_list list = {0, 0, NULL};
    ls_cases_all(&settings, &list);
    char path[1024];
    ck_assert(ls_path_find("suite/requirements.txt", path, sizeof path));
    ck_assert_int_eq(ls_select_check_requirements(path, &list), LS_OK);
    const ls_row row = {"ddp.new", "Y9", ls_judge_lockstep, "w2"};
    ls_rows_table(&list, &settings, &row, 1);
    ck_assert_int_eq(ls_select_check_requirements(path, &list), LS_ERR_CHECK);
    ls_rows_free(&list);
    ls_matrix_free(&bench);
}

/* Behind the name of a planted fault stand variables of its jobs' environment and of its bench; its
 * case is made there only. Behind the case stands the verdict that it must have. */
TEST(a_planted_fault_may_name_a_bench)
{
    char folder[300], path[400];
    fake_folder(folder, sizeof folder);
    FILE *file = fake_open(folder, "plants.txt");
    fprintf(file, "late@3:1 NGPUS=2 BATCH=32 | audit.timed.o2.w2.b25mb | G10 | - | a sentence\n"
                  "usual | ddp.lockstep.o1.w2 WEAK | D1 | - | another\n"
                  "own LS_A=1 NGPUS=2 LS_B=x | audit.timed.o2.w2.b25mb | G10 | - | a third\n");
    fclose(file);
    ls_text_put(path, sizeof path, "%s/plants.txt", folder);
    ls_detect_list list;
    ls_case_list none = {0};
    ck_assert_int_eq(ls_detect_read(path, &list), LS_OK);
    ck_assert_str_eq(list.plant[0].name, "late");
    ck_assert_str_eq(list.plant[0].wish, "late@3:1");
    ck_assert_str_eq(list.plant[0].bench, "NGPUS=2 BATCH=32");
    ck_assert_str_eq(list.plant[0].environment, "");
    ck_assert_str_eq(list.plant[1].bench, "");
    ck_assert_str_eq(list.plant[0].expected, "FAIL");
    ck_assert_str_eq(list.plant[1].case_id, "ddp.lockstep.o1.w2");
    ck_assert_str_eq(list.plant[1].expected, "WEAK");
    ck_assert_str_eq(list.plant[2].bench, "NGPUS=2");
    ck_assert_str_eq(list.plant[2].environment, "LS_A=1 LS_B=x");
    ck_assert_int_eq(ls_detect_check(&list, &none), LS_ERR_CHECK); /* of the second alone */
    list.count = 1;
    ck_assert_int_eq(ls_detect_check(&list, &none), LS_OK);
    ls_detect_free(&list);
    ls_path_remove_tree(folder);
}

TEST(every_case_names_the_file_that_makes_it)
{
    ls_case_list list = all();
    const char *source = "";
    for (int i = 0; i < list.count; i++) {
        if (strcmp(source, list.row[i].source) == 0) {
            continue;
        }
        source = list.row[i].source;
        char path[1024];
        ck_assert_msg(ls_path_find(source, path, sizeof path), "%s", source);
        const char *name = strrchr(source, '/') + 1;
        LS_TEXT(makes, 80, "\nvoid ls_%.*s_cases(", (int)strcspn(name, "."), name);
        char *text = ls_text_read(path);
        ck_assert_msg(text != NULL && strstr(text, makes) != NULL, "%s: no %s", source, makes + 1);
        free(text);
    }
    ls_rows_free(&list);
}

/* Of 1000 elements that take 1000 us. */
#define RATE(algbw, busbw)                                                           \
    "{\"event\":\"collective\",\"op\":\"reduce\",\"dtype\":\"fp32\",\"count\":1000," \
    "\"bytes\":4000,\"us\":1000,\"algbw_gb_s\":" #algbw ",\"busbw_gb_s\":" #busbw "}\n"

TEST(rates_are_of_what_is_sent)
{
    static const struct {
        const char *events;
        int world;
        ls_verdict_code code;
        const char *says;
    } rows[] = {
        {RATE(0.004, 0.004), 2, LS_PASS, "2 rates of 2 ranks follow"},
        {RATE(0.005, 0.004), 2, LS_FAIL, "expected 4000, 0.004, 0.004"},
        {RATE(null, null), 1, LS_WEAK, "0 of 0 collectives that send something"},
        {RATE(0.004, 0.004), 1, LS_FAIL, "in a world of 1 reports algbw 0.004"},
        {RATE(0.004, 0.004) RATE(null, null), 2, LS_WEAK, "2 of 4 collectives that send something"},
        {"", 2, LS_WEAK, "0 of 0 collectives"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char folder[] = "/tmp/ls_rates_XXXXXX";
        ls_record_rank ranks[2] = {0};
        ls_record job = {.state = LS_RECORD_DONE, .world = rows[i].world, .rank = ranks};
        ls_verdict out = {.code = LS_PASS};
        ck_assert_ptr_nonnull(mkdtemp(folder));
        ls_text_put(job.directory, sizeof job.directory, "%s", folder);
        for (int rank = 0; rank < rows[i].world; rank++) {
            LS_TEXT(path, 100, "%s/rank%d.jsonl", folder, rank);
            ck_assert_int_eq(ls_file_replace(path, rows[i].events, strlen(rows[i].events)), LS_OK);
        }
        ls_collectives_rates(NULL, &job, &out);
        ck_assert_msg(out.code == rows[i].code && strstr(out.evidence, rows[i].says) != NULL,
                      "row %zu: %d %s", i, (int)out.code, out.evidence);
        ls_path_remove_tree(folder);
    }
}

TEST_MAIN("cases")
