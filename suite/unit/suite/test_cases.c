/* Judges against records that are wrong in one place each: every planted fault is caught, and a
 * clean record raises nothing. */
#include "suite/cases/collectives/collectives.h"
#include "suite/cases/rows.h"
#include "suite/detect/detect_internal.h"
#include "suite/observe/observe.h"
#include "suite/judge/judges.h"
#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "suite/run/select.h"
#include "suite/unit/run_suite.h"
#include "suite_fake.h"
#include "reference/files/safetensors.h"

static ls_verdict judge(ls_case_judge *judge_it, const ls_case *row, const char *folder)
{
    ls_record record = fake_read(folder);
    ls_verdict verdict;
    memset(&verdict, 0, sizeof verdict);
    judge_it(row, &record, &verdict);
    ls_record_free(&record);
    ls_path_remove_tree(folder);
    return verdict;
}

/* Of two ranks that took these steps. */
static ls_verdict judge_ranks(ls_case_judge *judge_it, const ls_case *row, const fake_step *rank0,
                              int count0, const fake_step *rank1, int count1)
{
    char folder[64];
    fake_folder(folder, sizeof folder);
    fake_rank(folder, 0, rank0, count0);
    fake_rank(folder, 1, rank1, count1);
    fake_outcome(folder, "done", -1, 0, 0, (const int[2]){0, 0});
    return judge(judge_it, row, folder);
}

static ls_case_list cases; /* of judge_case, made once in a test */

static void free_cases(void)
{
    ls_rows_free(&cases);
}

static ls_verdict judge_case(const char *id, const fake_step *rank0, const fake_step *rank1,
                             int count)
{
    cases = cases.count > 0 ? cases : fake_cases();
    const ls_case *row = fake_case(&cases, id);
    ck_assert_ptr_nonnull(row);
    return judge_ranks(row->judge, row, rank0, count, rank1, count);
}

/* scaler.trace.first.o2: overflow at step 1, interval 2, start 1024, 6 steps */
static const fake_step clean_trace[6] = {
    {1, 2.0, 1024, 512, 1, 1, 1, 1, 9},  {2, 2.0, 512, 512, 0, 2, 2, 2, 8},
    {3, 2.0, 512, 1024, 0, 3, 3, 3, 7},  {4, 2.0, 1024, 1024, 0, 4, 4, 4, 6},
    {5, 2.0, 1024, 2048, 0, 5, 5, 5, 5}, {6, 2.0, 2048, 2048, 0, 6, 6, 6, 4}};

static ls_verdict judge_trace(const fake_step *rank0, const fake_step *rank1)
{
    return judge_case("scaler.trace.first.o2", rank0, rank1, 6);
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
    return judge_case("scaler.skip.one-rank.o2", step, step, count);
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

TEST(a_pair_that_differs_in_one_bit_fails)
{
    char a[64], b[64];
    fake_step other[6];
    ls_case_list list = fake_cases();
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
    ls_case_list list = fake_cases();
    const ls_case *row = fake_case(&list, "launch.kill.rank1");
    ck_assert_ptr_nonnull(row);
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++) {
        char folder[64];
        fake_folder(folder, sizeof folder);
        int codes[2] = {ending[i].other, 128 + ending[i].signal};
        fake_outcome(folder, ending[i].state, ending[i].first, codes[1], ending[i].signal, codes);
        ck_assert_int_eq(judge(row->judge, row, folder).code, ending[i].expected);
    }
    ls_rows_free(&list);
}

TEST(every_case_has_a_requirement_and_every_requirement_a_case)
{
    ls_select_list requirements = {0};
    int rule_count;
    const ls_observe_rule *rule = ls_observe_rules(&rule_count);
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
    ck_assert_int_eq(ls_select_load(path, &requirements), LS_OK);
    bool *used = ls_list_make((size_t)requirements.count, sizeof *used);
    for (int i = 0; i < rule_count + list.count; i++) { /* rules of observed jobs are cases, too */
        bool is_rule = i < rule_count;
        const char *id = is_rule ? rule[i].id : list.row[i - rule_count].id;
        const struct ls_select_line *line = ls_select_find(
            &requirements, is_rule ? rule[i].requirement : list.row[i - rule_count].requirement);
        ck_assert_msg(line != NULL, "%s names a requirement that is none", id);
        used[line - requirements.line] = true;
        bool again = false;
        for (int c = 0; c < i - rule_count; c++) {
            again = again || strcmp(list.row[c].id, id) == 0;
        }
        ck_assert_msg(!again, "two cases have the id %s", id);
    }
    for (int i = 0; i < requirements.count; i++) {
        ck_assert_msg(used[i] && requirements.line[i].reason[0] != '\0',
                      "requirement %s has no case or no sentence", requirements.line[i].glob);
    }
    free(used);
    ls_select_free(&requirements);
    ls_rows_free(&list);
    ls_matrix_free(&bench);
}

static bool has_case(const ls_case_list *list, const char *prefix)
{
    for (int c = 0; c < list->count; c++) {
        if (strncmp(list->row[c].id, prefix, strlen(prefix)) == 0) {
            return true;
        }
    }
    return false;
}

TEST(every_optimizer_has_cases_of_jobs_and_of_kernels)
{
    static const char *const names[] = {
#define LS_OPTIMIZER(KIND, name, ...) #name,
#include "kernels/optimizers.def"
#undef LS_OPTIMIZER
    };
    ls_case_list list = fake_cases();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        LS_TEXT(jobs, 60, "optim.%s.", names[i]);
        LS_TEXT(kernels, 60, "optim.kernel.%s.", names[i]);
        ck_assert_msg(has_case(&list, jobs), "suite/cases/optim/optim.c has no %s", names[i]);
        ck_assert_msg(has_case(&list, kernels), "optim_inside.c has no %s", names[i]);
    }
    ck_assert(!has_case(&list, "optim.rmsprop."));
    ls_rows_free(&list);
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
    ls_case_list list = fake_cases();
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

/* The words of a case's table: what each makes of a job, and which are refused. */

static const ls_case_settings settings = {.seed = 7};

static void judge_row(const ls_case *row, const ls_record *job, ls_verdict *out)
{
    (void)row;
    (void)job;
    ls_verdict_pass(out, 1, "seen");
}

TEST(no_word_is_the_evidence_job)
{
    ls_spec plain = ls_matrix_spec(LS_ROLE_EVIDENCE), spec;
    plain.seed = 7;
    plain.steps = 2;
    plain.dump_all = true;
    ck_assert_ptr_null(ls_rows_read_spec(&settings, "", &spec));
    ck_assert_mem_eq(&spec, &plain, sizeof spec);
}

TEST(every_word_sets_its_member)
{
    ls_spec s = ls_rows_spec(&settings,
                             "resnet18 O2 w4 n2 b0.5 bf16 torch sync image=64 batch=8 accumulate=3 "
                             "warmup=1 steps=5 threads=2 repeat=1 lr=0.5 limit=9 grace=2 dump=1,3 "
                             "dump-ranks=0 data=/d undetermined next-seed --a=1 alone --b");
    ck_assert_str_eq(s.arch, "resnet18");
    ck_assert_int_eq(s.level, 2);
    ck_assert_int_eq(s.world, 4);
    ck_assert_int_eq(s.nodes, 2);
    ck_assert(s.bucket_mb == 0.5 && s.lr == 0.5 && s.limit_s == 9 && s.grace_s == 2);
    ck_assert_str_eq(s.half, "bf16");
    ck_assert_str_eq(s.dialect, "torch");
    ck_assert(s.sync_bn && !s.deterministic && !s.dump_all);
    ck_assert_int_eq(s.image_size, 64);
    ck_assert_int_eq(s.batch_size, 8);
    ck_assert_int_eq(s.accumulate, 3);
    ck_assert_int_eq(s.warmup_steps, 1);
    ck_assert_int_eq(s.steps, 5);
    ck_assert_int_eq(s.threads, 2);
    ck_assert_int_eq(s.repeat, 1);
    ck_assert_str_eq(s.dump_steps, "1,3");
    ck_assert_str_eq(s.data, "/d");
    ck_assert_str_eq(s.loss_scale, "128");
    ck_assert_str_eq(s.extra, "--a=1 --b");
    ck_assert_int_eq(s.wrap, LS_WRAP_ALONE);
    ck_assert_uint_eq(s.seed, 8);
    s = ls_rows_spec(&settings, "delay no-level scale=dynamic kill=2:3");
    ck_assert(s.bucket_mb == LS_BUCKET_DELAYED && s.level == -1);
    ck_assert_str_eq(s.loss_scale, "dynamic");
    ck_assert(s.wrap == LS_WRAP_KILL && s.kill_rank == 2 && s.kill_step == 3);
    ck_assert_str_eq(ls_rows_spec(&settings, "scale= O1").loss_scale, "");
}

TEST(batches_are_made_whatever_the_order)
{
    ls_spec spec = ls_rows_spec(&settings, "--b batches=sum@1:0,2:1 O2 w2 accumulate=3");
    ck_assert_str_eq(spec.data, "batches:{run}/overflow/sum-1-0-2-1-a3-w2");
    ck_assert_str_eq(spec.extra, "--init={run}/overflow/init.safetensors --b");
    ck_assert_str_eq(spec.arch, "resnet8");
    ck_assert(ls_overflow_wants(&spec));
}

TEST(a_wrong_word_is_named)
{
    static const struct {
        const char *text, *wrong;
    } bad[] = {{"resnet8 o2 w2", "o2 w2"},
               {"O4", "O4"},
               {"w2x", "w2x"},
               {"steps=", "steps="},
               {"step=2", "step=2"},
               {"steps=2.5 w1", "steps=2.5 w1"},
               {"b0,1", "b0,1"},
               {"lr=", "lr="},
               {"half=fp16", "half=fp16"},
               {"w2 batches=some@1:0", "some@1:0"},
               {"kill=1", "kill=1"},
               {"dump", "dump"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ls_spec spec;
        const char *wrong = ls_rows_read_spec(&settings, bad[i].text, &spec);
        ck_assert_ptr_nonnull(wrong);
        ck_assert_str_eq(wrong, bad[i].wrong);
    }
}

TEST(a_table_becomes_its_cases)
{
    static const int more = 3;
    const ls_row rows[] = {
        {"a.o[0|2].w[2|3]", "Q1", judge_row, "resnet8 O$1 w$2 --x=$2", &more},
        {"b.[off=|half=O2 bf16]", "Q2", judge_row, "w2 $1 | w3 $1 --resume={job:0}/c",
         .inside = true},
        {"c[|.again]", "Q3", judge_row},
        {"d", "Q4", judge_row, "shell | w2", .script = "exit 4", .judges_refusal = true},
    };
    ls_case_list list = {0};
    LS_ROWS(&list, &settings, rows);
    static const char *const ids[] = {"a.o0.w2", "a.o0.w3", "a.o2.w2", "a.o2.w3", "b.off",
                                      "b.half",  "c",       "c.again", "d"};
    ck_assert_int_eq(list.count, sizeof ids / sizeof *ids);
    for (int i = 0; i < list.count; i++) {
        ck_assert_str_eq(list.row[i].id, ids[i]);
    }
    ck_assert(list.row[2].data == &more && list.row[2].kind == LS_PROTOCOL);
    ck_assert_int_eq(list.row[2].job[0].level, 2);
    ck_assert_int_eq(list.row[3].job[0].world, 3);
    ck_assert_str_eq(list.row[3].job[0].extra, "--x=3");
    char id[96], extra[200];
    ls_matrix_id(&list.row[5].job[0], id);
    ls_text_put(extra, sizeof extra, "--resume={job:%s}/c", id);
    ck_assert_str_eq(list.row[5].job[1].extra, extra);
    ck_assert_str_eq(list.row[5].job[1].half, "bf16");
    ck_assert_int_eq(list.row[5].kind, LS_INSIDE);
    ck_assert(list.row[6].kind == LS_INSIDE && list.row[6].job_count == 0);
    ck_assert_str_eq(list.row[6].device, "cpu");
    ck_assert_str_eq(list.row[8].job[0].script, "exit 4");
    ck_assert_ptr_null(list.row[8].job[1].script);
    ck_assert(list.row[8].judges_refusal && !list.row[8].judges_outcome);
    ls_rows_free(&list);
}

TEST(a_formatted_row_has_its_own_data)
{
    ls_case_list list = {0};
    for (int level = 0; level < 100; level++) { /* more rows than the list first has room for */
        int *data = ls_rows_memory(&list, sizeof *data);
        ck_assert_int_eq(*data, 0);
        *data = level;
        ls_rows_format(&list, &settings,
                       &(ls_row){.requirement = "G1", .judge = judge_row, .data = data},
                       "x.%d: O%d w2", level, level % 4);
    }
    ls_rows_format(&list, &settings, &(ls_row){.requirement = "G1", .judge = judge_row}, "y.%d", 1);
    ck_assert_int_eq(list.count, 101);
    ck_assert_int_eq(*(const int *)list.row[67].data, 67);
    ck_assert_str_eq(list.row[67].id, "x.67");
    ck_assert_int_eq(list.row[67].job[0].level, 3);
    ck_assert_int_eq(list.row[100].kind, LS_INSIDE);
    ls_rows_free(&list);
    ck_assert_ptr_null(list.memory);
}

/* Judging bn1's running statistics at step 2: ranks 0 and 1 share them, and 2 and 3; odd ranks have
 * twice as many images. What a wrong rule leaves is caught with its cause, and so is a value that
 * is not a number. */

enum { RANKS = 4, GROUP = 2, SIDE = 16, PLANE = SIDE * SIDE, TAPS = 27 };
enum { IMAGES = 2, CHANNELS = LS_JUDGE_RUNNING_CHANNELS };

static const struct dumped {
    double momentum;          /* share of the new values */
    double mean, var;         /* added to the last rank's last channel, in units of the limit */
    int times, of;            /* updates; the ranks whose samples count: 0 stands for GROUP */
    bool biased, alike, root; /* n instead of n - 1; ranks with the same weight; the deviation */
    bool half;                /* conv1 computes in fp16 */
    bool sent, kept;          /* rank 0's values before the step are sent; each keeps its own */
    const char *missing;      /* in the last rank's dump */
    int64_t batches;
    const char *evidence, *cause; /* NULL: it is right */
} dumps[] = {
#define LACKS "rank=3 step 2: the dump lacks input, conv1 or bn1's buffers"
    {.momentum = 0.1, .batches = 2},
    {.momentum = 0.1,
     .batches = 2,
     .mean = (double)NAN,
     .evidence = "rank=3 step 2 bn1 channel 15"},
    {.momentum = 0.1, .batches = 2, .var = (double)NAN, .evidence = "rank=3 step 2 bn1 channel 15"},
    {.momentum = 0.1,
     .batches = 2,
     .var = (double)INFINITY,
     .evidence = "channel 15: running mean"},
    {.momentum = 0.1, .batches = 2, .mean = 0.9},
    {.momentum = 0.1, .batches = 2, .mean = 1.1, .evidence = "rank=3 step 2 bn1 channel 15"},
    {.momentum = 0.1, .batches = 2, .var = -0.9},
    {.momentum = 0.1, .batches = 2, .var = -1.3, .evidence = "rank=3 step 2 bn1 channel 15"},
    {.momentum = 0.1, .batches = 3, .evidence = "rank=0 step 2: bn1.num_batches_tracked is 3"},
    {.momentum = 0.1, .batches = 2, .missing = "input", .evidence = LACKS},
    {.momentum = 0.1, .batches = 2, .missing = "param/conv1.weight", .evidence = LACKS},
    {.momentum = 0.1, .batches = 2, .missing = "buffer/bn1.running_var", .evidence = LACKS},
    {.momentum = 0.1, .batches = 2, .sent = true},
    {.momentum = 0.1,
     .batches = 2,
     .sent = true,
     .kept = true,
     .evidence = "rank=1 step 2 bn1 channel 0",
     .cause = "the rank went on with its own"},
    {.momentum = 0.9, .batches = 2, .evidence = "rank=0", .cause = "0.9 of the new"},
    {.momentum = 1, .batches = 2, .evidence = "rank=0", .cause = "simply the last batch's"},
    {.momentum = 0, .batches = 0, .evidence = "rank=0", .cause = "they did not move"},
    {.momentum = 0.1, .batches = 2, .times = 2, .evidence = "rank=0", .cause = "moved twice"},
    {.momentum = 0.1, .batches = 2, .biased = true, .evidence = "rank=0", .cause = "biased"},
    {.momentum = 0.1, .batches = 2, .root = true, .evidence = "rank=0", .cause = "deviation was"},
    {.momentum = 0.1, .batches = 2, .of = 1, .evidence = "rank=0", .cause = "rank's own"},
    {.momentum = 0.1, .batches = 2, .of = RANKS, .evidence = "rank=0", .cause = "of all ranks"},
    {.momentum = 0.1, .batches = 2, .alike = true, .evidence = "rank=0", .cause = "alike"},
    {.momentum = 0.1, .batches = 2, .half = true},
    {.momentum = 0.1, .batches = 2, .half = true, .mean = 0.9},
    {.momentum = 0.1, .batches = 2, .half = true, .mean = 1.1, .evidence = "rank=3 step 2 bn1"},
};

static const float tap = 1.0004f; /* 1 in fp16 */

static float pixel(int rank, int image, int plane, int at)
{
    return (float)sin(1 + at * 0.7 + image * 2 + rank + plane * 3) + (float)rank;
}

/* The one tap of a channel, of 27. */
static int tap_of(int channel)
{
    return (4 + 5 * channel) % TAPS;
}

/* One value of bn1's input. */
static double convolved(int rank, int at, int channel, bool half)
{
    int k = tap_of(channel), row = at % PLANE / SIDE + k % 9 / 3 - 1,
        column = at % SIDE + k % 3 - 1;
    if (row < 0 || row >= SIDE || column < 0 || column >= SIDE) {
        return 0;
    }
    double value = (double)pixel(rank, at / PLANE, k / 9, row * SIDE + column);
    return half ? ls_bits_round(LS_BITS_F16, value) : value * (double)tap;
}

static void moments(const struct dumped *d, int rank, int channel, double *mean, double *var)
{
    int of = d->of == 0 ? GROUP : d->of, from = rank / of * of;
    double sum = 0, square = 0, count = 0, means = 0;
    for (int r = from; r < from + of; r++) {
        int values = (r % 2 + 1) * PLANE;
        double own = 0;
        for (int i = 0; i < values; i++) {
            double value = convolved(r, i, channel, d->half);
            own += value;
            square += value * value;
        }
        sum += own;
        count += values;
        means += own / values / of;
    }
    *mean = sum / count;
    *var = (square / count - *mean * *mean) * (d->biased ? 1 : count / (count - 1));
    *mean = d->alike ? means : *mean;
}

static void write_dump(const char *folder, int rank, const struct dumped *d,
                       const ls_judge_running *before)
{
    static float input[IMAGES][3][PLANE], weight[CHANNELS][TAPS];
    float mean[CHANNELS], var[CHANNELS];
    ls_safetensors_writer *writer;
    LS_TEXT(path, 700, "%s/dump/step000002.rank%d.safetensors", folder, rank);
    for (int i = 0; i < IMAGES * 3 * PLANE; i++) {
        int image = i / (3 * PLANE), plane = i / PLANE % 3;
        input[image][plane][i % PLANE] = pixel(rank, image, plane, i % PLANE);
    }
    for (int p = 0; p < CHANNELS; p++) {
        double new_mean, new_var, limit = d->half ? 5e-4 : 2e-5;
        double held[] = {before->mean[p], before->var[p]};
        moments(d, rank, p, &new_mean, &new_var);
        for (int i = 0; i < (d->times == 0 ? 1 : d->times); i++) {
            held[0] += d->momentum * (new_mean - held[0]);
            held[1] += d->momentum * ((d->root ? sqrt(new_var) : new_var) - held[1]);
        }
        bool last = rank == RANKS - 1 && p == CHANNELS - 1;
        weight[p][tap_of(p)] = tap;
        mean[p] = (float)(held[0] + (last ? d->mean * limit * d->momentum * sqrt(new_var) : 0));
        var[p] = (float)(held[1] + (last ? d->var * limit * d->momentum * new_var : 0));
    }
    const ls_shape images = {4, {rank % 2 + 1, 3, SIDE, SIDE}}, kernel = {4, {CHANNELS, 3, 3, 3}};
    const ls_shape channels = {1, {CHANNELS}}, scalar = {0};
    ck_assert_int_eq(ls_safetensors_create(path, &writer), LS_OK);
    const struct {
        const char *name;
        ls_dtype type;
        const ls_shape *shape;
        const void *data;
    } tensors[] = {{"input", LS_F32, &images, input},
                   {"param/conv1.weight", LS_F32, &kernel, weight},
                   {"buffer/bn1.running_mean", LS_F32, &channels, mean},
                   {"buffer/bn1.running_var", LS_F32, &channels, var},
                   {"buffer/bn1.num_batches_tracked", LS_I64, &scalar, &d->batches}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        if (rank < RANKS - 1 || d->missing == NULL || strcmp(d->missing, tensors[i].name) != 0) {
            ls_safetensors_add(writer, tensors[i].name, tensors[i].type, tensors[i].shape,
                               tensors[i].data);
        }
    }
    ck_assert_int_eq(ls_safetensors_finish(writer), LS_OK);
}

ROWS_TEST(wrong_statistics_are_caught, dumps)
{
    const struct dumped *d = &dumps[_i];
    const ls_judge_statistics_facts facts = {
        .step = 2, .size = GROUP, .half = d->half, .from_rank_0 = d->sent};
    ls_judge_running running[LS_JUDGE_RUNNING_RANKS];
    ls_record job = {.world = RANKS};
    ls_verdict out = {.code = LS_PASS};
    fake_folder(job.directory, sizeof job.directory);
    LS_TEXT(folder, 700, "%s/dump", job.directory);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    ls_judge_statistics_start(running);
    ck_assert(running[0].mean[0] == 0 && running[RANKS - 1].var[CHANNELS - 1] == 1);
    for (int i = 0; d->sent && i < RANKS * CHANNELS; i++) {
        running[i / CHANNELS].mean[i % CHANNELS] = 0.25 * (i / CHANNELS);
        running[i / CHANNELS].var[i % CHANNELS] += 0.25 * (i / CHANNELS);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        write_dump(job.directory, rank, d, &running[d->sent && !d->kept ? 0 : rank]);
    }
    int compared = ls_judge_statistics(&job, &facts, running, &out);
    ck_assert(d->evidence != NULL || compared == 2 * CHANNELS * RANKS);
    ck_assert_msg((out.code == LS_PASS) == (d->evidence == NULL), "%s", out.evidence);
    ck_assert_msg(d->evidence == NULL || strstr(out.evidence, d->evidence) != NULL, "%s",
                  out.evidence);
    ck_assert_msg(d->cause == NULL ? out.cause[0] == '\0' : strstr(out.cause, d->cause) != NULL,
                  "row %d: '%s', %s", _i, out.cause, out.evidence);
    double most = fmax(fabs(d->mean), fabs(d->var)); /* the worst one is shown, not the last */
    ck_assert(d->evidence != NULL || most == 0 || fabs(out.value / out.limit - most) < 0.1);
    ls_path_remove_tree(job.directory);
}

TEST_MAIN("cases", .after = free_cases)
