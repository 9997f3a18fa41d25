/* Tables of throughput: by opt level, by bucket size, by number of ranks and nodes. */
#ifndef LS_TABLES_SPEED_H
#define LS_TABLES_SPEED_H

#include "tables.h"

ls_status ls_tables_speed_write_levels(const ls_report_run *run);
ls_status ls_tables_speed_write_buckets(const ls_report_run *run);
ls_status ls_tables_speed_write_scaling(const ls_report_run *run);

/* Speed of `a` over speed of `b` with its interval, from the steps of both. */
ls_stats_interval ls_tables_speed_ratio(const ls_report_job *a, const ls_report_job *b);
/* Whether a ratio may be called a difference: its interval leaves out 1, and it is more than
 * restarting the same job does (2 %). */
bool ls_tables_speed_resolved(ls_stats_interval ratio);
/* Jobs of the bucket sweep, smallest bucket first, that cannot be told from the fastest; *fastest
 * among them. */
int ls_tables_speed_best_buckets(const ls_report_run *run, const ls_report_job **jobs, int room,
                                 const ls_report_job **fastest);

/* The checked job on one node with the most ranks, at least 2, that has a world of one to compare
 * with; NULL. */
const ls_report_job *ls_tables_speed_largest(const ls_report_job *const *jobs, int count);
/* Appends a sentence when the world of one computed with more threads than each rank of `job`. */
void ls_tables_speed_note_threads(const ls_report_run *run, const ls_report_job *job, char *text,
                                  int bytes);

#endif
