/* What writes each table. */
#ifndef LS_TABLES_WRITERS_H
#define LS_TABLES_WRITERS_H

#include "harness/report/job.h"

/* Writes tables/<name>.tsv of the run. */
typedef ls_status ls_table_writer(const ls_report_run *run);

/* speed.c: throughput by opt level, by bucket size, by number of ranks and nodes. */
ls_table_writer ls_tables_speed_write_levels, ls_tables_speed_write_buckets,
    ls_tables_speed_write_scaling;
/* curves.c: loss, and loss scale with skipped steps, by step. */
ls_table_writer ls_tables_curves_write_loss, ls_tables_curves_write_scale;
/* timeline.c: compute and communication within one step. */
ls_table_writer ls_tables_timeline_write;
/* parts.c: gradient error by layer, time of a step by phase, memory by kind. */
ls_table_writer ls_tables_parts_write_gradients, ls_tables_parts_write_phases,
    ls_tables_parts_write_memory;
/* gpu.c: a block per GPU, a row per reading, time from the first of them. Gaps between jobs are
 * empty lines within a block, so that no line is drawn across them. */
ls_table_writer ls_tables_gpu_write;

#endif
