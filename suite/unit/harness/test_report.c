/* A report made from an invented run (test_report_fake.h): what the tables hold, what the pages
 * say, what they must never say. `test_report DIR` writes that run and its report into DIR and
 * leaves them to be looked at. */
#include <check.h>
#include <unistd.h>

#include "harness/report/report.h"
#include "harness/report/tables/table.h"
#include "harness/run/verdict_code.h"
#include "kernels/core/path.h"
#include "suite/unit/golden.h"
#include "suite/unit/junit_read.h"
#include "suite/unit/run_suite.h"
#include "test_report_fake.h"

static void open_run(void)
{
    open_scratch();
    write_run(".");
}

static cJSON *read_summary(const char *run)
{
    cJSON *summary = NULL;
    LS_TEXT(path, 400, "%s/%s/summary.json", scratch, run);
    ck_assert_int_eq(ls_json_read_file(path, &summary), LS_OK);
    return summary;
}

/* Field `field` (from 0) of data row `row` of a table, as a number. */
static double cell(const char *name, int row, int field)
{
    char line[4096];
    LS_TEXT(path, 400, "%s/tables/%s.tsv", scratch, name);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    double value = NAN;
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#' || line[0] == '\n' || row-- > 0) {
            continue;
        }
        char *rest = NULL, *part = strtok_r(line, "\t", &rest);
        for (int i = 0; i < field; i++) {
            part = strtok_r(NULL, "\t", &rest);
        }
        value = strtod(part, NULL);
        break;
    }
    fclose(file);
    return value;
}

static const cJSON *summary_row(const cJSON *summary, const char *job)
{
    const cJSON *row;
    ls_json_each(row, ls_json_get(summary, "throughput")) {
        if (strcmp(ls_json_string(row, "job", ""), job) == 0) {
            return row;
        }
    }
    return NULL;
}

TEST(tables_hold_what_was_run)
{
    ls_table_head head;
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    /* O0, O1, O2, O2 bf16, O3: 8 ranks x 8 images / 0.41 s; 2 % covers the median of 36 steps
     * with 1.2 % noise */
    ck_assert_double_eq_tol(cell("throughput_by_level", 0, 6), 64 / 0.410, 0.02 * 156);
    ck_assert_double_eq_tol(cell("throughput_by_level", 1, 6), 64 / 0.760, 0.02 * 84);
    ck_assert_double_lt(cell("throughput_by_level", 0, 7), cell("throughput_by_level", 0, 6));
    ck_assert_double_gt(cell("throughput_by_level", 0, 8), cell("throughput_by_level", 0, 6));
    ck_assert_double_eq(cell("throughput_by_level", 4, 15), 0); /* O3 is not checked */
    ck_assert_int_eq(ls_table_read_head(scratch, "throughput_by_level", &head), LS_OK);
    ck_assert_int_eq(head.rows, 5);
    ck_assert_int_eq(ls_table_read_head(scratch, "throughput_by_bucket", &head), LS_OK);
    ck_assert_int_eq(head.rows, 4); /* the killed one has no row: it is not 0 images/s */
    ck_assert_int_eq(ls_table_read_head(scratch, "gradient_error", &head), LS_OK);
    ck_assert_int_eq(head.rows, 48);
    ck_assert_int_eq(ls_table_read_head(scratch, "timeline", &head), LS_OK);
    ck_assert_int_eq(head.rows, 8 * 7);
    ck_assert_double_eq(cell("loss_scale", 0, 1), 65536);
    ck_assert_double_eq(cell("loss_scale", 2, 1), 16384);
    /* 2 %: noise of a step, as above */
    ck_assert_double_eq_tol(cell("step_phases", 1, 3), 0.52 * 650, 0.02 * 338);
    ck_assert_double_eq(cell("memory", 0, 2), 387);
    for (int i = 0; ls_tables_name(i) != NULL; i++) {
        const char *name = ls_tables_name(i);
        ck_assert_int_eq(ls_table_read_head(scratch, name, &head), LS_OK);
        if (strcmp(name, "gpu") == 0 || strcmp(name, "ways") == 0) {
            /* this run had none: test_report_gpus.c, test_report_tables.c */
            ck_assert_int_eq(head.rows, 0);
            continue;
        }
        ck_assert_msg(head.rows > 0 && head.title[0] != '\0' && head.caption[0] != '\0', "%s",
                      name);
    }
}

TEST(all_of_it_word_for_word)
{
    golden_check("suite/unit/harness/expected/report.txt",
                 golden_short(golden_report(scratch, false), 2));
}

TEST(summary_is_for_programs)
{
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    cJSON *summary = read_summary(".");
    ck_assert(ls_json_integer(summary, "schema", 0) == 2);
    ck_assert(cJSON_GetObjectItem(summary, "headline") == NULL);
    const cJSON *row = summary_row(summary, "o2.w8"), *killed = summary_row(summary, "o1.b1");
    ck_assert(row != NULL && killed != NULL);
    ck_assert_int_eq(ls_json_int(row, "steps_measured", 0), 40 - 4 - 1);
    ck_assert_int_eq(ls_json_int(row, "warmup_steps", 0), 4);
    ck_assert_int_eq(ls_json_int(row, "skipped_steps", 0), 1);
    ck_assert_str_eq(ls_json_string(row, "halves", ""), "agree");
    ck_assert_double_eq(ls_json_number(row, "reduced_bytes", 0), 26214400 + 18485760);
    /* 44.7 MB, 8 ranks, 0.40 of 640 ms: 44.7e6 * 2 * 7/8 / 0.256 s */
    ck_assert_double_eq_tol(ls_json_number(row, "bus_bytes_per_s", 0), 44700160 * 1.75 / 0.256,
                            0.02 * 305e6);
    ck_assert_double_eq_tol(ls_json_number(row, "efficiency", 0), 118.0 / 640, 0.02 * 0.18);
    /* 2 % of the ratio, as the rates above */
    ck_assert_double_eq_tol(ls_json_number(row, "roofline_share", 0), 100 / (8 * 90.0),
                            0.02 * 0.14);
    ck_assert_str_eq(ls_json_string(killed, "state", ""), "CRASH rank 3, signal 9");
    ck_assert(cJSON_GetObjectItem(killed, "images_per_s") == NULL);
    ck_assert(strstr(ls_json_string(summary_row(summary, "o3.w8"), "not_a_result", ""),
                     "FAIL gradients.o3.w4.b1mb") != NULL);
    const cJSON *conformance = cJSON_GetObjectItem(summary, "conformance");
    ck_assert_int_eq(ls_json_int(conformance, "total", 0), 54);
    ck_assert_int_eq(ls_json_int(conformance, "in_claim", 0), 53);
    ck_assert_int_eq(ls_json_int(conformance, "in_claim_passed", 0), 49);
    cJSON_Delete(summary);
}

static int occurrences(const char *text, const char *part)
{
    int count = 0;
    for (; (text = strstr(text, part)) != NULL; text += strlen(part)) {
        count++;
    }
    return count;
}

TEST(pages_escape_and_open_with_the_verdicts)
{
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    ck_assert_int_eq(ls_report_write(scratch, "plots"), LS_OK);
    char *html = read_text("report.html"), *markdown = read_text("report.md");
    ck_assert(strstr(html, "<script") == NULL);
    ck_assert_int_eq(occurrences(html, " id='gp"), 0); /* ids of several figures do not clash */
    ck_assert(strstr(html, "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&amp;&quot;") != NULL);
    ck_assert(strchr(html, '\x1b') == NULL);
    ck_assert(strstr(html, " src=") == NULL && strstr(html, "<link") == NULL &&
              strstr(html, "@import") == NULL);
    ck_assert(strstr(html, "@page{size:A4") != NULL && strstr(html, "@media print") != NULL);
    char *junit = read_text("junit.xml");
    junit_counts counts = junit_read(junit);
    ck_assert_int_eq(counts.tests, 54);
    ck_assert_int_eq(counts.failures, 3);
    ck_assert_int_eq(counts.errors, 0);
    ck_assert_int_eq(counts.skipped, 3);
    ck_assert_ptr_nonnull(strstr(junit, "message=\"FAIL, manners\""));
    ck_assert_int_eq(occurrences(junit, "not ok"), 0);
    ck_assert(
        strstr(junit, "<property name=\"CORRECT\" value=\"no (claim ddp-o2: 49 of 52 cases;") !=
        NULL);
    ck_assert(strstr(junit, "<property name=\"SPEED\" value=\"no baseline (") != NULL);
    char *trace = read_text("trace.json");
    cJSON *root = cJSON_Parse(trace);
    const cJSON *events = cJSON_GetObjectItem(root, "traceEvents");
    /* 2 jobs, 8 ranks: 3 names and 3 steps of 7 spans each */
    ck_assert_int_eq(cJSON_GetArraySize(events), 2 * 8 * (3 + 3 * 7));
    cJSON_Delete(root);
    cJSON *summary = read_summary(".");
    ck_assert(cJSON_GetObjectItem(summary, "headline") != NULL);
    cJSON_Delete(summary);
    free(html);
    free(markdown);
    free(junit);
    free(trace);
}

/* Every verdict inside and outside the claim, on two cases of one job, and SPEED's rows. */
TEST(junit_is_what_a_ci_counts)
{
    LS_TEXT(folder, 400, "%s/junit", scratch);
    write_text("junit/jobs/e/job.json",
               "{\"facts\":{\"role\":\"evidence\",\"world\":2},\"outcome\":{\"state\":\"done\","
               "\"seconds\":3.25,\"ranks\":[]}}\n");
    write_text(
        "junit/run.json",
        "{\"speed\":[{\"label\":\"O2, 2 ranks\",\"value\":\"below\",\"why\":\"slower by 9 %\"},"
        "{\"label\":\"O1, 2 ranks\",\"value\":\"within\",\"why\":\"\"},"
        "{\"label\":\"O0, 2 ranks\",\"value\":\"no baseline\",\"why\":\"x\"}]}\n");
    FILE *file = create("junit/verdicts.jsonl");
    for (int c = 0; c < LS_VERDICT_CODES; c++) {
        for (int claimed = 0; claimed < 2; claimed++) {
            fprintf(file,
                    "{\"case\":\"f%d.%s\",\"family\":\"f%d\",\"in_claim\":%s,\"verdict\":\"%s\","
                    "\"seconds\":0.5,\"jobs\":[\"e\"],\"evidence\":\"e%d\"}\n",
                    claimed, ls_verdict_name(c), claimed, claimed ? "true" : "false",
                    ls_verdict_name(c), c);
        }
    }
    fclose(file);
    ck_assert_int_eq(ls_report_junit(folder), LS_OK);
    char *junit = read_text("junit/junit.xml");
    junit_counts counts = junit_read(junit);
    ck_assert_int_eq(counts.tests, 2 * LS_VERDICT_CODES + 3);
    ck_assert_int_eq(counts.failures, 4 + 1); /* WEAK FAIL CRASH UNSUPPORTED, and a row below */
    ck_assert_int_eq(counts.errors, 3);       /* SKIP TIMEOUT INFRA */
    /* WAIVED, all but PASS outside the claim, a row that was compared with nothing */
    ck_assert_int_eq(counts.skipped, 1 + LS_VERDICT_CODES - 1 + 1);
    /* the job once */
    ck_assert_double_eq_tol(counts.seconds, 0.5 * 2 * LS_VERDICT_CODES + 3.25, 1e-3);
    ck_assert_ptr_nonnull(strstr(junit, "name=\"f0.PASS\" time=\"3.750\""));
    ck_assert_ptr_nonnull(strstr(junit, "name=\"f1.PASS\" time=\"0.500\""));
    ck_assert_ptr_nonnull(strstr(junit, "<error type=\"INFRA\" message=\"e8\""));
    ck_assert_ptr_nonnull(strstr(junit, "<failure type=\"SPEED\" message=\"slower by 9 %\""));
    ck_assert_int_eq(occurrences(junit, "not ok"), 0);
    free(junit);
}

TEST(terminal_is_80_columns)
{
    char *text = NULL, *rest = NULL;
    size_t bytes = 0;
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    FILE *to = open_memstream(&text, &bytes);
    ck_assert_int_eq(ls_report_terminal(scratch, to), LS_OK);
    fclose(to);
    ck_assert(strchr(text, '\x1b') == NULL);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        bool pasted = strncmp(line, "repeat:", 7) == 0; /* stays on one line, whatever its length */
        ck_assert_msg(pasted || strlen(line) <= 80, "%zu columns: %s", strlen(line), line);
    }
    free(text);
}

TEST(without_gnuplot_the_report_goes_without_pictures)
{
    char *old = strdup(getenv("PATH"));
    setenv("PATH", scratch, 1);
    ck_assert_int_eq(ls_report_tables(scratch), LS_OK);
    ls_status status = ls_report_write(scratch, "plots");
    setenv("PATH", old, 1);
    free(old);
    ck_assert_int_eq(status, LS_OK);
    char *html = read_text("report.html");
    ck_assert(strstr(html, "<svg") == NULL);
    ck_assert(strstr(html, "<figcaption>") != NULL);
    LS_TEXT(path, 400, "%s/plots/scaling.svg", scratch);
    ck_assert(access(path, F_OK) != 0);
    free(html);
}

/* What it is without jobs: odd_runs.txt. */
TEST(a_folder_without_a_run_is_refused)
{
    LS_TEXT(folder, 400, "%s/empty", scratch);
    ck_assert_int_eq(ls_path_make_folder(folder), LS_OK);
    ck_assert_int_eq(ls_report_tables(folder), LS_ERR_USAGE);
}

/* Marks steps 5 and 30 of every rank as audited; all their times become `factor` of what they were.
 */
static void audit_rank(const char *name, double factor)
{
    char *text = read_text(name), *rest = NULL;
    FILE *file = create(name);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        cJSON *event = cJSON_Parse(line), *entry, *ms = cJSON_GetObjectItem(event, "ms");
        int step = ls_json_int(event, "step", 0);
        bool audited = step == 5 || step == 30;
        if (audited && ms != NULL) {
            cJSON_AddTrueToObject(event, "audited");
        }
        cJSON *spans = cJSON_GetObjectItem(event, "spans");
        for (entry = audited && ms != NULL ? ms->child : NULL; entry != NULL; entry = entry->next) {
            cJSON_SetNumberValue(entry, entry->valuedouble * factor);
        }
        for (entry = audited && spans != NULL ? spans->child : NULL; entry != NULL;
             entry = entry->next) {
            cJSON_SetNumberValue(cJSON_GetObjectItem(entry, "to_ns"), 1e9 * factor);
        }
        char *changed = event == NULL ? NULL : cJSON_PrintUnformatted(event);
        fprintf(file, "%s\n", changed == NULL ? line : changed);
        cJSON_free(changed);
        cJSON_Delete(event);
    }
    fclose(file);
    free(text);
}

static void audit_run(const char *run, double factor)
{
    write_run(run);
    for (int j = 0; j < JOB_COUNT; j++) {
        for (int k = 0; k < JOBS[j].world; k++) {
            LS_TEXT(name, 100, "%s/jobs/%s/rank%d.jsonl", run, JOBS[j].id, k);
            audit_rank(name, factor);
        }
    }
    LS_TEXT(folder, 400, "%s/%s", scratch, run);
    ck_assert_int_eq(ls_report_tables(folder), LS_OK);
    ck_assert_int_eq(ls_report_write(folder, "/nowhere"), LS_OK);
}

static void check_equal(const char *other, const char *name)
{
    LS_TEXT(a, 100, "usual/%s", name);
    LS_TEXT(b, 100, "%s/%s", other, name);
    char *one = read_text(a), *two = read_text(b);
    ck_assert_msg(strcmp(one, two) == 0, "%s differs", name);
    free(one);
    free(two);
}

/* summary.json as text, but for the audits' share of the jobs' time, which goes to *share. */
static char *summary_without_share(const char *run, double *share)
{
    cJSON *summary = read_summary(run);
    cJSON *compare = cJSON_GetObjectItem(summary, "compare");
    *share = ls_json_number(compare, "audit_share", NAN);
    cJSON_DeleteItemFromObject(compare, "audit_share");
    cJSON_DeleteItemFromObject(cJSON_GetObjectItem(summary, "beside"), "audit_share");
    char *text = cJSON_Print(summary);
    cJSON_Delete(summary);
    return text;
}

/* Whatever time it took: every table, summary.json and trace.json are the same. */
TEST(no_figure_contains_an_audited_step)
{
    static const double factors[] = {50, 0.02};
    audit_run("usual", 1);
    for (int i = 0; i < 2; i++) {
        LS_TEXT(other, 16, "f%d", i);
        audit_run(other, factors[i]);
        double share, longer;
        char *one = summary_without_share("usual", &share);
        char *two = summary_without_share(other, &longer);
        ck_assert_str_eq(one, two);
        ck_assert(factors[i] > 1 ? longer > share + 1 : longer < share);
        cJSON_free(one);
        cJSON_free(two);
        check_equal(other, "trace.json");
        for (int t = 0; ls_tables_name(t) != NULL; t++) {
            LS_TEXT(name, 80, "tables/%s.tsv", ls_tables_name(t));
            check_equal(other, name);
        }
    }
    cJSON *summary = read_summary("usual");
    const cJSON *row = summary_row(summary, "o2.w8");
    ck_assert_int_eq(ls_json_int(row, "steps_measured", 0), 40 - 4 - 1 - 2);
    ck_assert_int_eq(ls_json_int(row, "audited_steps", 0), 2);
    cJSON_Delete(summary);
}

typedef enum place { OUTSIDE, CLAIM, MANNERS } place; /* of a case; MANNERS do not decide here */

/* A run with one case and two rows: 100 images/s times `speed`, +-1 %, one with more ranks than
 * cores. */
static void write_small(const char *name, const char *verdict, place where, double speed)
{
    LS_TEXT(summary, 40, "%s/summary.json", name);
    LS_TEXT(verdicts, 40, "%s/verdicts.jsonl", name);
    LS_TEXT(headline, 40, "%s/run.json", name);
    FILE *file = create(summary);
    fprintf(file, "{\"machine\":{\"cpu\":\"C\",\"cores\":2},\"options\":{\"device\":\"cpu\"},"
                  "\"throughput\":[");
    for (int row = 0; row < 2; row++) {
        fprintf(file,
                "%s{\"label\":\"r%d\",\"world\":%d,\"images_per_s\":%g,\"images_per_s_low\":%g,"
                "\"images_per_s_high\":%g,\"not_a_result\":\"\",\"oversubscribed\":%s}",
                row == 0 ? "" : ",", row, row, 100 * speed, 99 * speed, 101 * speed,
                row == 0 ? "false" : "true");
    }
    fprintf(file, "]}\n");
    fclose(file);
    write_text(headline, "{\"headline\":{\"manners\":{\"decide\":false}}}\n");
    file = create(verdicts);
    fprintf(file, "{\"case\":\"always\",\"in_claim\":true,\"verdict\":\"PASS\"}\n");
    if (verdict[0] != '\0') {
        fprintf(file, "{\"case\":\"case\",\"in_claim\":%s,\"manners\":%s,\"verdict\":\"%s\"}\n",
                where == OUTSIDE ? "false" : "true", where == MANNERS ? "true" : "false", verdict);
    }
    fclose(file);
}

static const struct change {
    const char *before, *after; /* the case's verdicts, "": none */
    place where;
    double speed, gate; /* of B, A's being 1 */
    ls_status status;
    const char *said;
} changes[] = {
    {"PASS", "PASS", CLAIM, 1, NAN, LS_OK, "0 missing in B, 0 new in B, 2 as before"},
    {"PASS", "FAIL", CLAIM, 1, NAN, LS_ERR_CHECK, "newly failing: case, PASS -> FAIL\n"},
    {"WEAK", "CRASH", CLAIM, 1, NAN, LS_ERR_CHECK, "cases: 1 newly failing, "},
    {"SKIP", "TIMEOUT", CLAIM, 1, NAN, LS_ERR_CHECK, "newly failing: case, SKIP -> TIMEOUT"},
    {"", "FAIL", CLAIM, 1, NAN, LS_ERR_CHECK, "newly failing: case, none -> FAIL"},
    {"PASS", "FAIL", OUTSIDE, 1, NAN, LS_OK, "case, PASS -> FAIL [outside the claim]"},
    {"PASS", "FAIL", MANNERS, 1, NAN, LS_OK, "case, PASS -> FAIL [manners]"},
    {"FAIL", "TIMEOUT", CLAIM, 1, NAN, LS_OK, "cases: 0 newly failing, 0 newly not judged, "},
    {"FAIL", "PASS", CLAIM, 1, NAN, LS_OK, "newly passing: case, FAIL -> PASS"},
    {"PASS", "INFRA", CLAIM, 1, NAN, LS_OK, "newly not judged: case, PASS -> INFRA"},
    {"PASS", "WAIVED", CLAIM, 1, NAN, LS_OK, ", 2 as before"},
    {"PASS", "", CLAIM, 1, NAN, LS_ERR_CHECK, "missing in B: case, PASS -> none"},
    {"WEAK", "", CLAIM, 1, 0.05, LS_ERR_CHECK, "missing in B: case, WEAK -> none"},
    {"PASS", "", OUTSIDE, 1, NAN, LS_OK, "missing in B: case, PASS -> none [outside"},
    {"PASS", "", MANNERS, 1, NAN, LS_OK, "missing in B: case, PASS -> none [manners]"},
    {"", "PASS", CLAIM, 1, NAN, LS_OK, " 1 new in B, 1 as before"},
    {"PASS", "PASS", CLAIM, 0.5, NAN, LS_OK, "slower by 50.0 %"},
    {"PASS", "PASS", CLAIM, 1, 0.05, LS_OK,
     "gate 5 %: 0 of 1 jobs that decide exceed it; 1 decide"},
    {"PASS", "PASS", CLAIM, 0.9, 0.05, LS_ERR_CHECK, "[8.7, 11.3]: exceeds the gate"},
    {"PASS", "PASS", CLAIM, 0.9, 0.05, LS_ERR_CHECK,
     "gate 5 %: 1 of 1 jobs that decide exceeds it"},
    {"PASS", "PASS", CLAIM, 0.94, 0.05, LS_OK,
     "slower by 6.0 %"}, /* or noise: its interval reaches 4.7 */
    {"PASS", "PASS", CLAIM, 0.9, 0.2, LS_OK, "gate 20 %: 0 of 1"},
    {"PASS", "FAIL", CLAIM, 1.5, 0.05, LS_ERR_CHECK, "faster by 50.0 %"},
};

ROWS_TEST(diff_ends_with_what_got_worse, changes)
{
    const struct change *c = &changes[_i];
    char *text = NULL;
    size_t bytes = 0;
    write_small("a", c->before, c->where, 1);
    write_small("b", c->after, c->where, c->speed);
    LS_TEXT(a, 400, "%s/a", scratch);
    LS_TEXT(b, 400, "%s/b", scratch);
    FILE *to = open_memstream(&text, &bytes);
    ls_status status = ls_report_diff(a, b, c->gate, to);
    fclose(to);
    ck_assert_msg(strstr(text, c->said) != NULL, "%s", text);
    ck_assert_msg(status == c->status, "%d: %s", status, text);
    free(text);
}

/* figures are drawn by child processes, on a machine that others share */
int main(int argc, char **argv)
{
    if (argc == 2) {
        ls_text_put(scratch, sizeof scratch, "%s", argv[1]);
        write_run(".");
        ls_status status = ls_report_tables(scratch);
        status = status == LS_OK ? ls_report_write(scratch, "plots") : status;
        return status == LS_OK ? (int)ls_report_terminal(scratch, stdout) : (int)status;
    }
    return RUN_TESTS("report", .timeout_s = 60, .before = open_run, .after = close_scratch);
}
