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
#include "kernels/core/file.h"
#include "kernels/core/json.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"

/* Fails with the first line that differs and the two around it; `expected`: its path in the
 * repository. Frees `text`. */
static inline void golden_check(const char *expected, char *text)
{
    char path[1024];
    for (char *at = text; (at = strstr(at, "-nan")) != NULL;) { /* the sign is the compiler's */
        memmove(at, at + 1, strlen(at));
    }
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
    int index = 0;
    const cJSON *child;
    cJSON_ArrayForEach(child, value)
    {
        LS_TEXT(number, 16, "%d", index++);
        LS_TEXT(member, 400, "%s/%s", path, child->string != NULL ? child->string : number);
        golden_json(to, member, child);
    }
}

/* All that a report of the run in `folder` says: terminal, tables, summary, pages, JUnit. */
static inline char *golden_report(const char *folder)
{
    static const char *const PAGES[] = {"report.md", "report.html", "junit.xml"};
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    ck_assert_int_eq(ls_report_tables(folder), LS_OK);
    ck_assert_int_eq(ls_report_write(folder, "/nowhere"), LS_OK);
    fprintf(to, "==== terminal\n");
    ck_assert_int_eq(ls_report_terminal(folder, to), LS_OK);
    for (int i = 0; i < 3; i++) {
        LS_TEXT(path, 400, "%s/%s", folder, PAGES[i]);
        char *page = ls_text_read(path), *style = strstr(page, "<style>");
        fprintf(to, "==== %s\n", PAGES[i]);
        fprintf(to, "%.*s%s", style != NULL ? (int)(style - page) : 0, page,
                style != NULL ? strstr(page, "</style>") : page);
        free(page);
    }
    for (int i = 0; ls_tables_name(i) != NULL; i++) {
        LS_TEXT(path, 400, "%s/tables/%s.tsv", folder, ls_tables_name(i));
        char *table = ls_text_read(path);
        fprintf(to, "==== %s.tsv\n%s", ls_tables_name(i), table);
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
    return text;
}

#endif
