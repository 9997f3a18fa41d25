/* Simulated nodes with a network of their own (SIM_NET=1, needs root): a network namespace each, a
 * cable from each to one switch, and a shaped link in each node's way out. The ranks of a node
 * reach those of another only through it. */
#ifndef LS_SIMNET_H
#define LS_SIMNET_H

#include <stddef.h>

#include "kernels/core/status.h"

enum {
    LS_SIMNET_NODES_MAX = 64,
    LS_SIMNET_GBIT_PER_S = 10, /* the slowest network that training nodes are sold with */
    LS_SIMNET_DELAY_US = 50,   /* each way: two switches and the hosts' own stacks */
};

typedef struct ls_simnet {
    int nodes, owner; /* owner: the process in whose name the namespaces are made */
    char text[80];    /* "10 Gbit/s, 50 us each way", with what the kernel could not shape */
} ls_simnet;

/* Removes what dead processes have left, then makes the namespaces of this one. LS_ERR_INFRA with
 * one line: not root, `ip` or `tc` missing, or their own text. Nothing is left after an error. */
ls_status ls_simnet_open(int nodes, ls_simnet *out);
void ls_simnet_close(ls_simnet *net);
/* "ls-123-0" */
void ls_simnet_name(const ls_simnet *net, int node, char *text, size_t bytes);
/* "10.213.0.1": seen only inside the namespaces. */
void ls_simnet_address(int node, char *text, size_t bytes);
/* The shell script that makes them; prints "netem" or "tbf", which the kernel has. malloc'ed. */
char *ls_simnet_script(const ls_simnet *net);
/* Removes the namespaces of processes that no longer run. */
void ls_simnet_clean(void);

#endif
