#include "folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "kernels/core/log.h"

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
static ls_status add_image(ls_folder *folder, char *path, int target)
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

static ls_status scan_class(ls_folder *folder, const char *dir, int target, int depth);

/* The first pass over a folder's entries adds files, the second one visits sub-folders. */
static ls_status visit_entry(ls_folder *folder, const char *dir, const struct dirent *entry,
                             int target, int depth, bool folders)
{
    static const char *const jpeg[] = {"jpg", "jpeg", NULL};
    static const char *const other[] = {"png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", NULL};
    char *path = join(dir, entry->d_name);
    if (path == NULL) {
        return LS_ERR_INFRA;
    }
    ls_status status = LS_OK;
    if (is_folder(path, entry)) {
        if (folders) {
            status = scan_class(folder, path, target, depth + 1);
        }
    } else if (!folders && has_suffix(entry->d_name, jpeg)) {
        return add_image(folder, path, target);
    } else if (!folders && has_suffix(entry->d_name, other)) {
        ls_log_error("%s: only JPEG files (.jpg, .jpeg) are read", path);
        status = LS_ERR_USAGE;
    }
    free(path);
    return status;
}

static ls_status scan_class(ls_folder *folder, const char *dir, int target, int depth)
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

static ls_status add_class(ls_folder *folder, const char *path, const char *name)
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
        return ls_log_fail(LS_ERR_USAGE, "class folder %s has no image (.jpg, .jpeg)", path);
    }
    return LS_OK;
}

ls_status ls_folder_scan(const char *dir, ls_folder *out)
{
    ls_folder folder = {0};
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
        ls_log_error("%s has no class folders (wanted: %s/<class>/<image>.jpg)", dir, dir);
        status = LS_ERR_USAGE;
    }
    if (status != LS_OK) {
        ls_folder_free(&folder);
        return status;
    }
    *out = folder;
    return LS_OK;
}

void ls_folder_free(ls_folder *folder)
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
    *folder = (ls_folder){0};
}
