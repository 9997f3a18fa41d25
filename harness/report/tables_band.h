/* Loss of every level against the band of repeated O0 runs: a job of independent runs of a small
 * network, whose ranks are told apart by the level in their start events. */
#ifndef LS_TABLES_BAND_H
#define LS_TABLES_BAND_H

#include "job.h"

enum { LS_TABLES_BAND_LEVELS = 8 };

typedef struct ls_tables_band {
    const ls_report_job *job;
    int steps, last;       /* of each run; how many at the end are averaged */
    int runs;              /* of O0 */
    ls_stats_interval end; /* their mean loss at the end, and where one more would end, 95 % */
    int level_count;       /* the others, a run each */
    int rank[LS_TABLES_BAND_LEVELS];
    const char *level[LS_TABLES_BAND_LEVELS];
    double level_end[LS_TABLES_BAND_LEVELS];
    bool inside[LS_TABLES_BAND_LEVELS];
} ls_tables_band;

/* false when the run has no such job, or fewer than three O0 runs finished. */
bool ls_tables_band_read(const ls_report_run *run, ls_tables_band *out);
/* "O1 1.119 and O2 1.096 stay inside the band of 10 O0 runs [0.77, 1.71]": text[320]. */
const char *ls_tables_band_sentence(const ls_tables_band *band, char *text);
/* tables/loss_curves.tsv from it. */
ls_status ls_tables_band_write(const ls_report_run *run, const ls_tables_band *band);

#endif
