/* Reports of unusual runs: the order of jobs, the marks of a row, runs without jobs. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/job.h"
#include "kernels/core/text.h"
#include "suite/unit/golden.h"
#include "suite/unit/harness/test_report_run.h"
#include "suite/unit/run_suite.h"

#define CASE(name, claimed, verdict, rest)                                                    \
    "{\"case\":\"" name "\",\"family\":\"f\",\"in_claim\":" claimed ",\"verdict\":\"" verdict \
    "\"" rest "}\n"

/* run.json and verdicts.jsonl. */
static const struct {
    const char *record, *verdicts;
} odd_runs[] = {
    {"{}", ""},
    {"{\"title\":\"" X72 " " X36
     "\",\"command\":\"make\",\"created\":\"now\",\"commit\":\"abc\",\"dirty\":true,"
     "\"machine\":{},\"installed\":[],\"findings\":[]}",
     CASE("p", "true", "PASS", "")},
    {"{\"where\":\"w\",\"dirty\":false,\"installed\":[\"a\",7,\"b\"],\"machine\":{\"cores\":2,"
     "\"on\":true,"
     "\"off\":false,\"none\":null,\"text\":\"\",\"share\":0.25,\"large\":25000000000,\"list\":[1,"
     "\"x\",{\"y\":[2,"
     "{\"z\":3}]},[]],\"empty\":{},\"deep\":{\"a\":{\"b\":\"c\"},\"d\":[true]}},\"headline\":{"
     "\"correct\":{\"value\":"
     "\"yes\"},\"speed\":{\"why\":\"w\"},\"machine\":{\"value\":\"ready\",\"why\":\"\"}}}",
     CASE("u", "true", "UNSUPPORTED", ",\"seconds\":0.126") CASE("s", "true", "SKIP", "")
         CASE("uo", "false", "UNSUPPORTED", "") CASE("so", "false", "SKIP", "")
             CASE("po", "false", "PASS", "")},
    {"{\"headline\":{\"manners\":{\"value\":\"0 of "
     "1\",\"why\":\"x\",\"decide\":true}},\"findings\":["
     "{\"code\":\"XID\",\"severity\":\"fail\",\"gpu\":2,\"address\":\"0000:30:00.0\",\"what\":"
     "\"w\",\"do\":\"d\"},"
     "{\"code\":\"GPU_COUNT\",\"severity\":\"fail\",\"address\":\"0000:40:00.0\",\"what\":\"w\"},"
     "{\"code\":\"P2P_OFF\",\"severity\":\"warning\",\"what\":\"w\",\"do\":\"d\"},"
     "{\"code\":\"DRIVER\",\"severity\":\"info\",\"gpu\":0},{\"code\":\"LATER\",\"gpu\":1}]}",
     CASE("m", "true", "FAIL", ",\"manners\":true,\"evidence\":\"e\",\"value\":3,\"limit\":2")
         CASE("v", "true", "FAIL",
              ",\"evidence\":\"e\",\"value\":0,\"limit\":0,\"unit\":\"ulp\",\"limit_from\":\"a "
              "rule\",\"cause\":\"c\","
              "\"repeat\":\"r\",\"waiver\":\"\"")
             CASE("w", "true", "WAIVED", ",\"waiver\":\"until then\",\"evidence\":\"e\"")
                 CASE("i1", "true", "INFRA", ",\"evidence\":\"no device\"")
                     CASE("i2", "true", "INFRA", ",\"evidence\":\"no device\"")
                         CASE("i3", "true", "INFRA", ",\"evidence\":\"no device\"")
                             CASE("i4", "true", "INFRA", ",\"evidence\":\"another\"")
                                 CASE("f1", "true", "FAIL", ",\"evidence\":\"another\"")
                                     CASE("f2", "true", "FAIL", ",\"evidence\":\"another\"")
                                         CASE("x", "true", "LATER", "")},
    {"{}", CASE("a", "false", "FAIL", "") CASE("b", "false", "CRASH", "")
               CASE("c", "false", "TIMEOUT", "") CASE("d", "false", "WEAK", ",\"value\":1e-9")
                   CASE("e", "false", "INFRA", "") CASE("f", "false", "FAIL", "")
                       CASE("g", "false", "WAIVED", ",\"waiver\":\"x\"")},
    /* 80 columns and 81, words that are longer, blanks */
    {"{\"title\":\"" X36 "xxxx " X36 "yyy\",\"where\":\"" X36 "xxxx " X36 "yyyy\",\"headline\":{"
     "\"correct\":{\"value\":\"yes\",\"why\":\"" X36 "xx " X36 "\"},\"speed\":{\"value\":\"yes\","
     "\"why\":\"" X72 X36 " y " X72
     "  y\"},\"machine\":{\"value\":\"ready\",\"why\":\"a  b\\nc " X36 "x " X36 " d \"}}}",
     CASE("c", "true", "FAIL",
          ",\"evidence\":\"" X36 " " X36 "\",\"cause\":\"" X36 "  " X35 " z\",\"repeat\":\"" X72
          " y " X36 "\"")},
};

/* In the order of a report; the names of their folders would have it the other way round. */
static const char *const ordered[] = {
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O0\",\"half\":\"fp16\",\"world\":1,"
    "\"nodes\":1,\"bucket_mb\":25",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"fp16\",\"world\":8,"
    "\"nodes\":2,\"bucket_mb\":25",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"bf16\",\"world\":1,"
    "\"nodes\":2,\"bucket_mb\":25",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"bf16\",\"world\":2,"
    "\"nodes\":1,\"bucket_mb\":25",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"bf16\",\"world\":2,"
    "\"nodes\":2,\"bucket_mb\":-1",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"bf16\",\"world\":2,"
    "\"nodes\":2,\"bucket_mb\":1",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"bf16\",\"world\":2,"
    "\"nodes\":2,\"bucket_mb\":25",
    "\"role\":\"throughput\",\"arch\":\"resnet18\",\"level\":\"O1\",\"half\":\"bf16\",\"world\":2,"
    "\"nodes\":2,\"bucket_mb\":0",
    "\"role\":\"throughput\",\"arch\":\"resnet50\",\"level\":\"O0\",\"half\":\"fp16\",\"world\":1",
    "\"role\":\"phases\",\"arch\":\"resnet18\",\"level\":\"O0\"",
    "\"role\":\"evidence\",\"arch\":\"resnet18\",\"level\":\"O0\"",
    "\"role\":\"reference\",\"arch\":\"resnet18\",\"level\":\"O0\"",
    "\"role\":\"no_comm\",\"arch\":\"resnet18\",\"level\":\"O0\"",
    "\"role\":\"ddp_world1\",\"arch\":\"resnet18\",\"level\":\"O1\"",
    "\"role\":\"no_comm\",\"arch\":\"resnet18\",\"level\":\"O2\"",
};

TEST(jobs_have_an_order)
{
    enum { COUNT = sizeof ordered / sizeof *ordered };
    ls_report_run run;
    char text[600];
    write_text("run.json", "{}\n");
    for (int i = 0; i <= COUNT; i++) { /* the last twice */
        int of = i < COUNT ? i : COUNT - 1;
        LS_TEXT(path, 100, "jobs/%c%s/job.json", 'z' - of, i < COUNT ? "" : "a");
        ls_text_put(
            text, sizeof text,
            "{\"label\":\"%d\",\"facts\":{%s},\"outcome\":{\"state\":\"done\",\"ranks\":[]}}\n", i,
            ordered[of]);
        write_text(path, text);
    }
    write_text("jobs/.hidden/job.json", "{}\n");
    ck_assert_int_eq(ls_report_load(scratch, &run), LS_OK);
    ck_assert_int_eq(run.job_count, COUNT + 1);
    for (int i = 0; i <= COUNT; i++) {
        ck_assert_int_eq(atoi(run.job[i].record->label), i);
    }
    ls_report_load_free(&run);
}

/* One row that has all marks, then each alone; its events; without steps after the warm-up. */
static const struct {
    const char *facts, *start;
    int steps;
    double second_half;
} marked[] = {
    {"\"nodes\":2,\"simulated\":true,\"oversubscribed\":true,\"half_emulated\":true,\"checked\":"
     "false",
     ",\"cuda_graph\":\"off\"", 20, 1.2},
    {"\"nodes\":2,\"simulated\":true,\"checked\":true", "", 20, 1},
    {"\"nodes\":2,\"simulated\":false,\"checked\":true", "", 20, 1},
    {"\"oversubscribed\":true,\"checked\":true", "", 20, 1},
    {"\"half_emulated\":true,\"checked\":true", "", 20, 1},
    {"\"half_emulated\":true,\"checked\":true",
     ",\"half_products\":\"fp16 emulated: this CPU has neither AMX-FP16 nor AVX512-FP16\"", 20, 1},
    {"\"half_emulated\":true,\"checked\":true",
     ",\"half_emulated\":false,\"half_products\":\"fp16 on AMX-FP16\"", 20, 1},
    {"\"checked\":true", ",\"cuda_graph\":\"off\"", 20, 1},
    {"\"checked\":true", ",\"cuda_graph\":true", 20, 1.2},
    {"\"checked\":false", "", 20, 1},
    {"\"checked\":true", "", 7, 1},
    {"\"checked\":true", "", 3, 1},
    {"\"checked\":true", "", 2, 1},
};

TEST(marks_of_a_row_word_for_word)
{
    char *text = NULL, events[6000], job[600];
    size_t bytes = 0;
    golden_variants rows = {0};
    FILE *to = open_memstream(&text, &bytes);
    write_text("run.json", "{\"machine\":{\"cores\":1}}\n");
    for (size_t i = 0; i < sizeof marked / sizeof *marked; i++) {
        ls_text_put(
            job, sizeof job,
            "{\"label\":\"row\",\"facts\":{%s,\"role\":\"throughput\",\"arch\":\"resnet8\","
            "\"image_size\":32,\"batch_size\":4,\"level\":\"O1\",\"half\":\"fp16\",\"world\":2,"
            "\"bucket_mb\":25,\"warmup_steps\":2,\"sweep\":[\"level\"]},\"outcome\":{"
            "\"state\":\"done\",\"seconds\":2,\"ranks\":[{\"rank\":0,\"rss_bytes_max\":5e6}]}}\n",
            marked[i].facts);
        write_text("jobs/j/job.json", job);
        for (int rank = 0; rank < 2; rank++) {
            LS_TEXT(path, 100, "jobs/j/rank%d.jsonl", rank);
            ls_text_put(events, sizeof events, "{\"event\":\"start\",\"threads\":1%s}\n",
                        marked[i].start);
            for (int step = 1; step <= marked[i].steps; step++) {
                ls_text_add(events, sizeof events,
                            "{\"event\":\"step\",\"step\":%d,\"loss\":1,\"images\":4,\"ms\":{"
                            "\"total\":%g,\"comm\":3,\"comm_exposed\":%d}}\n",
                            step, (10 + rank + step % 3) * (step > 11 ? marked[i].second_half : 1),
                            1 + rank);
            }
            write_text(path, events);
        }
        char *report = golden_report(scratch, false);
        char *html = strstr(report, "==== report.html"), *speed = strstr(report, "## Throughput");
        LS_TEXT(title, 300, "%s%s", marked[i].facts, marked[i].start);
        char *row = NULL;
        LS_MEMORY(asprintf(&row, "%.*s%.*s", (int)(strstr(report, "==== report.md") - report),
                           report,
                           (int)(i == 0 ? html - speed : strstr(speed, "## Failures") - speed),
                           speed) >= 0);
        free(report);
        golden_variant(to, &rows, title, row);
    }
    fclose(to);
    golden_variants_free(&rows);
    golden_check("suite/unit/harness/expected/marks.txt", golden_sections(text, 1));
}

#define STEP_ALONE(type, products, norms, rest)                                                 \
    "{\"when\":\"before\",\"threads\":1,\"type\":\"" type "\",\"arch\":\"resnet18\","           \
    "\"image_size\":64,\"batch_size\":8,\"forward_ms\":20,\"backward_ms\":30,\"update_ms\":10," \
    "\"convolutions_ms\":null,\"kinds\":[{\"kind\":\"products: forward\",\"ms\":" #products     \
    ",\"floor_ms\":4},{\"kind\":\"norms: forward\",\"ms\":" #norms                              \
    ",\"floor_ms\":1},{\"kind\":\"pools, loss, ...\",\"ms\":1,\"floor_ms\":1}" rest "]}"
#define UPDATE_ALONE(value) ",{\"kind\":\"optimizer, weights\",\"ms\":" #value ",\"floor_ms\":2}"

/* Why a level pays: the largest difference of the same step alone; nothing without both types. */
TEST(why_a_level_pays)
{
    static const struct {
        const char *layers, *sentence;
    } rows[] = {
        {STEP_ALONE("f32", 40, 9, UPDATE_ALONE(8)) "," STEP_ALONE("bf16", 15, 5, UPDATE_ALONE(6)),
         "* Why: a step alone takes 58.0 ms in f32 (products 40.0, memory passes 10.0, optimizer "
         "and "
         "weights 8.0) and 27.0 ms in bf16 (products 15.0, memory passes 6.0, optimizer and "
         "weights "
         "6.0): bf16 saves most in products, 25.0 ms. A step reduces 1.5 MB at O1.\n"},
        {STEP_ALONE("f32", 40, 9, "") "," STEP_ALONE("f16", 39, 19.5, ""),
         "* Why: a step alone takes 50.0 ms in f32 (products 40.0, memory passes 10.0) and 59.5 ms "
         "in "
         "f16 (products 39.0, memory passes 20.5): f16 costs most in memory passes, 10.5 ms. A "
         "step "
         "reduces 1.5 MB at O1.\n"},
        {STEP_ALONE("f32", 40, 9, UPDATE_ALONE(8)) "," STEP_ALONE("f16", 40, 9, UPDATE_ALONE(2)),
         " f16 saves most in optimizer and weights, 6.0 ms. A step reduces 1.5 MB at O1.\n"},
        {STEP_ALONE("f32", 40, 9, UPDATE_ALONE(8)), NULL},
        {STEP_ALONE("bf16", 40, 9, ""), NULL},
        {"{\"when\":\"before\",\"type\":\"f32\"}," STEP_ALONE("bf16", 40, 9, ""), NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        LS_TEXT(record, 4000, "{\"machine\":{\"cores\":2},\"layers\":[%s]}\n", rows[i].layers);
        write_text("run.json", record);
        write_text(
            "jobs/j/job.json",
            "{\"label\":\"row\",\"facts\":{\"role\":\"throughput\",\"arch\":\"resnet8\","
            "\"image_size\":32,\"batch_size\":4,\"level\":\"O1\",\"half\":\"fp16\",\"world\":2,"
            "\"bucket_mb\":25,\"warmup_steps\":2,\"checked\":true,\"sweep\":[\"level\"]},"
            "\"outcome\":{\"state\":\"done\",\"seconds\":2,\"ranks\":[{\"rank\":0}]}}\n");
        char events[6000] =
            "{\"event\":\"start\",\"threads\":1}\n{\"event\":\"buckets\",\"step\":1,"
            "\"buckets\":[{\"bytes\":1500000,\"names\":[\"fc.bias\"]}]}\n";
        for (int step = 1; step <= 20; step++) {
            ls_text_add(
                events, sizeof events,
                "{\"event\":\"step\",\"step\":%d,\"loss\":1,\"images\":4,\"ms\":{\"total\":10}}\n",
                step);
        }
        write_text("jobs/j/rank0.jsonl", events);
        write_text("jobs/j/rank1.jsonl", events);
        char *report = golden_report(scratch, false);
        if (rows[i].sentence == NULL) {
            ck_assert_ptr_null(strstr(report, "* Why: "));
        } else {
            ck_assert_msg(strstr(report, rows[i].sentence) != NULL, "%.1500s",
                          strstr(report, "## Advice"));
            ck_assert_ptr_nonnull(strstr(report, "Where a step's time goes on this CPU"));
            ck_assert_ptr_nonnull(strstr(report, "with the optimizer, without data and "));
        }
        free(report);
    }
}

TEST(runs_without_jobs_word_for_word)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    golden_variants runs = {0};
    for (size_t i = 0; i < sizeof odd_runs / sizeof *odd_runs; i++) {
        write_text("run.json", odd_runs[i].record);
        write_text("verdicts.jsonl", odd_runs[i].verdicts);
        char *report = golden_report(scratch, false);
        char *html = strstr(report, "==== report.html"), *junit = strstr(report, "==== junit.xml");
        char *tables = strstr(report, "==== throughput_by_level.tsv");
        char *summary = strstr(report, "\nsummary/"), *run = NULL;
        LS_TEXT(title, 20, "run %zu", i);
        LS_MEMORY(asprintf(&run, "%.*s%.*s%s", (int)(html - report), report, (int)(tables - junit),
                           junit, summary + 1) >= 0);
        free(report);
        golden_variant(to, &runs, title, run);
    }
    for (int t = 0; ls_tables_name(t) != NULL; t++) { /* without rows */
        ls_table_head head;
        ck_assert_int_eq(ls_tables_read_head(scratch, ls_tables_name(t), &head), LS_OK);
        fprintf(to, "%s%s: %s\n", t == 0 ? "==== tables\n" : "", ls_tables_name(t), head.title);
    }
    fclose(to);
    golden_variants_free(&runs);
    golden_check("suite/unit/harness/expected/odd_runs.txt", golden_sections(text, 3));
}

TEST_MAIN("report_runs", .timeout_s = 60, .before = open_scratch, .after = close_scratch)
