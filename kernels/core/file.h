/* Regular files, opened without waiting and read whole, and writes that are not cut short. */
#ifndef LS_FILE_H
#define LS_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The most that is read of a log or a table; of events: LS_LINES_FILE_BYTES. */
#define LS_FILE_TEXT_BYTES (INT64_C(1) << 30)

/* The most that is read of a dump or a checkpoint: half of this machine's memory. */
int64_t ls_file_most(void);

/* A file opened for reading. */
typedef struct ls_file_source {
    int descriptor;           /* -1 when it was not opened; else the caller closes it */
    int64_t bytes;            /* its size when it was opened */
    char why[PATH_MAX + 128]; /* after a failure: a sentence with the path and the reason */
} ls_file_source;

/* Opens a regular file of at most `most` bytes, without a message. What a trainer left under a name
 * may be a FIFO, whose reader waits for ever, or a device, which never ends: LS_ERR_USAGE and "x is
 * a FIFO, not a regular file". LS_ERR_INFRA when it cannot be opened. errno is set in both cases.
 * Every reader of the tree opens its files here (suite/unit/lint.sh lists the exceptions). */
ls_status ls_file_open(const char *path, int64_t most, ls_file_source *out);
/* Reads the next `bytes` bytes. LS_ERR_INFRA, and the reason in file->why, also when another
 * process has made the file shorter since it was opened. */
ls_status ls_file_fill(ls_file_source *file, const char *path, void *to, size_t bytes);
/* Reads until `bytes` bytes or the end of the file: *used bytes. */
ls_status ls_file_fill_some(ls_file_source *file, const char *path, void *to, size_t bytes,
                            size_t *used);
/* Reads the whole file, without a message; *data is malloc'ed and ends with a 0 that *bytes does
 * not count. A file that grows meanwhile is read to its end if that comes within `most` bytes.
 * Statuses as above, LS_ERR_INFRA also without memory. */
ls_status ls_file_load(const char *path, int64_t most, ls_file_source *file, char **data,
                       size_t *bytes);
/* The same; logs the reason. */
ls_status ls_file_read(const char *path, int64_t most, char **data, size_t *bytes);
/* Opens a file for writing and creates it if it is missing; `flags`: O_TRUNC, O_APPEND or both.
 * Does not wait for the reader of a FIFO. -1 and errno, without a message. */
int ls_file_open_to_write(const char *path, int flags);
/* Opens a new file for text, without waiting for the reader of a FIFO; NULL and the reason logged
 * when it cannot be created. */
FILE *ls_file_create(const char *path);
/* Relays to the caller that it could not be created. */
#define LS_TRY_FILE(file) LS_TRY((file) != NULL ? LS_OK : LS_ERR_INFRA)
/* Closes it. LS_ERR_INFRA, logged with the path, when some of it was not written. */
ls_status ls_file_close(FILE *file, const char *path);
/* Writes all bytes to the descriptor. LS_ERR_INFRA is logged with `path` and the system's text. */
ls_status ls_file_write(int descriptor, const char *path, const void *data, size_t bytes);
/* From here on a write beyond the file size limit of the process (ulimit -f) fails as on a full
 * disk, where SIGXFSZ would end the process without a word. */
void ls_file_survive_limit(void);

/* A new content for a path. It has no name until it is complete, so a process that is killed while
 * it writes leaves nothing behind, and a reader finds the old file or the new one. Replacing a file
 * takes a second name, PATH.tmp<pid>, between two system calls, and where a file system has no
 * nameless files (NFS) for the whole time of writing: what a killed process has left of these is
 * removed when the path is written next. */
typedef struct ls_file_draft {
    int descriptor; /* write here */
    bool named;     /* `temporary` exists */
    char path[PATH_MAX], temporary[PATH_MAX];
} ls_file_draft;

/* 0, or the errno, without a message. */
int ls_file_draft_open(const char *path, ls_file_draft *out);
/* Closes it. If `status` is LS_OK, gives it its path, else discards it. Returns `status`, or
 * LS_ERR_INFRA, logged. durable: its data reaches the disk first and its name last, so that the
 * path names a complete file even after a power failure, and a process that is killed leaves no
 * second name either. */
ls_status ls_file_draft_close(ls_file_draft *draft, ls_status status, bool durable);
/* Gives the file `from` the second name `path`, in place of the file that had it, in one step as
 * above, durable. 0, or the errno, such as that of a file system without hard links. */
int ls_file_second_name(const char *from, const char *path);
/* All of it: the path's new content is data[bytes]. */
ls_status ls_file_replace(const char *path, const void *data, size_t bytes);

/* The lines of a file one after the other: it may be larger than memory. */

/* The most that is read of a file line by line (events of a long job), and the longest line. */
#define LS_LINES_FILE_BYTES (INT64_C(1) << 38)
#define LS_LINES_LINE_BYTES ((size_t)1 << 28)

typedef struct ls_lines {
    ls_file_source file; /* file.why: after a failure, a sentence with the path and the reason */
    const char *path;    /* the caller's */
    size_t longest;      /* bytes */
    char *data;          /* [room + 1]: what was read and not yet given away is from begin to end */
    size_t room, begin, end;
    int64_t left; /* bytes of the file that may still be read */
} ls_lines;

/* Opens a regular file, whose lines have at most `longest` bytes. Statuses as those of
 * ls_file_open, without a message. The path is to live as long as *out. */
ls_status ls_lines_open(const char *path, size_t longest, ls_lines *out);
/* The next line: *bytes without its newline, which is a 0 now; until the next call. *line is NULL
 * at the end of the file. *whole: false of a last line that has no newline. LS_ERR_USAGE where one
 * is longer than allowed, LS_ERR_INFRA where nothing can be read; then lines->file.why says so. */
ls_status ls_lines_next(ls_lines *lines, char **line, size_t *bytes, bool *whole);
/* The next whole line of a file that is being written; *line is NULL where there is none yet: a
 * later call goes on there. */
ls_status ls_lines_next_whole(ls_lines *lines, char **line);
void ls_lines_close(ls_lines *lines);

#ifdef __cplusplus
}
#endif

#endif
