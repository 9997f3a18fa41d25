#include "job.h"

#include <string.h>

bool ls_saved_has(const ls_event *event, const char *part)
{
    const ls_event *what = ls_event_object(event, what);
    return ls_event_count(ls_event_find(what, part)) > 0;
}

const ls_event *ls_saved_restored(const ls_observe_rank *rank, const char *what)
{
    const ls_event *restore;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        if (strcmp(ls_event_text(restore, what, ""), what) == 0) {
            return restore;
        }
    }
    return NULL;
}

int64_t ls_saved_step(const ls_event *event)
{
    return ls_event_integer(event, step, 0);
}

bool ls_saved_checkpoint_has(const ls_observe_trace *trace, int64_t step, const char *part)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_event *save;
        ls_event_each(save, ls_trace_events(&trace->rank[k], save)) {
            if (ls_saved_step(save) == step && ls_saved_has(save, part)) {
                return true;
            }
        }
    }
    return false;
}

int ls_saved_count(const ls_observe_trace *trace, const char *part)
{
    int count = 0;
    for (int k = 0; k < trace->world; k++) {
        const ls_event *save;
        ls_event_each(save, ls_trace_events(&trace->rank[k], save)) {
            count += ls_saved_has(save, part);
        }
    }
    return count;
}

bool ls_saved_concerns(const ls_observe_trace *trace, ls_observe_finding *out)
{
    if (!trace->attached) {
        ls_verdict_set(&out->verdict, LS_UNSUPPORTED,
                       "the trainer's own events do not say what its files hold");
    }
    return trace->attached;
}

const ls_event *ls_saved_last_restored(const ls_observe_rank *rank, const char *what)
{
    const ls_event *restore, *last = NULL;
    ls_event_each(restore, ls_trace_events(rank, restore)) {
        if (strcmp(ls_event_text(restore, what, ""), what) == 0) {
            last = restore;
        }
    }
    return last;
}

const ls_event *ls_saved_by(const ls_observe_trace *writer, const char *path, int *rank)
{
    const ls_event *save, *last = NULL;
    for (int k = 0; k < writer->world && last == NULL && path[0] != '\0'; k++) {
        ls_event_each(save, ls_trace_events(&writer->rank[k], save)) {
            if (strcmp(ls_event_text(save, path, ""), path) == 0) {
                last = save;
                *rank = k;
            }
        }
    }
    return last;
}

int64_t ls_saved_last(const ls_observe_rank *rank, const char *path)
{
    const ls_event *save;
    int64_t step = -1;
    ls_event_each(save, ls_trace_events(rank, save)) {
        if (strcmp(ls_event_text(save, path, ""), path) == 0) {
            step = ls_saved_step(save);
        }
    }
    return step;
}
