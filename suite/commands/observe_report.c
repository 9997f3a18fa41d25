/* The report on an observed job: terminal, report.md, report.html, junit.xml. */
#include "observe_parts.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "harness/report/page.h"
#include "harness/report/report.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"

enum {
    TEXT_BYTES = LS_REPORT_LINES_BYTES * 2,
    SHORT_MS = 60000, /* of a run in which the first two steps, looked at in detail, weigh */
};

void ls_observe_report_free(ls_observe_report *report)
{
    cJSON_Delete(report->run);
    cJSON_Delete(report->verdicts);
    cJSON_Delete(report->seen);
    *report = (ls_observe_report){NULL, NULL, NULL};
}

static ls_status take_line(void *context, const cJSON *value, int line)
{
    (void)line;
    cJSON_AddItemToArray(context, cJSON_Duplicate(value, true));
    return LS_OK;
}

static ls_status read_report(const char *directory, ls_observe_report *out)
{
    cJSON *summary = NULL;
    *out = (ls_observe_report){NULL, cJSON_CreateArray(), NULL};
    LS_TEXT(path, PATH_MAX, "%s/run.json", directory);
    LS_TRY(ls_json_read_file(path, &out->run));
    ls_text_put(path, sizeof path, "%s/verdicts.jsonl", directory);
    LS_TRY(ls_json_each_line(path, take_line, out->verdicts));
    ls_text_put(path, sizeof path, "%s/summary.json", directory);
    LS_TRY(ls_json_read_file(path, &summary));
    out->seen = cJSON_DetachItemFromObjectCaseSensitive(summary, "observed");
    cJSON_Delete(summary);
    return LS_OK;
}

static ls_verdict_code code_of(const cJSON *verdict)
{
    return ls_verdict_code_in(verdict);
}

/* ---- sentences that all forms share ---------------------------------------------------------- */

/* "1.2 million", "340" */
static const char *format_count(double count, char text[32])
{
    if (count >= 1e6) {
        snprintf(text, 32, "%.1f million", count / 1e6);
    } else {
        snprintf(text, 32, "%.0f", count);
    }
    return text;
}

/* Three significant digits, without an exponent. */
static const char *format_number(double value, char text[32])
{
    snprintf(text, 32, "%.*f", value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3, value);
    return text;
}

static void describe_speed(const cJSON *seen, char *text, size_t bytes)
{
    const cJSON *speed = cJSON_GetObjectItemCaseSensitive(seen, "speed");
    double rate = ls_json_number(speed, "samples_per_s", NAN);
    char number[32];
    if (speed == NULL) {
        ls_text_put(text, bytes, "no steady steps: the third and later ones without samples");
        return;
    }
    text[0] = '\0';
    if (rate > 0) {
        ls_text_add(text, bytes, "%s samples/s; ", format_number(rate, number));
    }
    ls_text_add(text, bytes, "a step takes %s ms, the median of %d",
                format_number(ls_json_number(speed, "step_ms_p50", NAN), number),
                ls_json_int(speed, "steps_measured", 0));
    if (ls_json_int(speed, "ranks", 1) > 1) {
        ls_text_add(text, bytes, " on the rank with the longest");
    }
}

static void describe_cost(const cJSON *seen, char *text, size_t bytes)
{
    const cJSON *cost = cJSON_GetObjectItemCaseSensitive(seen, "cost");
    char own[32], run[32];
    ls_text_put(text, bytes, "%s s of %s s on rank %d went into observing it",
                format_number(ls_json_number(cost, "own_ms", NAN) * 1e-3, own),
                format_number(ls_json_number(cost, "run_ms", NAN) * 1e-3, run),
                ls_json_int(cost, "rank", 0));
    if (ls_json_number(cost, "run_ms", NAN) < SHORT_MS) {
        ls_text_add(text, bytes, "; less in a longer run");
    }
}

typedef struct headline_texts {
    char value[3][32], why[3][600];
} headline_texts;

/* CORRECT, SPEED, and COST where the attach module measured it. */
static int list_headlines(const ls_observe_report *report, headline_texts *texts,
                          ls_report_headline out[3])
{
    const cJSON *headline = cJSON_GetObjectItemCaseSensitive(report->run, "headline");
    const cJSON *correct = cJSON_GetObjectItemCaseSensitive(headline, "correct");
    const cJSON *cost = cJSON_GetObjectItemCaseSensitive(report->seen, "cost");
    double share = ls_json_number(cost, "share", NAN);
    out[0] = (ls_report_headline){"CORRECT", ls_json_string(correct, "value", "not shown"),
                                  ls_json_string(correct, "why", "")};
    describe_speed(report->seen, texts->why[1], sizeof texts->why[1]);
    out[1] = (ls_report_headline){"SPEED", "no baseline", texts->why[1]};
    if (!isfinite(share)) {
        return 2;
    }
    describe_cost(report->seen, texts->why[2], sizeof texts->why[2]);
    ls_text_put(texts->value[2], sizeof texts->value[2], "%.1f %%", 100 * share);
    out[2] = (ls_report_headline){"COST", texts->value[2], texts->why[2]};
    return 3;
}

/* What was seen, as sentences. */
static cJSON *list_seen(const ls_observe_report *report)
{
    cJSON *list = cJSON_CreateArray();
    LS_MEMORY(list != NULL);
    const cJSON *seen = report->seen, *entry;
    char text[TEXT_BYTES], count[32];
    int world = ls_json_int(seen, "world", 0), with = ls_json_int(seen, "ranks_with_events", 0);
    int most = ls_json_int(seen, "steps", 0), least = ls_json_int(seen, "steps_least", 0);
    if (world == 1) {
        ls_text_put(text, sizeof text, "1 rank");
    } else {
        ls_text_put(text, sizeof text, "%d of %d ranks", with, world);
    }
    ls_text_add(text, sizeof text, least == most ? "; %d steps" : "; %d to %d steps", least, most);
    ls_text_add(text, sizeof text, ", %d of them in detail%s, %d skipped",
                ls_json_int(seen, "detailed_steps", 0),
                ls_json_bool(seen, "attached", true) ? "" : " (dumps)",
                ls_json_int(seen, "skipped_steps", 0));
    cJSON_AddItemToArray(list, cJSON_CreateString(text));
    const cJSON *observe = cJSON_GetObjectItemCaseSensitive(seen, "observe");
    const char *inject = ls_json_string(observe, "inject", "");
    if (inject[0] != '\0') {
        ls_text_put(text, sizeof text,
                    "%s was injected, as asked: one element of a gradient was made infinite",
                    inject);
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(seen, "models"))
    {
        const char *at = ls_json_string(entry, "at", "");
        bool ddp = strcmp(ls_json_string(entry, "kind", ""), "ddp") == 0;
        ls_text_put(text, sizeof text, "model %s%s%s%s: %s parameters in %d tensors",
                    ls_json_string(entry, "name", "?"), ddp ? " in DistributedDataParallel" : "",
                    at[0] == '\0' ? "" : ", ", at,
                    format_count(ls_json_number(entry, "elements", 0), count),
                    ls_json_int(entry, "tensors", 0));
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(seen, "optimizers"))
    {
        const char *at = ls_json_string(entry, "at", "");
        int groups = ls_json_int(entry, "groups", 0);
        ls_text_put(text, sizeof text, "optimizer %s%s%s: %d parameter %s",
                    ls_json_string(entry, "class", "?"), at[0] == '\0' ? "" : ", ", at, groups,
                    groups == 1 ? "group" : "groups");
        if (ls_json_string(entry, "rule", "")[0] == '\0') {
            ls_text_add(text, sizeof text, "; its rule is not known, its steps are not recomputed");
        }
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(seen, "scalers"))
    {
        const char *at = ls_json_string(entry, "at", "");
        ls_text_put(text, sizeof text, "scaler%s%s: ", at[0] == '\0' ? "" : ", ", at);
        ls_text_add(text, sizeof text,
                    ls_json_bool(entry, "enabled", false) ? "initial scale %.0f" : "not enabled",
                    ls_json_number(entry, "init_scale", NAN));
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
    return list;
}

static void describe_verdict(const cJSON *verdict, int number, char text[TEXT_BYTES])
{
    ls_text_put(text, TEXT_BYTES, "%s %d - %s # %s %s",
                ls_verdict_good(code_of(verdict))        ? "ok"
                : ls_json_bool(verdict, "decides", true) ? "not ok"
                                                         : "not shown",
                number, ls_json_string(verdict, "case", "?"), ls_verdict_name(code_of(verdict)),
                ls_json_string(verdict, "evidence", ""));
}

static const char *const detail[][2] = {
    {"cause:  ", "cause"}, {"where:  ", "where"}, {"change: ", "change"}};
enum { DETAILS = sizeof detail / sizeof *detail };

/* ---- terminal -------------------------------------------------------------------------------- */

/* What failed comes last, next to the headlines. */
static bool is_of_round(const cJSON *verdict, int round)
{
    ls_verdict_code code = code_of(verdict);
    bool open = code == LS_WEAK || code == LS_UNSUPPORTED;
    return code != LS_SKIP && (ls_verdict_good(code) ? 0 : open ? 1 : 2) == round;
}

static void print_verdicts(const ls_observe_report *report, FILE *to)
{
    char text[TEXT_BYTES], skipped[TEXT_BYTES] = "";
    for (int round = 0; round < 3; round++) {
        int number = 0, printed = 0;
        const cJSON *verdict;
        cJSON_ArrayForEach(verdict, report->verdicts)
        {
            number++;
            if (!is_of_round(verdict, round)) {
                continue;
            }
            if (round > 0 && printed++ == 0) {
                fputc('\n', to);
            }
            describe_verdict(verdict, number, text);
            ls_report_lines_print(to, text, 2);
            for (int i = 0; i < DETAILS && round > 0; i++) {
                const char *value = ls_json_string(verdict, detail[i][1], "");
                if (value[0] != '\0') {
                    ls_text_put(text, sizeof text, "%s%s", detail[i][0], value);
                    ls_report_lines_print(to, text, 8);
                }
            }
        }
    }
    const cJSON *verdict;
    cJSON_ArrayForEach(verdict, report->verdicts)
    {
        if (code_of(verdict) == LS_SKIP) {
            const char *id = ls_json_string(verdict, "case", "?");
            id += strncmp(id, "observe.", 8) == 0 ? 8 : 0;
            ls_text_add(skipped, sizeof skipped, "%s%s",
                        skipped[0] == '\0' ? "does not apply to this job: " : ", ", id);
        }
    }
    if (skipped[0] != '\0') {
        fputc('\n', to);
        ls_report_lines_print(to, skipped, 2);
    }
}

void ls_observe_report_print(const ls_observe_report *report, const char *directory, FILE *to)
{
    headline_texts texts;
    ls_report_headline headline[3];
    const cJSON *line;
    fputc('\n', to);
    ls_report_lines_print(to, ls_json_string(report->run, "title", "Lockstep, observed job"), 2);
    ls_report_lines_print(to, ls_json_string(report->run, "where", ""), 2);
    cJSON *seen = list_seen(report);
    cJSON_ArrayForEach(line, seen)
    {
        ls_report_lines_print(to, line->valuestring, 2);
    }
    cJSON_Delete(seen);
    cJSON_ArrayForEach(line, cJSON_GetObjectItemCaseSensitive(report->seen, "unseen"))
    {
        LS_TEXT(text, TEXT_BYTES, "not seen: %s", cJSON_IsString(line) ? line->valuestring : "?");
        ls_report_lines_print(to, text, 2);
    }
    fputc('\n', to);
    print_verdicts(report, to);
    fputc('\n', to);
    int headlines = list_headlines(report, &texts, headline);
    for (int i = 0; i < headlines; i++) {
        LS_TEXT(text, TEXT_BYTES, "%-8s %-9s (%s)", headline[i].name, headline[i].value,
                headline[i].why);
        ls_report_lines_print(to, text, 9);
    }
    if (directory != NULL) {
        fprintf(to, "report   %s/report.html\n", directory);
    }
    fflush(to);
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void write_list(const ls_report_page_form *form, FILE *to, const cJSON *sentences)
{
    const cJSON *sentence;
    fputs(form->list_open, to);
    cJSON_ArrayForEach(sentence, sentences)
    {
        form->list_item(to, cJSON_IsString(sentence) ? sentence->valuestring : "?");
    }
    fputs(form->list_close, to);
}

static void write_failures(const ls_observe_report *report, const ls_report_page_form *form,
                           FILE *to)
{
    int number = 0, listed = 0;
    const cJSON *verdict;
    form->heading(to, "What does not hold");
    cJSON_ArrayForEach(verdict, report->verdicts)
    {
        char text[3 * TEXT_BYTES], line[TEXT_BYTES];
        number++;
        if (!is_of_round(verdict, 2)) {
            continue;
        }
        describe_verdict(verdict, number, line);
        ls_text_put(text, sizeof text, "%s", line);
        for (int i = 0; i < DETAILS; i++) {
            const char *value = ls_json_string(verdict, detail[i][1], "");
            ls_text_add(text, sizeof text, value[0] == '\0' ? "" : "\n%s%s", detail[i][0], value);
        }
        form->code(to, text);
        listed++;
    }
    if (listed == 0) {
        form->paragraph(to, "No rule failed.");
    }
}

static void write_seen(const ls_observe_report *report, const ls_report_page_form *form, FILE *to)
{
    const cJSON *unseen = cJSON_GetObjectItemCaseSensitive(report->seen, "unseen");
    cJSON *seen = list_seen(report);
    form->heading(to, "What was seen");
    write_list(form, to, seen);
    cJSON_Delete(seen);
    form->heading(to, "What could not be seen");
    if (cJSON_GetArraySize(unseen) > 0) {
        write_list(form, to, unseen);
    } else {
        form->paragraph(to, "Every rank wrote its events to the end. Rules that lacked something "
                            "else are UNSUPPORTED below and say what.");
    }
}

/* In the order of the rules, with the sentence of each: it says what a PASS means. */
static void write_rules(const ls_observe_report *report, const ls_report_page_form *form, FILE *to)
{
    ls_page_table table;
    const cJSON *verdict;
    bool blames = false;
    cJSON_ArrayForEach(verdict, report->verdicts)
    {
        blames = blames || ls_json_string(verdict, "where", "")[0] != '\0' ||
                 ls_json_string(verdict, "change", "")[0] != '\0';
    }
    form->heading(to, "Rules");
    form->paragraph(to,
                    "WEAK: nothing happened that could show it. UNSUPPORTED: it could not be seen. "
                    "SKIP: it does not concern the job. None of these is a failure; the first two "
                    "keep CORRECT from yes.");
    ls_page_table_open(&table, form, to,
                       blames ? "rule|verdict|what holds|evidence|where|change"
                              : "rule|verdict|what holds|evidence");
    cJSON_ArrayForEach(verdict, report->verdicts)
    {
        const char *id = ls_json_string(verdict, "case", "?");
        ls_page_cell(&table, "%s", id + (strncmp(id, "observe.", 8) == 0 ? 8 : 0));
        ls_page_cell(&table, "%s", ls_verdict_name(code_of(verdict)));
        ls_page_cell(&table, "%s", ls_json_string(verdict, "rule", ""));
        ls_page_cell(&table, "%s", ls_json_string(verdict, "evidence", ""));
        if (blames) {
            ls_page_cell(&table, "%s", ls_json_string(verdict, "where", ""));
            ls_page_cell(&table, "%s", ls_json_string(verdict, "change", ""));
        }
    }
    ls_page_table_close(&table);
}

static void write_speed(const ls_observe_report *report, const ls_report_page_form *form, FILE *to)
{
    static const struct {
        const char *title, *name;
        bool share;
    } rows[] = {
        {"samples/s, all ranks", "samples_per_s", false},
        {"step ms, median", "step_ms_p50", false},
        {"step ms, 90th percentile", "step_ms_p90", false},
        {"waiting for data, % of a step", "data_share", true},
        {"forward, %", "forward_share", true},
        {"backward with the reduction, %", "backward_share", true},
        {"optimizer, %", "optimizer_share", true},
        {"own work of the slowest rank, ms a step", "slowest_own_ms", false},
        {"own work of the median rank, ms a step", "median_own_ms", false},
    };
    const cJSON *speed = cJSON_GetObjectItemCaseSensitive(report->seen, "speed");
    char text[TEXT_BYTES];
    form->heading(to, "Speed");
    describe_speed(report->seen, text, sizeof text);
    ls_text_add(text, sizeof text,
                ". Steps with samples and the first two are left out, and so is the time that "
                "observing took.");
    if (ls_json_int(speed, "ranks", 1) > 1) {
        ls_text_add(text, sizeof text,
                    " Own work is data, forward and optimizer; backward holds the wait for other "
                    "ranks. The slowest is rank %d.",
                    ls_json_int(speed, "slowest_rank", 0));
    }
    form->paragraph(to, text);
    if (speed == NULL) {
        return;
    }
    ls_page_table table;
    ls_page_table_open(&table, form, to, "figure|value>");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double value = ls_json_number(speed, rows[i].name, NAN);
        ls_page_cell(&table, "%s", rows[i].title);
        ls_page_number(&table, rows[i].share ? 100 * value : value);
    }
    ls_page_table_close(&table);
}

static void write_cost(const ls_observe_report *report, const ls_report_page_form *form, FILE *to)
{
    static const char *const rows[][2] = {{"observing", "own_ms"},
                                          {"of that, steps in detail", "detail_ms"},
                                          {"of that, gradients again in FP64", "gradient_ms"},
                                          {"the run, first forward to last step", "run_ms"}};
    const cJSON *cost = cJSON_GetObjectItemCaseSensitive(report->seen, "cost");
    form->heading(to, "What observing cost");
    if (cost == NULL) {
        form->paragraph(to, ls_json_bool(report->seen, "attached", true)
                                ? "No rank reported it: none ended by itself."
                                : "Nothing: the trainer writes its events itself.");
        return;
    }
    char text[TEXT_BYTES];
    describe_cost(report->seen, text, sizeof text);
    ls_text_add(text, sizeof text, ": %.1f %%.", 100 * ls_json_number(cost, "share", NAN));
    form->paragraph(to, text);
    ls_page_table table;
    ls_page_table_open(&table, form, to, "part|ms>");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ls_page_cell(&table, "%s", rows[i][0]);
        ls_page_number(&table, ls_json_number(cost, rows[i][1], NAN));
    }
    ls_page_table_close(&table);
}

static void write_files(const char *directory, const ls_report_page_form *form, FILE *to)
{
    static const char *const files[][2] = {
        {"run.json", "options, command, headline"},
        {"verdicts.jsonl", "one line per rule"},
        {"summary.json", "what was seen, for programs"},
        {"junit.xml", "the rules for a CI"},
        {"jobs/observed/", "events of every rank; samples where they were kept"},
        {"jobs/subject/", "events and dumps that the trainer wrote itself"}};
    form->heading(to, "Files");
    fputs(form->list_open, to);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        LS_TEXT(path, PATH_MAX, "%s/%s", directory, files[i][0]);
        if (access(path, R_OK) == 0) {
            form->file(to, files[i][0], files[i][1]);
        }
    }
    fputs(form->list_close, to);
}

static ls_status write_page(const ls_observe_report *report, const char *directory,
                            const ls_report_page_form *form, const char *name)
{
    headline_texts texts;
    ls_report_headline headline[3];
    LS_TEXT(path, PATH_MAX, "%s/%s", directory, name);
    FILE *to = ls_file_create(path);
    LS_TRY_FILE(to);
    int headlines = list_headlines(report, &texts, headline);
    form->open(to, ls_json_string(report->run, "title", "Lockstep, observed job"),
               ls_json_string(report->run, "where", ""), headline, headlines);
    LS_TEXT(origin, TEXT_BYTES, "Made %s by Lockstep %s: %s",
            ls_json_string(report->run, "created", "at an unknown time"),
            ls_json_string(report->run, "version", "of an unknown version"),
            ls_json_string(report->run, "command", "lockstep observe"));
    form->paragraph(to, origin);
    write_failures(report, form, to);
    write_seen(report, form, to);
    write_rules(report, form, to);
    write_speed(report, form, to);
    write_cost(report, form, to);
    write_files(directory, form, to);
    fputs(form->close, to);
    return ls_file_close(to, path);
}

ls_status ls_observe_report_write(const char *directory)
{
    ls_observe_report report;
    ls_status status = read_report(directory, &report);
    LS_THEN(status, ls_report_junit(directory));
    LS_THEN(status, write_page(&report, directory, ls_report_markdown_form(), "report.md"));
    LS_THEN(status, write_page(&report, directory, ls_html_form(), "report.html"));
    ls_observe_report_free(&report);
    return status;
}

ls_status ls_observe_report_terminal(const char *directory, FILE *to)
{
    ls_observe_report report;
    ls_status status = read_report(directory, &report);
    if (status == LS_OK) {
        ls_observe_report_print(&report, directory, to);
    }
    ls_observe_report_free(&report);
    return status;
}
