/* Test helper: programs of this build run on the emulated device, each test with a folder for their
 * output. */
#ifndef LS_UNIT_EMULATED_RUN_H
#define LS_UNIT_EMULATED_RUN_H

#include <check.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/core/path.h"

/* The folder of programs, with emulated/lib below it; the test's own. */
static char build[PATH_MAX], folder[PATH_MAX];

static inline void find_build(void)
{
    ls_path_program(build, sizeof build);
    *strrchr(build, '/') = '\0';
}

static inline void set_up(void)
{
    find_build();
    snprintf(folder, sizeof folder, "/tmp/ls_emulated_run_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static inline void tear_down(void)
{
    ls_path_remove_tree(folder);
}

/* Exit code of a command of the shell; -1 if a signal ended it. */
static inline int exit_code(int status)
{
    return status >= 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A file of the folder, "" if it is missing; the caller frees it. */
static inline char *read_file(const char *name)
{
    char path[2 * PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return strdup("");
    }
    struct stat about;
    ck_assert_int_eq(fstat(fileno(file), &about), 0);
    char *text = calloc((size_t)about.st_size + 1, 1);
    ck_assert_uint_eq(fread(text, 1, (size_t)about.st_size, file), (size_t)about.st_size);
    fclose(file);
    return text;
}

static inline bool says(const char *name, const char *what)
{
    char *text = read_file(name);
    bool found = strstr(text, what) != NULL;
    free(text);
    return found;
}

#endif
