/* The pages of a report, and their elements. report.c writes the content of a report once, through
 * this table of functions; Markdown and HTML are its two forms. All text is plain: each form
 * escapes it. */
#ifndef LS_REPORT_PAGE_H
#define LS_REPORT_PAGE_H

#include <stdbool.h>
#include <stdio.h>

#include "job.h"

/* ---- lines.c: lines and cells that the terminal, the page and the figures share, so that all say
 * the same. */

enum { LS_REPORT_LINES_BYTES = 512, LS_REPORT_LINES_HEADLINES = 4 };

typedef struct ls_report_headline {
    const char *name;  /* CORRECT, MANNERS, SPEED, MACHINE */
    const char *value; /* "yes", "within", ... ; "not shown" where run.json has none */
    const char *why;   /* "" where there is nothing to say */
} ls_report_headline;

/* The verdicts of the opening, in their order: MANNERS only where the run has such cases, and of an
 * observed job those that it has. Returns how many. Text belongs to the run. */
int ls_report_lines_headlines(const ls_report_run *run,
                              ls_report_headline out[LS_REPORT_LINES_HEADLINES]);
/* A text on a terminal of 80 columns: breaks at spaces; later lines start with `indent` spaces. A
 * word longer than the line stays whole: a command to paste must not be cut. */
void ls_report_lines_print(FILE *to, const char *text, int indent);
const char *ls_report_lines_title(const ls_report_run *run);
const char *ls_report_lines_where(const ls_report_run *run);

/* A number with four significant digits, "-" when it is not finite. Returns `text`. */
const char *ls_report_lines_number(double value, char text[32]);
/* "123.4 [121.0, 125.1]", in parentheses when it is no result, "-" without a number. */
const char *ls_report_lines_rate(const ls_report_job *job, char text[64]);
/* How the figure was judged: "FP32 step 1", "checked", or why it is no result. */
const char *ls_report_lines_judged(const ls_report_run *run, const ls_report_job *job,
                                   char text[160]);
/* Whether its timing carries: a case on it was WEAK, or the halves of its window differ. */
bool ls_report_lines_weak(const ls_report_run *run, const ls_report_job *job);
/* Marks of a row: "oversubscribed, no graph: --cuda-graph off, weak: halves differ by 7 %"; "" for
 * none. */
const char *ls_report_lines_marks(const ls_report_run *run, const ls_report_job *job,
                                  char text[160]);

/* Whether a verdict is listed among those that did not pass: all but PASS, and but SKIP and
 * UNSUPPORTED outside the claim, which are counted only. */
bool ls_report_lines_listed(const ls_report_verdict *verdict);
/* "FAIL 0.41s evidence, value 3.1e-2 over limit 6e-3 (from ...)". */
const char *ls_report_lines_evidence(const ls_report_verdict *verdict,
                                     char text[LS_REPORT_LINES_BYTES * 2]);
/* "not ok - gradients.o2.w4 # FAIL 0.41s evidence, value 3.1e-2 over limit 6e-3 (from ...)". */
const char *ls_report_lines_verdict(const ls_report_verdict *verdict,
                                    char text[LS_REPORT_LINES_BYTES * 2]);

/* ---- the forms ------------------------------------------------------------------------------- */

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

/* gpus.c: the findings on GPUs, and a line per GPU; nothing for runs on the CPU. */
void ls_report_gpus_write(const ls_report_run *run, const ls_report_page_form *form, FILE *to);
/* Findings and GPUs on the terminal: warnings, failures and the slowest GPU. */
void ls_report_gpus_print(const ls_report_run *run, FILE *to);

/* ---- summary.c, junit.c, plots.c --------------------------------------------------------------
 */

/* The files of a report next to its pages and tables. */

/* summary.json: the run's figures for programs. `schema` 2; later versions only add members.
 * Against schema 1, roles have other names (spec.h), "judged_on" names the check instead of its
 * number, and "compare" and "exposed_vs_no_comm_ms" replace "beside" and "exposed_by_twin_ms",
 * which are written until schema 3. Written without the headline, which is decided from it. */
ls_status ls_report_summary_write(const ls_report_run *run);
/* Adds run.json's headline. */
ls_status ls_report_summary_add_headline(const ls_report_run *run);
/* Counts of verdicts: {"total","in_claim","in_claim_passed","counts":{"PASS":..},"families":[...]}.
 */
cJSON *ls_report_summary_conformance(const ls_report_run *run);

/* junit.xml: a testsuite per family, a testcase per verdict, for a CI that shows tests, and of a
 * bench a testcase per row of SPEED. Inside the claim INFRA and TIMEOUT are errors, SKIP and WAIVED
 * are skipped, all others but PASS are failures; outside it all but PASS are skipped, so that a CI
 * is as green as the run. A case's time is that of judging it and of its jobs; a job that several
 * cases read counts with the first of them, so that all times are the run's. */
ls_status ls_junit_write(const ls_report_run *run);

/* Draws every table of the run that has rows, or with `only` that table of a folder (`run` is then
 * NULL), into plots/, by plots_folder/<name>.gp as SVG and PNG, by gnuplot as child processes.
 * Without gnuplot, or where a script fails or is late, a note and LS_OK: a report without figures
 * is better than none. */
ls_status ls_report_plots_draw(const ls_report_run *run, const char *directory,
                               const char *plots_folder, const char *only);
/* Whether plots/<name>.svg is there. */
bool ls_report_plots_drawn(const ls_report_run *run, const char *name);

#endif
