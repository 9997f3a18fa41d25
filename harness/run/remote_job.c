#include "remote_job.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/hosts/remote.h"
#include "harness/hosts/remote_session.h"
#include "harness/hosts/supervise.h"
#include "kernels/core/log.h"
#include "kernels/core/text.h"

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
    ls_remote_launcher(path, sizeof path);
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

static ls_status open_channels(const ls_job *job, const char *token, ls_remote *out)
{
    ls_hosts *hosts = job->hosts;
    LS_ASSERT(hosts->port_count > 0);
    int port = hosts->port[hosts->port_next++ % hosts->port_count];
    ls_words *command = calloc((size_t)job->host_count, sizeof *command);
    LS_ASSERT(command != NULL);
    for (int k = 0; k < job->host_count; k++) {
        command[k] = launcher_words(job, k, port);
    }
    cJSON *order =
        ls_remote_session_order(token, job->directory, job->threads, hosts->by == LS_HOSTS_SSH);
    ls_status status = ls_remote_open(hosts, job->host_count, command, order, job->directory, out);
    cJSON_Delete(order);
    for (int k = 0; k < job->host_count; k++) {
        ls_words_free(&command[k]);
    }
    free(command);
    return status;
}

/* ---- one outcome ---------------------------------------------------------------------------- */

/* The first failure so far: the earliest, but a rank that failed by itself replaces one that only
 * lost its peer. */
typedef struct blame {
    bool any, victim;
    int64_t ended_ns;
} blame;

static void consider(ls_outcome *out, blame *b, int rank, const ls_outcome *node,
                     int64_t started_ns)
{
    bool victim =
        node->signal == 0 && (node->code == LS_ERR_PEER_LOST || node->code == LS_ERR_RENDEZVOUS);
    int64_t ended_ns = started_ns + node->rank[node->first_rank].ended_ns;
    bool better =
        !b->any || (b->victim && !victim) || (b->victim == victim && ended_ns < b->ended_ns);
    if (better) {
        *b = (blame){.any = true, .victim = victim, .ended_ns = ended_ns};
        out->first_rank = rank;
        out->why[0] = '\0';
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
        char why[sizeof out->why];
        ls_text_put(why, sizeof why, " ended without a report (%s %d)%s%s",
                    channel->signal != 0 ? "signal" : "exit code",
                    channel->signal != 0 ? channel->signal : channel->code,
                    said[0] != '\0' ? ": " : "", said);
        blame_host(job, k, LS_OUTCOME_FAILED, channel->ended_ns, why, out, b);
    }
}

static void put_together(const ls_job *job, const ls_outcome *channels, ls_outcome *out)
{
    int per_host = job->world / job->host_count;
    blame b = {.any = false};
    char said[300];
    *out = (ls_outcome){.state = LS_OUTCOME_DONE,
                        .first_rank = -1,
                        .started_ns = channels->started_ns,
                        .ended_ns = channels->ended_ns,
                        .rank_count = job->world};
    out->rank = calloc((size_t)job->world, sizeof *out->rank);
    LS_ASSERT(out->rank != NULL);
    for (int k = 0; k < job->host_count; k++) {
        ls_outcome node;
        cJSON *report = ls_remote_report(job->directory, k, "node", said, sizeof said);
        const cJSON *reported = cJSON_GetObjectItemCaseSensitive(report, "outcome");
        if (reported == NULL || !ls_outcome_read(reported, k * per_host, per_host, &node)) {
            take_lost(job, channels, k, said, out, &b);
            cJSON_Delete(report);
            continue;
        }
        memcpy(&out->rank[k * per_host], node.rank, (size_t)per_host * sizeof *node.rank);
        if (node.state == LS_OUTCOME_NOT_STARTED) {
            char why[sizeof out->why];
            ls_text_put(why, sizeof why, ": %s", said);
            blame_host(job, k, node.state, channels->rank[k].ended_ns, why, out, &b);
        } else if (node.first_rank >= 0 && node.state != LS_OUTCOME_STOPPED) {
            consider(out, &b, k * per_host + node.first_rank, &node, channels->rank[k].started_ns);
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
    DIR *opened = opendir(folder);
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

ls_status ls_remote_job_run(const ls_job *job, const char *token, void (*on_tick)(void *),
                            void *context, ls_outcome *outcome)
{
    running r = {.on_tick = on_tick, .context = context};
    *outcome = (ls_outcome){.state = LS_OUTCOME_NOT_STARTED, .first_rank = -1};
    remove_logs(job);
    LS_TRY(open_channels(job, token, &r.remote));
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
    ls_status status = ls_supervise_run(&supervise, &channels);
    ls_remote_close(&r.remote);
    if (status == LS_OK) {
        refresh_cache(job->directory);
        put_together(job, &channels, outcome);
    }
    ls_outcome_free(&channels);
    return status;
}
