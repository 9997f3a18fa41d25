#include "make.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/log.h"
#include "kernels/core/path.h"
#include "draw.h"
#include "jpeg.h"

/* The marker is first written with `making` and at the end with `complete`, so that an interrupted
 * folder is recognised as ours and made again. */
#define MARKER ".lockstep-data"
enum { QUALITY = 90, PATH_BYTES = 1024, MARKER_BYTES = 256 };

static ls_status is_empty(const char *dir, bool *out)
{
    DIR *stream = opendir(dir);
    if (stream == NULL) {
        return ls_log_fail(LS_ERR_USAGE, "cannot read the folder %s: %s", dir, strerror(errno));
    }
    *out = true;
    for (struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            *out = false;
        }
    }
    closedir(stream);
    return LS_OK;
}

static ls_status write_marker(const char *dir, const char *text)
{
    char path[PATH_BYTES + 32], fresh[PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/" MARKER, dir);
    snprintf(fresh, sizeof fresh, "%s/" MARKER ".new", dir);
    FILE *stream = fopen(fresh, "w");
    bool written = stream != NULL && fputs(text, stream) >= 0;
    written = stream != NULL && fclose(stream) == 0 && written;
    if (!written || rename(fresh, path) != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot write %s: %s", path, strerror(errno));
    }
    return LS_OK;
}

/* Reads the marker; "" if there is none. */
static void read_marker(const char *dir, char text[MARKER_BYTES])
{
    char path[PATH_BYTES + 32];
    snprintf(path, sizeof path, "%s/" MARKER, dir);
    FILE *stream = fopen(path, "r");
    size_t bytes = stream != NULL ? fread(text, 1, MARKER_BYTES - 1, stream) : 0;
    text[bytes] = '\0';
    if (stream != NULL) {
        fclose(stream);
    }
}

/* Examines an existing folder. *done: complete with these arguments. */
static ls_status look_at(const char *dir, const char *making, const char *complete, bool *done)
{
    char marker[MARKER_BYTES];
    bool empty = false;
    LS_TRY(is_empty(dir, &empty));
    read_marker(dir, marker);
    *done = strcmp(marker, complete) == 0;
    if (empty || *done || strcmp(marker, making) == 0) {
        return LS_OK;
    }
    if (marker[0] == '\0') {
        return ls_log_fail(LS_ERR_USAGE,
                           "%s is not empty and was not made by this command; name another folder",
                           dir);
    }
    char *line = strchr(marker, '\n');
    if (line != NULL) {
        *line = '\0';
    }
    return ls_log_fail(LS_ERR_USAGE,
                       "%s was made with other settings (%s); name another folder or remove it",
                       dir, marker);
}

static ls_status make_image(const char *dir, int kind, int64_t index, int size, uint64_t seed,
                            uint8_t *rgb)
{
    char path[PATH_BYTES + 64];
    int width, height;
    ls_draw_size(seed, kind, index, size, &width, &height);
    ls_draw_picture(seed, kind, index, width, height, rgb);
    snprintf(path, sizeof path, "%s/%s/%05lld.jpg", dir, ls_draw_class_name(kind),
             (long long)index + 1);
    return ls_jpeg_write(path, rgb, width, height, QUALITY);
}

static ls_status make_images(const char *dir, int images_per_class, int size, uint64_t seed)
{
    size_t side = (size_t)size * 2; /* more than the largest picture */
    uint8_t *rgb = malloc(side * side * 3);
    LS_TRY_MEMORY(rgb != NULL, "a picture of %zu pixels", side * side);
    ls_status status = LS_OK;
    for (int kind = 0; kind < LS_MAKE_CLASSES && status == LS_OK; kind++) {
        char path[PATH_BYTES + 64];
        snprintf(path, sizeof path, "%s/%s", dir, ls_draw_class_name(kind));
        status = ls_path_make_folder(path);
        for (int index = 0; index < images_per_class && status == LS_OK; index++) {
            status = make_image(dir, kind, index, size, seed, rgb);
        }
    }
    free(rgb);
    return status;
}

ls_status ls_make_folder(const char *dir, int images_per_class, int image_size, uint64_t seed)
{
    if (images_per_class < 1 || images_per_class > 99999) {
        return ls_log_fail(LS_ERR_USAGE, "--images %d: 1 to 99999 images per class",
                           images_per_class);
    }
    if (image_size < 8 || image_size > 4096) {
        return ls_log_fail(LS_ERR_USAGE, "--size %d: 8 to 4096 pixels", image_size);
    }
    char making[MARKER_BYTES], complete[MARKER_BYTES];
    static const char format[] = "--images %d --size %d --seed %llu, format 1\n%s\n";
    unsigned long long number = seed;
    snprintf(making, sizeof making, format, images_per_class, image_size, number, "making");
    snprintf(complete, sizeof complete, format, images_per_class, image_size, number, "complete");
    bool done;
    if (dir[0] == '\0' || strlen(dir) + 64 > PATH_BYTES) {
        return ls_log_fail(LS_ERR_USAGE, "the folder's path must have 1 to %d bytes",
                           PATH_BYTES - 64);
    }
    LS_TRY(ls_path_make_folder(dir));
    LS_TRY(look_at(dir, making, complete, &done));
    if (done) {
        return LS_OK;
    }
    LS_TRY(write_marker(dir, making));
    LS_TRY(make_images(dir, images_per_class, image_size, seed));
    return write_marker(dir, complete);
}
