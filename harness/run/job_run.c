#include "job_run.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/hosts/supervise.h"
#include "kernels/core/json.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "remote_job.h"

/* ---- job.json ------------------------------------------------------------------------------- */

/* Variables that a run can depend on. The rest of the environment is private and not recorded. */
static bool is_recorded(const char *entry)
{
    static const char *const prefixes[] = {
        "RANK=", "WORLD_SIZE=", "LOCAL_", "GROUP_RANK=", "MASTER_", "LS_",   "OMP_",
        "NCCL_", "CUDA_",       "CUDNN_", "CUBLAS_",     "GLOO_",   "DNNL_", "ONEDNN_",
        "KMP_",  "GOMP_",       "MKL_",   "LD_",         "MALLOC_"};
    if (strncmp(entry, "LS_TOKEN=", 9) == 0) {
        return false;
    }
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (strncmp(entry, prefixes[i], strlen(prefixes[i])) == 0) {
            return true;
        }
    }
    return false;
}

static cJSON *environment_json(char *const *environment)
{
    cJSON *object = cJSON_CreateObject();
    for (int i = 0; environment[i] != NULL; i++) {
        const char *equals = strchr(environment[i], '=');
        if (equals != NULL && is_recorded(environment[i])) {
            char name[128];
            snprintf(name, sizeof name, "%.*s", (int)(equals - environment[i]), environment[i]);
            cJSON_AddStringToObject(object, name, equals + 1);
        }
    }
    return object;
}

static ls_status write_record(const ls_job *job, char *const *environment,
                              const ls_outcome *outcome)
{
    char path[sizeof job->directory + 16];
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "schema", 2);
    cJSON_AddStringToObject(root, "id", job->id);
    cJSON_AddStringToObject(root, "label", job->label);
    cJSON *command = cJSON_AddArrayToObject(root, "command");
    for (int i = 0; i < job->command.count; i++) {
        cJSON_AddItemToArray(command, cJSON_CreateString(job->command.word[i]));
    }
    cJSON_AddItemToObject(root, "environment", environment_json(environment));
    cJSON_AddItemToObject(root, "facts",
                          job->facts != NULL ? cJSON_Duplicate(job->facts, true)
                                             : cJSON_CreateObject());
    cJSON_AddItemToObject(root, "outcome", ls_outcome_json(outcome, 0));
    snprintf(path, sizeof path, "%s/job.json", job->directory);
    ls_status status = ls_json_write_file(path, root);
    cJSON_Delete(root);
    return status;
}

static bool same_command(const ls_job *job, const cJSON *root)
{
    const cJSON *command = cJSON_GetObjectItemCaseSensitive(root, "command");
    const cJSON *environment = cJSON_GetObjectItemCaseSensitive(root, "environment");
    char world[16];
    snprintf(world, sizeof world, "%d", job->world);
    if (cJSON_GetArraySize(command) != job->command.count ||
        strcmp(ls_json_string(environment, "WORLD_SIZE", ""), world) != 0) {
        return false;
    }
    for (int i = 0; i < job->command.count; i++) {
        const cJSON *one = cJSON_GetArrayItem(command, i);
        if (!cJSON_IsString(one) || strcmp(one->valuestring, job->command.word[i]) != 0) {
            return false;
        }
    }
    return true;
}

/* Fills the outcome and returns true when the same command has run and ended well. */
static bool read_done(const ls_job *job, ls_outcome *outcome)
{
    char path[sizeof job->directory + 16];
    cJSON *root = NULL;
    snprintf(path, sizeof path, "%s/job.json", job->directory);
    if (access(path, F_OK) != 0 || ls_json_read_file(path, &root) != LS_OK) {
        return false;
    }
    const cJSON *ended = cJSON_GetObjectItemCaseSensitive(root, "outcome");
    bool done = strcmp(ls_json_string(ended, "state", ""), "done") == 0 &&
                same_command(job, root) && ls_outcome_read(ended, 0, job->world, outcome);
    cJSON_Delete(root);
    return done;
}

bool ls_job_is_done(const ls_job *job)
{
    ls_outcome outcome;
    bool done = read_done(job, &outcome);
    if (done) {
        ls_outcome_free(&outcome);
    }
    return done;
}

/* ---- running -------------------------------------------------------------------------------- */

/* Removes the files of an unfinished attempt, which would be taken for those of this one. */
static ls_status remove_leftovers(const ls_job *job)
{
    static const char *const kinds[] = {"log", "jsonl"};
    char path[sizeof job->directory + 32];
    snprintf(path, sizeof path, "%s/job.json", job->directory);
    bool failed = unlink(path) != 0 && errno != ENOENT;
    for (int i = 0; i < 2 * job->world && !failed; i++) {
        snprintf(path, sizeof path, "%s/rank%d.%s", job->directory, i / 2, kinds[i % 2]);
        failed = unlink(path) != 0 && errno != ENOENT;
    }
    if (failed) {
        ls_log_error("cannot remove %s of an earlier attempt: %s", path, strerror(errno));
        return LS_ERR_INFRA;
    }
    return LS_OK;
}

static ls_status check_job(const ls_job *job)
{
    int nodes = ls_job_nodes(job);
    if (job->world < 1 || job->world > LS_HOSTS_RANKS_MAX || job->world % nodes != 0) {
        ls_log_error(
            "job %s: %d ranks on %d nodes, allowed: 1 to %d ranks, equally many on each node",
            job->id, job->world, nodes, LS_HOSTS_RANKS_MAX);
        return LS_ERR_USAGE;
    }
    if (job->hosts != NULL && (job->host_count < 1 || job->host_count > job->hosts->count)) {
        ls_log_error("job %s: %d hosts of %d", job->id, job->host_count, job->hosts->count);
        return LS_ERR_USAGE;
    }
    if (job->command.count < 1 || job->directory[0] != '/') {
        ls_log_error("job %s: no command, or directory '%s' is not absolute", job->id,
                     job->directory);
        return LS_ERR_USAGE;
    }
    return LS_OK;
}

/* Truncates very long logs and event files, because readers load them whole. The event of a step
 * has about 500 bytes. */
static void cut_records(const ls_job *job)
{
    static const char *const kinds[] = {"log", "jsonl"};
    const off_t most = (off_t)256 << 20;
    for (int i = 0; i < 2 * job->world; i++) {
        char path[sizeof job->directory + 32];
        snprintf(path, sizeof path, "%s/rank%d.%s", job->directory, i / 2, kinds[i % 2]);
        struct stat status;
        if (stat(path, &status) == 0 && status.st_size > most && truncate(path, most) == 0) {
            ls_log_warn("%s had %lld MB and was truncated to %lld", path,
                        (long long)(status.st_size >> 20), (long long)(most >> 20));
        }
    }
}

static ls_status run_ranks(const ls_job *job, const ls_proc_spec *spec, void (*on_tick)(void *),
                           void *context, ls_outcome *outcome)
{
    ls_supervise supervise = {.count = job->world,
                              .spec = spec,
                              .limit_s = job->limit_s,
                              .grace_s = job->grace_s,
                              .gpus = job->gpus,
                              .on_tick = on_tick,
                              .context = context};
    LS_TRY(ls_watch_gpu_job(job->gpus, job->directory));
    ls_status status = ls_supervise_run(&supervise, outcome);
    ls_watch_gpu_tick(job->gpus); /* counters that rose in the last second */
    (void)ls_watch_gpu_job(job->gpus, NULL);
    cut_records(job);
    ls_status written = write_record(job, spec[0].environment, outcome);
    return status != LS_OK ? status : written;
}

/* The command of a rank: nsenter, which execs it and so keeps the pid, then the job's. */
static ls_words words_of(const ls_job *job, int rank)
{
    ls_words words = {0, 0, NULL};
    if (job->net != NULL) {
        char node[32];
        ls_simnet_name(job->net, rank / (job->world / ls_job_nodes(job)), node, sizeof node);
        ls_words_add(&words, "nsenter");
        ls_words_add(&words, "--net=/run/netns/%s", node);
        ls_words_add(&words, "--");
    }
    for (int i = 0; i < job->command.count; i++) {
        ls_words_add(&words, "%s", job->command.word[i]);
    }
    return words;
}

static ls_status run_here(const ls_job *job, const char *token, void (*on_tick)(void *),
                          void *context, ls_outcome *outcome)
{
    int port = ls_supervise_free_port();
    if (port == 0) {
        ls_log_error("job %s: no free port: %s", job->id, strerror(errno));
        return LS_ERR_INFRA;
    }
    ls_proc_spec *spec = calloc((size_t)job->world, sizeof *spec);
    ls_words *words = calloc((size_t)job->world, sizeof *words);
    ls_words *environment = calloc((size_t)job->world, sizeof *environment);
    ls_words logs = {0, 0, NULL};
    LS_ASSERT(spec != NULL && words != NULL && environment != NULL);
    for (int rank = 0; rank < job->world; rank++) {
        words[rank] = words_of(job, rank);
        environment[rank] = ls_job_environment(job, rank, port, token);
        ls_words_add(&logs, "%s/rank%d.log", job->directory, rank);
        spec[rank] = (ls_proc_spec){.argv = words[rank].word,
                                    .environment = environment[rank].word,
                                    .log_path = logs.word[rank],
                                    .file_bytes_max = job->file_bytes_max};
    }
    ls_status status = run_ranks(job, spec, on_tick, context, outcome);
    for (int rank = 0; rank < job->world; rank++) {
        ls_words_free(&words[rank]);
        ls_words_free(&environment[rank]);
    }
    ls_words_free(&logs);
    free(words);
    free(environment);
    free(spec);
    return status;
}

static ls_status run_on_hosts(const ls_job *job, const char *token, void (*on_tick)(void *),
                              void *context, ls_outcome *outcome)
{
    ls_words environment = ls_job_environment(job, 0, 0, token);
    ls_status status = ls_remote_job_run(job, token, on_tick, context, outcome);
    ls_status written = write_record(job, environment.word, outcome);
    ls_words_free(&environment);
    return status != LS_OK ? status : written;
}

ls_status ls_job_run(const ls_job *job, void (*on_tick)(void *context), void *context,
                     ls_outcome *outcome, bool *resumed)
{
    LS_TRY(check_job(job));
    LS_TRY(ls_path_make_folder(job->directory));
    *resumed = read_done(job, outcome);
    if (*resumed) {
        return LS_OK;
    }
    LS_TRY(remove_leftovers(job));
    *outcome = (ls_outcome){.state = LS_OUTCOME_NOT_STARTED, .first_rank = -1};
    char token[33];
    ls_supervise_token(token);
    ls_status status = job->hosts != NULL ? run_on_hosts(job, token, on_tick, context, outcome)
                                          : run_here(job, token, on_tick, context, outcome);
    if (status != LS_OK) {
        ls_outcome_free(outcome);
    }
    return status;
}
