#include "page.h"

#include <string.h>

/* Backslash before what Markdown would read as markup; '<' and '&' as entities, since Markdown
 * passes HTML. */
static void put_text(FILE *to, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '<') {
            fputs("&lt;", to);
        } else if (*text == '&') {
            fputs("&amp;", to);
        } else if ((unsigned char)*text < 0x20 || *text == 0x7f) {
            fputc(' ', to);
        } else {
            if (strchr("\\`*_|[]#", *text) != NULL) {
                fputc('\\', to);
            }
            fputc(*text, to);
        }
    }
}

/* Inside a fence only a line of backquotes could end it, so the fence is longer than any of them.
 */
static void put_code(FILE *to, const char *text)
{
    int longest = 2, run = 0;
    for (const char *at = text; *at != '\0'; at++) {
        run = *at == '`' ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    for (int i = 0; i <= longest; i++) {
        fputc('`', to);
    }
    fprintf(to, "\n%s\n", text);
    for (int i = 0; i <= longest; i++) {
        fputc('`', to);
    }
    fputs("\n\n", to);
}

static void put_open(FILE *to, const char *title, const char *where,
                     const ls_report_headline *headline, int headlines)
{
    fputs("# ", to);
    put_text(to, title);
    fputs("\n\n", to);
    put_text(to, where);
    fputs("\n\n```\n", to);
    for (int i = 0; i < headlines; i++) {
        char line[LS_REPORT_LINES_BYTES];
        snprintf(line, sizeof line, headline[i].why[0] != '\0' ? "%-8s %-9s (%s)" : "%-8s %-9s%s",
                 headline[i].name, headline[i].value, headline[i].why);
        for (char *at = line; *at != '\0'; at++) { /* nothing in it may end the fence */
            *at = *at == '`' ? '\'' : (unsigned char)*at < 0x20 ? ' ' : *at;
        }
        fprintf(to, "%s\n", line);
    }
    fputs("```\n\n", to);
}

static void put_heading(FILE *to, const char *text)
{
    fputs("## ", to);
    put_text(to, text);
    fputs("\n\n", to);
}

static void put_paragraph(FILE *to, const char *text)
{
    put_text(to, text);
    fputs("\n\n", to);
}

static void put_list_item(FILE *to, const char *text)
{
    fputs("* ", to);
    put_text(to, text);
    fputc('\n', to);
}

static void put_table_open(FILE *to, const ls_report_column *columns, int count)
{
    for (int i = 0; i < count; i++) {
        fputs("| ", to);
        put_text(to, columns[i].title);
        fputc(' ', to);
    }
    fputs("|\n", to);
    for (int i = 0; i < count; i++) {
        fputs(columns[i].number ? "|---:" : "|:---", to);
    }
    fputs("|\n", to);
}

static void put_table_row(FILE *to, const ls_report_column *columns, const char *const *cells,
                          int count)
{
    (void)columns;
    for (int i = 0; i < count; i++) {
        fputs("| ", to);
        put_text(to, cells[i]);
        fputc(' ', to);
    }
    fputs("|\n", to);
}

static void put_figure(FILE *to, const char *run_directory, const char *name, const char *title,
                       const char *caption, bool drawn)
{
    (void)run_directory;
    fputs("**", to);
    put_text(to, title);
    fputs("**\n\n", to);
    if (drawn) {
        fputs("![", to);
        put_text(to, title);
        fprintf(to, "](plots/%s.svg)\n\n", name);
    }
    put_text(to, caption);
    fprintf(to, " Table: [tables/%s.tsv](tables/%s.tsv).\n\n", name, name);
}

static void put_file(FILE *to, const char *path, const char *what)
{
    fprintf(to, "* [%s](%s): ", path, path);
    put_text(to, what);
    fputc('\n', to);
}

const ls_report_page_form *ls_report_markdown_form(void)
{
    static const ls_report_page_form FORM = {
        .open = put_open,
        .close = "",
        .heading = put_heading,
        .paragraph = put_paragraph,
        .list_open = "",
        .list_item = put_list_item,
        .list_close = "\n",
        .code = put_code,
        .table_open = put_table_open,
        .table_row = put_table_row,
        .table_close = "\n",
        .figure = put_figure,
        .file = put_file,
    };
    return &FORM;
}
