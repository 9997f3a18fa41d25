#define _GNU_SOURCE
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plain.h"

enum { LINE_BYTES_MAX = 4096 };

static void log_line(const char *kind, const char *format, va_list arguments)
{
    char text[LINE_BYTES_MAX], line[LINE_BYTES_MAX];
    int saved_errno = errno;
    const char *rank = getenv("RANK");
    bool ranked = rank != NULL && rank[0] != '\0';
    (void)snprintf(text, sizeof text, "%.1000s%s%.8s%s: %s", program_invocation_short_name,
                   ranked ? "[" : "", ranked ? rank : "", ranked ? "]" : "", kind);
    size_t used = strlen(text);
    (void)vsnprintf(text + used, sizeof text - used, format, arguments);
    ls_plain_copy(line, sizeof line - 1, text);
    size_t length = strlen(line);
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
