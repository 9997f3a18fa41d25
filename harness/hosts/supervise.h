/* The core that launcher and job runner share: the environment of a rank, and running N ranks until
 * all have ended, one has failed or the deadline has passed. */
#ifndef LS_SUPERVISE_H
#define LS_SUPERVISE_H

#include "harness/machine/watch_gpu.h"
#include "kernels/core/words.h"
#include "outcome.h"

enum { LS_SUPERVISE_END_GRACE_S = 5 }; /* between TERM and KILL */

/* Where a rank stands. Ranks of a node are contiguous. */
typedef struct ls_supervise_rank_info {
    int rank, world;
    int local_rank, local_world;
    int node;
    bool simulated; /* the nodes are played on this machine: an address and an NCCL host id of its
                       own */
    const char *node_address; /* of a simulated node; NULL: a loopback number of its own */
    const char *master_address;
    int port;
    const char *token;         /* NULL: none is set */
    const char *run_directory; /* NULL: LS_RUN_DIR as inherited */
    int threads; /* OMP_NUM_THREADS; 0: as inherited, else cores / ranks of this machine, at least 1
                  */
    int ranks_here;     /* on this machine */
    bool share_devices; /* ranks may share a GPU: LS_OVERSUBSCRIBE=1 */
} ls_supervise_rank_info;

/* This process's environment with the variables of that rank in place of its own. The caller frees
 * it. */
ls_words ls_supervise_environment(const ls_supervise_rank_info *info);
/* A port on which nobody listens now: bound, never listened on, released. 0 when there is none. */
int ls_supervise_free_port(void);
/* 32 hexadecimal digits. */
void ls_supervise_token(char text[33]);

typedef struct ls_supervise {
    int count;
    const ls_proc_spec *spec; /* [count] */
    double limit_s;           /* of the whole; <= 0: none */
    double grace_s;           /* survivors' time to leave by themselves after the first failure */
    ls_watch_gpu *gpus;       /* read about once a second; may be NULL. Not owned */
    void (*on_tick)(void *context); /* about once a second; may be NULL */
    /* How those that run are asked to end, instead of a signal: they get hang_up_s before TERM.
     * NULL: a signal. */
    void (*hang_up)(void *context);
    double hang_up_s;
    void *context;
} ls_supervise;

/* Starts all, waits, ends what must be ended. The first that failed is the first that ended neither
 * with 0 nor as a victim (LS_ERR_PEER_LOST, LS_ERR_RENDEZVOUS); the first victim when there are
 * only those. Fills the outcome, whose ranks the caller frees with ls_outcome_free. An error is
 * returned, and outcome->state is LS_OUTCOME_NOT_STARTED, when a rank could not be started (the
 * others are ended). */
ls_status ls_supervise_run(const ls_supervise *supervise, ls_outcome *outcome);

#endif
