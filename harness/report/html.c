#include "page.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/core/text.h"

/* Width of the UTF-8 sequence at `text`, 0 when it is none (overlong, surrogate, cut short, too
 * large). */
static int sequence_bytes(const unsigned char *text)
{
    int bytes = text[0] < 0x80                       ? 1
                : text[0] >= 0xc2 && text[0] < 0xe0  ? 2
                : text[0] >= 0xe0 && text[0] < 0xf0  ? 3
                : text[0] >= 0xf0 && text[0] <= 0xf4 ? 4
                                                     : 0;
    for (int i = 1; i < bytes; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (text[0] == 0xe0 && text[1] < 0xa0) || (text[0] == 0xf0 && text[1] < 0x90);
    bool surrogate = text[0] == 0xed && text[1] >= 0xa0;
    bool too_large = text[0] == 0xf4 && text[1] >= 0x90;
    bool forbidden = text[0] == 0xef && text[1] == 0xbf && text[2] >= 0xbe; /* U+FFFE, U+FFFF */
    return bytes > 1 && (overlong || surrogate || too_large || forbidden) ? 0 : bytes;
}

void ls_html_escape(FILE *to, const char *text)
{
    while (*text != '\0') {
        int bytes = sequence_bytes((const unsigned char *)text);
        unsigned char c = (unsigned char)*text;
        if (bytes == 0 || (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
            fputs("\xef\xbf\xbd", to);
            text += 1;
            continue;
        }
        switch (c) {
        case '<':
            fputs("&lt;", to);
            break;
        case '>':
            fputs("&gt;", to);
            break;
        case '&':
            fputs("&amp;", to);
            break;
        case '"':
            fputs("&quot;", to);
            break;
        case '\'':
            fputs("&#39;", to);
            break;
        default:
            fwrite(text, 1, (size_t)bytes, to);
        }
        text += bytes;
    }
}

static const char STYLE[] =
    "body{font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu "
    "Sans',sans-serif;color:#1c2024;"
    "background:#fff;max-width:72rem;margin:0 auto;padding:1.2rem}\n"
    "h1{font-size:1.6rem;line-height:1.25;margin:.4rem 0}\n"
    "h2{font-size:1.2rem;margin:2.2rem 0 .6rem;padding-top:.6rem;border-top:1px solid #d5dae0}\n"
    ".where{color:#49525c;margin:.2rem 0 1rem}\n"
    ".verdicts{border:1px solid #d5dae0;border-left:6px solid "
    "#7a8590;border-radius:4px;padding:.6rem .9rem;"
    "white-space:pre-wrap;font:.95rem/1.7 ui-monospace,'DejaVu Sans "
    "Mono',Menlo,monospace;margin:0}\n"
    ".verdicts.good{border-left-color:#1a7f4b}.verdicts.bad{border-left-color:#b3261e}\n"
    ".v-good{color:#1a7f4b}.v-bad{color:#b3261e}.v-open{color:#6b5900}\n"
    ".scroll{overflow-x:auto}\n"
    "table{border-collapse:collapse;font-size:.88rem;margin:.3rem 0 "
    ".8rem;font-variant-numeric:tabular-nums}\n"
    "th{text-align:left;font-weight:600;border-bottom:2px solid "
    "#7a8590;vertical-align:bottom;line-height:1.25}\n"
    "th,td{padding:.28rem .8rem .28rem 0}td{white-space:nowrap}\n"
    "tr.v-bad td{color:#b3261e}\n"
    "td{border-bottom:1px solid #e6e9ed}\n"
    "td.wide{white-space:normal;min-width:14rem;overflow-wrap:anywhere}\n"
    ".n{text-align:right}\n"
    "pre.code{background:#f4f6f8;border-radius:4px;padding:.7rem .9rem;white-space:pre-wrap;"
    "overflow-wrap:anywhere;font:.85rem/1.5 ui-monospace,'DejaVu Sans "
    "Mono',Menlo,monospace;margin:.4rem 0 1rem}\n"
    "figure{margin:1.6rem 0;break-inside:avoid}\n"
    "figure{overflow-x:auto}figure svg{min-width:35rem}\n" /* on a telephone they scroll */
    "figure h3{font-size:1rem;margin:0 0 .3rem}\n"
    "figure svg{width:100%;height:auto;max-width:760px;display:block}\n"
    "figcaption{color:#49525c;font-size:.9rem;max-width:46rem}\n"
    "li{margin:.3rem 0}\n"
    "@page{size:A4;margin:14mm 12mm}\n"
    "@media print{body{max-width:none;padding:0;font-size:10pt}a{color:inherit;"
    "text-decoration:none}.scroll,figure{overflow:visible}table{font-size:7.6pt}"
    "th,td{padding:.2rem .55rem .2rem 0;white-space:normal}td:first-child,td.n{white-space:nowrap}"
    "h2,figure h3,thead{break-after:avoid}tr,figure,li,pre{break-inside:avoid}"
    "figure svg{min-width:0;max-width:165mm}td.wide{min-width:0}}\n";

/* Colour only repeats the word. */
static const char *class_of(const char *value)
{
    static const char *const GOOD[] = {"yes", "within", "ready"}, *const BAD[] = {"no", "below",
                                                                                  "not ready"};
    int passed, all;
    if (sscanf(value, "%9d of %9d", &passed, &all) == 2) {
        return passed == all ? "v-good" : "v-bad";
    }
    for (int i = 0; i < 3; i++) {
        if (strcmp(value, GOOD[i]) == 0) {
            return "v-good";
        }
        if (strcmp(value, BAD[i]) == 0) {
            return "v-bad";
        }
    }
    return "v-open";
}

static void put_open(FILE *to, const char *title, const char *where,
                     const ls_report_headline *headline, int headlines)
{
    const char *first = class_of(headline[0].value);
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
          to);
    ls_html_escape(to, title);
    fprintf(to, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<h1>", STYLE);
    ls_html_escape(to, title);
    fputs("</h1>\n<p class=\"where\">", to);
    ls_html_escape(to, where);
    fprintf(to, "</p>\n<pre class=\"verdicts %s\">\n",
            strcmp(first, "v-good") == 0  ? "good"
            : strcmp(first, "v-bad") == 0 ? "bad"
                                          : "open");
    for (int i = 0; i < headlines; i++) {
        fprintf(to, "%-8s <b class=\"%s\">", headline[i].name, class_of(headline[i].value));
        ls_html_escape(to, headline[i].value);
        fprintf(to, "</b>%*s",
                10 - (int)strlen(headline[i].value) > 1 ? 10 - (int)strlen(headline[i].value) : 1,
                "");
        if (headline[i].why[0] != '\0') {
            fputc('(', to);
            ls_html_escape(to, headline[i].why);
            fputc(')', to);
        }
        fputc('\n', to);
    }
    fputs("</pre>\n", to);
}

static void put_element(FILE *to, const char *name, const char *text)
{
    fprintf(to, "<%s>", name);
    ls_html_escape(to, text);
    fprintf(to, "</%s>\n", name);
}

static void put_heading(FILE *to, const char *text)
{
    put_element(to, "h2", text);
}

static void put_paragraph(FILE *to, const char *text)
{
    put_element(to, "p", text);
}

static void put_list_item(FILE *to, const char *text)
{
    put_element(to, "li", text);
}

static void put_code(FILE *to, const char *text)
{
    fputs("<pre class=\"code\">", to);
    ls_html_escape(to, text);
    fputs("</pre>\n", to);
}

static void put_table_open(FILE *to, const ls_report_column *columns, int count)
{
    fputs("<div class=\"scroll\"><table>\n<thead><tr>", to);
    for (int i = 0; i < count; i++) {
        fputs(columns[i].number ? "<th class=\"n\">" : "<th>", to);
        ls_html_escape(to, columns[i].title);
        fputs("</th>", to);
    }
    fputs("</tr></thead>\n<tbody>\n", to);
}

static void put_table_row(FILE *to, const ls_report_column *columns, const char *const *cells,
                          int count)
{
    fputs("<tr>", to);
    for (int i = 0; i < count; i++) {
        bool wide = strlen(cells[i]) > 32;
        fputs(columns[i].number ? "<td class=\"n\">" : wide ? "<td class=\"wide\">" : "<td>", to);
        ls_html_escape(to, cells[i]);
        fputs("</td>", to);
    }
    fputs("</tr>\n", to);
}

/* Writes SVG with `name` before every id and every reference to one: gnuplot uses the
 * same ids in all its figures, and a page holds several. */
static void put_svg_text(FILE *to, const char *text, const char *name)
{
    static const char *const BEFORE_ID[] = {" id='", " id=\"", "href='#", "href=\"#", "url(#"};
    for (; *text != '\0'; text++) {
        fputc(*text, to);
        for (size_t i = 0; i < sizeof BEFORE_ID / sizeof *BEFORE_ID; i++) {
            size_t length = strlen(BEFORE_ID[i]);
            if (strncmp(text, BEFORE_ID[i], length) == 0) {
                fprintf(to, "%s%s-", BEFORE_ID[i] + 1, name);
                text += length - 1;
                break;
            }
        }
    }
}

/* Copies the <svg> element: what stands before it (XML declaration, document type) has no place in
 * HTML. */
static void put_svg(FILE *to, const char *run_directory, const char *name)
{
    LS_TEXT(path, PATH_MAX, "%s/plots/%s.svg", run_directory, name);
    char *svg = ls_text_read(path), *start = svg == NULL ? NULL : strstr(svg, "<svg");
    if (start != NULL) {
        put_svg_text(to, start, name);
    }
    free(svg);
}

static void put_figure(FILE *to, const char *run_directory, const char *name, const char *title,
                       const char *caption, bool drawn)
{
    fputs("<figure>\n", to);
    if (drawn) {
        put_svg(to, run_directory, name);
    } else {
        put_element(to, "h3", title);
    }
    fputs("<figcaption>", to);
    ls_html_escape(to, caption);
    fprintf(to, " Table: <a href=\"tables/%s.tsv\">tables/%s.tsv</a></figcaption>\n</figure>\n",
            name, name);
}

static void put_file(FILE *to, const char *path, const char *what)
{
    fputs("<li><a href=\"", to);
    ls_html_escape(to, path);
    fputs("\">", to);
    ls_html_escape(to, path);
    fputs("</a>: ", to);
    ls_html_escape(to, what);
    fputs("</li>\n", to);
}

const ls_report_page_form *ls_html_form(void)
{
    static const ls_report_page_form FORM = {
        .open = put_open,
        .close = "</body>\n</html>\n",
        .heading = put_heading,
        .paragraph = put_paragraph,
        .list_open = "<ul>\n",
        .list_item = put_list_item,
        .list_close = "</ul>\n",
        .code = put_code,
        .table_open = put_table_open,
        .table_row = put_table_row,
        .table_close = "</tbody></table></div>\n",
        .figure = put_figure,
        .file = put_file,
    };
    return &FORM;
}
