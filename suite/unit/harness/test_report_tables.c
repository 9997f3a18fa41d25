/* Tables of a report: heads that are read back, labels, and the title and rows of the gradient
 * errors. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/job.h"
#include "harness/report/tables/tables.h"
#include "kernels/core/text.h"
#include "suite/unit/harness/test_report_run.h"
#include "suite/unit/run_suite.h"

static const struct {
    const char *text, *title, *caption, *blocks;
    int rows;
} heads[] = {
    {"", "", "", "", 0},
    {"1\n2", "", "", "", 2},
    {"# units: u\n\n1\n\n\n2\n", "", "", "", 2},
    {"# title: t: u\n# caption:c\n# blocks:  \"A\" \"B\"\n# other\n1\n#2\n3\n", "t: u", "c",
     " \"A\" \"B\"", 2},
    {"# title: t\n# title: u\n#title: v\n # title: w\n", "u", "", "", 1},
};

ROWS_TEST(heads_are_read_back, heads)
{
    ls_table_head head;
    write_text("tables/t.tsv", heads[_i].text);
    ck_assert_int_eq(ls_tables_read_head(scratch, "t", &head), LS_OK);
    ck_assert_str_eq(head.title, heads[_i].title);
    ck_assert_str_eq(head.caption, heads[_i].caption);
    ck_assert_str_eq(head.blocks, heads[_i].blocks);
    ck_assert_int_eq(head.rows, heads[_i].rows);
}

TEST(labels_are_plain)
{
    char text[16];
    ck_assert_str_eq(ls_tables_plain("a\"\\`\x1f\x7f ~b", text, sizeof text), "a      ~b");
    ck_assert_str_eq(ls_tables_plain("abcdef", text, 4), "abc");
    ck_assert_str_eq(ls_tables_plain("abc", text, 4), "abc");
    ck_assert_str_eq(ls_tables_plain("", text, 1), "");
    ck_assert_str_eq(ls_tables_plain("\xc3\xa4", text, sizeof text), "\xc3\xa4");
}

#define WHOLE(e) "{\"whole\":{\"e\":" e ",\"limit\":2},\"tensors\":["
#define TENSOR(name, e) "{\"name\":\"" name "\",\"elements\":9,\"e\":" e ",\"r\":0.5,\"limit\":4}"

/* Judged gradients of jobs at these levels, the table's title, and the tensors of its first rows.
 */
static const struct {
    const char *levels, *gradients[3], *title, *rows;
} judged[] = {
    {"", {NULL}, "Gradient error: no gradient was judged", ""},
    {"2", {NULL}, "Gradient error: no gradient was judged", ""},
    {"2",
     {WHOLE("1") TENSOR("a", "1") "," TENSOR("b", "1.5") "]}"},
     "Gradients of 1 job are inside its limits; closest: O2, the whole gradient, at 0.50 of it",
     "1\t1\t0.5\t4\t9\t2\t\"a\"\n2\t1.5\t0.5\t4\t9\t2\t\"b\"\n\n\n"},
    {"2",
     {WHOLE("1") TENSOR("a", "1") "," TENSOR("b\\\"", "4") "]}"},
     "Gradients of 1 job are inside its limits; closest: O2, b , at 1.00 of it",
     NULL},
    {"2",
     {WHOLE("1") TENSOR("a", "6") "," TENSOR("b", "5") "]}"},
     "O2: a is 1.5 x its limit",
     NULL},
    {"2",
     {WHOLE("1") TENSOR("a", "null") "," TENSOR("b", "9") "]}"},
     "O2: a is inf x its limit",
     NULL},
    {"11",
     {WHOLE("1") TENSOR("a", "1") "]}", WHOLE("1") TENSOR("b", "3") "]}"},
     "Gradients of 2 jobs are inside their limits; closest: O1, b, at 0.75 of it",
     "1\t3\t0.5\t4\t9\t1\t\"b\"\n\n\n"},
    {"11",
     {WHOLE("1") TENSOR("a", "3") "]}", WHOLE("1") TENSOR("b", "3") "]}"},
     "Gradients of 2 jobs are inside their limits; closest: O1, a, at 0.75 of it",
     "1\t3\t0.5\t4\t9\t1\t\"a\"\n\n\n"},
    {"012",
     {WHOLE("1") TENSOR("a", "2.5") "]}", NULL, WHOLE("1.5") TENSOR("c", "1") "]}"},
     "Gradients of 2 jobs are inside their limits; closest: O2, the whole gradient, at 0.75 of it",
     "1\t2.5\t0.5\t4\t9\t0\t\"a\"\n\n\n1\t1\t0.5\t4\t9\t2\t\"c\"\n\n\n"},
};

ROWS_TEST(gradients_closest_to_their_limits, judged)
{
    static const int steps[] = {0};
    ls_report_job job[3];
    ls_report_run run = {.job_count = (int)strlen(judged[_i].levels), .job = job};
    ls_text_put(run.directory, sizeof run.directory, "%s", scratch);
    write_text("tables/t.tsv", "");
    for (int j = 0; j < run.job_count; j++) {
        job[j] = job_of(1, steps);
        job[j].record->spec.level = judged[_i].levels[j] - '0';
        ls_text_put(job[j].record->spec.half, sizeof job[j].record->spec.half, "fp16");
        if (judged[_i].gradients[j] != NULL) {
            job[j].gradients = cJSON_Parse(judged[_i].gradients[j]);
            ck_assert_ptr_nonnull(job[j].gradients);
        }
    }
    ls_table_head head;
    ck_assert_int_eq(ls_tables_parts_write_gradients(&run), LS_OK);
    ck_assert_int_eq(ls_tables_read_head(scratch, "gradient_error", &head), LS_OK);
    ck_assert_str_eq(head.title, judged[_i].title);
    char *table = read_text("tables/gradient_error.tsv");
    for (char *line = table; judged[_i].rows != NULL; line = strchr(line, '\n') + 1) {
        if (line[0] != '#') {
            ck_assert_str_eq(line, judged[_i].rows);
            break;
        }
    }
    free(table);
    for (int j = 0; j < run.job_count; j++) {
        cJSON_Delete(job[j].gradients);
        drop_job(&job[j]);
    }
}

/* What limits a comparison of two jobs: the run, then nodes, too many ranks and emulated half of
 * the second. */
static const struct {
    const char *run;
    int nodes;
    bool oversubscribed, half;
    const char *marks;
} limits[] = {
    {"{}", 1, false, false, ""},
    {"{}", 2, false, false, " (2 nodes are simulated)"},
    {"{}", 1, false, true, " (half is emulated)"},
    {"{}", 1, true, false, " (4 ranks share too few devices)"},
    {"{\"machine\":{\"cores\":1}}", 1, true, false, " (4 ranks share 1 core)"},
    {"{\"machine\":{\"cores\":2}}", 4, true, true,
     " (4 nodes are simulated; half is emulated; 4 ranks share 2 cores)"},
    {"{\"machine\":{\"cores\":2},\"options\":{\"emulated\":true}}", 1, true, true,
     " (the GPU is emulated on the CPU; 4 ranks share 2 cores)"},
    {"{\"options\":{\"emulated\":true}}", 1, false, false, " (the GPU is emulated on the CPU)"},
    {"{\"options\":{\"emulated\":false}}", 1, false, true, " (half is emulated)"},
};

ROWS_TEST(titles_say_what_limits, limits)
{
    static const int steps[4] = {0};
    ls_report_job job[2] = {job_of(2, steps), job_of(4, steps)};
    const ls_report_job *jobs[] = {&job[0], &job[1]};
    ls_report_run run = {.record = cJSON_Parse(limits[_i].run)};
    char title[LS_TABLE_TITLE_BYTES] = "T";
    job[0].record->spec.world = 2;
    job[0].record->spec.nodes = 1;
    job[1].record->spec.world = 4;
    job[1].record->spec.nodes = limits[_i].nodes;
    job[1].record->oversubscribed = limits[_i].oversubscribed;
    job[1].record->half_emulated = limits[_i].half;
    ls_tables_add_marks(&run, jobs, 2, title);
    ck_assert_str_eq(title + 1, limits[_i].marks);
    job[0].record->oversubscribed = limits[_i].oversubscribed; /* the most ranks are named */
    ls_tables_add_marks(&run, jobs, 1, title);
    ck_assert(limits[_i].oversubscribed == (strstr(title, "2 ranks share") != NULL));
    cJSON_Delete(run.record);
    drop_job(&job[0]);
    drop_job(&job[1]);
}

/* A row for each way that was timed, in the order of ls_way, and none for other jobs. */
TEST(ways_in_their_order)
{
    static const int steps[] = {0};
    static const ls_way ways[] = {LS_WAY_REPLICAS, LS_WAY_NONE, LS_WAY_DDP, LS_WAY_STAGES};
    ls_report_job job[4];
    ls_report_run run = {.job_count = 4, .job = job};
    ls_text_put(run.directory, sizeof run.directory, "%s", scratch);
    write_text("tables/t.tsv", "");
    for (int j = 0; j < run.job_count; j++) {
        job[j] = job_of(1, steps);
        job[j].record->spec.way = ways[j];
        job[j].record->spec.role = ways[j] == LS_WAY_REPLICAS ? LS_ROLE_WAY : LS_ROLE_THROUGHPUT;
        job[j].speed.count = ways[j] == LS_WAY_STAGES ? 0 : 1; /* nothing was measured */
    }
    ls_table_head head;
    ck_assert_int_eq(ls_tables_ways_write(&run), LS_OK);
    ck_assert_int_eq(ls_tables_read_head(scratch, "ways", &head), LS_OK);
    ck_assert_int_eq(head.rows, 2);
    ck_assert_msg(strstr(head.title, "too few jobs passed") != NULL, "%s", head.title);
    char *table = read_text("tables/ways.tsv");
    char *first = strstr(table, "DDP, Apex's rules"), *second = strstr(table, "DataParallel\"");
    ck_assert(first != NULL && second != NULL && first < second);
    free(table);
    for (int j = 0; j < run.job_count; j++) {
        job[j].speed.count = 0;
        drop_job(&job[j]);
    }
}

/* The machine is half as fast in the second round and a quarter as fast in the fifth: ratios are
 * taken within a round, so that they stay what they are. The table has a row for each way, with the
 * median of its rounds; one job without its checks takes the way out of the title. */
TEST(ways_are_compared_round_by_round)
{
    enum { ROUNDS = 5 };
    static const double speed[ROUNDS] = {100, 50, 100, 100, 25};
    static const int steps[] = {0};
    ls_report_job job[2 * ROUNDS];
    ls_report_run run = {.job_count = 2 * ROUNDS, .job = job};
    ls_text_put(run.directory, sizeof run.directory, "%s", scratch);
    write_text("tables/t.tsv", "");
    for (int j = 0; j < run.job_count; j++) {
        bool ddp = j % 2 == 0;
        job[j] = job_of(1, steps);
        job[j].record->state = LS_RECORD_DONE;
        job[j].record->checked = true;
        job[j].record->spec.way = ddp ? LS_WAY_DDP : LS_WAY_REPLICAS;
        job[j].record->spec.role = j == 0 ? LS_ROLE_THROUGHPUT : LS_ROLE_WAY;
        job[j].record->spec.repeat = j / 2;
        job[j].speed.count = 1;
        job[j].speed.rate.value = speed[j / 2] * (ddp ? 2 : 1) * (j == 5 ? 1.1 : 1);
    }
    for (int broken = 0; broken < 2; broken++) {
        ls_table_head head;
        job[9].record->checked = broken == 0;
        ck_assert_int_eq(ls_tables_ways_write(&run), LS_OK);
        ck_assert_int_eq(ls_tables_read_head(scratch, "ways", &head), LS_OK);
        ck_assert_int_eq(head.rows, 2);
        const char *wanted = broken == 0 ? "DDP is 2.00 x DataParallel [1.82, 2.00]" : "too few";
        ck_assert_msg(strstr(head.title, wanted) != NULL, "%s", head.title);
        ck_assert_msg(strstr(head.caption, "Median of 5 rounds") != NULL, "%s", head.caption);
        char *table = read_text("tables/ways.tsv");
        ck_assert_msg(strstr(table, "\t200\t50\t200\t") != NULL, "%s", table);
        free(table);
    }
    for (int j = 0; j < run.job_count; j++) {
        job[j].speed.count = 0;
        drop_job(&job[j]);
    }
}

TEST_MAIN("report_tables", .timeout_s = 60, .before = open_scratch, .after = close_scratch)
