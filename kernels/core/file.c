#define _GNU_SOURCE
#include "file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"

const char *ls_file_unreadable(FILE *file)
{
    struct stat about;
    if (fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode)) {
        return "no regular file"; /* a device may never end */
    }
    return about.st_size > INT64_C(1) << 30 ? "a file of more than 1 GiB" : NULL;
}

ls_status ls_file_read(const char *path, char **data, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return ls_log_fail(LS_ERR_INFRA, "cannot open %s: %s", path, strerror(errno));
    }
    const char *why = ls_file_unreadable(file);
    if (why != NULL) {
        ls_log_error("%s is %s", path, why);
        fclose(file);
        return LS_ERR_USAGE;
    }
    char *buffer = NULL;
    size_t used = 0, room = 0;
    for (;;) {
        if (room - used < 2) {
            room = room == 0 ? 65536 : room * 2;
            char *larger = realloc(buffer, room);
            if (larger == NULL) {
                ls_log_error("cannot allocate %zu bytes to read %s", room, path);
                free(buffer);
                fclose(file);
                return LS_ERR_INFRA;
            }
            buffer = larger;
        }
        size_t got = fread(buffer + used, 1, room - used - 1, file);
        if (got == 0) {
            break;
        }
        used += got;
    }
    bool failed = ferror(file) != 0;
    fclose(file);
    if (failed) {
        ls_log_error("cannot read %s: %s", path, strerror(errno));
        free(buffer);
        return LS_ERR_INFRA;
    }
    buffer[used] = '\0';
    *data = buffer;
    *bytes = used;
    return LS_OK;
}

ls_status ls_file_write(int descriptor, const char *path, const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t written = write(descriptor, from, bytes);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written < 0) {
            return ls_log_fail(LS_ERR_INFRA, "cannot write %s: %s", path, strerror(errno));
        }
        from += written;
        bytes -= (size_t)written;
    }
    return LS_OK;
}

FILE *ls_file_create(const char *path)
{
    FILE *file = fopen(path, "we");
    if (file == NULL) {
        ls_log_error("cannot create %s: %s", path, strerror(errno));
    }
    return file;
}

ls_status ls_file_close(FILE *file, const char *path)
{
    bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) {
        return ls_log_fail(LS_ERR_INFRA, "cannot write %s: %s", path, strerror(errno));
    }
    return LS_OK;
}
