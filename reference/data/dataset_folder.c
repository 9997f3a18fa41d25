#include "dataset.h"

#include <stdlib.h>

#include "kernels/core/log.h"
#include "folder.h"
#include "jpeg.h"
#include "sampler.h"
#include "transform.h"

typedef struct folder_set {
    ls_dataset base;
    ls_folder folder;
    ls_sampler sampler;
    int64_t epoch;  /* of `order`; -1: none yet */
    int64_t *order; /* this rank's images of the epoch */
    int batch_size, accumulate, image_size;
    uint64_t seed;
} folder_set;

typedef struct scratch {
    ls_jpeg *jpeg;
    ls_transform_scratch transform;
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

/* The largest reduction that keeps the crop at least as large as the resampled image. */
static int choose_reduction(const ls_transform_crop *crop, int size)
{
    int side = crop->width < crop->height ? crop->width : crop->height;
    int reduction = 1;
    while (reduction < 8 && side / (2 * reduction) >= size) {
        reduction *= 2;
    }
    return reduction;
}

static ls_status fill(const ls_dataset *dataset, const ls_dataset_item *item)
{
    const folder_set *set = (const folder_set *)dataset;
    scratch *scratch = item->scratch;
    int full_width, full_height, width, height;
    const uint8_t *rgb;
    LS_TRY(ls_jpeg_open(scratch->jpeg, set->folder.path[item->index], &full_width, &full_height,
                        item->why, LS_DATASET_WHY));
    ls_transform_crop crop =
        ls_transform_draw(set->seed, item->epoch, item->index, full_width, full_height);
    LS_TRY(ls_jpeg_decode(scratch->jpeg, choose_reduction(&crop, set->image_size), &rgb, &width,
                          &height, item->why, LS_DATASET_WHY));
    *item->target = set->folder.target[item->index];
    return ls_transform_apply(&scratch->transform, rgb, width, height, full_width, full_height,
                              &crop, set->image_size, item->input);
}

static void scratch_destroy(void *opaque)
{
    scratch *scratch = opaque;
    ls_jpeg_destroy(scratch->jpeg);
    ls_transform_release(&scratch->transform);
    free(scratch);
}

static ls_status scratch_create(const ls_dataset *dataset, void **out)
{
    (void)dataset;
    scratch *scratch = calloc(1, sizeof *scratch);
    LS_TRY_MEMORY(scratch != NULL, "a loader thread's scratch");
    ls_status status = ls_jpeg_create(&scratch->jpeg);
    if (status != LS_OK) {
        free(scratch);
        return status;
    }
    *out = scratch;
    return LS_OK;
}

static void destroy(ls_dataset *dataset)
{
    folder_set *set = (folder_set *)dataset;
    ls_folder_free(&set->folder);
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
    if (set->base.steps_per_epoch == 0) {
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

static ls_status look_at_files(const ls_folder *folder)
{
    char why[1400];
    ls_jpeg *jpeg = NULL;
    ls_status status = LS_OK;
    if (folder->count > LOOKED_AT_MAX) {
        return LS_OK;
    }
    LS_TRY(ls_jpeg_create(&jpeg));
    for (int64_t i = 0; i < folder->count && status == LS_OK; i++) {
        status = ls_jpeg_check(jpeg, folder->path[i], why, sizeof why);
        if (status != LS_OK) {
            ls_log_error("%s", why);
        }
    }
    ls_jpeg_destroy(jpeg);
    return status;
}

ls_status ls_dataset_folder_open(const ls_loader_options *options, const char *dir,
                                 ls_dataset **out)
{
    folder_set *set = calloc(1, sizeof *set);
    LS_TRY_MEMORY(set != NULL, "the data set of %s", dir);
    ls_status status = ls_folder_scan(dir, &set->folder);
    if (status != LS_OK) {
        free(set);
        return status;
    }
    set->sampler = (ls_sampler){.count = set->folder.count,
                                .rank = options->rank,
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
        .steps_per_epoch = length / ((int64_t)options->largest_batch * options->accumulate),
        .plan = plan,
        .fill = fill,
        .scratch_create = scratch_create,
        .scratch_destroy = scratch_destroy,
        .destroy = destroy,
    };
    LS_TRY_GOTO(status, check(set, options, dir), destroy_set);
    LS_TRY_GOTO(status, look_at_files(&set->folder), destroy_set);
    set->order = malloc((size_t)length * sizeof *set->order);
    if (set->order == NULL) {
        ls_log_error("cannot allocate the order of %lld images", (long long)length);
        status = LS_ERR_INFRA;
        goto destroy_set;
    }
    *out = &set->base;
    return LS_OK;

destroy_set:
    destroy(&set->base);
    return status;
}
