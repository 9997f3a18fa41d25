#include "files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"

typedef struct collection {
    ls_trace_span *span;
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
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(event, "spans"))
    {
        all->span = ls_list_grow(all->span, all->count, &all->room, sizeof *all->span);
        ls_trace_span *span = &all->span[all->count++];
        *span = (ls_trace_span){
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
    const ls_trace_span *x = a, *y = b;
    if (x->rank != y->rank) {
        return x->rank - y->rank;
    }
    return (x->from_ns > y->from_ns) - (x->from_ns < y->from_ns);
}

int ls_trace_read(const ls_report_job *job, ls_trace_span **spans)
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

static void add_name(cJSON *events, const char *what, int process, int thread, const char *name)
{
    cJSON *event = cJSON_CreateObject(), *arguments = cJSON_CreateObject();
    cJSON_AddStringToObject(event, "ph", "M");
    cJSON_AddStringToObject(event, "name", what);
    cJSON_AddNumberToObject(event, "pid", process);
    cJSON_AddNumberToObject(event, "tid", thread);
    cJSON_AddStringToObject(arguments, "name", name);
    cJSON_AddItemToObject(event, "args", arguments);
    cJSON_AddItemToArray(events, event);
}

static void add_span(cJSON *events, const ls_trace_span *span, int process, int64_t origin_ns)
{
    cJSON *event = cJSON_CreateObject(), *arguments = cJSON_CreateObject();
    cJSON_AddStringToObject(event, "ph", "X");
    cJSON_AddStringToObject(event, "name", span->name);
    cJSON_AddStringToObject(event, "cat", span->communication ? "communication" : "compute");
    cJSON_AddNumberToObject(event, "pid", process);
    cJSON_AddNumberToObject(event, "tid", span->communication ? 2 : 1);
    cJSON_AddNumberToObject(event, "ts", (double)(span->from_ns - origin_ns) * 1e-3);
    cJSON_AddNumberToObject(event, "dur", (double)(span->to_ns - span->from_ns) * 1e-3);
    cJSON_AddNumberToObject(arguments, "step", (double)span->step);
    cJSON_AddItemToObject(event, "args", arguments);
    cJSON_AddItemToArray(events, event);
}

static void add_job(cJSON *events, const ls_report_job *job, const ls_trace_span *spans, int count,
                    int first_process)
{
    int64_t origin_ns = INT64_MAX;
    int named = -1;
    for (int i = 0; i < count; i++) {
        origin_ns = spans[i].from_ns < origin_ns ? spans[i].from_ns : origin_ns;
    }
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

ls_status ls_trace_write(const ls_report_run *run)
{
    cJSON *root = cJSON_CreateObject();
    cJSON *events = cJSON_AddArrayToObject(root, "traceEvents");
    cJSON_AddStringToObject(root, "displayTimeUnit", "ms");
    int first_process = 1;
    for (int j = 0; j < run->job_count; j++) {
        const ls_report_job *job = &run->job[j];
        if (job->spec->role != LS_ROLE_PHASES) {
            continue;
        }
        ls_trace_span *spans = NULL;
        int count = ls_trace_read(job, &spans);
        add_job(events, job, spans, count, first_process);
        first_process += job->record->world;
        free(spans);
    }
    LS_TEXT(path, PATH_MAX, "%s/trace.json", run->directory);
    return ls_json_write_and_free(path, root);
}
