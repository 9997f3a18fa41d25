/* Test helper: the folder of a run with its files, and jobs in memory, for programs that test the
 * report. */
#ifndef LS_TEST_REPORT_RUN_H
#define LS_TEST_REPORT_RUN_H

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/report/job.h"
#include "kernels/core/path.h"
#include "kernels/core/status.h"
#include "kernels/core/text.h"

/* Words of so many columns. */
#define X35 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
#define X36 X35 "x"
#define X72 X36 X36

static char scratch[200]; /* made and removed by the fixture */

static inline void open_scratch(void)
{
    ls_text_put(scratch, sizeof scratch, "/tmp/ls_report_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(scratch));
}

static inline void close_scratch(void)
{
    ls_path_remove_tree(scratch);
}

/* A new file below the folder, and the folders that it needs. */
static inline FILE *create(const char *name)
{
    char path[400];
    ls_text_put(path, sizeof path, "%s/%s", scratch, name);
    *strrchr(path, '/') = '\0';
    LS_ASSERT(ls_path_make_folder(path) == LS_OK);
    ls_text_put(path, sizeof path, "%s/%s", scratch, name);
    FILE *file = fopen(path, "w");
    LS_ASSERT(file != NULL);
    return file;
}

static inline void write_text(const char *name, const char *text)
{
    FILE *file = create(name);
    ck_assert(fputs(text, file) >= 0 && fclose(file) == 0);
}

static inline char *read_text(const char *name)
{
    LS_TEXT(path, 400, "%s/%s", scratch, name);
    char *text = ls_text_read(path);
    ck_assert_msg(text != NULL, "no %s", path);
    return text;
}

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
