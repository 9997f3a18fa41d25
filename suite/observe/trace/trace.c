#include "trace.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/hosts/hosts.h"
#include "kernels/core/list.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/text.h"
#include <limits.h>
#include "kernels/core/file.h"

/* ---- calls of a step ------------------------------------------------------------------------- */

static ls_call_kind kind_of(const char *word)
{
    static const char *const words[LS_CALL_OTHER] = {
        [LS_CALL_FORWARD] = "forward",
        [LS_CALL_SCALE] = "scale",
        [LS_CALL_BACKWARD] = "backward",
        [LS_CALL_UNSCALE] = "unscale",
        [LS_CALL_CLIP] = "clip",
        [LS_CALL_SCALER_STEP] = "scaler_step",
        [LS_CALL_OPTIMIZER_STEP] = "optimizer_step",
        [LS_CALL_UPDATE] = "update",
        [LS_CALL_ZERO_GRAD] = "zero_grad",
        [LS_CALL_SCHEDULE] = "schedule",
        [LS_CALL_COLLECTIVE] = "collective",
        [LS_CALL_MODE] = "sync_module",
    };
    for (int i = 0; i < LS_CALL_OTHER; i++) {
        if (strcmp(word, words[i]) == 0) {
            return (ls_call_kind)i;
        }
    }
    return LS_CALL_OTHER;
}

/* The module writes at most 10,000 calls of a step. */
static int16_t times_of(const ls_event *call)
{
    int times = ls_event_int(call, times, 1);
    return (int16_t)(times >= 1 && times <= 10000 ? times : 1);
}

/* No job has so many. */
static int16_t index_of(const ls_event *call, ls_event_member member)
{
    int index = ls_event_to_int(ls_event_get(call, member), -1);
    return (int16_t)(index >= -1 && index <= INT16_MAX ? index : -1);
}

ls_call ls_trace_call(const ls_event *event)
{
    return (ls_call){
        .kind = kind_of(ls_event_text(event, call, "")),
        .times = times_of(event),
        .at = ls_event_text(event, at, ""),
        .json = event,
        .model = index_of(event, LS_INTEGER(model)),
        .scaler = index_of(event, LS_INTEGER(scaler)),
        .optimizer = index_of(event, LS_INTEGER(optimizer)),
    };
}

int ls_trace_find(const ls_observe_step *step, ls_call_kind kind, int from)
{
    for (int i = from < 0 ? 0 : from; i < step->call_count; i++) {
        if (step->call[i].kind == kind) {
            return i;
        }
    }
    return -1;
}

const ls_call *ls_trace_next_kind(const ls_observe_step *step, ls_call_kind kind,
                                  const ls_call *call)
{
    int next = ls_trace_find(step, kind, call == NULL ? 0 : (int)(call - step->call) + 1);
    return next < 0 ? NULL : &step->call[next];
}

const char *ls_trace_digest(const ls_observe_step *step, ls_record_digest which)
{
    bool given = step != NULL && (step->step->digest_mask & (1u << which)) != 0;
    return given ? step->step->digest[which] : NULL;
}

const ls_call *ls_trace_first(const ls_observe_rank *rank, ls_call_kind kind)
{
    ls_trace_each_step(step, rank) {
        ls_trace_each_kind(call, step, kind) {
            return call;
        }
    }
    return NULL;
}

const char *ls_trace_place(const ls_observe_step *step, ls_call_kind kind)
{
    const ls_call *call = step == NULL ? NULL : ls_trace_next_kind(step, kind, NULL);
    return call == NULL ? "" : call->at;
}

bool ls_trace_walk_next(ls_trace_walk *walk)
{
    for (; walk->step_index < walk->rank->step_count; walk->step_index++, walk->call_index = 0) {
        walk->step = &walk->rank->step[walk->step_index];
        if (walk->call_index < walk->step->call_count) {
            walk->call = &walk->step->call[walk->call_index++];
            return true;
        }
    }
    return false;
}

/* ---- events of a rank ------------------------------------------------------------------------ */

static char *copy_text(const char *text)
{
    char *copy = strdup(text);
    LS_MEMORY(copy != NULL);
    return copy;
}

/* The file of a step's samples where it is there, else "". */
static const char *find_samples(const ls_observe_trace *trace, int rank, int64_t step)
{
    LS_TEXT(path, PATH_MAX, "%s/%s%s%s/step%06lld.rank%d.safetensors", trace->record.directory,
            trace->attached ? "samples" : "dump", trace->model != NULL ? "/" : "",
            trace->model != NULL ? trace->model : "", (long long)step, rank);
    return access(path, R_OK) == 0 ? copy_text(path) : "";
}

/* The calls that a step has, or those members of them that are not an earlier step's. */
static void read_calls(ls_observe_rank *rank, ls_observe_step *step, const cJSON *calls,
                       const ls_observe_step *like)
{
    const cJSON *call;
    step->call = ls_list_make((size_t)cJSON_GetArraySize(calls), sizeof *step->call);
    cJSON_ArrayForEach(call, calls)
    {
        const ls_call *before = like != NULL ? &like->call[step->call_count] : NULL;
        const ls_event *event =
            ls_event_read_call(rank->store, before != NULL ? before->json : NULL, call);
        step->call[step->call_count++] =
            before != NULL && event == before->json ? *before : ls_trace_call(event);
    }
}

static const ls_event *keep(ls_event_store *store, const cJSON *step, ls_event_member member)
{
    return ls_event_read_member(store, LS_EVENT_step, step, member);
}

static ls_status read_step(const ls_observe_trace *trace, int k, const cJSON *value, int line)
{
    ls_observe_rank *rank = &trace->rank[k];
    const ls_event *event = ls_event_read_once(rank->store, LS_EVENT_step, value);
    int at = rank->step_count;
    rank->step = ls_list_grow(rank->step, at, &rank->step_capacity, sizeof *rank->step);
    int64_t number = ls_event_integer(event, step, 0), other = ls_event_integer(event, like, -1);
    const cJSON *calls = cJSON_GetObjectItemCaseSensitive(value, "calls");
    const ls_observe_step *like = other < number ? ls_trace_step(rank, other) : NULL;
    if (cJSON_IsArray(calls) && cJSON_HasObjectItem(value, "like") &&
        (like == NULL || like->call_count != cJSON_GetArraySize(calls))) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s/rank%d.jsonl:%d: the step is like %lld: allowed is an earlier "
                           "step of the file that has as many calls",
                           trace->record.directory, k, line, (long long)other);
    }
    rank->step[at] = (ls_observe_step){
        .detail = !trace->attached || ls_event_bool(event, detail, false),
        .moved = ls_event_bool(event, moved, false),
        .digested = ls_event_int(event, digested, 1),
        .samples = "",
        .statistics = keep(rank->store, value, LS_TAGGED(OBJECT, statistics)),
        .losses = keep(rank->store, value, LS_LIST(losses)),
        .skips = keep(rank->store, value, LS_LIST(optimizers_skipped)),
    };
    if (cJSON_IsArray(calls)) {
        read_calls(rank, &rank->step[at], calls, like);
    }
    rank->first = at == 0 ? number : rank->first;
    rank->step_count++;
    return LS_OK;
}

static void add_event(ls_event_list *to, const ls_event *event)
{
    ls_event *item = to->capacity == 0 ? NULL : (ls_event *)(uintptr_t)to->list.item;
    int count = (int)to->list.count;
    item = ls_list_grow(item, count + 1, &to->capacity, sizeof *item);
    item[count] = *event;
    item[count + 1] = (ls_event){.type = LS_TYPE_END};
    to->list.item = item;
    to->list.count++;
}

/* A value of another kind than the table's is no event of the module's, or the trainer's. */
static void note_wrong(ls_observe_trace *trace, int k, int line)
{
    char *broken = trace->wrong;
    if (broken[0] == '\0') {
        ls_text_put(broken, sizeof trace->wrong, "rank%d.jsonl line %d %s", k, line,
                    ls_event_wrong(trace->rank[k].store));
    }
}

static void make_rank(ls_observe_rank *rank)
{
    static const ls_event end = {.type = LS_TYPE_END};
    rank->store = ls_event_store_make();
    for (int i = 0; i < LS_EVENT_none; i++) {
        rank->event[i].list = (ls_event){.type = LS_TYPE_LIST, .item = &end};
    }
}

/* A rank that died before its first event has no file. */
static void fill_ranks(ls_observe_trace *trace, int world)
{
    if (world > trace->world) {
        trace->rank = realloc(trace->rank, (size_t)world * sizeof *trace->rank);
        LS_MEMORY(trace->rank != NULL);
        memset(trace->rank + trace->world, 0, (size_t)(world - trace->world) * sizeof *trace->rank);
        for (; trace->world < world; trace->world++) {
            make_rank(&trace->rank[trace->world]);
        }
    }
}

/* An event that the record takes. What calls share with other steps' is found by their order. */
static ls_status read_event(void *context, int k, const cJSON *value, int line)
{
    ls_observe_trace *trace = context;
    ls_event_shape shape =
        ls_event_shape_of(LS_EVENT_FILE_RANK, ls_json_string(value, "event", ""));
    fill_ranks(trace, k + 1);
    ls_observe_rank *rank = &trace->rank[k];
    if (shape == LS_EVENT_step) {
        LS_TRY(read_step(trace, k, value, line));
    } else if (shape != LS_EVENT_none) {
        const ls_event *event = ls_event_read(rank->store, shape, value);
        add_event(&rank->event[shape], event);
        trace->attached =
            trace->attached || (shape == LS_EVENT_start && ls_event_int(event, observed, 0) == 1);
    }
    if (ls_event_wrong(rank->store)[0] != '\0') {
        note_wrong(trace, k, line);
    }
    return LS_OK;
}

/* ---- parameters ------------------------------------------------------------------------------ */

static void add_parameter(ls_observe_rank *rank, const ls_event *model, const ls_event *param)
{
    const ls_event *name = ls_event_at(param, 0), *elements = ls_event_at(param, 1);
    const ls_event *type = ls_event_at(param, 2);
    int64_t count = 0;
    if (!ls_event_is_text(name) || !ls_event_is_number(elements) ||
        !ls_json_whole(elements->number, 0, INT64_C(1) << 53, &count)) {
        return;
    }
    int index = ls_event_int(model, model, 0);
    const ls_event *norms = ls_event_list(model, norm_params);
    rank->tensor[rank->with_shards++] = (ls_observe_tensor){
        .name = copy_text(name->text),
        .model = index,
        .elements = count,
        .type = ls_event_is_text(type) ? type->text : "",
        .trainable = ls_event_is(ls_event_at(param, 3), LS_TYPE_TRUE),
        .norm = ls_event_holds(norms, name->text),
    };
}

/* Of several events of one model the last counts. */
static bool is_replaced(const ls_event *model)
{
    for (const ls_event *later = ls_event_after(model); later != NULL;
         later = ls_event_after(later)) {
        if (ls_event_int(later, model, 0) == ls_event_int(model, model, 0)) {
            return true;
        }
    }
    return false;
}

static void read_parameters(ls_observe_rank *rank)
{
    const ls_event *model, *param;
    int count = 0;
    ls_event_each(model, ls_trace_events(rank, model)) {
        count += ls_event_count(ls_event_list(model, params)) +
                 ls_event_count(ls_event_list(model, shards));
    }
    rank->tensor = ls_list_make((size_t)count, sizeof *rank->tensor);
    for (int shards = 0; shards <= 1; shards++) {
        ls_event_each(model, ls_trace_events(rank, model)) {
            const ls_event *list =
                shards ? ls_event_list(model, shards) : ls_event_list(model, params);
            ls_event_each(param, is_replaced(model) ? NULL : list) {
                add_parameter(rank, model, param);
            }
        }
        rank->tensor_count = shards ? rank->tensor_count : rank->with_shards;
    }
}

static const char *type_word(const char *dtype)
{
    static const char *const words[][2] = {
        {"F32", "f32"}, {"F16", "f16"}, {"BF16", "bf16"}, {"F64", "f64"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(dtype, words[i][0]) == 0) {
            return words[i][1];
        }
    }
    return "";
}

/* A trainer of the protocol has no model event: its first dump names the parameters. */
static void read_parameters_of_dump(ls_observe_rank *rank)
{
    static const char prefix[] = "param/";
    ls_dumpfile *file = NULL;
    for (int i = 0; i < rank->step_count && file == NULL; i++) {
        if (rank->step[i].detail && ls_dumpfile_open(rank->step[i].samples, &file) != LS_OK) {
            return;
        }
    }
    if (file == NULL) {
        return;
    }
    free(rank->tensor);
    rank->tensor = ls_list_make((size_t)ls_dumpfile_count(file), sizeof *rank->tensor);
    for (int i = 0; i < ls_dumpfile_count(file); i++) {
        const ls_dumpfile_entry *entry = ls_dumpfile_at(file, i);
        if (strncmp(entry->name, prefix, sizeof prefix - 1) == 0) {
            rank->tensor[rank->tensor_count++] =
                (ls_observe_tensor){.name = copy_text(entry->name + sizeof prefix - 1),
                                    .elements = entry->count,
                                    .type = type_word(entry->dtype),
                                    .trainable = true};
        }
    }
    rank->with_shards = rank->tensor_count;
    ls_dumpfile_close(file);
}

/* ---- the open step (events.md) --------------------------------------------------------------- */

/* The last step that was closed; 0: none. */
static int64_t last_of(const ls_observe_rank *rank)
{
    return rank->step_count > 0 ? rank->step[rank->step_count - 1].step->step : 0;
}

static const ls_event *known_call(const ls_observe_rank *rank, int number)
{
    const ls_event *event;
    ls_event_each(event, ls_trace_events(rank, call)) {
        if (ls_event_int(event, number, 0) == number) {
            return event;
        }
    }
    return NULL;
}

/* The calls that `numbers` names, hexadecimal and separated by spaces. */
static void add_calls(ls_observe_rank *rank, const char *numbers)
{
    ls_observe_step *step = rank->open;
    int capacity = 0;
    for (char *end; *numbers != '\0'; numbers = *end == ' ' ? end + 1 : end) {
        const ls_event *event = known_call(rank, (int)strtol(numbers, &end, 16));
        if (end == numbers) {
            break;
        }
        if (event != NULL) {
            step->call = ls_list_grow(step->call, step->call_count, &capacity, sizeof *step->call);
            step->call[step->call_count++] = ls_trace_call(event);
        }
    }
}

static void make_open(ls_observe_rank *rank, int64_t number, const char *numbers)
{
    ls_record_step *step = ls_list_make(1, sizeof *step);
    *step = (ls_record_step){.step = number, .loss = NAN, .loss_scale = NAN, .lr = NAN};
    rank->open = ls_list_make(1, sizeof *rank->open);
    rank->open->step = step;
    rank->open->samples = "";
    add_calls(rank, numbers);
}

/* Reads open.rank<k> into rank->open; leaves it NULL where there is none, or where the step was
 * closed after all. */
static void read_open_step(const char *directory, int k, ls_observe_rank *rank)
{
    LS_TEXT(path, PATH_MAX, "%s/open.rank%d", directory, k);
    ls_file_source source;
    char *text = NULL, *rest = NULL;
    size_t bytes = 0;
    if (ls_file_load(path, LS_FILE_TEXT_BYTES, &source, &text, &bytes) != LS_OK) {
        return;
    }
    long long number = strtoll(text, &rest, 10);
    if (*rest == '\n' && number > last_of(rank)) {
        make_open(rank, number, rest + 1);
    }
    free(text);
}

/* ---- a job ----------------------------------------------------------------------------------- */

/* As the start events say; a rank that died before its first event has no file. */
static void fill_world(ls_observe_trace *trace)
{
    int world = trace->record.world;
    for (int k = 0; k < trace->world; k++) {
        int given = ls_event_int(ls_event_first(ls_trace_events(&trace->rank[k], start)), world, 0);
        world = given > world && given <= LS_HOSTS_RANKS_MAX ? given : world;
    }
    if (world > trace->record.world) {
        size_t bytes = sizeof *trace->record.rank;
        trace->record.rank = realloc(trace->record.rank, (size_t)world * bytes);
        LS_MEMORY(trace->record.rank != NULL);
        for (int k = trace->record.world; k < world; k++) {
            trace->record.rank[k] = (ls_record_rank){
                .code = -1, .end_code = -1, .reduced_bytes = NAN, .rss_bytes_max = NAN};
        }
        trace->record.world = world;
    }
    fill_ranks(trace, world);
}

/* What is known when all events are read. */
static void finish_rank(ls_observe_trace *trace, int k)
{
    ls_observe_rank *rank = &trace->rank[k];
    rank->record = &trace->record.rank[k];
    rank->start = ls_event_first(ls_trace_events(rank, start));
    rank->cost = ls_trace_last(rank, cost);
    for (int i = 0; i < rank->step_count; i++) {
        ls_observe_step *step = &rank->step[i];
        step->step = &rank->record->step[i];
        step->samples = step->detail ? find_samples(trace, k, step->step->step) : "";
        step->detail = step->samples[0] != '\0';
    }
    read_parameters(rank);
    read_open_step(trace->record.directory, k, rank);
    if (!trace->attached) {
        read_parameters_of_dump(rank);
    }
}

static void read_command(ls_observe_trace *trace)
{
    LS_TEXT(path, PATH_MAX, "%s/job.json", trace->record.directory);
    cJSON *job = NULL;
    if (access(path, R_OK) == 0 && ls_json_read_file(path, &job) == LS_OK) {
        trace->command = cJSON_DetachItemFromObjectCaseSensitive(job, "command");
    }
    cJSON_Delete(job);
}

static ls_status load(const char *directory, const char *model, ls_observe_trace **out)
{
    ls_observe_trace *trace = ls_list_make(1, sizeof *trace);
    trace->model = model;
    ls_text_put(trace->record.directory, sizeof trace->record.directory, "%s", directory);
    ls_status status =
        ls_record_read_with(directory, LS_RECORD_STRICT, read_event, trace, &trace->record);
    if (status != LS_OK) {
        trace->model = NULL; /* the caller's */
        ls_trace_unload(trace);
        return status;
    }
    if (trace->record.broken[0] == '\0') {
        ls_text_put(trace->record.broken, sizeof trace->record.broken, "%s", trace->wrong);
    }
    fill_world(trace);
    read_command(trace);
    for (int k = 0; k < trace->world; k++) {
        finish_rank(trace, k);
    }
    *out = trace;
    return LS_OK;
}

/* The folders of dumps of several models. */
static ls_status load_parts(ls_observe_trace *trace)
{
    enum { MOST = 8 };
    LS_TEXT(path, PATH_MAX, "%s/dump", trace->record.directory);
    DIR *folder = ls_path_open_folder(path);
    for (struct dirent *entry; folder != NULL && (entry = readdir(folder)) != NULL;) {
        LS_TEXT(inside, PATH_MAX, "%s/%s/.", path, entry->d_name);
        if (entry->d_name[0] == '.' || access(inside, R_OK) != 0 || trace->part_count == MOST) {
            continue;
        }
        if (trace->part == NULL) {
            trace->part = ls_list_make(MOST, sizeof(ls_observe_trace *));
        }
        char *name = copy_text(entry->d_name);
        ls_status status = load(trace->record.directory, name, &trace->part[trace->part_count]);
        if (status != LS_OK) {
            free(name);
            closedir(folder);
            return status;
        }
        trace->part_count++;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return LS_OK;
}

ls_status ls_trace_load(const char *directory, ls_observe_trace **out)
{
    LS_TRY(load(directory, NULL, out));
    ls_status status = (*out)->attached ? LS_OK : load_parts(*out);
    if (status != LS_OK) {
        ls_trace_unload(*out);
    }
    return status;
}

static void free_rank(ls_observe_rank *rank)
{
    for (int i = 0; i < LS_EVENT_none; i++) {
        if (rank->event[i].capacity > 0) {
            free((ls_event *)(uintptr_t)rank->event[i].list.item);
        }
    }
    for (int i = 0; i < rank->step_count; i++) {
        free(rank->step[i].call);
        if (rank->step[i].samples[0] != '\0') {
            free((char *)rank->step[i].samples);
        }
    }
    for (int i = 0; i < rank->with_shards; i++) {
        free((char *)rank->tensor[i].name);
    }
    if (rank->open != NULL) {
        free(rank->open->call);
        free((ls_record_step *)rank->open->step);
        free(rank->open);
    }
    ls_event_store_free(rank->store);
    free(rank->step);
    free(rank->tensor);
}

void ls_trace_unload(ls_observe_trace *trace)
{
    if (trace == NULL) {
        return;
    }
    for (int k = 0; trace->rank != NULL && k < trace->world; k++) {
        free_rank(&trace->rank[k]);
    }
    for (int i = 0; i < trace->part_count; i++) {
        ls_trace_unload(trace->part[i]);
    }
    ls_trace_unload(trace->before);
    cJSON_Delete(trace->command);
    free(trace->part);
    free((char *)(uintptr_t)trace->model);
    free(trace->rank);
    ls_record_free(&trace->record);
    free(trace);
}

/* ---- questions ------------------------------------------------------------------------------- */

bool ls_trace_is_ddp(const ls_observe_trace *trace)
{
    if (trace->world < 2 || !trace->attached) {
        return trace->world > 1;
    }
    const ls_event *model;
    for (int k = 0; k < trace->world; k++) {
        ls_event_each(model, ls_trace_events(&trace->rank[k], model)) {
            if (strcmp(ls_event_text(model, kind, ""), "ddp") == 0) {
                return true;
            }
        }
    }
    return false;
}

bool ls_trace_is_scaled(const ls_observe_trace *trace)
{
    const ls_event *scaler;
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        ls_event_each(scaler, ls_trace_events(rank, scaler)) {
            if (ls_event_bool(scaler, enabled, false)) {
                return true;
            }
        }
        for (int i = 0; i < rank->step_count && !trace->attached; i++) {
            double scale = rank->step[i].step->loss_scale;
            if (!isnan(scale) && scale != 1) {
                return true;
            }
        }
    }
    return false;
}

static bool has_mixed_forward(const ls_observe_step *step)
{
    ls_trace_each_kind(call, step, LS_CALL_FORWARD) {
        if (ls_event_bool(call->json, training, false) &&
            ls_event_text(call->json, autocast, NULL) != NULL) {
            return true;
        }
    }
    return false;
}

bool ls_trace_is_mixed(const ls_observe_trace *trace)
{
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        const char *level = rank->record->level;
        if (!trace->attached && level[0] == 'O' && level[1] >= '1' && level[1] <= '3') {
            return true;
        }
        for (int i = 0; i < rank->step_count; i++) {
            if (has_mixed_forward(&rank->step[i])) {
                return true;
            }
        }
    }
    return false;
}

ls_dumpfile *ls_trace_samples(const ls_observe_trace *trace, int rank, const ls_observe_step *step,
                              ls_observe_finding *out)
{
    (void)trace;
    ls_dumpfile *file = NULL;
    if (step == NULL || step->samples[0] == '\0') {
        return NULL;
    }
    if (ls_dumpfile_open(step->samples, &file) != LS_OK) {
        ls_verdict_set(&out->verdict, LS_INFRA, "rank %d, step %lld: its samples cannot be read",
                       rank, (long long)step->step->step);
        return NULL;
    }
    return file;
}

const ls_observe_step *ls_trace_step(const ls_observe_rank *rank, int64_t number)
{
    int64_t index = number - rank->first; /* numbered without a gap */
    return index >= 0 && index < rank->step_count ? &rank->step[index] : NULL;
}

const ls_observe_step *ls_trace_open_step_of(const ls_observe_rank *rank, int64_t number)
{
    bool open = rank->open != NULL && rank->open->step->step == number;
    return open ? rank->open : ls_trace_step(rank, number);
}
