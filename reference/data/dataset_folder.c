#include "dataset.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"
#include "picture.h"
#include "sampler.h"
#include "transform.h"

typedef struct folder_set {
    ls_dataset base;
    ls_dataset_files folder;
    ls_sampler sampler;
    int64_t epoch;  /* of `order`; -1: none yet */
    int64_t *order; /* this rank's images of the epoch */
    int batch_size, accumulate, image_size;
    int resize; /* 0: for training */
    uint64_t seed;
} folder_set;

typedef struct scratch {
    ls_picture *picture;
    ls_resample_scratch resample;
    uint8_t *bytes; /* [3,H,W], unless the item takes them */
} scratch;

/* Drops batches at the end of the epoch that do not make a whole step. */
static ls_status plan(ls_dataset *dataset, int64_t batch, int64_t *epoch, int64_t *index)
{
    folder_set *set = (folder_set *)dataset;
    int64_t per_epoch = set->base.steps_per_epoch * set->accumulate;
    *epoch = batch / per_epoch;
    if (*epoch != set->epoch) {
        LS_TRY(ls_sampler_epoch(&set->sampler, *epoch, set->order));
        set->epoch = *epoch;
    }
    for (int i = 0; i < set->batch_size; i++) {
        index[i] = set->order[batch % per_epoch * set->batch_size + i];
    }
    return LS_OK;
}

static ls_status fill(const ls_dataset *dataset, const ls_dataset_item *item)
{
    const folder_set *set = (const folder_set *)dataset;
    scratch *scratch = item->scratch;
    int width, height;
    const uint8_t *rgb;
    LS_TRY(ls_picture_read(scratch->picture, set->folder.path[item->index], &rgb, &width, &height,
                           item->why, LS_DATASET_WHY));
    *item->target = set->folder.target[item->index];
    uint8_t *bytes = set->base.bytes ? item->bytes : scratch->bytes;
    ls_transform_crop crop = ls_transform_draw(set->seed, item->epoch, item->index, width, height);
    LS_TRY(ls_transform_apply(&scratch->resample, rgb, width, &crop, set->image_size, bytes));
    if (!set->base.bytes) {
        int64_t pixels = (int64_t)set->image_size * set->image_size;
        ls_transform_normalise(bytes, 0, 3 * pixels, pixels, item->input);
    }
    return LS_OK;
}

enum { BLACK = -1 }; /* an index: it fills a batch up */

static ls_status plan_validation(ls_dataset *dataset, int64_t batch, int64_t *epoch, int64_t *index)
{
    folder_set *set = (folder_set *)dataset;
    int64_t first = batch % set->base.steps_per_epoch * set->batch_size;
    *epoch = 0;
    for (int i = 0; i < set->batch_size; i++) {
        int64_t at = set->sampler.rank + (first + i) * set->sampler.world;
        index[i] = at < set->folder.count ? at : BLACK;
    }
    return LS_OK;
}

static ls_status fill_validation(const ls_dataset *dataset, const ls_dataset_item *item)
{
    const folder_set *set = (const folder_set *)dataset;
    scratch *scratch = item->scratch;
    int width, height;
    const uint8_t *rgb;
    int64_t pixels = (int64_t)set->image_size * set->image_size;
    uint8_t *bytes = set->base.bytes ? item->bytes : scratch->bytes;
    if (item->index == BLACK) {
        memset(bytes, 0, 3 * (size_t)pixels);
        *item->target = 0;
    } else {
        LS_TRY(ls_picture_read(scratch->picture, set->folder.path[item->index], &rgb, &width,
                               &height, item->why, LS_DATASET_WHY));
        *item->target = set->folder.target[item->index];
        LS_TRY(ls_transform_apply_centre(&scratch->resample, rgb, width, height, set->resize,
                                         set->image_size, bytes));
    }
    if (!set->base.bytes) {
        ls_transform_normalise(bytes, 0, 3 * pixels, pixels, item->input);
    }
    return LS_OK;
}

static void scratch_destroy(void *opaque)
{
    scratch *scratch = opaque;
    ls_picture_destroy(scratch->picture);
    ls_resample_release(&scratch->resample);
    free(scratch->bytes);
    free(scratch);
}

static ls_status scratch_create(const ls_dataset *dataset, void **out)
{
    const folder_set *set = (const folder_set *)dataset;
    scratch *scratch = calloc(1, sizeof *scratch);
    LS_TRY_MEMORY(scratch != NULL, "a loader thread's scratch");
    scratch->bytes = malloc(3 * (size_t)set->image_size * (size_t)set->image_size);
    ls_status status = scratch->bytes != NULL
                           ? ls_picture_create(&scratch->picture)
                           : ls_log_fail(LS_ERR_INFRA, "no memory for a loader thread's image");
    if (status != LS_OK) {
        free(scratch->bytes);
        free(scratch);
        return status;
    }
    *out = scratch;
    return LS_OK;
}

static void destroy(ls_dataset *dataset)
{
    folder_set *set = (folder_set *)dataset;
    ls_dataset_files_free(&set->folder);
    free(set->order);
    free(set);
}

static ls_status check(const folder_set *set, const ls_loader_options *options, const char *dir)
{
    if (set->folder.class_count != options->num_classes) {
        return ls_log_fail(LS_ERR_USAGE, "%s has %d classes (%s to %s), but --num-classes is %d",
                           dir, set->folder.class_count, set->folder.class_name[0],
                           set->folder.class_name[set->folder.class_count - 1],
                           options->num_classes);
    }
    if (set->base.steps_per_epoch == 0 && set->resize == 0) {
        return ls_log_fail(
            LS_ERR_USAGE, "%s has %lld images, %lld for each of %d ranks, but a step needs %d", dir,
            (long long)set->folder.count, (long long)ls_sampler_length(&set->sampler),
            options->world, options->largest_batch * options->accumulate);
    }
    return LS_OK;
}

/* Detects truncated files before anything is written instead of in the middle of an epoch. Every
 * rank checks every file (about 20 microseconds each); in larger sets a truncated file is found
 * when it is read. */
enum { LOOKED_AT_MAX = 20000 };

static ls_status look_at_files(const ls_dataset_files *folder)
{
    char why[1400];
    ls_picture *picture = NULL;
    ls_status status = LS_OK;
    if (folder->count > LOOKED_AT_MAX) {
        return LS_OK;
    }
    LS_TRY(ls_picture_create(&picture));
    for (int64_t i = 0; i < folder->count && status == LS_OK; i++) {
        status = ls_picture_check(picture, folder->path[i], why, sizeof why);
        if (status != LS_OK) {
            ls_log_error("%s", why);
        }
    }
    ls_picture_destroy(picture);
    return status;
}

static void describe_validation(folder_set *set)
{
    const ls_sampler *sampler = &set->sampler;
    set->base.images = (sampler->count - sampler->rank + sampler->world - 1) / sampler->world;
    set->base.steps_per_epoch = (set->base.images + set->batch_size - 1) / set->batch_size;
    set->base.plan = plan_validation;
    set->base.fill = fill_validation;
}

ls_status ls_dataset_folder_open(const ls_loader_options *options, const char *dir,
                                 ls_dataset **out)
{
    folder_set *set = calloc(1, sizeof *set);
    LS_TRY_MEMORY(set != NULL, "the data set of %s", dir);
    char part[LS_DATASET_PATH];
    ls_text_put(part, sizeof part, "%s", dir);
    if (!options->validates) {
        ls_dataset_part(dir, LS_DATASET_TRAINING, part, sizeof part);
    }
    ls_status status = ls_dataset_files_scan(part, &set->folder);
    if (status != LS_OK) {
        free(set);
        return status;
    }
    set->sampler = (ls_sampler){.count = set->folder.count,
                                .rank = LS_PLANT(rank_0_shard_everywhere, options->rank, 0),
                                .world = options->world,
                                .shuffle = true,
                                .seed = options->seed};
    set->seed = options->seed;
    set->epoch = -1;
    set->batch_size = options->batch_size;
    set->accumulate = options->accumulate;
    set->image_size = options->image_size;
    int64_t length = ls_sampler_length(&set->sampler);
    set->base = (ls_dataset){
        .items = options->batch_size,
        .bytes = options->bytes,
        .images = length,
        .steps_per_epoch = length / ((int64_t)options->largest_batch * options->accumulate),
        .plan = plan,
        .fill = fill,
        .scratch_create = scratch_create,
        .scratch_destroy = scratch_destroy,
        .destroy = destroy,
    };
    if (options->validates) {
        set->resize = options->resize;
        describe_validation(set);
    }
    LS_TRY_GOTO(status, check(set, options, part), destroy_set);
    LS_TRY_GOTO(status, look_at_files(&set->folder), destroy_set);
    set->order = malloc((size_t)length * sizeof *set->order);
    if (set->order == NULL) {
        status = ls_log_fail(LS_ERR_INFRA, "cannot allocate the order of %lld images",
                             (long long)length);
        goto destroy_set;
    }
    *out = &set->base;
    return LS_OK;

destroy_set:
    destroy(&set->base);
    return status;
}
