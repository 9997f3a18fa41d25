/* Comparisons of timed jobs: with each other, with the same world without reduction, with a world
 * of one with DDP, with the same global batch on one rank. */
#ifndef LS_REPORT_COMPARE_H
#define LS_REPORT_COMPARE_H

#include "job.h"

/* Speed of `a` over speed of `b` with its interval, from the steps of both. */
ls_stats_interval ls_report_compare_ratio(const ls_report_job *a, const ls_report_job *b);
/* Whether a ratio may be called a difference: its interval leaves out 1, and it is more than
 * restarting the same job makes (1 %). */
bool ls_report_compare_is_resolved(ls_stats_interval ratio);
/* The fastest of the jobs whose figure is a result; half_only: at O1 and above. NULL for none. */
const ls_report_job *ls_report_compare_fastest(const ls_report_job *const *jobs, int count,
                                               bool half_only);
/* Jobs of the bucket sweep, smallest bucket first, that differ from the fastest by nothing that is
 * resolved; *fastest among them. */
int ls_report_compare_best_buckets(const ls_report_run *run, const ls_report_job **jobs, int room,
                                   const ls_report_job **fastest);
/* The checked job on one node with the most ranks, at least 2, that has a world of one to compare
 * with; NULL. */
const ls_report_job *ls_report_compare_largest(const ls_report_job *const *jobs, int count);
/* Appends a sentence when the world of one computed with more threads than each rank of `job`. */
void ls_report_compare_note_threads(const ls_report_run *run, const ls_report_job *job, char *text,
                                    size_t bytes);

/* Step time of the job minus that of the no_comm job of the same level and world, in ms with
 * interval. Bucket size and simulated nodes need not be equal: without a reduction neither has an
 * effect. NaN without such a job. */
ls_stats_interval ls_report_compare_exposed_ms(const ls_report_run *run, const ls_report_job *job);

/* Images per second of one rank with DDP divided by those without. Both jobs may be NULL when value
 * is NaN. */
ls_stats_interval ls_report_compare_ddp(const ls_report_run *run, const ls_report_job **with,
                                        const ls_report_job **without);

/* Strong scaling of a timed job: thr(n) / (n * thr(1)), the base being one rank with the whole
 * global batch. NaN without one; *base may be NULL then. */
ls_stats_interval ls_report_compare_strong(const ls_report_run *run, const ls_report_job *job,
                                           const ls_report_job **base);
/* The efficiency that cores allow: the threads a world has together against those its ranks would
 * need to keep one rank's share; 1 where every rank has its own. */
double ls_report_compare_ceiling(const ls_report_run *run, const ls_report_job *job);

/* Sentences on all of this, as far as the run holds it: array of strings. */
cJSON *ls_report_compare_sentences(const ls_report_run *run);
/* Advice on settings, in sentences: array of strings, at least one. Every sentence is computed from
 * the run; where the run does not suffice, it says so. */
cJSON *ls_report_advice_make(const ls_report_run *run);
/* For summary.json: {"ddp_of_one", "largest_batch": [...], "roofline", ...}. */
cJSON *ls_report_compare_json(const ls_report_run *run);

#endif
