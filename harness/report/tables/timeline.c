#include <stdlib.h>

#include "harness/report/files.h"
#include "kernels/core/file.h"
#include "kernels/core/text.h"
#include "table.h"

/* The part of a rank's communication that runs while the same rank computes, in ns. Spans of one
 * lane do not overlap each other. */
static int64_t hidden_ns(const ls_trace_span *spans, int count, const ls_trace_span *communication)
{
    int64_t hidden = 0;
    for (int i = 0; i < count; i++) {
        if (spans[i].communication || spans[i].rank != communication->rank) {
            continue;
        }
        int64_t from =
            spans[i].from_ns > communication->from_ns ? spans[i].from_ns : communication->from_ns;
        int64_t to = spans[i].to_ns < communication->to_ns ? spans[i].to_ns : communication->to_ns;
        hidden += to > from ? to - from : 0;
    }
    return hidden;
}

static void write_spans(FILE *table, const ls_trace_span *spans, int count, int64_t origin_ns)
{
    for (int i = 0; i < count; i++) {
        char name[64];
        fprintf(table, "%d\t%d\t%.6f\t%.6f\t\"%s\"\n", spans[i].rank, spans[i].communication,
                (double)(spans[i].from_ns - origin_ns) * 1e-6,
                (double)(spans[i].to_ns - origin_ns) * 1e-6,
                ls_table_plain(spans[i].name, name, sizeof name));
    }
}

/* Keeps the spans of the last step that is traced: caches and plans are warm there. */
static int keep_last_step(ls_trace_span *spans, int count)
{
    int64_t last = 0;
    int kept = 0;
    for (int i = 0; i < count; i++) {
        last = spans[i].step > last ? spans[i].step : last;
    }
    for (int i = 0; i < count; i++) {
        if (spans[i].step == last) {
            spans[kept++] = spans[i];
        }
    }
    return kept;
}

/* Of the phases jobs that have spans, one with the most ranks; of these the highest level. */
static const ls_report_job *read_timeline(const ls_report_run *run, ls_trace_span **spans,
                                          int *count)
{
    const ls_report_job *job = NULL;
    for (int j = 0; j < run->job_count; j++) {
        const ls_report_job *candidate = &run->job[j];
        if (candidate->spec->role != LS_ROLE_PHASES || candidate->record->state != LS_RECORD_DONE ||
            (job != NULL && candidate->spec->world < job->spec->world)) {
            continue;
        }
        ls_trace_span *read = NULL;
        int read_count = ls_trace_read(candidate, &read);
        if (read_count == 0) {
            continue;
        }
        free(*spans);
        *spans = read;
        *count = keep_last_step(read, read_count);
        job = candidate;
    }
    return job;
}

static void title_timeline(const ls_report_run *run, const ls_report_job *job,
                           const ls_trace_span *spans, int count, ls_table_head *head)
{
    int64_t total = 0, hidden = 0;
    for (int i = 0; i < count; i++) {
        if (spans[i].communication) {
            total += spans[i].to_ns - spans[i].from_ns;
            hidden += hidden_ns(spans, count, &spans[i]);
        }
    }
    char level[24];
    ls_text_add(head->title, sizeof head->title, "One %s step on %d %s",
                ls_report_job_level(job, level), job->spec->world, ls_report_job_ranks(job));
    if (total > 0) {
        ls_text_add(head->title, sizeof head->title, ": %.0f %% of communication is hidden",
                    100 * (double)hidden / (double)total);
    }
    ls_table_add_marks(run, &job, 1, head->title);
}

ls_status ls_tables_timeline_write(const ls_report_run *run)
{
    ls_trace_span *spans = NULL;
    int count = 0;
    const ls_report_job *job = read_timeline(run, &spans, &count);
    ls_table_head head = {0};
    if (job != NULL) {
        title_timeline(run, job, spans, count, &head);
    } else {
        ls_text_add(head.title, sizeof head.title, "Timeline: no phases job left spans");
    }
    ls_text_add(
        head.caption, sizeof head.caption,
        "Compute (upper lane of each rank) and communication (lower lane) of one step on one "
        "clock; trace.json holds all steps.");
    FILE *table =
        ls_table_begin(run, "timeline", &head,
                       "ms since the first span of the step; lane 0 compute, 1 communication",
                       "1 rank  2 lane  3 from_ms  4 to_ms  5 name");
    if (table == NULL) {
        free(spans);
        return LS_ERR_INFRA;
    }
    int64_t origin_ns = INT64_MAX;
    for (int i = 0; i < count; i++) {
        origin_ns = spans[i].from_ns < origin_ns ? spans[i].from_ns : origin_ns;
    }
    write_spans(table, spans, count, origin_ns);
    free(spans);
    return ls_file_close(table, "timeline");
}
