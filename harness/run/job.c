#include "job.h"

#include "record.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/core/cores.h"
#include "harness/hosts/remote.h"
#include "harness/hosts/supervise.h"
#include "harness/machine/machine.h"
#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "kernels/core/plain.h"
#include "kernels/core/list.h"

void ls_job_free(ls_job *job)
{
    ls_words_free(&job->command);
    cJSON_Delete(job->facts);
    job->facts = NULL;
}

int ls_job_nodes(const ls_job *job)
{
    int local = job->local_nodes > 1 ? job->local_nodes : 1;
    return job->hosts != NULL ? local * job->host_count : local;
}

ls_words ls_job_environment(const ls_job *job, int rank, int port, const char *token)
{
    int nodes = ls_job_nodes(job), per_node = job->world / nodes;
    char first[32], own[32];
    ls_simnet_address(0, first, sizeof first);
    ls_simnet_address(rank / per_node, own, sizeof own);
    ls_supervise_rank_info rank_info = {
        .rank = rank,
        .world = job->world,
        .local_rank = rank % per_node,
        .local_world = per_node,
        .node = rank / per_node,
        .simulated = job->local_nodes > 1,
        .node_address = job->net != NULL ? own : NULL,
        .master_address = job->hosts != NULL ? job->hosts->master_address
                          : job->net != NULL ? first
                                             : "127.0.0.1",
        .port = port,
        .token = token,
        .run_directory = job->directory,
        .threads = job->threads > 0 ? job->threads : ls_cores_share(ls_cores_usable(), job->world),
        .ranks_here = job->world,
        .share_devices = job->share_devices,
    };
    return ls_supervise_environment(&rank_info);
}

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
            LS_TEXT(name, 128, "%.*s", (int)(equals - environment[i]), environment[i]);
            cJSON_AddStringToObject(object, name, equals + 1);
        }
    }
    return object;
}

static ls_status write_record(const ls_job *job, char *const *environment,
                              const ls_outcome *outcome)
{
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
    LS_TEXT(path, sizeof job->directory + 16, "%s/job.json", job->directory);
    return ls_json_write_and_free(path, root);
}

static bool same_command(const ls_job *job, const cJSON *root)
{
    const cJSON *command = ls_json_get(root, "command");
    const cJSON *environment = ls_json_get(root, "environment");
    LS_TEXT(world, 16, "%d", job->world);
    if (cJSON_GetArraySize(command) != job->command.count ||
        strcmp(ls_json_string(environment, "WORLD_SIZE", ""), world) != 0) {
        return false;
    }
    for (int i = 0; i < job->command.count; i++) {
        const cJSON *one = cJSON_GetArrayItem(command, i);
        char word[LS_JSON_STRING_BYTES]; /* as it is read back */
        ls_plain_copy(word, sizeof word, job->command.word[i]);
        if (!cJSON_IsString(one) || strcmp(one->valuestring, word) != 0) {
            return false;
        }
    }
    return true;
}

/* Fills the outcome and returns true when the same command has run and ended well. */
static bool read_done(const ls_job *job, ls_outcome *outcome)
{
    cJSON *root = NULL;
    LS_TEXT(path, sizeof job->directory + 16, "%s/job.json", job->directory);
    if (access(path, F_OK) != 0 || ls_json_read_file(path, &root) != LS_OK) {
        return false;
    }
    const cJSON *ended = ls_json_get(root, "outcome");
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

/* ---- on other machines -------------------------------------------------------------------- */

typedef struct running {
    ls_remote remote;
    void (*on_tick)(void *);
    void *context;
} running;

static void beat(void *context)
{
    running *r = context;
    ls_remote_beat(&r->remote);
    if (r->on_tick != NULL) {
        r->on_tick(r->context);
    }
}

static void hang_up(void *context)
{
    ls_remote_hang_up(&((running *)context)->remote);
}

/* lockstep-launch with torchrun's options, for host `node`. */
static ls_words launcher_words(const ls_job *job, int node, int port)
{
    char path[1024];
    ls_words words = {0, 0, NULL};
    ls_remote_launcher(&job->hosts->host[node], path, sizeof path);
    ls_words_add(&words, "%s", path);
    ls_words_add(&words, "--env-from-stdin");
    ls_words_add(&words, "--nnodes=%d", job->host_count);
    ls_words_add(&words, "--node-rank=%d", node);
    ls_words_add(&words, "--nproc-per-node=%d", job->world / job->host_count);
    if (job->local_nodes > 1) {
        ls_words_add(&words, "--local-nodes=%d", job->local_nodes);
    }
    ls_words_add(&words, "--master-addr=%s", job->hosts->master_address);
    ls_words_add(&words, "--master-port=%d", port);
    ls_words_add(&words, "--log-dir=%s", job->directory);
    ls_words_add(&words, "--grace=%g", job->grace_s);
    if (job->file_bytes_max > 0) {
        ls_words_add(&words, "--file-bytes=%lld", (long long)job->file_bytes_max);
    }
    ls_words_add(&words, "--");
    for (int i = 0; i < job->command.count; i++) {
        ls_words_add(&words, "%s", job->command.word[i]);
    }
    return words;
}

static const char *run_directory(const ls_job *job)
{
    return job->run_directory != NULL ? job->run_directory : job->directory;
}

/* What the job's command names below the run's folder, but for the job's own: files and folders
 * that it reads. A script has the folder as "$run" (matrix.c). */
static ls_words find_inputs(const ls_job *job)
{
    ls_words inputs = {0, 0, NULL};
    LS_TEXT(plain, sizeof job->directory + 1, "%s/", run_directory(job));
    const char *const ways[] = {plain, "\"$run\"/"};
    for (int i = 0; i < 2 * job->command.count; i++) {
        const char *way = ways[i % 2], *at = job->command.word[i / 2];
        while ((at = strstr(at, way)) != NULL) {
            at += strlen(way);
            LS_TEXT(name, 512, "%.*s", (int)strcspn(at, "'\" ;:,|&()\n"), at);
            LS_TEXT(path, sizeof job->directory + 520, "%s%s", plain, name);
            bool own = strncmp(path, job->directory, strlen(job->directory)) == 0;
            if (!own && name[0] != '\0' && access(path, F_OK) == 0) {
                ls_words_add(&inputs, "%s", name);
            }
        }
    }
    return inputs;
}

static ls_status open_channels(const ls_job *job, const char *token, const ls_words *inputs,
                               ls_remote *out)
{
    ls_hosts *hosts = job->hosts;
    LS_ASSERT(hosts->port_count > 0);
    int port = hosts->port[hosts->port_next++ % hosts->port_count];
    ls_words *command = ls_list_make((size_t)job->host_count, sizeof *command);
    for (int k = 0; k < job->host_count; k++) {
        command[k] = launcher_words(job, k, port);
    }
    cJSON *order =
        ls_remote_session_order(token, job->directory, job->threads, hosts->by == LS_HOSTS_SSH);
    const ls_remote_files files = {.run = run_directory(job), .inputs = inputs};
    ls_status status =
        ls_remote_open(hosts, job->host_count, command, order, job->directory, &files, out);
    cJSON_Delete(order);
    for (int k = 0; k < job->host_count; k++) {
        ls_words_free(&command[k]);
    }
    free(command);
    return status;
}

/* Puts the outcomes of the hosts together. */

/* The first failure so far: the earliest, but a rank that failed by itself replaces one that only
 * lost its peer. */
typedef struct blame {
    bool any, victim;
    int64_t ended_ns;
} blame;

static void consider(ls_outcome *out, blame *b, const ls_host *host, int rank,
                     const ls_outcome *node, int64_t started_ns)
{
    bool victim =
        node->signal == 0 && (node->code == LS_ERR_PEER_LOST || node->code == LS_ERR_RENDEZVOUS);
    int64_t ended_ns = started_ns + node->rank[node->first_rank].ended_ns;
    bool better =
        !b->any || (b->victim && !victim) || (b->victim == victim && ended_ns < b->ended_ns);
    if (better) {
        *b = (blame){.any = true, .victim = victim, .ended_ns = ended_ns};
        out->first_rank = rank;
        ls_text_put(out->why, sizeof out->why, node->why[0] == '\0' ? "" : "host %s: %.200s",
                    host->name, node->why);
        out->code = node->code;
        out->signal = node->signal;
        out->state = node->signal != 0 ? LS_OUTCOME_KILLED : LS_OUTCOME_FAILED;
    }
}

/* Makes host k the first failure, unless a rank of another host failed by itself. The logs of its
 * ranks are empty or missing, so `why`, the last message of the host, is kept. */
static void blame_host(const ls_job *job, int k, ls_outcome_state state, int64_t ended_ns,
                       const char *why, ls_outcome *out, blame *b)
{
    if (!b->any || b->victim) {
        *b = (blame){.any = true, .ended_ns = ended_ns};
        out->state = state;
        out->first_rank = k * (job->world / job->host_count);
        out->code = LS_ERR_INFRA;
        out->signal = 0;
        ls_text_put(out->why, sizeof out->why, "host %s%s", job->hosts->host[k].name, why);
        ls_log_error("job %s: %s", job->id, out->why);
    }
}

/* Handles a host whose channel ended without the launcher's report. */
static void take_lost(const ls_job *job, const ls_outcome *channels, int k, const char *said,
                      ls_outcome *out, blame *b)
{
    int per_host = job->world / job->host_count;
    const ls_proc *channel = &channels->rank[k];
    bool ours = channels->state == LS_OUTCOME_STOPPED || channels->state == LS_OUTCOME_TIMED_OUT;
    for (int i = 0; i < per_host; i++) {
        out->rank[k * per_host + i] =
            (ls_proc){.ended = true,
                      .code = LS_ERR_INFRA,
                      .ended_ns = channel->ended_ns - channel->started_ns};
    }
    if (!ours) {
        LS_TEXT(why, sizeof out->why, " ended without a report (%s %d)%s%s",
                channel->signal != 0 ? "signal" : "exit code",
                channel->signal != 0 ? channel->signal : channel->code, said[0] != '\0' ? ": " : "",
                said);
        blame_host(job, k, LS_OUTCOME_FAILED, channel->ended_ns, why, out, b);
    }
}

static void put_together(const ls_job *job, const ls_outcome *channels, const ls_remote *remote,
                         ls_outcome *out)
{
    int per_host = job->world / job->host_count;
    blame b = {.any = false};
    char said[300];
    *out = (ls_outcome){.state = LS_OUTCOME_DONE,
                        .first_rank = -1,
                        .started_ns = channels->started_ns,
                        .ended_ns = channels->ended_ns,
                        .rank_count = job->world};
    out->rank = ls_list_make((size_t)job->world, sizeof *out->rank);
    for (int k = 0; k < job->host_count; k++) {
        ls_outcome node;
        cJSON *report = ls_remote_report(job->directory, k, "node", said, sizeof said);
        const cJSON *reported = ls_json_get(report, "outcome");
        const char *lacks = ls_remote_lacks(remote, k);
        if (lacks != NULL && said[0] == '\0') {
            ls_text_put(said, sizeof said, "%s", lacks);
        }
        if (reported == NULL || !ls_outcome_read(reported, k * per_host, per_host, &node)) {
            take_lost(job, channels, k, said, out, &b);
            cJSON_Delete(report);
            continue;
        }
        memcpy(&out->rank[k * per_host], node.rank, (size_t)per_host * sizeof *node.rank);
        if (node.state == LS_OUTCOME_DONE && lacks != NULL) { /* half of it is not judged */
            LS_TEXT(why, sizeof out->why, ": not all of its files came: %.250s", lacks);
            blame_host(job, k, LS_OUTCOME_NOT_STARTED, channels->rank[k].ended_ns, why, out, &b);
        } else if (node.state == LS_OUTCOME_NOT_STARTED) {
            LS_TEXT(why, sizeof out->why, ": %s", said);
            blame_host(job, k, node.state, channels->rank[k].ended_ns, why, out, &b);
        } else if (node.first_rank >= 0 && node.state != LS_OUTCOME_STOPPED) {
            consider(out, &b, &job->hosts->host[k], k * per_host + node.first_rank, &node,
                     channels->rank[k].started_ns);
        }
        ls_outcome_free(&node);
        cJSON_Delete(report);
    }
    if (channels->state == LS_OUTCOME_STOPPED || channels->state == LS_OUTCOME_TIMED_OUT) {
        out->state = channels->state;
    }
    ls_outcome_add_up(out);
}

/* Opens the folder so that a network file system drops its cached absence of a rank's files
 * (close-to-open consistency, nfs(5)). */
static void refresh_cache(const char *folder)
{
    DIR *opened = ls_path_open_folder(folder);
    if (opened != NULL) {
        closedir(opened);
    }
}

static void remove_logs(const ls_job *job)
{
    char path[sizeof job->directory + 32];
    for (int k = 0; k < job->host_count; k++) {
        ls_text_put(path, sizeof path, "%s/node%d.log", job->directory, k);
        (void)unlink(path);
    }
}

static ls_status run_on_machines(const ls_job *job, const char *token, void (*on_tick)(void *),
                                 void *context, ls_outcome *outcome)
{
    running r = {.on_tick = on_tick, .context = context};
    *outcome = (ls_outcome){.state = LS_OUTCOME_NOT_STARTED, .first_rank = -1};
    remove_logs(job);
    ls_words inputs = find_inputs(job);
    ls_status status = open_channels(job, token, &inputs, &r.remote);
    if (status != LS_OK) {
        ls_words_free(&inputs);
        return status;
    }
    /* The failing launcher has waited for its own grace; one more second is for the others'
     * reports. */
    ls_supervise supervise = {.count = job->host_count,
                              .spec = r.remote.spec,
                              .limit_s = job->limit_s,
                              .grace_s = job->grace_s + 1,
                              .on_tick = beat,
                              .hang_up = hang_up,
                              .hang_up_s = LS_REMOTE_HANG_UP_S,
                              .context = &r};
    ls_outcome channels;
    status = ls_supervise_run(&supervise, &channels);
    ls_remote_finish(&r.remote);
    if (status == LS_OK) {
        refresh_cache(job->directory);
        put_together(job, &channels, &r.remote, outcome);
    }
    ls_remote_close(&r.remote);
    ls_words_free(&inputs);
    ls_outcome_free(&channels);
    return status;
}

/* ---- running -------------------------------------------------------------------------------- */

/* Removes the files of an unfinished attempt, which would be taken for those of this one. */
static ls_status remove_leftovers(const ls_job *job)
{
    static const char *const kinds[] = {"log", "jsonl"};
    LS_TEXT(path, sizeof job->directory + 32, "%s/job.json", job->directory);
    bool failed = unlink(path) != 0 && errno != ENOENT;
    for (int i = 0; i < 2 * job->world && !failed; i++) {
        snprintf(path, sizeof path, "%s/rank%d.%s", job->directory, i / 2, kinds[i % 2]);
        failed = unlink(path) != 0 && errno != ENOENT;
    }
    if (failed) {
        return ls_log_fail(LS_ERR_INFRA, "cannot remove %s of an earlier attempt: %s", path,
                           strerror(errno));
    }
    return LS_OK;
}

static ls_status check_job(const ls_job *job)
{
    if (job->hosts != NULL && (job->host_count < 1 || job->host_count > job->hosts->count)) {
        return ls_log_fail(LS_ERR_USAGE, "job %s: %d hosts of %d", job->id, job->host_count,
                           job->hosts->count);
    }
    int nodes = ls_job_nodes(job);
    if (job->world < 1 || job->world > LS_HOSTS_RANKS_MAX || job->world % nodes != 0) {
        return ls_log_fail(
            LS_ERR_USAGE,
            "job %s: %d ranks on %d nodes, allowed: 1 to %d ranks, equally many on each node",
            job->id, job->world, nodes, LS_HOSTS_RANKS_MAX);
    }
    if (job->command.count < 1 || job->directory[0] != '/') {
        return ls_log_fail(LS_ERR_USAGE, "job %s: no command, or directory '%s' is not absolute",
                           job->id, job->directory);
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
        LS_TEXT(path, sizeof job->directory + 32, "%s/rank%d.%s", job->directory, i / 2,
                kinds[i % 2]);
        struct stat status;
        if (stat(path, &status) == 0 && status.st_size > most && truncate(path, most) == 0) {
            ls_log_warn("%s had %lld MB and was truncated to %lld", path,
                        (long long)(status.st_size >> 20), (long long)(most >> 20));
        }
    }
}

/* job.json of the k-th of several: its ranks' part of the outcome. */
static ls_status write_part(const ls_job *job, int k, char *const *environment,
                            const ls_outcome *whole)
{
    ls_outcome part = *whole;
    part.rank += k * job->world;
    part.rank_count = job->world;
    if (whole->first_rank >= 0 && whole->first_rank / job->world == k) {
        part.first_rank = whole->first_rank % job->world;
    } else if (whole->first_rank >= 0) { /* ended with another one, which failed */
        part.first_rank = -1;
        part.code = part.signal = 0;
        part.state = LS_OUTCOME_STOPPED;
    }
    return write_record(&job[k], environment, &part);
}

static ls_status run_ranks(const ls_job *job, int jobs, const ls_proc_spec *spec,
                           const ls_job_tick *tick, ls_outcome *outcome)
{
    ls_supervise supervise = {.count = jobs * job->world,
                              .spec = spec,
                              .limit_s = job->limit_s,
                              .grace_s = job->grace_s,
                              .gpus = job->gpus,
                              .fork_server = job->fork_server,
                              .on_tick = tick->call,
                              .tick_s = tick->each_s,
                              .context = tick->context};
    LS_TRY(ls_watch_gpu_job(job->gpus, job->directory));
    long kills = ls_record_kills();
    ls_status status = ls_supervise_run(&supervise, outcome);
    outcome->memory_kills = ls_record_kills() - kills;
    ls_watch_gpu_tick(job->gpus); /* counters that rose in the last second */
    (void)ls_watch_gpu_job(job->gpus, NULL);
    for (int k = 0; k < jobs; k++) {
        cut_records(&job[k]);
        ls_status written = write_part(job, k, spec[k * job->world].environment, outcome);
        status = status != LS_OK ? status : written;
    }
    return status;
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

static ls_status run_here(const ls_job *job, int jobs, const char *token, const ls_job_tick *tick,
                          ls_outcome *outcome)
{
    if (job->world > 1 && job->net == NULL) {
        LS_TRY(ls_supervise_check_loopback());
    }
    int ranks = jobs * job->world, port = 0;
    ls_proc_spec *spec = ls_list_make((size_t)ranks, sizeof *spec);
    ls_words *words = ls_list_make((size_t)ranks, sizeof *words);
    ls_words *environment = ls_list_make((size_t)ranks, sizeof *environment);
    ls_words logs = {0, 0, NULL};
    ls_status status = LS_OK;
    for (int i = 0; i < ranks && status == LS_OK; i++) {
        const ls_job *own = &job[i / job->world];
        int rank = i % job->world, last = port;
        while (rank == 0 && port == last && status == LS_OK) {
            port = ls_supervise_free_port();
            status = port != 0 ? LS_OK
                               : ls_log_fail(LS_ERR_INFRA, "job %s: no free port: %s", own->id,
                                             strerror(errno));
        }
        words[i] = words_of(own, rank);
        environment[i] = ls_job_environment(own, rank, port, token);
        ls_words_add(&logs, "%s/rank%d.log", own->directory, rank);
        spec[i] = (ls_proc_spec){.argv = words[i].word,
                                 .environment = environment[i].word,
                                 .log_path = logs.word[i],
                                 .file_bytes_max = own->file_bytes_max};
    }
    LS_THEN(status, run_ranks(job, jobs, spec, tick, outcome));
    for (int i = 0; i < ranks; i++) {
        ls_words_free(&words[i]);
        ls_words_free(&environment[i]);
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
    ls_status status = run_on_machines(job, token, on_tick, context, outcome);
    ls_status written = write_record(job, environment.word, outcome);
    ls_words_free(&environment);
    return status != LS_OK ? status : written;
}

ls_status ls_job_run_together(const ls_job *job, int jobs, const ls_job_tick *tick,
                              ls_outcome *outcome)
{
    char token[33];
    ls_supervise_token(token);
    *outcome = (ls_outcome){.state = LS_OUTCOME_NOT_STARTED, .first_rank = -1};
    for (int k = 0; k < jobs; k++) {
        LS_TRY(check_job(&job[k]));
        LS_TRY(ls_path_make_folder(job[k].directory));
        LS_TRY(remove_leftovers(&job[k]));
    }
    ls_status status = run_here(job, jobs, token, tick, outcome);
    if (status != LS_OK) {
        ls_outcome_free(outcome);
    }
    return status;
}

ls_status ls_job_run(const ls_job *job, void (*on_tick)(void *context), void *context,
                     ls_outcome *outcome, bool *resumed)
{
    LS_TRY(check_job(job));
    *resumed = read_done(job, outcome);
    if (*resumed) {
        return LS_OK;
    }
    if (job->hosts == NULL) {
        const ls_job_tick tick = {.call = on_tick, .context = context};
        return ls_job_run_together(job, 1, &tick, outcome);
    }
    LS_TRY(ls_path_make_folder(job->directory));
    LS_TRY(remove_leftovers(job));
    *outcome = (ls_outcome){.state = LS_OUTCOME_NOT_STARTED, .first_rank = -1};
    char token[33];
    ls_supervise_token(token);
    ls_status status = run_on_hosts(job, token, on_tick, context, outcome);
    if (status != LS_OK) {
        ls_outcome_free(outcome);
    }
    return status;
}
