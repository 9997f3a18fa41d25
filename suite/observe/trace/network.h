/* The network of a dump run again, for trainers of the subject protocol: what the attach module's
 * copy of a user's module is to a job in PyTorch (events.md, "Again in FP64"). */
#ifndef LS_NETWORK_H
#define LS_NETWORK_H

#include "reference/oracle/evidence.h"
#include "samples.h"

/* One step of the ranks that wrote whole dumps. */
typedef struct ls_network {
    ls_evidence *evidence; /* NULL: it was not run again, and why */
    char why[200];
    int *rank;                 /* [evidence->world] of the job */
    bool forced;               /* the dumps have the branches that the job took: so does FP64 */
    ls_oracle_result *exact;   /* FP64, [evidence->world], or of all ranks: [1] */
    ls_oracle_result *rounded; /* the same with a rounding wherever a value is stored: in the types
                                  of the dump's level where forced, else in f32 */
    bool each; /* every micro-step is reduced: what a rank had before the last one is the mean */
    bool together; /* ranks share statistics: results are of all of them */
} ls_network;

/* Runs the step again; out->evidence is NULL where it cannot be done. */
void ls_network_run(const ls_samples *samples, ls_network *out);
void ls_network_free(ls_network *network);
/* The index of the job's rank among the dumps, or -1. */
int ls_network_index(const ls_network *network, int rank);
/* The gradient of a parameter on that rank, of FP64 or the rounded run; .v is NULL where there is
 * none. */
ls_values ls_network_gradient(const ls_network *network, int index, bool exact, const char *name);
/* What the job gave: its own gradient before the reduction, or with one rank, or where no such is
 * in the dump, what was reduced. */
ls_values ls_network_given(const ls_network *network, int index, const char *name);
/* A running mean (kind 0) or variance (1) of the batch norm `node` after the step, on that rank:
 * how far it is from the one before and FP64's moments of the batch, how far storing in the job's
 * types puts those, and the rounding of the update. */
typedef struct ls_network_statistic {
    char name[96];
    double off, cost, rounding;
} ls_network_statistic;
/* False where the node is no batch norm, or the dump does not hold both. */
bool ls_network_statistics(const ls_network *network, int index, int node, int kind,
                           ls_network_statistic *out);
/* The rounding of the type that the dump's level multiplies in. */
double ls_network_rounding(const ls_network *network);

#endif
