/* A text against the one that was committed as expected, word for word. After a change that is
 * meant, LS_RENEW=1 build/unit/test_X writes what it finds, and git diff shows what changed. */
#ifndef LS_UNIT_GOLDEN_H
#define LS_UNIT_GOLDEN_H

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/report.h"
#include "harness/report/tables/table.h"
#include "kernels/core/digest.h"
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"

/* The sign of a NaN is the compiler's. */
static inline void golden_plain_nan(char *text)
{
    while ((text = strstr(text, "-nan")) != NULL) {
        memmove(text, text + 1, strlen(text));
    }
}

/* The first and the last lines of a text, and between them how many more, with their digest; all of
 * them with LS_WHOLE=1, to see what changed. */
static inline void golden_ends(FILE *to, const char *text, int first, int last)
{
    int lines = 0;
    for (const char *at = text; (at = strchr(at, '\n')) != NULL; at++) {
        lines++;
    }
    const char *from = text, *end = text;
    for (int i = 0; i < lines - last; i++) {
        end = strchr(end, '\n') + 1;
        from = i == first - 1 ? end : from;
    }
    if (lines <= (int64_t)first + last || getenv("LS_WHOLE") != NULL) {
        from = end = text;
    }
    fprintf(to, "%.*s", (int)(from - text), text);
    if (end > from) {
        fprintf(to, "... %d more lines, XXH64 %016llx\n", lines - first - last,
                (unsigned long long)ls_digest_xxh64(0, from, (size_t)(end - from)));
    }
    fputs(end, to);
}

/* The sections of a text, each from a line "==== TITLE" on, of long ones the ends: of the first
 * `shown` ones `most` lines at the start, of the others `first`, and `last` of each. Frees `text`.
 */
static inline char *golden_cut(char *text, int shown, int most, int first, int last)
{
    char *cut = NULL, *next = text;
    size_t bytes = 0;
    FILE *to = open_memstream(&cut, &bytes);
    golden_plain_nan(text);
    for (char *at = text; *at != '\0'; at = next, shown--) {
        next = strstr(at + 1, "\n==== ");
        next = next == NULL ? strchr(at, '\0') : next + 1;
        char *section = strndup(at, (size_t)(next - at));
        golden_ends(to, section, shown > 0 ? most : first, last);
        free(section);
    }
    fclose(to);
    free(text);
    return cut;
}

/* The first `whole` sections whole. */
static inline char *golden_sections(char *text, int whole)
{
    return golden_cut(text, whole, INT_MAX, 12, 3);
}

/* For many sections of few kinds, of which the first `shown` ones are enough to read. */
static inline char *golden_short(char *text, int shown)
{
    return golden_cut(text, shown, 44, 4, 1);
}

/* Fails with the first line that differs and the two around it; `expected`: its path in the
 * repository. Frees `text`. */
static inline void golden_check(const char *expected, char *text)
{
    char path[1024];
    golden_plain_nan(text);
    if (getenv("LS_RENEW") != NULL) {
        FILE *file = fopen(expected, "w");
        ck_assert_msg(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0, "%s", expected);
    }
    ck_assert_msg(ls_path_find(expected, path, sizeof path), "no %s", expected);
    char *wanted = ls_text_read(path), *a = wanted, *b = text;
    ck_assert_ptr_nonnull(wanted);
    int line = 1;
    while (*a != '\0' && strcspn(a, "\n") == strcspn(b, "\n") &&
           memcmp(a, b, strcspn(a, "\n")) == 0 && a[strcspn(a, "\n")] == b[strcspn(b, "\n")]) {
        a += strcspn(a, "\n") + (a[strcspn(a, "\n")] == '\n');
        b += strcspn(b, "\n") + (b[strcspn(b, "\n")] == '\n');
        line++;
    }
    ck_assert_msg(*a == '\0' && *b == '\0', "%s:%d: expected\n  %.*s\nbut it is\n  %.*s", expected,
                  line, (int)strcspn(a, "\n"), a, (int)strcspn(b, "\n"), b);
    free(wanted);
    free(text);
}

/* Six digits: the last ones of a sum are the compiler's. */
static inline void golden_round(cJSON *value)
{
    if (cJSON_IsNumber(value)) {
        LS_TEXT(digits, 40, "%.6g", value->valuedouble);
        cJSON_SetNumberValue(value, strtod(digits, NULL));
    }
    for (cJSON *child = value->child; child != NULL; child = child->next) {
        golden_round(child);
    }
}

static inline void golden_json(FILE *to, const char *path, const cJSON *value);

/* The member in each of the objects on one line, `-` where one has none; where a value is long,
 * each below its object's number. */
static inline void golden_member(FILE *to, const char *path, const cJSON *objects, const char *name)
{
    char *line = NULL;
    size_t bytes = 0, longest = 0;
    FILE *values = open_memstream(&line, &bytes);
    const cJSON *object;
    cJSON_ArrayForEach(object, objects)
    {
        cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
        char *text = value == NULL ? NULL : cJSON_PrintUnformatted(value);
        fprintf(values, " %s", text == NULL ? "-" : text);
        longest = text != NULL && strlen(text) > longest ? strlen(text) : longest;
        cJSON_free(text);
    }
    fclose(values);
    if (longest < 120) {
        fprintf(to, "%s/*/%s:%s\n", path, name, line);
    }
    int number = 0;
    for (object = longest < 120 ? NULL : objects->child; object != NULL; object = object->next) {
        LS_TEXT(member, 400, "%s/%d/%s", path, number++, name);
        cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
        if (value != NULL) {
            golden_json(to, member, value);
        }
    }
    free(line);
}

/* Objects of one kind: their members in the order in which they first occur. */
static inline void golden_objects(FILE *to, const char *path, const cJSON *objects)
{
    const cJSON *object, *member;
    cJSON_ArrayForEach(object, objects)
    {
        cJSON_ArrayForEach(member, object)
        {
            const cJSON *first = objects->child;
            while (!cJSON_HasObjectItem(first, member->string)) {
                first = first->next;
            }
            if (first == object) {
                golden_member(to, path, objects, member->string);
            }
        }
    }
}

/* A line for each value that is short enough, "path: JSON", else one for each of its members. */
static inline void golden_json(FILE *to, const char *path, const cJSON *value)
{
    char *text = cJSON_PrintUnformatted(value);
    if (strlen(text) < 120 || value->child == NULL) {
        fprintf(to, "%s: %s\n", path, text);
        cJSON_free(text);
        return;
    }
    cJSON_free(text);
    if (cJSON_IsArray(value) && value->child->next != NULL && cJSON_IsObject(value->child)) {
        golden_objects(to, path, value);
        return;
    }
    int index = 0;
    const cJSON *child;
    cJSON_ArrayForEach(child, value)
    {
        LS_TEXT(number, 16, "%d", index++);
        LS_TEXT(member, 400, "%s/%s", path, child->string != NULL ? child->string : number);
        golden_json(to, member, child);
    }
}

/* The lines of a text that ends with one; line[count] is its end. */
typedef struct golden_lines {
    int count;
    const char *line[500];
} golden_lines;

static inline golden_lines golden_split(const char *text)
{
    golden_lines out = {0, {text}};
    while (*out.line[out.count] != '\0') {
        const char *end = strchr(out.line[out.count], '\n');
        ck_assert(end != NULL && out.count < 498);
        out.line[++out.count] = end + 1;
    }
    return out;
}

static inline bool golden_same_line(const golden_lines *a, int i, const golden_lines *b, int k)
{
    return i < a->count && k < b->count &&
           a->line[i + 1] - a->line[i] == b->line[k + 1] - b->line[k] &&
           memcmp(a->line[i], b->line[k], (size_t)(a->line[i + 1] - a->line[i])) == 0;
}

/* Prints the lines that only the first text has, "NUMBER- LINE", and those that only the second
 * has, "NUMBER+ LINE" after that line of the first, by the longest sequence of lines of both;
 * returns how many there are. */
static inline int golden_differences(FILE *to, const char *first, const char *second)
{
    static int common[500][500]; /* how many, from line i of the first and k of the second on */
    golden_lines a = golden_split(first), b = golden_split(second);
    int i, k, alone = 0;
    for (i = a.count; i >= 0; i--) {
        for (k = b.count; k >= 0; k--) {
            int down = i < a.count ? common[i + 1][k] : 0,
                right = k < b.count ? common[i][k + 1] : 0;
            common[i][k] = golden_same_line(&a, i, &b, k) ? 1 + common[i + 1][k + 1]
                           : down > right                 ? down
                                                          : right;
        }
    }
    for (i = k = 0; i < a.count || k < b.count;) {
        bool same = golden_same_line(&a, i, &b, k);
        bool old = i < a.count && (k == b.count || common[i + 1][k] >= common[i][k + 1]);
        if (!same) {
            const char *line = old ? a.line[i] : b.line[k];
            fprintf(to, "%d%c %.*s\n", i + old, old ? '-' : '+', (int)strcspn(line, "\n"), line);
            alone++;
        }
        i += same || old;
        k += same || !old;
    }
    return alone;
}

/* Texts of one kind: the first one whole, each other one as what differs from the one before it
 * that is most like it, so that together they say every line. */
typedef struct golden_variants {
    int count;
    char *title[64], *text[64];
} golden_variants;

/* Keeps `text`. */
static inline void golden_variant(FILE *to, golden_variants *all, const char *title, char *text)
{
    char *shortest = NULL;
    int least = golden_split(text).count, like = -1;
    for (int i = 0; i < all->count; i++) {
        char *differences = NULL;
        size_t bytes = 0;
        FILE *stream = open_memstream(&differences, &bytes);
        int lines = golden_differences(stream, all->text[i], text);
        fclose(stream);
        bool shorter = lines < least;
        free(shorter ? shortest : differences);
        shortest = shorter ? differences : shortest;
        like = shorter ? i : like;
        least = shorter ? lines : least;
    }
    fprintf(to, "==== %s%s%s\n%s", title, like < 0 ? "" : ", as ", like < 0 ? "" : all->title[like],
            like < 0 ? text : shortest);
    free(shortest);
    ck_assert_int_lt(all->count, 64);
    all->title[all->count] = strdup(title);
    all->text[all->count++] = text;
}

static inline void golden_variants_free(golden_variants *all)
{
    while (all->count > 0) {
        free(all->title[--all->count]);
        free(all->text[all->count]);
    }
}

/* All that a report of the run in `folder` says: terminal, tables, summary, pages, JUnit; `part`:
 * without what says it twice or says nothing, report.html, junit.xml and tables without a row, and
 * of the rest the ends. Of long tables and many cases those between the first and the last as their
 * digest. */
static inline char *golden_report(const char *folder, bool part)
{
    static const char *const PAGES[] = {"report.md", "report.html", "junit.xml"};
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    ck_assert_int_eq(ls_report_tables(folder), LS_OK);
    ck_assert_int_eq(ls_report_write(folder, "/nowhere"), LS_OK);
    fprintf(to, "==== terminal\n");
    ck_assert_int_eq(ls_report_terminal(folder, to), LS_OK);
    for (int i = 0; i < (part ? 1 : 3); i++) {
        LS_TEXT(path, 400, "%s/%s", folder, PAGES[i]);
        char *page = ls_text_read(path), *style = strstr(page, "<style>");
        fprintf(to, "==== %s\n", PAGES[i]);
        fprintf(to, "%.*s", style != NULL ? (int)(style - page) : 0, page);
        golden_ends(to, style != NULL ? strstr(page, "</style>") : page, i == 2 ? 62 : INT_MAX, 8);
        free(page);
    }
    for (int i = 0; ls_tables_name(i) != NULL; i++) {
        LS_TEXT(path, 400, "%s/tables/%s.tsv", folder, ls_tables_name(i));
        ls_table_head head;
        ck_assert_int_eq(ls_table_read_head(folder, ls_tables_name(i), &head), LS_OK);
        if (part && head.rows == 0) {
            continue;
        }
        char *table = ls_text_read(path);
        golden_plain_nan(table);
        fprintf(to, "==== %s.tsv\n", ls_tables_name(i));
        golden_ends(to, table, 12, 4);
        free(table);
    }
    LS_TEXT(path, 400, "%s/summary.json", folder);
    cJSON *summary = NULL;
    ck_assert_int_eq(ls_json_read_file(path, &summary), LS_OK);
    /* written until schema 3 under its name in schema 1 as well */
    cJSON *alias = cJSON_DetachItemFromObjectCaseSensitive(summary, "beside");
    char *compare = cJSON_PrintUnformatted(cJSON_GetObjectItemCaseSensitive(summary, "compare"));
    char *beside = cJSON_PrintUnformatted(alias);
    ck_assert(compare != NULL && beside != NULL);
    ck_assert_str_eq(beside, compare);
    cJSON_free(beside);
    cJSON_free(compare);
    cJSON_Delete(alias);
    golden_round(summary);
    golden_json(to, "summary", summary);
    cJSON_Delete(summary);
    fclose(to);
    return part ? golden_cut(text, 1, 12, 4, 1) : text;
}

#endif
