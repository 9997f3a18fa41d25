/* What ran when, on every rank: from the `trace` events of the jobs of role "phases" to spans, and
 * to trace.json, which chrome://tracing and Perfetto open (JSON array format of the Trace Event
 * Format). */
#ifndef LS_TRACE_H
#define LS_TRACE_H

#include "job.h"

typedef struct ls_trace_span {
    int rank;
    int64_t step;
    bool communication;     /* else compute */
    int64_t from_ns, to_ns; /* the machine's monotonic clock: comparable between ranks */
    char name[64];
} ls_trace_span;

/* All spans of one job, ordered by rank, then time; *spans is malloc'ed. Returns their number. */
int ls_trace_read(const ls_report_job *job, ls_trace_span **spans);
/* Writes trace.json: a process per job and rank, a thread per lane, times in microseconds from the
 * first. */
ls_status ls_trace_write(const ls_report_run *run);

#endif
