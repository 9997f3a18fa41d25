#define _GNU_SOURCE
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
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

ls_status ls_file_fill_some(ls_file_source *file, const char *path, void *to, size_t bytes,
                            size_t *used)
{
    for (*used = 0; *used < bytes;) {
        ssize_t got = read(file->descriptor, (char *)to + *used, bytes - *used);
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
    LS_TRY(ls_file_fill_some(file, path, to, bytes, &used));
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
        LS_THEN(status, ls_file_fill_some(file, path, text + used, room - used, &got));
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

int ls_file_open_to_write(const char *path, int flags)
{
    int descriptor = open(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC | flags, 0666);
    if (descriptor >= 0) {
        (void)fcntl(descriptor, F_SETFL, O_WRONLY | flags);
    }
    return descriptor;
}

FILE *ls_file_create(const char *path)
{
    int descriptor = ls_file_open_to_write(path, O_TRUNC);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
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

void ls_file_survive_limit(void)
{
    (void)signal(SIGXFSZ, SIG_IGN);
}

/* ---- drafts ---------------------------------------------------------------------------------- */

/* Removes NAME.tmp<pid> of writers that have ended: a running one holds its lock. */
static void remove_stale(const char *folder, const char *name)
{
    size_t length = strlen(name);
    DIR *entries = opendir(folder);
    for (struct dirent *e; entries != NULL && (e = readdir(entries)) != NULL;) {
        const char *end = e->d_name + length;
        if (strncmp(e->d_name, name, length) != 0 || strncmp(end, ".tmp", 4) != 0 ||
            end[4] == '\0' || end[4 + strspn(end + 4, "0123456789")] != '\0') {
            continue;
        }
        int file = openat(dirfd(entries), e->d_name,
                          O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY);
        if (file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0) {
            (void)unlinkat(dirfd(entries), e->d_name, 0);
        }
        if (file >= 0) {
            close(file);
        }
    }
    if (entries != NULL) {
        closedir(entries);
    }
}

/* Creates the temporary name and locks it, again if another writer's remove_stale came between. */
static void create_named(ls_file_draft *draft)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        struct stat about;
        draft->descriptor = open(draft->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (draft->descriptor < 0 && errno != EEXIST) {
            return;
        }
        if (draft->descriptor < 0) {
            (void)unlink(draft->temporary); /* of this process: not a file, or not unlocked yet */
            continue;
        }
        (void)flock(draft->descriptor, LOCK_EX | LOCK_NB);
        if (fstat(draft->descriptor, &about) == 0 && about.st_nlink > 0) {
            draft->named = true;
            return;
        }
        close(draft->descriptor);
        draft->descriptor = -1;
        errno = EEXIST;
    }
}

/* With a slash at its end; folder[PATH_MAX]. */
static void folder_of(const char *path, char *folder)
{
    const char *slash = strrchr(path, '/');
    snprintf(folder, PATH_MAX, "%.*s", slash == NULL ? 2 : (int)(slash - path) + 1,
             slash == NULL ? "./" : path);
}

int ls_file_draft_open(const char *path, ls_file_draft *out)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash == NULL ? path : slash + 1;
    *out = (ls_file_draft){.descriptor = -1};
    if (snprintf(out->temporary, PATH_MAX, "%s.tmp%d", path, (int)getpid()) >= PATH_MAX ||
        strlen(out->temporary) - (size_t)(name - path) > NAME_MAX) {
        return ENAMETOOLONG;
    }
    strcpy(out->path, path);
    folder_of(path, folder);
    remove_stale(folder, name);
    if (access("/proc/self/fd", X_OK) == 0) { /* which gives a file without a name its name */
        out->descriptor = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
    }
    if (out->descriptor < 0) {
        create_named(out);
    }
    return out->descriptor < 0 ? errno : 0;
}

/* 0, or the errno: also what close would report of the data, while the lock is still held. */
static int flush(const ls_file_draft *draft, bool durable)
{
    if (durable && fsync(draft->descriptor) != 0 && errno != EINVAL && errno != EROFS) {
        return errno;
    }
    int copy = dup(draft->descriptor);
    return copy >= 0 && close(copy) == 0 ? 0 : errno;
}

/* 0, or the errno. */
static int link_and_rename(const ls_file_draft *draft, const char *nameless)
{
    return linkat(AT_FDCWD, nameless, AT_FDCWD, draft->temporary, AT_SYMLINK_FOLLOW) != 0 ||
                   rename(draft->temporary, draft->path) != 0
               ? errno
               : 0;
}

/* The same in a process with a session of its own: SIGKILL, to this process or to its group, cannot
 * come between the two calls. vfork, as a trainer's memory is not to be copied; the child's signals
 * are blocked, as it would run this process's handlers. */
static int link_and_rename_in_child(const ls_file_draft *draft, const char *nameless)
{
    sigset_t all, before;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t child = vfork();
    if (child == 0) {
        (void)setsid();
        _exit(link_and_rename(draft, nameless));
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (child < 0) {
        return link_and_rename(draft, nameless);
    }
    int code = 0;
    pid_t waited;
    while ((waited = waitpid(child, &code, 0)) < 0 && errno == EINTR) {
    }
    if (waited < 0) { /* SIGCHLD is ignored here: what has become of the path says it */
        struct stat mine, there;
        return fstat(draft->descriptor, &mine) == 0 && stat(draft->path, &there) == 0 &&
                       mine.st_ino == there.st_ino && mine.st_dev == there.st_dev
                   ? 0
                   : EIO;
    }
    return WIFEXITED(code) ? WEXITSTATUS(code) : EIO;
}

/* Where a nameless file can be written but not linked its data goes to a named one. 0, or the
 * errno. */
static int copy_to_named(ls_file_draft *draft, bool durable)
{
    int from = draft->descriptor, error = 0;
    off_t at = 0;
    ssize_t sent = 1;
    create_named(draft);
    while (draft->descriptor >= 0 && sent > 0) {
        sent = sendfile(draft->descriptor, from, &at, 1 << 30);
    }
    if (draft->descriptor < 0 || sent < 0) {
        error = errno;
    }
    close(from);
    error = error == 0 ? flush(draft, durable) : error;
    return error == 0 && rename(draft->temporary, draft->path) != 0 ? errno : error;
}

/* A link never replaces a file, a rename does. 0, or the errno. */
static int publish(ls_file_draft *draft, bool durable)
{
    char nameless[64];
    if (draft->named) {
        return rename(draft->temporary, draft->path) == 0 ? 0 : errno;
    }
    snprintf(nameless, sizeof nameless, "/proc/self/fd/%d", draft->descriptor);
    if (linkat(AT_FDCWD, nameless, AT_FDCWD, draft->path, AT_SYMLINK_FOLLOW) == 0) {
        return 0;
    }
    if (errno != EEXIST) {
        return copy_to_named(draft, durable);
    }
    (void)flock(draft->descriptor, LOCK_EX | LOCK_NB);
    (void)unlink(draft->temporary);
    draft->named = true;
    return durable ? link_and_rename_in_child(draft, nameless) : link_and_rename(draft, nameless);
}

/* The folder's list of names reaches the disk. 0, or the errno. */
static int sync_folder(const char *path)
{
    char folder[PATH_MAX];
    folder_of(path, folder);
    int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = descriptor < 0 || fsync(descriptor) != 0 ? errno : 0;
    if (descriptor >= 0) {
        close(descriptor);
    }
    /* file systems without it, and folders that may be written but not read */
    return error == EINVAL || error == EROFS || error == EACCES ? 0 : error;
}

ls_status ls_file_draft_close(ls_file_draft *draft, ls_status status, bool durable)
{
    if (status == LS_OK) {
        int error = flush(draft, durable);
        error = error == 0 ? publish(draft, durable) : error;
        error = error == 0 && durable ? sync_folder(draft->path) : error;
        status = error == 0 ? LS_OK
                            : ls_log_fail(LS_ERR_INFRA, "cannot write %s: %s", draft->path,
                                          strerror(error));
    }
    if (status != LS_OK && draft->named) {
        (void)unlink(draft->temporary);
    }
    if (draft->descriptor >= 0) {
        close(draft->descriptor);
    }
    return status;
}

int ls_file_second_name(const char *from, const char *path)
{
    ls_file_draft draft = {.descriptor = open(from, O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
    if (draft.descriptor < 0) {
        return errno;
    }
    int error = ENAMETOOLONG;
    if (snprintf(draft.path, PATH_MAX, "%s", path) < PATH_MAX &&
        snprintf(draft.temporary, PATH_MAX, "%s.tmp%d", path, (int)getpid()) < PATH_MAX) {
        (void)unlink(draft.temporary);
        error = link_and_rename_in_child(&draft, from);
        (void)unlink(draft.temporary); /* rename leaves it where both names are of one file */
        error = error == 0 ? sync_folder(path) : error;
    }
    close(draft.descriptor);
    return error;
}

ls_status ls_file_replace(const char *path, const void *data, size_t bytes)
{
    ls_file_draft draft;
    int error = ls_file_draft_open(path, &draft);
    if (error != 0) {
        return ls_log_fail(LS_ERR_INFRA, "cannot create %s: %s", path, strerror(error));
    }
    return ls_file_draft_close(&draft, ls_file_write(draft.descriptor, path, data, bytes), false);
}
