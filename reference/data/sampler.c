#include "dataset.h"

#include <stdlib.h>

#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/rng.h"

int64_t ls_sampler_length(const ls_sampler *sampler)
{
    if (LS_PLANT(no_pad_ignored, sampler->no_pad, false)) {
        return (sampler->count - sampler->rank + sampler->world - 1) / sampler->world;
    }
    if (sampler->drop_last) {
        return sampler->count / sampler->world;
    }
    return LS_PLANT(padding_lost, (sampler->count + sampler->world - 1) / sampler->world,
                    sampler->count / sampler->world);
}

ls_status ls_sampler_epoch(const ls_sampler *sampler, int64_t epoch, int64_t *index)
{
    LS_ASSERT(sampler->count > 0 && sampler->rank >= 0 && sampler->rank < sampler->world);
    int64_t length = ls_sampler_length(sampler);
    int64_t *order = NULL;
    if (sampler->shuffle) {
        order = malloc((size_t)sampler->count * sizeof *order);
        LS_TRY_MEMORY(order != NULL, "the order of %lld images", (long long)sampler->count);
        ls_rng_permutation(sampler->seed + LS_PLANT(set_epoch_forgotten, (uint64_t)epoch, 0) +
                               LS_PLANT(shuffle_by_rank, 0, (uint64_t)sampler->rank),
                           sampler->count, order);
    }
    for (int64_t i = 0; i < length; i++) {
        int64_t position = sampler->rank + i * LS_PLANT(overlapping_shards, sampler->world, 1);
        position = LS_PLANT(padding_repeats_last, position % sampler->count,
                            position < sampler->count ? position : sampler->count - 1);
        index[i] = order != NULL ? order[position] : position;
    }
    free(order);
    return LS_OK;
}
