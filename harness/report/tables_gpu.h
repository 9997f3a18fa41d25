/* tables/gpu.tsv: the GPUs while jobs ran. */
#ifndef LS_TABLES_GPU_H
#define LS_TABLES_GPU_H

#include "tables.h"

/* A block per GPU, a row per reading, time from the first of them. Gaps between jobs are empty
 * lines within a block, so that no line is drawn across them. */
ls_status ls_tables_gpu_write(const ls_report_run *run);

#endif
