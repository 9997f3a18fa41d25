#include "job.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness/hosts/supervise.h"
#include "harness/machine/machine.h"

void ls_job_argument(ls_job *job, const char *format, ...)
{
    va_list arguments;
    LS_ASSERT(job->argument_count < LS_JOB_ARGUMENTS_MAX - 1); /* a NULL follows */
    va_start(arguments, format);
    int bytes = vasprintf(&job->argument[job->argument_count], format, arguments);
    va_end(arguments);
    LS_ASSERT(bytes >= 0);
    job->argument_count++;
}

void ls_job_free(ls_job *job)
{
    for (int i = 0; i < job->argument_count; i++) {
        free(job->argument[i]);
        job->argument[i] = NULL;
    }
    job->argument_count = 0;
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

char **ls_job_environment(const ls_job *job, int rank, int port, const char *token)
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
