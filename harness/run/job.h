/* One job: the command of a subject, run by N ranks on M (simulated) nodes. The harness starts the
 * subject and reads the files that it writes, and never links it. */
#ifndef LS_JOB_H
#define LS_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"
#include "kernels/core/text.h"
#include "harness/hosts/hosts.h"
#include "harness/hosts/outcome.h"
#include "harness/hosts/simnet.h"
#include "harness/process/proc.h"

typedef struct ls_job {
    char id[96];    /* stable: "o2.w4.n2.b5mb.s30-1f3a" (main factors, digest of the whole spec) */
    char label[64]; /* for people: "O2, 4 ranks, 2 nodes, 5 MB" */
    int world, local_nodes;
    ls_hosts *hosts; /* NULL: the ranks run here; else on its first host_count hosts, equally many
                        on each, through ssh or srun. Probed (remote.h); not owned */
    int host_count;
    const ls_simnet *net; /* network namespaces of the local nodes; NULL: the loopback. Not owned */
    int threads;          /* OMP_NUM_THREADS of each rank; 0: cores / ranks, at least 1 */
    ls_words command;     /* the subject's command and options */
    const char *run_directory;   /* whose files its command names; NULL: its own. Not owned */
    char directory[512];         /* jobs/<id>, absolute; LS_RUN_DIR of the ranks */
    int64_t file_bytes_max;      /* limit of each file that a rank writes; 0: none */
    double limit_s;              /* deadline of the whole job */
    double grace_s;              /* time for the survivors to exit after the first failure */
    bool share_devices;          /* LS_OVERSUBSCRIBE=1 in the ranks' environment */
    struct ls_watch_gpu *gpus;   /* monitored while it runs here; NULL: none. Not owned */
    ls_fork_server *fork_server; /* of the subject, for ranks that run here; NULL: none. Not owned
                                  */
    struct cJSON *facts; /* object that job.json gets as "facts" (role and factors); owned */
} ls_job;

void ls_job_free(ls_job *job);
/* The number of nodes, including simulated ones. */
int ls_job_nodes(const ls_job *job);
/* The environment of one rank (for `lockstep jobs` and for running): torchrun's names, LS_RUN_DIR,
 * LS_TOKEN. The caller frees it. */
ls_words ls_job_environment(const ls_job *job, int rank, int port, const char *token);

/* Runs the job until all ranks have ended, one has failed or the deadline has passed. Writes
 * rank<k>.log and, at the end, <directory>/job.json (command, environment without LS_TOKEN,
 * outcome). A job whose job.json says "done" is not run again: `resumed` is set and the outcome is
 * read back. on_tick (may be NULL) is called about once a second for a progress line. */
ls_status ls_job_run(const ls_job *job, void (*on_tick)(void *context), void *context,
                     ls_outcome *outcome, bool *resumed);

typedef struct ls_job_tick {
    void (*call)(void *context); /* may be NULL */
    void *context;
    double each_s; /* 0: about once a second */
} ls_job_tick;
/* Runs jobs of the same world on this machine, at the same time, as one group, which the first
 * failure ends: outcome->rank has those of the first job, then those of the next. It is filled from
 * the start on, so that `tick` can stop ranks (SIGSTOP) and continue them. Each job gets its
 * job.json; none is read back. */
ls_status ls_job_run_together(const ls_job *job, int jobs, const ls_job_tick *tick,
                              ls_outcome *outcome);

/* Whether ls_job_run would read the outcome back. */
bool ls_job_is_done(const ls_job *job);

#endif
