/* A bench's settings, given as NAME=value, and the plan that follows from them: matrix, jobs,
 * cases, folder. */
#ifndef LS_BENCH_PLAN_H
#define LS_BENCH_PLAN_H

#include "harness/run/matrix_bench.h"
#include "suite/run/runner.h"
#include "variables.h"
#include "harness/hosts/hosts.h"
#include "harness/hosts/probe.h"
#include "harness/hosts/simnet.h"

typedef struct ls_bench_nodes {
    ls_hosts hosts;  /* count 0: this machine */
    ls_probe *probe; /* [hosts.count] */
    ls_simnet net;   /* nodes 0: none */
} ls_bench_nodes;

typedef struct ls_bench {
    ls_variables given;
    ls_matrix_bench matrix;
    ls_run run;
    bool dry_run, made_data; /* made_data: drawn by us where it is not there */
    ls_bench_nodes nodes;
} ls_bench;

/* Prints `usage` and the variables where --help is among the words. */
bool ls_bench_plan_helped(const char *usage, int count, char **argument);
/* Everything up to the plan; nothing is written. To be freed after a failure, too. */
ls_status ls_bench_plan_make(ls_bench *b, int count, char **argument);
/* The version of PROFILE=rated, NULL under other profiles. */
const char *ls_bench_plan_rated(const ls_bench *b);
/* SIM_NET=1: makes the network of the simulated nodes and adds it to the run. */
ls_status ls_bench_nodes_connect(ls_bench_nodes *nodes, const ls_variables *given, ls_run *run);
void ls_bench_plan_free(ls_bench *b);

#endif
