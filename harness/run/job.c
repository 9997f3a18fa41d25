#include "job.h"

#include <cjson/cJSON.h>

#include "harness/hosts/supervise.h"
#include "harness/machine/machine.h"

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

static int threads_of(const ls_job *job)
{
    int shared = ls_machine_cores() / job->world;
    return job->threads > 0 ? job->threads : (shared > 1 ? shared : 1);
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
        .threads = threads_of(job),
        .ranks_here = job->world,
        .share_devices = job->share_devices,
    };
    return ls_supervise_environment(&rank_info);
}
