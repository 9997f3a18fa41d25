#include "dataset.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "kernels/core/text.h"
#include "picture.h"
#include "transform.h"

typedef struct folder_set {
    ls_dataset_listed listed;
    ls_dataset_files folder;
    int resize;
    bool skips_bad;
} folder_set;

typedef struct scratch {
    ls_picture *picture;
    ls_resample_scratch resample;
    uint8_t *bytes; /* [3,H,W], unless the item takes them */
} scratch;

/* Reads the picture `first` of the list. With skips_bad, where it cannot be read, the first one
 * behind it that can, around the end: which depends on the files only. */
enum { SKIPPED_MAX = 1000 };
static ls_status read_picture(const folder_set *set, const ls_dataset_item *item, int64_t *index,
                              const uint8_t **rgb, int *width, int *height)
{
    const scratch *scratch = item->scratch;
    int64_t count = set->folder.count, tries = count < SKIPPED_MAX ? count : SKIPPED_MAX;
    tries = set->skips_bad && !set->listed.validates ? tries : 1;
    char later[LS_DATASET_WHY];
    for (int64_t i = 0; i < tries; i++) {
        *index = (item->index + i) % count;
        ls_status status = ls_picture_read(scratch->picture, set->folder.path[*index], rgb, width,
                                           height, i == 0 ? item->why : later, LS_DATASET_WHY);
        if (status != LS_ERR_USAGE) {
            return status;
        }
        *item->bad = set->skips_bad;
    }
    if (tries > 1) {
        ls_text_add(item->why, LS_DATASET_WHY, "; nor can the %lld pictures behind it be read",
                    (long long)tries - 1);
    }
    return LS_ERR_USAGE;
}

/* In validation a black picture fills a batch up, or stands for one that cannot be read. */
static ls_status fill(const ls_dataset *dataset, const ls_dataset_item *item)
{
    const folder_set *set = (const folder_set *)dataset;
    const ls_dataset_listed *listed = &set->listed;
    scratch *scratch = item->scratch;
    int width, height, size = listed->image_size;
    int64_t index, pixels = (int64_t)size * size;
    const uint8_t *rgb;
    uint8_t *bytes = listed->base.bytes ? item->bytes : scratch->bytes;
    bool black = item->index == LS_DATASET_BLACK;
    ls_status status = black ? LS_OK : read_picture(set, item, &index, &rgb, &width, &height);
    black = black || (status == LS_ERR_USAGE && listed->validates && set->skips_bad);
    if (black) {
        memset(bytes, 0, 3 * (size_t)pixels);
        *item->target = 0;
    } else if (listed->validates) {
        LS_TRY(status);
        *item->target = set->folder.target[index];
        ls_transform_apply_centre(&scratch->resample, rgb, width, height, set->resize, size, bytes);
    } else {
        LS_TRY(status);
        *item->target = set->folder.target[LS_PLANT(bad_image_keeps_class, index, item->index)];
        ls_transform_crop crop =
            ls_transform_draw(listed->seed, item->epoch, item->index, width, height);
        ls_transform_apply(&scratch->resample, rgb, width, &crop, size, bytes);
    }
    if (!listed->base.bytes) {
        ls_transform_normalise(bytes, 0, 3 * pixels, pixels, item->input);
    }
    return LS_OK;
}

static void scratch_destroy(void *opaque)
{
    scratch *scratch = opaque;
    ls_picture_destroy(scratch->picture);
    ls_transform_release(&scratch->resample);
    free(scratch->bytes);
    free(scratch);
}

static ls_status scratch_create(const ls_dataset *dataset, void **out)
{
    const folder_set *set = (const folder_set *)dataset;
    scratch *scratch = calloc(1, sizeof *scratch);
    LS_MEMORY(scratch != NULL);
    scratch->bytes = malloc(3 * (size_t)set->listed.image_size * (size_t)set->listed.image_size);
    LS_MEMORY(scratch->bytes != NULL);
    *out = scratch;
    return ls_picture_create(&scratch->picture);
}

static void destroy(ls_dataset *dataset)
{
    folder_set *set = (folder_set *)dataset;
    ls_dataset_files_free(&set->folder);
    ls_dataset_listed_close(&set->listed);
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

ls_status ls_dataset_folder_open(const ls_loader_options *options, const char *dir,
                                 ls_dataset **out)
{
    folder_set *set = calloc(1, sizeof *set);
    LS_MEMORY(set != NULL);
    char part[LS_DATASET_PATH];
    ls_text_put(part, sizeof part, "%s", dir);
    if (!options->validates) {
        ls_dataset_part(dir, LS_DATASET_TRAINING, part, sizeof part);
    }
    ls_dataset *base = &set->listed.base;
    set->resize = options->resize;
    set->skips_bad = options->skips_bad;
    ls_status status = ls_dataset_files_scan(part, &set->folder);
    LS_THEN(status, check(set, options, part));
    LS_THEN(status, ls_dataset_listed_open(options, part, set->folder.count, &set->listed));
    if (status == LS_OK && !options->skips_bad) {
        status = look_at_files(&set->folder);
    }
    base->bytes = options->bytes;
    base->fill = fill;
    base->scratch_create = scratch_create;
    base->scratch_destroy = scratch_destroy;
    base->destroy = destroy;
    if (status != LS_OK) {
        destroy(base);
        return status;
    }
    *out = base;
    return LS_OK;
}
