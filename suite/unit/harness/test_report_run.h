/* Test helper: jobs in memory, for programs that test the report; the folder of a run is that of
 * scratch.h. */
#ifndef LS_TEST_REPORT_RUN_H
#define LS_TEST_REPORT_RUN_H

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/job.h"
#include "kernels/core/text.h"
#include "suite/unit/harness/scratch.h"

/* Words of so many columns. */
#define X35 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
#define X36 X35 "x"
#define X72 X36 X36

/* A job of ranks with so many steps, the loss of step i on rank k being i + 100 k. */
static inline ls_report_job job_of(int world, const int *steps)
{
    ls_report_job job = {.record = calloc(1, sizeof(ls_record))};
    job.record->world = world;
    job.record->rank = calloc((size_t)world + 1, sizeof *job.record->rank);
    for (int k = 0; k <= world; k++) { /* nothing may read what lies behind the last */
        int count = k < world ? steps[k] : 1;
        job.record->rank[k].step_count = count;
        job.record->rank[k].step = calloc((size_t)count + 1, sizeof(ls_record_step));
        for (int i = 0; i <= count; i++) {
            job.record->rank[k].step[i].loss = k < world && i < count ? i + 100 * k : 1e9;
        }
    }
    job.spec = &job.record->spec;
    return job;
}

static inline void drop_job(ls_report_job *job)
{
    for (int k = 0; k <= job->record->world; k++) {
        free(job->record->rank[k].step);
    }
    free(job->record->rank);
    free(job->record);
}

/* Two that are not known are the same. */
static inline bool same_number(double a, double b)
{
    return (isnan(a) && isnan(b)) || a == b;
}

#endif
