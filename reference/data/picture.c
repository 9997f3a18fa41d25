#include "picture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/core/file.h"
#include "kernels/core/log.h"

enum { FILE_BYTES_MAX = 1 << 30, START_BYTES = 8 };

struct ls_picture {
    ls_jpeg *jpeg;
    uint8_t *file, *pixels;
    size_t file_capacity, pixel_capacity;
};

ls_status ls_picture_create(ls_picture **out)
{
    ls_picture *picture = calloc(1, sizeof *picture);
    LS_TRY_MEMORY(picture != NULL, "a reader of pictures");
    ls_status status = ls_jpeg_create(&picture->jpeg);
    if (status != LS_OK) {
        free(picture);
        return status;
    }
    *out = picture;
    return LS_OK;
}

void ls_picture_destroy(ls_picture *picture)
{
    if (picture == NULL) {
        return;
    }
    ls_jpeg_destroy(picture->jpeg);
    free(picture->file);
    free(picture->pixels);
    free(picture);
}

static ls_status read_file(ls_picture *picture, const char *path, size_t *bytes, char *why,
                           size_t why_bytes)
{
    ls_file_source file;
    if (ls_file_open(path, FILE_BYTES_MAX, &file) != LS_OK) {
        snprintf(why, why_bytes, "%s", file.why);
        return LS_ERR_USAGE;
    }
    ls_status result = LS_OK;
    *bytes = (size_t)file.bytes;
    if (*bytes > picture->file_capacity) {
        uint8_t *larger = realloc(picture->file, *bytes);
        picture->file = larger != NULL ? larger : picture->file;
        picture->file_capacity = larger != NULL ? *bytes : picture->file_capacity;
    }
    if (file.bytes == 0) {
        snprintf(why, why_bytes, "%s is empty", path);
        result = LS_ERR_USAGE;
    } else if (*bytes > picture->file_capacity) {
        snprintf(why, why_bytes, "%s: no memory for its %zu bytes", path, *bytes);
        result = LS_ERR_INFRA;
    } else if (ls_file_fill(&file, path, picture->file, *bytes) != LS_OK) {
        snprintf(why, why_bytes, "%s", file.why);
        result = LS_ERR_USAGE;
    }
    close(file.descriptor);
    return result;
}

ls_status ls_picture_read(ls_picture *picture, const char *path, const uint8_t **rgb, int *width,
                          int *height, char *why, size_t why_bytes)
{
    size_t bytes;
    char reason[256] = "not a JPEG or PNG file";
    ls_status status = read_file(picture, path, &bytes, why, why_bytes);
    if (status != LS_OK) {
        return status;
    }
    uint8_t **pixels = &picture->pixels;
    size_t *capacity = &picture->pixel_capacity;
    status = LS_ERR_USAGE;
    if (ls_jpeg_is(picture->file, bytes)) {
        status = ls_jpeg_decode(picture->jpeg, picture->file, bytes, pixels, capacity, width,
                                height, reason, sizeof reason);
    } else if (ls_png_is(picture->file, bytes)) {
        status = ls_png_decode(picture->file, bytes, pixels, capacity, width, height, reason,
                               sizeof reason);
    }
    if (status != LS_OK) {
        snprintf(why, why_bytes, "%s: %s", path, reason);
        return status;
    }
    *rgb = picture->pixels;
    return LS_OK;
}

/* Searches the file's last bytes for the end of a JPEG or PNG file; some writers append a few bytes
 * after it. */
static bool has_end_marker(const char *path)
{
    enum { TAIL_BYTES = 4096 };
    uint8_t tail[TAIL_BYTES];
    ls_file_source file;
    if (ls_file_open(path, FILE_BYTES_MAX, &file) != LS_OK) {
        return false;
    }
    uint8_t start[START_BYTES];
    size_t begun = (size_t)pread(file.descriptor, start, sizeof start, 0);
    int64_t from = file.bytes > TAIL_BYTES ? file.bytes - TAIL_BYTES : 0;
    ssize_t count = pread(file.descriptor, tail, sizeof tail, from);
    close(file.descriptor);
    bool png = begun <= sizeof start && ls_png_is(start, begun);
    if (!png && !(begun <= sizeof start && ls_jpeg_is(start, begun))) {
        return false;
    }
    const char *end = png ? "IEND\xae\x42\x60\x82" : "\xff\xd9";
    size_t bytes = png ? 8 : 2;
    for (ssize_t i = count - (ssize_t)bytes; i >= 0; i--) {
        if (memcmp(tail + i, end, bytes) == 0) {
            return true;
        }
    }
    return false;
}

ls_status ls_picture_check(ls_picture *picture, const char *path, char *why, size_t why_bytes)
{
    int width, height;
    const uint8_t *rgb;
    if (has_end_marker(path)) {
        return LS_OK;
    }
    return ls_picture_read(picture, path, &rgb, &width, &height, why, why_bytes);
}

bool ls_picture_known(const char *path)
{
    ls_file_source file;
    uint8_t start[START_BYTES];
    if (ls_file_open(path, FILE_BYTES_MAX, &file) != LS_OK) {
        return false;
    }
    ssize_t count = pread(file.descriptor, start, sizeof start, 0);
    close(file.descriptor);
    return count > 0 && (ls_jpeg_is(start, (size_t)count) || ls_png_is(start, (size_t)count));
}
