/* The lines of a file one after the other: it may be larger than memory. */
#ifndef LS_CORE_LINES_H
#define LS_CORE_LINES_H

#include <stdbool.h>
#include <stddef.h>

#include "file.h"

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
void ls_lines_close(ls_lines *lines);

#endif
