#define _GNU_SOURCE
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"

int64_t ls_file_most(void)
{
    return (int64_t)sysconf(_SC_PHYS_PAGES) / 2 * sysconf(_SC_PAGESIZE);
}

static ls_status refuse(ls_file_source *file, ls_status status, int error, const char *format, ...)
    LS_PRINTF(4, 5);
static ls_status refuse(ls_file_source *file, ls_status status, int error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(file->why, sizeof file->why, format, arguments);
    va_end(arguments);
    errno = error;
    return status;
}

static ls_status check_kind(ls_file_source *file, const char *path, mode_t mode)
{
    const char *kind = S_ISDIR(mode)    ? "a folder"
                       : S_ISFIFO(mode) ? "a FIFO"
                       : S_ISSOCK(mode) ? "a socket"
                                        : "a device";
    return S_ISREG(mode)
               ? LS_OK
               : refuse(file, LS_ERR_USAGE, EINVAL, "%s is %s, not a regular file", path, kind);
}

static ls_status check_opened(ls_file_source *file, const char *path, int64_t most)
{
    struct stat about;
    if (fstat(file->descriptor, &about) != 0) {
        return refuse(file, LS_ERR_INFRA, errno, "cannot open %s: %s", path, strerror(errno));
    }
    LS_TRY(check_kind(file, path, about.st_mode));
    file->bytes = about.st_size;
    return file->bytes <= most
               ? LS_OK
               : refuse(file, LS_ERR_USAGE, EFBIG, "%s has %lld bytes; at most %lld are read", path,
                        (long long)file->bytes, (long long)most);
}

ls_status ls_file_open(const char *path, int64_t most, ls_file_source *out)
{
    struct stat about;
    out->descriptor = -1;
    if (stat(path, &about) == 0) {
        LS_TRY(check_kind(out, path, about.st_mode)); /* a device may act when it is opened */
    }
    out->descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (out->descriptor < 0) {
        return refuse(out, LS_ERR_INFRA, errno, "cannot open %s: %s", path, strerror(errno));
    }
    ls_status status = check_opened(out, path, most);
    if (status != LS_OK) {
        int error = errno;
        close(out->descriptor);
        out->descriptor = -1;
        errno = error;
    }
    return status;
}

/* Reads until `bytes` bytes or the end of the file. */
static ls_status read_some(ls_file_source *file, const char *path, char *to, size_t bytes,
                           size_t *used)
{
    for (*used = 0; *used < bytes;) {
        ssize_t got = read(file->descriptor, to + *used, bytes - *used);
        if (got < 0 && errno != EINTR) {
            return refuse(file, LS_ERR_INFRA, errno, "cannot read %s: %s", path, strerror(errno));
        }
        if (got == 0) {
            break;
        }
        *used += got < 0 ? 0 : (size_t)got;
    }
    return LS_OK;
}

ls_status ls_file_fill(ls_file_source *file, const char *path, void *to, size_t bytes)
{
    size_t used;
    LS_TRY(read_some(file, path, to, bytes, &used));
    return used == bytes
               ? LS_OK
               : refuse(file, LS_ERR_INFRA, EIO, "%s became shorter while it was read", path);
}

/* Files of /proc have 0 bytes until they are read: the end counts, not the size. */
static ls_status load(ls_file_source *file, const char *path, int64_t most, char **data,
                      size_t *bytes)
{
    size_t used = 0, got = 0, room = (size_t)file->bytes + 1;
    char *text = NULL;
    do {
        room = room > used + 1 ? room : 2 * room + 4096;
        char *larger = realloc(text, room + 1);
        ls_status status = larger == NULL ? refuse(file, LS_ERR_INFRA, ENOMEM,
                                                   "no memory for %zu bytes of %s", room + 1, path)
                                          : LS_OK;
        text = larger == NULL ? text : larger;
        LS_THEN(status, read_some(file, path, text + used, room - used, &got));
        used += got;
        if (status == LS_OK && used > (size_t)most) {
            status = refuse(file, LS_ERR_USAGE, EFBIG,
                            "%s has more than the %lld bytes that are read", path, (long long)most);
        }
        if (status != LS_OK) {
            free(text);
            return status;
        }
    } while (used == room);
    text[used] = '\0';
    *data = text;
    *bytes = used;
    return LS_OK;
}

ls_status ls_file_load(const char *path, int64_t most, ls_file_source *file, char **data,
                       size_t *bytes)
{
    LS_TRY(ls_file_open(path, most, file));
    ls_status status = load(file, path, most, data, bytes);
    int error = errno;
    close(file->descriptor);
    errno = error;
    return status;
}

ls_status ls_file_read(const char *path, int64_t most, char **data, size_t *bytes)
{
    ls_file_source file;
    ls_status status = ls_file_load(path, most, &file, data, bytes);
    return status == LS_OK ? LS_OK : ls_log_fail(status, "%s", file.why);
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
    int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_CLOEXEC, 0666);
    if (descriptor < 0 || fcntl(descriptor, F_SETFL, O_WRONLY) != 0) {
        ls_log_error("cannot create %s: %s", path, strerror(errno));
        if (descriptor >= 0) {
            close(descriptor);
        }
        return NULL;
    }
    FILE *file = fdopen(descriptor, "w");
    LS_ASSERT(file != NULL);
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
