/* The pages of a report, and their elements. render.c writes the content of a report once, through
 * this table of functions; Markdown and HTML are its two forms. All text is plain: each form
 * escapes it. */
#ifndef LS_REPORT_PAGE_H
#define LS_REPORT_PAGE_H

#include <stdbool.h>
#include <stdio.h>

#include "lines.h"

typedef struct ls_report_column {
    const char *title;
    bool number; /* aligned right */
} ls_report_column;

typedef struct ls_report_page_form {
    /* title, where it ran, the verdicts */
    void (*open)(FILE *to, const char *title, const char *where, const ls_report_headline *headline,
                 int headlines);
    void (*heading)(FILE *to, const char *text);
    void (*paragraph)(FILE *to, const char *text);
    void (*list_item)(FILE *to, const char *text);
    void (*code)(FILE *to, const char *text); /* lines as they are */
    void (*table_open)(FILE *to, const ls_report_column *columns, int count);
    void (*table_row)(FILE *to, const ls_report_column *columns, const char *const *cells,
                      int count);
    /* plots/<name>.svg under its title with its caption; drawn false: the words alone */
    void (*figure)(FILE *to, const char *run_directory, const char *name, const char *title,
                   const char *caption, bool drawn);
    void (*file)(FILE *to, const char *path, const char *what); /* an item of a list, with a link */
    const char *list_open, *list_close, *table_close, *close;   /* written as they are */
} ls_report_page_form;

enum { LS_PAGE_COLUMNS_MAX = 16 };

/* A table that is being written, cell by cell. */
typedef struct ls_page_table {
    const ls_report_page_form *form;
    FILE *to;
    char titles[512];
    int columns, cells;
    ls_report_column column[LS_PAGE_COLUMNS_MAX];
    char cell[LS_PAGE_COLUMNS_MAX][LS_REPORT_LINES_BYTES * 2];
} ls_page_table;

/* "level|ranks>|...": the titles; a column whose title ends with '>' holds numbers. */
void ls_page_table_open(ls_page_table *table, const ls_report_page_form *form, FILE *to,
                        const char *titles);
/* The next cell; a row is written with its last one. */
void ls_page_cell(ls_page_table *table, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void ls_page_number(ls_page_table *table, double value); /* "-" where it is not finite */
void ls_page_table_close(ls_page_table *table);

/* Markdown (the dialect with tables), and one self-contained HTML file: style and plots inline,
 * nothing fetched. */
const ls_report_page_form *ls_report_markdown_form(void);
const ls_report_page_form *ls_html_form(void);
/* Escapes for HTML and XML: writes text so that no markup, quote or character forbidden in XML 1.0
 * is left; bytes that are not UTF-8 become U+FFFD. Good inside elements and quoted attributes. */
void ls_html_escape(FILE *to, const char *text);

/* The content of a report, in order, written through a form of page. */
void ls_report_render(const ls_report_run *run, const ls_report_page_form *form, FILE *to);
/* Its findings on GPUs, and a line per GPU; nothing for runs on the CPU. */
void ls_report_machine_write(const ls_report_run *run, const ls_report_page_form *form, FILE *to);
/* passes.c: a step of one GPU by kind of pass, and the passes with the most time to gain; nothing
 * where run.json has no "layers". */
void ls_report_passes_write(const ls_report_run *run, const ls_report_page_form *form, FILE *to);
/* Findings and GPUs on the terminal: warnings, failures and the slowest GPU. */
void ls_report_machine_print(const ls_report_run *run, FILE *to);

#endif
