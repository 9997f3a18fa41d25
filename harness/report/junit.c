#include "files.h"

#include <stdio.h>
#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/text.h"
#include "page.h"
#include "lines.h"

typedef struct tally {
    int tests, failures, skipped;
    double seconds;
} tally;

static bool is_failure(const ls_report_verdict *verdict)
{
    return verdict->decides && !ls_verdict_good(verdict->code);
}

static bool is_skipped(const ls_report_verdict *verdict)
{
    return !is_failure(verdict) && verdict->code != LS_PASS;
}

static bool in_family(const ls_report_verdict *verdict, const char *family)
{
    return family == NULL || strcmp(verdict->family, family) == 0;
}

static tally count(const ls_report_run *run, const char *family)
{
    tally t = {0};
    for (int v = 0; v < run->verdict_count; v++) {
        const ls_report_verdict *verdict = &run->verdict[v];
        if (in_family(verdict, family)) {
            t.tests++;
            t.failures += is_failure(verdict);
            t.skipped += is_skipped(verdict);
            t.seconds += ls_json_number(verdict->json, "seconds", 0);
        }
    }
    return t;
}

static void put_attribute(FILE *to, const char *name, const char *value)
{
    fprintf(to, " %s=\"", name);
    ls_html_escape(to, value);
    fputc('"', to);
}

static void put_tally(FILE *to, tally t)
{
    fprintf(to, " tests=\"%d\" failures=\"%d\" errors=\"0\" skipped=\"%d\" time=\"%.3f\">\n",
            t.tests, t.failures, t.skipped, t.seconds);
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
    const char *word = ls_verdict_name(verdict->code);
    const char *evidence = ls_json_string(verdict->json, "evidence", "");
    if (is_failure(verdict)) {
        fputs("      <failure", to);
        put_attribute(to, "type", word);
        put_attribute(to, "message", evidence[0] != '\0' ? evidence : word);
        fputs(">", to);
        put_line(to, "cause:  ", ls_json_string(verdict->json, "cause", ""));
        put_line(to, "repeat: ", ls_json_string(verdict->json, "repeat", ""));
        fputs("</failure>\n", to);
    } else if (is_skipped(verdict)) {
        const char *waiver = ls_json_string(verdict->json, "waiver", "");
        bool waived = verdict->code == LS_WAIVED;
        LS_TEXT(message, LS_REPORT_LINES_BYTES,
                waived              ? "%s: %s"
                : verdict->in_claim ? "%s, manners"
                                    : "%s, outside the claim",
                word, waiver);
        fputs("      <skipped", to);
        put_attribute(to, "message", message);
        fputs("/>\n", to);
    }
}

static void put_case(FILE *to, const ls_report_verdict *verdict)
{
    char line[LS_REPORT_LINES_BYTES * 2], seconds[32];
    snprintf(seconds, sizeof seconds, "%.3f", ls_json_number(verdict->json, "seconds", 0));
    fputs("    <testcase", to);
    put_attribute(to, "classname", verdict->family);
    put_attribute(to, "name", verdict->id);
    put_attribute(to, "time", seconds);
    fputs(">\n", to);
    put_outcome(to, verdict);
    fputs("      <system-out>", to);
    put_line(to, "", ls_report_lines_verdict(verdict, line));
    put_line(to, "requirement: ", ls_json_string(verdict->json, "requirement", ""));
    const cJSON *job;
    cJSON_ArrayForEach(job, cJSON_GetObjectItemCaseSensitive(verdict->json, "jobs"))
    {
        put_line(to, "job: ", cJSON_IsString(job) ? job->valuestring : "?");
    }
    fputs("</system-out>\n    </testcase>\n", to);
}

static void put_families(FILE *to, const ls_report_run *run)
{
    cJSON *conformance = ls_report_summary_conformance(run);
    const cJSON *family;
    cJSON_ArrayForEach(family, cJSON_GetObjectItemCaseSensitive(conformance, "families"))
    {
        const char *name = ls_json_string(family, "family", "?");
        fputs("  <testsuite", to);
        put_attribute(to, "name", name);
        put_tally(to, count(run, name));
        for (int v = 0; v < run->verdict_count; v++) {
            const ls_report_verdict *verdict = &run->verdict[v];
            if (in_family(verdict, name)) {
                put_case(to, verdict);
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
    put_tally(to, (tally){0});
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
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites", to);
    put_attribute(to, "name", ls_report_lines_title(run));
    put_tally(to, count(run, NULL));
    put_headlines(to, run);
    put_families(to, run);
    fputs("</testsuites>\n", to);
    return ls_file_close(to, path);
}
