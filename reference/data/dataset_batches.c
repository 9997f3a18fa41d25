#include "dataset.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/core/log.h"
#include "kernels/core/text.h"
#include "reference/files/safetensors.h"

typedef struct batches {
    ls_dataset base;
    char dir[512];
    int rank, accumulate, batch_size, image_size, num_classes;
} batches;

static ls_status plan(ls_dataset *dataset, int64_t batch, int64_t *epoch, int64_t *index)
{
    (void)dataset;
    *epoch = 0;
    index[0] = batch;
    return LS_OK;
}

/* Finds `name` with the type and the shape [A,rest] or, where A is 1, [rest]. */
static ls_status find(const batches *set, const ls_safetensors *file, const char *path,
                      const char *name, ls_dtype dtype, ls_shape rest, char *why,
                      const ls_safetensors_entry **out)
{
    const ls_safetensors_entry *entry = ls_safetensors_find(file, name);
    if (entry == NULL) {
        snprintf(why, LS_DATASET_WHY, "%s has no tensor `%s`", path, name);
        return LS_ERR_USAGE;
    }
    ls_shape full = {.rank = rest.rank + 1, .dim = {set->accumulate}};
    memcpy(full.dim + 1, rest.dim, (size_t)rest.rank * sizeof rest.dim[0]);
    bool fits = ls_safetensors_same_shape(&entry->shape, &full) ||
                (set->accumulate == 1 && ls_safetensors_same_shape(&entry->shape, &rest));
    if (entry->dtype != dtype || !fits) {
        char have[128], want[128];
        ls_safetensors_shape_text(&entry->shape, have, sizeof have);
        ls_safetensors_shape_text(set->accumulate == 1 ? &rest : &full, want, sizeof want);
        snprintf(why, LS_DATASET_WHY, "%s: `%s` is %s %s, but this run needs %s %s", path, name,
                 ls_dtype_name(entry->dtype), have, ls_dtype_name(dtype), want);
        return LS_ERR_USAGE;
    }
    *out = entry;
    return LS_OK;
}

static ls_status copy_batch(const batches *set, const ls_safetensors *file, const char *path,
                            int64_t micro, const ls_dataset_item *item)
{
    int64_t n = set->batch_size, size = set->image_size;
    const ls_safetensors_entry *input, *target;
    LS_TRY(find(set, file, path, "input", LS_F32, (ls_shape){4, {n, 3, size, size}}, item->why,
                &input));
    LS_TRY(find(set, file, path, "target", LS_I64, (ls_shape){1, {n}}, item->why, &target));
    const int64_t *from = (const int64_t *)target->data + micro * n;
    for (int64_t i = 0; i < n; i++) {
        if (from[i] < 0 || from[i] >= set->num_classes) {
            snprintf(item->why, LS_DATASET_WHY,
                     "%s: target %lld of sample %lld is not in 0..%d (--num-classes %d)", path,
                     (long long)from[i], (long long)(micro * n + i), set->num_classes - 1,
                     set->num_classes);
            return LS_ERR_USAGE;
        }
    }
    int64_t count = n * 3 * size * size;
    memcpy(item->input, (const float *)input->data + micro * count, (size_t)count * sizeof(float));
    memcpy(item->target, from, (size_t)n * sizeof(int64_t));
    return LS_OK;
}

static ls_status fill(const ls_dataset *dataset, const ls_dataset_item *item)
{
    const batches *set = (const batches *)dataset;
    int64_t step = item->batch / set->accumulate + 1, micro = item->batch % set->accumulate;
    LS_TEXT(path, sizeof set->dir + 64, "%s/step%06lld.rank%d.safetensors", set->dir,
            (long long)step, set->rank);
    struct stat status;
    if (stat(path, &status) != 0) {
        snprintf(item->why, LS_DATASET_WHY, "no batch for step %lld of rank %d: %s: %s",
                 (long long)step, set->rank, path, strerror(errno));
        return LS_ERR_USAGE;
    }
    ls_safetensors *file;
    LS_TRY(ls_safetensors_open(path, &file));
    ls_status result = copy_batch(set, file, path, micro, item);
    ls_safetensors_close(file);
    return result;
}

static void destroy(ls_dataset *dataset)
{
    free(dataset);
}

/* The first step may be any (--resume), but a folder without a single file of this rank is the
 * wrong one. */
static bool has_batches(const char *dir, int rank)
{
    LS_TEXT(end, 48, ".rank%d.safetensors", rank);
    bool found = false;
    DIR *entries = opendir(dir);
    for (struct dirent *e; entries != NULL && !found && (e = readdir(entries)) != NULL;) {
        size_t length = strlen(e->d_name), tail = strlen(end);
        found = strncmp(e->d_name, "step", 4) == 0 && length > tail &&
                strcmp(e->d_name + length - tail, end) == 0;
    }
    if (entries != NULL) {
        closedir(entries);
    }
    return found;
}

ls_status ls_dataset_batches_open(const ls_loader_options *options, const char *dir,
                                  ls_dataset **out)
{
    struct stat status;
    if (stat(dir, &status) != 0 || !S_ISDIR(status.st_mode)) {
        return ls_log_fail(LS_ERR_USAGE, "--data batches:%s: %s", dir,
                           stat(dir, &status) != 0 ? strerror(errno) : "not a folder");
    }
    if (!has_batches(dir, options->rank)) {
        return ls_log_fail(LS_ERR_USAGE,
                           "--data batches:%s: no file step<number>.rank%d.safetensors in it", dir,
                           options->rank);
    }
    if (strlen(dir) >= sizeof((batches *)NULL)->dir) {
        return ls_log_fail(LS_ERR_USAGE, "--data batches:%s: the path has more than %zu bytes", dir,
                           sizeof((batches *)NULL)->dir - 1);
    }
    batches *set = calloc(1, sizeof *set);
    LS_MEMORY(set != NULL);
    *set = (batches){
        .base = {.items = 1, .plan = plan, .fill = fill, .destroy = destroy},
        .rank = options->rank,
        .accumulate = options->accumulate,
        .batch_size = options->batch_size,
        .image_size = options->image_size,
        .num_classes = options->num_classes,
    };
    strcpy(set->dir, dir);
    *out = &set->base;
    return LS_OK;
}
