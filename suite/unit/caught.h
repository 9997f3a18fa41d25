/* What a call writes to stderr, and a shell command to stdout, as text. */
#ifndef LS_UNIT_CAUGHT_H
#define LS_UNIT_CAUGHT_H

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static FILE *caught_file;
static int caught_stderr;

/* From here to caught_text or caught_lines, stderr goes to a file. */
static inline void catch_lines(void)
{
    caught_file = tmpfile();
    ck_assert_ptr_nonnull(caught_file);
    fflush(stderr);
    caught_stderr = dup(STDERR_FILENO);
    dup2(fileno(caught_file), STDERR_FILENO);
}

/* What was written since; valid until the next call. */
static inline const char *caught_text(void)
{
    static char text[4096];
    fflush(stderr);
    dup2(caught_stderr, STDERR_FILENO);
    close(caught_stderr);
    rewind(caught_file);
    text[fread(text, 1, sizeof text - 1, caught_file)] = '\0';
    fclose(caught_file);
    return text;
}

/* The same without the program and its rank before the first line ("error: ...\n"). */
static inline const char *caught_lines(void)
{
    const char *text = caught_text();
    const char *begin = strstr(text, ": ");
    return begin == NULL ? text : begin + 2;
}

/* text[bytes] gets its standard output; returns its exit code, or 128 and the signal. */
static inline int shell_says(const char *command, char *text, size_t bytes)
{
    FILE *pipe = popen(command, "r");
    ck_assert_ptr_nonnull(pipe);
    text[fread(text, 1, bytes - 1, pipe)] = '\0';
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#endif
