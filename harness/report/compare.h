/* What a timed job is compared with, and what the comparison says: the same world without
 * reduction, a world of one with DDP, the same global batch on one rank, more images per rank. */
#ifndef LS_REPORT_COMPARE_H
#define LS_REPORT_COMPARE_H

#include "job.h"

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

/* The largest batch per rank at a level, computed, not run. */
typedef struct ls_report_batch {
    const ls_report_job *job; /* of the level sweep */
    double fixed_bytes; /* of one rank: all kinds but activations, and program and libraries */
    double image_bytes; /* activations of one more image, its input three times (loader) */
    double room_bytes;  /* free memory of the machine divided by its ranks */
    double largest;     /* images */
} ls_report_batch;
/* false where the job or the machine does not tell what is needed. */
bool ls_report_compare_batch(const ls_report_run *run, const ls_report_job *job,
                             ls_report_batch *out);
/* The same arithmetic against a job that was run with more images per rank: predicted and seen peak
 * of its rank, in bytes. false without such a job. */
bool ls_report_compare_batch_check(const ls_report_run *run, const ls_report_job **larger,
                                   double *predicted, double *seen);

/* Sentences on all of this, as far as the run holds it: array of strings. */
cJSON *ls_report_compare_sentences(const ls_report_run *run);
/* For summary.json: {"ddp_of_one", "largest_batch": [...], "roofline", ...}. */
cJSON *ls_report_compare_json(const ls_report_run *run);

#endif
