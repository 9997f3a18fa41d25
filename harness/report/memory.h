/* The memory of a rank by kind, from its events, and the largest batch that follows from it. */
#ifndef LS_REPORT_MEMORY_H
#define LS_REPORT_MEMORY_H

#include "job.h"

typedef enum ls_report_kind {
    LS_REPORT_PARAMETERS,
    LS_REPORT_MASTERS,
    LS_REPORT_MOMENTS,
    LS_REPORT_GRADIENTS,
    LS_REPORT_ACTIVATIONS,
    LS_REPORT_WORKSPACE, /* packed weights, scratch, running statistics, accumulators */
    LS_REPORT_KINDS,
} ls_report_kind;

/* Bytes of each kind, NaN where not reported: the trainer's own table where its start event has
 * one, else as far as they follow from its sizes and options. Returns their sum. */
double ls_report_memory(const ls_record_rank *rank, double kind[LS_REPORT_KINDS]);

/* The largest batch per rank at a level, computed, not run. */
typedef struct ls_report_batch {
    const ls_report_job *job; /* of the level sweep */
    double fixed_bytes; /* of one rank: all kinds but activations, and program and libraries */
    double image_bytes; /* activations of one more image, its input three times (loader) */
    double room_bytes;  /* free memory of the machine divided by its ranks */
    double largest;     /* images */
} ls_report_batch;
/* false where the job or the machine does not report the figures it needs. */
bool ls_report_memory_largest_batch(const ls_report_run *run, const ls_report_job *job,
                                    ls_report_batch *out);
/* The same arithmetic against a job that was run with more images per rank: predicted and measured
 * peak of its rank, in bytes. false without such a job. */
bool ls_report_memory_check(const ls_report_run *run, const ls_report_job **larger,
                            double *predicted, double *seen);

#endif
