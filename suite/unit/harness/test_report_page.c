/* Pages of a report in Markdown and HTML: each element, and each character that would be markup or
 * is broken. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/page.h"
#include "suite/unit/golden.h"
#include "suite/unit/harness/test_report_run.h"
#include "suite/unit/run_suite.h"

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
    const ls_report_page_form *forms[] = {ls_report_markdown_form(), ls_html_form()};
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    write_text("plots/drawn.svg", "<?xml version=\"1.0\"?>\n<!DOCTYPE svg>\n<svg width=\"10\" "
                                  "height=\"5\" viewBox=\"0 0 10 5\"><g id=\"a\"/></svg>\n");
    for (int f = 0; f < 2; f++) {
        const ls_report_page_form *form = forms[f];
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
    golden_check("suite/unit/harness/expected/pages.txt", text);
}

TEST_MAIN("report_page", .timeout_s = 60, .before = open_scratch, .after = close_scratch)
