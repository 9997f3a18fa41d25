#define _GNU_SOURCE
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LINE_BYTES_MAX = 4096 };

static void log_line(const char *kind, const char *format, va_list arguments)
{
    char line[LINE_BYTES_MAX];
    int saved_errno = errno;
    const char *rank = getenv("RANK");
    bool ranked = rank != NULL && rank[0] != '\0';
    int used = snprintf(line, sizeof line, "%s%s%.8s%s: %s", program_invocation_short_name,
                        ranked ? "[" : "", ranked ? rank : "", ranked ? "]" : "", kind);
    if (used < 0 || used > LINE_BYTES_MAX / 2) {
        used = 0;
    }
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    size_t length = (size_t)used + (more > 0 ? (size_t)more : 0);
    if (length > sizeof line - 2) {
        length = sizeof line - 2;
    }
    line[length] = '\n';
    ssize_t written = write(STDERR_FILENO, line, length + 1);
    (void)written; /* stderr itself fails: there is nowhere to report it */
    errno = saved_errno;
}

void ls_log_error(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_line("error: ", format, arguments);
    va_end(arguments);
}

ls_status ls_log_fail(ls_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_line("error: ", format, arguments);
    va_end(arguments);
    return status;
}

void ls_log_warn(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_line("warning: ", format, arguments);
    va_end(arguments);
}

void ls_log_note(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    log_line("", format, arguments);
    va_end(arguments);
}
