/* What a shell command prints. */
#ifndef LS_UNIT_SHELL_H
#define LS_UNIT_SHELL_H

#include <check.h>
#include <stdio.h>
#include <sys/wait.h>

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
