/* The tables of a run: tables/<name>.tsv. Each starts with '#' lines (`# title:` what is seen, `#
 * caption:` one sentence, `# units:`, `# columns:`, and where a file holds several curves `#
 * blocks:` their quoted names), then rows that gnuplot reads as they are: numbers, NaN for unknown,
 * and quoted labels in the last columns. Blocks are divided by two empty lines. */
#ifndef LS_TABLES_H
#define LS_TABLES_H

#include <stdio.h>

#include "job.h"

enum { LS_TABLES_TITLE_BYTES = 480, LS_TABLES_BLOCKS_BYTES = 1024 };

/* Writes all of them. A table without rows is written too: its title says why there are none. */
ls_status ls_tables_write(const ls_report_run *run);

/* Fewest rows a figure of this table is worth drawing from: a sweep of one point shows nothing. */
int ls_tables_rows_min(const char *name);

typedef struct ls_tables_head {
    char title[LS_TABLES_TITLE_BYTES], caption[LS_TABLES_TITLE_BYTES];
    char blocks[LS_TABLES_BLOCKS_BYTES]; /* "" for one block */
    int rows;
} ls_tables_head;

/* Reads back the first lines and counts the rows. */
ls_status ls_tables_read_head(const char *run_directory, const char *name, ls_tables_head *out);

/* The names of all tables, in the order of a report, NULL at the end. */
const char *const *ls_tables_names(void);

/* For the files that write tables. `blocks` may be NULL. NULL when the file cannot be created
 * (logged). */
FILE *ls_tables_begin(const ls_report_run *run, const char *name, const ls_tables_head *head,
                      const char *units, const char *columns);
ls_status ls_tables_end(FILE *table, const char *name);
/* A copy without the characters that would end a quoted string or a line. */
const char *ls_tables_plain(const char *from, char *to, int bytes);
/* What a reader must know before comparing figures: " (2 of 2 nodes simulated; 8 ranks share 2
 * cores)".
 * "" when nothing. `jobs` are those drawn, `count` of them. */
void ls_tables_marks(const ls_report_run *run, const ls_report_job *const *jobs, int count,
                     char *text, int bytes);
#endif
