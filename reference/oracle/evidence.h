/* One step's dumps of all ranks, as the oracle takes them. */
#ifndef LS_ORACLE_EVIDENCE_H
#define LS_ORACLE_EVIDENCE_H

#include "dumpfile.h"
#include "oracle.h"

typedef struct ls_evidence {
    int world;
    int *batch;         /* [world] */
    ls_dumpfile **file; /* [world] */
    ls_nettab net;
    ls_oracle_step step; /* net, world, accumulate, batch (each rank's own), input, target and param
                            are filled */
    double *param, *grad; /* [net.elements]; grad is rank 0's grad/<name> */
    bool has_branches;    /* every rank has branch/000 */
} ls_evidence;

/* path[world] in order of rank. arch NULL: the metadata's. LS_ERR_USAGE with one line for a rank
 * whose number or world does not fit, a missing tensor or one of another shape. */
ls_status ls_evidence_load(const char *arch, int world, const char *const *path, ls_evidence **out);
void ls_evidence_free(ls_evidence *evidence);

/* First parameter whose bytes under <prefix>/ differ between rank 0 and `rank`; -1 when all are
 * equal. A tensor that `rank` lacks is equal. */
int ls_evidence_differs(const ls_evidence *evidence, const char *prefix, int rank);
/* Parameters in the order in which backward reaches them: order[net.param_count]. */
void ls_evidence_backward_order(const ls_nettab *net, int *order);

#endif
