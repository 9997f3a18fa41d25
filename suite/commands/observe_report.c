/* The report on an observed job: terminal, report.md, report.html, junit.xml. */
#include "observe_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/report/page.h"
#include "harness/report/report.h"
#include "kernels/core/file.h"
#include "kernels/core/log.h"

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

ls_status ls_observe_report_read(const char *directory, ls_observe_report *out)
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

/* ", train.py:9"; "" where the entry has no place. */
static const char *format_place(const cJSON *entry, char text[TEXT_BYTES])
{
    const char *at = ls_json_string(entry, "at", "");
    ls_text_put(text, TEXT_BYTES, "%s%s", at[0] == '\0' ? "" : ", ", at);
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
    const cJSON *speed = ls_json_get(seen, "speed");
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
    const cJSON *cost = ls_json_get(seen, "cost");
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
    const cJSON *headline = ls_json_get(report->run, "headline");
    const cJSON *correct = ls_json_get(headline, "correct");
    const cJSON *cost = ls_json_get(report->seen, "cost");
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
    char text[TEXT_BYTES], place[TEXT_BYTES], count[32];
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
    if (ls_json_int(seen, "unused_passes", 0) > 0) {
        ls_text_add(text, sizeof text, ", %d backward passes in no step",
                    ls_json_int(seen, "unused_passes", 0));
    }
    cJSON_AddItemToArray(list, cJSON_CreateString(text));
    const cJSON *observe = ls_json_get(seen, "observe");
    const char *inject = ls_json_string(observe, "inject", "");
    if (inject[0] != '\0') {
        ls_text_put(text, sizeof text,
                    "%s was injected, as asked: one element of a gradient was made infinite",
                    inject);
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
    ls_json_each(entry, ls_json_get(seen, "models")) {
        bool ddp = strcmp(ls_json_string(entry, "kind", ""), "ddp") == 0;
        ls_text_put(text, sizeof text, "model %s%s%s: %s parameters in %d tensors",
                    ls_json_string(entry, "name", "?"), ddp ? " in DistributedDataParallel" : "",
                    format_place(entry, place),
                    format_count(ls_json_number(entry, "elements", 0), count),
                    ls_json_int(entry, "tensors", 0));
        if (ls_json_int(entry, "parts", 0) > 0) {
            ls_text_add(text, sizeof text, "; of %d more each rank holds a part",
                        ls_json_int(entry, "parts", 0));
        }
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
    ls_json_each(entry, ls_json_get(seen, "optimizers")) {
        int groups = ls_json_int(entry, "groups", 0);
        ls_text_put(text, sizeof text, "optimizer %s%s: %d parameter %s",
                    ls_json_string(entry, "class", "?"), format_place(entry, place), groups,
                    groups == 1 ? "group" : "groups");
        if (ls_json_string(entry, "rule", "")[0] == '\0') {
            ls_text_add(text, sizeof text, "; its rule is not known, its steps are not recomputed");
        }
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
    ls_json_each(entry, ls_json_get(seen, "scalers")) {
        ls_text_put(text, sizeof text, "scaler%s: ", format_place(entry, place));
        ls_text_add(text, sizeof text,
                    ls_json_bool(entry, "enabled", false) ? "initial scale %.0f" : "not enabled",
                    ls_json_number(entry, "init_scale", NAN));
        cJSON_AddItemToArray(list, cJSON_CreateString(text));
    }
    return list;
}

/* What a verdict is for a reader. */
typedef enum part { PASSED, NOT_SHOWN, NOT_HINTED, FAILED, FOLLOWING, HINTED, SKIPPED } part;

static part part_of(const cJSON *verdict)
{
    ls_verdict_code code = ls_verdict_code_in(verdict);
    bool hint = strcmp(ls_json_string(verdict, "tier", "law"), "hint") == 0;
    return code == LS_SKIP                             ? SKIPPED
           : ls_verdict_good(code)                     ? PASSED
           : code == LS_WEAK || code == LS_UNSUPPORTED ? (hint ? NOT_HINTED : NOT_SHOWN)
           : hint                                      ? HINTED
           : cJSON_HasObjectItem(verdict, "follows")   ? FOLLOWING
                                                       : FAILED;
}

/* The rule's id. */
static const char *id_of(const cJSON *verdict)
{
    const char *id = ls_json_string(verdict, "case", "?");
    return id + (strncmp(id, "observe.", 8) == 0 ? 8 : 0);
}

/* --hints off */
static bool shows_hints(const ls_observe_report *report)
{
    const cJSON *options = ls_json_get(report->run, "observed");
    return strcmp(ls_json_string(options, "hints", "on"), "off") != 0;
}

static bool is_in(const ls_observe_report *report, const cJSON *verdict, part which)
{
    return part_of(verdict) == which && (which != HINTED || shows_hints(report));
}

/* The verdict's first line; `brief`: of a failure its place for the evidence, if it has one. */
static void describe_verdict(const cJSON *verdict, int number, bool brief, char text[TEXT_BYTES])
{
    part of = part_of(verdict);
    bool place = brief && of == FAILED;
    const char *evidence = ls_json_string(verdict, "evidence", "");
    ls_text_put(text, TEXT_BYTES, "%s %d - %s # %s%s%s",
                of == PASSED                             ? "ok"
                : of == HINTED                           ? "HINT"
                : ls_json_bool(verdict, "decides", true) ? "not ok"
                                                         : "not shown",
                number, ls_json_string(verdict, "case", "?"),
                of == HINTED ? "" : ls_verdict_name(ls_verdict_code_in(verdict)),
                of == HINTED ? "" : " ",
                place ? ls_json_string(verdict, "where", evidence) : evidence);
}

static const char *const detail[][2] = {{"cause:  ", "cause"},
                                        {"where:  ", "where"},
                                        {"change: ", "change"},
                                        {"wrong if: ", "wrong_if"}};
enum { DETAILS = sizeof detail / sizeof *detail };

/* ---- terminal -------------------------------------------------------------------------------- */

static void print_details(const cJSON *verdict, FILE *to)
{
    char text[TEXT_BYTES];
    for (int i = 0; i < DETAILS && part_of(verdict) != PASSED; i++) {
        const char *value = ls_json_string(verdict, detail[i][1], "");
        if (value[0] != '\0') {
            ls_text_put(text, sizeof text, "%s%s", detail[i][0], value);
            ls_report_lines_print(to, text, 8);
        }
    }
}

static void print_verdict(const cJSON *verdict, int number, FILE *to)
{
    char text[TEXT_BYTES];
    describe_verdict(verdict, number, false, text);
    ls_report_lines_print(to, text, 2);
    print_details(verdict, to);
}

/* The names of a part behind a word, in lines of their own. `root`: of what follows from that rule
 * alone; NULL: all. */
static void print_names(const ls_observe_report *report, part which, const char *root,
                        const char *word, FILE *to)
{
    char text[TEXT_BYTES] = "";
    const cJSON *verdict;
    ls_json_each(verdict, report->verdicts) {
        if (part_of(verdict) == which &&
            (root == NULL || strcmp(ls_json_string(verdict, "follows", ""), root) == 0)) {
            ls_text_add(text, sizeof text, "%s%s", text[0] == '\0' ? word : ", ", id_of(verdict));
        }
    }
    if (text[0] != '\0') {
        ls_report_lines_print(to, text, 2);
        fputc('\n', to);
    }
}

void ls_observe_report_live(const cJSON *verdict, const cJSON *all_verdicts, int64_t step)
{
    const ls_observe_report report = {.verdicts = (cJSON *)all_verdicts};
    char *all = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&all, &bytes);
    LS_MEMORY(to != NULL);
    LS_TEXT(text, TEXT_BYTES, "a law does not hold in what the job has done up to step %lld: %s",
            (long long)step, ls_json_string(verdict, "rule", ""));
    fputs(isatty(STDERR_FILENO) ? "\r\033[K\n" : "\n", to); /* of a progress bar */
    ls_report_lines_print(to, text, 2);
    ls_text_put(text, sizeof text, "not ok - %s # FAIL %s", ls_json_string(verdict, "case", "?"),
                ls_json_string(verdict, "evidence", ""));
    ls_report_lines_print(to, text, 2);
    print_details(verdict, to);
    print_names(&report, FOLLOWING, id_of(verdict), "also: ", to);
    fputc('\n', to);
    fclose(to);
    (void)ls_file_write(STDERR_FILENO, "standard error", all, bytes);
    free(all);
}

static int count_lines(const char *text)
{
    int lines = 0;
    for (; *text != '\0'; text++) {
        lines += *text == '\n';
    }
    return lines;
}

static int count_part(const ls_observe_report *report, part which)
{
    int count = 0;
    const cJSON *verdict;
    ls_json_each(verdict, report->verdicts) {
        count += is_in(report, verdict, which);
    }
    return count;
}

/* Of a part, as many as fit into `left` lines, with a blank one behind them; `first`: the first one
 * in any case. Others have a line each where that is all that is left. Returns the lines. */
static int print_part(const ls_observe_report *report, part which, bool first, int left, FILE *to)
{
    int number = 0, rest = count_part(report, which), used = 1;
    char text[TEXT_BYTES];
    const cJSON *verdict;
    if (rest == 0 || (!first && left < 2)) {
        return 0;
    }
    ls_json_each(verdict, report->verdicts) {
        number++;
        if (!is_in(report, verdict, which)) {
            continue;
        }
        char *all = NULL;
        size_t bytes = 0;
        FILE *lines = open_memstream(&all, &bytes);
        LS_MEMORY(lines != NULL);
        print_verdict(verdict, number, lines);
        fclose(lines);
        bool whole = (first && used == 1) || used + count_lines(all) + (rest > 1) <= left;
        bool stops = !whole && rest > 1 && used + 2 > left;
        if (stops) {
            fprintf(to, "... and %d more: --verbose, or the report\n", rest);
        } else if (whole) {
            fputs(all, to);
        } else {
            describe_verdict(verdict, number, true, text);
            fprintf(to, strlen(text) > 80 ? "%.77s...\n" : "%s\n", text);
        }
        used += whole ? count_lines(all) : 1;
        rest--;
        free(all);
        if (stops) {
            break;
        }
    }
    fputc('\n', to);
    return used;
}

/* "31 rules passed, 1 failed, 3 not shown, 28 do not apply; 1 hint" */
static void describe_counts(const ls_observe_report *report, char *text, size_t bytes)
{
    int rules = cJSON_GetArraySize(report->verdicts), hints = count_part(report, HINTED);
    ls_text_put(text, bytes, "%d rules passed, %d failed, %d not shown, %d do not apply",
                count_part(report, PASSED),
                count_part(report, FAILED) + count_part(report, FOLLOWING),
                count_part(report, NOT_SHOWN) + count_part(report, NOT_HINTED),
                count_part(report, SKIPPED));
    if (hints > 0 || rules == 0) {
        ls_text_add(text, bytes, "; %d %s", hints, hints == 1 ? "hint" : "hints");
    }
}

static void print_opening(const ls_observe_report *report, bool verbose, FILE *to)
{
    enum { UNSEEN = 2 };
    const cJSON *line;
    int count = 0;
    fputc('\n', to);
    ls_report_lines_print(to, ls_json_string(report->run, "title", "Lockstep, observed job"), 2);
    ls_report_lines_print(to, ls_json_string(report->run, "where", ""), 2);
    cJSON *seen = list_seen(report);
    ls_json_each(line, seen) {
        if (verbose || count++ == 0) {
            ls_report_lines_print(to, line->valuestring, 2);
        }
    }
    cJSON_Delete(seen);
    count = 0;
    ls_json_each(line, ls_json_get(report->seen, "unseen")) {
        LS_TEXT(text, TEXT_BYTES, "not seen: %s", cJSON_IsString(line) ? line->valuestring : "?");
        if (verbose || count++ < UNSEEN) {
            ls_report_lines_print(to, text, 2);
        }
    }
    fputc('\n', to);
}

/* Failures, then hints; where nothing failed, what keeps CORRECT from yes; behind them, where all
 * is asked for, the rest. */
static void print_verdicts(const ls_observe_report *report, bool verbose, int left, FILE *to)
{
    left -= count_part(report, FOLLOWING) > 0 ? 2 : 0;
    int failed = print_part(report, FAILED, true, left, to);
    print_names(report, FOLLOWING, NULL, "also: ", to);
    int hinted = print_part(report, HINTED, failed == 0, left - failed, to);
    if (verbose || failed == 0) {
        (void)print_part(report, NOT_SHOWN, verbose, left - hinted, to);
    }
    if (verbose) {
        (void)print_part(report, NOT_HINTED, true, left, to);
        (void)print_part(report, PASSED, true, left, to);
        print_names(report, SKIPPED, NULL, "does not apply to this job: ", to);
    }
}

static void print_headlines(const ls_observe_report *report, const char *directory, FILE *to)
{
    headline_texts texts;
    ls_report_headline headline[3];
    char text[TEXT_BYTES];
    describe_counts(report, text, sizeof text);
    ls_report_lines_print(to, text, 2);
    int headlines = list_headlines(report, &texts, headline);
    for (int i = 0; i < headlines; i++) {
        ls_text_put(text, sizeof text, "%-8s %-9s (%s)", headline[i].name, headline[i].value,
                    headline[i].why);
        ls_report_lines_print(to, text, 9);
    }
    if (directory != NULL) {
        fprintf(to, "report   %s/report.html\n", directory);
    }
}

void ls_observe_report_print(const ls_observe_report *report, const char *directory, bool verbose,
                             FILE *to)
{
    enum { LINES = 25 }; /* a screen */
    char *around[2] = {NULL, NULL};
    size_t bytes;
    for (int i = 0; i < 2; i++) {
        FILE *text = open_memstream(&around[i], &bytes);
        LS_MEMORY(text != NULL);
        if (i == 0) {
            print_opening(report, verbose, text);
        } else {
            print_headlines(report, directory, text);
        }
        fclose(text);
    }
    int left = verbose ? INT_MAX / 2 : LINES - count_lines(around[0]) - count_lines(around[1]);
    fputs(around[0], to);
    print_verdicts(report, verbose, left, to);
    fputs(around[1], to);
    fflush(to);
    free(around[0]);
    free(around[1]);
}

void ls_observe_report_rules(FILE *to)
{
    int count;
    char text[TEXT_BYTES];
    const ls_observe_rule *rule = ls_observe_rules(&count);
    for (int i = 0; i < count; i++) {
        bool law = rule[i].sure[0] != '\0', hint = rule[i].wrong_if[0] != '\0';
        fprintf(to, "%s: %s%s%s\n", rule[i].id, law ? "law" : "", law && hint ? ", hint" : "",
                !law ? "hint" : "");
        if (law) {
            ls_text_put(text, sizeof text, "  sure: %s", rule[i].sure);
            ls_report_lines_print(to, text, 4);
        }
        if (hint) {
            ls_text_put(text, sizeof text, "  wrong if: %s", rule[i].wrong_if);
            ls_report_lines_print(to, text, 4);
        }
    }
}

/* ---- pages ----------------------------------------------------------------------------------- */

static void write_list(const ls_report_page_form *form, FILE *to, const cJSON *sentences)
{
    const cJSON *sentence;
    fputs(form->list_open, to);
    ls_json_each(sentence, sentences) {
        form->list_item(to, cJSON_IsString(sentence) ? sentence->valuestring : "?");
    }
    fputs(form->list_close, to);
}

static void write_part(const ls_observe_report *report, part which, const ls_report_page_form *form,
                       FILE *to)
{
    int number = 0;
    const cJSON *verdict;
    ls_json_each(verdict, report->verdicts) {
        char text[3 * TEXT_BYTES], line[TEXT_BYTES];
        number++;
        if (!is_in(report, verdict, which)) {
            continue;
        }
        describe_verdict(verdict, number, false, line);
        ls_text_put(text, sizeof text, "%s", line);
        for (int i = 0; i < DETAILS; i++) {
            const char *value = ls_json_string(verdict, detail[i][1], "");
            ls_text_add(text, sizeof text, value[0] == '\0' ? "" : "\n%s%s", detail[i][0], value);
        }
        form->code(to, text);
    }
}

static void write_failures(const ls_observe_report *report, const ls_report_page_form *form,
                           FILE *to)
{
    form->heading(to, "What does not hold");
    write_part(report, FAILED, form, to);
    if (count_part(report, FAILED) == 0) {
        form->paragraph(to, "No rule failed.");
    }
    if (count_part(report, FOLLOWING) > 0) {
        form->heading(to, "What follows from it");
        write_part(report, FOLLOWING, form, to);
    }
    if (count_part(report, HINTED) > 0) {
        form->heading(to, "Hints");
        form->paragraph(to, "Guessed: they decide neither CORRECT nor, without --gate hints, the "
                            "exit code.");
        write_part(report, HINTED, form, to);
    }
}

static void write_steps(const char *directory, const ls_report_page_form *form, FILE *to)
{
    LS_TEXT(path, PATH_MAX, "%s/plots/steps.svg", directory);
    if (access(path, R_OK) == 0) {
        form->heading(to, "Steps");
        form->figure(to, directory, "steps", "The steps of each rank",
                     "Equal and different: its parameters after the step against the other ranks', "
                     "by digests of all bits. A column of several steps shows the worst of them.",
                     true);
    }
}

static void write_seen(const ls_observe_report *report, const ls_report_page_form *form, FILE *to)
{
    const cJSON *unseen = ls_json_get(report->seen, "unseen");
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
    ls_json_each(verdict, report->verdicts) {
        blames = blames || ls_json_string(verdict, "where", "")[0] != '\0' ||
                 ls_json_string(verdict, "change", "")[0] != '\0';
    }
    form->heading(to, "Rules");
    form->paragraph(to,
                    "WEAK: nothing happened that could show it. UNSUPPORTED: it could not be seen. "
                    "SKIP: it does not concern the job. None of these is a failure; the first two "
                    "keep CORRECT from yes where the rule is a law. A hint is guessed.");
    ls_page_table_open(&table, form, to,
                       blames ? "rule|tier|verdict|what holds|evidence|where|change"
                              : "rule|tier|verdict|what holds|evidence");
    ls_json_each(verdict, report->verdicts) {
        if (part_of(verdict) == HINTED && !shows_hints(report)) {
            continue;
        }
        ls_page_cell(&table, "%s", id_of(verdict));
        ls_page_cell(&table, "%s", ls_json_string(verdict, "tier", "law"));
        ls_page_cell(&table, "%s", ls_verdict_name(ls_verdict_code_in(verdict)));
        ls_page_cell(&table, "%s", ls_json_string(verdict, "rule", ""));
        ls_page_cell(&table, "%s", ls_json_string(verdict, "evidence", ""));
        if (blames) {
            ls_page_cell(&table, "%s", ls_json_string(verdict, "where", ""));
            ls_page_cell(&table, "%s", ls_json_string(verdict, "change", ""));
        }
    }
    ls_page_table_close(&table);
}

typedef struct figure {
    const char *title, *name;
    bool share; /* in % */
} figure;

static void write_figures(const ls_report_page_form *form, FILE *to, const char *head,
                          const cJSON *values, const figure *row, size_t rows)
{
    ls_page_table table;
    ls_page_table_open(&table, form, to, head);
    for (size_t i = 0; i < rows; i++) {
        ls_page_cell(&table, "%s", row[i].title);
        ls_page_number(&table, (row[i].share ? 100 : 1) * ls_json_number(values, row[i].name, NAN));
    }
    ls_page_table_close(&table);
}

static void write_speed(const ls_observe_report *report, const ls_report_page_form *form, FILE *to)
{
    static const figure rows[] = {
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
    const cJSON *speed = ls_json_get(report->seen, "speed");
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
    if (speed != NULL) {
        write_figures(form, to, "figure|value>", speed, rows, sizeof rows / sizeof *rows);
    }
}

static void write_cost(const ls_observe_report *report, const ls_report_page_form *form, FILE *to)
{
    static const figure rows[] = {{"observing", "own_ms", false},
                                  {"of that, steps in detail", "detail_ms", false},
                                  {"of that, gradients again in FP64", "gradient_ms", false},
                                  {"the run, first forward to last step", "run_ms", false}};
    const cJSON *cost = ls_json_get(report->seen, "cost");
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
    write_figures(form, to, "part|ms>", cost, rows, sizeof rows / sizeof *rows);
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
    write_steps(directory, form, to);
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
    ls_status status = ls_observe_report_read(directory, &report);
    LS_THEN(status, ls_report_junit(directory));
    LS_THEN(status, write_page(&report, directory, ls_report_markdown_form(), "report.md"));
    LS_THEN(status, write_page(&report, directory, ls_html_form(), "report.html"));
    ls_observe_report_free(&report);
    return status;
}

ls_status ls_observe_report_terminal(const char *directory, FILE *to)
{
    ls_observe_report report;
    ls_status status = ls_observe_report_read(directory, &report);
    if (status == LS_OK) {
        ls_observe_report_print(&report, directory, false, to);
    }
    ls_observe_report_free(&report);
    return status;
}
