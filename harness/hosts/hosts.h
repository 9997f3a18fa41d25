/* The machines of a job on several machines and how to reach them, from NODES=a,b, from HOSTFILE,
 * or from the Slurm allocation that this program runs in. */
#ifndef LS_HOSTS_H
#define LS_HOSTS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/core/status.h"

enum {
    LS_HOSTS_MAX = 256,
    LS_HOSTS_RANKS_MAX = 1024, /* of one job, on all of its hosts */
    LS_HOSTS_NAME_BYTES = 128,
    LS_HOSTS_PORTS_MAX = 64,
};

typedef enum ls_hosts_by { LS_HOSTS_SSH, LS_HOSTS_SRUN } ls_hosts_by;

typedef struct ls_host {
    char name[LS_HOSTS_NAME_BYTES]; /* as given: "a", "user@a", an address */
    int slots;                      /* the most ranks it takes; 0: not given */
    /* filled by ls_probe_hosts: where its programs are, if it does not share this disk; else "" */
    char programs[256];
} ls_host;

typedef struct ls_hosts {
    ls_hosts_by by;
    int count;
    ls_host host[LS_HOSTS_MAX];
    /* filled by ls_probe_hosts */
    char master_address[LS_HOSTS_NAME_BYTES]; /* where the others reach host 0 */
    int port_count, port_next;
    int port[LS_HOSTS_PORTS_MAX]; /* free on host 0; jobs use them in turn */
} ls_hosts;

/* Parses NODES="a,b". Names consist of letters, digits and ._:@%-, do not start with a dash and
 * must be different. LS_ERR_USAGE names the wrong one. */
ls_status ls_hosts_parse_list(const char *text, ls_hosts *out);
/* Parses one host per line, "a slots=4"; # starts a comment. LS_ERR_USAGE names file and line. */
ls_status ls_hosts_parse_text(const char *path, const char *text, ls_hosts *out);
ls_status ls_hosts_read_file(const char *path, ls_hosts *out);
/* The nodes of the Slurm allocation (SLURM_JOB_NODELIST, expanded by scontrol). LS_ERR_USAGE
 * outside one; LS_ERR_INFRA when scontrol does not answer. */
ls_status ls_hosts_read_slurm(ls_hosts *out);
/* By a hostfile, or names: a list or "slurm"; one of them is not NULL. */
ls_status ls_hosts_read(const char *names, const char *file, ls_hosts *out);
/* Ranks per host: `wanted` unless 0, else the hosts' slots, else 0 (not given). LS_ERR_USAGE when
 * the slots differ or are fewer than wanted. */
ls_status ls_hosts_ranks(const ls_hosts *hosts, int wanted, int *ranks);
/* Whether one of them does not share this disk. */
bool ls_hosts_any_apart(const ls_hosts *hosts);
/* Text of the hosts without their users: "a, b" or "a, b and 6 more". */
void ls_hosts_describe(const ls_hosts *hosts, char *text, size_t bytes);

#endif
