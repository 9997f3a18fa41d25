/* Training losses: of every level against the band of repeated O0 runs, a job of independent runs
 * of a small network; and of the level sweep's own jobs. */
#ifndef LS_REPORT_LOSS_H
#define LS_REPORT_LOSS_H

#include "job.h"

enum { LS_REPORT_BAND_LEVELS = 8, LS_REPORT_BAND_RUNS = 64, LS_REPORT_REPEATS = 32 };

typedef struct ls_report_band {
    const ls_report_job *job; /* its ranks are the runs, each with the level of its start event */
    int steps, last;          /* of each run; how many at the end are averaged */
    int runs;                 /* of O0 */
    ls_stats_interval end;    /* their mean loss at the end, and where one more would end, 95 % */
    int level_count;          /* the others, a run each */
    int rank[LS_REPORT_BAND_LEVELS];
    const char *level[LS_REPORT_BAND_LEVELS];
    double level_end[LS_REPORT_BAND_LEVELS];
    bool inside[LS_REPORT_BAND_LEVELS];
} ls_report_band;

/* false when the run has no such job, or fewer than three O0 runs finished. */
bool ls_report_loss_read_band(const ls_report_run *run, ls_report_band *out);
/* "O1 1.119 and O2 1.096 stay inside the band of 10 O0 runs [0.77, 1.71]": text[320]. */
const char *ls_report_loss_sentence(const ls_report_band *band, char *text);
/* Mean loss of one run's steps with indices from `from` to before `to`. */
double ls_report_loss_mean(const ls_record_rank *rank, int from, int to);
/* Where one more value of the same distribution would be, 95 %; not below 0. */
ls_stats_interval ls_report_loss_predict(const double *value, int count);

/* Steps that every rank of the job has. */
int ls_report_loss_steps(const ls_report_job *job);
/* Mean loss over all ranks at step index `index`; NaN when a rank lacks it. */
double ls_report_loss_at(const ls_report_job *job, int index);
/* How many of `steps` steps the end of a curve is averaged over: a tenth, at least 5 (or all). */
int ls_report_loss_last(int steps);
/* Mean loss of the last steps: "where it ended". NaN without steps. */
double ls_report_loss_end(const ls_report_job *job);
/* O0 jobs that repeat `reference` but for seed, bucket size or place, itself included. Returns how
 * many; jobs[LS_REPORT_REPEATS]. */
int ls_report_loss_repeats(const ls_report_run *run, const ls_report_job *reference,
                           const ls_report_job **jobs);
/* The least and the greatest end of the repeats of the level sweep's O0 job. Returns how many. */
int ls_report_loss_range(const ls_report_run *run, double *low, double *high);

#endif
