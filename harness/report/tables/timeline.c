#include <string.h>

#include "kernels/core/file.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "table.h"

/* ---- spans ----------------------------------------------------------------------------------- */

typedef struct trace_span {
    int rank;
    int64_t step;
    bool communication;     /* else compute */
    int64_t from_ns, to_ns; /* the machine's monotonic clock: comparable between ranks */
    char name[64];
} trace_span;

typedef struct collection {
    trace_span *span;
    int count, room, rank;
    const ls_record_rank *of;
} collection;

/* 0 for a time that is none. */
static int64_t time_of(const cJSON *entry, const char *name)
{
    int64_t ns = 0;
    (void)ls_json_whole(ls_json_number(entry, name, 0), 0, INT64_MAX, &ns);
    return ns;
}

static ls_status take_trace(void *context, const cJSON *event, int line)
{
    (void)line;
    collection *all = context;
    const cJSON *entry;
    const ls_record_step *step = ls_record_find_step(all->of, ls_json_integer(event, "step", 0));
    if (step != NULL && step->audited) {
        return LS_OK;
    }
    ls_json_each(entry, ls_json_get(event, "spans")) {
        all->span = ls_list_grow(all->span, all->count, &all->room, sizeof *all->span);
        trace_span *span = &all->span[all->count++];
        *span = (trace_span){
            .rank = all->rank,
            .step = ls_json_integer(event, "step", 0),
            .communication = strcmp(ls_json_string(entry, "lane", ""), "communication") == 0,
            .from_ns = time_of(entry, "from_ns"),
            .to_ns = time_of(entry, "to_ns"),
        };
        snprintf(span->name, sizeof span->name, "%s", ls_json_string(entry, "name", "?"));
    }
    return LS_OK;
}

static int order_spans(const void *a, const void *b)
{
    const trace_span *x = a, *y = b;
    if (x->rank != y->rank) {
        return x->rank - y->rank;
    }
    return (x->from_ns > y->from_ns) - (x->from_ns < y->from_ns);
}

/* All spans of one job, ordered by rank, then time; *spans is malloc'ed. Returns their number. */
static int read_spans(const ls_report_job *job, trace_span **spans)
{
    const ls_record *record = job->record;
    collection all = {0};
    for (all.rank = 0; all.rank < record->world; all.rank++) {
        all.of = &record->rank[all.rank];
        if (all.of->has_events &&
            ls_record_each_event(record, all.rank, "trace", take_trace, &all) != LS_OK) {
            ls_log_warn("the trace of rank %d of %s ends early", all.rank, record->id);
        }
    }
    if (all.count > 0) {
        qsort(all.span, (size_t)all.count, sizeof *all.span, order_spans);
    }
    *spans = all.span;
    return all.count;
}

static cJSON *add_event(cJSON *events, const char *kind, const char *name, const char *category,
                        int process, int thread)
{
    cJSON *event = ls_json_append_object(events);
    cJSON_AddStringToObject(event, "ph", kind);
    cJSON_AddStringToObject(event, "name", name);
    if (category != NULL) {
        cJSON_AddStringToObject(event, "cat", category);
    }
    cJSON_AddNumberToObject(event, "pid", process);
    cJSON_AddNumberToObject(event, "tid", thread);
    return event;
}

static void add_name(cJSON *events, const char *what, int process, int thread, const char *name)
{
    cJSON *event = add_event(events, "M", what, NULL, process, thread);
    cJSON_AddStringToObject(cJSON_AddObjectToObject(event, "args"), "name", name);
}

static void add_span(cJSON *events, const trace_span *span, int process, int64_t origin_ns)
{
    cJSON *event =
        add_event(events, "X", span->name, span->communication ? "communication" : "compute",
                  process, span->communication ? 2 : 1);
    cJSON_AddNumberToObject(event, "ts", (double)(span->from_ns - origin_ns) * 1e-3);
    cJSON_AddNumberToObject(event, "dur", (double)(span->to_ns - span->from_ns) * 1e-3);
    cJSON_AddNumberToObject(cJSON_AddObjectToObject(event, "args"), "step", (double)span->step);
}

static int64_t first_ns(const trace_span *spans, int count)
{
    int64_t first = INT64_MAX;
    for (int i = 0; i < count; i++) {
        first = spans[i].from_ns < first ? spans[i].from_ns : first;
    }
    return first;
}

static void add_job(cJSON *events, const ls_report_job *job, const trace_span *spans, int count,
                    int first_process)
{
    int64_t origin_ns = first_ns(spans, count);
    int named = -1;
    for (int i = 0; i < count; i++) {
        int process = first_process + spans[i].rank;
        if (spans[i].rank != named) {
            named = spans[i].rank;
            LS_TEXT(name, 160, "rank %d of %s", named, job->record->label);
            add_name(events, "process_name", process, 0, name);
            add_name(events, "thread_name", process, 1, "compute");
            add_name(events, "thread_name", process, 2, "communication");
        }
        add_span(events, &spans[i], process, origin_ns);
    }
}

ls_status ls_tables_timeline_trace(const ls_report_run *run)
{
    cJSON *root = cJSON_CreateObject();
    cJSON *events = cJSON_AddArrayToObject(root, "traceEvents");
    cJSON_AddStringToObject(root, "displayTimeUnit", "ms");
    int first_process = 1;
    ls_report_each(job, run, LS_ROLE_PHASES) {
        trace_span *spans = NULL;
        int count = read_spans(job, &spans);
        add_job(events, job, spans, count, first_process);
        first_process += job->record->world;
        free(spans);
    }
    LS_TEXT(path, PATH_MAX, "%s/trace.json", run->directory);
    return ls_json_write_and_free(path, root);
}

/* ---- one step -------------------------------------------------------------------------------- */

/* The part of a rank's communication that runs while the same rank computes, in ns. Spans of one
 * lane do not overlap each other. */
static int64_t hidden_ns(const trace_span *spans, int count, const trace_span *communication)
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

static void write_spans(FILE *table, const trace_span *spans, int count, int64_t origin_ns)
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
static int keep_last_step(trace_span *spans, int count)
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
static const ls_report_job *read_timeline(const ls_report_run *run, trace_span **spans, int *count)
{
    const ls_report_job *job = NULL;
    ls_report_each(candidate, run, LS_ROLE_PHASES) {
        if (candidate->record->state != LS_RECORD_DONE ||
            (job != NULL && candidate->spec->world < job->spec->world)) {
            continue;
        }
        trace_span *read = NULL;
        int read_count = read_spans(candidate, &read);
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
                           const trace_span *spans, int count, ls_table_head *head)
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
    trace_span *spans = NULL;
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
    write_spans(table, spans, count, first_ns(spans, count));
    free(spans);
    return ls_file_close(table, "timeline");
}
