#include "samples.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "kernels/core/list.h"
#include "kernels/core/text.h"
#include <math.h>

ls_unit ls_samples_unit(const char *type)
{
    /* eta of f32 and bf16 is the smallest normal number: processors may flush what is below. */
    static const struct {
        const char *type;
        ls_unit unit;
    } known[] = {{"f32", {0x1p-24, 0x1p-126, 0x1.fffffep127}},
                 {"f16", {0x1p-11, 0x1p-25, 65504}},
                 {"bf16", {0x1p-8, 0x1p-126, 0x1.fep127}},
                 {"f64", {0x1p-53, 0x1p-1022, 0x1.fffffffffffffp1023}}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcasecmp(type, known[i].type) == 0) {
            return known[i].unit;
        }
    }
    return known[0].unit;
}

int64_t ls_samples_next(const ls_observe_trace *trace, int64_t after)
{
    int64_t next = 0;
    for (int k = 0; k < trace->world; k++) {
        for (int i = 0; i < trace->rank[k].step_count; i++) {
            const ls_observe_step *step = &trace->rank[k].step[i];
            if (step->detail && step->step->step > after) {
                next = next == 0 || step->step->step < next ? step->step->step : next;
                break;
            }
        }
    }
    return next;
}

void ls_samples_open(const ls_observe_trace *trace, int64_t number, ls_samples *out,
                     ls_observe_finding *finding)
{
    size_t world = (size_t)trace->world;
    *out = (ls_samples){.trace = trace,
                        .number = number,
                        .world = trace->world,
                        .step = ls_list_make(world, sizeof *out->step),
                        .file = ls_list_make(world, sizeof *out->file)};
    for (int k = 0; k < trace->world; k++) {
        out->step[k] = ls_trace_step(&trace->rank[k], number);
        out->file[k] = ls_trace_samples(trace, k, out->step[k], finding);
        out->count += out->file[k] != NULL;
    }
}

void ls_samples_close(ls_samples *samples)
{
    for (int k = 0; k < samples->world; k++) {
        ls_dumpfile_close(samples->file[k]);
    }
    free(samples->step);
    free(samples->file);
    memset(samples, 0, sizeof *samples);
}

bool ls_samples_advance(ls_samples *samples, bool more, ls_observe_finding *finding)
{
    const ls_observe_trace *trace = samples->trace;
    int64_t next = more ? ls_samples_next(trace, samples->number) : 0;
    ls_samples_close(samples);
    if (next != 0) {
        ls_samples_open(trace, next, samples, finding);
    }
    return next != 0;
}

const ls_dumpfile_entry *ls_samples_find(const ls_dumpfile *file, const char *group,
                                         const char *name, const char *last)
{
    LS_TEXT(path, 700, "%s/%s%s%s", group, name, last == NULL ? "" : "/", last == NULL ? "" : last);
    return file == NULL ? NULL : ls_dumpfile_find(file, path);
}

ls_values ls_samples_read(const ls_dumpfile *file, const char *group, const char *name,
                          const char *last)
{
    const ls_dumpfile_entry *entry = ls_samples_find(file, group, name, last);
    if (entry == NULL || !ls_dumpfile_floats(entry, entry->count)) {
        return (ls_values){0};
    }
    ls_values out = {.count = entry->count,
                     .v = ls_list_make((size_t)entry->count + 1, sizeof *out.v),
                     .unit = ls_samples_unit(entry->dtype)};
    ls_dumpfile_read(entry, out.v);
    return out;
}

bool ls_samples_aligned(const ls_samples *samples, const char *name)
{
    const ls_dumpfile_entry *first = NULL;
    for (int k = 0; k < samples->world; k++) {
        const ls_dumpfile_entry *index = ls_samples_find(samples->file[k], "index", name, NULL);
        if (first != NULL && index != NULL && !ls_dumpfile_equal(first, index)) {
            return false;
        }
        first = first == NULL ? index : first;
    }
    return true;
}

bool ls_samples_zero(const ls_values *values)
{
    for (int64_t i = 0; i < values->count; i++) {
        if (values->v[i] != 0) {
            return false;
        }
    }
    return true;
}

void ls_samples_free(ls_values *values)
{
    free(values->v);
    values->v = NULL;
}

bool ls_samples_equal(const ls_values *a, const ls_values *b)
{
    if (a->v == NULL || b->v == NULL || a->count != b->count) {
        return false;
    }
    for (int64_t i = 0; i < a->count; i++) {
        if (a->v[i] != b->v[i] && !(isnan(a->v[i]) && isnan(b->v[i]))) {
            return false;
        }
    }
    return true;
}

bool ls_samples_overflow(const ls_values *values)
{
    for (int64_t i = 0; values->v != NULL && i < values->count; i++) {
        if (!isfinite(values->v[i])) {
            return true;
        }
    }
    return false;
}
