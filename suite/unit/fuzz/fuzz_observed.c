/* Folders of observed jobs: the events of one of two ranks are the input, and every rule judges. */
#include <string.h>
#include <stdlib.h>

#include "fuzz.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include "suite/commands/commands.h"
#include "suite/observe/trace/event.h"

static const char job_json[] =
    "{\"schema\":2,\"id\":\"observed\",\"command\":[\"python3\",\"train.py\"],\"environment\":{},"
    "\"facts\":{\"world\":2},\"outcome\":{\"state\":\"done\",\"code\":0}}";

static ls_status add_event(void *events, const cJSON *event, int line)
{
    (void)line;
    cJSON_AddItemToArray(events, cJSON_Duplicate(event, true));
    return LS_OK;
}

/* ---- an event of each row of events.def ------------------------------------------------------ */

static cJSON *make_object(ls_event_shape event);

static cJSON *make_list(ls_event_shape of)
{
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < LS_EVENT_none; i++) {
        bool call = of == LS_EVENT_any_call && ls_event_entries[i].file == LS_EVENT_FILE_CALL;
        if (call || i == (int)of) {
            cJSON *item = make_object((ls_event_shape)i);
            if (call) {
                cJSON_AddStringToObject(item, "call", ls_event_entries[i].word);
            }
            cJSON_AddItemToArray(list, item);
        }
    }
    if (of == LS_EVENT_none) {
        cJSON_AddItemToArray(list, cJSON_CreateNumber(1));
        cJSON_AddItemToArray(list, cJSON_CreateString("fc.weight"));
    }
    return list;
}

static cJSON *make_member(const ls_event_row *row)
{
    switch (row->kind) {
    case LS_KIND_INTEGER:
        return cJSON_CreateNumber(1);
    case LS_KIND_NUMBER:
        return cJSON_CreateNumber(0.5);
    case LS_KIND_BOOL:
        return cJSON_CreateBool(true);
    case LS_KIND_LIST:
        return make_list(row->of);
    case LS_KIND_OBJECT:
        return make_object(row->of);
    case LS_KIND_MAP:
        return cJSON_CreateObject();
    case LS_KIND_CALLS:
        return cJSON_CreateArray();
    case LS_KIND_TEXT:
    case LS_KIND_ANY:
        break;
    }
    return cJSON_CreateString("train.py:4");
}

static cJSON *make_object(ls_event_shape event)
{
    cJSON *object = cJSON_CreateObject();
    for (int i = 0; i < ls_event_row_count; i++) {
        const ls_event_row *row = &ls_event_rows[i];
        if (row->event == event) {
            cJSON_AddItemToObject(object, row->name, make_member(row));
        }
    }
    return object;
}

/* In front of the last of the list, the end; the first and the steps are recorded. */
static void add_rows(cJSON *list)
{
    for (int i = 0; i < LS_EVENT_none; i++) {
        bool recorded = i == LS_EVENT_start || i == LS_EVENT_step || i == LS_EVENT_end;
        if (ls_event_entries[i].file == LS_EVENT_FILE_RANK && !recorded) {
            cJSON *object = make_object((ls_event_shape)i);
            cJSON_AddStringToObject(object, "event", ls_event_entries[i].word);
            cJSON_InsertItemInArray(list, cJSON_GetArraySize(list) - 1, object);
        }
    }
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* The recorded events are parsed once, so that most inputs are JSON in every line. */
static void seed_observed(fuzz *f)
{
    char path[PATH_BYTES];
    ls_text_put(path, sizeof path, "%s/observed.jsonl", f->recorded);
    fuzz_add_seed_file(f, path);
    fuzz_put_file(f, "job.json", job_json, sizeof job_json - 1);
    fuzz_put_file(f, "rank1.jsonl", f->seed[0].at, f->seed[0].count);
    f->events = cJSON_CreateArray();
    ls_status status = ls_json_each_line(fuzz_path(f, "rank1.jsonl", path), add_event, f->events);
    LS_ASSERT(status == LS_OK);
    add_rows(f->events);
}

static void count_items(const cJSON *list, int *count)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        ++*count;
        count_items(item, count);
    }
}

/* The item of that number, in the order of reading, and what it is in. */
static cJSON *find_item(cJSON *list, int *number, cJSON **owner)
{
    cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        if (--*number < 0) {
            *owner = list;
            return item;
        }
        cJSON *found = find_item(item, number, owner);
        if (found != NULL) {
            return found;
        }
    }
    return NULL;
}

static cJSON *make_value(fuzz *f)
{
    static const char *const words[] = {
        "",          "x",       "f16", "train.py:4", "0123456789abcdef",
        "optimizer", "forward", "inf", "model",      "\x1b[2J%s"};
    switch (fuzz_below(f, 8)) {
    case 0:
        return cJSON_CreateNull();
    case 1:
        return cJSON_CreateBool(fuzz_below(f, 2) == 0);
    case 2:
        return cJSON_CreateArray();
    case 3:
        return cJSON_CreateObject();
    case 4:
        return cJSON_CreateString(words[fuzz_below(f, sizeof words / sizeof *words)]);
    default:
        return cJSON_CreateNumber(fuzz_number(f));
    }
}

static cJSON *draw_item(fuzz *f, cJSON *events, int count, cJSON **owner)
{
    int number = (int)fuzz_below(f, (size_t)count);
    return find_item(events, &number, owner);
}

/* One value becomes another, is lost, or stands twice. */
static void mutate_events(fuzz *f, cJSON *events)
{
    int count = 0;
    count_items(events, &count);
    cJSON *owner = NULL, *other_owner = NULL;
    cJSON *item = draw_item(f, events, count, &owner), *value = NULL;
    switch (fuzz_below(f, 4)) {
    case 0:
        cJSON_Delete(cJSON_DetachItemViaPointer(owner, item));
        return;
    case 1:
        value = cJSON_Duplicate(draw_item(f, events, count, &other_owner), true);
        break;
    case 2:
        if (cJSON_IsArray(owner)) {
            cJSON_AddItemToArray(owner, cJSON_Duplicate(item, true));
            return;
        }
        value = make_value(f);
        break;
    default:
        value = make_value(f);
    }
    if (cJSON_IsObject(owner)) {
        char *name = strdup(item->string);
        LS_ASSERT(name != NULL);
        cJSON_ReplaceItemInObjectCaseSensitive(owner, name, value);
        free(name);
    } else {
        cJSON_ReplaceItemViaPointer(owner, item, value);
    }
}

static void make_observed(fuzz *f, bytes *b)
{
    if (fuzz_below(f, 4) == 0) {
        fuzz_make(f, b);
        return;
    }
    cJSON *events = cJSON_Duplicate(f->events, true);
    for (size_t left = 1 + fuzz_below(f, 4); left > 0 && cJSON_GetArraySize(events) > 0; left--) {
        mutate_events(f, events);
    }
    b->count = 0;
    const cJSON *event;
    cJSON_ArrayForEach(event, events)
    {
        char *line = cJSON_PrintUnformatted(event);
        size_t length = line == NULL ? INPUT_BYTES_MAX : strlen(line);
        if (b->count + length + 1 < INPUT_BYTES_MAX) {
            memcpy(b->at + b->count, line, length);
            b->count += length;
            b->at[b->count++] = '\n';
        }
        cJSON_free(line);
    }
    b->at[b->count] = '\0';
    cJSON_Delete(events);
}

static void read_observed(fuzz *f, const bytes *b)
{
    fuzz_put_file(f, "rank0.jsonl", b->at, b->count);
    char *folder = f->folder;
    (void)ls_judge_main(1, &folder);
}

static void end_observed(fuzz *f)
{
    cJSON_Delete(f->events);
}

const reader fuzz_observed_readers[] = {
    {"observed jobs", seed_observed, make_observed, read_observed, end_observed},
    {0},
};
