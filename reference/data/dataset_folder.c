#include "dataset.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "kernels/core/log.h"
#include "kernels/core/plant.h"
#include "picture.h"
#include "sampler.h"
#include "transform.h"

/* ---- the files of the folder ----------------------------------------------------------------- */

enum { DEPTH_MAX = 16 }; /* ends the recursion through a link to a parent folder */

static int by_code_point(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* bytes of UTF-8 sort in code point order */
}

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void free_entries(struct dirent **entry, int count)
{
    for (int i = 0; i < count; i++) {
        free(entry[i]);
    }
    free(entry);
}

static bool is_folder(const char *path, const struct dirent *entry)
{
    struct stat status;
    if (entry->d_type != DT_UNKNOWN && entry->d_type != DT_LNK) {
        return entry->d_type == DT_DIR;
    }
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static bool has_suffix(const char *name, const char *const *suffix)
{
    const char *dot = strrchr(name, '.');
    for (; dot != NULL && *suffix != NULL; suffix++) {
        if (strcasecmp(dot + 1, *suffix) == 0) {
            return true;
        }
    }
    return false;
}

static char *join(const char *dir, const char *name)
{
    size_t bytes = strlen(dir) + strlen(name) + 2;
    char *path = malloc(bytes);
    if (path == NULL) {
        ls_log_error("cannot allocate the path of %s/%s", dir, name);
        return NULL;
    }
    snprintf(path, bytes, "%s/%s", dir, name);
    return path;
}

/* Takes ownership of `path`, also on failure. */
static ls_status add_image(ls_dataset_files *folder, char *path, int target)
{
    if (folder->count == folder->capacity) {
        int64_t capacity = folder->capacity == 0 ? 1024 : 2 * folder->capacity;
        char **paths = realloc(folder->path, (size_t)capacity * sizeof *paths);
        if (paths != NULL) {
            folder->path = paths;
        }
        int32_t *targets = realloc(folder->target, (size_t)capacity * sizeof *targets);
        if (targets != NULL) {
            folder->target = targets;
        }
        if (paths == NULL || targets == NULL) {
            ls_log_error("cannot allocate the list of %lld images", (long long)capacity);
            free(path);
            return LS_ERR_INFRA;
        }
        folder->capacity = capacity;
    }
    folder->path[folder->count] = path;
    folder->target[folder->count] = target;
    folder->count++;
    return LS_OK;
}

static ls_status list_folder(const char *dir, struct dirent ***entry, int *count)
{
    *count = scandir(dir, entry, is_visible, by_code_point);
    if (*count < 0) {
        return ls_log_fail(LS_ERR_USAGE, "cannot read the folder %s: %s", dir, strerror(errno));
    }
    return LS_OK;
}

static ls_status scan_class(ls_dataset_files *folder, const char *dir, int target, int depth);

/* The first pass over a folder's entries adds files, the second one visits sub-folders. */
static ls_status visit_entry(ls_dataset_files *folder, const char *dir, const struct dirent *entry,
                             int target, int depth, bool folders)
{
    static const char *const read[] = {"jpg", "jpeg", "png", NULL};
    static const char *const other[] = {"ppm", "bmp", "pgm", "tif", "tiff", "webp", NULL};
    char *path = join(dir, entry->d_name);
    if (path == NULL) {
        return LS_ERR_INFRA;
    }
    ls_status status = LS_OK;
    if (is_folder(path, entry)) {
        if (folders) {
            status = scan_class(folder, path, target, depth + 1);
        }
    } else if (!folders && (has_suffix(entry->d_name, read) ||
                            (has_suffix(entry->d_name, other) && ls_picture_known(path)))) {
        return add_image(folder, path, target);
    } else if (!folders && has_suffix(entry->d_name, other)) {
        status = ls_log_fail(LS_ERR_USAGE, "%s: only JPEG and PNG files are read", path);
    }
    free(path);
    return status;
}

static ls_status scan_class(ls_dataset_files *folder, const char *dir, int target, int depth)
{
    if (depth > DEPTH_MAX) {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s: folders more than %d deep, or a link to a folder above", dir,
                           DEPTH_MAX);
    }
    struct dirent **entry;
    int count;
    LS_TRY(list_folder(dir, &entry, &count));
    ls_status status = LS_OK;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < count && status == LS_OK; i++) {
            status = visit_entry(folder, dir, entry[i], target, depth, pass == 1);
        }
    }
    free_entries(entry, count);
    return status;
}

static ls_status add_class(ls_dataset_files *folder, const char *path, const char *name)
{
    char **names = realloc(folder->class_name, (size_t)(folder->class_count + 1) * sizeof *names);
    if (names != NULL) {
        folder->class_name = names;
        names[folder->class_count] = strdup(name);
    }
    LS_TRY_MEMORY(names != NULL && names[folder->class_count] != NULL, "the name of class %s",
                  path);
    folder->class_count++;
    int64_t before = folder->count;
    LS_TRY(scan_class(folder, path, folder->class_count - 1, 0));
    if (folder->count == before) {
        return ls_log_fail(LS_ERR_USAGE, "class folder %s has no image (.jpg, .jpeg, .png)", path);
    }
    return LS_OK;
}

ls_status ls_dataset_files_scan(const char *dir, ls_dataset_files *out)
{
    ls_dataset_files folder = {0};
    struct dirent **entry;
    int count;
    LS_TRY(list_folder(dir, &entry, &count));
    ls_status status = LS_OK;
    for (int i = 0; i < count && status == LS_OK; i++) {
        char *path = join(dir, entry[i]->d_name);
        if (path == NULL) {
            status = LS_ERR_INFRA;
        } else if (is_folder(path, entry[i])) {
            status = add_class(&folder, path, entry[i]->d_name);
        }
        free(path);
    }
    free_entries(entry, count);
    if (status == LS_OK && folder.class_count == 0) {
        status = ls_log_fail(LS_ERR_USAGE,
                             "%s has no class folders (wanted: %s/<class>/<image>.jpg)", dir, dir);
    }
    if (status != LS_OK) {
        ls_dataset_files_free(&folder);
        return status;
    }
    *out = folder;
    return LS_OK;
}

void ls_dataset_files_free(ls_dataset_files *folder)
{
    for (int64_t i = 0; i < folder->count; i++) {
        free(folder->path[i]);
    }
    for (int i = 0; i < folder->class_count; i++) {
        free(folder->class_name[i]);
    }
    free(folder->path);
    free(folder->target);
    free(folder->class_name);
    *folder = (ls_dataset_files){0};
}

/* ---- the dataset ----------------------------------------------------------------------------- */

typedef struct folder_set {
    ls_dataset base;
    ls_dataset_files folder;
    ls_sampler sampler;
    int64_t epoch;  /* of `order`; -1: none yet */
    int64_t *order; /* this rank's images of the epoch */
    int batch_size, accumulate, image_size;
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
    ls_transform_crop crop =
        ls_transform_draw(set->seed, item->epoch, item->index, width, height);
    LS_TRY(ls_transform_apply(&scratch->resample, rgb, width, &crop, set->image_size, bytes));
    if (!set->base.bytes) {
        int64_t pixels = (int64_t)set->image_size * set->image_size;
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
    LS_TRY_MEMORY(set != NULL, "the data set of %s", dir);
    ls_status status = ls_dataset_files_scan(dir, &set->folder);
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
