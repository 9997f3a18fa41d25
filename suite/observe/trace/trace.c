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
#include "open_step.h"

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
static int times_of(const cJSON *call)
{
    int times = ls_json_int(call, "times", 1);
    return times >= 1 && times <= 10000 ? times : 1;
}

void ls_trace_keep_calls(ls_kept_calls *kept, ls_observe_step *step, const cJSON *calls,
                         const ls_observe_step *like)
{
    const cJSON *call;
    step->call = ls_list_make((size_t)cJSON_GetArraySize(calls), sizeof *step->call);
    cJSON_ArrayForEach(call, calls)
    {
        const cJSON *before = like != NULL ? like->call[step->call_count].json : NULL;
        const cJSON *entry = ls_kept_calls_add(kept, before, call);
        step->call[step->call_count++] = (ls_call){
            .kind = kind_of(ls_json_string(entry, "call", "")),
            .times = times_of(entry),
            .at = ls_json_string(entry, "at", ""),
            .json = entry,
            .model = ls_json_int(entry, "model", -1),
            .scaler = ls_json_int(entry, "scaler", -1),
            .optimizer = ls_json_int(entry, "optimizer", -1),
        };
    }
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

/* ---- events of a rank ------------------------------------------------------------------------ */

/* A pass over the lines for what the record does not hold. The record's strict reading may have
 * ended before: steps beyond its own are not kept. */
typedef struct reader {
    ls_observe_trace *trace;
    int rank;
} reader;

/* The file of a step's samples where it is there, else "". */
static const char *find_samples(const ls_observe_trace *trace, int rank, int64_t step)
{
    LS_TEXT(path, PATH_MAX, "%s/%s%s%s/step%06lld.rank%d.safetensors", trace->record.directory,
            trace->attached ? "samples" : "dump", trace->model != NULL ? "/" : "",
            trace->model != NULL ? trace->model : "", (long long)step, rank);
    if (access(path, R_OK) != 0) {
        return "";
    }
    char *copy = strdup(path);
    LS_MEMORY(copy != NULL);
    return copy;
}

/* The calls that a step has, or those members of them that are not an earlier step's. */
static ls_status read_calls(const reader *r, ls_observe_step *step, const cJSON *event, int line)
{
    ls_observe_rank *rank = &r->trace->rank[r->rank];
    const cJSON *calls = cJSON_GetObjectItemCaseSensitive(event, "calls");
    if (!cJSON_IsArray(calls)) {
        return LS_OK;
    }
    const ls_observe_step *like = NULL;
    if (cJSON_HasObjectItem(event, "like")) {
        int64_t number = ls_json_integer(event, "like", -1);
        like = number < step->step->step ? ls_trace_step(rank, number) : NULL;
        if (like == NULL || like->call_count != cJSON_GetArraySize(calls)) {
            return ls_log_fail(LS_ERR_USAGE,
                               "%s/rank%d.jsonl:%d: the step is like %lld: allowed is an earlier "
                               "step of the file that has as many calls",
                               r->trace->record.directory, r->rank, line, (long long)number);
        }
    }
    ls_trace_keep_calls(rank->kept, step, calls, like);
    return LS_OK;
}

static ls_status read_step(const reader *r, const cJSON *event, int line)
{
    ls_observe_rank *rank = &r->trace->rank[r->rank];
    if (rank->step_count >= rank->record->step_count) {
        return LS_OK;
    }
    ls_observe_step *step = &rank->step[rank->step_count];
    step->step = &rank->record->step[rank->step_count];
    rank->step_count++;
    step->samples = "";
    if (!r->trace->attached || ls_json_bool(event, "detail", false)) {
        step->samples = find_samples(r->trace, r->rank, step->step->step);
    }
    step->detail = step->samples[0] != '\0';
    step->statistics = cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(event, "statistics"), true);
    step->losses = cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(event, "losses"), true);
    step->skips =
        cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(event, "optimizers_skipped"), true);
    return read_calls(r, step, event, line);
}

static ls_status read_event(void *context, const cJSON *value, int line)
{
    const reader *r = context;
    ls_observe_rank *rank = &r->trace->rank[r->rank];
    const struct {
        const char *event;
        cJSON *list;
    } lists[] = {
        {"model", rank->model},
        {"hook", rank->hook},
        {"convert", rank->convert},
        {"optimizer", rank->optimizer},
        {"scaler", rank->scaler},
        {"data", rank->data},
        {"save", rank->save},
        {"load", rank->load},
        {"restore", rank->restore},
        {"attach", rank->attach},
        {"call", rank->known},
        {"schedule", rank->schedule},
        {"validation", rank->validation},
        {"unfinished", rank->unfinished},
        {"autocast", rank->autocast},
        {"hidden", rank->hidden},
        {"idle", rank->idle},
        {"misuse", rank->misuse},
    };
    const char *event = ls_json_string(value, "event", "");
    if (strcmp(event, "step") == 0) {
        return read_step(r, value, line);
    }
    if (strcmp(event, "cost") == 0) {
        cJSON_Delete(rank->cost);
        rank->cost = cJSON_Duplicate(value, true);
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (strcmp(event, lists[i].event) == 0) {
            cJSON_AddItemToArray(lists[i].list, cJSON_Duplicate(value, true));
        }
    }
    return LS_OK;
}

static void make_lists(ls_observe_rank *rank)
{
    cJSON **const list[] = {&rank->model,      &rank->hook,       &rank->convert,  &rank->optimizer,
                            &rank->scaler,     &rank->data,       &rank->save,     &rank->load,
                            &rank->restore,    &rank->attach,     &rank->known,    &rank->schedule,
                            &rank->validation, &rank->unfinished, &rank->autocast, &rank->hidden,
                            &rank->idle,       &rank->misuse};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        *list[i] = cJSON_CreateArray();
        LS_MEMORY(*list[i] != NULL);
    }
}

/* ---- parameters ------------------------------------------------------------------------------ */

static char *copy_name(const char *name)
{
    char *copy = strdup(name);
    LS_MEMORY(copy != NULL);
    return copy;
}

static bool holds(const cJSON *list, const char *name)
{
    const cJSON *entry;
    cJSON_ArrayForEach(entry, list)
    {
        if (cJSON_IsString(entry) && strcmp(entry->valuestring, name) == 0) {
            return true;
        }
    }
    return false;
}

static void add_parameter(ls_observe_rank *rank, const cJSON *model, const cJSON *param)
{
    const cJSON *name = cJSON_GetArrayItem(param, 0), *elements = cJSON_GetArrayItem(param, 1);
    const cJSON *type = cJSON_GetArrayItem(param, 2);
    int64_t count = 0;
    if (!cJSON_IsString(name) || !cJSON_IsNumber(elements) ||
        !ls_json_whole(elements->valuedouble, 0, INT64_C(1) << 53, &count)) {
        return;
    }
    int index = ls_json_int(model, "model", 0);
    const cJSON *norms = cJSON_GetObjectItemCaseSensitive(model, "norm_params");
    rank->tensor[rank->tensor_count++] = (ls_observe_tensor){
        .name = copy_name(name->valuestring),
        .model = index,
        .elements = count,
        .type = cJSON_IsString(type) ? type->valuestring : "",
        .trainable = cJSON_IsTrue(cJSON_GetArrayItem(param, 3)),
        .norm = holds(norms, name->valuestring),
    };
}

/* Of several events of one model the last counts. */
static bool is_replaced(const cJSON *model)
{
    for (const cJSON *later = model->next; later != NULL; later = later->next) {
        if (ls_json_int(later, "model", 0) == ls_json_int(model, "model", 0)) {
            return true;
        }
    }
    return false;
}

static void read_parameters(ls_observe_rank *rank)
{
    const cJSON *model, *param;
    int count = 0;
    cJSON_ArrayForEach(model, rank->model)
    {
        count += cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(model, "params"));
    }
    rank->tensor = ls_list_make((size_t)count, sizeof *rank->tensor);
    cJSON_ArrayForEach(model, rank->model)
    {
        if (is_replaced(model)) {
            continue;
        }
        cJSON_ArrayForEach(param, cJSON_GetObjectItemCaseSensitive(model, "params"))
        {
            add_parameter(rank, model, param);
        }
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
                (ls_observe_tensor){.name = copy_name(entry->name + sizeof prefix - 1),
                                    .elements = entry->count,
                                    .type = type_word(entry->dtype),
                                    .trainable = true};
        }
    }
    ls_dumpfile_close(file);
}

/* ---- a job ----------------------------------------------------------------------------------- */

/* A rank that died before its first event has no file. */
static void fill_world(ls_observe_trace *trace)
{
    int world = trace->record.world;
    for (int k = 0; k < trace->record.world; k++) {
        int said = ls_json_int(trace->record.rank[k].start, "world", 0);
        world = said > world && said <= LS_HOSTS_RANKS_MAX ? said : world;
    }
    trace->world = world;
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
    for (int k = 0; k < world; k++) {
        const cJSON *start = trace->record.rank[k].start;
        trace->attached = trace->attached || ls_json_int(start, "observed", 0) == 1;
    }
}

static ls_status read_rank(ls_observe_trace *trace, int k)
{
    ls_observe_rank *rank = &trace->rank[k];
    reader r = {trace, k};
    rank->record = &trace->record.rank[k];
    make_lists(rank);
    rank->kept = ls_kept_calls_make();
    rank->step = ls_list_make((size_t)rank->record->step_count, sizeof *rank->step);
    if (rank->record->has_events) {
        LS_TEXT(path, PATH_MAX, "%s/rank%d.jsonl", trace->record.directory, k);
        ls_status status = ls_json_each_line(path, read_event, &r);
        if (status != LS_OK && trace->record.broken[0] == '\0') {
            return status;
        }
    }
    read_parameters(rank);
    ls_open_step_read(trace->record.directory, k, rank);
    if (!trace->attached) {
        read_parameters_of_dump(rank);
    }
    return LS_OK;
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
    ls_status status = ls_record_read(directory, LS_RECORD_STRICT, &trace->record);
    if (status != LS_OK) {
        free(trace);
        return status;
    }
    fill_world(trace);
    read_command(trace);
    trace->rank = ls_list_make((size_t)trace->world, sizeof *trace->rank);
    for (int k = 0; k < trace->world; k++) {
        LS_TRY_GOTO(status, read_rank(trace, k), free_trace);
    }
    *out = trace;
    return LS_OK;
free_trace:
    ls_trace_unload(trace);
    return status;
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
        char *name = copy_name(entry->d_name);
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
    cJSON *const list[] = {rank->model,      rank->hook,   rank->convert,    rank->optimizer,
                           rank->scaler,     rank->data,   rank->save,       rank->load,
                           rank->restore,    rank->attach, rank->known,      rank->schedule,
                           rank->validation, rank->cost,   rank->unfinished, rank->autocast,
                           rank->hidden,     rank->idle,   rank->misuse};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        cJSON_Delete(list[i]);
    }
    for (int i = 0; i < rank->step_count; i++) {
        free(rank->step[i].call);
        cJSON_Delete(rank->step[i].statistics);
        cJSON_Delete(rank->step[i].losses);
        cJSON_Delete(rank->step[i].skips);
        if (rank->step[i].samples[0] != '\0') {
            free((char *)rank->step[i].samples);
        }
    }
    for (int i = 0; i < rank->tensor_count; i++) {
        free((char *)rank->tensor[i].name);
    }
    ls_open_step_free(rank);
    ls_kept_calls_free(rank->kept);
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
    const cJSON *model;
    for (int k = 0; k < trace->world; k++) {
        cJSON_ArrayForEach(model, trace->rank[k].model)
        {
            if (strcmp(ls_json_string(model, "kind", ""), "ddp") == 0) {
                return true;
            }
        }
    }
    return false;
}

bool ls_trace_is_scaled(const ls_observe_trace *trace)
{
    const cJSON *scaler;
    for (int k = 0; k < trace->world; k++) {
        const ls_observe_rank *rank = &trace->rank[k];
        cJSON_ArrayForEach(scaler, rank->scaler)
        {
            if (ls_json_bool(scaler, "enabled", false)) {
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
    for (int c = ls_trace_find(step, LS_CALL_FORWARD, 0); c >= 0;
         c = ls_trace_find(step, LS_CALL_FORWARD, c + 1)) {
        const cJSON *call = step->call[c].json;
        if (ls_json_bool(call, "training", false) &&
            ls_json_string(call, "autocast", NULL) != NULL) {
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
    if (rank->step_count == 0) {
        return NULL;
    }
    int64_t index = number - rank->step[0].step->step; /* numbered without a gap */
    return index >= 0 && index < rank->step_count ? &rank->step[index] : NULL;
}
