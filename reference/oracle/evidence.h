/* One step's dumps of all ranks, in the form that the oracle takes. */
#ifndef LS_ORACLE_EVIDENCE_H
#define LS_ORACLE_EVIDENCE_H

#include "dumpfile.h"
#include "oracle.h"

typedef struct ls_evidence {
    int world;          /* ranks whose dumps these are */
    int *batch;         /* [world] */
    ls_dumpfile **file; /* [world] */
    ls_nettab net;
    ls_oracle_step step; /* net, world, accumulate, batch (each rank's own), input, target and param
                            are filled */
    double *param, *grad; /* [net.elements]; grad is rank 0's grad/<name> */
    bool has_branches;    /* a rank has branch/: then all must have all of them */
} ls_evidence;

/* path[count] of the ranks that had a batch, rank[count] in increasing order, of a world of
 * `world`; rank NULL: of all. arch NULL: from the metadata. LS_ERR_USAGE with one line for a wrong
 * rank or world, a missing tensor or one of the wrong shape. */
ls_status ls_evidence_load_part(const char *arch, int world, int count, const int *rank,
                                const char *const *path, ls_evidence **out);
void ls_evidence_free(ls_evidence *evidence);

/* The first parameter whose bytes under <prefix>/ differ between rank 0 and `rank`, or that one of
 * them lacks; -1 if all are equal, and where `rank` has nothing under <prefix>/. */
int ls_evidence_differs(const ls_evidence *evidence, const char *prefix, int rank);
/* Parameters in the order in which backward reaches them: order[net.param_count]. */
void ls_evidence_backward_order(const ls_nettab *net, int *order);

#endif
