/* Test helper: a fresh folder for each test, and its files. */
#ifndef LS_UNIT_SCRATCH_H
#define LS_UNIT_SCRATCH_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/core/path.h"
#include "kernels/core/status.h"
#include "kernels/core/text.h"

static char scratch[200]; /* made and removed by the fixture */

static inline void open_scratch(void)
{
    ls_text_put(scratch, sizeof scratch, "/tmp/ls_report_XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(scratch));
}

static inline void close_scratch(void)
{
    ls_path_remove_tree(scratch);
}

/* A new file below the folder, and the folders that it needs. */
static inline FILE *create(const char *name)
{
    char path[400];
    ls_text_put(path, sizeof path, "%s/%s", scratch, name);
    *strrchr(path, '/') = '\0';
    LS_ASSERT(ls_path_make_folder(path) == LS_OK);
    ls_text_put(path, sizeof path, "%s/%s", scratch, name);
    FILE *file = fopen(path, "w");
    LS_ASSERT(file != NULL);
    return file;
}

static inline void write_text(const char *name, const char *text)
{
    FILE *file = create(name);
    ck_assert(fputs(text, file) >= 0 && fclose(file) == 0);
}

static inline char *read_text(const char *name)
{
    LS_TEXT(path, 400, "%s/%s", scratch, name);
    char *text = ls_text_read(path);
    ck_assert_msg(text != NULL, "no %s", path);
    return text;
}

#endif
