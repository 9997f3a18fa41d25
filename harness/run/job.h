/* One job: a subject's command run by N ranks on M (simulated) nodes until all have ended, one has
 * failed or the deadline has passed. The harness starts it, feeds it and reads what it wrote; it
 * never links it. */
#ifndef LS_JOB_H
#define LS_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"
#include "harness/hosts/hosts.h"
#include "harness/process/proc.h"
#include "harness/hosts/simnet.h"

enum { LS_JOB_ARGUMENTS_MAX = 160, LS_JOB_RANKS_MAX = 1024 };

typedef struct ls_job {
    char id[96]; /* stable and readable: "o2.w4.n2.b5mb.s30-1f3a" (label + digest of what is run) */
    char label[64]; /* for people: "O2, 4 ranks, 2 nodes, 5 MB" */
    int world, local_nodes;
    ls_hosts *hosts; /* NULL: the ranks run here; else on its first host_count hosts, as many
                               on each, over ssh or srun. Looked at (probe.h); not owned */
    int host_count;
    const ls_simnet
        *net;    /* local nodes have namespaces of their own; NULL: the loopback. Not owned */
    int threads; /* OMP_NUM_THREADS of each rank; 0: cores / ranks, at least 1 */
    int argument_count;
    char *argument[LS_JOB_ARGUMENTS_MAX]; /* the subject's command and options, malloc'ed */
    char directory[512];                  /* jobs/<id>, absolute; LS_RUN_DIR of the ranks */
    int64_t file_bytes_max;               /* no file of a rank may grow longer; 0: no limit */
    double limit_s;                       /* deadline of the whole job */
    double grace_s;            /* survivors' time to leave by themselves after the first failure */
    bool share_devices;        /* LS_OVERSUBSCRIBE=1 in the ranks' environment */
    struct ls_watch_gpu *gpus; /* watched while it runs here; NULL: none. Not owned */
    struct cJSON *facts; /* object copied into job.json as "facts" (role and factors); owned */
} ls_job;

typedef enum ls_job_state {
    LS_JOB_DONE,   /* every rank exited 0 */
    LS_JOB_FAILED, /* a rank exited with another code */
    LS_JOB_KILLED, /* a rank was ended by a signal that was not ours */
    LS_JOB_TIMED_OUT,
    LS_JOB_STOPPED,     /* we were asked to stop */
    LS_JOB_NOT_STARTED, /* infrastructure */
} ls_job_state;

typedef struct ls_job_outcome {
    ls_job_state state;
    int first_rank;   /* the first that failed; -1. One that only lost its peer (codes 10, 11) gives
                         way to one that failed by itself within the grace */
    int code, signal; /* of the first that failed */
    int64_t started_ns, ended_ns;
    int64_t rss_bytes_max; /* largest peak of one rank */
    double user_s, system_s;
    int rank_count;
    ls_proc *rank; /* malloc'ed, [rank_count] */
} ls_job_outcome;

/* Runs it; writes <directory>/job.json (command, environment without LS_TOKEN, outcome) when it has
 * ended, and rank<k>.log. A job whose job.json says done is not run again: `resumed` is set and the
 * outcome read back. on_tick (may be NULL) is called about once a second for a progress line. */
ls_status ls_job_run(const ls_job *job, void (*on_tick)(void *context), void *context,
                     ls_job_outcome *outcome, bool *resumed);
void ls_job_outcome_free(ls_job_outcome *outcome);
void ls_job_free(ls_job *job);
/* Appends a copy of one argument (printf style). */
void ls_job_argument(ls_job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The environment of one rank as NAME=value strings (for `lockstep jobs` and for running):
 * torchrun's names, LS_RUN_DIR, LS_TOKEN. malloc'ed, NULL-terminated, each malloc'ed. */
char **ls_job_environment(const ls_job *job, int rank, int port, const char *token);

#endif
