/* Which rank of which job this process is, read from the environment: torchrun's names first
 * (lockstep-launch sets the same), else those of MPI's launchers and Slurm
 * (harness/hosts/launchers.h); with none of them a world of one. */
#ifndef LS_WORLD_H
#define LS_WORLD_H

#include <stdbool.h>

#include "kernels/core/status.h"
#include "options.h"

typedef struct ls_world {
    int rank, world;
    int local_rank, local_world;     /* on this machine (or simulated node) */
    int machine_rank, machine_world; /* on this machine: simulated nodes share one */
    int node;                        /* GROUP_RANK */
    bool oversubscribe;              /* LS_OVERSUBSCRIBE=1: ranks may share a GPU */
    char address[256];               /* of rank 0; "" in a world of one */
    int port;
    bool probe;           /* the port is torchrun's agent's: the store takes one of the next 16 */
    int restart;          /* TORCHELASTIC_RESTART_COUNT: how often the ranks were started again */
    char run_id[256];     /* secret or id of the job and the restart; "" when there is none */
    char run_dir[512];    /* LS_RUN_DIR; "" when not set */
    const char *launcher; /* ls_launcher's name, or "none": whose variables were found */
} ls_world;

/* Reads and checks everything. LS_ERR_USAGE, naming variable and value, for a number that is none,
 * a rank outside its world, a half-set pair, launchers that contradict each other, or a world of
 * several without an address, or on several machines at a loopback address. */
ls_status ls_world_read(ls_world *out);

/* The values of --dist-url, as torch.distributed.init_process_group takes them:
 *
 *   env://           torchrun's variables; --world-size and --rank stand for those that are not set
 *   tcp://HOST:PORT  of rank 0. FREEPORT, as the tutorial writes it, is a free one where one node
 *                    starts all ranks
 *   file://PATH      rank 0 writes address, port and a secret of this job to PATH, readable by its
 *                    user only; what an earlier job left there is replaced
 */

typedef struct ls_dist_url {
    char kind; /* 'e'nv, 't'cp, 'f'ile */
    char host[256];
    int port; /* 0: FREEPORT */
    char path[512];
} ls_dist_url;

/* "" is env://. LS_ERR_USAGE, in one line, for another form. `out` may be NULL. */
ls_status ls_dist_url_parse(const char *text, ls_dist_url *out);

/* The start of PyTorch's ImageNet script (examples/imagenet/main.py): --dist-url, --world-size,
 * --rank and --multiprocessing-distributed, turned into torchrun's variables, which world.h reads.
 */

/* Before ls_world_read. With --multiprocessing-distributed the process becomes lockstep-launch,
 * which starts this program once for each device; returns in those, with their share of the batch,
 * and where that fails. LS_ERR_USAGE where a variable says something else, LS_ERR_RENDEZVOUS where
 * no file appears in --timeout seconds. */
ls_status ls_dist_apply(ls_options *options, char **argv);

/* An option stands for a variable that is not set, and must equal one that is. -1: not given. */
ls_status ls_dist_stand_for(const char *option, int given, const char *name);

#endif
