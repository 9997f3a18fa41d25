#include "dataset.h"

#include <stdlib.h>

#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/rng.h"

/* Drops batches at the end of the epoch that do not make a whole step. */
static ls_status plan(ls_dataset *dataset, int64_t batch, int64_t *epoch, int64_t *index)
{
    ls_dataset_listed *listed = (ls_dataset_listed *)dataset;
    int64_t per_epoch = listed->base.steps_per_epoch * listed->accumulate;
    *epoch = batch / per_epoch;
    if (*epoch != listed->epoch) {
        ls_dataset_epoch(&listed->sampler, *epoch, listed->order);
        listed->epoch = *epoch;
    }
    for (int i = 0; i < listed->batch_size; i++) {
        index[i] = listed->order[batch % per_epoch * listed->batch_size + i];
    }
    return LS_OK;
}

static ls_status plan_validation(ls_dataset *dataset, int64_t batch, int64_t *epoch, int64_t *index)
{
    const ls_dataset_listed *listed = (const ls_dataset_listed *)dataset;
    int64_t first = batch % listed->base.steps_per_epoch * listed->batch_size;
    *epoch = 0;
    for (int i = 0; i < listed->batch_size; i++) {
        int64_t at = listed->sampler.rank + (first + i) * listed->sampler.world;
        index[i] = at < listed->sampler.count ? at : LS_DATASET_BLACK;
    }
    return LS_OK;
}

static void describe_validation(ls_dataset_listed *listed)
{
    const ls_sampler *sampler = &listed->sampler;
    ls_dataset *base = &listed->base;
    base->images = (sampler->count - sampler->rank + sampler->world - 1) / sampler->world;
    base->steps_per_epoch = (base->images + listed->batch_size - 1) / listed->batch_size;
    base->plan = plan_validation;
}

ls_status ls_dataset_listed_open(const ls_loader_options *options, const char *dir, int64_t count,
                                 ls_dataset_listed *out)
{
    *out = (ls_dataset_listed){
        .sampler = {.count = count,
                    .rank = LS_PLANT(rank_0_shard_everywhere, options->rank, 0),
                    .world = options->world,
                    .shuffle = true,
                    .no_pad = options->no_pad,
                    .seed = options->seed},
        .epoch = -1,
        .batch_size = options->batch_size,
        .accumulate = options->accumulate,
        .image_size = options->image_size,
        .seed = options->seed,
        .validates = options->validates,
    };
    int64_t length = ls_dataset_length(&out->sampler);
    int batch = options->no_pad ? options->batch_size : options->largest_batch;
    out->base.items = options->batch_size;
    out->base.pictures = count;
    if (options->validates) {
        describe_validation(out);
        return LS_OK;
    }
    out->base.images = length;
    out->base.steps_per_epoch = length / ((int64_t)batch * options->accumulate);
    out->base.plan = plan;
    if (out->base.steps_per_epoch == 0) {
        return ls_log_fail(
            LS_ERR_USAGE, "%s has %lld images, %lld for each of %d ranks, but a step needs %d", dir,
            (long long)count, (long long)length, options->world, batch * options->accumulate);
    }
    out->order = malloc((size_t)length * sizeof *out->order);
    LS_MEMORY(out->order != NULL);
    return LS_OK;
}

void ls_dataset_listed_close(ls_dataset_listed *listed)
{
    free(listed->order);
    listed->order = NULL;
}

/* ---- the sampler ----------------------------------------------------------------------------- */

int64_t ls_dataset_length(const ls_sampler *sampler)
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

void ls_dataset_epoch(const ls_sampler *sampler, int64_t epoch, int64_t *index)
{
    LS_ASSERT(sampler->count > 0 && sampler->rank >= 0 && sampler->rank < sampler->world);
    int64_t length = ls_dataset_length(sampler);
    int64_t *order = NULL;
    if (sampler->shuffle) {
        order = malloc((size_t)sampler->count * sizeof *order);
        LS_MEMORY(order != NULL);
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
}
