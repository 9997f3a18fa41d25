#include <math.h>
#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include "page.h"

typedef struct tally {
    int tests, failures, errors, skipped;
    double seconds;
} tally;

/* The element that says how the case ended; NULL: it passed. */
static const char *outcome_of(const ls_report_verdict *verdict)
{
    ls_verdict_code code = verdict->code;
    return code == LS_PASS                                             ? NULL
           : !verdict->decides || code == LS_WAIVED                    ? "skipped"
           : code == LS_SKIP || code == LS_INFRA || code == LS_TIMEOUT ? "error"
                                                                       : "failure";
}

static void count_outcome(tally *t, const char *outcome, double seconds)
{
    t->tests++;
    t->failures += outcome != NULL && strcmp(outcome, "failure") == 0;
    t->errors += outcome != NULL && strcmp(outcome, "error") == 0;
    t->skipped += outcome != NULL && strcmp(outcome, "skipped") == 0;
    t->seconds += seconds;
}

static bool in_family(const ls_report_verdict *verdict, const char *family)
{
    return strcmp(verdict->family, family) == 0;
}

/* [verdict_count]: of judging and of its jobs, each job with the first case that reads it. */
static double *list_seconds(const ls_report_run *run)
{
    double *seconds = ls_list_make((size_t)run->verdict_count + 1, sizeof *seconds);
    bool *counted = ls_list_make((size_t)run->job_count + 1, sizeof *counted);
    for (int v = 0; v < run->verdict_count; v++) {
        seconds[v] = ls_json_number(run->verdict[v].json, "seconds", 0);
        for (int j = 0; j < run->job_count; j++) {
            double took = run->job[j].record->seconds;
            if (!counted[j] && isfinite(took) &&
                ls_report_job_in_verdict(&run->job[j], &run->verdict[v])) {
                counted[j] = true;
                seconds[v] += took;
            }
        }
    }
    free(counted);
    return seconds;
}

/* Of one family, or of all (NULL). */
static tally count(const ls_report_run *run, const char *family, const double *seconds)
{
    tally t = {0};
    for (int v = 0; v < run->verdict_count; v++) {
        if (family == NULL || in_family(&run->verdict[v], family)) {
            count_outcome(&t, outcome_of(&run->verdict[v]), seconds[v]);
        }
    }
    return t;
}

static const char *speed_outcome(const cJSON *row)
{
    const char *value = ls_json_string(row, "value", "?");
    return strcmp(value, "below") == 0    ? "failure"
           : strcmp(value, "within") == 0 ? NULL
                                          : "skipped";
}

static void put_attribute(FILE *to, const char *name, const char *value)
{
    fprintf(to, " %s=\"", name);
    ls_html_escape(to, value);
    fputc('"', to);
}

/* The schema has no count of skipped cases for the whole. */
static void put_tally(FILE *to, tally t, bool suite)
{
    fprintf(to, " tests=\"%d\" failures=\"%d\" errors=\"%d\"", t.tests, t.failures, t.errors);
    if (suite) {
        fprintf(to, " skipped=\"%d\"", t.skipped);
    }
    fprintf(to, " time=\"%.3f\">\n", t.seconds);
}

static void put_line(FILE *to, const char *name, const char *text)
{
    if (text[0] != '\0') {
        fprintf(to, "%s", name);
        ls_html_escape(to, text);
        fputc('\n', to);
    }
}

static void put_outcome(FILE *to, const ls_report_verdict *verdict)
{
    const char *outcome = outcome_of(verdict), *word = ls_verdict_name(verdict->code);
    const char *evidence = ls_json_string(verdict->json, "evidence", "");
    const char *waiver = ls_json_string(verdict->json, "waiver", "");
    if (outcome == NULL) {
        return;
    }
    bool skipped = strcmp(outcome, "skipped") == 0;
    bool hint = strcmp(ls_json_string(verdict->json, "tier", "law"), "hint") == 0 &&
                verdict->code == LS_FAIL;
    LS_TEXT(why, LS_REPORT_LINES_BYTES,
            verdict->decides || verdict->code == LS_WAIVED  ? "%s: %s"
            : hint                                          ? "hint, %s: %s"
            : !verdict->in_claim                            ? "%s, outside the claim"
            : ls_json_bool(verdict->json, "manners", false) ? "%s, manners"
                                                            : "%s: %s",
            word, verdict->code == LS_WAIVED ? waiver : evidence);
    fprintf(to, "      <%s", outcome);
    put_attribute(to, "type", word);
    put_attribute(to, "message", skipped ? why : evidence[0] != '\0' ? evidence : word);
    fputs(">", to);
    put_line(to, "cause:  ", ls_json_string(verdict->json, "cause", ""));
    put_line(to, "where:  ", ls_json_string(verdict->json, "where", ""));
    put_line(to, "change: ", ls_json_string(verdict->json, "change", ""));
    put_line(to, "wrong if: ", ls_json_string(verdict->json, "wrong_if", ""));
    put_line(to, "repeat: ", ls_json_string(verdict->json, "repeat", ""));
    fprintf(to, "</%s>\n", outcome);
}

static void open_case(FILE *to, const char *family, const char *name, double seconds)
{
    LS_TEXT(time, 32, "%.3f", seconds);
    fputs("    <testcase", to);
    put_attribute(to, "classname", family);
    put_attribute(to, "name", name);
    put_attribute(to, "time", time);
    fputs(">\n", to);
}

static void put_case(FILE *to, const ls_report_verdict *verdict, double seconds)
{
    char line[LS_REPORT_LINES_BYTES * 2];
    open_case(to, verdict->family, verdict->id, seconds);
    put_outcome(to, verdict);
    fputs("      <system-out>", to);
    put_line(to, "", ls_report_lines_evidence(verdict, line));
    put_line(to, "requirement: ", ls_json_string(verdict->json, "requirement", ""));
    const cJSON *job;
    ls_json_each(job, ls_json_get(verdict->json, "jobs")) {
        put_line(to, "job: ", cJSON_IsString(job) ? job->valuestring : "?");
    }
    fputs("</system-out>\n    </testcase>\n", to);
}

/* The rows that a bench compared with its baseline. */
static void put_speed(FILE *to, const cJSON *rows, tally t)
{
    if (t.tests == 0) {
        return;
    }
    fputs("  <testsuite name=\"speed\"", to);
    put_tally(to, t, true);
    const cJSON *row;
    ls_json_each(row, rows) {
        const char *outcome = speed_outcome(row), *why = ls_json_string(row, "why", "");
        open_case(to, "speed", ls_json_string(row, "label", "?"), 0);
        if (outcome != NULL) {
            fprintf(to, "      <%s type=\"SPEED\"", outcome);
            put_attribute(to, "message", why);
            fputs("/>\n", to);
        }
        fputs("      <system-out>", to);
        LS_TEXT(rate, 64, "%.4g images/s, ", ls_json_number(row, "images_per_s", NAN));
        put_line(to, strstr(rate, "nan") == NULL ? rate : "", ls_json_string(row, "value", "?"));
        put_line(to, "", why);
        fputs("</system-out>\n    </testcase>\n", to);
    }
    fputs("  </testsuite>\n", to);
}

static void put_families(FILE *to, const ls_report_run *run, const double *seconds)
{
    cJSON *conformance = ls_report_summary_conformance(run);
    const cJSON *family;
    ls_json_each(family, ls_json_get(conformance, "families")) {
        const char *name = ls_json_string(family, "family", "?");
        fputs("  <testsuite", to);
        put_attribute(to, "name", name);
        put_tally(to, count(run, name, seconds), true);
        for (int v = 0; v < run->verdict_count; v++) {
            const ls_report_verdict *verdict = &run->verdict[v];
            if (in_family(verdict, name)) {
                put_case(to, verdict, seconds[v]);
            }
        }
        fputs("  </testsuite>\n", to);
    }
    cJSON_Delete(conformance);
}

/* A suite without cases: the schema has no place for properties of the whole. */
static void put_headlines(FILE *to, const ls_report_run *run)
{
    ls_report_headline headline[LS_REPORT_LINES_HEADLINES];
    int headlines = ls_report_lines_headlines(run, headline);
    fputs("  <testsuite name=\"verdicts\"", to);
    put_tally(to, (tally){0}, true);
    fputs("    <properties>\n", to);
    for (int i = 0; i < headlines; i++) {
        LS_TEXT(value, LS_REPORT_LINES_BYTES, headline[i].why[0] ? "%s (%s)" : "%s%s",
                headline[i].value, headline[i].why);
        fputs("      <property", to);
        put_attribute(to, "name", headline[i].name);
        put_attribute(to, "value", value);
        fputs("/>\n", to);
    }
    fputs("    </properties>\n  </testsuite>\n", to);
}

ls_status ls_junit_write(const ls_report_run *run)
{
    LS_TEXT(path, PATH_MAX, "%s/junit.xml", run->directory);
    FILE *to = ls_file_create(path);
    LS_TRY_FILE(to);
    const cJSON *rows = ls_json_get(run->record, "speed"), *row;
    double *seconds = list_seconds(run);
    tally all = count(run, NULL, seconds), speed = {0};
    ls_json_each(row, rows) {
        count_outcome(&speed, speed_outcome(row), 0);
        count_outcome(&all, speed_outcome(row), 0);
    }
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites", to);
    put_attribute(to, "name", ls_report_lines_title(run));
    put_tally(to, all, false);
    put_headlines(to, run);
    put_families(to, run, seconds);
    put_speed(to, rows, speed);
    fputs("</testsuites>\n", to);
    free(seconds);
    return ls_file_close(to, path);
}
