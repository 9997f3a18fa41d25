/* Simulated nodes with a network between them (SIM_NET, needs root): each node has a network
 * namespace, a veth pair to one bridge, and a shaped link for outgoing packets. Ranks of different
 * nodes reach each other only through it. */
#ifndef LS_SIMNET_H
#define LS_SIMNET_H

#include <stddef.h>
#include <stdbool.h>

#include "kernels/core/status.h"

enum {
    LS_SIMNET_NODES_MAX = 64,
    LS_SIMNET_GBIT_PER_S = 10, /* the slowest network of today's training nodes */
    LS_SIMNET_DELAY_US = 50,   /* each way: two switches and the hosts' network stacks */
};

/* A link between machines in words, "25Gbit,10us". */
typedef struct ls_link {
    double bytes_per_s, delay_s;
    bool in_bits; /* the rate is a wire's (Gbit, Mbit), headers included; else GB/s or MB/s */
} ls_link;

/* False where the text is no rate above 0 and delay of 0 or more (us, ms). */
bool ls_simnet_link(const char *text, ls_link *out);

typedef struct ls_simnet {
    int nodes, owner; /* owner: the pid in the names of the namespaces */
    ls_link link;     /* rate 0: the numbers above */
    char text[80];    /* "10 Gbit/s, 50 us each way", or what the kernel could not do */
} ls_simnet;

/* Removes the namespaces of dead processes, then makes those of this one. LS_ERR_INFRA with one
 * line: not root, `ip` or `tc` missing, or their message. After an error no namespace is left.
 * A link of rate 0 is one of 10 Gbit/s and 50 us. */
ls_status ls_simnet_open(int nodes, const ls_link *link, ls_simnet *out);
void ls_simnet_close(ls_simnet *net);
/* The name of a node's namespace: "ls-123-0". */
void ls_simnet_name(const ls_simnet *net, int node, char *text, size_t bytes);
/* A node's address, "10.213.0.1", which is reachable only inside the namespaces. */
void ls_simnet_address(int node, char *text, size_t bytes);
/* The shell script that makes the namespaces, malloc'ed. It prints "netem" or "tbf", whichever the
 * kernel has. */
char *ls_simnet_script(const ls_simnet *net);
/* Removes the namespaces of `owner` or, if it is 0, those of processes that no longer run. */
void ls_simnet_clean(int owner);

#endif
