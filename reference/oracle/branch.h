/* ReLU and max-pool branches of a step in the oracle's order, and a reader for dumps. */
#ifndef LS_ORACLE_BRANCH_H
#define LS_ORACLE_BRANCH_H

#include <stdint.h>

#include "kernels/core/status.h"
#include "dumpfile.h"
#include "nettab.h"
#include "shards.h"

/* Samples in the order of shards.h; elements of a sample in the order row, column, channel. */
typedef struct ls_branch_set {
    int count;         /* of the network's branches; 0: empty */
    uint8_t **open;    /* [count] ReLU: 1 if the output is above zero; NULL for a pool */
    int32_t **index;   /* [count] pool: row*width+column in the input plane; NULL for a ReLU */
    int64_t *elements; /* [count] over all samples */
} ls_branch_set;

void ls_branch_allocate(const ls_nettab *net, int64_t samples, ls_branch_set *out);
void ls_branch_free(ls_branch_set *set);

/* Reads branch/<kkk> of every rank's dump. ReLU: U8, bit i%8 of byte i/8, NCHW order of [N,C,H,W];
 * max-pool: I32 [N,C,H,W]; with accumulation both have a leading dimension [A], each micro-step's
 * bits starting on a fresh byte. LS_ERR_USAGE, naming file and branch, if one is missing or has the
 * wrong size. */
ls_status ls_branch_read(const ls_nettab *net, const ls_shards *shards, ls_dumpfile *const *file,
                         ls_branch_set *out);

#endif
