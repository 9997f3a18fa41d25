/* The words of a case's table: what each makes of a job, and which are refused. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"
#include "suite/cases/rows.h"
#include "suite/unit/run_suite.h"

static const ls_case_settings settings = {.seed = 7};

static void judge(const ls_case *row, const ls_record *job, ls_verdict *out)
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
        {"a.o[0|2].w[2|3]", "Q1", judge, "resnet8 O$1 w$2 --x=$2", &more},
        {"b.[off=|half=O2 bf16]", "Q2", judge, "w2 $1 | w3 $1 --resume={job:0}/c", .inside = true},
        {"c[|.again]", "Q3", judge},
        {"d", "Q4", judge, "shell | w2", .script = "exit 4", .judges_refusal = true},
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
                       &(ls_row){.requirement = "G1", .judge = judge, .data = data}, "x.%d: O%d w2",
                       level, level % 4);
    }
    ls_rows_format(&list, &settings, &(ls_row){.requirement = "G1", .judge = judge}, "y.%d", 1);
    ck_assert_int_eq(list.count, 101);
    ck_assert_int_eq(*(const int *)list.row[67].data, 67);
    ck_assert_str_eq(list.row[67].id, "x.67");
    ck_assert_int_eq(list.row[67].job[0].level, 3);
    ck_assert_int_eq(list.row[100].kind, LS_INSIDE);
    ls_rows_free(&list);
    ck_assert_ptr_null(list.memory);
}

TEST(evidence_is_for_what_passes)
{
    ls_verdict out = {0};
    ls_verdict_pass(&out, 3, "%d steps", 3);
    ck_assert_str_eq(out.evidence, "3 steps");
    ls_verdict_fail(&out, "step %d", 2);
    ls_verdict_fail(&out, "step %d", 3);
    ls_verdict_pass(&out, 4, "all good");
    ck_assert_int_eq(out.code, LS_FAIL);
    ck_assert_str_eq(out.evidence, "step 2");
}

TEST_MAIN("rows")
