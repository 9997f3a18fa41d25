/* Tables of a report, heads that are read back, labels, the title and rows of the gradient errors;
 * reports of unusual runs; pages in Markdown and HTML: each element, and each character that would
 * be markup or is broken. */
#include "harness/report/page.h"
#include "suite/unit/golden.h"
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
    ck_assert_int_eq(ls_table_read_head(scratch, "t", &head), LS_OK);
    ck_assert_str_eq(head.title, heads[_i].title);
    ck_assert_str_eq(head.caption, heads[_i].caption);
    ck_assert_str_eq(head.blocks, heads[_i].blocks);
    ck_assert_int_eq(head.rows, heads[_i].rows);
}

TEST(labels_are_plain)
{
    char text[16];
    ck_assert_str_eq(ls_table_plain("a\"\\`\x1f\x7f ~b", text, sizeof text), "a      ~b");
    ck_assert_str_eq(ls_table_plain("abcdef", text, 4), "abc");
    ck_assert_str_eq(ls_table_plain("abc", text, 4), "abc");
    ck_assert_str_eq(ls_table_plain("", text, 1), "");
    ck_assert_str_eq(ls_table_plain("\xc3\xa4", text, sizeof text), "\xc3\xa4");
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
    ck_assert_int_eq(ls_table_read_head(scratch, "gradient_error", &head), LS_OK);
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
    ls_table_add_marks(&run, jobs, 2, title);
    ck_assert_str_eq(title + 1, limits[_i].marks);
    job[0].record->oversubscribed = limits[_i].oversubscribed; /* the most ranks are named */
    ls_table_add_marks(&run, jobs, 1, title);
    ck_assert(limits[_i].oversubscribed == (strstr(title, "2 ranks share") != NULL));
    cJSON_Delete(run.record);
    drop_job(&job[0]);
    drop_job(&job[1]);
}

/* A job of one rank that trains in that way; nothing was measured if `count` is 0. */
static ls_report_job way_job(ls_way way, ls_role role, int count)
{
    static const int steps[] = {0};
    ls_report_job job = job_of(1, steps);
    job.record->spec.way = way;
    job.record->spec.role = role;
    job.speed.count = count;
    return job;
}

/* A row for each way that was timed, in the order of ls_way, and none for other jobs. */
TEST(ways_in_their_order)
{
    static const ls_way ways[] = {LS_WAY_REPLICAS, LS_WAY_NONE, LS_WAY_DDP, LS_WAY_STAGES};
    ls_report_job job[4];
    ls_report_run run = {.job_count = 4, .job = job};
    ls_text_put(run.directory, sizeof run.directory, "%s", scratch);
    write_text("tables/t.tsv", "");
    for (int j = 0; j < run.job_count; j++) {
        job[j] = way_job(ways[j], ways[j] == LS_WAY_REPLICAS ? LS_ROLE_WAY : LS_ROLE_THROUGHPUT,
                         ways[j] != LS_WAY_STAGES);
    }
    ls_table_head head;
    ck_assert_int_eq(ls_tables_ways_write(&run), LS_OK);
    ck_assert_int_eq(ls_table_read_head(scratch, "ways", &head), LS_OK);
    ck_assert_int_eq(head.rows, 2);
    ck_assert_msg(strstr(head.title, "too few jobs passed") != NULL, "%s", head.title);
    char *table = read_text("tables/ways.tsv");
    char *first = strstr(table, "DDP, Apex's rules"), *second = strstr(table, "DataParallel\"");
    ck_assert(first != NULL && second != NULL && first < second);
    free(table);
    for (int j = 0; j < run.job_count; j++) {
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
    ls_report_job job[2 * ROUNDS];
    ls_report_run run = {.job_count = 2 * ROUNDS, .job = job};
    ls_text_put(run.directory, sizeof run.directory, "%s", scratch);
    write_text("tables/t.tsv", "");
    for (int j = 0; j < run.job_count; j++) {
        bool ddp = j % 2 == 0;
        job[j] = way_job(ddp ? LS_WAY_DDP : LS_WAY_REPLICAS,
                         j == 0 ? LS_ROLE_THROUGHPUT : LS_ROLE_WAY, 1);
        job[j].record->state = LS_RECORD_DONE;
        job[j].record->checked = true;
        job[j].record->spec.repeat = j / 2;
        job[j].speed.rate.value = speed[j / 2] * (ddp ? 2 : 1) * (j == 5 ? 1.1 : 1);
    }
    for (int broken = 0; broken < 2; broken++) {
        ls_table_head head;
        job[9].record->checked = broken == 0;
        ck_assert_int_eq(ls_tables_ways_write(&run), LS_OK);
        ck_assert_int_eq(ls_table_read_head(scratch, "ways", &head), LS_OK);
        ck_assert_int_eq(head.rows, 2);
        const char *wanted = broken == 0 ? "DDP is 2.00 x DataParallel [1.82, 2.00]" : "too few";
        ck_assert_msg(strstr(head.title, wanted) != NULL, "%s", head.title);
        ck_assert_msg(strstr(head.caption, "Median of 5 rounds") != NULL, "%s", head.caption);
        char *table = read_text("tables/ways.tsv");
        ck_assert_msg(strstr(table, "\t200\t50\t200\t") != NULL, "%s", table);
        free(table);
    }
    for (int j = 0; j < run.job_count; j++) {
        drop_job(&job[j]);
    }
}

/* ---- unusual runs ---------------------------------------------------------------------------- */

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
     "\"on\":true,\"off\":false,\"none\":null,\"text\":\"\",\"share\":0.25,\"large\":25000000000,"
     "\"list\":[1,\"x\",{\"y\":[2,{\"z\":3}]},[]],\"empty\":{},\"deep\":{\"a\":{\"b\":\"c\"},"
     "\"d\":[true]}},\"headline\":{\"correct\":{\"value\":\"yes\"},\"speed\":{\"why\":\"w\"},"
     "\"machine\":{\"value\":\"ready\",\"why\":\"\"}}}",
     CASE("u", "true", "UNSUPPORTED", ",\"seconds\":0.126") CASE("s", "true", "SKIP", "")
         CASE("uo", "false", "UNSUPPORTED", "") CASE("so", "false", "SKIP", "")
             CASE("po", "false", "PASS", "")},
    {"{\"headline\":{\"manners\":{\"value\":\"0 of 1\",\"why\":\"x\",\"decide\":true}},"
     "\"findings\":[{\"code\":\"XID\",\"severity\":\"fail\",\"gpu\":2,\"address\":\"0000:30:00.0\","
     "\"what\":\"w\",\"do\":\"d\"},{\"code\":\"GPU_COUNT\",\"severity\":\"fail\","
     "\"address\":\"0000:40:00.0\",\"what\":\"w\"},{\"code\":\"P2P_OFF\",\"severity\":\"warning\","
     "\"what\":\"w\",\"do\":\"d\"},{\"code\":\"DRIVER\",\"severity\":\"info\",\"gpu\":0},"
     "{\"code\":\"LATER\",\"gpu\":1}]}",
     CASE("m", "true", "FAIL", ",\"manners\":true,\"evidence\":\"e\",\"value\":3,\"limit\":2")
         CASE("v", "true", "FAIL",
              ",\"evidence\":\"e\",\"value\":0,\"limit\":0,\"unit\":\"ulp\",\"limit_from\":\"a "
              "rule\",\"cause\":\"c\",\"repeat\":\"r\",\"waiver\":\"\"")
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
    golden_check("suite/unit/harness/expected/marks.txt", golden_short(text, 1));
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
         "and weights 8.0) and 27.0 ms in bf16 (products 15.0, memory passes 6.0, optimizer and "
         "weights 6.0): bf16 saves most in products, 25.0 ms. A step reduces 1.5 MB at O1.\n"},
        {STEP_ALONE("f32", 40, 9, "") "," STEP_ALONE("f16", 39, 19.5, ""),
         "* Why: a step alone takes 50.0 ms in f32 (products 40.0, memory passes 10.0) and 59.5 ms "
         "in f16 (products 39.0, memory passes 20.5): f16 costs most in memory passes, 10.5 ms. A "
         "step reduces 1.5 MB at O1.\n"},
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
        ck_assert_int_eq(ls_table_read_head(scratch, ls_tables_name(t), &head), LS_OK);
        fprintf(to, "%s%s: %s\n", t == 0 ? "==== tables\n" : "", ls_tables_name(t), head.title);
    }
    fclose(to);
    golden_variants_free(&runs);
    golden_check("suite/unit/harness/expected/odd_runs.txt", golden_short(text, 1));
}

/* ---- pages ----------------------------------------------------------------------------------- */

#define BAD "\xef\xbf\xbd" /* U+FFFD, for a byte that is not UTF-8 or not allowed in XML */

static const struct {
    const char *text, *html;
} escapes[] = {
    {"a<b>&\"'\n\t~", "a&lt;b&gt;&amp;&quot;&#39;\n\t~"},
    {"\x01\x08\x0b\x1f \x7f|", BAD BAD BAD BAD " " BAD "|"},
    {"\xc2\x80 \xdf\xbf", "\xc2\x80 \xdf\xbf"},
    {"\x80 \xbf", BAD " " BAD},
    {"\xc0\x80 \xc1\xbf", BAD BAD " " BAD BAD},
    {"\xe0\xa0\x80 \xef\xbf\xbd", "\xe0\xa0\x80 \xef\xbf\xbd"},
    {"\xe0\x9f\xbf", BAD BAD BAD}, /* too long */
    {"\xe1\x80\x80", "\xe1\x80\x80"},
    {"\xec\xbf\xbf", "\xec\xbf\xbf"},
    {"\xed\x9f\xbf", "\xed\x9f\xbf"},
    {"\xed\xa0\x80", BAD BAD BAD}, /* a surrogate */
    {"\xee\x80\x80", "\xee\x80\x80"},
    {"\xef\xbf\xbe", BAD BAD BAD}, /* U+FFFE */
    {"\xef\xbf\xbf", BAD BAD BAD},
    {"\xef\xbe\xbe \xee\xbf\xbf", "\xef\xbe\xbe \xee\xbf\xbf"},
    {"\xf0\x90\x80\x80 \xf3\xbf\xbf\xbf", "\xf0\x90\x80\x80 \xf3\xbf\xbf\xbf"},
    {"\xf0\x8f\xbf\xbf", BAD BAD BAD BAD}, /* too long */
    {"\xf1\x80\x80\x80", "\xf1\x80\x80\x80"},
    {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
    {"\xf4\x90\x80\x80", BAD BAD BAD BAD}, /* beyond U+10FFFF */
    {"\xf5\x80\x80\x80 \xff", BAD BAD BAD BAD " " BAD},
    {"\xc3", BAD}, /* cut short */
    {"\xe2\x82", BAD BAD},
    {"\xe2\x82"
     "a",
     BAD BAD "a"},
    {"\xf0\x90\x80", BAD BAD BAD},
    {"\xc3\xc3\xa4\xe2\x82\xac!", BAD "\xc3\xa4\xe2\x82\xac!"},
};

ROWS_TEST(html_holds_no_markup_and_no_broken_character, escapes)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    ls_html_escape(to, escapes[_i].text);
    fclose(to);
    ck_assert_str_eq(text, escapes[_i].html);
    free(text);
}

/* Every element of both forms, with text that would be markup. */
TEST(elements_of_pages_word_for_word)
{
    static const char evil[] = "a\\`*_|[]#<b>&\"c' \x01\x1f\x7f~";
    static const ls_report_headline headlines[][4] = {{{"CORRECT", "yes", ""},
                                                       {"MANNERS", "3 of 3", "why `not`\n"},
                                                       {"SPEED", "within", "a<b"},
                                                       {"MACHINE", "ready", ""}},
                                                      {{"CORRECT", "no", "x"},
                                                       {"MANNERS", "2 of 3", ""},
                                                       {"SPEED", "below", "x"},
                                                       {"MACHINE", "not ready", "x"}},
                                                      {{"CORRECT", "not shown", "x"},
                                                       {"MANNERS", "0 of 1", "x"},
                                                       {"SPEED", "no baseline of any kind", "x"},
                                                       {"MACHINE", "123456789", "x"}}};
    static const char *const codes[] = {"plain <b>\nline", "a ` b `` c", "```", "a ```` b `````c"};
    const ls_report_page_form *forms[] = {ls_html_form(), ls_report_markdown_form()};
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    write_text("plots/drawn.svg", "<?xml version=\"1.0\"?>\n<!DOCTYPE svg>\n<svg width=\"10\" "
                                  "height=\"5\" viewBox=\"0 0 10 5\"><g id=\"a\"/></svg>\n");
    for (int f = 0; f < 2; f++) {
        const ls_report_page_form *form = forms[f];
        fprintf(to, "==== form %d\n", f);
        for (int h = 0; h < 3; h++) {
            char *opened = NULL;
            FILE *page = open_memstream(&opened, &bytes);
            form->open(page, evil, "where <it> ran", headlines[h], 4 - (h == 2));
            fclose(page);
            char *style = strstr(opened, "<style>"), *end = strstr(opened, "</style>");
            fprintf(to, "%.*s%s\n", style != NULL ? (int)(style - opened) : 0, opened,
                    style != NULL ? end : opened);
            free(opened);
        }
        form->heading(to, evil);
        form->paragraph(to, evil);
        fputs(form->list_open, to);
        form->list_item(to, evil);
        form->file(to, "a/b.json", evil);
        fputs(form->list_close, to);
        for (int c = 0; c < 4; c++) {
            form->code(to, codes[c]);
        }
        for (int drawn = 0; drawn < 2; drawn++) {
            form->figure(to, scratch, "drawn", evil, "caption <c>", drawn != 0);
        }
        form->figure(to, scratch, "missing", "t", "c", true);
        ls_page_table table;
        ls_page_table_open(&table, form, to, "text|number>|wide");
        for (int row = 0; row < 2; row++) {
            ls_page_cell(&table, "%s %d", evil, row);
            ls_page_number(&table, row == 0 ? 1234.5 : NAN);
            ls_page_cell(&table, "%s",
                         row == 0 ? ""
                                  : "0123456789012345678901234567890123456789 "
                                    "0123456789012345678901234567890123456789");
        }
        ls_page_table_close(&table);
        fputs(form->close, to);
    }
    fclose(to);
    golden_check("suite/unit/harness/expected/pages.txt", golden_short(text, 1));
}

TEST_MAIN("report_tables", .timeout_s = 60, .before = open_scratch, .after = close_scratch)
