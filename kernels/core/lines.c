#include "file.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIRST_BYTES = 1 << 16 };

ls_status ls_lines_open(const char *path, size_t longest, ls_lines *out)
{
    *out = (ls_lines){.path = path, .longest = longest, .left = LS_LINES_FILE_BYTES};
    return ls_file_open(path, LS_LINES_FILE_BYTES, &out->file);
}

static ls_status refuse(ls_lines *lines, ls_status status, const char *what, long long bytes)
{
    snprintf(lines->file.why, sizeof lines->file.why, "%s has %s %lld bytes", lines->path, what,
             bytes);
    return status;
}

/* Makes room behind what is not yet given away. */
static ls_status make_room(ls_lines *lines)
{
    if (lines->begin > 0) {
        memmove(lines->data, lines->data + lines->begin, lines->end - lines->begin);
        lines->end -= lines->begin;
        lines->begin = 0;
    }
    if (lines->end < lines->room) {
        return LS_OK;
    }
    if (lines->room > lines->longest) {
        return refuse(lines, LS_ERR_USAGE, "a line of more than", (long long)lines->longest);
    }
    size_t room = lines->room == 0 ? FIRST_BYTES : 2 * lines->room;
    room = room <= lines->longest ? room : lines->longest + 1; /* and its newline */
    char *larger = realloc(lines->data, room + 1);
    if (larger == NULL) {
        return refuse(lines, LS_ERR_INFRA, "a line for which there is no memory:", (long long)room);
    }
    lines->data = larger;
    lines->room = room;
    return LS_OK;
}

/* Reads on; *got: 0 at the end of the file. */
static ls_status read_on(ls_lines *lines, size_t *got)
{
    LS_TRY(make_room(lines));
    LS_TRY(ls_file_fill_some(&lines->file, lines->path, lines->data + lines->end,
                             lines->room - lines->end, got));
    lines->end += *got;
    lines->left -= (int64_t)*got;
    return lines->left >= 0 ? LS_OK
                            : refuse(lines, LS_ERR_USAGE, "more than the", LS_LINES_FILE_BYTES);
}

ls_status ls_lines_next(ls_lines *lines, char **line, size_t *bytes, bool *whole)
{
    size_t seen = 0, got = 1;
    char *newline = NULL;
    *line = NULL;
    while (newline == NULL && got > 0) {
        size_t from = lines->begin + seen;
        newline = from < lines->end ? memchr(lines->data + from, '\n', lines->end - from) : NULL;
        seen = lines->end - lines->begin;
        if (newline == NULL) {
            LS_TRY(read_on(lines, &got));
        }
    }
    if (newline == NULL && seen == 0) {
        return LS_OK;
    }
    *line = lines->data + lines->begin;
    *bytes = newline == NULL ? seen : (size_t)(newline - *line);
    *whole = newline != NULL;
    (*line)[*bytes] = '\0';
    lines->begin += *bytes + (newline == NULL ? 0 : 1);
    return LS_OK;
}

ls_status ls_lines_next_whole(ls_lines *lines, char **line)
{
    size_t bytes = 0;
    bool whole = true;
    ls_status status = ls_lines_next(lines, line, &bytes, &whole);
    if (status == LS_OK && !whole) {
        lines->begin -= bytes; /* to be read again with its rest */
        *line = NULL;
    }
    return status;
}

void ls_lines_close(ls_lines *lines)
{
    free(lines->data);
    lines->data = NULL;
    if (lines->file.descriptor >= 0) {
        close(lines->file.descriptor);
        lines->file.descriptor = -1;
    }
}
