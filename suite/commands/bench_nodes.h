/* Where a bench's ranks run: this machine, real nodes (NODES, HOSTFILE), or simulated nodes with a
 * network of their own (SIM_NET). */
#ifndef LS_BENCH_NODES_H
#define LS_BENCH_NODES_H

#include "harness/hosts/hosts.h"
#include "harness/hosts/probe.h"
#include "harness/hosts/simnet.h"
#include "harness/run/matrix_bench.h"
#include "suite/run/runner.h"
#include "variables.h"

typedef struct ls_bench_nodes {
    ls_hosts hosts; /* count 0: this machine */
    ls_probe *look; /* [hosts.count] */
    ls_simnet net;  /* nodes 0: none */
} ls_bench_nodes;

/* Reads NODES, HOSTFILE, SIM_NODES and SIM_NET; does not contact any host. */
ls_status ls_bench_nodes_read(const ls_variables *given, ls_bench_nodes *out);
/* Looks at the hosts, or at this machine: fills matrix->ranks, hosts, cores, *device and how many
 * GPUs a machine's ranks can have. */
ls_status ls_bench_nodes_place(ls_bench_nodes *nodes, const ls_variables *given,
                               ls_matrix_bench *matrix, const char **device, int *devices);
/* Cases of nodes are judged on real ones where there are as many. */
void ls_bench_nodes_use(const ls_bench_nodes *nodes, ls_case_list *cases);
/* SIM_NET=1: makes the network of the jobs' simulated nodes and sets it in the run. */
ls_status ls_bench_nodes_connect(ls_bench_nodes *nodes, const ls_variables *given, ls_run *run);
/* The report's line of where it ran, text[96], and what run.json keeps. */
void ls_bench_nodes_describe(const ls_bench_nodes *nodes, const ls_matrix_bench *matrix,
                             const char *device, char *text);
void ls_bench_nodes_record(const ls_bench_nodes *nodes, cJSON *options);
void ls_bench_nodes_free(ls_bench_nodes *nodes);

#endif
