/* Samples of one step on all ranks, and their values in FP64. */
#ifndef LS_OBSERVE_SAMPLES_H
#define LS_OBSERVE_SAMPLES_H

#include <stdbool.h>
#include <stdint.h>

#include "trace.h"

/* Rounding in a type of storage or arithmetic. */
typedef struct ls_unit {
    double u;   /* half the distance of 1 to the next number: the relative error of one rounding */
    double eta; /* the absolute error of one operation near zero, where digits or the number go */
    double most;
} ls_unit;

/* A tensor's samples. */
typedef struct ls_values {
    int64_t count;
    double *v; /* [count], or NULL: absent */
    ls_unit unit;
} ls_values;

void ls_samples_free(ls_values *values);
/* Whether both are there, of one length and equal in every value (a NaN equals a NaN). */
bool ls_samples_equal(const ls_values *a, const ls_values *b);
bool ls_samples_zero(const ls_values *values); /* all of them */
/* Whether any is infinite or no number. */
bool ls_samples_overflow(const ls_values *values);

/* "F32", "f32", "f16", "BF16", ... : that of f32 for an unknown word. */
ls_unit ls_samples_unit(const char *type);

typedef struct ls_samples {
    const ls_observe_trace *trace;
    int64_t number;               /* of the step */
    int world, count;             /* count: ranks that have samples of it */
    const ls_observe_step **step; /* [world]; NULL: the rank did not get there */
    ls_dumpfile **file;           /* [world]; NULL: none */
} ls_samples;

/* The first step after `after` of which a rank has samples; 0: none. */
int64_t ls_samples_next(const ls_observe_trace *trace, int64_t after);
void ls_samples_open(const ls_observe_trace *trace, int64_t number, ls_samples *out,
                     ls_observe_finding *finding);
void ls_samples_close(ls_samples *samples);
/* Closes them and opens those of the next step with samples, where `more` is true; false, with
 * nothing open, where it is not or there is none. */
bool ls_samples_advance(ls_samples *samples, bool more, ls_observe_finding *finding);
/* The steps after `first` of which a rank has samples, while `more` holds; the body does not leave
 * the loop. */
#define ls_samples_each(samples, job, first, more, finding)        \
    for (ls_samples samples = {.trace = (job), .number = (first)}; \
         ls_samples_advance(&samples, more, finding);)

const ls_dumpfile_entry *ls_samples_find(const ls_dumpfile *file, const char *group,
                                         const char *name, const char *last);
/* "GROUP/NAME", or with `last` not NULL "GROUP/NAME/LAST", of a floating type. */
ls_values ls_samples_read(const ls_dumpfile *file, const char *group, const char *name,
                          const char *last);
/* Whether all ranks that have this tensor sampled the same positions of it. */
bool ls_samples_aligned(const ls_samples *samples, const char *name);

#endif
