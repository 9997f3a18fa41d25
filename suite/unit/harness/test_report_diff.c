/* Differences of two runs: rows of the same job, speeds with and without a gate, verdicts. */
#include <limits.h>

#include "harness/report/files.h"
#include "suite/unit/golden.h"
#include "suite/unit/harness/test_report_run.h"
#include "suite/unit/run_suite.h"

#define ROW                                                                          \
    "\"arch\":\"resnet18\",\"level\":\"O2\",\"half\":\"fp16\",\"dialect\":\"apex\"," \
    "\"image_size\":64,\"batch_size\":8,\"world\":2,\"nodes\":1,\"bucket_mb\":25"
#define RATE "\"not_a_result\":\"\",\"images_per_s\":100"

/* A row of a summary, ROW with these members instead; whether it is the same job as ROW with
 * RATE, and whether its speed decides. */
static const struct {
    const char *members;
    bool same, decides;
} rows[] = {
    {RATE, true, true},
    {"\"arch\":\"resnet34\"," RATE, false, true},
    {"\"level\":\"O1\"," RATE, false, true},
    {"\"half\":\"bf16\"," RATE, false, true},
    {"\"dialect\":\"torch\"," RATE, false, true},
    {"\"image_size\":65," RATE, false, true},
    {"\"batch_size\":9," RATE, false, true},
    {"\"world\":3," RATE, false, true},
    {"\"nodes\":2," RATE, false, true},
    {"\"bucket_mb\":24," RATE, false, true},
    {"\"bucket_mb\":null," RATE, false, true},
    {"\"label\":\"x\"," RATE, true, true},
    {"\"oversubscribed\":true," RATE, true, false},
    {"\"weak\":true," RATE, true, false},
    {"\"not_a_result\":\"\",\"images_per_s\":0", true, false},
    {"\"not_a_result\":\"\",\"images_per_s\":0.5", true, true},
    {"\"not_a_result\":\"\"", true, false},
    {"\"not_a_result\":\"WEAK\",\"images_per_s\":1", true, false},
    {"\"images_per_s\":1", true, false},
};

/* The first of two equal members counts. */
static cJSON *read_row(const char *members)
{
    LS_TEXT(text, 800, "{%s," ROW "}", members);
    cJSON *row = cJSON_Parse(text);
    ck_assert_ptr_nonnull(row);
    return row;
}

ROWS_TEST(rows_of_the_same_job, rows)
{
    cJSON *usual = read_row(RATE), *row = read_row(rows[_i].members);
    ck_assert_msg(ls_report_diff_same_job(usual, row) == rows[_i].same &&
                      ls_report_diff_same_job(row, usual) == rows[_i].same,
                  "%s", rows[_i].members);
    ck_assert_msg(ls_report_diff_decides(row) == rows[_i].decides, "%s", rows[_i].members);
    cJSON_Delete(usual);
    cJSON_Delete(row);
}

/* Speeds of A and B with intervals, of jobs that decide or not, of one that either lacks, cases of
 * every change. */
static void write_pair(void)
{
    static const char *const speeds[][3] = {
        {"\"world\":1", "100,\"images_per_s_low\":100,\"images_per_s_high\":100",
         "50,\"images_per_s_low\":50,\"images_per_s_high\":50"},
        {"\"world\":2", "100,\"images_per_s_low\":99,\"images_per_s_high\":101",
         "49,\"images_per_s_low\":48,\"images_per_s_high\":49.5"},
        {"\"world\":3,\"weak\":true", "100,\"images_per_s_low\":99,\"images_per_s_high\":101",
         "40,\"images_per_s_low\":39,\"images_per_s_high\":41"},
        {"\"world\":4,\"oversubscribed\":true",
         "100,\"images_per_s_low\":99,\"images_per_s_high\":101",
         "99.5,\"images_per_s_low\":98,\"images_per_s_high\":101"},
        {"\"world\":5,\"weak\":true,\"oversubscribed\":true", "10", "11"},
        {"\"world\":6", "10", "9"},
        {"\"world\":7", "10,\"not_a_result\":\"FAIL x\"", "9"},
        {"\"world\":8", "10", "9,\"not_a_result\":\"not checked\""},
        {"\"world\":9", "10", ""},
        {"\"world\":10", "", "10"},
    };
    static const char *const words[] = {"PASS", "FAIL", "CRASH", "TIMEOUT", "WEAK", "WAIVED", ""};
    char cases[8000];
    for (int run = 0; run < 2; run++) {
        char summary[6000] = "{\"where\":\"here\",\"commit\":\"abc\",\"machine\":{\"cpu\":\"C\","
                             "\"cores\":2},\"options\":{\"device\":\"cpu\"},\"throughput\":[";
        int count = 0;
        for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++) {
            if (speeds[i][1 + run][0] != '\0') {
                ls_text_add(summary, sizeof summary,
                            "%s{%s,\"label\":\"job %zu of run %d\",\"images_per_s\":%s,"
                            "\"not_a_result\":\"\"," ROW "}",
                            count++ > 0 ? "," : "", speeds[i][0], i, run, speeds[i][1 + run]);
            }
        }
        ls_text_add(summary, sizeof summary, "]}\n");
        cases[0] = '\0';
        for (int i = 0; i < 7 * 7; i++) {
            const char *word = words[run == 0 ? i / 7 : i % 7];
            const char *place = i % 3 == 0   ? "\"in_claim\":true"
                                : i % 3 == 1 ? "\"in_claim\":false"
                                             : "\"in_claim\":true,\"manners\":true";
            if (word[0] != '\0') {
                ls_text_add(cases, sizeof cases,
                            "{\"case\":\"c%d\",%s,\"verdict\":\"%s\",\"evidence\":\"e%d\"}\n", i,
                            place, word, i);
            }
        }
        write_text(run == 0 ? "a/summary.json" : "b/summary.json", summary);
        write_text(run == 0 ? "a/verdicts.jsonl" : "b/verdicts.jsonl", cases);
        write_text(run == 0 ? "a/run.json" : "b/run.json",
                   "{\"headline\":{\"manners\":{\"decide\":false}}}\n");
    }
}

TEST(differences_word_for_word)
{
    static const double gates[] = {NAN, 0.5, 0.499, 0.6};
    char *text = NULL, here[PATH_MAX];
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    golden_variants gated = {0};
    write_pair();
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    ck_assert_int_eq(chdir(scratch), 0); /* paths are a part of the text */
    for (int i = 0; i < 4; i++) {
        LS_TEXT(title, 20, "gate %g", gates[i]);
        char *said = NULL;
        size_t length = 0;
        FILE *one = open_memstream(&said, &length);
        int status = (int)ls_report_diff("a", i == 3 ? "b/summary.json" : "b", gates[i], one);
        fprintf(one, "status %d\n", status);
        fclose(one);
        golden_variant(to, &gated, title, said);
    }
    golden_variants_free(&gated);
    /* nothing in common, cases alone, speed alone */
    write_text("c/run.json", "{\"headline\":{}}\n");
    write_text("d/run.json", "{\"headline\":{}}\n");
    write_text("c/summary.json", "{\"throughput\":[]}\n");
    write_text("c/verdicts.jsonl", "{\"case\":\"c1\",\"verdict\":\"PASS\"}\n");
    write_text("d/summary.json", "{}\n");
    write_text("d/verdicts.jsonl", "{\"case\":\"c2\",\"verdict\":\"PASS\"}\n");
    static const struct {
        const char *a, *b;
        double gate;
    } odd[] = {{"c", "c", NAN}, {"c", "c", 0.5}, {"c", "d", NAN}, {"d", "c", NAN}, {"d", "d", 0.5},
               {"a", "c", NAN}, {"c", "a", NAN}, {"a", "x", NAN}, {"x", "a", NAN}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        fprintf(to, "==== %s %s, gate %g\n", odd[i].a, odd[i].b, odd[i].gate);
        int status = (int)ls_report_diff(odd[i].a, odd[i].b, odd[i].gate, to);
        fprintf(to, "status %d\n", status);
    }
    ck_assert_int_eq(chdir(here), 0);
    fclose(to);
    golden_check("suite/unit/harness/expected/diff.txt", golden_short(text, 1));
}

TEST_MAIN("report_diff", .timeout_s = 60, .before = open_scratch, .after = close_scratch)
