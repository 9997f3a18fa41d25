/* A strict reader of junit.xml: what an XML 1.0 parser accepts and the schema of Jenkins' xUnit
 * plugin (junit-10.xsd) allows, with counts and times that are those of the elements. */
#ifndef LS_UNIT_JUNIT_READ_H
#define LS_UNIT_JUNIT_READ_H

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct junit_counts {
    int tests, failures, errors, skipped;
    double seconds;
} junit_counts;

static const struct junit_element {
    const char *name, *parent, *required, *allowed; /* attributes, between blanks */
    bool text;
} junit_elements[] = {
    {"testsuites", "", " ", " name tests failures errors time ", false},
    {"testsuite", "testsuites", " name tests failures errors ",
     " name tests failures errors skipped time timestamp ", false},
    {"properties", "testsuite", " ", " ", false},
    {"property", "properties", " name value ", " name value ", false},
    {"testcase", "testsuite", " name ", " name classname time ", false},
    {"failure", "testcase", " ", " type message ", true},
    {"error", "testcase", " ", " type message ", true},
    {"skipped", "testcase", " ", " message type ", true},
    {"system-out", "testcase", " ", " ", true},
};

/* Text between tags, or of an attribute: no markup, no control characters, known entities. */
static void junit_check_text(const char *text, size_t bytes, bool blank)
{
    static const char *const entity[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        bool known = c != '&';
        for (size_t e = 0; e < sizeof entity / sizeof *entity; e++) {
            known = known || strncmp(text + i, entity[e], strlen(entity[e])) == 0;
        }
        bool space = c == ' ' || c == '\n' || c == '\t' || c == '\r';
        ck_assert_msg(known && c != '<' && (c >= 0x20 || space) && (!blank || space),
                      "character %u in '%.*s'", c, (int)bytes, text);
    }
}

/* The number of ` name="..."` in a tag, or -1. */
static double junit_number(const char *tag, const char *end, const char *name)
{
    char key[32];
    snprintf(key, sizeof key, " %s=\"", name);
    const char *at = strstr(tag, key);
    return at == NULL || at > end ? -1 : strtod(at + strlen(key), NULL);
}

static void junit_check_attributes(const char *tag, const char *end,
                                   const struct junit_element *element)
{
    char seen[120] = " ", name[32];
    const char *at = tag + strlen(element->name);
    while (at < end && *at != '/') {
        int length = 0;
        ck_assert_msg(sscanf(at, " %31[a-z]=%n", name, &length) == 1 && length > 0 &&
                          at[length] == '"',
                      "no attribute: %.40s", at);
        const char *value = at + length + 1, *close = strchr(value, '"');
        ck_assert(close != NULL && close < end);
        junit_check_text(value, (size_t)(close - value), false);
        strcat(strcat(seen, name), " ");
        char word[40];
        snprintf(word, sizeof word, " %s ", name);
        ck_assert_msg(strstr(element->allowed, word) != NULL, "%s of %s", name, element->name);
        at = close + 1;
    }
    char required[120], *rest = NULL;
    snprintf(required, sizeof required, "%s", element->required);
    for (char *word = strtok_r(required, " ", &rest); word != NULL;
         word = strtok_r(NULL, " ", &rest)) {
        snprintf(name, sizeof name, " %s ", word);
        ck_assert_msg(strstr(seen, name) != NULL, "%s lacks %s", element->name, word);
    }
}

static void junit_check_counts(const char *tag, const char *end, const junit_counts *counts)
{
    ck_assert_int_eq((int)junit_number(tag, end, "tests"), counts->tests);
    ck_assert_int_eq((int)junit_number(tag, end, "failures"), counts->failures);
    ck_assert_int_eq((int)junit_number(tag, end, "errors"), counts->errors);
    double skipped = junit_number(tag, end, "skipped");
    ck_assert(skipped < 0 || (int)skipped == counts->skipped);
    /* each case is rounded to a thousandth of a second */
    ck_assert_double_eq_tol(junit_number(tag, end, "time"), counts->seconds,
                            5e-4 * (counts->tests + 1) + 1e-9);
}

/* Fails the test for a text that is not one. Returns the counts of all suites. */
static junit_counts junit_read(const char *text)
{
    static const char head[] = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
    enum { DEEPEST = 5 };
    const struct junit_element *open[DEEPEST] = {NULL};
    const char *tag[DEEPEST] = {NULL}, *tag_end[DEEPEST] = {NULL};
    junit_counts all = {0}, suite = {0};
    int depth = 0, outcomes = 0;
    ck_assert_int_eq(strncmp(text, head, strlen(head)), 0);
    for (const char *at = text + strlen(head); *at != '\0';) {
        size_t bytes = strcspn(at, "<");
        junit_check_text(at, bytes, depth == 0 || !open[depth - 1]->text);
        at += bytes;
        if (*at == '\0') {
            break;
        }
        const char *end = strchr(at, '>');
        ck_assert_ptr_nonnull(end);
        if (at[1] == '/') {
            ck_assert_int_gt(depth, 0);
            const struct junit_element *last = open[--depth];
            ck_assert(strncmp(at + 2, last->name, (size_t)(end - at - 2)) == 0 &&
                      strlen(last->name) == (size_t)(end - at - 2));
            if (strcmp(last->name, "testsuite") == 0) {
                junit_check_counts(tag[depth], tag_end[depth], &suite);
                all.tests += suite.tests, all.failures += suite.failures;
                all.errors += suite.errors, all.skipped += suite.skipped;
                all.seconds += suite.seconds;
                suite = (junit_counts){0};
            } else if (depth == 0) {
                junit_check_counts(tag[0], tag_end[0], &all);
            }
            at = end + 1;
            continue;
        }
        const struct junit_element *element = NULL;
        size_t length = strcspn(at + 1, " />");
        for (size_t e = 0; e < sizeof junit_elements / sizeof *junit_elements; e++) {
            bool same = strlen(junit_elements[e].name) == length &&
                        strncmp(at + 1, junit_elements[e].name, length) == 0;
            element = same ? &junit_elements[e] : element;
        }
        ck_assert_msg(element != NULL, "unknown: %.40s", at);
        ck_assert_str_eq(element->parent, depth == 0 ? "" : open[depth - 1]->name);
        junit_check_attributes(at + 1, end, element);
        if (strcmp(element->name, "testcase") == 0) {
            outcomes = 0;
            suite.tests++;
            suite.seconds += junit_number(at, end, "time");
        }
        int *count = strcmp(element->name, "failure") == 0   ? &suite.failures
                     : strcmp(element->name, "error") == 0   ? &suite.errors
                     : strcmp(element->name, "skipped") == 0 ? &suite.skipped
                                                             : NULL;
        if (count != NULL) {
            ck_assert_int_eq(outcomes++, 0); /* a case has one */
            ++*count;
        }
        if (end[-1] != '/') {
            ck_assert_int_lt(depth, DEEPEST);
            open[depth] = element;
            tag[depth] = at;
            tag_end[depth++] = end;
        }
        at = end + 1;
    }
    ck_assert_int_eq(depth, 0);
    return all;
}

#endif
