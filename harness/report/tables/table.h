/* One table of a run: tables/<name>.tsv. It starts with '#' lines (`# title:`, `# caption:` one
 * sentence, `# units:`, `# columns:`, and where a file holds several curves `# blocks:` their
 * quoted names), then rows that gnuplot reads as they are: numbers, NaN for unknown, and quoted
 * labels in the last columns. Blocks are divided by two empty lines. */
#ifndef LS_TABLE_H
#define LS_TABLE_H

#include <stdio.h>

#include "harness/report/job.h"

enum { LS_TABLE_TITLE_BYTES = 480, LS_TABLE_BLOCKS_BYTES = 1024 };

typedef struct ls_table_head {
    char title[LS_TABLE_TITLE_BYTES], caption[LS_TABLE_TITLE_BYTES];
    char blocks[LS_TABLE_BLOCKS_BYTES]; /* "" for one block */
    int rows;                           /* as read back */
} ls_table_head;

/* NULL when the file cannot be created (logged). */
FILE *ls_table_begin(const ls_report_run *run, const char *name, const ls_table_head *head,
                     const char *units, const char *columns);
/* Reads back the first lines and counts the rows. */
ls_status ls_table_read_head(const char *run_directory, const char *name, ls_table_head *out);

/* A copy without the characters that would end a quoted string or a line. */
const char *ls_table_plain(const char *from, char *to, int bytes);
/* Appends to a title what limits the comparison of the `count` jobs drawn: " (2 nodes are
 * simulated; 8 ranks share 2 cores)"; nothing where nothing does. */
void ls_table_add_marks(const ls_report_run *run, const ls_report_job *const *jobs, int count,
                        char *title);

/* ---- all tables ------------------------------------------------------------------------------ */

/* Writes all of them. A table without rows is written too: its title says why there are none. */
ls_status ls_tables_write(const ls_report_run *run);

/* The name of table `index`, in the order of a report; NULL after the last. */
const char *ls_tables_name(int index);
/* Reads back the head of a written table. Whether it holds the rows that a figure needs: a sweep of
 * one point shows nothing. */
bool ls_tables_is_drawn(const ls_report_run *run, int index, ls_table_head *head);

/* Writes tables/<name>.tsv of the run. */
typedef ls_status ls_table_writer(const ls_report_run *run);

/* speed.c: throughput by opt level, by bucket size, by number of ranks and nodes. */
ls_table_writer ls_tables_speed_write_levels, ls_tables_speed_write_buckets,
    ls_tables_speed_write_scaling;
/* ways.c: DDP against other ways to use the same cores. */
ls_table_writer ls_tables_ways_write;
/* curves.c: loss, and loss scale with skipped steps, by step. */
ls_table_writer ls_tables_curves_write_loss, ls_tables_curves_write_scale;
/* timeline.c: compute and communication within one step. */
ls_table_writer ls_tables_timeline_write;
/* trace.json: the `trace` events of the jobs of role phases, which chrome://tracing and Perfetto
 * open (JSON array format of the Trace Event Format): a process per job and rank, a thread per
 * lane, times in microseconds from the first. */
ls_status ls_tables_timeline_trace(const ls_report_run *run);
/* parts.c: gradient error by layer, time of a step by phase, memory by kind. */
ls_table_writer ls_tables_parts_write_gradients, ls_tables_parts_write_phases,
    ls_tables_parts_write_memory;
/* gpu.c: a block per GPU, a row per reading, time from the first of them. Gaps between jobs are
 * empty lines within a block, so that no line is drawn across them. */
ls_table_writer ls_tables_gpu_write;

#endif
