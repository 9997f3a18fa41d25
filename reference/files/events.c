#include "events.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/file.h"
#include "kernels/core/half.h"
#include "kernels/core/json.h"
#include "kernels/core/list.h"
#include "kernels/core/path.h"
#include "kernels/core/usage.h"
#include "kernels/core/text.h"

struct ls_events {
    int descriptor; /* -1: no events */
    char path[PATH_MAX];
};

/* Cuts off a last line without its newline: the process was killed while it wrote. */
static ls_status cut_unfinished(const ls_events *events)
{
    ls_file_source file;
    char *text = NULL;
    size_t bytes = 0;
    if (access(events->path, F_OK) != 0) {
        return LS_OK;
    }
    if (ls_file_load(events->path, LS_LINES_FILE_BYTES, &file, &text, &bytes) != LS_OK) {
        return ls_log_fail(LS_ERR_INFRA, "%s", file.why);
    }
    const char *newline = memrchr(text, '\n', bytes);
    size_t whole = newline == NULL ? 0 : (size_t)(newline + 1 - text);
    int failed = whole < bytes ? truncate(events->path, (off_t)whole) : 0;
    free(text);
    return failed == 0 ? LS_OK
                       : ls_log_fail(LS_ERR_INFRA, "cannot cut %s to its whole lines: %s",
                                     events->path, strerror(errno));
}

ls_status ls_events_open(const char *run_directory, int rank, bool append, ls_events **out)
{
    ls_events *events = ls_list_make(1, sizeof *events);
    events->descriptor = -1;
    if (run_directory == NULL || run_directory[0] == '\0') {
        *out = events;
        return LS_OK;
    }
    int length =
        snprintf(events->path, sizeof events->path, "%s/rank%d.jsonl", run_directory, rank);
    if (length >= (int)sizeof events->path) {
        ls_log_error("LS_RUN_DIR is too long (%d bytes)", length);
        free(events);
        return LS_ERR_USAGE;
    }
    ls_status status = ls_path_make_last(run_directory);
    if (append) {
        LS_THEN(status, cut_unfinished(events));
    }
    if (status == LS_OK) {
        events->descriptor = ls_file_open_to_write(events->path, O_APPEND | (append ? 0 : O_TRUNC));
        if (events->descriptor < 0) {
            status =
                ls_log_fail(LS_ERR_INFRA, "cannot create %s: %s", events->path, strerror(errno));
        }
    }
    if (status != LS_OK) {
        free(events);
        return status;
    }
    *out = events;
    return LS_OK;
}

void ls_events_close(ls_events *events)
{
    if (events == NULL) {
        return;
    }
    if (events->descriptor >= 0) {
        close(events->descriptor);
    }
    free(events);
}

bool ls_events_enabled(const ls_events *events)
{
    return events != NULL && events->descriptor >= 0;
}

cJSON *ls_events_begin(const char *name)
{
    cJSON *event = cJSON_CreateObject();
    LS_MEMORY(event != NULL);
    cJSON_AddStringToObject(event, "event", name);
    return event;
}

ls_status ls_events_write_line(ls_events *events, cJSON *event)
{
    ls_status status = ls_events_enabled(events)
                           ? ls_json_append_line(events->descriptor, events->path, event)
                           : LS_OK;
    cJSON_Delete(event);
    return status;
}

void ls_events_add_hex(cJSON *object, const char *name, uint64_t value)
{
    LS_TEXT(text, 24, "%016" PRIx64, value);
    cJSON_AddStringToObject(object, name, text);
}

/* Nothing for a text that is NULL. */
static void add_some(cJSON *object, const char *name, const char *text)
{
    if (text != NULL) {
        cJSON_AddStringToObject(object, name, text);
    }
}

/* products: the plan's own description, or NULL. */
static void add_info(cJSON *event, const ls_backend_info *info, const ls_options *options,
                     const char *products)
{
    ls_dtype half = options == NULL ? LS_F16 : options->half;
    products = products != NULL && products[0] != '\0' ? products : ls_device_products(info, half);
    cJSON_AddStringToObject(event, "device", info->device);
    cJSON_AddStringToObject(event, "libraries", info->libraries);
    cJSON_AddNumberToObject(event, "threads", info->threads);
    cJSON_AddBoolToObject(event, "host_memory", info->host_memory);
    cJSON_AddBoolToObject(event, "half_emulated", ls_device_emulates(info, half));
    add_some(event, "half_products", products[0] != '\0' ? products : NULL);
    add_some(event, "half_units", info->half_units[0] != '\0' ? info->half_units : NULL);
}

/* Algorithm, protocol, channels, network: as this rank's engine found them. */
static void add_nccl_variables(cJSON *event)
{
    cJSON *list = cJSON_AddObjectToObject(event, "nccl");
    for (char **entry = environ; *entry != NULL; entry++) {
        if (strncmp(*entry, "NCCL_", 5) == 0) {
            size_t length = strcspn(*entry, "=");
            LS_TEXT(name, 128, "%.*s", (int)length, *entry);
            cJSON_AddStringToObject(list, name, *entry + length + ((*entry)[length] == '='));
        }
    }
}

ls_status ls_events_write_start(ls_events *events, const ls_events_start *start)
{
    cJSON *event = ls_events_begin("start");
    cJSON_AddNumberToObject(event, "schema", 1);
    cJSON_AddStringToObject(event, "subject", "lockstep-train");
    cJSON_AddStringToObject(event, "version", LS_VERSION);
    cJSON_AddNumberToObject(event, "rank", start->rank);
    cJSON_AddNumberToObject(event, "world", start->world);
    cJSON_AddNumberToObject(event, "local_rank", start->local_rank);
    cJSON_AddNumberToObject(event, "local_world", start->local_world);
    cJSON_AddNumberToObject(event, "node", start->node);
    cJSON_AddNumberToObject(event, "pid", (double)getpid());
    add_some(event, "backend", start->backend);
    if (start->info != NULL) {
        add_info(event, start->info, start->options, start->products);
    }
    add_some(event, "engine", start->engine);
    add_some(event, "engine_text", start->engine_text);
    if (start->engine != NULL && strcmp(start->engine, "nccl") == 0) {
        add_nccl_variables(event);
    }
    add_some(event, "transport", start->transport);
    cJSON_AddNumberToObject(event, "first_step", (double)start->first_step);
    if (start->restart > 0) {
        cJSON_AddNumberToObject(event, "restart", start->restart);
    }
    cJSON_AddNumberToObject(event, "param_elements", (double)start->param_elements);
    if (start->network_digest != 0) {
        ls_events_add_hex(event, "network_digest", start->network_digest);
    }
    cJSON_AddNumberToObject(event, "activation_bytes", (double)start->activation_bytes);
    cJSON_AddNumberToObject(event, "workspace_bytes", (double)start->workspace_bytes);
    if (start->memory != NULL) {
        cJSON_AddItemToObject(event, "memory", cJSON_Duplicate(start->memory, true));
    }
    add_some(event, "fusions", start->fusions);
    add_some(event, "layout", start->layout);
    if (start->tells_graph && start->no_graph == NULL) {
        cJSON_AddTrueToObject(event, "cuda_graph");
    } else if (start->tells_graph) {
        cJSON_AddStringToObject(event, "cuda_graph", start->no_graph);
    }
    cJSON_AddItemToObject(event, "options", ls_options_json(start->options));
    return ls_events_write_line(events, event);
}

ls_status ls_events_write_buckets(ls_events *events, int64_t iteration,
                                  const ls_bucket_layout *layout, const ls_network *network)
{
    cJSON *event = ls_events_begin("buckets");
    cJSON_AddNumberToObject(event, "iteration", (double)iteration);
    cJSON_AddBoolToObject(event, "delayed", layout->delayed);
    ls_events_add_hex(event, "digest", ls_buckets_digest(layout));
    cJSON *list = cJSON_AddArrayToObject(event, "buckets");
    for (int b = 0; b < layout->bucket_count; b++) {
        const ls_bucket *bucket = &layout->bucket[b];
        cJSON *item = ls_json_append_object(list);
        cJSON_AddNumberToObject(item, "bytes", (double)bucket->bytes);
        cJSON_AddNumberToObject(item, "elements", (double)bucket->elements);
        cJSON_AddStringToObject(item, "type", ls_dtype_label(bucket->dtype));
        cJSON *names = cJSON_AddArrayToObject(item, "names");
        for (int i = 0; i < bucket->count; i++) {
            const ls_param *param = &network->param[layout->member[bucket->first + i]];
            cJSON_AddItemToArray(names, cJSON_CreateString(param->name));
        }
    }
    return ls_events_write_line(events, event);
}

ls_status ls_events_write_graph(ls_events *events, int64_t step, const char *why)
{
    cJSON *event = ls_events_begin("graph");
    cJSON_AddNumberToObject(event, "step", (double)step);
    cJSON_AddStringToObject(event, "cuda_graph", why);
    return ls_events_write_line(events, event);
}

const char *ls_events_group_name(ls_digest_group group)
{
    static const char *const names[] = {
        [LS_DIGEST_GROUP_PARAM] = "param",   [LS_DIGEST_GROUP_MASTER] = "master",
        [LS_DIGEST_GROUP_STATE] = "state",   [LS_DIGEST_GROUP_SCALER] = "scaler",
        [LS_DIGEST_GROUP_BUFFER] = "buffer", [LS_DIGEST_GROUP_GRAD] = "grad",
    };
    return names[group];
}

static void add_digests(cJSON *event, const ls_events_step *step)
{
    cJSON *digest = NULL;
    for (int i = 0; i < LS_DIGEST_GROUPS; i++) {
        if (step->digest.given[i]) {
            digest = digest != NULL ? digest : cJSON_AddObjectToObject(event, "digest");
            ls_events_add_hex(digest, ls_events_group_name((ls_digest_group)i),
                              step->digest.value[i]);
        }
    }
}

static void add_times(cJSON *event, const ls_events_step *step)
{
    static const char *const names[] = {
        [LS_EVENTS_MS_TOTAL] = "total",
        [LS_EVENTS_MS_DATA] = "data",
        [LS_EVENTS_MS_FORWARD] = "forward",
        [LS_EVENTS_MS_BACKWARD] = "backward",
        [LS_EVENTS_MS_COMM] = "comm",
        [LS_EVENTS_MS_OPTIMIZER] = "optimizer",
        [LS_EVENTS_MS_COMM_EXPOSED] = "comm_exposed",
        [LS_EVENTS_MS_INSTRUMENT] = "instrument",
    };
    cJSON *ms = NULL;
    for (int i = 0; i < LS_EVENTS_MS_COUNT; i++) {
        if (step->ms_given[i]) {
            ms = ms != NULL ? ms : cJSON_AddObjectToObject(event, "ms");
            ls_json_add_number(ms, names[i], step->ms[i]);
        }
    }
}

static void add_losses(cJSON *event, const ls_events_step *step)
{
    cJSON *losses = step->loss_count > 0 ? cJSON_AddArrayToObject(event, "losses") : NULL;
    for (int i = 0; i < step->loss_count; i++) {
        cJSON *loss = ls_json_append_object(losses);
        ls_json_add_number(loss, "loss", (double)step->losses[i].loss);
        ls_json_add_number(loss, "loss_scale", (double)step->losses[i].loss_scale);
        ls_json_add_number(loss, "loss_scale_next", (double)step->losses[i].loss_scale_next);
    }
    cJSON *skipped =
        step->optimizer_count > 0 ? cJSON_AddArrayToObject(event, "optimizers_skipped") : NULL;
    for (int i = 0; i < step->optimizer_count; i++) {
        cJSON_AddItemToArray(skipped, cJSON_CreateBool(step->optimizer_skipped[i]));
    }
}

ls_status ls_events_write_step(ls_events *events, const ls_events_step *step)
{
    cJSON *event = ls_events_begin("step");
    LS_TEXT(bits, 16, "0x%08" PRIx32, ls_half_bits_of_f32(step->loss));
    cJSON_AddNumberToObject(event, "step", (double)step->step);
    if (step->joined) {
        cJSON_AddBoolToObject(event, "joined", true);
    } else {
        ls_json_add_number(event, "loss", (double)step->loss);
        cJSON_AddStringToObject(event, "loss_bits", bits);
    }
    if (step->active > 0) {
        cJSON_AddNumberToObject(event, "active", step->active);
    }
    ls_json_add_number(event, "loss_scale", (double)step->loss_scale);
    ls_json_add_number(event, "loss_scale_next", (double)step->loss_scale_next);
    cJSON_AddBoolToObject(event, "skipped", step->skipped);
    if (step->audited) {
        cJSON_AddBoolToObject(event, "audited", true);
    }
    ls_json_add_number(event, "lr", (double)step->lr);
    cJSON_AddNumberToObject(event, "images", (double)step->images);
    if (step->bad_images > 0) {
        cJSON_AddNumberToObject(event, "bad_images", (double)step->bad_images);
    }
    if (step->scored) {
        cJSON_AddNumberToObject(event, "top1", (double)step->top1);
        cJSON_AddNumberToObject(event, "top5", (double)step->top5);
    }
    if (step->norm_given) {
        ls_json_add_number(event, "grad_norm", (double)step->grad_norm);
    }
    if (step->at_ns != 0) {
        cJSON_AddNumberToObject(event, "at_ns", (double)step->at_ns);
    }
    add_losses(event, step);
    add_digests(event, step);
    add_times(event, step);
    return ls_events_write_line(events, event);
}

static void add_score(cJSON *event, const char *name, const ls_events_score *score)
{
    if (score == NULL) {
        return;
    }
    cJSON *to = cJSON_AddObjectToObject(event, name);
    cJSON_AddNumberToObject(to, "images", (double)score->images);
    ls_json_add_number(to, "loss", score->loss / (double)score->images);
    cJSON_AddNumberToObject(to, "top1", (double)score->top1);
    cJSON_AddNumberToObject(to, "top5", (double)score->top5);
    if (score->bad > 0) {
        cJSON_AddNumberToObject(to, "bad_images", (double)score->bad);
    }
}

ls_status ls_events_write_epoch(ls_events *events, int64_t epoch, int64_t step,
                                const ls_events_score *train, const ls_events_score *val,
                                const ls_events_score *own, double seconds)
{
    cJSON *event = ls_events_begin("epoch");
    cJSON_AddNumberToObject(event, "epoch", (double)epoch);
    cJSON_AddNumberToObject(event, "step", (double)step);
    add_score(event, "train", train);
    add_score(event, "val", val);
    add_score(event, "val_own", own);
    if (val != NULL) {
        cJSON_AddNumberToObject(event, "seconds", seconds);
    }
    return ls_events_write_line(events, event);
}

ls_status ls_events_write_unsupported(ls_events *events, const char *option, const char *why)
{
    cJSON *event = ls_events_begin("unsupported");
    cJSON_AddNumberToObject(event, "schema", 1); /* it may be the first line */
    cJSON_AddStringToObject(event, "option", option);
    cJSON_AddStringToObject(event, "why", why);
    return ls_events_write_line(events, event);
}

ls_status ls_events_write_audit(ls_events *events, const ls_events_audit *audit)
{
    cJSON *event = ls_events_begin("audit");
    cJSON_AddNumberToObject(event, "step", (double)audit->step);
    cJSON_AddNumberToObject(event, "outputs", (double)audit->outputs);
    cJSON_AddNumberToObject(event, "elements", (double)audit->elements);
    cJSON_AddNumberToObject(event, "bad", (double)audit->bad);
    cJSON_AddStringToObject(event, "unaudited", audit->unaudited);
    cJSON *worst = cJSON_AddObjectToObject(event, "worst");
    cJSON_AddStringToObject(worst, "operation", audit->operation);
    cJSON_AddStringToObject(worst, "output", audit->output);
    cJSON_AddNumberToObject(worst, "index", (double)audit->index);
    ls_json_add_number(worst, "ratio", audit->ratio);
    ls_json_add_number(worst, "got", audit->got);
    ls_json_add_number(worst, "wanted", audit->wanted);
    ls_json_add_number(worst, "limit", audit->limit);
    if (audit->has_batch) {
        ls_events_add_hex(event, "batch", audit->batch);
    }
    ls_json_add_number(event, "ms", audit->ms);
    ls_json_add_number(event, "usual_ms", audit->usual_ms);
    return ls_events_write_line(events, event);
}

ls_status ls_events_write_trace(ls_events *events, int64_t step, const ls_events_span *span,
                                int count)
{
    cJSON *event = ls_events_begin("trace");
    cJSON_AddNumberToObject(event, "step", (double)step);
    cJSON *spans = cJSON_AddArrayToObject(event, "spans");
    for (int i = 0; i < count; i++) {
        cJSON *item = ls_json_append_object(spans);
        cJSON_AddStringToObject(item, "name", span[i].name);
        cJSON_AddStringToObject(item, "lane", span[i].communication ? "communication" : "compute");
        cJSON_AddNumberToObject(item, "from_ns", (double)span[i].from_ns);
        cJSON_AddNumberToObject(item, "to_ns", (double)span[i].to_ns);
    }
    return ls_events_write_line(events, event);
}

ls_status ls_events_write_end(ls_events *events, int64_t step, ls_status status, int64_t skipped)
{
    cJSON *event = ls_events_begin("end");
    cJSON_AddNumberToObject(event, "step", (double)step);
    cJSON_AddNumberToObject(event, "code", status);
    cJSON_AddStringToObject(event, "status", ls_status_name(status));
    cJSON_AddNumberToObject(event, "skipped", (double)skipped);
    return ls_events_write_line(events, event);
}
