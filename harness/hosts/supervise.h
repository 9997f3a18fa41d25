/* Starts and supervises N ranks until all have ended, one has failed or the deadline has passed,
 * and builds the environment of a rank. Shared by the launcher and by job.c. */
#ifndef LS_SUPERVISE_H
#define LS_SUPERVISE_H

#include "harness/machine/findings.h"
#include "harness/process/proc.h"
#include "harness/process/waiting.h"
#include "kernels/core/text.h"
#include "outcome.h"

enum { LS_SUPERVISE_END_GRACE_S = 5 }; /* between TERM and KILL */

/* The position of a rank. The ranks of a node are consecutive. */
typedef struct ls_supervise_rank_info {
    int rank, world;
    int local_rank, local_world;
    int node;
    bool simulated; /* the nodes are simulated on this machine, each with an address and NCCL host
                       id */
    const char *node_address; /* of a simulated node; NULL: a loopback address per node */
    const char *master_address;
    int port;
    const char *token;         /* NULL: none is set */
    const char *run_directory; /* NULL: LS_RUN_DIR as inherited */
    int threads; /* OMP_NUM_THREADS; 0: as inherited, else cores / ranks of this machine, at least 1
                  */
    int ranks_here;            /* on this machine */
    bool share_devices;        /* ranks may share a GPU: LS_OVERSUBSCRIBE=1 */
    int restart, restarts_max; /* TORCHELASTIC_RESTART_COUNT and _MAX_RESTARTS */
} ls_supervise_rank_info;

/* This process's environment with the variables of that rank in place of its own. The caller frees
 * it. */
ls_words ls_supervise_environment(const ls_supervise_rank_info *info);
/* A free port: bound, never listened on, released. 0 when there is none. */
int ls_supervise_free_port(void);
/* LS_ERR_INFRA where ranks of this machine cannot connect to each other (a network name space whose
 * loopback is down): they would try until their deadline. */
ls_status ls_supervise_check_loopback(void);
/* 32 hexadecimal digits. */
void ls_supervise_token(char text[33]);

typedef struct ls_supervise {
    int count;
    const ls_proc_spec *spec;    /* [count] */
    ls_fork_server *fork_server; /* starts those that it can; may be NULL. Not owned */
    double limit_s;              /* of the whole; <= 0: none */
    double grace_s;              /* time for the survivors to exit after the first failure, and
                                    where it is more than END_GRACE, after a stop signal */
    ls_waiting *waiting;         /* says what the ranks wait for; may be NULL. Not owned; its cause
                                    is that of the deadline */
    ls_watch_gpu *gpus;          /* read about once a second; may be NULL. Not owned */
    void (*on_tick)(void *context); /* each tick_s; may be NULL */
    double tick_s;                  /* 0: about once a second */
    /* Asks the running processes to end, in place of a signal; they get hang_up_s before TERM.
     * NULL: a signal. */
    void (*hang_up)(void *context);
    double hang_up_s;
    void *context;
} ls_supervise;

/* Starts all processes, waits, and ends those that must be ended. The first failure is the first
 * process that ended neither with 0 nor as a victim (LS_ERR_PEER_LOST, LS_ERR_RENDEZVOUS), or the
 * first victim when there are only those. Fills the outcome; the caller frees it with
 * ls_outcome_free. When a process cannot be started, the others are ended, outcome->state is
 * LS_OUTCOME_NOT_STARTED and the error is returned. */
ls_status ls_supervise_run(const ls_supervise *supervise, ls_outcome *outcome);

#endif
