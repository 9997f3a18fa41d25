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
#include "kernels/core/text.h"
#include "picture.h"

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
    char *path = NULL;
    LS_MEMORY(asprintf(&path, "%s/%s", dir, name) >= 0);
    return path;
}

/* Takes ownership of `path`. */
static void add_image(ls_dataset_files *folder, char *path, int target)
{
    if (folder->count == folder->capacity) {
        folder->capacity = folder->capacity == 0 ? 1024 : 2 * folder->capacity;
        size_t capacity = (size_t)folder->capacity;
        folder->path = realloc(folder->path, capacity * sizeof *folder->path);
        folder->target = realloc(folder->target, capacity * sizeof *folder->target);
        LS_MEMORY(folder->path != NULL && folder->target != NULL);
    }
    folder->path[folder->count] = path;
    folder->target[folder->count++] = target;
}

static ls_status list_folder(const char *dir, struct dirent ***entry, int *count)
{
    *count = scandir(dir, entry, is_visible, by_code_point);
    if (*count < 0) {
        return ls_log_fail(LS_ERR_USAGE, "cannot read the folder %s: %s", dir, strerror(errno));
    }
    return LS_OK;
}

/* Of the entries only the folders are kept. */
static int keep_folders(const char *dir, struct dirent **entry, int listed)
{
    int kept = 0;
    for (int i = 0; i < listed; i++) {
        char *path = join(dir, entry[i]->d_name);
        if (is_folder(path, entry[i])) {
            entry[kept++] = entry[i];
        } else {
            free(entry[i]);
        }
        free(path);
    }
    return kept;
}

/* The class folders, by name; free with free_entries. */
static ls_status list_classes(const char *dir, struct dirent ***entry, int *count)
{
    LS_TRY(list_folder(dir, entry, count));
    *count = keep_folders(dir, *entry, *count);
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
    ls_status status = LS_OK;
    if (is_folder(path, entry)) {
        if (folders) {
            status = scan_class(folder, path, target, depth + 1);
        }
    } else if (!folders && (has_suffix(entry->d_name, read) ||
                            (has_suffix(entry->d_name, other) && ls_picture_known(path)))) {
        add_image(folder, path, target);
        return LS_OK;
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
    int64_t before = folder->count;
    folder->class_name =
        realloc(folder->class_name, (size_t)(folder->class_count + 1) * sizeof *folder->class_name);
    LS_MEMORY(folder->class_name != NULL);
    folder->class_name[folder->class_count] = strdup(name);
    LS_MEMORY(folder->class_name[folder->class_count++] != NULL);
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
    LS_TRY(list_classes(dir, &entry, &count));
    ls_status status = LS_OK;
    for (int i = 0; i < count && status == LS_OK; i++) {
        char *path = join(dir, entry[i]->d_name);
        status = add_class(&folder, path, entry[i]->d_name);
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

/* ---- the parts of a folder ------------------------------------------------------------------- */

static int is_shown_folder(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && entry->d_type != DT_REG;
}

static bool has_folders(const char *dir)
{
    struct dirent **entry;
    int count = scandir(dir, &entry, is_shown_folder, NULL);
    if (count < 0) {
        return false;
    }
    count = keep_folders(dir, entry, count);
    free_entries(entry, count);
    return count > 0;
}

void ls_dataset_part(const char *dir, ls_dataset_purpose purpose, char *out, size_t out_bytes)
{
    LS_TEXT(training, LS_DATASET_PATH, "%s/train", dir);
    LS_TEXT(validation, LS_DATASET_PATH, "%s/val", dir);
    if (ls_dataset_cifar_classes(dir) > 0) {
        ls_text_put(out, out_bytes, "%s", dir);
        return;
    }
    bool parts = has_folders(training);
    if (purpose == LS_DATASET_TRAINING) {
        ls_text_put(out, out_bytes, "%s", parts ? training : dir);
    } else {
        ls_text_put(out, out_bytes, "%s", parts && has_folders(validation) ? validation : "");
    }
}

ls_status ls_dataset_same_classes(const char *dir, const char *validation)
{
    char training[LS_DATASET_PATH];
    struct dirent **one, **other;
    int one_count, other_count, at = 0;
    int cifar = ls_dataset_cifar_classes(dir), validated = ls_dataset_cifar_classes(validation);
    if (cifar != validated) {
        return ls_log_fail(LS_ERR_USAGE, "%s has other classes than %s: %s", validation, dir,
                           cifar == 0       ? "CIFAR's, and not those of its folders"
                           : validated == 0 ? "not CIFAR's"
                                            : "of the other CIFAR");
    }
    if (cifar > 0) {
        return LS_OK;
    }
    ls_dataset_part(dir, LS_DATASET_TRAINING, training, sizeof training);
    LS_TRY(list_classes(training, &one, &one_count));
    ls_status status = list_classes(validation, &other, &other_count);
    if (status != LS_OK) {
        free_entries(one, one_count);
        return status;
    }
    while (at < one_count && at < other_count && strcmp(one[at]->d_name, other[at]->d_name) == 0) {
        at++;
    }
    if (at < one_count || at < other_count) {
        bool training_has =
            at < one_count && (at >= other_count || strcmp(one[at]->d_name, other[at]->d_name) < 0);
        status = ls_log_fail(
            LS_ERR_USAGE, "%s has the class %s, %s has not", training_has ? training : validation,
            (training_has ? one : other)[at]->d_name, training_has ? validation : training);
    }
    free_entries(one, one_count);
    free_entries(other, other_count);
    return status;
}

ls_status ls_dataset_count_classes(const char *dir, int *out)
{
    char part[LS_DATASET_PATH];
    ls_dataset_files files;
    *out = ls_dataset_cifar_classes(dir);
    if (*out > 0) {
        return LS_OK;
    }
    ls_dataset_part(dir, LS_DATASET_TRAINING, part, sizeof part);
    LS_TRY(ls_dataset_files_scan(part, &files));
    *out = files.class_count;
    ls_dataset_files_free(&files);
    return LS_OK;
}
