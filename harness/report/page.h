/* The elements of a page. render.c writes the content of a report once, through this table of
 * functions; Markdown and HTML are its two forms. All text is plain: each form escapes it. */
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
    /* title, where it ran, the three verdicts */
    void (*open)(FILE *to, const char *title, const char *where,
                 const ls_report_headline headline[LS_REPORT_LINES_HEADLINES]);
    void (*close)(FILE *to);
    void (*heading)(FILE *to, const char *text);
    void (*paragraph)(FILE *to, const char *text);
    void (*list_open)(FILE *to);
    void (*list_item)(FILE *to, const char *text);
    void (*list_close)(FILE *to);
    void (*code)(FILE *to, const char *text); /* lines as they are */
    void (*table_open)(FILE *to, const ls_report_column *columns, int count);
    void (*table_row)(FILE *to, const ls_report_column *columns, const char *const *cells,
                      int count);
    void (*table_close)(FILE *to);
    /* plots/<name>.svg under its title with its caption; drawn false: the words alone */
    void (*figure)(FILE *to, const char *run_directory, const char *name, const char *title,
                   const char *caption, bool drawn);
    void (*file)(FILE *to, const char *path, const char *what); /* an item of a list, with a link */
} ls_report_page_form;

#endif
