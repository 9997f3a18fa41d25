#include "data.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/log.h"
#include "harness/hosts/hosts.h"
#include "speed.h"

static const char *path_in(char path[PATH_MAX], const char *folder, const char *name)
{
    int length = snprintf(path, PATH_MAX, "%s/%s", folder, name);
    LS_ASSERT(length < PATH_MAX);
    return path;
}

static void copy_text(char *to, size_t bytes, const char *from)
{
    size_t length = strnlen(from, bytes - 1);
    memcpy(to, from, length);
    to[length] = '\0';
    for (size_t i = 0; i < length; i++) { /* it goes into cells of tables */
        to[i] = (unsigned char)to[i] < 0x20 || to[i] == 0x7f ? '?' : to[i];
    }
}

static ls_status take_step(ls_report_rank *rank, const cJSON *event)
{
    if ((rank->step_count & (rank->step_count - 1)) == 0) { /* full at every power of two */
        int room = rank->step_count == 0 ? 1 : 2 * rank->step_count;
        ls_report_step *larger = realloc(rank->step, (size_t)room * sizeof *larger);
        if (larger == NULL) {
            ls_log_error("cannot allocate room for %d steps", room);
            return LS_ERR_INFRA;
        }
        rank->step = larger;
    }
    const cJSON *ms = cJSON_GetObjectItemCaseSensitive(event, "ms");
    rank->step[rank->step_count++] = (ls_report_step){
        .step = ls_json_integer(event, "step", rank->step_count),
        .loss = ls_json_number(event, "loss", NAN),
        .scale = ls_json_number(event, "loss_scale", NAN),
        .scale_next = ls_json_number(event, "loss_scale_next", NAN),
        .lr = ls_json_number(event, "lr", NAN),
        .images = ls_json_number(event, "images", NAN),
        .skipped = ls_json_bool(event, "skipped", false),
        .at_ns = ls_json_number(event, "at_ns", NAN),
        .total_ms = ls_json_number(ms, "total", NAN),
        .data_ms = ls_json_number(ms, "data", NAN),
        .forward_ms = ls_json_number(ms, "forward", NAN),
        .backward_ms = ls_json_number(ms, "backward", NAN),
        .comm_ms = ls_json_number(ms, "comm", NAN),
        .exposed_ms = ls_json_number(ms, "comm_exposed", NAN),
        .optimizer_ms = ls_json_number(ms, "optimizer", NAN),
    };
    if (rank->step_count == 1) {
        rank->instrument_ms = ls_json_number(ms, "instrument", 0);
    }
    return LS_OK;
}

static void take_buckets(ls_report_rank *rank, const cJSON *event)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(event, "buckets"), *bucket;
    rank->reduced_bytes = 0;
    rank->bucket_count = 0;
    cJSON_ArrayForEach(bucket, list)
    {
        rank->reduced_bytes += ls_json_number(bucket, "bytes", 0);
        rank->bucket_count++;
    }
    bool open = isnan(rank->kind_bytes[LS_REPORT_GRADIENTS]);
    if (open && isfinite(rank->kind_bytes[LS_REPORT_ACTIVATIONS])) { /* they lie in the buckets */
        rank->kind_bytes[LS_REPORT_GRADIENTS] = rank->reduced_bytes;
        rank->kind_bytes[LS_REPORT_PARAMETERS] = rank->reduced_bytes;
    }
}

/* The trainer's own table of what it has allocated. */
static void take_memory(ls_report_rank *rank, const cJSON *memory)
{
    static const struct {
        const char *name;
        ls_report_kind kind;
    } PARTS[] = {{"parameters", LS_REPORT_PARAMETERS},
                 {"masters", LS_REPORT_MASTERS},
                 {"moments", LS_REPORT_MOMENTS},
                 {"gradients", LS_REPORT_GRADIENTS},
                 {"reduction_staging", LS_REPORT_GRADIENTS},
                 {"accumulators", LS_REPORT_GRADIENTS},
                 {"unscaled_gradients", LS_REPORT_GRADIENTS},
                 {"buffers", LS_REPORT_WORKSPACE},
                 {"state", LS_REPORT_WORKSPACE}};
    for (int kind = LS_REPORT_PARAMETERS; kind <= LS_REPORT_GRADIENTS; kind++) {
        rank->kind_bytes[kind] = 0;
    }
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        rank->kind_bytes[PARTS[i].kind] += ls_json_number(memory, PARTS[i].name, 0);
    }
}

/* Our trainer's start event tells sizes; without its own table, what follows from them is
 * numerics.md table 1: parameters are of the gradients' type at every level, masters (O2) and
 * moments are f32. */
static void take_start(ls_report_rank *rank, const cJSON *event)
{
    const cJSON *options = cJSON_GetObjectItemCaseSensitive(event, "options");
    const char *optimizer = ls_json_string(options, "optimizer", "");
    double elements = ls_json_number(event, "param_elements", NAN);
    bool masters = strcmp(ls_json_string(options, "opt-level", ""), "O2") == 0;
    int moments = strcmp(optimizer, "sgd") == 0    ? ls_json_number(options, "momentum", 0) != 0
                  : strcmp(optimizer, "lars") == 0 ? 1
                                                   : 2;
    rank->started = true;
    rank->threads = (int)ls_json_integer(event, "threads", 0);
    rank->kind_bytes[LS_REPORT_ACTIVATIONS] = ls_json_number(event, "activation_bytes", NAN);
    rank->kind_bytes[LS_REPORT_WORKSPACE] = ls_json_number(event, "workspace_bytes", NAN);
    rank->kind_bytes[LS_REPORT_MASTERS] = masters ? 4 * elements : 0 * elements;
    rank->kind_bytes[LS_REPORT_MOMENTS] = optimizer[0] != '\0' ? 4 * moments * elements : NAN;
    copy_text(rank->device, sizeof rank->device, ls_json_string(event, "device", ""));
    copy_text(rank->level, sizeof rank->level, ls_json_string(options, "opt-level", ""));
    const cJSON *memory = cJSON_GetObjectItemCaseSensitive(event, "memory");
    if (cJSON_IsObject(memory)) {
        take_memory(rank, memory);
    }
}

/* true, or why steps are not launched as graphs; no member where the device has none. */
static void take_graph(ls_report_rank *rank, const cJSON *event)
{
    copy_text(rank->no_graph, sizeof rank->no_graph, ls_json_string(event, "cuda_graph", ""));
    rank->graph_told = cJSON_HasObjectItem(event, "cuda_graph");
}

static ls_status take_event(void *context, const cJSON *event, int line)
{
    (void)line;
    ls_report_rank *rank = context;
    const char *name = ls_json_string(event, "event", "");
    if (strcmp(name, "step") == 0) {
        return take_step(rank, event);
    }
    if (strcmp(name, "buckets") == 0) {
        take_buckets(rank, event);
    } else if (strcmp(name, "start") == 0) {
        take_start(rank, event);
        take_graph(rank, event);
    } else if (strcmp(name, "graph") == 0) {
        take_graph(rank, event);
    } else if (strcmp(name, "end") == 0) {
        rank->ended = true;
    }
    return LS_OK;
}

static void read_ranks(ls_report_job *job, const char *folder)
{
    job->rank_count = job->world > 0 ? job->world : 0;
    if (job->rank_count > LS_HOSTS_RANKS_MAX) {
        ls_log_warn("%s: %d ranks are more than %d; its events are not read", folder, job->world,
                    LS_HOSTS_RANKS_MAX);
        job->rank_count = 0;
    }
    job->rank = calloc((size_t)job->rank_count + 1, sizeof *job->rank);
    LS_ASSERT(job->rank != NULL);
    for (int k = 0; k < job->rank_count; k++) {
        ls_report_rank *rank = &job->rank[k];
        rank->reduced_bytes = rank->rss_bytes_max = rank->instrument_ms = NAN;
        for (int kind = 0; kind < LS_REPORT_KINDS; kind++) {
            rank->kind_bytes[kind] = NAN;
        }
        char name[32], path[PATH_MAX];
        snprintf(name, sizeof name, "rank%d.jsonl", k);
        if (access(path_in(path, folder, name), R_OK) == 0) {
            rank->damaged = ls_json_each_line(path, take_event, rank) != LS_OK;
        }
    }
    const cJSON *outcome = cJSON_GetObjectItemCaseSensitive(job->record, "outcome"), *entry;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(outcome, "ranks"))
    {
        int k = (int)ls_json_integer(entry, "rank", -1);
        if (k >= 0 && k < job->rank_count) {
            job->rank[k].code = (int)ls_json_integer(entry, "code", 0);
            job->rank[k].signal = (int)ls_json_integer(entry, "signal", 0);
            job->rank[k].rss_bytes_max = ls_json_number(entry, "rss_bytes_max", NAN);
        }
    }
}

static void take_facts(ls_report_job *job, const cJSON *facts)
{
    ls_spec spec;
    ls_spec_read(facts, &spec);
    job->role = spec.role;
    job->sweep = spec.sweep;
    copy_text(job->arch, sizeof job->arch, ls_json_string(facts, "arch", ""));
    copy_text(job->level, sizeof job->level, ls_json_string(facts, "level", ""));
    copy_text(job->half, sizeof job->half, ls_json_string(facts, "half", "fp16"));
    copy_text(job->dialect, sizeof job->dialect, ls_json_string(facts, "dialect", "apex"));
    const cJSON *rung = cJSON_GetObjectItemCaseSensitive(facts, "rung");
    bool audited = ls_json_bool(facts, "audited", false);
    if (cJSON_IsNumber(rung)) {
        snprintf(job->rung, sizeof job->rung, audited ? "rungs 3, %d" : "rung %d",
                 (int)rung->valuedouble);
    } else if (audited) {
        snprintf(job->rung, sizeof job->rung, "rung 3");
    }
    job->image_size = (int)ls_json_integer(facts, "image_size", 0);
    job->batch_size = (int)ls_json_integer(facts, "batch_size", 0);
    job->world = (int)ls_json_integer(facts, "world", 0);
    job->nodes = (int)ls_json_integer(facts, "nodes", 1);
    job->threads = (int)ls_json_integer(facts, "threads", 0);
    job->warmup_steps = (int)ls_json_integer(facts, "warmup_steps", 0);
    job->bucket_mb = ls_json_number(facts, "bucket_mb", NAN);
    job->simulated = ls_json_bool(facts, "simulated", false) && job->nodes > 1;
    job->sync_bn = ls_json_bool(facts, "sync_bn", false);
    job->oversubscribed = ls_json_bool(facts, "oversubscribed", false);
    job->half_emulated =
        ls_json_bool(facts, "half_emulated", false) && strcmp(job->level, "O0") != 0;
    job->checked_known = cJSON_IsBool(cJSON_GetObjectItemCaseSensitive(facts, "checked"));
    job->checked = ls_json_bool(facts, "checked", false);
}

static ls_report_state state_of(const char *word)
{
    static const struct {
        const char *word;
        ls_report_state state;
    } STATES[] = {{"done", LS_REPORT_DONE},      {"failed", LS_REPORT_FAILED},
                  {"killed", LS_REPORT_CRASHED}, {"crash", LS_REPORT_CRASHED},
                  {"time", LS_REPORT_TIMED_OUT}, {"stopped", LS_REPORT_STOPPED},
                  {"not", LS_REPORT_NOT_STARTED}};
    for (size_t i = 0; i < sizeof STATES / sizeof *STATES; i++) {
        if (strncmp(word, STATES[i].word, strlen(STATES[i].word)) == 0) {
            return STATES[i].state;
        }
    }
    return LS_REPORT_UNFINISHED;
}

static void read_job(const char *jobs_folder, const char *id, ls_report_job *job)
{
    char folder[PATH_MAX], path[PATH_MAX];
    path_in(folder, jobs_folder, id);
    memset(job, 0, sizeof *job);
    copy_text(job->id, sizeof job->id, id);
    if (access(path_in(path, folder, "job.json"), R_OK) == 0) {
        (void)ls_json_read_file(path, &job->record); /* a damaged one is logged and then as none */
    }
    copy_text(job->label, sizeof job->label, ls_json_string(job->record, "label", id));
    take_facts(job, cJSON_GetObjectItemCaseSensitive(job->record, "facts"));
    const cJSON *outcome = cJSON_GetObjectItemCaseSensitive(job->record, "outcome");
    job->state = state_of(ls_json_string(outcome, "state", "?"));
    job->first_rank = (int)ls_json_integer(outcome, "first_rank", -1);
    job->code = (int)ls_json_integer(outcome, "code", 0);
    job->signal = (int)ls_json_integer(outcome, "signal", 0);
    job->seconds = ls_json_number(outcome, "seconds", NAN);
    job->started_ns = ls_json_number(outcome, "started_ns", NAN);
    if (access(path_in(path, folder, "compare.json"), R_OK) == 0) {
        (void)ls_json_read_file(path, &job->compare);
    }
    read_ranks(job, folder);
}

/* Rows of the matrix first, then what judges them, then what they are compared with. */
static int role_order(ls_role role)
{
    static const ls_role FIRST[] = {LS_ROLE_THROUGHPUT, LS_ROLE_PHASES, LS_ROLE_EVIDENCE,
                                    LS_ROLE_REFERENCE};
    int order = 0;
    while (order < (int)(sizeof FIRST / sizeof *FIRST) && FIRST[order] != role) {
        order++;
    }
    return order;
}

static int order_jobs(const void *a, const void *b)
{
    const ls_report_job *x = a, *y = b;
    double bucket_x =
        x->bucket_mb == 0 ? INFINITY : x->bucket_mb; /* delayed is the largest bucket */
    double bucket_y = y->bucket_mb == 0 ? INFINITY : y->bucket_mb;
    int order[] = {role_order(x->role) - role_order(y->role),
                   strcmp(x->arch, y->arch),
                   strcmp(x->level, y->level),
                   -strcmp(x->half, y->half),
                   x->world - y->world,
                   x->nodes - y->nodes,
                   (bucket_x > bucket_y) - (bucket_x < bucket_y),
                   strcmp(x->id, y->id)};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        if (order[i] != 0) {
            return order[i];
        }
    }
    return 0;
}

static ls_status read_jobs(ls_report_run *run)
{
    char folder[PATH_MAX];
    DIR *list = opendir(path_in(folder, run->directory, "jobs"));
    if (list == NULL) {
        if (errno == ENOENT) {
            return LS_OK; /* nothing was run yet: the report says so */
        }
        ls_log_error("cannot list %s: %s", folder, strerror(errno));
        return LS_ERR_INFRA;
    }
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        if (entry->d_name[0] == '.') {
            continue;
        }
        ls_report_job *larger = realloc(run->job, (size_t)(run->job_count + 1) * sizeof *larger);
        LS_ASSERT(larger != NULL);
        run->job = larger;
        read_job(folder, entry->d_name, &run->job[run->job_count++]);
    }
    closedir(list);
    if (run->job_count > 0) {
        qsort(run->job, (size_t)run->job_count, sizeof *run->job, order_jobs);
    }
    return LS_OK;
}

static ls_status take_verdict(void *context, const cJSON *line, int number)
{
    (void)number;
    cJSON_AddItemToArray(context, cJSON_Duplicate(line, true));
    return LS_OK;
}

ls_status ls_report_data_open(const char *directory, ls_report_run *out)
{
    ls_report_run run = {0};
    if (realpath(directory, run.directory) == NULL) {
        ls_log_error("no run directory '%s': %s", directory, strerror(errno));
        return LS_ERR_USAGE;
    }
    char path[PATH_MAX];
    if (access(path_in(path, run.directory, "run.json"), R_OK) != 0) {
        ls_log_error("'%s' is no run: it holds no run.json", directory);
        return LS_ERR_USAGE;
    }
    ls_status status = LS_OK;
    run.verdicts = cJSON_CreateArray();
    LS_TRY_GOTO(status, ls_json_read_file(path, &run.record), close);
    if (access(path_in(path, run.directory, "verdicts.jsonl"), R_OK) == 0) {
        LS_TRY_GOTO(status, ls_json_each_line(path, take_verdict, run.verdicts), close);
    }
    LS_TRY_GOTO(status, read_jobs(&run), close);
    ls_report_speed_compute(&run);
    *out = run;
    return LS_OK;
close:
    ls_report_data_close(&run);
    return status;
}

void ls_report_data_close(ls_report_run *run)
{
    for (int j = 0; j < run->job_count; j++) {
        ls_report_job *job = &run->job[j];
        for (int k = 0; k < job->rank_count; k++) {
            free(job->rank[k].step);
        }
        free(job->rank);
        cJSON_Delete(job->record);
        cJSON_Delete(job->compare);
        ls_report_speed_free(&job->speed);
    }
    free(run->job);
    cJSON_Delete(run->record);
    cJSON_Delete(run->verdicts);
    memset(run, 0, sizeof *run);
}

const char *ls_report_data_level(const ls_report_job *job, char text[24])
{
    bool plain = strcmp(job->half, "fp16") == 0 || strcmp(job->level, "O0") == 0;
    snprintf(text, 24, "%s%s%s", job->level[0] != '\0' ? job->level : "?", plain ? "" : " ",
             plain ? "" : job->half);
    return text;
}

int ls_report_data_level_number(const ls_report_job *job)
{
    bool known = job->level[0] == 'O' && job->level[1] >= '0' && job->level[1] <= '3';
    return known ? job->level[1] - '0' : -1;
}

const char *ls_report_data_bucket(double bucket_mb, char text[24])
{
    if (isnan(bucket_mb)) {
        return strcpy(text, "-");
    }
    if (bucket_mb == 0) {
        return strcpy(text, "delayed");
    }
    snprintf(text, 24, "%g MB", bucket_mb);
    return text;
}

static const char *state_word(ls_report_state state)
{
    switch (state) {
    case LS_REPORT_DONE:
        return "done";
    case LS_REPORT_FAILED:
        return "FAIL";
    case LS_REPORT_CRASHED:
        return "CRASH";
    case LS_REPORT_TIMED_OUT:
        return "TIMEOUT";
    case LS_REPORT_STOPPED:
        return "stopped before its end";
    case LS_REPORT_NOT_STARTED:
        return "INFRA: not started";
    case LS_REPORT_UNFINISHED:
        break;
    }
    return "not finished: no job.json";
}

const char *ls_report_data_no_graph(const ls_report_job *job)
{
    /* what one rank does all do */
    bool told = job->rank_count > 0 && job->rank[0].no_graph[0] != '\0';
    return told ? job->rank[0].no_graph : NULL;
}

const char *ls_report_data_state(const ls_report_job *job, char text[96])
{
    const char *word = state_word(job->state);
    bool blamed =
        job->first_rank >= 0 && (job->state == LS_REPORT_FAILED || job->state == LS_REPORT_CRASHED);
    if (!blamed) {
        snprintf(text, 96, "%s", word);
    } else if (job->signal != 0) {
        snprintf(text, 96, "%s rank %d, signal %d", word, job->first_rank, job->signal);
    } else {
        snprintf(text, 96, "%s rank %d, exit code %d (%s)", word, job->first_rank, job->code,
                 ls_status_name((ls_status)job->code));
    }
    return text;
}

bool ls_report_data_has_speed(const ls_report_job *job)
{
    return job->state == LS_REPORT_DONE && job->speed.count > 0;
}

bool ls_report_data_shown(const ls_report_job *job)
{
    return ls_report_data_has_speed(job) && job->checked && isfinite(job->speed.rate.value);
}

bool ls_report_data_names(const cJSON *verdict, const ls_report_job *job)
{
    const cJSON *entry;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItemCaseSensitive(verdict, "jobs"))
    {
        if (cJSON_IsString(entry) && strcmp(entry->valuestring, job->id) == 0) {
            return true;
        }
    }
    return false;
}

const char *ls_report_data_reason(const ls_report_run *run, const ls_report_job *job,
                                  char text[160])
{
    text[0] = '\0';
    if (job->state != LS_REPORT_DONE) {
        char state[96];
        snprintf(text, 160, "%s", ls_report_data_state(job, state));
        return text;
    }
    if (ls_report_data_shown(job)) {
        return text;
    }
    if (!ls_report_data_has_speed(job)) {
        snprintf(text, 160, "no step after the warm-up has a time");
        return text;
    }
    const cJSON *verdict;
    cJSON_ArrayForEach(verdict, run->verdicts)
    {
        const char *word = ls_json_string(verdict, "verdict", "");
        if (strcmp(word, "PASS") != 0 && ls_report_data_names(verdict, job)) {
            snprintf(text, 160, "%s %s", word, ls_json_string(verdict, "case", "?"));
            return text;
        }
    }
    snprintf(text, 160, "%s", job->checked_known ? "its checks did not pass" : "not checked");
    return text;
}
