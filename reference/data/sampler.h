/* The images of a rank in an epoch: torch.utils.data.DistributedSampler, including its permutation.
 */
#ifndef LS_SAMPLER_H
#define LS_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/core/status.h"

typedef struct ls_sampler {
    int64_t count; /* images of the data set, at least 1 */
    int rank, world;
    bool shuffle;
    bool drop_last; /* drop the remainder of a division by world instead of padding */
    bool no_pad;    /* neither: ranks have as many as there are, the first ones one more */
    uint64_t seed;  /* the epoch is added to it */
} ls_sampler;

/* Images of this rank in an epoch: ceil(count / world), floor with drop_last; with no_pad
 * ceil((count
 * - rank) / world). */
int64_t ls_sampler_length(const ls_sampler *sampler);
/* Writes this rank's images of an epoch, ls_sampler_length of them. Rank r takes positions r, r+W,
 * ... of the order, which is padded from its own start. LS_ERR_INFRA without memory. */
ls_status ls_sampler_epoch(const ls_sampler *sampler, int64_t epoch, int64_t *index);

#endif
